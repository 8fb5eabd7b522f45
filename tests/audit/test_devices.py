"""A user's training on a device: replay and canaries see what they see on the CPU, up to rounding.

By a stand-in (`stand_in_device`), on which nothing can be drawn, and by the accelerator of this machine, if
it has one, with a generator of that device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.audit.canaries.run import CanaryJob, train_with_canaries
from workbench.audit.replay.run import ReplayJob, replay_user
from workbench.audit.settings import embedded_settings
from workbench.audit.user_training import UserTraining
from workbench.core.errors import InputError

SOURCE = """
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional


def train(records, seed, device="cpu"):
    coins = torch.Generator().manual_seed(seed)
    noise = torch.Generator(PLACE).manual_seed(seed)
    network = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(network.weight), torch.nn.init.zeros_(network.bias)
    network.to(device)
    images, labels = tensors(records, device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)

    def loss(weights, image, label):
        return functional.cross_entropy(functional_call(network, weights, (image[None],)), label[None])

    for _ in range(4):
        batch = (torch.rand(len(records), generator=coins) < 0.25).to(device)
        weights = {name: p.detach() for name, p in network.named_parameters()}
        each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, images[batch], labels[batch])
        norms = torch.linalg.vector_norm(torch.cat([g.flatten(1) for g in each.values()], 1), dim=1)
        for name, parameter in network.named_parameters():
            total = torch.einsum("n,n...->...", (1.0 / norms).clamp(max=1.0), each[name])
            drawn = torch.randn(parameter.shape, generator=noise, device=noise.device).to(device)
            parameter.grad = (total + drawn) / (0.25 * len(records))
        network(images[:1])
        optimizer.step()

    def score(records):
        images, labels = tensors(records, device)
        return -functional.cross_entropy(network(images), labels, reduction="none")

    return score


def tensors(records, device):
    images = torch.tensor([record["image"] for record in records])
    return images.to(device), torch.tensor([record["label"] for record in records]).to(device)
"""


def trainer(folder: Path, place: str) -> str:
    """A file with the function; `place` is the code of its noise's device."""
    file = folder / f"trainer_{len(list(folder.iterdir()))}.py"
    file.write_text(SOURCE.replace("PLACE", place), encoding="utf-8")
    return f"{file}:train"


def job_of(spec: str, device: str) -> dict[str, Any]:
    """What jobs on forty digits have in common."""
    settings = embedded_settings(corpus="digits", corpus_parameters={}, candidates=40, device=device)
    return {"setup": settings.setup(()), "spec": spec, "included": (True,) * 40}


@pytest.mark.slow
def test_a_replay_measures_on_a_device_what_it_does_on_the_cpu(
    device: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_real = "accelerator" in request.node.name
    specs = {"cpu": trainer(tmp_path, "'cpu'"), device: trainer(tmp_path, "device" if is_real else "'cpu'")}
    ours, theirs = (
        replay_user(ReplayJob(**job_of(spec, place)), {}, tmp_path, lambda done, total, part: None)[
            "measured"
        ]
        for place, spec in specs.items()
    )
    assert "reason" not in ours
    assert "reason" not in theirs, theirs["reason"]
    assert (theirs["steps"], theirs["recognised"]) == (ours["steps"], ours["recognised"])
    # The noise of another generator is other noise: its scale is known to a few hundredths.
    np.testing.assert_allclose(
        [theirs["noise"][name] for name in sorted(theirs["noise"])],
        [ours["noise"][name] for name in sorted(ours["noise"])],
        rtol=0.1 if is_real else 1e-4,
    )


def test_canaries_move_on_a_device_as_on_the_cpu(device: str, tmp_path: Path) -> None:
    spec = trainer(tmp_path, "'cpu'")
    ours, theirs = (
        train_with_canaries(
            CanaryJob(**job_of(spec, place), coins=(True, False) * 8, run=0),
            {},
            tmp_path,
            lambda done, total, part: None,
        )
        for place in ("cpu", device)
    )
    assert "reason" not in ours
    assert "reason" not in theirs, theirs["reason"]
    for name in ("scores", "answers"):
        np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-3, atol=1e-3)


def test_a_device_goes_to_a_function_that_takes_one(tmp_path: Path) -> None:
    file = tmp_path / "without.py"
    file.write_text(
        "def train(records, seed):\n    return lambda records: [0.0] * len(records)\n", encoding="utf-8"
    )
    UserTraining(f"{file}:train")
    with pytest.raises(
        InputError, match="device cuda goes with a training function that has a parameter of that name"
    ):
        UserTraining(f"{file}:train", "cuda")
    taking = UserTraining(trainer(tmp_path, "'cpu'"), "meta")
    assert taking.function.keywords == {"device": "meta"}

"""A watched training is the same to the bit, its file says what it did, and only a sure excess refutes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.func import functional_call, grad, vmap

import workbench
from workbench.audit.claims import EXAMPLE, parse_claim
from workbench.audit.watched import record
from workbench.audit.watched.counters import DrawCounter
from workbench.audit.watched.judging import BY_SETTING, BY_SIZE, Judged, judged, noise_of, size_of_epochs
from workbench.audit.watched.record import Watch
from workbench.audit.watched.run_file import (
    FORWARD,
    PER_RECORD,
    Header,
    Step,
    WatchedRun,
    is_read,
    read_run,
)
from workbench.cli.app import main
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, Released

ZOO = Path(__file__).parents[1] / "zoo"
sys.path.insert(0, str(ZOO))
try:
    import correct
    import dp_sgd
finally:
    sys.path.remove(str(ZOO))

CLAIM_TEXT = EXAMPLE
CLAIM = parse_claim(EXAMPLE, released=Released.EVERY_UPDATE)
RECORDS = 200
STATED = {"records": RECORDS, "clip": 1.0, "divisor": 20.0}


def records() -> list[dict[str, Any]]:
    data = load_digits()
    rows = zip(data.data[:RECORDS] / 16.0, data.target[:RECORDS], strict=True)
    return [{"image": image.tolist(), "label": int(label)} for image, label in rows]


def watched(
    monkeypatch: pytest.MonkeyPatch, trainer: Any, *, seed: int = 0, **stated: Any
) -> tuple[WatchedRun, Any]:
    """A trainer of the zoo under watch, and its scores."""
    watches: list[Watch] = []
    make = type(trainer).optimizer

    def optimizer(self: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = make(self)
        watches.append(workbench.watch(made, file=None, **{**STATED, **stated}))
        watches[-1].__enter__()
        return made

    monkeypatch.setattr(type(trainer), "optimizer", optimizer)
    scorer = trainer(records(), seed)
    watches[0].__exit__(None, None, None)
    monkeypatch.undo()
    return replace(watches[0].run(), end="finished"), scorer(records())


def held(monkeypatch: pytest.MonkeyPatch, trainer: Any, **more: Any) -> Judged:
    return judged(CLAIM, watched(monkeypatch, trainer, **more)[0])


@pytest.mark.parametrize("name", ["correct", "flat_noise", "clipped_again_after_noise", "fixed_batches"])
def test_a_correct_trainer_is_not_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = correct.TRAINERS.get(name) or getattr(dp_sgd, name)
    found = held(monkeypatch, trainer)
    expected = {"clipped_again_after_noise": "UNDECIDED", "fixed_batches": "UNDECIDED"}
    assert found.verdict.kind == expected.get(name, "NOT_REFUTED"), found.verdict.sentence
    if found.verdict.kind == "NOT_REFUTED":
        assert 0.7 < found.lower < 1.0
        assert "does not show that the claim is true" in found.verdict.sentence


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", correct.TRAINERS)
def test_no_correct_trainer_is_refuted(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = 100.0 if name == "large_clip" else 1.0
    found = held(monkeypatch, correct.TRAINERS[name], seed=seed, clip=clip)
    assert found.verdict.kind in {"NOT_REFUTED", "UNDECIDED"}, found.verdict.sentence


def test_updates_without_room_for_the_noise_refute(monkeypatch: pytest.MonkeyPatch) -> None:
    found = held(monkeypatch, dp_sgd.tenth_of_the_noise)
    assert found.verdict.kind == "REFUTED"
    assert found.noise.source == BY_SIZE
    assert found.lower > 10
    assert "were they nothing but noise" in found.verdict.sentence
    assert [fault.part for fault in found.faults] == ["accountant"]
    assert held(monkeypatch, dp_sgd.no_noise).verdict.kind == "REFUTED"


def test_what_is_not_stated_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = held(monkeypatch, dp_sgd.no_noise, clip=None, divisor=None)
    assert found.verdict.kind == "UNDECIDED"
    assert "run workbench replay" in found.verdict.sentence
    run, _ = watched(monkeypatch, dp_sgd.correct, clip=None, divisor=None, records=None)
    found = judged(CLAIM, run)
    assert found.verdict.kind == "UNDECIDED"
    assert "(records=)" in found.verdict.sentence
    assert "(clip=, divisor=)" in found.verdict.sentence
    assert run.steps[0].draws == 4
    assert run.steps[0].std == pytest.approx(dp_sgd.noise_multiplier())


def test_batches_larger_than_the_divisor_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = held(monkeypatch, dp_sgd.triple_rate)
    assert [fault.part for fault in found.faults] == ["sampler"]
    assert found.verdict.kind == "UNDECIDED"


def test_too_many_steps_for_a_stated_noise_refute() -> None:
    run = made_run(steps=400)
    found = judged(CLAIM, run)
    assert found.verdict.kind == "REFUTED"
    assert found.faults[0].part == "accountant"
    assert judged(CLAIM, made_run(steps=40)).verdict.kind == "NOT_REFUTED"


SIZES = np.random.default_rng(0).binomial(200, 0.1, size=500).tolist()
"""Of Poisson samples."""


def made_run(*, steps: int, size: Callable[[int], int] = lambda t: SIZES[t], **more: Any) -> WatchedRun:
    """A run with the noise for 40 steps at rate 0.1."""
    header = Header(optimizer="x", parameters=9, records=200, noise_multiplier=dp_sgd.noise_multiplier())
    kept = tuple(Step(step=t, batch=size(t), counted=PER_RECORD, **more) for t in range(1, steps + 1))
    return WatchedRun(header=header, steps=kept, end="finished")


def test_batches_of_one_size_are_held_against_shuffled_epochs_too() -> None:
    run = made_run(steps=400, size=lambda t: 20)
    assert size_of_epochs(run) == (20, True)
    found, poisson = judged(CLAIM, run), judged(CLAIM, made_run(steps=400))
    assert [fault.part for fault in found.faults] == ["sampler"]
    assert found.lower <= poisson.lower
    few = judged(CLAIM, made_run(steps=9, size=lambda t: 20, noise_multiplier=0.3))
    assert few.lower == 0.0  # Less than an epoch, of which no bound is known.
    assert few.verdict.kind == "UNDECIDED"


def test_entries_that_are_always_as_many_may_be_no_records() -> None:
    """Such as the tokens of a model whose first dimension is time."""
    run = made_run(steps=400, size=lambda t: 20)
    steps = [replace(step, counted=FORWARD) for step in run.steps]
    found = judged(CLAIM, replace(run, steps=steps))
    assert found.verdict.kind == "UNDECIDED"
    assert "another record (divisor=)" in found.verdict.sentence
    stated = replace(run.header, divisor=20.0)
    assert judged(CLAIM, replace(run, header=stated, steps=steps)).verdict.kind == "REFUTED"


def test_a_step_without_noise_has_no_finite_epsilon_unless_delta_hides_it() -> None:
    found = judged(CLAIM, made_run(steps=3, noise_multiplier=0.0))
    assert math.isinf(found.lower)
    assert found.verdict.kind == "REFUTED"
    run = made_run(steps=1, size=lambda t: 1, noise_multiplier=0.0)
    rare = replace(run, header=replace(run.header, records=10**7))
    assert judged(CLAIM, rare).lower == 0.0


def test_norms_and_draws_are_read_of_the_first_steps_and_then_of_one_in_thirty_two() -> None:
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    own = torch.normal, vars(torch.Tensor).get("normal_")
    with workbench.watch(optimizer, file=None) as run:
        for step in range(330):
            layer(torch.ones(3, 2)).sum().backward()
            if step % 2:
                layer.weight.grad += torch.normal(0.0, 2.0, layer.weight.shape)
            optimizer.step()
            optimizer.zero_grad()
    assert (torch.normal, vars(torch.Tensor).get("normal_")) == own
    assert [step.step for step in run.steps[256:] if step.norm is not None] == [288, 320]
    assert [step.step for step in run.steps[256:] if step.draws is not None] == [288, 320]
    assert [step.draws for step in run.steps[:4]] == [0, 1, 0, 1]
    assert [run.steps[at].draws for at in (287, 319)] == [1, 1]
    assert run.steps[287].std == pytest.approx(2 * math.sqrt(2 / 3))
    assert {step.values for step in run.steps} == {3}
    says = "noise is drawn before 130 of the 258 steps before which draws are read alone"
    assert [fault.says for fault in noise_of(run.run(), 0.05).faults] == [says]


def test_draws_are_counted_while_it_listens() -> None:
    layer, own = torch.nn.Linear(2, 1), torch.normal
    counter = DrawCounter(list(layer.parameters()))

    def drawn() -> tuple[int | None, float | None]:
        torch.normal(0.0, 3.0, (1, 2))
        return counter.taken(2)

    with counter:
        assert drawn() == (1, 3.0)
        counter.listen(False)
        assert drawn() == (None, None)
        with patch.object(torch, "normal", Mock(side_effect=torch.normal)):
            counter.listen(True)
            assert drawn() == (1, 3.0)
        assert drawn() == (1, 3.0)
    assert torch.normal is own
    assert drawn() == (None, None)


def test_a_run_longer_than_what_is_read_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    place = tmp_path / "run.json"
    with workbench.watch(optimizer, file=place, records=100, clip=1.0, divisor=3.0):
        for _ in range(300):
            layer(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    code = main(["audit", "--run", str(place), "--claim", CLAIM_TEXT, "--out", str(tmp_path / "out")])
    assert code in (0, 1, 3)
    assert "0 before the 257 steps that were read" in capsys.readouterr().out


def test_a_step_between_has_as_much_room_for_noise_as_the_others_at_most() -> None:
    """But a step without a gradient has no part in it, nor one whose norm is not finite."""
    norms = np.random.default_rng(0).chisquare(1000, size=400) ** 0.5
    run = made_run(steps=400, values=1000, draws=1, clip=1.0, divisor=1.0)
    steps = [replace(step, norm=norms[step.step - 1] if is_read(step.step) else None) for step in run.steps]
    steps[319] = replace(steps[319], norm=None)
    steps[300] = replace(steps[300], values=0)
    steps[10] = replace(steps[10], norm=0.0)  # Nor does one without any room make room in others.
    found = noise_of(replace(run, header=replace(run.header, noise_multiplier=None), steps=steps), 0.05)
    read = [t for t in range(400) if steps[t].norm]
    assert found.most[257] == found.most[read].max()
    assert 1 < found.most[read].max() < 1.3
    assert math.isinf(found.most[319])
    assert math.isinf(found.most[300])


def test_other_claims_are_refused_or_left_open() -> None:
    run = made_run(steps=400)
    with pytest.raises(UnsupportedError, match="mu"):
        judged(parse_claim("mu=1,adjacency=add-remove"), run)
    assert judged(replace(CLAIM, released=Released.SCORES), run).verdict.kind == "UNDECIDED"
    assert judged(CLAIM, made_run(steps=0)).verdict.kind == "UNDERPOWERED"
    replaced = replace(CLAIM, about=Adjacency.REPLACE_ONE)
    assert judged(replaced, run).lower > judged(CLAIM, run).lower


@pytest.mark.parametrize("name", ["correct", "with_adam", "with_dropout"])
def test_a_watched_training_is_the_same_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = getattr(dp_sgd, name, None) or correct.TRAINERS[name]
    alone = trainer(records(), 1)(records())
    state = torch.get_rng_state()
    normal = torch.normal
    run, scores = watched(monkeypatch, trainer, seed=1, claim=EXAMPLE)
    assert torch.equal(scores, alone)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.normal is normal
    assert "normal_" not in vars(torch.Tensor)
    assert {step.counted for step in run.steps} == {FORWARD}
    assert len(run.steps) == dp_sgd.STEPS


def small(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    return network, torch.optim.SGD(network.parameters(), lr=0.1)


def test_accumulated_batches_add_up_and_evaluation_does_not_count(tmp_path: Path) -> None:
    network, optimizer = small()
    with workbench.watch(optimizer, file=tmp_path / "run.json") as run:
        for _ in range(2):
            optimizer.zero_grad()
            for size in (5, 7, 7):
                batch = torch.rand(size, 4)
                network(batch).sum().backward()
                network(batch).sum().backward()  # The same batch again is no other batch.
            with torch.no_grad():
                network(torch.rand(100, 4))
            norm = math.sqrt(sum(float(p.grad.square().sum()) for p in network.parameters()))
            optimizer.step()
    assert [step.batch for step in run.steps] == [19, 19]
    assert run.steps[1].norm == pytest.approx(norm, rel=1e-6)
    assert run.steps[1].lr == 0.1
    again = read_run(tmp_path / "run.json")
    assert list(again.steps) == run.steps
    assert (again.header, again.end) == (run.header, "finished")


@pytest.mark.parametrize("how", ["another", "the same", "functional"])
def test_a_loss_that_is_only_looked_at_does_not_count(how: str) -> None:
    network, optimizer = small()
    with workbench.watch(optimizer, file=None) as run:
        for size in (5, 7, 5):
            optimizer.zero_grad()
            batch = torch.rand(size, 4)
            looked_at = torch.rand(50, 4) if how == "another" else batch
            float(network(looked_at).sum().detach())  # With gradients on, none of which is taken.
            if how == "functional":
                held = {name: p.detach() for name, p in network.named_parameters()}
                loss = grad(lambda own, x: functional_call(network, own, (x,)).sum())
                for name, parameter in network.named_parameters():
                    parameter.grad = loss(held, batch)[name]
            else:
                network(batch).sum().backward()
            optimizer.step()
    assert [step.batch for step in run.steps] == [5, 7, 5]


def test_a_parameter_that_is_returned_keeps_no_hook_and_no_batch() -> None:
    class WithTemperature(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.temperature = small()[0], torch.nn.Parameter(torch.ones(()))

        def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.network(batch), self.temperature

    model = WithTemperature()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with workbench.watch(optimizer, file=None) as run:
        for size in (5, 7, 5):
            optimizer.zero_grad()
            logits, temperature = model(torch.rand(size, 4))
            (logits * temperature).sum().backward()
            optimizer.step()
    assert [step.batch for step in run.steps] == [5, 7, 5]
    assert not model.temperature._backward_hooks


def test_a_dataclass_that_is_returned_counts_and_a_map_without_gradients_does_not() -> None:
    class Answer:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits

    class Answers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = small()[0]

        def forward(self, batch: torch.Tensor) -> Answer:
            return Answer(self.network(batch))

    model = Answers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with workbench.watch(optimizer, file=None) as run:
        for size in (5, 7):
            optimizer.zero_grad()
            held = {name: p.detach() for name, p in model.named_parameters()}
            vmap(lambda x, own=held: functional_call(model, own, (x[None],)).logits[0])(torch.rand(50, 4))
            model(torch.rand(size, 4)).logits.sum().backward()
            optimizer.step()
    assert [step.batch for step in run.steps] == [5, 7]


def test_a_model_that_returns_its_loss_counts() -> None:
    whole = _Whole(small()[0])
    whole_optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    with workbench.watch(whole_optimizer, file=None) as run:
        for size in (5, 7):
            whole_optimizer.zero_grad()
            whole({"inputs": torch.rand(size, 4)})["loss"].backward()
            whole_optimizer.step()
    assert [step.batch for step in run.steps] == [5, 7]


class _Whole(torch.nn.Module):
    """Returns its loss alone, as a number without dimensions."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": self.network(batch["inputs"]).square().mean()}


def test_a_correct_training_that_logs_its_loss_or_has_several_views_is_not_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record may be four entries of what the model is called with: the divisor says how many there are."""
    run, _ = watched(monkeypatch, dp_sgd.correct, noise_multiplier=dp_sgd.noise_multiplier())
    views = replace(run, steps=tuple(replace(step, batch=4 * (step.batch or 0)) for step in run.steps))
    assert {step.counted for step in run.steps} == {FORWARD}
    assert judged(CLAIM, run).verdict.kind == "NOT_REFUTED"
    for seen in (run, views):
        unstated = judged(CLAIM, replace(seen, header=replace(seen.header, divisor=None)))
        assert unstated.verdict.kind == "UNDECIDED"
        assert "(divisor=)" in unstated.verdict.sentence
    of_sums = judged(CLAIM, replace(run, header=replace(run.header, divisor=1.0)))
    assert of_sums.verdict.kind == "UNDECIDED"
    assert "a divisor of 1 does not tell" in of_sums.verdict.sentence
    stated = judged(CLAIM, views)
    assert stated.verdict.kind == "UNDECIDED"
    assert [fault.part for fault in stated.faults] == ["sampler"]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_module_trains_the_same_and_its_batches_count(whole: bool) -> None:
    weights = []
    for is_watched in (False, True):
        network, optimizer = small()
        compiled = torch.compile(network, backend="eager", fullgraph=whole)
        with workbench.watch(optimizer, file=None) if is_watched else nullcontext() as run:
            for size in (5, 7, 5):
                optimizer.zero_grad()
                compiled(torch.rand(size, 4)).sum().backward()
                optimizer.step()
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert [step.batch for step in run.steps] == [5, 7, 5]
    assert torch.equal(*weights)


def test_an_error_in_the_training_ends_the_file_with_its_name(tmp_path: Path) -> None:
    network, optimizer = small()

    def train() -> None:
        with workbench.watch(optimizer, file=tmp_path / "run.json"):
            network(torch.rand(3, 4)).sum().backward()
            optimizer.step()
            raise KeyError("x")

    with pytest.raises(KeyError):
        train()
    assert read_run(tmp_path / "run.json").end == "KeyError"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"clip": 0.0}, "clip must be"),
        ({"divisor": math.nan}, "divisor must be"),
        ({"records": 0}, "records must be"),
        ({"confidence": 2.0}, "confidence must be"),
        ({"claim": "epsilon=1"}, "claim: "),
    ],
)
def test_arguments_out_of_range_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        workbench.watch(small()[1], file=None, **given)
    with pytest.raises(InputError, match="optimizer must be one of torch, got str"):
        workbench.watch("sgd", file=None)  # type: ignore[arg-type]


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with (
        pytest.raises(InputError, match="something else"),
        workbench.watch(small()[1], file=tmp_path / "notes.txt"),
    ):
        pass
    assert (tmp_path / "notes.txt").read_text() == "mine"


# Opacus


def opacus_loop(
    *, inner: bool = False, mode: str = "hooks", poisson: bool = True, noise: float = 1.0, **given: Any
) -> tuple[Watch, torch.nn.Module]:
    """Six epochs of Opacus on the digits, ten steps each, watched."""
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    rows = records()
    data = TensorDataset(torch.tensor([r["image"] for r in rows]), torch.tensor([r["label"] for r in rows]))
    network = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    criterion: Any = torch.nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
        criterion=criterion,
        data_loader=DataLoader(data, batch_size=20, shuffle=not poisson),
        noise_multiplier=noise,
        max_grad_norm=1.0,
        poisson_sampling=poisson,
        grad_sample_mode=mode,
    )
    private, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if mode == "ghost" else criterion
    target = optimizer.original_optimizer if inner else optimizer
    with workbench.watch(target, **{"file": None, "records": RECORDS, **given}) as run:
        for _ in range(6):
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=8, optimizer=optimizer
            ) as physical:
                for images, labels in physical if mode == "hooks" else loader:
                    optimizer.zero_grad()
                    criterion(private(images), labels).backward()
                    optimizer.step()
    assert "clip_and_accumulate" not in vars(optimizer)
    return run, private


@pytest.fixture
def quiet_opacus() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quiet_opacus")
@pytest.mark.parametrize("inner", [False, True])
def test_opacus_says_its_noise_and_its_batches_are_counted(inner: bool) -> None:
    run, _ = opacus_loop(inner=inner)
    steps = run.steps[1:] if inner else run.steps
    assert len(run.steps) == 60
    assert {step.counted for step in steps} == {PER_RECORD}
    assert {(step.noise_multiplier, step.clip) for step in steps} == {(1.0, 1.0)}
    assert {step.std for step in steps} == {1.0}
    sizes = [step.batch or 0 for step in steps]
    assert len(set(sizes)) > 5  # Poisson, over physical batches of 8.
    assert abs(sum(sizes) / len(sizes) - 20) < 3
    found = judged(CLAIM, run.run())
    assert found.verdict.kind == "REFUTED"
    assert found.noise.source == BY_SETTING
    from workbench.accounting.certified import epsilon_bounds
    from workbench.accounting.events import gaussian_run

    true = epsilon_bounds(gaussian_run(noise_multiplier=1.0, sampling_probability=0.1, steps=60), 1e-5).upper
    assert found.lower < true
    enough = parse_claim(f"epsilon={true},delta=1e-5,adjacency=add-remove", released=Released.EVERY_UPDATE)
    assert judged(enough, run.run()).verdict.kind == "NOT_REFUTED"


@pytest.mark.usefixtures("quiet_opacus")
def test_opacus_trains_the_same_to_the_bit() -> None:
    _, first = opacus_loop(claim=None)
    state = torch.get_rng_state()
    from unittest.mock import patch

    with patch.object(Watch, "__enter__", lambda self: self), patch.object(Watch, "__exit__"):
        _, second = opacus_loop()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


@pytest.mark.usefixtures("quiet_opacus")
def test_opacus_without_poisson_sampling_is_flagged() -> None:
    run, _ = opacus_loop(poisson=False)
    found = judged(CLAIM, run.run())
    assert "sampler" in [fault.part for fault in found.faults]


@pytest.mark.usefixtures("quiet_opacus")
def test_ghost_clipping_is_counted_by_forward_passes() -> None:
    run, _ = opacus_loop(mode="ghost")
    assert {step.counted for step in run.steps} == {FORWARD}
    assert {step.noise_multiplier for step in run.steps} == {1.0}
    assert abs(sum(step.batch or 0 for step in run.steps) / 60 - 20) < 3


# Warnings


@pytest.mark.usefixtures("quiet_opacus")
def test_training_past_its_claim_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "SHARE_OF_LOOKS", math.inf)
    with pytest.warns(workbench.ClaimExceededWarning, match=r"step \d+: .* epsilon >= ") as caught:
        run, _ = opacus_loop(claim=EXAMPLE)
    assert len([w for w in caught if w.category is workbench.ClaimExceededWarning]) == 1
    assert run.exceeded is not None
    step, epsilon = run.exceeded
    assert 10 <= step < 60
    assert epsilon > 1
    monkeypatch.setattr(record, "SHARE_OF_LOOKS", 0.0)
    with pytest.warns(workbench.ClaimExceededWarning, match="step 60"):
        run, _ = opacus_loop(claim=EXAMPLE)


def test_training_within_its_claim_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched(monkeypatch, dp_sgd.correct, claim=EXAMPLE)
    assert [one for one in caught if one.category is workbench.ClaimExceededWarning] == []


# Trainer


def test_the_trainer_of_transformers_is_watched_and_trains_the_same(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from workbench.core import registry

    def trained(*callbacks: Any) -> Any:
        model: Any = registry.create("model", "tiny_gpt2", seed=0, max_length=16).module
        generator = torch.Generator().manual_seed(0)
        rows = [{"input_ids": torch.randint(0, 200, (8,), generator=generator)} for _ in range(24)]
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=3, seed=0,
                gradient_accumulation_steps=2, save_strategy="no", logging_strategy="no", report_to="none",
                disable_tqdm=True, use_cpu=True,
            ),
            train_dataset=[{**row, "labels": row["input_ids"]} for row in rows],
            callbacks=list(callbacks),
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train()
        return model

    callback = workbench.WatchCallback(claim=EXAMPLE, file=tmp_path / "run.json")
    alone, seen = trained(), trained(callback)
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), seen.parameters(), strict=True))
    run = read_run(tmp_path / "run.json")
    assert [step.batch for step in run.steps] == [6] * 4
    assert (run.header.records, run.end) == (24, "finished")
    assert "AdamW" in run.header.optimizer
    found = judged(CLAIM, run)
    assert found.verdict.kind == "UNDECIDED"
    assert "run workbench replay" in found.verdict.sentence


# The file, and the command


def file_of(place: Path) -> Path:
    network, optimizer = small()
    with workbench.watch(optimizer, file=place, records=30, clip=1.0, divisor=3.0):
        for _ in range(5):
            network(torch.rand(3, 4)).sum().backward()
            optimizer.step()
    return place


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: "", "is empty"),
        (lambda text: text[:-9], "line 7 is cut off"),
        (lambda text: "\x00\x01pickle", "line 1 is of no watched run, or is cut off"),
        (lambda text: "cos\nsystem\n", "line 1 is not JSON: 'cos'"),
        (lambda text: "[" * 50_000 + "\n", "line 1 is not JSON"),
        (lambda text: '{"watched_run":2}\n', "watched_run must be 1, got 2"),
        (lambda text: "[1]\n", "line 1 must be an object"),
        (lambda text: text.replace('"step":3', '"step":4'), "line 4: step must be 3, got 4"),
        (lambda text: text.replace('"batch":3', '"batch":-3'), "batch must be a whole number >= 0, got -3"),
        (
            lambda text: text.replace('"batch":3', '"batch":true'),
            "batch must be a whole number >= 0, got True",
        ),
        (lambda text: text.replace('"batch":3', '"batch":1e999'), "batch must be a whole number"),
        (lambda text: text.replace('"lr":0.1', '"lr":NaN'), "line 2 is not JSON"),
        (lambda text: text.replace('"lr":0.1', '"code":"import os"'), "unknown field 'code'"),
        (lambda text: text.replace('"clip":1.0', '"clip":0'), "clip must be > 0, got 0"),
        (lambda text: text + '{"step":6}\n', "line 8 comes after the end"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(
    damage: Callable[[str], str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = file_of(tmp_path / "run.json")
    place.write_text(damage(place.read_text()))
    assert main(["audit", "--run", str(place), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_command_judges_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = file_of(tmp_path / "run.json")
    outputs = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    code = main(["audit", "--run", str(place), "--claim", EXAMPLE, "--out", str(tmp_path / "out"), *outputs])
    report = json.loads((tmp_path / "r.json").read_text())
    assert code == report["exit_code"] == {"REFUTED": 1, "UNDECIDED": 3}[report["verdict"]["kind"]]
    shown = capsys.readouterr().out
    assert "Watched run" in shown
    assert report["verdict"]["sentence"][:60] in shown
    assert "Watched run" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert 'name="watched run"' in (tmp_path / "r.xml").read_text()
    assert main(["audit", "--run", str(place), "--runs", "2"]) == 2
    assert main(["audit", "--run", str(tmp_path / "none.json")]) == 2
    assert main(["audit", "--run", str(place), "--claim", "mu=1,adjacency=add-remove"]) == 2


_ENDLESS = """
import sys, time, torch, workbench
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
with workbench.watch(optimizer, file=sys.argv[1]):
    while True:
        network(torch.rand(3, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_killed_training_leaves_what_it_did(tmp_path: Path) -> None:
    place = tmp_path / "run.json"
    process = subprocess.Popen([sys.executable, "-c", _ENDLESS, str(place)])
    try:
        deadline = time.monotonic() + 60
        while not (place.exists() and place.read_text().count("\n") > 10) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    run = read_run(place)
    assert len(run.steps) >= 10
    assert run.end == ""
    assert "The file has no end" in judged(CLAIM, run).verdict.sentence


def test_the_api_is_imported_on_demand() -> None:
    program = "import sys, workbench; print('torch' in sys.modules, 'watch' in workbench._ON_DEMAND)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="nothing"):
        workbench.nothing  # type: ignore[attr-defined]  # noqa: B018

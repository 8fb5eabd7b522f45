"""Correct trainers made with other tools are not refuted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_here import judged_here
from torch import Tensor

from workbench.audit.replay.judging import Replayed
from workbench.audit.replay.noise import missed, noise_of
from workbench.audit.replay.record import recorded
from workbench.audit.replay.recording import Layout, Recording
from workbench.cli.app import main

ZOO = Path(__file__).parents[1] / "zoo" / "made_differently.py"
TRAINERS = re.findall(r'^    "(\w+)": ', ZOO.read_text(encoding="utf-8"), re.MULTILINE)


def kept_claim(spec: str) -> Replayed:
    """The replay of a trainer that keeps its claim."""
    found = judged_here(spec)
    assert isinstance(found, Replayed)
    assert found.verdict.kind == "NOT_REFUTED", found.verdict.sentence
    assert found.faults == ()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_a_correct_trainer_made_with_another_tool_is_not_refuted(name: str) -> None:
    found = kept_claim(f"{ZOO}:{name}")
    assert 0.2 < found.lower < found.estimate < found.upper


UNCOMMON = {
    "sorted_by_label": "UNDECIDED",
    "own_generator": "UNDECIDED",
    "noisy_scorer": "NOT_REFUTED",
    "centred_by_a_noisy_mean": "UNDECIDED",
    "one_feature": "NOT_REFUTED",
    "growing": "UNDECIDED",
    "one_epoch": "NOT_REFUTED",
    "public_first": "NOT_REFUTED",
    "public_images": "NOT_REFUTED",
    "noisy_views": "NOT_REFUTED",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNCOMMON)
def test_a_trainer_that_keeps_its_claim_by_uncommon_means_is_not_refuted(name: str) -> None:
    epsilon = 19.3 if name == "one_epoch" else 1
    found = judged_here(
        f"{ZOO.with_name('uncommon.py')}:{name}", claim=f"epsilon={epsilon},delta=1e-5,adjacency=add-remove"
    )
    assert isinstance(found, Replayed)
    assert found.verdict.kind == UNCOMMON[name], found.verdict.sentence


@pytest.mark.slow
def test_a_batch_of_the_shape_of_a_weight_hides_no_lack_of_noise() -> None:
    found = judged_here(f"{ZOO.with_name('uncommon.py')}:noisy_views_and_little_noise")
    assert isinstance(found, Replayed)
    assert found.verdict.kind == "REFUTED", found.verdict.sentence
    assert [fault.part for fault in found.faults] == ["accountant"]


SHAPES = ZOO.with_name("of_any_shape.py")
OF_ANY_SHAPE = (
    *("row_by_row", "row_by_row_without_blanks", "of_twelve_uniforms"),
    *("on_a_grid", "latent", "as_many_classes_as_labels"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ANY_SHAPE)
def test_noise_of_any_shape_and_other_draws_of_a_parameters_are_told_apart(name: str) -> None:
    found = kept_claim(f"{SHAPES}:{name}")
    # Rounded sums are not quite what records add, so that half of a distance counts.
    assert (0.4 if name == "on_a_grid" else 0.7) < found.lower < found.estimate < 1.05
    is_wide = name.startswith("row_by_row") or name == "of_twelve_uniforms"
    assert ("normal or uniform numbers" in found.caution) == is_wide


@pytest.mark.slow
@pytest.mark.parametrize("name", ["in_parts", "mostly_before", "biases_mostly_before"])
def test_noise_that_is_not_all_drawn_after_the_gradients_is_not_taken_for_less(name: str) -> None:
    found = judged_here(f"{SHAPES}:{name}")
    if isinstance(found, Replayed):
        assert found.verdict.kind == "UNDECIDED", found.verdict.sentence
        assert found.lower == 0
        assert found.faults == ()
    else:
        assert "point in different directions" in found.reason


def test_noise_that_two_runs_may_hide_is_what_moves_them_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    layout = Layout(("large", "small"), ((900,), (30,)))
    own = torch.randn(20, 930, generator=generator)
    noise = noise_of(_recording(own, layout), _recording(torch.zeros_like(own), layout))
    gradient = 0.1 * torch.randn(930, generator=generator)
    straight = [_recording(count * gradient.expand(20, -1), layout) for count in (3, 4)]
    assert missed(*straight, noise, layout) < 1e-4
    hidden = torch.zeros(2, 20, 930)
    hidden[:, 7, 900:] = 0.5 * torch.randn(2, 30, generator=generator)
    apart = [_recording(run.gradients[0] + more, layout) for run, more in zip(straight, hidden, strict=True)]
    # Half of the small tensor's noise in one step, though it is a twentieth of all noise.
    assert 0.3 < missed(*apart, noise, layout) < 0.8


def _recording(gradients: Tensor, layout: Layout) -> Recording:
    return Recording(gradients=list(gradients), layouts=[layout])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one_number_for_all", "one_row_for_all", "uniform"])
def test_noise_of_too_few_numbers_or_within_bounds_is_told(name: str) -> None:
    found = judged_here(f"{SHAPES}:{name}")
    assert isinstance(found, Replayed)
    assert found.verdict.kind == "UNDECIDED", found.verdict.sentence
    assert [fault.part for fault in found.faults] == ["noise"]
    assert ("fewer numbers" in found.faults[0].says) == (name != "uniform")


class Halving(torch.optim.SGD):
    """Halves the gradient within its step."""

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            closure()
        for p in self.param_groups[0]["params"]:
            p.grad = p.grad / 2
        return super().step()


def halving() -> float:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = Halving([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (4 * weight).sum().backward()
        optimizer.step()
    return float(weight.detach().sum())


def test_the_gradient_that_is_recorded_is_the_one_of_the_step_within_a_step() -> None:
    run = recorded(halving, seed=0, records=1)
    assert run.inner == [True] * 3
    assert all(torch.equal(gradient, torch.full((3,), 2.0)) for gradient in run.gradients)
    again = recorded(halving, seed=0, records=1, forced=run)
    assert (again.inner, again.result) == (run.inner, run.result)
    assert all(torch.equal(one, other) for one, other in zip(run.gradients, again.gradients, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(run.weights, again.weights, strict=True))


def test_another_optimizer_after_one_is_not_within_it() -> None:
    def both() -> None:
        weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        for weight in weights:
            weight.grad = torch.ones(2)
        for optimizer in [torch.optim.SGD([weight], lr=0.1) for weight in weights]:
            optimizer.step()

    assert recorded(both, seed=0, records=1).inner == [False, False]


def stepped(prepare: Any, *, closure: bool = False, kind: Any = torch.optim.SGD) -> float:
    """Three steps; `prepare` is what is done to the gradient of each."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1)

    def loss() -> float:
        optimizer.zero_grad()
        (4 * weight).sum().backward()
        prepare(weight)
        return 0.0

    for _ in range(3):
        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
    return float(weight.detach().sum())


@pytest.mark.parametrize("kind", [torch.optim.SGD, Halving, torch.optim.LBFGS])
def test_the_gradient_that_is_recorded_is_the_one_of_the_closure(kind: Any) -> None:
    def run(change: float = 0.0) -> Any:
        return lambda: stepped(lambda weight: weight.grad.add_(change), closure=True, kind=kind)

    first = recorded(run(), seed=0, records=1)
    expected = 2.0 if kind is Halving else 4.0
    assert first.steps >= 3
    assert first.inner == [kind is Halving] * first.steps
    assert all(torch.equal(gradient, torch.full((3,), expected)) for gradient in first.gradients)
    other = recorded(run(1.0), seed=0, records=1, forced=first)
    assert other.result == first.result
    assert all(not torch.equal(one, two) for one, two in zip(first.gradients, other.gradients, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(first.weights, other.weights, strict=True))


def test_a_gradient_that_is_clipped_last_is_recorded_as_it_was_before() -> None:
    def clipped(weight: Any) -> None:
        torch.nn.utils.clip_grad_norm_([weight], 1.0)

    def clipped_and_moved(weight: Any) -> None:
        torch.nn.utils.clip_grad_value_(weight, 1.0)
        weight.grad += 1.0

    run = recorded(lambda: stepped(clipped), seed=0, records=1)
    assert all(torch.equal(gradient, torch.full((3,), 4.0)) for gradient in run.gradients)
    assert all(float(gradient.norm()) == pytest.approx(1.0, rel=1e-3) for gradient in run.applied)
    twice = recorded(
        lambda: stepped(lambda weight: (weight.grad.mul_(2), clipped(weight))), seed=0, records=1, forced=run
    )
    assert twice.result == run.result
    assert all(torch.equal(gradient, torch.full((3,), 8.0)) for gradient in twice.gradients)
    moved = recorded(lambda: stepped(clipped_and_moved), seed=0, records=1)
    assert all(
        torch.equal(gradient, torch.full((3,), 2.0)) for gradient in (*moved.gradients, *moved.applied)
    )
    assert recorded(lambda: stepped(clipped), seed=0, records=1, forced=moved).gradients[0].norm() < 1.1


def test_sparse_gradients_are_recorded_and_forced() -> None:
    def run(row: int) -> Any:
        def train() -> float:
            torch.manual_seed(0)
            table = torch.nn.Embedding(5, 2, sparse=True)
            optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                table(torch.tensor([row, row])).sum().backward()
                optimizer.step()
            return float(table.weight[1].sum().detach())

        return train

    first = recorded(run(1), seed=0, records=1)
    assert first.gradients[0].view(5, 2)[1].tolist() == [2.0, 2.0]
    other = recorded(run(3), seed=0, records=1, forced=first)
    assert other.result == first.result
    assert other.gradients[0].view(5, 2)[3].tolist() == [2.0, 2.0]


@pytest.mark.slow
def test_adapters_of_a_language_model_are_not_refuted(tmp_path: Path) -> None:
    words = ["replay", f"{ZOO.with_name('language_model.py')}:lora", "--corpus", "clinical", "--quiet"]
    assert main([*words, "--candidates", "40", "--out", str(tmp_path)]) == 0


@pytest.mark.parametrize(("name", "code"), [("masked", 0), ("dropped", 0), ("unmasked", 3)])
def test_texts_that_a_longer_one_lengthens_are_told(name: str, code: int, tmp_path: Path) -> None:
    """Narratives have 190 to 210 words: only texts of other lengths show it."""
    words = ["replay", f"{ZOO.with_name('padded_texts.py')}:{name}", "--corpus", "clinical", "--quiet"]
    assert main([*words, "--candidates", "60", "--out", str(tmp_path)]) == code
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["replay"]
    faults = [
        (fault["part"], "what records add together is not what each adds" in fault["says"])
        for fault in found["faults"]
    ]
    assert faults == ([] if code == 0 else [("clip", True)])

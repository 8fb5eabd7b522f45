"""Which part is at fault: by what the user states of the training, and by how its tensors are clipped."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from replay_here import measured_here

import workbench
from workbench.audit.claims import EXAMPLE, parse_claim
from workbench.audit.replay.faults import undersized
from workbench.audit.replay.judging import Replayed, judged
from workbench.audit.replay.lengths import shares
from workbench.audit.replay.measured import Measured
from workbench.audit.replay.sampler import Sampler
from workbench.audit.replay.stated import Stated, stated_from
from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray, Released

ZOO = Path(__file__).parents[2] / "tests" / "zoo" / "dp_sgd.py"
sys.path.insert(0, str(ZOO.parent))
try:
    import dp_sgd
finally:
    sys.path.remove(str(ZOO.parent))

CLAIM = parse_claim(EXAMPLE, released=Released.EVERY_UPDATE)
RATE, STEPS = dp_sgd.RATE, dp_sgd.STEPS


def of(run: Measured, **numbers: float) -> Replayed:
    return judged(CLAIM, run, stated=Stated(**numbers))


@pytest.mark.slow
def test_what_is_stated_tells_the_part() -> None:
    """The noise is half of what it should be: which number is wrong depends on what is said."""
    run, sigma = measured_here(f"{ZOO}:half_of_the_noise"), dp_sgd.noise_multiplier()
    assert isinstance(run, Measured)

    def parts(**numbers: float) -> list[str]:
        found = of(run, **numbers)
        assert found.verdict.kind == "REFUTED"
        return [fault.part for fault in found.faults]

    assert parts(noise_multiplier=sigma, l2_clip_norm=1.0, sampling_probability=RATE) == ["noise"]
    assert parts(noise_multiplier=sigma, l2_clip_norm=0.5, sampling_probability=RATE) == ["clip"]
    assert parts(noise_multiplier=sigma, l2_clip_norm=1.0) == ["noise"]
    assert parts(noise_multiplier=sigma, l2_clip_norm=0.5, divisor=RATE * 200) == ["clip"]
    assert parts(noise_multiplier=sigma) == ["noise"]
    assert parts(sampling_probability=0.05) == ["sampler"]
    assert parts(steps=20) == ["accountant"]
    # As it is: nothing is otherwise, and the numbers do not give the claim.
    whole = {"noise_multiplier": sigma / 2, "l2_clip_norm": 1.0, "sampling_probability": RATE, "steps": STEPS}
    assert parts(**whole) == ["accountant"]
    assert "if a record added 0.49" in of(run, **whole).faults[0].says


@pytest.mark.slow
def test_a_training_that_keeps_its_claim_but_not_its_word_gets_a_caution() -> None:
    run, sigma = measured_here(f"{ZOO}:correct"), dp_sgd.noise_multiplier()
    assert isinstance(run, Measured)
    as_it_is = of(
        run, noise_multiplier=sigma, l2_clip_norm=1.0, sampling_probability=RATE, steps=STEPS, divisor=20
    )
    assert (as_it_is.verdict.kind, as_it_is.faults, as_it_is.caution) == ("NOT_REFUTED", (), "")
    more = of(run, noise_multiplier=2 * sigma, l2_clip_norm=1.0, sampling_probability=RATE)
    assert (more.verdict.kind, more.faults) == ("NOT_REFUTED", ())
    assert more.caution.startswith("noise: the noise is 0.5")


@pytest.mark.slow
def test_what_the_optimizer_keeps_past_the_updates_is_a_caution() -> None:
    run = measured_here(f"{ZOO}:keeps_raw_moments")
    assert isinstance(run, Measured)
    assert (run.state, run.leaks) == ("exp_avg_sq", ())
    found = judged(CLAIM, run)
    assert (found.verdict.kind, found.faults) == ("NOT_REFUTED", ())
    assert "what the optimizer keeps (exp_avg_sq)" in found.caution
    assert measured_here(f"{ZOO}:with_adam").state == ""  # type: ignore[union-attr]


def unit(parts: FloatArray) -> FloatArray:
    found: FloatArray = parts / np.sqrt((parts**2).sum(axis=1, keepdims=True))
    return found


@pytest.mark.parametrize("groups", [[2, 2], [1, 1, 1, 1], [3, 1]])
def test_groups_that_are_clipped_by_themselves_are_told(groups: list[int]) -> None:
    """Also where the records of one training are too quiet to be clipped."""
    generator = np.random.default_rng(0)
    parts, quiet = generator.uniform(1.0, 9.0, size=(40, 4)), generator.uniform(0.0, 0.1, size=(40, 4))
    names = ["a", "b", "c", "d"]
    assert shares(names, [parts, quiet]) == {}
    ends = np.cumsum(groups)
    held = np.hstack([unit(parts[:, end - size : end]) for size, end in zip(groups, ends, strict=True)])
    found = shares(names, [quiet, held])
    assert len(found) == len(groups)
    assert list(found.values()) == pytest.approx([len(groups) ** -0.5] * len(groups))


def test_a_tensor_that_has_nearly_all_of_its_group_is_no_group_of_its_own() -> None:
    """A loud image moves the weights of a layer so far that its biases hardly count."""
    loud, other = np.tile([1.0, 1e-5, 1.0, 1e-5], (40, 1)), np.tile([0.6, 0.8, 0.8, 0.6], (40, 1))
    assert shares(["a", "b", "c", "d"], [loud, other]) == pytest.approx(
        {"a to b": 0.5**0.5, "c to d": 0.5**0.5}
    )


def test_one_norm_that_holds_now_this_tensor_and_now_that_is_no_group_of_its_own() -> None:
    """As of a linear layer: a loud image moves its weights alone, and a dark one its biases."""
    generator = np.random.default_rng(0)
    whole = unit(generator.uniform(1.0, 9.0, size=(40, 2)))
    loud, dark = np.tile([1.0, 1e-5], (40, 1)), np.tile([0.0, 1.0], (40, 1))
    assert shares(["weight", "bias"], [loud, dark]) == {}
    assert shares(["weight", "bias"], [whole, loud, dark]) == {}
    assert shares(["weight", "bias"], [whole]) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise_multiplier": 0}, "stated noise_multiplier must be finite and > 0, got 0"),
        ({"l2_clip_norm": math.inf}, "stated l2_clip_norm must be finite and > 0, got inf"),
        ({"sampling_probability": 1.5}, "stated sampling_probability must be in (0, 1], got 1.5"),
        ({"steps": "many"}, "stated steps must be a whole number >= 1, got 'many'"),
        ({"clip_norm": 1.0}, "stated: unknown number 'clip_norm'; did you mean 'l2_clip_norm'?"),
        ([("steps", 1)], "stated must be a dict of parameters by name, got [('steps', 1)]"),
    ],
)
def test_what_cannot_be_stated_is_said(given: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        stated_from(given)
    assert str(caught.value) == message


@pytest.mark.parametrize("command", [["replay"], ["audit", "--train"]])
def test_a_mistake_gets_one_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, f"{ZOO}:correct", "--stated", "steps=0"]) == 2
    assert capsys.readouterr().err.strip().endswith("--stated steps must be a whole number >= 1, got 0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "rate", "adjacency", "multiplier", "says"),
    [
        (40, 0.1, "add-remove", dp_sgd.noise_multiplier() / 2, "if a record added 0.5 times as much"),
        (80, 0.1, "add-remove", 1.001 * dp_sgd.noise_multiplier(), "for 4"),
        (40, 0.1, "replace-one", dp_sgd.noise_multiplier(), "for a claim about adding or removing a record"),
        (5000, 1e-6, "add-remove", 0.02, "for 10 steps"),
    ],
)
def test_too_little_noise_says_what_it_is_enough_for(
    steps: int, rate: float, adjacency: str, multiplier: float, says: str
) -> None:
    claim = parse_claim(f"epsilon=1,delta=1e-5,adjacency={adjacency}")
    found = undersized(steps, Sampler(kind="Poisson", rate=rate, lower=rate, upper=rate), claim, multiplier)
    assert found.part == "accountant"
    assert says in found.says


@pytest.mark.parametrize(("noise", "part"), [(1.0, "clip"), (0.7, "accountant"), (1.6, "accountant")])
def test_noise_for_one_of_the_groups_is_a_fault_of_clipping(noise: float, part: str) -> None:
    """Two groups of norm C each: noise for C is named so, and noise for another norm is not."""
    multiplier = noise * dp_sgd.noise_multiplier() / 2**0.5
    groups = {"first": 0.5**0.5, "second": 0.5**0.5}
    sampler = Sampler(kind="Poisson", rate=RATE, lower=RATE, upper=RATE)
    assert undersized(STEPS, sampler, CLAIM, multiplier, groups).part == part


def test_what_is_stated_is_plain_numbers() -> None:
    assert stated_from({}) is None
    assert stated_from({"steps": np.float32(20), "l2_clip_norm": np.float64(0.5)}) == Stated(
        steps=20, l2_clip_norm=0.5
    )


def test_what_is_stated_goes_with_a_replay() -> None:
    with pytest.raises(InputError, match="stated is held against what `replay` measures"):
        workbench.audit_training(f"{ZOO}:correct", replay=False, stated={"steps": 40})

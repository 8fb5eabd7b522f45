"""What every mechanism of clipped and noised sums must do, as checks that each takes one `Case`.

A new mechanism is one more `Case` in `tests/mechanisms/test_conformance.py`. Checks raise `AssertionError`;
statistical ones fail by chance with probability `FALSE_ALARM` each, if the code is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from broken_mechanisms import Broken
from oracles.random_transformers import random_transformer
from scipy import stats
from torch import Tensor

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError, WorkbenchError
from workbench.estimation.judge import judge
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Corpus,
    Evidence,
    Family,
    FloatArray,
    GameTerms,
    GradientCanary,
    Insertions,
    Model,
    Plan,
    Record,
    Released,
    Secret,
    Signals,
    Trials,
    Verdict,
)
from workbench.training.canary import SignalsWithCanary
from workbench.training.fine_tuning import build_model, trainable
from workbench.training.flat import FlatLayout
from workbench.training.loop import GradientMechanism, load_subject
from workbench.training.per_record import EmptySignals, MatrixSignals
from workbench.training.subject import TrainedSubject

BUDGET = ApproximateDP(epsilon=2.0, delta=1e-5)
FALSE_ALARM = 1e-6
"""Probability that a statistical test fails by chance, if the code is right."""
CANARY = GradientCanary(coordinate=0, magnitude=100.0)
RELEASES = 2000


# --------------------------------------------------------------------------------------------------- plans


@cache
def corpus(name: str) -> Corpus:
    found: Corpus = registry.create("corpus", name, size=60, seed=0)
    return found


def toy_plan(**changes: object) -> Plan:
    """A linear regression of ten parameters."""
    plan = Plan(
        records=corpus("toy_regression").records,
        held_out=(),
        model="toy_regression",
        steps=2,
        sampling_probability=0.2,
        learning_rate=1e-3,
        optimizer="sgd",
        budget=BUDGET,
        seed=3,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def watched_plan(canary: GradientCanary, **changes: object) -> Plan:
    """The same with a gradient canary."""
    return toy_plan(insertions=Insertions(gradient_canary=canary), **changes)


def digits_plan(**changes: object) -> Plan:
    """Two layers, of 310 parameters in four tensors."""
    digits: dict[str, object] = {"model": "digits_mlp", "model_parameters": {"hidden": 4}}
    return toy_plan(**{"records": corpus("digits").records[:30], **digits, **changes})


def lora_plan(**changes: object) -> Plan:
    """The same two layers, with adapters of rank 1."""
    return digits_plan(**{"adapter": "lora", "lora_rank": 1, **changes})


TRANSFORMER = "conformance_gpt2"
"""Name under which a test registers `smallest_gpt2` for itself."""


def smallest_gpt2(*, seed: int) -> Model:
    """A GPT-2 of one block and width 8 with random weights, which reads bytes."""
    return random_transformer("gpt2", seed=seed, width=8, layers=1, heads=2, positions=16)


def transformer_plan(**changes: object) -> Plan:
    """Adapters of rank 1 on the four linear layers of that GPT-2."""
    texts = tuple(Record(id=f"text-{i}", text=f"note {i * i % 97} of {i}") for i in range(30))
    return toy_plan(**{"records": texts, "model": TRANSFORMER, "adapter": "lora", "lora_rank": 1, **changes})


# --------------------------------------------------------------------------------------------------- cases


def of_one_clip_norm(mechanism: Any, signals: Signals) -> Tensor:
    """sigma C in every coordinate, whatever the two are called."""
    noise = getattr(mechanism, "sum_noise_multiplier", lambda: mechanism.noise_multiplier)()
    return torch.full((signals.dimension,), noise * mechanism.l2_clip_norm, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A mechanism under test.

    Attributes:
        mechanism: Registry name.
        parameters: Its keyword arguments.
        plan: Makes a plan that it can follow; takes changed fields.
        scales: Standard deviation of the noise of each released number in the first step, shape `(d,)` or
            longer, of a settled mechanism. None where no sum is released.
        is_apart: What is accounted is each clipping group by itself, not all together: the one-adapter game.
        least_share: The most that `shares` finds is at least this: all of what is accounted, unless a step
            also pays for what no release of `privatise` shows.
        name: For the test's id; the mechanism's where empty.
    """

    mechanism: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    plan: Callable[..., Plan] = digits_plan
    scales: Callable[[Any, Signals], Tensor] | None = of_one_clip_norm
    is_apart: bool = False
    least_share: float = 0.98
    name: str = ""

    def __str__(self) -> str:
        """The id."""
        return self.name or self.mechanism

    def make(self) -> GradientMechanism:
        """The mechanism."""
        made: GradientMechanism = registry.create(
            "mechanism", self.mechanism, measures_quality=False, **self.parameters
        )
        return made

    def settled(self) -> GradientMechanism:
        """The mechanism with the noise of a run of one step over all records."""
        return self.make().for_plan(self.one_step())

    def one_step(self, **changes: object) -> Plan:
        """A plan of one step that all records take part in: its claim speaks of a single release."""
        return self.plan(steps=1, sampling_probability=1.0, **changes)

    @property
    def canary(self) -> GradientCanary:
        """The canary that shows all of what is accounted: in every group, or where they are apart in one."""
        return replace(CANARY, everywhere=not self.is_apart)

    def nobody(self) -> EmptySignals:
        """An empty sample of the plan's model."""
        return EmptySignals(FlatLayout.of(build_model(self.plan()).module))


# ------------------------------------------------------------------------------------- checks of one training


def weights(subject: TrainedSubject) -> Tensor:
    """All trained parameters, flat."""
    return torch.cat([p.detach().reshape(-1) for p in trainable(subject.model.module).values()])


def check_claim(case: Case, folder: Path) -> None:
    """What is claimed before training is what the subject claims, and the budget is what was asked for."""
    plan = case.plan()
    before = case.make().claim(plan)
    assert case.make().train(plan).claim == before
    assert before.guarantee == plan.budget


def check_determinism(case: Case, folder: Path) -> None:
    """Weights and traces are functions of the plan, and the seed is part of it."""
    first, again, other = (case.make().train(case.plan(seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))
    assert first.transcript.traces.keys() == again.transcript.traces.keys()
    for name, series in first.transcript.traces.items():
        np.testing.assert_array_equal(series, again.transcript.traces[name])


def check_global_randomness(case: Case, folder: Path) -> None:
    """No global stream is drawn from."""
    before, numbers = torch.get_rng_state(), np.random.get_state(legacy=False)  # noqa: NPY002
    case.make().train(case.plan())
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_equal(np.random.get_state(legacy=False), numbers)  # noqa: NPY002


def check_empty_samples(case: Case, folder: Path) -> None:
    """A run in which samples are empty goes on, and stays finite."""
    plan = case.plan(records=case.plan().records[:5], steps=8, seed=1)
    subject = case.make().train(plan)
    assert 0 in subject.transcript.sample_sizes
    assert bool(torch.isfinite(weights(subject)).all())


def check_disk(case: Case, folder: Path) -> None:
    """What is saved is what is loaded."""
    plan = case.plan()
    subject = case.make().train(plan)
    subject.save(folder)
    loaded = load_subject(folder, case.make(), plan)
    assert torch.equal(weights(loaded), weights(subject))
    assert loaded.claim == subject.claim
    assert loaded.transcript.metrics.keys() == subject.transcript.metrics.keys()
    for name, series in subject.transcript.traces.items():
        np.testing.assert_array_equal(series, loaded.transcript.traces[name])
    np.testing.assert_array_equal(loaded.losses(plan.records), subject.losses(plan.records))


def check_budgets(case: Case, folder: Path) -> None:
    """A run without a budget, or with one of another currency, is refused in one line."""
    for budget in (None, MutualInformation(nats=0.1, secret=Secret.RECORD)):
        with pytest.raises(WorkbenchError) as refused:
            case.make().train(case.plan(budget=budget))
        assert isinstance(refused.value, InputError | UnsupportedError)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) > 20


def check_canary_in_every_step(case: Case, folder: Path) -> None:
    """A canary takes part by the auditor's coins, and is read in every step."""
    plan = case.plan(steps=12, insertions=Insertions(gradient_canary=case.canary))
    transcript = case.make().train(plan).transcript
    assert transcript.canary_observations.shape == transcript.canary_included.shape == (12,)
    assert np.isfinite(transcript.canary_observations).all()
    assert 0 < transcript.canary_included.sum() < 12


CHECKS: dict[str, Callable[[Case, Path], None]] = {
    "claims before training what the subject claims": check_claim,
    "is deterministic in the plan": check_determinism,
    "leaves global randomness alone": check_global_randomness,
    "saves and loads": check_disk,
    "refuses a bad budget": check_budgets,
}
"""Of every mechanism."""

SUM_CHECKS: dict[str, Callable[[Case, Path], None]] = {
    "meets empty samples": check_empty_samples,
    "carries a canary through a run": check_canary_in_every_step,
}
"""Of mechanisms that release privatised sums of Poisson samples."""


# ------------------------------------------------------------------------------------- checks of one release


def noise_scales(case: Case, mechanism: GradientMechanism) -> Tensor:
    """The stated standard deviation of each released number."""
    assert case.scales is not None
    return case.scales(mechanism, case.nobody())


def noise_p_value(case: Case, mechanism: GradientMechanism, trials: int = 200) -> float:
    """Of a sum over nobody: is it independent Gaussian noise of the stated scales? Four tests, Bonferroni."""
    nobody = SignalsWithCanary(case.nobody(), CANARY, included=False, trials=trials)
    released = mechanism.privatise(nobody, torch.Generator().manual_seed(11)).double()
    noise = released / noise_scales(case, mechanism)
    tail = float(stats.chi2.cdf(float(noise.square().sum()), noise.numel()))
    values = [2 * min(tail, 1 - tail)]
    along, across = noise[:, 1:] * noise[:, :-1], noise[1:] * noise[:-1]
    for part in (noise, along, across):
        values.append(2 * float(stats.norm.sf(abs(float(part.sum())) / math.sqrt(part.numel()))))
    return min(1.0, 4 * min(values))


def shares(case: Case, mechanism: GradientMechanism) -> list[float]:
    """What each of some records adds to a release over the most that the accounted noise allows one to add.

    The noise is the same with and without the record, and cancels. Where groups are accounted apart, the
    largest of the groups' shares.
    """
    model = build_model(case.plan())
    layout, scales = FlatLayout.of(model.module), noise_scales(case, mechanism)
    groups = mechanism.clipping_groups(layout.places) if case.is_apart else [list(layout.places)]
    generator = torch.Generator().manual_seed(5)
    background = torch.randn(4, layout.dimension, generator=generator) * torch.tensor(
        [[0.01], [0.1], [1.0], [9.0]]
    )
    one = torch.zeros(layout.dimension)
    one[0] = 1.0
    dense = torch.randn(layout.dimension, generator=generator)
    found = []
    for record in (1e-4 * dense, 0.05 * dense, dense, 1e4 * dense, -1e4 * dense, 1e4 * one):
        pair = [
            mechanism.privatise(
                MatrixSignals(layout, rows, torch.zeros(len(rows))), torch.Generator().manual_seed(6)
            )
            for rows in (torch.cat([background, record[None]]), background)
        ]
        moved = ((pair[0].double() - pair[1].double()) / scales).square()
        extra = float(moved[layout.dimension :].sum())
        parts = [sum(float(moved[layout.places[name][0]].sum()) for name in names) for names in groups]
        found.append(math.sqrt(max(parts) + extra) * float(mechanism.noise_multiplier))  # type: ignore[attr-defined]
    return found


def play(
    case: Case, mechanism: GradientMechanism, canary: GradientCanary
) -> tuple[Verdict, tuple[float, float], float]:
    """The Dirac canary's game of single releases, as an audit plays and judges it.

    Returns:
        The verdict at confidence 1 - `FALSE_ALARM`, an interval of mu, and the noise multiplier.
    """
    subject = mechanism.train(case.one_step())
    coins = np.random.default_rng(2).random(RELEASES) < 0.5
    values = subject.release_canary(canary, coins, np.random.default_rng(3))
    game = GameTerms(
        description="single releases with and without a canary",
        trials=Trials.INDEPENDENT,
        released=Released.EVERY_UPDATE,
        adjacency=Adjacency.ADD_REMOVE,
        family=Family(subject.release_family),
    )
    evidence = Evidence(scores=values, members=coins, game=game, attack="dirac_canary")
    verdict = judge(subject.claim, evidence, confidence=1 - FALSE_ALARM, generator=np.random.default_rng(4))
    settled = subject.mechanism
    sound = settled.sound if isinstance(settled, Broken) else settled
    interval = mu_interval(values, coins) if values.std() > 0 else (math.inf, math.inf)
    return verdict, interval, float(sound.noise_multiplier)  # type: ignore[attr-defined]


def mu_interval(values: FloatArray, coins: BoolArray) -> tuple[float, float]:
    """Interval of the shift over the noise's scale; each side fails with about half of `FALSE_ALARM`."""
    inside, outside = values[coins], values[~coins]
    scale = max(math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2), 1e-12)
    mu = (inside.mean() - outside.mean()) / scale
    error = math.sqrt(1 / len(inside) + 1 / len(outside) + mu * mu / (2 * len(values)))
    reach = stats.norm.isf(FALSE_ALARM / 2) * error
    return float(mu - reach), float(mu + reach)

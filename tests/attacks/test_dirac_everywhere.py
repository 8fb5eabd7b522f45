"""The canary that stands in every clipping group: what it sees of groups that are clipped apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from workbench.accounting import ApproximateDP, GaussianDP
from workbench.attacks.dirac_canary import DiracCanary
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Claim,
    Corpus,
    FloatArray,
    GradientCanary,
    Groups,
    Insertions,
    Model,
    Plan,
    Released,
    Signals,
)
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.training.canary import FixedSignals, SignalsWithCanary
from workbench.training.content import settled
from workbench.training.flat import Layout
from workbench.training.loop import GradientMechanism, gaussian_noise
from workbench.training.samples import sample_signals
from workbench.training.steps import PrivatisedSums, Steps
from workbench.training.subject import TrainedSubject

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance."""
SIGMA = 1.0
ONE_CANARY = GradientCanary(coordinate=123, magnitude=100.0)
EVERYWHERE = replace(ONE_CANARY, everywhere=True)


@dataclass(frozen=True, kw_only=True)
class ClipsApart(GradientMechanism):
    """Clips each parameter tensor by itself to its bound, and claims what sigma gives one bound.

    The groups' bounds are C times 1, 2, 3, ... where `unequal`, with noise of sigma times each.
    """

    unequal: bool = False

    def bounds(self, layout: Layout) -> list[float]:
        """C of each group."""
        return [1.0 + i * self.unequal for i in range(len(layout))]

    def clipping_groups(self, layout: Layout) -> Groups:
        """Each tensor."""
        return [[name] for name in layout]

    def release_scales(self, layout: Layout) -> Sequence[float]:
        """In proportion to the bounds."""
        return self.bounds(layout)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Clip and noise."""
        groups, bounds = self.clipping_groups(signals.layout), self.bounds(signals.layout)
        norms = signals.group_norms(groups)
        total = signals.group_sum((norms.new_tensor(bounds) / norms).clamp(max=1.0), groups)
        scale = torch.cat(
            [
                torch.full((shape.numel(),), SIGMA * bound)
                for (_, shape), bound in zip(signals.layout.values(), bounds, strict=True)
            ]
        )
        return total + gaussian_noise(total, 1.0, generator) * scale

    def claim(self, plan: Plan) -> Claim:
        """One release of sensitivity C: wrong, for a record adds C to each of several groups."""
        return Claim(
            guarantee=GaussianDP(mu=1.0 / SIGMA),
            about=Adjacency.ADD_REMOVE,
            released=Released.EVERY_UPDATE,
            source="test",
        )


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=60, seed=0)
    return corpus


def make_plan(canary: GradientCanary | None = None, **changes: object) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=(),
        model="digits_mlp",
        steps=2,
        sampling_probability=0.2,
        learning_rate=0.01,
        optimizer="sgd",
        budget=ApproximateDP(epsilon=1.0, delta=1e-5),
        insertions=Insertions(gradient_canary=canary),
        seed=2,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def observe(subject: TrainedSubject, canary: GradientCanary, trials: int) -> tuple[FloatArray, BoolArray]:
    coins = np.random.default_rng(9).random(trials) < 0.5
    return subject.release_canary(canary, coins, np.random.default_rng(10)), coins


def mu_interval(values: FloatArray, coins: BoolArray) -> tuple[float, float]:
    """Interval of the shift over the noise's scale; each side fails with about half of `FALSE_ALARM`."""
    inside, outside = values[coins], values[~coins]
    scale = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
    mu = (inside.mean() - outside.mean()) / scale
    error = math.sqrt(1 / len(inside) + 1 / len(outside) + mu * mu / (2 * len(values)))
    reach = stats.norm.isf(FALSE_ALARM / 2) * error
    return float(mu - reach), float(mu + reach)


@pytest.mark.parametrize("unequal", [False, True])
def test_groups_clipped_apart_are_seen_by_the_canary_that_is_in_all_of_them(unequal: bool) -> None:
    subject = ClipsApart(unequal=unequal, measures_quality=False).train(make_plan())
    claimed = subject.claim.guarantee
    assert isinstance(claimed, GaussianDP)
    groups = len(list(subject.model.module.parameters()))
    assert groups == 4
    low, high = mu_interval(*observe(subject, ONE_CANARY, 1500))
    assert low < claimed.mu < high  # one coordinate sees one group: the claim passes
    low, high = mu_interval(*observe(subject, EVERYWHERE, 1500))
    assert claimed.mu < low < math.sqrt(groups) / SIGMA < high


def test_every_step_of_a_run_shows_the_joint_shift() -> None:
    plan = make_plan(EVERYWHERE, model="digits_logistic", steps=150, sampling_probability=0.02)
    transcript = ClipsApart(measures_quality=False).train(plan).transcript
    low, high = mu_interval(transcript.canary_observations, transcript.canary_included)
    assert low < math.sqrt(2) / SIGMA < high
    # The sum of two whitened coordinates: two shifts of one over noise of variance two.
    inside, outside = (transcript.canary_observations[transcript.canary_included == c] for c in (True, False))
    assert stats.kstest(outside, stats.norm(0.0, math.sqrt(2) * SIGMA).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(inside, stats.norm(2.0, math.sqrt(2) * SIGMA).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(inside, stats.norm(1.0, SIGMA).cdf).pvalue < FALSE_ALARM  # one coordinate's law


class _Louder(PrivatisedSums):
    """Noise that grows with every step, and bounds that grow with it."""

    scale = 1.0

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        self.scale *= 1.2
        total = signals.weighted_sum((self.scale / signals.norms()).clamp(max=1.0))
        return total + gaussian_noise(total, SIGMA * self.scale, generator)

    def release_scales(self, layout: Layout) -> Sequence[float]:
        return [self.scale]


@dataclass(frozen=True, kw_only=True)
class Adaptive(ClipsApart):
    """One group, whose bound a run changes in each step."""

    def clipping_groups(self, layout: Layout) -> Groups:
        return [list(layout)]

    def steps(self, plan: Plan, model: Model) -> Steps:
        return _Louder(self, plan, model)


@pytest.mark.parametrize("canary", [ONE_CANARY, EVERYWHERE], ids=["one", "everywhere"])
def test_a_run_that_changes_its_noise_is_read_on_one_scale(canary: GradientCanary) -> None:
    plan = make_plan(canary, model="digits_logistic", steps=60, sampling_probability=0.02)
    transcript = Adaptive(measures_quality=False).train(plan).transcript
    whitened = transcript.canary_observations - transcript.canary_included
    # At the last step the noise is 50000 times that of the first.
    assert stats.kstest(whitened, stats.norm(0.0, SIGMA).cdf).pvalue > FALSE_ALARM


def test_with_one_group_the_canary_is_the_old_one_number_for_number() -> None:
    mechanism = DPSGD(noise_multiplier=1.0, measures_quality=False)
    plans = [make_plan(canary, steps=6) for canary in (ONE_CANARY, EVERYWHERE)]
    one, every = (mechanism.train(plan) for plan in plans)
    assert np.array_equal(one.transcript.canary_observations, every.transcript.canary_observations)
    assert len(one.transcript.canary_observations) == 6
    first, coins = observe(one, ONE_CANARY, 40)
    second, _ = observe(every, EVERYWHERE, 40)
    assert np.array_equal(first, second)
    # What a release was read as before there were groups: the coordinate less the known share.
    known = FixedSignals(sample_signals(one.model, plans[0].records[:9], 64))
    signals = SignalsWithCanary(known, ONE_CANARY, True, trials=5)
    released = mechanism.privatise(signals, torch.Generator().manual_seed(3))
    share = float(known.weighted_sum(mechanism.clip_factors(known.norms()))[123])
    old = released[:, 123].double().cpu().numpy() - share
    assert np.array_equal(signals.observed(released).numpy(), old)
    assert coins.any()


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ([1.0], "length 4, got 1"),
        ([1.0, 1.0, 0.0, 1.0], "finite and > 0"),
        ([math.nan] * 4, "finite and > 0"),
    ],
)
def test_scales_that_no_noise_has_are_refused(scales: list[float], message: str) -> None:
    subject = ClipsApart(measures_quality=False).train(make_plan(steps=1))
    known = sample_signals(subject.model, [], 64)
    groups = subject.mechanism.clipping_groups(known.layout)
    signals = SignalsWithCanary(known, EVERYWHERE, True, groups=groups)
    with pytest.raises(InputError, match=message):
        signals.observed(torch.zeros(known.dimension), scales)


def test_a_canary_that_is_a_record_cannot_be_everywhere() -> None:
    plan = make_plan(replace(EVERYWHERE, record=digits().records[0].id))
    with pytest.raises(InputError, match="everywhere must be False"):
        ClipsApart().train(replace(plan, sampling_probability=1.0))


def test_the_attack_asks_for_it_and_keeps_its_old_key() -> None:
    attack = registry.create("attack", "dirac_canary", everywhere=True)
    canary = attack.prepare(digits(), np.random.default_rng(0)).gradient_canary
    assert canary.everywhere
    old = DiracCanary().prepare(digits(), np.random.default_rng(0)).gradient_canary
    assert canary == replace(old, everywhere=True)
    assert settled("attack", "dirac_canary", {}) == {"magnitude": 100.0, "releases": 4000}
    assert settled("attack", "dirac_canary", {"everywhere": True})["everywhere"] is True
    with pytest.raises(InputError, match="everywhere must be true or false"):
        DiracCanary(everywhere=1)  # type: ignore[arg-type]

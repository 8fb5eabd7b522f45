"""DP-SGD: what a record may add, what noise is added, and what is claimed for it; and its control."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from workbench.accounting import ApproximateDP, GaussianDP, MutualInformation, NoGuarantee
from workbench.accounting.subsampled_gaussian import epsilon
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import (
    Adjacency,
    Corpus,
    Family,
    GradientCanary,
    Plan,
    Released,
    Secret,
    Signals,
)
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.non_private import NonPrivate
from workbench.training.canary import SignalsWithCanary
from workbench.training.content import settled
from workbench.training.flat import FlatLayout
from workbench.training.per_record import EmptySignals, MatrixSignals

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance, two-sided."""

BUDGET = ApproximateDP(epsilon=1.0, delta=1e-5)


@dataclass(frozen=True, kw_only=True)
class TenthOfTheNoise(DPSGD):
    """A negative control: noise scaled by a tenth."""

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """DP-SGD's step with a tenth of the noise."""
        assert self.noise_multiplier is not None
        honest = DPSGD(l2_clip_norm=self.l2_clip_norm, noise_multiplier=self.noise_multiplier / 10)
        return honest.privatise(signals, generator)


@dataclass(frozen=True, kw_only=True)
class WithoutClipping(DPSGD):
    """A negative control: clipping left out."""

    def clip_factors(self, norms: Tensor) -> Tensor:
        """Every gradient as it is."""
        return torch.ones_like(norms)


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=200, seed=0)
    return corpus


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=digits().held_out,
        model="digits_logistic",
        steps=30,
        sampling_probability=0.2,
        learning_rate=1.0,
        optimizer="sgd",
        budget=BUDGET,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def nobody(dimension: int) -> EmptySignals:
    return EmptySignals(FlatLayout.of(nn.Linear(dimension, 1, bias=False)))


def one_record(gradient: Tensor) -> MatrixSignals:
    layout = FlatLayout.of(nn.Linear(len(gradient), 1, bias=False))
    return MatrixSignals(layout, gradient[None], torch.zeros(1))


def contribution(mechanism: DPSGD, gradient: Tensor) -> Tensor:
    """What one record adds to the release; the noise is negligible."""
    quiet = replace(mechanism, noise_multiplier=1e-9)
    return quiet.privatise(one_record(gradient), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
@pytest.mark.parametrize("norm", [0.0, 1e-6, 0.3, 0.7, 50.0, 1e6])
def test_no_record_adds_more_than_the_clipping_norm(clipping: str, norm: float) -> None:
    direction = torch.randn(20, generator=torch.Generator().manual_seed(1))
    gradient = norm * direction / direction.norm()
    mechanism = DPSGD(l2_clip_norm=0.7, clipping=clipping, noise_multiplier=1.0)
    added = contribution(mechanism, gradient)
    assert float(added.norm()) <= 0.7 * (1 + 1e-6)
    factor = min(1.0, 0.7 / norm) if clipping == "flat" and norm else 0.7 / (norm + 0.01)
    torch.testing.assert_close(added, factor * gradient, atol=1e-7, rtol=1e-5)


def test_the_clipping_test_refutes_a_mechanism_that_forgot_it() -> None:
    assert float(contribution(WithoutClipping(noise_multiplier=1.0), torch.ones(20)).norm()) > 4


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_the_canary_is_clipped_like_any_record(clipping: str) -> None:
    mechanism = DPSGD(l2_clip_norm=0.7, clipping=clipping, noise_multiplier=1e-9)
    canary = GradientCanary(coordinate=3, magnitude=100.0)
    signals = SignalsWithCanary(nobody(8), canary, included=True, trials=2)
    released = mechanism.privatise(signals, torch.Generator().manual_seed(0))
    expected = torch.zeros(2, 8)
    expected[:, 3] = 0.7 if clipping == "flat" else 0.7 * 100 / 100.01
    torch.testing.assert_close(released, expected, atol=1e-6, rtol=1e-6)


def noise_p_values(mechanism: DPSGD, standard_deviation: float) -> tuple[float, float, float]:
    """P-values of 300 releases of an empty sample: variance, mean, and correlation of neighbours."""
    canary = GradientCanary(coordinate=0, magnitude=1.0)
    signals = SignalsWithCanary(nobody(500), canary, included=False, trials=300)
    noise = mechanism.privatise(signals, torch.Generator().manual_seed(11)).double() / standard_deviation
    assert noise.shape == (300, 500)
    count = noise.numel()
    tail = stats.chi2.cdf(float(noise.square().sum()), count)
    mean_z = float(noise.mean()) * math.sqrt(count)
    along, across = noise[:, 1:] * noise[:, :-1], noise[1:] * noise[:-1]
    z = max(abs(float(x.sum())) / math.sqrt(x.numel()) for x in (along, across))
    return 2 * min(tail, 1 - tail), 2 * stats.norm.sf(abs(mean_z)), 2 * 2 * stats.norm.sf(z)


def test_the_noise_is_independent_gaussian_of_the_stated_variance() -> None:
    assert min(noise_p_values(DPSGD(l2_clip_norm=0.5, noise_multiplier=3.0), 1.5)) > FALSE_ALARM


def test_the_noise_test_refutes_a_tenth_and_a_fiftieth_too_much() -> None:
    assert noise_p_values(TenthOfTheNoise(l2_clip_norm=0.5, noise_multiplier=3.0), 1.5)[0] < FALSE_ALARM
    assert noise_p_values(DPSGD(l2_clip_norm=0.5, noise_multiplier=3.06), 1.5)[0] < FALSE_ALARM


def test_the_release_is_the_clipped_sum_plus_noise() -> None:
    gradients = torch.randn(6, 12, generator=torch.Generator().manual_seed(2))
    signals = MatrixSignals(FlatLayout.of(nn.Linear(12, 1, bias=False)), gradients, torch.zeros(6))
    released = DPSGD(l2_clip_norm=2.0, noise_multiplier=1e-9).privatise(signals, torch.Generator())
    twin = torch.zeros(12)
    for gradient in gradients:
        twin += gradient / max(1.0, float(gradient.norm()) / 2.0)
    torch.testing.assert_close(released, twin, atol=1e-6, rtol=1e-5)


def test_the_claim_is_the_budget_and_the_noise_meets_it() -> None:
    plan = make_plan()
    claim = DPSGD().claim(plan)
    assert claim.guarantee == BUDGET
    assert (claim.about, claim.released) == (Adjacency.ADD_REMOVE, Released.EVERY_UPDATE)
    noise = DPSGD().for_plan(plan).settings()["noise_multiplier"]
    schedule = {"sampling_probability": 0.2, "steps": 30, "delta": 1e-5}
    assert epsilon(noise_multiplier=noise, **schedule) <= 1.0
    assert epsilon(noise_multiplier=0.999 * noise, **schedule) > 1.0


def test_a_given_noise_multiplier_is_accounted_for() -> None:
    guarantee = DPSGD(noise_multiplier=2.0).claim(make_plan()).guarantee
    expected = epsilon(noise_multiplier=2.0, sampling_probability=0.2, steps=30, delta=1e-5)
    assert guarantee == ApproximateDP(epsilon=expected, delta=1e-5)
    every_record = make_plan(sampling_probability=1.0, steps=9, budget=None)
    assert DPSGD(noise_multiplier=6.0).claim(every_record).guarantee == GaussianDP(mu=0.5)


def test_noise_without_a_finite_epsilon_promises_nothing() -> None:
    """So it can be audited under a claim of the user's."""
    assert DPSGD(noise_multiplier=1e-200).claim(make_plan()).guarantee == NoGuarantee()


@pytest.mark.parametrize("noise", [0.001, 1e-9])
def test_little_noise_promises_what_it_is_worth(noise: float) -> None:
    guarantee = DPSGD(noise_multiplier=noise).claim(make_plan()).guarantee
    assert isinstance(guarantee, ApproximateDP)
    assert guarantee.epsilon > 1 / noise**2


def test_a_gaussian_budget_is_met_exactly_where_every_record_is_in_every_step() -> None:
    plan = make_plan(sampling_probability=1.0, steps=9, budget=GaussianDP(mu=0.5))
    assert DPSGD().for_plan(plan).noise_multiplier == pytest.approx(6.0)
    assert DPSGD().claim(plan).guarantee == GaussianDP(mu=0.5)


def test_budgets_that_the_noise_cannot_be_calibrated_to_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"not to mu-GDP with mu = 0\.5 at q = 0\.2"):
        DPSGD().claim(make_plan(budget=GaussianDP(mu=0.5)))
    with pytest.raises(UnsupportedError, match="dp_sgd is calibrated to"):
        DPSGD().train(make_plan(budget=MutualInformation(nats=0.1, secret=Secret.RECORD)))
    with pytest.raises(InputError, match="needs a budget or a noise_multiplier"):
        DPSGD().train(make_plan(budget=None))
    with pytest.raises(InputError, match="to read delta from"):
        DPSGD(noise_multiplier=1.0).claim(make_plan(budget=None))
    with pytest.raises(InputError, match="call for_plan first"):
        DPSGD().privatise(nobody(3), torch.Generator())


def by_rdp(noise_multiplier: float) -> float:
    """Epsilon of the plan's run by dp-accounting's Renyi accountant, asked without our adapters."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    step = dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(noise_multiplier))
    return float(RdpAccountant().compose(step, 30).get_epsilon(1e-5))


def test_a_named_accountant_finds_the_noise_and_answers_for_a_given_one() -> None:
    plan, mechanism = make_plan(), DPSGD(accountant="dp_accounting_rdp")
    found = mechanism.for_plan(plan).noise_multiplier
    assert found is not None
    assert by_rdp(found) <= 1.0 < by_rdp(0.999 * found)
    # Renyi DP loses a little against the certified bounds, so its noise is no smaller.
    assert found > DPSGD().for_plan(plan).settings()["noise_multiplier"]
    claim = mechanism.claim(plan)
    assert claim.guarantee == BUDGET
    assert claim.source == "Abadi et al. 2016, algorithm 1, accounted by accountant dp_accounting_rdp"
    given = replace(mechanism, noise_multiplier=2.0).claim(plan)
    assert given.guarantee == ApproximateDP(epsilon=by_rdp(2.0), delta=1e-5)
    assert given.source == claim.source
    assert mechanism.train(plan).transcript.metrics["noise_multiplier"] == found


def test_the_accountant_leaves_what_was_stored_before_as_it_is() -> None:
    before = {
        "micro_batch_size": 64,
        "measures_quality": True,
        "l2_clip_norm": 1.0,
        "clipping": "flat",
        "stability": 0.01,
        "noise_multiplier": None,
    }
    assert settled("mechanism", "dp_sgd", {}) == before
    assert settled("mechanism", "dp_sgd", {"accountant": "certified"}) == before
    assert settled("mechanism", "dp_sgd", {"accountant": "dp_accounting_rdp"}) == {
        **before,
        "accountant": "dp_accounting_rdp",
    }


def test_accountants_that_cannot_answer_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match=r"by accountant 'dp_accounting_rdp', not to mu-GDP"):
        DPSGD(accountant="dp_accounting_rdp").for_plan(
            make_plan(sampling_probability=1.0, budget=GaussianDP(mu=0.5))
        )
    with pytest.raises(InputError, match="to read delta from with accountant 'dp_accounting_rdp'"):
        DPSGD(accountant="dp_accounting_rdp", noise_multiplier=1.0).claim(make_plan(budget=None))
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    monkeypatch.setitem(sys.modules, "opacus.accountants.utils", None)
    with pytest.raises(UnsupportedError, match=r"^opacus is not installed: pip install \S+$"):
        DPSGD(accountant="opacus_rdp").claim(make_plan())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"accountant": "dp_accounting_rpd"}, "unknown accountant 'dp_accounting_rpd'; did you mean"),
        (
            {"accountant": "paczero"},
            "accountant must be one that finds the noise for a budget, got 'paczero'",
        ),
        ({"clipping": "flatt"}, r"unknown clipping 'flatt'; did you mean 'flat'"),
        ({"l2_clip_norm": 0.0}, r"l2_clip_norm must be finite and > 0, got 0\.0"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier must be finite and > 0, got -1\.0"),
        ({"stability": math.nan}, r"stability must be finite and > 0, got nan"),
        ({"micro_batch_size": 0}, "micro_batch_size must be a whole number >= 1, got 0"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("mechanism", "dp_sgd", **parameters)


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_training_with_a_generous_budget_learns(clipping: str) -> None:
    plan = make_plan(budget=ApproximateDP(epsilon=20.0, delta=1e-5))
    metrics = DPSGD(clipping=clipping).train(plan).transcript.metrics
    assert metrics["test_accuracy_after"] > metrics["test_accuracy_before"] + 0.3
    assert metrics["noise_multiplier"] > 0


def test_the_control_trains_without_clip_noise_or_claim() -> None:
    control = NonPrivate()
    gradients = 50 * torch.ones(2, 4)
    signals = MatrixSignals(FlatLayout.of(nn.Linear(4, 1, bias=False)), gradients, torch.zeros(2))
    assert torch.equal(control.privatise(signals, torch.Generator()), gradients.sum(0))
    assert control.claim(make_plan()).guarantee == NoGuarantee()
    assert control.capabilities.family is Family.ANY
    assert DPSGD().capabilities.family is Family.GAUSSIAN
    subject = control.train(make_plan(budget=None))
    assert subject.transcript.metrics["test_accuracy_after"] > 0.6
    assert np.isfinite(subject.losses(digits().records[:5])).all()

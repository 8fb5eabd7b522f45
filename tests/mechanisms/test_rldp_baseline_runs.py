"""AdaCliP, AutoClip, PSAC and DP-LoRA: their runs, their claims, and what a canary sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from baseline_plans import ADAPTERS, BUDGET, drawn, make_plan, matrix, seeded
from scipy import stats

from workbench.accounting import ApproximateDP
from workbench.accounting.subsampled_gaussian import epsilon
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.estimation.gaussian_family import gaussian_location
from workbench.interfaces import (
    Adjacency,
    Family,
    GradientCanary,
    Insertions,
    Plan,
    Released,
    Sampling,
)
from workbench.mechanisms.adaclip import AdaCliP, AdaCliPSteps
from workbench.mechanisms.autoclip import AutoClip
from workbench.mechanisms.dp_lora import DPLoRA
from workbench.mechanisms.psac import PSAC
from workbench.mechanisms.shared.adaptive_sums import LIMIT_ASSUMPTION, AdaptiveSums
from workbench.training.canary import SignalsWithCanary
from workbench.training.fine_tuning import build_model
from workbench.training.per_record import EmptySignals
from workbench.training.subject import TrainedSubject

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance."""

MECHANISMS: Sequence[AdaptiveSums] = (
    AdaCliP(),
    AdaCliP(variance_of="record"),
    AutoClip(),
    AutoClip(estimate="history"),
    AutoClip(estimate="private"),
    PSAC(),
)
IDS = [
    "adaclip",
    "adaclip-record",
    "autoclip-sample",
    "autoclip-history",
    "autoclip-private",
    "psac",
]


# --- empty samples, runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [*MECHANISMS, DPLoRA()], ids=[*IDS, "dp_lora"])
def test_an_empty_sample_is_released_as_noise(mechanism: AdaptiveSums) -> None:
    settled = replace(mechanism, noise_multiplier=2.0)
    released = settled.privatise(EmptySignals(ADAPTERS), seeded(0))
    assert released.shape == (20,)
    assert bool(torch.isfinite(released).all())
    assert float(released.norm()) > 0
    with pytest.raises(InputError, match="call for_plan first"):
        mechanism.privatise(EmptySignals(ADAPTERS), seeded(0))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=IDS)
def test_a_run_learns_traces_and_repeats_itself(mechanism: AdaptiveSums) -> None:
    budget = ApproximateDP(epsilon=20.0, delta=1e-5)
    plan = make_plan(budget=budget, optimizer="adamw", learning_rate=0.05)
    first, second = mechanism.train(plan), mechanism.train(plan)
    metrics, traces = first.transcript.metrics, first.transcript.traces
    assert metrics["test_accuracy_after"] > metrics["test_accuracy_before"] + 0.2
    assert metrics["noise_multiplier"] == pytest.approx(mechanism.for_plan(plan).settled_noise_multiplier())
    np.testing.assert_array_equal(first.transcript.losses, second.transcript.losses)
    assert {name: len(series) for name, series in traces.items()} == dict.fromkeys(traces, 30)
    for name, series in traces.items():
        np.testing.assert_array_equal(series, second.transcript.traces[name])
    assert {"l2_clip_norm", "noise_multiplier"} <= set(traces)
    radii = traces["l2_clip_norm"]
    assert (radii > 0).all()
    assert (len(set(radii)) > 1) == (mechanism.mechanism != "psac")


def test_adaclip_stays_between_its_bounds_and_with_few_records_reaches_the_upper_one() -> None:
    few = AdaCliP(noise_multiplier=3.0, l2_clip_norm=0.5)
    plan = make_plan(sampling_probability=0.02, steps=40, learning_rate=0.01)
    radii = few.train(plan).transcript.traces["l2_clip_norm"]
    assert radii[0] == pytest.approx(math.sqrt(0.5 * 0.01), rel=1e-4)
    assert (radii <= 0.5 * (1 + 1e-5)).all()
    assert radii[-1] > 0.25
    many = AdaCliP(noise_multiplier=0.1, l2_clip_norm=0.5)
    quiet = many.train(make_plan(steps=40, learning_rate=0.01)).transcript.traces["l2_clip_norm"]
    assert quiet[-1] < 0.25


def test_steps_of_adaclip_start_from_what_privatise_releases() -> None:
    plan = make_plan()
    mechanism = AdaCliP(noise_multiplier=1.3)
    steps = mechanism.steps(plan, build_model(plan))
    assert isinstance(steps, AdaCliPSteps)
    rows = drawn(3, 11, 2)
    first = steps.privatise(matrix(rows), seeded(4))
    torch.testing.assert_close(first, mechanism.privatise(matrix(rows), seeded(4)))
    assert not torch.equal(steps.privatise(matrix(rows), seeded(4)), first)


@pytest.mark.slow
def test_dp_lora_trains_a_language_model_and_refuses_a_plan_without_adapters() -> None:
    corpus = registry.create("corpus", "clinical", size=24, seed=0, attributes="short")
    plan = make_plan(
        records=corpus.records,
        held_out=corpus.held_out[:8],
        model="tiny_gpt2",
        adapter="lora",
        lora_rank=2,
        optimizer="adamw",
        steps=12,
        learning_rate=5e-3,
        budget=ApproximateDP(epsilon=50.0, delta=1e-5),
    )
    transcript = DPLoRA().train(plan).transcript
    assert transcript.metrics["test_perplexity_after"] < transcript.metrics["test_perplexity_before"]
    joint = transcript.metrics["noise_multiplier"]
    np.testing.assert_allclose(transcript.traces["noise_multiplier"], joint * math.sqrt(2))


# --- claims -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [*MECHANISMS, DPLoRA()], ids=[*IDS, "dp_lora"])
def test_the_claim_is_the_budget_by_the_central_limit_or_certified(mechanism: AdaptiveSums) -> None:
    plan = make_plan()
    assert mechanism.accountant == "certified"
    claim = replace(mechanism, accountant="rldp_gdp").claim(plan)
    assert claim.guarantee == BUDGET
    assert (claim.about, claim.released) == (Adjacency.ADD_REMOVE, Released.EVERY_UPDATE)
    assert claim.source == f"{mechanism.paper}, accounted by accountant rldp_gdp"
    certified = replace(mechanism, accountant="certified")
    assert LIMIT_ASSUMPTION in claim.assumptions
    assert LIMIT_ASSUMPTION not in certified.claim(plan).assumptions
    sigma = certified.for_plan(plan).settled_noise_multiplier()
    schedule = {"sampling_probability": 0.2, "steps": 30, "delta": 1e-5}
    assert (
        epsilon(noise_multiplier=sigma, **schedule)
        <= 4.0
        < epsilon(noise_multiplier=0.99 * sigma, **schedule)
    )
    given = replace(certified, noise_multiplier=2.0).claim(plan).guarantee
    assert given == ApproximateDP(epsilon=epsilon(noise_multiplier=2.0, **schedule), delta=1e-5)
    with pytest.raises(
        UnsupportedError, match=f"{mechanism.mechanism} is accounted for Poisson samples only"
    ):
        mechanism.claim(make_plan(sampling=Sampling.SHUFFLED))
    with pytest.raises(InputError, match=f"{mechanism.mechanism} needs a budget"):
        mechanism.for_plan(make_plan(budget=None))


def test_what_is_not_paid_for_stands_in_the_claim() -> None:
    plan = make_plan()

    def unpaid(mechanism: AdaptiveSums) -> bool:
        return any("NOTHING IS PAID" in text for text in mechanism.claim(plan).assumptions)

    assert unpaid(AutoClip())
    assert unpaid(AutoClip(estimate="history"))
    assert not any(unpaid(one) for one in (AutoClip(estimate="private"), AdaCliP(), PSAC()))
    assert any(
        "A RECORD MAY ADD C TO EACH" in x for x in DPLoRA(accounting="per-group").claim(plan).assumptions
    )
    assert not any("A RECORD MAY ADD" in text for text in DPLoRA().claim(plan).assumptions)
    assert AutoClip().capabilities.family is Family.ANY
    assert AutoClip(estimate="private").capabilities.family is Family.GAUSSIAN
    assert AdaCliP().capabilities.family is Family.GAUSSIAN


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("adaclip", {"mean_decay": 1.0}, r"mean_decay must be in \[0, 1\), got 1\.0"),
        ("adaclip", {"variance_decay": -0.1}, r"variance_decay must be in \[0, 1\), got -0\.1"),
        ("adaclip", {"least_l2_clip_norm": 2.0}, r"at most l2_clip_norm = 1, got 2\.0"),
        ("adaclip", {"least_l2_clip_norm": 0.0}, r"least_l2_clip_norm must be finite and > 0, got 0\.0"),
        ("adaclip", {"variance_of": "records"}, "unknown variance_of 'records'; did you mean 'record'"),
        ("autoclip", {"estimate": "sampel"}, "unknown estimate 'sampel'; did you mean 'sample'"),
        ("autoclip", {"quantile": 1.0}, r"quantile must be in \(0, 1\), got 1\.0"),
        ("autoclip", {"count_share": 0.0}, r"count_share must be in \(0, 1\), got 0\.0"),
        (
            "autoclip",
            {"radius_learning_rate": math.nan},
            "radius_learning_rate must be finite and > 0, got nan",
        ),
        ("psac", {"stability": 0.0}, r"stability must be finite and > 0, got 0\.0"),
        ("dp_lora", {"grouping": "pair"}, "unknown grouping 'pair'; did you mean 'pairs'"),
        ("dp_lora", {"accounting": "joined"}, "unknown accounting 'joined'; did you mean 'joint'"),
        ("psac", {"l2_clip_norm": -1.0}, r"l2_clip_norm must be finite and > 0, got -1\.0"),
        ("psac", {"l2_clip_norm": 1e300}, r"l2_clip_norm must be in \[1e-15, 1e\+15\], got 1e\+300"),
        ("geoclip", {"l2_clip_norm": 1e-300}, "l2_clip_norm must be in"),
        ("adaclip", {"least_l2_clip_norm": 1e-40}, "least_l2_clip_norm must be in"),
        ("psac", {"noise_multiplier": 0.0}, r"noise_multiplier must be finite and > 0, got 0\.0"),
        ("psac", {"accountant": "rldp_gpd"}, "unknown accountant 'rldp_gpd'; did you mean 'rldp_gdp'"),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("mechanism", name, **parameters)


@pytest.mark.parametrize(
    "parameters", [{"radius_learning_rate": 1e9}, {"count_share": 1e-30}], ids=lambda one: next(iter(one))
)
def test_a_private_radius_that_leaves_the_numbers_says_so(parameters: dict[str, float]) -> None:
    """Without a bound, exp overflows upwards, and a radius of zero releases nothing at all."""
    mechanism = AutoClip(estimate="private", measures_quality=False, **parameters)  # type: ignore[arg-type]
    with pytest.raises(InconclusiveError, match=r"private radius left .* try a radius_learning_rate below"):
        mechanism.train(make_plan())


def test_dp_lora_refuses_what_has_no_adapters() -> None:
    with pytest.raises(InputError, match="adapter must be 'lora' for dp_lora, got 'full'"):
        DPLoRA().train(make_plan())
    with pytest.raises(InputError, match="must be LoRA matrices"):
        DPLoRA(noise_multiplier=1.0).privatise(matrix(torch.zeros(1, 3)), seeded(0))


# --- the canary ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TenthOfTheNoise(AdaCliP):
    """A negative control: noise scaled by a tenth."""

    def sum_noise_multiplier(self) -> float:
        """A tenth."""
        return super().sum_noise_multiplier() / 10


def mu_lower(values: np.ndarray, included: np.ndarray) -> float:
    found = gaussian_location(values, included, delta=1e-5, confidence=1 - FALSE_ALARM, quantity="mu")
    return float(found.lower)


def audited(mechanism: AdaptiveSums, plan: Plan) -> TrainedSubject:
    canary = GradientCanary(coordinate=77, magnitude=100.0)
    return mechanism.train(replace(plan, insertions=Insertions(gradient_canary=canary)))


@pytest.mark.parametrize(
    "mechanism",
    [AdaCliP(), AutoClip(estimate="private"), PSAC(), TenthOfTheNoise()],
    ids=["adaclip", "autoclip-private", "psac", "control"],
)
def test_the_dirac_canary_sees_no_more_than_the_noise_allows(mechanism: AdaptiveSums) -> None:
    """False alarms: one in a million for each bound."""
    plan = make_plan(steps=150, learning_rate=0.05)
    settled = replace(mechanism, noise_multiplier=1.5, measures_quality=False)
    subject = audited(settled, plan)
    canary, coins = GradientCanary(coordinate=77, magnitude=100.0), np.arange(3000) % 2 == 0
    values = subject.release_canary(canary, coins, np.random.default_rng(0))
    allowed = 1 / 1.5
    one_state = mu_lower(values, coins)
    if isinstance(mechanism, TenthOfTheNoise):
        assert one_state > 5 * allowed
        return
    assert 0.5 * allowed < one_state <= allowed
    transcript = subject.transcript
    assert mu_lower(transcript.canary_observations, transcript.canary_included) <= allowed


@pytest.mark.parametrize("noise_multiplier", [0.1, 1.5])
def test_every_step_of_adaclip_is_read_on_one_scale(noise_multiplier: float) -> None:
    """False alarm: one in a million. By any mean and scales: 1 with the canary, 0 without, noise sigma."""
    plan = make_plan(steps=150, learning_rate=0.05)
    mechanism = AdaCliP(noise_multiplier=noise_multiplier, measures_quality=False)
    transcript = audited(mechanism, plan).transcript
    radii = transcript.traces["l2_clip_norm"]
    assert radii.max() / radii.min() > 1.5  # otherwise there would be nothing to put on one scale
    whitened = (transcript.canary_observations - transcript.canary_included) / noise_multiplier
    assert stats.kstest(whitened, stats.norm(0.0, 1.0).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("accounting", ["joint", "per-group"])
def test_a_canary_everywhere_sees_what_dp_lora_accounts_by_group(accounting: str) -> None:
    """False alarms: one in a million. Four groups of C each are a mu of 2 / sigma unless paid for."""
    mechanism = DPLoRA(grouping="matrices", accounting=accounting, noise_multiplier=2.0)
    groups = mechanism.clipping_groups(ADAPTERS.places)
    canary = GradientCanary(coordinate=5, magnitude=100.0, everywhere=True)
    values = []
    for included in (True, False):
        background = matrix(drawn(3, 20, 1), ADAPTERS)
        signals = SignalsWithCanary(background, canary, included, trials=3000, groups=groups)
        released = mechanism.privatise(signals, seeded(int(included)))
        values.append(signals.observed(released, mechanism.release_scales(ADAPTERS.places)).numpy())
    lower = mu_lower(np.concatenate(values), np.arange(6000) < 3000)
    if accounting == "joint":
        assert 0.3 < lower <= 1 / 2.0
    else:
        assert 0.8 < lower <= math.sqrt(4) / 2.0

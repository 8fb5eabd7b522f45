"""RLDP's runs: what is traced, who turns the dials when, what is claimed; and its audits' doors."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from workbench.accounting import ApproximateDP, GaussianDP, NoGuarantee
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.interfaces import (
    Adjacency,
    Corpus,
    FloatArray,
    GradientCanary,
    Insertions,
    Plan,
    Released,
    Sampling,
)
from workbench.mechanisms.rldp import RLDP, ControlledSteps
from workbench.training.fine_tuning import build_model
from workbench.training.flat import FlatLayout
from workbench.training.per_record import EmptySignals
from workbench.training.subject import TrainedSubject

pytestmark = pytest.mark.usefixtures("one_thread")

FALSE_ALARM = 1e-6
"""Probability that a canary which does not take part would seem to, two-sided."""

BUDGET = ApproximateDP(epsilon=4.0, delta=1e-5)
QUICK = {"decision_interval": 3, "warm_up": 5, "measures_quality": False}


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=80, seed=0)
    return corpus


def make_plan(**changes: Any) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=(),
        model="digits_mlp",
        steps=24,
        sampling_probability=0.2,
        learning_rate=0.01,
        budget=BUDGET,
    )
    return replace(plan, **changes)


def train(plan: Plan | None = None, **parameters: Any) -> TrainedSubject:
    return RLDP(**{**QUICK, **parameters}).train(make_plan() if plan is None else plan)


@cache
def learned() -> TrainedSubject:
    return train()


def weights(subject: TrainedSubject) -> FloatArray:
    return np.concatenate([p.detach().numpy().ravel() for p in subject.model.module.parameters()])


def test_traces_have_one_number_a_step_or_a_decision() -> None:
    traces = learned().transcript.traces
    groups = [name for name in traces if name.startswith("clip_")]
    assert len(groups) == 2  # the two layers of the network
    for name in ("l2_clip_norm", "noise_multiplier", "ledger_epsilon", *groups):
        assert traces[name].shape == (24,)
    mean = np.mean([traces[name] for name in groups], axis=0)
    assert traces["l2_clip_norm"] == pytest.approx(mean)
    assert traces["controller_step"].tolist() == [6, 9, 12, 15, 18, 21, 24]
    for name in ("reward", "critic_loss", "actor_loss", "action_0", "action_1", "action_2"):
        series = traces[f"controller_{name}"]
        assert series.shape == (7,)
        assert np.isfinite(series[1:]).all()
    for name in ("reward", "critic_loss", "actor_loss"):  # the first decision learns nothing
        assert np.isnan(traces[f"controller_{name}"][0])
    metrics = learned().transcript.metrics
    assert metrics["ledger_epsilon"] == traces["ledger_epsilon"][-1]
    assert metrics["noise_multiplier"] == traces["noise_multiplier"][0]


def test_dials_turn_after_decisions_by_what_was_asked() -> None:
    traces, settled = learned().transcript.traces, RLDP(**QUICK).for_plan(make_plan())
    sigma = settled.noise_multiplier
    assert sigma is not None
    noise, ledger = traces["noise_multiplier"], traces["ledger_epsilon"]
    assert (noise[:6] == sigma).all()
    decided = traces["controller_step"].astype(int)
    for index, step in enumerate(decided[:-1]):
        share = ledger[step - 1] / BUDGET.epsilon
        dial = np.tanh(traces["controller_action_2"][index]) * 0.1 * (1 - share)
        wanted = np.log(noise[step - 1]) + 0.2 * dial
        assert np.log(noise[step]) == pytest.approx(wanted, abs=1e-12)
        for group in range(2):
            asked = min(np.exp(traces[f"controller_action_{group}"][index]), 1.0)
            assert traces[f"clip_{group}"][step : step + 3] == pytest.approx(asked)


def test_rewards_are_of_the_losses_and_the_ledger() -> None:
    transcript = learned().transcript
    traces = transcript.traces
    at = traces["controller_step"].astype(int) - 1
    gains = -np.diff(transcript.losses[at]) / (np.diff(traces["ledger_epsilon"][at]) + 1e-6)
    assert traces["controller_reward"][1:] == pytest.approx(np.log1p(np.maximum(gains, -0.999)))


def test_the_same_plan_gives_the_same_run_and_leaves_global_generators_alone() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    again = train()
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    assert np.array_equal(weights(again), weights(learned()))
    for name, series in learned().transcript.traces.items():
        assert np.array_equal(series, again.transcript.traces[name], equal_nan=True)
    other = train(make_plan(seed=1)).transcript.traces["controller_action_0"]
    assert not np.array_equal(other, learned().transcript.traces["controller_action_0"])


def test_in_warm_up_radii_are_medians_of_the_norms_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FloatArray] = []
    privatise = ControlledSteps.privatise

    def watched(self: ControlledSteps, *given: Any) -> Any:
        found = privatise(self, *given)
        seen.append(self._norms)
        return found

    monkeypatch.setattr(ControlledSteps, "privatise", watched)
    traces = train(policy="static").transcript.traces
    for group in range(2):
        radii = traces[f"clip_{group}"]
        assert radii[0] == 0.1
        for step in range(1, 24):
            so_far = np.concatenate(seen[: min(step, 5)])[:, group]
            assert radii[step] == pytest.approx(np.median(so_far))
    assert "controller_step" not in traces
    assert len(set(traces["noise_multiplier"])) == 1
    assert traces["ledger_epsilon"][-1] == pytest.approx(BUDGET.epsilon, rel=1e-6)


def test_the_adversary_gets_the_least_noise_and_overspends() -> None:
    traces = train(
        make_plan(steps=60), policy="least-noise", decision_interval=1, warm_up=1
    ).transcript.traces
    noise, ledger = traces["noise_multiplier"], traces["ledger_epsilon"]
    assert (np.diff(noise) <= 0).all()
    assert noise[-1] < 0.95 * noise[0]
    assert ledger[-1] > BUDGET.epsilon
    assert (traces["l2_clip_norm"][2:] == 1.0).all()
    honest = train(
        make_plan(steps=60), policy="least-noise", decision_interval=1, warm_up=1, accountant="per-step"
    )
    assert honest.transcript.metrics["ledger_epsilon"] > BUDGET.epsilon


def test_certified_numbers_are_added_where_they_are_asked_for() -> None:
    plan = make_plan(steps=8)
    certified = train(plan, policy="static", accounts_certified=True).transcript.metrics
    assert certified["certified_epsilon_one_adapter"] < certified["certified_epsilon_joint"]
    fewer = train(plan, policy="static", accounts_certified=True, adjacency="add-remove").transcript.metrics
    assert fewer["certified_epsilon_joint"] < certified["certified_epsilon_joint"]
    assert "certified_epsilon_joint" not in learned().transcript.metrics
    shuffled = replace(plan, sampling=Sampling.SHUFFLED)
    metrics = train(shuffled, policy="static", accounts_certified=True).transcript.metrics
    assert "certified_epsilon_joint" not in metrics


def test_noise_for_all_adapters_makes_sigma_that_of_the_whole_release() -> None:
    plan = make_plan()
    signals = EmptySignals(FlatLayout.of(build_model(plan).module))
    settled = {name: RLDP(**QUICK, noise_for=name).for_plan(plan) for name in ("one adapter", "all adapters")}
    releases = [
        mechanism.privatise(signals, torch.Generator().manual_seed(0)) for mechanism in settled.values()
    ]
    adapters = len(settled["one adapter"].clipping_groups(signals.layout))
    assert adapters > 1
    torch.testing.assert_close(releases[0] * adapters**0.5, releases[1])
    # Jointly, what is paid for is what is promised, but for what the central limit leaves out.
    paid = train(noise_for="all adapters", policy="static", accounts_certified=True, adjacency="add-remove")
    printed = train(policy="static", accounts_certified=True, adjacency="add-remove")
    one = printed.transcript.metrics["certified_epsilon_one_adapter"]
    assert paid.transcript.metrics["certified_epsilon_joint"] == pytest.approx(one, rel=1e-6)
    assert "not the paper's" in " ".join(paid.claim.assumptions)


def test_empty_samples_are_noise_alone() -> None:
    plan = make_plan(records=digits().records[:2], sampling_probability=1e-9, steps=9)
    subject = train(plan)
    assert subject.transcript.sample_sizes.tolist() == [0] * 9
    traces = subject.transcript.traces
    assert (traces["l2_clip_norm"] == 0.1).all()
    assert "controller_step" not in traces  # nothing was seen
    settled = RLDP(noise_multiplier=1.0)
    signals = EmptySignals(FlatLayout.of(build_model(plan).module))
    found = settled.privatise(signals, torch.Generator().manual_seed(0))
    assert found.shape == (signals.dimension,)
    assert float(found.std()) == pytest.approx(0.1, rel=0.05)


def test_a_canary_reaches_the_controllers_norms() -> None:
    canary = GradientCanary(coordinate=0, magnitude=50.0, everywhere=True)
    plan = make_plan(insertions=Insertions(gradient_canary=canary))
    transcript = train(plan).transcript
    assert transcript.canary_observations.shape == transcript.canary_included.shape == (24,)
    assert np.isfinite(transcript.canary_observations).all()
    assert not np.array_equal(
        transcript.traces["l2_clip_norm"][1:5], learned().transcript.traces["l2_clip_norm"][1:5]
    )
    included = np.array([True, False] * 200)
    values = learned().release_canary(canary, included, np.random.default_rng(0))
    assert values.shape == (400,)
    assert stats.ttest_ind(values[included], values[~included]).pvalue < FALSE_ALARM


def test_observations_of_a_run_are_whitened_by_the_noise_that_was_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scales: list[list[float]] = []
    asked = ControlledSteps.release_scales

    def watched(self: ControlledSteps, layout: Any) -> Any:
        scales.append(list(asked(self, layout)))
        return scales[-1]

    monkeypatch.setattr(ControlledSteps, "release_scales", watched)
    canary = GradientCanary(coordinate=0, magnitude=50.0, everywhere=True)
    traces = train(make_plan(insertions=Insertions(gradient_canary=canary))).transcript.traces
    for group in range(2):
        wanted = traces["noise_multiplier"] * traces[f"clip_{group}"]
        assert [row[group] for row in scales] == pytest.approx(wanted)


def test_the_claim_is_the_authors() -> None:
    claim = RLDP().claim(make_plan())
    assert claim.guarantee == BUDGET
    assert claim.about is Adjacency.REPLACE_ONE
    assert claim.released is Released.EVERY_UPDATE
    assert "Theorem 7.13" in claim.source
    assert "Poisson with q = 0.2" in claim.assumptions[0]
    assert any("noised gradients and the ledger only" in text for text in claim.assumptions)
    shuffled = RLDP(adjacency="add-remove").claim(make_plan(sampling=Sampling.SHUFFLED))
    assert shuffled.about is Adjacency.ADD_REMOVE
    assert "shuffled epochs cost no more than Poisson" in shuffled.assumptions[0]
    assert learned().claim == claim
    given = RLDP(noise_multiplier=1.5).claim(make_plan()).guarantee
    assert isinstance(given, ApproximateDP)
    assert 0 < given.epsilon != BUDGET.epsilon
    assert given.delta == BUDGET.delta


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"policy": "sacc"}, "did you mean 'sac'"),
        ({"accountant": "gdp"}, "accountant"),
        ({"adjacency": "zero-out"}, "adjacency"),
        ({"actor_loss": "replay"}, "did you mean 'replayed'"),
        ({"decision_interval": 0}, "decision_interval must be a whole number >= 1, got 0"),
        ({"warm_up": -1}, "warm_up must be a whole number >= 0, got -1"),
        ({"sac_updates": 1.5}, "sac_updates must be a whole number >= 1, got 1.5"),
        ({"sac_batch_size": True}, "sac_batch_size must be a whole number >= 1, got True"),
        ({"replay_capacity": 0}, "replay_capacity"),
        ({"discount": 1.0}, r"discount must be in \[0, 1\), got 1.0"),
        ({"polyak": 0.0}, r"polyak must be in \(0, 1\], got 0.0"),
        ({"initial_clip_norm": 0.0}, "initial_clip_norm must be finite and > 0, got 0.0"),
        ({"initial_clip_norm": 1e300}, r"initial_clip_norm must be in \[1e-15, 1e\+15\], got 1e\+300"),
        ({"max_clip_norm": float("nan")}, "max_clip_norm"),
        ({"actor_learning_rate": 1e300}, "actor_learning_rate must be in"),
        ({"critic_learning_rate": 1e-300}, "critic_learning_rate must be in"),
        ({"sac_batch_size": 10**12}, "sac_batch_size must be at most 10000, got 1000000000000"),
        ({"reward_floor": -1.0}, "reward_floor"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier"),
    ],
)
def test_parameters_out_of_range_are_refused_in_one_line(parameters: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        RLDP(**parameters)
    assert "\n" not in str(refused.value)


def test_a_buffer_takes_the_memory_of_a_run_at_most() -> None:
    roomy = train(replay_capacity=10**9).transcript.traces
    for name, series in learned().transcript.traces.items():
        assert np.array_equal(series, roomy[name], equal_nan=True)


def test_next_to_no_noise_has_no_finite_epsilon() -> None:
    claim = RLDP(noise_multiplier=1e-300).claim(make_plan())
    assert (claim.guarantee, claim.assumptions) == (NoGuarantee(), ())
    assert "finds no finite epsilon" in claim.source
    assert train(noise_multiplier=0.01).transcript.metrics["ledger_epsilon"] > 100


def test_budgets_that_it_is_not_calibrated_to() -> None:
    with pytest.raises(InputError, match=r"rldp needs a budget of \(epsilon, delta\)-DP, got none"):
        train(make_plan(budget=None))
    with pytest.raises(UnsupportedError, match="not to"):
        train(make_plan(budget=GaussianDP(mu=1.0)))
    with pytest.raises(InputError, match="epsilon > 0"):
        train(make_plan(budget=ApproximateDP(epsilon=0.0, delta=1e-5)))
    with pytest.raises(InputError, match="call for_plan first"):
        RLDP().steps(make_plan(), build_model(make_plan()))


def test_a_run_that_leaves_the_finite_numbers_says_so_in_one_line() -> None:
    with pytest.raises(InconclusiveError) as ended:
        train(make_plan(learning_rate=1e38, optimizer="sgd", steps=6))
    assert "\n" not in str(ended.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_language_model_learns_under_the_controller() -> None:
    """Deterministic in its seed; perplexity falls from 170 below 60, and the pairs are LoRA's."""
    corpus: Corpus = registry.create("corpus", "clinical", size=60, seed=0, attributes="short")
    plan = Plan(
        records=corpus.records,
        held_out=corpus.held_out[:20],
        model="tiny_gpt2",
        steps=30,
        sampling_probability=0.2,
        learning_rate=3e-3,
        adapter="lora",
        budget=ApproximateDP(epsilon=8.0, delta=1e-5),
    )
    mechanism = RLDP(decision_interval=5, warm_up=10)
    subject = mechanism.train(plan)
    metrics, traces = subject.transcript.metrics, subject.transcript.traces
    assert metrics["test_perplexity_after"] < 60
    assert metrics["test_perplexity_before"] > 100
    pairs = sum("lora_A" in name for name, p in subject.model.module.named_parameters() if p.requires_grad)
    assert sum(name.startswith("clip_") for name in traces) == pairs > 1
    assert traces["controller_step"].tolist() == [15, 20, 25, 30]

"""DP-Weights: its noise scale, its two halves, what it claims, and that one training serves every budget."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from workbench.accounting import ApproximateDP, GaussianDP, NoGuarantee
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import (
    Adjacency,
    Corpus,
    GradientCanary,
    Insertions,
    Plan,
    PostHocMechanism,
    Released,
    Sampling,
)
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.dp_weights import DPWeights
from workbench.training.fine_tuning import trainable
from workbench.training.loop import load_subject
from workbench.training.subject import TrainedSubject

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance, two-sided."""

BUDGET = ApproximateDP(epsilon=1.0, delta=1e-4)


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=100, seed=0)
    return corpus


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=digits().held_out[:20],
        model="digits_logistic",
        steps=20,
        sampling_probability=0.1,
        sampling=Sampling.SHUFFLED,
        learning_rate=0.5,
        optimizer="sgd",
        budget=BUDGET,
        seed=5,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def budget(epsilon: float, delta: float = 1e-4) -> Plan:
    return make_plan(budget=ApproximateDP(epsilon=epsilon, delta=delta))


def weights(subject: TrainedSubject) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in trainable(subject.model.module).values()]).clone()


@cache
def unreleased() -> TrainedSubject:
    return DPWeights().train_unreleased(make_plan())


def papers_plan() -> Plan:
    """Sections 3.2 and 5.1.3: N = 1000, E = 10, B = 10, eta = 5e-5, C = 1, delta = 1 / N^2."""
    return make_plan(
        public_size=1000,
        sampling_probability=0.01,
        steps=1000,
        learning_rate=5e-5,
        budget=ApproximateDP(epsilon=1.0, delta=1e-6),
    )


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        # The ledger's evidence of "dp-weights-section-8.1.5", in ball arithmetic.
        ("eq. 1", 0.0987998),
        ("appendix", 0.00976026),
    ],
)
def test_the_noise_scale_of_the_papers_settings(form: str, expected: float) -> None:
    mechanism = DPWeights(form=form)
    assert mechanism.weight_sensitivity(papers_plan()) == pytest.approx(5e-8)
    settled = mechanism.for_plan(papers_plan())
    assert settled.settings()["noise_scale"] == pytest.approx(expected, rel=1e-5)


def test_the_two_forms_by_hand() -> None:
    # E = 2, eta = 0.5, C = 2, N = 100, B = 10: DW = 0.002. By pocket calculator at epsilon 4, delta 1e-4:
    tail, extra = 2 * math.log(12500), 0.00976 / 4**0.078008
    plan = budget(4.0)
    for form, scale in {
        "appendix": math.sqrt(tail) * 0.002 / 4 + extra,
        "eq. 1": math.sqrt(tail * 0.002 / 4 + extra),
    }.items():
        settled = DPWeights(form=form, l2_clip_norm=2.0).for_plan(plan)
        assert settled.noise_scale == pytest.approx(scale, rel=1e-12)


def test_it_is_a_post_hoc_mechanism_whose_release_alone_reads_its_parameters() -> None:
    mechanism = registry.create("mechanism", "dp_weights")
    assert isinstance(mechanism, PostHocMechanism)
    for name in mechanism.release_parameters:
        changed = replace(mechanism, **{name: {"form": "eq. 1", "noise_scale": 0.1}[name]})
        other = changed.train_unreleased(make_plan())
        assert torch.equal(weights(other), weights(unreleased()))
        assert other.transcript.metrics.keys() == unreleased().transcript.metrics.keys()
        assert other.claim == unreleased().claim


def test_the_training_does_not_depend_on_the_budget(tmp_path: Path) -> None:
    saved = []
    for index, plan in enumerate((make_plan(budget=None), budget(1000.0), budget(0.01))):
        folder = tmp_path / str(index)
        folder.mkdir()
        subject = DPWeights().train_unreleased(plan)
        assert subject.claim.guarantee == NoGuarantee()
        assert "noise_scale" not in subject.transcript.metrics
        subject.save(folder)
        saved.append((folder / "parameters.safetensors").read_bytes())
    assert saved[0] == saved[1] == saved[2]


def test_no_step_is_noised_and_each_record_is_clipped() -> None:
    plan = make_plan(steps=1, sampling_probability=1.0)
    # The same step by DP-SGD's clipping, with noise that rounds to nothing.
    poisson = replace(plan, sampling=Sampling.POISSON)
    quiet = DPSGD(l2_clip_norm=0.3, noise_multiplier=1e-12).train(poisson)
    torch.testing.assert_close(
        weights(DPWeights(l2_clip_norm=0.3).train_unreleased(plan)), weights(quiet), atol=1e-6, rtol=1e-5
    )


def test_training_is_release_after_training_and_deterministic() -> None:
    whole = DPWeights().train(make_plan())
    parts = DPWeights().release(unreleased(), make_plan())
    assert torch.equal(weights(whole), weights(parts))
    assert whole.claim == parts.claim
    costs = {"seconds", "training_seconds"}
    for name in whole.transcript.metrics.keys() - costs:
        assert whole.transcript.metrics[name] == parts.transcript.metrics[name]
    again = DPWeights().release(unreleased(), make_plan())
    assert torch.equal(weights(again), weights(parts))


def test_a_release_leaves_the_trained_subject_as_it_was() -> None:
    trained = DPWeights().train_unreleased(make_plan())
    before, metrics = weights(trained), dict(trained.transcript.metrics)
    released = DPWeights().release(trained, budget(0.01))
    assert torch.equal(weights(trained), before)
    assert trained.transcript.metrics == metrics
    assert not torch.equal(weights(released), before)
    # The metrics after training are the noised model's.
    assert released.transcript.metrics["test_perplexity_after"] != metrics["test_perplexity_after"]
    assert released.transcript.metrics["test_perplexity_before"] == metrics["test_perplexity_before"]
    # Nor does a release that measures nothing pass the clean model's on.
    unmeasured = DPWeights(measures_quality=False).release(trained, budget(0.01))
    assert "test_perplexity_after" not in unmeasured.transcript.metrics
    assert torch.equal(weights(unmeasured), weights(released))


def noise_of(mechanism: DPWeights, plan: Plan) -> Tensor:
    """The release's noise over its stated scale, float64, shape `(650,)`."""
    released = mechanism.release(unreleased(), plan)
    scale = released.transcript.metrics["noise_scale"]
    return (weights(released) - weights(unreleased())).double() / scale


def noise_p_values(noises: list[Tensor]) -> tuple[float, float]:
    """P-values of noise over its stated scale: normality with mean 0 and SD 1; correlation of releases."""
    shape = stats.kstest(torch.cat(noises).numpy(), "norm").pvalue
    variance = stats.chi2.cdf(float(sum(x.square().sum() for x in noises)), sum(len(x) for x in noises))
    correlations = [float(a @ b) / math.sqrt(len(a)) for i, a in enumerate(noises) for b in noises[:i]]
    largest = 2 * stats.norm.sf(max(map(abs, correlations))) * len(correlations)
    return min(shape, 2 * min(variance, 1 - variance)), largest


def test_the_noise_is_gaussian_of_the_stated_scale_and_fresh_for_each_release() -> None:
    plans = [budget(1.0), budget(2.0), budget(1.0, delta=1e-5)]
    noises = [noise_of(DPWeights(), plan) for plan in plans]
    noises.append(noise_of(DPWeights(form="eq. 1"), plans[0]))
    noises.append(noise_of(DPWeights(noise_scale=0.3), plans[0]))
    assert min(noise_p_values(noises)) > FALSE_ALARM


def test_the_noise_test_refutes_another_scale_and_noise_that_is_used_twice() -> None:
    noises = [noise_of(DPWeights(), budget(epsilon)) for epsilon in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert noise_p_values([0.85 * x for x in noises])[0] < FALSE_ALARM
    assert noise_p_values([noises[0], noises[0]])[1] < FALSE_ALARM


def test_whole_epsilons_draw_the_noise_of_their_floats() -> None:
    whole = make_plan(budget=ApproximateDP(epsilon=2, delta=1e-4))
    assert torch.equal(noise_of(DPWeights(), whole), noise_of(DPWeights(), budget(2.0)))


def test_the_same_noise_at_two_scales_would_give_the_weights_away() -> None:
    # Why the stream depends on the budget: with one draw the module's formula recovers the weights exactly.
    secret, draw = (
        torch.randn(50, generator=torch.Generator().manual_seed(0)).double(),
        torch.ones(50).double(),
    )
    s, t = 0.3, 0.7
    found = (s * (secret + t * draw) - t * (secret + s * draw)) / (s - t)
    torch.testing.assert_close(found, secret)


def test_the_claim_is_the_papers() -> None:
    claim = DPWeights().claim(papers_plan())
    assert claim.guarantee == ApproximateDP(epsilon=1.0, delta=1e-6)
    assert (claim.about, claim.released) == (Adjacency.ADD_REMOVE, Released.FINAL_WEIGHTS)
    assert "section 8.1.5" in claim.source
    assert "section 8.1.2, step 2" in claim.source
    said = " | ".join(claim.assumptions)
    for part in ("E = 10, eta = 5e-05", "N = 1000 and B = 10", "clipped to C = 1", "5e-08", "independent"):
        assert part in said
    assert "the paper sets delta = 1 / N^2 = 1e-06" in said
    assert "is another" not in said
    assert "Eq. 1" in DPWeights(form="eq. 1").claim(papers_plan()).source


def test_another_delta_is_honoured_and_said() -> None:
    claim = DPWeights().claim(budget(1.0, delta=1e-5))
    assert claim.guarantee == ApproximateDP(epsilon=1.0, delta=1e-5)
    assert "1 / N^2 = 0.0001; the budget's delta, 1e-05, is another" in " | ".join(claim.assumptions)


@pytest.mark.parametrize("form", ["appendix", "eq. 1"])
def test_a_given_noise_scale_has_the_epsilon_that_prescribes_it(form: str) -> None:
    settled = DPWeights(form=form).for_plan(budget(3.0))
    given = DPWeights(form=form, noise_scale=settled.noise_scale).claim(budget(77.0))
    assert isinstance(given.guarantee, ApproximateDP)
    assert given.guarantee.epsilon == pytest.approx(3.0, rel=1e-9)


def test_poisson_samples_have_the_expected_number_of_epochs() -> None:
    plan = make_plan(sampling=Sampling.POISSON, steps=25)
    assert DPWeights().weight_sensitivity(plan) == pytest.approx(2.5 * 0.5 / (100 * 10))
    assert "E is q T" in " | ".join(DPWeights().claim(plan).assumptions)


def test_subjects_come_back_from_disk(tmp_path: Path) -> None:
    for name, plan in {"trained": make_plan(budget=None), "released": make_plan()}.items():
        (tmp_path / name).mkdir()
        subject = unreleased() if name == "trained" else DPWeights().train(plan)
        subject.save(tmp_path / name)
        loaded = load_subject(tmp_path / name, DPWeights(), plan)
        assert torch.equal(weights(loaded), weights(subject))
        assert loaded.claim == subject.claim
        assert np.array_equal(loaded.losses(plan.records), subject.losses(plan.records))
    # A training that is loaded by the plan of a release is released as the one in memory is.
    for plan in (make_plan(), budget(9.0)):
        direct = DPWeights().release(unreleased(), plan)
        loaded = load_subject(tmp_path / "trained", DPWeights(), plan)
        assert torch.equal(weights(DPWeights().release(loaded, plan)), weights(direct))


def test_lora_noises_the_adapter_alone() -> None:
    plan = make_plan(model="digits_mlp", adapter="lora", lora_rank=2, steps=2)
    trained = DPWeights().train_unreleased(plan)
    released = DPWeights().release(trained, plan)
    for name, parameter in released.model.module.named_parameters():
        same = torch.equal(parameter, dict(trained.model.module.named_parameters())[name])
        assert same is (not parameter.requires_grad)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"form": "apendix"}, "unknown form 'apendix'; did you mean 'appendix'"),
        ({"l2_clip_norm": 0.0}, "l2_clip_norm must be finite and > 0, got 0.0"),
        ({"noise_scale": math.inf}, "noise_scale must be finite and > 0, got inf"),
        ({"micro_batch_size": 0}, "micro_batch_size must be a whole number >= 1, got 0"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("mechanism", "dp_weights", **parameters)


def test_budgets_that_the_formula_does_not_take_are_refused() -> None:
    for call in (DPWeights().claim, DPWeights().train):
        with pytest.raises(InputError, match="dp_weights needs a budget"):
            call(make_plan(budget=None))
        with pytest.raises(UnsupportedError, match=r"claims \(epsilon, delta\)-DP, not mu-GDP|GDP"):
            call(make_plan(budget=GaussianDP(mu=1.0)))
        with pytest.raises(InputError, match="delta of a dp_weights budget must be finite and > 0, got 0"):
            call(make_plan(budget=ApproximateDP(epsilon=1.0, delta=0.0)))
        with pytest.raises(InputError, match="epsilon of a dp_weights budget must be finite and > 0, got 0"):
            call(make_plan(budget=ApproximateDP(epsilon=0.0, delta=1e-5)))


def test_only_its_own_unreleased_training_is_released() -> None:
    with pytest.raises(InputError, match="differs in more than its budget"):
        DPWeights().release(unreleased(), make_plan(learning_rate=0.4))
    with pytest.raises(InputError, match="clipped at l2_clip_norm 2, got one that was clipped at 1"):
        DPWeights(l2_clip_norm=2.0).release(unreleased(), make_plan())
    with pytest.raises(InputError, match="has its noise already"):
        DPWeights().release(DPWeights().train(make_plan()), make_plan())
    with pytest.raises(InputError, match=r"must be a subject of dp_weights\.train_unreleased"):
        DPWeights().release(DPSGD().train(make_plan(sampling=Sampling.POISSON)), make_plan())


def test_no_update_is_released_so_no_canary_is() -> None:
    subject = DPWeights().train(make_plan(sampling=Sampling.POISSON))
    canary = GradientCanary(coordinate=0, magnitude=1.0)
    with pytest.raises(UnsupportedError, match="releases its final weights; a canary's releases need every"):
        subject.release_canary(canary, np.array([True]), np.random.default_rng(0))


def test_a_canary_record_moves_its_weight_as_far_as_clipping_allows() -> None:
    # E = 2 passes in batches of B = 10: E eta C / B = 0.1, a hundred (N) times Eq. 2.
    canary = GradientCanary(coordinate=3, magnitude=1e9, record=digits().records[-1].id)
    silent = replace(canary, magnitude=1e-30)
    ends = [
        weights(DPWeights().train_unreleased(make_plan(insertions=Insertions(gradient_canary=one)))).double()
        for one in (canary, silent)
    ]
    moved = ends[0] - ends[1]
    assert float(moved[3]) == pytest.approx(-0.1, rel=0.05)
    assert float(moved.abs().max()) == float(moved[3].abs())

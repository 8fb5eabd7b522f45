"""The shared loop: sampling, streams, the update, the canary's place in it, and subjects on disk."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.interfaces import (
    Adjacency,
    Claim,
    Corpus,
    GradientCanary,
    Insertions,
    IntArray,
    Plan,
    Released,
    Signals,
)
from workbench.training import canary as canary_module
from workbench.training.canary import FixedSignals, SignalsWithCanary
from workbench.training.fine_tuning import build_model, record_losses, trainable
from workbench.training.flat import FlatLayout
from workbench.training.loop import GradientMechanism, gaussian_noise, load_subject
from workbench.training.per_record import MatrixSignals
from workbench.training.samples import poisson_sample, sample_signals
from workbench.training.subject import TrainedSubject

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance, two-sided."""

CANARY = Insertions(gradient_canary=GradientCanary(coordinate=7, magnitude=3.0))


@dataclass(frozen=True, kw_only=True)
class NoisySum(GradientMechanism):
    """The plain sum plus noise: the smallest mechanism that the loop can drive."""

    noise: float = 0.0

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Sum of the gradients, noised."""
        total = signals.weighted_sum(torch.ones(signals.n))
        return total + gaussian_noise(total, self.noise, generator)

    def claim(self, plan: Plan) -> Claim:
        """Nothing."""
        return Claim(
            guarantee=NoGuarantee(), about=Adjacency.ADD_REMOVE, released=Released.EVERY_UPDATE, source="test"
        )


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=60, seed=0)
    return corpus


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=digits().held_out[:20],
        model="digits_logistic",
        steps=6,
        sampling_probability=0.3,
        learning_rate=0.1,
        optimizer="sgd",
        budget=ApproximateDP(epsilon=1.0, delta=1e-5),
        seed=5,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def parameters(subject: TrainedSubject) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in trainable(subject.model.module).values()])


def matrix_signals(rows: int, generator: torch.Generator) -> MatrixSignals:
    layout = FlatLayout.of(nn.Linear(4, 2))
    return MatrixSignals(layout, torch.randn(rows, 10, generator=generator), torch.zeros(rows))


def sampling_p_values(draw: Callable[[np.random.Generator], IntArray]) -> tuple[float, float]:
    """P-values of 4,000 samples of 50 records at q = 0.2: inclusion counts, and variance of the size."""
    generator, records, q, draws = np.random.default_rng(3), 50, 0.2, 4000
    samples = [draw(generator) for _ in range(draws)]
    counts = np.bincount(np.concatenate(samples), minlength=records)
    counts_statistic = np.sum((counts - draws * q) ** 2) / (draws * q * (1 - q))
    sizes = np.array([len(sample) for sample in samples])
    # A binomial size: its sample variance is normal with this relative error, near enough at 4,000 draws.
    variance_z = (sizes.var(ddof=1) / (records * q * (1 - q)) - 1) / np.sqrt(2 / (draws - 1))
    counts_tail = stats.chi2.cdf(counts_statistic, records)
    return 2 * min(counts_tail, 1 - counts_tail), 2 * stats.norm.sf(abs(variance_z))


def test_each_record_is_sampled_independently_with_probability_q() -> None:
    assert min(sampling_p_values(lambda g: poisson_sample(50, 0.2, g))) > FALSE_ALARM


def test_the_sampling_test_refutes_samples_of_fixed_size_and_of_another_q() -> None:
    fixed = sampling_p_values(lambda g: g.permutation(50)[:10])
    assert fixed[1] < FALSE_ALARM
    assert min(sampling_p_values(lambda g: poisson_sample(50, 0.22, g))) < FALSE_ALARM


def test_at_probability_one_every_record_is_sampled() -> None:
    assert poisson_sample(9, 1.0, np.random.default_rng(0)).tolist() == list(range(9))


def test_one_step_without_noise_is_a_step_of_plain_gradient_descent() -> None:
    plan = make_plan(steps=1, sampling_probability=1.0)
    subject = NoisySum().train(plan)
    twin = build_model(plan)
    twin.losses(twin.encode(plan.records)).mean().backward()
    expected = [p.detach() - 0.1 * p.grad for p in twin.module.parameters() if p.grad is not None]
    torch.testing.assert_close(parameters(subject), torch.cat([p.reshape(-1) for p in expected]))
    assert subject.transcript.sample_sizes.tolist() == [60]


def test_adamw_takes_its_first_step_of_the_learning_rate_against_the_gradient() -> None:
    plan = make_plan(steps=1, sampling_probability=1.0, optimizer="adamw")
    model = build_model(plan)
    before = torch.cat([p.detach().reshape(-1).clone() for p in model.module.parameters()])
    gradient = sample_signals(model, plan.records, 64).weighted_sum(torch.ones(60)) / 60
    moved = parameters(NoisySum().train(plan)) - before
    large = gradient.abs() > 1e-4
    torch.testing.assert_close(moved[large], -0.1 * gradient[large].sign(), rtol=1e-3, atol=1e-4)


def test_a_sample_in_micro_batches_has_the_same_signals() -> None:
    model = build_model(make_plan())
    whole, parts = (sample_signals(model, digits().records[:23], size) for size in (64, 5))
    weights = torch.rand(23, generator=torch.Generator().manual_seed(0))
    assert (parts.n, parts.dimension, parts.layout) == (23, 650, whole.layout)
    torch.testing.assert_close(parts.losses, whole.losses)
    torch.testing.assert_close(parts.norms(), whole.norms())
    torch.testing.assert_close(parts.weighted_sum(weights), whole.weighted_sum(weights))


def test_the_same_plan_gives_the_same_bits_and_another_seed_does_not() -> None:
    plan = make_plan(insertions=CANARY)
    first, second = (NoisySum(noise=1.0).train(plan) for _ in range(2))
    assert torch.equal(parameters(first), parameters(second))
    assert np.array_equal(first.transcript.canary_observations, second.transcript.canary_observations)
    other = NoisySum(noise=1.0).train(replace(plan, seed=6))
    assert not torch.equal(parameters(first), parameters(other))


def test_training_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    NoisySum(noise=1.0).train(make_plan(steps=2, model="digits_mlp", adapter="lora"))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_streams_are_separate() -> None:
    plain = NoisySum(noise=1.0).train(make_plan())
    watched = NoisySum(noise=1.0).train(make_plan(insertions=CANARY))
    noiseless = NoisySum().train(make_plan(insertions=CANARY))
    # Neither the canary's coins nor the noise disturb which records are sampled, nor each other.
    assert plain.transcript.sample_sizes.tolist() == watched.transcript.sample_sizes.tolist()
    assert plain.transcript.sample_sizes.tolist() == noiseless.transcript.sample_sizes.tolist()
    assert watched.transcript.canary_included.tolist() == noiseless.transcript.canary_included.tolist()


def test_an_empty_sample_still_releases_noise() -> None:
    plan = make_plan(records=digits().records[:2], sampling_probability=1e-9, steps=3, held_out=())
    still = NoisySum().train(plan)
    noisy = NoisySum(noise=1e-9).train(plan)
    assert noisy.transcript.sample_sizes.tolist() == [0, 0, 0]
    assert np.isnan(noisy.transcript.losses).all()
    assert int((parameters(noisy) != parameters(still)).sum()) > 600


def test_the_transcript_names_each_canary_step() -> None:
    subject = NoisySum().train(make_plan(steps=12, insertions=CANARY))
    coins = subject.transcript.canary_included
    assert 0 < coins.sum() < 12
    expected = np.where(coins, 3.0, 0.0)
    np.testing.assert_allclose(subject.transcript.canary_observations, expected, atol=1e-5)


def test_the_canary_is_part_of_the_update_that_it_was_released_in() -> None:
    # One step at q = 1 without noise: the canary moves its own coordinate and no other.
    for seed in range(20):
        plan = make_plan(steps=1, sampling_probability=1.0, seed=seed)
        watched = NoisySum().train(replace(plan, insertions=CANARY))
        difference = parameters(watched) - parameters(NoisySum().train(plan))
        expected = torch.zeros(650)
        expected[7] = -0.1 * 3.0 / 60 * float(watched.transcript.canary_included[0])
        torch.testing.assert_close(difference, expected, atol=1e-6, rtol=1e-4)


def test_a_canary_answers_like_a_record() -> None:
    background = matrix_signals(3, torch.Generator().manual_seed(0))
    weights = torch.tensor([0.5, 1.0, 2.0])
    signals = SignalsWithCanary(background, GradientCanary(coordinate=24, magnitude=5.0), True, trials=4)
    assert (signals.n, signals.dimension, signals.coordinates) == (4, 10, (4,))
    torch.testing.assert_close(signals.norms(), torch.cat([background.norms(), torch.tensor([5.0])]))
    total = signals.weighted_sum(torch.cat([weights, torch.tensor([0.1])]))
    expected = background.weighted_sum(weights)
    assert signals.known_share.tolist() == pytest.approx([float(expected[4])])
    expected[4] += 0.5
    torch.testing.assert_close(total, expected.expand(4, -1))


def test_a_sample_without_the_canary_shows_no_trace_of_it() -> None:
    background = matrix_signals(3, torch.Generator().manual_seed(0))
    signals = SignalsWithCanary(background, GradientCanary(coordinate=2, magnitude=5.0), False)
    assert signals.n == 3
    torch.testing.assert_close(signals.norms(), background.norms())
    torch.testing.assert_close(signals.weighted_sum(torch.ones(3)), background.weighted_sum(torch.ones(3)))


def test_fixed_signals_ask_once_for_the_same_weights() -> None:
    background = matrix_signals(3, torch.Generator().manual_seed(0))
    fixed = FixedSignals(background)
    for weights in (torch.ones(3), torch.ones(3), torch.arange(3.0), torch.ones(3)):
        total = fixed.weighted_sum(weights)
        torch.testing.assert_close(total, background.weighted_sum(weights))
        total.zero_()  # the caller's copy, not the kept one


def test_a_saved_subject_comes_back_equal(tmp_path: Path) -> None:
    plan = make_plan(sampling_probability=0.02, insertions=CANARY)  # some samples are empty: NaN losses
    mechanism = NoisySum(noise=0.5)
    subject = mechanism.train(plan)
    subject.save(tmp_path)
    loaded = load_subject(tmp_path, mechanism, plan)
    assert torch.equal(parameters(loaded), parameters(subject))
    assert np.array_equal(loaded.losses(plan.records), subject.losses(plan.records))
    assert loaded.claim == subject.claim
    for field in ("losses", "sample_sizes", "canary_observations", "canary_included"):
        saved, kept = getattr(loaded.transcript, field), getattr(subject.transcript, field)
        np.testing.assert_array_equal(saved, kept)
        assert saved.dtype == kept.dtype
    assert loaded.transcript.metrics == subject.transcript.metrics
    coins = np.array([True, False, True])
    canary = GradientCanary(coordinate=1, magnitude=9.0)
    released = [s.release_canary(canary, coins, np.random.default_rng(4)) for s in (subject, loaded)]
    assert np.array_equal(*released)


def test_another_models_parameters_are_refused(tmp_path: Path) -> None:
    plan = make_plan(steps=1)
    NoisySum().train(plan).save(tmp_path)
    with pytest.raises(InputError, match="are not those of model 'digits_mlp'"):
        load_subject(tmp_path, NoisySum(), replace(plan, model="digits_mlp"))
    (tmp_path / "subject.json").unlink()
    with pytest.raises(InputError, match=r"subject\.json is missing"):
        load_subject(tmp_path, NoisySum(), plan)


def test_only_gradient_mechanisms_have_trained_subjects(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="is not a gradient mechanism"):
        load_subject(tmp_path, object(), make_plan())  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["digits_mlp", "tiny_gpt2"])
def test_lora_trains_and_saves_the_adapter_alone(model: str, tmp_path: Path) -> None:
    changes: dict[str, object] = {"model": model, "steps": 2, "adapter": "lora", "lora_rank": 2}
    if model == "tiny_gpt2":
        texts = tuple(replace(r, text=f"digit {r.label} of record {r.id}") for r in digits().records[:8])
        changes |= {"records": texts, "held_out": texts[:2]}
    plan = make_plan(**changes)
    subject = NoisySum(noise=1e-3).train(plan)
    adapted = trainable(subject.model.module)
    assert adapted
    assert all("lora_" in name for name in adapted)
    frozen = {n: p for n, p in subject.model.module.named_parameters() if not p.requires_grad}
    original = dict(build_model(plan).module.named_parameters())
    assert all(torch.equal(p, original[name]) for name, p in frozen.items())
    assert not all(torch.equal(p, original[name]) for name, p in adapted.items())
    subject.save(tmp_path)
    loaded = load_subject(tmp_path, NoisySum(), plan)
    assert np.array_equal(loaded.losses(plan.records), subject.losses(plan.records))


def test_perplexity_and_accuracy_are_those_of_the_logits() -> None:
    plan = make_plan(steps=3)
    subject = NoisySum().train(plan)
    model = subject.model
    with torch.no_grad():
        logits = model.module(model.encode(plan.held_out)["images"])
    labels = torch.tensor([record.label for record in plan.held_out])
    metrics = subject.transcript.metrics
    assert metrics["test_accuracy_after"] == float((logits.argmax(1) == labels).double().mean())
    assert metrics["test_perplexity_after"] == pytest.approx(
        float(nn.functional.cross_entropy(logits, labels).exp()), rel=1e-6
    )
    assert metrics["train_perplexity_after"] < metrics["train_perplexity_before"]


def test_progress_is_told_of_each_step() -> None:
    told: list[tuple[int, int]] = []
    NoisySum().train(make_plan(steps=3), lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_no_records_have_no_losses() -> None:
    assert record_losses(build_model(make_plan()), []).shape == (0,)


def test_a_run_that_leaves_the_finite_numbers_says_so() -> None:
    with pytest.raises(InconclusiveError, match="try a learning_rate below 1e"):
        NoisySum().train(make_plan(learning_rate=1e38, steps=30, held_out=()))


@pytest.mark.parametrize("changes", [{"optimizer": "sgd"}, {"optimizer": "adamw"}, {"weight_decay": 0.1}])
def test_a_learning_rate_that_no_weight_can_hold_says_so(changes: dict[str, object]) -> None:
    """torch refuses such a factor with an error of its own."""
    with pytest.raises(InconclusiveError, match=r"try a learning_rate below 1e\+300"):
        NoisySum().train(make_plan(learning_rate=1e300, steps=3, held_out=(), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"records": ()}, r"records must not be empty"),
        ({"steps": 0}, r"steps must be >= 1, got 0"),
        ({"sampling_probability": 1.5}, r"sampling_probability must be in \(0, 1\], got 1\.5"),
        ({"learning_rate": -1.0}, r"learning_rate must be finite and > 0, got -1\.0"),
        ({"optimizer": "adam"}, r"unknown optimizer 'adam'; did you mean 'adamw'"),
        ({"adapter": "loar"}, r"unknown adapter 'loar'; did you mean 'lora'"),
        ({"adapter": "lora", "lora_rank": 0}, r"lora_rank must be >= 1, got 0"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NoisySum().train(make_plan(**changes))


def test_a_canary_out_of_range_is_refused() -> None:
    background = matrix_signals(1, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="magnitude must be finite and > 0, got inf"):
        SignalsWithCanary(background, GradientCanary(coordinate=0, magnitude=float("inf")), True)
    with pytest.raises(InputError, match="coordinate must be >= 0, got -1"):
        SignalsWithCanary(background, GradientCanary(coordinate=-1, magnitude=1.0), True)
    with pytest.raises(InputError, match=r"weights must have shape \(2,\), got \(1,\)"):
        SignalsWithCanary(background, GradientCanary(coordinate=0, magnitude=1.0), True).weighted_sum(
            torch.ones(1)
        )


def test_doctest() -> None:
    assert doctest.testmod(canary_module).failed == 0

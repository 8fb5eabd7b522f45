"""PACZero: Algorithm 1 against a naive twin, its variants and options, what it claims and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.games.subset.play import SubsetMechanism, SubsetRelease
from workbench.interfaces import (
    Corpus,
    Currency,
    FloatArray,
    GradientCanary,
    Insertions,
    Plan,
    Record,
    Released,
    Sampling,
    Secret,
)
from workbench.mechanisms.accountants.shared.binary_channel import binary_mi_bounds, noise_for
from workbench.mechanisms.paczero import PACZero
from workbench.mechanisms.shared.candidate_subsets import candidate_subsets, signs_of_means
from workbench.training.fine_tuning import Seeds, build_model, record_losses, trainable
from workbench.training.loop import load_subject
from workbench.training.subject import TrainedSubject
from workbench.training.zeroth_order import ZerothOrder

N = 30
SMALL = PACZero(subset_count=8, public_seed=7, measures_quality=False)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads, and lose where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=N, seed=0)
    return corpus


def nats(number: float) -> MutualInformation:
    return MutualInformation(nats=number, secret=Secret.SUBSET)


def make_plan(**changes: Any) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=(),
        model="digits_mlp",
        steps=30,
        sampling_probability=1.0,
        learning_rate=1e-2,
        optimizer="sgd",
        budget=nats(0.33),
        seed=3,
    )
    return replace(plan, **changes)


def parameters(subject: TrainedSubject) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in trainable(subject.model.module).values()])


def watched(
    mechanism: PACZero, plan: Plan, secret: int | None = None
) -> tuple[TrainedSubject, list[SubsetRelease]]:
    releases: list[SubsetRelease] = []
    return mechanism.train_on(plan, secret=secret, watch=releases.append), releases


# --- Algorithm 1 -----------------------------------------------------------------------------------


def naive(mechanism: PACZero, plan: Plan, secret: int) -> tuple[Tensor, list[int], list[float]]:
    """Algorithm 1 line by line, with plain probabilities: weights, bits and charges."""
    model = build_model(plan)
    model.module.eval()
    assert mechanism.public_seed is not None
    engine = ZerothOrder(model, scale=mechanism.scale, seed=mechanism.public_seed, micro_batch_size=64)
    noise = np.random.default_rng(Seeds.of(plan).noise.spawn(2)[1])
    subsets = [np.flatnonzero(row) for row in mechanism.candidate_subsets(plan)]
    count, ks = len(subsets), mechanism.directions
    p = [1 / count] * count
    used, bits, charges = 0.0, [], []
    assert isinstance(plan.budget, MutualInformation)
    for t in range(1, plan.steps + 1):
        z = [(t - 1) * ks + k for k in range(ks)]
        g = [np.clip(engine.differences(plan.records, k)[0], -mechanism.clip, mechanism.clip) for k in z]
        beta_t = max(0.0, plan.budget.nats - used) / (plan.steps - t + 1)
        moves = []
        for k in range(ks):
            s = [1 if math.fsum(g[k][members]) >= 0 else -1 for members in subsets]
            q = sum(p[m] for m in range(count) if s[m] == 1)
            if len(set(s)) == 1:
                y, beta = s[secret], 0.0
            else:
                least = min(q, 1 - q)
                entropy = -least * math.log(least) - (1 - least) * math.log1p(-least)
                beta = min(beta_t / ks, 0.999 * entropy)
                sigma = noise_for(least, beta)
                value = s[secret] + sigma * noise.standard_normal()
                y = 1 if value >= 0 else -1
                weights = [p[m] * math.exp(-((value - s[m]) ** 2) / (2 * sigma**2)) for m in range(count)]
                p = [w / sum(weights) for w in weights]
            used += beta
            bits.append(y)
            charges.append(beta)
            moves.append((z[k], -plan.learning_rate * y / ks))
        engine.move(moves, decay=plan.learning_rate * plan.weight_decay)
    return torch.cat([w.detach().reshape(-1) for w in trainable(model.module).values()]), bits, charges


@pytest.mark.parametrize("secret", [0, 5])
@pytest.mark.parametrize(
    "changes", [{}, {"directions": 3, "clip": 0.05}, {"subsets": "halves", "clip": 0.01}]
)
def test_it_is_algorithm_1(changes: dict[str, Any], secret: int) -> None:
    mechanism, plan = replace(SMALL, **changes), make_plan(weight_decay=0.1)
    weights, bits, charges = naive(mechanism, plan, secret)
    subject, releases = watched(mechanism, plan, secret)
    assert [release.bit for release in releases] == bits
    assert [release.budget_nats for release in releases] == pytest.approx(charges, rel=1e-6, abs=1e-15)
    torch.testing.assert_close(parameters(subject), weights, rtol=0, atol=0)
    if "clip" not in changes:
        return
    assert max(np.abs(release.differences).max() for release in releases) == changes["clip"]


def test_one_direction_is_the_plain_run_and_several_are_indexed_by_step() -> None:
    plain, one = (watched(m, make_plan())[0] for m in (SMALL, replace(SMALL, directions=1)))
    assert parameters(plain).equal(parameters(one))
    _, releases = watched(replace(SMALL, directions=4), make_plan(steps=5))
    assert [(r.step, r.direction) for r in releases] == [(t, k) for t in range(5) for k in range(4)]
    _, single = watched(SMALL, make_plan(steps=5))
    np.testing.assert_array_equal(releases[0].differences, single[0].differences)


def test_watching_changes_no_number_and_sees_what_was_released() -> None:
    subject, releases = watched(SMALL, make_plan())
    assert parameters(subject).equal(parameters(SMALL.train(make_plan())))
    traces = subject.transcript.traces
    np.testing.assert_array_equal(traces["bit"], [r.bit for r in releases])
    np.testing.assert_array_equal(traces["noise"], [r.noise for r in releases])
    np.testing.assert_allclose(
        traces["budget_used"], np.cumsum([r.budget_nats for r in releases]), rtol=1e-12
    )
    np.testing.assert_array_equal(traces["unanimous"], [r.noise == 0 for r in releases])
    assert subject.transcript.metrics["unanimity_rate"] == traces["unanimous"].mean()
    assert subject.transcript.metrics["nats_used"] == traces["budget_used"][-1] <= 0.33
    assert subject.transcript.metrics["training_seconds"] > 0
    assert traces["posterior_entropy"][0] <= math.log(8)
    held = SMALL.candidate_subsets(make_plan())
    for release in releases:
        sums = np.array([math.fsum(release.differences[row]) for row in held])
        np.testing.assert_array_equal(release.signs, np.where(sums >= 0, 1, -1))
        if release.noise == 0:
            assert release.value == release.bit
            assert len(set(release.signs.tolist())) == 1
        else:
            assert release.bit == (1 if release.value >= 0 else -1)


def test_zeros_have_the_sign_plus_one(monkeypatch: pytest.MonkeyPatch) -> None:
    column = np.array([0.0, -0.0, -1e-300, 2.0])
    np.testing.assert_array_equal(signs_of_means(np.eye(4), column[:, None])[:, 0], [1, 1, -1, 1])

    def nothing(engine: ZerothOrder, records: Sequence[Record], direction: int) -> tuple[FloatArray, float]:
        return np.zeros(len(records)), 1.0

    monkeypatch.setattr(ZerothOrder, "differences", nothing)
    for variant in (SMALL, replace(SMALL, variant="zpl")):
        plan = make_plan(steps=2, budget=None if variant.variant == "zpl" else nats(0.1))
        assert [(r.bit, r.noise) for r in watched(variant, plan)[1]] == [(1, 0.0)] * 2


def test_signs_are_those_of_exact_sums() -> None:
    """Of scalars that are all clipped, a rounded sum has the wrong sign in a third of the ties."""
    generator = np.random.default_rng(0)
    held = candidate_subsets("pairs", count=64, records=200, seed=0)
    scalars = np.where(generator.random((200, 8)) < 0.5, 0.1, -0.1)
    exact = held.astype(np.int64) @ np.sign(scalars).astype(np.int64)
    assert np.count_nonzero(exact == 0) > 10
    found = signs_of_means(held.astype(np.float64), scalars)
    np.testing.assert_array_equal(found, np.where(exact >= 0, 1, -1))


def test_dev_best_restores_the_weights_of_the_best_look_and_costs_nothing() -> None:
    plan = make_plan(dev=digits().held_out[:20], learning_rate=0.05)
    chosen = replace(SMALL, dev_every=5)
    subject = chosen.train(plan)
    looks = subject.transcript.traces["dev_loss"]
    best = int(np.nanargmin(looks))
    assert subject.transcript.metrics["best_step"] == best + 1
    found = record_losses(subject.model, plan.dev).mean()
    assert found == pytest.approx(looks[best], rel=1e-6)
    last = SMALL.train(plan)
    np.testing.assert_array_equal(last.transcript.traces["bit"], subject.transcript.traces["bit"])
    assert any("dev records" in note for note in subject.claim.assumptions)
    with pytest.raises(InputError, match="dev_every must be 0 for a plan without dev records, got 5"):
        chosen.train(make_plan())


def test_the_hybrid_spends_all_in_its_first_part() -> None:
    mechanism = replace(SMALL, variant="hybrid", mi_steps=10)
    _, releases = watched(mechanism, make_plan())
    noised = [r.budget_nats for r in releases[:10]]
    assert sum(noised) == pytest.approx(0.33, rel=1e-9) or releases[9].noise == 0
    assert all(r.budget_nats == 0 and r.noise in {0.0, math.inf} for r in releases[10:])
    # The first part is the MI run of as many steps.
    _, alone = watched(SMALL, make_plan(steps=10))
    assert [r.value for r in alone] == [r.value for r in releases[:10]]


def test_calibrations_and_allocations_differ_as_they_should() -> None:
    plan = make_plan()
    printed, certified = (
        watched(replace(SMALL, quadrature=name), plan)[1] for name in ("gauss-hermite", "certified")
    )
    ratios = [a.noise / b.noise for a, b in zip(printed, certified, strict=True) if a.noise > 0]
    assert max(abs(ratio - 1) for ratio in ratios[:1]) < 3e-6
    first = next(r for r in certified if r.noise > 0)
    share = (first.signs > 0).mean()
    assert binary_mi_bounds(float(share), first.noise)[1] <= first.budget_nats
    uniform = watched(replace(SMALL, allocation="uniform"), plan)[1]
    assert {r.budget_nats for r in uniform} <= {0.0, 0.33 / 30}
    bits = watched(replace(SMALL, posterior="bits"), plan)[0].transcript
    values = watched(SMALL, plan)[0].transcript
    assert bits.traces["posterior_entropy"][-1] > values.traces["posterior_entropy"][-1]


def test_shuffled_samples_are_the_whole_universe_too() -> None:
    whole = SMALL.train(make_plan(sampling=Sampling.SHUFFLED))
    assert parameters(whole).equal(parameters(SMALL.train(make_plan())))


def test_a_subject_comes_back_from_disk_with_its_traces(tmp_path: Path) -> None:
    subject = replace(SMALL, variant="zpl").train(make_plan(budget=None, steps=6))
    subject.save(tmp_path)
    found = load_subject(tmp_path, mechanism=subject.mechanism, plan=subject.plan)
    assert found.claim == subject.claim
    for name, series in subject.transcript.traces.items():
        np.testing.assert_array_equal(found.transcript.traces[name], series)
    assert np.isinf(found.transcript.traces["noise"]).any()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_it_trains_a_language_model(adapter: str) -> None:
    corpus: Corpus = registry.create("corpus", "clinical", size=12, seed=0)
    plan = make_plan(
        records=corpus.records,
        held_out=corpus.held_out[:4],
        model="tiny_gpt2",
        adapter=adapter,
        steps=2,
        learning_rate=1e-3,
        budget=nats(0.1),
    )
    mechanism = replace(SMALL, measures_quality=True, directions=2)
    subject = mechanism.train(plan)
    before = build_model(plan)
    moved = parameters(subject) - torch.cat(
        [p.detach().reshape(-1) for p in trainable(before.module).values()]
    )
    assert moved.abs().max() > 1e-4
    assert parameters(mechanism.train(plan)).equal(parameters(subject))
    assert subject.transcript.metrics["nats_used"] <= 0.1
    assert math.isfinite(subject.transcript.metrics["train_perplexity_after"])


# --- claims and refusals ---------------------------------------------------------------------------


def test_what_is_claimed() -> None:
    assert isinstance(registry.create("mechanism", "paczero"), SubsetMechanism)
    assert PACZero().capabilities.currency is Currency.SUBSET_NATS
    claim = SMALL.claim(make_plan())
    assert claim.guarantee == nats(0.33)
    assert (claim.about, claim.released) == (Secret.SUBSET, Released.EVERY_UPDATE)
    assert claim.source == "Ertan et al. 2026 (PACZero), Theorem 3"
    assert any("no epsilon of differential privacy" in note for note in claim.assumptions)
    assert any("within 1e-12 of unanimity count as 0 nats" in note for note in claim.assumptions)
    for quiet in ({"tolerance": 0.0}, {"unanimous_release": "majority"}):
        assert not any("unanimity" in note for note in replace(SMALL, **quiet).claim(make_plan()).assumptions)
    zpl = replace(SMALL, variant="zpl").claim(make_plan(budget=None))
    assert zpl.guarantee == nats(0.0)
    assert zpl.guarantee.max_success(0.5) == 0.5
    assert zpl.source.endswith("Theorem 5")
    assert replace(SMALL, variant="zpl").claim(make_plan(budget=nats(0.0))).guarantee == nats(0.0)
    halves = replace(SMALL, subsets="halves").claim(make_plan())
    assert any("about half of them, not exactly" in note for note in halves.assumptions)
    printed = replace(SMALL, quadrature="gauss-hermite").claim(make_plan())
    assert any("60 nodes" in note for note in printed.assumptions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "zlp"}, "unknown variant 'zlp'; did you mean 'zpl'"),
        ({"subset_count": 7}, "subset_count must be an even whole number >= 2, got 7"),
        ({"subset_count": 8.0}, r"subset_count must be an even whole number >= 2, got 8\.0"),
        ({"subsets": "half"}, "unknown subsets 'half'; did you mean 'halves'"),
        ({"clip": 0.0}, r"clip must be > 0, got 0\.0"),
        ({"clip": math.nan}, "clip must be > 0, got nan"),
        ({"allocation": "even"}, "unknown allocation 'even'"),
        ({"tolerance": 0.6}, r"tolerance must be in \[0, 1/2\], got 0\.6"),
        ({"posterior": "bit"}, "unknown posterior 'bit'; did you mean 'bits'"),
        ({"unanimous_release": "all"}, "unknown unanimous_release 'all'"),
        ({"quadrature": "exact"}, "unknown quadrature 'exact'"),
        ({"within_step": "both"}, "unknown within_step 'both'"),
        ({"variant": "hybrid"}, "mi_steps must be given for variant 'hybrid', got None"),
        ({"mi_steps": 3}, "mi_steps must be left out for variant 'mi', got 3"),
        ({"variant": "hybrid", "mi_steps": 0}, "mi_steps must be a whole number >= 1, got 0"),
        ({"directions": 0}, "directions must be a whole number >= 1, got 0"),
        ({"dev_metric": "accuracy"}, "unknown dev_metric 'accuracy'"),
    ],
)
def test_refused_parameters(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("mechanism", "changes", "error", "message"),
    [
        (SMALL, {"sampling_probability": 0.5}, InputError, r"sampling_probability must be 1 .* got 0\.5"),
        (SMALL, {"budget": None}, InputError, "variant 'mi' of paczero needs a budget in nats, got none"),
        (
            SMALL,
            {"budget": ApproximateDP(epsilon=1.0, delta=1e-5)},
            UnsupportedError,
            "in nats of mutual information about the candidate subset, not",
        ),
        (
            SMALL,
            {"budget": MutualInformation(nats=0.1, secret=Secret.RECORD)},
            UnsupportedError,
            "about the candidate subset, not mutual information of at most 0.1 nats about the record",
        ),
        (replace(SMALL, variant="zpl"), {}, InputError, r"its budget must be 0, got 0\.33"),
        (
            replace(SMALL, variant="hybrid", mi_steps=31),
            {},
            InputError,
            "mi_steps must be at most the plan's 30 steps, got 31",
        ),
        (SMALL, {"optimizer": "adamw"}, InputError, "optimizer must be 'sgd'"),
        (
            SMALL,
            {"insertions": Insertions(gradient_canary=GradientCanary(coordinate=0, magnitude=1.0))},
            UnsupportedError,
            "no gradient canary can be read",
        ),
    ],
)
def test_refused_plans(
    mechanism: PACZero, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mechanism.train(make_plan(**changes))


def test_a_secret_outside_of_the_candidates_is_refused() -> None:
    for secret in (-1, 8):
        with pytest.raises(InputError, match=rf"secret must be in \[0, 8\), got {secret}"):
            SMALL.train_on(make_plan(), secret=secret)


def test_an_uncapped_budget_may_have_no_noise() -> None:
    plan = make_plan(budget=nats(100.0))
    assert SMALL.train(plan).transcript.metrics["nats_used"] < 30 * math.log(2)
    with pytest.raises(
        InputError, match=r"capped must be true for these budgets, got False: step \d+ may spend"
    ):
        replace(SMALL, capped=False).train(plan)

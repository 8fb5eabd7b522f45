"""FERRET: p*, groups and mask, determinism, the dither; what is claimed, refused and kept."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ferret_plans import make_plan, nats, parameters, signs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.accounting import ApproximateDP, MutualInformation, NoGuarantee, RenyiDP
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.games.transcript import FiredStep, WatchedMechanism
from workbench.interfaces import Adjacency, Currency, Released, Sampling, Secret
from workbench.mechanisms import ferret
from workbench.mechanisms.accountants.ferret import LN2, dithered_renyi_nats, firing_probability
from workbench.mechanisms.ferret import FERRET
from workbench.mechanisms.ferret.public import firing_mask, grouped
from workbench.training.fine_tuning import build_model, trainable
from workbench.training.loop import load_subject

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # peft asks transformers 5 for a property by its old name.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


# --- p*, groups, mask ----------------------------------------------------------------------------


@given(budget=st.floats(1e-3, 3.0), steps=st.integers(1, 400), s=st.floats(0.01, 1.0), doubled=st.booleans())
@settings(max_examples=60, deadline=None)
def test_p_star_meets_the_budget_exactly(budget: float, steps: int, s: float, doubled: bool) -> None:
    plan = make_plan(budget=nats(budget), steps=steps, sampling_probability=s)
    ceiling = 4 * steps * s * LN2
    if budget > ceiling:
        with pytest.raises(InputError, match=rf"epsilon must be at most {ceiling:.6g} nats, the ceiling"):
            FERRET().for_plan(plan)
        capped = FERRET(above_ceiling="cap")
        assert capped.for_plan(plan).firing_probability == 1.0
        assert capped.claim(plan).guarantee == nats(ceiling)
        return
    settled = FERRET().for_plan(plan)
    assert settled.firing_probability is not None
    assert settled.firing_probability * ceiling == pytest.approx(budget, rel=1e-12)
    assert FERRET().claim(plan).guarantee == plan.budget
    # Twice the steps fire half as often; twice as many groups too.
    wider = FERRET().for_plan(replace(plan, steps=2 * steps))
    assert wider.firing_probability == pytest.approx(settled.firing_probability / 2, rel=1e-12)


def test_at_the_ceiling_every_group_fires() -> None:
    plan = make_plan(budget=nats(4 * 40 * 0.1 * LN2))
    subject = FERRET().train(plan)
    assert subject.transcript.metrics["firing_probability"] == 1.0
    assert subject.transcript.metrics["fired"] == 160
    assert subject.transcript.metrics["silent_steps"] == 0
    assert isinstance(subject.claim.guarantee, MutualInformation)
    assert subject.claim.guarantee.nats == pytest.approx(plan.budget.nats)  # type: ignore[union-attr]


@given(tensors=st.integers(1, 60))
def test_groups_are_buckets_of_consecutive_tensors(tensors: int) -> None:
    names = [f"t{i}" for i in range(tensors)]
    for granularity, size in {"max": 1, "half": 2, "quarter": 4, "eighth": 8}.items():
        groups = grouped(names, granularity)
        assert len(groups) == math.ceil(tensors / size)
        assert [name for group in groups for name in group] == names
        assert all(len(group) == size for group in groups[:-1])
    halves = grouped(names, "2")
    assert [name for group in halves for name in group] == names
    assert len(halves) == min(2, tensors)
    assert max(map(len, halves)) - min(map(len, halves)) <= 1 or tensors == 1


def test_a_trainings_firings_are_the_public_mask() -> None:
    plan = make_plan(steps=60)
    subject = FERRET(public_seed=11, granularity="half").train(plan)
    released = signs_of(subject)
    names = tuple(trainable(build_model(plan).module))
    assert released.groups == (names[:2], names[2:])
    assert (released.public_seed, released.steps) == (11, 60)
    p = firing_probability(budget_nats=2.0, groups=2, steps=60, sampling_probability=0.1)
    mask = firing_mask(11, released.groups, 60, p)
    np.testing.assert_array_equal(released.fired, np.argwhere(mask))
    metrics = subject.transcript.metrics
    assert metrics["fired"] == mask.sum()
    assert metrics["silent_steps"] == (~mask.any(1)).sum()
    assert (metrics["groups"], metrics["ceiling_nats"]) == (2.0, pytest.approx(2 * 60 * 0.1 * LN2))


# --- determinism, order, watching ----------------------------------------------------------------


def test_the_public_seed_fixes_mask_and_directions_and_nothing_secret() -> None:
    plan = make_plan()
    first, again, other = (FERRET(public_seed=s).train(plan) for s in (5, 5, 6))
    assert torch.equal(parameters(first), parameters(again))
    np.testing.assert_array_equal(signs_of(first).signs, signs_of(again).signs)
    assert not np.array_equal(signs_of(first).fired, signs_of(other).fired)
    # Another public seed samples the same records; another plan seed has the same mask with other records.
    assert first.transcript.sample_sizes.tolist() == other.transcript.sample_sizes.tolist()
    elsewhere = FERRET(public_seed=5).train(replace(plan, seed=4))
    np.testing.assert_array_equal(signs_of(first).fired, signs_of(elsewhere).fired)
    assert first.transcript.sample_sizes.tolist() != elsewhere.transcript.sample_sizes.tolist()


def test_a_spawned_public_seed_differs_by_plan() -> None:
    seeds = {FERRET().for_plan(make_plan(seed=seed)).public_seed for seed in range(50)}
    assert len(seeds) == 50
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)


def test_the_order_of_the_groups_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan()
    straight = FERRET(granularity="half", public_seed=2).train(plan)
    monkeypatch.setattr(ferret, "grouped", lambda names, kind: grouped(names, kind)[::-1])
    turned = FERRET(granularity="half", public_seed=2).train(plan)
    assert signs_of(turned).groups == signs_of(straight).groups[::-1]
    assert torch.equal(parameters(turned), parameters(straight))
    flipped = signs_of(turned).fired * [1, -1] + [0, 1]
    assert {(*f, s) for f, s in zip(flipped.tolist(), signs_of(turned).signs.tolist(), strict=True)} == {  # type: ignore[misc]
        (*f, s)
        for f, s in zip(signs_of(straight).fired.tolist(), signs_of(straight).signs.tolist(), strict=True)
    }


@given(order=st.permutations(range(5)), seed=st.integers(0, 2**63 - 1))
def test_a_groups_coins_are_its_own(order: list[int], seed: int) -> None:
    groups = [(f"a{i}", f"b{i}") for i in range(5)]
    mask = firing_mask(seed, groups, 30, 0.4)
    np.testing.assert_array_equal(firing_mask(seed, [groups[i] for i in order], 30, 0.4), mask[:, order])
    np.testing.assert_array_equal(firing_mask(seed, groups, 10, 0.4), mask[:10])
    assert (mask <= firing_mask(seed, groups, 30, 0.6)).all()


def test_watching_changes_no_number_and_ends_with_its_step() -> None:
    plan = make_plan()
    kept: list[FiredStep] = []

    def watch(fired: FiredStep) -> None:
        records = [plan.records[i] for i in fired.sample]
        assert [int(x) for x in np.sign(fired.of_sum(records))] == list(fired.signs)
        fired.of_each(plan.records[:7])
        kept.append(fired)

    mechanism = FERRET()
    assert isinstance(mechanism, WatchedMechanism)
    watched, plain = mechanism.train_watched(plan, watch), mechanism.train(plan)
    assert torch.equal(parameters(watched), parameters(plain))
    np.testing.assert_array_equal(watched.transcript.losses, plain.transcript.losses)
    told = [(f.step, g) for f in kept for g in f.groups]
    assert told == [tuple(pair) for pair in signs_of(plain).fired.tolist()]
    assert [s for f in kept for s in f.signs] == signs_of(plain).signs.tolist()
    with pytest.raises(InputError, match="is over: ask while the watcher runs"):
        kept[0].of_sum(plan.records)


# --- dither --------------------------------------------------------------------------------------


def test_the_dither_is_added_to_fired_and_silent_updates_alike() -> None:
    plan = make_plan(steps=1, optimizer="sgd", learning_rate=1.0, weight_decay=0.0, sampling_probability=1.0)
    before = torch.cat([p.detach().reshape(-1) for p in build_model(plan).module.parameters()])
    quiet = FERRET(firing_probability=0.0, dither_standard_deviation=0.5)
    noise = ((before - parameters(quiet.train(plan))) / 0.5).double()
    # Sum of 4,810 squares of standard normal numbers: six standard deviations of it are allowed, 2e-9.
    assert abs(float(noise.square().sum()) - 4810) < 6 * math.sqrt(2 * 4810)
    assert abs(float(noise.sum())) < 6 * math.sqrt(4810)
    loud, bare = (FERRET(firing_probability=1.0, dither_standard_deviation=d).train(plan) for d in (0.5, 0.0))
    torch.testing.assert_close(
        before - parameters(loud), 0.5 * noise.float() + (before - parameters(bare)), atol=1e-5, rtol=1e-4
    )
    assert loud.transcript.released_signs is None  # The noisy updates are released, not the signs.


def test_the_dithered_claim_is_equation_twelve_over_groups_and_steps() -> None:
    plan = make_plan(steps=3)
    mechanism = FERRET(firing_probability=0.01, dither_standard_deviation=4.0, dither_order=3.0)
    claim = mechanism.claim(plan)
    each = dithered_renyi_nats(
        order=3.0, firing_probability=0.01, clip_norm=1.0, dither_standard_deviation=4.0
    )
    assert claim.guarantee == RenyiDP(alpha=3.0, epsilon=4 * 3 * each)
    assert (claim.about, claim.released) == (Adjacency.ADD_REMOVE, Released.EVERY_UPDATE)
    assert "Eq. 12" in claim.source
    other = replace(mechanism, dither_form="step-2").claim(plan)
    assert isinstance(other.guarantee, RenyiDP)
    assert other.guarantee.epsilon > 4 * 3 * each
    assert "step 2" in other.source
    tiny = replace(mechanism, dither_standard_deviation=1e-3).claim(plan)
    assert isinstance(tiny.guarantee, NoGuarantee)
    assert "infinite" in tiny.source


def test_a_dithered_run_shows_no_sign_to_watch() -> None:
    with pytest.raises(UnsupportedError, match="no sign is to be watched"):
        FERRET(dither_standard_deviation=0.1).train_watched(make_plan(), lambda fired: None)


# --- claims, errors, keeping ---------------------------------------------------------------------


def test_the_claim_is_in_nats_about_a_record() -> None:
    claim = FERRET().claim(make_plan())
    assert claim.guarantee == nats(2.0)
    assert (claim.about, claim.released) == (Secret.RECORD, Released.EVERY_UPDATE)
    assert "Eq. 8" in claim.source
    assert "Poisson with s = 0.1" in claim.assumptions[0]
    assert "kept silent" in " ".join(claim.assumptions)
    assert "kept silent" not in " ".join(FERRET(zero_gradient="coin").claim(make_plan()).assumptions)
    given_p = FERRET(firing_probability=0.25).claim(make_plan(budget=None))
    assert given_p.guarantee == nats(4 * 40 * 0.1 * LN2 * 0.25)
    shuffled = FERRET().claim(make_plan(sampling=Sampling.SHUFFLED))
    assert "of which the lemma does not speak" in shuffled.assumptions[0]
    assert FERRET().capabilities.currency is Currency.RECORD_NATS


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"budget": None}, InputError, "ferret needs a budget or a firing_probability, got neither"),
        ({"budget": ApproximateDP(epsilon=1.0, delta=1e-5)}, UnsupportedError, "is in nats of mutual"),
        ({"budget": MutualInformation(nats=1.0, secret=Secret.SUBSET)}, UnsupportedError, "about a record"),
        ({"budget": nats(0.0)}, InputError, r"budget_nats must be in \(0, 11\.09"),
    ],
)
def test_a_budget_that_does_not_fit_is_refused(
    changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FERRET().train(make_plan(**changes))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"granularity": "quater"}, "unknown granularity 'quater'; did you mean 'quarter'"),
        ({"zero_gradient": "coins"}, "unknown zero_gradient 'coins'; did you mean 'coin'"),
        ({"above_ceiling": "clip"}, "unknown above_ceiling 'clip'"),
        ({"clip_norm": 0.0}, r"clip_norm must be finite and > 0, got 0\.0"),
        ({"public_seed": -1}, "public_seed must be >= 0, got -1"),
        ({"firing_probability": 1.5}, r"firing_probability must be in \[0, 1\], got 1\.5"),
        ({"dither_standard_deviation": math.inf}, "dither_standard_deviation must be finite"),
        ({"dither_order": 1.0}, r"dither_order must be finite and > 1, got 1\.0"),
        ({"dither_standard_deviation": 0.1, "silent_groups": "absent"}, "silent_groups must be 'zero'"),
    ],
)
def test_a_parameter_out_of_range_is_refused(own: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("mechanism", "ferret", **own)


def test_a_run_that_leaves_the_finite_numbers_says_so() -> None:
    plan = make_plan(learning_rate=1e38, optimizer="sgd", weight_decay=0.0)
    with pytest.raises(InconclusiveError, match="try a learning_rate below 1e"):
        FERRET(firing_probability=1.0).train(plan)
    with pytest.raises(InconclusiveError, match="try a learning_rate below 1e"):
        FERRET(firing_probability=0.3, silent_steps="forward").train(plan)


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_a_saved_subject_comes_back_with_its_signs(adapter: str, tmp_path: Path) -> None:
    plan, mechanism = make_plan(adapter=adapter), FERRET(firing_probability=0.2)
    subject = mechanism.train(plan)
    subject.save(tmp_path)
    loaded = load_subject(tmp_path, mechanism, plan)
    assert torch.equal(parameters(loaded), parameters(subject))
    assert loaded.claim == subject.claim
    saved, kept = signs_of(loaded), signs_of(subject)
    assert (saved.public_seed, saved.groups, saved.steps) == (kept.public_seed, kept.groups, kept.steps)
    np.testing.assert_array_equal(saved.fired, kept.fired)
    np.testing.assert_array_equal(saved.signs, kept.signs)
    assert saved.fired.dtype == saved.signs.dtype == np.int64
    assert loaded.transcript.metrics == subject.transcript.metrics


def test_a_transcript_without_a_firing_comes_back(tmp_path: Path) -> None:
    plan, mechanism = make_plan(steps=2), FERRET(firing_probability=0.0)
    subject = mechanism.train(plan)
    subject.save(tmp_path)
    assert signs_of(load_subject(tmp_path, mechanism, plan)).fired.shape == (0, 2)


def test_a_model_whose_tensors_have_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan()
    FERRET().claim(plan)
    monkeypatch.setattr(ferret, "build_model", None)  # Not built again for its names.
    FERRET().claim(plan)
    other = build_model(make_plan(model="digits_logistic"))
    with pytest.raises(InputError, match="model 'digits_mlp' has changed its tensors"):
        FERRET().for_plan(plan).steps(plan, other)


def test_a_mechanism_can_be_sent_to_a_worker() -> None:
    mechanism = FERRET(granularity="2", firing_probability=0.1)
    assert pickle.loads(pickle.dumps(mechanism)) == mechanism  # noqa: S301 (our own bytes)
    assert hash(mechanism) == hash(replace(mechanism))


def test_training_leaves_the_model_as_its_owner_expects() -> None:
    subject = FERRET().train(make_plan(adapter="lora"))
    found = trainable(subject.model.module)
    assert found
    assert all("lora_" in name for name in found)
    assert all(p.grad is None for p in found.values())
    storages = {p.untyped_storage().data_ptr() for p in found.values()}
    assert len(storages) == len(found)

"""FERRET's steps: signs against the full gradient, updates, silence, multiplications, and the canary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ferret_plans import digits, make_plan, nats, parameters, signs_of
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.one_at_a_time import one_at_a_time
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from workbench.core.errors import UnsupportedError
from workbench.games.transcript import FiredStep
from workbench.interfaces import GradientCanary, Insertions, Plan, ReleasedSigns
from workbench.mechanisms.ferret import FERRET, MaskedSigns
from workbench.mechanisms.ferret.public import Direction, grouped
from workbench.training.fine_tuning import build_model, trainable
from workbench.training.flat import FlatLayout
from workbench.training.subject import TrainedSubject

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # peft asks transformers 5 for a property by its old name.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


def text_plan(**changes: object) -> Plan:
    """A handful of short texts for `tiny_gpt2`, whose embeddings are tied."""
    texts = tuple(
        replace(r, text=f"digit {r.label} " * (1 + i % 3)) for i, r in enumerate(digits().records[:9])
    )
    return make_plan(records=texts, model="tiny_gpt2", steps=4, sampling_probability=0.6, **changes)


# --- signs and updates ---------------------------------------------------------------------------


def naive_direction(public_seed: int, step: int, names: tuple[str, ...], plan: Plan) -> Tensor:
    """The direction, whole, as one vector."""
    found = trainable(build_model(plan).module)
    own = [found[name] for name in names]
    direction = Direction(public_seed, step, names, own)
    out = [torch.empty(p.shape) for p in own]
    direction.inner([torch.zeros(p.shape) for p in own])
    direction.write(1.0, out)
    return torch.cat([p.reshape(-1) for p in out])


CASES = [
    ({"model": "digits_mlp"}, {"granularity": "max"}),
    ({"model": "digits_mlp"}, {"granularity": "half", "micro_batch_size": 5}),
    ({"model": "digits_mlp", "adapter": "lora"}, {"granularity": "max"}),
    ({"model": "digits_vit", "steps": 3}, {"granularity": "eighth", "micro_batch_size": 7}),
]


def check_against_the_twin(plan: Plan, mechanism: FERRET) -> int:
    """Compare every firing with the full gradient that is computed one record at a time; returns how many."""
    released: list[int] = []

    def watch(fired: FiredStep) -> None:
        nonlocal released
        frame = model[0]
        records = [plan.records[i] for i in fired.sample]
        if not records:
            assert not any(fired.signs)
            return
        layout = FlatLayout.of(frame.module)
        rows = one_at_a_time(frame, frame.encode(records))._gradients.double()
        total = fired.of_sum(records)
        each = fired.of_each(records)
        assert each.shape == (len(fired.groups), len(records))
        for k, group in enumerate(fired.groups):
            names = settled_groups[group]
            direction = naive_direction(seed, fired.step, names, plan).double()
            columns = torch.cat([rows[:, layout.places[name][0]] for name in names], dim=1)
            expected = (columns @ direction).numpy()
            scale = float(columns.norm())
            np.testing.assert_allclose(each[k], expected, atol=2e-5 * scale)
            assert abs(total[k] - expected.sum()) <= 2e-5 * scale
            if abs(expected.sum()) > 4e-5 * scale:
                assert fired.signs[k] == np.sign(expected.sum())
                released.append(fired.signs[k])
            assert fired.signs[k] == int(np.sign(total[k]))
        assert not fired.of_sum([]).any()

    model: list = []
    original = MaskedSigns.__init__

    def remember(self, mechanism, plan, found, watch=None):  # type: ignore[no-untyped-def]
        model.append(found)
        original(self, mechanism, plan, found, watch)

    settled = mechanism.for_plan(plan)
    assert settled.public_seed is not None
    seed = settled.public_seed
    settled_groups = grouped(list(trainable(build_model(plan).module)), mechanism.granularity)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskedSigns, "__init__", remember)
        mechanism.train_watched(plan, watch)
    return len(released)


@pytest.mark.parametrize(("changes", "own"), CASES)
def test_signs_are_those_of_the_full_gradient(changes: dict[str, object], own: dict[str, object]) -> None:
    plan = make_plan(**{"steps": 12, **changes})
    checked = check_against_the_twin(plan, FERRET(firing_probability=0.5, measures_quality=False, **own))  # type: ignore[arg-type]
    assert checked >= 5


@pytest.mark.slow
def test_signs_of_a_language_model_with_tied_embeddings() -> None:
    mechanism = FERRET(firing_probability=0.15, measures_quality=False, micro_batch_size=3)
    assert check_against_the_twin(text_plan(), mechanism) >= 5


@given(
    clip_norm=st.floats(1e-3, 1e3), granularity=st.sampled_from(["max", "half", "2"]), seed=st.integers(0, 99)
)
@settings(max_examples=20, deadline=None)
def test_an_update_has_norm_c_in_each_group(clip_norm: float, granularity: str, seed: int) -> None:
    plan = make_plan(
        model="digits_logistic", steps=1, optimizer="sgd", learning_rate=1.0, weight_decay=0.0, seed=seed,
        sampling_probability=0.5,
    )  # fmt: skip
    before = trainable(build_model(plan).module)
    mechanism = FERRET(
        clip_norm=clip_norm, granularity=granularity, firing_probability=1.0, measures_quality=False
    )
    subject = mechanism.train(plan)
    after = trainable(subject.model.module)
    for names, sign in zip(signs_of(subject).groups, signs_of(subject).signs, strict=True):
        moved = torch.cat([(before[n] - after[n]).detach().reshape(-1) for n in names]).double()
        # Rounding of the weights themselves: half a unit in the last place of numbers up to 1, or up to C.
        assert float(moved.norm()) == pytest.approx(clip_norm, rel=1e-6, abs=1e-5)
        direction = naive_direction(signs_of(subject).public_seed, 0, names, plan).double()
        assert float(moved @ direction) == pytest.approx(sign * clip_norm, rel=1e-6, abs=1e-5)


def replayed(plan: Plan, mechanism: FERRET, released: ReleasedSigns) -> Tensor:
    """The weights that torch's own optimizer gets to from the public start and the released signs alone."""
    module = build_model(plan).module
    found = trainable(module)
    make = torch.optim.SGD if plan.optimizer == "sgd" else torch.optim.AdamW
    optimizer = make(list(found.values()), lr=plan.learning_rate, weight_decay=plan.weight_decay)
    for step in range(released.steps):
        for parameter in found.values():
            parameter.grad = None if mechanism.silent_groups == "absent" else torch.zeros_like(parameter)
        for (when, group), sign in zip(released.fired, released.signs, strict=True):
            if when == step and sign:
                names = released.groups[group]
                whole = naive_direction(released.public_seed, step, names, plan)
                parts = torch.split(whole, [found[name].numel() for name in names])
                for name, part in zip(names, parts, strict=True):
                    found[name].grad = float(sign) * mechanism.clip_norm * part.view(found[name].shape)
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in found.values()])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("silent_groups", ["zero", "absent"])
@pytest.mark.parametrize("granularity", ["max", "2"])
def test_the_transcript_alone_replays_the_training(
    optimizer: str, silent_groups: str, granularity: str
) -> None:
    plan = make_plan(optimizer=optimizer)
    mechanism = FERRET(silent_groups=silent_groups, granularity=granularity, clip_norm=0.5)
    subject = mechanism.train(plan)
    assert 3 < subject.transcript.metrics["fired"] < 100
    torch.testing.assert_close(
        parameters(subject), replayed(plan, mechanism, signs_of(subject)), atol=2e-6, rtol=1e-5
    )
    other = replace(mechanism, silent_groups="zero" if silent_groups == "absent" else "absent")
    difference = (parameters(other.train(plan)) - parameters(subject)).abs().max()
    assert float(difference) > 1e-4  # Weight decay, and AdamW's momentum, tell the two apart.


def test_to_plain_gradient_descent_zero_and_absent_are_one() -> None:
    plan = make_plan(optimizer="sgd", weight_decay=0.0)
    zero, absent = (FERRET(silent_groups=kind).train(plan) for kind in ("zero", "absent"))
    assert torch.equal(parameters(zero), parameters(absent))


def test_the_schedule_reaches_the_signs_updates() -> None:
    plan = make_plan(optimizer="sgd", weight_decay=0.0, schedule="linear", warmup=0.25, steps=8)
    subject = FERRET(firing_probability=1.0).train(plan)
    rates = [0.01 * factor for factor in (0, 1 / 2, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6)]
    moved = parameters(subject) - torch.cat([p.reshape(-1) for p in build_model(plan).module.parameters()])
    expected = torch.zeros_like(moved)
    released = signs_of(subject)
    for (step, group), sign in zip(released.fired, released.signs, strict=True):
        start = sum(trainable(build_model(plan).module)[g[0]].numel() for g in released.groups[:group])
        direction = naive_direction(released.public_seed, int(step), released.groups[group], plan)
        expected[start : start + len(direction)] -= rates[step] * float(sign) * direction
    torch.testing.assert_close(moved, expected.detach(), atol=1e-6, rtol=1e-4)


# --- silence -------------------------------------------------------------------------------------


def test_zero_gradients_are_kept_silent_or_tossed() -> None:
    # LoRA starts with one matrix of each pair at zero, where the other's gradient is exactly zero.
    plan = make_plan(adapter="lora", steps=1, sampling_probability=1.0)
    silent = FERRET(firing_probability=1.0).train(plan)
    names = [group[0] for group in signs_of(silent).groups]
    expected = [0 if "lora_A" in name else 1 for name in names]
    assert np.abs(signs_of(silent).signs).tolist() == expected
    tossed = [
        signs_of(FERRET(firing_probability=1.0, zero_gradient="coin").train(replace(plan, seed=seed))).signs
        for seed in range(40)
    ]
    coins = np.array(tossed)[:, np.array(expected) == 0].ravel()
    # 80 fair coins: fewer than 16 of either side has probability 2e-8.
    assert set(coins.tolist()) == {-1, 1}
    assert 16 <= int((coins == 1).sum()) <= 64


def test_an_empty_sample_is_a_zero_gradient() -> None:
    plan = make_plan(records=digits().records[:2], sampling_probability=1e-9, steps=3)
    subject = FERRET(firing_probability=1.0).train(plan)
    assert not signs_of(subject).signs.any()
    assert np.isnan(subject.transcript.losses).all()


def test_silent_steps_may_look_at_losses_and_change_nothing() -> None:
    plan = make_plan(steps=60, budget=nats(0.5))
    skipped, looked = (FERRET(silent_steps=kind).train(plan) for kind in ("skip", "forward"))
    assert torch.equal(parameters(skipped), parameters(looked))
    fired = np.unique(signs_of(skipped).fired[:, 0])
    assert 0 < len(fired) < 30
    assert np.flatnonzero(np.isfinite(skipped.transcript.losses)).tolist() == fired.tolist()
    assert np.isfinite(looked.transcript.losses).all()
    np.testing.assert_array_equal(looked.transcript.losses[fired], skipped.transcript.losses[fired])


# --- multiplications -----------------------------------------------------------------------------


def multiplications(plan: Plan, mechanism: FERRET) -> tuple[int, TrainedSubject]:
    """Floating-point operations of all matrix products of a training, counted by torch."""
    mechanism.claim(plan)
    with FlopCounterMode(display=False) as counter:
        subject = replace(mechanism, measures_quality=False).train(plan)
    return counter.get_total_flops(), subject


LAYERS = {"0": 64 * 64, "2": 64 * 10}
"""Multiplications of each layer of `digits_mlp` for one record."""


def expected_multiplications(subject: TrainedSubject, *, forward_always: bool = False) -> int:
    """2 flops a multiplication: a forward pass; each fired weight's gradient; the way back to what fired."""
    released, total = signs_of(subject), 0
    for step, size in enumerate(subject.transcript.sample_sizes.tolist()):
        fired = {released.groups[g][0] for s, g in released.fired if s == step}
        forward = sum(LAYERS.values()) if fired or forward_always else 0
        own = sum(LAYERS[layer] for layer in LAYERS if f"{layer}.weight" in fired)
        back = LAYERS["2"] if fired & {"0.weight", "0.bias"} else 0
        total += 2 * size * (forward + own + back)
    return total


def test_silent_steps_cost_no_backward_pass() -> None:
    plan = make_plan(steps=50)
    silent = FERRET(firing_probability=0.0)
    assert multiplications(plan, silent)[0] == 0
    found, subject = multiplications(plan, replace(silent, silent_steps="forward"))
    assert found == 2 * int(subject.transcript.sample_sizes.sum()) * sum(LAYERS.values())


@pytest.mark.parametrize("silent_steps", ["skip", "forward"])
def test_a_step_costs_what_its_fired_groups_need(silent_steps: str) -> None:
    forward = silent_steps == "forward"
    for p in (0.02, 0.3, 1.0):
        found, subject = multiplications(
            make_plan(steps=50), FERRET(firing_probability=p, silent_steps=silent_steps)
        )
        assert found == expected_multiplications(subject, forward_always=forward) > 0


@pytest.mark.slow
def test_less_fires_at_smaller_budgets_and_costs_less() -> None:
    plan = make_plan(steps=300, sampling_probability=0.05)
    costs = [multiplications(replace(plan, budget=nats(e)), FERRET())[0] for e in (0.1, 0.5, 1.0, 2.0)]
    full, _ = multiplications(plan, FERRET(firing_probability=1.0))
    assert costs == sorted(costs)
    assert costs[0] < costs[-1] < full / 5


# --- the canary ----------------------------------------------------------------------------------


def opposed_plan(**changes: object) -> Plan:
    canary = GradientCanary(coordinate=0, magnitude=2.0, record=digits().records[4].id, opposed=True)
    return make_plan(insertions=Insertions(gradient_canary=canary), **changes)


@pytest.mark.parametrize("present", [True, False])
def test_an_opposed_canary_turns_the_sum_around(present: bool) -> None:
    own = digits().records[4]
    plan = opposed_plan(sampling_probability=0.5)
    others = [r for r in plan.records if r.id != own.id]
    if not present:
        plan = replace(plan, records=tuple(others))
    turned = 0

    def watch(fired: FiredStep) -> None:
        nonlocal turned
        sample = [plan.records[i] for i in fired.sample]
        everybody, alone = fired.of_sum(others), fired.of_sum([own])
        np.testing.assert_allclose(alone, -2.0 * everybody, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(fired.of_each([own, others[0]])[:, 0], alone, rtol=1e-6)
        total = fired.of_sum(sample)
        assert list(np.sign(total).astype(int)) == list(fired.signs)
        known = [r for r in sample if r.id != own.id]
        share = alone if len(known) < len(sample) else 0.0
        np.testing.assert_allclose(total, fired.of_sum(known) + share, rtol=1e-4, atol=1e-4)
        turned += int(len(known) < len(sample))

    subject = FERRET(measures_quality=False).train_watched(plan, watch)
    assert (turned > 1) == present
    assert np.isfinite(subject.transcript.losses).any()


def test_a_spread_canary_has_its_gradient_in_its_own_coordinates() -> None:
    own = digits().records[4]
    # 64 x 64 weights, 64 biases, 640 weights, 10 biases: from the last 5 biases on, around to the first 95.
    canary = GradientCanary(coordinate=4805, magnitude=3.0, record=own.id, spread=100)
    plan = make_plan(insertions=Insertions(gradient_canary=canary), steps=3)
    vector = torch.zeros(4810, dtype=torch.float64)
    vector[4805:], vector[:95] = 0.3, 0.3

    def watch(fired: FiredStep) -> None:
        assert fired.groups == (0, 1, 2, 3)
        names = list(trainable(build_model(plan).module))
        parts = torch.split(vector, [4096, 64, 640, 10])
        expected = [
            float(naive_direction(7, fired.step, (name,), plan).double() @ part)
            for name, part in zip(names, parts, strict=True)
        ]
        np.testing.assert_allclose(fired.of_sum([own]), expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(fired.of_each([own])[:, 0], expected, rtol=1e-6, atol=1e-7)

    FERRET(public_seed=7, firing_probability=1.0, measures_quality=False).train_watched(plan, watch)


def test_a_canary_beside_the_records_is_refused() -> None:
    plan = make_plan(insertions=Insertions(gradient_canary=GradientCanary(coordinate=0, magnitude=1.0)))
    with pytest.raises(UnsupportedError, match="give the canary a record's place"):
        FERRET().train(plan)
    subject = FERRET(firing_probability=1.0).train(make_plan(steps=1))
    with pytest.raises(UnsupportedError, match="FERRET releases no privatised sum of gradients"):
        subject.release_canary(
            GradientCanary(coordinate=0, magnitude=1.0), np.array([True]), np.random.default_rng(0)
        )

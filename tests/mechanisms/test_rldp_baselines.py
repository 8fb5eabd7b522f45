"""AdaCliP, AutoClip, PSAC and DP-LoRA: their algorithms, and what a record may add."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from baseline_plans import ADAPTERS, drawn, make_plan, matrix, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workbench.core.errors import InputError
from workbench.mechanisms.adaclip import AdaCliP, Moments
from workbench.mechanisms.autoclip import AutoClip, AutoClipSteps
from workbench.mechanisms.dp_lora import DPLoRA
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.psac import PSAC
from workbench.mechanisms.shared.adaptive_sums import AdaptiveSums, remaining_noise_multiplier
from workbench.training.fine_tuning import build_model
from workbench.training.per_record import EmptySignals

QUIET = 1e-9
"""A noise multiplier that leaves the sum readable."""


# --- naive twins --------------------------------------------------------------------------------------------


def test_adaclip_is_its_algorithm_box() -> None:
    d, batch_size, sigma = 5, 3.0, 0.7
    mechanism = AdaCliP(
        l2_clip_norm=2.0, least_l2_clip_norm=0.5, noise_multiplier=sigma, mean_decay=0.8, variance_decay=0.6
    )
    generator, twin = seeded(0), seeded(0)
    m, s2 = np.zeros(d), np.full(d, 0.5 * 2.0 / d)
    moments = mechanism.initial(matrix(drawn(1, d, 0)))
    for step in range(6):
        rows = drawn(4, d, 10 + step, scale=0.5)
        released = mechanism.release(matrix(rows), moments, batch_size, generator)
        moments = mechanism.learned(moments, released, batch_size)
        b = np.array([math.sqrt(math.sqrt(s2[j]) * sum(math.sqrt(x) for x in s2)) for j in range(d)])
        total = np.zeros(d)
        for row in rows.double().numpy():
            w = (row - m) / b
            total += w / max(1.0, float(np.linalg.norm(w)))
        noise = torch.empty(d).normal_(0.0, sigma, generator=twin).double().numpy()
        g = b * (total + noise) + batch_size * m
        np.testing.assert_allclose(released.numpy(), g, rtol=2e-4, atol=1e-5)
        mean = g / batch_size
        v = np.clip((mean - m) ** 2 - (b * sigma / batch_size) ** 2, 0.25 / d, 4.0 / d)
        m, s2 = 0.8 * m + 0.2 * mean, 0.6 * s2 + 0.4 * v
        np.testing.assert_allclose(moments.mean.numpy(), m, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(moments.variance.numpy(), s2, rtol=2e-4)


def test_adaclip_between_equal_bounds_is_dp_sgd_about_the_mean() -> None:
    rows = drawn(6, 9, 1)
    equal = AdaCliP(l2_clip_norm=0.7, least_l2_clip_norm=0.7, noise_multiplier=0.9)
    plain = DPSGD(l2_clip_norm=0.7, noise_multiplier=0.9)
    torch.testing.assert_close(
        equal.privatise(matrix(rows), seeded(3)),
        plain.privatise(matrix(rows), seeded(3)),
        atol=1e-5,
        rtol=1e-4,
    )


def test_the_scales_of_adaclip_keep_a_centred_record_within_one_on_average() -> None:
    variance = torch.tensor([4.0, 1.0, 0.25, 0.01])
    scale = Moments(mean=torch.zeros(4), variance=variance).scale()
    assert float((variance / scale**2).sum()) == pytest.approx(1.0)
    # No scale that does so adds less noise: by Cauchy and Schwarz, the sum of b^2 is at least (sum of s)^2.
    assert float((scale**2).sum()) == pytest.approx(float(variance.sqrt().sum()) ** 2)


def test_a_known_variance_is_learned() -> None:
    mechanism = AdaCliP(l2_clip_norm=100.0, least_l2_clip_norm=1e-3, noise_multiplier=QUIET, mean_decay=0.999)
    spread = torch.tensor([0.05, 0.2, 1.0])
    for variance_of, factor in (("mean", 1.0), ("record", 20.0)):
        chosen = replace(mechanism, variance_of=variance_of, variance_decay=0.995)
        moments = chosen.initial(matrix(torch.zeros(1, 3)))
        for step in range(1500):
            moments = chosen.learned(moments, 20 * spread * drawn(1, 3, step)[0], 20.0)
        # 200 effective squares: a relative standard deviation of 0.1.
        torch.testing.assert_close(moments.variance, factor * spread**2, rtol=0.5, atol=0)


@pytest.mark.parametrize("estimate", ["sample", "history", "private"])
def test_autoclip_is_its_algorithm_box(estimate: str) -> None:
    sigma, share = 0.8, 0.1
    plan = make_plan(sampling_probability=0.02)  # B = 4
    mechanism = AutoClip(
        estimate=estimate, noise_multiplier=sigma, quantile=0.3, count_share=share, l2_clip_norm=1.5
    )
    steps = mechanism.steps(plan, build_model(plan))
    assert isinstance(steps, AutoClipSteps)
    generator, twin = seeded(0), seeded(0)
    radius, history = 1.5, np.zeros(0)
    sum_noise = sigma / math.sqrt(1 - share) if estimate == "private" else sigma
    samples = [drawn(n, 7, 20 + i, scale=1.0 + i) for i, n in enumerate((5, 0, 1, 8))]
    radii = []
    for rows in samples:
        norms = rows.double().norm(dim=1).numpy()
        history = np.concatenate([history, norms])
        known = {"sample": norms, "history": history, "private": np.zeros(0)}[estimate]
        radius = float(np.quantile(known, 0.3)) if len(known) else radius
        radii.append(radius)
        expected = torch.zeros(7)
        for row in rows:
            expected += row / max(1.0, float(row.norm()) / radius)
        expected += torch.empty(7).normal_(0.0, sum_noise * radius, generator=twin)
        released = steps.privatise(matrix(rows), generator)
        torch.testing.assert_close(released, expected, atol=1e-5, rtol=1e-4)
        if estimate == "private":
            noise = torch.empty(1, dtype=torch.float64)
            noise.normal_(0.0, sigma / (2 * math.sqrt(share)), generator=twin)
            count = sum(0.5 if norm <= radius else -0.5 for norm in norms)
            radius *= math.exp(-0.2 * (0.5 + (count + float(noise)) / 4.0 - 0.3))
    np.testing.assert_allclose(steps.released()["traces"]["l2_clip_norm"], radii, rtol=1e-6)
    np.testing.assert_allclose(steps.released()["traces"]["noise_multiplier"], sum_noise, rtol=1e-9)


def test_the_private_radius_finds_its_quantile() -> None:
    """1000 records a step, norms uniform in (0, 1): the 0.3-quantile is 0.3, the noise of the count 2."""
    plan = make_plan(public_size=5000)  # B = 1000
    mechanism = AutoClip(estimate="private", noise_multiplier=0.9, quantile=0.3, l2_clip_norm=5.0)
    steps = mechanism.steps(plan, build_model(plan))
    rows = torch.linspace(0.001, 1.0, 1000)[:, None]
    for step in range(60):
        steps.privatise(matrix(rows), seeded(step))
    assert steps.released()["traces"]["l2_clip_norm"][-1] == pytest.approx(0.3, rel=0.05)


def test_psac_is_its_formula_and_its_weight_is_not_monotonic() -> None:
    rows = drawn(6, 8, 4)
    expected = torch.zeros(8)
    for row in rows:
        norm = float(row.norm())
        expected += 0.7 * row / (norm + 0.2 / (norm + 0.2))
    mechanism = PSAC(l2_clip_norm=0.7, stability=0.2, noise_multiplier=QUIET)
    torch.testing.assert_close(mechanism.privatise(matrix(rows), seeded(0)), expected, atol=1e-5, rtol=1e-5)
    norms = torch.linspace(0, 3, 3001, dtype=torch.float64)
    factors = mechanism.clip_factors(norms)
    assert float(factors[0]) == pytest.approx(0.7)
    assert float(norms[factors.argmax()]) == pytest.approx(math.sqrt(0.2) - 0.2, abs=1e-3)
    assert float(factors.max()) == pytest.approx(0.7 / (2 * math.sqrt(0.2) - 0.2), rel=1e-5)


@pytest.mark.parametrize(
    ("grouping", "parts"),
    [
        ("factors", [[(0, 6), (14, 18)], [(6, 14), (18, 20)]]),
        ("matrices", [[(0, 6)], [(6, 14)], [(14, 18)], [(18, 20)]]),
        ("pairs", [[(0, 14)], [(14, 20)]]),
        ("flat", [[(0, 20)]]),
    ],
)
def test_dp_lora_clips_each_group_by_itself(grouping: str, parts: list[list[tuple[int, int]]]) -> None:
    rows = drawn(5, 20, 6)
    expected = torch.zeros(20)
    for row in rows:
        for part in parts:
            places = torch.cat([torch.arange(a, b) for a, b in part])
            expected[places] += row[places] / max(1.0, float(row[places].norm()) / 0.9)
    mechanism = DPLoRA(l2_clip_norm=0.9, grouping=grouping, noise_multiplier=QUIET)
    released = mechanism.privatise(matrix(rows, ADAPTERS), seeded(0))
    torch.testing.assert_close(released, expected, atol=1e-5, rtol=1e-5)
    for accounting, s in (("joint", 1.1 * math.sqrt(len(parts))), ("per-group", 1.1)):
        loud = replace(mechanism, noise_multiplier=1.1, accounting=accounting)
        noise = torch.empty(20).normal_(0.0, s * 0.9, generator=seeded(5))
        torch.testing.assert_close(
            loud.privatise(EmptySignals(ADAPTERS), seeded(5)), noise, atol=1e-5, rtol=1e-5
        )


def test_dp_lora_in_one_group_is_dp_sgd() -> None:
    signals = matrix(drawn(5, 20, 6), ADAPTERS)
    theirs = DPSGD(l2_clip_norm=0.9, noise_multiplier=1.1).privatise(signals, seeded(2))
    ours = DPLoRA(l2_clip_norm=0.9, noise_multiplier=1.1, grouping="flat").privatise(signals, seeded(2))
    torch.testing.assert_close(ours, theirs)


# --- what a record may add ----------------------------------------------------------------------------------

SAMPLES = st.tuples(
    st.integers(min_value=0, max_value=5),
    st.integers(min_value=0, max_value=10**6),
    st.floats(min_value=-6, max_value=6),
    st.floats(min_value=-6, max_value=6),
)


@given(SAMPLES)
@settings(max_examples=60, deadline=None)
def test_a_record_moves_the_sum_by_at_most_the_clipping_norm(
    sample: tuple[int, int, float, float],
) -> None:
    n, seed, scale, added = sample
    rows = torch.cat([drawn(n, 20, seed, 10.0**scale), drawn(1, 20, seed + 1, 10.0**added)]).double()
    before, after = matrix(rows[:-1], ADAPTERS), matrix(rows, ADAPTERS)

    def moved(mechanism: AdaptiveSums) -> Tensor:
        return mechanism.privatise(after, seeded(0)) - mechanism.privatise(before, seeded(0))

    tolerance = 1 + 1e-5
    assert float(moved(PSAC(l2_clip_norm=0.7, noise_multiplier=QUIET)).norm()) <= 0.7 * tolerance
    private = AutoClip(estimate="private", l2_clip_norm=0.7, noise_multiplier=QUIET)
    assert float(moved(private).norm()) <= 0.7 * tolerance
    for grouping in ("factors", "matrices", "pairs", "flat"):
        lora = DPLoRA(l2_clip_norm=0.7, grouping=grouping, noise_multiplier=QUIET)
        groups = lora.clipping_groups(ADAPTERS.places)
        assert float(moved(lora).norm()) <= 0.7 * math.sqrt(len(groups)) * tolerance


@given(SAMPLES)
@settings(max_examples=60, deadline=None)
def test_a_record_moves_adaclips_sum_by_at_most_one_in_its_own_coordinates(
    sample: tuple[int, int, float, float],
) -> None:
    n, seed, scale, added = sample
    rows = torch.cat([drawn(n, 6, seed, 10.0**scale), drawn(1, 6, seed + 1, 10.0**added)]).double()
    variance = (10.0 ** drawn(1, 6, seed + 2)[0]).double()
    moments = Moments(mean=drawn(1, 6, seed + 3, 10.0**scale)[0].double(), variance=variance)
    mechanism = AdaCliP(noise_multiplier=QUIET)
    after = mechanism.clipped_sum(matrix(rows), moments, 3.0)
    before = mechanism.clipped_sum(matrix(rows[:-1]), moments, 3.0)
    assert float(((after - before) / moments.scale()).norm()) <= 1 + 1e-5
    # What is public may not come from the sample: an empty one gives B m, whatever it would have held.
    nobody = mechanism.clipped_sum(matrix(rows[:0]), moments, 3.0)
    torch.testing.assert_close(nobody, 3.0 * moments.mean)


def test_the_sensitivity_test_refutes_a_quantile_of_the_sample_and_a_mean_a_record() -> None:
    """Controls: AutoClip as RLDP has it moves by more than its radius, and so would n m in place of B m."""
    rows = torch.cat([0.1 * drawn(4, 6, 0), 50 * drawn(1, 6, 1)])
    mechanism = AutoClip(noise_multiplier=QUIET, quantile=0.9)
    before = mechanism.privatise(matrix(rows[:-1]), seeded(0))
    moved = mechanism.privatise(matrix(rows), seeded(0)) - before
    assert float(moved.norm()) > 5 * mechanism.radius_of(rows[:-1].norm(dim=1), 1.0)
    moments = Moments(mean=torch.full((6,), 10.0), variance=torch.full((6,), 0.01))
    adaclip = AdaCliP(noise_multiplier=QUIET)
    with_n = [adaclip.clipped_sum(matrix(part), moments, float(len(part))) for part in (rows, rows[:-1])]
    assert float(((with_n[0] - with_n[1]) / moments.scale()).norm()) > 5


def test_a_count_of_records_within_the_radius_moves_by_one_half() -> None:
    mechanism = AutoClip(estimate="private", noise_multiplier=1.2, count_share=0.2)
    (side,) = mechanism.side_queries()
    assert side == pytest.approx(mechanism.count_noise() / 0.5)
    sum_noise = mechanism.sum_noise_multiplier()
    assert sum_noise**-2 + side**-2 == pytest.approx(1.2**-2)
    assert side**-2 == pytest.approx(0.2 * 1.2**-2)
    assert sum_noise == remaining_noise_multiplier(1.2, [side])


def test_side_queries_that_leave_nothing_are_refused() -> None:
    assert remaining_noise_multiplier(0.8, []) == 0.8
    with pytest.raises(
        InputError, match=r"must leave something of the step's noise_multiplier .* got 1 of 1$"
    ):
        remaining_noise_multiplier(1.0, [1.0])

"""PACZero's ledger: never overspent, Bayes' posterior, its options, and the information of whole runs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray
from workbench.mechanisms.accountants.paczero import (
    CAP,
    LedgerOptions,
    PacZeroLedger,
    binary_entropy_nats,
)
from workbench.mechanisms.accountants.shared.binary_channel import binary_mi_bounds
from workbench.mechanisms.paczero import SecretSubset, SubsetReleases

CERTIFIED = LedgerOptions(quadrature="certified")


def ledger(**changes: object) -> PacZeroLedger:
    given = {"total_nats": 0.33, "steps": 20, "candidates": 8, "options": CERTIFIED}
    return PacZeroLedger(**{**given, **changes})  # type: ignore[arg-type]


def random_signs(generator: np.random.Generator, candidates: int, unanimity: float) -> FloatArray:
    if generator.random() < unanimity:
        return np.full(candidates, 1.0 if generator.random() < 0.5 else -1.0)
    # All shares of dissenters, also a single one.
    return np.where(generator.random(candidates) < generator.random(), 1.0, -1.0)


OPTIONS = st.fixed_dictionaries(
    {
        "directions": st.integers(1, 3),
        "within_step": st.sampled_from(["sequential", "joint"]),
        "conditioned_on": st.sampled_from(["values", "bits"]),
        "mi_steps": st.none() | st.integers(1, 10),
    }
)
BOOKS = st.fixed_dictionaries(
    {
        "total_nats": st.floats(1e-6, 3.0),
        "steps": st.integers(1, 20),
        "candidates": st.integers(1, 6).map(lambda half: 2 * half),
        "allocation": st.sampled_from(["adaptive", "uniform"]),
        "tolerance": st.sampled_from([0.0, 1e-12, 0.1]),
    }
)


@settings(max_examples=25, deadline=None)
@given(options=OPTIONS, given_=BOOKS, unanimity=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_the_charges_never_exceed_the_total_on_any_path(
    options: dict[str, Any], given_: dict[str, Any], unanimity: float, seed: int
) -> None:
    """To the last bit, summed as fractions; and each charge covers what its release tells, certified."""
    total, steps, candidates = given_["total_nats"], given_["steps"], given_["candidates"]
    mi_steps = options["mi_steps"]
    book = ledger(**given_, options=LedgerOptions(**options, quadrature="certified"))
    generator = np.random.default_rng(seed)
    secret = SecretSubset(int(generator.integers(candidates)))
    releases = SubsetReleases(book, secret, generator)
    spent = Fraction(0)
    for step in range(steps):
        for _ in range(options["directions"]):
            signs = random_signs(generator, candidates, unanimity).astype(np.int8)
            before = book.posterior
            charge = releases.release(signs).charge
            spent += Fraction(charge.budget_nats)
            assert spent <= Fraction(total)
            if charge.unanimous or (mi_steps is not None and step >= mi_steps):
                assert charge.budget_nats == 0
            else:
                fewer = min(before[signs > 0].sum(), before[signs < 0].sum())
                assert charge.budget_nats <= CAP * binary_entropy_nats(fewer) * (1 + 1e-9)
                told = binary_mi_bounds(float(fewer), charge.noise)[1]
                # The ledger knows the posterior better than its rounded probabilities tell us here.
                assert told <= charge.budget_nats * (1 + 1e-9)
    assert Fraction(book.used_nats) <= Fraction(total)
    assert book.used_nats == pytest.approx(float(spent), rel=1e-12)


def test_adaptive_spends_all_and_uniform_what_disagreement_asks_for() -> None:
    generator = np.random.default_rng(0)
    for allocation, used in (("adaptive", 0.33), ("uniform", 0.33 / 2)):
        book = ledger(allocation=allocation)
        for step in range(20):
            signs = np.ones(8) if step % 2 == 0 else np.repeat([1.0, -1.0], 4)
            charge = book.charge(signs)
            if not charge.unanimous:
                book.observe(signs, float(generator.normal()))
        assert book.used_nats == pytest.approx(used, rel=1e-12)


def test_what_the_cap_leaves_goes_to_later_steps_or_stays() -> None:
    one_dissents, even = np.array([1.0] * 7 + [-1.0]), np.repeat([1.0, -1.0], 4)
    book = ledger(total_nats=2.0, steps=2)
    assert book.charge(one_dissents).budget_nats == CAP * binary_entropy_nats(1 / 8)
    left = 2.0 - book.used_nats
    assert book.charge(even).budget_nats == CAP * math.log(2) < left
    with pytest.raises(
        InputError, match=r"capped must be true .* got False: step 1 may spend 1 nats.* worth 0\.37677"
    ):
        ledger(total_nats=2.0, steps=2, capped=False).charge(one_dissents)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), within_step=st.sampled_from(["sequential", "joint"]), bits=st.booleans())
def test_the_posterior_is_bayes_rule(seed: int, within_step: str, bits: bool) -> None:
    generator = np.random.default_rng(seed)
    options = LedgerOptions(
        directions=2,
        within_step=within_step,
        conditioned_on="bits" if bits else "values",
        quadrature="certified",
    )
    book = ledger(options=options, total_nats=3.0)
    weights = np.full(8, 1 / 8)
    for _ in range(8):
        prior = weights.copy()
        for _ in range(2):
            signs = random_signs(generator, 8, 0.2)
            charge = book.charge(signs)
            expected = prior if within_step == "joint" else weights
            assert charge.agreement == pytest.approx(expected[signs > 0].sum(), rel=1e-9, abs=1e-300)
            if charge.unanimous or math.isinf(charge.noise):
                continue
            value = signs[3] + charge.noise * generator.normal()
            book.observe(signs, value)
            if bits:
                likelihood = stats.norm.cdf((1 if value >= 0 else -1) * signs / charge.noise)
            else:
                likelihood = stats.norm.pdf(value, signs, charge.noise)
            weights = weights * likelihood / (weights * likelihood).sum()
        assert book.posterior == pytest.approx(weights, rel=1e-8)
        assert book.entropy_nats == pytest.approx(stats.entropy(weights), rel=1e-8)


def test_no_candidate_is_lost_to_underflow_and_none_returns_from_outside() -> None:
    book = ledger(candidates=4, total_nats=1.0)
    book._logs = np.array([0.0, 0.0, -2000.0, -math.inf])
    signs = np.array([1.0, 1.0, -1.0, 1.0])
    charge = book.charge(signs)
    assert (charge.agreement, charge.unanimous) == (1.0, False)
    assert (charge.budget_nats, charge.noise) == (0.0, math.inf)
    assert book.charge(np.array([1.0, 1.0, 1.0, -1.0])).unanimous
    charge = book.charge(np.array([1.0, -1.0, -1.0, -1.0]))
    book.observe(np.array([1.0, -1.0, -1.0, -1.0]), 0.7)
    assert book._logs[3] == -math.inf
    assert book.posterior[3] == 0
    # Within the tolerance the same step is unanimous, as printed.
    loose = ledger(candidates=4, total_nats=1.0, tolerance=1e-12)
    loose._logs = np.array([0.0, 0.0, -28.0, -math.inf])
    assert loose.charge(signs).unanimous


@pytest.mark.parametrize("options", [CERTIFIED, LedgerOptions()])
@pytest.mark.parametrize("log_weight", [-744.0, -728.0, -715.0])
def test_a_weight_at_the_end_of_the_floats_makes_the_release_a_coin(
    log_weight: float, options: LedgerOptions
) -> None:
    book = ledger(candidates=2, total_nats=2.0, options=options)
    book._logs = np.array([0.0, log_weight])
    charge = book.charge(np.array([1.0, -1.0]))
    assert (charge.unanimous, charge.budget_nats, charge.noise) == (False, 0.0, math.inf)
    assert book.used_nats == 0.0


def test_the_hybrids_tail_costs_nothing_and_keeps_the_posterior() -> None:
    book = ledger(steps=6, options=LedgerOptions(mi_steps=2, quadrature="certified"))
    even = np.repeat([1.0, -1.0], 4)
    for _ in range(2):
        assert math.isfinite(book.charge(even).noise)
        book.observe(even, 1.5)
    assert book.used_nats == pytest.approx(0.33, rel=1e-15)
    kept = book.posterior
    for _ in range(4):
        charge = book.charge(even)
        assert (charge.budget_nats, charge.noise, charge.unanimous) == (0.0, math.inf, False)
        assert charge.agreement == pytest.approx(kept[:4].sum())
        book.observe(even, 1.0)
    assert book.posterior.tobytes() == kept.tobytes()


def test_a_step_has_k_releases_of_a_kth_each() -> None:
    even = np.repeat([1.0, -1.0], 4)
    book = ledger(steps=2, total_nats=0.4, options=LedgerOptions(directions=4, quadrature="certified"))
    charges = [book.charge(np.ones(8) if k == 1 else even).budget_nats for k in range(4)]
    assert charges == pytest.approx([0.05, 0.0, 0.05, 0.05])
    # The unanimous one's share is not spent on its step, but on the next.
    assert book.charge(even).budget_nats == pytest.approx(0.25 / 4)
    for _ in range(3):
        book.charge(even)
    with pytest.raises(InputError, match="step must be at most 2, got 3"):
        book.charge(even)


def told_by_bits(
    book: PacZeroLedger, choose: Callable[[str], FloatArray], steps: int, louder: float
) -> float:
    """I(j; bits) of a whole run, exactly, by going through all bits; noise divided by `louder`."""
    joint: dict[str, FloatArray] = {}

    def walk(state: PacZeroLedger, past: str, likelihood: FloatArray) -> None:
        if len(past) == steps:
            joint[past] = likelihood / likelihood.size
            return
        signs = choose(past)
        charge = state.charge(signs)
        for bit, name in ((1.0, "+"), (-1.0, "-")):
            after = copy.deepcopy(state)
            if charge.unanimous:
                chances = (signs == bit).astype(float)
            else:
                after.observe(signs, bit)
                chances = stats.norm.cdf(louder * bit * signs / charge.noise)
            if (likelihood * chances).any():
                walk(after, past + name, likelihood * chances)

    walk(book, "", np.ones(book.posterior.size))
    table = np.stack(list(joint.values()))
    assert table.sum() == pytest.approx(1.0)
    outer = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True)
    positive = table > 0
    return float((table[positive] * np.log(table[positive] / outer[positive])).sum())


@pytest.mark.parametrize("allocation", ["adaptive", "uniform"])
@pytest.mark.parametrize("total", [0.05, 0.33, 1.0])
def test_a_whole_runs_bits_tell_no_more_than_the_total(allocation: str, total: float) -> None:
    """Exactly, over all runs of 5 steps with signs that depend on the bits; with the control of less noise.

    At a given noise, a weak sign's bit tells 2 / pi of what its value tells, so that the control needs noise
    of less than sqrt(2 / pi) = 0.8 of the calibrated one.
    """

    def choose(past: str) -> FloatArray:
        generator = np.random.default_rng([len(past), past.count("+"), int(past.endswith("+"))])
        return random_signs(generator, 4, 0.1)

    def run(louder: float) -> float:
        options = LedgerOptions(conditioned_on="bits", quadrature="certified")
        book = ledger(total_nats=total, steps=5, candidates=4, allocation=allocation, options=options)
        return told_by_bits(book, choose, 5, louder)

    assert 0 < run(1.0) <= total
    if total < 0.1 and allocation == "adaptive":
        assert run(2.0) > total


def test_the_secrets_own_sign_within_the_tolerance_tells_something_and_the_majoritys_nothing() -> None:
    """Appendix C's tolerance, at 1/8 in the place of 1e-12, where what it leaks can be seen."""
    signs = np.array([-1] + [1] * 7, dtype=np.int8)

    def released(secret: int, unanimous_release: str) -> int:
        book = ledger(tolerance=1 / 8, total_nats=0.0)
        releases = SubsetReleases(
            book, SecretSubset(secret), np.random.default_rng(0), unanimous_release=unanimous_release
        )
        return releases.release(signs).bit

    assert [released(secret, "secret") for secret in range(8)] == list(signs)
    assert [released(secret, "majority") for secret in range(8)] == [1] * 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"directions": 0}, "directions must be >= 1, got 0"),
        ({"within_step": "join"}, "unknown within_step 'join'; did you mean 'joint'"),
        ({"conditioned_on": "signs"}, "unknown conditioned_on 'signs'"),
        ({"quadrature": "gauss"}, "unknown quadrature 'gauss'; did you mean 'gauss-hermite'"),
        ({"mi_steps": 0}, "mi_steps must be >= 1, got 0"),
    ],
)
def test_refused_options(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LedgerOptions(**changes)  # type: ignore[arg-type]


def test_all_paths_of_signs_of_two_candidates() -> None:
    """Enumerated: 4 steps, each of the 4 sign patterns of two candidates."""
    for path in product(product((1.0, -1.0), repeat=2), repeat=4):
        book = ledger(steps=4, candidates=2, total_nats=0.7)
        spent = Fraction(0)
        for signs in path:
            spent += Fraction(book.charge(np.array(signs)).budget_nats)
            book.observe(np.array(signs), 0.5)
        assert spent <= Fraction(0.7)

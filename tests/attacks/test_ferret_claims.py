"""FERRET's claims about its transcript: verdicts, altered twins, closed forms against samples, the attack."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flint import ctx

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.attacks.claim_checks.ferret.by_attack import BATCH, EPOCHS, HIDDEN_LAYERS, RECORDS, small_plan
from workbench.attacks.claim_checks.ferret.transcript import worst_record
from workbench.attacks.claim_checks.shared.claims import BITS, ball
from workbench.attacks.claim_checks.shared.information import FiniteLaw
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Secret, VerdictKind
from workbench.interfaces.findings import Finding

PROVEN, REFUTED, HOLDS_UNDER, UNDECIDED = (
    VerdictKind.PROVEN,
    VerdictKind.REFUTED,
    VerdictKind.HOLDS_UNDER,
    VerdictKind.UNDECIDED,
)

ANSWERS: list[tuple[str, Mapping[str, Any], VerdictKind]] = [
    ("ferret_membership_nats", {}, PROVEN),
    ("ferret_membership_nats", {"scale": 2.0}, PROVEN),
    ("ferret_membership_nats", {"scale": 0.1}, REFUTED),
    ("ferret_membership_nats", {"scale": 0.9}, UNDECIDED),
    ("ferret_transcript_region", {}, REFUTED),
    ("ferret_transcript_region", {"nats_per_epsilon": "1e-12"}, PROVEN),
    ("ferret_transcript_region", {"delta": "0.99"}, UNDECIDED),
    ("ferret_head_room", {}, PROVEN),
    ("ferret_head_room", {"reverse": True}, REFUTED),
    ("ferret_step_capacity", {}, REFUTED),
    ("ferret_step_capacity", {"zero_gradient": "coin", "firings": (1, 2)}, PROVEN),
    ("ferret_step_capacity", {"scale": 0.5, "firings": (1,)}, REFUTED),
    ("ferret_step_capacity", {"scale": 0.9, "zero_gradient": "coin", "firings": (1,)}, UNDECIDED),
    # Two firings stay below 1.55 s k ln 2 even with silence; more need not, for ln 3 / ln 2 is 1.585.
    ("ferret_step_capacity", {"scale": 1.55, "firings": (1, 2)}, UNDECIDED),
    ("ferret_step_capacity", {"scale": 1.6, "firings": (1, 2)}, PROVEN),
    ("ferret_updates_of_any_length", {}, REFUTED),
    ("ferret_updates_of_any_length", {"budgets": ("0.1", "0.5", "1")}, HOLDS_UNDER),
    ("ferret_printed_auc", {}, REFUTED),
    ("ferret_printed_auc", {"variants": ("FERRET-MAX",), "slack": "0.005"}, PROVEN),
]
"""The claims as printed, and claims that were altered, each with the verdict that it must get."""


@pytest.fixture(autouse=True)
def _precise() -> Iterator[None]:
    """The checks' own precision for the closed forms that are called directly."""
    with ctx.workprec(BITS):
        yield


@pytest.mark.thinned
@pytest.mark.parametrize(("name", "altered", "verdict"), ANSWERS, ids=str)
def test_verdicts_follow_the_claim(name: str, altered: Mapping[str, Any], verdict: VerdictKind) -> None:
    found = registry.create("claim_check", name, **altered)
    assert isinstance(found, Finding)
    assert found.verdict == verdict, found.summary


def test_the_capacity_of_a_step_is_a_z_channels_without_silence_and_above_the_claim_with_it() -> None:
    found = registry.create("claim_check", "ferret_step_capacity", firings=(1,))
    s, claimed = 0.005, 0.005 * np.log(2)
    # A Z-channel that shows a one with probability s: ln(1 + exp(-h(s) / s)) (Cover and Thomas, 7.8).
    entropy = -s * np.log(s) - (1 - s) * np.log1p(-s)
    (line,) = (line for line in found.evidence if line.startswith("k = 1:"))
    signs = np.log1p(np.exp(-entropy / s))
    assert f"membership {signs:.6g} ({signs / claimed:.4g} of it, within)" in line
    # Three equally likely records, two of which show when sampled: above the claim, below the capacity.
    shown = 2 * s / 3
    even = -2 * (s / 3) * np.log(s / 3) - (1 - shown) * np.log1p(-shown) - 2 / 3 * entropy
    assert claimed < even <= float(found.counterexample["leak_nats"])


def test_the_closed_form_is_the_information_of_the_enumerated_transcript() -> None:
    # Three steps of two groups, every mask and sample; a step tells where it fired with the record in it.
    nats, rate, groups, steps = Fraction(1, 4), Fraction(1, 10), 2, 3
    found = worst_record(ball(nats), groups, steps=steps, rate="0.1")
    p = Fraction(str(found.firing_probability.mid().str(30, radius=False)))
    busy = 1 - (1 - p) ** groups
    law: dict[tuple[Any, ...], Fraction] = {}
    for member in (0, 1):
        runs: dict[tuple[int, ...], Fraction] = {(): Fraction(1, 2)}
        for _ in range(steps):
            told = busy * rate if member else Fraction(0)
            outcomes = {0: 1 - busy, 1: busy - told, 2: told}
            runs = {(*seen, o): q * w for seen, q in runs.items() for o, w in outcomes.items()}
        law |= {(member, seen): weight for seen, weight in runs.items()}
    exact = FiniteLaw("BY", law)
    assert float(found.information()) == pytest.approx(float(exact.information("Y", "B")), rel=1e-12)
    assert float(found.success()) == pytest.approx(float(exact.success("B", "Y")), rel=1e-12)


@pytest.mark.parametrize("groups", [200, 2])
def test_success_by_simulated_runs(groups: int) -> None:
    found = worst_record(ball("0.5"), groups)
    generator, runs = np.random.default_rng(7), 400
    present = generator.random(runs) < 0.5
    sampled = (generator.random((runs, 1000)) < 0.005) & present[:, None]
    fired = generator.random((runs, 1000)) > (1 - float(found.firing_probability)) ** groups
    right = np.mean((sampled & fired).any(axis=1) == present)
    stated = float(found.success())
    # Five standard errors: fewer than one false alarm in 10^5 changes of the seed.
    assert right == pytest.approx(stated, abs=5 * np.sqrt(stated * (1 - stated) / runs))


@pytest.mark.parametrize("budget", ["0.1", "0.5", "1", "2"])
def test_the_worst_record_stays_within_the_claimed_nats_and_their_success(budget: str) -> None:
    found = worst_record(ball(budget), 200)
    claimed = MutualInformation(nats=float(budget), secret=Secret.RECORD)
    assert float(found.information()) < claimed.nats
    assert 0.5 < float(found.success()) <= claimed.max_success(0.5)


def test_a_firing_probability_of_one_leaves_only_the_sampling() -> None:
    found = worst_record(ball(100), 2, steps=10, rate="0.1")
    assert float(found.firing_probability) == 1
    assert float(found.tpr_without_alarms()) == pytest.approx(1 - 0.9**10)


@pytest.mark.parametrize("budget", ["0.1", "0.5", "1", "2"])
def test_the_page_on_ferret_prints_what_the_checks_compute(budget: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ferret.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {budget} |"))
    allowed, success, telling, dp_success, dp_telling = row.split("|")[2:7]
    found = worst_record(ball(budget), 200)
    most = MutualInformation(nats=float(budget), secret=Secret.RECORD).max_success(0.5)
    assert allowed.strip() == ("all" if most == 1 else f"{100 * most:.1f} %")
    assert success.strip() == f"{100 * float(found.success()):.1f} %"
    assert telling.strip() == f"{100 * float(found.tpr_without_alarms()):.1f} %"
    reading = ApproximateDP(epsilon=float(budget), delta=1e-5)
    assert dp_success.strip() == f"{100 * reading.max_success(0.5):.1f} %"
    assert dp_telling.strip() == f"{100 * reading.delta:.3f} %"


def _zero_signs(rule: str) -> int:
    """Firings that released nothing, of a run whose samples are mostly empty."""
    plan = replace(small_plan(nats=0.5), steps=40, sampling_probability=0.005, budget=None)
    mechanism = registry.create(
        "mechanism", "ferret", zero_gradient=rule, firing_probability=0.2, measures_quality=False
    )
    released = mechanism.train(plan).transcript.released_signs
    assert released is not None
    assert released.signs.size > 40
    return int(np.sum(released.signs == 0))


def test_the_mechanism_releases_the_third_symbol_that_the_remark_on_lemma_1_is_asked_about() -> None:
    # Empty samples have gradient zero: "silent", the printed rule, shows it, and "coin" does not.
    assert _zero_signs("silent") > 0
    assert _zero_signs("coin") == 0
    found = registry.create("claim_check", "ferret_zero_gradient")
    assert found.verdict is REFUTED
    assert float(found.counterexample["leak_nats"]) == pytest.approx(np.log(3), rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "error", "part"),
    [
        ({"reading": "dp", "canary": "average"}, UnsupportedError, "secret batches"),
        ({"reading": "dp", "others": "corpus"}, UnsupportedError, "secret batches"),
        ({"reading": "np"}, InputError, "unknown reading 'np'"),
        ({"granularity": "maxx"}, InputError, "did you mean 'max'?"),
    ],
)
def test_what_no_attack_can_answer_is_refused(
    changes: Mapping[str, Any], error: type[Exception], part: str
) -> None:
    with pytest.raises(error, match=re.escape(part)):
        registry.create("claim_check", "ferret_transcript_attacked", trials=20, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"reading": "dp"}, REFUTED),
        ({"reading": "dp", "granularity": "2"}, REFUTED),
        ({"reading": "dp", "scale": 8.0}, UNDECIDED),
        ({"reading": "nats", "trials": 300}, UNDECIDED),
        ({"reading": "nats", "trials": 300, "scale": 0.02}, REFUTED),
        ({"reading": "nats", "trials": 300, "canary": "average", "others": "corpus"}, UNDECIDED),
    ],
    ids=str,
)
def test_the_attack_refutes_what_is_claimed_too_low_and_nothing_else(
    changes: Mapping[str, Any], verdict: VerdictKind
) -> None:
    found = registry.create("claim_check", "ferret_transcript_attacked", **changes)
    # A true claim is refuted with probability 0.001; the seed is the ledger's.
    assert found.verdict is verdict, found.summary
    assert found.confidence == (0.999 if verdict is REFUTED else None)


@pytest.mark.slow
def test_real_trainings_tell_as_often_as_the_closed_form_says() -> None:
    found = registry.create("claim_check", "ferret_transcript_attacked", reading="dp")
    steps, rate = EPOCHS * RECORDS // BATCH, str(BATCH / RECORDS)
    stated = float(
        worst_record(ball("0.5"), 2 * (HIDDEN_LAYERS + 1), steps=steps, rate=rate).tpr_without_alarms()
    )
    assert found.counterexample["certain_without"] == 0
    # Five standard errors of 100 trainings.
    share = float(found.counterexample["certain_with"]) / 100
    assert share == pytest.approx(stated, abs=5 * np.sqrt(stated * (1 - stated) / 100))

"""PACZero's claims that runs decide, and those about its settings: verdicts, altered twins, leaks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from workbench.attacks.claim_checks.paczero import runs as paczero_runs
from workbench.attacks.claim_checks.paczero.runs import paczero, world
from workbench.attacks.claim_checks.shared.claims import CONFIDENCE
from workbench.core import registry
from workbench.core.errors import InconclusiveError
from workbench.interfaces import Model, Plan, VerdictKind
from workbench.interfaces.findings import Finding
from workbench.mechanisms.paczero import PACZero, SubsetBits, Watch

PROVEN, REFUTED, HOLDS_UNDER, UNDECIDED = (
    VerdictKind.PROVEN,
    VerdictKind.REFUTED,
    VerdictKind.HOLDS_UNDER,
    VerdictKind.UNDECIDED,
)

SLOW = pytest.mark.slow

ANSWERS: list[Any] = [
    ("paczero_balance", {}, PROVEN),
    ("paczero_balance", {"constructions": ("halves",)}, REFUTED),
    # Of two candidates that are one pair each record is in one, however they were named.
    ("paczero_balance", {"constructions": ("pairs",), "candidates": 2, "records": 11}, PROVEN),
    ("paczero_whole_budget", {}, REFUTED),
    ("paczero_whole_budget", {"last": ("disagreement",)}, PROVEN),
    ("paczero_whole_budget", {"last": ("unanimity",)}, REFUTED),
    ("paczero_whole_budget", {"last": ("unanimity",), "used": "0.3300"}, REFUTED),
    ("paczero_signal", {}, HOLDS_UNDER),
    ("paczero_signal", {"share": "9/10"}, UNDECIDED),
    ("paczero_signal", {"share": "9/10", "agreement": "1/2"}, HOLDS_UNDER),
    # SQuAD by LoRA, Table 6: 8.1 % unanimous.
    ("paczero_signal", {"unanimous": "0.081"}, UNDECIDED),
    pytest.param("paczero_concentration", {}, HOLDS_UNDER, marks=SLOW),
    ("paczero_concentration", {"tolerance": "0", "steps": 3}, REFUTED),
    pytest.param("paczero_secret_flow", {}, PROVEN, marks=SLOW),
    ("paczero_secret_flow", {"worlds": 1, "candidates": 4}, PROVEN),
    ("paczero_secret_flow", {"variant": "mi", "nats": 0.5, "worlds": 1, "candidates": 4}, REFUTED),
    ("paczero_spending", {}, PROVEN),
    ("paczero_spending", {"scale": 0.5, "seeds": 1}, REFUTED),
    pytest.param("paczero_estimated_information", {}, UNDECIDED, marks=SLOW),
    pytest.param("paczero_estimated_information", {"scale": 0.25}, REFUTED, marks=SLOW),
    pytest.param("paczero_estimated_information", {"variant": "zpl", "nats": 0.0}, UNDECIDED, marks=SLOW),
]
"""The claims as printed, and claims that were altered, each with the verdict that it must get."""


@dataclass(frozen=True, kw_only=True)
class CoinsOfTheSecret(PACZero):
    """A leak: the coins of ZPL are tossed with a seed that the secret index is part of."""

    def steps(
        self, plan: Plan, model: Model, secret: int | None = None, watch: Watch | None = None
    ) -> SubsetBits:
        """PACZero's, with another generator."""
        steps = super().steps(plan, model, secret, watch)
        steps._releases._generator = np.random.default_rng([plan.seed, secret or 0])
        return steps


class _Shrunk:
    """A generator whose normals are smaller than they should be."""

    def __init__(self, generator: np.random.Generator, share: float) -> None:
        self._generator, self._share = generator, share

    def standard_normal(self) -> float:
        """A share of a normal."""
        return self._share * float(self._generator.standard_normal())

    def integers(self, high: int) -> int:
        """Coins are left alone."""
        return int(self._generator.integers(high))


@dataclass(frozen=True, kw_only=True)
class HalfTheNoise(PACZero):
    """A mechanism whose noise is half of what its ledger says."""

    def steps(
        self, plan: Plan, model: Model, secret: int | None = None, watch: Watch | None = None
    ) -> SubsetBits:
        """PACZero's, with another generator."""
        steps = super().steps(plan, model, secret, watch)
        steps._releases._generator = _Shrunk(steps._releases._generator, 0.5)  # type: ignore[assignment]
        return steps


@dataclass(frozen=True, kw_only=True)
class Overspends(PACZero):
    """A mechanism that is given a total and runs on one and a half times as much."""

    def _total_nats(self, plan: Plan) -> float:
        return 1.5 * super()._total_nats(plan)


LEAKY: Mapping[str, type[PACZero]] = {
    "coins of the secret": CoinsOfTheSecret,
    "half the noise": HalfTheNoise,
    "overspends": Overspends,
}


@pytest.fixture
def _leaky(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry's PACZero gives way to a leaky one where a check asks for it by name."""
    real = registry.create

    def create(kind: str, name: str, **parameters: Any) -> Any:
        if kind == "mechanism" and name in LEAKY:
            return LEAKY[name](**parameters)
        return real(kind, name, **parameters)

    monkeypatch.setattr(registry, "create", create)


def run(name: str, **parameters: Any) -> Finding:
    found = registry.create("claim_check", name, **parameters)
    assert isinstance(found, Finding)
    return found


@pytest.mark.parametrize(("name", "altered", "verdict"), ANSWERS, ids=str)
def test_verdicts_follow_the_claim(name: str, altered: Mapping[str, Any], verdict: VerdictKind) -> None:
    """The undecided estimates are refuted by chance in one seed of a thousand; the seed is fixed."""
    found = run(name, **altered)
    assert found.verdict == verdict, found.summary
    assert found.evidence


def test_what_is_read_off_runs_does_not_pass_for_a_proof() -> None:
    setting = run("paczero_secret_flow", worlds=1, candidates=2).evidence[0]
    assert "no proof about other runs" in setting
    assert "ball arithmetic" not in setting


def test_the_ledgers_of_runs_agree_with_what_all_candidates_say() -> None:
    """Of a run of the printed ledger at 0.68 nats: without the tolerance unanimity is agreement of all."""
    line = run("paczero_concentration", tolerance="0", steps=20).evidence[-1]
    found = re.search(r"(\d+) steps are unanimous, in (\d+) of which all agree", line)
    assert found is not None
    assert 0 < int(found[1]) == int(found[2]) < 20


@pytest.mark.usefixtures("_leaky")
def test_coins_that_know_the_secret_are_caught_in_the_flow() -> None:
    found = run("paczero_secret_flow", mechanism="coins of the secret", worlds=1, candidates=4)
    assert found.verdict == REFUTED
    assert found.counterexample["part"] == "bits"


def test_runs_that_are_not_repeatable_refute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose sums come out otherwise each time."""
    real, count = paczero_runs.run, itertools.count()

    def unsteady(*given: Any) -> paczero_runs.Run:
        found = real(*given)
        return replace(found, parts={**found.parts, "weights": bytes([next(count)])})

    monkeypatch.setattr(paczero_runs, "run", unsteady)
    with pytest.raises(InconclusiveError, match="must be the same when repeated, got other weights"):
        run("paczero_secret_flow", worlds=1, candidates=2)


@pytest.mark.usefixtures("_leaky")
def test_a_mechanism_that_spends_more_than_its_total_is_caught() -> None:
    found = run("paczero_spending", mechanism="overspends", seeds=1)
    assert found.verdict == REFUTED
    assert found.counterexample["charged_nats"] > found.counterexample["budget_nats"]


@pytest.mark.slow
@pytest.mark.usefixtures("_leaky")
def test_half_the_noise_under_the_same_ledger_is_caught() -> None:
    found = run("paczero_estimated_information", mechanism="half the noise")
    assert found.verdict == REFUTED, found.summary
    assert found.confidence == CONFIDENCE
    assert found.counterexample["excess_nats_lower"] > 0


def test_a_charge_below_zero_is_no_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PACZero.train_on

    def refunding(self: PACZero, plan: Plan, *, watch: Watch, **more: Any) -> Any:
        return real(self, plan, watch=lambda one: watch(replace(one, budget_nats=-1.0)), **more)

    monkeypatch.setattr(PACZero, "train_on", refunding)
    with pytest.raises(InconclusiveError, match="none may be negative"):
        run("paczero_spending", seeds=1)


def test_the_flow_is_compared_where_both_branches_are_taken() -> None:
    """A world in which all steps are unanimous, or none, would show nothing."""
    noises: list[float] = []
    made = paczero("paczero", variant="zpl", subset_count=4)
    made.train_on(world(0, nats=0.0), secret=1, watch=lambda one: noises.append(one.noise))
    assert {0.0, float("inf")} == set(noises)

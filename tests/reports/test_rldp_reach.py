"""What a controller could not have done in a short run is no finding against it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from rldp_world import World, experiment, results

from workbench.checks.published import published
from workbench.reports.papers.rldp.report import decisions, largest_fall, out_of_reach, rldp
from workbench.studies.experiments import Outcome, Status, StudyResults
from workbench.studies.report import Replication, StudyReport

PAPER = published("rldp")


def run(interval: int | None, *, warm_up: int = 8, ledger: tuple[float, ...] = ()) -> Outcome:
    """A finished run of 100 steps at epsilon 8."""
    given: dict[str, Any] = {} if interval is None else {"decision_interval": interval, "warm_up": warm_up}
    one = experiment("gpt2", "RLDP-H", 0, epsilon=8.0, mechanism_parameters=given)
    traces = {"ledger_epsilon": ledger} if ledger else {}
    return Outcome(experiment=one, key="a", status=Status.DONE, traces=traces)


def test_decisions_follow_algorithm_1() -> None:
    """Line 20: t above the warm-up, and a multiple of the interval."""
    assert decisions(run(30)) == [30, 60, 90]
    assert decisions(run(8)) == list(range(16, 101, 8))
    assert decisions(run(4, warm_up=90)) == [92, 96, 100]
    assert decisions(run(None)) is None


def test_the_largest_fall_is_that_of_equations_11_to_14() -> None:
    """Every decision asks for tanh = -1: the noise then falls by exactly the bound."""
    ledger = tuple(8.0 * math.sqrt(step / 100) for step in range(1, 101))
    level = 0.0
    for step in (30, 60, 90):
        proposed = level - 0.1 * (1.0 - ledger[step - 1] / 8.0)
        level = 0.8 * level + 0.2 * proposed
    assert largest_fall(run(30, ledger=ledger)) == pytest.approx(100.0 * (1.0 - math.exp(level)))
    assert largest_fall(run(30)) == math.inf
    assert largest_fall(run(None, ledger=ledger)) == math.inf


@pytest.mark.parametrize("test", ["noise rises", "radii widen"])
def test_a_first_phase_without_a_decision_is_not_the_controllers(test: str) -> None:
    late, early = run(30), run(14)
    assert "no decision is made within the first 15 %" in out_of_reach(test, [late], share=0.15, low=0.0)
    assert not out_of_reach(test, [early], share=0.15, low=0.0)
    assert not out_of_reach(test, [late, early], share=0.15, low=0.0)
    assert not out_of_reach(test, [run(None)], share=0.15, low=0.0)
    assert not out_of_reach(test, [], share=0.15, low=0.0)


def world(interval: int) -> StudyReport:
    """Noise that stays where it is, in all runs of one setting."""
    whole = results(World(places=(("gpt2", "gpt2_base"),), epsilons=(8.0,)))

    def still(one: Outcome) -> Outcome:
        if one.experiment.variant not in ("RLDP-H", "RLDP-L") or one.experiment.group != "gpt2":
            return one
        given = {"decision_interval": interval, "warm_up": 8}
        steps = one.experiment.steps
        noise = tuple(0.5 + 1e-4 * (one.experiment.seed % 3) * (step < 9) for step in range(steps))
        traces = {**one.traces, "noise_multiplier": noise, "ledger_epsilon": (1.0,) * steps}
        return replace(one, experiment=replace(one.experiment, mechanism_parameters=given), traces=traces)

    outcomes = tuple(map(still, whole.outcomes))
    study = replace(whole.study, experiments=tuple(one.experiment for one in outcomes))
    return rldp(results=StudyResults(study=study, outcomes=outcomes), published=PAPER)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interval", "outcome"), [(2, Replication.NOT_REPLICATED), (40, Replication.NOT_TESTABLE)]
)
def test_noise_that_could_not_fall_is_not_held_against_the_paper(interval: int, outcome: Replication) -> None:
    """The same flat noise: with 46 decisions it contradicts the paper, with two it says nothing."""
    found = next(one for one in world(interval).findings if one.id == "rldp-noise-falls")
    assert found.outcome is outcome

"""How far an RLDP controller can turn its noise and radii in a short run: what it could not do is no finding.

Each decision moves log sigma by at most 0.1 |1 - spent / budget|, of which smoothing lets a fifth through
(Khadangi et al. 2025, Eqs. 11 to 14), and before the first decision nothing is turned at all (Algorithm 1,
line 20).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.reports.papers.rldp.layout import LEDGER
from workbench.studies.experiments import Outcome

PASSED = 0.2 * 0.1
"""Share of `1 - spent / budget` by which one decision can change log sigma."""


def decisions(outcome: Outcome) -> list[int] | None:
    """Steps after which a run decided, counted from 1; None where its parameters do not say."""
    given = outcome.experiment.mechanism_parameters
    interval, warm_up = given.get("decision_interval"), given.get("warm_up")
    if not isinstance(interval, int) or not isinstance(warm_up, int) or interval < 1:
        return None
    steps = outcome.experiment.steps
    return [step for step in range(interval, steps + 1, interval) if step > warm_up]


def largest_fall(outcome: Outcome) -> float:
    """Percent by which the noise could fall at most, by the ledger that the run had; infinite if unknown.

    A run that lowers its noise spends more, so that within the budget its steps are smaller than these.
    """
    found, ledger = decisions(outcome), outcome.traces.get(LEDGER, ())
    budget = outcome.experiment.epsilon
    if found is None or not ledger or not budget:
        return math.inf
    turned = (abs(1.0 - ledger[step - 1] / budget) for step in found if step <= len(ledger))
    return 100.0 * -math.expm1(-PASSED * sum(turned))


def out_of_reach(test: str, runs: Sequence[Outcome], *, share: float, low: float) -> str:
    """Why no run of a setting could have done what a conclusion says; empty where one could, or may have.

    Args:
        test: `"noise rises"`, `"noise falls"` or `"radii widen"`.
        runs: Of the setting, finished.
        share: Of the steps that the conclusion is about.
        low: Percent by which the noise is said to fall at least.
    """
    if not runs:
        return ""
    if test == "noise falls":
        most = max(largest_fall(one) for one in runs)
        return f"its decisions can lower sigma by {most:.2g} % at most" if most < low else ""
    for one in runs:
        found = decisions(one)
        # A decision after a step shows in the next one.
        if found is None or any(step < round(share * one.experiment.steps) for step in found):
            return ""
    return f"no decision is made within the first {100.0 * share:g} % of the steps"

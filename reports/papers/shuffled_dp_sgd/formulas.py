"""What Shuffled DPSGD's figures are said to show, held to the formulas that they are drawn from.

Figs. 3 and 4 follow from the paper's own accountant, without a sample: what is said of them is seen to hold
or not. Fig. 2's distributions are drawn, and its conditions have p-values by the draws.
"""

from __future__ import annotations

import numpy as np

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.reports.papers.ferret.conditions import Condition
from workbench.reports.papers.shuffled_dp_sgd.cells import Context
from workbench.reports.papers.shuffled_dp_sgd.noise import curves, noise_grid, run_of
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import epsilons
from workbench.reports.papers.shuffled_dp_sgd.sums import (
    DRAWS,
    TAIL,
    compared,
    error_at_low_values,
    far_p,
    sums_of,
)
from workbench.reports.shared.numbers import number

ALIKE = 1.1
"""Largest over smallest sigma up to which a curve is almost the same at every epsilon."""

CLOSE = 0.05
"""Error of a distribution function up to which an approximation is sufficiently close."""


def figure_conditions(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Condition]:
    """What a conclusion about a figure says, as conditions.

    Args:
        context: For the confidence.
        paper: The printed numbers that the figure is drawn from.
        claim: Its metric says which figure: `"cdf_error"` (Fig. 2), or `"noise_multiplier"`, over epsilon
            where its settings have one (Fig. 3), else over d (Fig. 4).
    """
    if claim.parameters["metric"] == "cdf_error":
        return _sums(context, paper)
    settings = claim.parameters["settings"]
    return _over_epsilon(paper) if "epsilon" in settings[0] else _over_dimension(paper)


def _seen(where: str, shown: str, holds: bool) -> Condition:
    """A condition without a sample: n counts what was computed."""
    return Condition(
        where=where,
        shown=shown,
        hold_p=0.0 if holds else 1.0,
        break_p=1.0 if holds else 0.0,
        n=1,
        is_seen=True,
    )


def _sums(context: Context, paper: PublishedPaper) -> list[Condition]:
    """Fenton-Wilkinson's distribution function is close, and Schwartz-Yeh's is not at low values."""
    sums, _ = sums_of(paper)
    found = compared(sums, context.confidence, DRAWS, TAIL)
    draws = found.sample.log_sums.size
    close, low = found.errors["fenton_wilkinson"].estimate, error_at_low_values(found, "schwartz_yeh")
    inside, outside = far_p(close, CLOSE, found.sample)
    near, far = far_p(low, CLOSE, found.sample)
    return [
        Condition(
            where=f"Fenton-Wilkinson's error at most {CLOSE:g}",
            shown=f"{number(close, 2)} against {draws} draws",
            hold_p=inside,
            break_p=outside,
            n=draws,
        ),
        Condition(
            where=f"Schwartz-Yeh's error up to the median above {CLOSE:g}",
            shown=f"{number(low, 2)} against {draws} draws",
            hold_p=far,
            break_p=near,
            n=draws,
        ),
    ]


def _over_epsilon(paper: PublishedPaper) -> list[Condition]:
    conditions = []
    for model, (shuffled, plain) in curves(paper).items():
        ratios = [max(values) / min(values) for values in (shuffled, plain)]
        places = epsilons(paper, "figure 3")
        conditions.append(
            _seen(
                f"{model}, epsilon {places[0]:g} to {places[-1]:g}",
                f"sigma differs by a factor of {number(ratios[0], 3)} with shuffling, "
                f"{number(ratios[1], 3)} without",
                ratios[0] <= ALIKE < ratios[1],
            )
        )
    return conditions


def _over_dimension(paper: PublishedPaper) -> list[Condition]:
    """sigma falls at every step of d, and at the paper's sizes by more than it changes over epsilon."""
    budgets = epsilons(paper, "figure 3")
    steps = noise_grid(paper, budgets, tuple(10**k for k in range(10)))
    falls = bool(np.all(np.diff(steps, axis=1) < 0.0))
    size = run_of(paper, "ViT").dimension
    ends = noise_grid(paper, budgets, (1, size))
    by_size = float(np.min(ends[:, 0] / ends[:, 1]))
    by_budget = float(ends[:, 1].max() / ends[:, 1].min())
    return [
        _seen("sigma falls from each power of ten of d to the next", "at every epsilon of Fig. 3", falls),
        _seen(
            f"from d = 1 to {size:g} sigma changes by more than over Fig. 3's epsilons there",
            f"factor {number(by_size, 3)} or more against {number(by_budget, 3)}",
            by_size > by_budget,
        ),
    ]

"""Figures of a Shuffled DPSGD report: scores over epsilon, and shuffling beside the same noise without."""

from __future__ import annotations

from workbench.reports.papers.shuffled_dp_sgd.cells import Context, less
from workbench.reports.papers.shuffled_dp_sgd.layout import (
    ACCURACY,
    BLEU,
    DPSGD,
    GENERATION,
    GHOST,
    LEFT_ALONE,
    NON_PRIVATE,
    SAME_CLIP,
    SAME_SIGMA,
    SHUFFLED,
    UTILITY,
    Setting,
)
from workbench.reports.papers.shuffled_dp_sgd.noise import noise_figures
from workbench.reports.papers.shuffled_dp_sgd.recovery import recovery_figures
from workbench.reports.papers.shuffled_dp_sgd.sums import sums_figure
from workbench.reports.shared.charts import ForestRow, Line, Scales, forest_chart, line_chart
from workbench.studies.report import Figure

DRAWN = (GHOST, DPSGD, SHUFFLED, SAME_CLIP, LEFT_ALONE, SAME_SIGMA)
PLACES = {"vision": "Table III", "classification": "Table IV", "generation": "Table V"}


def figures(context: Context) -> list[Figure]:
    """All figures: of the study's runs as far as there are any, and those of the paper's formulas."""
    made = [
        _same_sigma(context),
        *(_scores(context, group) for group in UTILITY),
        sums_figure(context),
    ]
    kept = [figure for figure in made if figure is not None]
    return [*kept, *noise_figures(context), *recovery_figures(context)]


def _score(group: str) -> tuple[str, str]:
    return (BLEU, "BLEU") if group == GENERATION else (ACCURACY, "test accuracy, %")


def _scores(context: Context, group: str) -> Figure | None:
    """Scores over the claimed epsilon, of the group's first model and dataset that has any."""
    score, words = _score(group)
    for model, dataset in context.measured.places(group):
        lines = []
        for variant in DRAWN:
            settings = context.measured.settings(group, model=model, dataset=dataset, variant=variant)
            budgets = sorted({one.epsilon for one in settings if one.epsilon is not None})
            own = [
                context.value(
                    group, Setting(model=model, dataset=dataset, variant=variant, epsilon=one), score
                )
                for one in budgets
            ]
            if any(value is not None for value in own):
                lines.append(Line(label=variant, x=tuple(budgets), values=tuple(own)))
        level = context.value(group, Setting(model=model, dataset=dataset, variant=NON_PRIVATE), score)
        if level is not None and lines:
            lines.append(Line(label=NON_PRIVATE, x=(), values=(level,)))
        if lines:
            return line_chart(
                f"scores-{group}",
                f"Score over the claimed epsilon: in the place of {model} on {dataset}",
                lines,
                Scales(x_name="claimed epsilon", y_name=words),
                spread=context.interval,
                note=(
                    "Each line's epsilon is by its own accountant: Renyi DP (Ghost), certified bounds "
                    "(DPSGD), Theorem 6 (the others); DPSGD at the same sigma stands at the epsilon that "
                    "Theorem 6 claims for its noise with shuffling, and its certified one is another."
                ),
                place=PLACES[group],
            )
    return None


def _same_sigma(context: Context) -> Figure | None:
    """Shuffled DPSGD less DP-SGD at the same sigma, a row each setting."""
    rows = []
    for group in UTILITY:
        score, words = _score(group)
        for one in context.measured.settings(group, variant=SHUFFLED):
            same = Setting(model=one.model, dataset=one.dataset, variant=SAME_SIGMA, epsilon=one.epsilon)
            found = less(context, group, one, same, score)
            if not isinstance(found, str):
                name = f"{one.model}, {one.dataset}, epsilon {one.epsilon:g} ({words.partition(',')[0]})"
                rows.append(ForestRow(label=name, difference=context.mean(found)))
    if not rows:
        return None
    return forest_chart(
        "same-sigma-differences",
        "Shuffled DPSGD less DP-SGD at the same sigma",
        rows,
        x_name="points",
        spread=context.interval,
        note="Paired over seeds; to the right, the shuffled is better. DP-SGD has no batch clip c' there.",
    )

"""What Theorem 6's sigma is worth: Shuffled DPSGD beside DP-SGD with the very same noise.

The permutations leave the network's function as it is, and of DP-SGD at a sigma a certified accountant says
what it promises. DP-SGD here has no batch clip c': a difference between the two is that clip's, and the luck
of the noise, not the permutations' (twins with one clip and one noise stand in Table II).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from workbench.reports.papers.shuffled_dp_sgd.cells import (
    Context,
    certified,
    less,
    paired_cell,
    scale_notes,
    span,
)
from workbench.reports.papers.shuffled_dp_sgd.layout import (
    ACCURACY,
    BLEU,
    DPSGD,
    GENERATION,
    GHOST,
    SAME_CLIP,
    SAME_SIGMA,
    SHUFFLED,
    UTILITY,
    Setting,
    number_of,
    used_noise,
)
from workbench.reports.shared.beside import NOT_IN_PAPER
from workbench.reports.shared.paper_cells import Row, blank
from workbench.reports.shared.statistics import Sample, mean_interval
from workbench.studies.experiments import Outcome
from workbench.studies.report import Cell, Table, Value

SIGMA, SIGMA_0 = "sigma / c", "sigma_0 / c (Theorem 1)"
RDP_SIGMA, CERTIFIED_SIGMA = "Ghost's sigma / c (RDP)", "DPSGD's sigma / c (certified)"
CERTIFIED_EPSILON = "epsilon of sigma (certified)"
CLIPS = "c' / c"
LESS, WITHIN = "Shuffled DPSGD less DPSGD at the same sigma", "equal within"
CLIP_LESS = "Shuffled DPSGD, c' = c, less the same"
COLUMNS = (SIGMA, CLIPS, SIGMA_0, RDP_SIGMA, CERTIFIED_SIGMA, CERTIFIED_EPSILON, LESS, WITHIN, CLIP_LESS)


def same_sigma_table(context: Context) -> Table | None:
    """Noise, its certified epsilon, and the scores with and without shuffling; None without such runs."""
    measured = context.measured
    rows: list[Row] = []
    for group in UTILITY:
        for model, dataset in measured.places(group):
            for epsilon in measured.epsilons(group):
                place = Setting(model=model, dataset=dataset, epsilon=epsilon)
                if any(measured.runs(group, _of(place, name)) for name in (SHUFFLED, SAME_SIGMA)):
                    rows.append(((model, dataset, f"{epsilon:g}"), _cells(context, group, place)))
    if not rows:
        return None
    return Table(
        id="same-sigma",
        title="What Theorem 6's sigma is worth: its epsilon as DP-SGD, and how the two score",
        row_headers=("in the place of", "on", "claimed epsilon"),
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(
            *key_sentences(context),
            "sigma and sigma_0 are over the clip c: sigma by Theorem 6 with Theorems 2 and 1 (accountant "
            "shuffled_dp_sgd), sigma_0 by the same at d = 1, Ghost's by Renyi DP (dp_accounting_rdp), "
            "DPSGD's by the bench's certified accountant.",
            "Epsilon of sigma: of DP-SGD with this sigma, q, T and delta under adding or removing one "
            "record, by the certified accountant; brackets are its two ends, which hold for certain, not "
            "with a confidence. The clip c' takes no two sums further apart, and shuffling follows the "
            "noise: neither can raise it; that shuffling lowers it to the claimed epsilon is what Theorem 6 "
            "claims.",
            f"Less: points of test accuracy ({BLEU.upper()} for text generation), paired over seeds, with "
            f"the {context.interval}. Equal within: the smallest margin within which the two are shown to "
            f"be equally good, by two one-sided t tests at level {context.level}. Shuffled DPSGD with c' = c "
            "has a sigma of its own, which is not shown, and is held to the same runs.",
            *_fallen(context),
            "Whether Theorem 6 holds is no matter of a study: `workbench claims shuffled_dp_sgd` holds it "
            "and Algorithm 1 to exact small cases and to attacks, and gives the verdicts.",
            *scale_notes(context, UTILITY),
        ),
        decimals=dict.fromkeys(COLUMNS, 3)
        | dict.fromkeys((CLIPS, CERTIFIED_EPSILON), 2)
        | dict.fromkeys((LESS, WITHIN, CLIP_LESS), 2),
    )


def _fallen(context: Context) -> list[str]:
    """How many runs fell back to DP-SGD; nothing where none did."""
    runs = [
        one
        for group in UTILITY
        for variant in (SHUFFLED, SAME_SIGMA, SAME_CLIP)
        for one in context.measured.done(group, Setting(variant=variant))
        if number_of(one, "falls_back") > 0.0
    ]
    if not runs:
        return []
    return [
        f"In {len(runs)} runs sigma was not below sigma_0, so that they fell back to DP-SGD with sigma_0 "
        "(Algorithm 1, line 11): that is the sigma shown."
    ]


def _of(place: Setting, variant: str) -> Setting:
    return Setting(model=place.model, dataset=place.dataset, variant=variant, epsilon=place.epsilon)


def _cells(context: Context, group: str, place: Setting) -> tuple[Cell, ...]:
    score = BLEU if group == GENERATION else ACCURACY
    sides = {name: _of(place, name) for name in (SHUFFLED, SAME_SIGMA, SAME_CLIP, GHOST, DPSGD)}
    found = {name: context.measured.done(group, setting) for name, setting in sides.items()}
    missing = {name: context.measured.missing(group, setting) for name, setting in sides.items()}
    shuffled = found[SHUFFLED] or found[SAME_SIGMA]
    accuracy = less(context, group, sides[SHUFFLED], sides[SAME_SIGMA], score)
    return (
        _one(shuffled, used_noise, missing[SHUFFLED]),
        _one(found[SHUFFLED], _clips, missing[SHUFFLED]),
        _one(shuffled, lambda one: number_of(one, "unshuffled_noise_multiplier"), missing[SHUFFLED]),
        _one(found[GHOST], used_noise, missing[GHOST]),
        _one(found[DPSGD], used_noise, missing[DPSGD]),
        certified_cell(found[SAME_SIGMA] or found[SHUFFLED], missing[SAME_SIGMA]),
        paired_cell(context, None, accuracy),
        margin_cell(context, accuracy),
        paired_cell(context, None, less(context, group, sides[SAME_CLIP], sides[SAME_SIGMA], score)),
    )


def _clips(outcome: Outcome) -> float:
    """c' / c."""
    return number_of(outcome, "batch_clip_norm") / number_of(outcome, "l2_clip_norm")


def _one(runs: Sequence[Outcome], of: Callable[[Outcome], float], why: str) -> Cell:
    """A setting that all runs share; a mean would be another one."""
    values = {of(one) for one in runs}
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return blank(None, why if not runs else "the run has no such number")
    if len(known) == 1:
        return Cell(ours=Value(estimate=known[0]))
    return Cell(ours=Value(estimate=known[0], text=span(known)))


def certified_cell(runs: Sequence[Outcome], why: str) -> Cell:
    """The certified epsilon of runs at one noise: the largest upper end."""
    bounds = [certified(one) for one in runs]
    known = [one for one in bounds if not isinstance(one, str)]
    if not known:
        return blank(None, next((one for one in bounds if isinstance(one, str)), why))
    upper = max(one.upper for one in known)
    lower = min(one.lower for one in known)
    return Cell(ours=Value(estimate=upper, lower=lower, upper=upper), why_blank=NOT_IN_PAPER)


def margin_cell(context: Context, found: Sample | str) -> Cell:
    """The farther end of the interval of twice the tests' level."""
    if isinstance(found, str):
        return blank(None, found)
    if context.confidence <= 0.75:
        return blank(None, "two tests at such a level show nothing")
    both = mean_interval(found, confidence=2.0 * context.confidence - 1.0)
    if both.lower is None or both.upper is None:
        return blank(None, both.why)
    return Cell(ours=Value(estimate=max(-both.lower, both.upper), n=found.values.size))


def key_sentences(context: Context) -> list[str]:
    """What a reader should take away, with our numbers: the epsilons of sigma, and what shuffling changes."""
    measured = context.measured
    lines = []
    for epsilon in measured.epsilons(UTILITY):
        runs = [
            one
            for group in UTILITY
            for one in (
                measured.done(group, Setting(variant=SAME_SIGMA, epsilon=epsilon))
                or measured.done(group, Setting(variant=SHUFFLED, epsilon=epsilon))
            )
        ]
        bounds = [found for found in map(certified, runs) if not isinstance(found, str)]
        if bounds:
            worth = span(one.upper for one in bounds)
            lines.append(f"claimed {epsilon:g}, certified {worth}")
    if not lines:
        return []
    said = (
        "Where Theorem 6 claims an epsilon, its sigma is that of DP-SGD at another one, by a certified "
        f"accountant: {'; '.join(lines)}."
    )
    return [said, *_differences_said(context)]


def _differences_said(context: Context) -> list[str]:
    """How many paired differences to DP-SGD at the same sigma an interval tells from zero."""
    intervals, means = [], []
    for group in UTILITY:
        score = BLEU if group == GENERATION else ACCURACY
        for one in context.measured.settings(group, variant=SHUFFLED):
            found = less(context, group, one, _of(one, SAME_SIGMA), score)
            if not isinstance(found, str):
                means.append(float(found.values.mean()))
                intervals.append(mean_interval(found, confidence=context.confidence))
    if not means:
        return []
    known = [one for one in intervals if one.lower is not None and one.upper is not None]
    apart = sum(not one.lower <= 0.0 <= one.upper for one in known)  # type: ignore[operator]
    settings = f"{len(means)} setting{'' if len(means) == 1 else 's'}"
    return [
        f"Shuffled DPSGD less DP-SGD at the same sigma is {span(means)} points (of accuracy, or BLEU) in "
        f"{settings}; {apart} of {len(known)} intervals ({context.percent}) exclude 0, not corrected for "
        "their number. DP-SGD has no batch clip c' there, and noise of its own: the difference is theirs, as "
        "permutations alone change no output but by rounding (Table II)."
    ]

"""RLDP, regenerated: its tables and figures beside the printed numbers, and what its conclusions ask.

What they ask that is no plain comparison: drops, dials, the ledger, the ablation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.registry import register
from workbench.reports.papers.rldp.paper import CHECKS, PRINTED, REMARKS, similarity, valid
from workbench.reports.papers.rldp.runs import (
    ABLATION,
    BASELINES,
    CURVE,
    EXPOSURE,
    FINAL,
    INSERTIONS,
    LEDGER,
    MODELS,
    NOISE,
    NUMBERS,
    OURS,
    RADIUS,
    STEPS,
    curves,
    drop,
    fall,
    matches,
    rise,
    setting,
    variants,
    widening,
)
from workbench.reports.papers.rldp.tables import (
    CELLS,
    FACTS,
    ROWS,
    TABLES,
    WORDS,
    knob_column,
    knob_settings,
    places,
)
from workbench.reports.shared.claims import comparisons, ends_of
from workbench.reports.shared.conditions import Asked, asked, less, seen, untestable, varies_less
from workbench.reports.shared.context import Bindings, Context, PaperFunctions, Quantity
from workbench.reports.shared.drawing.charts import ForestRow, Line, Scales, forest_chart, line_chart
from workbench.reports.shared.findings import parameter
from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import NOT_HERE, Setting
from workbench.reports.shared.printed import SLACK, said, stands_for
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import Outcome, StudyResults
from workbench.studies.report import Figure, StudyReport, Value

MOST_LINES = 8
"""That a chart can hold."""

POINTS = 60
"""Most steps of a trace that are drawn."""

DIALS = {RADIUS: "radius", NOISE: "sigma"}


def figures(context: Context) -> list[Figure]:
    """Figs. 1 to 4 (a chart a budget), 5 to 8 (radius and noise), drops, and insertions."""
    made = [_drops(context)]
    for place, model in enumerate(context.declared.list("$models"), start=1):
        budgets = context.outcomes.values(MODELS, "epsilon", Setting.of(stands_for=model))
        made += [_curves(context, {"stands_for": model, "epsilon": epsilon}, place) for epsilon in budgets]
        made += [_dials_drawn(context, model, budgets, place + 4, name) for name in DIALS]
    made += _insertions(context)
    return [figure for figure in made if figure is not None]


def _line(context: Context, label: str, samples: Mapping[float, Sample]) -> Line | None:
    if not samples:
        return None
    return Line(
        label=label, x=tuple(samples), values=tuple(context.mean(sample) for sample in samples.values())
    )


def _curves(context: Context, at: Bindings, place: int) -> Figure | None:
    """Held-out perplexity over steps: both forms of RLDP, the lowest baselines, training without noise."""
    samples = {name: context.outcomes.sample(MODELS, setting(context, at, name), FINAL) for name in BASELINES}
    ends = {name: sample.values.mean() for name, sample in samples.items() if sample is not None}
    chosen = sorted(ends, key=lambda name: ends[name])[: MOST_LINES - len(OURS) - 1]
    drawn = [
        _line(context, name, curves(context, setting(context, at, name), CURVE, STEPS))
        for name in (*OURS, *chosen, "Non-private")
    ]
    lines = [line for line in drawn if line is not None]
    if not lines:
        return None
    words = context.declared.content["figures"]["curves"]
    left = [name for name in ends if name not in chosen]
    return line_chart(
        f"figure-{place}-epsilon-{at['epsilon']:g}".replace(".", "-"),
        context.render(words["title"], **at),
        lines,
        Scales(x_name="step", y_name="perplexity", log_x=False, log_y=True),
        spread=context.interval,
        note=context.render(words["note"], left=left),
        place=f"Figure {place}",
    )


def _dials_drawn(context: Context, model: str, budgets: list[float], place: int, name: str) -> Figure | None:
    """Mean radius or noise multiplier over steps, a line a budget, of the form that decides rarely."""
    words = context.declared.content["figures"][DIALS[name]]
    for form in OURS:
        drawn = [
            _line(
                context,
                f"epsilon {epsilon:g}",
                _thinned(curves(context, Setting.of(stands_for=model, epsilon=epsilon, method=form), name)),
            )
            for epsilon in budgets[:MOST_LINES]
        ]
        lines = [line for line in drawn if line is not None]
        if lines:
            return line_chart(
                f"figure-{place}-{DIALS[name]}",
                context.render(words["title"], form=form, model=model),
                lines,
                Scales(x_name="step", y_name=DIALS[name], log_x=False),
                spread=context.interval,
                note=words["note"],
                place=f"Figure {place}",
            )
    return None


def _thinned(samples: Mapping[float, Sample]) -> dict[float, Sample]:
    """At most `POINTS` steps, the first and the last among them."""
    steps = list(samples)
    kept = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    return {steps[place]: samples[steps[place]] for place in kept} if steps else {}


def _drops(context: Context) -> Figure | None:
    """RLDP's drop below the best baseline, a row each setting."""
    drops = {f"{at['stands_for']}, epsilon {at['epsilon']:g}": drop(context, at) for at in places(context)}
    rows = [
        ForestRow(label=label, difference=context.mean(sample))
        for label, sample in drops.items()
        if not isinstance(sample, str)
    ]
    if not rows:
        return None
    words = context.declared.content["figures"]["drops"]
    return forest_chart(
        "drops", words["title"], rows, x_name="percent", spread=context.interval, note=words["note"]
    )


def _insertions(context: Context) -> list[Figure]:
    """Exposure, exact matches and similarities over the number of insertions, beside chance."""
    made = []
    words = context.declared.content["figures"]["insertions"]
    for identifier, name, chance, of_continuations, title in (
        ("exposure", EXPOSURE, "attack_chance_exposure", False, "exposure, bits"),
        ("matches", "attack_exact_matches", "attack_chance_exact_matches", False, "exact matches"),
        ("similarity-1", "attack_jaccard_1", "attack_chance_jaccard_1", True, "similarity of 1-grams"),
        ("similarity-4", "attack_jaccard_4", "attack_chance_jaccard_4", True, "similarity of 4-grams"),
    ):
        lines = []
        for method in context.outcomes.values(INSERTIONS, "method"):
            counts = context.outcomes.values(INSERTIONS, "insertions", Setting.of(method=method))
            mine = [Setting.of(method=method, insertions=count) for count in counts]
            x = tuple(map(float, counts))
            values = tuple(context.value(INSERTIONS, insertion_setting, name) for insertion_setting in mine)
            if any(value is not None for value in values):
                lines.append(Line(label=method, x=x, values=values))
            levels = (
                tuple(_chance(context, chance, insertion_setting) for insertion_setting in mine)
                if of_continuations
                else ()
            )
            if any(level is not None for level in levels):
                lines.append(Line(label=f"chance, {method}", x=x, values=levels))
        if not lines:
            continue
        level = None if of_continuations else _chance(context, chance, Setting())
        if level is not None:
            lines.append(Line(label="chance", x=(), values=(level,)))
        made.append(
            line_chart(
                f"insertions-{identifier}",
                context.render(words["title"], what=title),
                lines,
                Scales(x_name="insertions", y_name=title),
                spread=context.render(words["spread"]),
                note=context.render(words["note"], of_continuations=of_continuations),
            )
        )
    return made


def _chance(context: Context, name: str, place: Setting) -> Value | None:
    """Mean of the chance levels over runs of the insertions, with the mean ends of their ranges."""
    samples = [context.outcomes.sample(INSERTIONS, place, f"{name}{end}") for end in ("", "_low", "_high")]
    level, low, high = (None if sample is None else float(sample.values.mean()) for sample in samples)
    if level is None or samples[0] is None:
        return None
    return Value(estimate=level, lower=low, upper=high, n=samples[0].values.size)


PASSED = 0.2 * 0.1
"""Share of `1 - spent / budget` by which one decision can change log sigma: each moves it by at most
0.1 |1 - spent / budget|, of which smoothing lets a fifth through (Khadangi et al. 2025, Eqs. 11 to 14)."""


def _logs(context: Context, at: Bindings) -> Sample | str:
    """Logarithms of final perplexities, percent."""
    sample = context.outcomes.complete(MODELS, setting(context, at, at["method"]), FINAL)
    return _changed(sample, lambda values: 100.0 * np.log(values))


def _from_half(context: Context, at: Bindings) -> Sample | str:
    """How far AUCs are from one half."""
    sample = context.outcomes.complete(MODELS, setting(context, at, at["method"]), "roc_auc")
    return _changed(sample, lambda values: np.abs(values - 0.5))


def _changed(sample: Sample | str, change: Callable[[np.ndarray], np.ndarray]) -> Sample | str:
    return sample if isinstance(sample, str) else Sample(change(sample.values), sample.units, sample.unit)


def _with_bar(context: Context, at: Bindings) -> list[Setting]:
    """The settings of a method and of all baselines that are its bar."""
    return [setting(context, at, name) for name in (at["methods"][0], *variants(context, at["others"]))]


def _is_elsewhere(context: Context, at: Bindings) -> bool:
    return not context.outcomes.runs(MODELS, setting(context, at, at["methods"][0]))


def _drop(context: Context, at: Bindings) -> Sample | str:
    """The drop below the best baseline."""
    sample = drop(context, at, at["methods"][0], variants(context, at["others"]))
    return NOT_HERE if _is_elsewhere(context, at) else sample


def _share(context: Context, at: Bindings) -> Sample | str:
    """The share of the steps to the bar."""
    matched = matches(context, at, at["methods"][0], variants(context, at["others"]))
    return (
        NOT_HERE if _is_elsewhere(context, at) else matched.why if matched.sample is None else matched.sample
    )


QUANTITIES = {
    "log perplexity": Quantity(of=_logs),
    "from half": Quantity(of=_from_half),
    "drop": Quantity(of=_drop, settings=_with_bar),
    "share": Quantity(of=_share, settings=_with_bar),
}


def _varies_less(context: Context, claim: QualitativeClaim) -> list[Asked]:
    test = context.declared.content["test"][claim.test]
    questions = []
    for comparison in comparisons(claim, test, context.declared):
        sides = [setting(context, at, at["method"]) for at in comparison.places]
        samples = [context.outcomes.complete(MODELS, side, FINAL) for side in sides]
        made = varies_less(context.render(test["where"], **comparison.names), samples[0], samples[1])
        questions.append(Asked(made, not_run=context.outcomes.is_awaited(MODELS, *sides)))
    return questions


def _ledger(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """Every run's own ledger at the end is at most its budget, and not far below."""
    below, test = parameter(claim, "below"), context.declared.content["test"][claim.test]
    questions = []
    for comparison in comparisons(claim, test, context.declared):
        place, budget = (
            setting(context, comparison.names, comparison.names["method"]),
            comparison.names["epsilon"],
        )
        waits = context.outcomes.is_awaited(MODELS, place)
        name = context.render(test["where"], **comparison.names)
        sample = context.outcomes.complete(MODELS, place, LEDGER)
        if isinstance(sample, str):
            questions.append(Asked(untestable(name, sample), not_run=waits))
            continue
        spent = [float(run.metrics.get(LEDGER, math.nan)) for run in context.outcomes.runs(MODELS, place)]
        holds = all(budget - below <= value <= budget * (1.0 + 1e-6) for value in spent)
        text = f"{number(min(spent), 4)} to {number(max(spent), 4)}"
        questions.append(Asked(seen(name, text, holds, len(spent)), not_run=waits))
    return questions


def decisions(outcome: Outcome) -> list[int] | None:
    """Steps after which a run decided, counted from 1 (Algorithm 1, line 20); None where it does not say."""
    given = outcome.experiment.mechanism_parameters
    interval, warm_up = given.get("decision_interval"), given.get("warm_up")
    if not isinstance(interval, int) or not isinstance(warm_up, int) or interval < 1:
        return None
    return [step for step in range(interval, outcome.experiment.steps + 1, interval) if step > warm_up]


def largest_fall(outcome: Outcome) -> float:
    """Percent by which the noise could fall at most, by the ledger that the run had; infinite if unknown.

    A run that lowers its noise spends more, so that within the budget its steps are smaller than these.
    """
    decision_steps, ledger = decisions(outcome), outcome.traces.get(LEDGER, ())
    budget = outcome.experiment.epsilon
    if decision_steps is None or not ledger or not budget:
        return math.inf
    turned = (abs(1.0 - ledger[step - 1] / budget) for step in decision_steps if step <= len(ledger))
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
        most = max(largest_fall(run) for run in runs)
        return f"its decisions can lower sigma by {most:.2g} % at most" if most < low else ""
    for run in runs:
        decision_steps = decisions(run)
        # A decision after a step shows in the next one.
        if decision_steps is None or any(
            step < round(share * run.experiment.steps) for step in decision_steps
        ):
            return ""
    return f"no decision is made within the first {100.0 * share:g} % of the steps"


def _dials(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """What a schedule did, in each setting; not tested where no run could have done it."""
    test = context.declared.content["test"][claim.test]
    share = float(claim.parameters.get("percent", 0.0)) / 100.0
    dials: Mapping[str, Callable[[Outcome], float]] = {
        "noise rises": partial(rise, share=share),
        "noise falls": fall,
        "radii widen": partial(widening, share=share),
    }
    ends, questions = ends_of(claim, test), []
    for comparison in comparisons(claim, test, context.declared):
        place = setting(context, comparison.names, comparison.names["method"])
        why = out_of_reach(claim.test, context.outcomes.done(MODELS, place), share=share, low=ends.low)
        sample = context.outcomes.complete(MODELS, place, dials[claim.test])
        questions.append(
            asked(
                context.render(test["where"], **comparison.names),
                why if why and isinstance(sample, Sample) else sample,
                ends,
                context.confidence,
                not_run=context.outcomes.is_awaited(MODELS, place),
                measure=test["measure"],
            )
        )
    return questions


def ablation_model(context: Context, epsilon: float) -> str | None:
    """The model of the tables whose runs have the ablation's base and budget; None where there is none."""
    trained = {*context.outcomes.values(ABLATION, "trained")}
    for model in context.declared.list("$models"):
        place = Setting.of(stands_for=model)
        budgets, bases = (context.outcomes.values(MODELS, name, place) for name in ("epsilon", "trained"))
        if epsilon in budgets and trained & {*bases}:
            return str(model)
    return None


def _ablation(context: Context, knob: str, epsilon: float, value: float) -> Setting:
    return Setting.of(knob=knob, epsilon=epsilon, **{knob_column(knob): value})


def _ablation_less(
    context: Context, claim: QualitativeClaim, where: str, first: Setting, second: tuple[str, Setting]
) -> Asked:
    """The logarithm of an ablation's perplexities less that of others."""
    sides = [(ABLATION, first), second]
    samples = [
        _changed(context.outcomes.complete(*side, FINAL), lambda values: 100.0 * np.log(values))
        for side in sides
    ]
    return asked(
        where,
        less(*samples),
        ends_of(claim, context.declared.content["test"][claim.test]),
        context.confidence,
        not_run=any(context.outcomes.is_awaited(*side) for side in sides),
        measure=" % (log)",
    )


def _every_configuration(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """Each configuration of the ablation against each baseline of the same model and budget."""
    questions = []
    for knob in context.outcomes.values(ABLATION, "knob"):
        for epsilon, value in knob_settings(context, knob):
            model, name = ablation_model(context, epsilon), f"{knob} {value:g}, epsilon {epsilon:g}"
            if model is None:
                why = "no baseline was trained with the ablation's model and budget"
                questions.append(Asked(untestable(name, why)))
                continue
            mine = _ablation(context, knob, epsilon, value)
            for other in BASELINES:
                theirs = Setting.of(stands_for=model, epsilon=epsilon, method=other)
                where = f"{name}, against {other}"
                questions.append(_ablation_less(context, claim, where, mine, (MODELS, theirs)))
    return questions


def _short_interval(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """Each short interval against the longest."""
    share, questions = parameter(claim, "most") / parameter(claim, "of"), []
    settings = knob_settings(context, "interval")
    longest = max((value for _, value in settings), default=0.0)
    for epsilon, value in settings:
        if value < longest and value <= share * longest:
            where = f"interval {value:g} less {longest:g}, epsilon {epsilon:g}"
            mine, theirs = (_ablation(context, "interval", epsilon, length) for length in (value, longest))
            questions.append(_ablation_less(context, claim, where, mine, (ABLATION, theirs)))
    return questions


def _not_measured(context: Context, claim: QualitativeClaim) -> list[Asked]:
    return [Asked(untestable("time and energy", "no study measures them: they are of the paper's card"))]


QUESTIONS = {
    "varies less": _varies_less,
    "ledger": _ledger,
    "noise rises": _dials,
    "noise falls": _dials,
    "radii widen": _dials,
    "every configuration": _every_configuration,
    "short interval": _short_interval,
    "not measured": _not_measured,
}


# Conclusions whose cells are no comparison of numbers


def _settings(claim: QualitativeClaim) -> Iterator[tuple[str, str]]:
    for model in claim.parameters["models"]:
        for budget in claim.parameters["budgets"]:
            yield model, f"{budget:g}"


def _at_most_the_largest(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[str]:
    for n, (model, budget) in itertools.product(claim.parameters["n"], list(_settings(claim))):
        theirs = [similarity(paper, n, model, budget, name) for name in claim.parameters["others"]]
        most = max(theirs, key=lambda cell: cell.value)
        for name in claim.parameters["methods"]:
            ours = similarity(paper, n, model, budget, name)
            above = stands_for(ours).lower >= stands_for(most).upper - SLACK
            text = f"Table {5 + n}, {model}, epsilon {budget}: {name} {ours.printed}, largest {most.printed}"
            yield text if above else ""


def _alike(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[str]:
    generated = said(paper, "section 3.3", "generations").value
    allowed = claim.parameters["percent"] / 100.0 * generated
    names = [*claim.parameters["methods"], *claim.parameters["others"]]
    for model, budget in _settings(claim):
        counts = [valid(paper, 1, model, budget, name).value for name in names]
        text = f"{model}, epsilon {budget}: {min(counts):g} to {max(counts):g}"
        yield text if max(counts) - min(counts) > allowed + 1.0 else ""


AGAINST = {"at most the largest": _at_most_the_largest, "alike": _alike}


RLDP = PaperFunctions(
    paper="rldp",
    numbers=NUMBERS,
    quantities=QUANTITIES,
    printed=PRINTED,
    rows=ROWS,
    cells=CELLS,
    facts=FACTS,
    tables=TABLES,
    words=WORDS,
    questions=QUESTIONS,
    against=AGAINST,
    checks=CHECKS,
    remarks=REMARKS,
    figures=figures,
)


@register("study_report", "rldp")
def rldp(
    *,
    results: StudyResults,
    published: PublishedPaper | None,
    confidence: float = 0.95,
    only_findings: bool = False,
) -> StudyReport:
    """Tables, figures and conclusions of RLDP and its baselines over seeds."""
    return study_report(
        RLDP, results=results, published=published, confidence=confidence, only_findings=only_findings
    )

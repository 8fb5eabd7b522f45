"""What each kind of RLDP's conclusions asks of a study: a list of conditions, all said to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from workbench.checks.published import QualitativeClaim
from workbench.reports.papers.ferret.conditions import untestable
from workbench.reports.papers.rldp.cells import Context
from workbench.reports.papers.rldp.conditions import all_of, any_of, asked, less, seen, varies_less
from workbench.reports.papers.rldp.layout import (
    ABLATION,
    AUC,
    BASELINES,
    FINAL,
    LEDGER,
    PARTS,
    RLDP,
    VALID_SHARE,
    Setting,
    group_of_model,
    jaccard,
    number_of,
)
from workbench.reports.papers.rldp.more_tables import (
    ablation_budgets,
    ablation_place,
    knob_setting,
    knob_values,
)
from workbench.reports.papers.rldp.privacy import fall, rise, widening
from workbench.reports.papers.rldp.reach import out_of_reach
from workbench.reports.papers.rldp.utility import mean_over
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_conditions import Ends
from workbench.reports.shared.paper_findings import Asked, listed, parameter
from workbench.reports.shared.paper_samples import NOT_HERE, UNIT
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome, Status

SLACK_PERCENT = 0.5
"""Percent of perplexity: "lower" is shown not to hold where it is shown not to be lower by even this."""

MARGIN_AUC = 0.01
"""An AUC is "at most" another where it is shown to be above it by less than this."""

Where = tuple[str, str, float]
"""Group, the paper's model, epsilon."""


def settings(claim: QualitativeClaim) -> Iterator[Where]:
    """The settings that a conclusion is about."""
    for model in listed(claim, "models"):
        for epsilon in listed(claim, "budgets"):
            yield group_of_model(model), model, float(epsilon)


def variants(names: Sequence[str]) -> list[str]:
    """Variants of ours behind the paper's names: DC-SGD is two."""
    return [one for name in names for one in (PARTS[name] if name != RLDP and name in PARTS else (name,))]


def _logs(context: Context, group: str, setting: Setting) -> Sample | str:
    """Logarithms of final perplexities, percent."""
    found = context.measured.complete(group, setting, FINAL)
    return found if isinstance(found, str) else Sample(100.0 * np.log(found.values), found.units, UNIT)


def _named(where: Where, text: str) -> str:
    return f"{where[1]}, epsilon {where[2]:g}, {text}"


def _waits(context: Context, group: str, *asked_for: Setting) -> bool:
    return any(context.measured.is_awaited(group, setting) for setting in asked_for)


def _lower(context: Context, claim: QualitativeClaim) -> list[Asked]:
    found = []
    for where in settings(claim):
        for method in listed(claim, "methods"):
            for other in variants(listed(claim, "others")):
                sides = [Setting(variant=name, epsilon=where[2]) for name in (method, other)]
                found.append(
                    asked(
                        _named(where, f"{method} against {other}"),
                        less(*(_logs(context, where[0], side) for side in sides)),
                        Ends(high=0.0, slack=SLACK_PERCENT),
                        context.confidence,
                        not_run=_waits(context, where[0], *sides),
                        measure=" % (log)",
                    )
                )
    return found


def _drop(context: Context, claim: QualitativeClaim, where: Where) -> tuple[Sample | str, bool]:
    """The drop below the best baseline, and whether a run of it is not made yet."""
    group, _, epsilon = where
    methods = listed(claim, "methods")
    names = variants(listed(claim, "others"))
    sample = context.measured.drop(group, epsilon, methods[0], names)
    if not context.measured.runs(group, Setting(variant=methods[0], epsilon=epsilon)):
        return NOT_HERE, False
    waits = _waits(context, group, *(Setting(variant=name, epsilon=epsilon) for name in (methods[0], *names)))
    return sample, waits


def _mean_gain(context: Context, claim: QualitativeClaim) -> list[Asked]:
    return [_over_settings(context, claim, "drop", Ends(low=0.0, slack=SLACK_PERCENT))]


def _mean_steps(context: Context, claim: QualitativeClaim) -> list[Asked]:
    return [_over_settings(context, claim, "steps", Ends(high=parameter(claim, "percent")))]


def _over_settings(context: Context, claim: QualitativeClaim, what: str, ends: Ends) -> Asked:
    """The mean over all settings that this profile has, a value a seed."""
    of = _drop if what == "drop" else _share
    found = {where: of(context, claim, where) for where in settings(claim)}
    here = {where: one for where, one in found.items() if one[0] != NOT_HERE}
    words = f"mean over {len(here)} of {len(found)} settings"
    if not here:
        return Asked(untestable(words, NOT_HERE))
    waits = any(one[1] for one in here.values())
    lost = [sample for sample, _ in here.values() if isinstance(sample, str)]
    samples = [sample for sample, _ in here.values() if isinstance(sample, Sample)]
    sample = lost[0] if lost else mean_over(samples)
    return asked(words, sample, ends, context.confidence, not_run=waits, measure=" %")


def _share(context: Context, claim: QualitativeClaim, where: Where) -> tuple[Sample | str, bool]:
    """The share of the steps to the bar, and whether a run of it is not made yet."""
    group, _, epsilon = where
    method, names = listed(claim, "methods")[0], variants(listed(claim, "others"))
    if not context.measured.runs(group, Setting(variant=method, epsilon=epsilon)):
        return NOT_HERE, False
    found = context.measured.matches(group, epsilon, method, names)
    waits = _waits(context, group, *(Setting(variant=name, epsilon=epsilon) for name in (method, *names)))
    return (found.why if found.sample is None else found.sample), waits


def _gain_in_range(context: Context, claim: QualitativeClaim) -> list[Asked]:
    ends = Ends(low=parameter(claim, "low"), high=parameter(claim, "high"))
    return _each(context, claim, _drop, ends)


def _steps_at_most(context: Context, claim: QualitativeClaim) -> list[Asked]:
    return _each(context, claim, _share, Ends(high=parameter(claim, "percent")))


def _each(
    context: Context,
    claim: QualitativeClaim,
    of: Callable[[Context, QualitativeClaim, Where], tuple[Sample | str, bool]],
    ends: Ends,
) -> list[Asked]:
    found = []
    for where in settings(claim):
        sample, waits = of(context, claim, where)
        found.append(
            asked(
                _named(where, str(listed(claim, "methods")[0])),
                sample,
                ends,
                context.confidence,
                not_run=waits,
                measure=" %",
            )
        )
    return found


def _gain_larger(context: Context, claim: QualitativeClaim) -> list[Asked]:
    first, second = (float(epsilon) for epsilon in listed(claim, "budgets"))
    found = []
    for model in listed(claim, "models"):
        group = group_of_model(model)
        sides = [_drop(context, claim, (group, model, epsilon)) for epsilon in (first, second)]
        found.append(
            asked(
                f"{model}, drop at epsilon {first:g} less that at {second:g}",
                less(sides[0][0], sides[1][0]),
                Ends(low=0.0, slack=SLACK_PERCENT),
                context.confidence,
                not_run=sides[0][1] or sides[1][1],
                measure=" points",
            )
        )
    return found


def _varies_less(context: Context, claim: QualitativeClaim) -> list[Asked]:
    found = []
    for where in settings(claim):
        for method in listed(claim, "methods"):
            for other in variants(listed(claim, "others")):
                sides = [Setting(variant=name, epsilon=where[2]) for name in (method, other)]
                samples = [context.measured.complete(where[0], side, FINAL) for side in sides]
                made = varies_less(_named(where, f"{method} against {other}"), samples[0], samples[1])
                found.append(Asked(made, not_run=_waits(context, where[0], *sides)))
    return found


def _ledger(context: Context, claim: QualitativeClaim) -> list[Asked]:
    below, found = parameter(claim, "below"), []
    for where in settings(claim):
        for method in listed(claim, "methods"):
            setting = Setting(variant=method, epsilon=where[2])
            runs = context.measured.runs(where[0], setting)
            sample = context.measured.complete(where[0], setting, LEDGER)
            waits = any(one.status is Status.MISSING for one in runs)
            name = _named(where, method)
            if isinstance(sample, str):
                found.append(Asked(untestable(name, sample), not_run=waits))
                continue
            spent = [number_of(one, LEDGER) for one in runs]
            holds = all(where[2] - below <= value <= where[2] * (1.0 + 1e-6) for value in spent)
            text = f"{number(min(spent), 4)} to {number(max(spent), 4)}"
            found.append(Asked(seen(name, text, holds, len(spent)), not_run=waits))
    return found


def _areas(context: Context, claim: QualitativeClaim, ends: Ends, *, from_half: bool) -> list[Asked]:
    found = []
    for where in settings(claim):
        for method in listed(claim, "methods"):
            for other in variants(listed(claim, "others")):
                sides = [Setting(variant=name, epsilon=where[2]) for name in (method, other)]
                samples = [context.measured.complete(where[0], side, AUC) for side in sides]
                if from_half:
                    samples = [
                        one if isinstance(one, str) else Sample(np.abs(one.values - 0.5), one.units, UNIT)
                        for one in samples
                    ]
                found.append(
                    asked(
                        _named(where, f"{method} less {other}"),
                        less(samples[0], samples[1]),
                        ends,
                        context.confidence,
                        not_run=_waits(context, where[0], *sides),
                        measure="",
                    )
                )
    return found


def _area_at_most(context: Context, claim: QualitativeClaim) -> list[Asked]:
    return _areas(context, claim, Ends(high=MARGIN_AUC, slack=MARGIN_AUC), from_half=False)


def _area_nearer(context: Context, claim: QualitativeClaim) -> list[Asked]:
    return _areas(context, claim, Ends(high=0.0), from_half=True)


def _similarities(
    context: Context, claim: QualitativeClaim, merge: Callable[[str, Sequence[Asked]], Asked]
) -> list[Asked]:
    """A method's similarity less that of each other, merged in each setting."""
    found = []
    for n in listed(claim, "n"):
        for where in settings(claim):
            for method in listed(claim, "methods"):
                parts = []
                for other in variants(listed(claim, "others")):
                    sides = [Setting(variant=name, epsilon=where[2]) for name in (method, other)]
                    samples = [context.measured.complete(where[0], side, jaccard(n)) for side in sides]
                    parts.append(
                        asked(
                            f"less {other}",
                            less(samples[0], samples[1]),
                            Ends(high=0.0),
                            context.confidence,
                            not_run=_waits(context, where[0], *sides),
                            measure="",
                        )
                    )
                found.append(merge(_named(where, f"{method}, {n}-grams"), parts))
    return found


def _similarity_below(context: Context, claim: QualitativeClaim) -> list[Asked]:
    level, found = parameter(claim, "level"), []
    for n in listed(claim, "n"):
        for where in settings(claim):
            for method in variants(listed(claim, "methods")):
                setting = Setting(variant=method, epsilon=where[2])
                found.append(
                    asked(
                        _named(where, f"{method}, {n}-grams"),
                        context.measured.complete(where[0], setting, jaccard(n)),
                        Ends(high=level),
                        context.confidence,
                        not_run=_waits(context, where[0], setting),
                        measure="",
                    )
                )
    return found


def _alike(context: Context, claim: QualitativeClaim) -> list[Asked]:
    margin, found = parameter(claim, "percent"), []
    for where in settings(claim):
        for method in listed(claim, "methods"):
            for other in variants(listed(claim, "others")):
                sides = [Setting(variant=name, epsilon=where[2]) for name in (method, other)]
                samples = [context.measured.complete(where[0], side, VALID_SHARE) for side in sides]
                found.append(
                    asked(
                        _named(where, f"{method} less {other}"),
                        less(samples[0], samples[1]),
                        Ends(low=-margin, high=margin),
                        context.confidence,
                        not_run=_waits(context, where[0], *sides),
                        measure=" points",
                    )
                )
    return found


def _dials(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """What a schedule did, in each setting: see the tests of the controller."""
    share = parameter(claim, "percent") / 100.0 if "percent" in claim.parameters else 0.0
    known: dict[str, tuple[Callable[[Outcome], float], Ends, str]] = {
        "noise rises": (
            partial(rise, share=share),
            Ends(low=0.0, high=float(claim.parameters.get("most", 0.0))),
            "",
        ),
        "noise falls": (fall, _range(claim), " %"),
        "radii widen": (partial(widening, share=share), _range(claim), " times"),
    }
    of, ends, measure = known[claim.test]
    found = []
    for where in settings(claim):
        for method in listed(claim, "methods"):
            setting = Setting(variant=method, epsilon=where[2])
            done = context.measured.done(where[0], setting)
            why = out_of_reach(claim.test, done, share=share, low=ends.low)
            sample = context.measured.computed(where[0], setting, of)
            found.append(
                asked(
                    _named(where, method),
                    why if why and isinstance(sample, Sample) else sample,
                    ends,
                    context.confidence,
                    not_run=_waits(context, where[0], setting),
                    measure=measure,
                )
            )
    return found


def _range(claim: QualitativeClaim) -> Ends:
    return Ends(low=float(claim.parameters.get("low", 0.0)), high=float(claim.parameters.get("high", 0.0)))


def _every_configuration(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """Each configuration of the ablation against each baseline of the same model and budget."""
    found = []
    for part in context.measured.parts(ABLATION):
        for epsilon in ablation_budgets(context.measured, part):
            group = ablation_place(context.measured, epsilon)
            for value in knob_values(context.measured, part):
                mine = knob_setting(part, value, epsilon)
                name = f"{part} {value:g}, epsilon {epsilon:g}"
                if group is None:
                    why = "no baseline was trained with the ablation's model and budget"
                    found.append(Asked(untestable(name, why)))
                    continue
                for other in BASELINES:
                    theirs = Setting(variant=other, epsilon=epsilon)
                    waits = _waits(context, ABLATION, mine) or _waits(context, group, theirs)
                    found.append(
                        asked(
                            f"{name}, against {other}",
                            less(_logs(context, ABLATION, mine), _logs(context, group, theirs)),
                            Ends(high=0.0, slack=SLACK_PERCENT),
                            context.confidence,
                            not_run=waits,
                            measure=" % (log)",
                        )
                    )
    return found


def _short_interval(context: Context, claim: QualitativeClaim) -> list[Asked]:
    share = parameter(claim, "most") / parameter(claim, "of")
    values = knob_values(context.measured, "interval")
    found = []
    for epsilon in ablation_budgets(context.measured, "interval"):
        longest = knob_setting("interval", values[-1], epsilon)
        for value in values[:-1]:
            if value > share * values[-1]:
                continue
            mine = knob_setting("interval", value, epsilon)
            found.append(
                asked(
                    f"interval {value:g} less {values[-1]:g}, epsilon {epsilon:g}",
                    less(_logs(context, ABLATION, mine), _logs(context, ABLATION, longest)),
                    Ends(low=0.0, slack=SLACK_PERCENT),
                    context.confidence,
                    not_run=_waits(context, ABLATION, mine, longest),
                    measure=" % (log)",
                )
            )
    return found


def _not_measured(context: Context, claim: QualitativeClaim) -> list[Asked]:
    return [Asked(untestable("time and energy", "no study measures them: they are of the paper's card"))]


ASKED: dict[str, Callable[[Context, QualitativeClaim], list[Asked]]] = {
    "lower": _lower,
    "mean gain": _mean_gain,
    "gain in range": _gain_in_range,
    "gain larger": _gain_larger,
    "steps at most": _steps_at_most,
    "mean steps at most": _mean_steps,
    "varies less": _varies_less,
    "area at most": _area_at_most,
    "area nearer": _area_nearer,
    "mostly lowest": partial(_similarities, merge=all_of),
    "similarity below": _similarity_below,
    "at most the largest": partial(_similarities, merge=any_of),
    "alike": _alike,
    "noise rises": _dials,
    "noise falls": _dials,
    "radii widen": _dials,
    "ledger": _ledger,
    "every configuration": _every_configuration,
    "short interval": _short_interval,
    "not measured": _not_measured,
}
"""By the names at the head of `data/published/rldp.toml`."""

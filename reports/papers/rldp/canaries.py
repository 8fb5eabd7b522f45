"""What an RLDP study says of memorisation beyond Tables 6 to 9: exposures, matches, insertions.

A verdict is of one trained model: whether it depends on the values of the secrets planted in it. It is no
statement about a mechanism's promise, and a model that is not called may have memorised what no test saw.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.reports.papers.rldp.attack_tables import (
    called_runs,
    chance_cell,
    counted_cell,
    has_row,
    setting_of,
)
from workbench.reports.papers.rldp.cells import Context, places, scale_notes
from workbench.reports.papers.rldp.layout import (
    CHANCE_EXPOSURE,
    CHANCE_PREFIX,
    EXACT,
    EXPOSURE,
    INSERTIONS,
    MEMORISED_P,
    METHODS,
    NON_PRIVATE,
    PAPER_MODELS,
    PREFIX,
    PRESENTATIONS,
    RECOVERED,
    SECRETS_MEMORISED,
    Setting,
    chance_jaccard,
    jaccard,
    number_of,
)
from workbench.reports.shared.paper_cells import Row
from workbench.reports.shared.paper_samples import NOT_HERE
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome
from workbench.studies.report import Cell, Table

COLUMNS = (
    "exposure, bits",
    "chance: exposure",
    "secrets recovered",
    "exact matches",
    "longest beginning",
    "chance: beginning",
    "secrets memorised",
    "runs called",
    "runs called, corrected",
)
METRICS = (EXPOSURE, CHANCE_EXPOSURE, RECOVERED, EXACT, PREFIX, CHANCE_PREFIX, SECRETS_MEMORISED)
_DECIMALS = dict(zip(COLUMNS, (2, 2, 1, 1, 1, 1, 1), strict=False))

_WORDS = (
    "Exposure: minus log2 of the share of secrets, the references and itself, that are at least as likely, "
    "bits (Carlini et al. 2019), mean over the planted secrets. Its chance level is that of secrets drawn "
    "alike that nobody trained on, about 1.44; in brackets the range of 95 % of sets of as many in one run. "
    "Secrets recovered: of those planted, generated whole. Longest beginning: characters that a continuation "
    "shares with a secret from the start. Secrets memorised: shown by their own rank.",
    "Runs of one model and one seed share the planted secrets and the base's own leanings towards some of "
    "them: what is called there under all methods alike is one event, not many.",
)


def _called_words(context: Context) -> str:
    return (
        "Runs called: models that depend on the secrets planted in them, by one test of exchanged secrets "
        f"with an error of {context.level} in each run; corrected for all runs of the table by Benjamini and "
        "Hochberg. Not called is not private."
    )


def canary_tables(context: Context) -> list[Table]:
    """Exposures in every setting, and over insertions."""
    made = (_exposures(context), _insertions(context))
    return [table for table in made if table is not None]


def _cells(context: Context, where: tuple[str, Setting], called: dict[str, bool]) -> list[Cell]:
    group, setting = where
    runs = context.measured.done(group, setting)
    cells = [
        chance_cell(context, runs, name, where) if name == CHANCE_EXPOSURE else _plain(context, where, name)
        for name in METRICS
    ]
    level = 1.0 - context.confidence
    raw = {
        one.key: number_of(one, MEMORISED_P) <= level for one in runs if usable(number_of(one, MEMORISED_P))
    }
    counted = [counted_cell(context, runs, found, where) for found in (raw, called)]
    why = context.measured.missing(group, setting)
    return [*cells, *(one if one.ours is not None else Cell(why_blank=why) for one in counted)]


def _exposures(context: Context) -> Table | None:
    listed = [
        (place, name)
        for place in places(context)
        for name in (*METHODS, NON_PRIVATE)
        if has_row(context, place, name) and context.measured.runs(place[0], setting_of(place, name))
    ]
    runs = [one for place, name in listed for one in context.measured.done(place[0], setting_of(place, name))]
    if not _has(runs, EXPOSURE):
        return None
    called = called_runs(context, runs, MEMORISED_P)
    rows: list[Row] = [
        (
            (place[1], f"{place[2]:g}", name),
            tuple(_cells(context, (place[0], setting_of(place, name)), called)),
        )
        for place, name in listed
    ]
    return Table(
        id="canaries",
        title="What the models memorised of the planted secrets",
        row_headers=("model", "epsilon", "method"),
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(*_WORDS, _called_words(context), _count(called), *scale_notes(context, PAPER_MODELS)),
        decimals=_DECIMALS,
    )


def _has(runs: Sequence[Outcome], name: str) -> bool:
    return any(usable(number_of(one, name)) for one in runs)


def _count(called: dict[str, bool]) -> str:
    return f"After correction {sum(called.values())} of {len(called)} runs are called."


def insertion_settings(context: Context) -> list[Setting]:
    """The settings of the group that plants secrets more and more often, in the study's order."""
    return [
        Setting(variant=variant, insertions=count)
        for variant in context.measured.variants(INSERTIONS)
        for count in context.measured.insertions(INSERTIONS)
        if context.measured.runs(INSERTIONS, Setting(variant=variant, insertions=count))
    ]


def _insertions(context: Context) -> Table | None:
    settings = insertion_settings(context)
    if not settings:
        return None
    runs = [one for setting in settings for one in context.measured.done(INSERTIONS, setting)]
    called = called_runs(context, runs, MEMORISED_P)
    extra = (
        *(name for n in (1, 4) for name in (f"similarity, {n}-grams", f"chance, {n}-grams")),
        "times trained on",
    )
    rows: list[Row] = []
    for setting in settings:
        where = (INSERTIONS, setting)
        done = context.measured.done(*where)
        similar = [
            cell
            for n in (1, 4)
            for cell in (
                _plain(context, where, jaccard(n)),
                chance_cell(context, done, chance_jaccard(n), where),
            )
        ]
        cells = (*_cells(context, where, called), *similar, _plain(context, where, PRESENTATIONS))
        rows.append(((str(setting.variant), f"{setting.insertions}"), cells))
    return Table(
        id="insertions",
        title="Where memorisation begins: each secret planted once, and more often",
        row_headers=("training", "insertions of each secret"),
        columns=(*COLUMNS, *extra),
        rows=tuple(rows),
        notes=(
            *_WORDS,
            _called_words(context),
            "Times trained on: in how many steps a record with the secret takes part, in expectation.",
            _count(called),
            _first(context, settings, called),
            "A promise of privacy is about one record; a secret that stands in many is not covered by it.",
            *scale_notes(context, (INSERTIONS,)),
        ),
        decimals={**_DECIMALS, "times trained on": 1},
    )


def _plain(context: Context, where: tuple[str, Setting], name: str) -> Cell:
    value = context.value(*where, name)
    return Cell(why_blank=context.measured.missing(*where)) if value is None else Cell(ours=value)


def _first(context: Context, settings: Sequence[Setting], called: dict[str, bool]) -> str:
    """From how many insertions on every finished run of a training is called."""
    parts = []
    for variant in dict.fromkeys(setting.variant for setting in settings):
        mine = sorted(
            (one for one in settings if one.variant == variant), key=lambda one: one.insertions or 0
        )
        verdicts = {
            setting.insertions: [
                called[one.key] for one in context.measured.done(INSERTIONS, setting) if one.key in called
            ]
            for setting in mine
        }
        shown = [count for count, found in verdicts.items() if found and all(found)]
        partly = [count for count, found in verdicts.items() if any(found)]
        if not any(verdicts.values()):
            parts.append(f"{variant}: {NOT_HERE if not mine else 'no finished run'}")
        elif shown:
            parts.append(f"{variant}: every run from {_from(shown, list(verdicts))} insertions on")
        elif partly:
            parts.append(f"{variant}: some runs, first at {partly[0]} insertions")
        else:
            parts.append(f"{variant}: no run, up to {max(count or 0 for count in verdicts)} insertions")
    return f"Called after correction: {'; '.join(parts)}."


def _from(shown: Sequence[int | None], every: Sequence[int | None]) -> int | None:
    """The least number from which on all are shown; the largest alone where there are gaps."""
    first = shown[-1]
    for count in reversed(every):
        if count not in shown:
            break
        first = count
    return first

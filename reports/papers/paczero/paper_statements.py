"""The numbers of PACZero's text against the cells and the formulas that they are said to come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.paczero.paper_budgets import divergence, success
from workbench.reports.papers.paczero.paper_cells import at, centre, check, said, stands_for
from workbench.reports.shared.published_checks import Check, Interval

Values = Callable[[PublishedPaper], list[Interval]]


@dataclass(frozen=True)
class Statement:
    """A number of the text and what it is of.

    Attributes:
        place, quantity: Its row of the table `statements`.
        values: What it is of: all of them for a single number, their least and largest for a range.
        largest: Whether a single number is the largest of them ("within 1.6 points").
        about: Whether the text says "about" or rounds to a whole number: then within half a unit of its
            last digit that is not zero.
        beside: What may give the printed number instead: words and values.
    """

    place: str
    quantity: str
    values: Values
    largest: bool = False
    about: bool = False
    beside: tuple[str, Values] | None = None


def statement_check(paper: PublishedPaper) -> Check:
    """Which numbers of the text do not follow from the cells or formulas that they are of."""
    failed = [text for text in (_wrong(paper, one) for one in STATEMENTS) if text]
    return check(
        "numbers of the text",
        len(STATEMENTS),
        failed,
        right=f"All {len(STATEMENTS)} numbers of the text that cells or formulas give follow from them",
        start=f"{len(failed)} of {len(STATEMENTS)} numbers of the text do not follow from the cells or "
        "formulas that they are said of: ",
    )


def _wrong(paper: PublishedPaper, one: Statement) -> str:
    printed, values = said(paper, one.place, one.quantity), one.values(paper)
    least = Interval(min(value.lower for value in values), min(value.upper for value in values))
    most = Interval(max(value.lower for value in values), max(value.upper for value in values))
    if printed.lower is None:
        first, last = (most, most) if one.largest else (least, most)
        ends = [_widened(stands_for(printed), one.about)] * 2
    else:
        first, last = least, most
        ends = [stands_for(printed, part) for part in (0, 1)]
    if first.meets(ends[0]) and last.meets(ends[1]):
        return ""
    least_text, most_text = (f"{centre(value):.4g}" for value in (first, last))
    found = least_text if least_text == most_text else f"{least_text} to {most_text}"
    other = ""
    if one.beside is not None and all(value.meets(ends[0]) for value in one.beside[1](paper)):
        other = f" ({one.beside[0]} gives the printed number)"
    return f"{one.place}, {one.quantity}: {printed.printed} printed, {found} found{other}"


def _widened(one: Interval, about: bool) -> Interval:
    """Half a unit of the last digit that is not zero: 930 stands for 925 to 935."""
    middle = centre(one)
    if not about or middle == 0.0:
        return one
    unit = 1.0
    while math.isclose(middle % (10.0 * unit), 0.0):
        unit *= 10.0
    half = max(0.5 * unit, 0.5 * (one.upper - one.lower))
    return Interval(middle - half, middle + half)


def _gap(one: str, other: str) -> Values:
    """First less second."""
    return lambda paper: [_value(paper, one) - _value(paper, other)]


def _gaps(*pairs: tuple[str, str]) -> Values:
    return lambda paper: [_value(paper, one) - _value(paper, other) for one, other in pairs]


def _same(*paths: str) -> Values:
    return lambda paper: [_value(paper, path) for path in paths]


def _value(paper: PublishedPaper, path: str) -> Interval:
    return stands_for(at(paper, path))


def _exactly(value: float) -> Values:
    return lambda paper: [Interval(value, value)]


def _unanimity(tracks: tuple[str, ...], task: str) -> Values:
    def values(paper: PublishedPaper) -> list[Interval]:
        return [
            stands_for(one)
            for one in paper.table("table-6").cells
            if one.column == task and one.row[0] in tracks
        ]

    return values


def _squad_hours(*models: str) -> Values:
    """GPU hours of the SQuAD cells of these models."""

    def values(paper: PublishedPaper) -> list[Interval]:
        rows = [one for one in paper.table("table-20").cells if one.column == "GPU-hours"]
        squad = [one for one in rows if one.row[0] == "SQuAD" and any(name in one.row[1] for name in models)]
        hours = sum(one.value for one in squad)
        return [Interval(hours, hours)]

    return values


def dp_success(epsilon: float, delta: float) -> float:
    """Success that (epsilon, delta)-DP allows at prior 1/2 by section 2's formula.

    Args:
        epsilon, delta: Of the guarantee.
    """
    return math.exp(epsilon) / (1.0 + math.exp(epsilon)) + delta


def tolerance_nats(tolerance: float) -> float:
    """The binary entropy at a tolerance, in nats.

    Args:
        tolerance: In (0, 1).
    """
    return -tolerance * math.log(tolerance) - (1.0 - tolerance) * math.log1p(-tolerance)


def orders_below_tightest(paper: PublishedPaper) -> list[Interval]:
    """Orders of magnitude between the tolerance's nats of a run and the smallest budget of the tables."""
    budgets = [float(one.row[0]) for name in ("table-2", "table-11") for one in paper.table(name).cells]
    return _orders(paper, min(budgets))


def _orders(paper: PublishedPaper, least: float) -> list[Interval]:
    run = said(paper, "appendix C", "nats of 2000 steps at the tolerance, at most").value
    orders = math.floor(math.log10(least / run))
    return [Interval(orders, orders)]


_MEZO_13 = "statements | abstract | non-private MeZO, SST-2 1.3B FT | value"
_MEZO_67 = "statements | section 4.2 | non-private MeZO, SST-2 6.7B FT | value"
_ZPL = "table-1 | FT | 0 nats | PACZero-ZPL | SST-2 {}"
_MI = "table-1 | FT | {} nats | PACZero-MI | {}"
_DPZERO = "table-1 | FT | epsilon {} | DPZero K=1 | {}"
_AGGZO = "table-3 | DP-AggZO K=64 | 1000 | {}"
_BY_BUDGET = (("0.33", "2"), ("0.68", "6"))

STATEMENTS = (
    Statement("abstract", "PACZero-ZPL, SST-2 1.3B FT", _same(_ZPL.format("1.3B"))),
    Statement("abstract", "PACZero-ZPL below MeZO, SST-2 1.3B FT", _gap(_MEZO_13, _ZPL.format("1.3B"))),
    *(
        Statement(
            place,
            "PACZero-MI above DPZero at 0.33 nats, SST-2 1.3B FT",
            _gap(_MI.format("0.33", "SST-2 1.3B"), _DPZERO.format("2", "SST-2 1.3B")),
        )
        for place in ("section 1", "section 4.2")
    ),
    Statement(
        "section 4.2",
        "PACZero-MI above DPZero at 0.68 nats, SST-2 1.3B FT",
        _gap(_MI.format("0.68", "SST-2 1.3B"), _DPZERO.format("6", "SST-2 1.3B")),
    ),
    Statement(
        "section 4.2",
        "PACZero-MI below MeZO, SST-2 6.7B FT",
        _gaps(*((_MEZO_67, _MI.format(nats, "SST-2 6.7B")) for nats, _ in _BY_BUDGET)),
        largest=True,
    ),
    Statement(
        "section 4.2",
        "PACZero-ZPL below MeZO, SST-2 FT",
        _gaps((_MEZO_13, _ZPL.format("1.3B")), (_MEZO_67, _ZPL.format("6.7B"))),
    ),
    Statement(
        "section 4.2",
        "PACZero-MI below DPZero, SQuAD FT",
        _gaps(
            *(
                (_DPZERO.format(epsilon, f"SQuAD {model}"), _MI.format(nats, f"SQuAD {model}"))
                for nats, epsilon in _BY_BUDGET
                for model in ("1.3B", "6.7B")
            )
        ),
    ),
    Statement("section 4.2", "steps of DPZero over ours", _exactly(20_000 / 1_000)),
    *(
        Statement(place, f"unanimity on {words}", _unanimity(tracks, task))
        for place in ("section 1", "section 4.2", "section 7", "appendix F")
        for words, task, tracks in (
            ("SST-2", "SST-2", ("FT", "LoRA")),
            ("SQuAD, FT", "SQuAD", ("FT",)),
            ("SQuAD, LoRA", "SQuAD", ("LoRA",)),
        )
        if task == "SST-2" or place in ("section 4.2", "appendix F")
    ),
    Statement("section 4.2", "DP-AggZO at epsilon 0.5", _same(_AGGZO.format("0.5"))),
    Statement("section 4.2", "DP-AggZO at epsilon 1.0", _same(_AGGZO.format("1.0"))),
    Statement("section 4.2", "strongest in-house DP cell", _same(_AGGZO.format("2.0"))),
    Statement(
        "section 4.2",
        "PACZero-ZPL above the strongest in-house DP cell",
        _gap(_ZPL.format("1.3B"), _AGGZO.format("2.0")),
    ),
    Statement("section 2", "success at 1/4 nats, percent", _exactly(100.0 * success(0.25))),
    Statement("section 2", "success at 1/128 nats, percent", _exactly(100.0 * success(1.0 / 128.0))),
    Statement("section 2", "success at (1, 1e-5)-DP, percent", _exactly(100.0 * dp_success(1.0, 1e-5))),
    Statement("section 2", "success at (0.1, 1e-5)-DP, percent", _exactly(100.0 * dp_success(0.1, 1e-5))),
    Statement("section 4.1", "nats of epsilon 2", _exactly(divergence(dp_success(2.0, 1e-5)))),
    Statement("section 4.1", "nats of epsilon 6", _exactly(divergence(dp_success(6.0, 1e-5)))),
    Statement("appendix C", "nats a step at the tolerance", _exactly(-1e-12 * math.log(1e-12))),
    Statement(
        "appendix C",
        "nats of 2000 steps at the tolerance, at most",
        _exactly(2000.0 * tolerance_nats(1e-12)),
        largest=True,
    ),
    Statement(
        "appendix C",
        "orders of magnitude below the tightest budget",
        orders_below_tightest,
        beside=("the headline's 0.33 nats", lambda paper: _orders(paper, 0.33)),
    ),
    Statement("appendix H", "evaluation loss at clip 25", _same("table-10 | 8 | best evaluation loss")),
    Statement("appendix H", "nats spent at 0.33 nats, clip 25", _exactly(0.33)),
    Statement("appendix H", "nats spent at 0.68 nats, clip 25", _exactly(0.68)),
    Statement(
        "appendix K",
        "quant_full above raw_full at T = 2000",
        _gap("table-12 | quant_full | 2000 | test", "table-12 | raw_full | 2000 | test"),
    ),
    Statement("appendix K", "random_sign", _same("table-12 | random_sign | 2000 | test")),
    Statement(
        "appendix L",
        "FT above LoRA, canonical, 6.7B",
        _gap("table-17 | 0, 1, 2 | test", "table-15 | 500 | mean"),
    ),
    *(
        Statement(
            "appendix M",
            f"{track} 1.3B, K = 4 and 16 less K = 1",
            _gaps(*((f"table-18 | {track} | {k} | test", f"table-18 | {track} | 1 | test") for k in (4, 16))),
        )
        for track in ("FT", "LoRA")
    ),
    Statement(
        "appendix N",
        "GPU-hours of the OPT-6.7B SQuAD cells of Table 1",
        _squad_hours("6.7B"),
        about=True,
        beside=("the sum of all SQuAD cells", _squad_hours("1.3B", "6.7B")),
    ),
)
"""Every number of the text that cells or formulas determine and that no other check covers."""

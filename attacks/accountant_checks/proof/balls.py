"""Inequalities over boxes by branch and bound in ball arithmetic, where Z3 is the wrong tool.

A box on which the ball of the function lies at or above zero is settled; a midpoint at which it lies below
zero is a counterexample; any other box is cut in two. Where the function touches zero inside the domain, the
boxes around that point never settle, and the answer is UNDECIDED, not PROVEN.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from workbench.attacks.accountant_checks.proof.evaluation import ball, ends, interval, value_at
from workbench.attacks.accountant_checks.proof.statements import undecided
from workbench.attacks.accountant_checks.proof.terms import Term, variables_of
from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

BallFunction = Callable[[Mapping[str, Any]], Any]
"""A function of balls by variable name; returns a ball that contains its values there, or None."""

Box = Mapping[str, tuple[Fraction, Fraction]]


def prove_by_balls(
    name: str,
    function: Term | BallFunction,
    domain: Mapping[str, tuple[int | str | Fraction, int | str | Fraction]] | None = None,
    *,
    limit_boxes: int = 20_000,
    limit_seconds: float = 20,
    precision: int = 128,
) -> Finding:
    """Prove that a function is at least 0 everywhere on a box.

    Args:
        function: A term, or a function of Arb balls that returns an Arb ball.
        domain: Closed finite range of each variable; for a term, by default its variables' own domains.
        limit_boxes: Boxes that may be looked at; reached at the same box on every machine.
        limit_seconds: Of wall time.
        precision: Bits of the balls.

    Returns:
        PROVEN; REFUTED at an exact rational point; or UNDECIDED, with the box that is left.

    Raises:
        InputError: a range is missing, infinite or empty.
    """
    evaluate = _of_term(function) if isinstance(function, Term) else function
    box = _checked(function, domain)
    started = time.monotonic()
    waiting = deque([box])
    looked = 0
    tightest: Fraction | None = None
    while waiting:
        if looked >= limit_boxes or time.monotonic() - started > limit_seconds:
            return _undecided(name, waiting[0], looked, (limit_boxes, limit_seconds))
        box = waiting.popleft()
        looked += 1
        low, _ = _bounds(evaluate, {k: interval(*ends) for k, ends in box.items()}, precision)
        if low is not None and low >= 0:
            tightest = low if tightest is None else min(tightest, low)
            continue
        middle = {key: (a + b) / 2 for key, (a, b) in box.items()}
        for point in (middle, *_corners(box, looked)):
            _, high = _bounds(evaluate, {k: ball(value) for k, value in point.items()}, 2 * precision)
            if high is not None and high < 0:
                return _refuted(name, point, high, looked)
        if all(a == b for a, b in box.values()):
            return _undecided(name, box, looked, (limit_boxes, limit_seconds))
        waiting.extend(_halves(box))
    margin = "" if tightest is None else f"; smallest lower bound {float(tightest):.3g}"
    return Finding(
        verdict=VerdictKind.PROVEN,
        summary=f"{name}: proven",
        evidence=(f"ball arithmetic at {precision} bits settles all of {looked} boxes{margin}",),
    )


def _of_term(term: Term) -> BallFunction:
    def evaluate(values: Mapping[str, Any]) -> Any:
        return value_at(term, values)

    return evaluate


def _checked(function: Term | BallFunction, domain: Mapping[str, tuple[Any, Any]] | None) -> Box:
    if domain is None:
        if not isinstance(function, Term):
            raise InputError("domain must be given for a function of balls, got none")
        domain = {v.name: (v.low, v.high) for v in variables_of(function)}
    box = {}
    for key, (low, high) in domain.items():
        if low is None or high is None:
            raise InputError(f"domain of {key} must be finite, got [{low}, {high}]")
        box[key] = (Fraction(low), Fraction(high))
        if box[key][0] > box[key][1]:
            raise InputError(f"domain of {key} must not be empty, got [{low}, {high}]")
    return box


def _bounds(
    evaluate: BallFunction, values: Mapping[str, Any], precision: int
) -> tuple[Fraction | None, Fraction | None]:
    import flint

    with flint.ctx.workprec(precision):
        value = evaluate(values)
        if value is None:
            return None, None
        if isinstance(value, int):
            value = Fraction(value)
        return ends(value)


def _corners(box: Box, looked: int) -> list[dict[str, Fraction]]:
    """The lower and the upper corner of the first boxes: where extremes often lie."""
    if looked > 8:
        return []
    return [{key: pair[side] for key, pair in box.items()} for side in (0, 1)]


def _halves(box: Box) -> list[dict[str, tuple[Fraction, Fraction]]]:
    """The box cut across its widest side."""
    widest = max(box, key=lambda key: box[key][1] - box[key][0])
    low, high = box[widest]
    middle = (low + high) / 2
    return [{**box, widest: (low, middle)}, {**box, widest: (middle, high)}]


def _text(box: Box) -> str:
    return ", ".join(f"{key} in [{float(a):.6g}, {float(b):.6g}]" for key, (a, b) in sorted(box.items()))


def _refuted(name: str, point: Mapping[str, Fraction], high: Fraction, looked: int) -> Finding:
    example: dict[str, JSON] = {key: str(value) for key, value in sorted(point.items())}
    example["found"] = f"at most {float(high):.12g}"
    at = ", ".join(f"{key} = {value}" for key, value in sorted(point.items()))
    return Finding(
        verdict=VerdictKind.REFUTED,
        summary=f"{name}: fails at {at}, where the margin is at most {float(high):.6g}",
        evidence=(f"ball arithmetic at an exact point, after {looked} boxes",),
        counterexample=example,
    )


def _undecided(name: str, box: Box, looked: int, limits: tuple[int, float]) -> Finding:
    why = (
        f"not settled on {_text(box)} after {looked} boxes (limits: {limits[0]} boxes, {limits[1]:g} s); "
        "the margin may be zero there"
    )
    return undecided(name, why)

"""The truth that accountants are held to: certified bounds, and a second, independent method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from workbench.accounting.bounds import Bounds
from workbench.accounting.deciding import (
    ROUNDING,
    ROUNDING_OF_EPSILON,
    is_undecided,
    narrowed_until_decided,
)
from workbench.accounting.events import Gaussian, gaussian_run
from workbench.attacks.accountant_checks.conformance.questions import CalibrationQuestion, Question
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.interfaces import Adjacency

_ERRORS = 5.0
"""A second method decides only where it is so many of its own estimated errors away from the answer."""


@cache
def _certified(question: Question, **width: Any) -> Bounds | str:
    from workbench.accounting import certified

    functions = {
        "epsilon": certified.epsilon_bounds,
        "delta": certified.delta_bounds,
        "tpr": certified.tpr_bounds,
    }
    try:
        ask = functions[question.quantity]
        return ask(question.event, question.argument, adjacency=question.adjacency, **width)
    except (UnsupportedError, InconclusiveError, InputError):
        return ""
    except (ArithmeticError, LookupError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def truth(question: Question) -> Bounds | None:
    """Certified bounds on what was asked; None where none are to be had. Kept for all accountants."""
    bounds = _certified(question)
    return None if isinstance(bounds, str) else bounds


class Truths:
    """Certified bounds on what one accountant is asked, as narrow as its answers have made them."""

    def __init__(self) -> None:
        self.narrowed: dict[Question, Bounds | str] = {}

    def of(self, question: Question) -> Bounds | None:
        """The narrowest bounds so far; None where there are none, or none that can be believed."""
        bounds = self.narrowed.get(question, _certified(question))
        return None if isinstance(bounds, str) else bounds

    def fault_of_ours(self, question: Question) -> str:
        """How the certified bounds crashed over this question, or contradict each other; else empty."""
        bounds = self.narrowed.get(question, _certified(question))
        return bounds if isinstance(bounds, str) else ""

    def narrow(self, question: Question, claimed: float, may_go_on: Callable[[], bool]) -> Bounds | None:
        """Narrow the bounds until a claim is on one side of them, or no finer grid helps; `of` knows them.

        Args:
            question: What was asked.
            claimed: The answer, or another value that the truth is compared with.
            may_go_on: Whether there is time for narrower bounds.
        """
        bounds = self.of(question)
        if bounds is None or not is_undecided(bounds, claimed):
            return bounds

        def ask(width: float) -> Bounds:
            finer = _certified(question, relative_width=width)
            if isinstance(finer, str):
                raise InconclusiveError(finer or f"there are no narrower bounds: {question.describe()}")
            return finer

        try:
            found = narrowed_until_decided(bounds, claimed, ask, may_go_on)
        except InconclusiveError as error:
            self.narrowed[question] = str(error)
            return None
        if found is not bounds:
            self.narrowed[question] = found
        return found


@cache
def smallest_noise(question: CalibrationQuestion) -> float | None:
    """The smallest noise multiplier whose certified upper bound meets the target; None without one."""
    from workbench.accounting import certified

    try:
        return certified.calibrate_noise_multiplier(
            target_epsilon=question.target_epsilon,
            target_delta=question.delta,
            sampling_probability=question.sampling_probability,
            steps=question.steps,
            adjacency=question.adjacency,
        )
    except (UnsupportedError, InconclusiveError, InputError):
        return None


def question_at(noise_multiplier: float, question: CalibrationQuestion) -> Question:
    """The question for epsilon at a noise multiplier that a calibrator returned."""
    run = gaussian_run(
        noise_multiplier=noise_multiplier,
        sampling_probability=question.sampling_probability,
        steps=question.steps,
    )
    return Question(quantity="epsilon", event=run, argument=question.delta, adjacency=question.adjacency)


def by_rounding_only(quantity: str, claimed: float, lower: float) -> bool:
    """Whether an answer below the bound is below it by no more than floating-point rounding explains."""
    if math.isinf(lower):  # No finite answer is near.
        return claimed == lower
    shortfall = lower - claimed
    if shortfall <= ROUNDING * lower:
        return True
    return quantity in ("epsilon", "noise_multiplier") and shortfall <= ROUNDING_OF_EPSILON


@dataclass(frozen=True, kw_only=True)
class SecondOpinion:
    """What an independent method says about an answer that is below its certified bounds.

    Attributes:
        method: Its name.
        value: The truth by that method, or a number below it where that does not settle.
        agrees: Whether that is above the answer too.
        settles: Whether the value is the truth itself.
    """

    method: str
    value: float
    agrees: bool
    settles: bool = True

    def describe(self) -> str:
        """`inversion of the moment generating function: 4.37717810`; `above` a value that does not settle."""
        return f"{self.method}: {'' if self.settles else 'above '}{self.value:.9g}"


def confirmed(question: Question, claimed: float) -> SecondOpinion | None:
    """Compute a truth a second time, by a method that shares no code with the first.

    Args:
        question: What was asked.
        claimed: The answer that is below the certified bounds.

    Returns:
        The second method's opinion; None where none covers the event, or its own error is too large to tell.
    """
    if question.quantity == "tpr":
        return _confirmed_tpr(question, claimed)
    from workbench.attacks.accountant_checks.conformance.second_opinion import Curve

    bounds = truth(question)
    try:
        curve = Curve(question.event, question.adjacency)
        at = max(claimed, 0.0) if question.quantity == "epsilon" else question.argument
        delta = curve.delta(at)
        limit = question.argument if question.quantity == "epsilon" else claimed
        if abs(delta.value - limit) <= _ERRORS * delta.error:
            return None
        value = delta.value
        if question.quantity == "epsilon" and value > limit and bounds is not None:
            if math.isinf(bounds.lower):
                return SecondOpinion(method=curve.method, value=at, agrees=True, settles=False)
            high = bounds.upper if math.isfinite(bounds.upper) else 2 * bounds.lower + 1
            try:
                value = curve.epsilon(limit, at, 1.01 * high)
            except InconclusiveError:
                return SecondOpinion(method=curve.method, value=at, agrees=True, settles=False)
        elif question.quantity == "epsilon":
            value = claimed
    except (UnsupportedError, InconclusiveError, FloatingPointError):
        return None
    return SecondOpinion(method=curve.method, value=value, agrees=delta.value > limit)


def _confirmed_tpr(question: Question, claimed: float) -> SecondOpinion | None:
    """The power of the Neyman-Pearson test, for Gaussians alone."""
    from scipy.special import ndtr, ndtri

    square = 0.0
    for part, count in question.event.parts():
        if not isinstance(part, Gaussian) or question.adjacency is Adjacency.REPLACE_ONE:
            return None
        square += count / part.noise_multiplier**2
    value = float(ndtr(ndtri(question.argument) + math.sqrt(square)))
    if abs(value - claimed) <= ROUNDING * value:
        return None
    return SecondOpinion(method="Neyman-Pearson test of two Gaussians", value=value, agrees=value > claimed)

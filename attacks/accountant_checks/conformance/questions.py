"""Asking an accountant under test: every answer is a number, a clear refusal, or a fault on record.

Answers are kept, so that checks which need the same one ask once. Time is measured, and rationed by check.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from workbench.accounting.events import Event
from workbench.checks.accountants import (
    Accountant,
    DeltaAccountant,
    NoiseCalibrator,
    TradeoffAccountant,
    accountant_of,
    is_interruption,
    is_refusal,
    load_accountant,
)
from workbench.core.errors import InputError
from workbench.core.one_line import error_line, object_line
from workbench.interfaces import Adjacency


class AnswerKind(StrEnum):
    """What an accountant gave for an answer: a number, a refusal, a fault, or nothing in time."""

    NUMBER = "number"
    """A number >= 0, or infinity."""
    REFUSED = "refused"
    """A clear error: one of ours, `NotImplementedError`, or a `ValueError` with a message."""
    FAULT = "fault"
    """NaN, a negative number, no number, or any other exception."""
    OUT_OF_TIME = "out of time"
    """Not asked."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An accountant's answer to a question.

    Attributes:
        value: The number; NaN where there is none. A negative number is kept here, as a FAULT.
        came: Whether something was answered, be it no number.
    """

    kind: AnswerKind
    value: float = math.nan
    message: str = ""
    came: bool = False

    @property
    def is_number(self) -> bool:
        """True where the accountant answered with a number >= 0 or infinity."""
        return self.kind is AnswerKind.NUMBER


OUT_OF_TIME = Answer(kind=AnswerKind.OUT_OF_TIME)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question to an accountant.

    Attributes:
        quantity: `"epsilon"`, `"delta"` or `"tpr"`: what is asked for.
        argument: The delta (for epsilon), the epsilon (for delta) or the FPR (for a TPR).
    """

    quantity: str
    event: Event
    argument: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    @property
    def argument_name(self) -> str:
        """`delta`, `epsilon` or `fpr`."""
        return {"epsilon": "delta", "delta": "epsilon", "tpr": "fpr"}[self.quantity]

    def describe(self) -> str:
        """The question in words: event, delta, epsilon or FPR, and adjacency."""
        return f"{self.event.describe()} at {self.argument_name} = {self.argument:g}, {self.adjacency}"


@dataclass(frozen=True, kw_only=True)
class CalibrationQuestion:
    """A question to a noise calibrator: the noise multiplier for a target epsilon."""

    target_epsilon: float
    delta: float
    sampling_probability: float
    steps: int
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    def describe(self) -> str:
        """The question in words: target epsilon, delta, sampling probability, steps and adjacency."""
        return (
            f"noise for epsilon {self.target_epsilon:g} at delta {self.delta:g}, sampling probability "
            f"{self.sampling_probability:g}, {self.steps} steps, {self.adjacency}"
        )


WAITS = 4.0
"""Seconds of waiting that count as one: for accountants that ask another machine, or sleep."""

_SCHEDULE = Path("/proc/thread-self/schedstat")
"""Where Linux says, in nanoseconds, how long the thread ran, and how long it was kept waiting for a core."""


class _Clock:
    """Seconds of this process' cores and its children's, by which budgets are kept.

    A busy machine asks as much as an idle one: time in the queue for a core does not count. Between two calls
    counts what is more: the cores' seconds, or those of waiting for anything else over `WAITS`.
    """

    def __init__(self) -> None:
        self._cores, self._wall, self._queued, self._spent = _cores(), time.perf_counter(), _queued(), 0.0

    def __call__(self) -> float:
        """The seconds so far."""
        cores, wall, queued = _cores(), time.perf_counter(), _queued()
        waited = max(wall - self._wall - (queued - self._queued), 0.0)
        self._spent += max(cores - self._cores, waited / WAITS)
        self._cores, self._wall, self._queued = cores, wall, queued
        return self._spent


def _cores() -> float:
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def _queued() -> float:
    """Seconds for which this thread could have run, and had no core; 0 where the system does not say."""
    try:
        return int(_SCHEDULE.read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


now = _Clock()


@dataclass(kw_only=True)
class Tally:
    """Calls of the accountant, how many were answered by a finite number, and their time.

    `faults`: the questions whose answer, remembered ones included, was no usable number and no clear error.
    """

    calls: int = 0
    finite: int = 0
    seconds: float = 0.0
    faults: dict[Question, Answer] = field(default_factory=dict)

    @property
    def milliseconds_per_call(self) -> float | None:
        """Mean time of a call, milliseconds; None if there was no call."""
        return 1000 * self.seconds / self.calls if self.calls else None


_PROTOCOLS: dict[str, Any] = {
    "epsilon": Accountant,
    "delta": DeltaAccountant,
    "tpr": TradeoffAccountant,
    "noise_multiplier": NoiseCalibrator,
}


def _answer(accountant: Accountant, question: Question) -> Any:
    """Whatever the accountant says to a question that it has a method for."""
    # A new event each time, as users make them: what is kept by the id of a former one is wrong for it.
    event, argument, adjacency = deepcopy(question.event), question.argument, question.adjacency
    if question.quantity == "delta" and isinstance(accountant, DeltaAccountant):
        return accountant.delta(event, epsilon=argument, adjacency=adjacency)
    if question.quantity == "tpr" and isinstance(accountant, TradeoffAccountant):
        return accountant.tpr(event, fpr=argument, adjacency=adjacency)
    return accountant.epsilon(event, delta=argument, adjacency=adjacency)


@dataclass(kw_only=True)
class Asker:
    """One accountant, with its answers so far and the time that is left.

    Attributes:
        deadline: `now()` after which nothing new is asked.
        most_extra_seconds: Of all that `more_time` may grant together.
        here: Calls since the current check began.
        extra_seconds: Time that counts for no check: of searches and second computations.
    """

    accountant: Accountant
    deadline: float = math.inf
    most_extra_seconds: float = math.inf
    total: Tally = field(default_factory=Tally)
    here: Tally = field(default_factory=Tally)
    extra_seconds: float = 0.0
    _answers: dict[Question | CalibrationQuestion, Answer] = field(default_factory=dict)

    @property
    def out_of_time(self) -> bool:
        """True where the deadline is over."""
        return now() > self.deadline

    @contextlib.contextmanager
    def more_time(self, seconds: float) -> Iterator[None]:
        """So much time besides the check's own, if it is left; kept apart in `extra_seconds`."""
        before, start = self.deadline, now()
        self.deadline = start + min(seconds, max(self.most_extra_seconds - self.extra_seconds, 0.0))
        try:
            yield
        finally:
            spent = now() - start
            self.extra_seconds += spent
            self.deadline = before + spent

    def answers_for(self, quantity: str) -> bool:
        """Whether the accountant has the method for this quantity at all."""
        return isinstance(self.accountant, _PROTOCOLS[quantity])

    def ask(self, question: Question) -> Answer:
        """The accountant's answer, from memory where it was asked before."""
        return self._remembered(question, lambda: _answer(self.accountant, question))

    def remembered(self, question: Question) -> Answer | None:
        """The answer that was given before; None without one."""
        return self._answers.get(question)

    def numbers(self, quantity: str) -> list[tuple[Question, Answer]]:
        """Every question for this quantity so far that was answered by a number, in their order."""
        return [
            (question, answer)
            for question, answer in self._answers.items()
            if isinstance(question, Question) and question.quantity == quantity and answer.is_number
        ]

    def ask_again(self, question: Question) -> Answer:
        """The accountant's answer, asked anew."""
        if self.out_of_time:
            return OUT_OF_TIME
        return self._called(lambda: _answer(self.accountant, question))

    def calibrate(self, question: CalibrationQuestion) -> Answer:
        """The noise multiplier that a calibrator returns."""
        accountant = self.accountant
        assert isinstance(accountant, NoiseCalibrator)
        return self._remembered(question, lambda: accountant.noise_multiplier(**vars(question)))

    def _remembered(self, question: Question | CalibrationQuestion, call: Callable[[], Any]) -> Answer:
        if question not in self._answers:
            if self.out_of_time:
                return OUT_OF_TIME
            self._answers[question] = self._called(call)
        answer = self._answers[question]
        if answer.kind is AnswerKind.FAULT and isinstance(question, Question):
            for tally in (self.total, self.here):
                tally.faults[question] = answer
        return answer

    def _called(self, call: Callable[[], Any]) -> Answer:
        start = time.perf_counter()
        answer = _answer_of(call)
        spent = time.perf_counter() - start
        for tally in (self.total, self.here):
            tally.calls += 1
            tally.finite += answer.is_number and math.isfinite(answer.value)
            tally.seconds += spent
        return answer


def _answer_of(call: Callable[[], Any]) -> Answer:
    """Call, and sort what comes back; warnings and prints of the accountant are its own affair."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            answer = call()
    except BaseException as error:
        if is_interruption(error):
            raise
        kind = AnswerKind.REFUSED if is_refusal(error) else AnswerKind.FAULT
        return Answer(kind=kind, message=error_line(error, 240))
    try:
        value = math.nan if isinstance(answer, str | bytes) else float(answer)
    except Exception:  # the number's own code: a tensor of two elements has its own error
        value = math.nan
    if math.isnan(value):
        message = f"answered {object_line(answer)}, which is no number"
        return Answer(kind=AnswerKind.FAULT, message=message, came=True)
    if value < 0:
        return Answer(kind=AnswerKind.FAULT, value=value, message=f"answered the negative number {value:g}")
    return Answer(kind=AnswerKind.NUMBER, value=value)


def as_accountant(given: Any) -> Accountant:
    """An accountant out of an object, a function, or the text that `load_accountant` takes.

    Raises:
        InputError: it is none of these.
    """
    if isinstance(given, str):
        return load_accountant(given)
    if isinstance(given, type) or not isinstance(given, Accountant):
        if not callable(given):
            raise InputError(f"accountant must be an object, a function or a name, got {given!r}")
        return accountant_of(given, _target_of_callable(given))
    return given


def _target_of_callable(function: Any) -> str:
    """`module:function` of a function."""
    return (
        f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"
    )

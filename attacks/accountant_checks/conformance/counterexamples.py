"""The smallest counterexample that Hypothesis finds, and a line for a shell that prints the answer."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import workbench.accounting
from workbench.accounting import events
from workbench.attacks.accountant_checks.conformance.questions import CalibrationQuestion, Question, now
from workbench.checks.accountants import Accountant, FunctionAccountant
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.local_files import OF_FILES
from workbench.interfaces import Adjacency

Parameters = Mapping[str, float]

LARGEST_SEARCH = 120
"""Most parameter sets that Hypothesis draws; shrinking tries more, within the time."""


class _Judge:
    """`fails` with a memory and a time limit: after it, whatever is not known passes."""

    def __init__(self, fails: Callable[[Parameters], bool], seconds: float) -> None:
        self._fails = fails
        self._deadline = now() + seconds
        self._known: dict[frozenset[tuple[str, float]], bool] = {}

    def extend(self, seconds: float) -> None:
        """More time, from now on or from the limit, whichever is later."""
        self._deadline = max(self._deadline, now()) + seconds

    def __call__(self, parameters: Parameters) -> bool:
        key = frozenset(parameters.items())
        if key not in self._known:
            if now() > self._deadline:
                return False
            try:
                self._known[key] = self._fails(parameters)
            except InputError:  # these parameters make no question
                self._known[key] = False
        return self._known[key]


def smallest_counterexample(
    start: Parameters,
    simple: Mapping[str, Sequence[float]],
    fails: Callable[[Parameters], bool],
    *,
    seed: int,
    seconds: float,
) -> Parameters:
    """The simplest failing parameters that are found within the time; `start` itself where none are simpler.

    Only values that `simple` puts before the starting value are tried, so a search never asks dearer
    questions than the one that failed.

    Args:
        simple: For each parameter its simple values, simplest first.
        fails: Whether parameters fail; may raise `InputError` where they make no question.
        seconds: After this time nothing new is tried.
    """
    choices = {name: _no_less_simple(simple[name], start[name]) for name in simple}
    judge = _Judge(fails, 0.6 * seconds)
    smaller = _found_by_hypothesis(choices, judge, seed)
    judge.extend(0.4 * seconds)
    return _found_by_descent(smaller or {name: start[name] for name in choices}, choices, judge)


def _no_less_simple(values: Sequence[float], start: float) -> tuple[float, ...]:
    """The simpler values, and the starting value last."""
    known = list(values)
    before = known[: known.index(start)] if start in known else known
    return (*before, start)


def _found_by_hypothesis(
    choices: Mapping[str, Sequence[float]], judge: _Judge, seed: int
) -> Parameters | None:
    from hypothesis import HealthCheck, Phase, Verbosity, find, settings
    from hypothesis import strategies as st
    from hypothesis.errors import HypothesisException

    strategy = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in choices.items()})
    bounded = settings(
        max_examples=LARGEST_SEARCH,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    try:
        with _no_traces():
            smallest: Parameters = find(strategy, judge, settings=bounded, random=random.Random(seed))
    except HypothesisException:  # nothing simpler was found
        return None
    return smallest


@contextlib.contextmanager
def _no_traces() -> Iterator[None]:
    """Hypothesis's files go to a folder that is deleted, and not into the user's project."""
    from hypothesis import configuration

    before = getattr(configuration, "__hypothesis_home_directory", None)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)


def _found_by_descent(start: Parameters, choices: Mapping[str, Sequence[float]], judge: _Judge) -> Parameters:
    """One parameter at a time to its simplest failing value, until nothing changes."""
    best = dict(start)
    changed = True
    while changed:
        changed = False
        for name, values in choices.items():
            for value in values[: values.index(best[name])]:
                if judge({**best, name: value}):
                    best[name] = value
                    changed = True
                    break
    return best


def expression(event: events.Event) -> str:
    """The event as a Python expression of names from `workbench.accounting` (and `Fraction`)."""
    if isinstance(event, events.Composed) and len(event.events) == 1:
        step, count = event.events[0]
        if isinstance(step, events.SubsampledGaussian | events.Gaussian):
            rate = step.sampling_probability if isinstance(step, events.SubsampledGaussian) else 1.0
            return (
                f"gaussian_run(noise_multiplier={step.noise_multiplier!r}, "
                f"sampling_probability={rate!r}, steps={count})"
            )
    return repr(event)


def target_of(accountant: Accountant) -> str:
    """The text by which `load_accountant` finds this accountant again; empty where it cannot."""
    if isinstance(accountant, FunctionAccountant):
        function = accountant.function
        module = getattr(function, "__module__", "") or ""
        text = _importable(module, getattr(function, "__qualname__", ""), function)
        named, _, name = accountant.name.partition(":")  # a lambda, or a `functools.partial`
        return text or _importable(named, name, function)
    made_by = type(accountant)
    known = registry.entries("accountant").get(accountant.name)
    if known is not None and (known.factory is made_by or isinstance(known.factory(), made_by)):
        return accountant.name
    names = vars(sys.modules.get(made_by.__module__, object())) if made_by.__module__ in sys.modules else {}
    for name, value in names.items():
        if value is accountant:
            return f"{made_by.__module__}:{name}"
    return _importable(made_by.__module__, made_by.__qualname__, made_by)


def _importable(module: str, name: str, wanted: Any) -> str:
    """`module:name` where that names `found`, else empty (a lambda, a local function, a script's own)."""
    value: Any = sys.modules.get(module)
    for piece in name.split("."):
        value = getattr(value, piece, None)
    return f"{module}:{name}" if value is wanted and module != "__main__" else ""


def ask_line(accountant: Accountant, target: str, *questions: Question) -> str:
    """A shell line that prints the answers to these questions.

    Args:
        target: What `target_of` says; where it is empty, a call of `accountant` is shown instead.
    """
    if isinstance(accountant, FunctionAccountant) and target:
        return _function_line(target, questions)
    calls = [
        f".{q.quantity}({expression(q.event)}, {q.argument_name}={q.argument!r}, "
        f"adjacency=Adjacency.{q.adjacency.name})"
        for q in questions
    ]
    return _object_line(target, calls)


def calibrate_line(target: str, question: CalibrationQuestion) -> str:
    """A shell line that prints the noise multiplier that a calibrator returns."""
    keywords = ", ".join(
        f"{name}=Adjacency.{value.name}" if isinstance(value, Adjacency) else f"{name}={value!r}"
        for name, value in vars(question).items()
    )
    return _object_line(target, [f".noise_multiplier({keywords})"])


def _function_line(target: str, questions: tuple[Question, ...]) -> str:
    module, _, name = target.partition(":")
    calls = []
    for question in questions:
        ((step, count),) = question.event.parts()
        keywords = {
            "noise_multiplier": getattr(step, "noise_multiplier", None),
            "sampling_probability": getattr(step, "sampling_probability", 1.0),
            "steps": count,
            "delta": question.argument,
        }
        given = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
        calls.append(f"{name}({given})")
    imported = name.partition(".")[0]
    if (file := getattr(sys.modules.get(module), "__file__", None)) and module.startswith(OF_FILES):
        made = f"{imported} = import_file(Path({os.path.relpath(file)!r})).{imported}"
        imports = "from pathlib import Path; from workbench.core.local_files import import_file"
        return _python(f"{imports}; {made}; print({', '.join(calls)})")
    return _python(f"from {module} import {imported}; print({', '.join(calls)})")


def _object_line(target: str, calls: list[str]) -> str:
    """A line that loads the target and makes the calls; a bare call where there is no target."""
    if not target:
        return "print(" + ", ".join(f"accountant{call}" for call in calls) + ")"
    text = " ".join(calls)
    names = [
        name
        for name in dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\(", text))
        if hasattr(workbench.accounting, name)
    ]
    imports = ["from workbench.checks.accountants import load_accountant"]
    if "Fraction(" in text:
        imports.append("from fractions import Fraction")
    if names:
        imports.append(f"from workbench.accounting import {', '.join(names)}")
    imports.append("from workbench.interfaces import Adjacency")
    made = f"a = load_accountant({target!r})"
    return _python("; ".join([*imports, made, "print(" + ", ".join(f"a{call}" for call in calls) + ")"]))


def _python(code: str) -> str:
    """`python -c "..."`; the code holds no double quotes, dollars or backslashes, or it is quoted."""
    if re.search(r'["$`\\!]', code):
        return f"python -c {shlex.quote(code)}"
    return f'python -c "{code}"'

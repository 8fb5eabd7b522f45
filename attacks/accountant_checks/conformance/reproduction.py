"""One line for a shell that prints what the accountant answered."""

from __future__ import annotations

import re
import shlex
import sys
from typing import Any

from workbench.accounting import events
from workbench.attacks.accountant_checks.conformance.asking import CalibrationQuestion, Question
from workbench.checks.accountants import Accountant, FunctionAccountant
from workbench.core import registry
from workbench.interfaces import Adjacency


def expression(event: events.Event) -> str:
    """The event as a Python expression of names from `workbench.accounting.events` (and `Fraction`)."""
    if isinstance(event, events.Composed) and len(event.events) == 1:
        step, count = event.events[0]
        if isinstance(step, events.SubsampledGaussian | events.Gaussian):
            rate = step.sampling_probability if isinstance(step, events.SubsampledGaussian) else 1.0
            return (
                f"dp_sgd(noise_multiplier={step.noise_multiplier!r}, sampling_probability={rate!r}, "
                f"steps={count})"
            )
    return repr(event)


def target_of(accountant: Accountant) -> str:
    """The text by which `load_accountant` finds this accountant again; empty where it cannot."""
    if isinstance(accountant, FunctionAccountant):
        function = accountant.function
        module = getattr(function, "__module__", "") or ""
        found = _importable(module, getattr(function, "__qualname__", ""), function)
        named, _, name = accountant.name.partition(":")  # a lambda, or a `functools.partial`
        return found or _importable(named, name, function)
    made_by = type(accountant)
    known = registry.entries("accountant").get(accountant.name)
    if known is not None and (known.factory is made_by or isinstance(known.factory(), made_by)):
        return accountant.name
    names = vars(sys.modules.get(made_by.__module__, object())) if made_by.__module__ in sys.modules else {}
    for name, value in names.items():
        if value is accountant:
            return f"{made_by.__module__}:{name}"
    return _importable(made_by.__module__, made_by.__qualname__, made_by)


def _importable(module: str, name: str, found: Any) -> str:
    """`module:name` where that names `found`, else empty (a lambda, a local function, a script's own)."""
    value: Any = sys.modules.get(module)
    for piece in name.split("."):
        value = getattr(value, piece, None)
    return f"{module}:{name}" if value is found and module != "__main__" else ""


def ask_line(accountant: Accountant, target: str, *questions: Question) -> str:
    """A shell line that prints the answers to these questions.

    Args:
        accountant: Under test.
        target: What `target_of` says; where it is empty, a call of `accountant` is shown instead.
        questions: One or more.
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
    return _python(f"from {module} import {imported}; print({', '.join(calls)})")


def _object_line(target: str, calls: list[str]) -> str:
    """A line that loads the target and makes the calls; a bare call where there is no target."""
    if not target:
        return "print(" + ", ".join(f"accountant{call}" for call in calls) + ")"
    text = " ".join(calls)
    names = [name for name in dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\(", text)) if hasattr(events, name)]
    imports = ["from workbench.checks.accountants import load_accountant"]
    if "Fraction" in names:
        names.remove("Fraction")
        imports.append("from fractions import Fraction")
    if names:
        imports.append(f"from workbench.accounting.events import {', '.join(names)}")
    imports.append("from workbench.interfaces import Adjacency")
    made = f"a = load_accountant({target!r})"
    return _python("; ".join([*imports, made, "print(" + ", ".join(f"a{call}" for call in calls) + ")"]))


def _python(code: str) -> str:
    """`python -c "..."`; the code holds no double quotes, dollars or backslashes, or it is quoted."""
    if re.search(r'["$`\\!]', code):
        return f"python -c {shlex.quote(code)}"
    return f'python -c "{code}"'

"""The protocols of an accountant under test, and how a user's own is loaded.

The least is a function, named `module:function` or `FILE.py:function`:

    def epsilon(*, noise_multiplier, sampling_probability, steps, delta) -> float

for `steps` releases of a Poisson-subsampled Gaussian under add-remove adjacency. Whoever answers more brings
an object with the methods of `Accountant`, and of any of the protocols below it that it can answer;
`module:name` may name such an object, or a class or function without parameters that makes one. A question
that an accountant does not answer, it refuses with `UnsupportedError` (or `NotImplementedError`): a refusal
is never a fault.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from workbench.accounting.events import Event, Gaussian, SubsampledGaussian
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError, WorkbenchError
from workbench.core.local_files import import_file
from workbench.core.one_line import error_line
from workbench.interfaces import Adjacency

PARAMETERS = ("noise_multiplier", "sampling_probability", "steps", "delta")
"""The keyword parameters of the least function."""


@runtime_checkable
class Accountant(Protocol):
    """Answers epsilon; what it returns is understood as an upper bound on the truth."""

    @property
    def name(self) -> str:
        """The accountant's name in tables."""

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Epsilon of the event at `delta`; UnsupportedError where it does not answer such a question."""


@runtime_checkable
class DeltaAccountant(Protocol):
    """An accountant that computes delta as well as epsilon."""

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """Delta of the event at `epsilon`, an upper bound."""


@runtime_checkable
class TradeoffAccountant(Protocol):
    """Answers the trade-off curve too."""

    def tpr(self, event: Event, *, fpr: float, adjacency: Adjacency) -> float:
        """Largest true-positive rate of a test at false-positive rate `fpr`, an upper bound."""


@runtime_checkable
class NoiseCalibrator(Protocol):
    """Finds the noise for a budget."""

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """A noise multiplier at which a DP-SGD run is (target_epsilon, delta)-DP."""


@dataclass(frozen=True, kw_only=True)
class FunctionAccountant:
    """A user's function (see above), as an accountant of Poisson-subsampled Gaussian runs, add-remove."""

    name: str
    function: Callable[..., float]

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """The function's epsilon; UnsupportedError where the question is not about such a run."""
        if adjacency is not Adjacency.ADD_REMOVE:
            raise UnsupportedError(f"{self.name} answers for add-remove adjacency only, not {adjacency}")
        parts = list(event.parts())
        if len(parts) != 1:
            raise UnsupportedError(f"{self.name} answers for one event repeated, not {event.describe()}")
        step, count = parts[0]
        if isinstance(step, SubsampledGaussian):
            q = step.sampling_probability
        elif isinstance(step, Gaussian):
            q = 1.0
        else:
            raise UnsupportedError(
                f"{self.name} answers for subsampled Gaussians only, not {event.describe()}"
            )
        return self.function(
            noise_multiplier=step.noise_multiplier, sampling_probability=q, steps=count, delta=delta
        )


def is_refusal(error: BaseException) -> bool:
    """Whether an accountant's exception says that it does not answer the question, which is no fault."""
    has_words = error_line(error) != type(error).__name__
    return isinstance(error, WorkbenchError | NotImplementedError) or (
        isinstance(error, ValueError) and has_words
    )


def is_interruption(error: BaseException) -> bool:
    """Whether an exception out of an accountant is not the accountant's: Ctrl-C, or a test's time limit.

    Everything else that an accountant raises is an answer of a kind, `SystemExit` and `GeneratorExit`
    included. pytest's outcomes are looked up, not imported: only a run of pytest can raise them.
    """
    outcomes = sys.modules.get("_pytest.outcomes")
    ours = (KeyboardInterrupt,) if outcomes is None else (KeyboardInterrupt, outcomes.OutcomeException)
    return isinstance(error, ours)


def load_accountant(target: str) -> Accountant:
    """The accountant that a user names: one that is registered, `module:function`, or `FILE.py:function`.

    Modules are looked up in the current directory too.

    Raises:
        InputError: there is no such name, module, file or attribute, or it is no accountant.
    """
    if ":" not in target:
        made: Accountant = registry.create("accountant", target)
        return made
    target_object = _import_target(target)
    return accountant_of(target_object, target)


def accountant_of(candidate: Any, name: str) -> Accountant:
    """An accountant out of a user's object: itself, what it makes, or the least function wrapped.

    Raises:
        InputError: it is none of these.
    """
    if not inspect.isclass(candidate) and _is_accountant(candidate, name):
        made: Accountant = candidate
        return made
    if not callable(candidate):
        _require_name(candidate, name)
        raise InputError(f"accountant {name!r} is no function and no accountant: {type(candidate).__name__}")
    maker: Callable[..., Any] = candidate
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError) as error:
        raise InputError(f"accountant {name!r} has no signature that Python can read") from error
    names = {parameter.name for parameter in parameters}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if takes_any or names.issuperset(PARAMETERS):
        _require_plain(maker, name)
        _require_our_keywords(parameters, name)
        return FunctionAccountant(name=name, function=maker)
    if not any(parameter.default is parameter.empty for parameter in parameters):
        try:
            made = maker()
        except BaseException as error:
            if is_interruption(error):
                raise
            raise InputError(f"accountant {name!r} cannot be made: {error_line(error)}") from error
        if _is_accountant(made, name):
            return made
        _require_name(made, name)
    raise InputError(
        f"accountant {name!r} must take the keywords {', '.join(PARAMETERS)}, or be or make an object with "
        f"`name` and `epsilon(event, *, delta, adjacency)`; it takes ({', '.join(sorted(names))})"
    )


def _is_accountant(candidate: Any, name: str) -> bool:
    """Whether an object has what `Accountant` asks for.

    InputError where its own code fails in the check, or its `epsilon` cannot be asked as it will be.
    """
    try:
        is_accountant = isinstance(candidate, Accountant)
        answers = candidate.epsilon if is_accountant else None
    except Exception as error:
        raise InputError(f"accountant {name!r} cannot be looked at: {error_line(error)}") from error
    if answers is not None:
        _require_plain(answers, name)
        try:
            # Of the wrapper, not of what it wraps: it is what is called.
            inspect.signature(answers, follow_wrapped=False).bind(None, delta=0.0, adjacency=None)
        except ValueError:  # It has no signature that Python can read.
            return is_accountant
        except TypeError as error:
            raise InputError(
                f"accountant {name!r}: `epsilon` cannot be called as epsilon(event, delta=, adjacency=): "
                f"{error}"
            ) from error
    return is_accountant


def _require_plain(function: Any, name: str) -> None:
    """InputError for a function whose call returns a coroutine or a generator."""
    called = inspect.getattr_static(type(function), "__call__", None)
    for candidate in (function, called):
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise InputError(f"accountant {name!r} must answer by a plain function, not by an `async def`")
        if inspect.isgeneratorfunction(candidate):
            raise InputError(f"accountant {name!r} must answer by `return`, not by `yield`")


def _require_our_keywords(parameters: Iterable[inspect.Parameter], name: str) -> None:
    """InputError for a function with a parameter that must be given, and that no call of ours gives."""
    for parameter in parameters:
        is_variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if is_variable or parameter.default is not parameter.empty:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InputError(f"accountant {name!r} must take {parameter.name!r} as a keyword")
        if parameter.name not in PARAMETERS:
            raise InputError(
                f"accountant {name!r} needs the keyword {parameter.name!r}, which it is never given: "
                f"only {', '.join(PARAMETERS)} are"
            )


def _require_name(candidate: Any, name: str) -> None:
    """InputError for an object that answers epsilon, and lacks only a name."""
    if callable(getattr(candidate, "epsilon", None)) and not hasattr(candidate, "name"):
        raise InputError(f"accountant {name!r} has `epsilon`, but its `name` is missing")


def _import_target(target: str) -> Any:
    """The attribute that `module:attribute` or `FILE.py:attribute` names."""
    source, _, attribute = target.rpartition(":")
    if not source or not attribute:
        raise InputError(f"accountant must read module:function or FILE.py:function, got {target!r}")
    path, is_path = Path(source), source.startswith(".") or "/" in source or os.sep in source
    if path.is_file() and (is_path or source.endswith(".py")):
        found = import_file(path)
    elif is_path:
        problem = "is not a file" if path.exists() else "does not exist"
        raise InputError(f"accountant {target!r}: file {source!r} {problem}")
    else:
        found = _import_module(source, target)
    for piece in attribute.split("."):
        if not hasattr(found, piece):
            raise InputError(f"accountant {target!r}: {source!r} has no attribute {attribute!r}")
        found = getattr(found, piece)
    return found


def _import_module(name: str, target: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if is_interruption(error):
            raise
        missing = f"; there is no file {name!r}" if name.endswith(".py") else ""
        reason = error_line(error)
        raise InputError(f"accountant {target!r}: cannot import {name!r}: {reason}{missing}") from error

"""NumPy's and Python's generators of random numbers, as a replayed training finds them.

While `own_generators` is entered, the names by which code makes generators, or draws without one, are ours:
also those that a user's file takes by name when it is loaded. They draw as theirs do, and tell a listener, if
there is one. What was made before, or is copied, draws unheard.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

_ORDINARY = ("normal", "standard_normal", "laplace")
"""NumPy's draws of noise."""

_UNIFORM = ("random", "uniform", "rand", "random_sample", "ranf", "sample")

_OTHER = (
    "exponential",
    "standard_exponential",
    "gumbel",
    "logistic",
    "geometric",
    "gamma",
    "standard_gamma",
    "lognormal",
    "poisson",
    "binomial",
    "negative_binomial",
    "standard_cauchy",
    "standard_t",
    "chisquare",
    "multivariate_normal",
    "vonmises",
    "triangular",
    "weibull",
    "beta",
    "dirichlet",
)
"""NumPy's draws that no sampler makes."""

_OTHER_PYTHON = ("expovariate", "lognormvariate", "betavariate", "gammavariate", "gauss", "normalvariate")
"""Python's draws that no sampler makes."""


class Listener(Protocol):
    """Hears of draws, and says what the code gets."""

    def uses(self, key: object, state: Callable[[], Any]) -> None:
        """A generator is drawn from, whose state tells two runs apart."""

    def numpy(self, drawn: Any, mean: Any) -> Any:
        """Returns a draw of NumPy's noise, or what stands for it."""

    def laplace(self, drawn: Tensor, mean: Tensor) -> Tensor:
        """Returns a draw of torch's Laplace noise, or what stands for it."""

    def uniforms(self, drawn: Any) -> Any:
        """Returns a draw of NumPy's uniform numbers, or what stands for it."""

    def chosen(self, options: int) -> None:
        """One of so many options is drawn, by probabilities that the code gives."""

    def other(self, drawn: Any) -> Any:
        """Returns a draw that no sampler makes, or what stands for it."""


_listeners: list[Listener] = []


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Tell this listener of all draws, and no other one."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _heard(name: str, drawing: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A draw by one of NumPy's functions or methods of this name."""
    drawn = drawing(*args, **kwargs)
    if not _listeners:
        return drawn
    listener = _listeners[-1]
    if name in _ORDINARY or name == "randn":
        has_mean = name in ("normal", "laplace")
        return listener.numpy(drawn, kwargs.get("loc", args[0] if args else 0.0) if has_mean else 0.0)
    if name in ("choice", "choices"):
        place = 3 if name == "choice" else 1
        weights = kwargs.get("p", kwargs.get("weights", args[place] if len(args) > place else None))
        if weights is not None:
            listener.chosen(len(weights) if hasattr(weights, "__len__") else 1)
    if name in _UNIFORM:
        return listener.uniforms(drawn)
    return listener.other(drawn) if name in _OTHER or name in _OTHER_PYTHON else drawn


class _AsTheirs(type):
    """Of classes that stand for another one: what is an instance of that is one of these."""

    def __instancecheck__(cls, instance: object) -> bool:
        theirs = vars(cls).get("_stands_for")
        return isinstance(instance, theirs) if theirs else super().__instancecheck__(instance)


def _telling(theirs: type, state: Callable[[Any], Any]) -> type:
    """A class of generators like theirs, whose draws are heard, and the states of those drawn from."""

    def method(name: str) -> Callable[..., Any]:
        def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _listeners:
                _listeners[-1].uses(self, lambda: state(self))
            drawing = partial(getattr(theirs, name), self)
            is_coin = theirs is random.Random and name not in (*_OTHER_PYTHON, "choices")
            return drawing(*args, **kwargs) if is_coin else _heard(name, drawing, args, kwargs)

        return draw

    names = [name for name in dir(theirs) if not name.startswith("_") and callable(getattr(theirs, name))]
    kept = {"spawn", "seed", "get_state", "set_state", "getstate", "setstate"}
    methods = {name: method(name) for name in names if name not in kept}
    like = {name: getattr(theirs, name) for name in ("__doc__", "__module__", "__qualname__")}
    return _AsTheirs(theirs.__name__, (theirs,), {**methods, **like, "_stands_for": theirs})


_Generator = _telling(np.random.Generator, lambda made: repr(made.bit_generator.state))
_RandomState = _telling(np.random.RandomState, lambda made: repr(made.get_state(legacy=False)))
_Random = _telling(random.Random, random.Random.getstate)

_make = np.random.default_rng


def _default_rng(seed: Any = None) -> Any:
    return _Generator(_make(seed).bit_generator)


@contextmanager
def own_generators() -> Iterator[None]:
    """Let code that is loaded or called meanwhile find our generators."""
    if np.random.default_rng is _default_rng:  # Entered before.
        yield
        return
    rsample = torch.distributions.Laplace.rsample

    def laplace(self: Any, sample_shape: Any = None) -> Tensor:
        drawn = rsample(self, torch.Size() if sample_shape is None else sample_shape)
        return _listeners[-1].laplace(drawn, self.loc) if _listeners else drawn

    def function(module: Any, name: str) -> Any:
        drawing = getattr(module, name)
        return patch.object(module, name, lambda *args, **kwargs: _heard(name, drawing, args, kwargs))

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.distributions.Laplace, "rsample", laplace))
        stack.enter_context(patch.object(np.random, "default_rng", _default_rng))
        stack.enter_context(patch.object(np.random, "Generator", _Generator))
        stack.enter_context(patch.object(np.random, "RandomState", _RandomState))
        stack.enter_context(patch.object(random, "Random", _Random))
        for name in (*_OTHER_PYTHON, "choices"):
            stack.enter_context(function(random, name))
        for name in (*_ORDINARY, "randn", "choice", *_UNIFORM, *_OTHER):
            if hasattr(np.random, name):
                stack.enter_context(function(np.random, name))
        yield

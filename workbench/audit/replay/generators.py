"""NumPy's, Python's and torch's draws of random numbers, as a replayed training finds them; clipping too.

While `own_generators` is entered, the names by which code makes generators, or draws without one, are ours:
also those that a user's file takes by name when it is loaded. They draw as theirs do, and tell a listener, if
there is one. What was made before draws unheard; of the two global generators the listener is told after each
draw that is heard, so that it can see whether there were others.

torch's draws are heard where its dispatcher looks for the kernel of an operator: in all threads, in code that
is mapped over a batch, and in C++. What draws nothing runs as fast as ever.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import torch
from scipy.stats import laplace, norm
from torch import Tensor

from workbench.audit.replay.clipping import own_clipping

NOISE, MEAN, UNIFORM, CHOICE, INDEX, OTHER = (
    "noise",
    "noise about a mean",
    "uniform",
    "choice",
    "index",
    "other",
)
"""What is drawn: noise about zero, or about the first argument; uniform numbers, as samplers draw too;
options; whole numbers; and what no sampler draws. All else is an order or a state."""

_NUMPY: Mapping[str, str] = {
    **dict.fromkeys(("standard_normal", "randn"), NOISE),
    **dict.fromkeys(("normal", "laplace", "multivariate_normal"), MEAN),
    **dict.fromkeys(("random", "uniform", "rand", "random_sample", "ranf", "sample"), UNIFORM),
    "choice": CHOICE,
    **dict.fromkeys(("integers", "randint"), INDEX),
    **dict.fromkeys(
        (
            *("exponential", "standard_exponential", "gumbel", "logistic", "geometric", "gamma"),
            *("standard_gamma", "lognormal", "poisson", "binomial", "negative_binomial", "beta", "dirichlet"),
            *("standard_cauchy", "standard_t", "chisquare", "vonmises", "triangular", "weibull"),
        ),
        OTHER,
    ),
}

_PYTHON: Mapping[str, str] = {
    **dict.fromkeys(("random", "uniform"), UNIFORM),
    "choices": CHOICE,
    **dict.fromkeys(
        (
            *("gauss", "normalvariate", "expovariate", "lognormvariate", "betavariate", "gammavariate"),
            *("triangular", "vonmisesvariate", "paretovariate", "weibullvariate"),
        ),
        OTHER,
    ),
}


COMPARISONS = ("lt", "le", "gt", "ge")
"""Operators of torch that are heard too: a sampler compares its coins."""


class Listener(Protocol):
    """Hears of draws, and says what the code gets."""

    def torch(self, func: Any, drawn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns what an operator of torch's draws, or a comparison, or what stands for it."""

    def uses(self, key: object, state: Callable[[], Any]) -> None:
        """A generator is drawn from, whose state tells two runs apart."""

    def moved(self) -> None:
        """A global generator was drawn from, or set, by a call that is heard."""

    def numpy(self, drawn: Any, mean: Any) -> Any:
        """Returns a draw of NumPy's noise, or what stands for it."""

    def laplace(self, drawn: Tensor, mean: Tensor) -> Tensor:
        """Returns a draw of torch's Laplace noise, or what stands for it."""

    def uniform(self, drawn: Any) -> Any:
        """Returns a draw of uniform numbers, or what stands for it."""

    def chosen(self, options: int, drawn: Any) -> None:
        """Some of so many options are drawn, by probabilities that the code gives."""

    def indexed(self, options: int, drawn: Any) -> None:
        """Several of so many options are drawn at once."""

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


_muted = threading.local()


@contextmanager
def _unheard() -> Iterator[None]:
    """Let draws of this thread within a draw, as Python's generators make, go unheard."""
    held = getattr(_muted, "is_on", False)
    _muted.is_on = True
    try:
        yield
    finally:
        _muted.is_on = held


def _listener() -> Listener | None:
    """Who hears the draws of this thread now."""
    heard = _listeners[-1:]
    return heard[0] if heard and not getattr(_muted, "is_on", False) else None


def _heard(role: str, weights_at: int, drawing: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A draw of a role; `weights_at`: the argument that has the probabilities of a choice."""
    listener = _listener()
    if listener is None:
        return drawing(*args, **kwargs)
    with _unheard():
        drawn = drawing(*args, **kwargs)
    if role in (NOISE, MEAN):
        given = kwargs.get("loc", kwargs.get("mean", args[0] if args else 0.0))
        mean = np.asarray(given) if role == MEAN else 0.0
        return listener.numpy(drawn, mean)
    if role == CHOICE:
        given = args[weights_at] if len(args) > weights_at else None
        weights = kwargs.get("p", kwargs.get("weights", kwargs.get("cum_weights", given)))
        if weights is not None:
            listener.chosen(len(weights) if hasattr(weights, "__len__") else 1, drawn)
        options = kwargs.get("a", kwargs.get("population", args[0] if args else 0))
        _indexed(listener, len(options) if hasattr(options, "__len__") else options, drawn)
        return drawn
    if role == INDEX:
        ends = [end for end in (*args[:2], kwargs.get("low"), kwargs.get("high")) if end is not None]
        _indexed(listener, ends[-1] if ends else 0, drawn)
        return drawn
    if role == UNIFORM:
        return listener.uniform(drawn)
    return listener.other(drawn) if role == OTHER else drawn


def _indexed(listener: Listener, options: Any, drawn: Any) -> None:
    """Tell of several whole numbers or options, in one row, of so many."""
    if isinstance(options, int | np.integer) and np.ndim(drawn) == 1:
        listener.indexed(int(options), drawn)


class _AsTheirs(type):
    """Of classes that stand for another one: what is an instance of that is one of these."""

    def __instancecheck__(cls, instance: object) -> bool:
        theirs = vars(cls).get("_stands_for")
        return isinstance(instance, theirs) if theirs else super().__instancecheck__(instance)


def _telling(theirs: type, state: Callable[[Any], Any], roles: Mapping[str, str], *, weights_at: int) -> type:
    """A class of generators like theirs, whose draws are heard, and the states of those drawn from."""

    def method(name: str) -> Callable[..., Any]:
        def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (listener := _listener()) is not None:
                listener.uses(self, lambda: state(self))
            return _heard(roles.get(name, ""), weights_at, partial(getattr(theirs, name), self), args, kwargs)

        return draw

    names = [name for name in dir(theirs) if not name.startswith("_") and callable(getattr(theirs, name))]
    kept = {"spawn", "seed", "get_state", "set_state", "getstate", "setstate"}
    methods = {name: method(name) for name in names if name not in kept}
    like = {name: getattr(theirs, name) for name in ("__doc__", "__module__", "__qualname__")}
    return _AsTheirs(theirs.__name__, (theirs,), {**methods, **like, "_stands_for": theirs})


_Generator = _telling(np.random.Generator, lambda made: repr(made.bit_generator.state), _NUMPY, weights_at=3)
_RandomState = _telling(
    np.random.RandomState, lambda made: repr(made.get_state(legacy=False)), _NUMPY, weights_at=3
)
_Random = _telling(random.Random, random.Random.getstate, _PYTHON, weights_at=1)

_make = np.random.default_rng


def _default_rng(seed: Any = None) -> Any:
    return _Generator(_make(seed).bit_generator)


def _functions(module: Any, theirs: type, roles: Mapping[str, str], *, weights_at: int) -> Iterator[Any]:
    """Patches of all functions of a module that draw from its global generator of this kind, or set it."""

    def telling(name: str, drawing: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            drawn = _heard(roles.get(name, ""), weights_at, drawing, args, kwargs)
            if (listener := _listener()) is not None:
                listener.moved()
            return drawn

        return draw

    public = {name for name in (*dir(theirs), "ranf", "sample") if not name.startswith("_")}
    for name in sorted(public - {"get_state", "getstate"}):
        if callable(drawing := getattr(module, name, None)):
            yield patch.object(module, name, telling(name, drawing))


def _of_scipy() -> Iterator[Any]:
    """Patches of the normal and Laplace distributions of SciPy, which hold NumPy's global generator."""

    def telling(drawing: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            if type(kwargs.get("random_state")) in (_Generator, _RandomState):
                return drawing(*args, **kwargs)  # That one tells of it.
            drawn = _heard(NOISE, 0, drawing, args, kwargs)
            if (listener := _listener()) is not None:
                listener.moved()
            return drawn

        return draw

    for standard in (norm, laplace):
        kind = type(standard)
        yield patch.object(kind, "_rvs", telling(kind._rvs))


@cache
def _heard_operators() -> tuple[Any, ...]:
    """All operators of torch that draw numbers, and the comparisons; none that are made of others."""
    found = []
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if namespace != "aten" or operator is None:
            continue
        is_made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
        if not is_made_of_others and (
            torch.Tag.nondeterministic_seeded in operator.tags or packet in COMPARISONS
        ):
            found.append(operator)
    return tuple(found)


def _kernel(operator: Any) -> Callable[..., Any]:
    """Calls an operator's own kernel, and tells of it."""
    keys_below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def called(keys: Any, *args: Any, **kwargs: Any) -> Any:
        below = keys & keys_below
        if below.highestPriorityTypeId() == torch._C.DispatchKey.Undefined:
            # A tensor is made, on the device that is named.
            device = torch.device(kwargs.get("device") or "cpu")
            key = getattr(torch._C.DispatchKey, torch._C._dispatch_key_for_device(device.type))
            below = torch._C.DispatchKeySet(key)
        listener = _listener()
        if listener is None:
            return operator.redispatch(below, *args, **kwargs)
        with _unheard():
            drawn = operator.redispatch(below, *args, **kwargs)
        return listener.torch(operator, drawn, args, kwargs)

    return called


@contextmanager
def _own_operators() -> Iterator[None]:
    """Put our kernels before those of all devices."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"(?s).*Overriding a previously registered kernel")
            for operator in _heard_operators():
                library.impl(operator, _kernel(operator), "BackendSelect", with_keyset=True)
        yield
    finally:
        library._destroy()


@contextmanager
def own_generators() -> Iterator[None]:
    """Let code that is loaded or called meanwhile find our generators, and functions that clip gradients."""
    if np.random.default_rng is _default_rng:  # Entered before.
        yield
        return
    rsample = torch.distributions.Laplace.rsample

    def rsampled(self: Any, sample_shape: Any = None) -> Tensor:
        drawn = rsample(self, torch.Size() if sample_shape is None else sample_shape)
        listener = _listener()
        return drawn if listener is None else listener.laplace(drawn, self.loc)

    with ExitStack() as stack:
        for patched in (
            *_functions(random, random.Random, _PYTHON, weights_at=1),
            *_functions(np.random, np.random.RandomState, _NUMPY, weights_at=3),
            patch.object(torch.distributions.Laplace, "rsample", rsampled),
            patch.object(np.random, "default_rng", _default_rng),
            patch.object(np.random, "Generator", _Generator),
            patch.object(np.random, "RandomState", _RandomState),
            patch.object(random, "Random", _Random),
            *_of_scipy(),
            *own_clipping(),
            _own_operators(),
        ):
            stack.enter_context(patched)
        yield

"""Draws of random numbers under a replay: noise is left out, what else is drawn is counted."""

from __future__ import annotations

import math
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from workbench.audit.replay.generators import COMPARISONS
from workbench.audit.replay.recording import Layout
from workbench.interfaces import FloatArray
from workbench.training.devices import random_states

if TYPE_CHECKING:
    from workbench.audit.replay.watching import Watch

FIRST = 64
"""Numbers by which a draw is known: as a parameter's initial weights, up to a factor, or as noise again."""

DEPTH = 24
"""Calls above a draw that are looked at."""

_NORMAL = ("normal", "normal_", "randn", "randn_like")

_UNIFORM = ("rand", "rand_like", "uniform", "uniform_")

_OF_SAMPLERS = ("randperm", "randint", "randint_like", "random_", "bernoulli", "bernoulli_", "multinomial")
"""Draws of orders, whole numbers and coins."""


class Silence:
    """Lets draws of noise happen, and gives a share of them."""

    def __init__(
        self, watch: Watch, shapes: frozenset[tuple[int, ...]], sizes: frozenset[int], records: int
    ) -> None:
        self._watch, self._shapes, self._sizes, self._records = watch, shapes, sizes, records
        self._lock = threading.RLock()
        self._early: list[tuple[int, FloatArray]] = []
        self._early_draws = 0
        self.shares: Sequence[float | Tensor] = (0.0,)
        self.layout, self.steps = Layout((), ()), 0
        self._at, self._used = -1, set[int]()
        self.still, self.disturbs, self.quiet = False, False, frozenset[int]()
        self.late: Sequence[int] = ()
        self.wide, self.centred = False, False
        self.disturbs_single = self.disturbs_parts = False
        self._parts: dict[int, Tensor] = {}
        self._compared: list[int] = []
        self._by_step: list[tuple[int, ...]] = []
        self._single, self._states = 0, _global_states()
        self.choices = 0
        self._coins: list[Tensor] = []
        self.after_first_gradient = False
        self._drawn = 0
        self._generators: list[Callable[[], Any]] = []
        self._known: set[int] = set()
        self._held: list[object] = []
        self._initial: list[object] = []

    def _left(self, drawn: Any, mean: Any) -> Any:
        """What is left of a draw of noise: its share of this step's, or each coordinate's own."""
        step = self._watch.step()
        share: Any = self.shares[min(step, len(self.shares) - 1)]
        if isinstance(share, Tensor):
            if step != self._at:
                self._at, self._used = step, set()
            found = self._part(share, tuple(drawn.shape))
            share = found.to(drawn) if isinstance(drawn, Tensor) else found.numpy()
        return mean + share * (drawn - mean)

    def _part(self, share: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The part of a flat share for the step's next parameter of this shape; 0 where there is none."""
        for number, (_, place) in enumerate(self.layout.slices()):
            own = self.layout.shapes[number]
            if number not in self._used and (shape == own or _is_flat(shape, frozenset({math.prod(own)}))):
                self._used.add(number)
                return share[place].reshape(shape)
        return share if shape == tuple(share.shape) else torch.zeros(shape)

    def is_noise(self, shape: Sequence[int], *, in_place: bool = False) -> bool:
        """A draw of a parameter's shape, or flat with as many entries, once there was a gradient.

        Before that, those that are known to be no initial weights; a parameter's own numbers, drawn in place,
        always are, and later too where torch initialises a model's. After the last step they are of something
        else, and stay; so does what comes before a step's gradients, where noise is known to come after them.
        """
        step = self._watch.step()
        if step < len(self.late) and self._watch.computed < self.late[step]:
            return False
        if self.wide:
            return self._is_late() and step < self.steps and not (in_place and _is_initialising())
        fits = self._fits(shape)
        if self._is_late() or not fits:
            is_other = not fits or (in_place and _is_initialising())
            is_after = self._watch.step() >= self.steps
            self._watch.drawn_after |= is_after and not is_other
            return not is_after and not is_other
        self._early_draws += not in_place
        return not in_place and self._early_draws in self.quiet

    def _fits(self, shape: Sequence[int]) -> bool:
        """Whether it is the shape of a parameter, or a flat one with as many entries as one or all have."""
        return tuple(shape) in self._shapes or _is_flat(shape, self._sizes)

    def _is_late(self) -> bool:
        return self.after_first_gradient or bool(self._watch.step())

    def _met(self, drawn: Any, *, in_place: bool = False, is_normal: bool = True) -> Any:
        """Another draw than noise: it may be of initial weights, which the first step shows."""
        shape = tuple(np.shape(drawn)) if not isinstance(drawn, Tensor) else tuple(drawn.shape)
        fits = self._fits(shape)
        if self._is_late() or not fits:
            if in_place and _is_initialising():  # Of another model, as where the best of several is taken.
                self._initial.append(drawn)
                return drawn
            self._watch.elsewhere()
            return self._disturbed(drawn, is_uniform=not is_normal)
        if not in_place:
            self._early.append(
                (self._early_draws if is_normal else -1 - len(self._early), first_numbers(drawn))
            )
        return drawn

    def _disturbed(self, drawn: Any, *, is_uniform: bool = False) -> Any:
        """Other numbers, half as far apart, where runs are to show whether any update depends on them.

        None apart where records are to be what they are without augmentation.
        """
        if not self.disturbs and not self.centred:
            return drawn
        share = 0.0 if self.centred else 0.5
        centre = (1.0 - share) * (0.5 if is_uniform else 0.0)
        if isinstance(drawn, Tensor):
            return drawn.mul_(share).add_(centre) if drawn.is_floating_point() else drawn
        if isinstance(drawn, np.ndarray):
            return np.asarray(share * drawn + centre).astype(drawn.dtype)
        return type(drawn)(share * drawn + centre)

    def not_initial(self, parameters: Sequence[Tensor]) -> frozenset[int]:
        """Which draws of parameters' shapes are, before the first step, no multiples of their weights.

        A single number is a multiple of any other, and says nothing.
        """
        found = set()
        flat = [first_numbers(p) for p in parameters]
        flat += [np.concatenate(flat)[:FIRST]]
        for number, drawn in self._early:
            size = float(np.linalg.norm(drawn))
            alike = [w for w in flat if w.size == drawn.size > 1 and w.any()]
            if not any(abs(float(w @ drawn)) >= (1 - 1e-6) * size * float(np.linalg.norm(w)) for w in alike):
                found.add(number)
        self._early.clear()
        return frozenset(found)

    def count_initial(self, called: Iterable[torch.nn.Module]) -> None:
        """At the end: what was initialised late is another draw, but for parameters of what was called."""
        owned = {id(p) for module in called for p in module.parameters()}
        for parameter in self._initial:
            if id(parameter) not in owned:
                self._watch.elsewhere()

    def uniform(self, drawn: Any, *, in_place: bool = False) -> Any:
        """A draw of uniform numbers, a sampler's if there are as many as records, or so many for each.

        Single ones are so many between two steps. Fewer than the records, but half of them or more, may be
        those of a sampler among some of them, where others are held out (`count_parts`).
        """
        size = drawn.numel() if isinstance(drawn, Tensor) else np.size(drawn)
        if not in_place and np.ndim(drawn) == 1:
            self._drawn_among(size)
        if size == 1 and not in_place and self._records > 1:
            self._single += 1
            return self._disturbed(drawn, is_uniform=True) if self.disturbs_single else drawn
        if self._may_be_part(drawn, in_place=in_place):
            self._coins = [*self._coins[-1:], drawn]
            self._parts[drawn.data_ptr()] = drawn
            return self._disturbed(drawn, is_uniform=True) if self.disturbs_parts else drawn
        if size == 0 or size % self._records:
            return self._met(drawn, in_place=in_place, is_normal=False)
        if isinstance(drawn, Tensor):
            self._coins = [*self._coins[-1:], drawn]
        return drawn

    def _may_be_part(self, drawn: Any, *, in_place: bool) -> bool:
        """Whether uniform numbers may be for some of the records, and are no initial weights."""
        if not isinstance(drawn, Tensor) or drawn.dim() != 1 or in_place:
            return False
        fits = tuple(drawn.shape) in self._shapes or drawn.numel() in self._sizes
        return self._records <= 2 * drawn.numel() < 2 * self._records and (self._is_late() or not fits)

    def count_parts(self) -> None:
        """At the end: what was compared is a sampler's if one draw is, of one size, before every step."""
        steps = self._watch.step()
        sampled, rest = self._by_step[:steps], self._by_step[steps:]
        if {len(sizes) for sizes in sampled} == {1} and len(set(sampled)) == 1 and not any(rest):
            return
        for _ in [size for sizes in self._by_step for size in sizes]:
            self._watch.part()

    def torch(self, func: Any, drawn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A draw of torch's, or a comparison, as the code gets it; of one thread at a time."""
        with self._lock:
            return self._torch(func, drawn, args, kwargs)

    def _torch(self, func: Any, drawn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags:
            shape = tuple(drawn.shape) if isinstance(drawn, Tensor) else ()
            self._drawn += hash((name, shape))  # In any order: threads draw in none.
            generator = kwargs.get("generator")
            if generator is not None:
                self.uses(generator, lambda: generator.get_state().numpy().tobytes())
        if self.still and name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if self.still and name == "bernoulli_" and drawn.is_floating_point():
            # torch leaves a probability out where it is the default.
            kept = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            return drawn.copy_(kept) if isinstance(kept, Tensor) else drawn.fill_(kept)
        is_draw = torch.Tag.nondeterministic_seeded in func.tags and isinstance(drawn, Tensor)
        in_place = name.endswith("_") and bool(args) and isinstance(args[0], torch.nn.Parameter)
        if name in COMPARISONS and any(map(self._is_coins, args)):
            self._chose(drawn)
            for one in args:
                if isinstance(one, Tensor) and self._parts.pop(one.data_ptr(), None) is not None:
                    self._compared.append(one.numel())
        if is_draw and name in ("randperm", "bernoulli") and drawn.dim() == 1:
            self._drawn_among(drawn.numel())
        if is_draw and name == "randint" and drawn.dim() == 1:
            self.indexed(args[1 if "low" in func._overloadname else 0], drawn)
        if is_draw and name == "multinomial":
            self.chosen(args[0].shape[-1], drawn)
            self.indexed(args[0].shape[-1], drawn)
        elif is_draw and name in ("bernoulli", "bernoulli_") and drawn.numel() == self._records:
            self._chose(drawn)
        elif is_draw and name in ("bernoulli", "bernoulli_") and drawn.numel() == 1:
            self._watch.elsewhere()
        if self.wide and is_draw and name in _UNIFORM and self.is_noise(drawn.shape, in_place=in_place):
            self._watch.note("uniform", drawn)
            ends = args[1:3] if name == "uniform_" and len(args) > 2 else (0.0, 1.0)
            return drawn.copy_(self._left(drawn, sum(ends) / 2))
        if is_draw and name in _UNIFORM:
            return self.uniform(drawn, in_place=in_place)
        if is_draw and name not in (*_NORMAL, *_OF_SAMPLERS) and "dropout" not in name:
            return self.other(drawn)
        if name not in _NORMAL or not isinstance(drawn, Tensor):
            return drawn
        if not self.is_noise(drawn.shape, in_place=in_place):
            return self._met(drawn, in_place=in_place)
        self._watch.note("normal", drawn)
        mean: Any = 0.0
        if name == "normal":
            mean = args[0]
        elif name == "normal_":
            mean = args[1] if len(args) > 1 else kwargs.get("mean", 0.0)
        return drawn.copy_(self._left(drawn, mean))

    def draws(self) -> int:
        """A hash of torch's draws so far, by name and shape, and of the states of generators met.

        To be asked at the end of an interval (`end_interval`).
        """
        states = (*(state.numpy().tobytes() for state in random_states()), *self._states)
        # The sum, as threads meet their generators in any order.
        return hash((self._drawn, *states, sum(hash(state()) for state in self._generators)))

    def uses(self, key: object, state: Callable[[], Any]) -> None:
        """A generator is drawn from, whose state tells two runs apart."""
        if id(key) not in self._known:
            self._known.add(id(key))
            self._held.append(key)
            self._generators.append(state)

    def moved(self) -> None:
        """A global generator was drawn from, or set, by a call that is heard."""
        self._states = _global_states()

    def end_interval(self) -> None:
        """Before each step, and at the end: see what was drawn since the last one."""
        if self._single % self._records:
            self._watch.single()
        self._single = 0
        for _ in self._parts:
            self._watch.part()
        self._by_step.append(tuple(self._compared))
        self._parts.clear()
        self._compared.clear()
        states = _global_states()
        if self._states != states:
            self._watch.unheard()
        self._states = states

    def chosen(self, options: int, drawn: Any) -> None:
        """Some of so many options are drawn: a sampler's options are the records."""
        self._drawn_among(options)
        if options % self._records:
            self._watch.elsewhere()
        else:
            self._chose(drawn)

    def indexed(self, options: int, drawn: Any) -> None:
        """Some of so many options are drawn at once: records, where there are as many."""
        if options != self._records or len(drawn) < 2:
            return
        seen = drawn.tolist() if isinstance(drawn, Tensor | np.ndarray) else drawn
        try:
            different = len(set(seen))
        except TypeError:  # Records themselves.
            different = len(set(map(id, seen)))
        if different < len(seen):
            self._watch.repeated(len(seen))

    def _drawn_among(self, count: int) -> None:
        """So many may be what a sampler draws from, where there are not more of them than records."""
        if count <= self._records:
            self._watch.among(count)

    def _is_coins(self, one: Any) -> bool:
        """Whether it is a sampler's last draw, or the one before, also under another name."""
        return isinstance(one, Tensor) and any(one.data_ptr() == coins.data_ptr() for coins in self._coins)

    def _chose(self, drawn: Any) -> None:
        """A sampler chose these records."""
        made = drawn.detach().cpu().numpy() if isinstance(drawn, Tensor) else drawn
        self.choices = hash((self.choices, made.tobytes() if isinstance(made, np.ndarray) else repr(made)))

    def other(self, drawn: Any) -> Any:
        """A draw that no sampler makes, and no noise of a parameter's shape."""
        self._watch.elsewhere()
        return drawn if self.centred else self._disturbed(drawn)

    def numpy(self, drawn: Any, mean: Any) -> Any:
        """A draw of NumPy's, or its mean where it is noise."""
        if not isinstance(drawn, np.ndarray) or not self.is_noise(drawn.shape):
            return self._met(drawn)
        self._watch.note("numpy", drawn)
        return self._left(drawn, mean).astype(drawn.dtype)

    def laplace(self, drawn: Tensor, mean: Tensor) -> Tensor:
        """A draw of torch's Laplace distribution, or its mean where it is noise."""
        if not self.is_noise(drawn.shape):
            met: Tensor = self._met(drawn)
            return met
        self._watch.note("laplace", drawn)
        left: Tensor = self._left(drawn, mean)
        return left


def _is_flat(shape: Sequence[int], sizes: frozenset[int]) -> bool:
    """Whether all entries lie along one dimension, and are so many."""
    return len(shape) > 0 and math.prod(shape) == max(shape) and max(shape) in sizes


def _is_initialising() -> bool:
    """Whether numbers are drawn within `torch.nn.init`."""
    frame: FrameType | None = sys._getframe(1)
    depth = 0
    while frame is not None and depth < DEPTH:
        if frame.f_globals.get("__name__") == "torch.nn.init":
            return True
        frame, depth = frame.f_back, depth + 1
    return False


def _global_states() -> tuple[Any, ...]:
    """The states of Python's and NumPy's global generators."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 - the user's code may draw from it
    return random.getstate(), numpy_state[1].tobytes(), numpy_state[2:]


def first_numbers(drawn: Any) -> FloatArray:
    """A copy of the first numbers of a draw."""
    numbers: FloatArray = torch.as_tensor(drawn).detach().reshape(-1)[:FIRST].cpu().double().numpy().copy()
    return numbers


@contextmanager
def gradients_told_to(told: Callable[[Any, Any], None]) -> Iterator[None]:
    """Tell of each gradient that is about to be computed: of what, and by what, if that is named.

    By all names under which a file may have `torch.autograd.grad` or `backward`.
    """
    call = torch.autograd.graph._engine_run_backward

    def computed(
        of: Any, given: Any, keeps_graph: Any, makes_graph: Any, by: Any, *args: Any, **kwargs: Any
    ) -> Any:
        told(of, by or None)
        return call(of, given, keeps_graph, makes_graph, by, *args, **kwargs)

    with patch.object(torch.autograd, "_engine_run_backward", computed):
        yield

"""What one run of a training function under hooks showed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The parameters of an optimizer, in its order: a name, a shape, and a slice of the flat gradient."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each."""
        return [int(np.prod(shape)) for shape in self.shapes]

    def slices(self) -> Iterator[tuple[str, slice]]:
        """Each parameter's name and place."""
        start = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            yield name, slice(start, start + size)
            start += size


@dataclass(frozen=True, kw_only=True)
class Modes:
    """How the runs of one training are read, all of them alike.

    Attributes:
        quiet: Draws before the first gradient that are noise of the first step (`Recording.early`).
        late: Whether only what is drawn between a step's last gradient and its update may be noise.
        wide: Whether all normal numbers that are drawn there are noise, of whatever shape, and torch's
            uniform ones.
        centred: Whether normal and uniform numbers that are no noise, no sampler's and no initial weights are
            their means, as those of augmentation.
        public: Optimizers, by the order of their first steps from 0, whose steps are neither recorded nor
            forced: they follow from no record, or from what the private one releases.
        follows: Whether the latter, so that their gradients are compared (`Recording.others`).
        whole: Parameters that need no gradient at a step are recorded too, as where they are freed later.
        tracked: None where steps are those of torch optimizers; else parameters by whose weights they are
            read, by their places, all of them where there is none (`WeightsWatch`).
    """

    quiet: frozenset[int] = frozenset()
    late: bool = False
    wide: bool = False
    centred: bool = False
    public: frozenset[int] = frozenset()
    follows: bool = False
    whole: bool = False
    tracked: frozenset[int] | None = None


@dataclass
class Recording:
    """What one run showed.

    Attributes:
        number: Of its seed.
        layouts: Of each optimizer, in the order of their first steps.
        optimizers: Which optimizer each step was of.
        models: Which parameters each optimizer trains: equal numbers for the same ones.
        orders: Of each of `layouts`, the place of its optimizer among all that took a step, from 0.
        gradients: Flat gradient of each step before anything was forced, float32 (float64 where a parameter
            is); before it was clipped, where nothing else was done to it after that.
        applied: The one of the step, likewise; the same one where it was not clipped.
        absent: Which parameters had no gradient at each step.
        weights: Flat weights before each step, likewise.
        draws: A hash of all random draws and generators' states before each step, and at the end; two runs
            with equal ones drew the same batches. Only with forced gradients.
        chosen: A hash of what was chosen among the records before each step: coins and options drawn by
            given probabilities, uniform numbers below something. Only with forced gradients.
        among: Of how many records a sampler draws, as far as is seen: the most coins at once, places of
            an order, or options, but for more than there are records. Only with forced gradients.
        rates: The rates of the parameter groups at each step; none where steps are read by the weights.
        inner: Whether each step came from within another of the same optimizer's, as where a subclass makes
            the gradient private and calls its parent's step; the outer one's gradient is not what is applied.
        others: A hash of the gradient of each step of optimizers that are to follow what is released.
        computed: How often a gradient was computed before each step, since the one before.
        frozen: Parameters of the called modules that no recorded step trains, at the first of these.
        result: What the function returned.
        buffers: What the modules that the finished model was asked by keep beside parameters, in the order of
            the calls.
        states: What the optimizers keep at the end, likewise.
        unlike: Names of what is left at the end (`leaks.parts_of`) that does not repeat itself.
        recognised: How many draws of noise were met, by their kind.
        numbers: How many numbers they had in all.
        noises: A hash of each of them that has `LEAST` numbers.
        early: Which draws of a parameter's shape before the first gradient are of no initial weights, from 1:
            they may be noise of the first step.
        elsewhere: Other draws that may be noise of something else: all but those of initial weights and those
            that samplers and dropout make (orders, whole numbers, coins, as many uniform numbers as records);
            a choice by given probabilities among so many options as there are records is a sampler's.
        unheard: How often a global generator had moved by draws that replay does not hear; each also counts
            as elsewhere.
        has_single: Whether single uniform numbers are drawn, not so many as records between two steps.
        repeated: How many places among the records were drawn at once, where some came twice.
        has_parts: Whether uniform numbers are drawn for half of the records or more, and are no sampler's.
        changes: Whether an optimizer's trained parameters change between its steps.
        blurred: Whether numbers of a parameter's shape are drawn after the last step, and weights are moved
            then. Only with forced gradients, and where steps are those of torch optimizers.
        last: Flat weights once the training is over, those of the last step.
        moved: Of a run that is read by its weights, which parameters each step moved, by their places.
        untold: Of such a run, why its steps cannot be told; empty where they can.
    """

    number: int = 0
    layouts: list[Layout] = field(default_factory=list)
    optimizers: list[int] = field(default_factory=list)
    models: list[int] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    applied: list[Tensor] = field(default_factory=list)
    absent: list[tuple[bool, ...]] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    among: int = 0
    weights: list[Tensor] = field(default_factory=list)
    rates: list[tuple[float, ...]] = field(default_factory=list)
    inner: list[bool] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    frozen: list[Tensor] = field(default_factory=list)
    result: Any = None
    buffers: tuple[tuple[str, Tensor], ...] = ()
    states: tuple[tuple[str, Tensor], ...] = ()
    unlike: frozenset[str] = frozenset()
    recognised: dict[str, int] = field(default_factory=dict)
    numbers: int = 0
    noises: list[int] = field(default_factory=list)
    early: frozenset[int] = frozenset()
    elsewhere: int = 0
    unheard: int = 0
    has_single: bool = False
    has_parts: bool = False
    repeated: int = 0
    changes: bool = False
    blurred: bool = False
    moved: list[frozenset[int]] = field(default_factory=list)
    last: Tensor | None = None
    untold: str = ""

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return len(self.gradients)

    def drop_last(self) -> None:
        """Forget the last step."""
        for kept in (self.gradients, self.applied, self.weights, self.optimizers, self.absent, self.inner):
            kept.pop()
        for kept in (self.draws, self.chosen):
            del kept[-1:]
        del self.rates[-1:], self.computed[-1:]


def states_of(optimizers: Iterable[torch.optim.Optimizer]) -> tuple[tuple[str, Tensor], ...]:
    """Copies of the tensors that optimizers keep of their parameters (moments), in the order of these."""
    return tuple(
        (str(name), value.detach().cpu().clone())
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    )


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All entries on the CPU, float32, or float64 if any tensor is."""
    kind = torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
    dense = [tensor.detach().to_dense() if tensor.is_sparse else tensor.detach() for tensor in tensors]
    return torch.cat([tensor.reshape(-1).to("cpu", kind) for tensor in dense])


def shared(tensor: Tensor, those: Sequence[Tensor], step: int) -> Tensor:
    """The other run's tensor of this step where the two are equal."""
    return those[step] if step < len(those) and torch.equal(those[step], tensor) else tensor

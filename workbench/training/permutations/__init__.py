"""Permutations of a module's weights that keep its function (Yang, Ji and Xiang, Theorems 3 and 4).

Hidden units of a two-layer perceptron may be permuted if the rows of its first layer, their biases and the
columns of its second layer move together (Eq. 13). In an attention head the outputs of queries and keys may
be permuted together, with one permutation per head, and those of the values together with the inputs of the
output layer (Eqs. 14, 15). Gradients of the permuted weights are the permuted gradients, so an optimiser that
treats all numbers alike continues unchanged if its state moves along.

Definition 4 has no biases. Biases of queries, keys and values move with their outputs, or the function would
change. Parameters that the theorems do not cover are left alone, each with a reason.

    >>> from torch import nn
    >>> group = PermutationGroup.of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    >>> [(unit.name, unit.kind, unit.size) for unit in group.units]
    [('0.hidden', 'mlp', 3)]
    >>> dict(group.left_alone)
    {'2.bias': 'added after the permuted sum'}
    >>> round(group.shuffled_share, 3)
    0.923
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.interfaces import IntArray
from workbench.training.permutations.search import Reach, Slot, Unit, is_normalisation, search

__all__ = ["Permutation", "PermutationGroup", "Reach", "Slot", "Unit", "permute_state_"]

TIED = "tied"
FROZEN = "frozen partner"
SINGLE = "a single index"
NORMALISATION = "normalisation"
EMBEDDING = "embedding"
UNCOVERED = "no theorem covers it"
UNKNOWN = "unknown architecture"

AT_A_TIME, MOST_INDICES = 16, 1 << 18
"""Permutations that a stream draws at a time, and the most indices that they may have together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PermutationGroup:
    """The permutations of a module's trainable parameters that leave its function unchanged.

    Attributes:
        units: Sets of indices that are permuted independently of each other.
        shapes: Shape of each trainable parameter.
        left_alone: Trainable parameters that no unit moves, each with its reason.
    """

    units: tuple[Unit, ...]
    shapes: Mapping[str, torch.Size]
    left_alone: Mapping[str, str]

    @classmethod
    def of(cls, module: nn.Module, reach: Reach | None = None) -> PermutationGroup:
        """The permutations that the theorems allow, and beyond them as far as `reach` says.

        A unit is in the group only if all its parameters are trainable and untied.
        """
        searched = search(module, reach or Reach())
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        reasons = dict(searched.reasons)
        tied = _tied(module)
        units = []
        for unit in searched.units:
            reason = _refusal(unit, trainable, tied)
            if reason:
                for slot in unit.slots:
                    reasons[slot.parameter] = reason
            else:
                units.append(unit)
        moved = {slot.parameter for unit in units for slot in unit.slots}
        known = bool(searched.units or searched.reasons)
        left = {
            name: TIED if name in tied else reasons.get(name) or _reason(module, name, known=known)
            for name in trainable
            if name not in moved
        }
        return cls(
            units=tuple(units),
            shapes=MappingProxyType({name: p.shape for name, p in trainable.items()}),
            left_alone=MappingProxyType(left),
        )

    @cached_property
    def trainable_count(self) -> int:
        """Number d of trainable weights."""
        return sum(shape.numel() for shape in self.shapes.values())

    @cached_property
    def shuffled_count(self) -> int:
        """Number of trainable weights that some unit moves."""
        still = dict.fromkeys(self.shapes, 1.0)
        sizes: dict[tuple[str, int], int] = {}
        for unit in self.units:
            for slot in unit.slots:
                key = (slot.parameter, slot.axis)
                sizes[key] = sizes.get(key, 0) + unit.size
        for (name, axis), moved in sizes.items():
            still[name] *= 1 - moved / self.shapes[name][axis]
        return sum(round(shape.numel() * (1 - still[name])) for name, shape in self.shapes.items())

    @property
    def shuffled_share(self) -> float:
        """Share of the trainable weights that some unit moves (the "shuffle ratio" of Table I)."""
        return self.shuffled_count / self.trainable_count if self.trainable_count else 0.0

    @property
    def log_size(self) -> float:
        """Natural logarithm of the number of permutations."""
        return math.fsum(math.lgamma(unit.size + 1) for unit in self.units)

    def identity(self) -> Permutation:
        """The permutation that moves nothing."""
        return Permutation(group=self, order=self._program.still)

    def draw(self, rng: np.random.Generator) -> Permutation:
        """A uniform permutation: of each unit independently, in their order."""
        return Permutation(group=self, order=self._program.drawn(rng, 1)[0])

    def draws(self, rng: np.random.Generator) -> Iterator[Permutation]:
        """Permutations without end, the same as of repeated `draw`, at less than half the cost.

        Several are drawn in advance, so `rng` must not be used elsewhere.
        """
        cpu = torch.device("cpu")
        program = self._program
        count = max(1, min(AT_A_TIME, MOST_INDICES // program.still.size))
        while True:
            orders = program.drawn(rng, count)
            for order, row in zip(orders, program.patterns(orders), strict=True):
                yield Permutation(group=self, order=order, _kept={cpu: program.split(row)})

    def permutation(self, indices: Mapping[str, IntArray]) -> Permutation:
        """The permutation with these indices by unit, `new[i] = old[indices[i]]`; other units stay.

        Raises `InputError`: unknown unit, or indices that are no permutation of it.
        """
        places = dict(zip((unit.name for unit in self.units), self._program.bounds, strict=True))
        order = self._program.still.copy()
        for name, given in indices.items():
            if name not in places:
                raise unknown_name("unit", name, places)
            start, end = places[name]
            if not np.array_equal(np.sort(np.asarray(given)), np.arange(end - start)):
                raise InputError(f"indices of {name!r} must be a permutation of 0..{end - start - 1}")
            order[start:end] = given
        return Permutation(group=self, order=frozen(order))

    @cached_property
    def _program(self) -> Program:
        return Program.of(self.units, self.shapes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Permutation:
    """An immutable permutation of a group, made by `PermutationGroup`.

    `group`: the group. `order`: the indices of all units one after the other, each unit's counted from 0,
    then a 0.
    """

    group: PermutationGroup
    order: IntArray
    _kept: dict[torch.device, tuple[Tensor, ...]] = field(default_factory=dict, repr=False)

    @cached_property
    def indices(self) -> Mapping[str, IntArray]:
        """The permutation of each unit, `new[i] = old[indices[i]]`; shape `(size,)`, read-only."""
        places = zip(self.group.units, self.group._program.bounds, strict=True)
        return MappingProxyType({unit.name: self.order[start:end] for unit, (start, end) in places})

    def __eq__(self, other: object) -> bool:
        """Whether both move the same units in the same way."""
        if not isinstance(other, Permutation):
            return NotImplemented
        return self.indices.keys() == other.indices.keys() and all(
            np.array_equal(indices, other.indices[name]) for name, indices in self.indices.items()
        )

    def __hash__(self) -> int:
        return hash(tuple((name, indices.tobytes()) for name, indices in sorted(self.indices.items())))

    def then(self, other: Permutation) -> Permutation:
        """This permutation followed by `other`, of a group with the same units."""
        if self.group is not other.group and self.group.units != other.group.units:
            raise InputError("other must be a permutation of the same units")
        order = self.order.copy()
        order[:-1] = self.order[other.order[:-1] + self.group._program.begins]
        return Permutation(group=self.group, order=frozen(order))

    def inverse(self) -> Permutation:
        """The permutation that undoes this one."""
        program = self.group._program
        order = program.still.copy()
        order[self.order[:-1] + program.begins] = program.still[:-1]
        return Permutation(group=self.group, order=frozen(order))

    def apply_(self, tensors: Mapping[str, Tensor]) -> None:
        """Permute weights, gradients or an optimiser's state by parameter name, in place.

        Each tensor is of its parameter's shape, or has trial axes in front of it. Names may be missing; those
        that the group does not have are ignored.
        """
        with torch.no_grad():
            for name, shape, axes in self.group._program.moves:
                tensor = tensors.get(name)
                if tensor is None:
                    continue
                if tensor.shape[tensor.ndim - len(shape) :] != shape:
                    raise InputError(
                        f"tensor of {name!r} must have shape {tuple(shape)}, got {tuple(tensor.shape)}"
                    )
                tensor.copy_(self._moved(tensor, axes))

    def applied(self, vector: Tensor, layout: Mapping[str, tuple[slice, torch.Size]]) -> Tensor:
        """The permuted copy of a flat vector of shape `(..., d)`; `layout` is that of `Signals`."""
        moved = vector.clone(memory_format=torch.contiguous_format)
        parts = ((name, moved[..., place], shape) for name, (place, shape) in layout.items())
        self.apply_({name: part.view(*part.shape[:-1], *shape) for name, part, shape in parts})
        return moved

    def _moved(self, tensor: Tensor, axes: Iterable[tuple[int, int]]) -> Tensor:
        """A copy, permuted along pairs of an axis and its pattern."""
        patterns = self._kept.get(tensor.device)
        if patterns is None:
            program = self.group._program
            patterns = program.split(program.patterns(self.order[None])[0].to(tensor.device))
            self._kept[tensor.device] = patterns
        for axis, pattern in axes:
            tensor = tensor.index_select(axis, patterns[pattern])
        return tensor


def permute_state_(
    permutation: Permutation, optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]
) -> None:
    """Permute an optimiser's state with the weights: tensors of a parameter's shape are replaced by copies.

    Raises `UnsupportedError`: some state of a permuted parameter is neither of its shape nor a single number;
    nothing was moved.
    """
    moves: list[tuple[dict[str, Tensor], str, Tensor, tuple[tuple[int, int], ...]]] = []
    for name, _, axes in permutation.group._program.moves:
        parameter = parameters.get(name)
        state = None if parameter is None else optimizer.state.get(parameter)
        if parameter is None or state is None:
            continue
        for kind, value in state.items():
            if not isinstance(value, Tensor) or value.ndim == 0:
                continue
            if value.shape != parameter.shape:
                raise UnsupportedError(
                    f"{type(optimizer).__name__} keeps {kind!r} of {name!r} in shape {tuple(value.shape)}: "
                    "it cannot be permuted with the weights"
                )
            moves.append((state, kind, value, axes))
    with torch.no_grad():
        for state, kind, value, axes in moves:
            state[kind] = permutation._moved(value, axes)


def _tied(module: nn.Module) -> frozenset[str]:
    """Names of parameters with several names."""
    names = {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)}
    counts = Counter(names.values())
    return frozenset(name for name, parameter in names.items() if counts[parameter] > 1)


def _refusal(unit: Unit, trainable: Mapping[str, nn.Parameter], tied: frozenset[str]) -> str:
    """Why a unit is not in the group; empty if it is."""
    names = {slot.parameter for slot in unit.slots}
    if names & tied:
        return TIED
    if not names <= trainable.keys():
        return FROZEN
    return SINGLE if unit.size < 2 else ""


def _reason(module: nn.Module, name: str, *, known: bool) -> str:
    """Why a parameter that the search did not reach is left alone."""
    owner = module.get_submodule(name.rpartition(".")[0])
    if is_normalisation(owner):
        return NORMALISATION
    if isinstance(owner, nn.Embedding):
        return EMBEDDING
    return UNCOVERED if known else UNKNOWN


@dataclass(frozen=True)
class Program:
    """The precomputed index operations of a group's permutations, which run in every training step.

    A permutation's order is the indices of all units one after the other, then a 0. Many axes are permuted
    alike (those of a weight and its bias), so an axis refers to a pattern, the indices of a whole axis. All
    patterns are concatenated in one vector, too.

    Attributes:
        bounds: Where each unit begins and ends in the order.
        still: The identity's order.
        begins: Where the unit of each index begins, shape `(indices,)`.
        moves: Parameter, its shape, and each permuted axis (counted from the end) with its pattern.
        lengths: Length of each pattern.
        sources: The place in the order of each entry of the patterns; the last, the 0, for what stays.
        starts: Added to each entry.
    """

    bounds: tuple[tuple[int, int], ...]
    still: IntArray
    begins: IntArray
    moves: tuple[tuple[str, torch.Size, tuple[tuple[int, int], ...]], ...]
    lengths: tuple[int, ...]
    sources: Tensor
    starts: Tensor

    @classmethod
    def of(cls, units: Sequence[Unit], shapes: Mapping[str, torch.Size]) -> Program:
        """The index program that applies a group's permutations."""
        parts: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for number, unit in enumerate(units):
            for slot in unit.slots:
                parts.setdefault((slot.parameter, slot.axis), []).append((number, slot.start))
        patterns: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
        moves: dict[str, list[tuple[int, int]]] = {}
        for (name, axis), slots in parts.items():
            pattern = patterns.setdefault((shapes[name][axis], tuple(slots)), len(patterns))
            moves.setdefault(name, []).append((axis - len(shapes[name]), pattern))
        ends = [0, *accumulate(unit.size for unit in units)]
        sources, starts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for length, slots_of_pattern in patterns:
            source, start_of = np.full(length, ends[-1]), np.arange(length)
            for number, start in slots_of_pattern:
                place = slice(start, start + units[number].size)
                source[place] = np.arange(ends[number], ends[number + 1])
                start_of[place] = start
            sources.append(source)
            starts.append(start_of)
        sizes = [unit.size for unit in units]
        return cls(
            bounds=tuple(pairwise(ends)),
            still=frozen(np.concatenate([*(np.arange(size) for size in sizes), np.zeros(1, np.int64)])),
            begins=np.repeat(np.array(ends[:-1], dtype=np.int64), sizes),
            moves=tuple((name, shapes[name], tuple(axes)) for name, axes in moves.items()),
            lengths=tuple(length for length, _ in patterns),
            sources=torch.from_numpy(np.concatenate(sources)),
            starts=torch.from_numpy(np.concatenate(starts)),
        )

    def drawn(self, rng: np.random.Generator, count: int) -> IntArray:
        """Orders of `count` uniform permutations as rows, which do not depend on the count."""
        orders = np.repeat(self.still[None], count, axis=0)
        for order in orders:
            for start, end in self.bounds:
                rng.shuffle(order[start:end])
        return frozen(orders)

    def patterns(self, orders: IntArray) -> Tensor:
        """All patterns, one row for each row of orders."""
        return torch.tensor(orders).index_select(1, self.sources).add_(self.starts)

    def split(self, patterns: Tensor) -> tuple[Tensor, ...]:
        """A row of `patterns`, split into the patterns."""
        return torch.split(patterns, list(self.lengths))


def frozen(order: IntArray) -> IntArray:
    """Make an array read-only, and return it."""
    order.flags.writeable = False
    return order

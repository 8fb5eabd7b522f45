"""Whether something differs because the code read its gradients before replay put run A's in their place.

Code that decides something by its noisy gradient (a rate, when to stop) may do so: that is paid for with the
noise. But run B and runs C have no noise, so that it reads sums of other records. Where a run C differs
beside the updates, the training is therefore repeated on run B's records, its noise such that the code reads
what it has read in C. What is then as in run C is made of that gradient alone; what differs then too follows
the gradient, and it is not known what else; what stays as in run B is a leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from itertools import zip_longest

import torch
from torch import Tensor

from workbench.audit.replay.leaks import difference, different, other_state, parts_of
from workbench.audit.replay.measured import STATES, Leak
from workbench.audit.replay.recording import Recording
from workbench.audit.replay.runs import Runs
from workbench.core.errors import InputError

MOST_ASKED = 6
"""Runs C whose differences are looked into."""

REACHED = 1e-2
"""Share of what a record moves by which the code may read something else than it has read in run C."""

ROUNDS = 1e-5
"""Share of the noise by which it may, since that is what moves the gradient."""

ROUNDED = 1e-6
"""Share of itself by which something may differ that follows the same numbers, rounded otherwise."""

NEARLY = 1e-4
"""Share of what run C has moved by which something may differ that follows the same numbers."""


class Answer(Enum):
    """Whether a difference follows gradients that the code reads."""

    LEAKS = "no gradient changes it"
    READ = "the gradients that were read make all of it"
    FOLLOWS = "gradients change it too"


def not_read(
    runs: Runs, a: Recording, b: Recording, found: Sequence[tuple[Leak, Recording]]
) -> tuple[list[Leak], bool]:
    """The first leak that follows no gradient, if there is one; and whether there are some of unknown kind.

    Args:
        found: Leaks, each with the run that showed it.
    """
    kinds: dict[tuple[str, int], list[tuple[Leak, Recording]]] = {}
    # Runs that move the fewest gradients tell the most: what is read in them is what run B reads.
    for leak, run in sorted(found, key=lambda one: _moves(b, one[1])):
        kinds.setdefault((leak.part or leak.what, leak.records), []).append((leak, run))
    asked: dict[int, _Repeated] = {}
    is_unknown = False
    # One of each kind, then the second of each, and so on.
    for leak, run in (one for same in zip_longest(*kinds.values()) for one in same if one is not None):
        if id(run) not in asked and len(asked) == MOST_ASKED:
            is_unknown |= run is kinds[leak.part or leak.what, leak.records][0][1]
            continue
        answer = asked.setdefault(id(run), _Repeated(runs, a, b, run)).answer(leak)
        if answer is Answer.LEAKS:
            return [leak], is_unknown
        is_unknown |= answer is Answer.FOLLOWS
    return [], is_unknown


def _moves(b: Recording, run: Recording) -> int:
    """Steps whose gradient a run moves."""
    return sum(not torch.equal(one, other) for one, other in zip(b.gradients, run.gradients, strict=False))


class _Repeated:
    """Run B once more, such that the code reads what it has read in run C."""

    def __init__(self, runs: Runs, a: Recording, b: Recording, c: Recording) -> None:
        self._runs, self._a, self._b, self._c = runs, a, b, c

    def answer(self, leak: Leak) -> Answer:
        """Of a difference of run C; not known where noise cannot make the code read what it did there."""
        run, b, c = self._run, self._b, self._c
        if run is None:
            return Answer.FOLLOWS
        if run.draws == b.draws and _is_same(run, b, leak.part):
            return Answer.LEAKS
        # Where the training goes another way, so does all that it leaves, and must be made of what is read.
        parts = [leak.part] if leak.part else ["", *(part for part in parts_of(c) if part not in b.unlike)]
        is_close = run.draws == c.draws and all(_is_close(run, c, b, part) for part in parts)
        return Answer.READ if is_close else Answer.FOLLOWS

    @cached_property
    def _run(self) -> Recording | None:
        """The run; None where it fails, or the code does not read in it what it has read in run C."""
        a, b, c = self._a, self._b, self._c
        steps = min(a.steps, b.steps, c.steps)
        moves = [c.gradients[step] - b.gradients[step] for step in range(steps)]
        noises = [a.gradients[step] - b.gradients[step] for step in range(steps)]
        if any(one.shape != other.shape for one, other in zip(moves, noises, strict=True)):
            return None
        shares = [torch.where(n != 0, m / n, 0.0) for m, n in zip(moves, noises, strict=True)]
        try:
            run = self._runs(forced=a, share=[*shares, 0.0])
        except InputError:  # As where it refuses numbers of its own: it reads them.
            return None
        return run if _reaches(run, c, moves, noises) else None


def _is_same(run: Recording, b: Recording, part: str) -> bool:
    """Whether a part of what two runs leave is the same, the trainings themselves where none is named."""
    if part == STATES:
        return other_state(b, run) is None
    if part:
        return part not in different(run, b)
    return difference(run, b, gradients=False) is None


def _is_close(run: Recording, c: Recording, b: Recording, part: str) -> bool:
    """Whether a run leaves what run C does, but for rounding and a small share of what run C has moved."""
    if not part and run.steps != c.steps:
        return False
    made, other, usual = (_kept(one, part) for one in (run, c, b))
    for kept in zip(made, other, usual, strict=False):
        if any(tensor is None or kept[0] is None or tensor.shape != kept[0].shape for tensor in kept):
            return False
        one, two, three = (tensor.double() for tensor in kept if tensor is not None)
        allowed = NEARLY * (two - three).abs() + ROUNDED * two.abs()
        if not bool((((one - two).abs() <= allowed) | (one == two)).all()):
            return False
    return True


def _kept(run: Recording, part: str) -> list[Tensor | None]:
    if part == STATES:
        return [value for _, value in run.states]
    return [parts_of(run).get(part)] if part else list(run.weights)


def _reaches(run: Recording, c: Recording, moves: Sequence[Tensor], noises: Sequence[Tensor]) -> bool:
    """Whether the code has read in a run what it has read in run C, as long as both have the same weights."""
    for step, (move, noise) in enumerate(zip(moves, noises, strict=True)):
        if not torch.equal(run.weights[step], c.weights[step]):
            break
        off = float((run.gradients[step] - c.gradients[step]).double().norm())
        if off > REACHED * float(move.double().norm()) + ROUNDS * float(noise.double().norm()):
            return False
    return True

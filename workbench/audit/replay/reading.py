"""Whether something differs because the code read its gradients before replay put run A's in their place.

Code that decides something by its noisy gradient (a rate, when to stop) may do so: that is paid for with the
noise. But run B and runs C have no noise, so that it reads sums of other records. Where a run C differs
beside the updates, the training is therefore repeated on run B's records, its noise such that the code reads
what it has read in C. What differs then too follows the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from workbench.audit.replay.leaks import leak_of, other_state
from workbench.audit.replay.measured import Leak
from workbench.audit.replay.recording import Recording
from workbench.audit.replay.runs import Runs
from workbench.core.errors import InputError

MOST_ASKED = 6
"""Differences that are looked into, each of another kind."""

REACHED = 1e-2
"""Share of what a record moves by which the code may read something else than it has read in run C."""

ROUNDS = 1e-5
"""Share of the noise by which it may, since that is what moves the gradient."""

OTHER_NOISE: tuple[Callable[[int], float], ...] = (
    lambda step: -1.0,
    lambda step: 100.0,
    lambda step: -100.0,
    lambda step: 2.0 ** (step % 10),
    lambda step: 2.0 ** -(step % 10),
    lambda step: 10.0 * (-1.0) ** step,
    lambda step: 10.0 * (-1.0) ** (step // 2),
)
"""What the noise of a step, counted from 0, is multiplied by where it cannot be given another form."""


def not_read(
    runs: Runs, a: Recording, b: Recording, found: Sequence[tuple[Leak, Recording]]
) -> tuple[list[Leak], bool]:
    """The first leak that follows no gradient, if there is one; and whether others do.

    Args:
        found: Leaks, each with the run that showed it.
    """
    kinds: dict[str, tuple[Leak, Recording]] = {}
    for leak, run in found:
        kinds.setdefault(leak.what, (leak, run))
    asked = list(kinds.values())[:MOST_ASKED]
    for place, (leak, run) in enumerate(asked):
        if not follows_gradients(runs, a, b, run):
            return [leak], place > 0
    return [], bool(asked)


def follows_gradients(runs: Runs, a: Recording, b: Recording, c: Recording) -> bool:
    """Whether run B is another one, beside its updates, where the code reads what it has read in run C.

    Where noise cannot make it read that, other noise is tried: larger, turned round, rising and falling.
    """
    steps = min(a.steps, b.steps, c.steps)
    moves = [c.gradients[step] - b.gradients[step] for step in range(steps)]
    noises = [a.gradients[step] - b.gradients[step] for step in range(steps)]
    if all(one.shape == other.shape for one, other in zip(moves, noises, strict=True)):
        shares = [torch.where(n != 0, m / n, 0.0) for m, n in zip(moves, noises, strict=True)]
        try:
            run = runs(forced=a, share=[*shares, 0.0])
        except InputError:  # As where it refuses numbers of its own: it reads them.
            return True
        if _differs(b, run):
            return True
        if _reaches(run, c, moves, noises):
            return False
    for noise in OTHER_NOISE:
        try:
            run = runs(forced=a, share=[noise(step) for step in range(a.steps + 1)])
        except InputError:
            return True
        if _differs(b, run):
            return True
    return False


def _differs(b: Recording, run: Recording) -> bool:
    return run.draws != b.draws or leak_of(b, run) is not None or other_state(b, run) is not None


def _reaches(run: Recording, c: Recording, moves: Sequence[Tensor], noises: Sequence[Tensor]) -> bool:
    """Whether the code has read in a run what it has read in run C, as long as both have the same weights."""
    for step, (move, noise) in enumerate(zip(moves, noises, strict=True)):
        if not torch.equal(run.weights[step], c.weights[step]):
            break
        off = float((run.gradients[step] - c.gradients[step]).double().norm())
        if off > REACHED * float(move.double().norm()) + ROUNDS * float(noise.double().norm()):
            return False
    return True

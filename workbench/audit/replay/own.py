"""The runs of a training on its own records: as it is, and without its noise."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from workbench.audit.replay.crafts import copies
from workbench.audit.replay.leaks import OTHERS, difference, different, other_tensor
from workbench.audit.replay.measured import BENT, SCORES
from workbench.audit.replay.noise import Noise, bent, missed, noise_of, turned
from workbench.audit.replay.recording import Modes, Recording
from workbench.audit.replay.runs import Runs
from workbench.core.errors import InputError

MOST_BENT = 0.1
"""Updates that noise bends further are refused."""

KEPT = 0.9
"""Share of the noise with all draws that is left without those for a batch, at least."""

STRAIGHT = 1e-3
"""Two updates on copies of one record whose directions differ by less have no noise."""

TURNED = 0.05
"""An update on copies that differs by more in any step, as where some steps are public, has noise."""

OTHER = 0.3
"""Updates on copies that differ by more than this share of the noise have other noise besides."""

MOST_MISSED = 0.5
"""Part of the noise of a step and tensor that may be missed, and is paid for; more of it is refused."""

MOST_OPTIMIZERS = 4
"""Optimizers that are tried for the private one."""

EARLY = 8
"""Draws before the first gradient that are tried one by one."""


class RefusedError(Exception):
    """Carries the reason why a training cannot be replayed."""


class UnknownNoiseError(RefusedError):
    """There are random numbers that may be noise, and are not known to be."""


@dataclass(frozen=True)
class OwnRuns:
    """Run A and run B of a training, with what is between them.

    Attributes:
        scores_repeat: Whether equal runs give equal scores.
        bend: How far the noise is from moving the updates in proportion (`bent`).
    """

    a: Recording
    b: Recording
    scores_repeat: bool
    noise: Noise
    bend: float


def own_runs(runs: Runs) -> OwnRuns:
    """The runs of a training on its own records.

    Steps are those of torch optimizers; where these are not all that moves the weights, what moves these.
    Where the updates are not linear in what is drawn in the shape of a parameter, some of it may be for a
    batch that has this shape too: then that counts which is drawn after the last gradient of a step, if
    updates are linear in it and have nearly as much noise as with all of it. What this misses is looked for
    on copies of one record, and paid for (`Measured.other`).

    Raises:
        RefusedError: the training cannot be replayed.
    """
    own = _own_runs(runs)
    if own.noise.values == 0 and own.b.blurred:
        raise RefusedError(
            "no step has noise, and the weights may get it after the last one: replay measures updates, and "
            "here the finished model alone may be released"
        )
    if runs.modes.wide and not (own.noise.values and own.bend <= BENT and all(own.a.computed)):
        raise RefusedError("updates are not linear in what is drawn after their gradients")
    if own.bend <= BENT or own.noise.values == 0:
        return own
    before, noises = runs.modes, runs.noises
    runs.modes, runs.noises = Modes(late=True), {}
    with suppress(RefusedError, InputError):
        other = _own_runs(runs)
        is_whole = float(other.noise.scale.norm()) > KEPT * float(own.noise.scale.norm())
        if other.bend <= BENT and other.noise.is_where(own.noise) and is_whole:
            return other
    runs.modes, runs.noises = before, noises
    if not own.bend <= MOST_BENT:
        raise RefusedError(
            "half of the noise, turned round, does not move the updates half as far back: something clips, "
            "rescales or rounds them after the noise, or follows earlier noisy gradients (Adam's moments, a "
            "clipping norm)"
        )
    return own


def _own_runs(runs: Runs) -> OwnRuns:
    """The runs, noise being known as it is for now."""
    a, b, scores_repeat = _read(runs)
    noise = noise_of(a, b)
    bend = bent(a, runs(forced=a, like=a, share=-0.5), b) if noise.values else 0.0
    return OwnRuns(a, b, scores_repeat, noise, bend)


def _read(runs: Runs) -> tuple[Recording, Recording, bool]:
    """Run A, run B, and whether equal runs give equal scores."""
    usual = replace(Modes(), late=runs.modes.late, wide=runs.modes.wide)
    try:
        return _by_gradients(runs)
    except RefusedError as refused:
        runs.modes = replace(usual, tracked=frozenset())
        runs.noises.clear()
        try:
            return _by_weights(runs)
        except (RefusedError, InputError) as also:
            runs.modes = usual
            runs.noises.clear()
            if (own := _with_followers(runs)) is not None:
                return own
            if str(also) == str(refused):
                raise refused from None
            raise RefusedError(f"{refused}; nor can its steps be read by the weights: {also}") from None


def _by_gradients(runs: Runs) -> tuple[Recording, Recording, bool]:
    """The runs, steps being those of torch optimizers."""
    a = runs()
    if not a.steps:
        raise RefusedError("no torch optimizer took a step")
    if len({layout.shapes for layout in a.layouts}) > 1 and (public := _public(runs, a)):
        runs.modes = replace(runs.modes, public=public)
        a = runs()
    if a.changes:
        a = _with_frozen(runs)
    if len({layout.shapes for layout in a.layouts}) > 1:
        raise RefusedError(f"{len(a.layouts)} optimizers of different parameters took steps")
    return _equal(runs, a)


def _with_followers(runs: Runs) -> tuple[Recording, Recording, bool] | None:
    """The runs of the one optimizer that has noise, where all others follow what it releases.

    At equal updates of that one, a generator or a student takes the same steps without its noise. Runs with
    replaced records compare these steps too.
    """
    usual, a = runs.modes, runs()
    if len(a.layouts) < 2:
        return None
    for private in a.orders[:MOST_OPTIMIZERS]:
        runs.modes = replace(usual, public=frozenset(a.orders) - {private}, follows=True)
        with suppress(RefusedError, InputError):
            own = _equal(runs, runs())
            follow = own[0].others == own[1].others and OTHERS not in own[1].unlike
            if follow and len(own[0].layouts) == 1 and noise_of(*own[:2]).values:
                return own
    runs.modes = usual
    return None


def _with_frozen(runs: Runs) -> Recording:
    """Run A where parameters need gradients in some steps alone; in the others they have none."""
    runs.modes = replace(runs.modes, whole=True)
    with suppress(InputError):
        a = runs()
        if not a.changes:
            return a
    raise RefusedError("the parameters that an optimizer trains change between its steps")


def _by_weights(runs: Runs) -> tuple[Recording, Recording, bool]:
    """The runs, steps being read by the weights (`WeightsWatch`)."""
    a = runs()
    if not a.steps:
        raise RefusedError("no model that was called has weights that moved")
    if len(set(a.moved)) > 1:
        raise RefusedError("not the same parameters move in all steps")
    runs.modes = replace(runs.modes, tracked=a.moved[0])
    a = runs()
    own = _equal(runs, a)
    if untold := a.untold or own[1].untold:
        raise RefusedError(untold)
    bare = sum(map(torch.equal, a.gradients, own[1].gradients))
    if 0 < bare < a.steps:
        # They may stay inside, as where only their result gets noise.
        raise RefusedError(f"{bare} of {a.steps} steps have no noise")
    return own


def _equal(runs: Runs, a: Recording) -> tuple[Recording, Recording, bool]:
    """Run A with run B, and whether equal runs give equal scores."""
    twin = runs(like=a)
    if (broken := difference(a, twin)) is not None:
        raise RefusedError(
            f"two trainings with one seed are not equal: {broken.what}; is something drawn from the "
            "operating system, or by a generator that the seed does not decide?"
        )
    b = _without_noise(runs, a)
    if (broken := difference(a, b, gradients=False)) is not None:
        raise RefusedError(
            f"with equal gradients the training goes another way: {broken.what}; so its randomness is "
            "not all in the gradients"
        )
    b.unlike = frozenset(different(a, twin))
    if other_tensor(a.states, b.states) is not None:
        b.states = ()
    return a, b, SCORES not in b.unlike


def _public(runs: Runs, a: Recording) -> frozenset[int]:
    """Optimizers whose steps are bit for bit the same on other records.

    Nearly all of these are copies of one; or they are the same ones in reversed order, so that those which
    copies leave in their places are others too.
    """
    labels = {record["label"] for record in runs.records if record["label"] is not None}
    # What has no gradient may step by something else.
    public = {number for number in range(len(a.layouts)) if any(any(g) for g, _ in _steps_of(a, number))}
    for others in (copies(runs.records, labels), list(reversed(runs.records))):
        try:
            other = runs(runs.with_records(dict(enumerate(others))))
        except InputError:
            return frozenset()
        public = {number for number in public if _steps_of(a, number) == _steps_of(other, number)}
    return frozenset(a.orders[number] for number in public) if len(public) < len(a.layouts) else frozenset()


def _steps_of(run: Recording, optimizer: int) -> list[tuple[bytes, bytes]]:
    """The gradients of an optimizer's steps, and the weights before them."""
    steps = zip(run.gradients, run.weights, run.optimizers, strict=True)
    return [(g.numpy().tobytes(), w.numpy().tobytes()) for g, w, number in steps if number == optimizer]


def _without_noise(runs: Runs, a: Recording) -> Recording:
    """Run B; where the noise of the first step is drawn before any gradient, with that left out too.

    A draw without which the weights before the first step are others is of initial weights.
    """
    b = runs(forced=a, like=a)
    if not b.early or not b.steps or not torch.equal(a.gradients[0], b.gradients[0]):
        return b
    quiet = _quietened(runs, a, b.early)
    if quiet is None:
        single = [number for number in sorted(b.early)[:EARLY] if _quietened(runs, a, frozenset({number}))]
        quiet = _quietened(runs, a, frozenset(single)) if single else None
    if quiet is not None and not torch.equal(a.gradients[0], quiet.gradients[0]):
        return quiet
    runs.modes = replace(runs.modes, quiet=frozenset())
    return b


def _quietened(runs: Runs, a: Recording, quiet: frozenset[int]) -> Recording | None:
    """Run B without these early draws, as all runs from here on; None where its weights are others."""
    runs.modes = replace(runs.modes, quiet=quiet)
    found = runs(forced=a, like=a)
    return found if difference(a, found, gradients=False) is None else None


def require_known(runs: Runs, a: Recording, noise: Noise) -> float:
    """Refuse a training that has noise which is not recognised.

    On copies of one record, updates of two seeds at equal weights, without the noise that is recognised, are
    multiples of one gradient, whatever the sampler drew; other noise is not.

    Returns:
        Where only what is drawn after the gradients counts as noise, how much of it may be `missed`: that is
        augmentation, or noise. 0 otherwise.

    Raises:
        RefusedError: they are not, or the training does not take copies and some parameters have no noise.
    """
    silent = noise.scale == 0
    labels = {record["label"] for record in runs.records if record["label"] is not None}
    # Code that counts the labels, or takes the largest, makes a smaller model of copies.
    for kept in (set(), {max(labels)}, labels) if labels else (set(),):
        records = copies(runs.records, kept)
        try:
            pair = [runs(records, forced=a, number=number, still=True) for number in (0, 1)]
        except InputError:
            continue
        if any(run.layouts != a.layouts for run in pair):
            continue
        bare, noisy = turned(pair[0], pair[1], silent), turned(pair[0], pair[1], ~silent)
        if bare is None or noisy is None or (kept and bare[0] >= STRAIGHT):
            continue
        if kept and noisy[0] >= STRAIGHT and not runs.modes.late:
            continue
        other = missed(pair[0], pair[1], noise, a.layouts[0]) if runs.modes.late else 0.0
        is_other = other > MOST_MISSED or noisy[1] > OTHER * float(noise.scale.norm())
        if bare[0] >= STRAIGHT or bare[2] >= TURNED or is_other:
            count = int((silent if max(bare[0], bare[2]) >= STRAIGHT else ~silent).sum())
            raise UnknownNoiseError(
                f"on {count:,} parameters, updates on copies of one record point in different directions: "
                "they have random numbers of a kind that replay does not know, or join records and cut them "
                "anew"
            )
        return other
    if runs.modes.late:
        raise UnknownNoiseError(
            "the training does not take copies of one record, which would show whether all noise is drawn "
            "after the last gradient of a step"
        )
    if bool(silent.any()):
        raise UnknownNoiseError(
            f"no noise is recognised on {int(silent.sum()):,} parameters, and the training does not take "
            "copies of one record, which would show whether there is noise that replay does not know"
        )
    return 0.0

"""Forced replay: what a training function's noise is, and what one record moves, measured step by step.

Run A is the training as it is. Run B repeats it without its noise, every gradient overwritten by run A's, so
that both have the same weights at each step; A minus B is the noise. Runs C are as B with one record
replaced; C minus B is what that record moves the update. What else differs between B and C has left the
training past the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.audit.replay.along import along
from workbench.audit.replay.batches import SEEDS, Batches, batches_of, counted
from workbench.audit.replay.crafts import CRAFTS, LOUDER, Craft, crafted, within_range
from workbench.audit.replay.influence import (
    emptied,
    follows_contents,
    has_coins_of_versions,
    moves_others,
    noise_moved,
    renamed,
    together,
)
from workbench.audit.replay.leaks import difference, leaks_of, other_state
from workbench.audit.replay.measured import BENT, STATES, WEAK, Leak, Measured, NotMeasured
from workbench.audit.replay.noise import (
    Noise,
    fresh,
    gaps_of,
    has_more,
    in_some_steps,
    is_repeated,
    is_told,
    noise_of,
    stretched,
    unseen_memory,
)
from workbench.audit.replay.own import RefusedError, UnknownNoiseError, own_runs, require_known
from workbench.audit.replay.reading import not_read
from workbench.audit.replay.recording import Layout, Modes, Recording
from workbench.audit.replay.runs import (
    NEGLIGIBLE,
    Place,
    Runs,
    Train,
    UnequalStepsError,
    agreement,
    chooses_otherwise,
    radius,
)
from workbench.core.errors import InputError
from workbench.core.streams import stream
from workbench.interfaces import BoolArray, FloatArray

ADDS_UP = 1e-3
"""Records that together move an update by what each does, but for this share: none changes another's part."""

SAME_NORM = 1e-4
"""Norms that differ by less than this share of them are one."""

ROUNDED = 100 * 2.0**-23
"""Of the weights' length: what their rounding may be where records move them by a hundred times as much."""

ALIKE = 0.01
"""Share by which the weights' moves over gradients may differ where one rate multiplies all."""

SAME_SIZES = 0.1
"""Share by which the places that are drawn may differ from the records of batches, and be those."""

MANTISSAS, VALUES = 1150, 1300
"""More than numbers of 16 bits have, whatever they are multiplied by; and so many values show it."""

PLACES = 2
"""Records that are replaced by every craft, or by half of them, each in a training of its own."""

MORE_PLACES = 6
"""Records that are replaced by one craft, for the steps that they take part in."""

SPARE_PLACES = 24
"""Further records, replaced one after the other while none has taken part in a step."""

TRIED = 16
"""Seeds whose noises are compared."""


def measured(
    train: Train,
    records: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured | NotMeasured:
    """Replay a training.

    Args:
        train: The user's training.
        records: What it trains on, as the user's function gets them.
        seed: Of generators that the training does not seed itself, and of the crafts.
        progress: Told of the trainings done and their number.

    Raises:
        InputError: the training fails on its own records.
    """
    generator = stream(seed, "replay")
    chosen = [int(i) for i in generator.permutation(len(records))[: PLACES + MORE_PLACES + SPARE_PLACES]]
    crafts = {place: crafted(records, place, generator) for place in chosen}
    usual = min(len(chosen), PLACES + MORE_PLACES)
    count = 27 + TRIED + 2 * SEEDS + usual + len(crafts[chosen[0]]) - 1 + CRAFTS // 2 - 1
    runs = Runs(train, records, seed, count, progress)
    try:
        return _measured(runs, crafts)
    except (RefusedError, UnequalStepsError) as refused:
        if isinstance(refused, UnknownNoiseError):
            runs.modes, runs.noises = Modes(late=True, wide=True), {}
            with suppress(RefusedError, InputError):
                return _measured(runs, crafts)
        return NotMeasured(str(refused))


def _measured(runs: Runs, crafts: Mapping[int, Sequence[Craft]]) -> Measured:
    own = own_runs(runs)
    a, b, noise, bend = own.a, own.b, own.noise, own.bend
    noise = replace(noise, gaps=gaps_of(a, b, noise) if noise.values and bend <= BENT else ())
    _require_released(a, noise)
    depends = _depends(runs, a, b, noise)
    other_noise = require_known(runs, a, noise)
    again = runs(number=1)
    is_same = difference(a, again) is None
    other = runs.still(a, 1) if noise.values and not noise.differs else None
    if other is None:
        other = again, runs(number=1, forced=again, like=again)
    del again
    is_schedule = noise.differs and noise.changes_like(noise_of(*other))
    if runs.by_weights and noise.differs and not is_schedule:
        raise RefusedError("the noise of the weights' moves changes from one call of the model to the next")
    fewer_directions, unseen = stretched(noise, (a, b), other) if noise.values else (1.0, 1.0)
    is_correlated = noise.correlation > max(noise.chance * math.sqrt(fewer_directions), 0.05)
    is_correlated |= noise.lagged > noise.lag_chance * math.sqrt(fewer_directions)
    if runs.by_weights and is_correlated:
        raise RefusedError(
            "what moves the weights carries on noise of earlier steps (momentum), or is added to weights "
            "that were read before the model was called"
        )
    fixed = _fixed(runs, (a, b), other) if noise.values else 0
    seeds = _different_seeds(runs, a) if noise.values and noise.by_step[0] > 0 else (0, 0)
    ignores = is_same and seeds[0] < 2
    of_seed = runs.follows_seed(a, b) if noise.values and not ignores else (False, "")
    fewer, spread = _of_fewer(runs, noise) if noise.values else (math.nan, math.nan)
    (stronger, most), shown = _of_records(runs, (a, b), noise, crafts)
    if (
        runs.by_weights
        and not ROUNDED * max(float(weights.norm()) for weights in a.weights) < shown["length"]
    ):
        raise RefusedError(
            "steps are read by the weights, whose rounding is not small beside a record's part"
        )
    return Measured(
        steps=a.steps,
        records=len(runs.records),
        parameters=a.gradients[0].numel(),
        noise=noise.by_tensor,
        noise_values=noise.values,
        step_noise=noise.by_step,
        noise_steps=noise.differs,
        is_schedule=is_schedule,
        stretched=max(fewer_directions, stronger),
        unseen=max(unseen, most, unseen_memory(noise)),
        fresh=fresh(b, noise),
        reach=noise.reach,
        is_bounded=noise.is_bounded,
        excess=noise.excess,
        is_gaussian=noise.is_gaussian,
        correlation=noise.correlation,
        is_correlated=bool(is_correlated),
        fixed=fixed,
        seeds=seeds,
        depends=depends,
        ignores_seed=ignores,
        same_batches=of_seed[0],
        counts=of_seed[1],
        fewer=fewer,
        fewer_spread=spread,
        bare_steps=int((noise.by_step == 0).sum()) if noise.values else a.steps,
        recognised=b.recognised,
        elsewhere=b.elsewhere + has_more(b, noise),
        in_some_steps=in_some_steps(noise),
        scores_repeat=own.scores_repeat,
        public=len(runs.modes.public),
        follows=runs.modes.follows,
        with_replacement=b.repeated >= b.steps and _may_be_batches(b, shown["sizes"]),
        by_weights=runs.by_weights,
        wide=runs.modes.wide,
        other=other_noise,
        bent=bend,
        coarse=_is_coarse(b),
        **shown,
    )


def _may_be_batches(b: Recording, sizes: Sequence[int]) -> bool:
    """Whether places that are drawn with replacement may be the batches, whose sizes are known or empty.

    Samplers draw equally many in each step, but for the last of an epoch; or else as many as there are.
    """
    return len(set(sizes)) <= 2 or abs(b.repeated * len(sizes) / (sum(sizes) * b.steps) - 1) < SAME_SIZES


def _is_coarse(b: Recording) -> bool:
    """Whether updates may be sums of 16-bit numbers: a large tensor has few mantissas, or none is large."""
    fullest = max(b.gradients, key=lambda gradient: int(torch.count_nonzero(gradient)))
    parts = [fullest[place][fullest[place] != 0] for _, place in b.layouts[0].slices()]
    counts = [len(np.unique(np.frexp(np.abs(part.numpy()))[0])) for part in parts if len(part) >= VALUES]
    return min(counts, default=0) <= MANTISSAS


def _moves_alike(a: Recording) -> bool:
    """Whether each step moves the weights by one multiple of its gradient, as a rate does that stays."""
    moves = [
        float((after - before).norm()) / max(float(gradient.norm()), 1e-30)
        for before, after, gradient in zip(a.weights, a.weights[1:], a.gradients, strict=False)
    ]
    return len(moves) > 1 and max(moves) < (1 + ALIKE) * min(moves)


def _different_seeds(runs: Runs, a: Recording) -> tuple[int, int]:
    """How many different noises are drawn, and under how many seeds; trainings end with their first step.

    Two seeds of 32 bits or more have one noise by chance in less than one of 10^7 replays.
    """
    for number in range(2, TRIED):
        with suppress(InputError):
            runs(forced=a, number=number, most=1)
    least = min(map(len, runs.noises.values()), default=0)
    return len({tuple(drawn[:least]) for drawn in runs.noises.values()}), len(runs.noises)


def _fixed(runs: Runs, own: tuple[Recording, Recording], other: tuple[Recording, Recording]) -> int:
    """Steps whose noise is the same under another seed: in its runs, or at the weights of this one's steps.

    Noise that is seeded by released weights is the same at the same weights.
    """
    found, still = is_repeated(own, other), runs.still(own[0], 1)
    if still is not None and still is not other:
        found = max(found, is_repeated(own, still))
    return found


def _have_one_norm(b: Recording, places: Sequence[Place]) -> bool:
    """Whether updates without noise have one norm, whatever record is in them."""
    norms = [float(gradient.norm()) for gradient in b.gradients]
    for at in places:
        for version, agree in zip(at.versions, at.agree[1:], strict=True):
            norms += [float(version.gradients[t].norm()) for t in np.flatnonzero(agree & at.present)]
    return len(b.gradients) > 1 and float(np.std(norms)) < SAME_NORM * float(np.mean(norms))


def _of_fewer(runs: Runs, noise: Noise) -> tuple[float, float]:
    """The noise of a training with one record fewer, over the noise, and that ratio's standard error."""
    records = runs.records[:-1]
    try:
        with_noise = runs(records)
        bare = runs(records, forced=with_noise, like=with_noise)
    except InputError:
        return math.nan, math.nan
    if not bare.steps or difference(with_noise, bare, gradients=False) is not None:
        return math.nan, math.nan
    theirs, noisy = noise_of(with_noise, bare), noise.scale > 0
    if noise.differs or theirs.differs or not torch.equal(theirs.scale > 0, noisy):
        return math.nan, math.nan
    ratio = theirs.scale[noisy] / noise.scale[noisy]
    if float(ratio.max()) > 1.1 * float(ratio.min()):
        return math.nan, math.nan
    return float(ratio.square().mean().sqrt()), math.sqrt(0.5 / noise.values + 0.5 / theirs.values)


def _depends(runs: Runs, a: Recording, b: Recording, noise: Noise) -> bool:
    """Whether updates depend on draws that may be other noise; asked where some have none, or copies.

    Numbers of another shape may be noise of what all updates follow from, or of one number in each.

    Raises:
        RefusedError: they do, and no noise is recognised at all.
    """
    has_bare = bool((noise.scale == 0).any()) or bool((noise.by_step == 0).any())
    if not b.elsewhere or not (has_bare or noise.copies):
        return False
    depends = True
    with suppress(InputError):
        # What is not heard cannot be changed.
        other = None if b.unheard else runs(forced=a, like=b, disturbs=True)
        if other is not None and other.steps == b.steps:
            pairs = zip(other.gradients, b.gradients, strict=True)
            depends = not all(torch.equal(one, two) for one, two in pairs)
    if depends and not noise.values:
        raise UnknownNoiseError(
            "updates have no noise that replay recognises, but depend on other random numbers that the code "
            "draws (uniform ones, or normal or Laplace ones of no parameter's shape, say), which may be noise"
        )
    return depends


def _require_released(a: Recording, noise: Noise) -> None:
    """Refuse a training of several copies of the parameters, some of which have no noise in any step.

    Such copies may stay inside, as where each user of federated training takes steps on one.

    Raises:
        RefusedError: there are copies with and without noise.
    """
    noisy: dict[int, bool] = {}
    for optimizer, scale in zip(a.optimizers, noise.by_step, strict=True):
        model = a.models[optimizer]
        noisy[model] = noisy.get(model, False) or bool(scale > 0)
    if len(set(noisy.values())) > 1:
        bare = sum(not is_noisy for is_noisy in noisy.values())
        raise RefusedError(
            f"torch optimizers train {len(noisy):,} copies of the parameters, and {bare:,} of them have no "
            "noise in any step: replay does not know whether these leave the training"
        )


class _Replacements:
    """Runs C: one record replaced by a craft, and what they show beside distances."""

    def __init__(self, runs: Runs, a: Recording, b: Recording, noise: Noise) -> None:
        self._runs, self._a, self._b, self._noise = runs, a, b, noise
        self.leaks: list[tuple[Leak, Recording]] = []
        self.states: list[tuple[Leak, Recording]] = []
        self.failed: list[str] = []
        self.naked: dict[str, None] = {}
        self.patchy: dict[str, None] = {}
        self.steers_sampler = False
        self.still = _still(a)
        self.idle = torch.zeros_like(self.still)

    def add(self, at: Place, crafts: Sequence[Craft]) -> None:
        """Replace the record of a place by each of these in turn."""
        runs, a, b = self._runs, self._a, self._b
        for craft in crafts:
            try:
                c = runs(runs.with_records({at.place: craft.record}), forced=a, like=b)
            except InputError as error:
                self.failed.append(str(error))
                continue
            if leaks := leaks_of(b, c):
                self.leaks += [(replace(leak, place=at.place), c) for leak in leaks]
            elif (state := other_state(b, c)) is not None:
                self.states.append((Leak(state, at.place, part=STATES), c))
            at.versions.append(c)
            at.crafts.append(craft)
        at.agree = agreement([b, *at.versions], a.steps)
        at.raw, at.scaled, bare, idle = _distances(
            [b, *at.versions], at.agree, self._noise, a.layouts[0], self.still
        )
        self.idle |= idle
        largest = at.raw.max(axis=2, keepdims=True)
        at.present = (at.raw > NEGLIGIBLE * np.maximum(largest, 1e-30)).any(axis=(0, 1))
        farthest = np.where(np.isfinite(at.scaled), at.scaled, 0.0).max(axis=(0, 1))
        at.weak = at.present & (farthest < WEAK * farthest.max())
        self.naked.update(dict.fromkeys(bare[0]))
        self.patchy.update(dict.fromkeys(bare[1]))
        for version, agree in zip(at.versions, at.agree[1:], strict=True):
            self.steers_sampler |= chooses_otherwise(version, b, agree)

    def played(self, crafts: Mapping[int, Sequence[Craft]]) -> list[Place]:
        """All places with one craft each; the first `PLACES`, in which there is most to see, with many.

        Raises:
            RefusedError: the training takes no craft.
        """
        places: list[Place] = []
        for place in crafts:
            is_seen = any(at.present.any() for at in places)
            if is_seen and (len(places) >= PLACES + MORE_PLACES or not self._noise.values):
                break
            places.append(Place(place))
            self.add(places[-1], crafts[place][:1])
        seen = [at for at in places if at.raw.size]
        if not any(at.versions for at in seen):
            raise RefusedError(f"the training takes none of the crafted records: {self.failed[0]}")
        deep = sorted(seen, key=lambda at: -int(at.present.sum()))[:PLACES]
        for number, at in enumerate(deep if self._noise.values else ()):
            more = crafts[at.place]
            self.add(at, more[1:] if number == 0 else more[1 : CRAFTS // 2])
        return [*deep, *(at for at in seen if at not in deep)]


def _of_records(
    runs: Runs,
    own: tuple[Recording, Recording],
    noise: Noise,
    crafts: Mapping[int, Sequence[Craft]],
) -> tuple[tuple[float, float], dict[str, Any]]:
    """What replaced records show: of the noise along their moves (`along`), and fields of `Measured`.

    Args:
        own: Run A and run B.
    """
    a, b = own
    shown = _Replacements(runs, a, b, noise)
    try:
        places = shown.played(crafts)
    except RefusedError:
        # It may check its input: again within what the records' own images have.
        crafts = {place: within_range(one) for place, one in crafts.items()}
        if not any(crafts.values()):
            raise
        shown = _Replacements(runs, a, b, noise)
        places = shown.played(crafts)
    deep, first = places[:PLACES], places[0]
    usual = noise.values and len(first.versions) > 1
    batches = batches_of(runs, a, b, first, noise) if usual else Batches()
    hits, tries, sizes, varies = counted(batches, len(runs.records), noise)
    apart, dropped, more = together(runs, a, b, crafts[first.place][0]) if usual else (math.nan, 0, [])
    more += renamed(runs, a, b)
    leaks, state, early = _leaks(runs, own, noise, shown.leaks + more, shown.states)
    copied = [
        any(
            is_told(copy, noise, own, version, agree)
            for at in places
            for version, agree in zip(at.versions, at.agree[1:], strict=True)
        )
        for copy in noise.copies
    ]
    found = {
        "present": np.array([at.present for at in places]),
        "weak": np.array([at.weak for at in places]),
        "copies": sum(copied),
        "repeats": len(copied) - sum(copied),
        "compared": np.array([at.agree[1:].any(axis=0) for at in places]),
        "added": np.array([at.added() for at in deep]),
        "replaced": np.array([np.where(at.present, at.scaled.max(axis=(0, 1)) / 2, 0.0) for at in deep]),
        "loudness": _loudness(first),
        "naked": tuple(shown.naked),
        "patchy": tuple(shown.patchy),
        "unmoved": int(shown.idle.sum()),
        "leaks": leaks,
        "state": state,
        "reads_early": early,
        "failed": tuple(shown.failed[:3]),
        "counted": hits,
        "rate_varies": varies,
        "sized_rates": bool(usual) and runs.rates_follow(batches.by_step, a, b),
        "divides": batches.numerator(noise) > 0 and _moves_alike(a),
        "follows_contents": shown.steers_sampler
        or (
            bool(usual and len(first.versions) > 3 and not (tries and hits == tries))
            and follows_contents(runs, own, places, crafts[first.place])
        )
        or bool(usual and not tries and moves_others(runs, a, b, places, adds_up=apart < ADDS_UP))
        or bool(usual and has_coins_of_versions(runs, own, deep, first.crafts[0])),
        "tries": tries,
        "sizes": sizes,
        # Of batches of one size, what is added to each update beside the records would count as theirs.
        "length": _length(deep, batches.lengths.usual),
        "peak": _peak(deep),
        "groups": batches.lengths.groups,
        "loudest": batches.lengths.loudest,
        "louder": batches.lengths.louder,
        "alone": batches.alone if apart < ADDS_UP and len(set(sizes)) > 1 else np.zeros(0),
        "together": apart,
        "dropped": dropped,
        "same_norm": _have_one_norm(b, deep),
        "emptied": emptied(runs, a, first, crafts) if usual else math.nan,
        "noise_moved": noise_moved(runs, a, b, first, differs=noise.differs) if usual else math.nan,
    }
    return along(runs, a, b, noise, places) if noise.values else (1.0, 1.0), found


def _leaks(
    runs: Runs,
    own: tuple[Recording, Recording],
    noise: Noise,
    leaks: Sequence[tuple[Leak, Recording]],
    states: Sequence[tuple[Leak, Recording]],
) -> tuple[tuple[Leak, ...], str, bool]:
    """What leaks, what optimizers keep otherwise where nothing does, and whether there is more that may.

    Of the latter it is not known, since it follows gradients that the code reads (`reading`).
    """
    if not noise.values:
        return tuple(leak for leak, _ in leaks[:1]), states[0][0].what if states else "", False
    leaking, follows = not_read(runs, *own, leaks)
    if leaking:
        return tuple(leaking), "", False
    keeping, too = not_read(runs, *own, states)
    return (), keeping[0].what if keeping else "", follows or too


def _peak(deep: Sequence[Place]) -> float:
    """What a record adds where it adds most, over what it adds at the median step that it is in."""
    moved = [radius(at.raw[:, :, step]) for at in deep for step in np.flatnonzero(at.present)]
    return max(moved) / float(np.median(moved)) if moved and np.median(moved) > 0 else math.nan


def _length(deep: Sequence[Place], alone: float) -> float:
    """What one record adds at the median step that it is in, in the gradient's own units."""
    moved = [
        float(np.median([radius(at.raw[:, :, step]) for step in np.flatnonzero(at.present)]))
        for at in deep
        if at.present.any()
    ]
    return float(np.nanmax([alone, *moved])) if moved or not math.isnan(alone) else math.nan


def _distances(
    versions: Sequence[Recording], agree: BoolArray, noise: Noise, layout: Layout, still: Tensor
) -> tuple[FloatArray, FloatArray, tuple[list[str], list[str]], Tensor]:
    """Distances of all versions at each step, shape `(v, v, T)`: raw, and in units of the noise.

    Also the tensors without noise that a record moves, those of whose coordinates that lack it in some steps
    alone, and which gradients it moves of weights that are `still`: no step moves them.
    """
    count, steps = agree.shape
    raw, scaled = np.zeros((count, count, steps)), np.zeros((count, count, steps))
    noisy, bare, gaps, idle = noise.scale > 0, set(), set(), torch.zeros_like(still)
    for step in range(steps):
        own = versions[0].gradients[step]
        rows = [version.gradients[step] if agree[i, step] else own for i, version in enumerate(versions)]
        if all(row is own for row in rows):
            continue
        stacked = torch.stack(rows).double()
        squares = torch.cdist(stacked, stacked).square().numpy()
        raw[:, :, step] = np.sqrt(squares)
        limit = NEGLIGIBLE * float(raw[:, :, step].max())
        if noise.by_step[step] == 0:
            scaled[:, :, step] = np.where(raw[:, :, step] > limit, math.inf, 0.0)
            continue
        seen = stacked[:, noisy] / (noise.scale[noisy] * float(noise.by_step[step]))
        scaled[:, :, step] = torch.cdist(seen, seen).numpy()
        idle |= still & ~noisy & (stacked != stacked[0]).any(dim=0)
        for name, place in layout.slices():
            hidden = stacked[:, place][:, ~noisy[place] & ~still[place]]
            if hidden.shape[1] and not bool((hidden == hidden[0]).all()):
                moved = torch.cdist(hidden, hidden).numpy() > limit
                scaled[:, :, step] = np.where(moved, math.inf, scaled[:, :, step])
                bare.update([name] if moved.any() else [])
            if noise.gaps and bool((gapped := stacked[:, place][:, noise.gaps[step][place]]).any()):
                gaps.update([name] if float((gapped - gapped[0]).abs().max()) > limit else [])
    return raw, scaled, (sorted(bare), sorted(gaps)), idle


def _still(a: Recording) -> Tensor:
    """Which weights no step moves although it has a gradient of their tensor: those of a rate of zero."""
    found = torch.zeros(a.gradients[0].numel(), dtype=torch.bool)
    if len(a.layouts) > 1 or a.last is None or a.last.shape != a.weights[-1].shape:
        return found
    for _, place in a.layouts[0].slices():
        has_gradient = any(bool(gradient[place].any()) for gradient in a.applied)
        stays = all(torch.equal(a.weights[0][place], later[place]) for later in [*a.weights[1:], a.last])
        found[place] = has_gradient and stays
    return found


def _loudness(first: Place) -> float:
    """How much further than the loud craft one 100 times louder moves an update, at the median step."""
    loudness = [craft.loudness for craft in first.crafts]
    if not all(by in loudness for by in LOUDER):
        return math.nan
    louder = [1 + loudness.index(by) for by in LOUDER]
    others = [i for i in range(1, len(first.raw)) if i not in louder]
    quiet, loud = (first.raw[i, others].max(axis=0) for i in louder)
    used = (quiet > 0) & (loud > 0)
    return float(np.median(loud[used] / quiet[used])) if used.any() else math.nan

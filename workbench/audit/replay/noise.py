"""What the noise of a run is: run A's gradients minus those of run B, which has none, at equal weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import beta, chi2, norm, poisson
from torch import Tensor

from workbench.audit.replay.recording import Layout, Recording
from workbench.interfaces import BoolArray, FloatArray

SMALL = 1e-3
"""Updates of less than this part of the largest may be nothing but rounding."""

RARE = 1e-3
"""Error probability of each test of the noise's form: one scale in all steps, no correlation, Gaussian."""

LAGGED = 1e-6
"""Error probability of the test whether the noises of steps some way apart are correlated."""

UNSEEN = 3e-7
"""Error probability of the test whether noise has fewer directions than coordinates."""

BOUNDED = 1e-6
"""Noise is said to be clipped to its largest value where Gaussian noise stays below with less probability."""

FEW = 30
"""Fewer coordinates, each step's over their own size, are bounded by that."""

SAME, BY_CHANCE = 0.999, 1e-6
"""Correlation from which two noises are copies of each other, where independent ones so rarely are."""

ROUNDS = 2.0**-20
"""Share of a sum that 32 bits round, with room for what is summed before."""

EQUAL = 1e-5
"""Part of their length by which equal noises of few numbers may differ, by rounding."""

SMALLEST, ON_GRID = 200, 0.02
"""So many of the smallest values tell whether noise is on a grid, from which they are off by this share."""

ZEROS = 1e-6
"""Share of numbers that may be 0 by rounding."""

PREFIX = 64
"""Values of each tensor's noise that are compared with other tensors'."""

ALIKE = 1e-3
"""Two moves are alike that differ by less than this share."""

TOLD = 1e3
"""Standard deviations of what noise two copies leave between them, from which a move is told for sure."""


@dataclass(frozen=True)
class Copy:
    """Noise that is another one's, up to a factor and to what `SAME` leaves open.

    Attributes:
        steps, coordinates: Where it is: steps, and coordinates of each, shape `(k,)`.
        of_steps, of_coordinates: Where that is whose copy it is, likewise and as many.
    """

    steps: tuple[int, ...]
    coordinates: Tensor
    of_steps: tuple[int, ...]
    of_coordinates: Tensor


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise of all steps.

    Attributes:
        scale: Standard deviation of each coordinate's noise, shape `(d,)`; 0 where there is none.
        by_tensor: Of each tensor's noisy coordinates, by name; 0 where none is noisy.
        by_step: Scale of each step over that, shape `(T,)`; 1 where all steps are alike.
        differs: Whether the scale differs between steps by more than chance.
        values: Number of noise values behind the least known scale.
        reach: The largest value in standard deviations; `is_bounded` says whether Gaussian noise would have
            reached further.
        excess: Excess kurtosis: 0 for Gaussian noise, 3 for Laplace's.
        is_gaussian: Whether the excess is what chance leaves of 0.
        correlation: The largest correlation of two steps' noise, in absolute value, that is no copy.
        chance: What chance leaves of it.
        lagged: Likewise the largest over lags of the mean correlation of steps so far apart, in standard
            deviations of chance; `lag_chance` is what chance leaves of it.
        copies: Steps whose noise is that of an earlier step, and tensors whose noise is another's.
        gaps: Of each step, the noisy coordinates that are 0 in both runs, as where only some get noise; empty
            where there are none, or where something follows the noise that makes zeros.
    """

    scale: Tensor
    by_tensor: dict[str, float]
    by_step: FloatArray
    differs: bool
    values: int
    reach: float
    is_bounded: bool
    excess: float
    is_gaussian: bool
    correlation: float
    chance: float
    lagged: float
    lag_chance: float
    copies: tuple[Copy, ...]
    gaps: tuple[Tensor, ...] = ()

    def is_where(self, other: Noise) -> bool:
        """Whether the same coordinates have noise, and the same steps."""
        steps = np.array_equal(self.by_step > 0, other.by_step > 0)
        return steps and torch.equal(self.scale > 0, other.scale > 0)

    def changes_like(self, other: Noise) -> bool:
        """Whether the noise of another seed changes from step to step in the same way."""
        if self.by_step.shape != other.by_step.shape or not other.by_step.all():
            return False
        return bool(np.allclose(self.by_step / other.by_step, 1.0, atol=5 * math.sqrt(1 / self.values)))

    def seen(self, gradient: Tensor, step: int, coordinates: Tensor) -> Tensor:
        """Coordinates of an update of a noisy step, in standard deviations of their noise; float64."""
        scale = self.scale[coordinates] * float(self.by_step[step])
        return gradient.double()[coordinates] / scale


def noise_of(a: Recording, b: Recording) -> Noise:
    """The noise between a run and the same without noise."""
    layout = a.layouts[0]
    steps = list(zip(a.gradients, b.gradients, strict=True))
    squares, size = torch.zeros((2, a.gradients[0].numel()), dtype=torch.float64)
    for one, other in steps:
        squares += (one - other).double().square() / len(steps)
        size += other.double().square() / len(steps)
    # Rounding of sums is no noise.
    scale = torch.zeros_like(squares)
    for _, place in layout.slices():
        floor = max(1e-10 * float(size[place].mean()), 1e-14 * float(squares[place].max()), 1e-60)
        scale[place] = torch.where(squares[place] > floor, squares[place], 0.0)
    noisy = scale > 0
    groups = _groups(scale, noisy, layout, len(steps))
    coordinates = int(noisy.sum())
    if not coordinates:
        return Noise(
            scale=scale,
            by_tensor=dict.fromkeys(layout.names, 0.0),
            by_step=np.zeros(len(steps)),
            differs=False,
            values=0,
            reach=0.0,
            is_bounded=False,
            excess=0.0,
            is_gaussian=True,
            correlation=0.0,
            chance=math.inf,
            lagged=0.0,
            lag_chance=math.inf,
            copies=(),
        )
    fewest = len(steps) * coordinates
    for group in groups:
        scale[group] = float(scale[group].mean().sqrt())
        fewest = min(fewest, len(steps) * int(group.sum()))
    drawn = torch.stack([((one - other).double()[noisy] / scale[noisy]).float() for one, other in steps])
    each = drawn.double().square().sum(dim=1).numpy()
    statistic = float((((each - coordinates) ** 2) / (2.0 * coordinates)).sum())
    differs = bool(chi2.sf(statistic, len(steps)) < RARE)
    by_step = np.sqrt(each / coordinates) if differs else np.ones(len(steps))
    by_step[by_step < 1e-6] = 0.0
    drawn = drawn[torch.from_numpy(by_step > 0)]
    drawn /= torch.tensor(by_step[by_step > 0], dtype=drawn.dtype)[:, None]
    is_even = _is_even(drawn, noisy, layout)
    excess = float(drawn.double().pow(4).mean()) / float(drawn.double().square().mean()) ** 2 - 3.0
    active = [int(step) for step in np.flatnonzero(by_step > 0)]
    pairs, correlation, chance = _between_steps(drawn)
    lagged, lag_chance = _at_lags(drawn)
    places = torch.nonzero(noisy)[:, 0]
    reach = float(drawn.abs().max())
    return Noise(
        scale=scale,
        by_tensor={
            name: float(scale[place].square().sum() / max(int(noisy[place].sum()), 1)) ** 0.5
            for name, place in layout.slices()
        },
        by_step=by_step,
        differs=differs,
        values=min(fewest, coordinates) if differs else fewest,
        reach=reach,
        is_bounded=(coordinates >= FEW or not differs) and _is_bounded(drawn.numel(), reach),
        excess=excess,
        is_gaussian=is_even
        and abs(excess) <= max(0.2, float(norm.isf(RARE / 2)) * math.sqrt(24.0 / drawn.numel())),
        correlation=correlation,
        chance=chance,
        lagged=lagged,
        lag_chance=lag_chance,
        copies=(
            *(Copy((active[this],), places, (active[other],), places) for this, other in pairs),
            *(
                Copy(tuple(active), places[this], tuple(active), places[other])
                for this, other in _between_tensors(drawn, noisy, layout)
            ),
        ),
    )


def gaps_of(a: Recording, b: Recording, noise: Noise) -> tuple[Tensor, ...]:
    """See `Noise.gaps`, of a run that nothing follows the noise in; none that a grid makes."""
    noisy = noise.scale > 0
    gaps = tuple(
        noisy & (one == 0) & (other == 0) for one, other in zip(a.gradients, b.gradients, strict=True)
    )
    count = sum(int(gap.sum()) for gap in gaps)
    return gaps if count and count > _zeros_by_chance(a, b, noisy) else ()


def _zeros_by_chance(a: Recording, b: Recording, noisy: Tensor) -> int:
    """How many values of noise on a grid may be 0 by chance; 0 where the smallest ones are on none.

    Near 0 each multiple of the grid's width is about as likely as 0 is. Those values count which would be
    gaps if they were 0: of coordinates that no record moves in their step.
    """
    pairs = list(zip(a.gradients, b.gradients, strict=True))
    sizes = torch.cat([(one - other)[noisy].abs() for one, other in pairs]).double()
    alone = torch.cat([one[noisy & (other == 0)].abs() for one, other in pairs]).double()
    sizes = sizes[sizes > 0]
    if len(sizes) <= SMALLEST:
        return 0
    smallest = sizes.topk(SMALLEST, largest=False).values.sort().values
    steps = smallest.diff()
    steps = steps[steps > ON_GRID * float(smallest[-1]) / SMALLEST]
    width = float(steps.min()) if len(steps) else float(smallest[0])
    multiples = smallest / width
    if float((multiples - multiples.round()).abs().max()) > ON_GRID:
        return 0
    farthest = round(float(multiples[-1]))
    each = int(((alone > 0) & (alone < (farthest + 0.5) * width)).sum()) / (2 * farthest)
    return int(poisson.ppf(1 - RARE, each))


def in_some_steps(noise: Noise) -> bool:
    """Whether some steps that have noise leave a part of the noisy coordinates without, as by turns."""
    pairs = zip(noise.gaps, noise.by_step, strict=False)
    counts = np.array([int(gap.sum()) for gap, scale in pairs if scale > 0])
    parts = counts[counts < int((noise.scale > 0).sum())]
    return int(parts.sum()) > ZEROS * noise.values


def fresh(b: Recording, noise: Noise) -> float:
    """Numbers drawn as noise over the noisy values of all updates."""
    values = _noisy_values(noise)
    return b.numbers / values if values else math.inf


def has_more(b: Recording, noise: Noise) -> bool:
    """Whether numbers are drawn as noise beside those of updates, to which those of gaps may belong."""
    values = _noisy_values(noise)
    if not values or not in_some_steps(noise):
        return b.numbers > values > 0
    gaps = sum(int(gap.sum()) for gap, scale in zip(noise.gaps, noise.by_step, strict=True) if scale > 0)
    return b.numbers not in {values, values - gaps}


def _noisy_values(noise: Noise) -> int:
    """Noisy coordinates in all steps that have noise."""
    return int((noise.scale > 0).sum()) * int((noise.by_step > 0).sum())


def is_repeated(noise: tuple[Recording, Recording], other: tuple[Recording, Recording]) -> int:
    """Steps whose noise is that of a step under another seed; each is a run and the same without noise."""
    rows = [
        torch.stack([one - two for one, two in zip(run.gradients, bare.gradients, strict=True)])
        for run, bare in (noise, other)
    ]
    if rows[0].shape[1] != rows[1].shape[1]:
        return 0
    if not _tells(rows[0].shape[1], len(rows[0]) * len(rows[1])):
        return 0
    used = torch.cat(rows).any(dim=0)
    rows = [row[:, used] for row in rows]
    first, second = (torch.nn.functional.normalize(row.float(), dim=1)[_have_many(row)] for row in rows)
    if not len(first) or not len(second):
        return 0
    return int(((first @ second.T).abs() > SAME).any(dim=1).sum())


def _have_many(rows: Tensor) -> BoolArray:
    """Which rows have so many numbers that two are not equal up to a factor by chance, shape `(T,)`."""
    many: BoolArray = ((rows != 0).sum(dim=1) >= min(PREFIX, rows.shape[1])).numpy()
    return many


def _tells(coordinates: int, pairs: int) -> bool:
    """Whether a correlation of `SAME` between noises of so many coordinates is none of chance."""
    if coordinates < 2:
        return False
    return bool(pairs * beta.sf(SAME**2, 0.5, (coordinates - 1) / 2) < BY_CHANCE)


def bent(a: Recording, turned: Recording, b: Recording) -> float:
    """How far half of the noise, turned round, is from moving each update half as far back.

    The largest such distance of a step, over half of its noise, without what sums of 32 bits round.
    """
    found = [0.0]
    for one, half, other in zip(a.gradients, turned.gradients, b.gradients, strict=True):
        noise = float((one - other).double().norm())
        rounded = ROUNDS * float(one.double().norm() + other.double().norm())
        off = max(float((2 * half + one - 3 * other).double().norm()) - rounded, 0.0)
        found.append(0.0 if off == 0 else off / noise if noise > 0 else math.inf)
    return max(found)


def turned(one: Recording, other: Recording, where: Tensor) -> tuple[float, float, float] | None:
    """How far two runs on copies of one record, at equal weights, are from updating in one direction.

    Without randomness but the sampler's, every update is a multiple of the record's gradient.

    Args:
        where: The coordinates that are looked at, shape `(d,)`.

    Returns:
        The part of one update that is orthogonal to the other's, over its norm and as it is, each the
        smallest over the steps; and the former's largest, over steps whose updates are no rounding. None
        where no step has numbers.
    """
    found = _asides(one, other, where)
    if not found:
        return None
    longest = max(size for _, _, _, size in found)
    most = max(part for _, part, _, size in found if size >= SMALL * longest)
    return min(part for _, part, _, _ in found), min(length for _, _, length, _ in found), most


def missed(one: Recording, other: Recording, noise: Noise, layout: Layout) -> float:
    """How much noise two such runs may have beside the known one, over that: the most of a step and tensor.

    Noise that is left in both moves one update off the other's direction by its whole length. So does what
    else is random in them, as augmentation.
    """
    found = [0.0]
    for _, place in layout.slices():
        where = torch.zeros_like(noise.scale, dtype=torch.bool)
        where[place] = noise.scale[place] > 0
        size = float(noise.scale[where].norm())
        found += [
            length / (size * float(noise.by_step[step]))
            for step, _, length, _ in _asides(one, other, where)
            if size and step < len(noise.by_step) and noise.by_step[step] > 0
        ]
    return max(found)


def _asides(one: Recording, other: Recording, where: Tensor) -> list[tuple[int, float, float, float]]:
    """Of each step the part of one update orthogonal to the other's, over its norm and as it is; its norm.

    From the second step on, since weights are equal from there; without those that have no numbers, or where
    just one of the two updates is 0.
    """
    found = []
    pairs = list(enumerate(zip(one.gradients, other.gradients, strict=False)))[1:]
    for step, (first, second) in pairs:
        x, y = first.double()[where], second.double()[where]
        lengths = float(x.norm()), float(y.norm())
        if not math.isfinite(sum(lengths)):
            continue
        if min(lengths) == 0:
            found += [(step, 0.0, 0.0, 0.0)] if max(lengths) == 0 else []
            continue
        aside = float((x / lengths[0] - float(x @ y) / lengths[0] / lengths[1] * y / lengths[1]).norm())
        found.append((step, aside, aside * lengths[0], min(lengths)))
    return found


def _groups(variance: Tensor, noisy: Tensor, layout: Layout, steps: int) -> list[Tensor]:
    """Masks of the coordinates whose noise has one scale: tensors that chance may tell apart are joined."""
    each = []
    for _, place in layout.slices():
        here = torch.zeros_like(noisy)
        here[place] = noisy[place]
        if bool(here.any()):
            each.append((float(variance[here].mean()), int(here.sum()) * steps, here))
    each.sort(key=lambda entry: entry[0])
    groups: list[tuple[float, int, Tensor]] = []
    for mean, count, here in each:
        if groups:
            last, known, mask = groups[-1]
            if mean / last < 1.0 + 4.0 * math.sqrt(2.0 / count + 2.0 / known):
                joined = (last * known + mean * count) / (known + count)
                groups[-1] = (joined, known + count, mask | here)
                continue
        groups.append((mean, count, here))
    return [mask for _, _, mask in groups]


def _between_steps(drawn: Tensor) -> tuple[list[tuple[int, int]], float, float]:
    """Steps whose noise is an earlier step's, with that; the largest other correlation, and chance's."""
    steps, coordinates = drawn.shape
    if steps < 2:
        return [], 0.0, math.inf
    rows = torch.nn.functional.normalize(drawn, dim=1)
    rows[torch.from_numpy(~_have_many(drawn))] = 0.0
    found = torch.tril((rows @ rows.T).abs(), diagonal=-1)
    tells = _tells(coordinates, steps * steps)
    same = found > SAME if tells else torch.tril(_equal(drawn), diagonal=-1)
    pairs = [(int(step), int(same[step].int().argmax())) for step in torch.nonzero(same.any(dim=1))[:, 0]]
    if not tells:
        return pairs, 0.0, math.inf
    largest = float(torch.where(same, 0.0, found).max())
    return pairs, largest, float(norm.isf(RARE / (steps * (steps - 1)))) / math.sqrt(coordinates)


def _equal(drawn: Tensor) -> Tensor:
    """Which steps' noises are equal, length included; of few numbers, but two at least, shape `(T, T)`."""
    apart = torch.linalg.vector_norm(drawn.double()[:, None] - drawn.double()[None], dim=2)
    lengths = torch.linalg.vector_norm(drawn.double(), dim=1)
    alike: Tensor = apart <= EQUAL * torch.minimum(lengths[:, None], lengths[None])
    return alike & (drawn.shape[1] > 1)


def _at_lags(drawn: Tensor) -> tuple[float, float]:
    """The largest mean correlation of noises so many steps apart, over its deviation; and chance's.

    Without copies where they are found one by one.
    """
    steps, coordinates = drawn.shape
    lags = range(1, steps // 2 + 1)
    if not lags:
        return 0.0, math.inf
    rows = torch.nn.functional.normalize(drawn.double(), dim=1)
    products = rows @ rows.T
    found, most = [0.0], SAME if _tells(coordinates, steps * steps) else 1.0 + SAME
    for lag in lags:
        here = torch.diagonal(products, -lag)
        here = here[here.abs() <= most]
        found += [abs(float(here.sum())) * math.sqrt(coordinates / here.numel())] if here.numel() else []
    return max(found), float(norm.isf(LAGGED / (2 * len(lags))))


def _is_bounded(values: int, reach: float) -> bool:
    """Whether so many Gaussian values would hardly all stay within this reach, in standard deviations."""
    return values * math.log1p(-2 * float(norm.sf(reach))) < math.log(BOUNDED)


def stretched(
    noise: Noise, own: tuple[Recording, Recording], other: tuple[Recording, Recording]
) -> tuple[float, float]:
    """How many times fewer directions the noise has than coordinates, and up to how many go unseen.

    The squared cosine of two independent noises has a mean of 1/d where all d directions are alike, and a
    larger one otherwise. Each two pairs of noises, one of this seed and one of another, are independent or
    share one of them, and are uncorrelated either way; so the sum over all is as spread as that of so many
    chi-squared numbers at most.

    Args:
        own, other: A run and the same without noise, under two seeds.
    """
    rows = []
    for run, bare in (own, other):
        if run.steps == 0 or run.gradients[0].shape != noise.scale.shape:
            return 1.0, math.inf
        drawn = [
            (one - two).double()[noise.scale > 0]
            for one, two in zip(run.gradients, bare.gradients, strict=False)
        ]
        rows.append(torch.nn.functional.normalize(torch.stack(drawn) / noise.scale[noise.scale > 0], dim=1))
    coordinates = rows[0].shape[1]
    if coordinates == 1:
        return 1.0, 1.0
    squares = (rows[0] @ rows[1].T).square()
    # Noise that repeats is found elsewhere; steps without any have no direction.
    is_known = (squares < SAME**2) & (rows[0].norm(dim=1) > 0)[:, None] & (rows[1].norm(dim=1) > 0)[None]
    pairs = int(is_known.sum())
    if not pairs:
        return 1.0, math.inf
    limit = float(chi2.isf(UNSEEN, pairs)) / pairs
    found = float(squares[is_known].mean()) * coordinates
    return (found if found > limit else 1.0), limit


def unseen_memory(noise: Noise) -> float:
    """Up to how many times the noise of all steps together may vary more than that of as many fresh ones.

    Where sums carry a part r of the last one's noise on, and the test of correlations does not see it, that
    is (1 + r) / (1 - r).
    """
    coordinates, steps = int((noise.scale > 0).sum()), int((noise.by_step > 0).sum())
    if steps < 2 or not math.isfinite(noise.lag_chance):
        return 1.0
    missed = noise.lag_chance / math.sqrt(coordinates * (steps - 1))
    return (1 + missed) / (1 - missed) if missed < 1 else math.inf


def _is_even(drawn: Tensor, noisy: Tensor, layout: Layout) -> bool:
    """Whether each tensor's noise has one scale in all steps, but for chance."""
    position, tensors = 0, list(layout.slices())
    for _, place in tensors:
        count = int(noisy[place].sum())
        each = drawn[:, position : position + count].double().square().sum(dim=1).numpy()
        position += count
        if count >= 2 and len(each) > 1:
            chances = 2 * np.minimum(chi2.cdf(each, count), chi2.sf(each, count))
            if float(chances.min()) * each.size * len(tensors) < RARE:
                return False
    return True


def _between_tensors(drawn: Tensor, noisy: Tensor, layout: Layout) -> list[tuple[slice, slice]]:
    """Where, among the noisy coordinates, a tensor's noise begins as that of an earlier one; and that."""
    starts = []
    position = 0
    for _, place in layout.slices():
        count = int(noisy[place].sum())
        if count >= 8:
            starts.append((position, count))
        position += count
    found = []
    for i, (start, size) in enumerate(starts):
        for before, its in starts[:i]:
            width = min(size, its, PREFIX)
            this, other = slice(start, start + width), slice(before, before + width)
            x, y = drawn[:, this].flatten(), drawn[:, other].flatten()
            if not _tells(x.numel(), len(starts) ** 2):
                continue
            if abs(float(torch.nn.functional.cosine_similarity(x, y, dim=0))) > SAME:
                found.append((this, other))
                break
    return found


def is_told(
    copy: Copy, noise: Noise, own: tuple[Recording, Recording], version: Recording, agree: BoolArray
) -> bool:
    """Whether a replaced record shows in what two updates differ by, where one's noise is the other's copy.

    Two updates with one noise between them tell no more than one does, if a record moves both alike: where a
    noisy sum is used twice, for one.

    Args:
        own: Run A and run B.
        version: A run with a replaced record, as run B; `agree`: where the two compare, shape `(T,)`.
    """
    pairs = [(t, s) for t, s in zip(copy.steps, copy.of_steps, strict=True) if agree[t] and agree[s]]
    if not pairs:
        return False

    def seen(one: Recording, other: Recording) -> tuple[Tensor, Tensor]:
        return (
            torch.cat(
                [noise.seen(one.gradients[t] - other.gradients[t], t, copy.coordinates) for t, _ in pairs]
            ),
            torch.cat(
                [noise.seen(one.gradients[s] - other.gradients[s], s, copy.of_coordinates) for _, s in pairs]
            ),
        )

    (x, y), (moved, before) = seen(*own), seen(version, own[1])
    if not bool(y.any()):
        return False
    factor = float(x @ y) / float(y @ y)
    left, apart = float((x - factor * y).norm()), float((moved - factor * before).norm())
    size = max(float(moved.norm()), abs(factor) * float(before.norm()))
    return apart > ALIKE * size and apart * math.sqrt(x.numel()) > TOLD * left

"""Whether the noise is stronger along the moves of records than it is on the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from scipy.stats import chi2
from torch import Tensor

from workbench.audit.replay.noise import RARE, UNSEEN, Noise
from workbench.audit.replay.recording import Recording
from workbench.audit.replay.runs import Place, Runs
from workbench.audit.replay.watching import MOST_NUMBERS

DISTINCT = 0.05
"""Part of a move that must be along no other one, for its direction to count."""

MISSED = 0.2
"""Error probability of the upper end of what is not seen."""

ENOUGH = 300
"""Independent squares by which a ratio's upper end is below 5/4 in 99 of 100 cases, where the ratio is 1."""

MORE_SEEDS = 8
"""Further seeds whose noise is taken, at most, where one seed's has not `ENOUGH` numbers along the moves."""

SAME = 1e-3
"""Part of its length by which noise may differ from that of another seed and be the same."""


def along(
    runs: Runs, a: Recording, b: Recording, noise: Noise, places: Sequence[Place]
) -> tuple[float, float]:
    """How much more variance the noise has where replaced records move the updates, and up to how much.

    A record's move over the noise along it is at most what the noise hides of it, whatever the noise's
    covariance is. Noise of one scale has as much along the moves as elsewhere. So its variance is compared in
    two ways: as projected on the directions in which replaced records move a step, which sees noise that is
    smoothed or lies in a subspace; and coordinate by coordinate, weighted by the squared moves, which sees
    smaller differences, where coordinates are independent but have scales of their own.

    Where this is too few numbers, noise of other seeds is drawn at the same weights. How many there are is
    known before any noise is looked at. A ratio that chance may well have made (`UNSEEN`) is asked of as many
    seeds again, and these alone say whether it is above 1; its upper end stays.

    Args:
        a, b: A run, and the same without noise.
        places: Replaced records, whose moves are known where their versions agree with `b`.

    Returns:
        The larger of the two ratios that is above 1 by more than chance, else 1; and the larger of their
        upper ends.
    """
    compared = _Compared(b, noise, places)
    if not min(compared.directions, compared.spread):
        return 1.0, 1.0
    compared.add(a, b)
    # Steps that differ are known by the noise of this seed only.
    enough = math.ceil(ENOUGH / min(compared.directions, compared.spread))
    more = 0 if noise.differs else min(MORE_SEEDS, enough - 1, MOST_NUMBERS // compared.size)

    def take(numbers: range) -> None:
        runs.expect(2 * sum(number > 1 for number in numbers))
        for number in numbers:
            if (pair := runs.still(a, number)) is not None:
                compared.add(*pair)

    take(range(1, 1 + more))
    found = compared.ratios()
    most = max(ratio * count / float(chi2.ppf(MISSED, count)) for ratio, count in found)
    if UNSEEN <= min(map(_chance, found)) < RARE and not noise.differs:
        looked_at = compared.forget()
        take(range(1 + more, 2 + 2 * more))
        # Fewer seeds, as where some fail or draw the same noise, say less than those before.
        found = compared.ratios() if len(compared.noises) >= looked_at else found
    return max([1.0, *(ratio for ratio, count in found if _chance((ratio, count)) < RARE)]), most


def _chance(found: tuple[float, float]) -> float:
    """The probability of a mean of so many independent squares that is this large, where it should be 1."""
    ratio, count = found
    return float(chi2.sf(ratio * count, count))


class _Compared:
    """The squares of noise along the moves of records, over steps and seeds.

    `directions`: on how many the noise of a seed is projected. `spread`: so many independent squares have a
    mean as spread as the weighted one of a seed. `size`: numbers of a seed's noise. `noises`: of each seed.
    """

    def __init__(self, b: Recording, noise: Noise, places: Sequence[Place]) -> None:
        self._b, self._noise, self._places = b, noise, places
        self._coordinates = torch.nonzero(noise.scale > 0)[:, 0]
        copied = {step for copy in noise.copies for step in copy.steps}
        self._clean = [t for t, scale in enumerate(noise.by_step) if t not in copied and scale > 0]
        self.directions, self._steps, squares = 0, 0, 0.0
        for step in self._clean:
            if (moves := self._moves(step)) is not None:
                self._steps += 1
                self.directions += len(moves[0])
                squares += float(moves[1].square().sum())
        self.spread = self._steps**2 / squares if squares else 0.0
        self.size = len(self._clean) * len(self._coordinates)
        self.noises: list[Tensor] = []
        self._known: list[Tensor] = []

    def forget(self) -> int:
        """Begin again with other seeds; returns the number of those so far."""
        self._known, self.noises = self.noises, []
        return len(self._known)

    def add(self, one: Recording, other: Recording) -> None:
        """Take the noise between two runs of all steps, unless it is that of an earlier seed."""
        if min(one.steps, other.steps) <= self._clean[-1]:
            return
        drawn = torch.stack([self._drawn(one, other, step).float() for step in self._clean])
        if any(
            float((drawn - known).norm()) <= SAME * float(known.norm())
            for known in (*self._known, *self.noises)
        ):
            return
        self.noises.append(drawn)

    def ratios(self) -> list[tuple[float, float]]:
        """The two ratios of variances, each with the number of independent squares behind it."""
        # The scales are again those of all this noise: one seed's would be less well known than the ratios.
        _, group = torch.unique(self._noise.scale[self._coordinates], return_inverse=True)
        squares = torch.stack([drawn.double().square().mean(dim=0) for drawn in self.noises]).mean(dim=0)
        mean = torch.zeros(int(group.max()) + 1, dtype=torch.float64)
        mean = mean.scatter_reduce(0, group, squares, "mean", include_self=False)[group]
        projected = weighed = 0.0
        for row, step in enumerate(self._clean):
            if (moves := self._moves(step)) is None:
                continue
            for drawn in self.noises:
                seen = drawn[row] / mean.sqrt()
                projected += float((moves[0] @ seen).square().sum())
                weighed += float(moves[1] @ seen.square())
        seeds = len(self.noises)
        return [
            (projected / (seeds * self.directions), seeds * self.directions),
            (weighed / (seeds * self._steps), seeds * self.spread),
        ]

    def _drawn(self, one: Recording, other: Recording, step: int) -> Tensor:
        return self._noise.seen(one.gradients[step] - other.gradients[step], step, self._coordinates)

    def _moves(self, step: int) -> tuple[Tensor, Tensor] | None:
        """An orthonormal basis of records' moves of a step, `(k, d)`, and their mean squares, `(d,)`."""
        rows = []
        for at in self._places:
            for version, agree in zip(at.versions, at.agree[1:], strict=True):
                if at.present[step] and agree[step]:
                    move = self._drawn(version, self._b, step)
                    length = float(torch.linalg.vector_norm(move))
                    rows += [move / length] if 0 < length < math.inf else []
        if not rows:
            return None
        stacked = torch.stack(rows)
        sizes, turned = torch.linalg.eigh(stacked @ stacked.T)
        kept = sizes > DISTINCT
        return (turned[:, kept] / sizes[kept].sqrt()).T @ stacked, stacked.square().mean(dim=0)

"""Whether the noise is stronger along the moves of records than it is on the whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.stats import chi2
from torch import Tensor

from workbench.audit.replay.noise import RARE, Noise
from workbench.audit.replay.recording import Recording
from workbench.audit.replay.runs import Place

DISTINCT = 0.05
"""Part of a move that must be along no other one, for its direction to count."""

MISSED = 0.2
"""Error probability of the upper end of what is not seen."""


def along(a: Recording, b: Recording, noise: Noise, places: Sequence[Place]) -> tuple[float, float]:
    """How much more variance the noise has where replaced records move the updates, and up to how much.

    A record's move over the noise along it is at most what the noise hides of it, whatever the noise's
    covariance is. Noise of one scale has as much along the moves as elsewhere. So its variance is compared in
    two ways: as projected on the directions in which versions of one record move a step, which sees noise
    that is smoothed or lies in a subspace; and coordinate by coordinate, weighted by the squared moves, which
    sees smaller differences, where coordinates are independent but have scales of their own.

    Args:
        a, b: A run, and the same without noise.
        places: Replaced records, whose moves are known where their versions agree with `b`.

    Returns:
        The larger of the two ratios that is above 1 by more than chance, else 1; and the larger of their
        upper ends.
    """
    coordinates = torch.nonzero(noise.scale > 0)[:, 0]
    copied = {step for copy in noise.copies for step in copy.steps}
    projected, weighed = [0.0, 0.0], [0.0, 0.0, 0.0]
    for step in range(a.steps):
        if step in copied or noise.by_step[step] == 0:
            continue
        moves = max((_moves(at, b, noise, step, coordinates) for at in places), key=len, default=[])
        if not moves:
            continue
        drawn = noise.seen(a.gradients[step] - b.gradients[step], step, coordinates)
        rows = torch.stack(moves)
        sizes, turned = torch.linalg.eigh(rows @ rows.T)
        kept = sizes > DISTINCT
        energy = ((turned[:, kept].T @ (rows @ drawn)).square() / sizes[kept]).sum()
        projected = [projected[0] + float(energy), projected[1] + int(kept.sum())]
        squares = rows.square()
        weighed = [
            weighed[0] + float((squares @ drawn.square()).mean()),
            weighed[1] + 1.0,
            weighed[2] + float(squares.square().sum(dim=1).mean()),
        ]
    if not weighed[1]:
        return 1.0, 1.0
    # A weighted mean of independent chi-squared numbers is as spread as one of so many degrees of freedom.
    freedom = weighed[1] ** 2 / weighed[2]
    found = [(projected[0] / projected[1], projected[1]), (weighed[0] / weighed[1], freedom)]
    seen = [ratio for ratio, count in found if chi2.sf(ratio * count, count) < RARE]
    most = [ratio * count / float(chi2.ppf(MISSED, count)) for ratio, count in found]
    return max([1.0, *seen]), max(most)


def _moves(at: Place, b: Recording, noise: Noise, step: int, coordinates: Tensor) -> list[Tensor]:
    """Directions in which versions of a record move a step, in standard deviations of the noise."""
    if not at.present[step]:
        return []
    found = []
    for version, agree in zip(at.versions, at.agree[1:], strict=True):
        if agree[step]:
            move = noise.seen(version.gradients[step] - b.gradients[step], step, coordinates)
            length = float(torch.linalg.vector_norm(move))
            if 0 < length < float("inf"):
                found.append(move / length)
    return found

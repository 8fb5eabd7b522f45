"""An adversary who tidies up: three readings of weights that were permuted after each private step.

Shuffled DPSGD releases W' = P[W - eta g] with a secret permutation P of hidden units. Whoever sees
consecutive weights knows W, and hence what W' looks like but for P, the noise and one record. The canary is
that of Nasr et al. 2023: a record whose gradient is zero but in one coordinate (the Dirac canary), so that it
moves one weight. Of every release the adversary takes the log-likelihood ratio "took part" over "did not",
and adds them up over a run. Three adversaries read the same releases:

- blind: as if nothing had been permuted, the canary's weight where it was.
- invariant: what no permutation changes. `"function"`: the outputs on probe inputs, along the direction in
  which the canary moves them most against the noise (`workbench.games.consecutive.scene`); `"sorted"`:
  the sorted entries of all places that the canary's weight can get to; `"sums"`: their sum; `"norms"`: the
  sorted norms of the indices that a unit permutes. A weight that no permutation moves is such a statistic by
  itself. Single releases are judged by `"function"`, which had the largest AUC on seeds that no audit uses
  (`digits_mlp`, SGD, sigma 0.4: 0.88 to 0.94, against 0.66 to 0.94 of `"sorted"`, 0.58 to 0.69 and 0.48 to
  0.59); runs by `"sorted"`, because a direction in output space has to be searched for anew in each step.
  Where outputs are few beside weights (`digits_vit`), or the optimizer is AdamW, `"sorted"` sees more.
- tidying: match the hidden units to those expected (`match`), undo the permutation that was found, then do as
  blind does.

Of a run in which the canary takes part with probability q, a release's ratio is log(1 - q + q e^l), l being
that of a release in which it surely takes part. Nothing of that is needed for a verdict to be right: bounds
hold for any scores.

`printed_epsilon` is Eq. 45 of the Shuffled DPSGD paper, which picks the best threshold on the scores
that it is computed from, and has no confidence: it is shown as printed, and decides nothing.

Sources: Nasr et al. 2023, "Tight auditing of differentially private machine learning"; Yang, Ji and Xiang,
"Weights Shuffling for Improving DPSGD in Transformer-based Models", Section VI-F.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from workbench.core.arguments import whole_number
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.games.consecutive import (
    OTHERS,
    PLACES,
    STATES,
    ConsecutiveAttack,
    ConsecutiveSeen,
    Projection,
    ReadRelease,
    Scene,
    WeightRelease,
)
from workbench.interfaces import BoolArray, FloatArray, IntArray, Scores

INVARIANTS = ("function", "sorted", "sums", "norms")
"""Statistics that no permutation changes."""

LEAST_RATE = 4e-4
"""Error rates below which Section VI-F leaves a threshold out, "to mitigate inaccurate measurement"."""

MOST_TURNS = 100
"""Turns over all units that share a matrix; a handful is usual, and the fit can only improve."""

_TINY = 1e-12
"""Least noise, relative to the largest weight, that ratios are computed with: for releases without any."""


@register("attack", "weight_tidying")
class WeightTidying(ConsecutiveAttack):
    """Three readings of shuffled weights, blind, invariant and tidying, by a Dirac canary.

    Attributes:
        releases: Number of independent releases at the trained state; the paper had 10,000 observations.
        state: Where single releases start: `"trained"`, from the trained weights; `"start"`, from those that
            the training started with, whose size no learning rate has changed.
        runs: Number of independent trainings, read step by step; 0 for single releases alone.
        invariant, invariant_run: Which statistic the invariant adversary is judged by, in single releases and
            in whole runs: `"function"`, `"sorted"`, `"sums"` or `"norms"`.
        place: `"moved"`: the canary's weight is one that permutations move; `"fixed"`: one that none moves.
        others: `"none"`: the two data sets are the empty one and the canary alone; `"sample"`: the plan's
            records stand beside it, and the adversary knows which take part.
        magnitude: The canary's raw gradient norm, far above any clipping norm in use.
        probes: Inputs on which the function is looked at, fewer in a large model
            (`workbench.games.consecutive.scene.probes_within`), as the record says; 0 for none.
        turns: How far the best direction in output space is searched for in each step of a run, whose state
            is new: about a millisecond each; 0: no outputs in runs.

    Raises:
        InputError: a parameter is out of range.
    """

    def __init__(
        self,
        *,
        releases: int = 10_000,
        runs: int = 200,
        state: str = "trained",
        invariant: str = "function",
        invariant_run: str = "sorted",
        place: str = "moved",
        others: str = "none",
        magnitude: float = 100.0,
        probes: int = 512,
        turns: int = 0,
    ) -> None:
        for name, value, known in (
            ("invariant", invariant, INVARIANTS),
            ("invariant_run", invariant_run, INVARIANTS),
            ("state", state, STATES),
            ("place", place, PLACES),
            ("others", others, OTHERS),
        ):
            if value not in known:
                raise unknown_name(name, value, known)
        if not 0 < magnitude < math.inf:
            raise InputError(f"magnitude must be finite and > 0, got {magnitude!r}")
        self.releases = whole_number("releases", releases, least=20)
        self.runs = whole_number("runs", runs, least=20) if runs else 0
        self.state, self.place, self.others, self.magnitude = state, place, others, magnitude
        self.invariant, self.invariant_run = invariant, invariant_run
        self.probes = whole_number("probes", probes, least=0)
        self.turns = whole_number("turns", turns, least=0)
        if invariant == "function" and not self.probes:
            raise InputError("probes must be at least 1 for invariant = 'function', got 0")
        if invariant_run == "function" and not (self.probes and self.turns):
            raise InputError("probes and turns must be at least 1 for invariant_run = 'function', got 0")

    def read(self, scene: Scene, release: WeightRelease) -> ReadRelease:
        """The log-likelihood ratios of one release, and the permutation that was found.

        Returns:
            Ratios by the adversary's name: `blind`, `invariant`, `tidying`, and each statistic of the
            invariant one by its own name.

        Raises:
            InputError: the invariant one is to be judged by outputs, and the release has none.
        """
        indices = match(release.expected, release.released, scene.units)
        tidied = restored(release.released, scene.units, indices)
        exponents = {
            "blind": _dirac(scene, release, release.released),
            "tidying": _dirac(scene, release, tidied),
            "sorted": _sorted(scene, release),
            "sums": _sums(scene, release),
            "norms": _norms(scene, release),
        }
        if release.outputs is not None:
            exponents["function"] = _projected(release.outputs)
        q = release.participation
        ratios = {name: _with_participation(exponent, q) for name, exponent in exponents.items()}
        judged = self.invariant_run if release.of_run else self.invariant
        if judged not in ratios:
            raise InputError(f"outputs of the release must be given for the statistic {judged!r}, got None")
        return ReadRelease(ratios={**ratios, "invariant": ratios[judged]}, indices=indices)

    def score(self, seen: ConsecutiveSeen, generator: np.random.Generator) -> Scores:
        """The ratios of one adversary, added up over the releases of each trial: they are the scores."""
        return Scores(values=seen.values.astype(np.float64))

    def as_printed(self, scores: FloatArray, members: BoolArray, delta: float) -> float:
        """Eq. 45 on these scores; see `printed_epsilon`."""
        return printed_epsilon(scores, members, delta=delta, least_rate=LEAST_RATE)


def printed_epsilon(
    scores: FloatArray, members: BoolArray, *, delta: float, least_rate: float = 0.0
) -> float:
    """Eq. 45 as printed: the largest log ratio of the error rates over all thresholds.

    max{ln((1 - alpha - delta) / beta), ln((1 - beta - delta) / alpha), 0}, with alpha the share of
    non-members called members and beta that of members who are not. No confidence, and the threshold is the
    best one on these very scores: no lower bound of anything.

    The text leaves out "cases where alpha < 4e-4 and beta < 4e-4". Read as both at once that removes nothing
    from a threshold with one rate of 0, whose ratio is infinite; here a ratio is left out where the rate that
    it divides by is below.

    Args:
        scores: Shape `(n,)`; higher means member.
        members: Shape `(n,)`, some of either kind.
        delta: In [0, 1).
        least_rate: Least rate to divide by; a rate of 0 is never divided by.
    """
    inside, outside = np.sort(scores[members]), np.sort(scores[~members])
    thresholds = np.unique(scores)
    beta = np.searchsorted(inside, thresholds, side="left") / inside.size
    alpha = 1.0 - np.searchsorted(outside, thresholds, side="left") / outside.size
    best = 0.0
    for hit, divisor in ((1.0 - alpha - delta, beta), (1.0 - beta - delta, alpha)):
        able = (divisor > 0.0) & (divisor >= least_rate) & (hit > 0.0)
        if able.any():
            best = max(best, float(np.max(np.log(hit[able] / divisor[able]))))
    return best


def _with_participation(exponent: float, probability: float) -> float:
    """log(1 - q + q e^l)."""
    if probability >= 1.0:
        return exponent
    return float(np.logaddexp(math.log1p(-probability), math.log(probability) + exponent))


def _noise(release: WeightRelease) -> float:
    return max(release.noise, _TINY * float(np.max(np.abs(release.expected), initial=1.0)))


def _dirac(scene: Scene, release: WeightRelease, weights: FloatArray) -> float:
    """Log-likelihood ratio of the canary's weight alone."""
    apart = float(weights[scene.coordinate] - release.expected[scene.coordinate])
    return release.shift * (apart - release.shift / 2.0) / _noise(release) ** 2


def _sums(scene: Scene, release: WeightRelease) -> float:
    """The same of the sum over all places that the canary's weight can get to."""
    apart = float(np.sum(release.released[scene.orbit] - release.expected[scene.orbit]))
    return release.shift * (apart - release.shift / 2.0) / (_noise(release) ** 2 * scene.orbit.size)


def _sorted(scene: Scene, release: WeightRelease) -> float:
    """How much nearer the sorted entries are to those expected with the canary than without."""
    without = release.expected[scene.orbit]
    inside = without.copy()
    inside[scene.orbit == scene.coordinate] += release.shift
    return _nearer(release.released[scene.orbit], without, inside) / _noise(release) ** 2


def _norms(scene: Scene, release: WeightRelease) -> float:
    """The same of the sorted squared norms of a unit's indices, for all units that hold the canary's weight.

    The noise moves the square of a norm by a normal variable of standard deviation 2 s |w|, and upwards by
    k s^2, which is the same in both worlds.
    """
    inside = release.expected.copy()
    inside[scene.coordinate] += release.shift
    total, noise = 0.0, _noise(release)
    for unit in scene.units:
        if not (unit == scene.coordinate).any():
            continue
        seen, without, there = (
            np.sum(weights[unit] ** 2, axis=1) for weights in (release.released, release.expected, inside)
        )
        scale = 2.0 * noise * math.sqrt(max(float(np.mean(without)), _TINY))
        total += _nearer(seen - unit.shape[1] * noise**2, without, there) / scale**2
    return total


def _projected(outputs: Projection) -> float:
    """Log-likelihood ratio of a normal statistic."""
    noise = max(outputs.noise, _TINY * max(1.0, abs(outputs.shift)))
    return outputs.shift * (outputs.value - outputs.shift / 2.0) / noise**2


def _nearer(seen: FloatArray, without: FloatArray, inside: FloatArray) -> float:
    """Half the difference of the squared distances of sorted values."""
    values = np.sort(seen)
    far, near = values - np.sort(without), values - np.sort(inside)
    return float(far @ far - near @ near) / 2.0


def permuted(weights: FloatArray, units: Sequence[IntArray], indices: Sequence[IntArray]) -> FloatArray:
    """The weights with each unit permuted: `new[unit[i]] = old[unit[indices[i]]]`.

    Args:
        weights: Shape `(d,)`; left as they are.
        units: Places in the vector of the weights that each index owns, shape `(m, k)` each.
        indices: Permutation of each unit, shape `(m,)` each.
    """
    moved = weights.copy()
    for unit, order in zip(units, indices, strict=True):
        moved[unit] = moved[unit[order]]
    return moved


def restored(released: FloatArray, units: Sequence[IntArray], indices: Sequence[IntArray]) -> FloatArray:
    """Undo a permutation: the weights given to `permuted`, from those it returned, shape `(d,)`."""
    return permuted(released, units, [np.argsort(order) for order in indices])


def match(expected: FloatArray, released: FloatArray, units: Sequence[IntArray]) -> tuple[IntArray, ...]:
    """The likeliest permutation of each unit.

    A unit is a set of m interchangeable indices (hidden neurons, the columns of a head), each of which owns k
    weights that a permutation moves together. Where the noise is alike in all weights, the likeliest
    permutation has the least sum of squared distances: a linear assignment. Units that share a matrix are
    matched in turns, each with what is known of the other, until nothing changes (Ainsworth, Hayase and
    Srinivasa 2023, "Git Re-Basin"); the first turn reads of a shared matrix only the sorted entries of each
    row, which the other unit's permutation leaves as they are.

    Args:
        expected: Weights before they were permuted, as far as they are known, shape `(d,)`.
        released: Permuted weights, shape `(d,)`.
        units: Places in the vector of the weights that each index owns, shape `(m, k)` each.

    Returns:
        For each unit `indices` such that released index i was expected as index `indices[i]`, shape `(m,)`.

    Raises:
        InputError: the vectors are not of one length.

    >>> rows = np.array([[0, 1], [2, 3], [4, 5]])
    >>> expected = np.array([0.0, 0.1, 1.0, 1.1, 2.0, 2.1])
    >>> released = permuted(expected, [rows], [np.array([2, 0, 1])])
    >>> found = match(expected, released, [rows])
    >>> found[0].tolist()
    [2, 0, 1]
    >>> bool((restored(released, [rows], found) == expected).all())
    True
    """
    if expected.shape != released.shape or expected.ndim != 1:
        raise InputError(f"released must have the shape {expected.shape} of expected, got {released.shape}")
    owners = np.zeros(expected.size, dtype=np.int64)
    for unit in units:
        owners[unit] += 1
    shared = [owners[unit] > 1 for unit in units]
    found = [
        _assigned(_signature(expected, unit, common), _signature(released, unit, common))
        for unit, common in zip(units, shared, strict=True)
    ]
    turning = [place for place, common in enumerate(shared) if common.any()]
    for _ in range(MOST_TURNS):
        changed = False
        for place in turning:
            others = [order if other != place else np.arange(order.size) for other, order in enumerate(found)]
            known = permuted(expected, units, others)
            better = _assigned(known[units[place]], released[units[place]])
            changed |= not np.array_equal(better, found[place])
            found[place] = better
        if not changed:
            break
    return tuple(found)


def _signature(weights: FloatArray, unit: IntArray, shared: np.ndarray) -> FloatArray:
    """Of each index the weights that no other unit moves, and the others sorted, shape `(m, k)`."""
    own = weights[unit]
    if not shared.any():
        return own
    # Whether a weight is shared depends on its matrix, so on all indices alike: a column is or is not.
    columns = shared.any(axis=0)
    joined: FloatArray = np.concatenate([own[:, ~columns], np.sort(own[:, columns], axis=1)], axis=1)
    return joined


def _assigned(expected: FloatArray, released: FloatArray) -> IntArray:
    """The assignment with the least sum of squared distances; norms are the same for all."""
    rows, columns = linear_sum_assignment(released @ expected.T, maximize=True)
    order = np.empty(rows.size, dtype=np.int64)
    order[rows] = columns
    return order

"""The epsilon of steps that a record moves by given distances, by certified bounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from workbench.accounting import ApproximateDP
from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.events import Composed, Event, Gaussian, ShuffledBatches, SubsampledGaussian
from workbench.audit.replay.sampler import Sampler
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Claim, FloatArray

BINS, FEW_BINS = 32, 4
"""Groups of steps with one distance each, for the composition; of steps whose bounds take longer."""

FAR = 8.0
"""Standard deviations beyond which distances are one group, at the upper end with all others: such steps that
differ take minutes to compose, and then often have no upper end. Estimate and upper end are rough there."""

FARTHEST = 1e3
"""Standard deviations beyond which a distance is composed as this, or as infinite."""


def judged_guarantee(claim: Claim) -> ApproximateDP:
    """The claim's guarantee.

    Raises:
        UnsupportedError: it is not one of (epsilon, delta)-DP about a record.
    """
    if not isinstance(claim.guarantee, ApproximateDP) or not isinstance(claim.about, Adjacency):
        raise UnsupportedError(
            f"a run tests (epsilon, delta)-DP about a record, and the claim is {claim.guarantee.describe()}"
        )
    if claim.guarantee.delta == 0:
        raise UnsupportedError("a run tests claims with a delta above 0: its bound composes Gaussian noise")
    return claim.guarantee


def composed_epsilon(
    distances: FloatArray,
    sampler: Sampler,
    steps: int,
    claim: Claim,
    *,
    which: str,
    step: Callable[[float], Event] | None = None,
) -> float:
    """The epsilon of a run whose record moves the updates by these distances (in the noise's units).

    Where there is so little noise that certified bounds are wide or not known, the upper end is infinite, and
    the others are at least those of a record that moves updates less far, which loses no more.

    Args:
        distances: Those of some or all steps; one each where shuffled epochs are composed by the least.
        sampler: With the rate to compose by.
        steps: Of the run.
        claim: Its delta and adjacency.
        which: `"lower"`, `"middle"` or `"upper"`: the end of the distances and of the certified bounds.
        step: What a step is by its noise multiplier; unless given, a Gaussian sum over a Poisson sample.
    """
    delta, adjacency = judged_guarantee(claim).delta, claim.about
    assert isinstance(adjacency, Adjacency)
    if not distances.size or sampler.rate <= 0:
        return 0.0
    farthest = float(distances.max())
    if math.isinf(farthest) or (which != "lower" and farthest > FARTHEST):
        return math.inf
    if farthest <= 0:
        return 0.0
    is_shuffled = sampler.kind == "shuffled epochs"
    if is_shuffled and adjacency is Adjacency.ADD_REMOVE:
        adjacency = Adjacency.ZERO_OUT
    capped, found = np.minimum(distances, FARTHEST), None
    try:
        if is_shuffled:
            event = _epochs(capped, sampler, steps, which=which)
        else:
            event = _samples(capped, sampler, steps, which=which, step=step)
        if not isinstance(event, Event):
            return event
        bounds = epsilon_bounds(event, delta, adjacency=adjacency)
        found = {"lower": bounds.lower, "upper": bounds.upper}.get(which, (bounds.lower + bounds.upper) / 2)
    except UnsupportedError:
        if farthest <= FAR:
            raise
    if which == "upper" or farthest <= FAR or (found is not None and not is_shuffled):
        return math.inf if found is None else found
    # The bounds of shuffled epochs are wide before there are none.
    nearer = composed_epsilon(np.minimum(distances, FAR), sampler, steps, claim, which=which, step=step)
    return max(nearer, found or 0.0)


def _epochs(distances: FloatArray, sampler: Sampler, steps: int, *, which: str) -> Event | float:
    """Shuffled epochs of one distance; an epsilon where there is one batch alone."""
    farthest = float(distances.max())
    distance = {"lower": float(distances[distances > 0].min()), "middle": float(np.median(distances))}.get(
        which, farthest
    )
    batches = sampler.fewest if which == "upper" and sampler.fewest else sampler.batches
    if batches < 2:
        return math.inf
    return ShuffledBatches(
        noise_multiplier=1 / distance, batches=batches, epochs=max(1, steps // sampler.batches)
    )


def _samples(
    distances: FloatArray,
    sampler: Sampler,
    steps: int,
    *,
    which: str,
    step: Callable[[float], Event] | None,
) -> Event | float:
    """Samples with groups of one distance each; an epsilon where no step counts."""
    parts: list[tuple[Event, int]] = []
    seen = taken = 0
    squares = 0.0
    # From the farthest on: of steps at least as far, no more than the share seen (for the lower end).
    bins = BINS if step is None else FEW_BINS
    far, near = distances[distances > FAR], np.sort(distances[distances <= FAR])[::-1]
    groups = np.array_split(near, min(bins, near.size)) if near.size else []
    if far.size:
        groups = [distances] if which == "upper" else [far, *groups]
    for group in groups:
        distance = float({"lower": group.min(), "middle": np.median(group)}.get(which, group.max()))
        seen += group.size
        share = steps * seen / distances.size
        count = (math.ceil(share) if which == "upper" else math.floor(share)) - taken
        taken += count
        if distance <= 0 or count < 1:
            continue
        noise = min(1 / distance, 1e6)
        if step is not None:
            parts.append((step(noise), count))
        elif sampler.rate >= 1:
            squares += count / noise**2
        else:
            parts.append(
                (SubsampledGaussian(noise_multiplier=noise, sampling_probability=sampler.rate), count)
            )
    if squares:
        parts.append((Gaussian(noise_multiplier=1 / math.sqrt(squares)), 1))  # All of them, exactly.
    return Composed(events=tuple(parts)) if parts else 0.0

"""The epsilon of steps that a record moves by given distances, by certified bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress

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
    judged_guarantee(claim)
    farthest, found = distances.max(initial=0.0), []
    with suppress(UnsupportedError) if farthest > FAR else nullcontext():
        found.append(_composed_epsilon(distances, sampler, steps, claim, which=which, step=step))
    # The bounds of shuffled epochs are wide before there are none.
    if FAR < farthest < math.inf and which != "upper" and (not found or sampler.kind == "shuffled epochs"):
        nearer = np.minimum(distances, FAR)
        found.append(_composed_epsilon(nearer, sampler, steps, claim, which=which, step=step))
    return max(found, default=math.inf)


def _composed_epsilon(
    distances: FloatArray,
    sampler: Sampler,
    steps: int,
    claim: Claim,
    *,
    which: str,
    step: Callable[[float], Event] | None = None,
) -> float:
    delta, adjacency, rate = judged_guarantee(claim).delta, claim.about, sampler.rate
    assert isinstance(adjacency, Adjacency)
    if not distances.size or rate <= 0:
        return 0.0
    if np.isinf(distances).any() or (which != "lower" and distances.max() > FARTHEST):
        return math.inf
    distances = np.minimum(distances, FARTHEST)
    if not (distances > 0).any():
        return 0.0
    if sampler.kind == "shuffled epochs":
        distance = float(
            {"lower": distances[distances > 0].min(), "middle": np.median(distances)}.get(
                which, distances.max()
            )
        )
        batches = sampler.fewest if which == "upper" and sampler.fewest else sampler.batches
        if batches < 2:
            return math.inf
        event: Event = ShuffledBatches(
            noise_multiplier=1 / distance, batches=batches, epochs=max(1, steps // sampler.batches)
        )
        known = Adjacency.ZERO_OUT if adjacency is Adjacency.ADD_REMOVE else adjacency
        bounds = epsilon_bounds(event, delta, adjacency=known)
    else:
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
            elif rate >= 1:
                squares += count / noise**2
            else:
                parts.append((SubsampledGaussian(noise_multiplier=noise, sampling_probability=rate), count))
        if squares:
            parts.append((Gaussian(noise_multiplier=1 / math.sqrt(squares)), 1))  # All of them, exactly.
        if not parts:
            return 0.0
        bounds = epsilon_bounds(Composed(events=tuple(parts)), delta, adjacency=adjacency)
    return {"lower": bounds.lower, "upper": bounds.upper}.get(which, (bounds.lower + bounds.upper) / 2)

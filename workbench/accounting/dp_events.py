"""Events of dp-accounting (`DpEvent`) as events of the bench, and back.

Noise is in units of the largest contribution in both, so the numbers are the same; the adjacency is an
argument of the question, where dp-accounting's accountants have it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from workbench.accounting.events import (
    Composed,
    Event,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
    require_event,
)
from workbench.accounting.integers import DiscreteLaplace
from workbench.accounting.samples import CappedPoisson, FixedBatch, SubsampledLaplace
from workbench.core.arguments import number, one_of, whole_number
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.one_line import object_line
from workbench.interfaces import Adjacency


def event_of(event: object, *, adjacency: Adjacency | str = Adjacency.ADD_REMOVE) -> Event:
    """The event itself, or that of a `DpEvent`.

    Args:
        event: Of either kind.
        adjacency: Under which it is asked; a mixture of Gaussians says what adding a record does, and nothing
            of replacing one.

    Raises:
        InputError: it is neither, a number in it is out of range, or it is nested too deep.
        UnsupportedError: the bench has no such event, or none under this adjacency.
    """
    adjacency = one_of(Adjacency, "adjacency", adjacency)
    if not _is_theirs(event):
        return require_event(event)  # type: ignore[arg-type]
    try:
        counted = [(part, count) for part, count in _parts(event, adjacency) if count]
    except RecursionError:
        raise InputError(f"event must be nested less deep, got a {type(event).__name__} of many") from None
    if adjacency is Adjacency.REPLACE_ONE and any(isinstance(e, GaussianMixturePair) for e, _ in counted):
        raise UnsupportedError("MixtureOfGaussiansDpEvent is about adding a record, not about replacing one")
    if not counted:
        raise UnsupportedError("a DpEvent that releases nothing has no event here")
    if len(counted) == 1 and counted[0][1] == 1:
        return counted[0][0]
    return Composed(events=tuple(counted))


def to_dp_event(event: Event) -> Any:
    """The `DpEvent` of an event; dp-accounting is imported here.

    Raises:
        InputError: it is no event.
        UnsupportedError: dp-accounting has no such event.
    """
    from dp_accounting import dp_event as theirs

    counted = []
    for part, count in require_event(event).parts():
        if isinstance(part, Gaussian):
            made: Any = theirs.GaussianDpEvent(part.noise_multiplier)
        elif isinstance(part, Laplace):
            made = theirs.LaplaceDpEvent(part.scale)
        elif isinstance(part, SubsampledGaussian):
            inner = theirs.GaussianDpEvent(part.noise_multiplier)
            made = theirs.PoissonSampledDpEvent(part.sampling_probability, inner)
        elif isinstance(part, SubsampledLaplace):
            made = theirs.PoissonSampledDpEvent(part.sampling_probability, theirs.LaplaceDpEvent(part.scale))
        elif isinstance(part, DiscreteLaplace):
            made = theirs.DiscreteLaplaceDpEvent(part.noise_parameter, part.largest_contribution)
        elif isinstance(part, FixedBatch):
            inner = theirs.GaussianDpEvent(part.noise_multiplier)
            made = theirs.SampledWithoutReplacementDpEvent(part.dataset_size, part.batch_size, inner)
        elif isinstance(part, CappedPoisson):
            made = theirs.TruncatedSubsampledGaussianDpEvent(
                part.dataset_size, part.sampling_probability, part.largest_batch, part.noise_multiplier
            )
        elif isinstance(part, GaussianMixturePair) and _is_about_adding(part):
            made = theirs.MixtureOfGaussiansDpEvent(
                part.standard_deviation, list(part.p_means), list(part.p_weights)
            )
        elif isinstance(part, RandomisedResponse):
            made = theirs.RandomizedResponseDpEvent(part.noise_parameter, part.categories)
        else:
            raise UnsupportedError(f"dp-accounting has no event for {part.describe()}")
        counted.append(made if count == 1 else theirs.SelfComposedDpEvent(made, count))
    return counted[0] if len(counted) == 1 else theirs.ComposedDpEvent(counted)


def _is_theirs(event: object) -> bool:
    """Whether it is a `DpEvent`; dp-accounting is not imported for the question."""
    return any(
        kind.__module__.startswith("dp_accounting") and kind.__name__ == "DpEvent"
        for kind in type(event).__mro__
    )


def _parts(event: Any, adjacency: Adjacency) -> list[tuple[Event, int]]:
    """The elementary events of a `DpEvent`, with their counts."""
    kind = type(event).__name__
    if kind == "NoOpDpEvent":
        return []
    if kind == "GaussianDpEvent":
        return [(Gaussian(noise_multiplier=event.noise_multiplier), 1)]
    if kind == "LaplaceDpEvent":
        return [(Laplace(scale=event.noise_multiplier), 1)]
    if kind == "DiscreteLaplaceDpEvent":
        noise = DiscreteLaplace(noise_parameter=event.noise_parameter, largest_contribution=event.sensitivity)
        return [(noise, 1)]
    if kind == "SampledWithoutReplacementDpEvent":
        return [(_fixed(event, adjacency), 1)]
    if kind == "TruncatedSubsampledGaussianDpEvent":
        return _capped(event)
    if kind == "RandomizedResponseDpEvent":
        made = RandomisedResponse(noise_parameter=event.noise_parameter, categories=event.num_buckets)
        return [(made, 1)]
    if kind == "MixtureOfGaussiansDpEvent":
        weights, means = (_numbers(name, event) for name in ("sampling_probs", "sensitivities"))
        if len(weights) != len(means):
            raise InputError(
                f"sampling_probs must be as many as sensitivities ({len(means)}), got {len(weights)}"
            )
        kept = [(weight, mean) for weight, mean in zip(weights, means, strict=True) if weight != 0]
        pair = GaussianMixturePair(
            p_means=tuple(mean for _, mean in kept),
            p_weights=tuple(weight for weight, _ in kept),
            q_means=(0.0,),
            q_weights=(1.0,),
            standard_deviation=event.standard_deviation,
        )
        return [(pair, 1)]
    if kind == "PoissonSampledDpEvent":
        return _sampled(event, adjacency)
    if kind == "SingleEpochTreeAggregationDpEvent":
        return [_tree(event)]
    if kind == "SelfComposedDpEvent":
        times = whole_number("count", event.count, least=0, most=None)
        return [(part, count * times) for part, count in _parts(event.event, adjacency)]
    if kind == "ComposedDpEvent":
        if not isinstance(event.events, list | tuple):
            raise InputError(f"events must be a row of events, got {object_line(event.events)}")
        return [pair for inner in event.events for pair in _parts(inner, adjacency)]
    raise UnsupportedError(f"there are no certified bounds for {object_line(event)}")


def _is_about_adding(pair: GaussianMixturePair) -> bool:
    """Whether the pair is a mixture of what a record may add, against nothing."""
    return set(pair.q_means) == {0.0} and min(pair.p_means) >= 0


def _fixed(event: Any, adjacency: Adjacency) -> Event:
    """A batch of fixed size; the event on all records where that is the whole data set."""
    inner = _only(event, adjacency)
    if not isinstance(inner, Gaussian):
        raise UnsupportedError(f"fixed batches are bounded for one Gaussian each, got {object_line(event)}")
    size = whole_number("source_dataset_size", event.source_dataset_size, least=1, most=None)
    drawn = whole_number("sample_size", event.sample_size, least=1, most=None)
    if drawn > size:
        raise InputError(f"sample_size must be at most source_dataset_size ({size}), got {drawn}")
    if drawn == size and adjacency is Adjacency.ADD_REMOVE:
        raise InputError(
            f"sample_size must be below source_dataset_size ({size}) under add-remove, where the smaller "
            f"neighbour has fewer records than are drawn, got {drawn}"
        )
    if drawn == size:
        return inner
    return FixedBatch(noise_multiplier=inner.noise_multiplier, dataset_size=size, batch_size=drawn)


def _capped(event: Any) -> list[tuple[Event, int]]:
    """A capped Poisson sample; nothing where nobody can be in it."""
    if 0 in (event.dataset_size, event.sampling_probability, event.truncated_batch_size):
        return []
    sample = CappedPoisson(
        noise_multiplier=event.noise_multiplier,
        sampling_probability=event.sampling_probability,
        dataset_size=event.dataset_size,
        largest_batch=event.truncated_batch_size,
    )
    return [(sample, 1)]


def _tree(event: Any) -> tuple[Event, int]:
    """Trees in which a record takes part once: a Gaussian for each node above a leaf of the largest."""
    counts = event.step_counts if isinstance(event.step_counts, list | tuple) else [event.step_counts]
    steps = [whole_number("step_counts", count, least=1, most=None) for count in counts]
    if not steps:
        raise InputError(f"step_counts must hold at least one number, got {object_line(event.step_counts)}")
    return Gaussian(noise_multiplier=event.noise_multiplier), max(steps).bit_length()


def _numbers(name: str, event: Any) -> list[float]:
    """A field of numbers of a `DpEvent`."""
    values = getattr(event, name)
    if not isinstance(values, Sequence | np.ndarray) or isinstance(
        values, str | bytes | bytearray | memoryview
    ):
        raise InputError(f"{name} must be a row of numbers, got {object_line(values)}")
    return [number(name, value) for value in values]


def _only(event: Any, adjacency: Adjacency) -> Event | None:
    """The elementary event that is run once on a sample; None without, or where it draws batches too."""
    inner = _parts(event.event, adjacency)
    is_one = len(inner) == 1 and inner[0][1] == 1 and not _draws_batches(event.event)
    return inner[0][0] if is_one else None


def _draws_batches(event: Any) -> bool:
    """Whether an event draws batches of fixed size: its parts do not say so of batches of everybody."""
    if type(event).__name__ == "SampledWithoutReplacementDpEvent":
        return True
    inner = getattr(event, "events", None)
    return any(map(_draws_batches, inner if isinstance(inner, list | tuple) else ())) or (
        hasattr(event, "event") and _draws_batches(event.event)
    )


def _sampled(event: Any, adjacency: Adjacency) -> list[tuple[Event, int]]:
    """Gaussians or a Laplace on a Poisson sample; others on one sample are no composition, and refused."""
    if not any(count for _, count in _parts(event.event, adjacency)):
        return []
    inner, rate = _only(event, adjacency) or _as_one(event, adjacency), event.sampling_probability
    if not isinstance(inner, Gaussian | Laplace):
        raise UnsupportedError(
            "Poisson samples are bounded for one Laplace each, or for Gaussians (of replacing a record, for "
            f"one), got {object_line(event)}"
        )
    if rate == 0:
        return []
    if isinstance(inner, Laplace):
        return [(SubsampledLaplace(scale=inner.scale, sampling_probability=rate), 1)]
    return [(SubsampledGaussian(noise_multiplier=inner.noise_multiplier, sampling_probability=rate), 1)]


def _as_one(event: Any, adjacency: Adjacency) -> Event | None:
    """The Gaussian whose pair dominates that of the Gaussians that are run on one sample; None without.

    Their composition has the pair of a Gaussian of precision, one over the variance, as large as all of
    theirs together, rounded to float64; and the pair of a Poisson sample follows from the pair that dominates
    what is run on it (Zhu et al. 2022, Theorem 11). That is about a record that is there or not, and says
    nothing of one in the place of another.
    """
    if adjacency is Adjacency.REPLACE_ONE or _draws_batches(event.event):
        return None
    noises = []
    for part, count in _parts(event.event, adjacency):
        if count and not isinstance(part, Gaussian):
            return None
        if count:
            noises.append((Fraction(part.noise_multiplier), count))  # type: ignore[attr-defined]
    least = min(noise for noise, _ in noises)
    precision = sum(count * (least / noise) ** 2 for noise, count in noises)
    return Gaussian(noise_multiplier=float(least) * math.sqrt(1 / precision))

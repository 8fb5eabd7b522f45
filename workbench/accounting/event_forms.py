"""Events as JSON: an object that names the kind, its parameters, and how often it is run.

>>> event_from_json({"event": "Laplace", "scale": 2, "count": 100}).describe()
'100 x Laplace (scale 2)'
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from workbench.accounting.correlated import CorrelatedGaussian, SampledCorrelatedGaussian
from workbench.accounting.events import (
    Composed,
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
)
from workbench.accounting.integers import DiscreteGaussian, DiscreteLaplace, Skellam
from workbench.accounting.samples import (
    BatchMean,
    CappedPoisson,
    FixedBatch,
    RandomAllocation,
    SubsampledLaplace,
    SubsampledUser,
)
from workbench.accounting.selections import BestOfRuns, ExponentialMechanism, PrivateStep
from workbench.accounting.thresholds import SparseVector
from workbench.core.arguments import whole_number
from workbench.core.errors import InputError, unknown_name
from workbench.core.one_line import object_line

_FRACTION = re.compile(
    r"[-+]?(?=[.]?[0-9])[0-9]{0,1000}(/[0-9]{1,1000}|([.][0-9]{0,1000})?([eE][-+]?[0-9]{1,3})?)"
)

KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        BatchMean,
        BestOfRuns,
        CappedPoisson,
        CorrelatedGaussian,
        DiscreteGaussian,
        DiscreteLaplace,
        ExponentialMechanism,
        FinitePair,
        FixedBatch,
        Gaussian,
        GaussianMixturePair,
        Laplace,
        PrivateStep,
        RandomAllocation,
        RandomisedResponse,
        SampledCorrelatedGaussian,
        ShuffledBatches,
        Skellam,
        SparseVector,
        SubsampledGaussian,
        SubsampledLaplace,
        SubsampledUser,
    )
}
"""The elementary events by the names that forms give them."""


def event_from_json(form: object) -> Event:
    """The event that a JSON value describes.

    Args:
        form: An object with the kind's name as `"event"`, the kind's parameters, and perhaps a `"count"`
            (1 by default); or a list of such objects, which are composed. Exact probabilities are text, as
            `"1/3"`.

    Raises:
        InputError: it is neither, a list holds nothing, the kind is unknown, or a parameter is missing,
            unknown or out of range.
    """
    if form == []:
        raise InputError("form must hold an event, got an empty list")
    if isinstance(form, list):
        return Composed(events=tuple(_counted(entry) for entry in form))
    event, count = _counted(form)
    return event if count == 1 else Composed(events=((event, count),))


def _counted(form: object) -> tuple[Event, int]:
    """One object's event and its count."""
    if not isinstance(form, Mapping) or not isinstance(form.get("event"), str):
        raise InputError(f'form must be an object with the kind\'s name as "event", got {object_line(form)}')
    given = dict(form)
    name, count = given.pop("event"), whole_number("count", given.pop("count", 1), least=1, most=None)
    if name not in KINDS:
        raise unknown_name("event", name, KINDS)
    fields = dataclasses.fields(KINDS[name])  # type: ignore[arg-type]
    needed = {field.name for field in fields if field.default is dataclasses.MISSING}
    missing = sorted(needed - set(given))
    if missing:
        raise InputError(f"{missing[0]} must be given for the event {name}, got {object_line(dict(form))}")
    for parameter in given:
        if parameter not in {field.name for field in fields}:
            raise unknown_name(f"parameter of {name}", str(parameter), (field.name for field in fields))
    return KINDS[name](**{key: _exact(key, value) for key, value in given.items()}), count


def _exact(name: str, value: Any) -> Any:
    """The value with its lists as tuples, and text of a fraction in them as that."""
    if not isinstance(value, list):
        return value
    return tuple(_entry(name, entry) for entry in value)


def _entry(name: str, entry: Any) -> Any:
    if isinstance(entry, list):
        return _exact(name, entry)
    if not isinstance(entry, str):
        return entry
    try:
        if not _FRACTION.fullmatch(entry):  # Fraction itself takes digits of any script, and any exponent.
            raise ValueError
        return Fraction(entry)
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"{name} must hold numbers or fractions such as '1/3', got {object_line(entry)}"
        ) from None

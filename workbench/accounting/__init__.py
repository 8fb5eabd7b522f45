"""Privacy guarantees in their own currencies, and certified bounds of what randomised computations keep.

`epsilon`, `delta` and `tpr` bound what an event keeps, from both sides, and `calibrate` finds the noise for a
target; an event is one of those below, or dp-accounting's. `guarantees` says what each promise allows an
attacker. The packages in here are its engines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.accounting.guarantees import (
    ApproximateDP,
    GaussianDP,
    MutualInformation,
    NoGuarantee,
    RenyiDP,
    binary_kl_nats,
    guarantee_from_json,
)
from workbench.interfaces import Direction

if TYPE_CHECKING:
    from workbench.accounting.asking import delta, epsilon, tpr
    from workbench.accounting.bounds import Bounds, BoundsArray
    from workbench.accounting.calibration import calibrate
    from workbench.accounting.correlated import CorrelatedGaussian, SampledCorrelatedGaussian
    from workbench.accounting.dp_events import event_of, to_dp_event
    from workbench.accounting.encoders import blt_encoder, toeplitz_encoder, tree_encoder
    from workbench.accounting.event_forms import event_from_json
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
        gaussian_run,
    )
    from workbench.accounting.filters import GaussianFilter, GaussianOdometer, RenyiFilter
    from workbench.accounting.integers import DiscreteGaussian, DiscreteLaplace, Skellam
    from workbench.accounting.samples import (
        BatchMean,
        CappedPoisson,
        FixedBatch,
        RandomAllocation,
        SubsampledLaplace,
        SubsampledUser,
        user_run,
    )
    from workbench.accounting.selections import BestOfRuns, ExponentialMechanism, PrivateStep
    from workbench.accounting.thresholds import SparseVector

_LATER = {
    **dict.fromkeys(("delta", "epsilon", "tpr"), "asking"),
    "calibrate": "calibration",
    **dict.fromkeys(("Bounds", "BoundsArray"), "bounds"),
    **dict.fromkeys(("event_of", "to_dp_event"), "dp_events"),
    "event_from_json": "event_forms",
    **dict.fromkeys(("GaussianFilter", "GaussianOdometer", "RenyiFilter"), "filters"),
    **dict.fromkeys(("CorrelatedGaussian", "SampledCorrelatedGaussian"), "correlated"),
    **dict.fromkeys(("blt_encoder", "toeplitz_encoder", "tree_encoder"), "encoders"),
    **dict.fromkeys(("DiscreteGaussian", "DiscreteLaplace", "Skellam"), "integers"),
    **dict.fromkeys(
        (
            "BatchMean",
            "CappedPoisson",
            "FixedBatch",
            "RandomAllocation",
            "SubsampledLaplace",
            "SubsampledUser",
            "user_run",
        ),
        "samples",
    ),
    **dict.fromkeys(("BestOfRuns", "ExponentialMechanism", "PrivateStep"), "selections"),
    "SparseVector": "thresholds",
    **dict.fromkeys(
        (
            "Composed",
            "Event",
            "FinitePair",
            "Gaussian",
            "GaussianMixturePair",
            "Laplace",
            "RandomisedResponse",
            "ShuffledBatches",
            "SubsampledGaussian",
            "gaussian_run",
        ),
        "events",
    ),
}
"""Names by the module that has them, which is imported when the first of them is asked for."""

__all__ = [
    "ApproximateDP",
    "BatchMean",
    "BestOfRuns",
    "Bounds",
    "BoundsArray",
    "CappedPoisson",
    "Composed",
    "CorrelatedGaussian",
    "Direction",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Event",
    "ExponentialMechanism",
    "FinitePair",
    "FixedBatch",
    "Gaussian",
    "GaussianDP",
    "GaussianFilter",
    "GaussianMixturePair",
    "GaussianOdometer",
    "Laplace",
    "MutualInformation",
    "NoGuarantee",
    "PrivateStep",
    "RandomAllocation",
    "RandomisedResponse",
    "RenyiDP",
    "RenyiFilter",
    "SampledCorrelatedGaussian",
    "ShuffledBatches",
    "Skellam",
    "SparseVector",
    "SubsampledGaussian",
    "SubsampledLaplace",
    "SubsampledUser",
    "binary_kl_nats",
    "blt_encoder",
    "calibrate",
    "delta",
    "epsilon",
    "event_from_json",
    "event_of",
    "gaussian_run",
    "guarantee_from_json",
    "to_dp_event",
    "toeplitz_encoder",
    "tpr",
    "tree_encoder",
    "user_run",
]


def __getattr__(name: str) -> Any:
    """A name of a module that is imported now."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)

"""Privacy guarantees in their own currencies, and certified bounds of what randomised computations keep.

`guarantees` says what each promise allows an attacker; `events` describe what is released, and `certified`
bounds their epsilon, delta and trade-off curve from both sides. The packages in here are its engines.
"""

from workbench.accounting.guarantees import (
    ApproximateDP,
    GaussianDP,
    MutualInformation,
    NoGuarantee,
    RenyiDP,
    binary_kl_nats,
    guarantee_from_json,
)

__all__ = [
    "ApproximateDP",
    "GaussianDP",
    "MutualInformation",
    "NoGuarantee",
    "RenyiDP",
    "binary_kl_nats",
    "guarantee_from_json",
]

"""Guarantees, what they are worth to an attacker, and the accountants that compute them."""

from workbench.accounting.guarantees import (
    ApproximateDP,
    GaussianDP,
    MutualInformation,
    NoGuarantee,
    RenyiDP,
    binary_kl_nats,
    guarantee_from_json,
    nats_of_epsilon,
    require_approximate_dp,
)

__all__ = [
    "ApproximateDP",
    "GaussianDP",
    "MutualInformation",
    "NoGuarantee",
    "RenyiDP",
    "binary_kl_nats",
    "guarantee_from_json",
    "nats_of_epsilon",
    "require_approximate_dp",
]

"""What a claim allows an attacker, and what the other currencies allow at a stated point of agreement.

A reader of one currency wants to see another's curve beside it. None implies the other: each reference
says in words where it was made to agree with the claim, and the page calls it a reference, not the claim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logit, ndtri

from workbench.accounting import (
    ApproximateDP,
    GaussianDP,
    MutualInformation,
    NoGuarantee,
    binary_kl_nats,
)
from workbench.accounting.gaussian import mu_of_epsilon
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.deciding import implied_epsilon
from workbench.interfaces import FloatArray, Guarantee, Secret


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """A guarantee with the success and the true-positive rates that it allows.

    Attributes:
        key: `"claim"`, `"gdp"`, `"dp"`, `"pure"` or `"mi"`; names the curve's style.
        guarantee: The guarantee.
        agreement: Where a reference agrees with the claim; empty for the claim itself.
    """

    key: str
    guarantee: Guarantee
    agreement: str = ""

    @property
    def success(self) -> float:
        """Highest membership success at an even prior."""
        return self.guarantee.max_success(0.5)

    @property
    def has_curve(self) -> bool:
        """Whether the guarantee bounds every test; else only its average success bounds the curve."""
        try:
            self.guarantee.max_tpr(np.array([0.5]))
        except UnsupportedError:
            return False
        return True

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """Highest true-positive rate at each false-positive rate.

        Without a trade-off curve: success (TPR + 1 - FPR) / 2 <= s at an even prior leaves
        TPR <= FPR + 2 s - 1, which is all that such a guarantee says of a single test.
        """
        if self.has_curve:
            return self.guarantee.max_tpr(fpr)
        return np.asarray(np.clip(fpr + 2.0 * self.success - 1.0, 0.0, 1.0), dtype=np.float64)


def allowed_by(claim: Guarantee) -> tuple[Allowed, ...]:
    """The claim first, then its references in the other currencies."""
    first = Allowed(key="claim", guarantee=claim)
    if isinstance(claim, NoGuarantee):
        return (first,)
    if isinstance(claim, MutualInformation):
        return (first, *_same_success_references(first.success))
    nats = binary_kl_nats(first.success, 0.5)
    information = Allowed(
        key="mi",
        guarantee=MutualInformation(nats=nats, secret=Secret.RECORD),
        agreement="same highest success at an even prior",
    )
    return (first, *_curve_references(claim), information)


def stated_epsilon(claim: Guarantee) -> ApproximateDP | None:
    """The (epsilon, delta) statement that the judge tests in the claim's place; None where it has none."""
    try:
        return implied_epsilon(claim)
    except (InputError, UnsupportedError):
        return None


def _curve_references(claim: Guarantee) -> list[Allowed]:
    stated = stated_epsilon(claim)
    if stated is None or stated.delta == 0.0:
        return []
    same = f"same epsilon at delta = {stated.delta:g}"
    if not isinstance(claim, ApproximateDP):
        return [
            Allowed(key="dp", guarantee=stated, agreement=f"implied by the claim at delta = {stated.delta:g}")
        ]
    pure = ApproximateDP(epsilon=claim.epsilon, delta=0.0)
    return [
        Allowed(
            key="gdp", guarantee=GaussianDP(mu=mu_of_epsilon(claim.epsilon, claim.delta)), agreement=same
        ),
        Allowed(key="pure", guarantee=pure, agreement="same epsilon, delta = 0"),
    ]


def _same_success_references(success: float) -> list[Allowed]:
    if not 0.5 < success < 1.0:
        return []
    same = "same highest success at an even prior"
    return [
        Allowed(key="gdp", guarantee=GaussianDP(mu=2.0 * float(ndtri(success))), agreement=same),
        Allowed(
            key="pure", guarantee=ApproximateDP(epsilon=float(logit(success)), delta=0.0), agreement=same
        ),
    ]

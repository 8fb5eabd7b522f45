"""What nats and an epsilon are said to bound membership success at (Ertan et al. 2026, PACZero)."""

from __future__ import annotations

import math

from scipy import optimize, special

from workbench.accounting.guarantees import binary_kl_nats
from workbench.mechanisms.accountants.shared.questions import require


def posterior_success(*, nats: float, prior_success: float = 0.5) -> float:
    """Eq. 2 solved: the largest p >= prior with KL(p || prior) <= nats.

    Raises:
        InputError: a parameter is out of range.
    """
    require("nats", nats, nats >= 0, ">= 0")
    require("prior_success", prior_success, 0 < prior_success < 1, "in (0, 1)")
    if nats >= -math.log(prior_success):
        return 1.0
    if nats == 0:
        return prior_success
    found = optimize.brentq(lambda p: binary_kl_nats(p, prior_success) - nats, prior_success, 1.0, xtol=1e-15)
    return float(found)


def dp_success(*, epsilon: float, delta: float) -> float:
    """Section 2: what (epsilon, delta)-DP is said to bound balanced membership success at.

    As printed, e^eps / (1 + e^eps) + delta; the exact value is (e^eps + delta) / (1 + e^eps).
    """
    return float(special.expit(epsilon)) + delta


def comparable_epsilon(nats: float) -> float:
    """Section 2: the pure-DP epsilon whose balanced membership bound equals that of these nats.

    The paper's reference point, "a numerical reference only": it transfers no guarantee. Infinite from ln 2.
    """
    success = posterior_success(nats=nats)
    return math.inf if success >= 1 else float(special.logit(success))

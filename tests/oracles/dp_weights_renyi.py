"""DP-Weights' Renyi bound, as printed (Zagardo 2024, Section 8.1.3): nothing is trained or claimed by it.

The final bound multiplies the Gaussian's divergence with the subsampled one (`variant="product"`, as
printed), where the lines before it compose E subsampled ones (`variant="sum"`).
"""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar

from workbench.mechanisms.accountants.shared.questions import require_delta, require_option

VARIANTS = ("product", "sum")


def subsampled_renyi(alpha: float, *, ratio: float, sampling_probability: float) -> float:
    """Section 8.1.3: log(1 + q^2 * (alpha choose 2) * (exp((alpha - 1) * rho) - 1)) / (alpha - 1), nats.

    Args:
        alpha: Order, > 1.
        ratio: Sensitivity over noise; rho = alpha * ratio^2 / 2.
        sampling_probability: q = B / N.
    """
    exponent = (alpha - 1) * alpha * ratio**2 / 2
    weight = sampling_probability**2 * alpha * (alpha - 1) / 2
    if exponent < 700.0:
        return math.log1p(weight * math.expm1(exponent)) / (alpha - 1)
    return max(0.0, exponent + math.log(weight)) / (alpha - 1)


def final_epsilon(
    *, ratio: float, epochs: float, sampling_probability: float, delta: float, variant: str = "product"
) -> float:
    """The "final privacy guarantee" of Section 8.1.3, minimised over alpha > 1.

    Args:
        ratio: DW over the total noise sigma_total.
        epochs: E.
        sampling_probability: q = B / N.
        delta: In (0, 1).
        variant: `"product"` as printed, or `"sum"` as the lines before it derive.

    Raises:
        InputError: the variant is unknown, or delta is out of range.
    """
    require_option("variant", variant, VARIANTS)
    require_delta(delta)

    def total(log_order: float) -> float:
        alpha = 1 + math.exp(log_order)
        spent = epochs * subsampled_renyi(alpha, ratio=ratio, sampling_probability=sampling_probability)
        if variant == "product":
            spent *= alpha * ratio**2 / 2
        return spent - math.log(delta) / (alpha - 1)

    grid = [-6 + 0.25 * index for index in range(81)]
    low = min(range(len(grid)), key=lambda index: total(grid[index]))
    ends = (grid[max(low - 1, 0)], grid[min(low + 1, len(grid) - 1)])
    found = minimize_scalar(total, bounds=ends, method="bounded", options={"xatol": 1e-10})
    return min(float(found.fun), total(grid[low]))

"""DP-AggZO: K directions a step, and each record's K scalars clipped as one vector (Bao et al. 2025).

    for t in 1..T:
        take a Poisson sample L_t: each of the N records with probability q
        draw K public directions z_k ~ N(0, I); all differences are taken at the same weights
        for each record i in L_t, each k: g_ik = (loss_i(theta + mu z_k) - loss_i(theta - mu z_k)) / (2 mu)
        clip:    g_i <- g_i * min(1, c / |g_i|)                  average "after"
             or  g_i <- g_i * min(1, K c / |g_i|)                average "before"
        noise:   g <- sum of g_i + N(0, (sigma S)^2 I), S the most that a record adds: c, or K c
        descend: theta <- theta - eta (1/K) sum over k of (g_k / (q N)) z_k

With K = 1 this is `dpzero`, to the bit. The whole vector is one release, so sigma is that of `dp_sgd` and of
`dpzero` whatever K is.

Where the 1/K goes is not said in the PACZero paper, which compares with DP-AggZO: section 5 has it aggregate
K coefficients into a vector before clipping, and Appendix M averages over K in the update. If the average is
taken after the clip, c bounds |g_i|; if the vector is divided by K first, c bounds |g_i| / K, which is the
same as a clip norm of K c. The authors' public code (erguteb/dp-aggzo) does the latter, so `average="before"`
goes with Table 3 (K = 64, T = 1,000, eta = 5e-6, c = 25, q = 0.064; its "N = 64" is K again, under that
code's name for it). The two are one mechanism under two scales of c, and meet the budget alike. That code
also spends 5 % of epsilon on a noisy number of records, and skips empty samples; here N is public and no step
is skipped.

Source: Bao, Jiang, Wei, Xiao, Li, Li and Ding 2025, "Unlocking the power of differentially private
zeroth-order optimization for fine-tuning LLMs"; Ertan et al. 2026, "PACZero", sections 4 and 5, appendices D
and M.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.mechanisms.shared.private_zeroth_order import PrivateZerothOrder

AVERAGES = ("after", "before")


@register("mechanism", "dp_aggzo")
@dataclass(frozen=True, kw_only=True)
class DPAggZO(PrivateZerothOrder):
    """Zeroth-order descent on a clipped, noised vector of K scalars a step (Bao et al. 2025).

    `average`: whether c bounds a record's vector (`"after"`: the mean over directions is taken after the
    clip) or the vector over K (`"before"`). Raises `InputError`: a parameter is out of range.
    """

    registered: ClassVar[str] = "dp_aggzo"
    source: ClassVar[str] = "Bao et al. 2025 (DP-AggZO)"

    directions: int = 16
    average: str = "after"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average not in AVERAGES:
            raise unknown_name("average", self.average, AVERAGES)

    @property
    def sensitivity(self) -> float:
        """c, or K c: the most that a record adds to the sum, in the Euclidean norm."""
        return self.l2_clip_norm * (self.directions if self.average == "before" else 1)

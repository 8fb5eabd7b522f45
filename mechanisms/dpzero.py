"""DPZero: clip each record's scalar, sum, add Gaussian noise, go along the direction (Zhang et al. 2024).

    for t in 1..T:
        take a Poisson sample L_t: each of the N records with probability q
        draw a public direction z ~ N(0, I)
        for each record i in L_t: g_i = (loss_i(theta + mu z) - loss_i(theta - mu z)) / (2 mu)
        clip:    g_i <- max(-c, min(c, g_i))
        noise:   g <- sum of g_i + N(0, (sigma c)^2)
        descend: theta <- theta - eta (g / (q N)) z

The loop is `workbench.training.zeroth_order`; clip and noise are DP-SGD's, in one dimension. sigma is the
smallest that the accountant finds to meet the plan's budget, add-remove, as for `dp_sgd`: it does not depend
on the number of parameters, nor on what is released.

As the PACZero paper uses it (sections 1 and 4, Table 3): T = 20,000, eta = 5e-6, c = 25, mu = 1e-3,
q = 0.064, delta = 1e-5, N = 1,000. What that paper leaves open, and what stands here: it names a sample rate,
no kind of sample (Poisson, as the accountants of both baselines assume); it clips and averages, over how many
it does not say (q N, the expected number); directions are Gaussian, as in its Eq. 1, where DPZero's analysis
takes them from a sphere. No release is skipped where a sample is empty: noise alone is released.

Source: Zhang, Li, Thekumparampil, Oh and He 2024, "DPZero: private fine-tuning of language models without
backpropagation"; Ertan, Zhu, Nguyen, van Dijk and Devadas 2026, "PACZero".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.mechanisms.shared.private_zeroth_order import PrivateZerothOrder


@register("mechanism", "dpzero")
@dataclass(frozen=True, kw_only=True)
class DPZero(PrivateZerothOrder):
    """Zeroth-order descent on a clipped, noised scalar a step (Zhang et al. 2024).

    Raises `InputError`: a parameter is out of range; more than one direction (that is `dp_aggzo`).
    """

    registered: ClassVar[str] = "dpzero"
    source: ClassVar[str] = "Zhang et al. 2024 (DPZero)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.directions != 1:
            raise InputError(
                f"directions must be 1 for dpzero, got {self.directions}; 'dp_aggzo' takes several"
            )

"""A mechanism of candidate subsets made of arrays: PACZero's release over made-up scalars, and altered ones.

The noise of a step is that at which a Gaussian input of the sign's variance would leak the step's budget: a
little more than the binary channel needs, so its claim is true, with a little to spare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from workbench.accounting import MutualInformation
from workbench.games.subset.play import SubsetMechanism, SubsetRelease
from workbench.interfaces import (
    BoolArray,
    Capabilities,
    Claim,
    Currency,
    FloatArray,
    Plan,
    Release,
    Released,
    Secret,
)

ALTERED = ("no", "noise", "coins")


@dataclass(frozen=True, kw_only=True)
class SubsetsStandIn(SubsetMechanism):
    """Signs of subset means of scalars drawn at random, under an adaptive budget or none.

    Attributes:
        nats: Budget; 0 releases coins where the candidates disagree.
        count: M.
        subsets: `"pairs"` or `"halves"`.
        drift: How far the scalars' mean of a step is from zero, in their standard deviations.
        altered: `"noise"`: a third of the noise that is stated; `"coins"`: the secret's sign in their place.
    """

    nats: float = 0.0
    count: int = 16
    subsets: str = "pairs"
    drift: float = 0.2
    altered: str = "no"
    public_seed: int | None = None
    seen: list[tuple[int, int | None]] = field(default_factory=list)

    conditions_on_bits = False
    agreed = "secret"
    reads_dev = False

    @property
    def capabilities(self) -> Capabilities:
        """Bits about a candidate subset, for nats."""
        return Capabilities(currency=Currency.SUBSET_NATS, releases=frozenset({Release.BITS}))

    def claim(self, plan: Plan) -> Claim:
        """The budget, about the subset."""
        return Claim(
            guarantee=MutualInformation(nats=self.nats, secret=Secret.SUBSET),
            about=Secret.SUBSET,
            released=Released.EVERY_UPDATE,
            source="stand-in",
        )

    def candidate_subsets(self, plan: Plan) -> BoolArray:
        """Halves of the universe, and their complements where they are pairs."""
        generator = np.random.default_rng([plan.seed, 1])
        n = len(plan.records)
        held = np.zeros((self.count, n), dtype=np.bool_)
        for index in range(0, self.count, 2 if self.subsets == "pairs" else 1):
            held[index, generator.permutation(n)[: n // 2]] = True
            if self.subsets == "pairs":
                held[index + 1] = ~held[index]
        return held

    def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Any:
        """As `train_on`, with a secret of its own."""
        return self.train_on(plan, progress=progress)

    def train_on(
        self,
        plan: Plan,
        *,
        secret: int | None = None,
        watch: Callable[[SubsetRelease], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """Release a bit a step."""
        self.seen.append((plan.seed, secret))
        chosen = int(np.random.default_rng([plan.seed, 3]).integers(self.count)) if secret is None else secret
        bits = []
        for release in self.releases(plan, chosen):
            bits.append(release.bit)
            if watch is not None:
                watch(release)
        transcript = SimpleNamespace(metrics={}, traces={})
        return SimpleNamespace(claim=self.claim(plan), plan=plan, transcript=transcript, bits=bits)

    def releases(self, plan: Plan, secret: int) -> Iterator[SubsetRelease]:
        """The run."""
        public, private = np.random.default_rng([plan.seed, 2]), np.random.default_rng([plan.seed, 4])
        held = self.candidate_subsets(plan)
        weights, used = np.full(self.count, 1.0 / self.count), 0.0
        for step in range(plan.steps):
            scalars = public.normal(self.drift * public.choice([-1.0, 1.0]), 1.0, len(plan.records))
            signs = np.where(held @ scalars >= 0.0, 1, -1).astype(np.int8)
            coin, normal = int(private.choice([-1, 1])), float(private.normal())
            noise, budget, bit = 0.0, 0.0, int(signs[secret])
            value = float(bit)
            if np.any(signs != signs[0]):
                noise, value, bit = math.inf, math.nan, coin
                if self.altered == "coins":
                    bit = int(signs[secret])
                if self.nats > 0.0:
                    budget = max(1e-12, self.nats - used) / (plan.steps - step)
                    agreement = float(np.clip(weights[signs > 0].sum(), 1e-9, 1.0 - 1e-9))
                    noise = math.sqrt(2.0 * agreement * (1.0 - agreement) / budget)
                    real = noise / 3.0 if self.altered == "noise" else noise
                    value = float(signs[secret]) + real * normal
                    bit = 1 if value >= 0.0 else -1
                    weights = _updated(weights, signs, value, noise)
                    used += budget
            yield SubsetRelease(
                step=step,
                direction=0,
                differences=scalars,
                signs=signs,
                noise=noise,
                budget_nats=budget,
                value=value,
                bit=bit,
            )


def _updated(weights: FloatArray, signs: Any, value: float, noise: float) -> FloatArray:
    logs = np.log(np.maximum(weights, 1e-300)) - (value - signs) ** 2 / (2.0 * noise**2)
    found: FloatArray = np.exp(logs - logs.max())
    return found / found.sum()

"""Masked signs over softmax regression in NumPy: small, fast, and a twin of nothing that ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.accounting import MutualInformation
from workbench.games.transcript import FiredStep, WatchedMechanism
from workbench.interfaces import (
    Capabilities,
    Claim,
    Currency,
    FloatArray,
    Plan,
    Record,
    Release,
    Released,
    Secret,
    Transcript,
)


@dataclass
class Trained:
    """What the game needs of a subject."""

    claim: Claim
    transcript: Transcript
    plan: Plan
    weights: FloatArray


@dataclass(frozen=True, kw_only=True)
class SignsStandIn(WatchedMechanism):
    """Signs of G blocks of a softmax regression's weights, each firing with probability p."""

    groups: int = 2
    firing_probability: float = 0.5
    zero_gradient: str = "silent"
    public_seed: int | None = None
    dither_standard_deviation: float = 0.0
    classes: int = 10
    seen: list[Plan] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        """Signs, for nats about a record."""
        return Capabilities(currency=Currency.RECORD_NATS, releases=frozenset({Release.SIGNS}))

    def claim(self, plan: Plan) -> Claim:
        """T G s p ln 2 nats."""
        nats = plan.steps * self.groups * plan.sampling_probability * self.firing_probability * np.log(2.0)
        return Claim(
            guarantee=MutualInformation(nats=float(nats), secret=Secret.RECORD),
            about=Secret.RECORD,
            released=Released.EVERY_UPDATE,
            source="stand-in",
        )

    def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Trained:
        """As `train_watched`, unwatched."""
        return self.train_watched(plan, lambda _: None, progress)

    def train_watched(
        self,
        plan: Plan,
        watch: Callable[[FiredStep], None],
        progress: Callable[[int, int], None] | None = None,
    ) -> Trained:
        """Algorithm 1 with plain gradient descent."""
        self.seen.append(plan)
        public, secret = (np.random.default_rng(s) for s in np.random.SeedSequence(plan.seed).spawn(2))
        pixels = len(plan.records[0].image or ())
        weights = np.zeros((pixels, self.classes))
        block = np.arange(pixels) % self.groups
        canary = plan.insertions.gradient_canary
        for step in range(plan.steps):
            fired = tuple(np.flatnonzero(public.random(self.groups) < self.firing_probability).tolist())
            directions = [public.normal(size=weights.shape) * (block == g)[:, None] for g in fired]
            directions = [u / np.linalg.norm(u) for u in directions]
            sample = np.flatnonzero(secret.random(len(plan.records)) < plan.sampling_probability)
            if not fired:
                continue
            basis = np.stack(directions).reshape(len(fired), -1)
            now = weights.copy()

            def of_each(
                records: Sequence[Record], now: FloatArray = now, basis: FloatArray = basis
            ) -> FloatArray:
                return np.stack([basis @ gradient(r, now).ravel() for r in records], axis=1)

            def gradient(record: Record, now: FloatArray) -> FloatArray:
                if canary is not None and record.id == canary.record:
                    rest = [r for r in plan.records if r.id != record.id]
                    return -canary.magnitude * np.sum([gradient(r, now) for r in rest], axis=0)
                image = np.asarray(record.image)
                scores = image @ now
                chances = np.exp(scores - scores.max())
                chances /= chances.sum()
                chances[record.label] -= 1.0
                return np.outer(image, chances)

            def of_sum(
                records: Sequence[Record], now: FloatArray = now, basis: FloatArray = basis
            ) -> FloatArray:
                total = np.zeros_like(now)
                for record in records:
                    total = total + gradient(record, now)
                return basis @ total.ravel()

            values = of_sum([plan.records[i] for i in sample])
            signs = np.sign(values).astype(int)
            if self.zero_gradient == "coin":
                signs = np.where(signs == 0, secret.choice([-1, 1], signs.size), signs)
            watch(
                FiredStep(
                    step=step,
                    sample=sample.astype(np.int64),
                    groups=fired,
                    signs=tuple(signs.tolist()),
                    of_sum=of_sum,
                    of_each=of_each,
                )
            )
            for sign, direction in zip(signs, directions, strict=True):
                weights = weights - plan.learning_rate * sign * direction
            if progress is not None:
                progress(step + 1, plan.steps)
        empty = np.zeros(0)
        transcript = Transcript(
            losses=empty,
            sample_sizes=np.zeros(0, dtype=np.int64),
            canary_observations=empty,
            canary_included=np.zeros(0, dtype=bool),
            metrics={},
        )
        return Trained(claim=self.claim(plan), transcript=transcript, plan=plan, weights=weights)


def small_plan(
    records: int = 6, *, steps: int = 5, s: float = 0.5, labels: int = 3, **changes: object
) -> Plan:
    """Records of four random pixels."""
    generator = np.random.default_rng(7)
    made = tuple(
        Record(id=f"r{i}", image=tuple(generator.random(4).tolist()), label=int(generator.integers(labels)))
        for i in range(records)
    )
    given: dict[str, object] = {
        "records": made,
        "held_out": (),
        "model": "none",
        "steps": steps,
        "sampling_probability": s,
        "learning_rate": 0.1,
        **changes,
    }
    return Plan(**given)  # type: ignore[arg-type]

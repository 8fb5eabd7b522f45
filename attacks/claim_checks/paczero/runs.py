"""PACZero's guarantee held against runs of the mechanism itself: the flow of the secret, and what is spent.

Small worlds (a logistic model of handwritten digits), so that every candidate can be the secret in turn, and
hundreds of independent runs be judged. The mechanism is asked for by name and by the bench's contract alone.
Runs are no proof of a statement about all runs: what they do not refute holds in those that were tried, or is
left undecided.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from workbench.accounting import MutualInformation
from workbench.attacks.claim_checks.paczero.settings import universe
from workbench.attacks.claim_checks.shared.claims import (
    CONFIDENCE,
    Counterexample,
    counterexample_if,
    from_attack,
    setting,
    settle,
)
from workbench.attacks.subset_posterior import SubsetPosterior
from workbench.core import registry
from workbench.core.errors import InconclusiveError
from workbench.core.registry import register
from workbench.estimation.bounded_mean import mean_lower
from workbench.estimation.subset_trials import FLOOR, log_score
from workbench.games.subset.play import SubsetMechanism, SubsetObservations, SubsetReading, SubsetRelease
from workbench.interfaces import Plan, Secret
from workbench.interfaces.findings import Finding

IN_RUNS = (
    "the secret is which of a few public candidate subsets was trained on; the adversary knows all else and "
    "sees every update; nats; runs of a small model with given seeds, compared exactly: no sampling error, "
    "and no proof about other runs; no differential privacy"
)
"""What the checks that compare single runs are about."""

ROUNDING = 1e-9
"""Relative error that a sum of charges in floating point may have."""


def world(seed: int, *, nats: float, records: int = 40, steps: int = 12) -> Plan:
    """A universe of digits, and so many steps over all of it; no budget where `nats` is 0."""
    budget = MutualInformation(nats=nats, secret=Secret.SUBSET) if nats > 0 else None
    return replace(universe(records, seed), steps=steps, learning_rate=0.02, budget=budget)


def paczero(mechanism: str, **parameters: Any) -> SubsetMechanism:
    """The mechanism under test, without the perplexities that nobody reads here."""
    made = registry.create("mechanism", mechanism, measures_quality=False, **parameters)
    assert isinstance(made, SubsetMechanism)
    return made


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that a run shows, in parts that can be compared to the last bit.

    Attributes:
        parts: Bytes of the released bits, of what led to them, of the final weights and of the traces.
    """

    parts: Mapping[str, bytes]
    releases: tuple[SubsetRelease, ...]


def run(mechanism: SubsetMechanism, plan: Plan, secret: int) -> Run:
    """Train on one candidate."""
    seen: list[SubsetRelease] = []
    subject = mechanism.train_on(plan, secret=secret, watch=seen.append)
    with tempfile.TemporaryDirectory() as folder:
        subject.save(Path(folder))
        weights = b"".join(file.read_bytes() for file in sorted(Path(folder).glob("*.safetensors")))
    traces = subject.transcript.traces
    return Run(
        parts={
            "bits": np.array([release.bit for release in seen], dtype=np.int64).tobytes(),
            "noise": np.array([release.noise for release in seen], dtype=np.float64).tobytes(),
            "candidates' signs": b"".join(np.asarray(release.signs).tobytes() for release in seen),
            "scalars": b"".join(np.asarray(release.differences).tobytes() for release in seen),
            "weights": weights,
            "posterior": np.asarray(traces["posterior_entropy"]).tobytes(),
        },
        releases=tuple(seen),
    )


@register("claim_check", "paczero_secret_flow")
@setting(IN_RUNS)
def secret_flow(
    *,
    mechanism: str = "paczero",
    variant: str = "zpl",
    nats: float = 0.0,
    worlds: int = 3,
    candidates: int = 8,
) -> Finding:
    """Theorem 5 and Fig. 1: under PACZero-ZPL nothing that is released or kept depends on the secret.

    With every other source of randomness fixed, each of the M candidates is the secret once: bits, weights
    and posterior must be the same to the last bit, and the posterior must stand where it began.

    `mechanism`: registry name. `variant`, `nats`: of PACZero; an altered claim asks the same of PACZero-MI.
    `worlds`: how many draws of subsets, directions, initial weights and coins; both constructions of subsets
    take turns. `candidates`: M. Raises `InconclusiveError`: runs differ, and repeated with the secrets that
    they had they differ too.
    """
    wrong: Counterexample | None = None
    free = split = 0
    for seed in range(worlds):
        subsets = ("pairs", "halves")[seed % 2]
        made = paczero(mechanism, variant=variant, subset_count=candidates, subsets=subsets)
        plan = world(seed, nats=nats)
        runs = [run(made, plan, secret) for secret in range(candidates)]
        noises = [release.noise for release in runs[0].releases]
        free, split = free + sum(x == 0 for x in noises), split + sum(x != 0 for x in noises)
        if wrong is None and (wrong := _difference(runs, seed)) is not None:
            _repeat(made, plan, runs)
    said = f"All {candidates} secrets give the same bits, weights and posterior, to the last bit"
    return settle(
        f"{worlds} worlds of 40 records and 12 steps, M = {candidates}, each candidate the secret once: "
        f"{free} releases without noise, {split} on disagreement",
        "compared: released bits, noise, the candidates' signs, all records' scalars, the final weights, and "
        "the entropy of the posterior after each step",
        proof=said if wrong is None and free and split else None,
        counterexample=wrong,
        assumption=f"the seeds are those of the {worlds} worlds in which every secret was tried",
    )


def _repeat(mechanism: SubsetMechanism, plan: Plan, runs: Sequence[Run]) -> None:
    """Refuse differences that may not be the secret's: runs must be the same again with the same secret."""
    for secret, first in enumerate(runs):
        again = run(mechanism, plan, secret)
        other = [part for part, held in again.parts.items() if held != first.parts[part]]
        if other:
            raise InconclusiveError(
                f"runs must be the same when repeated, got other {', '.join(other)} with secret {secret} "
                "again: a difference between secrets shows nothing"
            )


def _difference(runs: Sequence[Run], seed: int) -> Counterexample | None:
    """A part in which two secrets differ, or a posterior that moved."""
    for secret, compared in enumerate(runs):
        for part, held in compared.parts.items():
            if held != runs[0].parts[part]:
                return Counterexample(
                    sentence=f"With secret {secret} in the place of 0 and all else equal, {part} differ.",
                    values={"seed": seed, "secrets": [0, secret], "part": part},
                )
        entropies = np.frombuffer(compared.parts["posterior"], dtype=np.float64)
        if np.any(entropies != entropies[0]):
            return Counterexample(
                sentence="The posterior over the secret moves in the course of the run.",
                values={"seed": seed, "secrets": [secret], "part": "posterior"},
            )
    return None


SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"variant": "mi"},
    {"variant": "mi", "allocation": "uniform"},
    {"variant": "mi", "subsets": "halves", "directions": 3},
    {"variant": "mi", "posterior": "bits"},
    {"variant": "hybrid", "mi_steps": 5},
)


@register("claim_check", "paczero_spending")
@setting(IN_RUNS)
def spending(*, mechanism: str = "paczero", scale: float = 1.0, seeds: int = 2) -> Finding:
    """Section 3.1 and Eq. 11: in runs of the mechanism the nats that are charged never exceed the total.

    `mechanism`: registry name. `scale`: the total that is claimed, over the budget that the mechanism is
    given. `seeds`: runs of each setting and budget.
    """
    lines: list[str] = []
    wrong: Counterexample | None = None
    for parameters in SETTINGS:
        made = paczero(mechanism, subset_count=8, **parameters)
        shares = []
        for seed, nats in product(range(seeds), (1e-4, 0.33, 2.0)):
            charged, kept = _charges(made, world(seed, nats=nats))
            shares.append(charged / nats)
            most = max(charged, kept)
            values = {"seed": seed, "budget_nats": nats, "charged_nats": most, **parameters}
            wrong = wrong or counterexample_if(
                not math.isclose(charged, kept, rel_tol=ROUNDING),
                f"A run's charges add up to {charged:.6g} nats; its ledger says {kept:.6g}.",
                values,
            )
            wrong = wrong or counterexample_if(
                most > scale * nats * (1 + ROUNDING),
                f"A run is charged {most:.6g} nats, where {scale * nats:.6g} is claimed.",
                values,
            )
        lines.append(
            f"{', '.join(f'{key} {value}' for key, value in parameters.items())}: {len(shares)} runs charge "
            f"{min(shares):.4f} to {max(shares):.4f} of the total"
        )
    return settle(
        *lines,
        proof="The charges of every run stay at or below its total" if wrong is None else None,
        counterexample=wrong,
        assumption="the runs are those that were tried" if wrong is None else None,
    )


def _charges(mechanism: SubsetMechanism, plan: Plan) -> tuple[float, float]:
    """The exact sum of a run's charges, and the largest that its ledger's trace reaches."""
    charges: list[Fraction] = []
    subject = mechanism.train_on(plan, watch=lambda one: charges.append(Fraction(one.budget_nats)))
    if min(charges) < 0:
        raise InconclusiveError(f"a run charged {float(min(charges)):g} nats, and none may be negative")
    return float(sum(charges)), float(np.nanmax(subject.transcript.traces["budget_used"]))


@register("claim_check", "paczero_estimated_information")
@setting(
    "the secret is which of 8 public candidate subsets was trained on, drawn uniformly for each of the "
    "independent runs (the unit of replication), with subsets and directions of its own; the adversary knows "
    "all else and sees every value whose sign is released; nats; no differential privacy"
)
def estimated_information(
    *,
    mechanism: str = "paczero",
    variant: str = "mi",
    nats: float = 0.68,
    scale: float = 1.0,
    runs: int = 250,
    steps: int = 6,
    seed: int = 2026,
) -> Finding:
    """Theorem 3: the information that real runs give about the secret is at most what the ledger charges.

    A run's sample is ln(M q(secret)) for the adversary's posterior q, less the run's charge. Its mean is at
    most the information less the mean charge, whatever the mechanism does, for q is mixed with laws that leak
    more than is stated: so a mean above 0 refutes.

    `mechanism`: registry name. `variant`: of PACZero. `nats`: budget; 0 for PACZero-ZPL. `scale`: what is
    claimed, over what the ledger charges: 1/4 is about the claim of half the noise. `runs`: independent runs.
    `steps`: T. `seed`: of everything random.
    """
    candidates, generator = 8, np.random.default_rng(seed)
    made, adversary = paczero(mechanism, variant=variant, subset_count=candidates), SubsetPosterior()
    scores, charges, gained = (np.zeros(runs) for _ in range(3))
    for number in range(runs):
        secret, plan_seed = int(generator.integers(candidates)), int(generator.integers(2**60))
        seen: list[SubsetRelease] = []
        made.train_on(world(plan_seed, nats=nats, steps=steps), secret=secret, watch=seen.append)
        (belief,) = adversary.beliefs(SubsetObservations(trials=(reading(seen),)))
        scores[number] = log_score(belief.guess, secret)
        gained[number] = math.log(candidates) - float(belief.entropies[-1])
        charges[number] = sum(release.budget_nats for release in seen)
    low, high = math.log(FLOOR) - max(scale, 1.0) * max(nats, 1e-9) * (1 + ROUNDING), math.log(candidates)
    excess = scores - scale * charges
    lower = mean_lower(excess, confidence=CONFIDENCE, low=low, high=high)
    error = excess.std(ddof=1) / math.sqrt(runs)
    return from_attack(
        lower > 0.0,
        f"{runs} runs of {steps} steps at {nats:g} nats: mean charge {charges.mean():.4f} nats (claimed: "
        f"times {scale:g}), mean ln M less the exact posterior's entropy {gained.mean():.4f}, mean log score "
        f"{scores.mean():.4f}",
        f"log score less claim: mean {excess.mean():.4f} +- {error:.4f} (one standard error), at least "
        f"{lower:.4f} with {CONFIDENCE:.1%} confidence (betting, values in [{low:.3g}, {high:.3g}])",
        refutes=f"real runs give at least {lower:.4g} nats more about the secret than is claimed",
        spares=f"{runs} runs do not refute it: {scores.mean():.3g} nats by the log score where "
        f"{scale * charges.mean():.3g} are claimed, which is no proof",
        counterexample={
            "excess_nats_lower": lower,
            "mean_claimed_nats": scale * float(charges.mean()),
            "budget_nats": nats,
        },
    )


def reading(releases: Sequence[SubsetRelease]) -> SubsetReading:
    """What the adversary reads of one run; the target record is not asked for."""
    return SubsetReading(
        signs=np.stack([release.signs for release in releases]).astype(np.int8),
        noise=np.array([release.noise for release in releases], dtype=np.float64),
        bits=np.array([release.bit for release in releases], dtype=np.int64),
        values=np.array([release.value for release in releases], dtype=np.float64),
        holds_target=np.zeros(len(releases[0].signs), dtype=np.bool_),
    )

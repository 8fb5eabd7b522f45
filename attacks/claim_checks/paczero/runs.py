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
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from workbench.accounting import MutualInformation
from workbench.attacks.accountant_checks.proof import maximum, real
from workbench.attacks.claim_checks.paczero.statements import blind_success
from workbench.attacks.claim_checks.shared.claims import (
    CONFIDENCE,
    Counterexample,
    ball,
    counterexample_if,
    from_attack,
    half_unit,
    in_balls,
    is_proven,
    prove_that,
    setting,
    settle,
    show,
)
from workbench.attacks.claim_checks.shared.information import ABOUT_A_SUBSET
from workbench.attacks.subset_posterior import SubsetPosterior
from workbench.core import registry
from workbench.core.errors import InconclusiveError
from workbench.core.registry import register
from workbench.estimation.bounded_mean import mean_lower
from workbench.estimation.subset_trials import FLOOR, log_score
from workbench.games.subset.play import SubsetMechanism, SubsetObservations, SubsetReading, SubsetRelease
from workbench.interfaces import BoolArray, Plan, Record, Secret, VerdictKind
from workbench.interfaces.findings import Finding, assume

CONSTRUCTIONS = {"pairs": "complementary halves", "halves": "independent random halves"}


@lru_cache(maxsize=8)
def _digits(size: int) -> tuple[Record, ...]:
    records: tuple[Record, ...] = registry.create("corpus", "digits", size=size, seed=0).records
    return records


def universe(size: int, seed: int) -> Plan:
    """A plan whose records are a universe of so many handwritten digits; nothing is trained."""
    return Plan(
        records=_digits(size),
        held_out=(),
        model="digits_logistic",
        steps=1,
        sampling_probability=1.0,
        learning_rate=0.1,
        optimizer="sgd",
        seed=seed,
    )


@register("claim_check", "paczero_balance")
@setting(ABOUT_A_SUBSET)
def balance(
    *, constructions: tuple[str, ...] = ("pairs",), candidates: int = 128, records: int = 1000
) -> Finding:
    """Section 2: each record is in exactly M/2 of the M random subsets, so that its prior is 1/2.

    `constructions`: how the mechanism draws its subsets, each of which the claim is about: `"pairs"` of
    complementary halves, which section 2's balance admits; `"halves"` drawn apart are another construction.
    `candidates`: M. `records`: N.
    """
    blind = blind_success(Fraction(1, 2))
    lines, even, worst = [], [], (0.0, 0)  # The largest distance from M/2, and the count that has it.
    for name in constructions:
        mechanism = registry.create("mechanism", "paczero", subsets=name, subset_count=candidates)
        assert isinstance(mechanism, SubsetMechanism)
        drawn = [mechanism.candidate_subsets(universe(records, seed)) for seed in range(3)]
        held = np.stack([subsets.sum(axis=0) for subsets in drawn])
        off = np.abs(held - candidates / 2)
        if off.max() == 0 and all(_in_pairs(subsets) for subsets in drawn):
            even.append(name)
        elif off.max() > worst[0]:
            record = int(off.max(axis=0).argmax())
            count = int(held[int(off[:, record].argmax()), record])
            worst = (float(off.max()), count)
        lines.append(
            f"{CONSTRUCTIONS[name]}, N = {records}, three draws: a record is in {held.min()} to {held.max()} "
            f"of {candidates}, in exactly half {np.mean(off == 0):.3g} of the time; the best blind guess is "
            f"right {np.mean(0.5 + off / candidates):.4f} of the time on the average"
        )
    return settle(
        *lines,
        *blind.evidence,
        proof="There are such random subsets: of complementary halves each record is in one of every two, "
        "for any draw, and a blind guess is right half of the time",
        proven=set(even) == set(constructions) and is_proven(blind),
        counterexample=counterexample_if(
            worst[0] > 0,
            f"Of {candidates} independent random halves one record is in {worst[1]}: who guesses blindly is "
            f"right with probability {max(worst[1], candidates - worst[1]) / candidates:.4f}.",
            {"candidates": candidates, "holding_a_record": worst[1]},
        ),
    )


def _in_pairs(held: BoolArray) -> bool:
    """Whether each candidate's complement is one too, so often."""
    rows = sorted(row.tobytes() for row in held)
    return rows == sorted((~row).tobytes() for row in held)


@register("claim_check", "paczero_whole_budget")
@in_balls
def whole_budget(
    *, used: str = "0.3289", nominal: str = "0.33", last: tuple[str, ...] = ("disagreement", "unanimity")
) -> Finding:
    """Appendices H and J: a run under Eq. 6 consumes its nominal budget to numerical precision.

    `used`, `nominal`: what appendix H prints of one run, nats. `last`: what the last step may be.
    """
    total, before, share = real("total", low=0), real("used", low=0), real("share of the rest", low=0, high=1)
    kinds = {"disagreement": share.equals(1), "unanimity": share.equals(0)}
    findings = {
        kind: prove_that(
            f"after a last step of {kind} the budget is used up",
            (before + share * maximum(0, total - before)).equals(total),
            before <= total,
            kinds[kind],
        )
        for kind in last
    }
    gap = ball(nominal) - ball(used)
    rounding = ball(half_unit(used))
    open_end = next(
        (finding for finding in findings.values() if finding.verdict is VerdictKind.REFUTED), None
    )
    whole = "disagreement" in findings and is_proven(findings["disagreement"])
    wrong = None
    if open_end is not None:
        short = (
            f"appendix H itself prints {used} of {nominal} nats, {show(gap, 3)} short where rounding allows "
        )
        wrong = Counterexample(
            "A last step that is unanimous spends nothing: "
            + (f"{short}{show(rounding, 2)}." if gap > rounding else open_end.summary),
            {"printed_used": used, "printed_nominal": nominal, **open_end.counterexample},
        )
    return settle(
        "t = T: the share (total - used) / (T - t + 1) is all that is left",
        *(line for finding in findings.values() for line in finding.evidence),
        f"printed: {used} of {nominal} nats used (appendix H, clip 25, seed 0)",
        proof="In its last step Eq. 6 offers all that is left, and a disagreement there spends it",
        proven=whole,
        counterexample=wrong,
        assumption=assume(
            "the last step is a disagreement whose cap 0.999 h(q+) lies above what is left",
            lambda kind: kind == "disagreement",
            claimed={"last": tuple(last)},
        ),
    )


@register("claim_check", "paczero_signal")
@setting(ABOUT_A_SUBSET)
def signal(
    *,
    budget: str = "0.68",
    unanimous: str = "0.376",
    steps: int = 1000,
    agreement: str = "1/128",
    share: str = "1/2",
) -> Finding:
    """Section 4.2: the bulk of the optimisation signal comes from unanimity steps, however tight the budget.

    A step's signal is the mean of the released bit times the secret subset's sign: 1 on unanimity, and
    2 Phi(1 / sigma) - 1 on disagreement, which is the total variation distance of the two signs' laws.

    `budget`: the largest, nats (Table 2). `unanimous`: smallest share of unanimity steps (Table 2). `steps`:
    T. `agreement`: smallest q+ and 1 - q+ that a disagreement has: one candidate of 128 against the rest.
    `share`: of all signal that is to come from unanimity steps; "the bulk" is one half at least, a reading of
    ours.
    """
    q, d = real("q", low=0, high=1), real("distance", low=0, high=1)
    pinsker = prove_that(
        "q 2 ((1-q) d)^2 + (1-q) 2 (q d)^2 = 2 q (1-q) d^2",
        (q * 2 * ((1 - q) * d) * ((1 - q) * d) + (1 - q) * 2 * (q * d) * (q * d)).equals(
            2 * q * (1 - q) * d * d
        ),
    )
    rate, least, total = Fraction(unanimous), Fraction(agreement), ball(Fraction(budget))
    free = ball(rate * steps)
    noisy = (ball((1 - rate) * steps) * total / (2 * ball(least * (1 - least)))).sqrt()
    proportion = free / (free + noisy)
    proven = is_proven(pinsker) and bool(proportion >= ball(Fraction(share)))
    even = (ball((1 - rate) * steps) * total * 2).sqrt()
    return settle(
        "a step's nats are q KL(P || mean) + (1-q) KL(Q || mean) >= 2 q (1-q) d^2 (Pinsker), so d <= "
        "sqrt(nats / (2 q (1-q))); by Cauchy and Schwarz "
        "n steps of B nats in all give at most sqrt(n B / (2 q (1-q)))",
        *pinsker.evidence,
        f"{float(rate) * 100:g} % of {steps} steps unanimous, {budget} nats: {show(free, 4)} against at most "
        f"{show(noisy, 4)} at q = {agreement}, {show(even, 4)} at q = 1/2",
        proof=f"Unanimity steps give at least {show(100 * proportion, 3)} % of the signal"
        if proven
        else None,
        assumption=assume(
            f"every disagreement has at least {agreement} of the posterior on either side, as while that is "
            "near its uniform start",
            lambda least, smaller: Fraction(smaller) >= Fraction(least),
            claimed={"agreement": agreement},
            left_open={"posterior on the smaller side": ("1/2", "1/1000000000000")},
        ),
    )


@register("claim_check", "paczero_concentration")
@setting(ABOUT_A_SUBSET)
def concentration(*, tolerance: str = "1e-12", budget: float = 0.68, steps: int = 60) -> Finding:
    """Appendix J and section 6: a posterior that has concentrated makes more steps unanimous.

    `tolerance`: distance of q+ from 0 or 1 that counts as unanimity: 0 in Algorithm 1's box. `budget`,
    `steps`: nats and T of the ledger's run that is shown beside it.
    """
    weight, likelihood, rest = real("weight"), real("likelihood"), real("rest", low=0)
    stays = prove_that(
        "a positive weight stays positive under a positive likelihood",
        weight * likelihood / (weight * likelihood + rest) > 0,
        weight > 0,
        likelihood > 0,
    )
    left = 1 / (1 + ball(80).exp())
    reached = bool(left <= ball(Fraction(tolerance)))
    never = is_proven(stays) and not reached
    smallest, free, agreed = _ledger_run(budget, steps)
    return settle(
        *stays.evidence,
        f"the printed ledger, M = 128 complementary halves of 1,000 normal scalars, {steps} steps and "
        f"{budget:g} nats, tolerance 1e-12: the smallest weight that any candidate comes to is "
        f"{smallest:.3g}; {free} steps are unanimous, in {agreed} of which all agree (one seed)",
        proof=f"A weight within {tolerance} of 0 counts as none, and a Gaussian value may leave one",
        proven=reached,
        counterexample=counterexample_if(
            never,
            "A density is positive, so no value excludes a candidate: q+ is 0 or 1 if and only if all M "
            f"signs agree. Two candidates, sigma = 1, value 40: the weight of -1 is {show(left, 3)} > 0.",
            {"sigma": "1", "value": "40", "weight_left": show(left, 6), "tolerance": tolerance},
        ),
        assumption=assume(
            f"the posterior comes within {tolerance} of excluding every candidate that dissents; without the "
            "tolerance it excludes none, ever",
            lambda most, weight: Fraction(weight) <= Fraction(most),
            claimed={"tolerance": tolerance},
            left_open={"posterior of those that dissent": ("1/1000", show(left, 3))},
        ),
    )


def _ledger_run(budget: float, steps: int) -> tuple[float, int, int]:
    """Smallest weight in a run of the printed ledger; unanimous steps; steps in which all agree."""
    generator = np.random.default_rng(0)
    ledger = registry.create("accountant", "paczero").ledger(total_nats=budget, steps=steps, candidates=128)
    drawn = generator.random((64, 1000)).argsort(axis=1) < 500
    held = np.stack([drawn, ~drawn], axis=1).reshape(128, 1000)
    smallest, free, agreed = 1.0, 0, 0
    for _ in range(steps):
        signs = np.where(held @ generator.normal(generator.normal(0.0, 0.05), 1.0, 1000) >= 0, 1.0, -1.0)
        charge = ledger.charge(signs)
        free, agreed = free + charge.unanimous, agreed + bool(np.all(signs == signs[0]))
        if not charge.unanimous:
            ledger.observe(signs, float(signs[0] + charge.noise * generator.standard_normal()))
        smallest = min(smallest, float(ledger.posterior.min()))
    return smallest, free, agreed


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
    """Everything that a run reveals, in parts that can be compared to the last bit.

    Attributes:
        parts: Bytes of the released bits, of what led to them, of the final weights and of the traces.
    """

    parts: Mapping[str, bytes]
    releases: tuple[SubsetRelease, ...]


def run(mechanism: SubsetMechanism, plan: Plan, secret: int) -> Run:
    """Train on one candidate subset and return what was released."""
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
        f"times {scale:g}), mean ln M less the exact posterior's entropy {gained.mean():.4f}, "
        f"mean log score {scores.mean():.4f}",
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

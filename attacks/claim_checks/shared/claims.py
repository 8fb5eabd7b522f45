"""How a check of a published statement reaches its verdict, from proofs and counterexamples.

A check computes in ball arithmetic (`in_balls`, `ball`, `show`), looks for a counterexample and a proof, and
lets `settle` add them up.

A `Distinguisher` is an event that tells neighbours apart: where it has probability at least t under one and
at most f under the other, delta(epsilon) >= t - e^epsilon f. So any event refutes a claim, and nothing about
the mechanism's worst case needs to be known. The events here are simple (a threshold, a count): their error
rates are closed forms or rigorous tail bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import wraps
from typing import Any, ParamSpec

from workbench.accounting.bounds import Bounds
from workbench.attacks.accountant_checks.proof import Formula, Statement, prove
from workbench.core import registry
from workbench.core.errors import InconclusiveError
from workbench.core.keys import JSON
from workbench.interfaces import Plan, Verdict, VerdictKind
from workbench.interfaces.findings import Assumption, Finding

P = ParamSpec("P")

BITS = 192
"""Working precision of the checks' ball arithmetic."""

CONFIDENCE = 0.999
"""Of checks that draw samples or attack."""


@dataclass(frozen=True)
class Counterexample:
    """A point at which a statement fails.

    Attributes:
        sentence: What fails there, with its numbers.
        values: The point, and what was computed there.
    """

    sentence: str
    values: Mapping[str, JSON] = field(default_factory=dict)


def counterexample_if(fails: Any, sentence: str, *values: Mapping[str, JSON]) -> Counterexample | None:
    """The counterexample where the statement fails, else None; its values are those of all mappings."""
    point = {name: value for mapping in values for name, value in mapping.items()}
    return Counterexample(sentence, point) if fails else None


def settle(
    *evidence: str,
    proof: str | None = None,
    proven: Any = True,
    counterexample: Counterexample | None = None,
    assumption: Assumption | None = None,
    assumed: Any = True,
) -> Finding:
    """The verdict that a proof and a counterexample add up to.

    An assumption about the statement's own quantities that holds for all of them is none. A proof under an
    assumption that contradicts the statement is no proof of it: the counterexample alone decides, and what
    holds instead is a line of the evidence.

    Args:
        evidence: What was computed, a line each.
        proof: What is proven, in a sentence (under `assumption`, where that is given); None without a proof.
        proven: Whether the proof succeeded.
        counterexample: To the statement as printed; None where none was found.
        assumption: What the proof needs besides the statement's own words; see `assume`.
        assumed: Whether it needs that.

    Raises:
        InconclusiveError: a proof without an assumption meets a counterexample; one of them is wrong.
    """
    proof, assumption = proof if proven else None, assumption if assumed else None
    if proof and assumption and not assumption.is_consistent:
        at = ", ".join(f"{name} = {value}" for name, value in (assumption.fails_at or {}).items())
        evidence = (
            *evidence,
            f"what holds: {proof}, if {assumption.text}; the claim as restated includes {at}, where that is "
            "false",
        )
        proof = None
    elif assumption and not assumption.left_open:
        assumption = None  # The statement itself says so.
    if proof and counterexample and not assumption:
        raise InconclusiveError(f"proven ({proof}) and refuted ({counterexample.sentence}) at once")
    values = dict(counterexample.values) if counterexample else {}
    if proof and assumption:
        failing = f" Without that: {counterexample.sentence}" if counterexample else ""
        return Finding(
            verdict=VerdictKind.HOLDS_UNDER,
            summary=f"{proof}, if {assumption.text}.{failing}",
            evidence=evidence,
            counterexample=values,
            assumptions=(assumption,),
        )
    if proof:
        return Finding(verdict=VerdictKind.PROVEN, summary=proof, evidence=evidence)
    return Finding(
        verdict=VerdictKind.REFUTED if counterexample else VerdictKind.UNDECIDED,
        summary=counterexample.sentence
        if counterexample
        else "neither a proof nor a counterexample was found",
        evidence=evidence,
        counterexample=values,
    )


def prove_that(name: str, conclusion: Formula, *assumptions: Formula) -> Finding:
    """Prove that the assumptions imply the conclusion; see `workbench.attacks.accountant_checks.proof`."""
    return prove(Statement(name=name, assumptions=assumptions, conclusion=conclusion))


def is_proven(*findings: Finding) -> bool:
    """Whether every finding is PROVEN."""
    return all(finding.verdict is VerdictKind.PROVEN for finding in findings)


def is_above(bounds: Bounds, limit: float) -> bool:
    """Whether rigorous bounds lie above the limit."""
    return bounds.rigorous and bounds.lower > limit


def is_within(bounds: Bounds, limit: float) -> bool:
    """Whether rigorous bounds lie at or below the limit."""
    return bounds.rigorous and bounds.upper <= limit


def from_statement(finding: Finding, *evidence: str, proof: str, note: str = "") -> Finding:
    """A statement's finding in a check's words: the same verdict, with `proof` for its summary.

    `note` is a line before its evidence; `evidence` are lines after it.
    """
    refuted = finding.verdict is VerdictKind.REFUTED
    return settle(
        *((note,) if note else ()),
        *finding.evidence,
        *evidence,
        proof=proof,
        proven=is_proven(finding),
        counterexample=counterexample_if(refuted, finding.summary, finding.counterexample),
    )


def with_evidence(finding: Finding, *lines: str) -> Finding:
    """The finding with further lines of evidence."""
    return replace(finding, evidence=(*finding.evidence, *lines))


def shown_lower(verdict: Verdict) -> float:
    """The epsilon that a verdict shows, at least 0."""
    return max(0.0, verdict.bound.lower) if verdict.bound is not None else 0.0


def from_attack(
    refuted: bool, *evidence: str, refutes: str, spares: str, counterexample: Mapping[str, JSON]
) -> Finding:
    """What an attack says of a statement: it may refute, and never proves.

    Args:
        refutes, spares: The summary where it does, and where it does not.
    """
    if not refuted:
        return Finding(verdict=VerdictKind.UNDECIDED, summary=spares, evidence=evidence)
    return Finding(
        verdict=VerdictKind.REFUTED,
        summary=refutes,
        evidence=evidence,
        counterexample=counterexample,
        confidence=CONFIDENCE,
    )


def digits_plan(records: int, **settings: Any) -> Plan:
    """A plan over so many handwritten digits, by default for a small network; nothing is held out."""
    corpus = registry.create("corpus", "digits", size=records, seed=0)
    return Plan(records=corpus.records, held_out=(), **{"model": "digits_mlp", **settings})


def in_balls(check: Callable[P, Finding]) -> Callable[P, Finding]:
    """Run a check at the working precision, whatever precision its caller had set."""

    @wraps(check)
    def run(*args: P.args, **kwargs: P.kwargs) -> Finding:
        from flint import ctx

        with ctx.workprec(BITS):
            return check(*args, **kwargs)

    return run


def setting(text: str) -> Callable[[Callable[P, Finding]], Callable[P, Finding]]:
    """`in_balls`, and what a reader needs to understand a check's numbers comes first in its evidence.

    That is: neighbours or secret, the adversary's game, delta, and how certain the numbers are.
    """

    def decorate(check: Callable[P, Finding]) -> Callable[P, Finding]:
        """Run the check in balls, its setting first."""
        precise = in_balls(check)

        @wraps(check)
        def run(*args: P.args, **kwargs: P.kwargs) -> Finding:
            finding = precise(*args, **kwargs)
            return replace(finding, evidence=(f"setting: {text}", *finding.evidence))

        return run

    return decorate


def ball(value: int | float | Fraction | str) -> Any:
    """A ball around a rational (a float is taken as the rational that it is; a string as a decimal)."""
    from flint import arb

    exact = Fraction(value)
    return arb(exact.numerator) / exact.denominator


def rounds_to(value: Any, printed: str) -> bool:
    """Whether a ball lies within half a unit of the last printed digit."""
    return bool(abs(value - ball(printed)) <= ball(half_unit(printed)))


def half_unit(printed: str) -> Fraction:
    """Half a unit of the last digit of a printed decimal: how far rounding may have moved it."""
    mantissa, _, exponent = printed.partition("e")
    return Fraction(10) ** (int(exponent or 0) - len(mantissa.partition(".")[2])) / 2


def show(value: Any, digits: int = 6) -> str:
    """A ball's midpoint in decimals."""
    return str(value.mid().str(digits, radius=False))


def binary_entropy(probability: Any) -> Any:
    """h(q) in nats, for a ball inside (0, 1)."""
    return -probability * probability.log() - (1 - probability) * (1 - probability).log()


def binary_kl(p: Any, q: Any) -> Any:
    """KL(p || q) in nats, for balls inside (0, 1)."""
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()


def nats_at(success: Any) -> Any:
    """The nats that a guess of a fair bit shows which is right with this probability: KL(success || 1/2)."""
    return binary_kl(success, ball(Fraction(1, 2)))


def success_under_dp(epsilon: str | float, delta: str | float) -> Any:
    """Largest probability of guessing a fair membership bit under (epsilon, delta)-DP: a ball."""
    grown = ball(epsilon).exp()
    return (grown + ball(delta)) / (1 + grown)


Ball = Any
Number = int | float | Fraction | str


@dataclass(frozen=True, kw_only=True)
class Distinguisher:
    """An event with its probabilities under two neighbours.

    Attributes:
        true_positive: Ball; the event is at least this likely under the one neighbour.
        false_positive: Ball; it is at most this likely under the other.
    """

    event: str
    true_positive: Ball
    false_positive: Ball

    def delta(self, epsilon: Ball) -> Ball:
        """A lower bound on delta(epsilon)."""
        return self.true_positive - epsilon.exp() * self.false_positive

    def epsilon(self, delta: Ball) -> Ball:
        """A lower bound on epsilon(delta); not finite where the event shows nothing."""
        return ((self.true_positive - delta) / self.false_positive).log()

    def describe(self) -> str:
        """The event with both probabilities."""
        return f"{self.event}: probability {show(self.true_positive)} against {show(self.false_positive)}"


def tail(threshold: Ball) -> Ball:
    """Pr[Z > threshold] of a standard normal Z."""
    return (threshold / ball(2).sqrt()).erfc() / 2


def gaussian_delta(mu: Ball, epsilon: Ball) -> Ball:
    """delta(epsilon) between N(0, 1) and N(mu, 1), exactly (Balle and Wang 2018, theorem 8)."""
    return tail(epsilon / mu - mu / 2) - epsilon.exp() * tail(epsilon / mu + mu / 2)


def subsampled_threshold(sigma: Ball, q: Ball, threshold: Ball) -> Distinguisher:
    """A Poisson-subsampled Gaussian sum against the sum without the record: the output is large."""
    without = tail(threshold / sigma)
    return Distinguisher(
        event=f"the output exceeds {show(threshold, 4)}",
        true_positive=(1 - q) * without + q * tail((threshold - 1) / sigma),
        false_positive=without,
    )


def randomised_response() -> Distinguisher:
    """One answer of randomised response at epsilon 1: the truth with probability e / (1 + e)."""
    truth = ball(1).exp() / (1 + ball(1).exp())
    return Distinguisher(
        event="the answer is the first category", true_positive=truth, false_positive=1 - truth
    )


def some_step(single: Distinguisher, steps: int) -> Distinguisher:
    """The single-step event happens in one of several independent steps."""
    return Distinguisher(
        event=f"in one of {steps} steps, {single.event}",
        true_positive=1 - (1 - single.true_positive) ** steps,
        false_positive=1 - (1 - single.false_positive) ** steps,
    )


def many_steps(single: Distinguisher, steps: int, least: int) -> Distinguisher:
    """The single-step event happens in at least `least` of the steps; Chernoff's bounds on both binomials.

    Pr[Bin(n, p) <= (1 - t) n p] <= exp(-t^2 n p / 2), and Pr[Bin(n, r) >= k] <= exp(-n KL(k / n || r))
    above the mean; the one neighbour's mean must exceed `least`, the other's must lie below it.
    """
    p, r = single.true_positive, single.false_positive
    mean, share = steps * p, ball(Fraction(least, steps))
    short = 1 - (least - 1) / mean
    missed = (-short * short * mean / 2).exp()
    divergence = share * (share / r).log() + (1 - share) * ((1 - share) / (1 - r)).log()
    return Distinguisher(
        event=f"in at least {least} of {steps} steps, {single.event}",
        true_positive=1 - missed if short > 0 else ball(0),
        false_positive=(-steps * divergence).exp() if share > r else ball(1),
    )


def against_claim(
    test: Distinguisher, *, epsilon: Ball, delta: Ball, where: Mapping[str, JSON], claim: str
) -> Counterexample | None:
    """The counterexample to a claimed (epsilon, delta) that the test makes; None where it makes none."""
    delta_lower = test.delta(epsilon)
    if not delta_lower > delta:
        return None
    return Counterexample(
        sentence=(
            f"{claim} gives epsilon {show(epsilon)} at delta {show(delta)}, but delta at that epsilon is at "
            f"least {show(delta_lower)}"
        ),
        values={
            **where,
            "claimed_epsilon": show(epsilon),
            "claimed_delta": show(delta),
            "delta_at_least": show(delta_lower),
            "event": test.describe(),
        },
    )


def best_threshold(sigma: float, q: float, epsilon: float) -> Fraction:
    """Where the log-likelihood ratio of a subsampled Gaussian reaches epsilon, as a short rational."""
    ratio = math.log((math.expm1(epsilon) + q) / q) if epsilon < 500 else epsilon - math.log(q)
    return Fraction(round((sigma * sigma * ratio + 0.5) * 1000), 1000)

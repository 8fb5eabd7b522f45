"""From a claim and its evidence to a verdict that a reader can quote.

The order is fixed: an experiment that broke its own assumptions is INVALID whatever its scores say; then the
deciding bounds may refute; only if they do not, the judge asks whether a perfect attack could have. Which
bounds decide is settled by the game and the claim's currency before any score is looked at, and the error
probability is split between them, so a true claim is refuted with probability at most `1 - confidence` in the
game that the evidence names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.stats import binomtest, mannwhitneyu

from workbench import estimation
from workbench.accounting import GaussianDP, MutualInformation, RenyiDP
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream
from workbench.core.templates import percent
from workbench.estimation.blind import blind_p_value
from workbench.estimation.deciding import (
    DECLARED_SHARE,
    DecidingTest,
    below_half_words,
    ceiling_words,
    deciding_tests,
    gaussian_mu_test,
    implied_epsilon,
    informative_bounds,
    is_silent,
    mean_tests,
    metric_intervals,
    mu_tests,
    mu_trials_needed,
    reachable_bound,
    renyi_tests,
    renyi_trials_needed,
    shown_words,
    silent_words,
    stopping_words,
    too_few_for_the_family,
    trials_needed,
)
from workbench.estimation.inputs import INDEPENDENT_SCORES, bound_of_trials
from workbench.estimation.searching import change_bracket
from workbench.estimation.subset_trials import SubsetEvidence, nats_bound
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Bound,
    Claim,
    Evidence,
    FloatArray,
    IntArray,
    Trials,
    Verdict,
    VerdictKind,
)
from workbench.interfaces.evidence import COMBINED

INVALID_SIGNIFICANCE = 0.001
"""False-alarm rate of each test (coins, inverted scores, blind classifier) that makes evidence INVALID."""

LARGEST_PARAMETER = 256.0
"""Where the search for a mu ends: no number of scores distinguishes a larger one from none."""


def judge(
    claim: Claim,
    evidence: Evidence,
    *,
    confidence: float,
    generator: np.random.Generator,
    subject: str = "the subject",
) -> Verdict:
    """Judges one claim by one attack's evidence.

    A true claim is refuted with probability at most `1 - confidence`. The verdict is UNDECIDED where an
    adversary who knows more than the claim grants (`GameTerms.beyond`) shows more than it allows, and INVALID
    where the scores of one run are all the same number. `generator` is for sample splits and the blind
    classifier's relabellings; `subject` names what was attacked, for the sentence.

    Raises `InputError`: unusable scores or labels, a confidence out of (0.5, 1), a claim that promises
    nothing. `UnsupportedError`: the claim's currency cannot be judged in this game.
    """
    if not 0.5 < confidence < 1.0:
        raise InputError(f"confidence must be in (0.5, 1), got {confidence:g}")
    _require_covered(claim, evidence)
    if evidence.game.sequential and not isinstance(claim.guarantee, MutualInformation):
        verdict = _judge_epsilon(claim, evidence, confidence, generator)
    elif isinstance(claim.guarantee, MutualInformation) and isinstance(evidence, SubsetEvidence):
        verdict = _judge_means(claim, claim.guarantee, evidence, confidence)
    elif isinstance(claim.guarantee, MutualInformation):
        verdict = _judge_success(claim, evidence, confidence, generator)
    elif isinstance(claim.guarantee, GaussianDP) and _is_whole_in_one_run(evidence):
        verdict = _judge_mu(claim, claim.guarantee.mu, evidence, confidence, generator)
    elif isinstance(claim.guarantee, GaussianDP) and _is_whole_and_independent(evidence):
        verdict = _judge_curve(claim, claim.guarantee, evidence, confidence)
    elif isinstance(claim.guarantee, RenyiDP) and not (
        evidence.game.is_single_release or _is_constant_run(evidence)
    ):
        verdict = _judge_renyi(claim, claim.guarantee, evidence, confidence, generator)
    elif _is_constant_run(evidence):
        implied_epsilon(claim.guarantee)  # Refuses a claim that the game cannot judge.
        verdict = Verdict(kind=VerdictKind.INVALID, sentence="", significance=1.0 - confidence)
    else:
        verdict = _judge_epsilon(claim, evidence, confidence, generator)
    if evidence.game.beyond and verdict.kind is VerdictKind.REFUTED:
        verdict = _beyond_the_claim(claim, evidence, verdict)
    broken = _broken_assumptions(evidence, generator, subject)
    if broken:
        sentence = f"INVALID: the experiment broke its own assumptions: {'; '.join(broken)}."
        verdict = replace(verdict, kind=VerdictKind.INVALID, sentence=sentence, reasons=tuple(broken))
        verdict = replace(verdict, bound=None, ceiling=None)
    intervals = metric_intervals(evidence, confidence)
    remarks = stopping_words(evidence, verdict) + silent_words(evidence) + below_half_words(intervals)
    sentence = verdict.sentence + remarks
    return replace(verdict, sentence=sentence, intervals=intervals)


def _beyond_the_claim(claim: Claim, evidence: Evidence, verdict: Verdict) -> Verdict:
    """Turns a refutation into UNDECIDED where the adversary knew more than the claim speaks of."""
    bound = "" if verdict.bound is None else shown_words(verdict.bound)
    sentence = (
        f"UNDECIDED: the {evidence.attack} attack shows {bound}, more than {_subject_of(claim)} allows; but "
        f"its adversary also knows {evidence.game.beyond}, which the claim does not grant. That refutes "
        "nothing that was claimed."
    )
    return replace(verdict, kind=VerdictKind.UNDECIDED, sentence=sentence)


def _require_covered(claim: Claim, evidence: Evidence) -> None:
    """Refuses to test a claim by a game that it does not cover: that would refute what nobody claimed."""
    game = evidence.game
    if not claim.released.covers(game.released):
        raise UnsupportedError(
            f"the claim covers {claim.released}; the {evidence.attack} attack sees {game.released}"
        )
    if game.adjacency is not None and isinstance(claim.about, Adjacency) and game.adjacency != claim.about:
        raise UnsupportedError(
            f"the claim's adjacency is {claim.about}; the {evidence.attack} attack plays {game.adjacency}"
        )


def _is_constant_run(evidence: Evidence) -> bool:
    """Whether one run's scores are all the same: of independent trials an observation, here a mistake."""
    return evidence.game.trials is Trials.ONE_RUN and is_silent(evidence)


def _broken_assumptions(evidence: Evidence, generator: np.random.Generator, subject: str) -> list[str]:
    """The assumptions of the game that the evidence breaks, each with the figure that shows it."""
    broken = []
    if _is_constant_run(evidence):
        broken.append(
            f"the {evidence.attack} attack gives all {evidence.scores.size} candidates of {subject} the same "
            f"score, {evidence.scores[0]:g}, which says nothing of who is a member"
        )
    game, count = evidence.game, int(np.sum(evidence.members))
    if game.trials is Trials.ONE_RUN and game.prior_range is None:
        p_coin = float(binomtest(count, evidence.members.size, game.prior).pvalue)
        if p_coin < INVALID_SIGNIFICANCE:
            broken.append(
                f"{count} of {evidence.members.size} records are members, which coins of probability "
                f"{game.prior:g} do not give (p = {p_coin:.1e}); state the true prior, or independent trials"
            )
    inside, outside = evidence.scores[evidence.members], evidence.scores[~evidence.members]
    p_inverted = float(mannwhitneyu(inside, outside, alternative="less").pvalue)
    if p_inverted < INVALID_SIGNIFICANCE:
        auc = estimation.auc(evidence.scores, evidence.members, confidence=0.95).estimate
        broken.append(
            f"the AUC is {auc:.3f}, significantly below one half (p = {p_inverted:.1e}): higher scores must "
            "mean member, so the scores or the labels are inverted"
        )
    if evidence.blind_texts:
        p_blind = blind_p_value(evidence.blind_texts, evidence.members, generator=generator)
        if p_blind < INVALID_SIGNIFICANCE:
            broken.append(
                f"a classifier that never saw the model tells members from non-members (p = {p_blind:.1e}): "
                "they come from different distributions, so the scores may show that shift, not leakage"
            )
    return broken


def _judge_success(
    claim: Claim, evidence: Evidence, confidence: float, generator: np.random.Generator
) -> Verdict:
    """Judge a mutual-information claim by the membership success that it allows."""
    if evidence.game.is_single_release:
        raise UnsupportedError(
            f"{claim.guarantee.describe()} is about a whole run; {evidence.attack} sees one release"
        )
    if evidence.game.trials is not Trials.INDEPENDENT:
        raise UnsupportedError(
            f"{claim.guarantee.describe()} bounds the average success over independent games; "
            "scores of one run cannot test it (trials must be independent, got one-run)"
        )
    if evidence.game.sequential:
        raise UnsupportedError(f"a sequential test is about epsilon, got {claim.guarantee.describe()}")
    allowed = claim.guarantee.max_success(evidence.game.prior)
    chosen = _at_prior(evidence.members, evidence.game.prior, generator)
    scores, members = evidence.scores[chosen], evidence.members[chosen]
    off = abs(float(np.mean(members)) - evidence.game.prior)

    def compute(values: FloatArray) -> Bound:
        bound = estimation.success_lower(values, members, confidence=confidence, generator=generator)
        return replace(bound, lower=max(0.0, bound.lower - off))

    bound, reachable = compute(scores), compute(members.astype(np.float64)).lower
    if allowed == 1.0:
        return _vacuous(claim, evidence, bound, confidence)
    quantity = f"a membership success of {allowed:.4f} at prior {evidence.game.prior:g}"
    # Half of the trials choose the threshold; all of the other half right is a tail of allowed^(n / 2).
    needed = 2 * math.ceil(math.log(1.0 - confidence) / math.log(allowed)) + 2
    return _decide(
        claim,
        evidence,
        confidence,
        bounds=(bound,),
        allowed=allowed,
        allowed_text=quantity,
        reachable=reachable,
        needed=needed,
    )


def _vacuous(claim: Claim, evidence: Evidence, bound: Bound, confidence: float) -> Verdict:
    """The verdict on a claim that allows every guess to be right: no experiment of this kind tests it."""
    prior = evidence.game.prior
    most = -math.log(max(prior, 1.0 - prior))
    sentence = (
        f"UNDERPOWERED: {_subject_of(claim)} promises nothing about guessing one record's membership: at "
        f"prior {prior:g} to know the answer takes {most:.4g} nats, so it allows every guess to be right. No "
        f"number of trials can test it in this game; the {evidence.attack} attack shows "
        f"{shown_words(bound)}. Nothing is shown for the claim or against it."
    )
    return Verdict(
        kind=VerdictKind.UNDERPOWERED,
        sentence=sentence,
        significance=1.0 - confidence,
        bound=bound,
        bounds=(bound,),
    )


def _judge_means(
    claim: Claim, guarantee: MutualInformation, evidence: SubsetEvidence, confidence: float
) -> Verdict:
    """Judges nats about a candidate subset by means over trials, each test at its share of the error."""
    tests = mean_tests(guarantee, evidence, confidence)
    if not tests:
        return _vacuous(claim, evidence, nats_bound(evidence, evidence.log_scores, confidence), confidence)
    verdicts = []
    for test in tests:
        reachable = test.reachable()
        verdict = _decide(
            claim,
            evidence,
            confidence,  # Of the claim's falsity: the best of two tests has the error of both.
            bounds=(test.bound,),
            allowed=test.allowed,
            allowed_text=test.allowed_text,
            reachable=reachable,
            needed=test.needed() if reachable <= test.allowed else None,
        )
        verdicts.append(verdict)
    decisive = min(verdicts, key=lambda verdict: COMBINED.index(verdict.kind))
    sentence, bounds = decisive.sentence, decisive.bounds
    for test in tests:
        if test.bound is not decisive.bound:
            sentence += f" Tested with it: {shown_words(test.bound)}; the claim allows {test.allowed_text}."
            bounds = (*bounds, test.bound)
    return replace(decisive, sentence=sentence, significance=1.0 - confidence, bounds=bounds)


def _is_whole_and_independent(evidence: Evidence) -> bool:
    return evidence.game.trials is Trials.INDEPENDENT and not evidence.game.is_single_release


def _is_whole_in_one_run(evidence: Evidence) -> bool:
    return evidence.game.trials is Trials.ONE_RUN and not evidence.game.is_single_release


def _judge_mu(
    claim: Claim, mu: float, evidence: Evidence, confidence: float, generator: np.random.Generator
) -> Verdict:
    """Judges a claim of Gaussian DP in its own currency by the guesses of one run."""
    return _decide_by_tests(
        mu_tests(evidence, confidence, generator),
        claim,
        evidence,
        confidence,
        allowed=mu,
        allowed_text=f"mu = {mu:.4g}",
        needed=lambda: mu_trials_needed(mu, evidence, confidence),
    )


def _judge_renyi(
    claim: Claim, guarantee: RenyiDP, evidence: Evidence, confidence: float, generator: np.random.Generator
) -> Verdict:
    """Judges a claim of Rényi DP by a bound of the divergence itself."""
    return _decide_by_tests(
        renyi_tests(guarantee, evidence, confidence, generator),
        claim,
        evidence,
        confidence,
        allowed=guarantee.epsilon,
        allowed_text=f"renyi = {guarantee.epsilon:.4g} at alpha = {guarantee.alpha:g}",
        needed=lambda: renyi_trials_needed(guarantee, evidence, confidence),
    )


def _judge_curve(claim: Claim, guarantee: GaussianDP, evidence: Evidence, confidence: float) -> Verdict:
    """Judges a claim of Gaussian DP in its own currency: the smallest mu that is not rejected.

    The test looks at all thresholds and knows no family; a larger mu allows more, so the largest rejected one
    is a lower confidence bound. Where the supplier of the scores declares a Gaussian family, a bound of that
    family has most of the error.
    """
    gaussian = gaussian_mu_test(guarantee, evidence, confidence)
    significance = (1.0 - confidence) * (1.0 if gaussian is None else 1.0 - DECLARED_SHARE)

    def rejected(scores: FloatArray, mu: float) -> bool:
        """Whether the scores reject the curve of this mu."""
        return estimation.tradeoff_violation(
            scores, evidence.members, GaussianDP(mu=mu), significance=significance
        ).rejected

    def free(scores: FloatArray) -> Bound:
        """The bound of these scores that knows no family."""
        lower = change_bracket(partial(rejected, scores), relative=2e-3, most=LARGEST_PARAMETER)[0]
        name, n = "tradeoff_violation", scores.size
        ends = (lower, math.nan)
        return bound_of_trials(name, "mu", ends, INDEPENDENT_SCORES, 1.0 - significance, n=n)

    return _decide_by_tests(
        [free] if gaussian is None else [gaussian, free],
        claim,
        evidence,
        confidence,
        allowed=guarantee.mu,
        allowed_text=f"mu = {guarantee.mu:.4g}",
    )


def _at_prior(members: BoolArray, prior: float, generator: np.random.Generator) -> IntArray:
    """Places of a random part of the records, as large as possible, whose share of members is the prior.

    Success is stated at a prior; a file with more members than that is easier to guess without any leakage.
    """
    inside, outside = np.flatnonzero(members), np.flatnonzero(~members)
    total = int(min(inside.size / prior, outside.size / (1.0 - prior)))
    wanted = min(max(2, round(total * prior)), inside.size)
    rest = min(max(2, total - wanted), outside.size)
    drawn = (generator.permutation(inside)[:wanted], generator.permutation(outside)[:rest])
    return np.sort(np.concatenate(drawn))


def _judge_epsilon(
    claim: Claim, evidence: Evidence, confidence: float, generator: np.random.Generator
) -> Verdict:
    """Judges a claim that is, or implies, an (epsilon, delta) statement."""
    stated = implied_epsilon(claim.guarantee)
    return _decide_by_tests(
        deciding_tests(stated, evidence, confidence, generator),
        claim,
        evidence,
        confidence,
        extra=lambda: informative_bounds(stated, evidence, confidence, generator),
        allowed=stated.epsilon,
        allowed_text=f"epsilon = {stated.epsilon:.4g} at delta = {stated.delta:g}",
        needed=lambda: trials_needed(stated, evidence.game, confidence),
    )


def _decide_by_tests(
    tests: Sequence[DecidingTest],
    claim: Claim,
    evidence: Evidence,
    confidence: float,
    *,
    allowed: float,
    allowed_text: str,
    needed: Callable[[], int | None] = lambda: None,
    extra: Callable[[], Sequence[Bound]] = tuple,
) -> Verdict:
    """Computes the deciding bounds, and what a perfect attack would have shown, and decides.

    A bound that refuses its family is left out, with its reason among the verdict's. `needed`: how many
    trials would have done, asked where these cannot. `extra`: bounds that are shown and decide nothing.
    """
    bounds, refused = [], too_few_for_the_family(evidence)
    for test in tests:
        try:
            bounds.append(test(evidence.scores))
        except UnsupportedError as error:
            refused.append(str(error))
    distinct = evidence.game.trials is Trials.ONE_RUN
    reachable = max(reachable_bound(test, evidence.members, distinct=distinct) for test in tests)
    verdict = _decide(
        claim,
        evidence,
        confidence,
        bounds=bounds,
        extra=extra(),
        allowed=allowed,
        allowed_text=allowed_text,
        reachable=reachable,
        needed=needed() if reachable <= allowed else None,
    )
    return replace(verdict, reasons=tuple(refused))


def _subject_of(claim: Claim) -> str:
    kind = "adjacency" if isinstance(claim.about, Adjacency) else "secret"
    return f"the claim of {claim.guarantee.describe()} ({kind}: {claim.about}; released: {claim.released})"


def _decide(
    claim: Claim,
    evidence: Evidence,
    confidence: float,
    *,
    bounds: Sequence[Bound],
    allowed: float,
    allowed_text: str,
    reachable: float,
    needed: int | None = None,
    extra: Sequence[Bound] = (),
) -> Verdict:
    """Compares the deciding bounds with what the claim allows, and words the verdict."""
    best = max(bounds, key=lambda bound: bound.lower, default=None)
    subject, sure = _subject_of(claim), percent(confidence, 4)
    n = evidence.scores.size
    words = "" if best is None else shown_words(best)
    quantity = "" if best is None else f"{best.quantity} >= "
    # A resampling estimator tosses other coins for each of the two.
    ceiling = reachable if best is None else max(reachable, best.lower, 0.0)
    if best is not None and best.lower > allowed:
        kind = VerdictKind.REFUTED
        sentence = (
            f"REFUTED: at {sure} confidence {subject} is false: the {evidence.attack} attack shows "
            f"{words}, where the claim allows {allowed_text} ({n} scores, trials: {evidence.game.trials}). "
            f"It assumes: {best.assumption}."
        )
    elif reachable <= allowed or best is None:
        kind = VerdictKind.UNDERPOWERED
        chosen = evidence.game.trials is Trials.INDEPENDENT and not isinstance(evidence, SubsetEvidence)
        halves = ", half of them members" if chosen else ""
        more = f"; a perfect attack would need about {needed} trials{halves}" if needed else ""
        sentence = (
            f"UNDERPOWERED: with {n} scores at {sure} confidence even a perfect {evidence.attack} attack "
            f"could show at most {quantity}{max(reachable, 0.0):.4g}, and {subject} allows "
            f"{allowed_text}{more}. Nothing is shown."
        )
    else:
        kind = VerdictKind.NOT_REFUTED
        sentence = (
            f"NOT REFUTED: the {evidence.attack} attack shows {words}, which is compatible with {subject} "
            f"({n} scores, trials: {evidence.game.trials}). {ceiling_words(evidence, best, ceiling)}"
            "This does not show that the claim is true."
        )
    ordered = tuple(sorted(bounds, key=lambda bound: -bound.lower)) + tuple(extra)
    return Verdict(
        kind=kind,
        sentence=sentence,
        significance=1.0 - confidence,
        bound=best,
        bounds=ordered,
        trials_needed=needed if kind is VerdictKind.UNDERPOWERED else None,
        ceiling=None if kind is VerdictKind.REFUTED else ceiling,
    )


def combine(verdicts: Sequence[Verdict], *, confidence: float) -> Verdict:
    """Combines the verdicts of several attacks on one claim.

    A claim is refuted if any valid attack refutes it. A broken experiment makes the whole INVALID unless
    another refutes. All underpowered is UNDERPOWERED, and UNDECIDED has no say if there are others. An AUC
    below one half in any game is among the reasons.

    Args:
        verdicts: At least one; each judged at confidence `1 - (1 - confidence) / len(verdicts)` or above.
        confidence: Of the whole.

    Raises `InputError`: there is no verdict to combine.
    """
    if not verdicts:
        raise InputError("verdicts must not be empty")
    by_kind = {kind: [v for v in verdicts if v.kind is kind] for kind in VerdictKind}
    for kind in COMBINED:
        if by_kind[kind]:
            best = max(by_kind[kind], key=lambda v: v.bound.lower if v.bound else -math.inf)
            sentence = best.sentence
            if len(verdicts) > 1 and kind is not VerdictKind.INVALID:
                sentence += (
                    f" Over its {len(verdicts)} games the audit refutes a true claim with probability "
                    f"{100 * (1.0 - confidence):.3g} % at most."
                )
            others = (below_half_words(v.intervals) for v in verdicts if v is not best)
            reasons = (*best.reasons, *(f"In another of its games:{words}" for words in others if words))
            best = replace(best, sentence=sentence, significance=1.0 - confidence, reasons=reasons)
            return replace(best, bounds=(), intervals=())
    raise InputError(f"verdicts of kind {verdicts[0].kind} cannot be combined")


def judged_subject(
    name: str,
    role: str,
    claim: Claim,
    games: Sequence[Evidence],
    *,
    confidence: float,
    seed: int,
    others: Sequence[Verdict] = (),
    claims: Sequence[Claim] | None = None,
    planned: int = 0,
) -> dict[str, JSON]:
    """Returns the report of one subject: each game judged at its share of the error, and all combined.

    `others` are verdicts that something else than a game's scores gave; one that is UNDECIDED decides where
    no game refutes. Together the games have as much of the error as all of them.
    `claims`: what each game is held against, if it is not the claim for all of them: the same guarantee,
    about what its adversary sees. `planned`: how many games were to be played, if coins may have had a part
    in which were: each keeps its share of the error then.

    Raises `InconclusiveError`: no game could be played. `InputError`: unusable scores or labels.
    `UnsupportedError`: a game cannot judge the claim's currency.
    """
    if not games:
        raise InconclusiveError(f"no game of {name} could be judged: too few releases or steps")
    # A game that can refute nothing takes no part in the error.
    able = max(planned, sum(not game.game.beyond for game in games))
    share = share_of(confidence, able, with_others=bool(others))
    verdicts = []
    for index, (held, game) in enumerate(zip(claims or [claim] * len(games), games, strict=True)):
        generator = stream(seed, "watching") if game.game.sequential else stream(seed, "judge", index)
        verdicts.append(judge(held, game, confidence=share, generator=generator, subject=name))
    attacks = [
        {
            "attack": game.attack,
            "game": plain(game.game),
            "verdict": plain(verdict),
            "scores": plain(game.scores),
            "members": plain(game.members),
            "details": plain(game.details),
            "cost": plain(game.cost),
            "seeds": plain(game.seeds),
        }
        for game, verdict in zip(games, verdicts, strict=True)
    ]
    whole = combine([*others, *verdicts], confidence=confidence)
    undecided = [verdict for verdict in others if verdict.kind is VerdictKind.UNDECIDED]
    if undecided and whole.kind in (VerdictKind.NOT_REFUTED, VerdictKind.UNDERPOWERED):
        whole = replace(undecided[0], bounds=())
    return {
        "name": name,
        "role": role,
        "claim": claim_form(claim),
        "verdict": plain(whole),
        "metrics": {},
        "losses": [],
        "parameters": {},
        "attacks": attacks,
    }


def share_of(confidence: float, games: int, *, with_others: bool = False) -> float:
    """Confidence at which each of the games is judged; `with_others`: verdicts of no game take one half."""
    return 1.0 - (1.0 - confidence) / max(games, 1) / (2 if with_others else 1)


def refutes_already(claim: Claim, evidence: Evidence, *, confidence: float, seed: int) -> bool:
    """Whether the scores so far refute a claim by a sequential test, that of `judged_subject`.

    Asked after each score, the answers together err with probability at most `1 - confidence`.
    `confidence`: that of the game (`share_of`). Raises as `judge`.
    """
    if evidence.game.beyond or evidence.members.all() or not evidence.members.any():
        return False
    stated = implied_epsilon(claim.guarantee)
    game = replace(evidence, game=replace(evidence.game, sequential=True))
    (test,) = deciding_tests(stated, game, confidence, stream(seed, "watching"))
    return test(game.scores).lower > stated.epsilon


def claim_form(claim: Claim) -> dict[str, JSON]:
    """Returns the plain form of a claim, with its one-line description as `text`."""
    form: dict[str, JSON] = plain(claim)
    return {**form, "text": claim.describe()}

"""Chooses the bounds that decide a claim in a game, and computes what a perfect attack could show with them.

Game and claim settle the list before any score is looked at; the error probability is split over the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from scipy.stats import binomtest

from workbench import estimation
from workbench.accounting import ApproximateDP, GaussianDP, MutualInformation, NoGuarantee, RenyiDP
from workbench.accounting import subsampled_gaussian as accountant
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.templates import percent
from workbench.estimation import ESTIMATORS
from workbench.estimation.gdp_one_run import perfect_mu
from workbench.estimation.perfect import ALMOST_ALWAYS, MOST_TRIALS, trials_to_reach
from workbench.estimation.renyi import perfect_renyi, require_order
from workbench.estimation.searching import smallest_count
from workbench.estimation.subset_trials import SubsetEvidence, nats_bound, perfect_log_score, success_bound
from workbench.interfaces import (
    BoolArray,
    Bound,
    Evidence,
    Family,
    FloatArray,
    GameTerms,
    Guarantee,
    Interval,
    Trials,
    Verdict,
    VerdictKind,
)

LARGEST_MU = 50.0
"""A larger mu implies an epsilon above a thousand, which no experiment distinguishes from no guarantee."""

IMPLIED_DELTA = 1e-5
"""Delta at which a claim of another currency is turned into the (epsilon, delta) pair that it implies."""

GAUSSIAN_SHARE = 0.8
"""Share of the error probability that a Gaussian bound gets beside a family-free one."""

PRIOR_ERROR = 0.002
"""Probability that the range of an unknown prior misses it, taken from the error of the verdict."""

DECLARED_SHARE = 0.98
"""The same where the supplier of scores declares them Gaussian: the other bound is for want of any noise."""

LEAST_GAUSSIAN = 8
"""Observations in each class below which no normal distribution can be told from another."""

LEAST_DECLARED = {Trials.INDEPENDENT: 400, Trials.ONE_RUN: 1000}
"""Scores that a supplier declares Gaussian, below which the test of fit lets too much pass, as it does with
less than two fifths of so many in either class: with fewer scores of Laplace noise the family's bound would
have exceeded the truth in up to 38 of 100 runs."""


DecidingTest: TypeAlias = Callable[[FloatArray], Bound]
"""A deciding bound, as a function of the scores."""


def reachable_bound(test: DecidingTest, members: BoolArray, *, distinct: bool = False) -> float:
    """Returns the bound of scores that equal the labels; infinite where it would need noise to be finite.

    `distinct`: no two scores are to be equal; for tests that know the order of scores alone.
    """
    scores = members.astype(np.float64)
    if distinct:
        scores += 1e-3 * np.arange(scores.size) / scores.size
    for _ in range(3):  # A resampling estimator draws a blank once in 500 times.
        try:
            lower = test(scores).lower
        except UnsupportedError:
            return math.inf
        if lower > 0.0:
            return lower
    return lower


def implied_epsilon(guarantee: Guarantee) -> ApproximateDP:
    """Returns an (epsilon, delta)-DP statement that a guarantee implies; refuting it refutes the guarantee.

    GDP: exact at delta = 1e-5. Rényi DP: Mironov 2017, Proposition 3, at delta = 1e-5.

    Raises `InputError`: the guarantee promises nothing. `UnsupportedError`: it implies no such statement.
    """
    if isinstance(guarantee, ApproximateDP):
        return guarantee
    if isinstance(guarantee, GaussianDP):
        if guarantee.mu > LARGEST_MU:
            raise UnsupportedError(f"mu must be at most {LARGEST_MU:g} to be judged, got {guarantee.mu:g}")
        return ApproximateDP(epsilon=epsilon_of_delta(guarantee.mu, IMPLIED_DELTA), delta=IMPLIED_DELTA)
    if isinstance(guarantee, RenyiDP):
        epsilon = guarantee.epsilon + math.log(1.0 / IMPLIED_DELTA) / (guarantee.alpha - 1.0)
        return ApproximateDP(epsilon=epsilon, delta=IMPLIED_DELTA)
    if isinstance(guarantee, NoGuarantee):
        raise InputError("claim promises nothing, so there is nothing to refute")
    raise UnsupportedError(f"{guarantee.describe()} implies no (epsilon, delta) statement")


def unknown_prior_range(members: BoolArray) -> tuple[float, float]:
    """Clopper-Pearson interval, at 99.8 %, of the probability of the coins that gave these labels."""
    interval = binomtest(int(np.sum(members)), members.size).proportion_ci(1.0 - PRIOR_ERROR, method="exact")
    return float(interval.low), float(interval.high)


def deciding_tests(
    stated: ApproximateDP, evidence: Evidence, confidence: float, generator: np.random.Generator
) -> list[DecidingTest]:
    """Returns the bounds that decide, with the error probability split between them."""
    game, error = evidence.game, 1.0 - confidence
    if game.sequential:
        return [_sequential_test(stated, evidence, confidence, generator)]
    if game.trials is Trials.ONE_RUN:
        free = partial(estimation.one_run, delta=stated.delta, generator=generator)
        if not _may_be_gaussian(evidence) or stated.delta == 0.0:
            return _one_run_tests(free, evidence, confidence)
        gaussian = partial(estimation.gdp_one_run, delta=stated.delta, generator=generator)
        shares = (GAUSSIAN_SHARE, 1.0 - GAUSSIAN_SHARE)
        return [
            test
            for bound, share in zip((gaussian, free), shares, strict=True)
            for test in _one_run_tests(bound, evidence, 1.0 - share * error)
        ]
    if not _may_be_gaussian(evidence) or stated.delta == 0.0:
        return [_free_test(stated, evidence, confidence, generator)]
    share = GAUSSIAN_SHARE if game.is_single_release else DECLARED_SHARE
    gaussian_test = _gaussian_test(stated, evidence, 1.0 - share * error)
    return [gaussian_test, _free_test(stated, evidence, 1.0 - (1.0 - share) * error, generator)]


def _may_be_gaussian(evidence: Evidence) -> bool:
    """Whether the game says that its scores are Gaussian, and there are enough to be tested for it."""
    fewer = min(int(np.sum(evidence.members)), int(np.sum(~evidence.members)))
    is_declared = evidence.game.family is Family.GAUSSIAN and fewer >= LEAST_GAUSSIAN
    return is_declared and not too_few_for_the_family(evidence)


def too_few_for_the_family(evidence: Evidence) -> list[str]:
    """Why a family that a supplier declares is left out; empty where it is not for want of scores."""
    game, count = evidence.game, evidence.scores.size
    least = LEAST_DECLARED[game.trials]
    fewer = min(int(np.sum(evidence.members)), int(np.sum(~evidence.members)))
    if game.family is not Family.GAUSSIAN or game.is_single_release:
        return []
    if count >= least and 5 * fewer >= 2 * least:
        return []
    return [
        f"{count} scores, {fewer} of them in the smaller class, are too few to be tested for the Gaussian "
        f"family: {least} are wanted, and {2 * least // 5} in each class, so none is assumed"
    ]


def _sequential_test(
    stated: ApproximateDP, evidence: Evidence, confidence: float, generator: np.random.Generator
) -> DecidingTest:
    """The test of scores that are watched in their order."""
    game = evidence.game
    if game.is_single_release:
        raise UnsupportedError("a sequential test is about whole runs, not about single releases of one")
    if game.trials is Trials.ONE_RUN and game.prior_range is not None:
        raise UnsupportedError(
            "a sequential test needs the probability of the labels' coins: state the prior"
        )
    return lambda scores: estimation.sequential(
        scores,
        evidence.members,
        epsilon=stated.epsilon,
        delta=stated.delta,
        confidence=confidence,
        trials=game.trials,
        prior=game.prior,
        generator=generator,
    )


def mu_tests(evidence: Evidence, confidence: float, generator: np.random.Generator) -> list[DecidingTest]:
    """Returns the bounds of mu that decide a claim of Gaussian DP by the guesses of one run."""
    bound = partial(estimation.gdp_one_run, quantity="mu", generator=generator)
    return _one_run_tests(bound, evidence, confidence)


def renyi_tests(
    claimed: RenyiDP, evidence: Evidence, confidence: float, generator: np.random.Generator
) -> list[DecidingTest]:
    """Returns the bounds of a Rényi divergence that decide a claim of it, for whole runs of either kind.

    Raises `UnsupportedError`: an order too near 1.
    """
    alpha = claimed.alpha
    require_order(alpha)
    if evidence.game.trials is Trials.ONE_RUN:
        bound = partial(estimation.renyi_one_run, alpha=alpha, generator=generator)
        return _one_run_tests(bound, evidence, confidence)
    return [
        lambda scores: estimation.renyi_lower(scores, evidence.members, alpha=alpha, confidence=confidence)
    ]


def renyi_trials_needed(claimed: RenyiDP, evidence: Evidence, confidence: float) -> int | None:
    """Returns how many trials of one run a perfect attack would have needed against a claim of Rényi DP.

    None where coins are not known to be fair, or where it is more than an experiment could hold; also for
    independent trials.
    """
    game = evidence.game
    if game.trials is not Trials.ONE_RUN or game.prior != 0.5 or game.prior_range is not None:
        return None
    return smallest_count(
        lambda n: perfect_renyi(n, alpha=claimed.alpha, confidence=confidence) > claimed.epsilon,
        start=4,
        most=MOST_TRIALS,
        coarseness=64,
    )


def gaussian_mu_test(guarantee: Guarantee, evidence: Evidence, confidence: float) -> DecidingTest | None:
    """Returns the Gaussian bound that decides a claim of mu at `DECLARED_SHARE` of the error, if one does."""
    if not isinstance(guarantee, GaussianDP) or not _may_be_gaussian(evidence):
        return None
    return lambda scores: estimation.gaussian_location(
        scores,
        evidence.members,
        delta=IMPLIED_DELTA,
        confidence=1.0 - DECLARED_SHARE * (1.0 - confidence),
        quantity="mu",
    )


def mu_trials_needed(mu: float, evidence: Evidence, confidence: float) -> int | None:
    """Returns how many trials of one run a perfect attack would have needed against a claim of mu-GDP.

    None where coins are not known to be fair, or where it is more than an experiment could hold.
    """
    if evidence.game.prior != 0.5 or evidence.game.prior_range is not None:
        return None
    return smallest_count(
        lambda n: perfect_mu(n, confidence=confidence) > mu,
        start=2,
        most=MOST_TRIALS,
        coarseness=64,
    )


def _one_run_tests(
    estimator: Callable[..., Bound], evidence: Evidence, confidence: float
) -> list[DecidingTest]:
    """The tests that an estimator of one run's guesses gives, for coins of a known or an unknown prior.

    A larger prior makes "in" guesses right more often and "out" guesses less often, so under an unknown prior
    "in" guesses are judged at the upper end of its range and "out" guesses at the lower, each at half of
    the error that the range left.
    """
    game = evidence.game
    if game.prior_range is None:
        return [lambda scores: estimator(scores, evidence.members, confidence=confidence, prior=game.prior)]
    error = (1.0 - confidence) - PRIOR_ERROR
    if error <= PRIOR_ERROR:
        raise UnsupportedError(
            f"confidence {confidence:g} leaves too little to estimate the labels' prior with: state it"
        )
    low, high = game.prior_range

    assumption = (
        f"labels are independent coins of one unknown probability, in [{low:.3g}, {high:.3g}] with "
        f"{100 * (1.0 - PRIOR_ERROR):.4g} % confidence; scores may depend on each other"
    )

    def test(side: str, prior: float) -> DecidingTest:
        """The bound of one side at one prior."""

        def compute(scores: FloatArray) -> Bound:
            """The bound of these scores."""
            share = 1.0 - error / 2.0
            bound = estimator(scores, evidence.members, confidence=share, prior=prior, sides={side: 1.0})
            return replace(bound, assumption=assumption)

        return compute

    return [test("top", high), test("bottom", low)]


def _free_test(
    stated: ApproximateDP, evidence: Evidence, confidence: float, generator: np.random.Generator
) -> DecidingTest:
    """A bound from independent trials that assumes no family.

    One release is carried to its run by the sampling probability: a record takes part in a given step with
    probability q, so an event with P_in >= e^a P_out + b under participation has P_run >= (1 + q (e^a - 1))
    P_out + q b in the whole run's output. The other direction does not carry over like this, so only guesses
    "in" are used.
    """
    game = evidence.game
    if not game.is_single_release:
        return lambda scores: estimation.clopper_pearson_all(
            scores, evidence.members, delta=stated.delta, confidence=confidence, generator=generator
        )
    q = game.sampling_probability
    release_delta = min(stated.delta / q, 0.5)

    def compute(scores: FloatArray) -> Bound:
        """The bound of one release, carried to its run."""
        bound = estimation.clopper_pearson_all(
            scores,
            evidence.members,
            delta=release_delta,
            confidence=confidence,
            generator=generator,
            sides={"top": 1.0},
        )
        carried = f"; carried from one release to the run by the sampling probability q = {q:g}"
        # A delta that no release can have carries nothing to the run.
        lower = 0.0 if stated.delta >= q / 2.0 else with_participation(bound.lower, q)
        return replace(
            bound,
            lower=lower,
            estimate=with_participation(bound.estimate, q),
            delta=stated.delta,
            assumption=bound.assumption + carried,
        )

    return compute


def with_participation(epsilon: float, q: float) -> float:
    """log(1 + q (e^epsilon - 1)), stably: the epsilon where the record takes part with probability q."""
    if q == 1.0 or epsilon == 0.0 or math.isnan(epsilon):
        return epsilon
    return max(0.0, float(np.logaddexp(math.log1p(-q), math.log(q) + epsilon)))


def _gaussian_test(stated: ApproximateDP, evidence: Evidence, confidence: float) -> DecidingTest:
    """The Gaussian bound of one release, composed to the run by the accountant."""
    game = evidence.game

    def run_epsilon(mu: float) -> float:
        return accountant.mu_to_run_epsilon(
            mu, sampling_probability=game.sampling_probability, steps=game.steps, delta=stated.delta
        )

    def compute(scores: FloatArray) -> Bound:
        """The bound of one release, composed to its run."""
        if scores.min() == scores.max():
            raise UnsupportedError("scores are outside the Gaussian family: all of them are one number")
        release = estimation.gaussian_location(
            scores, evidence.members, delta=stated.delta, confidence=confidence, quantity="mu"
        )
        composed = (
            f"; mu >= {release.lower:.4g} of one release composed over T = {game.steps} releases with "
            f"sampling probability q = {game.sampling_probability:g} by certified bounds (lower end)"
        )
        return replace(
            release,
            quantity="epsilon",
            lower=run_epsilon(release.lower),
            estimate=run_epsilon(release.estimate),
            delta=stated.delta,
            family=Family.SUBSAMPLED_GAUSSIAN if game.is_single_release else Family.GAUSSIAN,
            assumption=release.assumption + (composed if game.is_single_release else ""),
        )

    return compute


def informative_bounds(
    stated: ApproximateDP, evidence: Evidence, confidence: float, generator: np.random.Generator
) -> tuple[Bound, ...]:
    """Returns bounds that are shown with the deciding ones, and never decide; nor do they end an audit.

    In a one-run game those that need independent trials are left out, and in a sequential one those that need
    a number of trials that was fixed beforehand: readers would believe them.
    """
    game = evidence.game
    if game.trials is Trials.ONE_RUN or game.is_single_release or game.sequential or is_silent(evidence):
        return ()
    bounds = []
    gaussian = ("gaussian_location", "gaussian_rank") if stated.delta > 0.0 else ()
    for name in ("one_run", "clopper_pearson_split", *gaussian):
        try:
            with np.errstate(all="ignore"):
                bound = ESTIMATORS[name](
                    evidence.scores,
                    evidence.members,
                    delta=stated.delta,
                    confidence=confidence,
                    generator=generator,
                )
        except (UnsupportedError, ValueError, ArithmeticError):
            continue  # Outside its family, with one record of a class, or with numbers too large: not shown.
        bounds.append(bound)
    return tuple(bounds)


def is_silent(evidence: Evidence) -> bool:
    """Whether every trial has the same score, which says nothing of who took part."""
    return bool(evidence.scores.min() == evidence.scores.max())


def silent_words(evidence: Evidence) -> str:
    """Returns the remark on such scores of independent trials; empty where scores differ."""
    if not is_silent(evidence) or evidence.game.trials is Trials.ONE_RUN:
        return ""
    return f" All {evidence.scores.size} scores are the same number, whoever took part: they tell nothing."


def stopping_words(evidence: Evidence, verdict: Verdict) -> str:
    """Returns the remark that follows the verdict of a sequential test; empty for any other."""
    if not evidence.game.sequential or verdict.bound is None:
        return ""
    watched, n = verdict.bound.n, evidence.scores.size
    if verdict.kind is not VerdictKind.REFUTED:
        return f" All {n} scores were watched, one after the other."
    if watched == n:
        return f" It was refuted after {n} scores, watched one after the other."
    needed = f"{watched} of {n} scores"
    return f" It was refuted after {needed}, watched one after the other; the others were not needed."


def metric_intervals(evidence: Evidence, confidence: float) -> tuple[Interval, ...]:
    """Returns the field's usual metrics with confidence intervals."""
    scores, members = evidence.scores, evidence.members
    return (
        estimation.auc(scores, members, confidence=confidence),
        estimation.advantage(scores, members, confidence=confidence),
        estimation.accuracy(scores, members, confidence=confidence),
        estimation.tpr_at_fpr(scores, members, fpr=0.01, confidence=confidence),
        estimation.tpr_at_fpr(scores, members, fpr=0.001, confidence=confidence),
    )


def below_half_words(intervals: Sequence[Interval]) -> str:
    """Returns the remark that follows the verdict where the AUC lies below one half; empty elsewhere."""
    for interval in intervals:
        if interval.name == "auc":
            ends = interval.estimate, interval.lower, interval.upper
            remark = estimation.auc_below_half(*ends, confidence=interval.confidence)
            return "" if remark is None else f" {remark}"
    return ""


def trials_needed(stated: ApproximateDP, game: GameTerms, confidence: float) -> int | None:
    """Returns with how many trials a perfect attack refutes almost always, whatever the coins say.

    In `workbench.estimation.perfect.ALMOST_ALWAYS` of all cases; independent trials are half members. None
    where the coins' probability is unknown, or the number is more than an experiment could hold.
    """
    if game.sequential:
        return None  # It would depend on how the labels fall.
    if game.trials is Trials.ONE_RUN and game.prior_range is not None:
        return None
    if game.family is Family.GAUSSIAN and game.is_single_release and stated.delta > 0.0:
        return 2 * LEAST_GAUSSIAN
    return free_trials_needed(stated, game, confidence)


def free_trials_needed(
    stated: ApproximateDP, game: GameTerms, confidence: float, probability: float = ALMOST_ALWAYS
) -> int | None:
    """Returns with how many trials a perfect attack refutes with a probability, by the bound of any family.

    None where the number is more than an experiment could hold.
    """
    q = game.sampling_probability if game.is_single_release else 1.0
    if stated.delta >= q / 2.0:
        return None
    return trials_to_reach(
        stated.epsilon if q == 1.0 else math.log1p(math.expm1(min(stated.epsilon, 700.0)) / q),
        trials=game.trials,
        prior=game.prior,
        delta=stated.delta / q,
        confidence=confidence,
        probability=probability,
        top_only=game.is_single_release,
    )


@dataclass(frozen=True, kw_only=True)
class MeanTest:
    """A deciding bound of a candidate-subset game: a mean over trials that the claim limits.

    Attributes:
        bound: From what was measured.
        allowed, allowed_text: What the claim allows, and in words.
        perfect: Lower bound that a perfect attack would have had from so many trials.
    """

    bound: Bound
    allowed: float
    allowed_text: str
    perfect: Callable[[int], float]
    trials: int

    def reachable(self) -> float:
        """Returns what a perfect attack would have shown."""
        return self.perfect(self.trials)

    def needed(self) -> int | None:
        """With how many trials a perfect attack would show more than is allowed; None above a million."""
        start = max(4, self.trials)
        return smallest_count(lambda n: self.perfect(n) > self.allowed, start=start, most=MOST_TRIALS)


def mean_tests(claimed: MutualInformation, evidence: SubsetEvidence, confidence: float) -> list[MeanTest]:
    """Tests that decide a claim of nats about a candidate subset, with the error split between them.

    Right guesses about records decide where the claim allows fewer than all of them, and nats about the index
    where it allows fewer than all there are (`workbench.estimation.subset_trials`). The game's blind guesses
    are right half of the time; `confidence` is that of all tests together.
    """
    success, nats = claimed.max_success(), claimed.nats
    best = perfect_log_score(evidence.candidates)
    chosen = [name for name, able in (("success", success < 1.0), ("nats", nats < best)) if able]
    share = 1.0 - (1.0 - confidence) / max(len(chosen), 1)

    def of_success(values: FloatArray) -> Bound:
        return success_bound(evidence, values, share)

    def of_nats(values: FloatArray) -> Bound:
        return nats_bound(evidence, values, share)

    tests = {
        "success": MeanTest(
            bound=of_success(evidence.record_success),
            allowed=success,
            allowed_text=f"a membership success of {success:.4f} at prior 0.5",
            perfect=lambda n: of_success(np.ones(n)).lower,
            trials=evidence.record_success.size,
        ),
        "nats": MeanTest(
            bound=of_nats(evidence.log_scores),
            allowed=nats,
            allowed_text=f"{nats:g} nats about the index",
            perfect=lambda n: of_nats(np.full(n, best)).lower,
            trials=evidence.log_scores.size,
        ),
    }
    return [tests[name] for name in chosen]


def ceiling_words(evidence: Evidence, bound: Bound, ceiling: float) -> str:
    """Returns in words what a perfect attack could have shown in the quantity of a bound; may be infinite.

    Empty for a sequential test, which asks about the claim alone.
    """
    if evidence.game.sequential:
        return ""
    if math.isinf(ceiling):
        return "A perfect attack has no ceiling here: the less its scores vary, the more they show. "
    return (
        f"A perfect attack on this many trials could have shown at most {bound.quantity} >= {ceiling:.4g}. "
    )


def shown_words(bound: Bound) -> str:
    """Returns a bound in words, with delta or alpha, confidence, estimator and family."""
    at = "" if bound.delta is None else f" at delta = {bound.delta:g}"
    at += "" if bound.alpha is None else f" at alpha = {bound.alpha:g}"
    # These assume nothing of the mechanism; the family's name would speak of epsilons.
    family = "" if bound.quantity in ("success", "nats") else f", family: {bound.family}"
    family = ", any family" if bound.quantity == "renyi" else family
    return (
        f"{bound.quantity} >= {max(bound.lower, 0.0):.4g}{at} with {percent(bound.confidence, 4)} confidence "
        f"(estimator {bound.name}{family})"
    )

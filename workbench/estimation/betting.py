"""Tests of (epsilon, delta)-DP that may be stopped at any time: a gambler bets on labels as scores arrive.

**Why the gambler cannot win against a true claim.** A round is a score and then its label, a coin that says
"member" with probability a. The gambler sees all rounds before and the score, may guess the label, and bets a
part of the capital that the guess is right. Let p be the largest probability with which (epsilon, 0)-DP lets
a guess be right (`guess_probabilities`), and let the gambler expect to be right with probability b >= p. The
capital is multiplied by b / p where the guess is right, by (1 - b) / (1 - p) where it is wrong, and stays
where there is none. Under (epsilon, 0)-DP a guess is right with probability at most p given all that the
gambler knows, so the expected factor is at most 1, whatever the distributions of the scores: the capital is
a non-negative supermartingale for every pair of distributions inside the claim's region. It starts at 1, so
it ever reaches 1 / s with probability at most s (Ville's inequality). The test "reject once the capital
reaches 1 / s" errs with probability at most s at all times together, however often one looks.

**Delta, independent trials.** For every set of scores A, fixed before the round, P_in[A] - e^eps P_out[A] <=
delta. With 1 where the guess is "in" and l = a (b / p - 1), the factor above is 1 + l (1[in, member] / a -
e^eps 1[in, non-member] / (1 - a)), of expectation at most 1 + l delta; so l delta is taken off in every
round, guess or no guess. The same for "out" with the classes swapped, l = (1 - a) (b / p - 1). If both are
played at once their factors' excesses over 1 are added, not multiplied. Bets are capped so that no factor is
negative. The number of rounds is not bounded.

**Delta, one run.** All scores may come from one run, and depend on each other. Given all the scores and the
labels before, a guess is right with probability at most p + x, where E[x] <= (1 - p_in) a delta for "in" and
(1 - p_out) (1 - a) delta for "out" (proved in `workbench.estimation.one_run`). Draw the labels by uniform
numbers: a guess is right because U <= p, or is a gift because p < U <= p + x. The capital without its gifts
is a supermartingale in the filtration of the scores and of all U, whatever the bets were. By Markov's
inequality more than k of at most n rounds are gifts with probability at most c n delta / (k + 1), where c is
the sum of the two factors above. That is paid from the error probability, with the least k for which it is at
most a fifth. Where k > 0 the factor of a right guess is at most four times that of a wrong one, so k gifts
multiply the capital by 4^k at most, and it must reach 4^k times as much. So n must be stated beforehand.

**Labels that are no coins** (independent trials). A fair coin is tossed for each round, and the round's score
is the next unused member or non-member, as soon as there is one. Where scores are independent and identically
distributed within each class, such rounds are independent pairs of a fair coin and a score.

**What the gambler does.** A score's place among the scores before it says whether it is among the highest,
or the lowest, share of them; five shares are played by gamblers of their own, each at the top, at the bottom
and at both ends. A sixth guesses every score, by the cut that would have told most labels before it apart:
where scores tell labels without error, so does this cut after a few rounds, and no share does. The
probability b that a guess is right is the posterior mean after all guesses of its kind, under Jeffreys'
prior restricted to values above p. The average of their capitals is again such a capital.

Sources: Waudby-Smith and Ramdas 2024 (betting); Gonzalez et al. 2025, "Sequentially auditing differential
privacy" (a test of this kind for audits, with other bets). The rounds, both prices of delta and the bets are
ours.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque

import numpy as np
from scipy.special import betaincc, betaln

from workbench.core.arguments import number
from workbench.core.errors import InputError
from workbench.estimation.inputs import INDEPENDENT_SCORES, check_game, check_probability
from workbench.estimation.one_run import guess_probabilities
from workbench.interfaces import BoolArray, Bound, Family, FloatArray, Trials

SHARES = (0.5, 0.35, 0.15, 0.05, 0.015)
"""Shares of the scores, at each end, that gamblers guess."""

ENDS = {"both": 0.6, "top": 0.2, "bottom": 0.2}
"""Parts of the first capital for guesses at both ends, "in" guesses alone and "out" guesses alone."""

KINDS = len(SHARES) + 1
"""Kinds of guesses at each end: the shares, and the cut."""

_GIFT_WORTH = 4.0
_DELTA_SHARE = 0.2
_CUT_GROWTH = 1.02
"""By how much the past grows before the best cut is looked for again, so that n rounds cost some 50 n."""


def best_cut(scores: FloatArray, members: BoolArray) -> float:
    """The cut with most members above it and non-members below it; NaN where one class is missing.

    `scores` ascending, shape `(n,)`; the cut lies halfway between two different ones.
    """
    if members.all() or not members.any():
        return math.nan
    # After the i lowest scores: non-members among them, less the members.
    right = np.concatenate([[0], np.cumsum(np.where(members, -1, 1))])[1:-1]
    apart = scores[1:] > scores[:-1]
    if not apart.any():
        return math.nan
    at = int(np.argmax(np.where(apart, right, -scores.size)))
    return float(scores[at] / 2.0 + scores[at + 1] / 2.0)


class SequentialTest:
    """Tests claims of (epsilon, delta)-DP while scores arrive; each claim is its own test.

    Each claim is rejected, if it is true, with probability at most 1 - confidence at all times together.

    Attributes:
        epsilons: The claims, ascending, shape `(claims,)`.
        rejected: Whether each has been rejected, shape `(claims,)`.
        watched: Scores that were watched.
        rounds: Rounds that were played; with independent trials some scores may still wait for their coin.
    """

    def __init__(
        self,
        epsilons: FloatArray,
        *,
        delta: float,
        confidence: float,
        trials: Trials,
        prior: float = 0.5,
        most: int | None = None,
        generator: np.random.Generator | None = None,
    ) -> None:
        """Start with a capital of 1 against each claim.

        Args:
            epsilons: The claims, ascending, each at least 0, shape `(claims,)`.
            delta: Of all claims, in [0, 1).
            confidence: In (0, 1).
            trials: How scores depend on each other. `INDEPENDENT`: labels may be any; `ONE_RUN`: labels are
                independent coins, tossed before the run.
            prior: Probability of "member" in the coins of one run.
            most: For one run and a delta above 0: the largest number of scores that will be watched.
            generator: Breaks ties and tosses coins; a fixed one by default.

        Raises `InputError`: an argument is unusable.
        """
        self.epsilons = np.asarray(epsilons, dtype=np.float64)
        ascending = (
            self.epsilons.ndim == 1 and self.epsilons.size > 0 and bool((np.diff(self.epsilons) > 0).all())
        )
        if not ascending or not (self.epsilons[0] >= 0 and math.isfinite(self.epsilons[-1])):
            raise InputError("epsilons must be a row of finite numbers >= 0 in ascending order")
        delta = check_probability("delta", delta, zero_allowed=True)
        error = 1.0 - check_probability("confidence", confidence)
        self._is_coin = trials is Trials.ONE_RUN
        prior = check_probability("prior", prior) if self._is_coin else 0.5
        self._generator = generator if generator is not None else np.random.default_rng(0)
        self.rejected = np.zeros(self.epsilons.size, dtype=bool)
        self.watched = self.rounds = 0
        self._past: list[float] = []
        self._waiting: dict[bool, deque[float]] = {True: deque(), False: deque()}
        self._coin: bool | None = None
        self._past_members: list[bool] = []
        self._cut, self._next_cut = math.nan, 0.0
        self._right, self._guesses = np.zeros((2, KINDS)), np.zeros((2, KINDS))
        # Shape (claims, ends, 1); the end 0 is "in".
        p = np.array([guess_probabilities(epsilon, prior) for epsilon in self.epsilons])[:, :, None]
        # Where p rounds to 1 there is nothing to win: no bets.
        self._able = p < 1.0 - 1e-12
        self._p, self._blind = np.minimum(p, 1.0 - 1e-12), np.array([prior, 1.0 - prior])[None, :, None]
        self._goal = np.full(self.epsilons.size, -math.log(error))
        self._delta, self._most, self._most_expected = 0.0, math.inf, np.ones_like(p)
        if delta > 0.0 and self._is_coin:
            self._most = number("most", most, least=1)
            gain = np.sum((1.0 - p) * self._blind, axis=(1, 2)) * self._most * delta
            gifts = np.maximum(0.0, np.ceil(gain / (_DELTA_SHARE * error)) - 1.0)
            self._goal = gifts * math.log(_GIFT_WORTH) - np.log(error - gain / (gifts + 1.0))
            capped = _GIFT_WORTH * p / (_GIFT_WORTH * p + 1.0 - p)
            self._most_expected = np.where(gifts[:, None, None] > 0, capped, 1.0)
        elif delta > 0.0:
            self._delta = delta
            # The largest l of both ends sum to e^-eps: no factor of a wrong guess falls below half of this.
            floor = 2.0 * delta * np.exp(-self.epsilons)[:, None, None]
            self._most_expected = np.maximum(p, 1.0 - (1.0 - p) * np.minimum(1.0, floor))
        self._bets = np.tile(self._p, (1, 1, KINDS))
        self._expect(np.ones((2, KINDS), dtype=bool))
        # Logarithms of capitals: both ends, top, bottom.
        start = np.log(np.array(list(ENDS.values())) / KINDS)[None, :, None]
        self._capitals = np.tile(start, (self.epsilons.size, 1, KINDS))

    def watch(self, score: float, member: bool) -> None:
        """Watch one more score and its label.

        Raises `InputError`: the score is not finite, or more than `most` scores of one run are watched.
        """
        value = number("score", score)
        if self.watched >= self._most:
            raise InputError(f"most must be at least the number of scores watched, got {self._most:g}")
        self.watched += 1
        if self._is_coin:
            self._play(value, bool(member))
            return
        self._waiting[bool(member)].append(value)
        while True:
            if self._coin is None:
                self._coin = bool(self._generator.random() < 0.5)
            if not self._waiting[self._coin]:
                return
            self._play(self._waiting[self._coin].popleft(), self._coin)
            self._coin = None

    @property
    def log_capitals(self) -> FloatArray:
        """Logarithm of the capital against each claim, over what it must reach; shape `(claims,)`."""
        return np.asarray(np.logaddexp.reduce(self._capitals, axis=(1, 2)) - self._goal, dtype=np.float64)

    @property
    def lower(self) -> float:
        """Largest claim up to which all are rejected, a lower confidence bound at any time; 0 for none."""
        kept = np.flatnonzero(~self.rejected)
        reached = self.epsilons.size if kept.size == 0 else int(kept[0])
        return float(self.epsilons[reached - 1]) if reached else 0.0

    def _play(self, score: float, member: bool) -> None:
        """One round: guess by the score's place, and settle the bets by the label."""
        low, high = bisect_left(self._past, score), bisect_right(self._past, score)
        place = (low + (high - low + 1) * self._generator.random()) / (len(self._past) + 1)
        shares = np.array(SHARES)
        by_share = np.stack([place > 1.0 - shares, place < shares])
        by_cut = np.array([[score > self._cut], [score < self._cut]])
        self._remember(low, score, member)
        guessed = np.concatenate([by_share, by_cut], axis=1)
        right = guessed & np.array([[member], [not member]])
        bet = self._bets
        excess = np.where(right, bet / self._p, (1.0 - bet) / (1.0 - self._p)) - 1.0
        excess = np.where(guessed, excess, 0.0)
        if self._delta:
            excess -= self._delta * self._blind * (bet / self._p - 1.0)
        excess = np.where(self._able, excess, 0.0)
        self._capitals[:, 0] += np.log1p(excess.sum(axis=1))
        self._capitals[:, 1:] += np.log1p(excess)
        self._right += right
        self._guesses += guessed
        self._expect(guessed)
        self.rounds += 1
        self.rejected |= self.log_capitals >= 0.0

    def _remember(self, place: int, score: float, member: bool) -> None:
        """Put a score at its place in the past, and look for the best cut again once that has grown."""
        self._past.insert(place, score)
        self._past_members.insert(place, member)
        if len(self._past) >= self._next_cut:
            self._cut = best_cut(np.array(self._past), np.array(self._past_members))
            self._next_cut = _CUT_GROWTH * len(self._past)

    def _expect(self, changed: BoolArray) -> None:
        """Set the bets of those kinds of guesses whose counts have changed: posterior means above p.

        With T the upper tail of Beta(r, w) at p, E[b | b > p] = (r + p^r (1 - p)^w / (B(r, w) T)) / (r + w);
        b is p where T underflows.
        """
        ends, shares = np.nonzero(changed)
        right, wrong = self._right[ends, shares] + 0.5, (self._guesses - self._right)[ends, shares] + 0.5
        p, tail = self._p[:, ends, 0], betaincc(right, wrong, self._p[:, ends, 0])
        log_density = right * np.log(p) + wrong * np.log1p(-p) - betaln(right, wrong)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean = (right + np.exp(log_density) / tail) / (right + wrong)
        mean = np.where(tail > 1e-250, mean, p)
        self._bets[:, ends, shares] = np.clip(mean, p, self._most_expected[:, ends, 0])


_CLAIMS = 17
_ABOVE = 1e-9


def sequential(
    scores: FloatArray,
    members: BoolArray,
    *,
    epsilon: float,
    delta: float,
    confidence: float,
    trials: Trials,
    prior: float = 0.5,
    generator: np.random.Generator | None = None,
) -> Bound:
    """Watches scores in their order and stops when the claim of (epsilon, delta)-DP is refuted.

    A true claim is refuted with probability at most 1 - confidence, and the bound exceeds the true epsilon
    with probability at most that. 16 smaller claims are tested at the same time; the bound is the largest of
    those up to which all are rejected when the test ends, and is above the claim where that is refuted.

    Args:
        scores, members: See `check_game`; in the order of their arrival.
        epsilon, delta: The claim; epsilon finite and at least 0.
        trials, prior, generator: See `SequentialTest`.

    Returns:
        The bound; its `n` is the number of scores that were watched. It has no point estimate (NaN).

    Raises `InputError`: an argument is unusable.
    """
    values, labels = check_game(scores, members, constant_allowed=trials is Trials.INDEPENDENT)
    epsilon = number("epsilon", epsilon, least=0, below=math.inf)
    claims = np.linspace(0.0, epsilon, _CLAIMS) if epsilon > 0 else np.zeros(1)
    claims[-1] = (
        epsilon * (1.0 + _ABOVE) + _ABOVE
    )  # A hair above, so that its refutation is a bound above it.
    test = SequentialTest(
        claims,
        delta=delta,
        confidence=confidence,
        trials=trials,
        prior=prior,
        most=values.size,
        generator=generator,
    )
    for score, member in zip(values.tolist(), labels.tolist(), strict=True):
        test.watch(score, member)
        if test.lower > epsilon:
            break
    independent = trials is Trials.INDEPENDENT
    coins = f"labels are independent coins with probability {prior:g} of membership"
    assumption = INDEPENDENT_SCORES if independent else f"{coins}; scores may depend on each other"
    return Bound(
        name="sequential",
        quantity="epsilon",
        lower=test.lower,
        estimate=math.nan,
        confidence=confidence,
        family=Family.ANY,
        trials=trials,
        assumption=f"{assumption}; they arrive in this order",
        n=test.watched,
        delta=delta,
    )

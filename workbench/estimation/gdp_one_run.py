"""Lower bounds on the mu of Gaussian differential privacy from one run, with any dependence between scores.

Labels are independent coins of probability `prior`, tossed before the run; all scores may come from one run
with all canaries in it. Nothing is assumed of the scores or of the mechanism. Let f_mu be the largest
true-positive rate that mu-GDP allows at each false-positive rate, f_mu(x) = Phi(Phi^-1(x) + mu). The attacker
names m of the n candidates: "in" for the highest scores, "out" for the lowest; N names are right.

**What mu-GDP allows (any mechanism).** Let q_i = P[N = i]. Fix a candidate j and all other coins. The event
"j is named 'in', and at least t - 1 of the other names are right" is about the output alone. With j's coin
heads it means that the name is right and N >= t; with tails, that the name is wrong and N >= t - 1. So its
probability under heads is at most f_mu of that under tails; for the name "out" the same holds with the
coin's sides swapped. Average over coins and candidates: f_mu is concave (Jensen's inequality), and the n
candidates count alike, hence for every t >= 1

    R_t <= F(H_{t-1}),  R_t = sum_{i >= t} q_i i / n,  H_t = sum_{i >= t} q_i (m - i) / n,

with F(x) = f_mu(x) for names at both ends and fair coins, and F(x) = a f_mu(x / (1 - a)) for names at one
end, where a blind name is right with probability a: the prior for "in", 1 - prior for "out". Names at both
ends are used with fair coins only.

**What that says of a large N (the recursion).** Suppose P[N >= c] >= s. Start from r_c = s c / n and
h_c = s (m - c) / n, and for t = c, ..., 1 let

    h_{t-1} = max(h_t, F^-1(r_t)),  r_{t-1} = r_t + (h_{t-1} - h_t) (t - 1) / (m - t + 1).

Then r_0 + h_0 <= R_0 + H_0 = m / n. Proof: with D_t = R_t - r_t and E_t = H_t - h_t, for all t <= c hold
(i) D_t >= 0, (ii) (m - t) D_t >= t E_t, (iii) D_t + E_t >= 0. At c they say that the truth has at least s
from c on, all of it at c or above. In a step both put mass at t - 1 (the recursion the least that its own
inequality asks for), and a mass x there adds x (t - 1) / n to R or r, and x (m - t + 1) / n to H or h. These
cancel in (ii), so (ii) holds at t - 1 if (m - t + 1) D_t >= (t - 1) E_t, which (i) and (ii) at t give. If
the truth puts no less there than the recursion, (i) and (iii) follow. If it puts less, the recursion puts
some, so h_{t-1} = F^-1(r_t) <= F^-1(R_t) <= H_{t-1} by (i), and E_{t-1} >= 0; by (ii) D_{t-1} >= 0, which
gives (i) and (iii).

So r_0 + h_0 > m / n excludes P[N >= c] >= s. The test "reject mu if the count c that was seen gives r_0 + h_0
> m / n" rejects only where N is at least the smallest such count, hence a true mu with probability below s.
The recursion meets its own inequalities, so r_0 + h_0 is the least mass that they allow; it falls in mu, and
the test may be inverted.

**Several numbers of names.** One run may put its whole luck into one case (with probability s nearly all
names are right, else nothing is told), and the recursion allows for it; where f_mu is steep, for few names,
that pays less. So few names often tell more than many. Their numbers are fixed functions of n, a factor of
four apart; each is tested at an equal part of the error probability (Bonferroni), and names at both ends, at
the top and at the bottom at their shares.

Source: Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one run" (inequality and
recursion). The proof above, the prior, names at one end and the numbers of names are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtr, ndtri

from workbench.accounting.gaussian import epsilon_of_delta
from workbench.core.errors import InputError
from workbench.estimation.gaussian_family import require_continuous, require_gaussian_roc
from workbench.estimation.inputs import check_game, check_probability
from workbench.estimation.one_run import SIDES, check_sides, ranked_labels
from workbench.estimation.searching import change_bracket
from workbench.interfaces import BoolArray, Bound, Family, FloatArray, IntArray, Trials

ONE_END: Mapping[str, float] = {"top": 0.5, "bottom": 0.5}
"""Shares of the error probability where coins are not fair, so that no test names candidates at both ends."""

LARGEST_MU = 64.0
"""Where the search for mu ends: no number of names refutes a larger one."""

_FEWEST = 10
_RATIO = 4
_ROUNDING = 1e-9
_MU_STEP = 1e-3


def is_excluded(
    min_fpr: Callable[[float], float],
    *,
    n: int,
    names: int,
    right: int,
    significance: float,
    chance: float | None,
) -> bool:
    """Whether so many right names exclude a concave trade-off curve f; true of a true one with probability
    below `significance`.

    Of f the recursion uses that it is concave and does not fall, and that it bounds every event in both
    directions; so the proof of the module holds for every such curve.

    Args:
        min_fpr: The inverse of f: smallest FPR at which a TPR in (0, 1) is allowed, or a lower bound of it.
        n: Candidates.
        names, right: How many of them were named, and how many of the names are right.
        significance: In (0, 1).
        chance: Probability that a blind name is right where all names stand at one end; None for as many
            names at each end, with fair coins.
    """
    r, h, all_mass = significance * right / n, significance * (names - right) / n, names / n
    limit = all_mass * (1.0 + _ROUNDING)
    top, scale = (1.0, 1.0) if chance is None else (chance, 1.0 - chance)
    for t in range(right, 0, -1):
        if r >= top:
            return True
        needed = scale * min_fpr(r / top)
        if needed <= h:
            break  # Nothing is added from here on.
        r += (needed - h) * (t - 1) / (names - t + 1)
        h = needed
        if r + h > limit:
            return True
    return r + h > limit


@lru_cache(maxsize=65536)
def is_refuted(
    mu: float, *, n: int, names: int, right: int, significance: float, chance: float | None
) -> bool:
    """`is_excluded` for the curve of mu-GDP, mu >= 0."""
    return is_excluded(
        lambda rate: float(ndtr(ndtri(rate) - mu)),
        n=n,
        names=names,
        right=right,
        significance=significance,
        chance=chance,
    )


def name_counts(n: int) -> tuple[int, ...]:
    """Numbers of candidates named at an end, for n >= 2: about half, and by factors of four down to ten.

    The largest leaves sqrt(n) candidates on each side of the middle, so that a perfect attack is not forced
    into wrong names by coins that fall unevenly.
    """
    counts = [max(1, n // 2 - math.isqrt(n))]
    while counts[-1] >= _RATIO * _FEWEST:
        counts.append(counts[-1] // _RATIO)
    return tuple(counts)


@dataclass(frozen=True, kw_only=True)
class Names:
    """What one test of `named` looks at: the arguments of `is_excluded` but for the curve."""

    n: int
    names: int
    right: int
    significance: float
    chance: float | None

    def rates(self, least_wrong: float = 0.0) -> tuple[float, float]:
        """Observed true-positive and false-positive rate, with at least so many names taken for wrong."""
        blind, out = (1.0, 1.0) if self.chance is None else (self.chance, 1.0 - self.chance)
        wrong = max(self.names - self.right, least_wrong)
        rates = (self.names - wrong) / self.n / blind, wrong / self.n / out
        return min(1.0, rates[0]), min(1.0, rates[1])


def named(ranked: IntArray, prior: float, sides: Mapping[str, float], significance: float) -> Iterator[Names]:
    """Yields the tests of one run, with the significance split over `sides` and the numbers of names.

    Labels are 0 or 1 in descending order of score, shape `(n,)`.
    """
    n, counts = ranked.size, name_counts(ranked.size)
    from_top = np.concatenate([[0], np.cumsum(ranked)])
    from_bottom = np.concatenate([[0], np.cumsum(1 - ranked[::-1])])
    ends = {
        "both": (2, from_top + from_bottom, None),
        "top": (1, from_top, prior),
        "bottom": (1, from_bottom, 1.0 - prior),
    }
    for side, share in sides.items():
        number_of_ends, rights, chance = ends[side]
        level = share * significance / len(counts)
        for count in counts:
            yield Names(
                n=n,
                names=number_of_ends * count,
                right=int(rights[count]),
                significance=level,
                chance=chance,
            )


def mu_lower(
    ranked: IntArray, prior: float, sides: Mapping[str, float], significance: float
) -> tuple[float, float]:
    """Returns a lower confidence bound of mu and a plug-in estimate from labels in descending order of score.

    The bound exceeds the smallest mu for which the mechanism is mu-GDP with probability at most
    `significance`, split over `sides` and the numbers of names. The estimate is that of the number of names
    with the largest bound; 0 where no bound is above 0. Labels are 0 or 1, shape `(n,)`.
    """
    lower, estimate = 0.0, 0.0
    for test in named(ranked, prior, sides, significance):
        refuted = partial(is_refuted, **vars(test))
        if refuted(lower):
            lower = change_bracket(refuted, absolute=_MU_STEP, most=LARGEST_MU)[0]
            tpr, fpr = test.rates()
            estimate = float(ndtri(tpr) - ndtri(fpr))
    return lower, max(0.0, estimate)


def gdp_one_run(
    scores: FloatArray,
    members: BoolArray,
    *,
    delta: float = 0.0,
    confidence: float,
    prior: float = 0.5,
    quantity: str = "epsilon",
    sides: Mapping[str, float] | None = None,
    generator: np.random.Generator | None = None,
) -> Bound:
    """Returns a lower bound of mu, or of the epsilon that it is worth, from coin labels of one run.

    The mu bound holds for every mechanism: the smallest mu for which it is mu-GDP (for adding or removing one
    record) is below it with probability at most 1 - confidence. An epsilon is what that mu is worth on the
    Gaussian curve: a bound for mechanisms whose trade-off curve is a Gaussian one, and labelled so. Like
    `gaussian_rank` it first refuses scores that are visibly outside that family.

    Args:
        scores, members: See `check_game`; the labels are independent coins, tossed before the run.
        delta: In (0, 1); read for quantity `"epsilon"`.
        prior: Probability of the label "member" in the coin, in (0, 1); not the observed share.
        quantity: `"epsilon"` or `"mu"`.
        sides: Share of the error probability for names at `"both"` ends (fair coins only), the `"top"`, the
            `"bottom"`, fixed before the scores are seen; by default those of `one_run`, or halves for both
            ends alone where coins are not fair.
        generator: Breaks ties; a fixed one by default (it knows nothing of the labels).

    Raises `InputError`: an argument is unusable. `UnsupportedError`: for an epsilon, the guard finds ties, an
    asymmetric ROC, or one that no two normals have.

    Source: Mahloujifar, Melis and Chaudhuri 2024; see the module for the proof.
    """
    values, labels = check_game(scores, members)
    check_probability("confidence", confidence)
    check_probability("prior", prior)
    if quantity not in ("epsilon", "mu"):
        raise InputError(f"quantity must be 'epsilon' or 'mu', got {quantity!r}")
    if quantity == "epsilon":
        check_probability("delta", delta)
        require_continuous(values)
        require_gaussian_roc(values, labels)
    if sides is None:
        sides = SIDES if prior == 0.5 else ONE_END
    check_sides(sides)
    if "both" in sides and prior != 0.5:
        raise InputError(f"sides must not hold 'both' where prior is not 0.5, got prior {prior!r}")
    ranked = ranked_labels(values, labels, generator if generator is not None else np.random.default_rng(0))
    lower, estimate = mu_lower(ranked, prior, sides, 1.0 - confidence)
    assumption = (
        f"labels are independent coins with probability {prior:g} of membership; scores may depend on each "
        "other"
    )
    is_mu = quantity == "mu"
    if not is_mu:
        lower, estimate = epsilon_of_delta(lower, delta), epsilon_of_delta(estimate, delta)
        assumption += "; the mechanism's trade-off between epsilon and delta is that of a Gaussian release"
    return Bound(
        name="gdp_one_run",
        quantity=quantity,
        lower=lower,
        estimate=estimate,
        confidence=confidence,
        family=Family.ANY if is_mu else Family.GAUSSIAN,
        trials=Trials.ONE_RUN,
        assumption=assumption,
        n=values.size,
        delta=None if is_mu else delta,
    )


def perfect_mu(n: int, *, confidence: float, prior: float = 0.5) -> float:
    """Returns the mu bound of an attack that ranks all n >= 2 candidates right, in their expected numbers."""
    ranked = (np.arange(n) < round(n * prior)).astype(np.int64)
    return mu_lower(ranked, prior, SIDES if prior == 0.5 else ONE_END, 1.0 - confidence)[0]

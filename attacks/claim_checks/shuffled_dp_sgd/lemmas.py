"""Shuffled DPSGD: Theorems 1, 2 and 5, Lemmas 1 and 3, and the steps between them and Theorem 6."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

from workbench.attacks.accountant_checks.proof import maximum, real
from workbench.attacks.claim_checks.shared import lemmas
from workbench.attacks.claim_checks.shared.claims import (
    against_claim,
    ball,
    counterexample_if,
    is_proven,
    many_steps,
    prove_that,
    randomised_response,
    setting,
    settle,
    show,
    with_evidence,
)
from workbench.core.registry import register
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding, assume

LEMMA = (
    "any mechanisms whose neighbours are those of the assumption; "
    "the adversary sees every output; nothing is sampled"
)
RELEASE = (
    "two adjacent queries; the adversary knows both and sees one shuffled noisy vector; "
    "algebra, nothing is sampled"
)
ALGEBRA = "an inequality or an approximation, no mechanism; nothing is sampled"


@register("claim_check", "shuffled_theorem_1")
@setting(LEMMA)
def theorem_1(*, first_term: str = "1/2") -> Finding:
    """Theorem 1: advanced composition, 1/2 S + sqrt(2 log(1 / delta') S) with S = sum eps_j^2, or basic.

    `first_term`: the factor of S alone.
    """
    factor = Fraction(first_term)
    proof = _advanced_composition(factor)
    count, slack = 1000, ball("1e-8")
    claimed = ball(factor) * count + (-2 * count * slack.log()).sqrt()
    claimed = claimed if claimed < count else ball(count)
    test = many_steps(randomised_response(), count, 650)
    wrong = against_claim(
        test,
        epsilon=claimed,
        delta=slack,
        where={"mechanism": "randomised response, epsilon 1", "releases": count},
        claim="the composition",
    )
    return settle(*proof.evidence, proof=proof.summary if is_proven(proof) else None, counterexample=wrong)


def _advanced_composition(factor: Fraction) -> Finding:
    """With t = e^h, u = e^((2 alpha - 1) h), h = epsilon / 2, for the worst pair: randomised response."""
    t, u = real("t", low=1), real("u", low=0)
    r, root = real("sqrt_rho", low=0), real("sqrt_log", low=0)
    moment = prove_that(
        "randomised response has the moment cosh((2 alpha - 1) h) / cosh(h)",
        ((u * t + t / u) / (1 + t * t)).equals((u + 1 / u) / (t + 1 / t)),
        u > 0,
    )
    # rho = factor * S bounds D_alpha / alpha; the order 1 + sqrt(log / rho) gives rho + 2 sqrt(rho log).
    price = prove_that(
        "rho (1 + a) + L / a at a = sqrt(L / rho) is rho + 2 sqrt(rho L)",
        (r * r * (1 + root / r) + root * root / (root / r)).equals(r * r + 2 * r * root),
        r > 0,
        root > 0,
    )
    half = prove_that(
        "rho = sum of eps_j^2 / 2 is the claimed first term",
        real("S", low=0) * Fraction(1, 2) <= factor * real("S", low=0),
    )
    return lemmas.together(
        "advanced composition",
        [
            moment,
            price,
            half,
            lemmas.renyi_mixture(),
            lemmas.renyi_composition(),
            lemmas.renyi_conversion(),
            lemmas.adaptive_composition(),
        ],
        premises=(
            "a convex function of a ratio within [1 / e_eps, e_eps] of mean 1 is largest at the ends",
            "tanh x <= x for x >= 0, so cosh(c h) / cosh(h) <= e^((c^2 - 1) h^2 / 2) for c >= 1",
            "(epsilon, delta)-close laws are epsilon-close but for mass delta of each (Kairouz et al. 2015)",
        ),
    )


@register("claim_check", "shuffled_theorem_2")
@setting("neighbours differ in one entry; U is secret; the adversary sees the output; exact rationals")
def theorem_2(
    *, scale: float = 1.0, entries: int = 5, draws: tuple[str, ...] = ("independent", "all or nothing")
) -> Finding:
    """Theorem 2: a random subset U gives (log(1 + p (e^epsilon - 1)), p delta), p the largest Pr[i in U].

    `scale`: multiplies p. `entries`: length of the data set in the counterexample, where U is everything or
    nothing. `draws`: how U may be drawn: the theorem says "a random subset".
    """
    independent = assume(
        "an entry's own draw is independent of the others' draws, as in Poisson sampling",
        lambda draw: draw == "independent",
        claimed={"draws": tuple(draws)},
    )
    algebra = lemmas.subsampling(
        "amplification by a random subset",
        assumption=assume(
            "an entry's own draw is independent of the others'",
            lambda draw: draw == "independent",
            left_open={"draw of an entry": ("independent", "with the others")},
        ),
        scale=Fraction(scale),
    )
    p, factor, right = Fraction(1, 2), Fraction(3), Fraction(3, 4)
    # Entry 1 gets randomised response; the others answer whether they are blank, 3 times in 4 rightly.
    blank, present = (1 - right) ** (entries - 1), right ** (entries - 1)
    under_x = (1 - p) * blank / 2 + p * present * right
    under_other = (1 - p) * blank / 2 + p * present * (1 - right)
    claimed = 1 + Fraction(scale) * p * (factor - 1)
    ratio = under_x / under_other
    wrong = counterexample_if(
        "all or nothing" in draws and ratio > claimed,
        f"with {entries} entries, U all or nothing, p = 1/2 and e^epsilon = 3, one answer's probability "
        f"changes by {float(ratio):.6g}, not by at most {claimed}",
        {"entries": entries, "p": str(p), "e_epsilon": str(factor), "ratio": str(ratio)},
        {"claimed_ratio": str(claimed)},
    )
    holds = algebra.verdict is VerdictKind.HOLDS_UNDER
    return settle(
        *algebra.evidence,
        "the base mechanism answers each entry on its own by randomised response of e^epsilon = 3 (a blank "
        "first entry by a fair coin), so it is (ln 3, 0)-DP for any change of one entry; exact rationals",
        "where U draws entries independently, the batch without entry i has the same law whether i is drawn, "
        "and blanking i is a change of one entry: that is the closeness which the proof assumes",
        proof="the amplification holds" if holds else None,
        counterexample=wrong,
        assumption=independent,
    )


@register("claim_check", "shuffled_eq_35")
@setting(ALGEBRA)
def dependent_terms(*, dependent: bool = True) -> Finding:
    """Eqs. 34 to 36: the lognormal fitted to the sum of e^(<Y, g^(j)> / sigma^2) has the sum's variance.

    In two dimensions, with Eq. 44's g and c = c' = sigma = 1, the two exponents are Z and -Z, Z ~ N(1, 1).

    `dependent`: false takes the terms as independent, as Lemma 1 does.
    """
    grown, ones, squares = real("e_s2", low=1), real("S", low=0), real("Q", low=0)
    fit = prove_that(
        "e^(s^2) S^2 (e^(s_Y^2) - 1) is the sum of the terms' own variances e^(s^2) (e^(s^2) - 1) Q",
        (grown * ones**2 * ((grown - 1) * squares / ones**2)).equals(grown * (grown - 1) * squares),
        ones > 0,
    )
    mean, spread = ball(1), ball(1)
    claimed = spread.exp() * (spread.exp() - 1) * ((2 * mean).exp() + (-2 * mean).exp())
    truth = claimed + (2 * (1 - spread.exp()) if dependent else 0)
    wrong = counterexample_if(
        (truth < claimed or truth > claimed),
        f"the sum's variance is {show(truth)}, but Eq. 35 fits {show(claimed)}",
        {"dimension": 2, "variance": show(truth), "fitted_variance": show(claimed)},
    )
    return settle(
        *fit.evidence,
        "S and Q are the sums of e^mu_j and e^(2 mu_j), s^2 one term's variance; the mean S e^(s^2 / 2) is "
        "Eq. 36's by construction",
        "in Eq. 34 all exponents are functions of one Y; "
        "cov(e^Z, e^-Z) = 1 - e for Z ~ N(1, 1), closed form in balls",
        proof="Eqs. 35 and 36 have the sum's mean and variance" if is_proven(fit) else None,
        counterexample=wrong,
        assumption=assume(
            "the terms of the sum are independent, as Lemma 1 has them and Eq. 34 has not",
            lambda depend: not depend,
            claimed={"dependent": dependent},
        ),
    )


@register("claim_check", "shuffled_theorem_5")
@setting(RELEASE)
def theorem_5(*, scale: float = 1.0) -> Finding:
    """Theorem 5: at the same epsilon, shuffling does not raise the Gaussian mechanism's delta."""
    weights = [real(f"w{i}", low=0) for i in range(3)]
    gaps = [real(f"d{i}") for i in range(3)]
    mixed = weights[0] * gaps[0] + weights[1] * gaps[1] + weights[2] * gaps[2]
    apart = [weight * maximum(0, gap) for weight, gap in zip(weights, gaps, strict=True)]
    return lemmas.together(
        "shuffling does not raise delta",
        [
            prove_that(
                "the positive part of a mean is at most the mean of the positive parts",
                maximum(0, mixed) <= Fraction(scale) * (apart[0] + apart[1] + apart[2]),
            )
        ],
        premises=(
            f"{lemmas.LINEAR}, which carries three permutations to any number",
            "the same permutation of both queries leaves their distance as it is",
        ),
        necessary=True,
    )


@register("claim_check", "shuffled_lemma_3")
@setting(ALGEBRA)
def lemma_3(*, scale: float = 1.0) -> Finding:
    """Lemma 3: (sum of a_i) (sum of b_i) >= sum of a_i b_i for positive numbers."""
    a, b, first, second, products = (real(name, low=0) for name in ("a", "b", "A", "B", "S"))
    factor = Fraction(scale)
    return lemmas.together(
        "the product of two sums of positive numbers is at least the sum of the products",
        [
            prove_that("one number each", a * b >= factor * a * b, a > 0, b > 0),
            prove_that(
                "one more number each",
                (first + a) * (second + b) >= products + factor * a * b,
                a > 0,
                b > 0,
                first * second >= products,
            ),
        ],
        premises=("induction over the number of terms",),
    )


@register("claim_check", "shuffled_eq_33")
@setting(RELEASE)
def lower_bound(*, scale: float = 1.0) -> Finding:
    """Eqs. 30 to 33: integrating over the outputs that meet Eq. 30 gives a lower bound on delta.

    A, B and S are the sums of e^<y, f>, e^<y, g> and of their products, kappa the factor of Eq. 29.

    `scale`: multiplies the outputs' limit in Eq. 30; above 1 more of them are integrated over.
    """
    first, second, products = (real(name, low=0) for name in ("A", "B", "S"))
    kappa, factor = real("kappa", low=0), real("e_eps", low=1)
    inside = prove_that(
        "an output that meets Eq. 30 lies in O*",
        first >= factor * kappa * products,
        kappa > 0,
        products <= first * second,
        second * factor * kappa <= Fraction(scale),
    )
    finding = lemmas.together(
        "Eq. 33 is a lower bound on delta",
        [inside, lemma_3()],
        premises=("the integrand is not negative on O*, so a part of O* gives no more than O*",),
    )
    return with_evidence(
        finding,
        "a lower bound on delta that stays below a target shows no privacy; "
        "Theorem 6 asks for no more than that",
    )


@register("claim_check", "shuffled_permutations")
@setting(ALGEBRA)
def fewest_permutations(*, permuted: str = "hidden units") -> Finding:
    """Section IV-C: with unequal entries there are at least k = d arrangements of a vector of d entries.

    `permuted`: `"hidden units"`, Theorem 3's permutations (whole rows of a layer's weights), or `"entries"`,
    any.
    """
    drawn, length = real("m", low=1), real("d", low=2)
    binomial = prove_that(
        "C(d, m) / C(d, m - 1) = (d - m + 1) / m >= 1 for m <= d / 2",
        (length - drawn + 1) / drawn >= 1,
        2 * drawn <= length,
    )
    proof = lemmas.together(
        "at least d arrangements of d entries",
        [binomial],
        premises=(
            "an entry that occurs m times, 0 < m < d, has C(d, m) places, and C(d, m) = C(d, d - m)",
            "C(d, 1) = d",
        ),
    )
    weights = ((1, 2, 3), (4, 5, 6))
    arrangements = {tuple(weights[row] for row in order) for order in permutations(range(2))}
    entries = sum(len(row) for row in weights)
    wrong = counterexample_if(
        permuted != "entries" and len(arrangements) < entries,
        f"a layer of 2 hidden units and 3 inputs has {entries} weights, all different, but only "
        f"{len(arrangements)} arrangements that leave the network's function as it is (Theorem 3)",
        {"weights": entries, "arrangements": len(arrangements)},
    )
    return settle(
        *proof.evidence,
        "Eq. 13 permutes the rows of W_t, whole, with the columns of W_t+1; enumerated",
        "so d in Theorem 6 is not the number of weights, as the experiments take it",
        proof=proof.summary if is_proven(proof) else None,
        counterexample=wrong,
        assumption=assume(
            "every permutation of the d entries may be drawn",
            lambda which: which == "entries",
            claimed={"permuted": permuted},
        ),
    )


@register("claim_check", "shuffled_noise_first")
@setting(RELEASE)
def noise_first(*, other_deviation: str = "1") -> Finding:
    """Sections IV-A and V-A: P(y + z) has the law of P(y) + z, for a permutation drawn apart from z.

    `other_deviation`: of one coordinate's noise, the others having 1.
    """
    first, second = real("z1"), real("z2")
    factor = Fraction(other_deviation) ** 2
    return lemmas.together(
        "noise before or after shuffling",
        [
            prove_that(
                "swapping two coordinates leaves the noise's exponent as it is",
                (first**2 + second**2 / factor).equals(second**2 + first**2 / factor),
            )
        ],
        premises=("P(y + z) = P(y) + P(z)", "swaps generate all permutations"),
        necessary=True,
    )


@register("claim_check", "shuffled_eq_45")
@setting(
    "any (epsilon, delta)-DP mechanism and any test of two neighbours; true error rates, nothing is sampled"
)
def audited_epsilon(*, with_delta: bool = True) -> Finding:
    """Eq. 45: ln((1 - alpha - delta) / beta) and its mirror are at most epsilon, for true error rates.

    `with_delta`: false leaves delta out of the numerators.
    """
    alpha, beta = real("alpha", low=0, high=1), real("beta", low=0, high=1)
    delta, factor = real("delta", low=0, high=1), real("e_eps", low=1)
    kept = delta if with_delta else delta * 0
    private = (1 - beta <= factor * alpha + delta, 1 - alpha <= factor * beta + delta)
    finding = lemmas.together(
        "the audited epsilon is at most the true one",
        [
            prove_that(
                "(1 - alpha - delta) / beta <= e^epsilon",
                (1 - alpha - kept) / beta <= factor,
                beta > 0,
                *private,
            ),
            prove_that(
                "(1 - beta - delta) / alpha <= e^epsilon",
                (1 - beta - kept) / alpha <= factor,
                alpha > 0,
                *private,
            ),
        ],
        premises=("any test of two neighbours obeys (epsilon, delta)-DP in both directions",),
        necessary=True,
    )
    return with_evidence(
        finding, "Table VI puts measured rates of 10,000 steps in their place, without a confidence bound"
    )

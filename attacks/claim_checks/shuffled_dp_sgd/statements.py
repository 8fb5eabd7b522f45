"""Shuffled DPSGD: Theorem 6, Lemma 2 and what they are used for, in closed form; Fig. 1.

Shuffling the coordinates of a noisy vector leaves their sum as it is. So two queries whose difference g of
norm c makes the angle theta with (1, ..., 1) are told apart by the sum at least as N(0, sigma^2) and
N(c cos(theta), sigma^2) are, in any dimension. Lemma 2's proof leaves out differences within 45 degrees of
(1, ..., 1), and Theorem 6's queries whose entries are all equal, as all but impossible. So theta is 60
degrees here, f(x) = -g / 2 and f(x') = g / 2, and all entries differ. Here c = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    ball,
    counterexample_if,
    gaussian_delta,
    half_unit,
    in_balls,
    is_above,
    setting,
    settle,
    show,
    success_under_dp,
    tail,
)
from workbench.core import registry
from workbench.core.errors import InconclusiveError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.interfaces.findings import Finding

VIT_PARAMETERS = 85_800_000
"""Trainable weights of the paper's ViT (Table I)."""

COSINE = Fraction(1, 2)
"""Of the angle between the queries' difference and (1, ..., 1)."""

RELEASE = (
    "two adjacent queries, both of norm at most c' and at most c apart; the adversary knows both and sees "
    "one shuffled noisy vector; closed forms in balls of 192 bits, nothing is sampled"
)


def normal_cdf(value: Any) -> Any:
    """The standard normal distribution function Phi."""
    return tail(-value)


def eq_25(epsilon: Any, sigma: Any, dimension: int, batch_clip: Any, *, main_text: bool) -> Any:
    """Left side of Eq. 25, terms of Eq. 26 (`main_text`) or of Eq. 83, for c = 1 and c' = batch_clip."""
    square = 1 / (sigma * sigma)
    others = dimension - 1
    near = others * (-(ball(dimension) / others) * batch_clip * square).exp()
    near_twice = others * (-(ball(dimension) / others) * 2 * batch_clip * square).exp()
    far = others * (-(ball(dimension) / others) * (1 + batch_clip) * square).exp()
    far_twice = others * (-(ball(dimension) / others) * 2 * (1 + batch_clip) * square).exp()
    zeta_1 = -(1 + near).log()
    zeta_2 = (zeta_1 if main_text else -(1 + far).log()) - square
    first = _spread(near, near_twice, square)
    second = _spread(far, far_twice, square)
    return _difference(epsilon, (zeta_1, first), (zeta_2, second))


def _spread(ones: Any, squares: Any, square: Any) -> Any:
    """sigma_Z of Eq. 26: of the sum of lognormals that 1 + ones and 1 + squares describe."""
    return (((1 + squares) / (1 + ones) ** 2 * (square.exp() - 1)) + 1).log().sqrt()


def _difference(epsilon: Any, first: tuple[Any, Any], second: tuple[Any, Any]) -> Any:
    """h of Eq. 42 from (zeta, sigma_Z) twice."""
    (zeta_1, spread_1), (zeta_2, spread_2) = first, second
    return normal_cdf(spread_1 / 2 + (zeta_1 - epsilon) / spread_1) - epsilon.exp() * normal_cdf(
        spread_2 / 2 + (zeta_2 - epsilon) / spread_2
    )


def claimed_delta(epsilon: Any, sigma: Any, dimension: int, batch_clip: Any) -> Any:
    """The larger of the two printed readings of Eq. 25, and at least 0."""
    both = [eq_25(epsilon, sigma, dimension, batch_clip, main_text=main_text) for main_text in (True, False)]
    return max([*both, ball(0)], key=float)


@register("claim_check", "shuffled_theorem_6")
@setting(RELEASE)
def theorem_6(
    *,
    epsilon: str = "0.1",
    noise_multiplier: str = "0.5",
    dimension: int = VIT_PARAMETERS,
    batch_clip: str = "1",
) -> Finding:
    """Theorem 6: the shuffled Gaussian is (epsilon, delta)-DP wherever Eq. 25 holds."""
    budget, sigma = ball(epsilon), ball(noise_multiplier)
    claimed = claimed_delta(budget, sigma, dimension, ball(batch_clip))
    truth = gaussian_delta(ball(COSINE) / sigma, budget)
    wrong = counterexample_if(
        truth > claimed,
        f"d = {dimension}, c = 1, c' = {batch_clip}, sigma {noise_multiplier}: Eq. 25 gives delta "
        f"{show(claimed)} at epsilon {epsilon}, but two queries that differ at 60 degrees from (1, ..., 1) "
        f"have delta at least {show(truth)}",
        {"dimension": dimension, "noise_multiplier": noise_multiplier, "batch_clip_over_clip": batch_clip},
        {"epsilon": epsilon, "claimed_delta": show(claimed), "delta_at_least": show(truth)},
        {"queries": "-+ g / 2, g of norm c at 60 degrees from (1, ..., 1), all entries different"},
    )
    return settle(
        "the sum of all entries, over sqrt(d), is N(-1/4, sigma^2) "
        "or N(1/4, sigma^2), shuffled or not; exact",
        "the norms are 1/2, within c', and the distance is c; no query has equal entries, and the angle is "
        "beyond the 45 degrees that Lemma 2's proof leaves out",
        "the larger of Eq. 26 and Eq. 83 is taken",
        "the derivation bounds an approximation of a lower bound on delta (Eqs. 31 to 42), not delta",
        counterexample=wrong,
    )


@register("claim_check", "shuffled_theorem_6_own_pair")
@setting(RELEASE)
def own_worst_case(*, scale: float = 1.0) -> Finding:
    """Theorem 6 for queries along the pair that its proof calls the worst (Eqs. 43 and 44), d = 2.

    The printed pair has |f(x')| = c' + c; here the longer query has norm c' = 2 and the shorter c' - c = 1,
    so that both are within c'.
    """
    from workbench.accounting.certified import delta_bounds
    from workbench.accounting.events import GaussianMixturePair
    from workbench.interfaces import Adjacency

    epsilon, half = "0.1", (0.5, 0.5)
    pair = GaussianMixturePair(
        p_means=(-2.0, 2.0), p_weights=half, q_means=(-1.0, 1.0), q_weights=half, standard_deviation=3.0
    )
    bounds = delta_bounds(pair, float(epsilon), adjacency=Adjacency.ADD_REMOVE)
    claimed = scale * float(claimed_delta(ball(epsilon), ball(3), 2, ball(2)))
    wrong = counterexample_if(
        is_above(bounds, claimed),
        f"d = 2, c = 1, c' = 2, sigma = 3: Eq. 25 gives delta {claimed:.6g} at epsilon {epsilon}, but "
        f"queries of norms 2 and 1 along (1, -1) have at least {bounds.lower:.6g}",
        {"dimension": 2, "noise_multiplier": 3, "batch_clip_over_clip": 2, "epsilon": epsilon},
        {"claimed_delta": claimed, "delta_at_least": bounds.lower},
    )
    return settle(
        "along (1, -1) / sqrt(2) the outputs are mixtures of "
        "N(-1, 9), N(1, 9) and of N(-2, 9), N(2, 9); across it they agree",
        f"delta({epsilon}) in {bounds.describe()}",
        "the larger of Eq. 26 and Eq. 83 is taken; the difference is orthogonal to (1, 1), and k = d",
        counterexample=wrong,
    )


@register("claim_check", "shuffled_lemma_2")
@setting("the formula h alone, no mechanism; closed forms in balls of 192 bits, nothing is sampled")
def lemma_2(*, scale: float = 1.0) -> Finding:
    """Lemma 2: h of Eq. 42 is largest at k = d for the f and g of Eqs. 43 and 44."""
    epsilon, sigma, clip = ball("0.5"), ball("1.5"), ball("0.5")
    f, g = (Fraction(35, 1000), Fraction(-48, 100)), (Fraction(-4, 100), Fraction(975, 1000))
    claimed = ball(scale) * eq_25(epsilon, sigma, 2, clip, main_text=False)
    value = general_h(epsilon, sigma, f, g)
    moved = tuple(a + b for a, b in zip(f, g, strict=True))
    inside = _dot(f, f) <= Fraction(1, 4) and _dot(g, g) <= 1 and _dot(moved, moved) <= Fraction(1, 4)
    # cos^2 of the angle between g and (1, 1), which is beyond 45 degrees.
    apart = Fraction(sum(g)) ** 2 / (2 * _dot(g, g)) < Fraction(1, 2)
    wrong = counterexample_if(
        inside and apart and value > claimed,
        "f = (0.035, -0.48), g = (-0.04, 0.975), within the norms c' = 0.5 and c = 1, give h = "
        f"{show(value)} at epsilon 0.5, sigma 1.5; the lemma's pair gives {show(claimed)}",
        {"f": [str(entry) for entry in f], "g": [str(entry) for entry in g], "epsilon": "0.5"},
        {"noise": "1.5", "h": show(value), "claimed_largest": show(claimed)},
    )
    return settle(
        "both values of h by Eqs. 35 to 42 with both permutations of two entries (k = d = 2)",
        "f + g is within c' too, and g is more than 45 degrees from (1, 1), "
        "so nothing that the proof leaves out is used",
        "the proof says that h depends on sigma_Z little, and passes over it",
        counterexample=wrong,
    )


def general_h(epsilon: Any, sigma: Any, f: tuple[Fraction, ...], g: tuple[Fraction, ...]) -> Any:
    """h of Eq. 42 for two-entry f and g, k = 2."""
    square = 1 / (sigma * sigma)
    turned = (g[1], g[0])
    moved = tuple(a + b for a, b in zip(f, g, strict=True))
    length = ball(_dot(g, g)) * square
    terms = []
    for query in (f, moved):
        means = [ball(_dot(query, other)) * square for other in (g, turned)]
        ones = sum((mean.exp() for mean in means), ball(0))
        squares = sum(((2 * mean).exp() for mean in means), ball(0))
        spread = ((squares / ones**2 * (length.exp() - 1)) + 1).log().sqrt()
        terms.append((-ones.log() + ball(_dot(f, g)) * square, spread))
    return _difference(epsilon, terms[0], terms[1])


def _dot(left: tuple[Fraction, ...], right: tuple[Fraction, ...]) -> Fraction:
    return sum((a * b for a, b in zip(left, right, strict=True)), Fraction(0))


@register("claim_check", "shuffled_noise_order")
@setting(RELEASE)
def noise_order(*, shrinks: bool = True, constants: tuple[int, ...] = (1, 10, 100, 1000)) -> Finding:
    """Section IV-C: the noise variance that a budget needs is about O(1 / log d).

    `shrinks`: false claims the constant variance itself. `constants`: K in sigma^2 = K / log d; at log d = K
    the claim gives sigma = 1 whatever K is.
    """
    epsilon, delta = ball(1), ball("0.00001")
    broken = []
    for constant in constants:
        variance = ball(1) if shrinks else ball(constant)
        if gaussian_delta(ball(COSINE) / variance.sqrt(), epsilon) > delta:
            broken.append(constant)
    truth = gaussian_delta(ball(COSINE), epsilon)
    wrong = counterexample_if(
        broken == list(constants),
        "for every K tried, sigma^2 = K / log d is at most 1 from log d = K on, where delta(1) is at least "
        f"{show(truth)} in any dimension, not 1e-5",
        {"constants": list(constants), "epsilon": 1, "delta_at_least": show(truth)},
    )
    return settle(
        "queries that differ at 60 degrees from (1, ..., 1) have at least the delta of a Gaussian of half "
        "the shift in every dimension, so the noise that they need does not fall with d",
        "the sigma that solves Eq. 25 does fall like that; it is not enough (Theorem 6)",
        counterexample=wrong,
    )


@register("claim_check", "shuffled_algorithm_1")
@setting(
    "one record added to or removed from one batch; the adversary knows W_t (public pre-trained weights, or "
    "the output before in Theorem 1's composition) and sees W_t+1; closed forms in balls, nothing is sampled"
)
def shuffled_weights(*, gap: str = "1000", units: int = 3072, batch_clip: str = "1") -> Finding:
    """Algorithm 1, line 14: permuting W_t - eta * g hides the noisy gradient as Theorem 6's shuffling does.

    Theorem 3's permutations move a hidden unit's weights together, so the adversary gives every permuted unit
    the nearest unit of W_t and undoes the permutation. Lengths are in units of eta * c / |B|.

    `gap`: least distance between two hidden units' incoming weights in W_t. `units`: hidden units of the
    layer. `batch_clip`: c' / c.
    """
    epsilon, sigma = ball(1), ball(1)
    # A unit lands nearer to another only if its step, at most c' plus noise, covers half the way there.
    mistaken = ball(units) * (units - 1) * tail((ball(gap) / 2 - ball(batch_clip)) / sigma)
    truth = gaussian_delta(1 / sigma, epsilon) - (1 + epsilon.exp()) * mistaken
    claimed = claimed_delta(epsilon, sigma, VIT_PARAMETERS, ball(batch_clip))
    wrong = counterexample_if(
        truth > claimed,
        f"{units} hidden units at least {gap} steps apart: matching them with the weights before undoes the "
        f"permutation but with probability {show(mistaken)}, so delta(1) at sigma 1 is at least "
        f"{show(truth)}; Theorem 6 gives {show(claimed)}",
        {"hidden_units": units, "gap_in_steps": gap, "dimension": VIT_PARAMETERS, "epsilon": 1},
        {"noise_multiplier": 1, "batch_clip_over_clip": batch_clip, "delta_at_least": show(truth)},
        {"claimed_delta": show(claimed)},
    )
    return settle(
        "holds for gradients in any direction, the paper's worst one (Eq. 44) included",
        "eta c / |B| is 2e-6 for the audited ViT (Table I, Section VI-F), so the gap is 0.002; two units of "
        "768 incoming weights drawn from N(0, 0.02^2) are about 0.78 apart",
        "Theorem 6 asks for |f(x)| <= c'; what Algorithm 1 permutes is W_t less the step, whose norm is not "
        "clipped, and as c' grows Theorem 6 itself tends to the plain Gaussian",
        counterexample=wrong,
    )


@register("claim_check", "shuffled_accounting")
@setting(
    "one record, of the same clipped gradient in every step, added to or removed from Poisson-sampled "
    "batches; the adversary sees every shuffled noisy gradient; "
    "delta 5e-6; certified bounds, nothing is sampled"
)
def run(*, noise_multiplier: str = "4", batch_clip: str = "100") -> Finding:
    """Section V-B: Theorem 6 per step with Theorems 1 and 2 makes a training (epsilon, delta)-DP.

    At the audited training of Section VI-F: ViT, batches of 1000 from 50,000, 10,000 steps, epsilon 0.5,
    delta 5e-6. Per step, (0, delta_s) with half of delta shared out meets any epsilon.
    """
    from workbench.accounting.certified import epsilon_bounds
    from workbench.accounting.events import gaussian_run

    steps, q, target = 10_000, Fraction(1, 50), 0.5
    delta, sigma = ball("0.000005"), ball(noise_multiplier)
    per_step = delta / 2 / (steps * ball(q))
    claimed = claimed_delta(ball(0), sigma, VIT_PARAMETERS, ball(batch_clip))
    sums = float(Fraction(noise_multiplier) / COSINE)
    certified = epsilon_bounds(
        gaussian_run(noise_multiplier=sums, sampling_probability=float(q), steps=steps), 5e-6
    )
    wrong = counterexample_if(
        claimed <= per_step and is_above(certified, target),
        f"sigma {noise_multiplier} at c' = {batch_clip} c meets Eq. 25 at (0, {show(per_step)}) per step, so "
        "the training would be (0.5, 5e-6)-DP; the sums of the released entries "
        f"alone have epsilon at least {certified.lower:.5g}",
        {"noise_multiplier": noise_multiplier, "batch_clip_over_clip": batch_clip},
        {"sampling_probability": str(q), "steps": steps, "dimension": VIT_PARAMETERS},
        {"per_step_delta_claimed": show(claimed), "epsilon_at_least": certified.lower},
    )
    small = claimed_delta(ball(0), ball("0.5"), VIT_PARAMETERS, ball(1))
    return settle(
        f"the sums, of noise multiplier {sums:g} for a gradient at 60 degrees from (1, ..., 1): epsilon in "
        f"{certified.describe()}; the others' gradients are zero, so c' does not bite",
        f"Eq. 25 gives delta {show(claimed)} at epsilon 0",
        f"c' is not given for the experiments; at c' = c even sigma 0.5 has {show(small)} by Eq. 25",
        counterexample=wrong,
    )


@register("claim_check", "shuffled_same_epsilon")
@in_balls
def shuffled_same_epsilon(
    *, epsilon: float = 0.1, accountant: str = "shuffled_dp_sgd", delta: float = 1e-5
) -> Finding:
    """Shuffled DPSGD, section VI-E: at the same epsilon it protects as its unshuffled baselines do.

    `epsilon`: one of the compared budgets. `accountant`: registered accountant whose noise is tried, for one
    release of the gradient. `delta`: of that release.
    """
    noise = _noise_for(accountant, epsilon, delta)
    # Records' gradients at 60 degrees from (1, ..., 1), beyond the 45 that the paper's proof leaves out.
    ratio = ball(Fraction(1, 2)) / ball(noise)
    success = 1 - tail(ratio / 2)
    allowed = success_under_dp(epsilon, delta)
    return settle(
        "setting: one record added or removed; one release of the shuffled noisy gradient at the ViT's d = "
        "85.8 million, guessed with prior 1/2; c' = c; closed forms in balls",
        "the attack: sum the released coordinates, which shuffling keeps. A record's gradient of norm c at "
        "60 degrees from (1, ..., 1), all entries unequal, moves the sum over sqrt(d) by c / 2",
        f"noise multiplier {noise!r} of accountant {accountant!r}: "
        f"success {show(success)}, DP's bound {show(allowed)}",
        counterexample=counterexample_if(
            success > allowed,
            f"Theorem 6 calls noise {noise:.4g} (in clip norms) ({epsilon:g}, {delta:g})-private at the "
            f"paper's ViT; against it a record is guessed with probability {show(success, 4)}, where that "
            f"budget allows {show(allowed, 4)}.",
            {"epsilon": epsilon, "delta": delta, "noise_multiplier": noise}
            | {"success": show(success), "dp_success": show(allowed)},
        ),
    )


def _noise_for(name: str, epsilon: float, delta: float) -> float:
    """The smallest noise, to 1e-6, that the accountant gives this epsilon for one Gaussian release."""
    from workbench.accounting.events import Gaussian

    accountant = registry.create("accountant", name)

    def enough(noise: float) -> bool:
        event = Gaussian(noise_multiplier=noise)
        return bool(accountant.epsilon(event, delta=delta, adjacency=Adjacency.ADD_REMOVE) <= epsilon)

    low, high = 1e-3, 1e3
    if enough(low) or not enough(high):
        raise InconclusiveError(
            f"{name} has no noise multiplier in [{low:g}, {high:g}] at epsilon {epsilon:g}"
        )
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


COARSEST = 1
"""Step up to which sums are compared with integrals, in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """A sum of squared differences over a grid, times the square of its step: bounds over all fine grids.

    Attributes:
        integral: What it tends to.
        lower, upper: For every grid of a step in (0, `COARSEST`].
    """

    integral: Any
    lower: Any
    upper: Any


def grid_sums(place: Any, half_width: Any, *, shuffled: bool) -> Sums:
    """Bounds on the summed squared difference of the two laws at standard deviation 1, for any grid step.

    Let p and q be the round normals at (a, 0) and (-a, 0), P and Q their even mixtures with those of
    exchanged coordinates. The square of a density's difference is a sum of normal densities of half the
    variance, so by Poisson's summation formula its sum over a regular grid of step h is its integral over
    h^2, up to factors exp(-pi^2 |n|^2 / h^2), n in Z^2 and not 0: wherever the grid lies, for every step up
    to 1. What lies outside the square is bounded by the normal tail. So on all such grids both Frobenius
    norms are the L2 distances over h, and their ratio is that of the L2 distances.

    Args:
        place: a, the distance of either point from the origin.
        half_width: Of the square that the grid covers; above a.
        shuffled: Of the mixtures, instead of the normals.
    """
    near, far = (-place * place / 2).exp(), (-place * place).exp()
    unit = 1 / (4 * _pi())
    same, cross = (1 + near, far + near) if shuffled else (ball(2), 2 * far)
    integral, absolute = unit * (same - cross), unit * (same + cross)
    wave = (-(_pi() ** 2) / COARSEST**2).exp()
    line = 2 * (wave + wave**4 / (1 - wave))
    alias = absolute * ((1 + line) ** 2 - 1)
    margin = half_width - place
    # Beyond one side: the first point, and an integral from there on; along the other axis, as at the centre.
    beyond = (-margin * margin).exp() * (1 + 1 / (2 * margin))
    outside = 2 * 4 * beyond * (1 + _pi().sqrt()) / (4 * _pi() ** 2)
    return Sums(integral=integral, lower=integral - alias - outside, upper=integral + alias)


@register("claim_check", "shuffled_figure_1")
@setting(
    "densities on any regular grid on the printed square, wherever it lies; balls of 192 bits, no samples"
)
def figure_1(
    *, before: str = "18.53", after: str = "13.96", coordinate: str = "2", half_width: str = "10"
) -> Finding:
    """Fig. 1: some regular grid has both printed distances.

    `before`, `after`: the printed distances, as decimals, to the last digit. `coordinate`: a, in standard
    deviations. `half_width`: of the printed square.
    """
    place, width = ball(coordinate), ball(half_width)
    plain, mixed = (grid_sums(place, width, shuffled=shuffled) for shuffled in (False, True))
    first, second = _printed(before), _printed(after)
    least, most = (plain.lower / mixed.upper).sqrt(), (plain.upper / mixed.lower).sqrt()
    ratio = (plain.integral / mixed.integral).sqrt()
    expected = ball(before) / ratio
    coarse = (2 * width / COARSEST + 1) / (2 * _pi())
    wrong, proof = None, None
    if coarse < first[0] and (first[1] / second[0] < least or first[0] / second[1] > most):
        wrong = Counterexample(
            sentence=(
                f"{before} and {after} have the ratio {show(ball(before) / ball(after), 4)}, but on every "
                f"regular grid on which the first is about {before} shuffling divides the norm by "
                f"{show(ratio, 5)} (within {show((most - least) / 2, 2)}): to {show(expected, 4)}"
            ),
            values={
                "before": before,
                "after": after,
                "ratio_at_least": show(least),
                "ratio_at_most": show(most),
                "after_of_that_before": show(expected),
            },
        )
    step = plain.integral.sqrt() / ball(before)
    if step <= COARSEST and all(
        limits[0] <= sums.lower.sqrt() / step and sums.upper.sqrt() / step <= limits[1]
        for sums, limits in ((plain, first), (mixed, second))
    ):
        proof = f"a grid of step {show(step)} has the norms {before} and {after}"
    return settle(
        f"the L2 distances are {show(plain.integral.sqrt())} and {show(mixed.integral.sqrt())}, so shuffling "
        "does bring these two laws closer",
        f"a grid of a step above {COARSEST} has norms below {show(coarse, 3)}",
        "over all finer grids, aliasing and the area outside change the ratio by "
        f"{show((most - least) / 2, 2)} at most",
        "a norm over histograms of samples, whose noise adds to both, is another quantity; so is any epsilon",
        proof=proof,
        counterexample=wrong,
    )


def _printed(text: str) -> tuple[Any, Any]:
    """What a decimal that is rounded to its last digit may stand for."""
    return ball(text) - ball(half_unit(text)), ball(text) + ball(half_unit(text))


def _pi() -> Any:
    from flint import arb

    return arb.pi()

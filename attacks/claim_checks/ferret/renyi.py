"""FERRET, appendix B: Rényi, moments and (epsilon, delta) accounting, and the dithered bound of Eq. 12.

A fired group's two neighbours release +C u or -C u. Along u, in units of the dither's standard deviation, the
dithered pair is P = (1-p) N(0,1) + p N(c,1) against Q = (1-p) N(0,1) + p N(-c,1), with c = C / sigma.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from workbench.attacks.accountant_checks.proof import exp, log, real
from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    ball,
    counterexample_if,
    from_statement,
    in_balls,
    is_proven,
    prove_that,
    setting,
    settle,
    show,
    tail,
)
from workbench.core.registry import register
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding, assume

ONE_RELEASE = (
    "one release of one group, given the batch, which holds the record that is added, removed or replaced; "
    "its gradient decides the group's sign; the adversary sees the release and its direction"
)

NOT_PARALLEL = assume(
    "the neighbours' gradients are not positive multiples of each other",
    lambda angle: angle > 0,
    left_open={"angle of the neighbours' gradients": (0.0, 1.0)},
)

REACH = 20
"""The integrals run over [-REACH, REACH]; what lies outside is bounded."""


def _integral(fire: Fraction, shift: Fraction, integrand: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """The integral over [-REACH, REACH], a ball, over sqrt(2 pi).

    `integrand` is of x, c, and the densities of P and Q over the noise's.
    """
    from flint import acb

    p, c = ball(fire), ball(shift)
    half = c * c / 2

    def at(x: Any, _: Any) -> Any:
        up = (1 - p) + p * (c * x - half).exp()
        down = (1 - p) + p * (-c * x - half).exp()
        return integrand(x, c, up, down)

    return acb.integral(at, -REACH, REACH).real / (2 * ball(1).pi()).sqrt()


def _moment(order: int, fire: Fraction, shift: Fraction) -> Any:
    """E_Q[(P/Q)^order] of the dithered pair over [-REACH, REACH], a ball."""
    return _integral(fire, shift, lambda x, _, up, down: (-x * x / 2).exp() * up**order / down ** (order - 1))


def _moment_tail(order: int, fire: Fraction, shift: Fraction) -> Any:
    """An upper bound on what lies outside: P <= e^(c x) there, Q >= (1-p) times the noise's density."""
    c = ball(shift) * order
    right = (c * c / 2).exp() * tail(ball(REACH) - c)
    return (right + tail(ball(REACH))) * (1 - ball(fire)) ** (1 - order)


def renyi_bounds(order: int, fire: Fraction, shift: Fraction) -> tuple[Any, Any]:
    """Certified lower and upper bounds on D_order(P || Q) of the dithered pair, nats."""
    inner, outside = _moment(order, fire, shift), _moment_tail(order, fire, shift)
    return (inner.lower()).log() / (order - 1), (inner + outside).upper().log() / (order - 1)


def _printed(order: int, fire: Fraction, shift: Fraction) -> Any:
    """Eq. 12."""
    grown = (2 * order * (order - 1) * ball(shift) ** 2).exp()
    return ball(fire) ** order / (order - 1) * (grown + 1)


def _cases() -> Iterator[tuple[int, Fraction, Fraction]]:
    for fire in (Fraction(1, 10), Fraction(1, 100), Fraction(1, 1000), Fraction(1, 10**6)):
        for order in (4, 8, 3, 2):
            for shift in (Fraction(1, 4), Fraction(1, 2), Fraction(1)):
                yield order, fire, shift


@register("claim_check", "ferret_eq_12")
@setting(ONE_RELEASE)
def eq_12(*, scale: float = 1.0, form: str = "eq-12") -> Finding:
    """Eq. 12: the dithered release's Rényi divergence is at most p^a/(a-1) (exp(2a(a-1)C^2/sigma^2) + 1).

    `scale`: multiplies the claimed bound. `form`: `"eq-12"`, or `"step-2"` for the line that section 11.6
    derives it from.
    """
    lines: list[str] = []
    wrong = None
    for order, fire, shift in _cases():
        lower, upper = renyi_bounds(order, fire, shift)
        if form == "eq-12":
            claimed = _printed(order, fire, shift)
        else:
            claimed = ball(fire) / (order - 1) * (2 * order * (order - 1) * ball(shift) ** 2).expm1()
        claimed *= ball(scale)
        at = f"order {order}, p = {fire}, sigma = {1 / shift} C"
        if len(lines) < 4:
            lines.append(f"{at}: in [{show(lower)}, {show(upper)}], claimed {show(claimed)} nats")
        if lower > claimed:
            wrong = Counterexample(
                sentence=(
                    f"At {at} the divergence is at least {show(lower)} nats, {show(lower / claimed, 3)} "
                    f"times the claimed {show(claimed)}."
                ),
                values={"order": order, "p": str(fire), "sigma/C": str(1 / shift), "claimed": show(claimed)}
                | {"divergence_lower": show(lower)},
            )
            break
    derived = form == "step-2" and Fraction(scale) >= 1 and _logarithm_below_identity()
    return settle(
        "ball arithmetic: Arb integral over 20 standard deviations, tails bounded; directions u' = -u",
        *lines,
        *([_orthogonal(wrong)] if wrong and form == "eq-12" else []),
        "step 2: the latent switch can only raise the divergence (data processing), and ln(1+x) <= x",
        proof="The line before Eq. 12, p/(a-1) (exp((a-1)R) - 1), bounds the divergence",
        proven=derived and wrong is None,
        counterexample=wrong,
    )


def _orthogonal(opposite: Counterexample) -> str:
    """The same for orthogonal u and u', as independent ones nearly are in high dimension."""
    order, fire = int(str(opposite.values["order"])), Fraction(str(opposite.values["p"]))
    shift = 1 / Fraction(str(opposite.values["sigma/C"]))
    lower, _ = renyi_bounds(order, fire, shift)
    # Seen along u - u', orthogonal updates of norm sqrt(2) C lie at +C and -C.
    claimed = (2 * order * (order - 1) * 2 * ball(shift) ** 2).exp() + 1
    claimed *= ball(fire) ** order / (order - 1)
    return (
        f"orthogonal directions, order {order}, p = {fire}, sigma = {1 / shift} C / sqrt(2): at least "
        f"{show(lower)} (data processing), claimed {show(claimed)} nats"
    )


def _logarithm_below_identity() -> bool:
    x = real("x", low=0)
    finding = prove_that("ln(1+x) <= x", log(1 + x) <= x)
    return is_proven(finding)


@register("claim_check", "ferret_section_11_6_factorisation")
@setting(ONE_RELEASE)
def factorisation(*, relation: str = "=") -> Finding:
    """Section 11.6, step 2: D_a(P||Q) = ln((1-p) + p exp((a-1)R)) / (a-1), "exact"; or `relation` "<="."""
    order, fire, shift = 2, Fraction(1, 10), Fraction(1)
    lower, upper = renyi_bounds(order, fire, shift)
    latent = (ball(1 - fire) + ball(fire) * (2 * order * (order - 1) * ball(shift) ** 2).exp()).log()
    latent /= order - 1
    evidence = (
        f"order 2, p = 1/10, sigma = C: divergence in [{show(lower, 10)}, {show(upper, 10)}], formula "
        f"{show(latent, 10)} nats",
        "the formula is the divergence of the pair with the latent switch shown, "
        "so it is an upper bound (data processing)",
    )
    if relation == "<=":
        return settle(
            *evidence,
            proof="The divergence is at most the latent switch's, by data processing",
            proven=upper <= latent,
        )
    return settle(
        *evidence,
        counterexample=counterexample_if(
            upper < latent,
            f"The divergence is at most {show(upper)} nats where the formula says {show(latent)}.",
            {"order": 2, "p": "1/10", "sigma/C": "1", "divergence_upper": show(upper)},
        ),
    )


@register("claim_check", "ferret_section_11_6_power")
@in_balls
def power(*, reverse: bool = False) -> Finding:
    """Section 11.6, step 2: "the elementary p <= p^a" for p in [0, 1] and a > 1; or reversed, p^a <= p."""
    if reverse:
        # With p = e^-t, p^a = p e^-x for x = (a - 1) t >= 0.
        x = real("x", low=0)
        finding = prove_that("e^-x <= 1 for x = (1 - a) ln p >= 0", exp(-x) <= 1)
        text = "p^a <= p on [0, 1] for a > 1"
    else:
        p = real("p", low=0, high=1)
        finding = prove_that("p <= p^2 on [0, 1]", p <= p * p)
        text = "p <= p^a"
    return settle(
        *finding.evidence,
        proof=text if is_proven(finding) else None,
        counterexample=counterexample_if(
            finding.verdict == VerdictKind.REFUTED,
            f"p <= p^a fails for a = 2 at p = {finding.counterexample.get('p')}; the reverse holds.",
            {"a": 2, **finding.counterexample},
        ),
    )


@register("claim_check", "ferret_section_11_6_shift")
@in_balls
def shift_bound(*, scale: float = 1.0) -> Finding:
    """Section 11.6, step 4: R = a C^2 |u-u'|^2 / (2 sigma^2) is at most 2 a C^2 / sigma^2."""
    order, ratio, distance = real("a", low=1), real("C2_over_sigma2", low=0), real("distance", low=0, high=2)
    finding = prove_that(
        "a r d^2 / 2 <= 2 a r for unit vectors, d = |u-u'| <= 2",
        order * ratio * distance * distance / 2 <= 2 * order * ratio * Fraction(scale),
    )
    return from_statement(
        finding,
        "Rényi divergence of shifted Gaussians: Mironov 2017, Proposition 7",
        proof="The active branch's divergence is at most 2 a C^2 / sigma^2",
    )


def _undithered(fire: Fraction, turn: Fraction) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Released laws of two neighbours whose gradients lie `turn` half-turns apart."""
    alike, differ = fire * (1 - turn), fire * turn
    p = {"silent": 1 - fire, "same sign": alike, "sign of D": differ, "sign of D'": Fraction(0)}
    q = p | {"sign of D": Fraction(0), "sign of D'": differ}
    return p, q


@register("claim_check", "ferret_section_11_2")
@setting(ONE_RELEASE)
def infinite_divergence(*, firing_probability: str = "1/100") -> Finding:
    """Section 11.2: neighbours' releases are disjoint, so every Rényi divergence of order > 1 is infinite."""
    fire = Fraction(firing_probability)
    p, q = _undithered(fire, Fraction(1, 2))
    uncovered = sum((p[key] for key in p if q[key] == 0), Fraction(0))
    shared = sum((min(p[key], q[key]) for key in p), Fraction(0))
    parallel_p, parallel_q = _undithered(fire, Fraction(0))
    return settle(
        f"orthogonal gradients, p = {fire}: "
        f"P has mass {uncovered} where Q has none, so D_a = infinity for a > 1",
        f"the laws share mass {shared}: their supports are not disjoint (silence alone is {1 - fire})",
        "u is drawn alike for both data sets; to compare one draw u with another u' would make a data set "
        "infinitely far from itself",
        f"parallel gradients (g' = 2 g): the two laws are equal: {parallel_p == parallel_q}",
        proof="Every Rényi divergence of order above 1 is infinite (although the supports share silence)",
        proven=uncovered > 0,
        counterexample=counterexample_if(
            parallel_p == parallel_q,
            "Neighbours with gradients g and 2 g release the same law: divergence 0."
            if uncovered > 0
            else "A group that never fires releases the same law: divergence 0.",
            {"g'": "2 g", "divergence_nats": 0, "p": str(fire)},
        ),
        assumption=NOT_PARALLEL,
    )


@register("claim_check", "ferret_section_11_4")
@setting(ONE_RELEASE)
def infinite_loss(*, firing_probability: str = "1/100") -> Finding:
    """Section 11.4: the loss is infinite with positive probability, put at p(1-p); its moments diverge."""
    fire = Fraction(firing_probability)
    p, q = _undithered(fire, Fraction(1))
    alike, also = _undithered(fire, Fraction(0))
    infinite = sum((p[key] for key in p if q[key] == 0), Fraction(0))
    coins = fire * (1 - fire)
    return settle(
        f"opposite gradients, p = {fire}: loss infinite with probability {infinite} (p, where the section "
        f"says p(1-p) = {coins}); gradients at an angle of t half-turns: with probability t p",
        "what tells neighbours apart is a sign; silence has the same probability for both",
        "at p = 1 the formula p(1-p) gives 0, yet every release tells opposite gradients apart",
        proof="The loss is infinite with positive probability, so every exponential moment diverges",
        proven=infinite > 0,
        counterexample=counterexample_if(
            alike == also,
            "With gradients g and 2 g the loss is 0 throughout, although independent masks let one neighbour "
            f"fire while the other is silent with probability p(1-p) = {coins}."
            if fire > 0
            else "A group that never fires has loss 0 throughout.",
            {"g'": "2 g", "p": str(fire), "loss": 0},
        ),
        assumption=NOT_PARALLEL,
    )


@register("claim_check", "ferret_section_11_5")
@setting(ONE_RELEASE)
def infinite_cost(*, firing_probability: str = "1/100", groups: int = 200, steps: int = 1000) -> Finding:
    """Section 11.5: (epsilon, delta)-DP, like Rényi DP, assigns FERRET an infinite cost."""
    fire = Fraction(firing_probability)
    p, q = _undithered(fire, Fraction(1))
    delta = sum((max(p[key] - q[key], Fraction(0)) for key in p), Fraction(0))
    rate = Fraction(1, 200)
    best = ball("0.1") / (ball(groups * steps * rate) * ball(2).log())
    whole = 1 - (1 - ball(rate) * (1 - (1 - best) ** groups)) ** steps
    return settle(
        f"opposite gradients, p = {fire}: hockey-stick divergence {delta} at every epsilon >= 0; for other "
        "gradients it is smaller",
        "so one release is (0, p)-DP, and not (epsilon, delta)-DP for any epsilon where delta < p",
        f"a run at 0.1 nats (G = {groups}, T = {steps}, s = 1/200) is (0, {show(whole)})-DP",
        proof="No epsilon suffices at any smaller delta" if delta > 0 else None,
        counterexample=counterexample_if(
            delta < 1,
            f"One release with p = {fire} is (0, {delta})-DP: "
            "in (epsilon, delta)-DP the cost is finite, and lies in delta.",
            {"p": str(fire), "epsilon": 0, "delta": str(delta)},
        ),
        assumption=assume(
            "delta lies below the probability that a release tells the neighbours apart",
            lambda p, allowed: Fraction(allowed) < Fraction(p),
            claimed={"firing_probability": firing_probability},
            left_open={"delta": ("0", "1/2")},
        ),
    )


@register("claim_check", "ferret_section_11_6_step_3")
@in_balls
def active_branch(*, scale: float = 1.0) -> Finding:
    """Section 11.6, step 3: E_Q1[(P/Q)^a] is at most exp((a-1) R) = E_Q1[(P1/Q1)^a].

    `scale`: multiplies the claimed bound.
    """
    # u' (u - u') = cos - 1 for unit vectors, cos their inner product.
    cosine = real("cos", low=-1, high=1)
    turned = prove_that("u' (u - u') = cos - 1 <= 0", cosine - 1 <= 0)
    lines, wrong = [], None
    for order, fire, shift in ((2, Fraction(1, 2), Fraction(1, 2)), (4, Fraction(1, 10), Fraction(1, 4))):
        lower = _active_moment(order, fire, shift)
        claimed = (2 * order * (order - 1) * ball(shift) ** 2).exp() * ball(scale)
        at = f"order {order}, p = {fire}, sigma = {1 / shift} C, u' = -u"
        lines.append(f"{at}: at least {show(lower)}, claimed {show(claimed)}")
        wrong = wrong or counterexample_if(
            lower > claimed,
            f"At {at} the moment is at least {show(lower)}, more than {show(claimed)}.",
            {"order": order, "p": str(fire), "sigma/C": str(1 / shift), "moment": show(lower)},
        )
    proven = is_proven(turned) and Fraction(scale) >= 1 and wrong is None
    return settle(
        "P/Q = w + (1-w) P1/Q1 with w = (1-p) P0/Q, so (P/Q)^a <= w + (1-w) (P1/Q1)^a (convexity)",
        "E_Q1[w (P1/Q1)^a] = exp((a-1)R) E'[w], E' after Q1 has moved by a C (u - u'), which lowers x u'; w "
        "falls in x u', so E'[w] >= E_Q1[w], and the rest is (1 - exp((a-1)R)) E_Q1[w] <= 0",
        *turned.evidence,
        *lines,
        proof="The moment of the mixtures under the fired branch is at most that of the fired branches",
        proven=proven,
        counterexample=wrong,
    )


def _active_moment(order: int, fire: Fraction, shift: Fraction) -> Any:
    """A lower bound on E_Q1[(P/Q)^order] of the dithered pair: the integral over [-REACH, REACH]."""
    moment = _integral(fire, shift, lambda x, c, up, down: (-((x + c) ** 2) / 2).exp() * (up / down) ** order)
    return moment.lower()


@register("claim_check", "ferret_section_11_6_discussion")
@in_balls
def additive_term(*, dominant: str = "second") -> Finding:
    """Section 11.6, discussion: where p is small, Eq. 12's second term dominates the first.

    `dominant`: `"second"` as printed, or `"first"`.
    """
    exponent = real("exponent", low=0)
    larger = prove_that("e^x > 1 for x = 2 a (a-1) C^2 / sigma^2 > 0", exp(exponent) > 1, exponent > 0)
    first = is_proven(larger)
    return settle(
        *larger.evidence,
        proof="The first term is the second times e^x, x = 2 a (a-1) C^2 / sigma^2 > 0, hence larger",
        proven=first and dominant == "first",
        counterexample=counterexample_if(
            first and dominant == "second",
            "The first term is the second times e^(2 a (a-1) C^2 / sigma^2), above 1 at every p, order and "
            "dither; at order 2 and sigma = 0.001 C it is e^4000000 times the second.",
            {"order": 2, "sigma/C": "0.001", "log_ratio": 4_000_000},
        ),
    )

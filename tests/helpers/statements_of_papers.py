"""Ready statements from the papers, and the formulas that they are about.

Each function gives a `Statement`, a `TransitionSystem` or a `Finding`; no verdict is written down here. Where
a parameter changes a rule, its default is the printed one, and other values serve to see the prover refuse a
broken rule.

- any accountant: `advanced_composition`, `composition_on_randomised_response`;
- FERRET: `ferret_p_star_inverts`, `ferret_p_star_is_a_probability` (Theorem 1), `ferret_power_of_p`,
  `ferret_mixture_step`, `ferret_unit_vectors` (section 11.6);
- PACZero: `paczero_budget` (Eq. 6), `paczero_tolerance_sum` (appendix C), `paczero_zero_information`
  (corollary 6);
- RLDP: `rldp_noise_range`, `rldp_noise_step` (Eqs. 11 to 15), `rldp_ledger_at_current_noise` (Algorithm 1);
- Shuffled DPSGD: `subsampling_amplifies` (Theorem 2), `shuffled_lemma_3`, `shuffled_lower_bound_as_upper`
  (Theorem 6), `shuffled_zeta_gap` (Eq. 65);
- DP-Weights: `dp_weights_composition` (Eqs. 8, 9), `dp_weights_ratio_step`, `dp_weights_epsilon_range`
  (appendix 8.1.2), `dp_weights_two_noise_scales` (Eq. 1 against Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from oracles.finite_mechanisms import prove_finite_mechanism, randomised_response

from workbench.attacks.accountant_checks.proof.statements import State, Statement, TransitionSystem
from workbench.attacks.accountant_checks.proof.terms import (
    And,
    Formula,
    Term,
    TermLike,
    as_term,
    choose,
    clamp,
    exp,
    log,
    maximum,
    minimum,
    number,
    real,
    sqrt,
)
from workbench.core.errors import InputError
from workbench.interfaces.findings import Finding

Composition = Callable[[Term, Term, int], tuple[Term, Term]]
"""From epsilon, delta and the number of runs: the composed epsilon and delta."""


def advanced_composition(epsilon: TermLike, delta: TermLike, count: int) -> tuple[Term, Term]:
    """Dwork and Roth 2014, theorem 3.20, with slack delta: both terms of epsilon, and delta for each run."""
    eps, slack = as_term(epsilon), as_term(delta)
    whole = eps * sqrt(2 * count * log(1 / slack)) + count * eps * (exp(eps) - 1)
    return whole, count * slack + slack


def dp_weights_composition(epsilon: TermLike, delta: TermLike, count: int) -> tuple[Term, Term]:
    """DP-Weights, Eqs. 8 and 9: the first term of advanced composition alone."""
    eps, slack = as_term(epsilon), as_term(delta)
    return eps * sqrt(2 * count * log(1 / slack)), count * slack + slack


def composition_on_randomised_response(
    formula: Composition, *, exp_epsilon: Fraction | int, delta: Fraction | str, count: int
) -> Finding:
    """Whether a composition formula covers `count` runs of randomised response, which is (epsilon, 0)-DP.

    Randomised response needs all of its epsilon, and its composition is counted exactly; a formula that is
    below it is wrong, whatever it is right for.

    Args:
        formula: From epsilon, delta and the count to the composed epsilon and delta.
        exp_epsilon: e^epsilon of one run.
        delta: The formula's own delta, in (0, 1).
        count: Number of runs.
    """
    slack = number(Fraction(delta))
    epsilon, composed_delta = formula(log(Fraction(exp_epsilon)), slack, count)
    return prove_finite_mechanism(
        f"{count} runs of randomised response with e^epsilon = {exp_epsilon} meet the formula",
        randomised_response(exp_epsilon),
        [("0", "1")],
        epsilon=epsilon,
        delta=composed_delta,
        count=count,
    )


def subsampling_amplifies(*, linear: bool = False) -> Statement:
    """log(1 + p (e^epsilon - 1)) <= epsilon for p in [0, 1], epsilon in [0, 10] (Shuffled DPSGD, Theorem 2).

    With `linear`, the tempting p * epsilon stands on the right instead.
    """
    p, epsilon = real("p", low=0, high=1), real("epsilon", low=0, high=10)
    amplified = 1 + p * (exp(epsilon) - 1)
    if linear:
        return Statement(name="amplified epsilon <= p epsilon", conclusion=log(amplified) <= p * epsilon)
    return Statement(name="amplified epsilon <= epsilon", conclusion=amplified <= exp(epsilon))


def _ferret() -> tuple[Term, Term, Formula]:
    """epsilon, the ceiling G T s ln 2 and that all factors are positive (FERRET, Eq. 8)."""
    groups, steps, rate = real("G"), real("T"), real("s")
    return real("epsilon"), groups * steps * rate * log(2), And(groups > 0, steps > 0, rate > 0)


def ferret_p_star_inverts(*, factor: Fraction | int = 1) -> Statement:
    """p* = epsilon / (G T s ln 2) spends exactly epsilon (FERRET, Theorem 1); `factor` scales p*."""
    epsilon, ceiling, positive = _ferret()
    spent = ceiling * (number(Fraction(factor)) * epsilon / ceiling)
    return Statement(
        name="p* spends exactly epsilon", conclusion=spent.equals(epsilon), assumptions=(positive,)
    )


def ferret_p_star_is_a_probability(*, below_ceiling: bool = True) -> Statement:
    """0 < p* < 1 for 0 < epsilon, and epsilon < G T s ln 2 unless that is left out (FERRET, Theorem 1)."""
    epsilon, ceiling, positive = _ferret()
    p = epsilon / ceiling
    range_of_epsilon = And(epsilon > 0, epsilon < ceiling) if below_ceiling else epsilon > 0
    return Statement(
        name="p* lies in (0, 1)", conclusion=And(p > 0, p < 1), assumptions=(positive, range_of_epsilon)
    )


def ferret_power_of_p() -> Statement:
    """p <= p^alpha for p in (0, 1] and alpha > 1, which FERRET calls elementary (section 11.6, step 2)."""
    p, alpha = real("p", low=0, high=1), real("alpha", low=1, high=64)
    return Statement(name="p <= p^alpha", conclusion=p <= exp(alpha * log(p)), assumptions=(p > 0, alpha > 1))


def ferret_mixture_step() -> Statement:
    """log((1 - p) + p e^x) <= p (e^x - 1) for x = (alpha - 1) R in [0, 20] (section 11.6, step 2)."""
    p, x = real("p", low=0, high=1), real("x", low=0, high=20)
    inside = p * (exp(x) - 1)
    return Statement(name="log(1 + y) <= y at y = p (e^x - 1)", conclusion=log(1 + inside) <= inside)


def ferret_unit_vectors(*, most: Fraction | int = 4, dimensions: int = 2) -> Statement:
    """|u - u'|^2 <= 4 for unit vectors (section 11.6, step 4); any two span a plane, so two dimensions do."""
    u = [real(f"u{i}") for i in range(dimensions)]
    v = [real(f"v{i}") for i in range(dimensions)]
    distance = _total([(a - b) ** 2 for a, b in zip(u, v, strict=True)])
    unit = [_total([a * a for a in vector]).equals(1) for vector in (u, v)]
    return Statement(
        name=f"|u - u'|^2 <= {most}", conclusion=distance <= Fraction(most), assumptions=tuple(unit)
    )


def paczero_budget(
    *, divisor: Callable[[Term], Term] = lambda steps_left: steps_left, tolerance_nats: Fraction | int = 0
) -> TransitionSystem:
    """PACZero's allocation (Eq. 6): what is left, divided by the steps left, never overspends.

    A step's charge is beta_t, or the entropy cap of appendix C where that is lower, on disagreement, and 0 on
    unanimity. "spent" is what is really leaked: the charge, and up to `tolerance_nats` on a step that only
    the implementation's tolerance calls unanimous.

    Args:
        divisor: What Eq. 6 divides by, from the number of steps left (T - t + 1, the present one included).
        tolerance_nats: Leak of a step that is taken for unanimous.
    """
    total, steps = real("total", low=0), real("T", low=1)
    used, left, spent = real("used", low=0), real("left", low=0), real("spent", low=0)
    unanimous, cap = real("unanimous", low=0, high=1), real("cap", low=0)

    def start(_: State) -> State:
        return {"used": number(0), "left": steps, "spent": number(0)}

    def step(now: State) -> State:
        beta = maximum(0, now["total"] - now["used"]) / divisor(now["left"])
        agrees = now["unanimous"].equals(1)
        charge = choose(agrees, 0, minimum(beta, now["cap"]))
        leak = choose(agrees, Fraction(tolerance_nats), charge)
        return {"used": now["used"] + charge, "left": now["left"] - 1, "spent": now["spent"] + leak}

    return TransitionSystem(
        name="the information spent never exceeds the total",
        parameters=(total, steps),
        state=(used, left, spent),
        inputs=(unanimous, cap),
        start=start,
        step=step,
        guard=lambda now: now["left"] >= 1,
        invariant=lambda now: now["spent"] <= now["total"],
        inductive=lambda now: And(
            now["used"] <= now["total"], now["spent"] <= now["used"], now["spent"] >= 0, now["left"] >= 0
        ),
    )


def paczero_tolerance_sum(*, nats: str = "5.5e-8", steps: int = 2000, tolerance: str = "1e-12") -> Statement:
    """The printed bound on what the unanimity tolerance leaks over a run (PACZero, appendix C).

    The binary entropy at the tolerance, times the number of steps, against the printed figure.
    """
    tau = number(tolerance)
    entropy = -(tau * log(tau)) - (1 - tau) * log(1 - tau)
    return Statement(
        name=f"{steps} steps at the tolerance leak at most {nats} nats",
        conclusion=steps * entropy <= number(nats),
    )


def paczero_zero_information(*, margin: str = "0.02") -> Statement:
    """KL(p || 1/2) > 0 for p off 1/2 by at least a margin: no information, no advantage (corollary 6)."""
    p = real("p", low=Fraction(1, 100), high=Fraction(99, 100))
    divergence = p * log(2 * p) + (1 - p) * log(2 * (1 - p))
    away = (p >= Fraction(1, 2) + Fraction(margin)) | (p <= Fraction(1, 2) - Fraction(margin))
    return Statement(
        name=f"KL(p || 1/2) > 0 where |p - 1/2| >= {margin}", conclusion=divergence > 0, assumptions=(away,)
    )


def rldp_noise_range(
    *, floor: str = "half", lowers: bool = True, largest_step: Fraction | str = "0.1"
) -> TransitionSystem:
    """Which noise multipliers RLDP's policy can reach (Eqs. 11 to 15), as x = log(sigma_t / sigma_0).

    The policy chooses tanh(a) in [-1, 1]; the share of the budget spent scales the step, the clamp of Eq. 13
    and the momentum of Eq. 14 follow.

    Args:
        floor: `half` for sigma_0 / 2 <= sigma_t <= 2 sigma_0, the clamp's range; `base` for
            sigma_t >= sigma_0, which the paper's privacy argument uses (appendix, "enforcement of total
            budget": all actual noise multipliers are at least the base one).
        lowers: Whether the policy may choose a negative direction; Eq. 11 lets it.
        largest_step: delta_max of Eq. 11.

    Raises:
        InputError: floor is neither.
    """
    if floor not in ("half", "base"):
        raise InputError(f"floor must be 'half' or 'base', got {floor!r}")
    x = real("x")
    direction = real("direction", low=-1 if lowers else 0, high=1)
    share = real("share", low=0, high=1)
    bound = log(2)

    def step(now: State) -> State:
        move = now["direction"] * (Fraction(largest_step) * (1 - now["share"]))
        proposed = clamp(now["x"] + move, -bound, bound)
        return {"x": Fraction(4, 5) * now["x"] + Fraction(1, 5) * proposed}

    def invariant(now: State) -> Formula:
        return And(now["x"] >= -bound, now["x"] <= bound) if floor == "half" else now["x"] >= 0

    return TransitionSystem(
        name="sigma_0 / 2 <= sigma_t <= 2 sigma_0" if floor == "half" else "sigma_t >= sigma_0",
        state=(x,),
        inputs=(direction, share),
        start=lambda _: {"x": number(0)},
        step=step,
        invariant=invariant,
    )


def rldp_noise_step(*, most: str = "0.02") -> Statement:
    """One step changes log sigma by at most 0.02 inside the clamp's range (RLDP, Eqs. 11 to 14)."""
    x, direction = real("x"), real("direction", low=-1, high=1)
    share, bound = real("share", low=0, high=1), log(2)
    proposed = clamp(x + direction * (Fraction(1, 10) * (1 - share)), -bound, bound)
    change = Fraction(1, 5) * (proposed - x)
    return Statement(
        name=f"|log sigma_(t+1) - log sigma_t| <= {most}",
        conclusion=And(change <= Fraction(most), change >= -Fraction(most)),
        assumptions=(x >= -bound, x <= bound),
    )


def rldp_ledger_at_current_noise() -> Statement:
    """The accountant of all steps at the present noise covers what two steps really cost (RLDP, Algorithm 1).

    The ledger is GDP(sigma_t, q, t): t steps, all at today's sigma. With per-step central-limit parameters
    m_1, m_2 (larger where the noise is lower) it says sqrt(2) m_2, and the composition of the two is
    sqrt(m_1^2 + m_2^2). It holds under m_1 <= m_2: noise that never rises.
    """
    first, second = real("m1", low=0), real("m2", low=0)
    return Statement(
        name="accounting every step at the present noise covers the steps before",
        conclusion=first**2 + second**2 <= 2 * second**2,
        assumptions=(first > 0, second > 0),
    )


def shuffled_lemma_3(*, size: int = 4, positive: bool = True) -> Statement:
    """Sum a times sum b is at least the sum of a_i b_i, for positive numbers (Shuffled DPSGD, Lemma 3)."""
    a: list[Term] = [real(f"a{i}") for i in range(size)]
    b: list[Term] = [real(f"b{i}") for i in range(size)]
    products = _total([x * y for x, y in zip(a, b, strict=True)])
    return Statement(
        name=f"sum a sum b >= sum ab, k = {size}",
        conclusion=_total(a) * _total(b) >= products,
        assumptions=tuple(x > 0 for x in (*a, *b)) if positive else (),
    )


def shuffled_lower_bound_as_upper() -> Statement:
    """From delta_true >= h and h <= delta to delta_true <= delta: the last step to Theorem 6.

    The proof's Eqs. 31 to 33 bound the true delta from below by h; the theorem then calls the mechanism
    (epsilon, delta)-DP where h <= delta.
    """
    true, bound, claimed = (real(name, low=0, high=1) for name in ("delta_true", "h", "delta"))
    return Statement(
        name="a lower bound of delta that meets the target certifies it",
        conclusion=true <= claimed,
        assumptions=(true >= bound, bound <= claimed),
    )


def shuffled_zeta_gap() -> Statement:
    """zeta_2 <= zeta_1 - |g|^2 / sigma^2 (Shuffled DPSGD, Eq. 65), for k = 2, as it follows or not from A.

    exp turns it into |A mu|_1 >= |A|_1 |mu|_1, with A diagonal, |A|_1 its largest entry and mu positive.
    """
    first, second, mu_1, mu_2 = real("A1"), real("A2"), real("mu1"), real("mu2")
    return Statement(
        name="|A mu|_1 >= |A|_1 |mu|_1",
        conclusion=first * mu_1 + second * mu_2 >= first * (mu_1 + mu_2),
        assumptions=(first >= second, second > 0, mu_1 > 0, mu_2 > 0),
    )


def dp_weights_ratio_step() -> Statement:
    """The density ratio is at most exp(DW^2 / (2 sigma^2)) (DP-Weights, appendix 8.1.2, step 5).

    Logarithms of both sides, at one output x for both weights: ((x - w')^2 - (x - w)^2) / (2 sigma^2).
    """
    x, w, other, shift, sigma = (real(name) for name in ("x", "w", "w_other", "shift", "sigma"))
    loss = ((x - other) ** 2 - (x - w) ** 2) / (2 * sigma**2)
    return Statement(
        name="the log-ratio at an output is at most DW^2 / (2 sigma^2)",
        conclusion=loss <= shift**2 / (2 * sigma**2),
        assumptions=(sigma > 0, shift > 0, (w - other) ** 2 <= shift**2),
    )


def dp_weights_epsilon_range(*, factor: int = 4) -> Statement:
    """epsilon <= 4 log(1.25 / delta) gives epsilon^2 / (4 log(1.25 / delta)) <= epsilon (appendix 8.1.2)."""
    epsilon, delta = real("epsilon"), real("delta", low=0, high=1)
    range_of_log = log(Fraction(5, 4) / delta)
    return Statement(
        name=f"epsilon <= {factor} log(1.25/delta) suffices for the step",
        conclusion=epsilon**2 / (4 * range_of_log) <= epsilon,
        assumptions=(delta > 0, epsilon > 0, epsilon <= factor * range_of_log),
    )


def dp_weights_two_noise_scales() -> Statement:
    """The two printed noise scales agree: all under the root (Eqs. 1, 3), or the root first (Algorithm 2).

    With L = 2 log(1.25 / delta), r = DW / epsilon and the empirical term c: sqrt(L r + c) against
    sqrt(L) r + c.
    """
    spread, ratio, extra = (real(name, low=0) for name in ("L", "r", "c"))
    return Statement(
        name="both printed noise scales are the same number",
        conclusion=sqrt(spread * ratio + extra).equals(sqrt(spread) * ratio + extra),
        assumptions=(spread > 0, ratio > 0, extra > 0),
    )


def _total(terms: list[Term]) -> Term:
    whole = terms[0]
    for term in terms[1:]:
        whole = whole + term
    return whole

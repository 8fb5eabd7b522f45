"""RLDP's controller and main theorem: Eqs. 11 to 15, Lemma 7.14, Corollary 7.15, Theorem 7.13, section 4.4.

The policy is free, as in the paper's proof: a neural network may answer any state with any action. Where a
run is simulated, the policy wants to spend, and asks for nothing that Eqs. 11 to 15 do not grant. Everything
else is taken at its best for the paper: one adapter pair, Poisson samples, a record added or removed, sigma_0
by an exact accountant, and an exact accountant in line 14's ledger, too (upper ends, so that no step size is
overstated). What the steps as run have spent is certified accounting of the very sequence of sigmas.

In warm-up the radii are medians of the batch's raw norms (Algorithm 1, lines 15 to 17). A radius that is one
record's own norm is seen where the record is, and nowhere else: an event of probability zero under the other
data set, which no epsilon covers. It shows in the next update's noise as well, where the radii are secret.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from workbench.accounting.bounds import Bounds
from workbench.attacks.accountant_checks.proof import TransitionSystem, clamp, prove_invariant, real
from workbench.attacks.claim_checks.rldp.budgets import ADDED, DELTA, SAMPLING, STEPS, calibrated, run_epsilon
from workbench.attacks.claim_checks.rldp.ledger import INTERVAL, controlled, decision_steps, within_reach
from workbench.attacks.claim_checks.shared import lemmas
from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    Distinguisher,
    ball,
    counterexample_if,
    is_above,
    is_proven,
    is_within,
    setting,
    settle,
    show,
    tail,
    with_evidence,
)
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.interfaces.findings import Finding, assume


def _noise_schedule(
    *, floor: Fraction, momentum: Fraction, name: str, width: Fraction | None = None
) -> Finding:
    """Whether every run of Eqs. 11 to 15 keeps log2(sigma / sigma_0) within [floor, 1].

    The dial is tanh(a) * step_t over ln 2. It is left free for a proof, for step_t has no bound once the
    ledger has passed its budget; a refutation keeps it to what is in reach while a tenth of the budget is
    left.
    """
    level = real("log_sigma")
    dial = real("dial") if width is None else real("dial", low=-width, high=width)
    return prove_invariant(
        TransitionSystem(
            name=name,
            state=(level,),
            inputs=(dial,),
            start=lambda _: {"log_sigma": level * 0},
            step=lambda s: {
                "log_sigma": momentum * s["log_sigma"]
                + (1 - momentum) * clamp(s["log_sigma"] + s["dial"], -1, 1)
            },
            invariant=lambda s: (s["log_sigma"] >= floor) & (s["log_sigma"] <= 1),
        )
    )


_SMALL = Fraction(1, 100)
"""At most 0.1 * 0.1 * tanh(1) / ln 2, about 0.011."""


@register("claim_check", "rldp_eq_13")
@setting("Eqs. 11 to 15 for every policy; no data are involved, nothing is sampled")
def clamp_holds(*, momentum: str = "0.8") -> Finding:
    """Eqs. 11 to 15 keep every sigma_t within [sigma_0 / 2, 2 sigma_0], whatever the policy asks for."""
    return _noise_schedule(
        floor=Fraction(-1), momentum=Fraction(momentum), name="log2(sigma_t / sigma_0) stays within [-1, 1]"
    )


@register("claim_check", "rldp_theorem_7_13_noise")
@setting("Eqs. 11 to 15 for every policy; no data are involved, nothing is sampled")
def noise_floor(*, floor: str = "0") -> Finding:
    """Theorem 7.13, stage 4: all actual sigma_t are at least sigma_base.

    `floor`: the claimed lower end of log2(sigma_t / sigma_base).
    """
    finding = _noise_schedule(
        floor=Fraction(floor),
        momentum=Fraction(4, 5),
        name=f"log2(sigma_t / sigma_base) >= {floor}",
        width=_SMALL,
    )
    return with_evidence(
        finding,
        "Eq. 13 itself clamps at sigma_0 / 2, and Sections 4.1 and 4.4 report sigma decaying below its start",
        "C <= 1 is not kept either: in warm-up Algorithm 1, line 17, sets C to a median norm without a cap, "
        "and Section 4.4 reports a median radius of 2.6 (noise scales with C, so this alone costs nothing)",
    )


@register("claim_check", "rldp_theorem_7_13_adapters")
@setting(f"{ADDED} (no delta here: Renyi divergences of order 2, nats)")
def adapters(*, count: int = 64, noise_multiplier: str = "0.408") -> Finding:
    """Theorem 7.13, stage 2: n adapters' divergences add up to n rho_1, and cost the same per-step budget.

    One record's draw decides for all adapters at once, so they share one mixture: at order 2 its moment is
    1 + q^2 (e^(n / sigma^2) - 1), exactly. The claim is taken with the larger printed rho_1 (q, not q^2).
    """
    sigma, q = ball(noise_multiplier), ball(SAMPLING)
    square = 1 / (sigma * sigma)
    claimed = count * (1 + q * (square.exp() - 1)).log()
    joint = (1 + q * q * ((count * square).exp() - 1)).log()
    single = (1 + q * (square.exp() - 1)).log()
    wrong = counterexample_if(
        joint > claimed,
        f"{count} adapter pairs, sigma {noise_multiplier}, q 16/73271: the joint divergence of order 2 is "
        f"{show(joint)} nats, the claimed sum {show(claimed)}, and one adapter's bound {show(single)}",
        {"adapters": count, "noise_multiplier": noise_multiplier, "sampling_probability": str(SAMPLING)},
        {"joint_divergence": show(joint), "claimed": show(claimed)},
    )
    return settle(
        "a record whose gradient fills every adapter's clip norm, added to data whose gradients are zero; "
        "closed form in balls of 192 bits",
        "each adapter is clipped to its own C_i and gets noise sigma C_i (Eqs. 5 and 6), so n of them are "
        "one Gaussian sum of multiplier sigma / sqrt(n); Algorithm 1 calls the accountant with sigma",
        "Mistral-7B has 32 layers with q and v adapters (n = 64), and Section 4.4 reports sigma 0.408",
        counterexample=wrong,
    )


RECORDS = 73_271
"""Training records (Section 3.1): 0.8 * 0.9 of 101,766."""

_BIG, _SMALL_NORM, _FIRST_CLIP = 1, "1e-18", "0.1"
"""Gradient norms of the other records, half and half, and the first clip norm (Section 3.1)."""


def raw_median_release(*, gradient: str, sigma: Any, coordinates: int = 1000) -> Distinguisher:
    """The first warm-up step's raw median norm, read off the second step's noise.

    Algorithm 1, lines 15 to 17: in warm-up C is the median of the unclipped per-sample norms. Half of the
    other 73,270 records have gradients of norm 1, half of 1e-18. The attacked record, of norm `gradient`, is
    the first batch's median where it is drawn among equally many of both. Where it is absent, the median is
    1, 1e-18, their mean, or (no batch) the first clip norm. The second update is a sum of clipped gradients
    with noise sigma * C on each coordinate, so its largest coordinate tells the three scales apart.
    """
    norm, drawn_as_median = ball(gradient), ball(SAMPLING) * _balanced_draw()
    low, high = norm / 1000, norm * 100_000
    spread, small = sigma * norm, ball(_SMALL_NORM)
    # The whole batch's clipped sum is at most RECORDS clip norms.
    missed = 2 * coordinates * tail((high - RECORDS * norm) / spread) + 2 * low * _peak(spread)
    from_large = (2 * high * _peak(sigma * ball(_FIRST_CLIP))) ** coordinates
    from_small = 2 * coordinates * tail((low - RECORDS * small) / (sigma * small))
    return Distinguisher(
        event=f"the second noisy gradient's largest coordinate lies in [{show(low)}, {show(high)}]",
        true_positive=drawn_as_median * (1 - missed),
        false_positive=from_large + from_small,
    )


def _balanced_draw() -> Any:
    """Probability that equally many of both halves of the other records are drawn: a lower bound."""
    q, half, total = ball(SAMPLING), (RECORDS - 1) // 2, ball(0)
    for drawn in range(60):  # Larger batches are left out.
        single = ball(math.comb(half, drawn)) * q**drawn * (1 - q) ** (half - drawn)
        total += single * single
    return total


def _peak(spread: Any) -> Any:
    """The normal density's largest value."""
    from flint import arb

    return 1 / (spread * (2 * arb.pi()).sqrt())


def raw_warm_up(gradient: str, budget: float) -> tuple[Counterexample | None, str]:
    """Whether the warm-up's raw medians break (budget, 1e-5)-DP at a sigma that meets it, and the event."""
    sigma = calibrated(budget)
    test = raw_median_release(gradient=gradient, sigma=ball(sigma))
    delta = test.delta(ball(budget))
    line = f"warm-up by raw medians: {test.describe()}"
    wrong = counterexample_if(
        delta > ball(DELTA),
        f"with sigma {sigma:.4g}, calibrated exactly to ({budget:g}, {DELTA}), one record that is the first "
        f"batch's median norm has delta({budget:g}) at least {show(delta)}",
        {"noise_multiplier": sigma, "sampling_probability": str(SAMPLING), "records": RECORDS},
        {"gradient_norms_of_the_others": [str(_BIG), _SMALL_NORM], "gradient_norm_of_the_record": gradient},
        {"epsilon": budget, "delta_at_least": show(delta), "event": test.describe()},
    )
    return wrong, line


@register("claim_check", "rldp_corollary_7_15")
@setting(ADDED)
def adaptive_selection(
    *, gradient: str = "1e-9", allowance: float = 1.0, reads: str = "raw medians"
) -> Finding:
    """Corollary 7.15: choosing all clip norms and noise multipliers during the run costs no privacy.

    `gradient`: norm of the attacked record's gradient; 1 makes it like half of the others. `allowance`: how
    far the adaptive steps may exceed the claimed budget, as a factor of e^epsilon. `reads`: what the warm-up
    takes the radii from: `"raw medians"` (Algorithm 1, line 16), or `"released values"`.
    """
    wrong, line = raw_warm_up(gradient, 8.0)
    if reads == "released values":
        wrong = None
    proof = lemmas.adaptive_composition(scale=Fraction(allowance))
    return settle(
        *proof.evidence,
        f"without that, Algorithm 1, lines 15 to 17 and 24: {line}",
        "lines 11, 15 and 21 feed the controller raw losses, gradient norms and Fisher moments of the batch "
        "(Section 2.4), which no noise covers; Lemma 7.14 supposes that it reads noised gradients only",
        proof="no cost" if is_proven(proof) else None,
        counterexample=wrong,
        assumption=assume(
            "the controller and the warm-up read nothing but released, noised values, as Lemma 7.14 supposes "
            "and Algorithm 1 does not do, and the steps' budgets sum to at most the target on every path",
            lambda source, path: source == "released values" and path == "at most the target",
            claimed={"reads": reads},
            left_open={"sum of the steps' budgets": ("at most the target", "above it on some path")},
        ),
    )


@register("claim_check", "rldp_theorem_7_13")
@setting(f"{ADDED}; neighbours by replacement (Definition 7.1) are at least as far apart")
def main_theorem(
    *, dial: float = -0.02, decisions: int = 3, pairs: int = 1, gradient: str = "1e-9"
) -> Finding:
    """Theorem 7.13: the whole procedure is (epsilon_target, delta_target)-DP, for any policy.

    Three ways out, at the experiments' sampling rate and number of steps, with an exact accountant for
    sigma_base and for the ledger: a policy that asks for less noise, several adapter pairs, raw medians.

    `dial`: the change of log(sigma) that the policy asks for at its first decisions; 0 keeps the noise.
    `decisions`: how many those are. `pairs`: adapter pairs, each clipped to C_i with noise sigma C_i, where
    the accountant is told sigma. `gradient`: norm of the record whose median is read; 1 leaves the third way
    out.
    """
    budget = 8.0
    base = calibrated(budget)
    schedule = controlled(base, dial, decisions)
    reach = within_reach(schedule, dial, decisions, budget)
    truth = run_epsilon([(sigma / math.sqrt(pairs), count) for sigma, count in schedule])
    raw, line = raw_warm_up(gradient, budget)
    wrong = counterexample_if(
        reach and is_above(truth, budget),
        f"sigma_base {base:.4g} is calibrated exactly to (8, {DELTA}); a policy that lowers it to "
        f"{schedule[-1][0]:.4g}, {pairs} adapter pair(s): epsilon is at least {truth.lower:.5g}",
        {"target_epsilon": budget, "sigma_base": base, "final_noise_multiplier": schedule[-1][0]},
        {"sampling_probability": str(SAMPLING), "steps": STEPS, "adapter_pairs": pairs, "dial": dial},
        {"epsilon_at_least": truth.lower},
    )
    two = run_epsilon([(base / math.sqrt(2), STEPS)])
    return settle(
        f"the run: certified {truth.describe()}; its {decisions} decisions are {INTERVAL} steps apart, each "
        f"asks log(sigma) to change by {dial:+g}, within Eq. 11's step size: {reach}",
        "Algorithm 1 has no rule that stops it when the ledger reaches the budget",
        f"with constant noise and two adapter pairs instead: {two.describe()}",
        f"with constant noise and one pair: {raw.sentence if raw else line}",
        "the outputs are those of the paper's proof (Corollary 7.12): every noisy update",
        counterexample=wrong or raw,
    )


TANH = 0.999
"""The dial's largest tanh here; every value below 1 is in reach (Eq. 11)."""

_GRAIN = 0.01
"""Noise multipliers are rounded up to powers of 1.01 where there are many: that only lowers epsilon."""

_MANY = 40


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """A run of the RLDP controller: its noise schedule and what its ledger reports.

    Attributes:
        schedule: Noise multipliers with the number of consecutive steps that use each.
        reported: Line 14's ledger just before each decision, and at the end; upper ends.
    """

    base: float
    schedule: tuple[tuple[float, int], ...]
    reported: tuple[float, ...]

    @property
    def is_rounded(self) -> bool:
        """Whether there are so many noise multipliers that `spent` rounds them up."""
        return len(_merged(self.schedule)) > _MANY

    @property
    def spent(self) -> Bounds:
        """Certified epsilon of the steps as run; where it rounds, a lower end alone counts."""
        if not self.is_rounded:
            return run_epsilon(_merged(self.schedule))
        return run_epsilon(_merged([(_rounded_up(sigma), count) for sigma, count in self.schedule]))


@lru_cache(maxsize=4096)
def line_14(sigma: float, steps: int) -> float:
    """Certified upper end of epsilon for all steps so far at the current sigma (line 14)."""
    return run_epsilon([(sigma, steps)]).upper


def play(*, budget: float, interval: int, lowering: int | None, beyond: bool, dial: float) -> Trajectory:
    """Eqs. 11 to 15 at each decision, under one policy.

    Args:
        interval: Steps between two decisions, T_RL.
        lowering: How many first decisions ask for less noise, the others for more; None for all of them.
        beyond: Whether the policy goes on where the ledger has passed the budget. Step_t is negative there,
            and so is the dial that lowers sigma.
        dial: Share of the step size that is asked for, in [0, 1).
    """
    base = calibrated(budget)
    level, done = math.log(base), 0
    schedule, reported = list[tuple[float, int]](), list[float]()
    for number, moment in enumerate(decision_steps(interval)):
        schedule.append((math.exp(level), moment - done))
        reported.append(line_14(math.exp(level), moment))
        size = 0.1 * (1.0 - reported[-1] / budget)
        reach = abs(size) if beyond else max(size, 0.0)
        wish = -1.0 if lowering is None or number < lowering else 1.0
        proposed = level + wish * dial * reach
        proposed = min(max(proposed, math.log(0.5 * base)), math.log(2.0 * base))
        level, done = 0.8 * level + 0.2 * proposed, moment
    schedule.append((math.exp(level), STEPS - done))
    reported.append(line_14(math.exp(level), STEPS))
    return Trajectory(base=base, schedule=tuple(schedule), reported=tuple(reported))


def _merged(schedule: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """The same steps, those of one noise multiplier together."""
    counts: dict[float, int] = {}
    for sigma, count in schedule:
        counts[sigma] = counts.get(sigma, 0) + count
    return list(counts.items())


def _rounded_up(sigma: float) -> float:
    return math.exp(_GRAIN * math.ceil(math.log(sigma) / _GRAIN))


@register("claim_check", "rldp_budget_kept")
@setting(f"{ADDED}; the policy is any that Eqs. 11 to 15 allow, and is run by those equations")
def budget_kept(
    *, budgets: Sequence[float] = (8.0,), intervals: Sequence[int] = (INTERVAL,), dial: float = TANH
) -> Finding:
    """Section 4.4: whatever the controller does, the budget is never exceeded.

    `budgets`: epsilon_max, each. `intervals`: T_RL, each. `dial`: share of Eq. 11's step size that the policy
    asks for, towards less noise; 0 keeps sigma.
    """
    lines, wrong, within = [], None, True
    for budget in budgets:
        for interval in intervals:
            for beyond in (False, True):
                run = play(budget=budget, interval=interval, lowering=None, beyond=beyond, dial=dial)
                truth = run.spent
                within = within and not run.is_rounded and is_within(truth, budget)
                last = run.schedule[-1][0]
                where = (
                    f"epsilon_max {budget:g}, a decision every {interval} steps, policy asks for less noise "
                    f"{'throughout' if beyond else 'while the ledger is below the budget'}: sigma from "
                    f"{run.base:.4g} to {last:.4g}"
                )
                lines.append(
                    f"{where}; line 14 reports {run.reported[-1]:.5g} in the end; spent {truth.describe()}"
                )
                wrong = wrong or counterexample_if(
                    is_above(truth, budget),
                    f"{where}: epsilon is at least {truth.lower:.5g}",
                    _values(budget, interval, run, truth),
                )
    return settle(
        *lines,
        *(_ceiling(budget, interval) for budget in budgets for interval in intervals),
        "nothing in Algorithm 1 stops a run whose ledger has passed the budget, and step_t, then negative, "
        "grows without bound: Eq. 11 does not clip it at zero",
        proof="the policies that were tried stay within the budget" if within and dial == 0 else None,
        counterexample=wrong,
    )


def _ceiling(budget: float, interval: int) -> str:
    """What no policy can exceed: sigma_0 until the first decision, and half of it from there on."""
    base = calibrated(budget)
    first = decision_steps(interval)[0]
    most = run_epsilon([(base, first), (base / 2, STEPS - first)])
    return (
        f"no policy spends more than sigma_0 for {first} steps and sigma_0 / 2 for the rest (Eq. 13 keeps "
        f"sigma at half of sigma_0 or above, claim rldp-eq-13): epsilon_max {budget:g}, {most.describe()}"
    )


@register("claim_check", "rldp_ledger_verifies")
@setting(f"{ADDED}; the policy is any that Eqs. 11 to 15 allow, and is run by those equations")
def ledger_verifies(
    *, budget: float = 8.0, interval: int = INTERVAL, lowering: int = 5, dial: float = TANH
) -> Finding:
    """Section 3.3: a run whose ledger stays within the target has spent no more than the target.

    `budget`: epsilon_max. `interval`: T_RL. `lowering`: the policy's first decisions that ask for less noise;
    all later ones ask for more. `dial`: share of Eq. 11's step size that it asks for. Raises `InputError`:
    `lowering` is negative.
    """
    if lowering < 0:
        raise InputError(f"lowering must be at least 0, got {lowering}")
    run = play(budget=budget, interval=interval, lowering=lowering, beyond=False, dial=dial)
    truth, reported = run.spent, max(run.reported)
    least = min(sigma for sigma, _ in run.schedule)
    wrong = counterexample_if(
        reported <= budget and is_above(truth, budget),
        f"sigma from {run.base:.4g} down to {least:.4g}, then up to {run.schedule[-1][0]:.4g}: line 14 never "
        f"reports more than {reported:.5g} of {budget:g}, and {run.reported[-1]:.5g} in the end; epsilon is "
        f"at least {truth.lower:.5g}",
        _values(budget, interval, run, truth),
    )
    return settle(
        f"epsilon_max {budget:g}, a decision every {interval} steps, of which the first {lowering} ask for "
        f"less noise and the others for more, within Eq. 11's step size: sigma {run.base:.4g}, at least "
        f"{least:.4g}, in the end {run.schedule[-1][0]:.4g}",
        f"line 14 reports {run.reported[-1]:.5g} in the end and {reported:.5g} at most; "
        f"spent {truth.describe()}",
        "line 14 asks what all steps so far would have cost at the current sigma, so noise that is raised "
        "again takes back, in the ledger alone, what was spent before",
        counterexample=wrong,
    )


def _values(budget: float, interval: int, run: Trajectory, truth: Bounds) -> dict[str, object]:
    return {
        "target_epsilon": budget,
        "sampling_probability": str(SAMPLING),
        "steps": STEPS,
        "delta": DELTA,
        "decision_interval": interval,
        "sigma_base": run.base,
        "smallest_sigma": min(sigma for sigma, _ in run.schedule),
        "last_sigma": run.schedule[-1][0],
        "largest_reported_epsilon": max(run.reported),
        "reported_epsilon": run.reported[-1],
        "epsilon_at_least": truth.lower,
    }


RADII = ("median", "public")


@register("claim_check", "rldp_first_radius")
@setting(
    "a record is replaced by one like the others, or added and removed; Poisson-sampled batches, q = 16 / "
    "73,271; the adversary knows the other records and sees the clip radii and noise multipliers, but no "
    "update; delta 1e-5; balls, nothing is sampled"
)
def first_radius(*, radii: str = "median", unlike: bool = True) -> Finding:
    """Lemma 7.14: at delta 1e-5, the clip norms and noise of a run are (epsilon, delta)-DP for some epsilon.

    Half of the other records have gradients of a large norm and half of a small one, and the record's lies
    between. Where it is drawn among equally many of both, the batch's size is odd and its norm the median.

    `radii`: `"median"` (Algorithm 1, line 17), or `"public"`: of no record at all. `unlike`: whether the
    record's norm differs from the others'. Raises `InputError`: the radii are of another kind.
    """
    if radii not in RADII:
        raise InputError(f"radii must be one of {', '.join(RADII)}, got {radii!r}")
    balanced = _balanced_draw()
    seen = ball(SAMPLING) * balanced if radii == "median" and unlike else ball(0)
    wrong = counterexample_if(
        seen > ball(DELTA),
        f"the first radius is the record's own norm with probability {show(seen)} where the record is, and "
        f"never where it is not: delta is at least {show(seen)} at every epsilon",
        {"sampling_probability": str(SAMPLING), "records": RECORDS, "true_positive": show(seen)},
        {"false_positive": "0", "delta_claimed": DELTA},
    )
    return settle(
        f"the record is drawn with probability q, and equally many of both halves with {show(balanced)}",
        "one radius after one step, for one adapter pair; later medians and the others' radii add to it",
        "so Lemma 7.14 does not speak of Algorithm 1, whose radii are no functions of noised gradients",
        proof="such radii do not depend on the records" if radii == "public" else None,
        counterexample=wrong,
    )

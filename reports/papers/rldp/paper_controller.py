"""What RLDP says of its controller, against its own equations; and what its text says in two ways."""

from __future__ import annotations

import math

from workbench.accounting.gaussian import epsilon_of_delta, mu_of_epsilon
from workbench.checks.published import PublishedPaper
from workbench.reports.papers.rldp.paper_cells import check, epochs_steps, said, training_records, words
from workbench.reports.shared.published_checks import Check

INTERVALS = (16, 112)
"""Shortest and longest interval of section 3.2."""

FORMULA = "q sqrt(T (exp(1 / sigma^2) - 1))"
"""mu of the central limit of Gaussian DP (Bu, Dong, Long and Su 2020; Dong et al. 2022, Section 6)."""


def gdp_mu(noise_multiplier: float, rate: float, steps: float) -> float:
    """mu of the central limit for Poisson-sampled steps of constant noise."""
    return rate * math.sqrt(steps * math.expm1(noise_multiplier**-2))


def gdp_noise(epsilon: float, delta: float, rate: float, steps: float) -> float:
    """The noise multiplier to which the central limit gives epsilon."""
    mu = mu_of_epsilon(epsilon, delta)
    return 1.0 / math.sqrt(math.log1p((mu / rate) ** 2 / steps))


def _lengths(paper: PublishedPaper) -> dict[str, float]:
    """The three numbers of steps that the paper has."""
    return {
        "T": said(paper, "section 4.2", "steps T").value,
        "three epochs": float(epochs_steps(paper)),
        "the timed run": said(paper, "section 4.2", "steps of GPT2's timed run").value,
    }


def _rate(paper: PublishedPaper) -> float:
    return said(paper, "section 3.1", "batch size").value / training_records(paper)


def sigma_check(paper: PublishedPaper) -> Check:
    """Section 4.4's sigma, held by the GDP accountant to the budget that it is said to use up."""
    sigma, budget = said(paper, "section 4.4", "sigma of Mistral-7B at 5").value, 5.0
    delta, rate = said(paper, "section 3.1", "delta").value, _rate(paper)
    spent = {
        name: epsilon_of_delta(gdp_mu(sigma, rate, steps), delta) for name, steps in _lengths(paper).items()
    }
    asked = {name: gdp_noise(budget, delta, rate, steps) for name, steps in _lengths(paper).items()}
    failed = []
    if all(value < 0.99 * budget for value in spent.values()):
        listed = ", ".join(
            f"{value:.2g} after {_lengths(paper)[name]:g} steps ({name}; sigma {asked[name]:.3f} would use "
            f"up {budget:g})"
            for name, value in spent.items()
        )
        failed.append(
            f"Section 4.4 holds sigma at {sigma:g} for Mistral-7B at epsilon {budget:g} and consumes the "
            f"budget precisely at the last step. The GDP accountant, mu = {FORMULA}, q = 16 / "
            f"{training_records(paper)}, gives that noise epsilon {listed}"
        )
    return check("sigma at epsilon 5", len(spent), failed)


def rise_check(paper: PublishedPaper) -> Check:
    """Whether sigma can rise as much as is said within the exploratory phase."""
    steps = said(paper, "section 4.2", "steps T").value
    phase = said(paper, "section 4.1", "exploratory phase, percent of the steps").value / 100.0 * steps
    warm_up = said(paper, "section 3.1", "warm-up of the controller, steps").value
    largest = said(paper, "section 2.4", "largest step of log sigma (Eq. 11)").value
    kept = said(paper, "section 2.4", "momentum of log sigma (Eq. 14)").value
    rise = said(paper, "section 4.1", "noise rises by, at most").value
    delta, rate = said(paper, "section 3.1", "delta").value, _rate(paper)
    sigma = gdp_noise(0.5, delta, rate, steps)
    reach = {}
    for interval in INTERVALS:
        decisions = sum(1 for step in range(interval, int(phase) + 1, interval) if step > warm_up)
        reach[interval] = (decisions, sigma * math.expm1(decisions * (1.0 - kept) * largest))
    preferred = said(paper, "section 4.5", "interval of the three smaller models").value
    failed = []
    if reach[INTERVALS[-1]][1] < rise:
        decisions, most = reach[INTERVALS[-1]]
        failed.append(
            f"The controller raises sigma by up to +{rise:g} in the first {phase:g} steps. Eqs. 11 to 14 "
            f"move log sigma by less than {(1.0 - kept) * largest:g} a decision: at the interval of "
            f"{preferred:g} that section 4.5 calls best these are {decisions} decisions, and from the "
            f"largest sigma_0 (epsilon 0.5: {sigma:.2f}, by the GDP accountant) a rise of less than "
            f"{most:.2f}; at {INTERVALS[0]} steps, {reach[INTERVALS[0]][0]} decisions, less than "
            f"{reach[INTERVALS[0]][1]:.2f}"
        )
    return check("rise of sigma", 1, failed, contradiction=False)


def radius_check(paper: PublishedPaper) -> Check:
    """Radii above the cap of Eq. 10."""
    cap = said(paper, "section 2.4", "cap on a radius (Eq. 10)").value
    names = (
        "median radius of GPT2 at 0.5 before step 300",
        "radius of block 0 of GPT2 at 0.5 before step 300",
    )
    radii = [said(paper, "section 4.4", name).value for name in names]
    after = said(paper, "section 4.4", "steps after which early radii are contracted").value
    failed = []
    if any(value > cap for value in radii):
        failed.append(
            f"Eq. 10 caps every radius at {cap:g} from the first decision on (step {INTERVALS[-1]} at the "
            f"longest interval); footnote 4 has a median of {radii[0]:g} and {radii[1]:g} in block 0 before "
            f"step 300 on GPT2 at epsilon 0.5, and section 4.4 contracts these radii after about {after:g} "
            "steps only"
        )
    return check("radii", len(radii), failed)


PAIRS = (
    (
        "adapters",
        "adapted layers",
        ("section 3.1", "adapted layers"),
        ("section 4.4", "adapters that the controller turns to"),
        "Section 3.1 adapts {0} alone; section 4.4 describes how the controller turns to the {1} pairs",
    ),
    (
        "sampling",
        "sampling",
        ("section 3.1, batching", "sampling"),
        ("section 3.1, privacy", "sampling"),
        "Section 3.1 has {0} and, for the privacy of the same runs, {1}",
    ),
    (
        "end of the noise schedule",
        "noise steps near the end of the budget",
        ("Algorithm 1, line 26", "noise steps near the end of the budget"),
        ("section 4.4", "noise steps near the end of the budget"),
        "Near the end of the budget the noise's steps are {0} (Algorithm 1, line 26) and {1} (section 4.4)",
    ),
    (
        "end of the budget",
        "end of the budget",
        ("section 4.1", "end of the budget"),
        ("section 4.4", "end of the budget"),
        "The accountant ends {0} (section 4.1) and the budget is {1} (section 4.4)",
    ),
    (
        "members' averages",
        "averages",
        ("section 4.3", "whose log-probabilities and perplexities are averaged"),
        ("Eq. 38", "whose log-probabilities and perplexities are averaged"),
        "Tables 4 and 5 average over {0} (section 4.3) or {1} (Eq. 38)",
    ),
    (
        "forms of DC-SGD",
        "forms of DC-SGD",
        ("section 1", "forms of DC-SGD"),
        ("Tables 4 to 9", "forms of DC-SGD"),
        "Section 1 introduces {0}; the tables have one row, {1}, and do not say of which",
    ),
    (
        "forms of RLDP",
        "forms of RLDP",
        ("Table 2", "forms of RLDP"),
        ("Tables 4 to 9", "forms of RLDP"),
        "Table 2 prints one {0}, Tables 4 to 9 {1}; sections 1 to 3 define neither form",
    ),
)
"""Two places of the text that are held against each other: name, what of, the two places, the sentence."""


def text_checks(paper: PublishedPaper) -> list[Check]:
    """What the text says in one way here and in another there."""
    found = []
    for name, _, first, second, sentence in PAIRS:
        one, other = words(paper, *first), words(paper, *second)
        failed = [sentence.format(one, other)] if one != other else []
        found.append(check(name, 1, failed))
    return found


def prompt_remark(paper: PublishedPaper) -> str:
    """What is generated after."""
    shown = words(paper, "section 6", "prompt of the extraction")
    return (
        f"Section 3.3 names no prompt for the canary extraction; section 6 shows {shown}. Whether all "
        "generations follow one record or many is not said"
    )

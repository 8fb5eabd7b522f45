"""The checks of the conformance suite, in their order, with their shares of the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from workbench.attacks.accountant_checks.conformance.bounds_checks import (
    edge_cases,
    looseness,
    never_below,
    never_below_delta,
    never_below_tpr,
)
from workbench.attacks.accountant_checks.conformance.calibration_check import calibration
from workbench.attacks.accountant_checks.conformance.grid import families
from workbench.attacks.accountant_checks.conformance.judging import Context
from workbench.attacks.accountant_checks.conformance.pair_checks import adjacency, monotone, n_fold, order
from workbench.attacks.accountant_checks.conformance.results import Check, CheckResult

Body: TypeAlias = Callable[[Context, Check], CheckResult]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A check, what runs it, and its share of the time against the others'."""

    check: Check
    body: Body
    share: float


def _planned(name: str, summary: str, body: Body, share: float, *, fails_ci: bool = True) -> Planned:
    return Planned(check=Check(name=name, summary=summary, fails_ci=fails_ci), body=body, share=share)


def _family(family: str, words: str, share: float) -> Planned:
    def run(context: Context, check: Check) -> CheckResult:
        return never_below(context, check, families(context.grid)[family])

    summary = f"no epsilon is below the certified lower bound: {words}"
    return _planned(f"never_below_certified_lower[{family}]", summary, run, share)


def _monotone(short: str, parameter: str, *, rising: bool) -> Planned:
    verb = "fall" if rising else "rise"
    summary = f"epsilon does not {verb} as the {parameter.replace('_', ' ')} grows"
    body = monotone(parameter, rising=rising)
    return _planned(f"monotone_in_{short}", summary, body, 0.5, fails_ci=False)


PLAN: tuple[Planned, ...] = (
    _family("gaussian", "one Gaussian release", 1.0),
    _family("composed_gaussian", "several Gaussian releases", 1.0),
    _family("subsampled_gaussian", "DP-SGD runs with Poisson sampling", 8.0),
    _family("replace_one", "replace-one neighbours", 2.0),
    _family("laplace", "Laplace noise, once and repeated", 1.0),
    _family("randomised_response", "randomised response, once and repeated", 1.0),
    _family("heterogeneous", "compositions of different events", 1.0),
    _planned(
        "delta_never_below_certified_lower",
        "no delta is below the certified lower bound",
        never_below_delta,
        1.0,
    ),
    _planned(
        "tpr_never_below_certified_lower",
        "no true-positive rate is below the certified lower bound",
        never_below_tpr,
        1.0,
    ),
    _planned(
        "calibration_inverts_accounting_and_lands_on_the_private_side",
        "the noise for a budget keeps the certified epsilon, and the accountant's own, within it",
        calibration,
        3.0,
    ),
    _planned(
        "adjacency_honoured_or_refused",
        "replace-one neighbours get an answer of their own, or none",
        adjacency,
        0.5,
    ),
    _planned(
        "n_fold_compose_equals_n_composes",
        "an event with a count is accounted as that many single ones",
        n_fold,
        1.0,
    ),
    _planned(
        "order_of_composition_does_not_matter",
        "a composition is accounted alike in any order",
        order,
        1.0,
    ),
    _planned(
        "edge_cases",
        "corners give a number that is not below the truth, infinity, or a clear error",
        edge_cases,
        2.0,
    ),
    _monotone("noise", "noise_multiplier", rising=False),
    _monotone("sampling", "sampling_probability", rising=True),
    _monotone("steps", "steps", rising=True),
    _monotone("delta", "delta", rising=False),
    _planned(
        "looseness",
        "how far answers are above the certified upper bound",
        looseness,
        0.5,
        fails_ci=False,
    ),
    # Few accountants answer these, and some at ten seconds a call.
    _family("gaussian_mixtures", "pairs of Gaussian mixtures", 0.5),
    _family("shuffled_batches", "shuffled batches", 0.5),
)
"""Every check, in the order in which they run."""

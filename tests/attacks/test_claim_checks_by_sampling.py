"""The ledger's Monte Carlo checks: they agree with certified computation, and altered claims are not refuted.

A false verdict has a probability of 0.1 % in each check; the seeds are fixed.
"""

from __future__ import annotations

import pytest

from workbench.core import registry
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding


def found(name: str, **parameters: float) -> Finding:
    answer: Finding = registry.create("claim_check", name, **parameters)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampled", "certified", "mended"),
    [
        ("shuffled_theorem_6_sampled", "shuffled_theorem_6_own_pair", 100.0),
        ("dp_weights_guarantee_sampled", "dp_weights_guarantee", 1000.0),
    ],
)
def test_samples_say_what_certified_computation_says(sampled: str, certified: str, mended: float) -> None:
    answer = found(sampled)
    assert answer.verdict is found(certified).verdict is VerdictKind.REFUTED
    assert answer.confidence == 0.999
    assert answer.counterexample
    altered = found(sampled, scale=mended)
    assert altered.verdict is not VerdictKind.REFUTED
    assert altered.verdict is not VerdictKind.PROVEN


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert found("dp_weights_guarantee_sampled") == found("dp_weights_guarantee_sampled")

"""What docs/accountants.md reports of other libraries is what the installed ones answer."""

from __future__ import annotations

import math

import pytest

from workbench.accounting import Composed, RandomisedResponse, epsilon

dp_accounting = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld")


def test_dp_accounting_composes_randomised_response_once() -> None:
    found = []
    for count in (1, 2, 100):
        accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
        event = dp_accounting.RandomizedResponseDpEvent(noise_parameter=0.5, num_buckets=2)
        accountant.compose(event, count=count)
        found.append(accountant.get_epsilon(1e-5))
    assert found == pytest.approx([math.log(3)] * 3, abs=1e-3)
    twice = epsilon(
        Composed(events=((RandomisedResponse(noise_parameter=0.5, categories=2), 2),)),
        1e-5,
        adjacency="replace-one",
    )
    # By hand: the ratio is 9 with probability 9/16 under one record, and 1/16 under its neighbour.
    by_hand = math.log((9 / 16 - 1e-5) / (1 / 16))
    assert twice.lower <= by_hand <= twice.upper
    assert by_hand > 2 * found[1] - 1e-3

"""The rule of HOLDS_UNDER: an assumption is consistent with the claim, and about what that leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.attacks.claim_checks.shared.claims import Counterexample, settle
from workbench.checks.ledger import Method, PublishedClaim
from workbench.checks.run import check_claim, check_claims
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Assumption, Finding, assume

WRONG = Counterexample("it fails at 2", {"x": 2})


def certain(rate: float) -> bool:
    """The sampling probability is 1."""
    return rate == 1


OPEN = assume("s is 1", certain, left_open={"s": (0.5, 1)})


@pytest.mark.parametrize(
    ("claimed", "left_open", "consistent"),
    [
        ({"s": 1}, {}, True),
        ({"s": 0.5}, {}, False),
        ({"s": (1, 1)}, {}, True),
        ({"s": (1, 0.5)}, {}, False),  # The claim is about both.
        ({}, {"s": (1, 0.5)}, True),  # One of them will do.
        ({}, {"s": (0.5, 0.1)}, False),
    ],
)
def test_consistency_is_for_all_claimed_values_and_some_open_one(
    claimed: dict[str, Any], left_open: dict[str, Any], consistent: bool
) -> None:
    assumption = assume("s is 1", certain, claimed=claimed, left_open=left_open)
    assert assumption.is_consistent is consistent
    if claimed and not consistent:
        assert assumption.fails_at == {"s": 0.5}


def test_claimed_and_open_values_are_tried_together() -> None:
    below = assume(
        "delta < p", lambda p, delta: delta < p, claimed={"p": (0.5, 0.01)}, left_open={"delta": (0.1, 0.001)}
    )
    assert below.is_consistent
    above = assume(
        "delta < p", lambda p, delta: delta < p, claimed={"p": (0.5, 0.01)}, left_open={"delta": (0.1,)}
    )
    assert above.fails_at == {"p": 0.01}


def test_a_finding_refuses_what_is_no_assumption() -> None:
    def holds(assumption: Assumption) -> Finding:
        return Finding(
            verdict=VerdictKind.HOLDS_UNDER, summary="s", evidence=("e",), assumptions=(assumption,)
        )

    assert holds(OPEN).assumptions == (OPEN,)
    with pytest.raises(InputError, match=r"'s is 1' contradicts the statement at \{'s': 0.5\}"):
        holds(assume("s is 1", certain, claimed={"s": 0.5}))
    with pytest.raises(InputError, match="must be about something that the statement leaves open"):
        holds(assume("s is 1", certain, claimed={"s": 1}))
    with pytest.raises(InputError, match="must name the quantities"):
        assume("s is 1", lambda: True)
    with pytest.raises(InputError, match="text of an assumption"):
        assume(" ", certain, claimed={"s": 1})


def test_a_proof_under_a_contradicting_assumption_is_none() -> None:
    against = assume("s is 1", certain, claimed={"s": 0.5})
    refuted = settle("e", proof="it holds", counterexample=WRONG, assumption=against)
    assert refuted.verdict is VerdictKind.REFUTED
    assert refuted.evidence[-1] == (
        "what holds: it holds, if s is 1; the claim as restated includes s = 0.5, where that is false"
    )
    assert settle("e", proof="it holds", assumption=against).verdict is VerdictKind.UNDECIDED


def test_an_assumption_that_the_claim_makes_itself_is_none() -> None:
    given = assume("s is 1", certain, claimed={"s": 1})
    assert settle("e", proof="it holds", assumption=given).verdict is VerdictKind.PROVEN
    with pytest.raises(InconclusiveError, match="at once"):
        settle("e", proof="it holds", counterexample=WRONG, assumption=given)


def test_an_open_assumption_gives_holds_under() -> None:
    found = settle("e", proof="it holds", counterexample=WRONG, assumption=OPEN)
    assert found.verdict is VerdictKind.HOLDS_UNDER
    assert found.summary == "it holds, if s is 1. Without that: it fails at 2"


def honest(*, s: float = 1.0, budgets: tuple[str, ...] = ("1", "2")) -> Finding:
    assumption = assume(
        "b", lambda *_: True, claimed={"s": s, "budgets": budgets}, left_open={"the law": ("uniform",)}
    )
    return settle("e", proof="it holds", assumption=assumption)


def names_no_parameter(*, s: float = 1.0) -> Finding:
    assumption = assume("b", lambda *_: True, claimed={"rate": s}, left_open={"the law": ("uniform",)})
    return settle("e", proof="it holds", assumption=assumption)


def states_another_value(*, s: float = 1.0) -> Finding:
    assumption = assume("b", lambda *_: True, claimed={"s": 1.0}, left_open={"the law": ("uniform",)})
    return settle("e", proof="it holds", assumption=assumption)


def takes_for_open(*, s: float = 0.5) -> Finding:
    return settle("e", proof="it holds", assumption=OPEN)


@pytest.fixture
def _checks(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        check.__name__: registry.Entry(name=check.__name__, factory=check, summary="")
        for check in (honest, names_no_parameter, states_another_value, takes_for_open)
    }
    monkeypatch.setattr(registry, "entries", lambda kind: known)


def claim(check: str, **parameters: Any) -> PublishedClaim:
    return PublishedClaim(
        id="x", paper="p", place="p", restatement="r", method=Method.PROOF, check=check, parameters=parameters
    )


@pytest.mark.usefixtures("_checks")
def test_the_bench_holds_an_assumption_to_what_the_claim_states() -> None:
    assert check_claim(claim("honest")).verdict is VerdictKind.HOLDS_UNDER
    assert check_claim(claim("honest", budgets=["3"], s=0.5)).verdict is VerdictKind.HOLDS_UNDER
    assert check_claim(claim("states_another_value")).verdict is VerdictKind.HOLDS_UNDER
    for check, parameters, why in (
        ("names_no_parameter", {}, "claims 'rate', no parameter of 'names_no_parameter'"),
        ("states_another_value", {"s": 0.5}, "s is (0.5,) in the claim, got (1.0,)"),
        ("takes_for_open", {}, "leaves open 's', which the claim states"),
    ):
        answer = check_claim(claim(check, **parameters))
        assert answer.finding is None
        assert why in answer.failure


@pytest.mark.usefixtures("_checks")
def test_an_assumption_comes_back_from_a_worker_as_it_was() -> None:
    (answer,) = check_claims([claim("honest")], workers=0)
    assert answer.finding == check_claim(claim("honest")).finding

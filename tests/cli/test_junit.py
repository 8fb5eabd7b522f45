"""JUnit XML: well-formed whatever the report says, and red exactly where the exit code is."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.cli.junit import junit_xml, write_junit


def verdict(kind: str, sentence: str = "a sentence") -> dict[str, Any]:
    return {
        "kind": kind,
        "sentence": sentence,
        "bound": None,
        "bounds": [],
        "intervals": [],
        "reasons": ["why"],
    }


def report(
    kind: str, control: str = "REFUTED", name: str = "dp_sgd", sentence: str = "a sentence"
) -> dict[str, Any]:
    attack = {"attack": "loss", "cost": {"seconds": 1.5}}
    return {
        "verdict": verdict(kind, sentence),
        "subjects": [
            {"name": name, "role": "subject", "attacks": [{**attack, "verdict": verdict(kind, sentence)}]},
            {"name": "non_private", "role": "control", "attacks": [{**attack, "verdict": verdict(control)}]},
        ],
    }


def outcomes(document: str) -> list[str]:
    children = {"failure", "error", "skipped"}
    cases = ElementTree.fromstring(document).iter("testcase")
    return [next((child.tag for child in case if child.tag in children), "passed") for case in cases]


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("REFUTED", "failure"), ("NOT_REFUTED", "passed"), ("UNDERPOWERED", "error"), ("INVALID", "error")],
)
def test_the_outcome_follows_the_verdict_and_the_control_does_not_count(kind: str, outcome: str) -> None:
    document = junit_xml(report(kind))
    assert outcomes(document) == ["passed" if outcome == "passed" else "skipped", "passed", outcome]
    suite = ElementTree.fromstring(document).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("time")) == ("3", "3.000")
    assert suite.get("failures") == ("1" if outcome == "failure" else "0")
    assert suite.get("errors") == ("1" if outcome == "error" else "0")


def test_one_refuted_claim_is_one_failure_however_many_games_refute_it() -> None:
    two = report("REFUTED")
    two["subjects"][0]["attacks"] *= 2
    two["replay"] = {"subject": "train", "cost": {"seconds": 2.0}, "verdict": verdict("REFUTED")}
    assert outcomes(junit_xml(two)) == ["skipped", "skipped", "passed", "skipped", "failure"]


def test_a_game_beyond_the_claim_fails_no_build_where_another_decides() -> None:
    one = report("NOT_REFUTED")
    one["subjects"][0]["attacks"][0]["verdict"] = verdict("UNDECIDED")
    assert outcomes(junit_xml(one)) == ["skipped", "passed", "passed"]
    assert outcomes(junit_xml(report("UNDECIDED"))) == ["skipped", "passed", "error"]


@pytest.mark.parametrize("control", ["NOT_REFUTED", "UNDERPOWERED", "INVALID"])
def test_a_control_that_was_not_refuted_is_skipped(control: str) -> None:
    assert outcomes(junit_xml(report("NOT_REFUTED", control=control))) == ["passed", "skipped", "passed"]


@given(st.text())
def test_any_text_gives_well_formed_xml(text: str) -> None:
    document = junit_xml(report("REFUTED", name=text, sentence=text))
    assert outcomes(document) == ["skipped", "passed", "failure"]


def test_special_characters_survive(tmp_path: Path) -> None:
    path = tmp_path / "new" / "junit.xml"
    write_junit(report("REFUTED", sentence='epsilon < 1 & "ε" > 0\x00'), path)
    failure = ElementTree.parse(path).find(".//failure")
    assert failure is not None
    assert failure.get("message") == 'epsilon < 1 & "ε" > 0�'
    assert [file.name for file in path.parent.iterdir()] == ["junit.xml"]

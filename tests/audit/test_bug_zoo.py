"""Bugs of DP training that were publicly reported: what replay says of each is what docs/bug_zoo.md says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from replay_here import measured_here

from workbench.audit.claims import parse_claim
from workbench.audit.replay.judging import judged
from workbench.audit.replay.measured import Measured
from workbench.audit.replay.stated import stated_from
from workbench.interfaces import Released

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "tests" / "zoo"
sys.path.insert(0, str(ZOO))
try:
    from reported import BUGS, LESS, MORE, WRONG
finally:
    sys.path.remove(str(ZOO))

PARTS = {"noise", "clip", "normaliser", "sampler", "side channel", "accountant"}

NAMED = {"opacus_571"}
"""NOT REFUTED, as most accounting takes the number of records to be public; a caution names the part."""

OPEN = {
    "tensorflow_privacy_620",
    "tensorflow_privacy_519",
    "tensorflow_federated_1080",
    "jax_privacy_not_finite",
}
"""The right part, and no epsilon above the claim: of records that change each other's share, by an unknown
amount, or that nobody has."""


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BUGS))
def test_a_reported_bug_gets_its_verdict_and_its_part(name: str) -> None:
    bug = BUGS[name]
    run = measured_here(f"{ZOO / 'reported.py'}:{name}")
    assert isinstance(run, Measured)
    claim = parse_claim(bug.claim, released=Released.EVERY_UPDATE)
    found = judged(claim, run)
    kind, parts = found.verdict.kind, [fault.part for fault in found.faults]
    if bug.direction == MORE:
        assert (kind, parts) == ("NOT_REFUTED", []), found.verdict.sentence
        return
    if name in NAMED:
        assert (kind, parts, found.caution.partition(":")[0]) == ("NOT_REFUTED", [], bug.fault)
        return
    allowed = {"REFUTED"}
    if bug.direction == WRONG or name in OPEN:
        allowed.add("UNDECIDED")
    assert kind in allowed, found.verdict.sentence
    assert parts[0] == bug.fault, found.verdict.sentence
    if bug.stated:
        told = judged(claim, run, stated=stated_from(bug.stated))
        assert (told.verdict.kind, told.faults[0].part) == (kind, bug.told), told.verdict.sentence


def test_the_table_is_whole() -> None:
    assert len(BUGS) >= 22
    for name, bug in BUGS.items():
        assert bug.direction in {LESS, MORE, WRONG}, name
        assert bug.fault in (PARTS if bug.direction != MORE else {""}), name
        assert bug.told in (PARTS if bug.stated else {""}), name
        assert bug.verified != bug.source.startswith("no report found"), name
    assert {*OPEN, *NAMED} <= set(BUGS)


def test_the_page_has_every_bug() -> None:
    page = (ROOT / "docs" / "bug_zoo.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|", page, re.MULTILINE)
    assert [name for name, *_ in rows] == list(BUGS)
    for name, _, direction, fault, says in rows:
        assert direction == BUGS[name].direction, name
        assert fault == (BUGS[name].fault or "none"), name
        assert ("NOT REFUTED" in says) == (name in NAMED or BUGS[name].direction == MORE), name

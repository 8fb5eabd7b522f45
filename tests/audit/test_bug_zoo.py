"""Bugs of DP training that were publicly reported: what replay says of each is what docs/bug_zoo.md says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from workbench.cli.app import main

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "tests" / "zoo"
sys.path.insert(0, str(ZOO))
try:
    from reported import BUGS, LESS, MORE, WRONG
finally:
    sys.path.remove(str(ZOO))

PARTS = {"noise", "clip", "normaliser", "sampler", "side channel", "accountant"}

MISSED = {
    "opacus_571": "no run has another number of records",
    "opacus_751": "all crafts are loud, and it is for dark images that the bias outweighs the weight",
    "opacus_413": "the estimate is above the claim, its lower end is not: the rate's interval is wide",
    "opacus_161": "no run has another number of records, and few records take part",
    "opacus_19": "the estimate is above the claim, its lower end is not: the rate's interval is wide",
    "tensorflow_privacy_620": "records are replaced, not left out, and all clipped means lie in one ball",
    "jax_privacy_not_finite": "no craft is so loud that its gradient is not finite",
    "google_dp_378": "the estimate is above the claim, its lower end is not: the rate's interval is wide",
}
"""NOT REFUTED, although the promise is too small."""

OTHER_PART = {
    "opacus_264": "a record that has come stays in all later sums, which looks like uneven sampling",
    "opacus_707": "the first half of the records never counts, which looks like uneven sampling",
    "tensorflow_federated_1080": "the clipping norm moves with its noisy quantile, paid or not",
    "jax_privacy_batch_norm": "one record's share is bounded, and no run shows that it moves the others'",
    "caamas_36": "the noise scale is the one of the batch, and the clipped mean has not always one norm",
    "raw_warm_up": "steps without noise count as a scale that changes, and their distances as 0",
}
"""Found to be wrong, in another part than the bug is in."""

INVALID = {"pretrained": "replay follows one optimizer"}
"""Not replayed."""


def marked(name: str) -> object:
    """The bug's name, with its expected failure."""
    reason = {**MISSED, **OTHER_PART, **INVALID}.get(name)
    return pytest.param(name, marks=[pytest.mark.xfail(strict=True, reason=reason)] if reason else [])


@pytest.mark.slow
@pytest.mark.parametrize("name", [marked(name) for name in BUGS])
def test_a_reported_bug_gets_its_verdict_and_its_part(name: str, tmp_path: Path) -> None:
    bug = BUGS[name]
    words = [
        "replay",
        f"{ZOO / 'reported.py'}:{name}",
        "--claim",
        bug.claim,
        "--out",
        str(tmp_path),
        "--quiet",
    ]
    code = main(words)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    verdict = report["verdict"]
    parts = [fault["part"] for fault in report["replay"].get("faults", [])]
    if bug.direction == MORE:
        assert (verdict["kind"], parts, code) == ("NOT_REFUTED", [], 0), verdict["sentence"]
        return
    allowed = {"REFUTED"}
    if bug.fault == "normaliser" or bug.direction == WRONG:
        allowed.add("UNDECIDED")
    assert verdict["kind"] in allowed, verdict["sentence"]
    assert parts[0] == bug.fault, verdict["sentence"]


def test_the_table_is_whole() -> None:
    assert len(BUGS) >= 22
    for name, bug in BUGS.items():
        assert bug.direction in {LESS, MORE, WRONG}, name
        assert bug.fault in (PARTS if bug.direction != MORE else {""}), name
        assert bug.verified != bug.source.startswith("no report found"), name
    assert {*MISSED, *OTHER_PART, *INVALID} <= set(BUGS)


def test_the_page_has_every_bug() -> None:
    page = (ROOT / "docs" / "bug_zoo.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|", page, re.MULTILINE)
    assert [name for name, *_ in rows] == list(BUGS)
    for name, _, direction, fault, says in rows:
        assert direction == BUGS[name].direction, name
        assert fault == (BUGS[name].fault or "none"), name
        assert ("NOT REFUTED" in says) == (name in MISSED or BUGS[name].direction == MORE), name
        assert ("INVALID" in says) == (name in INVALID), name

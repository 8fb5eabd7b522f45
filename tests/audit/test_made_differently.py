"""Correct trainers made with other tools are not refuted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from replay_here import judged_here

from workbench.audit.replay.judging import Replayed

ZOO = Path(__file__).parents[1] / "zoo" / "made_differently.py"
TRAINERS = re.findall(r'^    "(\w+)": ', ZOO.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_a_correct_trainer_made_with_another_tool_is_not_refuted(name: str) -> None:
    found = judged_here(f"{ZOO}:{name}")
    assert isinstance(found, Replayed)
    assert found.verdict.kind == "NOT_REFUTED", found.verdict.sentence
    assert found.faults == ()
    assert 0.2 < found.lower < found.estimate < found.upper

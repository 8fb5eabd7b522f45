"""Files and sizes that a corpus cannot use: told in one line, and before memory runs out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.core import registry
from workbench.core.errors import InputError


def squad_file(folder: Path, ids: list[str]) -> Path:
    """A paragraph a question."""
    paragraphs: list[dict[str, Any]] = [
        {
            "context": f"Paragraph {number} tells of a mill.",
            "qas": [{"id": name, "question": "Of what?", "answers": [{"text": "a mill"}]}],
        }
        for number, name in enumerate(ids)
    ]
    path = folder / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "Mills", "paragraphs": paragraphs}]}))
    return path


def squad(path: Path) -> None:
    registry.create("corpus", "squad", size=2, seed=0, path=str(path), held_out=1, public=1)


def test_questions_of_one_name_are_refused(tmp_path: Path) -> None:
    path = squad_file(tmp_path, ["a", "b", "c", "b", "d"])
    with pytest.raises(InputError, match="must name each question once, got id 'b'"):
        squad(path)


def test_a_file_that_is_nested_too_deeply_is_no_bug(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is nested too deeply"):
        squad(path)


@pytest.mark.parametrize("corpus", ["clinical", "clinical_questions", "clinical_tasks"])
def test_no_generator_is_asked_for_more_than_a_machine_holds(corpus: str) -> None:
    with pytest.raises(InputError, match="size must be at most 10000000, got 1000000000"):
        registry.create("corpus", corpus, size=1_000_000_000, seed=0)

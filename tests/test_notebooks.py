"""The notebooks of docs/notebooks: they run, and show what their text says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"

SHOWN = {
    "audit.ipynb": (
        "<strong>REFUTED</strong>",
        "NOT_REFUTED",
        "<strong>PLANNED</strong>",
        "fault: accountant",
    ),
    "accountants.ipynb": (
        "<strong>BOUNDED</strong>",
        "1.8 REFUTED",
        "1.9 PROVEN",
        "<strong>REFUTED</strong>",
    ),
}

EXECUTE = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=600).execute()
nbformat.write(notebook, sys.argv[2])
"""


def test_every_notebook_is_executed() -> None:
    assert {path.name for path in FOLDER.glob("*.ipynb")} == set(SHOWN)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_and_shows_what_it_says(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXECUTE, str(FOLDER / name), str(tmp_path / name)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / name).read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    # Of a result, HTML stands for the notebook, and one line for the terminal.
    shown = json.dumps([output.get("text", output.get("data")) for output in outputs])
    assert [words for words in SHOWN[name] if words not in shown] == []


@pytest.mark.parametrize("name", SHOWN)
def test_no_outputs_are_kept(name: str) -> None:
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]

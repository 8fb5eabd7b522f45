"""docs/field.md: replay says again what the table says of Opacus, and the page is made from the results."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from replay_here import judged_here

from workbench.audit.replay.judging import Replayed

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "field"
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "field.json").read_text(encoding="utf-8"))
OPACUS = [name for name, row in RESULTS.items() if name.startswith("opacus_modes.py") and "verdict" in row]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPACUS)
def test_replay_says_again_what_the_table_says_of_opacus(name: str) -> None:
    pytest.importorskip("opacus")
    row = RESULTS[name]
    claim = re.search(r"--claim (\S+)", row["command"])
    assert claim is not None
    found = judged_here(f"{EXAMPLES / name}", claim=claim[1])
    assert isinstance(found, Replayed)
    assert found.verdict.kind == row["verdict"], found.verdict.sentence
    if row["verdict"] != "UNDECIDED":
        assert [fault.part for fault in found.faults] == row["parts"]


def test_the_table_has_every_row_that_ran() -> None:
    page = (ROOT / "docs" / "field.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)
    for name, row in RESULTS.items():
        assert (row["library"], row["mode"]) in rows, name
        assert f"`{row['command']}`" in page, name
        assert (EXAMPLES / name.partition(":")[0]).is_file()
    assert len(OPACUS) >= 10


def test_examples_have_the_functions_of_the_table() -> None:
    for name in RESULTS:
        path, _, function = name.partition(":")
        source = (EXAMPLES / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(records, seed", source, re.MULTILINE), name


def test_the_benchmark_lists_the_results() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import field
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    assert set(RESULTS) <= {row.function for row in field.ROWS}

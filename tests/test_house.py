"""The architecture that docs/design.md describes: who may know whom, and how much a file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import workbench
from workbench.core import registry
from workbench.studies.study import study_names

BENCH = Path(workbench.__file__).parent
ROOMS = ("attacks", "data", "mechanisms", "reports")
PLUGINS = {name for kind in ("mechanism", "attack", "study_report") for name in registry.entries(kind)} - {
    "generic"
}
"""Mechanisms, attacks, and papers (under whose names their reports are registered)."""

WORDS = {"loss", "trajectory"}
"""Those that are words of the field too; they may stand in a sentence, and be names of other things."""

ALSO = {"DP-Weights", "Shuffled DPSGD", "Shuffled-DPSGD"}
"""How the papers write their names, where that is not the registered name in other capitals."""


def bench_files() -> list[Path]:
    """Modules and templates of the bench, without the rooms that are installed below it."""
    found = [path for kind in ("*.py", "*.j2", "*.toml") for path in BENCH.rglob(kind)]
    return sorted(path for path in found if path.relative_to(BENCH).parts[0] not in ROOMS)


@pytest.mark.parametrize("path", bench_files(), ids=lambda path: str(path.relative_to(BENCH)))
def test_the_bench_names_no_mechanism_no_attack_and_no_paper(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    distinct = "|".join(map(re.escape, sorted((PLUGINS - WORDS) | ALSO)))
    found = re.findall(rf"(?<![\w-])(?:{distinct})(?![\w-])", text, flags=re.IGNORECASE)
    assert not found


def test_at_most_twelve_packages_with_a_duty_each() -> None:
    entries = [path for path in BENCH.iterdir() if path.suffix != ".typed" and path.name != "__pycache__"]
    own = [path for path in entries if path.name not in ROOMS]
    assert len(own) <= 12
    for package in own:
        if package.is_dir():
            duty = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
            assert duty, package.name


def modules() -> list[Path]:
    """All modules of the bench and the rooms."""
    specs = [find_spec(f"workbench.{room}") for room in ROOMS]
    rooms = [Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ()]
    return sorted({path.resolve() for place in (BENCH, *rooms) for path in place.rglob("*.py")})


def test_no_module_has_more_than_600_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert len(lengths) > 300
    assert not {str(path): length for path, length in lengths.items() if length > 600}


def test_no_module_begins_with_an_underscore() -> None:
    assert not [path for path in modules() if re.match(r"_[a-z]", path.name)]


def test_only_one_module_starts_a_pool_of_processes() -> None:
    starts = re.compile(r"ProcessPoolExecutor|multiprocessing.Pool|get_context\(|\.Process\(")
    found = [path.name for path in modules() if starts.search(path.read_text(encoding="utf-8"))]
    assert found == ["pool.py"]


@pytest.mark.parametrize(
    "study",
    [pytest.param(name, marks=() if name == "rldp" else pytest.mark.slow) for name in study_names()],
)
def test_a_dry_run_imports_its_own_paper_alone(study: str, tmp_path: Path) -> None:
    words = ["run", study, "--dry-run", "--try-for", "0", "--quiet", "--out", str(tmp_path / "out")]
    program = (
        "import sys; from workbench.cli.app import main; code = main(sys.argv[1:])\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] == 'workbench'), sep='\\n')\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    imported = done.stdout.splitlines()
    assert len(imported) < 200
    reports = {name.split(".")[3] for name in imported if name.startswith("workbench.reports.papers.")}
    assert reports <= {study.removesuffix("_ablation")}


def test_a_papers_folder_has_at_most_eight_modules() -> None:
    spec = find_spec("workbench.reports.papers")
    assert spec is not None
    (place,) = spec.submodule_search_locations or ()
    folders = [path for path in Path(place).iterdir() if (path / "report.toml").is_file()]
    assert len(folders) == 5
    assert max(len(list(path.glob("*.py"))) for path in folders) <= 8

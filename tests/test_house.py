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


def rooms() -> dict[str, Path]:
    """The folder of each room."""
    specs = {room: find_spec(f"workbench.{room}") for room in ROOMS}
    return {
        room: Path(place)
        for room, spec in specs.items()
        if spec
        for place in spec.submodule_search_locations or ()
    }


def modules() -> list[Path]:
    """All modules of the bench and the rooms."""
    return sorted({path.resolve() for place in (BENCH, *rooms().values()) for path in place.rglob("*.py")})


def test_no_module_has_more_than_600_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert len(lengths) > 300
    assert not {str(path): length for path, length in lengths.items() if length > 600}


def imports_of(path: Path, names: dict[str, Path]) -> tuple[set[str], set[str]]:
    """Modules of ours that a module imports when it is imported, and those that it imports in functions."""
    early: set[str] = set()
    late: set[str] = set()

    def visit(node: ast.AST, kept: set[str]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                kept.update(alias.name for alias in child.names if alias.name in names)
            elif isinstance(child, ast.ImportFrom):
                found = {(f"{child.module}.{alias.name}", str(child.module)) for alias in child.names}
                kept.update(whole if whole in names else part for whole, part in found if part in names)
            visit(child, late if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else kept)

    visit(ast.parse(path.read_text(encoding="utf-8")), early)
    return early, late


def name_of(path: Path) -> str:
    """The name under which a module of the bench or of a room is imported."""
    places = {BENCH.resolve(): "workbench"} | {
        place.resolve(): f"workbench.{room}" for room, place in rooms().items()
    }
    place = next(place for place in reversed(places) if path.is_relative_to(place))
    parts = path.relative_to(place).with_suffix("").parts
    return ".".join((places[place], *(part for part in parts if part != "__init__")))


@pytest.mark.slow
def test_no_imports_go_in_circles_and_no_function_hides_one() -> None:
    files = {name_of(path): path for path in modules()}
    imports = {name: imports_of(path, files) for name, path in files.items()}
    below: dict[str, set[str]] = {}
    for name in files:
        below[name], waiting = set(), [*imports[name][0]]
        while waiting:
            if (imported := waiting.pop()) not in below[name]:
                below[name].add(imported)
                waiting += imports[imported][0]
    assert not [name for name in files if name in below[name]]
    hidden = [(name, late) for name in files for late in imports[name][1] if name in below[late] | {late}]
    assert not hidden


def test_no_module_begins_with_an_underscore() -> None:
    assert not [path for path in modules() if re.match(r"_[a-z]", path.name)]


def test_only_one_module_starts_a_pool_of_processes() -> None:
    starts = re.compile(r"ProcessPoolExecutor|multiprocessing.Pool|get_context\(|\.Process\(")
    found = [path.name for path in modules() if starts.search(path.read_text(encoding="utf-8"))]
    assert found == ["pool.py"]


@pytest.mark.slow
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
    # Without the accounting, which all papers share.
    assert sum(not name.startswith("workbench.accounting") for name in imported) < 180
    reports = {name.split(".")[3] for name in imported if name.startswith("workbench.reports.papers.")}
    assert reports <= {study.removesuffix("_ablation")}


def test_a_papers_folder_has_at_most_eight_modules() -> None:
    spec = find_spec("workbench.reports.papers")
    assert spec is not None
    (place,) = spec.submodule_search_locations or ()
    folders = [path for path in Path(place).iterdir() if (path / "report.toml").is_file()]
    assert len(folders) == 5
    assert max(len(list(path.glob("*.py"))) for path in folders) <= 8

"""Forced replay of public DP training libraries, each in its own minimal example: the table of docs/field.md.

    python benchmarks/field.py --packages FOLDER

A row whose library cannot be imported keeps its earlier result. Libraries that are not installed are looked
for in FOLDER/NAME, where `pip install --no-deps --target FOLDER/NAME NAME` puts them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from shared import RESULTS, page

ROOT = Path(__file__).parents[1]
EXAMPLES = Path("docs") / "examples" / "field"
ADJACENCY = "add-remove"

STATE = """
import importlib.util, json, sys
from dataclasses import replace
from pathlib import Path
import workbench.core.outputs
from workbench.audit.settings import embedded_settings
from workbench.audit.user_training import as_dicts
from workbench.training.setup import prepare

path, name, corpus, candidates = sys.argv[1:]
sys.path.append(str(Path(path).parent))
spec = importlib.util.spec_from_file_location("example", path)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
settings = embedded_settings(corpus=corpus, corpus_parameters={}, candidates=int(candidates))
records, _ = prepare(replace(settings, seed=0).setup(()))
made = getattr(example, name)(as_dicts(records), 1)
stated = {key: getattr(made, key) for key in ("epsilon", "noise_multiplier", "clip", "divisor")}
print("STATED " + json.dumps({key: None if value is None else float(value) for key, value in stated.items()}))
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One example under replay.

    Attributes:
        library: Name and version.
        mode: What of the library is used.
        function: `FILE.py:FUNCTION` in `docs/examples/field`.
        package: The module that must be there, and the folder of `--packages` that it may be in.
        folder: That folder, where its name is not the module's.
        words: Further words of the command.
        corpus, candidates: The records.
    """

    library: str
    mode: str
    function: str
    package: str
    folder: str = ""
    corpus: str = "digits"
    candidates: int = 200

    @property
    def words(self) -> list[str]:
        """Of the command: the records, where they are not the default's."""
        made = [] if self.corpus == "digits" else ["--corpus", self.corpus]
        return made + ([] if self.candidates == 200 else ["--candidates", str(self.candidates)])


def _opacus(mode: str, function: str) -> Row:
    return Row(library="opacus 1.6.0", mode=mode, function=f"opacus_modes.py:{function}", package="opacus")


ROWS = (
    _opacus("hooks, flat clipping, Poisson", "hooks"),
    _opacus("make_private_with_epsilon", "with_epsilon"),
    _opacus("RDP accountant", "rdp_accountant"),
    _opacus("GDP accountant", "gdp_accountant"),
    _opacus("functorch", "functorch"),
    _opacus("expanded weights", "expanded_weights"),
    _opacus("ghost clipping", "ghost"),
    _opacus("hooks, model not wrapped", "hooks_unwrapped"),
    _opacus("per-layer clipping", "per_layer"),
    _opacus("adaptive clipping", "adaptive"),
    _opacus("poisson_sampling=False", "shuffled"),
    _opacus("BatchMemoryManager", "memory_manager"),
    _opacus("BatchMemoryManager, ghost clipping", "ghost_memory_manager"),
    _opacus("noise scheduler", "noise_schedule"),
    _opacus("clipping scheduler", "clip_schedule"),
    _opacus("rand_on_empty", "rand_on_empty"),
    Row(
        library="fastDP 2.0.0",
        mode="README, loader shuffled",
        function="fastdp_engine.py:shuffled",
        package="fastDP",
    ),
    Row(
        library="fastDP 2.0.0",
        mode="the same, Poisson",
        function="fastdp_engine.py:poisson",
        package="fastDP",
    ),
    Row(
        library="fastDP 2.0.0",
        mode="Abadi's clipping, ghost, Poisson",
        function="fastdp_engine.py:abadi",
        package="fastDP",
    ),
    Row(
        library="fastDP 2.0.0",
        mode="layer-wise clipping, Poisson",
        function="fastdp_engine.py:layer_wise",
        package="fastDP",
    ),
    Row(
        library="fastDP 2.0.0",
        mode="param-wise clipping, Poisson",
        function="fastdp_engine.py:param_wise",
        package="fastDP",
    ),
    Row(
        library="private-transformers 0.2.3",
        mode="digits, shuffled",
        function="private_transformers_engine.py:shuffled",
        package="private_transformers",
    ),
    Row(
        library="private-transformers 0.2.3",
        mode="digits, Poisson",
        function="private_transformers_engine.py:poisson",
        package="private_transformers",
    ),
    Row(
        library="private-transformers 0.2.3",
        mode="README, digits, Poisson",
        function="private_transformers_engine.py:readme",
        package="private_transformers",
    ),
    Row(
        library="private-transformers 0.2.3",
        mode="digits, ghost, Poisson",
        function="private_transformers_engine.py:ghost",
        package="private_transformers",
    ),
    Row(
        library="deepee 0.1.9",
        mode="wrapper and watchdog",
        function="deepee_wrapper.py:train",
        package="deepee",
    ),
    Row(
        library="deepee 0.1.9",
        mode="the same, argument seed",
        function="deepee_wrapper.py:seeded",
        package="deepee",
    ),
    Row(
        library="easy-dp 0.1.0", mode="README, Poisson", function="easy_dp_engine.py:train", package="easy_dp"
    ),
    Row(
        library="opacus-dpcr 1.0.0",
        mode="default engine",
        function="opacus_dpcr_engine.py:train",
        package="opacus_dpcr",
    ),
    Row(
        library="pyvacy 0.0.32",
        mode="README, loader shuffled",
        function="pyvacy_sgd.py:train",
        package="pyvacy",
    ),
    Row(
        library="opake 0.16.1", mode="functional loop", function="opake_functional.py:train", package="opake"
    ),
)


def environment(row: Row, packages: Path | None) -> dict[str, str]:
    """The variables of a row's processes: its library before all others, one thread, no warnings."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "0"}
    if packages is not None and (folder := packages / (row.folder or row.package)).is_dir():
        found["PYTHONPATH"] = str(folder)
    return found


def is_there(row: Row, packages: Path | None) -> bool:
    """Whether the row's library can be found."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({row.package!r}) is None)"
    return not subprocess.run(
        [sys.executable, "-c", code], env=environment(row, packages), check=False
    ).returncode


def stated(row: Row, packages: Path | None) -> dict[str, Any]:
    """What the library states of its own run: epsilon, noise multiplier, clip, divisor.

    Raises:
        RuntimeError: the example fails.
    """
    path, _, name = row.function.partition(":")
    words = [sys.executable, "-c", STATE, str(ROOT / EXAMPLES / path), name, row.corpus, str(row.candidates)]
    done = subprocess.run(words, env=environment(row, packages), capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("STATED "):
            return dict(json.loads(line.removeprefix("STATED ")))
    raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])


def command(row: Row, epsilon: float) -> list[str]:
    """The words of the row's replay."""
    claim = f"epsilon={epsilon:.5g},delta=1e-5,adjacency={ADJACENCY}"
    return ["replay", f"{EXAMPLES.as_posix()}/{row.function}", "--claim", claim, *row.words]


def measured(row: Row, packages: Path | None) -> dict[str, Any]:
    """One row of the table, from a run of its command."""
    form: dict[str, Any] = {"library": row.library, "mode": row.mode, "function": row.function}
    try:
        says = stated(row, packages)
    except RuntimeError as failure:
        return {**form, "fails": str(failure)[:200]}
    words = command(row, says["epsilon"] or 1.0)
    form |= {"stated": says, "command": shlex.join(["workbench", *words])}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [sys.executable, "-m", "workbench.cli", *words, "--quiet", "--out", folder],
            env=environment(row, packages),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.is_file():
            return {**form, "fails": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
        replay = json.loads(report.read_text(encoding="utf-8"))["replay"]
    return {**form, **of_replay(replay, says)}


def of_replay(replay: dict[str, Any], says: dict[str, Any]) -> dict[str, Any]:
    """The columns that a replay's report gives, beside what the library states."""
    verdict = replay["verdict"]
    found: dict[str, Any] = {
        "verdict": verdict["kind"],
        "sentence": verdict["sentence"],
        "seconds": float(replay["cost"]["seconds"]),
    }
    if "sampler" not in replay:
        return found
    found |= {name: float(replay[name]) for name in ("lower", "estimate", "upper", "multiplier")}
    sampler = replay["sampler"]
    found |= {
        "sampler": sampler["kind"],
        "rate": float(sampler["rate"]),
        "batches": int(sampler["batches"]),
        "steps": int(replay["steps"]),
        "parts": [fault["part"] for fault in replay["faults"]],
        "moves": bool(replay["noise_steps"]),
        "schedule": bool(replay["is_schedule"]),
    }
    noise = [float(value) for value in replay["noise"].values() if float(value) > 0]
    present = np.array(replay["present"], dtype=bool)
    added = np.array(replay["added"], dtype=float)
    used = added[present[: len(added)]]
    if says["clip"] and says["divisor"] and noise and not found["moves"]:
        over = float(np.median(noise)) * says["divisor"] / says["clip"]
        found["noise_over_clip"] = over
        if used.size and np.isfinite(used).all():
            found["added_over_clip"] = over * float(used.max())
    return found


def main() -> None:
    """Run the rows that are asked for, and write results and page after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--packages", type=Path, help="folder of libraries that are not installed")
    parser.add_argument("--only", default="", help="rows whose function or library has this in it")
    parser.add_argument("--again", action="store_true", help="also rows that have a result")
    chosen = parser.parse_args()
    path = RESULTS / "field.json"
    known = json.loads(path.read_text()) if path.is_file() else {}
    for row in ROWS:
        has = not chosen.again and "verdict" in known.get(row.function, {})
        if chosen.only not in f"{row.function} {row.library}" or has or not is_there(row, chosen.packages):
            continue
        found = measured(row, chosen.packages)
        known = json.loads(path.read_text()) if path.is_file() else {}
        known[row.function] = found
        shown = known[row.function]
        print(row.function, shown.get("fails") or shown["sentence"], flush=True)
        _write(path, known)
    _write(path, known)


def _write(path: Path, known: dict[str, Any]) -> None:
    order = [row.function for row in ROWS]
    rows = {name: known[name] for name in sorted(known, key=order.index) if name in order}
    path.write_text(json.dumps(rows, indent=1) + "\n")
    (ROOT / "docs" / "field.md").write_text(page("field", {"rows": list(rows.values())}))


if __name__ == "__main__":
    main()

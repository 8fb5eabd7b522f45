"""What the bench carries: many scores in one file, and many experiments in one study, to their end.

Each row is a command in a process of its own: its processor time with that of its workers, and the highest
memory of any one process of it. `python benchmarks/limits.py` takes about an hour and writes each row as it
is done; rows that are there already are left, so that it goes on where it was stopped. Results go to
`benchmarks/results/limits.json` and to the tables of docs/limits.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "limits.md"
FILE = Path(__file__).parent / "results" / "limits.json"
CLAIM = "epsilon=4,delta=1e-5,adjacency=add-remove"
STUDY = """schema = 1
title = "Load"
replication = "seed"
[base]
corpus = "digits"
model = "digits_logistic"
attack = "loss"
members = 20
epochs = 1
batch_size = 10
optimizer = "sgd"
learning_rate = 0.5
[lists]
seeds = [{seeds}]
[profile.quick]
[variant."Not private"]
mechanism = "non_private"
[[group]]
name = "load"
grid = {{ seed = "$seeds" }}
"""


def measured(words: list[str]) -> dict[str, Any]:
    """Run the command line; it must end with a verdict or a result."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench.cli", *words], env=environment, stdout=said, stderr=said
        )
        _, status, usage = os.wait4(process.pid, 0)
        said.seek(0)
        if (code := os.waitstatus_to_exitcode(status)) not in (0, 1):
            raise SystemExit(f"{' '.join(words)}: exit code {code}: {said.read()[-500:]}")
    # A child begins as large as this process, so that nothing large is imported here.
    wall = time.perf_counter() - started
    return {"cpu": usage.ru_utime + usage.ru_stime, "wall": wall, "memory": usage.ru_maxrss / 2**20}


def scores(count: int, kind: str) -> dict[str, Any]:
    """Judge so many scores, a third of a standard deviation apart."""
    generator = np.random.default_rng(count)
    members = generator.random(count) < 0.5
    values = generator.normal(size=count) + members / 3
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"scores.{kind}"
        if kind == "csv":
            np.savetxt(
                place,
                np.column_stack([values, members]),
                fmt=["%.6f", "%d"],
                delimiter=",",
                header="score,member",
                comments="",
            )
        else:
            np.savez(place, score=values, member=members)
        words = ["audit", "--scores", str(place), "--claim", CLAIM, "--out", f"{folder}/out", "--quiet"]
        found = measured(words)
        report = sum(file.stat().st_size for file in Path(folder, "out").glob("report*"))
        return {**found, "file": place.stat().st_size / 2**20, "report": report / 2**20}


def experiments(count: int) -> dict[str, Any]:
    """Run a study of so many experiments, and report it."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "load.toml"
        study.write_text(STUDY.format(seeds=", ".join(map(str, range(count)))))
        out = ["--out", f"{folder}/out"]
        ran = measured(["run", str(study), *out, "--workers", "2"])
        reported = measured(["report", str(study), *out])
        kept = sum(file.stat().st_size for file in Path(folder, "out").rglob("*") if file.is_file())
        return {"run": ran, "report": reported, "kept": kept / 2**20}


ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "100,000 scores, CSV": lambda: scores(100_000, "csv"),
    "1,000,000 scores, NPZ": lambda: scores(1_000_000, "npz"),
    "1,000,000 scores, CSV": lambda: scores(1_000_000, "csv"),
    "10,000,000 scores, NPZ": lambda: scores(10_000_000, "npz"),
    "10,000,000 scores, CSV": lambda: scores(10_000_000, "csv"),
    "1,000 experiments": lambda: experiments(1_000),
    "10,000 experiments": lambda: experiments(10_000),
}


def table(rows: dict[str, Any]) -> list[str]:
    """The lines of the page's two tables."""
    lines = [
        "| scores in one file | file | processor time | highest memory | report |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "file" in row:
            what, kind = name.split(" scores, ")
            lines.append(
                f"| {what} | {kind}, {row['file']:.0f} MiB | {row['cpu']:.1f} s | {row['memory']:.2f} GiB | "
                f"{row['report']:.1f} MiB |"
            )
    lines += [
        "",
        "| experiments in one study | processor time of the run | of its report | memory | kept on disk |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "run" in row:
            memory = max(row["run"]["memory"], row["report"]["memory"])
            lines.append(
                f"| {name.split()[0]} | {row['run']['cpu']:,.0f} s | {row['report']['cpu']:,.0f} s | "
                f"{memory:.2f} GiB | {row['kept']:,.0f} MiB |"
            )
    return lines


def main() -> None:
    """Measure the rows that are not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=list(ROWS), help="these rows anew; may be repeated"
    )
    only = parser.parse_args().only
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"rows": {}}
    for name, row in ROWS.items():
        if name in only if only else name not in kept["rows"]:
            print(f"{name}: {time.strftime('%H:%M:%S')}", flush=True)
            kept["rows"][name] = row()
            kept["machine"] = {
                "system": platform.system(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "load_average_at_end": os.getloadavg()[0],
            }
            kept["rows"] = {key: kept["rows"][key] for key in ROWS if key in kept["rows"]}
            FILE.write_text(json.dumps(kept, indent=1) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index("| scores in one file"), text.index("\n| fault |")
    PAGE.write_text(text[:start] + "\n".join(table(kept["rows"])) + "\n" + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()

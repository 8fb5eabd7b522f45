"""What a command costs before it works: `workbench --help` against an import of Typer and Rich, in turn.

CPU seconds of a fresh process, the least of several, so that neither a cold cache nor a busy machine decides;
the median wall time of importing the accounting, beside dp-accounting (less that of a bare interpreter);
and how many modules of ours a dry run of each shipped study imports.

`python benchmarks/startup.py` takes about three minutes. Results go to `benchmarks/results/startup.json`.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workbench.studies.study import study_names

RESULTS = Path(__file__).parent / "results" / "startup.json"
PEER = ("-c", "import typer, rich")
COMMANDS = {
    "workbench --help": ("-m", "workbench.cli", "--help"),
    "workbench audit --help": ("-m", "workbench.cli", "audit", "--help"),
    "workbench list attacks": ("-m", "workbench.cli", "list", "attacks"),
}
IMPORTS = {
    "from workbench.accounting import epsilon": "from workbench.accounting import epsilon",
    "import dp_accounting": "import dp_accounting",
    "bare interpreter": "",
}
COUNT = (
    "import sys; from workbench.cli.app import main; main(sys.argv[1:]); "
    "print(sum(name.split('.')[0] == 'workbench' for name in sys.modules))"
)


def cpu_seconds(words: tuple[str, ...]) -> float:
    """CPU time of one process of this interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def import_seconds(repeats: int) -> dict[str, float]:
    """Median wall time of each import, less that of a bare interpreter; the kinds of process take turns."""
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(repeats):
        for name, code in IMPORTS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(found) for name, found in times.items()}
    bare = medians.pop("bare interpreter")
    return {name: median - bare for name, median in medians.items()}


def modules_of_a_dry_run(study: str) -> int:
    """How many modules of ours are imported before an experiment would start."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", study, "--dry-run", "--try-for", "0", "--quiet", "--out", str(Path(folder) / "out")]
        done = subprocess.run(
            [sys.executable, "-c", COUNT, *words], check=True, capture_output=True, text=True
        )
    return int(done.stdout.split()[-1])


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=15, help="processes of each kind")
    given = parser.parse_args()
    peer, ours = [], {name: [] for name in COMMANDS}  # type: ignore[var-annotated]
    for _ in range(given.repeats):
        peer.append(cpu_seconds(PEER))
        for name, words in COMMANDS.items():
            ours[name].append(cpu_seconds(words))
    imports = import_seconds(given.repeats)
    ours_first, theirs = imports.values()
    report = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "peer": {"command": 'python -c "import typer, rich"', "cpu_seconds": min(peer)},
        "ratios": {name: min(times) / min(peer) for name, times in ours.items()},
        "imports": {"wall_seconds": imports, "ratio": ours_first / theirs},
        "modules_of_a_dry_run": {study: modules_of_a_dry_run(study) for study in study_names()},
    }
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

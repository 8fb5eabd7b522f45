"""A study says the same, to the last bit, whatever number of threads its user's machine gives a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench.execution.store import Store
from workbench.studies.results import read_results
from workbench.studies.study import load_study

STUDY = """
schema = 1
title = "Verdicts by number of threads"
paper = "dp_weights"
report = "dp_weights"
replication = "seed"

[base]
attack = "loss"
attack_parameters = {{ score = "confidence", canaries = 0.0 }}
corpus = "docstrings"
model = "micro_base"
model_parameters = {{ max_length = 12 }}
adapter = "full"
optimizer = "adamw"
learning_rate = 1e-2
members = 100
batch_size = 100
delta = "1/N^2"

[variant."DP-SGD"]
mechanism = "dp_sgd"
mechanism_parameters = {{ micro_batch_size = 128, measures_quality = false }}
sampling = "poisson"

[variant."DP-Weights"]
mechanism = "dp_weights"
mechanism_parameters = {{ micro_batch_size = 128, measures_quality = false, form = "appendix" }}
sampling = "shuffled"

[variant."Fine-tuned"]
mechanism = "non_private"
mechanism_parameters = {{ micro_batch_size = 128, measures_quality = false }}
sampling = "shuffled"
without = ["epsilon"]

[[group]]
name = "epochs"
grid = {{ epochs = {epochs}, epsilon = [1, 1000], seed = [0, 1, 2] }}
"""

THREADS = (1, 2)


def run(folder: Path, threads: int) -> None:
    """Run the study in one process of so many threads, and report it."""
    words = ["--out", f"o{threads}"]
    code = (
        "import sys, torch\n"
        "from workbench.cli.app import main\n"
        f"torch.set_num_threads({threads})\n"
        f"assert torch.get_num_threads() == {threads}\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    number = str(threads)
    env = {**os.environ, "OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number}
    for command in (["run", "threads.toml", "--workers", "0", *words], ["report", "threads.toml", *words]):
        subprocess.run([sys.executable, "-c", code, *command], cwd=folder, env=env, check=True, timeout=1800)


def numbers(folder: Path, threads: int) -> dict[str, Any]:
    """Metrics and scores by experiment, as the store has them."""
    study = load_study(str(folder / "threads.toml"))
    done = read_results(study, Store(folder / f"o{threads}" / "store")).done()
    return {outcome.experiment.name: (dict(outcome.metrics), outcome.scores) for outcome in done}


@pytest.mark.slow
def test_verdicts_and_numbers_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    (tmp_path / "threads.toml").write_text(STUDY.format(epochs=[1, 5, 10, 20]), encoding="utf-8")
    for threads in THREADS:
        run(tmp_path, threads)
    first, second = (numbers(tmp_path, threads) for threads in THREADS)
    assert len(first) == 60
    assert first == second
    reports = [
        json.loads((tmp_path / f"o{threads}" / "report" / "report.json").read_text(encoding="utf-8"))
        for threads in THREADS
    ]
    findings = [
        [(one["id"], one["outcome"], one["figures"]) for one in form["report"]["findings"]]
        for form in reports
    ]
    assert findings[0] == findings[1]
    assert {"replicated", "not replicated"} & {outcome for _, outcome, _ in findings[0]}

"""A small study of real trainings, and a process that runs it and can be killed; used by the study tests.

As a script: `study_driver.py FOLDER SEEDS PARENTS WORKERS [RECORDS:DELAY ...]`. For each RECORDS:DELAY the
study is started, and killed DELAY seconds after the store has got so many more records; then PARENTS of them
run it to the end at the same time, and the results are printed. The children are forked from a process that
has imported everything already.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workbench.core.errors import InputError
from workbench.core.keys import canonical
from workbench.execution.store import Store
from workbench.studies.costs import CostEstimate, probe
from workbench.studies.experiments import Experiment, Study, StudyResults
from workbench.studies.jobs import jobs_of
from workbench.studies.results import Pending, read_results
from workbench.studies.run import RunOptions, run_study


def experiment(**changes: Any) -> Experiment:
    """A quick experiment on images, unless the changes say otherwise."""
    fields: dict[str, Any] = {
        "group": "all",
        "variant": "DP-Weights",
        "mechanism": "dp_weights",
        "attack": "loss",
        "attack_parameters": {"canaries": 0.0},
        "corpus": "digits",
        "model": "digits_logistic",
        "members": 40,
        "epochs": 2,
        "batch_size": 10,
        "learning_rate": 0.01,
        "seed": 0,
        "epsilon": 8.0,
        "delta": 1e-4,
    }
    return Experiment(**{**fields, **changes})


def study_of(*experiments: Experiment) -> Study:
    """A study without a file."""
    return Study(
        name="sample",
        title="A sample",
        profile="quick",
        replication="seed",
        experiments=experiments,
        source_sha256="0" * 64,
    )


def training_key(experiment: Experiment) -> str:
    """Key of the subject that an experiment attacks.

    Raises:
        InputError: the experiment cannot be prepared, or its attack trains by itself.
    """
    jobs = jobs_of(experiment)
    if jobs.refusal is not None:
        raise InputError(f"{experiment.name}: {jobs.refusal.message}")
    if not jobs.trainings:
        raise InputError(f"{experiment.name}: attack {experiment.attack!r} attacks no shared training")
    return jobs.trainings[0].key


def all_jobs(study: Study) -> Pending:
    """Every job of a study, each once, as a store that has none of them says it."""
    every = [jobs for jobs in map(jobs_of, study.experiments) if jobs.refusal is None]
    trainings = {job.key: job for jobs in every for job in jobs.trainings}
    measurings = {jobs.measuring.key: jobs.measuring for jobs in every}
    return Pending(
        trainings=tuple(trainings.values()), measurings=tuple(measurings.values()), done=0, failed=0
    )


def probed(study: Study, **settings: Any) -> CostEstimate:
    """What a study costs that no store has anything of; see `probe`."""
    with TemporaryDirectory() as folder, closing(Store(Path(folder))) as store:
        return probe(store, all_jobs(study), **settings)


def sample_study(seeds: int = 2) -> Study:
    """Shared trainings, own trainings, no budget, one that diverges, and one that cannot be prepared."""
    rows: list[dict[str, Any]] = [{"epsilon": epsilon} for epsilon in (1.0, 8.0, 64.0)]
    rows += [{"variant": "DP-SGD", "mechanism": "dp_sgd", "epsilon": epsilon} for epsilon in (1.0, 8.0)]
    plain: dict[str, Any] = {"mechanism": "non_private", "epsilon": None, "delta": None}
    rows += [
        {**plain, "variant": "fine-tuned"},
        {**plain, "variant": "diverges", "learning_rate": 1e38, "optimizer": "sgd"},
        {**plain, "variant": "too large", "members": 1000},
    ]
    return study_of(*(experiment(**row, seed=seed) for seed in range(seeds) for row in rows))


def text_of(results: StudyResults) -> str:
    """Everything of the results but their cost, one outcome a line."""
    lines = []
    for outcome in results.outcomes:
        form = {name: getattr(outcome, name) for name in ("key", "status", "metrics", "scores", "included")}
        lines.append(canonical({**form, "claim": outcome.claim, "error": outcome.error}))
    return "\n".join(lines) + "\n"


def _run(folder: Path, seeds: int, workers: int) -> int:
    """Run the study in a forked child; the child's process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        run_study(sample_study(seeds), out=folder, options=RunOptions(workers=workers))
        code = 0
    finally:
        os._exit(code)


def _warm_up() -> None:
    """Import what a training imports, so that the children's time goes into the study."""
    import torch

    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        run_study(study_of(experiment()), out=Path(place), options=RunOptions(workers=0))


def _killed(folder: Path, seeds: int, workers: int, moment: str) -> tuple[bool, bool]:
    """Run, and kill at a moment: whether the run was still going on then, and whether a job was under way."""
    more, delay = int(moment.partition(":")[0]), float(moment.partition(":")[2])
    records, scratch = folder / "store" / "records", folder / "store" / "scratch"
    wanted = len(list(records.glob("*"))) + more
    before = set(scratch.glob("*"))
    child = _run(folder, seeds, workers)
    while len(list(records.glob("*"))) < wanted:
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended:
            return False, False
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(child, signal.SIGSTOP)
    at_work = any(path.is_dir() for own in set(scratch.glob("*")) - before for path in own.glob("*"))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    was_alive = os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return was_alive, was_alive and at_work


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    folder = Path(arguments[0])
    seeds, parents, workers = map(int, arguments[1:4])
    _warm_up()
    kills = [_killed(folder, seeds, workers, moment) for moment in arguments[4:]]
    children = [_run(folder, seeds, workers) for _ in range(parents)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    cut_short, at_work = (sum(column) for column in zip(*kills, strict=True)) if kills else (0, 0)
    print(f"killed before their end: {cut_short}, with a job under way: {at_work}", file=sys.stderr)
    sys.stdout.write(text_of(read_results(sample_study(seeds), Store(folder / "store"))))
    return max(map(abs, codes), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

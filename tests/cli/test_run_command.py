"""`workbench run`: plan, cost, work, resumption, exit codes, and that a mistake leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import run as run_command
from workbench.cli.app import main
from workbench.cli.run import RunCommandOptions, command_line
from workbench.core.errors import InconclusiveError
from workbench.execution.tasks import Finished, Notice, Started, Stepped, Task
from workbench.studies import costs, running
from workbench.studies import run as study_run
from workbench.studies.run import Skipped

TINY = """
schema = 1
title = "Noise against utility, on [digits]"
replication = "seed"

[base]
attack = "loss"
corpus = "digits"
model = "digits_logistic"
members = 30
epochs = 2
batch_size = 10
learning_rate = 0.05
delta = "1/N^2"

[lists]
seeds = [0, 1]

[profile.quick]
lists = { seeds = [0] }

[profile.other]

[variant."DP-SGD"]
mechanism = "dp_sgd"

[variant."Not private"]
mechanism = "non_private"
without = ["epsilon"]

[[group]]
name = "budget"
grid = { epsilon = [8], seed = "$seeds" }

[[group]]
name = "batch size"
set = { epsilon = 8 }
grid = { batch_size = [10, 15], seed = "$seeds" }
"""
"""The groups share two of four experiments a seed; each experiment has a training of its own."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["run", *words.split()])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(out: str) -> dict[str, list[int]]:
    """Numbers of the plan's rows, by what stands before them."""
    found = re.findall(r"^ (\S.*?) {2,}(\d+) +(\d+) +(\d+) +(\d+) *$", out, flags=re.MULTILINE)
    return {re.sub(r" {2,}", " / ", name): list(map(int, numbers)) for name, *numbers in found}


def test_a_study_is_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("tiny.toml --workers 0 --json first.json", capsys)
    assert code == 0
    assert "tiny (quick): Noise against utility, on [digits]" in out
    assert rows(out) == {
        "budget / DP-SGD": [1, 1, 0, 0],
        "budget / Not private": [1, 1, 0, 0],
        "batch size / DP-SGD": [2, 2, 0, 0],
        "batch size / Not private": [2, 2, 0, 0],
        "in all": [4, 4, 0, 0],
    }
    assert "What rows share is counted once in all." in out
    assert "Cost: not known yet" in out
    assert re.search(r"Done: 4 experiments, 4 trainings, in \d", out)
    assert out.splitlines()[-1] == "To go on: workbench report tiny.toml"
    lines = err.splitlines()
    assert all(line.isprintable() for line in lines)
    assert lines[-1].startswith("tiny (quick): trainings 4/4, measurings 4/4")
    form = json.loads(Path("first.json").read_text())
    assert form["totals"] == {"trainings": 4, "measurings": 4, "done": 0, "failed": 0}
    assert (form["outcome"]["done"], form["outcome"]["trained"], form["outcome"]["failures"]) == (4, 4, [])
    assert form["study"]["profile"] == "quick"

    before = files_of(tmp_path / "studies" / "tiny" / "store")
    code, out, err = run("tiny.toml --workers 0", capsys)
    assert (code, err) == (0, "")
    assert rows(out)["in all"] == [0, 0, 4, 0]
    assert "No work to do; 4 were done before" in out
    assert files_of(tmp_path / "studies" / "tiny" / "store") == before

    code, out, _ = run("tiny.toml --profile other --only batch_size=10 --dry-run", capsys)
    assert code == 0
    assert rows(out)["in all"] == [2, 2, 2, 0]
    assert re.search(
        r"Cost: .* of one core, about .* with \d workers? \(measured from 8 earlier records\)", out
    )
    assert files_of(tmp_path / "studies" / "tiny" / "store") == before


def test_a_part_of_a_study_and_then_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    part = "tiny.toml --workers 0 --out mine"
    code, out, _ = run(f"{part} --only variant=DP-SGD --only batch_size=15", capsys)
    assert code == 0
    assert rows(out) == {"batch size / DP-SGD": [1, 1, 0, 0]}
    assert "To go on: workbench report tiny.toml --out mine --only variant=DP-SGD --only batch_size=15" in out
    code, out, _ = run(f"{part} --limit 1", capsys)
    assert code == 0
    assert rows(out) == {"budget / DP-SGD": [1, 1, 0, 0]}
    code, out, _ = run(part, capsys)
    assert (code, rows(out)["in all"]) == (0, [2, 2, 2, 0])
    assert sorted(path.name for path in Path().iterdir()) == ["mine", "tiny.toml"]


def test_a_dry_run_tries_a_few_steps_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("tiny.toml --dry-run --workers 3", capsys)
    assert (code, err) == (0, "")
    assert re.search(r"Cost: .* of one core, about .* with 3 workers \(measured by trying a few steps\)", out)
    assert "Done" not in out
    assert [path.name for path in Path().iterdir()] == ["tiny.toml"]


def test_a_dry_run_tries_for_as_long_as_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("tiny.toml --dry-run --try-for 0", capsys)
    assert code == 0
    assert "not tried: the 0 seconds for trying were over (--try-for)" in out
    code, out, _ = run("tiny.toml --dry-run --try-for 60", capsys)
    assert code == 0
    assert "measured by trying a few steps" in out


def test_a_dry_run_says_what_it_cannot_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def untried(*asked: Any, seconds: float) -> costs.CostEstimate:
        return costs.estimate(*asked)

    monkeypatch.setattr(costs, "probe", untried)
    code, out, _ = run("tiny.toml --dry-run", capsys)
    assert code == 0
    assert "Cost: not known yet" in out
    assert "not counted: 2 x training of dp_sgd on digits_logistic: nothing comparable was run yet" in out


@pytest.mark.slow
def test_failures_are_recorded_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Digits has no 900 members with as many non-members beside its held-out records; a worker finds out."""
    monkeypatch.setattr(running, "check_records", lambda study: None)
    text = TINY.replace("batch_size = [10, 15]", "members = [30, 900]")
    Path("tiny.toml").write_text(text, encoding="utf-8")
    code, out, err = run("tiny.toml --workers 0 --json out.json", capsys)
    assert code == 1
    assert len(re.findall(r"^failed: .*: InputError: .*records wanted", out, flags=re.MULTILINE)) == 2
    assert "Done: 2 experiments" in out
    assert "2 failed (--retry-failed does them again)" in out
    assert "2 failed" in err
    assert [one["error"][:10] for one in json.loads(Path("out.json").read_text())["outcome"]["failures"]] == [
        "InputError"
    ] * 2
    code, out, _ = run("tiny.toml --workers 0", capsys)
    assert (code, rows(out)["in all"]) == (1, [0, 0, 2, 2])
    assert "No work to do; 2 failed" in out
    code, out, _ = run("tiny.toml --workers 0 --retry-failed", capsys)
    assert (code, rows(out)["in all"]) == (1, [0, 2, 2, 0])
    code, out, err = run("tiny.toml --workers 0 --quiet", capsys)
    assert (code, err) == (1, "")
    assert [line[:8] for line in out.splitlines()] == ["failed: "] * 2
    monkeypatch.setattr(run_command, "MOST_FAILURES", 1)
    code, out, _ = run("tiny.toml --workers 0 --quiet", capsys)
    assert (code, out.splitlines()[1:]) == (1, ["... and 1 more failed"])


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("dp_wieghts", ["unknown study 'dp_wieghts'; did you mean 'dp_weights'?"]),
        ("tiny.toml --profile quik", ["unknown profile 'quik'; did you mean 'quick'?"]),
        ("nowhere/study.toml", ["cannot read nowhere/study.toml"]),
        ("broken.toml", ["study 'broken'", "unknown field 'epocs'", "did you mean 'epochs'?"]),
        ("tiny.toml --limit 0", ["--limit must be a whole number >= 1, got 0"]),
        ("tiny.toml --try-for 60", ["--try-for is said of --dry-run, which is missing"]),
        ("tiny.toml --dry-run --try-for nan", ["--try-for must be in [0, 86400], got nan"]),
        ("tiny.toml --limit x", ["--limit"]),
        ("tiny.toml --only sed=0", ["--only: unknown field 'sed'; did you mean 'seed'?"]),
        ("tiny.toml --only seed=7", ["--only: no experiment has seed = 7; there are 0"]),
        ("tiny.toml --only =", ["--only: unknown field ''"]),
        ("tiny.toml --only bugdet", ["--only: unknown group or variant 'bugdet'; did you mean 'budget'?"]),
        ("tiny.toml --workers -1", ["--workers must be a whole number >= 0, got -1"]),
        ("tiny.toml --workers 99999999", ["--workers must be at most 1024, got 99999999"]),
        ("tiny.toml --workers 1 --scheduler tcp://h:1", ["--workers and --scheduler exclude each other"]),
        ("tiny.toml --scheduler localhost", ["--scheduler must be tcp://HOST:PORT, got 'localhost'"]),
        ("tiny.toml --scheduler tcp://host", ["--scheduler must be tcp://HOST:PORT, got 'tcp://host'"]),
        (
            "tiny.toml --scheduler tcp://h:1\x1b",
            ["--scheduler must be tcp://HOST:PORT, got 'tcp://h:1\\x1b'"],
        ),
        ("tiny.toml --out occupied", ["--out must be a folder, got the file 'occupied'"]),
        ("tiny.toml --out occupied/below", ["--out 'occupied/below' lies below", "not a folder"]),
        ("tiny.toml --json folder", ["--json must be a file, got the folder 'folder'"]),
        ("tiny.toml --json tiny.toml", ["--json and STUDY are the same file"]),
        ("tiny.toml --out o --json o/run.json", ["--json and --out's run.json are the same file"]),
        ("", ["Missing argument 'STUDY'"]),
        ("tiny.toml extra", ["extra"]),
    ],
)
def test_a_mistake_gets_one_line_and_exit_2_and_writes_nothing(
    words: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "occupied").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.toml").write_text(TINY.replace("epochs", "epocs"))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, out, err = run(words, capsys)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for part in ("error: ", *parts):
        assert part in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root may write everywhere, so the answer of the system is given here."""
    (tmp_path / "closed").mkdir()

    def denied(*, dir: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    code, out, err = run("tiny.toml --out closed/x", capsys)
    assert (code, out) == (2, "")
    assert "--out 'closed/x' cannot be written: no permission" in err


def test_a_place_that_cannot_be_made_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even root can make a folder there."""
    code, out, err = run("tiny.toml --quiet --out /proc/study", capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--out '/proc/study' cannot be written" in err


def fake_run(events: Callable[[Task], list[Any]], end: BaseException | None) -> Callable[..., Any]:
    """A stand-in for `run_study` that tells of these events of each job, and ends."""

    def run_study(study: Any, *, out: Path, options: Any, listener: Any) -> Any:
        from workbench.execution.store import Store
        from workbench.studies.results import pending

        jobs = pending(study, Store(out / "store"))
        for job in (*jobs.trainings, *jobs.measurings):
            for event in events(Task(id=job.key, work=print, payload=None, label=job.label)):  # type: ignore[arg-type]
                listener(event)
        if end is not None:
            raise end
        return study_run.RunSummary(done=0, failed=0, skipped=4, trained=0, seconds=1.0)

    return run_study


def test_an_interrupted_run_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []

    def events(task: Task) -> list[Any]:
        if len(ended) == 3:
            return [Started(task, "w")]
        ended.append(task.id)
        return [
            Started(task, "w"),
            Stepped(task, "w", 1, 2),
            Notice("a [b]notice[/b]"),
            Finished(task, "w", {}, Path(), 1.0),
        ]

    monkeypatch.setattr(study_run, "run_study", fake_run(events, KeyboardInterrupt()))
    assert main(["run", "tiny.toml", "--out", "my folder", "--retry-failed"]) == 130
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == (
        "error: interrupted: 3 of 8 jobs are done and kept; to go on with the rest: "
        "workbench run tiny.toml --out 'my folder'"
    )
    assert "a [b]notice[/b]" in err.splitlines()
    assert "Traceback" not in err


def test_an_interrupted_run_writes_its_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, ends = study_run.run_study, 5

    def stopping(*args: Any, listener: Callable[[Any], None], **kwargs: Any) -> Any:
        left = iter(range(ends, 0, -1))

        def listen(event: Any) -> None:
            listener(event)
            if isinstance(event, Finished) and next(left) == 1:
                raise KeyboardInterrupt

        return real(*args, listener=listen, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(study_run, "run_study", stopping)
        code, _, err = run("tiny.toml --workers 0 --json stopped.json", capsys)
    assert code == 130
    form = json.loads(Path("stopped.json").read_text())
    outcome = form["outcome"]
    assert outcome["done"] + outcome["trained"] == ends
    assert min(outcome["done"], outcome["trained"]) > 0
    assert (outcome["failed"], outcome["failures"]) == (0, [])
    assert f"error: {outcome['stopped']}" == err.splitlines()[-1]
    code, _, _ = run("tiny.toml --workers 0 --quiet --out studies/tiny --json whole.json", capsys)
    form = json.loads(Path("whole.json").read_text())
    assert (code, form["outcome"]["stopped"]) == (0, None)
    assert form["outcome"]["done"] == 4 - outcome["done"]


def test_what_another_run_did_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study_run, "run_study", fake_run(lambda task: [Skipped(task)], None))
    code, out, err = run("tiny.toml", capsys)
    assert code == 0, err
    assert "; 4 were done before" in out
    assert "trainings 4/4, measurings 4/4" in err.splitlines()[-1]


def test_a_backend_that_cannot_go_on_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end = InconclusiveError("its scheduler is gone")
    monkeypatch.setattr(study_run, "run_study", fake_run(lambda task: [], end))
    code, _, err = run("tiny.toml", capsys)
    assert (code, err.splitlines()[-1]) == (3, "error: its scheduler is gone")


def test_the_command_to_go_on_is_quoted() -> None:
    options = RunCommandOptions(
        study="my study.toml",
        profile="a",
        only=["group=batch size", "seed=0"],
        limit=3,
        workers=0,
        quiet=True,
    )
    only = "--only 'group=batch size' --only seed=0"
    assert command_line(options) == f"workbench run 'my study.toml' --profile a {only} --limit 3 --workers 0"
    assert command_line(options, "report") == f"workbench report 'my study.toml' --profile a {only}"


def test_shipped_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "studies", "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed["dp_weights"]["profiles"][0] == "quick"
    assert main(["list", "studies"]) == 0
    assert "dp_weights" in capsys.readouterr().out
    assert main(["list", "study-reports", "--json"]) == 0
    assert "generic" in {one["name"] for one in json.loads(capsys.readouterr().out)}


@pytest.mark.slow
def test_help_imports_no_heavy_package(tmp_path: Path) -> None:
    program = (
        "import sys; from workbench.cli.app import main; main(sys.argv[1:]); "
        "heavy = {'torch', 'dask', 'distributed', 'statsmodels', 'pandas', 'jinja2', 'scipy.stats'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    for words in (["--help"], ["run", "--help"], ["report", "--help"], ["list", "studies", "--json"]):
        finished = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, check=True, text=True, cwd=tmp_path
        )
        assert finished.stdout.splitlines()[-1] == "[]", words


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_control_c_keeps_what_is_done(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal goes to all processes of the run, as a terminal's does."""
    text = TINY.replace("seeds = [0] }", "seeds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] }").replace(
        "epochs = 2", "epochs = 200"
    )
    (tmp_path / "tiny.toml").write_text(text)
    command = [sys.executable, "-m", "workbench.cli", "run", "tiny.toml", "--workers", str(workers)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        start_new_session=True,
        text=True,
    )
    records = tmp_path / "studies" / "tiny" / "store" / "records"
    deadline = time.monotonic() + 120
    while len(list(records.glob("*.json"))) < 4 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    last = err.splitlines()[-1]
    kept = re.fullmatch(r"error: interrupted: (\d+) of 80 jobs are done and kept; .*", last)
    assert kept is not None, err
    assert int(kept[1]) >= 4
    assert len(list(records.glob("*.json"))) >= int(kept[1])
    code, out, _ = run("tiny.toml --workers 0 --dry-run", capsys)
    assert code == 0
    to_train, to_measure, done, failed = rows(out)["in all"]
    assert (failed, to_measure + done) == (0, 40)
    assert 40 - to_train + done >= int(kept[1])


@pytest.mark.slow
@pytest.mark.dask
def test_a_cluster_does_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", protocol="tcp"
    ) as cluster:
        code, out, _ = run(f"tiny.toml --scheduler {cluster.scheduler_address} --out theirs", capsys)
    assert code == 0
    assert "Done: 4 experiments, 4 trainings" in out
    assert run("tiny.toml --workers 0 --out ours", capsys)[0] == 0
    for where in ("theirs", "ours"):
        assert main(["report", "tiny.toml", "--out", where, "--quiet"]) == 0
    capsys.readouterr()
    assert files_of(tmp_path / "theirs" / "report") == files_of(tmp_path / "ours" / "report")

"""The command: modes, exit codes, one line for every mistake, and nothing written by a command that fails."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints
from xml.etree import ElementTree

import numpy as np
import pytest

import workbench
from workbench.audit import run as runner
from workbench.audit import run_training, scores
from workbench.audit.settings import embedded_settings
from workbench.cli.app import main
from workbench.cli.audit import AuditOptions, command_line, parameters
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.interfaces import CorpusFacets, Released


def scores_file(folder: Path, shift: float, n: int) -> Path:
    """n scores of members by coin and others, whose means lie `shift` standard deviations apart."""
    generator = np.random.default_rng(0)
    members = generator.random(n) < 0.5
    scores = generator.standard_normal(n) + shift * members
    path = folder / "scores.csv"
    rows = (f"{score},{int(member)}\n" for score, member in zip(scores, members, strict=True))
    path.write_text("score,member\n" + "".join(rows))
    return path


def verdict(kind: str) -> dict[str, Any]:
    bound = {"name": "one_run", "quantity": "epsilon", "lower": "inf", "confidence": 0.95, "delta": 1e-5}
    auc = {"name": "auc", "estimate": 0.5, "lower": 0.45, "upper": "nan", "confidence": 0.95}
    return {
        "kind": kind,
        "sentence": "[bold]a sentence[/bold]",
        "bound": bound,
        "bounds": [bound],
        "intervals": [auc],
        "reasons": ["a reason"],
    }


def fake_report(kind: str, exit_code: int) -> dict[str, Any]:
    attack = {"attack": "loss", "verdict": verdict(kind), "cost": {"seconds": 1.0}}
    subjects = [
        {"name": "dp_sgd", "role": "subject", "attacks": [attack]},
        {"name": "non_private", "role": "control", "attacks": [attack]},
    ]
    return {
        "verdict": verdict(kind),
        "exit_code": exit_code,
        "claim": {"text": "a claim"},
        "subjects": subjects,
    }


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Record what reaches the runner; nothing is trained and nothing judged."""
    calls: list[SimpleNamespace] = []

    def record(name: str) -> Callable[..., dict[str, Any]]:
        def call(*arguments: Any, **named: Any) -> dict[str, Any]:
            calls.append(SimpleNamespace(name=name, arguments=arguments, **named))
            if named.get("progress"):
                named["progress"]("training", 0, 2)
                named["progress"]("training", 2, 2)
            return fake_report("NOT_REFUTED", 0)

        return call

    def write(report: dict[str, Any], *, out: Path, json_file: Path | None) -> None:
        for path in (out / "report.json", json_file):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(report))

    for name in ("audit_scores", "audit_mechanisms", "audit_training"):
        places = {"audit_scores": scores, "audit_training": run_training}
        monkeypatch.setattr(places.get(name, runner), name, record(name))
    monkeypatch.setattr("workbench.cli.audit.write_report", write)
    return calls


def refused(words: Sequence[object], capsys: pytest.CaptureFixture[str], *parts: str, code: int = 2) -> None:
    assert main([str(word) for word in words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for part in ("error: ", *parts):
        assert part in captured.err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["audit", "--claim", "epsilon=1,delta=2,adjacency=add-remove"], ["delta must be in [0, 1), got 2"]),
        (["audit", "--claim", "epsilno=1"], ["did you mean 'epsilon'?"]),
        (["audit", "--claim", "a\nb"], ["key=value"]),
        (["audit", "--attack", "losss"], ["unknown attack 'losss'", "did you mean 'loss'?"]),
        (["audit", "--mechanism", "dpsgd"], ["unknown mechanism 'dpsgd'", "did you mean 'dp_sgd'?"]),
        (["audit", "--corpus", "clinicl"], ["unknown corpus 'clinicl'", "did you mean 'clinical'?"]),
        (["audit", "--model", "tiny_gpt"], ["unknown model 'tiny_gpt'", "did you mean 'tiny_gpt2'?"]),
        (["audit", "--attack", "loss", "--attack", "loss"], ["--attack must not repeat"]),
        (["audit", "--candidates", "3"], ["--candidates must be a whole number >= 20, got 3"]),
        (["audit", "--steps", "0"], ["--steps must be a whole number >= 1, got 0"]),
        (["audit", "--seed", "-1"], ["--seed must be a whole number >= 0, got -1"]),
        (["audit", "--confidence", "nan"], ["confidence must be in (0.5, 1), got nan"]),
        (["audit", "--confidence", "95"], ["confidence must be in (0.5, 1), got 95"]),
        (["audit", "--steps", "many"], ["--steps", "'many'"]),
        (["audit", "--nats=few"], ["--nats", "'few'"]),
        (["audit", "--corpus-parameter", "path"], ["--corpus-parameter must be key=value, got 'path'"]),
        (["audit", "--prior", "0.5"], ["--prior goes with --scores"]),
        (["audit", "--runs", "2"], ["--runs goes with --train"]),
        (["audit", "--scores", "a.csv", "--train", "b.py:c"], ["--scores and --train exclude each other"]),
        (["audit", "--scores", "a.csv"], ["'a.csv' does not exist"]),
        (["audit", "--scores", "a.csv", "--model", "x"], ["--model goes with an audit of a mechanism, not"]),
        (
            ["audit", "--scores", "a.csv", "--claim", "epsilon=1,delta=0,adjacency=replace-one"],
            [
                "--claim says adjacency replace-one, and the labels are of add-remove",
                "--adjacency replace-one",
            ],
        ),
        (
            ["audit", "--scores", "a.csv", "--adjacency", "zero-out"],
            ["--claim says adjacency add-remove, and the labels are of zero-out"],
        ),
        (
            ["audit", "--scores", "a.csv", "--adjacency", "zero-out", "--claim", "nats=1,secret=record"],
            ["--adjacency goes with a claim about an adjacency, not about the record"],
        ),
        (["audit", "--adjacency", "zero-out"], ["--adjacency goes with --scores"]),
        (["audit", "--scores", "a.csv", "--adjacency", "swap"], ["--adjacency", "'swap'"]),
        (["audit", "--scores", "a.csv", "--no-control"], ["--control goes with"]),
        (["audit", "--scores", "a.csv", "--prior", "1"], ["--prior must be in (0, 1), got 1"]),
        (["audit", "--scores", "a.csv", "--trials", "both"], ["--trials", "one-run"]),
        (["audit", "--train", "b.py:c", "--attack", "loss"], ["--attack goes with an audit of a mechanism"]),
        (["audit", "--train", "b.py:c", "--runs", "0"], ["--runs must be a whole number >= 1, got 0"]),
        (["audit", "--out", "occupied"], ["--out must be a folder, got the file 'occupied'"]),
        (["audit", "--out", "occupied/below"], ["--out 'occupied/below' lies below", "not a folder"]),
        (["audit", "--json", "folder"], ["--json must be a file, got the folder 'folder'"]),
        (["audit", "--junit", "occupied/x.xml"], ["--junit 'occupied/x.xml' lies below"]),
        (["audit", "--scheduler", "h:1"], ["--scheduler must be tcp://HOST:PORT, got 'h:1'"]),
        (["audit", "--scheduler", "tcp://h:1", "--workers", "1"], ["--workers and --scheduler exclude"]),
        (["audit", "--scores", "a.csv", "--scheduler", "tcp://h:1"], ["--scheduler goes with"]),
        (["audit", "--nope"], ["--nope"]),
        (["audit", "extra"], ["extra"]),
        (["adit"], ["adit"]),
        (["list"], ["Missing argument"]),
        (["list", "mechanism"], ["unknown list 'mechanism'", "did you mean 'mechanisms'?"]),
        (["data", "fetch", "clinicl"], ["unknown corpus 'clinicl'", "did you mean 'clinical'?"]),
        (["data", "fetch", "clinical"], ["'clinical' has nothing to fetch"]),
    ],
)
@pytest.mark.usefixtures("calls")
def test_a_mistake_gets_one_line_and_exit_2_and_writes_nothing(
    words: list[str],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "occupied").touch()
    (tmp_path / "folder").mkdir()
    refused(words, capsys, *parts)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "occupied"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("a\nb"), 2),
        (UnsupportedError("a\nb"), 2),
        (InconclusiveError("a\nb"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
@pytest.mark.usefixtures("calls")
def test_an_error_of_the_runner_has_its_exit_code(
    error: BaseException,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "audit_mechanisms", fail)
    assert main(["audit", "--quiet"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ("error: interrupted\n" if code == 130 else "error: a b\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bug", [ZeroDivisionError, GeneratorExit])
def test_a_bug_of_ours_shows_its_traceback_and_is_no_verdict(
    bug: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise bug

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "audit_mechanisms", fail)
    assert main(["audit"]) == 70
    assert calls == []
    assert bug.__name__ in capsys.readouterr().err


def test_an_audit_of_a_mechanism_writes_all_that_was_asked_for(
    calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert (
        main(
            shlex.split("audit --steps 5 --no-control --json a/r.json --junit b/j.xml --attack loss --seed 3")
        )
        == 0
    )
    (call,) = calls
    settings = call.arguments[0]
    assert (call.name, call.out) == ("audit_mechanisms", Path("audit"))
    assert (settings.steps, settings.control, settings.attacks, settings.seed) == (5, False, ("loss",), 3)
    assert settings.claim.released is Released.EVERY_UPDATE
    default = embedded_settings()
    assert (settings.corpus, settings.corpus_parameters) == (default.corpus, default.corpus_parameters)
    assert call.command.startswith("workbench audit ")
    assert ElementTree.parse("b/j.xml").getroot().tag == "testsuites"
    assert Path("a/r.json").is_file()
    captured = capsys.readouterr()
    assert captured.err == "training: 0/2\ntraining: 2/2\n"
    for part in ("a claim", "non_private (control)", "epsilon >= inf", "0.500 [0.450, nan]", "a reason"):
        assert part in " ".join(captured.out.split())
    assert "NOT REFUTED: [bold]a sentence[/bold]" in captured.out


def test_parameters_are_laid_over_the_default_only_where_the_default_is_used(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split("audit --corpus docstrings --model-parameter a=1")) == 0
    settings = calls[0].arguments[0]
    assert settings.corpus_parameters == {}
    assert settings.model_parameters == {**embedded_settings().model_parameters, "a": 1}


@pytest.mark.parametrize(
    ("words", "fitting"),
    [
        ("--corpus digits", ("digits", "digits_mlp")),
        ("--model digits_logistic", ("digits", "digits_logistic")),
        ("--model micro_base", ("clinical", "micro_base")),
        ("--corpus digits --model digits_vit", ("digits", "digits_vit")),
        ("--corpus digits --model tiny_gpt2", ("digits", "tiny_gpt2")),
        ("", ("clinical", "tiny_gpt2")),
    ],
)
def test_a_model_and_a_corpus_fit_unless_both_are_named(
    words: str, fitting: tuple[str, str], calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["audit", *shlex.split(words)]) == 0
    settings = calls[0].arguments[0]
    assert (settings.corpus, settings.model) == fitting
    assert bool(settings.model_parameters) == (settings.model == "tiny_gpt2")


def test_a_training_function_and_quiet(
    calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split("audit --train my.py:train --runs 3 --out elsewhere --quiet")) == 0
    (call,) = calls
    assert (call.name, call.arguments[0], call.runs) == ("audit_training", "my.py:train", 3)
    assert call.arguments[2].store.folder == Path("elsewhere", "store")
    assert call.arguments[1].claim.released is Released.SCORES
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == "NOT REFUTED: [bold]a sentence[/bold]\n  - a reason\n"


def test_the_direction_of_scores_is_turned(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = scores_file(tmp_path, 1.0, 100)
    options = "--trials independent --prior 0.4 --confidence 0.9"
    assert main(["audit", "--scores", str(path), *shlex.split(options)]) == 0
    assert main(["audit", "--scores", str(path), "--higher-is", "nonmember"]) == 0
    straight, turned = calls
    np.testing.assert_array_equal(straight.scores, -turned.scores)
    assert (straight.trials, straight.prior, straight.confidence) == ("independent", 0.4, 0.9)
    assert (turned.trials, turned.prior, turned.confidence) == ("one-run", None, 0.95)


def test_the_command_line_is_reproduced() -> None:
    options = AuditOptions(
        scores=Path("my scores.csv"), control=False, seed=3, attack=["loss", "lira"], quiet=True, prior=0.25
    )
    words = ["--scores", "my scores.csv", "--attack", "loss", "--attack", "lira", "--no-control"]
    assert shlex.split(command_line(options)) == [
        *("workbench", "audit", *words, "--prior", "0.25", "--seed", "3", "--quiet")
    ]
    assert command_line(AuditOptions()) == "workbench audit"


def test_parameters_keep_text_that_is_no_number() -> None:
    pairs = ["a=1", "b=1.5", "c=true", "d=short", "e=", "f=nan", "g=[1]", "h=x=y"]
    expected = {"a": 1, "b": 1.5, "c": True, "d": "short", "e": "", "f": "nan", "g": "[1]", "h": "x=y"}
    assert parameters("--corpus-parameter", pairs) == expected
    for bad in (["=1"], ["a b=1"], ["a=1", "a=2"]):
        with pytest.raises(InputError, match="--corpus-parameter"):
            parameters("--corpus-parameter", bad)


def test_help_names_the_defaults_of_the_runner(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["audit", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    default = embedded_settings()
    for value in (
        default.mechanism,
        default.corpus,
        default.model,
        default.candidates,
        default.steps,
        default.workers,
    ):
        assert f"[default: ({value})]" in shown
    for attack in default.attacks:
        assert attack in shown


def test_version_and_bare_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"workbench {workbench.__version__}\n"
    assert main([]) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("", 0),
        ("--version", 0),
        ("run --help", 0),
        ("-h", 0),
        ("accountants -h", 0),
        ("replay -h", 0),
        ("list attacks", 0),
        ("list studies --json", 0),
        ("audit", 1),
        ("audit --quiet", 1),
        ("adit", 2),
    ],
)
def test_a_reader_who_leaves_early_changes_no_exit_code(
    words: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "audit_mechanisms", lambda *given, **named: fake_report("REFUTED", 1))
    monkeypatch.setattr("workbench.cli.audit.write_report", lambda *given, **named: None)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(words.split()) == code
        assert sys.stdout is stream
    assert capsys.readouterr().err.count("\n") == (code == 2)


def test_a_dash_prints_the_report_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = scores_file(tmp_path, 1.0, 200)
    claim = "epsilon=1,delta=1e-5,adjacency=add-remove"
    main(["audit", "--scores", str(path), "--claim", claim, "--json", "-"])
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert report["verdict"]["sentence"].split()[0] in " ".join(shown.err.split())
    assert report == json.loads(Path("audit/report.json").read_text(encoding="utf-8"))
    assert main(["plan", "--claim", claim, "--trials", "100", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 1
    assert main(["claims", "paczero-eq-6", "--workers", "0", "--json", "-"]) == 0
    assert "paczero-eq-6" in str(json.loads(capsys.readouterr().out))
    assert not Path("-").exists()


def test_list_prints_names_and_summaries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registry.Entry(name="[a]", factory=dict, summary="What [it] does.")
    monkeypatch.setattr(registry, "entries", lambda kind: {"[a]": entry})
    assert main(["list", "attacks"]) == 0
    shown = capsys.readouterr().out
    assert "[a]" in shown
    assert "What [it] does." in shown
    assert main(["list", "corpora", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "[a]", "summary": "What [it] does."}]


def test_fetch_calls_the_corpus(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    facets = CorpusFacets(fetch=lambda told: Path("cache") / "reviews")
    monkeypatch.setattr(registry, "entries", lambda kind: {"reviews": SimpleNamespace(facets=facets)})
    assert main(["data", "fetch", "reviews"]) == 0
    assert capsys.readouterr().out == f"reviews: {Path('cache') / 'reviews'}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["--help", "audit --help", "--version", "list attacks", "list corpora", "list models"]
)
def test_no_deep_learning_framework_is_imported(words: str, tmp_path: Path) -> None:
    program = (
        "import sys; from workbench.cli.app import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, *words.split()], capture_output=True, check=False, cwd=tmp_path
    )
    assert finished.returncode == 0, finished.stderr


def test_scores_are_watched_until_the_claim_is_refuted(tmp_path: Path) -> None:
    path, out = scores_file(tmp_path, 4.0, 400), tmp_path / "out"
    assert main(["audit", "--scores", str(path), "--sequential", "--out", str(out), "--quiet"]) == 1
    report = json.loads((out / "report.json").read_text())
    (bound,) = report["subjects"][0]["attacks"][0]["verdict"]["bounds"]
    assert bound["name"] == "sequential"
    assert bound["n"] < 100
    assert f"refuted after {bound['n']} of 400 scores" in report["verdict"]["sentence"]
    assert "--sequential" in report["command"]


@pytest.mark.parametrize("order", ["label", "label, others first", "score", "size", "score, then label"])
@pytest.mark.parametrize("trials", ["one-run", "independent"])
def test_a_sorted_file_refutes_no_true_claim_by_sequential_bets(
    order: str, trials: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are watched in an order of the seed's, in which no score lets the next one be foreseen."""
    refuted = 0
    for seed in range(8):
        generator = np.random.default_rng([3, seed])
        coins, noise = generator.random(200) < 0.5, generator.normal(size=200).round(1)
        keys = {
            "label": (~coins,),
            "label, others first": (coins,),
            "score": (-noise,),
            "size": (-np.abs(noise),),
            "score, then label": (coins, -noise),
        }
        places = np.lexsort(keys[order])
        path = tmp_path / "sorted.csv"
        rows = [f"{noise[place]},{int(coins[place])}" for place in places]
        path.write_text("\n".join(["score,member", *rows]), encoding="utf-8")
        words = ["audit", "--scores", str(path), "--sequential", "--trials", trials, "--prior", "0.5", "-q"]
        claim = "epsilon=0.1,delta=0,adjacency=add-remove"
        refuted += main([*words, "--claim", claim, "--out", str(tmp_path / "out")]) == 1
    assert refuted <= 2


def test_a_declared_family_decides_and_is_named(tmp_path: Path) -> None:
    """A shift of 1 is worth 4.4 at delta = 1e-5; without the family 1,000 scores show 1.6 of it."""
    path, out = scores_file(tmp_path, 1.0, 1000), tmp_path / "out"
    claim = "epsilon=3,delta=1e-5,adjacency=add-remove"
    given = ["audit", "--scores", str(path), "--trials", "independent", "--claim", claim, "--out", str(out)]
    assert main([*given, "--quiet"]) == 0
    assert main([*given, "--quiet", "--family", "gaussian"]) == 1
    report = json.loads((out / "report.json").read_text())
    assert "family: Gaussian" in report["verdict"]["sentence"]
    assert "a Gaussian release" in report["verdict"]["sentence"]
    game = report["subjects"][0]["attacks"][0]["game"]
    assert game["description"].endswith("family declared: Gaussian")
    assert report["verdict"]["bound"]["family"] == "Gaussian"
    assert "Gaussian" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--family", "gaussian", "--sequential"], "sequential and family Gaussian exclude each other"),
        (
            ["--family", "gaussian", "--claim", "epsilon=1,delta=0,adjacency=add-remove"],
            "family gaussian goes with a claim in mu, or in epsilon with a delta above 0, got (epsilon = 1, ",
        ),
        (
            ["--family", "gaussian", "--claim", "nats=1,secret=record"],
            "family gaussian goes with a claim in mu",
        ),
        (["--family", "normal"], "gaussian"),
    ],
)
def test_a_family_that_cannot_decide_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scores_file(tmp_path, 1.0, 60)
    refused(["audit", "--scores", path, "--out", tmp_path / "out", *words], capsys, message)


def test_watched_scores_of_one_run_need_a_prior(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "uneven.csv"
    path.write_text("score,member\n" + "".join(f"{i},{int(i % 10 == 0)}\n" for i in range(200)))
    given = ["audit", "--scores", str(path), "--sequential", "--out", str(tmp_path / "out")]
    assert main(given) == 2
    assert (
        "prior must be stated with sequential, as 10 % of the labels are members" in capsys.readouterr().err
    )
    assert main(["audit", "--sequential", "--run", "x.json"]) == 2
    assert "--sequential goes with --scores or --train or an audit of a mechanism" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "shift", "epsilon", "kind"),
    [(20, 0.0, 8, "UNDERPOWERED"), (800, 6.0, 1, "REFUTED"), (800, 0.0, 1, "NOT_REFUTED")],
)
def test_scores_are_judged_end_to_end_without_a_framework(
    n: int, shift: float, epsilon: int, kind: str, tmp_path: Path
) -> None:
    code = {"NOT_REFUTED": 0, "REFUTED": 1, "UNDERPOWERED": 3}[kind]
    claim = f"epsilon={epsilon},delta=1e-5,adjacency=add-remove"
    words = ["audit", "--scores", str(scores_file(tmp_path, shift, n)), "--claim", claim, "--quiet"]
    program = (
        "import sys; from workbench.cli.app import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, check=False, cwd=tmp_path, text=True
    )
    *shown, last = finished.stdout.splitlines()
    assert last == f"{code} False", finished.stderr
    assert shown[0].startswith(f"{kind.replace('_', ' ')}: ")
    report = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert (report["exit_code"], report["verdict"]["kind"]) == (code, kind)
    assert (tmp_path / "audit" / "report.html").is_file()


def test_the_help_states_the_defaults_that_the_runner_has() -> None:
    """They are written twice, because the help must not import the runner."""
    default = embedded_settings()
    hints = get_type_hints(AuditOptions, include_extras=True)
    for name in ("mechanism", "corpus", "model", "candidates", "steps", "workers"):
        (option,) = hints[name].__metadata__
        assert option.show_default == str(getattr(default, name)), name


def scores_csv(folder: Path) -> Path:
    """A hundred noise scores with coins."""
    generator = np.random.default_rng(0)
    rows = [f"{generator.normal()},{int(coin)}" for coin in generator.random(100) < 0.5]
    path = folder / "scores.csv"
    path.write_text("\n".join(["score,member", *rows]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--json", "scores.csv"], "--json and --scores are the same file"),
        (["--json", "x.json", "--junit", "./x.json"], "--junit and --json are the same file"),
        (["--json", "o/report.json"], "--json and --out's report.json are the same file"),
        (["--json", "o/report"], "--json's scores and --out's report.scores.npz are the same file"),
        (["--json", "fifo"], "--json must be a regular file, got 'fifo'"),
    ],
)
def test_no_output_destroys_a_file(
    given: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = scores_csv(tmp_path).read_text(encoding="utf-8")
    os.mkfifo("fifo")
    assert main(["audit", "--scores", "scores.csv", "--out", "o", *given]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "scores.csv").read_text(encoding="utf-8") == before
    assert not (tmp_path / "o").exists()


def test_a_link_stays_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scores_csv(tmp_path)
    (tmp_path / "link.json").symlink_to(tmp_path / "true.json")
    (tmp_path / "true.json").write_text("old", encoding="utf-8")
    assert main(["audit", "--scores", "scores.csv", "--out", "o", "--quiet", "--json", "link.json"]) == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "true.json").read_text(encoding="utf-8"))["kind"] == "audit"


@pytest.mark.parametrize(
    ("claim", "trials", "code"),
    [
        ("epsilon=1,delta=0,adjacency=add-remove", "independent", 0),
        ("epsilon=1,delta=0,adjacency=add-remove", "one-run", 0),
        ("mu=1e9,adjacency=add-remove", "one-run", 3),
        ("mu=1e9,adjacency=add-remove", "independent", 3),
    ],
)
def test_extreme_claims_get_an_answer(
    claim: str, trials: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scores_csv(tmp_path)
    words = ["--scores", "scores.csv", "--claim", claim, "--trials", trials, "--quiet", "--out", "o"]
    assert main(["audit", *words]) == code


def test_what_the_audit_sets_is_no_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "--corpus", "digits", "--corpus-parameter", "size=100"]) == 2
    assert "corpus parameter 'size' is set by the audit's candidates" in capsys.readouterr().err
    assert not (tmp_path / "audit").exists()

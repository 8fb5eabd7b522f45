"""The public Python API: what it returns, what it refuses, and that the command line says the same."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import workbench
from workbench.accounting import ApproximateDP, Laplace, calibrate
from workbench.cli.app import main
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.results import Result
from workbench.interfaces import Adjacency, Claim, Released

CLAIM = "epsilon=1,delta=1e-5,adjacency=add-remove"
RUN: dict[str, Any] = {"noise_multiplier": 1.0, "sampling_probability": 0.01, "steps": 100}
DOCS = Path(__file__).parent.parent / "docs" / "api.md"

generator = np.random.default_rng(0)
MEMBERS = generator.random(400) < 0.5
SCORES = MEMBERS + generator.normal(size=400)


def own_accountant(
    *, noise_multiplier: float, sampling_probability: float, steps: int, delta: float
) -> float:
    """Says the same of every run."""
    return 0.1


def own_trainer(records: list[dict[str, Any]], seed: int) -> Callable[..., list[float]]:
    """Remembers its records."""
    seen = {record["id"] for record in records}
    return lambda others: [float(record["id"] in seen) for record in others]


def same(left: Result, right: Result) -> bool:
    """Whether two reports say the same of the same scores."""
    keys = ("verdict", "exit_code", "claim", "subjects", "seed")
    forms = [json.loads(json.dumps([result.record[key] for key in keys])) for result in (left, right)]
    for _, _, _, subjects, _ in forms:
        for subject in subjects:
            subject.pop("name")
            for attack in subject["attacks"]:
                attack["game"].pop("description")
    return bool(forms[0] == forms[1])


@pytest.mark.parametrize("name", sorted({*workbench._ON_DEMAND, "audit"}))
def test_every_name_is_documented_and_imports_no_torch(name: str) -> None:
    assert getattr(workbench, name).__doc__
    assert name in dir(workbench)
    assert f"`{name}`" in DOCS.read_text(encoding="utf-8")


@pytest.mark.slow
def test_nothing_imports_torch_before_it_trains(tmp_path: Path) -> None:
    names = sorted({*workbench._ON_DEMAND} - {"watch", "WatchCallback", "ClaimExceededWarning"})
    program = (
        f"import sys, workbench\nfor name in {names!r}: getattr(workbench, name)\n"
        "workbench.audit_scores([0.1, 0.9, 0.2, 0.7], [0, 1, 0, 1], prior=0.5)\n"
        f"workbench.certified(**{RUN!r}, delta=1e-5)\n"
        "print('torch' in sys.modules)"
    )
    # Elsewhere than in the checkout, whose `workbench` lacks the rooms that are installed below it.
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "False\n"


def test_scores_are_the_same_however_they_are_given(tmp_path: Path) -> None:
    frame = pd.DataFrame({"score": SCORES, "member": MEMBERS})
    frame.to_csv(tmp_path / "scores.csv.gz", index=False)
    expected = workbench.audit_scores(SCORES, MEMBERS, claim=CLAIM)
    claim = Claim(
        guarantee=ApproximateDP(epsilon=1.0, delta=1e-5),
        about=Adjacency.ADD_REMOVE,
        released=Released.SCORES,
        source="the user",
    )
    for given in (
        workbench.audit_scores(SCORES.tolist(), MEMBERS.astype(int).tolist(), claim=claim),
        workbench.audit_scores(pd.Series(SCORES), pd.Series(MEMBERS)),
        workbench.audit_scores(-SCORES, MEMBERS, higher_is="nonmember"),
        workbench.audit_scores(frame),
        workbench.audit_scores({"score": SCORES, "member": MEMBERS}),
        workbench.audit_scores(tmp_path / "scores.csv.gz"),
        workbench.audit_scores(str(tmp_path / "scores.csv.gz")),
    ):
        assert same(given, expected)


def test_the_command_line_calls_the_same_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"score": SCORES, "member": MEMBERS}).to_csv("scores.csv", index=False)
    assert main(["audit", "--scores", "scores.csv", "--json", "a.json", "--quiet"]) == 1
    found = workbench.audit_scores("scores.csv")
    written = json.loads(Path("a.json").read_text(encoding="utf-8"))
    told = {"created", "cost", "command"}
    assert {key: value for key, value in written.items() if key not in told} == {
        key: value for key, value in json.loads(json.dumps(found.record)).items() if key not in told
    }
    assert found.record["command"].startswith("workbench.audit_scores('scores.csv'")


def test_an_audit_shows_its_verdict_bounds_and_page(tmp_path: Path) -> None:
    found = workbench.audit_scores(SCORES, MEMBERS, claim=CLAIM)
    assert (found.verdict, found.exit_code) == ("REFUTED", 1)
    assert found.bounds[0].lower > 1
    assert "epsilon >= 1.5" in found.sentence
    assert repr(found).startswith("<AuditResult REFUTED: ")
    (row,) = found.to_frame().to_dict("records")
    assert row["lower"] == found.bounds[0].lower
    assert row["delta"] == 1e-5
    assert "<strong>REFUTED</strong>" in found._repr_html_()
    page = found.save(tmp_path / "new" / "page.html")
    assert "<!doctype html>" in page.read_text(encoding="utf-8").lower()


def test_names_of_a_stranger_are_text_in_html() -> None:
    frame = workbench.claims("ferret-eq-12", workers=0)
    frame.record = {**frame.record, "counts": {"<script>": 1}}
    assert "<script>" not in frame._repr_html_()


RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "certified": (lambda: workbench.certified(**RUN, delta=[1e-5, 1e-6]), "BOUNDED"),
    "certified refuted": (
        lambda: workbench.certified(**RUN, claim="epsilon=0.1,delta=1e-5,adjacency=add-remove"),
        "REFUTED",
    ),
    "certified proven": (
        lambda: workbench.certified(**RUN, claim="epsilon=9,delta=1e-5,adjacency=add-remove"),
        "PROVEN",
    ),
    "plan": (lambda: workbench.plan(CLAIM, games="membership", trials=100), "PLANNED"),
    "claims": (lambda: workbench.claims("ferret-eq-12", workers=0), "REFUTED"),
    "accountant": (
        lambda: workbench.check_accountant(own_accountant, only="never_below_certified_lower", seconds=1),
        "REFUTED",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_has_all_its_forms(name: str, tmp_path: Path) -> None:
    make, verdict = RESULTS[name]
    found = make()
    assert found.verdict == verdict
    assert found.sentence
    assert len(found.to_frame()) >= 1
    assert verdict in found._repr_html_()
    assert "</html>" in found.save(tmp_path / "page.html").read_text(encoding="utf-8")
    json.dumps(found.record, allow_nan=False)


@pytest.mark.slow
def test_an_accountant_may_be_a_function_a_name_or_an_object() -> None:
    class Own:
        name = "own"

        def epsilon(self, event: Any, *, delta: float, adjacency: Adjacency) -> float:
            return 0.1

    for accountant in (own_accountant, Own()):
        found = workbench.check_accountant(accountant, only="never_below_certified_lower", seconds=1)
        assert found.bounds
        assert found.exit_code == 1


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "scores with NaN": (
        lambda: workbench.audit_scores([1, float("nan")], [0, 1]),
        "scores[1]: must be finite",
    ),
    "a text among scores": (
        lambda: workbench.audit_scores([1, "high"], [0, 1]),
        "scores[1]: must be a number",
    ),
    "a label of 2": (
        lambda: workbench.audit_scores([1, 2], [0, 2]),
        "members[1]: must be 0 or 1, or false or true, got 2",
    ),
    "one kind of label": (lambda: workbench.audit_scores([1, 2], [1, 1]), "members: all 2 rows are members"),
    "constant scores": (lambda: workbench.audit_scores([1, 1], [1, 0]), "scores is constant"),
    "two lengths": (lambda: workbench.audit_scores([1, 2, 3], [0, 1]), "must have one length"),
    "two dimensions": (
        lambda: workbench.audit_scores(np.ones((2, 2)), [0, 1]),
        "scores must have one dimension",
    ),
    "no labels": (lambda: workbench.audit_scores([1, 2]), "members must say which"),
    "a text as labels": (lambda: workbench.audit_scores([1, 2], "01"), "members must be an array"),
    "a frame without labels": (
        lambda: workbench.audit_scores(pd.DataFrame({"score": [1, 2]})),
        "scores must have the column 'member'",
    ),
    "no file": (lambda: workbench.audit_scores("none.csv"), "'none.csv' does not exist"),
    "a number as claim": (lambda: workbench.audit_scores(SCORES, MEMBERS, claim=1), "claim must be a text"),
    "a guarantee as claim": (
        lambda: workbench.audit_scores(SCORES, MEMBERS, claim=ApproximateDP(epsilon=1, delta=1e-5)),
        "claim must say what it is about",
    ),
    "another adjacency": (
        lambda: workbench.audit_scores(SCORES, MEMBERS, adjacency="replace-one"),
        "claim says adjacency add-remove",
    ),
    "unknown trials": (
        lambda: workbench.audit_scores(SCORES, MEMBERS, trials="both"),
        "trials must be one of",
    ),
    "a text as boolean": (
        lambda: workbench.audit_scores(SCORES, MEMBERS, sequential="no"),
        "sequential must be True or False, got 'no'",
    ),
    "confidence of a certainty": (
        lambda: workbench.audit_scores(SCORES, MEMBERS, confidence=1 - 1e-11),
        "confidence must be at most 1 - 1e-9",
    ),
    "half a seed": (lambda: workbench.audit_scores(SCORES, MEMBERS, seed=0.5), "seed must be a whole number"),
    "a lambda": (
        lambda: workbench.replay(lambda records, seed: None),
        "function cannot be carried to a worker",
    ),
    "a method": (lambda: workbench.audit_training([].append), "function cannot be carried to a worker"),
    "no function": (lambda: workbench.replay(3), "function must be 'FILE.py:FUNCTION'"),
    "no colon": (lambda: workbench.replay("train.py"), "function must be path/to/file.py:function"),
    "few candidates": (
        lambda: workbench.replay(own_trainer, candidates=3),
        "candidates must be a whole number >= 20, got 3",
    ),
    "few canaries": (
        lambda: workbench.audit_training(own_trainer, canaries=3),
        "canaries must be 0 or at least 16, got 3",
    ),
    "sequential alone": (
        lambda: workbench.audit_training(own_trainer, sequential=True),
        "sequential watches the trainings of `retrain`",
    ),
    "an unknown corpus": (
        lambda: workbench.audit_training(own_trainer, corpus="digit"),
        "did you mean 'digits'?",
    ),
    "an unknown mechanism": (lambda: workbench.audit("dpsgd"), "did you mean 'dp_sgd'?"),
    "two claims": (lambda: workbench.audit(epsilon=1, claim=CLAIM), "exclude each other"),
    "parameters in a list": (
        lambda: workbench.audit(mechanism_parameters=["a=1"]),
        "mechanism_parameters must be a dict",
    ),
    "a parameter that is none": (
        lambda: workbench.audit(mechanism_parameters={"l2_clip_norm": [1]}),
        "mechanism_parameters['l2_clip_norm'] must be a number or a text",
    ),
    "a folder that is none": (
        lambda: workbench.audit_checkpoint("none", members=__file__, nonmembers=__file__),
        "",
    ),
    "few trials": (lambda: workbench.plan(trials=2), "trials must be a whole number >= 4, got 2"),
    "an unknown game": (lambda: workbench.plan(games="chess"), "unknown game 'chess'"),
    "two questions": (lambda: workbench.certified(**RUN, delta=0.1, epsilon=1), "one alone"),
    "no question": (lambda: workbench.certified(**RUN), "must be given"),
    "a rate beside an event": (
        lambda: workbench.certified(Laplace(scale=1), sampling_probability=0.5, delta=0.1),
        "sampling_probability and event exclude each other, got 0.5",
    ),
    "masked scores": (
        lambda: workbench.audit_scores(np.ma.masked_less(SCORES, np.median(SCORES)), MEMBERS),
        "is masked: leave it out, or fill it in",
    ),
    "integers that are one float": (
        lambda: workbench.audit_scores(2**62 + np.arange(40), np.arange(40) % 2),
        "scores has values that floats do not tell apart",
    ),
    "a strength twice": (
        lambda: workbench.plan(attack_strength="mu=1,mu=2"),
        "attack_strength: 'mu' is given twice",
    ),
    "a fault that is no text": (lambda: workbench.plan(fault=3), "fault must be a text, got 3"),
    "steps of no game": (
        lambda: workbench.plan(games="membership", steps=100),
        "steps goes with the game 'release', which is not planned, got 100",
    ),
    "subsets of no game": (
        lambda: workbench.plan(subsets=4),
        "subsets goes with the game 'subset', which is not planned, got 4",
    ),
    "a prior of no game": (
        lambda: workbench.plan(games="release", prior=0.2),
        "prior goes with games of one training, none of which is planned, got 0.2",
    ),
    "a fault of a subset": (
        lambda: workbench.plan("nats=1,secret=candidate-subset", fault="noise"),
        "fault goes with a claim of differential privacy, got 'noise'",
    ),
    "a list of integers that are one float": (
        lambda: workbench.audit_scores([2**62 + i for i in range(40)], np.arange(40) % 2),
        "scores has values that floats do not tell apart",
    ),
    "no watched run": (lambda: workbench.audit_run("none.json"), "run 'none.json' cannot be read"),
    "a study's name without end": (lambda: workbench.report("x" * 5000), "cannot be opened"),
    "noise that rises": (
        lambda: calibrate(lambda b: Laplace(scale=1 / b), target_epsilon=1, target_delta=1e-5),
        "event must be of less epsilon the larger its noise is",
    ),
    "a delta below all grids": (
        lambda: calibrate(target_epsilon=1, target_delta=1e-50),
        "target_delta must be in [1e-30, 1)",
    ),
    "no run": (lambda: workbench.certified(delta=0.1), "noise_multiplier must be given"),
    "delta of 2": (lambda: workbench.certified(**RUN, delta=2), "delta must be"),
    "an unknown accountant": (lambda: workbench.check_accountant("none"), "unknown accountant 'none'"),
    "an accountant that is none": (
        lambda: workbench.check_accountant(3),
        "accountant must be a name, a function or an accountant, got 3",
    ),
    "an unknown grid": (
        lambda: workbench.check_accountant(own_accountant, grid="big"),
        "grid must be one of",
    ),
    "an unknown claim": (lambda: workbench.claims("none"), "unknown paper or claim 'none'"),
    "an unknown study": (lambda: workbench.run("none"), "unknown study 'none'"),
    "trying without a dry run": (
        lambda: workbench.run("ferret", try_for=3),
        "try_for is said of `dry_run`, which is missing",
    ),
    "an unknown base": (lambda: workbench.run("ferret", base={"none": "."}), "base: unknown base 'none'"),
    "nothing to report": (
        lambda: workbench.report("paczero", profile="quick", out="none"),
        "holds no result of study 'paczero' (profile quick)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(InputError) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value).partition("; run: ")[0]  # A command to type.


def test_what_cannot_be_answered_is_unsupported() -> None:
    with pytest.raises(UnsupportedError):
        workbench.certified(**RUN, claim="mu=1,adjacency=add-remove")
    with pytest.raises(UnsupportedError):
        workbench.plan("nats=1,secret=record")


@pytest.mark.slow
def test_a_function_of_a_file_is_carried_to_a_worker(tmp_path: Path) -> None:
    found = workbench.audit_training(
        own_trainer, claim=CLAIM, corpus="digits", candidates=60, replay=False, canaries=0, out=tmp_path
    )
    assert found.verdict == "REFUTED"
    assert found.to_frame()["attack"].tolist() == ["released scores"]
    assert (tmp_path / "store").is_dir()


def test_the_pages_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testfile(str(DOCS), module_relative=False).failed == 0


@pytest.mark.parametrize(
    "name",
    ["workbench", "workbench.audit.api.scores", "workbench.audit.api.certified", "workbench.core.errors"],
)
def test_the_modules_examples_run(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0

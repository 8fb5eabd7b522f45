"""Shipped results: what is exported is read back, reported where nothing was run, and can be recomputed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.estimation import midpoint_threshold_metrics
from workbench.execution.store import Store
from workbench.studies import recomputing, reporting, shipped
from workbench.studies.experiments import Experiment, Status, Study
from workbench.studies.recomputing import TOLERANCE, Agreement
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study
from workbench.studies.study import load_study, study_names

TINY = """
schema = 1
title = "Noise against utility"
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

[variant."DP-SGD"]
mechanism = "dp_sgd"

[variant."Not private"]
mechanism = "non_private"
without = ["epsilon"]

[[group]]
name = "budget"
grid = { epsilon = [8], seed = [0, 1] }
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Store]:
    """A study that was run, and its store."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "tiny.toml").write_text(TINY, encoding="utf-8")
    study = load_study(str(folder / "tiny.toml"))
    run_study(study, out=folder, options=RunOptions(workers=0))
    return study, Store(folder / "store")


@pytest.fixture(scope="module")
def exported(ran: tuple[Study, Store]) -> bytes:
    study, store = ran
    return shipped.encoded(shipped.export(study, store, looks={}, command="workbench run tiny"))


def changed(exported: bytes, **fields: Any) -> shipped.Shipped:
    """The results with fields of every outcome replaced by what functions make of them."""
    form = json.loads(gzip.decompress(exported))
    for outcome in form["outcomes"].values():
        outcome.update({name: change(outcome[name]) for name, change in fields.items()})
    return shipped.parse(gzip.compress(json.dumps(form).encode()))


def test_what_is_exported_is_read_back(ran: tuple[Study, Store], exported: bytes) -> None:
    study, store = ran
    before, after = read_results(study, store), shipped.parse(exported).results(study)
    assert len(after.done()) == 4
    for old, new in zip(before.outcomes, after.outcomes, strict=True):
        assert new.experiment == old.experiment
        assert new.metrics == old.metrics
        assert new.included == old.included
        assert new.claim == old.claim
        assert np.allclose(new.training_losses, old.training_losses, rtol=1e-4)
        order = np.argsort(old.scores, kind="stable")
        assert (np.diff(np.array(new.scores)[order]) >= 0).all()
        auc = midpoint_threshold_metrics(np.array(new.scores), np.array(new.included)).auc
        assert auc == pytest.approx(old.metrics["roc_auc"], abs=1e-12)
    assert exported == shipped.encoded(shipped.export(study, store, looks={}, command="workbench run tiny"))


def test_many_scores_are_kept_as_parts_of_their_order(
    ran: tuple[Study, Store], exported: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, store = ran
    monkeypatch.setattr(shipped, "MOST_RANKED", 59)
    found = shipped.parse(
        shipped.encoded(shipped.export(study, store, looks={}, command="workbench run tiny"))
    )
    likes = [form["like"] for form in found.outcomes.values()]
    assert sorted(map(bool, likes)) == [False, False, True, True]  # Two draws of members, two runs of each.
    assert f"{len(shipped.EDGES) + 1} parts of their order" in found.sentence()
    assert "parts of their order" not in shipped.parse(exported).sentence()
    before = read_results(study, store)
    for old, new in zip(before.outcomes, found.results(study).outcomes, strict=True):
        ranks = np.array(old.scores).argsort().argsort()
        expected = np.searchsorted(shipped.EDGES, (ranks + 0.5) / len(ranks), side="right")
        assert list(new.scores) == expected.tolist()
        assert len(set(new.scores)) > 40
        assert new.included == old.included


@pytest.mark.parametrize("most_ranked", [5_000, 59])
def test_results_of_two_parts_of_a_study_are_combined(
    ran: tuple[Study, Store], monkeypatch: pytest.MonkeyPatch, most_ranked: int
) -> None:
    study, store = ran
    monkeypatch.setattr(shipped, "MOST_RANKED", most_ranked)

    def of(experiments: Sequence[Experiment]) -> shipped.Shipped:
        part = replace(study, experiments=tuple(experiments))
        made = shipped.export(part, store, looks={}, command="workbench run tiny")
        return shipped.parse(shipped.encoded(made))

    whole, first, rest = of(study.experiments), of(study.experiments[:3]), of(study.experiments[2:])
    found = shipped.parse(shipped.encoded(shipped.combined(rest, first)))
    for old, new in zip(whole.results(study).outcomes, found.results(study).outcomes, strict=True):
        assert replace(new, cost={}) == replace(old, cost={})
    assert found.made["trainings"] == first.made["trainings"] + rest.made["trainings"] == 5
    assert found.made["core_seconds"] == pytest.approx(first.made["core_seconds"] + rest.made["core_seconds"])
    assert (found.made["experiments"], found.made["seeds"]) == (4, [0, 1])
    assert found.made["machine"] == whole.made["machine"]
    elsewhere = replace(first, made={**first.made, "machine": {**first.made["machine"], "cpu": "Other"}})
    cpus = shipped.combined(shipped.combined(rest, elsewhere), elsewhere).made["machine"]["cpu"]
    assert cpus == f"Other and {whole.made['machine']['cpu']}"
    with pytest.raises(InputError, match="results of study 'another' cannot be combined"):
        shipped.combined(rest, replace(first, study="another"))


def test_a_run_is_added_to_an_earlier_file(
    ran: tuple[Study, Store], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, store = ran
    folder = store.folder.parent
    base = ["report", str(folder / "tiny.toml"), "--out", str(folder), "--quiet", "--format", "json"]
    part, whole, bad = tmp_path / "part.gz", tmp_path / "whole.gz", tmp_path / "bad.gz"
    assert main([*base, "--only", "seed=0", "--export", str(part)]) == 0
    assert main([*base, "--only", "seed=1", "--export", str(whole), "--onto", str(part)]) == 0
    assert len(shipped.parse(whole.read_bytes()).results(study).done()) == 4
    before, good = whole.read_bytes(), json.loads(gzip.decompress(part.read_bytes()))
    capsys.readouterr()
    forms = {
        "no gzip": b"x",
        "cut": part.read_bytes()[:50],
        "no file of exported results": gzip.compress(b"[]"),
        "no such schema": gzip.compress(json.dumps({**good, "schema": 0}).encode()),
        "no outcomes": gzip.compress(json.dumps({**good, "outcomes": []}).encode()),
        "no field": gzip.compress(json.dumps({"schema": good["schema"]}).encode()),
        "no machine": gzip.compress(json.dumps({**good, "made": {}}).encode()),
        "of another study": gzip.compress(json.dumps({**good, "study": "other"}).encode()),
    }
    for name, content in forms.items():
        bad.write_bytes(content)
        code = main([*base, "--only", "seed=1", "--export", str(whole), "--onto", str(bad)])
        said = capsys.readouterr()
        assert (code, said.out, whole.read_bytes() == before) == (2, "", True), name
        assert said.err.startswith("error: --onto: ")
        assert len(said.err.splitlines()) == 1
    for words, says in (
        (["--onto", str(part)], "error: --onto goes with --export"),
        (["--export", str(whole), "--onto", str(tmp_path / "none")], "cannot be read: No such file"),
    ):
        assert main([*base, *words]) == 2
        assert says in capsys.readouterr().err


def test_an_experiment_that_says_something_else_is_missing(ran: tuple[Study, Store], exported: bytes) -> None:
    study, _ = ran
    read = shipped.parse(exported)
    for other in ({"learning_rate": 0.06}, {"seed": 5}, {"attack_parameters": {"canaries": 0.25}}):
        experiments = tuple(replace(one, **other) for one in study.experiments)
        results = read.results(replace(study, experiments=experiments))
        assert {outcome.status for outcome in results.outcomes} == {Status.MISSING}, other
    renamed = replace(study, experiments=tuple(replace(one, group="x") for one in study.experiments))
    assert len(read.results(renamed).done()) == 4


def test_results_of_another_schema_are_refused(exported: bytes) -> None:
    form = json.loads(gzip.decompress(exported))
    form["schema"] = shipped.SCHEMA + 1
    with pytest.raises(InputError, match="schema"):
        shipped.parse(gzip.compress(json.dumps(form).encode()))


def test_recomputed_experiments_agree(ran: tuple[Study, Store], exported: bytes) -> None:
    study, _ = ran
    rows = recomputing.recompute(shipped.parse(exported), study, 3, seed=1)
    assert [row.agreement for row in rows] == [Agreement.AGREES] * 3
    assert {row.experiment.name for row in rows} <= {one.name for one in study.experiments}
    assert len({row.experiment.name for row in rows}) == 3
    assert all(row.compared > 5 for row in rows)
    assert recomputing.exit_code(rows) == 0


def test_a_number_that_was_changed_is_noticed(ran: tuple[Study, Store], exported: bytes) -> None:
    study, _ = ran
    within = changed(
        exported, metrics=lambda metrics: {**metrics, "roc_auc": metrics["roc_auc"] + 0.9 * TOLERANCE}
    )
    beyond = changed(
        exported, metrics=lambda metrics: {**metrics, "roc_auc": metrics["roc_auc"] + 1.1 * TOLERANCE}
    )
    assert recomputing.exit_code(recomputing.recompute(within, study, 1, seed=2)) == 0
    (row,) = recomputing.recompute(beyond, study, 1, seed=2)
    assert (row.agreement, row.metric) == (Agreement.DIFFERS, "roc_auc")
    assert recomputing.exit_code([row]) == 1


def test_other_records_are_not_compared(ran: tuple[Study, Store], exported: bytes) -> None:
    study, _ = ran
    other = changed(exported, content=lambda digest: "0" * len(digest))
    rows = recomputing.recompute(other, study, 2, seed=0)
    assert {row.agreement for row in rows} == {Agreement.OTHER_RECORDS}
    assert recomputing.exit_code(rows) == 3


@pytest.mark.parametrize(
    ("shipped_value", "here", "agrees"),
    [
        (0.5, 0.5 + TOLERANCE * 0.99, True),
        (0.5, 0.5 + TOLERANCE * 1.01, False),
        (100.0, 100 * (1 + TOLERANCE * 0.99), True),
        (100.0, 100 * (1 - TOLERANCE * 1.01), False),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        (float("inf"), float("inf"), True),
        (1.0, float("inf"), False),
    ],
)
def test_the_tolerance(shipped_value: float, here: float, agrees: bool) -> None:
    assert (recomputing.excess(shipped_value, here) <= 1.0) is agrees


SHIPPED = [name for name in study_names() if shipped.read(name) is not None]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_is_of_todays_study(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results, study = reporting.shipped_study(name)
    outcomes = results.results(study).outcomes
    assert set(results.outcomes) <= {outcome.key for outcome in outcomes}, "of another version of the study"
    made = reporting.report(name)
    assert made.shipped is not None
    assert results.made["machine"]["cpu"] in made.made.notes[0]
    done = {outcome.key for outcome in outcomes if outcome.status is Status.DONE}
    assert made.record["experiments"]["done"] == len(done) == results.made["experiments"]
    page = made.page()
    assert len(page.encode()) < 500_000
    lacking = made.record["experiments"]["missing"]
    assert f"<dd>{len(done)} of {len(done) + lacking}<" in page
    assert f"{results.made['experiments']} experiments in {results.made['core_seconds'] / 3600:.1f}" in page
    place = next(Path(shipped.__file__).parents[1].glob(f"reports/papers/*/{name}{shipped.ENDING}"), None)
    assert place is None or place.stat().st_size < 3_000_000


def test_an_experiment_of_two_groups_counts_once(ran: tuple[Study, Store], exported: bytes) -> None:
    study, store = ran
    copies = tuple(replace(one, group="another") for one in study.experiments)
    both = replace(study, experiments=(*study.experiments, *copies))
    for results in (read_results(both, store), shipped.parse(exported).results(both)):
        assert len(results.outcomes) == 8
        assert {outcome.experiment.group for outcome in results.outcomes} == {"budget", "another"}
        assert reporting.counts(results) == {"done": 4, "failed": 0, "missing": 0}

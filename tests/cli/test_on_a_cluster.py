"""Audits, claims and base models on the workers of a Dask scheduler, beside the same in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dask_cluster import FUNCTIONS, Cluster

from workbench.audit.run import audit_mechanisms
from workbench.audit.run_training import audit_training
from workbench.audit.settings import embedded_settings
from workbench.audit.starting import started
from workbench.checks.ledger import Method, PublishedClaim, load_ledger, select_claims
from workbench.checks.run import check_claims
from workbench.core.errors import ContentError, InputError
from workbench.execution.store import Store
from workbench.studies import bases
from workbench.studies.bases import BuildStep

pytestmark = [pytest.mark.dask, pytest.mark.slow]

DIGITS = embedded_settings(
    corpus="digits",
    corpus_parameters={},
    model="digits_logistic",
    model_parameters={},
    attacks=("loss", "lira", "dirac_canary"),
    attack_parameters={"lira": {"shadows": 4}},
    candidates=60,
    steps=12,
    optimizer="sgd",
    learning_rate=0.5,
    workers=0,
)

PLUGIN = """
import os, time
from workbench.core.registry import register

@register("claim_check", "cluster_dies")
def cluster_dies():
    os._exit(7)

@register("claim_check", "cluster_hangs")
def cluster_hangs():
    time.sleep(60)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two workers, whose machine seems to have 97 cores, with a plug-in package of checks."""
    place, path = tmp_path / "cluster", tmp_path / "path"
    (path / "cluster_checks-1.0.dist-info").mkdir(parents=True)
    (path / "cluster_checks.py").write_text(PLUGIN)
    (path / "cluster_checks-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: cluster-checks\nVersion: 1.0\n"
    )
    (path / "cluster_checks-1.0.dist-info" / "entry_points.txt").write_text(
        "[workbench.claim_checks]\nown = cluster_checks\n"
    )
    (path / "sitecustomize.py").write_text("import os\nos.cpu_count = lambda: 97\n")
    place.mkdir()
    running = Cluster(place)
    for _ in range(2):
        running.worker("--nworkers", "1", path=f"{path}{os.pathsep}{FUNCTIONS}")
    try:
        yield running
    finally:
        running.close()


def test_an_audit_says_the_same_as_here(cluster: Any, tmp_path: Path) -> None:
    heard: list[str] = []
    there = audit_mechanisms(
        replace(DIGITS, scheduler=cluster.address),
        out=tmp_path / "there",
        command="c",
        progress=lambda stage, done, total: heard.append(stage),
    )
    here = audit_mechanisms(DIGITS, out=tmp_path / "here", command="c")
    assert there["verdict"] == here["verdict"]
    for ours, theirs in zip(here["subjects"], there["subjects"], strict=True):
        assert [attack["scores"] for attack in ours["attacks"]] == [
            attack["scores"] for attack in theirs["attacks"]
        ]
        assert [attack["verdict"] for attack in ours["attacks"]] == [
            attack["verdict"] for attack in theirs["attacks"]
        ]
    records = [dict(Store(tmp_path / where / "store").records()) for where in ("here", "there")]
    assert records[0].keys() == records[1].keys()
    assert {record["hardware"]["cores"] for record in records[1].values()} == {97}
    assert set(heard) - {f"no worker at {cluster.address}: waiting for one"} >= {"training", "attacking"}


def test_a_users_function_travels_with_its_audit(cluster: Any, tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "import os\n"
        "def train(records, seed):\n"
        "    assert os.cpu_count() == 97, 'not here'\n"
        "    seen = {record['id'] for record in records}\n"
        "    return lambda records: [float(record['id'] in seen) for record in records]\n"
        "def breaks(records, seed):\n"
        "    raise ValueError('two\\nlines')\n"
    )
    settings = replace(DIGITS, scheduler=cluster.address, attacks=("loss",), attack_parameters={})
    with started(f"{source}:train", settings, tmp_path / "out") as engine:
        report = audit_training(f"{source}:train", settings, engine, runs=2, command="c")
        assert report["verdict"]["kind"] == "REFUTED"
        with pytest.raises(InputError, match=r"\S*mine.py:7: ValueError: two lines"):
            audit_training(f"{source}:breaks", settings, engine, runs=1, command="c")


def test_a_worker_with_other_records_refuses_the_job(cluster: Any, tmp_path: Path) -> None:
    lines = tmp_path / "records.jsonl"
    lines.write_text("\n".join(f'{{"text": "line number {i} of the file"}}' for i in range(200)))
    settings = replace(
        DIGITS,
        corpus="text_file",
        corpus_parameters={"path": str(lines)},
        model="tiny_gpt2",
        attacks=("loss",),
        attack_parameters={},
        control=False,
        optimizer="adamw",
        learning_rate=1e-3,
        scheduler=cluster.address,
        steps=2,
    )
    from workbench.audit import subjects

    digest = subjects.content_digest
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subjects, "content_digest", lambda setup: digest(setup)[::-1])
        with pytest.raises(ContentError, match=r"corpus 'text_file' or model 'tiny_gpt2' is not what it was"):
            audit_mechanisms(settings, out=tmp_path / "out", command="c")


def test_claims_are_answered_as_here_and_a_bad_check_fails_alone(cluster: Any) -> None:
    shipped = [
        claim for claim in select_claims(load_ledger(), ["dp_weights"]) if claim.method == Method.PROOF
    ]
    fields: dict[str, Any] = {"paper": "ferret", "place": "p", "restatement": "r", "method": Method.PROOF}
    bad = [PublishedClaim(id=name, check=f"cluster_{name}", **fields) for name in ("hangs", "dies")]
    answers = check_claims([*shipped, *bad], scheduler=cluster.address, limit_seconds=20.0)
    here = check_claims(shipped, workers=0)
    assert [answer.finding for answer in answers[: len(here)]] == [answer.finding for answer in here]
    assert all(answer.finding is not None for answer in here)
    assert answers[-2].failure == "the check did not answer within 20 s"
    assert answers[-1].failure.startswith("the check's process died: 2 workers died with it")


def test_base_models_are_built_in_the_cache_that_all_share(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FUNCTIONS))
    from counting_base import CountingBase

    known = {name: CountingBase(name, tmp_path) for name in ("alpha", "beta")}
    known["full"] = CountingBase("full", tmp_path, refuses=True)
    monkeypatch.setattr(
        bases,
        "registry",
        SimpleNamespace(entries=lambda kind: known, create=lambda kind, name: known[name]),
    )
    steps: list[BuildStep] = []
    assert bases.ensure(["alpha", "beta"], steps.append, scheduler=cluster.address) == ("alpha", "beta")
    assert [step.loss for step in steps if step.name == "beta"] == [None, 1.0, 0.5, 1 / 3]
    with pytest.raises(InputError, match="base 'full': the cache is full"):
        bases.ensure(["full"], scheduler=cluster.address)

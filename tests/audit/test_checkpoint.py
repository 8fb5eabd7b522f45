"""A trained model is asked for its members: memory shows, and refutes only where a coin decided."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from workbench.attacks.loss import LossAttack
from workbench.audit.checkpoint import Checkpoint
from workbench.cli.app import main
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import Record

WORDS = (
    "pain",
    "fever",
    "cough",
    "rash",
    "denies",
    "stable",
    "acute",
    "chronic",
    "left",
    "arm",
    "leg",
    "clear",
)


def texts(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, size=12)) for _ in range(count)]


MEMBERS, OTHERS = texts(60, 0), texts(60, 1)


def saved(folder: Path, members: Sequence[str], steps: int) -> Path:
    """A folder with `tiny_gpt2`, trained on the members."""
    model: Any = registry.create("model", "tiny_gpt2", seed=0, max_length=64)
    batch = model.encode([Record(id=str(i), text=text) for i, text in enumerate(members)])
    optimizer = torch.optim.Adam(model.module.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model.losses(batch).mean().backward()
        optimizer.step()
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    saved(folder / "base", MEMBERS, 0)
    (folder / "members.txt").write_text("\n".join(MEMBERS))
    lines = [json.dumps({"text": text}) for text in OTHERS]
    (folder / "others.jsonl").write_text("\n".join(lines))
    pq.write_table(pa.table({"text": OTHERS}), folder / "others.parquet")
    return folder


def audited(place: Path, out: Path, *more: str, model: str = "trained", others: str = "others.jsonl") -> Any:
    if not (place / model).exists():
        saved(place / model, MEMBERS, 60)
    lists = ["--members", str(place / "members.txt"), "--nonmembers", str(place / others)]
    code = main(
        ["audit", "--checkpoint", str(place / model), *lists, "--out", str(out / "out"), "--quiet", *more]
    )
    report = json.loads((out / "out" / "report.json").read_text(encoding="utf-8"))
    assert code == report["exit_code"]
    return report


@pytest.mark.slow
def test_memory_shows_and_refutes_only_with_a_coin(place: Path, tmp_path: Path) -> None:
    doubtful = audited(place, tmp_path, "--reference", str(place / "base"))
    assert doubtful["verdict"]["kind"] == "UNDECIDED"
    assert "by no coin" in doubtful["verdict"]["sentence"]
    (subject,) = doubtful["subjects"]
    names = [attack["attack"] for attack in subject["attacks"]]
    assert names == ["loss", "min-k", "min-k++", "zlib", "reference ratio"]
    for attack in subject["attacks"]:
        scores, members = np.array(attack["scores"]), np.array(attack["members"], dtype=bool)
        assert np.mean(scores[members][:, None] > scores[~members]) > 0.9
    assert "ROC" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert audited(place, tmp_path, "--prior", "0.5")["verdict"]["kind"] == "REFUTED"


def test_a_model_that_saw_nothing_is_not_refuted(place: Path, tmp_path: Path) -> None:
    assert audited(place, tmp_path, model="base", others="others.parquet")["verdict"]["kind"] == "NOT_REFUTED"


def test_lists_that_words_tell_apart_are_invalid(place: Path, tmp_path: Path) -> None:
    (place / "later.txt").write_text("\n".join(f"in march {text}" for text in OTHERS))
    report = audited(place, tmp_path, model="base", others="later.txt")
    assert report["verdict"]["kind"] == "INVALID"


def test_token_z_scores_are_those_of_the_definition(place: Path) -> None:
    known = Checkpoint.of_folder("--checkpoint", place / "base")
    record = Record(id="a", text=MEMBERS[0])
    (found,) = known.token_z_scores((record,))
    batch = known.model.encode([record])
    with torch.no_grad():
        logits = known.model.module(**batch).logits[0].double()
    for position, score in enumerate(found):
        log_p = torch.log_softmax(logits[position], dim=0)
        mean = float((log_p.exp() * log_p).sum())
        deviation = float((log_p.exp() * (log_p - mean) ** 2).sum().sqrt())
        chosen = float(log_p[batch["input_ids"][0, position + 1]])
        assert score == pytest.approx((chosen - mean) / deviation, rel=1e-6)


def test_standardised_tokens_go_with_nothing_else() -> None:
    with pytest.raises(InputError, match="min_k_plus_plus"):
        LossAttack(score="min_k_plus_plus", calibrate=True)


LISTS = ("--members", "{}/members.txt", "--nonmembers", "{}/others.jsonl")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--checkpoint", "{}/base"], "--checkpoint needs --members FILE"),
        (["--checkpoint", "{}/base", "--members", "{}/members.txt"], "--checkpoint needs --nonmembers FILE"),
        (
            ["--checkpoint", "{}/none", "--members", "{}/members.txt", "--nonmembers", "{}/others.jsonl"],
            "--checkpoint must be a folder with a model",
        ),
        (
            ["--checkpoint", "{}/base", "--members", "{}/members.txt", "--nonmembers", "{}/again.txt"],
            "--nonmembers holds 60 texts of --members",
        ),
        (
            ["--checkpoint", "{}/base", "--members", "{}/members.txt", "--nonmembers", "{}/short.txt"],
            "--nonmembers must hold at least 8 records, got 1",
        ),
        (
            [*LISTS, "--checkpoint", "{}/base", "--reference", "{}/none"],
            "--reference must be a folder with a model",
        ),
        (
            ["--checkpoint", "{}/base", "--members", "{}/none.txt", "--nonmembers", "{}/others.jsonl"],
            "--members must be an existing file",
        ),
        ([*LISTS, "--checkpoint", "{}/nan"], "--checkpoint '{}/nan' holds weights that are not finite"),
        (["--members", "{}/members.txt"], "--members goes with --checkpoint"),
        (["--checkpoint", "{}/base", "--train", "x.py:f"], "--train and --checkpoint exclude each other"),
    ],
)
def test_a_mistake_gets_one_line(
    words: list[str],
    message: str,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (place / "short.txt").write_text("one line\n")
    (place / "again.txt").write_text("\n".join(MEMBERS))
    if not (place / "nan").exists():
        shutil.copytree(place / "base", place / "nan")
        weights = load_file(place / "nan" / "model.safetensors")
        weights[min(weights)] = torch.full_like(weights[min(weights)], torch.nan)
        save_file(weights, place / "nan" / "model.safetensors", {"format": "pt"})
    assert main(["audit", *(word.format(place) for word in words), "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert message.format(place) in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()

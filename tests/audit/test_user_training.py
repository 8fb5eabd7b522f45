"""The contract of `--train`: every legal return value is scored, every mistake gets one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from workbench.audit.run_training import audit_training
from workbench.audit.settings import embedded_settings
from workbench.audit.starting import started
from workbench.audit.user_training import UserTraining, as_dicts, load_training_function
from workbench.core.errors import InconclusiveError, InputError
from workbench.interfaces import Record

CANDIDATES = tuple(
    Record(id=f"r{place}", text=f"text {place}", label=place % 2, image=(float(place), 1.0))
    for place in range(6)
)
INCLUDED = np.array([True, False, True, True, False, False])


@pytest.fixture(autouse=True)
def _unchanged_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what loading a user's file adds to the module search path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("workbench_user_")]:
        del sys.modules[name]


def spec(folder: Path, source: str, name: str = "train") -> str:
    path = folder / "mine.py"
    path.write_text(source)
    return f"{path}:{name}"


def scores(folder: Path, source: str) -> list[float]:
    return list(UserTraining(spec(folder, source)).scores(CANDIDATES, INCLUDED, 7))


def test_a_scorer_gets_all_candidates_and_training_only_the_members(tmp_path: Path) -> None:
    source = """
def train(records, seed):
    seen = {record["id"]: seed for record in records}
    return lambda records: [seen.get(record["id"], -1) for record in records]
"""
    assert scores(tmp_path, source) == [7.0, -1.0, 7.0, 7.0, -1.0, -1.0]


def test_the_records_are_dicts_and_changing_them_changes_nothing(tmp_path: Path) -> None:
    assert as_dicts(CANDIDATES[:1]) == [{"id": "r0", "text": "text 0", "label": 0, "image": [0.0, 1.0]}]
    source = """
def train(records, seed):
    for record in records:
        record["image"][0] = 99.0
    records.clear()
    return lambda records: [record["image"][0] for record in records]
"""
    assert scores(tmp_path, source) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_folder_of_a_saved_model_is_scored_as_the_pair_is(tmp_path: Path) -> None:
    source = """
import pathlib
from workbench.core import registry
FOLDER = pathlib.Path(__file__).parent / "saved"
def {name}(records, seed):
    base = registry.create("model", "tiny_gpt2", seed=0, max_length=64)
    base.module.save_pretrained(FOLDER)
    base.tokenizer.save_pretrained(FOLDER)
    return {result}
"""
    pair = scores(tmp_path, source.format(name="train", result="base.module, base.tokenizer"))
    for folder in ("FOLDER", "str(FOLDER)"):
        found = scores(tmp_path, source.format(name="train", result=folder))
        assert found == pytest.approx(pair, abs=1e-5)
    (tmp_path / "saved" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"returned folder .* has no"):
        scores(tmp_path, "def train(records, seed):\n    return __file__.rpartition('/')[0] + '/saved'\n")
    with pytest.raises(InputError, match="returned 'nowhere', which is no folder; return a callable"):
        scores(tmp_path, "def train(records, seed):\n    return 'nowhere'\n")


@pytest.mark.parametrize(
    "expression",
    [
        "Losses()",
        "lambda records: -torch.arange(6.0, requires_grad=True)",
        "lambda records: [torch.tensor(-float(place)) for place in range(6)]",
        "lambda records: -np.arange(6)",
        "bench_model()",
    ],
)
def test_every_form_of_result_is_scored(tmp_path: Path, expression: str) -> None:
    source = f"""
import numpy as np
import torch

class Losses:
    def losses(self, records):
        return torch.tensor([record["image"][0] for record in records], dtype=torch.bfloat16)

class Bench:
    kind = "classification"
    name = "mine"
    def __init__(self):
        self.module = torch.nn.Dropout(0.5)
    def encode(self, records):
        return {{"image": torch.tensor([record.image for record in records])}}
    def losses(self, batch):
        return self.module(batch["image"])[:, 0]
    def token_log_likelihoods(self, batch):
        return []

def bench_model():
    return Bench()

def train(records, seed):
    return {expression}
"""
    assert scores(tmp_path, source) == [-0.0, -1.0, -2.0, -3.0, -4.0, -5.0]


def test_a_neighbouring_file_can_be_imported_and_edits_are_seen(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("VALUE = 1.0\n")
    source = """
from neighbour_of_mine import VALUE
def train(records, seed):
    return lambda records: [VALUE] * 5 + [{}]
"""
    first = UserTraining(spec(tmp_path, source.format(2)))
    second = UserTraining(spec(tmp_path, source.format(3)))
    assert first.source_sha256 != second.source_sha256
    assert second.scores(CANDIDATES, INCLUDED, 0).tolist() == [1.0, 1.0, 1.0, 1.0, 1.0, 3.0]
    assert not (tmp_path / "__pycache__" / "mine.cpython-311.pyc").exists()


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("def trian(records, seed): ...", ["unknown function 'train'", "did you mean 'trian'?"]),
        ("X = 1", ["defines no function"]),
        ("import no_such_module_anywhere\n", ["mine.py:1", "ModuleNotFoundError"]),
        ("\n\ndef train(:\n", ["mine.py:3", "SyntaxError"]),
        ("raise SystemExit(3)", ["mine.py:1", "SystemExit: 3"]),
        ("def train(records): ...", ["TypeError", "positional argument"]),
        ("def train(records, seed):\n    raise ValueError('a\\nb')", ["mine.py:2", "ValueError: a b"]),
        ("def train(records, seed): return None", ["returned NoneType", "losses(records)"]),
        ("def train(records, seed): return 1, 2", ["a pair of int and int"]),
        (
            "import torch\ndef train(records, seed): return torch.nn.Linear(1, 1)",
            ["a bare Linear", "losses(records)"],
        ),
        ("def train(records, seed): return lambda r: [1.0, 2.0]", ["shape (6,)", "got shape (2,)"]),
        ("def train(records, seed): return lambda r: [[1.0]] * 6", ["shape (6,)", "got shape (6, 1)"]),
        ("def train(records, seed): return lambda r: 1.0", ["shape (6,)", "got shape ()"]),
        ("def train(records, seed): return lambda r: ['a'] * 6", ["ValueError"]),
        ("def train(records, seed): return lambda r: None", ["shape (6,)", "got shape ()"]),
        ("def train(records, seed): return lambda r: (x for x in r)", ["TypeError"]),
        (
            "def train(records, seed): return lambda r: [0, 1, float('nan'), 3, 4, 5]",
            ["'r2' must be finite", "nan"],
        ),
        ("def train(records, seed):\n    return lambda r: r[0].text", ["mine.py:2", "AttributeError"]),
    ],
)
def test_a_mistake_gets_one_line(tmp_path: Path, source: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        scores(tmp_path, source)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_a_trainer_of_images_that_gets_texts_is_told_so(tmp_path: Path) -> None:
    training = UserTraining(spec(tmp_path, "def train(records, seed):\n    return len(records[0]['image'])"))
    texts = tuple(Record(id=f"r{place}", text="a text") for place in range(6))
    with pytest.raises(
        InputError, match=r"mine.py:2: .*'NoneType'.* \(these records have no image and no label"
    ):
        training.scores(texts, INCLUDED, 7)


@pytest.mark.parametrize(
    "text", ["", "file.py", "file.py:", ":train", "file.py:a b", "none.py:train", "C:\\x.py"]
)
def test_a_malformed_spec_gets_one_line(text: str) -> None:
    with pytest.raises(InputError, match="function"):
        load_training_function(text)


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_function_that_kills_its_worker_is_tried_again_and_then_gets_one_line(
    tmp_path: Path, comes_back: bool
) -> None:
    source = f"""
import os, pathlib
def train(records, seed):
    note = pathlib.Path({str(tmp_path / "note")!r})
    if not note.exists() or not {comes_back}:
        note.touch()
        os._exit(0)
    return lambda records: [sum(record["image"]) for record in records]
"""
    settings = embedded_settings(
        corpus="digits",
        corpus_parameters={},
        model="digits_logistic",
        model_parameters={},
        candidates=20,
        workers=1,
    )
    trainer = spec(tmp_path, source)
    with started(trainer, settings, tmp_path) as engine:
        audit = partial(audit_training, trainer, settings, engine, runs=1, command="c")
        if comes_back:
            assert audit()["exit_code"] == 0
            return
        with pytest.raises(InconclusiveError, match=r"2 workers died with it.*exit code 0.*go on$") as caught:
            audit()
    assert "\n" not in str(caught.value)

"""A user's mistakes with zeroth-order mechanisms: one line that names what is wrong, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.audit.settings import default_settings, embedded_settings
from workbench.cli.app import main
from workbench.core import registry

SMALL = "audit --candidates 40 --steps 3 --workers 0 --no-control --out out"
PLACE = {"--corpus": "digits", "--model": "digits_logistic"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mezo --optimizer adamw", "optimizer must be 'sgd' for a zeroth-order mechanism"),
        ("dpzero --optimizer adamw", "optimizer must be 'sgd' for a zeroth-order mechanism"),
        ("paczero --optimizer adamw", "optimizer must be 'sgd' for a zeroth-order mechanism"),
        ("zo_surrogate --attack loss", "sampling_probability must be 1 for zo_surrogate"),
        ("mezo --attack dirac_canary", "attack 'dirac_canary' reads noised sums, and mezo releases none"),
        (
            "zo_surrogate --sampling-probability 1 --attack dirac_canary",
            "attack 'dirac_canary' reads noised sums, and zo_surrogate releases none",
        ),
        (
            "paczero --mechanism-parameter subset_count=10000000000",
            "subset_count must be at most 65536, got 10000000000",
        ),
        (
            "zo_surrogate --attack loss --mechanism-parameter subset_count=10000000000",
            "subset_count must be at most 65536, got 10000000000",
        ),
        ("paczero --mechanism-parameter capped=False", "capped must be true or false, got 'False'"),
        ("paczero --mechanism-parameter capped=0", "capped must be true or false, got 0"),
        ("paczero --mechanism-parameter clip=true", "clip must be a number, got True"),
        ("paczero --mechanism-parameter clip=nan", "clip must be a number, got 'nan'"),
        ("paczero --mechanism-parameter clip=-inf", "clip must be a number, got '-inf'"),
        ("paczero --mechanism-parameter tolerance=inf", "tolerance must be a number, got 'inf'"),
        ("paczero --mechanism-parameter directions=true", "directions must be a whole number, got True"),
        (
            "paczero --mechanism-parameter micro_batch_size=1.5",
            "micro_batch_size must be a whole number >= 1, got 1.5",
        ),
        (
            "paczero --model prompted --model-parameter base=huggingface",
            "base_path must be given for base 'huggingface'",
        ),
        (
            "mezo --corpus docstrings --attack loss --model prompted --model-parameter base=gpt2_base",
            "model 'prompted' does not go with corpus 'docstrings': task 'sentiment': record 'docstrings-",
        ),
        (
            "paczero --corpus docstrings --model prompted --model-parameter base=gpt2_base "
            "--model-parameter task=question",
            "is no question: its text needs lines Title, Context, Question, Answer",
        ),
        (
            "dp_sgd --corpus docstrings --attack loss --model prompted --model-parameter base=gpt2_base "
            "--model-parameter task=sentimnt",
            "unknown task 'sentimnt'; did you mean 'sentiment'?",
        ),
        (
            "mezo --attack loss --corpus docstrings --corpus-parameter public=4 --model tiny_gpt2 "
            "--mechanism-parameter dev_every=1 --mechanism-parameter dev_metric=score",
            "dev_metric='score' needs a model with a task, got model 'tiny_gpt2'",
        ),
        ("paczero --mechanism-parameter scale=1e300", "scale must be at most 1.84467e+19 in float32, got"),
    ],
)
def test_a_mistake_is_told_before_any_work(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--mechanism", *words.split()]
    place = [word for option in PLACE.items() if option[0] not in given for word in option]
    assert main([*SMALL.split(), *place, *given]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


STUDY = """
schema = 1
title = "A task and a corpus"
replication = "seed"

[base]
mechanism = "mezo"
attack = "loss"
corpus = "%s"
corpus_parameters = { public = 4 }
model = "%s"
model_parameters = %s
members = 8
epochs = 1
batch_size = 4
learning_rate = 1e-3
optimizer = "sgd"

[variant."MeZO"]
mechanism_parameters = { dev_every = 1, dev_metric = "%s" }

[[group]]
name = "all"
grid = { seed = [0, 1] }
"""


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            STUDY % ("docstrings", "prompted", '{ base = "gpt2_base" }', "loss"),
            "model 'prompted' does not go with corpus 'docstrings': task 'sentiment': record ",
        ),
        (
            STUDY % ("clinical", "prompted", '{ base = "qwen2_base", task = "question" }', "score"),
            "model 'prompted' does not go with corpus 'clinical': task 'question': record ",
        ),
        (
            STUDY % ("clinical", "qwen2_base", "{}", "score"),
            "dev_metric='score' needs a model with a task, got model 'qwen2_base'",
        ),
        (
            STUDY % ("docstrings", "tiny_gpt2", "{}", "score"),
            "dev_metric='score' needs a model with a task, got model 'tiny_gpt2'",
        ),
    ],
)
def test_a_study_is_told_of_its_task_before_any_work(
    file: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(file, encoding="utf-8")
    for more in ((), ("--dry-run",)):
        assert main(["run", "mine.toml", "--workers", "0", *more]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert captured.err.startswith(f"error: group 'all', variant 'MeZO': {message}")
        assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_a_truth_value_is_given_as_one() -> None:
    assert registry.create("mechanism", "paczero", capped=False).capped is False
    assert registry.create("mechanism", "paczero", mi_steps=None, clip=2).clip == 2


@pytest.mark.parametrize("mechanism", ["mezo", "zo_surrogate"])
def test_the_embedded_attacks_leave_out_what_a_mechanism_has_nothing_for(mechanism: str) -> None:
    assert default_settings(mechanism).attacks == ("loss", "token_canaries")
    assert default_settings("dpzero").attacks == default_settings(None).attacks == embedded_settings().attacks

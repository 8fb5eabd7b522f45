"""The shipped examples of training functions: they train for real and are judged as documented."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from workbench.audit.user_training import UserTraining, as_dicts
from workbench.cli.app import main
from workbench.interfaces import Currency, Record
from workbench.studies.study import load_study

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
STUDY = EXAMPLES / "study.toml"


def digits(n: int) -> tuple[Record, ...]:
    """The first n of scikit-learn's digits, pixels in [0, 1]."""
    data = load_digits()
    rows = zip(data.data[:n] / 16.0, data.target[:n], strict=True)
    return tuple(
        Record(id=str(place), image=tuple(image.tolist()), label=int(label))
        for place, (image, label) in enumerate(rows)
    )


def test_the_plain_example_knows_its_records_by_heart_and_repeats_itself() -> None:
    candidates = digits(200)
    included = np.random.default_rng(0).random(200) < 0.5
    training = UserTraining(f"{EXAMPLES / 'train_plain_pytorch.py'}:train")
    scores = training.scores(candidates, included, 1)
    assert scores[included].min() > -0.01
    assert scores[~included].min() < -0.5
    np.testing.assert_array_equal(scores, training.scores(candidates, included, 1))
    assert np.any(scores != training.scores(candidates, included, 2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_opacus_example_spends_its_budget_and_no_more() -> None:
    specification = importlib.util.spec_from_file_location("train_opacus", EXAMPLES / "train_opacus.py")
    assert specification is not None
    assert specification.loader is not None
    module: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    trained = module.train(as_dicts(digits(250)), 0)
    assert 0.95 <= trained.epsilon <= 1.0
    losses = trained.losses(as_dicts(digits(250)))
    # Guessing gives log(10) = 2.3 nats; the noise leaves most of the way open, yet something is learnt.
    assert float(losses.median()) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        # A false claim; members and non-members are far apart (about 60 of 250 non-members have a
        # higher loss than every member), so a failure to refute is no accident.
        (["train_plain_pytorch.py", "--corpus", "digits", "--candidates", "500"], {"REFUTED"}),
        # A true claim: refuted with probability 5 % at most over seeds; this seed is fixed.
        (
            ["train_opacus.py", "--corpus", "digits", "--candidates", "500", "--runs", "2"],
            {"NOT_REFUTED", "UNDERPOWERED"},
        ),
        (["train_huggingface_trainer.py", "--corpus", "clinical", "--candidates", "200"], {"REFUTED"}),
    ],
    ids=["plain", "opacus", "huggingface"],
)
def test_the_examples_are_judged_as_documented(words: list[str], kinds: set[str], tmp_path: Path) -> None:
    file, *options = words
    command = [
        sys.executable,
        "-m",
        "workbench.cli",
        "audit",
        "--train",
        f"{EXAMPLES / file}:train",
        *options,
    ]
    finished = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path, text=True)
    report = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert report["verdict"]["kind"] in kinds, finished.stdout + finished.stderr
    assert finished.returncode == report["exit_code"]
    assert report["verdict"]["sentence"] in finished.stdout


@pytest.mark.parametrize(("profile", "experiments"), [("quick", 28), ("full", 70)])
def test_the_example_study_is_what_its_comments_say(profile: str, experiments: int) -> None:
    # 2 pairs x seeds x (2 budgets of DP-SGD and ordinary training without one), less one excluded pair; and
    # 2 budgets in nats x seeds.
    study = load_study(str(STUDY), profile=profile)
    assert len(study.experiments) == experiments
    kinds = {(e.variant, e.epsilon, e.batch_size, e.learning_rate) for e in study.experiments}
    assert ("DP-SGD", 8, 50, 1.0) not in kinds
    assert ("Not private", None, 50, 1.0) in kinds
    private = [e for e in study.experiments if e.epsilon]
    assert {e.delta for e in private if e.currency is Currency.DP} == {private[0].members ** -2.0}
    assert {e.variant for e in private if e.currency is Currency.RECORD_NATS} == {"Signs"}


@pytest.mark.slow
def test_the_example_study_runs_and_is_reported(tmp_path: Path) -> None:
    out = tmp_path / "out"
    chosen = ["--only", "seed=0", "--only", "seed=1", "--only", "seed=2", "--out", str(out)]
    assert main(["run", str(STUDY), *chosen, "--workers", "0", "--quiet"]) == 0
    assert main(["report", str(STUDY), *chosen]) == 0
    assert "Not private" in (out / "report" / "index.html").read_text(encoding="utf-8")
    assert list((out / "report" / "tables").glob("*.csv"))

"""The retraining game with user code: what it refutes, what it keeps, and what it does not judge."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from canaries_here import lower_of_trials, retrained_here

from workbench.audit.retraining import CANARY, records_of, repeated, usual_size
from workbench.audit.settings import embedded_settings
from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.estimation import auc
from workbench.training.crafts import LOUD

ZOO = Path(__file__).parents[2] / "tests" / "zoo"

GAUSSIAN = (
    "    import numpy as np\n"
    "    draws = np.random.default_rng(seed)\n"
    "    shown = {scale} * sum(r['id'] == 'canary' for r in records) + draws.normal()\n"
    "    return lambda others: [shown + 1e-3 * draws.normal() for r in others]"
)
"""A training that releases the number of canaries under normal noise: exactly (scale)-GDP."""


def train(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(f"def train(records, seed):\n{body}\n", encoding="utf-8")
    return f"{folder / 'mine.py'}:train"


def audited(  # type: ignore[type-arg]
    spec: str, folder: Path, *more: str, claim: str = "epsilon=1,delta=1e-5", workers: int = 1
) -> dict:
    words = ["audit", "--train", spec, "--claim", f"{claim},adjacency=add-remove", "--corpus", "digits"]
    words += ["--candidates", "60", "--canaries", "0", "--no-replay", "--workers", str(workers), "--quiet"]
    code = main([*words, "--out", str(folder), *more])
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert code == report["exit_code"]
    return report  # type: ignore[no-any-return]


def test_records_are_those_of_the_data_and_one_loud_image() -> None:
    settings = embedded_settings(corpus="digits", corpus_parameters={}, candidates=60)
    others, canary, _ = records_of(settings.setup(()), (True,) * 60)
    assert len(others) + 1 == usual_size(60) == 59
    assert canary.id == CANARY
    assert canary.image is not None
    assert max(canary.image) == LOUD * max(max(r.image or ()) for r in others)
    assert all(type(value) is float for value in canary.image)
    assert canary.label in {r.label for r in others}
    texts = replace(settings, corpus="clinical", model="tiny_gpt2")
    _, canary, _ = records_of(texts.setup(()), (True,) * 60)
    assert len(set(canary.text.split())) == 1


def test_no_usual_batch_size_divides_the_number_with_or_without_the_canary() -> None:
    for most in range(3, 400):
        size = usual_size(most)
        assert most - 7 < size <= most
        assert all(n % divisor for n in (size, size - 1) for divisor in (4, 5))


def test_trainings_that_repeat_each_other_are_counted() -> None:
    probes = np.random.default_rng(0).normal(size=(6, 8))
    assert repeated(probes) == 0
    assert repeated(probes[[0, 1, 2, 2, 3, 3]] + 1e-9) == 4
    assert repeated(np.ones((3, 8))) == 3
    assert repeated(np.full((3, 8), np.nan)) == 0  # Trainings that diverged may differ.


@pytest.mark.slow
def test_a_training_of_known_strength_is_refuted_or_kept(tmp_path: Path) -> None:
    report = audited(train(tmp_path, GAUSSIAN.format(scale=4.0)), tmp_path, "--retrain", "100")
    _, game = report["subjects"][0]["attacks"]
    assert (game["attack"], game["verdict"]["kind"]) == ("retraining", "REFUTED")
    assert (game["game"]["trials"], game["game"]["adjacency"]) == ("independent", "add-remove")
    assert sum(game["members"]) == 50
    assert game["verdict"]["bounds"][0]["confidence"] == pytest.approx(1 - 0.05 / 3)
    (left,) = report["unplayed"]
    assert (left["attack"], left["reason"]) == ("white-box retraining", "no torch optimizer took a step")
    kept = audited(train(tmp_path, GAUSSIAN.format(scale=0.2)), tmp_path, "--retrain", "100")
    assert kept["subjects"][0]["attacks"][1]["verdict"]["kind"] == "NOT_REFUTED"


@pytest.mark.slow
def test_a_game_that_is_watched_ends_when_it_refutes_whoever_trains(tmp_path: Path) -> None:
    more = ["--retrain", "300", "--sequential"]
    spec = train(tmp_path, GAUSSIAN.format(scale=6.0))
    report = audited(spec, tmp_path, *more)
    _, game = report["subjects"][0]["attacks"]
    (bound,) = game["verdict"]["bounds"]
    done = len(game["scores"])
    assert (game["verdict"]["kind"], bound["name"], bound["n"]) == ("REFUTED", "sequential", done)
    assert done < 100
    assert f"{done} of at most 300 times, until the claim is refuted" in game["game"]["description"]
    assert f"It was refuted after {done} scores, watched one after the other." in game["verdict"]["sentence"]
    alike = audited(spec, tmp_path / "two", *more, workers=2)["subjects"][0]["attacks"][1]
    assert alike["scores"] == game["scores"]
    kept = audited(
        train(tmp_path, GAUSSIAN.format(scale=0.1)), tmp_path / "kept", *more[2:], "--retrain", "60"
    )
    (_, game) = kept["subjects"][0]["attacks"]
    assert (game["verdict"]["kind"], len(game["scores"])) == ("NOT_REFUTED", 60)
    assert "All 60 scores were watched" in game["verdict"]["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "    n = len(records)\n    return lambda others: [float(n)] * len(others)",
        "    import numpy as np\n    draws = np.random.default_rng(0)\n"
        "    shown = sum(r['id'] == 'canary' for r in records) + draws.normal()\n"
        "    return lambda others: [shown] * len(others)",
        "    import numpy as np\n    draws = np.random.default_rng(seed % 5)\n"
        "    shown = 9 * sum(r['id'] == 'canary' for r in records) + draws.normal(size=999)\n"
        "    return lambda others: [shown[int(r['id'][-2:], 36) % 999] for r in others]",
    ],
    ids=["no randomness", "a fixed seed", "few seeds"],
)
def test_code_that_ignores_its_seed_is_not_judged(body: str, tmp_path: Path) -> None:
    report = audited(train(tmp_path, body), tmp_path, "--retrain", "40")
    assert {game["attack"] for game in report["subjects"][0]["attacks"]} == {"released scores"}
    score = next(left for left in report["unplayed"] if left["attack"] == "retraining")
    assert re.match("(39|40) of 40 trainings repeat another one that had the same records", score["reason"])
    assert "the code ignores its seed, or has no randomness" in score["reason"]


@pytest.mark.slow
def test_a_training_that_fails_with_the_canary_leaves_the_other_games(tmp_path: Path) -> None:
    body = (
        "    if any(r['id'] == 'canary' for r in records):\n        raise ValueError('unknown record')\n"
        "    import random\n    return lambda others: [random.random() for r in others]"
    )
    report = audited(train(tmp_path, body), tmp_path, "--retrain", "20")
    (natural,) = report["subjects"][0]["attacks"]
    assert natural["verdict"]["bounds"][0]["confidence"] == pytest.approx(1 - 0.05 / 3)
    assert [left["attack"] for left in report["unplayed"]] == ["retraining", "white-box retraining"]
    assert report["unplayed"][0]["reason"].endswith("mine.py:3: ValueError: unknown record")


@pytest.mark.slow
def test_an_interrupted_game_goes_on_where_it_stopped(tmp_path: Path) -> None:
    body = (
        "    from pathlib import Path\n"
        "    log = Path(__file__).with_name('log')\n"
        "    done = log.read_text() if log.exists() else ''\n"
        "    if len(done) == 10 and not Path(__file__).with_name('go').exists():\n"
        "        raise KeyboardInterrupt\n"
        "    log.write_text(done + '.')\n"
    ) + GAUSSIAN.format(scale=1.0)
    spec = train(tmp_path, body)
    words = ["audit", "--train", spec, "--corpus", "digits", "--candidates", "60", "--canaries", "0"]
    words += ["--no-replay", "--workers", "1", "--quiet", "--retrain", "20", "--out", str(tmp_path)]
    assert main(words) not in (0, 1, 3)
    (tmp_path / "go").touch()
    assert main(words) in (0, 3)
    assert (tmp_path / "log").read_text() == "." * 21  # One of the membership game.


def test_unusable_numbers_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = train(tmp_path, "    open(__file__ + '.ran', 'w')\n    return lambda others: [0.0] * len(others)")
    out = ["--out", str(tmp_path / "other")]
    for words, said in (
        (["--train", spec, "--retrain", "5"], "--retrain must be a whole number >= 20, got 5"),
        (["--scores", "x.csv", "--retrain", "50"], "--retrain goes with --train, not with --scores"),
        (["--retrain", "50"], "--retrain goes with --train, not with an audit of a mechanism"),
        (["--train", spec, "--sequential"], "--sequential watches the trainings of --retrain, which is"),
        (["--sequential"], "attacks of many trainings, and 'loss' scores one: leave it out"),
        (
            ["--sequential", "--mechanism", "ferret"],
            "sequential goes with claims of epsilon, mu or Renyi DP, not with",
        ),
    ):
        assert main(["audit", *words, *out]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "mine.py.ran").exists()
    settings = embedded_settings(corpus="digits", corpus_parameters={}, candidates=60)
    with pytest.raises(InputError, match="retrain needs 3 records to train on, got 2: raise `candidates`"):
        records_of(settings.setup(()), [place < 2 for place in range(60)])


@pytest.mark.slow
def test_updates_of_a_training_without_noise_tell_the_canary() -> None:
    by_scores, by_updates, included = retrained_here(
        f"{ZOO / 'dp_sgd.py'}:no_noise", trainings=60, candidates=60
    )
    assert lower_of_trials(by_updates, included) > 1.0
    assert lower_of_trials(by_scores, included) > 1.0


NOISE_IN_THE_STEP = """
import torch

class Noisy(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                {before}weight.grad += 3.0 * torch.randn_like(weight)
        super().step()

def train(records, seed):
    torch.manual_seed(seed)
    network = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(network.weight)
    optimizer = {optimizer}(network.parameters(), lr=0.1)
    for _ in range(5):
        total = [torch.zeros_like(weight) for weight in network.parameters()]
        for record in records:
            logits = network(torch.tensor([record["image"]]))
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor([record["label"]]))
            each = torch.autograd.grad(loss, list(network.parameters()))
            norm = max(1.0, float(torch.cat([part.flatten() for part in each]).norm()))
            total = [kept + part / norm for kept, part in zip(total, each)]
        for weight, part in zip(network.parameters(), total):
            weight.grad = part
        optimizer.step()
        with torch.no_grad():
            for weight in network.parameters():
                {after}weight += 0.3 * torch.randn_like(weight)
    def score(others):
        images = torch.tensor([r["image"] for r in others])
        labels = torch.tensor([r["label"] for r in others])
        with torch.no_grad():
            return -torch.nn.functional.cross_entropy(network(images), labels, reduction="none")
    return score
"""
"""A trainer of mu = sqrt(5) / 3, whose noise the gradient before the step does not show."""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in the step", "after the step"])
def test_noise_that_the_gradient_before_the_step_lacks_is_seen(where: str, tmp_path: Path) -> None:
    inside = where == "in the step"
    source = NOISE_IN_THE_STEP.format(
        before="" if inside else "pass  # ",
        after="pass  # " if inside else "",
        optimizer="Noisy" if inside else "torch.optim.SGD",
    )
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    spec = f"{tmp_path / 'mine.py'}:train"
    _, by_updates, included = retrained_here(spec, trainings=60, candidates=24)
    # Unit normals 0.75 apart have an AUC of 0.70; the gradients before the steps have one of 1.
    assert auc(by_updates, included, confidence=0.95).estimate < 0.9
    assert np.std(by_updates[included]) > 0.5 * 0.1 * 3.0 * np.sqrt(5)


@pytest.mark.slow
def test_a_claim_about_less_than_updates_is_not_refuted_by_them(tmp_path: Path) -> None:
    claim = "epsilon=1,delta=1e-5,released=scores"
    spec = f"{ZOO / 'dp_sgd.py'}:no_noise"
    report = audited(spec, tmp_path, "--retrain", "60", claim=claim)
    _, scores, updates = report["subjects"][0]["attacks"]
    assert scores["verdict"]["kind"] == "REFUTED"
    assert (updates["attack"], updates["verdict"]["kind"]) == ("white-box retraining", "UNDECIDED")
    assert updates["game"]["beyond"] == "every update of the training"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["correct", "with_adam"])
def test_a_correct_trainer_is_refuted_no_more_often_than_stated(name: str) -> None:
    lowers = []
    for seed in range(8):
        *scores, included = retrained_here(f"{ZOO / 'dp_sgd.py'}:{name}", trainings=60, seed=seed)
        lowers += [lower_of_trials(own, included, confidence=0.95) for own in scores]
    assert sum(lower > 1.0 for lower in lowers) < 4  # 0.006 at 95 % if the two games were independent.


@pytest.mark.slow
def test_a_tenth_of_the_noise_is_refuted() -> None:
    by_scores, by_updates, included = retrained_here(f"{ZOO / 'dp_sgd.py'}:tenth_of_the_noise", trainings=200)
    assert lower_of_trials(by_updates, included) > 1.0
    assert lower_of_trials(by_scores, included) > 0.5

"""White-box canaries: what trainers release shows in them, and a kept claim is not refuted by them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from canaries_here import lower_of, played_here

from workbench.accounting.gaussian import epsilon_of_delta
from workbench.audit.canaries import record
from workbench.audit.canaries.directions import directions_of, loss_of
from workbench.audit.canaries.record import watched
from workbench.audit.canaries.scoring import moves, paired, scores_of
from workbench.audit.user_training import UserTraining, as_dicts
from workbench.cli.app import main
from workbench.core import registry
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Record
from workbench.training.crafts import canaries

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "tests" / "zoo"
CORRECT = re.findall(r'^    "(\w+)": ', (ZOO / "correct.py").read_text(encoding="utf-8"), re.MULTILINE)


def released(
    generator: torch.Generator, coins: np.ndarray, *, sigma: float, rate: float, steps: int
) -> np.ndarray:
    """Moves of canaries with random unit gradients in a Gaussian mechanism, clipped to 1, of known noise."""
    count, size, found = len(coins), 600, []
    for _ in range(steps):
        directions = torch.randn(count, size, generator=generator)
        unit = directions / directions.norm(dim=1, keepdim=True)
        part = torch.from_numpy(coins) & (torch.rand(count, generator=generator) < rate)
        update = unit[part].sum(0) + sigma * torch.randn(size, generator=generator)
        found.append(moves(directions, update))
    return np.array(found)


@pytest.mark.parametrize(("mu", "least"), [(1.0, 0.0), (8.0, 1.5)])
def test_the_bound_of_a_gaussian_mechanism_stays_below_its_epsilon(mu: float, least: float) -> None:
    generator, steps, count, runs = torch.Generator().manual_seed(3), 2, 120, 15
    truth, sigma = epsilon_of_delta(mu, 1e-5), np.sqrt(steps) / mu
    lowers = []
    for _ in range(runs):
        coins = torch.rand(count, generator=generator).numpy() < 0.5
        moved = released(generator, coins, sigma=sigma, rate=1.0, steps=steps)
        lowers.append(lower_of(scores_of(moved), coins, confidence=0.95))
    # At 95 %, five or more of 15 are above the truth with probability 0.0007 at most.
    assert sum(lower > truth for lower in lowers) < 5
    assert np.median(lowers) >= least


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_the_bound_of_a_training_of_known_epsilon_stays_below_it(mu: float, tmp_path: Path) -> None:
    trainer = tmp_path / "gaussian.py"
    trainer.write_text(
        "import sys\n"
        f"sys.path.append({str(ZOO)!r})\n"
        "import dp_sgd, torch\n"
        "dp_sgd.STEPS = 5\n"
        "class Full(dp_sgd.Trainer):\n"
        "    def batch(self, step):\n"
        "        return torch.arange(len(self.labels))\n"
        "    def drawn(self, name, parameter):\n"
        f"        return {np.sqrt(5) / mu} * torch.randn(parameter.shape, generator=self.generator)\n"
        "train = Full()\n",
        encoding="utf-8",
    )
    truth = epsilon_of_delta(mu, 1e-5)
    lowers = [
        lower_of(*played_here(f"{trainer}:train", seed=seed, candidates=200, count=150), confidence=0.95)
        for seed in range(20)
    ]
    assert sum(lower > truth for lower in lowers) < 5  # 0.003 at 95 %


PLACES = ("noise_after_the_step", "noise_in_the_optimizer", "noise_by_a_hook")


@pytest.mark.parametrize("name", [*PLACES, "with_averaging", "full_batch"])
def test_noise_that_the_gradient_lacks_is_looked_for_in_the_weights(name: str) -> None:
    records = as_dicts(registry.create("corpus", "digits", size=64, seed=0).records)
    training = UserTraining(f"{ZOO / 'correct.py'}:{name}")
    _, kept = watched(lambda: training.fitted(records, 0), seed=0, canaries=1)
    assert kept.is_hidden == (name in PLACES)
    noise = [
        own.gradient - 0.5 * update.gradient for own, update in zip(kept.changes(), kept.updates, strict=True)
    ]
    seen = float(torch.stack(noise).std())
    # A step of rate 0.5 loses half of the gradient, and the noise where the gradient has none.
    assert seen > 0.01 if name in PLACES else seen < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("place", ["after", "within"])
def test_noise_that_the_gradient_lacks_counts(place: str, tmp_path: Path) -> None:
    """Full batches at mu = 0.75: by the gradients before the steps, more than 2 would be shown."""
    mu, steps = 0.75, 5
    name = {"after": "NoiseAfterTheStep", "within": "NoiseInTheOptimizer"}[place]
    trainer = tmp_path / "gaussian.py"
    trainer.write_text(
        "import sys\n"
        f"sys.path.append({str(ZOO)!r})\n"
        "import correct, dp_sgd, torch\n"
        f"dp_sgd.STEPS = {steps}\n"
        f"correct.noise_multiplier = dp_sgd.noise_multiplier = lambda: {np.sqrt(steps) / mu}\n"
        f"class Full(correct.{name}):\n"
        "    def batch(self, step):\n"
        "        return torch.arange(len(self.labels))\n"
        "train = Full()\n",
        encoding="utf-8",
    )
    truth = epsilon_of_delta(mu, 1e-5)
    lowers = [
        lower_of(*played_here(f"{trainer}:train", seed=seed, candidates=200, count=150), confidence=0.95)
        for seed in range(10)
    ]
    assert sum(lower > truth for lower in lowers) < 4  # 0.001 at 95 %


def test_a_sampled_canary_scores_by_the_steps_that_it_is_in() -> None:
    generator = torch.Generator().manual_seed(1)
    coins = torch.rand(200, generator=generator).numpy() < 0.5
    moved = released(generator, coins, sigma=0.15, rate=0.1, steps=40)
    scores = scores_of(moved)
    assert lower_of(scores, coins) > max(2.0, lower_of(moved.sum(axis=0), coins))
    assert np.array_equal(np.argsort(scores), np.argsort(scores_of(moved[::-1])))


def test_a_step_that_is_not_finite_says_nothing() -> None:
    directions, update = torch.eye(3), torch.tensor([1.0, 0.0, float("inf")])
    assert not moves(directions, update).any()
    assert not moves(torch.zeros(3, 3), torch.ones(3)).any()
    # Some code leaves gradients in the graph.
    own, tracked = torch.eye(3), torch.arange(3.0, requires_grad=True)
    assert np.array_equal(moves(own, tracked), moves(own, tracked.detach()))


def test_pairing_takes_out_what_is_a_canarys_own() -> None:
    generator = np.random.default_rng(0)
    coins = generator.random((4, 150)) < 0.5
    own = 5.0 * generator.normal(size=150)
    scores = 2.0 * coins + generator.normal(size=coins.shape) + own
    assert lower_of(paired(scores).ravel(), coins.ravel()) > 3 * lower_of(scores.ravel(), coins.ravel())
    assert np.array_equal(paired(scores[:1]), scores[:1])


def test_directions_are_gradients_at_the_recorded_weights() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
    records = [Record(id=f"{i}", image=tuple(np.eye(4)[i].tolist()), label=i % 3) for i in range(4)]

    def ask(own: list[Record]) -> None:
        with torch.inference_mode():
            network(torch.tensor([r.image for r in own]))

    def train() -> None:
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        for _ in range(3):
            optimizer.zero_grad()
            network(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    _, kept = watched(train, seed=0, canaries=4)
    assert kept.steps == len(kept.updates) == 3
    directions = directions_of(ask, records, kept.parameters)
    found = directions.at(kept.updates[1])
    network.eval()
    torch.nn.utils.vector_to_parameters(kept.updates[1].weights, network.parameters())
    for own, row in zip(records, found, strict=True):
        logits = network(torch.tensor([own.image]))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([own.label]))
        wanted = torch.autograd.grad(loss, list(network.parameters()))
        torch.testing.assert_close(row, torch.cat([part.flatten() for part in wanted]))


def test_steps_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_STEPS", 8)
    weight = torch.nn.Parameter(torch.zeros(1))

    def train() -> None:
        optimizer = torch.optim.SGD([weight], lr=1.0)
        for step in range(21):
            weight.grad = torch.tensor([float(step)])
            optimizer.step()

    _, kept = watched(train, seed=0, canaries=1)
    assert kept.steps == 21
    assert [int(update.gradient) for update in kept.updates] == [0, 4, 8, 12, 16, 20]


def test_losses_of_what_modules_return() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    assert float(loss_of(logits, (), {}, torch.tensor(0))) == pytest.approx(np.log1p(np.exp(-2)))
    assert float(loss_of(logits[:, :1], (), {}, torch.tensor(1))) == pytest.approx(np.log1p(np.exp(-2)))
    tokens, words = torch.tensor([[1, 0, 1]]), torch.zeros(1, 3, 2)
    assert float(loss_of(words, (tokens,), {}, None)) == pytest.approx(np.log(2))
    for output, label in ((logits, None), (torch.zeros(1, 2, 2, 2), torch.tensor(0)), ("text", None)):
        with pytest.raises(UnsupportedError, match="no logits"):
            loss_of(output, (), {}, label)


@pytest.mark.parametrize("field", ["image", "text"])
def test_canaries_differ_and_have_ids_of_their_own(field: str) -> None:
    records = [
        Record(id=f"r{i}", image=(0.0, float(i)) * 8, label=i)
        if field == "image"
        else Record(id=f"r{i}", text=f"word{i} and some more of them")
        for i in range(5)
    ]
    made = canaries(records, 30, np.random.default_rng(0))
    assert len({r.id for r in made} | {r.id for r in records}) == 35
    assert len({r.image or r.text for r in made}) > 25


def audited(name: str, folder: Path, *more: str) -> dict:  # type: ignore[type-arg]
    words = ["--corpus", "digits", "--candidates", "200", "--no-replay", "--out", str(folder), "--quiet"]
    code = main(["audit", "--train", f"{ZOO / 'dp_sgd.py'}:{name}", *words, *more])
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert code == report["exit_code"]
    return report  # type: ignore[no-any-return]


@pytest.mark.slow
def test_an_audit_of_training_code_looks_for_canaries(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    report = audited("tenth_of_the_noise", tmp_path, "--junit", str(junit))
    assert report["verdict"]["kind"] == "REFUTED"
    by_name = {attack["attack"]: attack for attack in report["subjects"][0]["attacks"]}
    game = by_name["white-box canaries"]
    assert game["verdict"]["kind"] == "REFUTED"
    assert set(by_name) == {"released scores", "canaries' scores", "white-box canaries"}
    assert len(game["scores"]) == len(by_name["canaries' scores"]["scores"]) == 200
    assert game["members"] == by_name["canaries' scores"]["members"]
    shares = [attack["verdict"]["bounds"][0]["confidence"] for attack in by_name.values()]
    assert shares == pytest.approx([1 - 0.05 / 3] * 3)
    assert "white-box canaries" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'name="white-box canaries"' in junit.read_text(encoding="utf-8")
    # The natural records' game is that of an audit without canaries.
    alone = audited("tenth_of_the_noise", tmp_path / "alone", "--canaries", "0")
    assert alone["subjects"][0]["attacks"][0]["scores"] == by_name["released scores"]["scores"]
    assert float(alone["subjects"][0]["attacks"][0]["verdict"]["bounds"][0]["confidence"]) == 0.95


@pytest.mark.slow
def test_a_claim_about_scores_is_not_refuted_by_updates(tmp_path: Path) -> None:
    claim = "epsilon=1,delta=1e-5,adjacency=add-remove,released=scores"
    report = audited("tenth_of_the_noise", tmp_path, "--claim", claim)
    *others, game = report["subjects"][0]["attacks"]
    assert game["verdict"]["kind"] == "UNDECIDED"
    assert [other["attack"] for other in others] == ["released scores", "canaries' scores"]
    shares = [other["verdict"]["bounds"][0]["confidence"] for other in others]
    assert shares == pytest.approx([0.975] * 2)


@pytest.mark.slow
def test_what_cannot_be_played_says_why_and_the_other_game_decides(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    report = audited("by_hand", tmp_path, "--junit", str(junit))
    (game,) = report["unplayed"]
    assert game["reason"] == "no torch optimizer took a step"
    attacks = report["subjects"][0]["attacks"]
    assert [attack["attack"] for attack in attacks] == ["released scores", "canaries' scores"]
    # The game that was not played keeps its share of the error.
    shares = [attack["verdict"]["bounds"][0]["confidence"] for attack in attacks]
    assert shares == pytest.approx([1 - 0.05 / 3] * 2)
    assert game["reason"] in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert game["reason"] in junit.read_text(encoding="utf-8")


def test_too_few_canaries_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["audit", "--train", "x.py:f", "--canaries", "3", "--out", str(tmp_path)]) == 2
    assert "--canaries must be 0 or at least 16, got 3" in capsys.readouterr().err
    assert main(["audit", "--scores", "x.csv", "--canaries", "50", "--out", str(tmp_path)]) == 2
    assert "--canaries goes with --train" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_trainer_is_not_refuted(name: str) -> None:
    lowers = [
        lower_of(*played_here(f"{ZOO / 'correct.py'}:{name}", seed=seed, candidates=200, count=150))
        for seed in range(3)
    ]
    assert max(lowers) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no_noise", "tenth_of_the_noise", "no_clipping"])
def test_a_broken_trainer_is_refuted(name: str) -> None:
    assert lower_of(*played_here(f"{ZOO / 'dp_sgd.py'}:{name}")) > 1.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Opacus warns of much.
def test_opacus_with_little_noise_is_refuted(tmp_path: Path) -> None:
    source = (ROOT / "docs" / "examples" / "train_opacus.py").read_text(encoding="utf-8")
    trainer = tmp_path / "opacus_trainer.py"
    loop = "        for _ in range(EPOCHS):\n"
    less = source.replace(loop, "        optimizer.noise_multiplier = 0.05\n" + loop)
    # The accountant takes minutes for the epsilon of so little noise.
    unaccounted = less.replace("engine.get_epsilon(DELTA)", "EPSILON")
    assert source != less != unaccounted
    trainer.write_text(unaccounted, encoding="utf-8")
    assert lower_of(*played_here(f"{trainer}:train")) > 1.0
    assert lower_of(*played_here(str(ROOT / "docs" / "examples" / "train_opacus.py") + ":train")) < 1.0

"""Games of a user's training under a claim about replacing a record: pairs, of which one is in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from canaries_here import lower_of

from workbench.audit.neighbours import flipped, in_place, require_played, trials_of
from workbench.cli.app import main
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Secret

REPLACED, ADDED = Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE
CLAIM = "epsilon=1,delta=1e-5,adjacency=replace-one"


def test_one_of_each_pair_takes_part() -> None:
    generator = np.random.default_rng(0)
    rows = np.array([flipped(generator, 41, REPLACED) for _ in range(200)])
    assert (rows[:, 0:40:2] != rows[:, 1:40:2]).all()
    assert not rows[:, 40].any()
    assert 0.4 < rows[:, 0:40:2].mean() < 0.6
    alone = flipped(np.random.default_rng(0), 41, ADDED)
    assert (alone == (np.random.default_rng(0).random(41) < 0.5)).all()


def test_a_pair_has_one_place() -> None:
    order = np.random.default_rng(0).permutation(9)
    found = in_place(order, 3, REPLACED)
    assert sorted(found) == list(range(9))
    place = {int(record): i for i, record in enumerate(found)}
    for first in (3, 5, 7):
        assert place[first + 1] == place[first] + 1
        # Whoever of a pair takes part, all others keep their places.
        rest = {0, 1, 2, 4, 5, 8} - {first, first + 1}
        one, other = (
            [-1 if record == own else int(record) for record in found if record in rest | {own}]
            for own in (first, first + 1)
        )
        assert one == other
    assert (in_place(order, 3, ADDED) == order).all()


def test_a_trial_is_a_pair_and_its_score_a_difference() -> None:
    inside = [[True, False, False, True, False], [False, True, True, False, False]]
    scores = [[3.0, 1.0, 0.5, 2.0, 9.0], [1.0, 1.0, 4.0, 2.0, 9.0]]
    found, coins = trials_of(scores, inside, REPLACED)
    assert found.tolist() == [[1.0, -0.75], [0.0, 1.0]]
    assert coins.tolist() == [[True, False], [False, True]]
    assert trials_of(scores, inside, ADDED)[0].tolist() == scores


@pytest.mark.parametrize("about", [Adjacency.ZERO_OUT, Secret.RECORD])
def test_other_neighbours_are_refused(about: Adjacency | Secret) -> None:
    with pytest.raises(UnsupportedError, match="add, remove or replace records"):
        require_played(about)
    assert require_played(REPLACED) is REPLACED


def audited(body: str, folder: Path, *more: str) -> dict:  # type: ignore[type-arg]
    (folder / "mine.py").write_text(f"import numpy as np\ndef train(records, seed):\n{body}\n")
    words = ["audit", "--train", f"{folder / 'mine.py'}:train", "--corpus", "digits", "--claim", CLAIM]
    words += ["--candidates", "101", "--no-replay", "--out", str(folder / "out"), "--quiet"]
    code = main([*words, *more])
    report = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
    assert code == report["exit_code"]
    return report  # type: ignore[no-any-return]


@pytest.mark.parametrize("remembers", [True, False])
def test_a_claim_about_replacing_a_record_is_judged(remembers: bool, tmp_path: Path) -> None:
    body = (
        "    seen = {r['id'] for r in records}\n"
        "    assert len(records) == 50, len(records)\n"
        "    noise = np.random.default_rng(seed)\n"
        f"    return lambda others: [noise.random() + {int(remembers)} * (r['id'] in seen) for r in others]"
    )
    report = audited(body, tmp_path, "--canaries", "50")
    natural, crafted = report["subjects"][0]["attacks"]
    wanted = "REFUTED" if remembers else "NOT_REFUTED"
    assert natural["verdict"]["kind"] == crafted["verdict"]["kind"] == report["verdict"]["kind"] == wanted
    assert natural["game"]["adjacency"] == crafted["game"]["adjacency"] == "replace-one"
    assert "adjacency: replace-one" in report["verdict"]["sentence"]


def test_a_claim_about_an_empty_place_names_the_game_that_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("def train(records, seed):\n    raise ValueError('was called')\n")
    words = ["audit", "--train", f"{tmp_path / 'mine.py'}:train", "--out", str(tmp_path / "out")]
    assert main([*words, "--claim", "epsilon=1,delta=1e-5,adjacency=zero-out"]) == 2
    assert "`workbench replay` measures records that leave an empty place" in capsys.readouterr().err


@pytest.mark.slow
def test_a_kept_claim_stands_and_a_broken_one_falls() -> None:
    """Randomised response about each record: replacing one changes two answers."""
    generator = np.random.default_rng(7)
    refuted = {}
    for epsilon in (0.5, 1.5):  # Of one answer; replacing a record costs twice as much.
        truth = np.exp(epsilon) / (1 + np.exp(epsilon))
        lowers = []
        for _ in range(100):
            inside = flipped(generator, 2000, REPLACED)
            answers = np.where(generator.random(2000) < truth, inside, ~inside).astype(float)
            scores, coins = trials_of([answers], [inside], REPLACED)
            lowers.append(lower_of(scores.ravel(), coins.ravel(), 0.95))
        refuted[epsilon] = sum(lower > 1.0 for lower in lowers)
    assert refuted[0.5] <= 5 + 4
    assert refuted[1.5] == 100


@pytest.mark.slow
def test_the_retraining_game_has_a_natural_record_in_the_canarys_place(tmp_path: Path) -> None:
    body = (
        "    assert len(records) in (47, 50), len(records)\n"
        "    noise, seen = np.random.default_rng(seed), {r['id'] for r in records}\n"
        "    return lambda others: [noise.random() + (r['id'] in seen) for r in others]"
    )
    report = audited(body, tmp_path, "--canaries", "0", "--retrain", "40")
    game = next(one for one in report["subjects"][0]["attacks"] if one["attack"] == "retraining")
    assert game["game"]["adjacency"] == "replace-one"
    assert "a natural record in its place" in game["game"]["description"]
    assert game["verdict"]["kind"] == "REFUTED"

"""What the retraining game audits of DP-SGD at a true epsilon of 10, from the canary's loss alone.

Models of the digits, every record in each of 20 steps, so that the budget of (10, 1e-5)-DP is exactly that
of mu = 2.0004; 1,000 trainings a game, claimed at the true epsilon, with the plan's initial weights and the
worst case. Beside the bound that decides (any family) stand the bound on mu, as an epsilon, which assumes
nothing of the scores but that the mechanism's trade-off curve is Gaussian, as here it is (what published
black-box audits report: Nasr et al. 2023, Annamalai and De Cristofaro 2024), and the bound that takes the
scores themselves for normal.

Run `python benchmarks/retraining.py` (a quarter of an hour), or `--seeds 2`; it resumes. Results go to
`benchmarks/results/retraining.json` and `retraining.md`.

With `--user` the same game is played with user code, trainers of the digits that claim (1, 1e-5), by scores
and by updates (`--seeds 10`: hours); it resumes. Results go to `retraining_user.json` and
`retraining_user.md`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from shared import judged_by_curve, machine, options, quiet, write

from workbench.accounting.gaussian import epsilon_of_delta
from workbench.audit.canaries.run import in_range
from workbench.audit.retraining import RetrainingJob, train_once
from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import claim_of, default_settings, embedded_settings
from workbench.estimation import clopper_pearson_all
from workbench.games.base import half_included
from workbench.interfaces import BoolArray, FloatArray

EPSILON, DELTA, TRIALS = 10.0, 1e-5, 1000
PUBLISHED = {"epsilon": 7.21, "source": "Annamalai and De Cristofaro 2024 (MNIST, true epsilon 10)"}
GOAL = 7.3
CELLS = [(model, start) for model in ("digits_logistic", "digits_mlp") for start in ("plan", "worst-case")]

USER_FILE = Path(__file__).with_name("white_box_trainers.py")
USER_TRAINERS = ("no_noise", "tenth_of_the_noise", "third_of_the_noise", "correct")
USER_CLAIM, USER_CONFIDENCE, RECORDS = 1.0, 0.95, 200


def played(model: str, initialisation: str, seed: int) -> dict[str, Any]:
    """The verdict and the bounds of one game."""
    settings = default_settings(
        "dp_sgd",
        claim=claim_of("dp_sgd", EPSILON, DELTA),
        attacks=("retrained_canary",),
        attack_parameters={"retrained_canary": {"trials": TRIALS, "initialisation": initialisation}},
        corpus="digits",
        corpus_parameters={},
        model=model,
        model_parameters={},
        candidates=256,
        steps=20,
        sampling_probability=1.0,
        optimizer="sgd",
        learning_rate=1.0,
        control=False,
        workers=0,
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as place:
        report = audit_mechanisms(settings, out=Path(place), command="benchmark")
    (game,) = report["subjects"][0]["attacks"]
    bounds = {bound["name"]: float(bound["lower"]) for bound in game["verdict"]["bounds"]}
    curve = judged_by_curve(game, EPSILON, DELTA, seed=seed)
    return {
        "seed": seed,
        "refuted": game["verdict"]["kind"] == "REFUTED",
        "any_family": bounds["clopper_pearson_all"],
        "gaussian_curve": epsilon_of_delta(curve.bounds[0].lower, DELTA),
        "curve_refuted": curve.kind.value == "REFUTED",
        "gaussian_scores": bounds.get("gaussian_location"),
        "seconds": report["cost"]["seconds"],
    }


def summary(model: str, initialisation: str, games: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The games of one cell; a bound whose guard refused the scores is left out of its mean, and counted."""
    fitting = [game["gaussian_scores"] for game in games if game["gaussian_scores"] is not None]
    return {
        "model": model,
        "initialisation": initialisation,
        "refuted": sum(game["refuted"] for game in games),
        "mu_refuted": sum(game["curve_refuted"] for game in games),
        "any_family": statistics.mean(game["any_family"] for game in games),
        "gaussian_curve": statistics.mean(game["gaussian_curve"] for game in games),
        "gaussian_scores": statistics.mean(fitting) if fitting else None,
        "gaussian_scores_range": [min(fitting), max(fitting)] if fitting else None,
        "not_normal": len(games) - len(fitting),
        "above_goal": sum(game["gaussian_curve"] > GOAL for game in games),
        "gaussian_curve_range": [f(game["gaussian_curve"] for game in games) for f in (min, max)],
        "games": list(games),
    }


def kept(place: Path, rows: str, keys: Sequence[str], **same: Any) -> dict[tuple[str, ...], list[Any]]:
    """The games of an earlier run with the same settings, by the keys of their rows."""
    if not place.is_file():
        return {}
    report = json.loads(place.read_text())
    if any(report[name] != value for name, value in same.items()):
        return {}
    return {tuple(row[key] for key in keys): row["games"] for row in report[rows]}


def user_trials(name: str, seed: int, trainings: int) -> tuple[dict[str, FloatArray], BoolArray]:
    """The scores of a trainer's trainings, by what was seen, and which of them held the canary."""
    settings = embedded_settings(corpus="digits", corpus_parameters={}, candidates=RECORDS, seed=seed)
    setup, spec = settings.setup(()), f"{USER_FILE}:{name}"
    # Each quarter has as many with the canary as without, so that it is a game of its own.
    quarters = [half_included(trainings // 4, np.random.default_rng((seed, part))) for part in range(4)]
    included = np.concatenate(quarters)
    records = []
    for run, takes_part in enumerate(included.tolist()):
        job = RetrainingJob(
            setup=setup, spec=spec, included=(True,) * RECORDS, takes_part=takes_part, run=run
        )
        records.append(train_once(job, {}, Path(), lambda done, total, part: None))
    fields = {"scores": "answer", "updates": "moved"}
    return {
        seen: in_range(np.array([record[field] for record in records])) for seen, field in fields.items()
    }, included


def user_game(name: str, seed: int, trainings: int) -> dict[str, Any]:
    """The bounds of one game with a quarter, half, and all of its trainings."""
    started = time.perf_counter()
    scores, included = user_trials(name, seed, trainings)
    found: dict[str, Any] = {"seed": seed, "seconds": time.perf_counter() - started}
    for seen, values in scores.items():
        found[seen] = [
            clopper_pearson_all(
                values[:count],
                included[:count],
                delta=DELTA,
                confidence=USER_CONFIDENCE,
                generator=np.random.default_rng(seed),
            ).lower
            for count in (trainings // 4, trainings // 2, trainings)
        ]
    print(name, found, flush=True)
    return found


def user_row(name: str, games: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means of the bounds over seeds, and how many of those of all trainings are above the claim."""
    row: dict[str, Any] = {"trainer": name, "games": list(games)}
    for seen in ("scores", "updates"):
        lowers = np.array([game[seen] for game in games])
        row[seen] = {"mean": lowers.mean(axis=0).tolist(), "above": int((lowers[:, -1] > USER_CLAIM).sum())}
    return row


def play_user(place: Path, trainers: Sequence[str], seeds: int, trainings: int) -> None:
    """The game with user code: plays what an earlier run has not, seed by seed."""
    found = kept(place / "retraining_user.json", "rows", ("trainer",), trainings=trainings)
    for seed in range(seeds):
        for name in trainers:
            games = found.setdefault((name,), [])
            if all(game["seed"] != seed for game in games):
                games.append(user_game(name, seed, trainings))
                report = {
                    "machine": machine(("torch",)),
                    "trainings": trainings,
                    "records": RECORDS,
                    "claim": USER_CLAIM,
                    "confidence": USER_CONFIDENCE,
                    "rows": [user_row(name, games) for (name,), games in found.items()],
                }
                write(place, "retraining_user", report)


def play_own(place: Path, seeds: int) -> None:
    """The game on DP-SGD: plays what an earlier run has not, seed by seed."""
    found = kept(place / "retraining.json", "cells", ("model", "initialisation"), trials=TRIALS)
    for seed in range(seeds):
        for cell in CELLS:
            games = found.setdefault(cell, [])
            if all(game["seed"] != seed for game in games):
                games.append(played(*cell, seed))
                print(cell, games[-1], flush=True)
                report = {
                    "machine": machine(("torch",)),
                    "trials": TRIALS,
                    "goal": GOAL,
                    "published": PUBLISHED,
                    "cells": [summary(*cell, games) for cell, games in found.items()],
                }
                write(place, "retraining", report)


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="games a cell")
    parser.add_argument("--user", action="store_true", help="play with user code instead")
    parser.add_argument("--trainings", type=int, default=2000, help="with --user: trainings of a game")
    parser.add_argument("--trainers", nargs="+", default=list(USER_TRAINERS), choices=USER_TRAINERS)
    given = parser.parse_args()
    quiet(given.threads)
    if given.user:
        play_user(given.out, given.trainers, given.seeds, given.trainings)
    else:
        play_own(given.out, given.seeds)


if __name__ == "__main__":
    main()

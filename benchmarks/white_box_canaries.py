"""White-box canaries beside the black-box scores of the same trainers, in one training and in several.

Each trainer of the digits is audited by both games with equal confidence, over seeds; and its canaries once
more over several trainings, paired. The bound is `one_run` at delta = 1e-5.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shared import machine, options, quiet, write

from workbench.audit.canaries.run import CanaryJob, train_with_canaries, usual_count
from workbench.audit.canaries.scoring import paired
from workbench.audit.settings import embedded_settings
from workbench.audit.user_training import UserJob, train_user
from workbench.estimation import auc, one_run
from workbench.interfaces import BoolArray, FloatArray

TRAINERS = {
    "no_noise": None,
    "tenth_of_the_noise": None,
    "half_of_the_noise": None,
    "no_clipping": None,
    "clipped_by_the_batch": None,
    "raw_gradient_mixed_in": None,
    "triple_rate": None,
    "correct": 1.0,
    "not_seeded": 1.0,
    "correct_at_4": 4.0,
    "correct_at_8": 8.0,
}
"""Rows, and the epsilon that is kept, if one is."""

DELTA, CONFIDENCE = 1e-5, 0.9875
"""Of both games: each has this in an audit with replay at 95 %."""

FILE = Path(__file__).with_name("white_box_trainers.py")


def silent(done: int, total: int, name: str) -> None:
    """No progress."""


def found(scores: FloatArray, coins: BoolArray, seconds: float) -> dict[str, float]:
    """The bound, the area under the ROC curve, and the time."""
    lower = one_run(scores, coins, delta=DELTA, confidence=CONFIDENCE).lower
    return {
        "lower": lower,
        "auc": auc(scores, coins, confidence=0.95).estimate,
        "seconds": seconds,
    }


def games(name: str, seed: int, candidates: int, runs: int) -> dict[str, dict[str, float]]:
    """Both games of one seed, and the canaries over the runs."""
    settings = embedded_settings(corpus="digits", corpus_parameters={}, candidates=candidates, seed=seed)
    setup, spec = settings.setup(()), f"{FILE}:{name}"
    generator, count = np.random.default_rng(seed), usual_count(candidates)
    members = generator.random(candidates) < 0.5
    job = UserJob(setup=replace(setup, mechanism="user"), spec=spec, included=tuple(members.tolist()), run=0)
    started = time.perf_counter()
    scores = np.asarray(train_user(job, {}, Path(), silent)["scores"])
    result = {"black_box": found(scores, members, time.perf_counter() - started)}
    natural = members & (np.cumsum(members) <= max(members.sum() - count // 2, members.sum() // 8))
    each, coins, seconds = [], [], []
    for run in range(runs):
        own = generator.random(count) < 0.5
        started = time.perf_counter()
        record = train_with_canaries(
            CanaryJob(
                setup=setup,
                spec=spec,
                included=tuple(natural.tolist()),
                coins=tuple(own.tolist()),
                run=run,
            ),
            {},
            Path(),
            silent,
        )
        seconds.append(time.perf_counter() - started)
        each.append(np.asarray(record["scores"]))
        coins.append(own)
    result["white_box"] = found(each[0], coins[0], seconds[0])
    result["white_box_paired"] = found(
        paired(np.array(each)).ravel(), np.concatenate(coins), float(np.sum(seconds))
    )
    return result


def row(name: str, seeds: int, candidates: int, runs: int) -> dict[str, Any]:
    """Medians over seeds; and for a claim that is kept, how often a bound is above it."""
    every = [games(name, seed, candidates, runs) for seed in range(seeds)]
    medians = {
        game: {key: statistics.median(own[game][key] for own in every) for key in every[0][game]}
        for game in every[0]
    }
    kept = TRAINERS[name]
    above = None if kept is None else sum(own[game]["lower"] > kept for own in every for game in own)
    return {"trainer": name, "kept": kept, "above": above, **medians}


def main() -> None:
    """Command line."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="audits of each trainer")
    parser.add_argument("--candidates", type=int, default=400, help="candidates of each audit")
    parser.add_argument("--runs", type=int, default=3, help="trainings of the paired game")
    parser.add_argument("--trainers", nargs="+", default=list(TRAINERS), choices=list(TRAINERS))
    given = parser.parse_args()
    quiet(given.threads)
    games("correct", 0, given.candidates, 1)  # What is slow the first time is not the trainer's.
    report = {
        "machine": machine(("torch", "numpy")),
        "seeds": given.seeds,
        "candidates": given.candidates,
        "canaries": usual_count(given.candidates),
        "runs": given.runs,
        "confidence": CONFIDENCE,
        "rows": [row(name, given.seeds, given.candidates, given.runs) for name in given.trainers],
    }
    write(given.out, "white_box_canaries", report)


if __name__ == "__main__":
    main()

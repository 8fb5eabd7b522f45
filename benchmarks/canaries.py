"""Membership by the finished model's scores: natural records against crafted ones, in one training each.

Each trainer of the digits (`tests/zoo`) is trained once for each kind of candidates and seed, as it is by
`workbench audit --train`, and its scores are held against its claim by `one_run`.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shared import machine, options, quiet, write

from workbench.accounting import ApproximateDP
from workbench.audit.canaries.run import finite, usual_count
from workbench.audit.settings import embedded_settings
from workbench.audit.user_training import UserTraining, as_dicts
from workbench.core.errors import InputError
from workbench.estimation import auc, one_run
from workbench.training.crafts import CanaryKind, canaries
from workbench.training.setup import make_plan, mechanism_of, prepare

ZOO = Path(__file__).parents[1] / "tests" / "zoo"
FAULTS = (
    *("no_noise", "tenth_of_the_noise", "half_of_the_noise", "no_clipping", "clipped_by_the_batch"),
    *("raw_gradient_mixed_in", "triple_rate", "by_hand"),
)
CORRECT = (
    *("correct", "with_adam", "not_seeded"),
    *("fixed_batches", "by_the_layer", "with_automatic_clipping", "full_batch", "large_clip"),
)
"""Those that keep their claim; `by_hand` has no privacy."""

KINDS = ("natural", CanaryKind.LOUD, CanaryKind.MISLABELLED)
EPSILON, DELTA = 1.0, 1e-5
OWN = 400
"""Candidates of our own DP-SGD."""

CONFIDENCE = 1 - 0.05 / 6
"""Of each of three games beside replay, in an audit at 95 %."""


def spec_of(name: str) -> str:
    """The trainer's function, as `--train` takes it."""
    file = "dp_sgd.py" if hasattr(importlib.import_module("dp_sgd"), name) else "correct.py"
    return f"{ZOO / file}:{name}"


def played(name: str, kind: str, seed: int, candidates: int) -> dict[str, Any]:
    """The bound and the area under the curve of one training; a model that answers nothing shows nothing."""
    settings = embedded_settings(corpus="digits", corpus_parameters={}, candidates=candidates, seed=seed)
    records, _ = prepare(settings.setup(()))
    generator, training = np.random.default_rng(seed), UserTraining(spec_of(name))
    asked, natural = list(records), []
    if kind != "natural":
        count = usual_count(candidates)
        kept = max(candidates // 2 - count // 2, candidates // 16)
        natural = asked[:kept]
        asked = canaries(asked[kept:], count, generator, CanaryKind(kind))
    coins = generator.random(len(asked)) < 0.5
    members = natural + [record for record, inside in zip(asked, coins, strict=True) if inside]
    order = generator.permutation(len(members))
    started = time.perf_counter()
    try:
        fitted = training.fitted(as_dicts([members[i] for i in order]), seed)
        scores = finite(training.answers(fitted, asked))
    except InputError as error:
        return {"lower": 0.0, "auc": 0.5, "seconds": time.perf_counter() - started, "failed": str(error)}
    return {
        "lower": one_run(scores, coins, delta=DELTA, confidence=CONFIDENCE).lower,
        "auc": auc(scores, coins, confidence=0.95).estimate,
        "seconds": time.perf_counter() - started,
    }


def row(name: str, seeds: int, candidates: int) -> dict[str, Any]:
    """How often each kind of candidates refutes, of as many seeds; medians of bound, area and time."""
    found: dict[str, Any] = {"trainer": name, "keeps": name in CORRECT, "seeds": seeds}
    for kind in KINDS:
        every = [played(name, kind, seed, candidates) for seed in range(seeds)]
        found[kind] = {
            "refuted": sum(each["lower"] > EPSILON for each in every),
            "failed": sum("failed" in each for each in every),
            **{key: statistics.median(each[key] for each in every) for key in ("lower", "auc", "seconds")},
            "lowers": [each["lower"] for each in every],
        }
    print(name, {kind: found[kind]["refuted"] for kind in KINDS}, flush=True)
    return found


def owned(epsilon: float | None, kind: str, seed: int) -> dict[str, float]:
    """The same of our own DP-SGD, with the noise for this epsilon, or without privacy (None)."""
    settings = embedded_settings(
        corpus="digits", corpus_parameters={}, model="digits_mlp", model_parameters={}, seed=seed
    )
    settings = replace(settings, candidates=OWN, optimizer="sgd", learning_rate=0.5)
    parameters = {"loss": {} if kind == "natural" else {"craft": kind}}
    setup = replace(settings, attack_parameters=parameters).setup(("loss",))
    budget = None if epsilon is None else ApproximateDP(epsilon=epsilon, delta=DELTA)
    coins = np.random.default_rng(seed).random(OWN) < 0.5
    mechanism = mechanism_of("non_private" if epsilon is None else "dp_sgd", {}).without_quality()
    subject = mechanism.train(replace(make_plan(setup, coins, 0), budget=budget, held_out=()))
    scores = finite(-subject.losses(prepare(setup)[0]))
    return {
        "lower": one_run(scores, coins, delta=DELTA, confidence=CONFIDENCE).lower,
        "auc": auc(scores, coins, confidence=0.95).estimate,
    }


def own_row(epsilon: float | None, seeds: int) -> dict[str, Any]:
    """The figures of `row`, against the claim of 1."""
    found: dict[str, Any] = {"epsilon": epsilon, "seeds": seeds}
    for kind in KINDS:
        every = [owned(epsilon, kind, seed) for seed in range(seeds)]
        found[kind] = {
            "refuted": sum(each["lower"] > EPSILON for each in every),
            **{key: statistics.median(each[key] for each in every) for key in ("lower", "auc")},
            "lowers": [each["lower"] for each in every],
        }
    print(epsilon, {kind: found[kind]["refuted"] for kind in KINDS}, flush=True)
    return found


def main() -> None:
    """Command line."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="trainings of each trainer and kind")
    parser.add_argument("--own-seeds", type=int, default=10, help="trainings of our own DP-SGD")
    parser.add_argument("--candidates", type=int, default=200, help="candidates of each audit")
    parser.add_argument("--trainers", nargs="+", default=[*FAULTS, *CORRECT])
    given = parser.parse_args()
    quiet(given.threads)
    sys.path.append(str(ZOO))
    report = {
        "machine": machine(("torch", "numpy")),
        "candidates": given.candidates,
        "canaries": usual_count(given.candidates),
        "confidence": CONFIDENCE,
        "kinds": list(KINDS),
        "own_candidates": OWN,
        "own": [own_row(epsilon, given.own_seeds) for epsilon in (1.0, 8.0, 50.0, None)],
        "rows": [row(name, given.seeds, given.candidates) for name in given.trainers],
    }
    write(given.out, "canaries", report)


if __name__ == "__main__":
    main()

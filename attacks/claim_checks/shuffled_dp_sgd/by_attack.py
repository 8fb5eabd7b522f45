"""Shuffled DPSGD's composed claim, attacked: three adversaries who read consecutive weights of trainings.

Algorithm 1 on a small network, with the noise that Theorems 6, 2 and 1 give for the budget, against a canary
that is the only record there is (the other data set is empty). Each adversary is asked in two games, one
release of a step and whole runs, judged by the bench's judge at half of the error each; no verdict is stored.
What is not refuted here is not shown to be private. `workbench audit --mechanism shuffled_dp_sgd` plays the
same games, beside DP-SGD at an honest noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.accounting import ApproximateDP
from workbench.attacks.claim_checks.shared.claims import (
    CONFIDENCE,
    digits_plan,
    from_attack,
    setting,
    shown_lower,
)
from workbench.attacks.weight_tidying import WeightTidying
from workbench.core import registry
from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.estimation.judge import combine, judge
from workbench.games.consecutive import RUN, SINGLE, VIEWS
from workbench.games.consecutive.game import ConsecutiveGame
from workbench.interfaces import Claim, Evidence, Mechanism, Verdict, VerdictKind
from workbench.interfaces.findings import Finding

DELTA = 1e-5
PUBLIC_SIZE = 500
"""Times the sampling probability, what sums are divided by."""


@dataclass(frozen=True)
class _Settings:
    """What decides the trials; the three adversaries share them."""

    mechanism: str
    epsilon: float
    steps: int
    sampling_probability: float
    learning_rate: float
    releases: int
    runs: int
    seed: int


@dataclass(frozen=True)
class _Played:
    """The trials of both games, read by all adversaries."""

    claim: Claim
    noise: float
    evidence: Mapping[str, tuple[Evidence, ...]]
    recovered: tuple[float, ...]


@register("claim_check", "shuffled_attacked")
@setting(
    "add-remove: a record that moves one weight is in half of the trials, alone; a trial is one released "
    "step from public weights (any, here the initial ones), or one whole training; the adversary knows the "
    "weights before each step and all but membership, noise and permutations; delta 1e-5; 99.9 % confidence, "
    "one-sided, shared by both games; no family of noise is assumed"
)
def attacked(
    *,
    view: str = "tidying",
    epsilon: float = 0.5,
    mechanism: str = "shuffled_dp_sgd",
    steps: int = 50,
    sampling_probability: float = 0.05,
    learning_rate: float = 1.0,
    releases: int = 6000,
    runs: int = 80,
    seed: int = 2026,
) -> Finding:
    """Algorithm 1 with Theorem 6's noise is (epsilon, delta)-DP, by an attack on the released weights.

    `view`: the adversary, `"blind"`, `"invariant"` or `"tidying"`. `epsilon`: the budget. `mechanism`:
    registry name; `"dp_sgd"` for the same games at honest noise. `steps`, `sampling_probability`,
    `learning_rate`: of the run. `releases`, `runs`: number of trials of the two games. `seed`: of everything
    random.
    """
    if view not in VIEWS:
        raise unknown_name("view", view, VIEWS)
    settings = _Settings(mechanism, epsilon, steps, sampling_probability, learning_rate, releases, runs, seed)
    played = _played(settings)
    share = 1.0 - (1.0 - CONFIDENCE) / len(played.evidence[view])
    verdicts = [
        judge(played.claim, evidence, confidence=share, generator=np.random.default_rng([seed, index]))
        for index, evidence in enumerate(played.evidence[view])
    ]
    return _finding(view, played, verdicts, epsilon)


@lru_cache(maxsize=4)
def _played(settings: _Settings) -> _Played:
    """Play both games; all three adversaries read them in one go."""
    from workbench.games.consecutive.play import play_releases, play_runs
    from workbench.training.fine_tuning import build_model

    plan = digits_plan(
        20,
        steps=settings.steps,
        sampling_probability=settings.sampling_probability,
        learning_rate=settings.learning_rate,
        optimizer="sgd",
        budget=ApproximateDP(epsilon=settings.epsilon, delta=DELTA),
        public_size=PUBLIC_SIZE,
        seed=settings.seed,
    )
    subject: Mechanism = registry.create("mechanism", settings.mechanism)
    attack = WeightTidying(releases=settings.releases, runs=settings.runs)
    model = build_model(plan)
    model.module.eval()
    coins = np.random.default_rng(settings.seed).permutation(
        np.arange(settings.releases) < settings.releases // 2
    )
    trials = (
        play_releases(subject, model, plan, attack, included=coins, seed=settings.seed),
        play_runs(subject, plan, attack, trials=settings.runs, seed=settings.seed + 1),
    )
    games = [ConsecutiveGame().terms(plan, where, attack.others) for where in (SINGLE, RUN)]
    evidence = {
        view: tuple(
            Evidence(
                scores=game_trials.scores[view],
                members=game_trials.included,
                game=game,
                attack=f"weight_tidying ({view}, {where})",
            )
            for game_trials, game, where in zip(trials, games, (SINGLE, RUN), strict=True)
        )
        for view in VIEWS
    }
    settled: Any = subject
    noise = float(settled.for_plan(plan).noise_multiplier)
    recovered = tuple(game_trials.recovered["all"] for game_trials in trials)
    return _Played(claim=subject.claim(plan), noise=noise, evidence=evidence, recovered=recovered)


def _finding(view: str, played: _Played, verdicts: list[Verdict], epsilon: float) -> Finding:
    """The judge's verdict on both games, as an answer about the statement; it may refute, never prove."""
    whole = combine(verdicts, confidence=CONFIDENCE)
    lower = shown_lower(whole)
    return from_attack(
        whole.kind is VerdictKind.REFUTED,
        *(verdict.sentence for verdict in verdicts),
        f"noise over clip norm {played.noise:.4g}; the claim is that of {played.claim.source}",
        f"whole permutations found exactly: {100 * played.recovered[0]:.4g} % of single releases, "
        f"{100 * played.recovered[1]:.4g} % over runs",
        refutes=f"the {view} adversary shows epsilon >= {lower:.4g} of the run, where {epsilon:g} is claimed",
        spares=f"the {view} adversary does not refute it: epsilon >= {lower:.4g} at epsilon {epsilon:g} "
        f"({whole.kind}), which shows no privacy",
        counterexample={
            "epsilon_lower": lower,
            "epsilon_claimed": epsilon,
            "noise_multiplier": played.noise,
            "recovered": played.recovered[0],
        },
    )

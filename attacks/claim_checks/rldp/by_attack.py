"""RLDP's claim, attacked: the mechanism's own releases, radii and controller, judged by the bench's judge.

Three entries of the ledger have evidence from runs of `workbench.mechanisms.rldp`: a canary in every adapter
at once; radii and noise alone; and a controller that wants to spend. No verdict is stored. What is not
refuted here is not shown to be private. `workbench audit --mechanism rldp` plays the same games on a trained
subject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.accounting import ApproximateDP
from workbench.attacks.claim_checks.rldp.budgets import DELTA, SAMPLING, STEPS, calibrated, run_epsilon
from workbench.attacks.claim_checks.shared.claims import (
    CONFIDENCE,
    digits_plan,
    from_attack,
    is_above,
    setting,
    shown_lower,
)
from workbench.attacks.dirac_canary import JointCanary
from workbench.attacks.trajectory import Trajectory
from workbench.core import registry
from workbench.core.registry import register
from workbench.estimation import gaussian_location
from workbench.estimation.judge import judge
from workbench.games.trajectory.game import TrajectoryGame, play_trajectories
from workbench.interfaces import (
    Adjacency,
    Claim,
    Evidence,
    Family,
    FloatArray,
    GameTerms,
    GradientCanary,
    Plan,
    Released,
    Transcript,
    Trials,
    Verdict,
    VerdictKind,
)
from workbench.interfaces.findings import Finding


def _claim(epsilon: float, about: Adjacency) -> Claim:
    return Claim(
        guarantee=ApproximateDP(epsilon=epsilon, delta=float(DELTA)),
        about=about,
        released=Released.EVERY_UPDATE,
        source="Khadangi et al. 2025, Theorem 7.13",
    )


@register("claim_check", "rldp_joint_attacked")
@setting(
    "add-remove, or a replaced record of gradient zero: both give the same sums; a trial is one release of a "
    "LoRA model's step at its initial weights, in which the canary is by a fair coin (the unit of "
    "replication); the adversary sees the update and knows every other record; mu of one release, composed "
    "over 3,600 Poisson-sampled steps of rate 16 / 73,271 by certified bounds; delta 1e-5; 99.9 % "
    "confidence, one-sided, shared by the budgets (as much again for each control)"
)
def joint_attacked(
    *,
    mechanism: str = "rldp",
    budgets: Sequence[float] = (0.5, 8.0),
    everywhere: bool = True,
    releases: int = 2000,
    seed: int = 2026,
) -> Finding:
    """Theorem 7.13, stage 2, by the Dirac canary in every adapter at once, through the very privatise step.

    sigma is given, by an exact accountant for one adapter pair: Eq. 7 has no part in what is found.

    `mechanism`: registry name of the subject; `"dp_sgd"` clips all parameters together. `budgets`: claimed
    epsilons. `everywhere`: whether the canary is in every adapter, or in one. `releases`: number of trials a
    budget. `seed`: of everything random.
    """
    played = [(mechanism, everywhere)]
    if mechanism != "dp_sgd" and everywhere:
        played += [("dp_sgd", True), (mechanism, False)]  # The controls.
    share = 1.0 - (1.0 - CONFIDENCE) / len(budgets)
    lines, verdicts = [], []
    for role, subject in enumerate(played):
        for index, budget in enumerate(budgets):
            verdict, line = _judged_releases(
                *subject, budget=budget, releases=releases, confidence=share, seed=seed + 100 * role + index
            )
            lines.append(line)
            if role == 0:
                verdicts.append((budget, verdict))
    return _finding(verdicts, tuple(lines))


def _judged_releases(
    mechanism: str, everywhere: bool, *, budget: float, releases: int, confidence: float, seed: int
) -> tuple[Verdict, str]:
    """The judge's verdict on one budget, and a line about it."""
    plan, sigma = _lora_plan(budget, seed), calibrated(budget)
    parameters = {"policy": "static"} if mechanism == "rldp" else {}
    subject: Any = registry.create("mechanism", mechanism, noise_multiplier=sigma, **parameters)
    values, coins, groups = _released(subject, plan, everywhere, releases, seed)
    game = GameTerms(
        description="a fair coin puts the canary into a release; the adversary knows all other records",
        trials=Trials.INDEPENDENT,
        released=Released.EVERY_UPDATE,
        adjacency=Adjacency.ADD_REMOVE,
        family=Family.GAUSSIAN,
        steps=plan.steps,
        sampling_probability=plan.sampling_probability,
    )
    name = "joint_canary" if everywhere else "dirac_canary"
    evidence = Evidence(scores=values, members=coins, game=game, attack=name)
    verdict = judge(
        _claim(budget, Adjacency.ADD_REMOVE),
        evidence,
        confidence=confidence,
        generator=np.random.default_rng(seed),
    )
    single = gaussian_location(values, coins, delta=float(DELTA), confidence=confidence)
    line = (
        f"{mechanism}, {name}, {groups} clipping group(s), sigma {sigma:.4g}, claimed epsilon {budget:g}: "
        f"{verdict.kind}; the run has epsilon >= {shown_lower(verdict):.4g}, and one release that holds the "
        f"canary epsilon >= {single.lower:.4g} by itself"
    )
    return verdict, line


def _lora_plan(budget: float, seed: int) -> Plan:
    """LoRA on q and v of a small GPT-2, the paper's sampling and number of steps."""
    corpus = registry.create("corpus", "clinical", size=20, seed=0, attributes="short")
    return Plan(
        records=corpus.records,
        held_out=(),
        model="tiny_gpt2",
        model_parameters={"max_length": 160},
        adapter="lora",
        lora_rank=8,
        lora_alpha=16.0,
        lora_targets="query-value",
        steps=STEPS,
        sampling_probability=float(SAMPLING),
        learning_rate=5e-4,
        budget=ApproximateDP(epsilon=budget, delta=float(DELTA)),
        seed=seed,
    )


def _released(
    mechanism: Any, plan: Plan, everywhere: bool, releases: int, seed: int
) -> tuple[FloatArray, np.ndarray, int]:
    """Released values with their coins, and the number of clipping groups."""
    from workbench.training.fine_tuning import build_model
    from workbench.training.flat import FlatLayout
    from workbench.training.subject import TrainedSubject

    settled = mechanism.for_plan(plan)
    model = build_model(plan)
    model.module.eval()
    nothing_yet = Transcript(
        losses=np.zeros(0),
        sample_sizes=np.zeros(0, dtype=np.int64),
        canary_observations=np.zeros(0),
        canary_included=np.zeros(0, dtype=np.bool_),
        metrics={},
    )
    subject = TrainedSubject(
        mechanism=settled,
        model=model,
        plan=plan,
        claim=_claim(1.0, Adjacency.ADD_REMOVE),
        transcript=nothing_yet,
    )
    canary = GradientCanary(coordinate=seed, magnitude=JointCanary().magnitude, everywhere=everywhere)
    generator = np.random.default_rng(seed)
    coins = generator.permutation(np.arange(releases) < releases // 2)
    values = subject.release_canary(canary, coins, generator)
    return values, coins, len(settled.clipping_groups(FlatLayout.of(model.module).places))


def _finding(verdicts: Sequence[tuple[float, Verdict]], evidence: tuple[str, ...]) -> Finding:
    """Verdicts on one statement at several budgets, as an answer about it: they may refute, never prove."""
    refuted = any(verdict.kind is VerdictKind.REFUTED for _, verdict in verdicts)
    lowers = {budget: shown_lower(verdict) for budget, verdict in verdicts}
    words = ", ".join(
        f"epsilon >= {lower:.4g} where {budget:g} is claimed" for budget, lower in lowers.items()
    )
    kinds = ", ".join(sorted({str(verdict.kind) for _, verdict in verdicts}))
    return from_attack(
        refuted,
        *evidence,
        *(verdict.sentence for _, verdict in verdicts),
        refutes=f"the attack shows {words}",
        spares=f"this attack does not refute it: {words} ({kinds}), which shows no privacy",
        counterexample={f"epsilon_lower_at_{budget:g}": lower for budget, lower in lowers.items()},
    )


@register("claim_check", "rldp_trajectory_attacked")
@setting(
    "a replaced record: half of the trainings hold a canary whose gradient has one norm, the middle one of "
    "the others' at the initial weights, the others an ordinary record in its place; one training a trial "
    "(the unit of replication), with secret Poisson batches and noise of its own; the adversary sees clip "
    "radii and noise multipliers of every step and nothing else; delta 1e-5; "
    "99.9 % confidence, one-sided; no family is assumed"
)
def trajectory_attacked(
    *,
    mechanism: str = "rldp",
    policy: str = "sac",
    warm_up: int = 50,
    epsilon: float = 0.5,
    canary: str = "middle",
    steps: int = 50,
    trials: int = 160,
    seed: int = 2026,
) -> Finding:
    """Lemma 7.14 and Corollary 7.15, by an attack on the radii and noise of real trainings.

    `mechanism`: registry name of the subject; `"dp_sgd"` has one radius and one noise, and both are public.
    `policy`, `warm_up`: RLDP's; not read by others. `epsilon`: the budget. `canary`, `trials`: see
    `Trajectory`. `steps`: of each training. `seed`: of everything random.
    """

    plan = _digits_plan(epsilon, records=64, steps=steps, sampling=0.1, seed=seed)
    parameters: dict[str, Any] = {"policy": policy, "warm_up": warm_up} if mechanism == "rldp" else {}
    subject = registry.create("mechanism", mechanism, **parameters)
    attack = Trajectory(canary=canary, trials=trials)
    played = play_trajectories(
        subject, plan, canary=canary, trials=trials, steps=0, adjacency=Adjacency.REPLACE_ONE, seed=seed
    )
    scores = attack.score(played.observations, np.random.default_rng(seed))
    evidence = Evidence(
        scores=scores.values,
        members=played.included,
        game=TrajectoryGame().terms(plan, canary=canary, steps=0, adjacency=Adjacency.REPLACE_ONE),
        attack=f"trajectory ({canary} canary)",
        details=scores.details,
    )
    verdict = judge(
        _claim(epsilon, Adjacency.REPLACE_ONE),
        evidence,
        confidence=CONFIDENCE,
        generator=np.random.default_rng(seed),
    )
    line = (
        f"{mechanism}{f', policy {policy}, warm-up of {warm_up} steps' if parameters else ''}, {steps} steps "
        f"of {len(plan.records)} handwritten digits, q 0.1"
    )
    if canary == "middle":
        line += f": {_hits(scores.values > 0, played.included)}"
    return _finding([(epsilon, verdict)], (line,))


def _hits(hit: np.ndarray, included: np.ndarray) -> str:
    """How often the canary's norm was seen, with it and without."""
    return (
        f"a radius was the canary's own norm to the last bit in {int(hit[included].sum())} of "
        f"{int(included.sum())} trainings with it and in {int(hit[~included].sum())} of "
        f"{int((~included).sum())} without"
    )


def _digits_plan(epsilon: float, *, records: int, steps: int, sampling: float, seed: int) -> Plan:
    """A small network on handwritten digits."""
    return digits_plan(
        records,
        steps=steps,
        sampling_probability=sampling,
        learning_rate=5e-4,
        budget=ApproximateDP(epsilon=epsilon, delta=float(DELTA)),
        seed=seed,
    )


@register("claim_check", "rldp_controller_attacked")
@setting(
    "one record added or removed, one adapter pair, Poisson-sampled batches of rate 16 / 73,271; the noise "
    "multipliers are those that a run of the mechanism used; the adversary sees every noisy update; delta "
    "1e-5; certified bounds, nothing is sampled but the run"
)
def controller_attacked(*, policy: str = "least-noise", epsilon: float = 8.0, interval: int = 112) -> Finding:
    """Sections 3.3 and 4.4, by a run of the mechanism whose controller asks for the least noise it may.

    The mechanism calibrates sigma_0 by its own ledger, which is no bound: what a constant sigma_0 spends is
    no work of the controller, and is taken off before anything is held against it.

    `policy`: RLDP's. `epsilon`: the budget. `interval`: T_RL.
    """
    noises, ledger = _run(policy, epsilon, interval)
    constant, _ = _run("static", epsilon, interval)
    truth, still = (run_epsilon(_counted(schedule)) for schedule in (noises, constant))
    allowed = max(epsilon, still.upper)
    lines = (
        f"policy {policy!r}: sigma from {noises[0]:.4g} to {noises[-1]:.4g}, at least {noises.min():.4g}; "
        f"spent {truth.describe()}; the run's ledger says {ledger[-1]:.5g} "
        f"in the end and {ledger.max():.5g} at most",
        f"constant noise of {constant[0]:.4g}, which the ledger calibrates to {epsilon:g}: "
        f"spent {still.describe()}",
        f"{STEPS} steps of a small network, a decision every {interval} steps after a warm-up of 50",
    )
    if not is_above(truth, allowed):
        return Finding(
            verdict=VerdictKind.UNDECIDED,
            summary=f"the run spent no more than constant noise, or than {epsilon:g}",
            evidence=lines,
        )
    return Finding(
        verdict=VerdictKind.REFUTED,
        summary=(
            f"a run with a budget of {epsilon:g} brought sigma from {noises[0]:.4g} to {noises[-1]:.4g} and "
            f"spent at least {truth.lower:.5g} "
            f"(constant noise: {still.upper:.5g} at most); nothing stopped it"
        ),
        evidence=lines,
        counterexample={
            "target_epsilon": epsilon,
            "sigma_base": float(noises[0]),
            "last_sigma": float(noises[-1]),
            "epsilon_at_least": truth.lower,
            "epsilon_of_constant_noise_at_most": still.upper,
            "ledger_in_the_end": float(ledger[-1]),
        },
    )


def _run(policy: str, epsilon: float, interval: int) -> tuple[FloatArray, FloatArray]:
    """Noise multiplier and ledger of each step of a run of the mechanism."""
    plan = _digits_plan(epsilon, records=20, steps=STEPS, sampling=float(SAMPLING), seed=1)
    mechanism: Any = registry.create("mechanism", "rldp", policy=policy, decision_interval=interval)
    traces = replace(mechanism, measures_quality=False).train(plan).transcript.traces
    return traces["noise_multiplier"], traces["ledger_epsilon"]


def _counted(noises: FloatArray) -> list[tuple[float, int]]:
    """Each noise multiplier with its number of steps."""
    kinds, counts = np.unique(noises, return_counts=True)
    return list(zip(kinds.tolist(), counts.tolist(), strict=True))

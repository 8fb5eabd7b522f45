"""FERRET's transcript, attacked: trainings of the mechanism itself, judged by the bench's judge.

Half of the trainings hold a canary record; each transcript (mask, directions, signs) is scored by its exact
likelihood ratio (attack `sign_transcript`). The same scores answer two questions: whether membership is
guessed more often than the claimed nats allow, and whether it is told apart better than (epsilon, delta)-DP
of the same number allows, which is a reading and not the authors' claim. The runs are five epochs long, as
the paper's T s = 5, with N : B = 10 in place of 200 and 16 tensors in place of some 200; p* follows. No
verdict is stored; what is not refuted here is not shown to be private.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.attacks.claim_checks.shared.claims import CONFIDENCE, digits_plan, from_attack, setting
from workbench.attacks.sign_transcript import SignTranscript
from workbench.core import registry
from workbench.core.errors import UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.estimation.judge import judge
from workbench.estimation.low_fpr import CERTAIN
from workbench.games.transcript import TranscriptGame, play_transcripts
from workbench.interfaces import (
    Adjacency,
    Claim,
    Evidence,
    Plan,
    Released,
    Secret,
    Verdict,
    VerdictKind,
)
from workbench.interfaces.findings import Finding

RECORDS, BATCH, EPOCHS = 50, 5, 5
HIDDEN_LAYERS = 7
"""Eight linear maps of two tensors each: 16 groups of FERRET-MAX."""
READINGS = ("nats", "dp")
DELTA = 1e-5


def small_plan(*, nats: float, seed: int = 0) -> Plan:
    """Poisson samples of `RECORDS` handwritten digits, the last of which is the canary's place."""
    return digits_plan(
        RECORDS,
        model_parameters={"hidden_layers": HIDDEN_LAYERS},
        steps=EPOCHS * RECORDS // BATCH,
        sampling_probability=BATCH / RECORDS,
        optimizer="adamw",
        learning_rate=2e-4,
        weight_decay=1e-3,
        budget=MutualInformation(nats=nats, secret=Secret.RECORD),
        seed=seed,
    )


@register("claim_check", "ferret_transcript_attacked")
@setting(
    f"one record of {RECORDS} digits is in half of the trainings, one training a trial (the unit of "
    "replication), each with its own mask, directions and secret Poisson batches; the adversary sees the "
    "transcript of every step, knows all other records and, where said, in which steps those took part; "
    f"add-remove, delta {DELTA:g} for the reading as DP; 99.9 % confidence, one-sided"
)
def attacked(
    *,
    reading: str = "nats",
    epsilon: float = 0.5,
    granularity: str = "max",
    canary: str = "opposed",
    others: str = "copies",
    trials: int = 200,
    scale: float = 1.0,
    seed: int = 2026,
) -> Finding:
    """Eq. 8's nats, or the same number read as (epsilon, delta)-DP, by an attack on real trainings.

    `reading`: `"nats"`: the success that so many nats allow; `"dp"`: (epsilon, 1e-5)-DP. `epsilon`: the
    budget in nats, and the number that is read. `granularity`: FERRET's. `canary`, `others`, `trials`: see
    `SignTranscript`. `scale`: multiplies the claimed number, and leaves the mechanism as it is. `seed`: of
    everything random. Raises `UnsupportedError`: a reading as DP, in which batches are secret, of a game that
    turns on knowing them.
    """
    if reading not in READINGS:
        raise unknown_name("reading", reading, READINGS)
    if reading == "dp" and (canary, others) != ("opposed", "copies"):
        raise UnsupportedError(
            "reading 'dp' counts on secret batches, and only an opposed canary among copies is scored alike "
            f"without knowing them, got canary {canary!r} and others {others!r}"
        )
    attack = SignTranscript(canary=canary, others=others, knowledge="batches", trials=trials)
    evidence = _played(granularity, epsilon, attack, seed)
    claim = _claim(reading, scale * epsilon)
    verdict = judge(claim, evidence, confidence=CONFIDENCE, generator=np.random.default_rng(seed))
    note = ("among copies every batch has the same signs: to know the batches is worth nothing",)
    return _finding(verdict, claim, evidence, note if others == "copies" else ())


@lru_cache(maxsize=4)
def _played(granularity: str, epsilon: float, attack: SignTranscript, seed: int) -> Evidence:
    """Train, read and score every trial; both readings are of the same trainings."""
    mechanism, plan = (
        registry.create("mechanism", "ferret", granularity=granularity),
        small_plan(nats=epsilon),
    )
    canary, others, knowledge = attack.canary, attack.others, attack.knowledge
    played = play_transcripts(
        mechanism, plan, canary=canary, others=others, knowledge=knowledge, trials=attack.trials, seed=seed
    )
    scores = attack.score(played.observations, np.random.default_rng(seed))
    return Evidence(
        scores=scores.values,
        members=played.included,
        game=TranscriptGame().terms(plan, canary=canary, others=others, knowledge=knowledge),
        attack=f"sign_transcript ({canary} canary, others {others})",
        seeds={"audit": seed},
        details=scores.details,
    )


def _claim(reading: str, number: float) -> Claim:
    """The authors' nats, or the reading."""
    if reading == "nats":
        return Claim(
            guarantee=MutualInformation(nats=number, secret=Secret.RECORD),
            about=Secret.RECORD,
            released=Released.EVERY_UPDATE,
            source="Zagardo 2025, Eq. 8",
        )
    return Claim(
        guarantee=ApproximateDP(epsilon=number, delta=DELTA),
        about=Adjacency.ADD_REMOVE,
        released=Released.EVERY_UPDATE,
        source="a reading of Zagardo 2025's number, not its authors' claim",
    )


def _finding(verdict: Verdict, claim: Claim, evidence: Evidence, note: tuple[str, ...]) -> Finding:
    """The judge's verdict as an answer about the statement: it may refute, and never proves."""
    members = evidence.members
    caught, false = (int(np.sum(evidence.scores[kind] >= CERTAIN)) for kind in (members, ~members))
    inside, outside = int(members.sum()), int((~members).sum())
    claimed = claim.guarantee.describe()
    counts = (
        f"{caught} of {inside} trainings with the record released signs that are impossible without it, and "
        f"{false} of {outside} without it"
    )
    lower = verdict.bounds[0].lower if verdict.bounds else 0.0
    quantity = verdict.bounds[0].quantity if verdict.bounds else "epsilon"
    return from_attack(
        verdict.kind is VerdictKind.REFUTED,
        verdict.sentence,
        f"{counts}; {evidence.details['firings']:.1f} firings a training, in "
        f"{evidence.details['fired_steps']:.1f} steps",
        *note,
        refutes=f"{counts}: {quantity} >= {lower:.4g}, where {claimed} is stated",
        spares=f"this attack does not refute it: {quantity} >= {lower:.4g} where {claimed} is stated "
        f"({verdict.kind}), which shows no privacy",
        counterexample={
            f"{quantity}_lower": lower,
            "claimed": claimed,
            "attack": evidence.attack,
            "certain_with": caught,
            "certain_without": false,
        },
    )

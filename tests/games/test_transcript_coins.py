"""The transcript game where zero gradients release coins: what it is worth to know that a batch is empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from signs_stand_in import SignsStandIn, small_plan

from workbench.accounting import ApproximateDP
from workbench.attacks.sign_transcript import SignTranscript
from workbench.estimation.judge import judge
from workbench.games.transcript import KNOWLEDGE, TranscriptGame, play_transcripts
from workbench.interfaces import Adjacency, Evidence, VerdictKind


@pytest.mark.slow
def test_a_coin_in_an_empty_batch_refutes_nothing_that_is_true() -> None:
    """Who knows that a batch is not empty knows that no coin turned a sign; no transcript shows that.

    Of two copies nobody takes part with probability 0.9025, and then the sign is a coin: without the canary
    it is turned with probability a = 0.9025 / 2, with it with 0.05 + 0.95 a, so 20 signs are (1.2, 0)-DP.
    """
    plan = small_plan(records=3, steps=20, s=0.05)
    mechanism = SignsStandIn(groups=1, firing_probability=1.0, zero_gradient="coin")
    turned = 0.95**2 / 2
    with_it = 0.05 + 0.95 * turned
    assert 20 * max(np.log(with_it / turned), np.log((1 - turned) / (1 - with_it))) < 1.2
    claim = replace(
        mechanism.claim(plan),
        guarantee=ApproximateDP(epsilon=1.2, delta=1e-5),
        about=Adjacency.ADD_REMOVE,
    )
    found = {}
    for knowledge in KNOWLEDGE:
        played = play_transcripts(
            mechanism, plan, canary="opposed", others="copies", knowledge=knowledge, trials=1000, seed=3
        )
        cast = {"canary": "opposed", "others": "copies", "knowledge": knowledge}
        evidence = Evidence(
            scores=SignTranscript().score(played.observations, np.random.default_rng(0)).values,
            members=played.included,
            game=TranscriptGame().terms(plan, **cast, zero_gradient=played.observations.zero_gradient),
            attack="sign_transcript",
        )
        found[knowledge] = judge(claim, evidence, confidence=0.99, generator=np.random.default_rng(0)).kind
    assert found["batches"] is VerdictKind.UNDECIDED
    assert found["records"] is not VerdictKind.REFUTED
    told = {"canary": "opposed", "others": "copies", "knowledge": "batches"}
    assert not TranscriptGame().terms(plan, **told).beyond
    assert not TranscriptGame().terms(small_plan(records=60), **told, zero_gradient="coin").beyond

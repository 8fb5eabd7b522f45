"""Canary extraction from models trained with each secret 100 times: without privacy it tells, with it not.

A thousand of about 1,060 records tell a secret, so this is the worst case: differential privacy of one record
promises hardly anything about a hundred (a claim of epsilon 1 grows to 100). At the step size that the noise
asks for nothing is shown; at ten times that, no secret is told verbatim, but the likelihoods betray them.

About two minutes of one core.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from workbench.accounting import ApproximateDP
from workbench.core.streams import stream
from workbench.execution.processes import one_thread
from workbench.games.membership import MembershipSeen
from workbench.training import setup as workers
from workbench.training.setup import TrainingSetup

pytestmark = pytest.mark.slow

INSERTIONS, CANDIDATES, SEED = 100, 128, 1
PLANTED = {"insertions": INSERTIONS}


def setup(mechanism: str, rate: float, parameters: Mapping[str, Any]) -> TrainingSetup:
    """Batches of 16 of the members and of the planted records, 100 steps: a secret takes part 150 times."""
    return TrainingSetup(
        mechanism=mechanism,
        corpus="clinical",
        corpus_parameters={"attributes": "brief", "public": 10 * INSERTIONS, "held_out": 64},
        model="tiny_gpt2",
        model_parameters={"max_length": 160},
        budget=ApproximateDP(epsilon=1.0, delta=1e-5),
        candidates=CANDIDATES,
        steps=100,
        sampling_probability=16 / (CANDIDATES // 2 + 10 * INSERTIONS),
        learning_rate=rate,
        attack_parameters={"canary_extraction": parameters},
        seed=SEED,
    )


@cache
def extracted(mechanism: str, rate: float) -> Mapping[str, float]:
    """What is extracted from a model that is trained here."""
    found = setup(mechanism, rate, PLANTED)
    with one_thread():
        coins = stream(SEED, "coins").random(CANDIDATES) < 0.5
        subject = workers.create_mechanism(found).train(workers.make_plan(found, coins, 0))
        candidates, _ = workers.prepare(found)
        attack = workers.create_attack(found, "canary_extraction")
        seen = MembershipSeen(subject=subject, records=candidates)
        return attack.score(seen, stream(SEED, "attack")).details


def test_without_privacy_secrets_are_recovered() -> None:
    """Chance gives one verbatim continuation in 10^11 runs, and a mean exposure of 2.4 bits once in 40."""
    details = extracted("non_private", 3e-3)
    assert details["memorised"] == 1.0
    assert details["memorised_p_value"] < 1e-6
    assert details["secrets_recovered"] >= 3
    assert details["exact_matches"] >= 400
    assert details["exposure_mean"] > details["exposure_most"] - 1.0
    assert details["secrets_memorised"] == 10.0
    for n in (1, 2, 3, 4):
        assert details[f"jaccard_{n}"] > details[f"chance_jaccard_{n}_high"]


def test_with_privacy_memorisation_is_not_shown() -> None:
    """At the step size of the embedded audit; the verdict's own false-alarm rate is one in twenty."""
    details = extracted("dp_sgd", 3e-4)
    assert details["memorised"] == 0.0
    assert details["exact_matches"] == details["secrets_recovered"] == details["secrets_memorised"] == 0.0
    assert details["exposure_mean"] < details["exposure_called"]
    assert details["secrets_for_power"] <= 3.0


def test_with_privacy_no_secret_is_told_but_a_hundred_records_are_no_record() -> None:
    """The same plan as without privacy: nothing verbatim, and likelihoods far from what they are without."""
    details, plain = extracted("dp_sgd", 3e-3), extracted("non_private", 3e-3)
    assert details["exact_matches"] == details["secrets_recovered"] == 0.0
    assert details["prefix_matches"] < 8.0
    assert details["chance_exposure"] < details["exposure_mean"] < plain["exposure_mean"] - 1.0

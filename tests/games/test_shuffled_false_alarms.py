"""False alarms of the audit of permuted weights, in bulk: whole games of claims that are true.

DP-SGD at a certified noise, its weights permuted after each step: a permutation that knows no data is
post-processing, so the claim is true, and each of six bounds that exceeds it is a false alarm. All six
together may give one with probability 5 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from workbench.accounting import ApproximateDP
from workbench.accounting.subsampled_gaussian import calibrate_noise_multiplier
from workbench.attacks.weight_tidying import WeightTidying, permuted
from workbench.core import registry
from workbench.estimation.clopper_pearson import binomial_upper
from workbench.estimation.judge import judge
from workbench.games.consecutive import RUN, SINGLE, VIEWS, Scene, WeightRelease
from workbench.games.consecutive.game import ConsecutiveGame
from workbench.games.consecutive.play import play_releases, play_runs
from workbench.interfaces import Adjacency, Claim, Evidence, FloatArray, Model, Plan, Released, VerdictKind
from workbench.mechanisms.shuffled_dp_sgd import ShuffledDPSGD
from workbench.training.fine_tuning import build_model

DELTA, ERROR = 0.01, 0.05
RELEASES, RUNS = 600, 150
MEMBERS = np.arange(400) % 2 == 0
WIDE = 1e6
"""A batch clip that never binds: what is left is DP-SGD, permuted."""


@dataclass(frozen=True)
class World:
    """A run whose noise a certified accountant vouches for."""

    steps: int
    sampling_probability: float
    epsilon: float

    @property
    def claim(self) -> Claim:
        return Claim(
            guarantee=ApproximateDP(epsilon=self.epsilon, delta=DELTA),
            about=Adjacency.ADD_REMOVE,
            released=Released.EVERY_UPDATE,
            source="DP-SGD's, which permutations leave as it is",
        )

    def noise(self) -> float:
        return calibrate_noise_multiplier(
            target_epsilon=self.epsilon,
            target_delta=DELTA,
            sampling_probability=self.sampling_probability,
            steps=self.steps,
        )

    def plan(self) -> Plan:
        return Plan(
            records=registry.create("corpus", "digits", size=4, seed=0).records,
            held_out=(),
            model="digits_mlp",
            model_parameters={"hidden": 3},
            steps=self.steps,
            sampling_probability=self.sampling_probability,
            optimizer="sgd",
            learning_rate=0.2,
            public_size=8,
            budget=ApproximateDP(epsilon=self.epsilon, delta=DELTA),
            seed=1,
        )


ONE_STEP = World(steps=1, sampling_probability=1.0, epsilon=1.0)
"""The claim is tight: the canary's own pair spends all of it in the one release."""

SAMPLED = World(steps=3, sampling_probability=0.5, epsilon=1.0)


@cache
def start(world: World) -> Model:
    made = build_model(world.plan())
    made.module.eval()
    return made


def refuted(world: World, noise: float, seed: int) -> set[tuple[str, str]]:
    """The bounds of one audit, out of six, that exceed the claim."""
    mechanism = ShuffledDPSGD(
        noise_multiplier=noise, unshuffled_noise_multiplier=noise, batch_clip_norm=WIDE, uncovered="sigma"
    )
    plan, attack = world.plan(), WeightTidying(probes=24)
    included = np.random.default_rng(seed).permutation(np.arange(RELEASES) < RELEASES // 2)
    played = {
        SINGLE: play_releases(mechanism, start(world), plan, attack, included=included, seed=2 * seed),
        RUN: play_runs(mechanism, plan, attack, trials=RUNS, seed=2 * seed + 1),
    }
    found = set()
    for where, trials in played.items():
        game = ConsecutiveGame().terms(plan, where, attack.others)
        for view in VIEWS:
            verdict = judge(
                world.claim,
                Evidence(scores=trials.scores[view], members=trials.included, game=game, attack=view),
                confidence=1.0 - ERROR / (2 * len(VIEWS)),
                generator=np.random.default_rng(seed),
            )
            if verdict.kind is VerdictKind.REFUTED:
                found.add((view, where))
    return found


def alarms(world: World, noise: float, repetitions: int) -> list[set[tuple[str, str]]]:
    return [refuted(world, noise, seed) for seed in range(1000, 1000 + repetitions)]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "repetitions"), [(ONE_STEP, 250), (SAMPLED, 100)])
def test_a_true_claim_is_refuted_in_five_percent_of_audits_at_most(world: World, repetitions: int) -> None:
    """All six bounds of whole games; the upper end of a 95 % interval is held to the allowed error.

    100 audits without an alarm have it at 3 %. A quarter of the noise is the negative control: it is caught.
    """
    found = alarms(world, world.noise(), repetitions)
    wrong = sum(bool(one) for one in found)
    assert binomial_upper(wrong, repetitions, 0.05) <= ERROR
    if world is ONE_STEP:
        caught = alarms(world, world.noise() / 4.0, 12)
        assert sum(("tidying", SINGLE) in one for one in caught) >= 10


def simulated(noise: float, seed: int) -> dict[str, FloatArray]:
    """Scores of a Dirac canary of size 1 in a unit of 6 indices, permuted afresh in each release."""
    rng = np.random.default_rng(seed)
    unit = np.arange(6 * 9).reshape(6, 9)
    weights = 20.0 * rng.normal(size=unit.size)
    scene = Scene(names=("hidden",), units=(unit,), coordinate=int(unit[2, 4]), orbit=np.sort(unit[:, 4]))
    attack = WeightTidying(invariant="sorted")
    rows = []
    for member in MEMBERS:
        after = weights + noise * rng.normal(size=weights.size)
        after[scene.coordinate] += member
        released = permuted(after, [unit], [rng.permutation(6)])
        release = WeightRelease(expected=weights, released=released, shift=1.0, noise=noise)
        rows.append(attack.read(scene, release).ratios)
    return {view: np.array([row[view] for row in rows]) for view in VIEWS}


def is_refuted(noise: float, seed: int) -> bool:
    """Whether one of three bounds on one release exceeds a claim that the noise of `ONE_STEP` keeps."""
    scores, game = simulated(noise, seed), ConsecutiveGame().terms(ONE_STEP.plan(), SINGLE, "none")
    verdicts = [
        judge(
            ONE_STEP.claim,
            Evidence(scores=scores[view], members=MEMBERS, game=game, attack=view),
            confidence=1.0 - ERROR / len(VIEWS),
            generator=np.random.default_rng(seed),
        )
        for view in VIEWS
    ]
    return any(verdict.kind is VerdictKind.REFUTED for verdict in verdicts)


@pytest.mark.slow
def test_a_true_claim_is_hardly_ever_refuted_and_a_false_one_is() -> None:
    """Without a network. At the allowed 5 % more than 3 of 8 are an accident of 0.04 %."""
    noise = ONE_STEP.noise()
    assert sum(is_refuted(noise, seed) for seed in range(8)) <= 3
    assert all(is_refuted(noise / 4.0, seed) for seed in (100, 101))

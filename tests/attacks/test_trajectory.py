"""The trajectory game and attack: what clip radii and noise alone tell, and when they tell nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from workbench.accounting import ApproximateDP
from workbench.attacks.trajectory import Trajectory
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.judge import judge
from workbench.games.trajectory import TrajectoryObservations
from workbench.games.trajectory.game import TrajectoryGame, play_trajectories
from workbench.interfaces import Adjacency, Evidence, Plan, VerdictKind

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def small_plan(records: int = 3, *, steps: int = 3, q: float = 1.0) -> Plan:
    corpus = registry.create("corpus", "digits", size=20, seed=0)
    return Plan(
        records=corpus.records[:records],
        held_out=(),
        model="digits_mlp",
        model_parameters={"hidden": 4},
        steps=steps,
        sampling_probability=q,
        learning_rate=1e-4,
        budget=ApproximateDP(epsilon=8.0, delta=1e-5),
    )


def played(plan: Plan, mechanism: str = "rldp", **asked: Any) -> Any:
    given = {"canary": "middle", "trials": 6, "steps": 0, "adjacency": ADD_REMOVE, "seed": 3, **asked}
    own = given.pop("parameters", {})
    return play_trajectories(registry.create("mechanism", mechanism, **own), plan, **given)


def scores(found: Any, canary: str = "middle") -> np.ndarray:
    return Trajectory(canary=canary).score(found.observations, np.random.default_rng(0)).values


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE_ONE])
def test_the_first_median_of_three_is_the_canary_between_the_others(adjacency: Adjacency) -> None:
    """Every record is in the first sample, and the canary's norm lies between the two others'."""
    found = played(small_plan(), adjacency=adjacency)
    observed = found.observations
    assert observed.radii.shape == (6, 3, 2)
    assert found.included.sum() == 3
    first = observed.radii[:, 1, 0] == observed.canary_norms[0]  # Step 1's median is step 2's radius.
    assert (first == found.included).all()
    assert (observed.radii[:, 0] == 0.1).all()
    assert ((scores(found) > 0) == found.included).all()


def test_a_large_canary_pushes_medians_up() -> None:
    found = played(small_plan(), canary="large")
    values = scores(found, "large")
    assert values[found.included].min() > values[~found.included].max()


def test_a_prefix_is_the_same_run_looked_at_for_less_long() -> None:
    whole, part = played(small_plan()), played(small_plan(), steps=2)
    assert part.observations.radii.shape == (6, 2, 2)
    assert (part.observations.radii == whole.observations.radii[:, :2]).all()
    assert (part.observations.noise_multipliers == whole.observations.noise_multipliers[:, :2]).all()


@pytest.mark.parametrize(
    ("mechanism", "parameters"),
    [pytest.param("rldp", {"policy": "static", "warm_up": 0}, marks=pytest.mark.slow), ("dp_sgd", {})],
)
def test_public_radii_tell_nothing(mechanism: str, parameters: dict[str, Any]) -> None:
    """The negative control: what is fixed beforehand is the same with the canary and without."""
    plan = small_plan()
    found = played(plan, mechanism, parameters=parameters, trials=60)
    assert np.ptp(found.observations.radii, axis=(0, 1)).max() == 0.0
    assert np.ptp(found.observations.noise_multipliers) == 0.0
    game = TrajectoryGame().terms(plan, canary="middle", steps=0, adjacency=ADD_REMOVE)
    evidence = Evidence(scores=scores(found), members=found.included, game=game, attack="trajectory")
    claim = registry.create("mechanism", "dp_sgd").claim(plan)
    claim = replace(claim, guarantee=ApproximateDP(epsilon=0.1, delta=1e-5))
    verdict = judge(claim, evidence, confidence=0.95, generator=np.random.default_rng(0))
    assert verdict.kind is VerdictKind.NOT_REFUTED
    assert verdict.bound is not None
    assert verdict.bound.lower == 0.0


def test_constants_are_trained_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.games.trajectory import game as module

    trained: list[Plan] = []
    real = module._trajectory

    def count(settled: Any, plan: Plan, watched: int) -> Any:
        trained.append(plan)
        return real(settled, plan, watched)

    monkeypatch.setattr(module, "_trajectory", count)
    played(small_plan(), "dp_sgd")
    assert len(trained) == 1
    played(small_plan())
    assert len(trained) == 7


def test_the_same_seed_plays_the_same_game_and_another_another() -> None:
    plan = small_plan(6, q=0.5)
    one, same, other = (played(plan, seed=seed) for seed in (1, 1, 2))
    assert (one.observations.radii == same.observations.radii).all()
    assert (one.included == same.included).all()
    assert (one.observations.radii != other.observations.radii).any()


def test_one_median_for_all_trials_of_public_weights() -> None:
    """Every record is in the first sample: without the canary, its median is the same in all trials."""
    found = played(small_plan(), trials=8)
    for kind in (found.included, ~found.included):
        assert np.ptp(found.observations.radii[kind, 1], axis=0).max() == 0.0
    assert found.canary.record == small_plan().records[-1].id


def test_data_of_digits_keeps_the_plan_but_for_its_data_and_model() -> None:
    plan = replace(small_plan(4), model="tiny_gpt2", adapter="lora", steps=7)
    moved = Trajectory(data="digits").world(plan)
    assert (moved.model, moved.adapter, moved.model_parameters) == ("digits_mlp", "full", {})
    assert len(moved.records) == 4
    assert (moved.steps, moved.sampling_probability, moved.budget) == (7, 1.0, plan.budget)


def test_what_cannot_be_played_is_refused() -> None:
    plan = small_plan()
    with pytest.raises(InputError, match="canary"):
        played(plan, canary="midle")
    with pytest.raises(InputError, match="trials must be at least 4, got 2"):
        played(plan, trials=2)
    with pytest.raises(InputError, match="records must be at least 3, got 2"):
        played(small_plan(2))
    with pytest.raises(UnsupportedError, match="not zero-out"):
        played(plan, adjacency=Adjacency.ZERO_OUT)
    with pytest.raises(UnsupportedError, match="no trajectory of radii"):
        played(plan, "shuffled_dp_sgd")
    with pytest.raises(InputError, match="canary"):
        Trajectory(canary="midle")
    with pytest.raises(InputError, match="data"):
        Trajectory(data="own")
    with pytest.raises(InputError, match="trials"):
        Trajectory(trials=3)


def test_hits_are_counted_over_steps_and_groups() -> None:
    radii = np.ones((3, 4, 2))
    radii[0, 1, 0] = radii[0, 3, 1] = radii[2, 0, 1] = 2.0
    observed = TrajectoryObservations(
        radii=radii, noise_multipliers=np.ones((3, 4)), canary_norms=np.array([2.0, 2.0])
    )
    found = Trajectory().score(observed, np.random.default_rng(0))
    assert found.values.tolist() == [2.0, 0.0, 1.0]
    assert found.details["hit_trials"] == 2.0

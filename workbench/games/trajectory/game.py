"""Plays the trajectory game; see `workbench.games.trajectory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.execution.tasks import silent
from workbench.games.base import Game, Match, Played, Round, Scale, drawn_seed, half_included, many_trainings
from workbench.games.trajectory import TrajectoryAttack, TrajectoryObservations
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    FloatArray,
    GameTerms,
    GradientCanary,
    Mechanism,
    Model,
    Plan,
    Release,
    Released,
    Secret,
    Trials,
)
from workbench.training.canary import SignalsWithCanaryRecord
from workbench.training.fine_tuning import Seeds, build_model, learning_rate
from workbench.training.flat import FlatLayout
from workbench.training.loop import GradientMechanism
from workbench.training.per_record import EmptySignals
from workbench.training.samples import step_samples

CANARIES = ("middle", "large")

ENLARGED = 1000.0
"""Norm of a large canary over the largest of the others'."""


@dataclass(frozen=True, kw_only=True)
class TrajectoryTrials:
    """The trials that were played; `included` says which held the canary, and the attack never sees it."""

    observations: TrajectoryObservations
    included: BoolArray
    canary: GradientCanary


def play_trajectories(
    mechanism: Mechanism,
    plan: Plan,
    *,
    canary: str,
    trials: int,
    steps: int,
    adjacency: Adjacency,
    seed: int,
    progress: Callable[[int, int], None] = silent,
) -> TrajectoryTrials:
    """Trains every trial, as far as it is watched.

    Args:
        mechanism: A gradient mechanism.
        plan: That of the data with the canary, which takes the place of the last record; its own seed is not
            used. Sums are averaged by the same public number in both worlds.
        canary: `"middle"` or `"large"`.
        trials: Number of trials, >= 4.
        steps: Watched steps, from the first on; 0 for all. The noise is calibrated for the whole plan.
        adjacency: Which pair of data sets: add-remove or replace-one.
        seed: Of the trials' order and of every training.

    Raises `InputError`: a number or name is out of range. `UnsupportedError`: another adjacency, or a
    mechanism without a gradient's clipping.
    """
    settled = check_playable(mechanism, plan, canary, trials, adjacency).without_quality().for_plan(plan)
    order, seeds, initial = (np.random.default_rng(world) for world in np.random.SeedSequence(seed).spawn(3))
    start = drawn_seed(initial) if plan.initial_seed is None else plan.initial_seed
    size = len(plan.records) if plan.public_size is None else plan.public_size
    with_record = replace(plan, held_out=(), public_size=size, initial_seed=start)
    chosen, norms = _insert(settled, with_record, canary)
    inside = replace(with_record, insertions=replace(plan.insertions, gradient_canary=chosen))
    others = plan.records[:-1] if adjacency is Adjacency.ADD_REMOVE else plan.records
    plain = replace(plan.insertions, gradient_canary=None)
    outside = replace(with_record, records=others, insertions=plain)
    included = half_included(trials, order)
    constant: list[FloatArray] = []

    def trajectory(has_canary: bool) -> FloatArray:
        """The trajectory of one training with or without the canary."""
        world = replace(inside if has_canary else outside, seed=drawn_seed(seeds))
        if constant:
            return constant[0]
        row, is_constant = _trajectory(settled, world, steps or plan.steps)
        if is_constant:
            constant.append(row)
        return row

    rows = many_trainings(included, trajectory, progress)
    radii = np.stack([row[:, :-1] for row in rows])
    return TrajectoryTrials(
        observations=TrajectoryObservations(
            radii=radii,
            noise_multipliers=np.stack([row[:, -1] for row in rows]),
            canary_norms=norms if radii.shape[2] == norms.size else np.array([np.linalg.norm(norms)]),
        ),
        included=included,
        canary=chosen,
    )


def check_playable(
    mechanism: Mechanism, plan: Plan, canary: str, trials: int, adjacency: Adjacency
) -> GradientMechanism:
    """Mechanism, if the game can be played with it and this plan; raises as `play_trajectories`."""
    if canary not in CANARIES:
        raise unknown_name("canary", canary, CANARIES)
    if trials < 4:
        raise InputError(f"trials must be at least 4, got {trials}")
    if len(plan.records) < 3:
        raise InputError(f"records must be at least 3, got {len(plan.records)}")
    if adjacency not in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
        raise UnsupportedError(f"a trajectory game is add-remove or replace-one, not {adjacency}")
    if not isinstance(mechanism, GradientMechanism) or Release.SUMS not in mechanism.capabilities.releases:
        raise UnsupportedError(
            f"{type(mechanism).__name__} clips no gradients: it has no trajectory of radii"
        )
    return mechanism


def _insert(mechanism: GradientMechanism, plan: Plan, kind: str) -> tuple[GradientCanary, FloatArray]:
    """The canary in the place of the last record, and its norm in each clipping group, shape `(G,)`."""
    model = build_model(plan)
    model.module.eval()
    signals = mechanism.sample_signals(model, plan, plan.records[:-1], step=0)
    groups = mechanism.clipping_groups(signals.layout)
    others = signals.group_norms(groups).cpu().double().numpy()
    unit = GradientCanary(coordinate=0, magnitude=1.0, record=plan.records[-1].id, spread=0)
    share = _norms(unit, model, mechanism)
    if kind == "large":
        magnitude = ENLARGED * float(np.linalg.norm(others, axis=1).max())
    else:
        first = np.sort(others[:, 0])
        middle = len(first) // 2
        magnitude = float(first[middle - 1] + first[middle]) / 2 / float(share[0])
    if not magnitude > 0:
        raise InputError(
            "the others' gradients are zero in the first clipping group at the initial weights, so no canary "
            "lies in their middle: choose canary 'large'"
        )
    chosen = replace(unit, magnitude=magnitude)
    return chosen, _norms(chosen, model, mechanism)


def _norms(canary: GradientCanary, model: Model, mechanism: GradientMechanism) -> FloatArray:
    """The canary's norm in each clipping group, bit for bit as a mechanism sees it, shape `(G,)`."""
    alone = SignalsWithCanaryRecord(EmptySignals(FlatLayout.of(model.module)), canary)
    norms = alone.group_norms(mechanism.clipping_groups(alone.layout))
    return norms[-1].cpu().double().numpy().astype(np.float64)


def _trajectory(settled: GradientMechanism, plan: Plan, watched: int) -> tuple[FloatArray, bool]:
    """Radii and, last, the noise multiplier of the first steps of one training, shape `(k, G + 1)`.

    And whether they are the constants of a mechanism that traces none, and so the same in every trial.
    """
    model = build_model(plan)
    model.module.eval()
    steps = settled.steps(plan, model)
    samples = step_samples(plan, np.random.default_rng(Seeds.of(plan).sampling))
    count = min(watched, plan.steps)
    for step in range(count):
        steps.update(next(samples))
        steps.descend(learning_rate(plan, step))
    steps.close()
    traces = steps.released().get("traces", {})
    constant = not {"l2_clip_norm", "noise_multiplier", "clip_0"} & set(traces)
    return _read(traces, settled.settings(), count), constant


def _read(traces: Mapping[str, FloatArray], settings: Mapping[str, float], count: int) -> FloatArray:
    """The mechanism's traces, or its constant settings where it has none, shape `(k, G + 1)`."""
    names = [f"clip_{index}" for index in range(len(traces)) if f"clip_{index}" in traces]

    def column(name: str) -> FloatArray:
        constant = float(settings.get(name, np.nan))
        return np.asarray(traces.get(name, np.full(count, constant)), dtype=np.float64)

    return np.stack([*map(column, names or ["l2_clip_norm"]), column("noise_multiplier")], axis=1)


@register("game", "trajectory")
class TrajectoryGame(Game[TrajectoryAttack]):
    """Half of many trainings hold the canary record; each is scored by its radii and noise multipliers."""

    name = "trajectory"
    title = "trajectory"
    attack_type = TrajectoryAttack
    adjacencies = frozenset({Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE})
    released = Released.EVERY_UPDATE
    secrets = frozenset({Secret.RECORD})
    plays_elsewhere = True

    def check(self, match: Match[TrajectoryAttack]) -> None:
        """Refuses a mechanism that clips no gradients, and a plan with too few records."""
        match.require(Release.SUMS, "the clip radii of noised sums")
        attack, adjacency = match.attack, match.mechanism.capabilities.adjacency
        check_playable(match.mechanism, match.plan, attack.canary, attack.trials, adjacency)

    def cost(self, attack: TrajectoryAttack) -> tuple[Scale, ...]:
        """Time grows with the number of trainings."""
        return (Scale(parameter="trials", count=attack.trials, few=0, more=20),)

    def play(self, match: Match[TrajectoryAttack]) -> Played:
        """Trains with and without the canary record, and scores radii and noise multipliers."""
        attack, adjacency = match.attack, match.mechanism.capabilities.adjacency
        plan = attack.world(match.plan)
        played = play_trajectories(
            match.mechanism,
            plan,
            canary=attack.canary,
            trials=attack.trials,
            steps=attack.steps,
            adjacency=adjacency,
            seed=match.seed(),
            progress=match.steps("trajectories"),
        )
        scores = attack.score(played.observations, match.generator())
        terms = self.terms(plan, canary=attack.canary, steps=attack.steps, adjacency=adjacency)
        scored = Round(
            name=match.part.attack,
            scores=scores.values,
            members=played.included,
            terms=terms,
            details=scores.details,
        )
        return Played(rounds=(scored,))

    def terms(self, plan: Plan, *, canary: str, steps: int, adjacency: Adjacency) -> GameTerms:
        """Returns what is played, for the judge; `canary` and `steps` are the attack's."""
        watched = f"the first {steps} of {plan.steps} steps" if 0 < steps < plan.steps else "every step"
        is_replaced = adjacency is Adjacency.REPLACE_ONE
        words = self.words().text(
            "terms", model=plan.model, canary=canary, watched=watched, is_replaced=is_replaced
        )
        return GameTerms(
            description=words, trials=Trials.INDEPENDENT, released=self.released, adjacency=adjacency
        )

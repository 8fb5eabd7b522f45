"""Plays the consecutive-weights game: private steps whose result is permuted, read from release to release.

A mechanism that shuffles releases W' = P[W - eta g] after each step, with g the noisy mean gradient and P a
secret permutation that leaves the network's function unchanged. A coin puts a gradient canary into the data,
or leaves it out. The adversary sees W and W', and knows the mechanism, its parameters and every other record
that takes part; it lacks the membership, the noise and P. Two games:

- one release: independent releases at one state (any weights that a run may start from), each with its own
  noise and permutation.
- whole run: independent trainings from the same public weights, with or without the canary among the records,
  read after every step; the scores of one training's releases are added up.

The mechanism itself shuffles (`released_weights`); one that does not shuffle releases W - eta g, and plays
the same game. AdamW puts its own step in the place of eta g (`workbench.games.consecutive.descent`); a single
release is then the first step of a run.

Verdicts come from bounds for any mechanism: what a permuted and re-matched release shows is a mixture of
normal distributions, not a shifted one, so that no Gaussian family may be assumed, and a wrongly matched
permutation only costs power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.execution.tasks import StepProgress, silent
from workbench.games.base import drawn_seed, half_included
from workbench.games.consecutive import SINGLE, ConsecutiveAttack, ReadRelease, Scene
from workbench.games.consecutive.descent import descent_of, put_back
from workbench.games.consecutive.scene import Table
from workbench.interfaces import BoolArray, FloatArray, IntArray, Mechanism, Model, Plan, Record, Signals
from workbench.training.canary import FixedSignals, SignalsWithCanaryRecord
from workbench.training.fine_tuning import Seeds, averaging_size, build_model, learning_rate, trainable
from workbench.training.samples import step_samples

SAME = 1e-5
"""Relative difference of weights that were moved but not changed: float32, once rounded."""

TURNS = 64
"""Turns of the search for the direction in output space, for releases from one state."""


@dataclass(frozen=True, kw_only=True)
class ShuffledTrials:
    """The trials that were played.

    Attributes:
        scores: Of each trial, by view, shape `(n,)` each.
        included: Which trials held the canary; the adversary never sees it.
        recovered: Share of releases in which a unit's permutation was found exactly, by unit; of the whole
            permutation as `"all"`.
        placed: Share of a unit's indices that were matched right, by unit.
        recovered_by_step, placed_by_step: As `recovered` and `placed`, by step, shape `(T,)` each.
        releases: Number of releases that were read.
        probes: Number of inputs on which outputs are looked at; 0 for none.
    """

    scores: Mapping[str, FloatArray]
    included: BoolArray
    recovered: Mapping[str, float]
    placed: Mapping[str, float]
    recovered_by_step: Mapping[str, FloatArray]
    placed_by_step: Mapping[str, FloatArray]
    releases: int
    probes: int = 0


def play_releases(
    mechanism: Mechanism,
    model: Model,
    plan: Plan,
    reader: ConsecutiveAttack,
    *,
    included: BoolArray,
    seed: int,
    progress: StepProgress = silent,
) -> ShuffledTrials:
    """Plays independent releases of one step from one state.

    Args:
        mechanism: A gradient mechanism.
        model: At the state; left unchanged.
        plan: Of the run that the step belongs to. Its last record is the canary's place and never takes part.
        reader: The adversary.
        included: Which trials hold the canary, shape `(n,)`.
        seed: Of the canary's place, the other records' sample, noise and permutations.
        progress: Of the rehearsals of outputs, and of the releases.

    Raises `InputError`: there is no record for the canary's place. `UnsupportedError`: the mechanism releases
    no sums, its samples are not Poisson, or no weight of the model is where the canary is to be.
    """
    table = Table.laid(mechanism, model, plan, reader, seed)
    sample: list[Record] = []
    if reader.others == "sample":
        others = plan.records[:-1]
        sample = [others[i] for i in next(step_samples(replace(plan, records=others), table.draws))]
    known = FixedSignals(table.mechanism.sample_signals(model, plan, sample, step=0))
    before, rate = _flat(model), plan.learning_rate
    knowledge = table.knowledge(known, 1.0 / table.size, TURNS)
    line = descent_of(plan, before.numel()).ahead(before, knowledge.known, knowledge.spread, rate)
    reading = knowledge.reading(before, line, progress=progress)
    tally = _Tally(table.scene)
    rows: list[Mapping[str, float]] = []
    for done, inside in enumerate(included.tolist(), start=1):
        signals: Signals = SignalsWithCanaryRecord(known, table.canary) if inside else known
        gradient = table.mechanism.privatise(signals, table.coins).cpu() / table.size
        plain = descent_of(plan, before.numel()).plain(before, gradient, rate)
        release = reading(table.released(plain))
        read = reader.read(table.scene, release)
        tally.add(0, read.indices, plain.double().numpy(), release.released)
        rows.append(read.ratios)
        progress(done, included.size, SINGLE)
    return replace(tally.trials([rows], included), probes=table.probes)


def play_runs(
    mechanism: Mechanism,
    plan: Plan,
    reader: ConsecutiveAttack,
    *,
    trials: int,
    seed: int,
    progress: Callable[[int, int], None] = silent,
) -> ShuffledTrials:
    """Plays independent trainings, half of them with the canary, read after each step.

    Args:
        mechanism: A gradient mechanism.
        plan: Of one training; its own seed is not used. Its last record is the canary's place.
        reader: The adversary.
        trials: Number of trainings, >= 4.
        seed: Of everything.

    Raises `InputError`: a number is out of range, or there is no record for the canary's place.
    `InconclusiveError`: training left the finite numbers. `UnsupportedError`: as `play_releases`.
    """
    if trials < 4:
        raise InputError(f"runs must be at least 4, got {trials}")
    start = drawn_seed(np.random.default_rng([seed, 1]))
    initial = start if plan.initial_seed is None else plan.initial_seed
    plan = replace(plan, held_out=(), initial_seed=initial, public_size=averaging_size(plan))
    table = Table.laid(mechanism, build_model(plan), plan, reader, seed)
    canary, companions = plan.records[-1], plan.records[:-1] if reader.others == "sample" else ()
    worlds = {
        inside: replace(
            plan,
            records=(*companions, canary) if inside else companions,
            insertions=replace(plan.insertions, gradient_canary=table.canary),
        )
        for inside in (True, False)
    }
    included = half_included(trials, table.draws)
    tally = _Tally(table.scene)
    runs: list[list[Mapping[str, float]]] = [[] for _ in range(plan.steps)]
    for done, inside in enumerate(included.tolist(), start=1):
        world = replace(worlds[inside], seed=drawn_seed(table.draws))
        for step, (read, plain, seen) in enumerate(_run(table, world, reader)):
            tally.add(step, read.indices, plain, seen)
            runs[step].append(read.ratios)
        progress(done, trials)
    return replace(tally.trials(runs, included), probes=table.probes)


def _run(
    table: Table, plan: Plan, reader: ConsecutiveAttack
) -> Iterator[tuple[ReadRelease, FloatArray, FloatArray]]:
    """One training: of each release what was read, and the weights before and after they were permuted."""
    model = build_model(plan)
    model.module.eval()
    steps = table.mechanism.steps(plan, model)
    samples = step_samples(plan, np.random.default_rng(Seeds.of(plan).sampling))
    descent, units = descent_of(plan, table.layout.dimension), table.scene.units
    for step in range(plan.steps):
        sample, before = next(samples), _flat(model)
        others = [plan.records[i] for i in sample if plan.records[i].id != table.canary.record]
        rate = learning_rate(plan, step)
        known = table.mechanism.sample_signals(model, plan, others, step=step)
        knowledge = table.knowledge(known, 1.0 / table.size, reader.turns)
        line = descent.ahead(before, knowledge.known, knowledge.spread, rate)
        reading = knowledge.reading(before, line, participation=plan.sampling_probability, of_run=True)
        steps.update(sample)
        plain = descent.plain(before, _flat_gradient(model), rate)
        steps.descend(rate)
        after = _flat(model)
        if not bool(torch.isfinite(after).all()):
            raise InconclusiveError(f"step {step + 1} left the finite numbers; try a smaller learning_rate")
        release = reading(after)
        read = reader.read(table.scene, release)
        descent.follow(plain, after, units)
        descent.learn(put_back(after, units, read.indices), units, read.indices)
        yield read, plain.double().numpy(), release.released
    steps.close()


@dataclass
class _Tally:
    """Counts how often the permutation was found, and makes the game's result."""

    scene: Scene
    _right: dict[int, list[list[float]]] = field(default_factory=dict)

    def add(self, step: int, indices: Sequence[IntArray], plain: FloatArray, released: FloatArray) -> None:
        """Compares the found permutation with the weights before they were permuted.

        Whether an index is right shows in the sorted weights that it owns, which other units' permutations
        leave unchanged.
        """
        limit = SAME * max(1.0, float(np.max(np.abs(plain))))
        shares = []
        for unit, order in zip(self.scene.units, indices, strict=True):
            were, are = np.sort(plain[unit], axis=1)[order], np.sort(released[unit], axis=1)
            shares.append(float(np.mean(np.max(np.abs(were - are), axis=1) <= limit)))
        self._right.setdefault(step, []).append(shares)

    def trials(self, steps: Sequence[Sequence[Mapping[str, float]]], included: BoolArray) -> ShuffledTrials:
        """Scores summed over steps, and the shares."""
        views = steps[0][0]
        scores = {
            view: np.sum([[row[view] for row in rows] for rows in steps], axis=0).astype(np.float64)
            for view in views
        }
        by_step = [np.array(self._right[step]) for step in sorted(self._right)]
        every = np.concatenate(by_step)
        recovered, placed = _shares(every, self.scene.names)
        over_steps = [_shares(rights, self.scene.names) for rights in by_step]
        return ShuffledTrials(
            scores=scores,
            included=included,
            recovered=recovered,
            placed=placed,
            recovered_by_step={
                name: np.array([exact[name] for exact, _ in over_steps], dtype=np.float64)
                for name in recovered
            },
            placed_by_step={
                name: np.array([right[name] for _, right in over_steps], dtype=np.float64) for name in placed
            },
            releases=len(every),
        )


def _shares(right: FloatArray, names: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Of releases with all of a unit right, and of indices that are right; shape `(releases, units)`."""
    exact = right == 1.0
    recovered = {name: float(exact[:, place].mean()) for place, name in enumerate(names)}
    recovered["all"] = float(exact.all(axis=1).mean())
    return recovered, {name: float(right[:, place].mean()) for place, name in enumerate(names)}


def _flat(model: Model) -> Tensor:
    """The weights, on the CPU, where the adversary reckons."""
    return torch.cat([p.detach().reshape(-1) for p in trainable(model.module).values()]).cpu().clone()


def _flat_gradient(model: Model) -> Tensor:
    parts = []
    for name, parameter in trainable(model.module).items():
        if parameter.grad is None:
            raise UnsupportedError(f"the mechanism left no gradient of {name}, so its step cannot be read")
        parts.append(parameter.grad.detach().reshape(-1).cpu())
    return torch.cat(parts)


def details(played: ShuffledTrials) -> dict[str, float]:
    """Named scalars of a game for the report: how much of the permutations was found, and where in the run.

    Returns:
        `recovered` (whole permutations), `recovered (UNIT)`, `placed (UNIT)`, and for a whole run
        `recovered_first_quarter`, `recovered_last_quarter`, and the same of each unit.
    """
    shares = {"recovered": played.recovered["all"]}
    shares |= {f"recovered ({name})": share for name, share in played.recovered.items() if name != "all"}
    shares |= {f"placed ({name})": share for name, share in played.placed.items()}
    steps = played.recovered_by_step["all"].size
    if steps > 1:
        quarter = math.ceil(steps / 4)
        for name, series in played.recovered_by_step.items():
            unit = "" if name == "all" else f" ({name})"
            shares[f"recovered_first_quarter{unit}"] = float(series[:quarter].mean())
            shares[f"recovered_last_quarter{unit}"] = float(series[-quarter:].mean())
    return shares

"""The game of shuffled weights: what is known of a step, what counts as found, and honest noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from permutation_cases import covered
from recovery_sweep import recovery
from torch import Tensor, nn

from workbench.accounting import ApproximateDP
from workbench.attacks.weight_tidying import WeightTidying
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation import auc
from workbench.estimation.judge import judge
from workbench.games.consecutive import RUN, SINGLE, VIEWS, ReadRelease, Scene, WeightRelease, scene
from workbench.games.consecutive.game import ConsecutiveGame, other_areas
from workbench.games.consecutive.play import details, play_releases, play_runs
from workbench.games.consecutive.scene import Table, orbit_of, unit_places
from workbench.interfaces import (
    Adjacency,
    Claim,
    Evidence,
    Family,
    Model,
    Plan,
    Record,
    Released,
    Sampling,
    Trials,
    VerdictKind,
)
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.dp_weights import DPWeights
from workbench.mechanisms.shuffled_dp_sgd import ShuffledDPSGD
from workbench.training.canary import FixedSignals
from workbench.training.fine_tuning import build_model
from workbench.training.flat import FlatLayout
from workbench.training.permutations import PermutationGroup
from workbench.training.samples import sample_signals

BUDGET = ApproximateDP(epsilon=1.0, delta=1e-5)
SHUFFLED = ShuffledDPSGD()
COINS = np.arange(300) % 2 == 0
BARE: dict[str, Any] = {"probes": 0, "invariant": "sorted"}
"""Without outputs, for what does not ask for them."""


@cache
def records() -> tuple[Record, ...]:
    found: tuple[Record, ...] = registry.create("corpus", "digits", size=30, seed=0).records
    return found


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=records(),
        held_out=(),
        model="digits_mlp",
        model_parameters={"hidden": 8},
        steps=6,
        sampling_probability=0.2,
        optimizer="sgd",
        learning_rate=0.5,
        public_size=100,
        budget=BUDGET,
        seed=1,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


@cache
def model() -> Model:
    made = build_model(make_plan())
    made.module.eval()
    return made


def areas(scores: dict[str, np.ndarray], members: np.ndarray) -> dict[str, float]:
    return {name: auc(values, members, confidence=0.95).estimate for name, values in scores.items()}


@dataclass
class Watching(WeightTidying):
    """Keeps what it is given."""

    def __init__(self, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self.seen: list[tuple[Scene, WeightRelease]] = []

    def read(self, scene: Scene, release: WeightRelease) -> ReadRelease:
        self.seen.append((scene, release))
        return super().read(scene, release)


def test_places_of_a_unit_are_those_that_its_permutation_moves() -> None:
    """Numbers in place of weights: each index's row goes where the group sends it."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    group, layout = PermutationGroup.of(module), FlatLayout.of(module).places
    places = [unit_places(unit, layout) for unit in group.units]
    assert [place.shape for place in places] == [(4, 3 + 1 + 5), (5, 4 + 1 + 2)]
    numbers = torch.arange(sum(p.numel() for p in module.parameters()), dtype=torch.float64)
    for number, (unit, place) in enumerate(zip(group.units, places, strict=True)):
        order = np.random.default_rng(number).permutation(unit.size)
        moved = group.permutation({unit.name: order}).applied(numbers, layout).numpy()
        assert np.array_equal(moved[place], numbers.numpy()[place[order]])
        rest = np.setdiff1d(np.arange(len(moved)), place)
        assert np.array_equal(moved[rest], rest)


def test_an_orbit_is_all_that_drawn_permutations_reach() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    group, layout = PermutationGroup.of(module), FlatLayout.of(module).places
    places = [unit_places(unit, layout) for unit in group.units]
    dimension = sum(p.numel() for p in module.parameters())
    rng = np.random.default_rng(0)
    reached: list[set[int]] = [set() for _ in range(dimension)]
    for _ in range(200):
        moved = group.draw(rng).applied(torch.arange(dimension), layout)
        for place, origin in enumerate(moved.tolist()):
            reached[origin].add(place)
    for coordinate in range(dimension):
        assert set(orbit_of(coordinate, places).tolist()) == reached[coordinate]


@pytest.mark.parametrize("mechanism", [SHUFFLED, DPSGD(noise_multiplier=1.0)])
@pytest.mark.parametrize("others", ["none", "sample"])
def test_what_is_known_of_a_step_is_the_step_without_noise(mechanism: DPSGD, others: str) -> None:
    """What is left over is noise of the scale that was measured, and the canary's shift is right."""
    plan, attack = make_plan(), Watching(others=others, **BARE)
    played = play_releases(mechanism, model(), plan, attack, included=COINS, seed=3)
    scene, first = attack.seen[0]
    quiet = np.sort(np.stack([release.released for _, release in attack.seen])[:, scene.orbit], axis=1)
    left = (quiet - np.sort(first.expected[scene.orbit]))[~COINS]
    # Sorting mixes neighbours, not the mean over the orbit: its deviation is s / sqrt(|orbit|).
    spread = float(left.mean(axis=1).std()) * math.sqrt(scene.orbit.size)
    assert spread == pytest.approx(first.noise, rel=0.25)  # 150 values: 6 % of standard error.
    assert abs(float(left.mean())) < 5 * first.noise / math.sqrt(150 * scene.orbit.size)
    apart = areas(dict(played.scores), COINS)["tidying"]
    mu = abs(first.shift) / first.noise
    expected = 0.5 * math.erfc(-mu / 2)
    assert apart == pytest.approx(expected, abs=0.14)  # The area of 300 trials: a deviation of 0.034 at most.


def test_the_batch_clip_is_part_of_what_is_known() -> None:
    """Beside others the clipped batch leaves the canary less; the game's shift says how much, by hand."""
    plan = make_plan()
    table = Table.laid(SHUFFLED, model(), plan, WeightTidying(others="sample"), 0)
    signals = FixedSignals(sample_signals(model(), plan.records[:9], 64))
    known = table.knowledge(signals, 1.0)
    moves = covered(PermutationGroup.of(model().module), signals.layout)
    total = signals.weighted_sum((1.0 / signals.norms()).clamp(max=1.0))
    total[~moves] = 0.0
    inside = total.clone()
    inside[table.scene.coordinate] += 1.0
    shrunk = [x / max(1.0, float(x.norm())) for x in (total, inside)]
    assert float(total.norm()) > 1.5
    shift = float((shrunk[1] - shrunk[0])[table.scene.coordinate])
    assert known.shift == pytest.approx(-shift, abs=1e-5)
    assert torch.allclose(known.known[moves], shrunk[0][moves], atol=1e-5)
    alone = table.knowledge(FixedSignals(sample_signals(model(), (), 64)), 1.0)
    assert alone.shift == pytest.approx(-1.0, abs=1e-5)


def test_a_wide_batch_clip_leaves_the_canary_its_size_beside_others() -> None:
    """c' = 4 c where the others' sum is below it: the canary moves its weight by all of c."""
    plan = make_plan()
    shifts, areas_ = {}, {}
    for wide in (1.0, 4.0):
        attack = Watching(others="sample", **BARE)
        mechanism = ShuffledDPSGD(batch_clip_norm=wide, noise_multiplier=0.5)
        played = play_releases(mechanism, model(), plan, attack, included=COINS, seed=3)
        shifts[wide] = abs(attack.seen[0][1].shift) * 20 / plan.learning_rate
        areas_[wide] = areas(dict(played.scores), COINS)["tidying"]
    assert shifts[1.0] < 0.7
    assert shifts[4.0] == pytest.approx(1.0, abs=1e-3)
    assert areas_[4.0] > areas_[1.0] + 0.1


def test_tidying_finds_what_blindness_misses_and_counts_only_what_is_right() -> None:
    played = play_releases(SHUFFLED, model(), make_plan(), WeightTidying(**BARE), included=COINS, seed=5)
    area = areas(dict(played.scores), COINS)
    assert set(VIEWS) < set(played.scores)
    assert played.recovered == {"0.hidden": 1.0, "all": 1.0}
    # mu = 1 / sigma is above 2: an area above 0.92. Blind: within five deviations of 0.034.
    assert area["tidying"] > 0.85
    assert abs(area["blind"] - 0.5) < 0.17
    blurred = play_releases(
        SHUFFLED, model(), make_plan(learning_rate=5000.0), WeightTidying(**BARE), included=COINS, seed=5
    )
    # At random one of 8 indices is right, and one permutation of 40,320.
    assert blurred.recovered["all"] < 0.02
    assert blurred.placed["0.hidden"] == pytest.approx(1 / 8, abs=0.06)


def test_recovery_falls_with_the_learning_rate_and_with_noise() -> None:
    points = recovery(
        SHUFFLED,
        model(),
        make_plan(),
        WeightTidying(**BARE),
        learning_rates=[1.0, 40.0],
        noise_multipliers=[0.4, 4.0],
        releases=30,
        seed=0,
    )
    share = {(point.learning_rate, point.noise_multiplier): point.placed for point in points}
    assert share[1.0, 0.4] == 1.0 > share[40.0, 0.4] > share[40.0, 4.0]
    assert all(point.n == 30 for point in points)


def test_runs_are_read_step_by_step() -> None:
    plan = make_plan(steps=3)
    attack = Watching(others="sample")
    told: list[tuple[int, int]] = []
    played = play_runs(SHUFFLED, plan, attack, trials=4, seed=0, progress=lambda *now: told.append(now))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert len(attack.seen) == 4 * plan.steps
    assert (int(played.included.sum()), played.scores["tidying"].shape) == (2, (4,))
    assert played.recovered_by_step["all"].tolist() == [1.0] * plan.steps
    assert all(release.participation == 0.2 for _, release in attack.seen)
    starts = [attack.seen[run * plan.steps][1].expected for run in range(4)]
    assert not np.allclose(starts[0], starts[1], atol=1e-9)  # Other samples, from the same weights:
    assert np.allclose(starts[0], starts[1], atol=0.1)
    again = play_runs(SHUFFLED, plan, WeightTidying(others="sample"), trials=4, seed=0)
    assert all(np.array_equal(again.scores[view], played.scores[view]) for view in VIEWS)
    shown = details(played)
    assert shown["recovered"] == shown["recovered_last_quarter"] == shown["placed (0.hidden)"] == 1.0


def test_a_weight_that_stays_is_read_by_everybody() -> None:
    """`place="fixed"`: an output bias, with DP-SGD's noise; blind, invariant and tidying read the same."""
    attack = Watching(place="fixed")
    played = play_releases(SHUFFLED, model(), make_plan(), attack, included=COINS, seed=1)
    scene, release = attack.seen[0]
    assert scene.orbit.tolist() == [scene.coordinate]
    assert np.allclose(played.scores["blind"], played.scores["tidying"])
    assert np.allclose(played.scores["blind"], played.scores["sorted"], rtol=1e-6)
    shown = other_areas(played.scores, COINS)
    assert set(shown) == {"auc (sorted)", "auc (sums)", "auc (function)"}  # The norms of units do not see it.
    sigma_0 = SHUFFLED.for_plan(make_plan()).unshuffled_noise_multiplier
    assert sigma_0 is not None
    assert release.noise == pytest.approx(sigma_0 * 0.5 / 20, rel=0.45)  # 64 draws: 9 % of standard error.


@pytest.mark.slow
def test_honest_noise_is_not_refuted() -> None:
    """Negative control: DP-SGD at its certified noise; a true claim is refuted with probability 5 % at most.

    All three views of both games share the error.
    """
    plan = make_plan()
    claim = DPSGD().claim(plan)
    one = play_releases(DPSGD(), model(), plan, WeightTidying(), included=COINS, seed=11)
    runs = play_runs(DPSGD(), plan, WeightTidying(), trials=60, seed=12)
    for played, where in ((one, SINGLE), (runs, RUN)):
        game = ConsecutiveGame().terms(plan, where, "none")
        for view in VIEWS:
            evidence = Evidence(scores=played.scores[view], members=played.included, game=game, attack=view)
            verdict = judge(claim, evidence, confidence=1 - 0.05 / 6, generator=np.random.default_rng(0))
            assert verdict.kind in (VerdictKind.NOT_REFUTED, VerdictKind.UNDERPOWERED)


def test_too_little_noise_is_refuted_by_the_tidying_adversary_alone() -> None:
    """A claim of epsilon = 1 on DP-SGD's sums at sigma = 0.2, permuted: blind guesses show nothing."""
    plan = make_plan(sampling_probability=1.0, steps=1, public_size=20)
    careless = ShuffledDPSGD(noise_multiplier=0.2)
    claim = Claim(
        guarantee=BUDGET, about=Adjacency.ADD_REMOVE, released=Released.EVERY_UPDATE, source="the test"
    )
    played = play_releases(careless, model(), plan, WeightTidying(**BARE), included=COINS, seed=2)
    kinds = {
        view: judge(
            claim,
            Evidence(
                scores=played.scores[view],
                members=played.included,
                game=ConsecutiveGame().terms(plan, SINGLE, "none"),
                attack=view,
            ),
            confidence=0.95,
            generator=np.random.default_rng(0),
        ).kind
        for view in VIEWS
    }
    assert kinds["tidying"] is VerdictKind.REFUTED
    assert kinds["blind"] is VerdictKind.NOT_REFUTED


def test_outputs_tell_the_canary_whatever_the_permutation_and_as_well_as_linear_algebra_says() -> None:
    """At little noise: the statistic is normal, with the mean and the deviation that it says.

    Enough probes for all weights: what the function shows is then nearly what the weights show.
    """
    plan = make_plan(learning_rate=0.01)
    attack = Watching(probes=200)
    played = play_releases(SHUFFLED, model(), plan, attack, included=COINS, seed=9)
    seen = [release.outputs for _, release in attack.seen]
    assert all(one is not None for one in seen)
    values = np.array([one.value / one.noise for one in seen if one is not None])
    first = seen[0]
    assert first is not None
    mu = first.shift / first.noise
    # 150 of each: a mean has a standard error of 0.08, a deviation one of 6 %.
    assert float(values[~COINS].mean()) == pytest.approx(0.0, abs=0.35)
    assert float(values[COINS].mean()) == pytest.approx(mu, abs=0.35)
    assert float(values[~COINS].std()) == pytest.approx(1.0, rel=0.25)
    release = attack.seen[0][1]
    tidied = abs(release.shift) / release.noise
    assert 0.8 * tidied < mu < 1.1 * tidied  # The noise is measured, to 3 %.
    assert np.array_equal(played.scores["invariant"], played.scores["function"])


def test_outputs_are_read_in_runs_where_turns_are_given() -> None:
    attack = WeightTidying(probes=40, turns=3, invariant_run="function")
    played = play_runs(SHUFFLED, make_plan(steps=2), attack, trials=4, seed=0)
    assert np.array_equal(played.scores["invariant"], played.scores["function"])
    plain = play_runs(SHUFFLED, make_plan(steps=2), WeightTidying(), trials=4, seed=0)
    assert "function" not in plain.scores
    assert np.array_equal(plain.scores["tidying"], played.scores["tidying"])


def test_a_large_model_is_asked_for_fewer_outputs_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule looks at sizes alone: of the weights, of an input, and of the work that is allowed."""
    plan, attack, coins = make_plan(), WeightTidying(probes=40), COINS[:20]
    built = model()
    each = built.encode(plan.records[:1])["images"].numel() * FlatLayout.of(built.module).dimension
    for able, probes in ((1000.0, 40), (10.5, 10), (4.0, 4)):
        monkeypatch.setattr(scene, "MOST_WORK", able * each)
        played = play_releases(SHUFFLED, built, plan, attack, included=coins, seed=1)
        assert played.probes == probes
        assert "function" in played.scores
    monkeypatch.setattr(scene, "MOST_WORK", 3.9 * each)
    with pytest.raises(UnsupportedError, match=r"give the attack invariant=sorted and"):
        Table.laid(SHUFFLED, built, plan, attack, 0)
    Table.laid(SHUFFLED, built, plan, WeightTidying(**BARE), 0)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weights_are_read_through_the_optimizer(optimizer: str, decay: float) -> None:
    """What is compared with the released weights is torch's own step, or no permutation would be right.

    Alone, mu of a run is above 2.4 times 2; AdamW's first step has the signs alone, and 30 runs tell them.
    """
    plan = make_plan(
        optimizer=optimizer,
        learning_rate=0.5 if optimizer == "sgd" else 3e-3,
        weight_decay=decay,
        steps=4,
        sampling_probability=1.0,
    )
    played = play_runs(SHUFFLED, plan, WeightTidying(), trials=30, seed=4)
    assert played.recovered_by_step["all"].tolist() == [1.0] * 4
    area = areas(dict(played.scores), played.included)
    assert area["tidying"] > 0.95
    assert abs(area["blind"] - 0.5) < 0.45  # Five deviations of 0.1, less a little.


def test_single_releases_of_adamw_are_first_steps() -> None:
    plan, attack = make_plan(optimizer="adamw", learning_rate=1e-3), Watching(**BARE)
    played = play_releases(SHUFFLED, model(), plan, attack, included=COINS, seed=3)
    assert areas(dict(played.scores), COINS)["tidying"] > 0.65  # Signs: 0.75 at mu = 2.5, in 300 trials.
    _, release = attack.seen[0]
    # All weights that anything moves are moved by the rate; the noise is counted in units of it.
    step = np.sort(release.released) - np.sort(release.expected)
    assert float(np.abs(step).max()) < 5e-3
    assert release.noise == pytest.approx(1e-3, rel=0.2)
    assert "the first step of AdamW" in ConsecutiveGame().terms(plan, SINGLE, "none").description


def test_games_assume_no_family() -> None:
    plan = make_plan()
    game = ConsecutiveGame()
    one, whole = game.terms(plan, SINGLE, "sample"), game.terms(plan, RUN, "none")
    assert (one.family, one.trials, one.adjacency) == (Family.ANY, Trials.INDEPENDENT, Adjacency.ADD_REMOVE)
    assert (one.steps, one.sampling_probability, one.is_single_release) == (6, 0.2, True)
    assert (whole.family, whole.is_single_release, whole.released) == (
        Family.ANY,
        False,
        Released.EVERY_UPDATE,
    )
    assert "which the adversary knows" in one.description
    assert "no other record" in whole.description


def test_what_cannot_be_played_is_refused() -> None:
    attack, plan = WeightTidying(), make_plan()
    for changes, words in (({"records": ()}, "records must hold"),):
        with pytest.raises(InputError, match=words):
            Table.laid(SHUFFLED, model(), replace(plan, **changes), attack, 0)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="Poisson"):
        Table.laid(SHUFFLED, model(), replace(plan, sampling=Sampling.SHUFFLED), attack, 0)
    with pytest.raises(UnsupportedError, match="weights after every step"):
        Table.laid(DPWeights(), model(), plan, attack, 0)
    with pytest.raises(UnsupportedError, match="noised sums"):
        Table.laid(registry.create("mechanism", "mezo"), model(), plan, attack, 0)
    with pytest.raises(InputError, match="runs must be at least 4, got 2"):
        play_runs(SHUFFLED, plan, attack, trials=2, seed=0)
    with pytest.raises(InputError, match="releases must be at least 1, got 0"):
        recovery(
            SHUFFLED,
            model(),
            plan,
            attack,
            learning_rates=[1.0],
            noise_multipliers=[1.0],
            releases=0,
            seed=0,
        )


class Linear(nn.Module):
    """Nothing to permute."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.only(x)
        return found


def test_a_model_without_units_has_no_moved_place() -> None:
    bare = build_model(make_plan())
    bare.module = Linear()
    with pytest.raises(UnsupportedError, match="no weight of the model is moved"):
        Table.laid(DPSGD(noise_multiplier=1.0), bare, make_plan(), WeightTidying(), 0)

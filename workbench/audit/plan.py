"""Plans an audit: how many trials of which game refute a claim with which probability, and at what cost.

The numbers are the power of the judge's own bounds (`workbench.estimation.power`). Seconds are those of a
report that the user names, or else those that `benchmarks/plan.py` measured (`data/planning.toml`), in
proportion to the trials. The same measurements say which game sees a suspected fault.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.audit.report_file import read_report
from workbench.core import registry
from workbench.core.errors import ArgumentError, InputError, UnsupportedError, unknown_name
from workbench.core.keys import JSON, plain
from workbench.core.one_line import error_line, object_line
from workbench.estimation.deciding import implied_epsilon, mean_tests
from workbench.estimation.judge import claim_form
from workbench.estimation.power import Strength, outcomes, trials_for_power
from workbench.estimation.subset_trials import SubsetEvidence, nats_bound, perfect_log_score
from workbench.interfaces import Adjacency, Claim, Family, GameTerms, Secret, Trials

PLAN_SCHEMA = 1

PROBABILITIES = (0.5, 0.95)
"""Of refuting the claim, and of reaching an epsilon, that a plan gives numbers for."""

USUAL = ("membership", "canaries", "weights", "release")
"""Games that are planned for claims of differential privacy where none is named."""

SUBSET = "subset"
"""The game of claims about a candidate subset."""

CANARIES = "canaries"
"""White-box canaries, which `workbench audit --train` plays; no registered game: the code is the user's."""


@dataclass(frozen=True, kw_only=True)
class PlannedGame:
    """A game as a plan sees it: what a trial is, and the terms under which its scores are judged."""

    name: str
    unit: str
    terms: GameTerms


def planned_games(
    names: Sequence[str], claim: Claim, *, prior: float, steps: int, sampling_probability: float
) -> list[PlannedGame]:
    """Returns the games of these names, or without names the usual ones that test the claim.

    `prior`: of the coins of one run. `steps`, `sampling_probability`: of the run, for the game of releases.
    Raises `InputError`: an unknown game. `UnsupportedError`: one of them, or none, tests such a claim.
    """
    known = registry.entries("game")
    for name in names:
        if name not in known and name != CANARIES:
            raise unknown_name("game", name, [*known, CANARIES])
        if claim.about not in _tested(name):
            raise UnsupportedError(f"game {name!r} does not test claims about {claim.about}: leave it out")
    chosen = names or [name for name in (*USUAL, SUBSET) if claim.about in _tested(name)]
    if not chosen:
        raise UnsupportedError(f"no game tests claims about {claim.about}")
    run = {"steps": steps, "sampling_probability": sampling_probability}
    return [_planned_game(name, prior, run) for name in chosen]


def _tested(name: str) -> frozenset[Adjacency | Secret]:
    """What claims that a game tests are about."""
    if name == CANARIES:
        return frozenset({Adjacency.ADD_REMOVE})
    game: Any = registry.create("game", name)
    return frozenset(game.adjacencies | game.secrets)


def _planned_game(name: str, prior: float, run: Mapping[str, Any]) -> PlannedGame:
    one_run = GameTerms(description="planned", trials=Trials.ONE_RUN, prior=prior)
    if name == CANARIES:
        return PlannedGame(name=name, unit="crafted records of one training", terms=one_run)
    game: Any = registry.create("game", name)
    if game.trains_once:
        return PlannedGame(name=name, unit=game.unit, terms=one_run)
    terms = GameTerms(description="planned", trials=Trials.INDEPENDENT)
    if game.unit == "releases":
        terms = replace(terms, family=Family.GAUSSIAN, **run)
    return PlannedGame(name=name, unit=game.unit, terms=terms)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of one trial of a game, those of the training before any, and where the figures come from."""

    seconds: float
    training: float
    source: str


@lru_cache(maxsize=1)
def measured() -> Mapping[str, JSON]:
    """Returns what `benchmarks/plan.py` measured: `machine` (of games that name none), `game` and `fault`."""
    return tomllib.loads((files("workbench.data") / "planning.toml").read_text(encoding="utf-8"))


def cost_of(game: str, report: Path | None) -> Cost | None:
    """Returns what a trial of a game costs, by a report in which it was played, or as measured.

    None where neither tells. Raises `InputError`: the report cannot be read.
    """
    if report is not None:
        found = _reported(game, report)
        if found is not None:
            return found
    table = measured()["game"].get(game)
    if table is None:
        return None
    return Cost(
        seconds=table["seconds"] / table["trials"],
        training=table.get("training", 0.0),
        source=f"benchmarks/plan.py: {table['trials']} trials, {table.get('machine', measured()['machine'])}",
    )


def _reported(game: str, path: Path) -> Cost | None:
    """What a game cost in a report's first subject; None where it was not played."""
    try:
        report = read_report(path)
    except InputError as error:
        raise ArgumentError("cost_from", f": {error}") from error
    try:
        return _costs(game, report["subjects"][0], path)
    except (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{path} is no report of an audit: {error_line(error)}") from error


def _costs(game: str, subject: Mapping[str, JSON], path: Path) -> Cost | None:
    for attack in subject["attacks"]:
        name = str(attack["attack"]).partition(" (")[0]
        seconds = float(attack.get("cost", {}).get("seconds", 0.0))
        if _game_of(name) != game or not seconds > 0:
            continue
        training, count = float(subject.get("cost", {}).get("seconds", 0.0)), len(attack["scores"])
        if attack["game"]["trials"] == Trials.ONE_RUN:  # More candidates are more to train on.
            seconds, training = seconds + training, 0.0
        source = f"{path}: {count} trials of {name}"
        return Cost(seconds=seconds / count, training=training, source=source)
    return None


def _game_of(attack: str) -> str | None:
    """The game of an attack of a report, by its name there."""
    named = {
        "white-box canaries": CANARIES,
        "released scores": "membership",
        "retraining": "retraining",
        "white-box retraining": "retraining",
    }
    if attack in named:
        return named[attack]
    entry: Any = registry.entries("attack").get(attack)
    return None if entry is None else str(entry.factory.game)


def advice(fault: str) -> dict[str, JSON]:
    """Returns how each game does on trainers with a fault: the one that sees most first, then the cheapest.

    Fields: `fault`, `trainers` (wrong ones that were tried), `games` (each with `name`, `refuted` and
    `undecided` of them, and `seconds` of one audit), `first` (None where no game sees any), `source`.

    Raises `InputError`: an unknown fault.
    """
    table = measured()
    if not isinstance(fault, str):
        raise ArgumentError("fault", f"must be a text, got {object_line(fault)}")
    if fault not in table["fault"]:
        raise unknown_name("fault", fault, table["fault"])
    found = table["fault"][fault]
    games = [
        {
            "name": name,
            "refuted": found[name][0],
            "undecided": found[name][1],
            "seconds": table["game"][name]["seconds"],
        }
        for name in ("replay", "canaries", "scores")
    ]
    games.sort(key=lambda game: (-game["refuted"], -game["undecided"], game["seconds"]))
    first = games[0]["name"] if games[0]["refuted"] or games[0]["undecided"] else None
    source = f"benchmarks/plan.py: {table['machine']}"
    return {"fault": fault, "trainers": found["trainers"], "games": games, "first": first, "source": source}


def plan_record(
    claim: Claim,
    strength: Strength,
    games: Sequence[PlannedGame],
    *,
    trials: Sequence[int],
    confidence: float,
    seed: int,
    report: Path | None = None,
    subsets: int = 128,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, JSON]:
    """Returns the plan: for each game the trials needed, their cost, and what given numbers of trials show.

    Args:
        claim: Of differential privacy, or of nats about a candidate subset.
        strength: Of the attack, in a trial of every game; perfect for nats.
        games: What could be played.
        trials: Numbers of trials to say the reachable epsilons of, each at least 4.
        confidence: Of the verdict.
        seed: Of what is drawn.
        report: An audit's report whose costs are used.
        subsets: Number M of candidate subsets, for a claim of nats.
        progress: Called with the stage, the games that are planned, and the games in all.

    Raises `UnsupportedError`: the judge tests such a claim in another currency in one of the games, or the
    strength is none that such a claim is planned for.
    """
    common: dict[str, JSON] = {
        "schema": PLAN_SCHEMA,
        "kind": "plan",
        "claim": claim_form(claim),
        "confidence": confidence,
        "strength": strength.describe(),
    }
    if isinstance(claim.guarantee, MutualInformation):
        if not strength.is_perfect:
            raise UnsupportedError(
                f"attack_strength: nats are planned for a perfect attack alone, got {strength.describe()}"
            )
        of_nats = partial(_planned_in_nats, claim.guarantee, trials=trials, confidence=confidence)
        planned = [of_nats(game, subsets=subsets, cost=cost_of(game.name, report)) for game in games]
        return common | {"quantity": "nats", "nats": claim.guarantee.nats, "games": planned}
    stated = implied_epsilon(claim.guarantee)
    exact = isinstance(claim.guarantee, ApproximateDP)
    planned, drawn = [], {"confidence": confidence, "seed": seed}
    for done, game in enumerate(games):
        if progress is not None:
            progress("planning", done, len(games))
        if not exact and game.terms.trials is Trials.INDEPENDENT and not game.terms.is_single_release:
            raise UnsupportedError(
                f"{claim.guarantee.describe()} is tested by its own curve in the independent trials of "
                f"{game.name!r}, which is not planned: leave it out"
            )
        planned.append(_planned(stated, strength, game, trials, cost_of(game.name, report), **drawn))
    if progress is not None:
        progress("planning", len(games), len(games))
    if not exact:
        common["note"] = (
            f"{claim.guarantee.describe()} is planned by the epsilon of {stated.epsilon:.4g} that it implies "
            f"at delta = {stated.delta:g}; an audit decides it in its own currency, which may take fewer "
            "trials"
        )
    return common | {
        "quantity": "epsilon",
        "epsilon": stated.epsilon,
        "delta": stated.delta,
        "games": planned,
    }


def _planned_in_nats(
    guarantee: MutualInformation,
    game: PlannedGame,
    *,
    trials: Sequence[int],
    confidence: float,
    subsets: int,
    cost: Cost | None,
) -> dict[str, JSON]:
    """The game of candidate subsets, an adversary who is always sure and right: nothing of it is random."""

    best = perfect_log_score(subsets)
    evidence = SubsetEvidence(
        scores=np.ones(4),
        members=np.arange(4) % 2 == 0,
        game=game.terms,
        attack="planned",
        candidates=subsets,
        record_success=np.ones(4),
        log_scores=np.full(4, best),
    )
    tests = mean_tests(guarantee, evidence, confidence)
    counts = [count for test in tests if (count := test.needed()) is not None]
    count = min(counts, default=None)
    seconds = None if count is None or cost is None else cost.training + count * cost.seconds
    share = 1.0 - (1.0 - confidence) / max(len(tests), 1)
    shown = []
    for n in trials:
        reached = plain(max(0.0, nats_bound(evidence, np.full(n, best), share).lower))
        row = {"trials": n, "power": float(any(test.perfect(n) > test.allowed for test in tests))}
        shown.append(row | {"nats": [[probability, reached] for probability in PROBABILITIES]})
    return {
        "name": game.name,
        "unit": f"{game.unit}, each on one of {subsets} subsets",
        "terms": plain(game.terms),
        "most": best,
        "needed": [{"probability": p, "trials": count, "seconds": seconds} for p in PROBABILITIES],
        "shown": shown,
        "cost": plain(cost),
    }


def _planned(
    stated: ApproximateDP,
    strength: Strength,
    game: PlannedGame,
    trials: Sequence[int],
    cost: Cost | None,
    **drawn: Any,
) -> dict[str, JSON]:
    """One game of a plan; `drawn`: confidence and seed."""
    needed, shown = [], []
    for probability in PROBABILITIES:
        count = trials_for_power(stated, game.terms, strength, probability, **drawn)
        seconds = None if count is None or cost is None else cost.training + count * cost.seconds
        needed.append({"probability": probability, "trials": count, "seconds": seconds})
    for count in trials:
        found = outcomes(stated, game.terms, strength, count, **drawn)
        shown.append(
            {
                "trials": count,
                "power": found.power(stated.epsilon),
                "epsilon": [
                    [probability, plain(found.reached(probability))] for probability in PROBABILITIES
                ],
            }
        )
    return {
        "name": game.name,
        "unit": game.unit,
        "terms": plain(game.terms),
        "most": plain(strength.most(stated, game.terms)),
        "needed": needed,
        "shown": shown,
        "cost": plain(cost),
    }

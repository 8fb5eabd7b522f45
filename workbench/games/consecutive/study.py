"""The games of permuted weights: played against a target, read by every adversary, and judged in a study.

`workbench audit` and a study play the same games, with the same seeds and the same payment for several looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench import estimation
from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.core.errors import InputError
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream, stream_seed
from workbench.estimation.deciding import deciding_tests
from workbench.estimation.judged import claim_form, evidence_from, judged_subject
from workbench.execution.tasks import StepProgress, silent
from workbench.games.consecutive.releases import JUDGED_BY, PROBES, RUN, SINGLE, VIEWS, other_areas
from workbench.interfaces import Bound, Claim, Evidence, Game, Observations, References, Subject
from workbench.training.setup import TrainingSetup, create_attack, create_mechanism

if TYPE_CHECKING:
    from workbench.games.consecutive.play import ShuffledTrials

CONFIDENCE = 0.95
"""Of a study's audit: all of its games together refute a true claim with probability 5 % at most."""

UNCLAIMED_DELTA = 1e-5
"""Delta of the bounds on a mechanism that nobody claims anything of, and that has no budget."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """One game: its description and its trials."""

    game: Game
    trials: ShuffledTrials


def play_consecutive(
    setup: TrainingSetup, name: str, target: Subject, progress: StepProgress = silent
) -> dict[str, Played]:
    """Permuted steps from the target's state, and whole trainings.

    Args:
        setup: Of the target, with the attack's parameters.
        name: Of the attack.
        target: Trained.
        progress: How far each of the games is, by its name, and before them the outputs that are rehearsed.

    Returns:
        By where: `"one release"` and, unless the attack has no runs, `"whole run"`.

    Raises:
        InputError: the target has no weights to look at, or the plan cannot be read.
        UnsupportedError: the mechanism or the model has nothing for it.
    """
    from workbench.games.consecutive.play import one_release_game, play_releases, play_runs, whole_run_game
    from workbench.training.fine_tuning import build_model

    reader: Any = create_attack(setup, name)
    mechanism, plan, own = create_mechanism(setup), target.plan, setup.seed
    model: Any = getattr(target, "model", None)
    if model is None:
        raise InputError(f"attack {name!r} needs the weights of its subject, got none")
    if reader.state == "start":
        model = build_model(plan)
        model.module.eval()
    included = stream(own, "releases").permutation(np.arange(reader.releases) < reader.releases // 2)
    seeds = [stream_seed(own, "attack", game) for game in (1, 2)]
    released = play_releases(
        mechanism, model, plan, reader, included=included, seed=seeds[0], progress=progress
    )
    played = {SINGLE: Played(game=one_release_game(plan, reader.others), trials=released)}
    if reader.runs:
        of_runs = partial(progress, part=RUN)
        trained = play_runs(mechanism, plan, reader, trials=reader.runs, seed=seeds[1], progress=of_runs)
        played[RUN] = Played(game=whole_run_game(plan, reader.others), trials=trained)
    return played


def read_by_all(
    setup: TrainingSetup, name: str, played: Mapping[str, Played], delta: float
) -> list[dict[str, Any]]:
    """Evidence records of every adversary in every game.

    Args:
        setup, name: As in `play_consecutive`.
        played: What it returned.
        delta: That Eq. 45 is evaluated at.
    """
    from workbench.games.consecutive.play import details

    reader: Any = create_attack(setup, name)
    results = []
    for where, one in played.items():
        trials = one.trials
        for view in VIEWS:
            seen = Observations(values=trials.scores[view], where=f"{where}, {view}")
            scores = reader.score(None, seen, References(), stream(setup.seed, "attack"))
            shown = {"as_printed": reader.as_printed(scores.values, trials.included, delta)}
            shown |= details(trials) if view == "tidying" else {}
            shown |= _of_invariants(trials) if view == "invariant" else {}
            results.append(
                {
                    "attack": f"{name} ({view}, {where})",
                    "scores": scores.values,
                    "members": trials.included,
                    "game": one.game,
                    "details": {**scores.details, **shown},
                    "blind_texts": (),
                }
            )
    return results


def _of_invariants(trials: ShuffledTrials) -> dict[str, float]:
    """Areas by statistic, and on how many inputs the function was looked at, where it was."""
    areas = other_areas(trials.scores, trials.included)
    return {**areas, PROBES: float(trials.probes)} if "function" in trials.scores else areas


def audit_form(
    setup: TrainingSetup, name: str, target: Subject, played: Mapping[str, Played]
) -> dict[str, JSON]:
    """The judged games of a study's experiment, in plain form.

    Args:
        setup, name, target, played: As in `play_consecutive`, and what it returned.

    Returns:
        `confidence` of the whole; `claim` and its combined `verdict` (None where nobody claims anything);
        `games`, a list of `view`, `where`, `n`, `verdict` (or None), `bound` on epsilon, `auc` (estimate,
        lower, upper, confidence), `details` and `game`; `recovery` by where, see `recovery_form`.

    Raises:
        InputError, UnsupportedError: the games cannot judge the claim.
    """
    claim = target.claim
    records = read_by_all(setup, name, played, float(getattr(setup.budget, "delta", UNCLAIMED_DELTA)))
    games = [
        evidence_from({**record, "game": plain(record["game"]), "seeds": {}, "cost": {}})
        for record in records
    ]
    share = 1.0 - (1.0 - CONFIDENCE) / len(games)
    verdict, judged = _judged(setup, name, claim, games, share)
    return {
        "confidence": CONFIDENCE,
        "judged_at": share,
        "claim": claim_form(claim),
        "verdict": verdict,
        "games": [
            {**own, **_measured(game, share), "view": view, "where": where}
            for (view, where), own, game in zip(_places(played), judged, games, strict=True)
        ],
        "recovery": {where: recovery_form(one.trials) for where, one in played.items()},
    }


def _places(played: Mapping[str, Played]) -> list[tuple[str, str]]:
    return [(view, where) for where in played for view in VIEWS]


def _judged(
    setup: TrainingSetup, name: str, claim: Claim, games: Sequence[Evidence], share: float
) -> tuple[JSON, list[dict[str, JSON]]]:
    """The combined verdict, and each game's with its bound on epsilon."""
    if isinstance(claim.guarantee, NoGuarantee):
        return None, [{"verdict": None, "bound": plain(_bare_bound(setup, game, share))} for game in games]
    report = judged_subject(name, "subject", claim, games, confidence=CONFIDENCE, seed=setup.seed)
    verdicts = [attack["verdict"] for attack in report["attacks"]]
    return report["verdict"], [{"verdict": one, "bound": _bound_of(one)} for one in verdicts]


def _bound_of(verdict: Mapping[str, JSON]) -> JSON:
    """The bound that decided; an invalid game's is shown all the same."""
    return verdict["bound"] or next(iter(verdict["bounds"]), None)


def _bare_bound(setup: TrainingSetup, game: Evidence, share: float) -> Bound:
    """What would decide, were there a claim."""
    delta = float(getattr(setup.budget, "delta", UNCLAIMED_DELTA))
    stated = ApproximateDP(epsilon=1.0, delta=delta)
    test, *_ = deciding_tests(stated, game, share, stream(setup.seed, "judge"))
    return test.compute(game.scores)


def _measured(game: Evidence, share: float) -> dict[str, JSON]:
    area = estimation.auc(game.scores, game.members, confidence=share)
    return {
        "n": int(game.scores.size),
        "auc": plain(area),
        "details": plain(game.details),
        "game": plain(game.game),
    }


def recovery_form(trials: ShuffledTrials) -> dict[str, JSON]:
    """How much of the permutations was found, in plain form.

    Returns:
        `n` releases; `exact` and `placed`, shares by unit (of releases in which a unit's permutation was
        found exactly, with `"all"` for the whole one; of its indices that were matched right); and the same
        over the steps of a run, `exact_by_step` and `placed_by_step`, one list a unit.
    """
    return {
        "n": trials.releases,
        "exact": plain(trials.recovered),
        "placed": plain(trials.placed),
        "exact_by_step": plain(trials.recovered_by_step),
        "placed_by_step": plain(trials.placed_by_step),
    }


def flat_metrics(form: Mapping[str, JSON]) -> dict[str, float]:
    """The audit's main numbers by name, for what knows a record's metrics alone.

    Returns:
        `epsilon_lower (VIEW, WHERE)`, `auc (VIEW, WHERE)`, `as_printed (VIEW, WHERE)`, and
        `recovered (WHERE)`, `placed (WHERE)`.
    """
    found: dict[str, float] = {}
    for game in form["games"]:
        place = f"({game['view']}, {game['where']})"
        if game["bound"] is not None:
            found[f"epsilon_lower {place}"] = float(game["bound"]["lower"])
        found[f"auc {place}"] = float(game["auc"]["estimate"])
        found[f"as_printed {place}"] = float(game["details"]["as_printed"])
    for where, own in form["recovery"].items():
        found[f"recovered ({where})"] = float(own["exact"]["all"])
        placed = [float(value) for value in own["placed"].values()]
        found[f"placed ({where})"] = float(np.mean(placed))
    return found


def main_game(played: Mapping[str, Played]) -> ShuffledTrials:
    """The game whose scores stand for the experiment: the whole run's, where one was played."""
    return played.get(RUN, played[SINGLE]).trials


def main_scores(played: Mapping[str, Played]) -> tuple[Any, Any]:
    """Scores and labels of the tidying adversary in that game."""
    trials = main_game(played)
    return trials.scores[JUDGED_BY], trials.included

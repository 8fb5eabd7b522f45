"""The consecutive-weights game in the bench: plays it, judges it for a study, and words its report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench import estimation
from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.accounting import subsampled_gaussian as accountant
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.registry import register
from workbench.core.streams import stream, stream_seed
from workbench.core.templates import Words, percent
from workbench.estimation.deciding import deciding_tests
from workbench.estimation.judge import claim_form, judged_subject
from workbench.execution.tasks import silent
from workbench.games.base import Game, Match, Outcome, Played, Round, Scale
from workbench.games.consecutive import PROBES, RUN, SINGLE, VIEWS, ConsecutiveAttack, ConsecutiveSeen
from workbench.games.consecutive.play import ShuffledTrials, details, play_releases, play_runs
from workbench.games.consecutive.scene import Table
from workbench.games.words import Form, Judged, bound_of, combined_kind, guarantee_of, view_form
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Bound,
    Claim,
    Evidence,
    FloatArray,
    GameTerms,
    Guarantee,
    Plan,
    Released,
    Trials,
)
from workbench.training.fine_tuning import build_model
from workbench.training.subject import TrainedSubject

CONFIDENCE = 0.95
"""Of a study's audit: all of its games together refute a true claim with probability 5 % at most."""

UNCLAIMED_DELTA = 1e-5
"""Delta of the bounds on a mechanism without claim and without budget."""

JUDGED_BY = "tidying"
"""The adversary whose scores stand for a study's experiment where there is room for only one."""


@register("game", "consecutive")
class ConsecutiveGame(Game[ConsecutiveAttack]):
    """Permuted steps from one state, and whole permuted trainings, with a gradient canary or without."""

    name = "consecutive"
    title = "consecutive-weights"
    attack_type = ConsecutiveAttack
    released = Released.EVERY_UPDATE
    uses_target = True

    def check(self, match: Match[ConsecutiveAttack]) -> None:
        """Refuses a mechanism, a model or data that the game cannot be played with."""
        setup, model, name = match.part.setup, build_model(match.plan), match.part.attack
        try:
            model.encode(match.plan.records[-1:])
        except InputError as error:
            raise InputError(
                f"model {setup.model!r} does not go with corpus {setup.corpus!r}: {error}"
            ) from error
        try:
            Table.laid(match.mechanism, model, match.plan, match.attack, 0)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"attack {name!r} cannot be played with {setup.mechanism}: {error}; leave it out"
            ) from error

    def cost(self, attack: ConsecutiveAttack) -> tuple[Scale, ...]:
        """Time grows with the number of releases and of trainings."""
        return (
            Scale(parameter="releases", count=attack.releases, few=40, more=240),
            Scale(parameter="runs", count=attack.runs, few=0, more=20),
        )

    def play(self, match: Match[ConsecutiveAttack]) -> Played:
        """Plays permuted steps from the target's state, and whole trainings; every adversary reads each."""
        part, attack, target = match.part, match.attack, match.required_target()
        if not isinstance(target, TrainedSubject):
            raise InputError(f"attack {part.attack!r} needs the weights of its subject, got none")
        seed, plan, model = part.setup.seed, target.plan, target.model
        if attack.state == "start":
            model = build_model(plan)
            model.module.eval()
        included = stream(seed, "releases").permutation(np.arange(attack.releases) < attack.releases // 2)
        played = {
            SINGLE: play_releases(
                match.mechanism,
                model,
                plan,
                attack,
                included=included,
                seed=stream_seed(seed, "attack", 1),
                progress=match.progress if part.by_coin else silent,
            )
        }
        if attack.runs:
            played[RUN] = play_runs(
                match.mechanism,
                plan,
                attack,
                trials=attack.runs,
                seed=stream_seed(seed, "attack", 2),
                progress=match.steps(RUN),
            )
        delta = delta_of(plan.budget, 0.0 if part.by_coin else UNCLAIMED_DELTA)
        rounds = []
        for where, trials in played.items():
            for view in VIEWS:
                seen = ConsecutiveSeen(values=trials.scores[view], where=f"{where}, {view}")
                scored = attack.score(seen, match.generator())
                extra = {"as_printed": attack.as_printed(scored.values, trials.included, delta)}
                extra |= details(trials) if view == "tidying" else {}
                extra |= _of_invariants(trials) if view == "invariant" else {}
                rounds.append(
                    Round(
                        name=f"{part.attack} ({view}, {where})",
                        scores=scored.values,
                        members=trials.included,
                        terms=self.terms(plan, where, attack.others),
                        details={**scored.details, **extra},
                    )
                )
        return Played(rounds=tuple(rounds), subject=target, trials=played)

    def terms(self, plan: Plan, where: str, others: str) -> GameTerms:
        """Returns what is played, for the judge; `where` is `SINGLE` or `RUN`, `others` the attack's."""
        is_single = where == SINGLE
        words = self.words().text(
            "single" if is_single else "run", optimizer=plan.optimizer, others=others, steps=plan.steps
        )
        return GameTerms(
            description=words,
            trials=Trials.INDEPENDENT,
            released=self.released,
            adjacency=Adjacency.ADD_REMOVE,
            steps=plan.steps if is_single else 1,
            sampling_probability=plan.sampling_probability if is_single else 1.0,
        )

    def views(self, judged: Judged) -> dict[str, JSON]:
        """Three adversaries who read the same releases."""
        subject, control, confidence = judged.by_view["claim"], judged.control, judged.confidence
        attacks: list[Any] = list(judged.attacks)
        forms = [_view(self.words(), key, subject, confidence) for key in VIEWS]
        used = sorted(
            {int(form["details"][PROBES]) for form in subject["attacks"] if PROBES in form["details"]}
        )
        notes = self.words().entries(
            "notes",
            subject={"own_claim": None, **subject},
            games=_games(subject, "blind"),
            attacks=attacks,
            probes=[
                (fewest, attack.probes) for attack in attacks for fewest in used if fewest < attack.probes
            ],
            certified=_certified(subject, control),
            mechanism=judged.mechanism,
            confidence=confidence,
        )
        return {
            "heading": "Three adversaries, one transcript of weights",
            "in_short": self.words().text("in_short", forms=forms, control=control),
            "notes": notes["note"],
            "of": forms,
        }

    def outcome(self, match: Match[ConsecutiveAttack], played: Played) -> Outcome:
        """Returns the judged games; the tidying adversary's scores stand for the experiment."""
        form = audit_form(match, played)
        trials: ShuffledTrials = played.trials.get(RUN, played.trials[SINGLE])
        return Outcome(
            scores=trials.scores[JUDGED_BY],
            members=trials.included,
            metrics=flat_metrics(form),
            extra={"audit": form},
        )


def delta_of(budget: Guarantee | None, otherwise: float) -> float:
    """Returns the delta of an (epsilon, delta) budget."""
    return budget.delta if isinstance(budget, ApproximateDP) else otherwise


def _of_invariants(trials: ShuffledTrials) -> dict[str, float]:
    """Areas by statistic, and on how many inputs the function was looked at, where it was."""
    areas = other_areas(trials.scores, trials.included)
    return {**areas, PROBES: float(trials.probes)} if "function" in trials.scores else areas


def audit_form(match: Match[ConsecutiveAttack], played: Played) -> dict[str, JSON]:
    """Judges the games of a study's experiment, and returns them in plain form.

    Returns `confidence` of the whole; `claim` and its combined `verdict` (None where nobody claims anything);
    `games`, a list of `view`, `where`, `n`, `verdict` (or None), `bound` on epsilon, `auc` (estimate, lower,
    upper, confidence), `details` and `game`; `recovery` by where, see `recovery_form`. Raises `InputError`,
    `UnsupportedError`: the games cannot judge the claim.
    """
    setup, claim = match.part.setup, match.required_target().claim
    games = [scored.evidence() for scored in played.rounds]
    share = 1.0 - (1.0 - CONFIDENCE) / len(games)
    verdict, judged = _judged(setup.budget, setup.seed, claim, games, share)
    places = [(view, where) for where in played.trials for view in VIEWS]
    return {
        "confidence": CONFIDENCE,
        "judged_at": share,
        "claim": claim_form(claim),
        "verdict": verdict,
        "games": [
            {**verdict_and_bound, **_measured(game, share), "view": view, "where": where}
            for (view, where), verdict_and_bound, game in zip(places, judged, games, strict=True)
        ],
        "recovery": {where: recovery_form(trials) for where, trials in played.trials.items()},
    }


def _judged(
    budget: Guarantee | None, seed: int, claim: Claim, games: Sequence[Evidence], share: float
) -> tuple[JSON, list[dict[str, JSON]]]:
    """The combined verdict, and each game's with its bound on epsilon."""
    if isinstance(claim.guarantee, NoGuarantee):
        bounds = [_bare_bound(budget, seed, game, share) for game in games]
        return None, [{"verdict": None, "bound": plain(bound)} for bound in bounds]
    report = judged_subject("subject", "subject", claim, games, confidence=CONFIDENCE, seed=seed)
    verdicts = [attack["verdict"] for attack in report["attacks"]]
    return report["verdict"], [
        {"verdict": verdict, "bound": bound_of({"verdict": verdict})} for verdict in verdicts
    ]


def _bare_bound(budget: Guarantee | None, seed: int, game: Evidence, share: float) -> Bound:
    """What would decide if there were a claim."""
    stated = ApproximateDP(epsilon=1.0, delta=delta_of(budget, UNCLAIMED_DELTA))
    test, *_ = deciding_tests(stated, game, share, stream(seed, "judge"))
    return test(game.scores)


def _measured(game: Evidence, share: float) -> dict[str, JSON]:
    area = estimation.auc(game.scores, game.members, confidence=share)
    return {
        "n": int(game.scores.size),
        "auc": plain(area),
        "details": plain(game.details),
        "game": plain(game.game),
    }


def recovery_form(trials: ShuffledTrials) -> dict[str, JSON]:
    """Returns how much of the permutations was found, in plain form.

    Returns `n` releases; `exact` and `placed`, shares by unit (of releases in which a unit's permutation was
    found exactly, with `"all"` for the whole one; of its indices that were matched right); and the same over
    the steps of a run, `exact_by_step` and `placed_by_step`, one list a unit.
    """
    return {
        "n": trials.releases,
        "exact": plain(trials.recovered),
        "placed": plain(trials.placed),
        "exact_by_step": plain(trials.recovered_by_step),
        "placed_by_step": plain(trials.placed_by_step),
    }


def flat_metrics(form: Mapping[str, JSON]) -> dict[str, float]:
    """Returns the audit's main numbers by name, for readers that know only a record's metrics.

    Returns `epsilon_lower (VIEW, WHERE)`, `auc (VIEW, WHERE)`, `as_printed (VIEW, WHERE)`, and `recovered
    (WHERE)`, `placed (WHERE)`.
    """
    metrics: dict[str, float] = {}
    for game in form["games"]:
        place = f"({game['view']}, {game['where']})"
        if game["bound"] is not None:
            metrics[f"epsilon_lower {place}"] = float(game["bound"]["lower"])
        metrics[f"auc {place}"] = float(game["auc"]["estimate"])
        metrics[f"as_printed {place}"] = float(game["details"]["as_printed"])
    for where, recovery in form["recovery"].items():
        metrics[f"recovered ({where})"] = float(recovery["exact"]["all"])
        placed = [float(value) for value in recovery["placed"].values()]
        metrics[f"placed ({where})"] = float(np.mean(placed))
    return metrics


def other_areas(scores: Mapping[str, FloatArray], members: BoolArray) -> dict[str, float]:
    """Returns `auc (STATISTIC)` of each statistic that is measured and not judged by itself.

    `scores` are by view or statistic. A statistic whose scores are all equal, which says nothing, is left
    out.
    """
    return {
        f"auc ({name})": estimation.auc(values, members, confidence=0.95).estimate
        for name, values in scores.items()
        if name not in VIEWS and np.ptp(values) > 0.0
    }


_NOTHING = 1e-6
"""A smaller epsilon is rounding."""


def _games(subject: Form, key: str) -> list[dict[str, Any]]:
    """The rounds of one adversary, which are named `ATTACK (KEY, WHERE)`, with their numbers."""
    return [_game(form) for form in subject["attacks"] if f"({key}, " in str(form["attack"])]


def _game(form: Form) -> dict[str, Any]:
    details, bound = form["details"], bound_of(form)
    lower = 0.0 if bound is None else float(bound["lower"])
    quarters = [f"recovered_{end}_quarter" for end in ("first", "last")]
    return {
        "form": form,
        "where": str(form["attack"]).rpartition(", ")[2].rstrip(")"),
        "n": len(form["scores"]),
        "is_constant": len(set(form["scores"])) == 1,
        "bound": "no bound"
        if bound is None
        else f"{bound['quantity']} >= {lower if lower > _NOTHING else 0.0:.3g}",
        "as_printed": float(details["as_printed"]),
        "recovered": float(details.get("recovered", math.nan)),
        "units": [float(details[name]) for name in details if name.startswith("recovered (")],
        "quarters": [float(details[name]) for name in quarters if name in details],
        "areas": {
            name.removeprefix("auc (").rstrip(")"): float(value)
            for name, value in details.items()
            if name.startswith("auc (")
        },
    }


def _view(words: Words, key: str, subject: Form, confidence: float) -> dict[str, JSON]:
    games = _games(subject, key)
    kind = combined_kind([game["form"] for game in games])
    entries = words.entries(
        "view",
        key=key,
        games=games,
        guarantee=guarantee_of(subject),
        kind=kind.value,
        error=percent((1.0 - confidence) * len(games) / len(subject["attacks"])),
    )
    return view_form(entries, key, kind)


def _certified(subject: Form, control: Form | None) -> Mapping[str, Any] | None:
    """The noise of both, and what a certified accountant says of the subject's; None for nothing."""
    noise = float(subject["metrics"].get("noise_multiplier", math.nan))
    guarantee, setup = guarantee_of(subject), subject["parameters"]
    if not noise > 0.0 or not isinstance(guarantee, ApproximateDP) or guarantee.delta == 0.0:
        return None
    control_noise = (
        math.nan if control is None else float(control["metrics"].get("noise_multiplier", math.nan))
    )
    try:
        epsilon = accountant.epsilon(
            noise_multiplier=noise,
            sampling_probability=float(setup["sampling_probability"]),
            steps=int(setup["steps"]),
            delta=guarantee.delta,
        )
    except UnsupportedError:  # So little noise has no finite epsilon.
        return None
    return {
        "noise": noise,
        "control": control["name"] if control is not None and control_noise > 0.0 else "",
        "control_noise": control_noise,
        "epsilon": epsilon,
        "delta": guarantee.delta,
        "claimed": guarantee.epsilon,
    }

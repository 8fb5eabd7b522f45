"""The consecutive-weights game: was the canary in this permuted step, or in this run of them?

A mechanism releases its weights after each step, permuted by a secret permutation that leaves the network's
function unchanged. The adversary sees the weights before and after, and is scored in three ways: blind to the
permutation, by what no permutation changes, and after undoing it. `workbench.games.consecutive.play` releases
and trains.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from workbench import estimation
from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.registry import register
from workbench.core.streams import stream, stream_seed
from workbench.estimation.deciding import deciding_tests
from workbench.estimation.judge import claim_form, judged_subject
from workbench.execution.tasks import silent
from workbench.games.base import Game, Match, Outcome, Played, Round, Scale
from workbench.games.words import Judged
from workbench.interfaces import (
    Adjacency,
    Attack,
    BoolArray,
    Bound,
    Claim,
    Evidence,
    FloatArray,
    GameTerms,
    Guarantee,
    IntArray,
    Mechanism,
    Plan,
    Released,
    Trials,
)

if TYPE_CHECKING:
    import torch

    from workbench.games.consecutive.play import ShuffledTrials
    from workbench.training.permutations import Reach

CONFIDENCE = 0.95
"""Of a study's audit: all of its games together refute a true claim with probability 5 % at most."""

UNCLAIMED_DELTA = 1e-5
"""Delta of the bounds on a mechanism without claim and without budget."""

VIEWS = ("blind", "invariant", "tidying")
"""The adversaries that are judged, each by its own scores."""

JUDGED_BY = "tidying"
"""The adversary whose scores stand for a study's experiment where there is room for only one."""

SINGLE, RUN = "one release", "whole run"
"""The two games."""

PROBES = "probes"
"""Name, among a game's details, of the number of inputs on which the function was looked at."""

PLACES = ("moved", "fixed")
"""Where the canary's weight is: one that permutations move, or one that none moves."""

STATES = ("trained", "start")
"""The weights that single releases start from."""

OTHERS = ("none", "sample")
"""Who takes part besides the canary: nobody, or the records of the plan."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is the same in all releases of a game.

    Attributes:
        names: Of the network's units.
        units: For each, the places in the flat weight vector that each index owns, shape `(m, k)`.
        coordinate: The canary's place.
        orbit: All places that a permutation may move it to, itself among them.
    """

    names: tuple[str, ...]
    units: tuple[IntArray, ...]
    coordinate: int
    orbit: IntArray


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A nearly normal statistic: its value, what the canary adds to it, and its deviation."""

    value: float
    shift: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class WeightRelease:
    """One release, as the adversary sees it.

    Attributes:
        expected: The weights before they are permuted, without the canary and without noise, shape `(d,)`.
        released: Shape `(d,)`.
        shift: What the canary would add to its weight.
        noise: Standard deviation of the noise of that weight.
        participation: Probability with which the canary takes part, where it is in the data.
        outputs: What the released network computes less what was expected, along one direction in output
            space; None where outputs were not looked at.
        of_run: One of the steps of a whole run, not a single release.
    """

    expected: FloatArray
    released: FloatArray
    shift: float
    noise: float
    participation: float = 1.0
    outputs: Projection | None = None
    of_run: bool = False


@dataclass(frozen=True, kw_only=True)
class ReadRelease:
    """What an adversary infers from one release.

    Attributes:
        ratios: Log-likelihood ratio "took part" over "did not", by view.
        indices: The permutation that it found, of each unit in the scene's order.
    """

    ratios: Mapping[str, float]
    indices: tuple[IntArray, ...]


class PermutingMechanism(Mechanism):
    """A mechanism that may permute its weights after each step."""

    released_weights: ClassVar[Callable[..., torch.Tensor]]
    """One step for an auditor: the weights after it, permuted."""

    @property
    @abstractmethod
    def is_shuffling(self) -> bool:
        """Whether the weights that are released are permuted."""

    @abstractmethod
    def reach(self) -> Reach | None:
        """Which permutations are drawn from; None for all that leave the function as it is."""


@dataclass(frozen=True, kw_only=True)
class ConsecutiveSeen:
    """What one adversary infers from n releases or runs, without the coins.

    Attributes:
        values: Its log-likelihood ratios, summed over the releases of a trial, shape `(n,)`.
        where: The round, and the adversary's name.
    """

    values: FloatArray
    where: str


class ConsecutiveAttack(Attack[ConsecutiveSeen]):
    """An attack that reads consecutive weights.

    Attributes:
        releases: Number of independent releases from one state.
        runs: Number of independent trainings, read step by step; 0 for none.
        state: Where single releases start: one of `STATES`.
        place: Where the canary's weight is: one of `PLACES`.
        others: Who else takes part: one of `OTHERS`.
        magnitude: The canary's raw gradient norm.
        probes: Inputs on which the released network is asked for its outputs; 0 for none.
        turns: Of the search for the direction in which outputs are looked at, in each step of a run; 0: in
            none.
        invariant, invariant_run: Statistics by which the invariant adversary is judged, in single releases
            and in runs.
    """

    game = "consecutive"
    releases: int
    runs: int
    state: str
    place: str
    others: str
    magnitude: float
    probes: int
    turns: int
    invariant: str
    invariant_run: str

    @abstractmethod
    def read(self, scene: Scene, release: WeightRelease) -> ReadRelease:
        """Returns ratios and permutation of one release."""

    @abstractmethod
    def as_printed(self, scores: FloatArray, members: BoolArray, delta: float) -> float:
        """Returns the epsilon that a paper's own audit would read off these scores; not a bound."""


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
        from workbench.games.consecutive.scene import Table
        from workbench.training.fine_tuning import build_model

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
        from workbench.games.consecutive.play import details, play_releases, play_runs
        from workbench.training.fine_tuning import build_model
        from workbench.training.subject import TrainedSubject

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
        from workbench.games.consecutive.views import consecutive_views

        return consecutive_views(self.words(), judged)

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

    Returns:
        `confidence` of the whole; `claim` and its combined `verdict` (None where nobody claims anything);
        `games`, a list of `view`, `where`, `n`, `verdict` (or None), `bound` on epsilon, `auc` (estimate,
        lower, upper, confidence), `details` and `game`; `recovery` by where, see `recovery_form`.

    Raises `InputError`, `UnsupportedError`: the games cannot judge the claim.
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
    return report["verdict"], [{"verdict": verdict, "bound": _bound_of(verdict)} for verdict in verdicts]


def _bound_of(verdict: Mapping[str, JSON]) -> JSON:
    """The bound that decided; an invalid game's first bound is shown too."""
    return verdict["bound"] or next(iter(verdict["bounds"]), None)


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
    """Returns the audit's main numbers by name, for readers that know only a record's metrics.

    Returns:
        `epsilon_lower (VIEW, WHERE)`, `auc (VIEW, WHERE)`, `as_printed (VIEW, WHERE)`, and `recovered
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

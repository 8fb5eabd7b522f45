"""`workbench.plan`: how many trials of which game refute a claim, how likely, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.audit.api.arguments import ClaimLike, PathLike, confidence_of, prior_of, seed_of
from workbench.audit.claims import EXAMPLE, claimed
from workbench.core.arguments import names_of, number, path_of, whole_number
from workbench.core.errors import ArgumentError, InputError, UnsupportedError, naming_extras
from workbench.core.keys import JSON
from workbench.core.one_line import object_line
from workbench.core.results import Result
from workbench.interfaces import Adjacency, Released, Secret, Trials

if TYPE_CHECKING:
    from workbench.audit.plan import PlannedGame

MOST_TRIALS = 100_000
"""Numbers of trials beyond this are simulated for hours."""


SUBSETS, MOST_SUBSETS = 128, 65_536
"""Candidate subsets of which one is trained on: as many as usual, and the most."""


class PlanResult(Result):
    """How many trials of each game refute the claim, and what given numbers of trials show."""

    @property
    def verdict(self) -> str:
        """`PLANNED`: nothing has been audited yet."""
        return "PLANNED"

    @property
    def sentence(self) -> str:
        """The game that refutes the claim with the fewest trials, 95 % of the time."""
        needed = [
            (game["needed"][-1]["trials"], game["name"], game["unit"])
            for game in self.record["games"]
            if game["needed"][-1]["trials"] is not None
        ]
        claim = self.record["claim"]["text"]
        if not needed:
            return f"no planned game refutes {claim} 95 % of the time, however many trials it has"
        trials, name, unit = min(needed)
        return f"{name} refutes {claim} 95 % of the time with {trials} {unit} (attack: {self.attack})"

    @property
    def attack(self) -> str:
        """How strong the attack is."""
        return str(self.record["strength"])

    @property
    def exit_code(self) -> int:
        """0."""
        return 0

    @property
    def quantity(self) -> str:
        """What trials show: `epsilon`, or `nats` where the claim is of them."""
        return str(self.record["quantity"])

    @property
    def bounds(self) -> dict[tuple[str, int], float]:
        """The epsilon, or the nats, reached 95 % of the time, by game and number of trials."""
        return {
            (row["game"], row["trials"]): row[self.quantity]
            for row in self.rows()
            if row["asked"] == "what trials show" and row["probability"] == 0.95
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row a game, probability and question: which trials are needed, or what so many trials show."""
        rows: list[dict[str, Any]] = []
        for game in self.record["games"]:
            named = {"game": game["name"], "unit": game["unit"]}
            rows += [
                {**named, "asked": "trials that refute", **row, self.quantity: self.record[self.quantity]}
                for row in game["needed"]
            ]
            rows += [
                {
                    **named,
                    "asked": "what trials show",
                    "probability": probability,
                    "trials": row["trials"],
                    "seconds": None,
                    self.quantity: float(reached),
                    "power": row["power"],
                }
                for row in game["shown"]
                for probability, reached in row[self.quantity]
            ]
        return [{"power": None, **row} for row in rows]


@naming_extras
def plan(
    claim: ClaimLike = EXAMPLE,
    *,
    games: str | Sequence[str] | None = None,
    attack_strength: str = "perfect",
    trials: int | Sequence[int] = (100, 1000),
    steps: int = 1,
    sampling_probability: float = 1.0,
    prior: float = 0.5,
    subsets: int = SUBSETS,
    fault: str | None = None,
    cost_from: PathLike | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> PlanResult:
    """Say how many trials refute a claim, how likely, at what cost, and by which game.

    The numbers are the power of the bounds that decide. Fix the number of trials by them before the audit.

    Args:
        claim: A text such as `"epsilon=1,delta=1e-5,adjacency=add-remove"`, or a `Claim`.
        games: Names of `workbench list games`, or canaries; None for the usual ones.
        attack_strength: `"perfect"`, `"mu=..."` (in a trial members and others are as unit normals mu apart),
            or `"tpr=...,fpr=..."`.
        trials: Numbers of trials to say the reachable epsilons of, 4 to 100,000.
        steps, sampling_probability: Of the run, for the game of releases.
        prior: Of the coins of one training.
        subsets: Number M of candidate subsets, where the claim is of nats about which was trained on.
        fault: What is suspected: noise, clip, sampler, normaliser, accountant or side-channel.
        cost_from: An audit's report.json whose seconds are used.
        confidence: Of the verdict, in (0.5, 1).
        seed: Of what is simulated.
        progress: Called with the stage, the games that are planned, and the games in all.

    Raises `InputError`: an argument is unusable. `UnsupportedError`: the claim is of nats about a record, or
    a game does not test it.
    """
    held = claimed(claim, released=Released.EVERY_UPDATE)
    if held.about is Secret.RECORD:
        raise UnsupportedError(
            "claim: plans are of differential privacy, or of nats about a candidate-subset, got "
            f"{held.guarantee.describe()}"
        )
    subsets = whole_number("subsets", subsets, least=2, most=MOST_SUBSETS)
    confidence, seed = confidence_of(confidence), seed_of(seed)
    prior = prior_of(prior)
    run: dict[str, Any] = {
        "steps": whole_number("steps", steps, least=1, most=None),
        "sampling_probability": number("sampling_probability", sampling_probability, above=0, most=1),
    }
    counts = [trials] if not isinstance(trials, Sequence) else list(trials)
    counts = [whole_number("trials", count, least=4, most=MOST_TRIALS) for count in counts]
    if not counts:
        raise ArgumentError("trials", "must name at least one number, got none")
    named = () if games is None else names_of("games", games)
    source = None if cost_from is None else path_of("cost_from", cost_from)
    if not isinstance(attack_strength, str):
        raise ArgumentError("attack_strength", f"must be a text, got {object_line(attack_strength)}")
    from workbench.audit.plan import advice, plan_record, planned_games
    from workbench.estimation.power import Strength

    try:
        strength = Strength.parse(attack_strength)
    except InputError as error:
        raise ArgumentError("attack_strength", f": {error}") from error
    suspected: Mapping[str, JSON] | None = None if fault is None else advice(fault)
    planned = planned_games(named, held, prior=prior, **run)
    _require_used(planned, run=run, subsets=subsets, prior=prior)
    if suspected is not None and not isinstance(held.about, Adjacency):
        raise ArgumentError("fault", f"goes with a claim of differential privacy, got {fault!r}")
    record = plan_record(
        held,
        strength,
        planned,
        trials=counts,
        confidence=confidence,
        seed=seed,
        report=source,
        subsets=subsets,
        progress=progress,
    )
    return PlanResult(record | ({"fault": suspected} if suspected else {}))


def _require_used(
    planned: Sequence[PlannedGame], *, run: Mapping[str, Any], subsets: int, prior: float
) -> None:
    """Refuses what was given for a game that is not planned."""
    of_games = {"release": run, "subset": {"subsets": subsets}}
    usual = {"steps": 1, "sampling_probability": 1.0, "subsets": SUBSETS}
    for game, given in of_games.items():
        for name, value in given.items():
            if value != usual[name] and game not in [one.name for one in planned]:
                raise ArgumentError(name, f"goes with the game {game!r}, which is not planned, got {value:g}")
    if prior != 0.5 and all(one.terms.trials is not Trials.ONE_RUN for one in planned):
        raise ArgumentError(
            "prior", f"goes with games of one training, none of which is planned, got {prior:g}"
        )

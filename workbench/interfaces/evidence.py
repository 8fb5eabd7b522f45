"""The results of games: labelled scores and the game's terms, bounds computed from them, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from workbench.core.keys import JSON, LATER
from workbench.interfaces.arrays import BoolArray, FloatArray
from workbench.interfaces.claims import Adjacency, Released


class Family(StrEnum):
    """The family of mechanisms that a bound assumes; for mechanisms outside it the bound proves nothing."""

    ANY = "any (epsilon, delta)"
    GAUSSIAN = "Gaussian"
    SUBSAMPLED_GAUSSIAN = "Poisson-subsampled Gaussian"
    RANDOMISED_RESPONSE = "randomised response"


class Trials(StrEnum):
    """How the scores of one game depend on each other."""

    INDEPENDENT = "independent"
    """Every score comes from its own release: given the labels, scores are independent."""
    ONE_RUN = "one-run"
    """All scores come from one release; the labels are independent coins of probability `prior`."""


class VerdictKind(StrEnum):
    """The possible verdicts. "Not refuted" never means "private"."""

    REFUTED = "REFUTED"
    NOT_REFUTED = "NOT_REFUTED"
    UNDERPOWERED = "UNDERPOWERED"
    INVALID = "INVALID"
    PROVEN = "PROVEN"
    HOLDS_UNDER = "HOLDS_UNDER"
    UNDECIDED = "UNDECIDED"


COMBINED = (
    VerdictKind.REFUTED,
    VerdictKind.INVALID,
    VerdictKind.NOT_REFUTED,
    VerdictKind.UNDERPOWERED,
    VerdictKind.UNDECIDED,
)
"""Precedence of verdicts: several on one claim combine to the first of these kinds among them."""


@dataclass(frozen=True, kw_only=True)
class GameTerms:
    """The conditions of a game: who chose the labels, and what the adversary saw.

    Attributes:
        description: Who chose the labels, what the adversary saw and knew, in one or two sentences.
        trials: How scores depend on each other.
        prior: Probability of label "member" in the coin that chose it.
        prior_range: Where that probability is unknown: an interval that holds it with 99.8 % confidence
            (`workbench.estimation.deciding.unknown_prior_range`), for which one-run bounds then pay.
        released: What the adversary saw; a claim that covers less is not tested by this game.
        adjacency: Which pair of data sets the coin decides between; None where the claim's is meant.
        family: What is known of how scores are distributed.
        beyond: What the adversary knows that a claim about the release does not grant, such as the
            mechanism's secret coins; empty for nothing. Such a game shows what that knowledge is worth, and
            refutes no claim.
        steps: Number T of releases of the run that the claim covers, where a trial is one release.
        sampling_probability: Probability q with which a record takes part in each of them.
        sequential: Whether the scores are watched in their order, by a test that stops when the claim is
            refuted and is valid whenever it stops.
    """

    description: str
    trials: Trials
    prior: float = 0.5
    prior_range: tuple[float, float] | None = None
    adjacency: Adjacency | None = None
    released: Released = Released.FINAL_WEIGHTS
    family: Family = Family.ANY
    beyond: str = ""
    steps: int = 1
    sampling_probability: float = 1.0
    sequential: bool = False

    @property
    def is_single_release(self) -> bool:
        """Whether a trial is one release of a longer run, to be composed before it is judged."""
        return self.steps > 1 or self.sampling_probability < 1.0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Scores joined with their labels, and what a reader needs to weigh them.

    Attributes:
        scores: Shape `(n,)`, higher = member.
        members: True where the candidate was a member, shape `(n,)`.
        attack: Name of the attack.
        blind_texts: Text of each candidate for the blind classifier, or empty where there is none.
        cost: `seconds`, `peak_memory_mb`.
        details: Further named scalars.
    """

    scores: FloatArray
    members: BoolArray
    game: GameTerms
    attack: str
    blind_texts: tuple[str, ...] = ()
    seeds: Mapping[str, int] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A one-sided confidence bound from data: `quantity >= lower`.

    Attributes:
        name: Of the estimator: `"one_run"`, `"clopper_pearson_all"`, ...
        quantity: `"epsilon"`, `"mu"`, `"renyi"`, `"success"`, ...
        lower: The bound; `math.inf` where the data admit no finite value under the assumption.
        estimate: Point estimate of the same quantity; may be NaN.
        delta: The delta at which an epsilon is stated; None for other currencies.
        family: The assumed family.
        trials: The dependence that the bound tolerates: `ONE_RUN` bounds also hold for independent trials,
            `INDEPENDENT` ones need independence.
        assumption: One sentence a reader can check.
        n: Number of scores used.
        alpha: The order at which a Rényi divergence is stated; None for other currencies.
    """

    name: str
    quantity: str
    lower: float
    estimate: float
    confidence: float
    family: Family
    trials: Trials
    assumption: str
    n: int
    delta: float | None = None
    alpha: float | None = None


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A two-sided confidence interval of a metric: `lower <= metric <= upper` at `confidence`."""

    name: str
    estimate: float
    lower: float
    upper: float
    confidence: float
    assumption: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judge's answer about one claim.

    Attributes:
        sentence: What a reader can quote, with claim, bound, confidence, delta, adjacency and game.
        bound: The bound that decided; None where none did.
        significance: The error probability that the deciding test was allowed.
        bounds: Every bound that was computed, the deciding ones first.
        intervals: Metrics with their confidence intervals.
        trials_needed: For UNDERPOWERED: with how many trials a perfect attack refutes almost always.
        ceiling: For NOT_REFUTED and UNDERPOWERED of a game: the largest bound that a perfect attack could
            have had of its trials, in the quantity of `bound`; may be infinite.
        reasons: For INVALID: what broke. Else further remarks.
    """

    kind: VerdictKind
    sentence: str
    significance: float
    bound: Bound | None = None
    bounds: tuple[Bound, ...] = ()
    intervals: tuple[Interval, ...] = ()
    trials_needed: int | None = None
    ceiling: float | None = field(default=None, metadata=LATER)
    reasons: tuple[str, ...] = ()


def terms_from(form: Mapping[str, JSON]) -> GameTerms:
    """Reads a game's terms from their plain form."""
    read = dict(form)
    read.update(
        trials=Trials(form["trials"]), released=Released(form["released"]), family=Family(form["family"])
    )
    return GameTerms(**read)


def evidence_from(game: Mapping[str, JSON]) -> Evidence:
    """Reads evidence from what a part of a game stored."""
    return Evidence(
        scores=np.array([float(value) for value in game["scores"]], dtype=np.float64),
        members=np.array(game["members"], dtype=bool),
        game=terms_from(game["game"]),
        attack=game["attack"],
        blind_texts=tuple(game["blind_texts"]),
        seeds=game["seeds"],
        cost=game["cost"],
        details=game["details"],
    )

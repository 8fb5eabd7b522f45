"""The candidate-subset game: on which of M public subsets was each training?

Every training takes one of its candidate subsets as its secret; the adversary knows everything else, and
guesses whether the secret subset holds a record that half of the candidates hold.
`workbench.games.subset.play` trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.registry import register
from workbench.core.streams import stream_seed
from workbench.core.templates import Words, percent
from workbench.estimation.information import MOST_SPARSE, plug_in_information
from workbench.estimation.subset_trials import SubsetEvidence
from workbench.execution.engine import Job
from workbench.games.base import Game, Match, Part, Played, Round, Scale, flat_record, pooled, pooled_cost
from workbench.games.subset.play import (
    SubsetAttack,
    SubsetMechanism,
    game_details,
    play_subsets,
    play_world,
    secretive,
    series_details,
    step_curves,
    trial_series,
)
from workbench.games.words import Form, Judged, claimed_otherwise, guarantee_of, interval, kind_of, view_form
from workbench.interfaces import (
    Adjacency,
    Claim,
    Evidence,
    FloatArray,
    GameTerms,
    Mechanism,
    Release,
    Released,
    Secret,
    Trials,
)
from workbench.interfaces.evidence import terms_from
from workbench.training.setup import TrainingSetup, content_digest, create_attack

WORLD_SUBSETS, WORLD_STEPS = 4, 6
"""Candidates and releases of the small setup in which bits are counted: 256 cells."""

MOST_COUNTED = 250
"""Trainings in one job that counts bits."""

CURVES = ("entropy", "budget", "unanimity")
"""Means over trials after each release that an audit's page draws."""

LARGEST_READING = 20.0
"""An epsilon that allows all but one in a billion guesses to be right; it stands for no guarantee."""

WORLD = "world"
"""Kind of the parts that are counted."""


@register("game", "subset")
class SubsetGame(Game[SubsetAttack]):
    """Many trainings, each on a secret one of M public subsets; the adversary asks which."""

    name = "subset"
    title = "candidate-subset"
    attack_type = SubsetAttack
    adjacencies = frozenset()
    released = Released.EVERY_UPDATE
    secrets = frozenset({Secret.SUBSET})
    most_trials = 20
    stage = "playing candidate subsets"

    def check(self, match: Match[SubsetAttack]) -> None:
        """Refuses a mechanism without candidate subsets or with a fixed public seed, and a tiny universe."""
        if Release.BITS not in match.mechanism.capabilities.releases:
            raise UnsupportedError(
                f"attack {match.part.attack!r} asks which candidate subset was the secret, and "
                f"{match.part.setup.mechanism} has none"
            )
        secretive(match.mechanism)
        if len(match.plan.records) < 2:
            raise InputError(f"records must be two or more, got {len(match.plan.records)}")

    def name_of(self, name: str, attack: SubsetAttack) -> str:
        """The attack's name with the releases that it sees in brackets."""
        return f"{name} ({attack.view})"

    def jobs(
        self, setup: TrainingSetup, included: Sequence[bool], name: str, given: Mapping[str, Any]
    ) -> list[Job]:
        """Returns parts of at most `most_trials` trainings, and those of the small setup that is counted."""
        attack = self.adopt(name, create_attack(setup, name, given))
        return [
            *self.cut(setup, included, name, given, trials=attack.trials),
            *world_jobs(setup, included, name, given, attack.counted),
        ]

    def cost(self, attack: SubsetAttack) -> tuple[Scale, ...]:
        """Time grows with the number of trainings."""
        return (Scale(parameter="trials", count=attack.trials, few=0, more=20),)

    def play(self, match: Match[SubsetAttack]) -> Played:
        """Trains on secret subsets, and scores the adversary's belief after each training."""

        attack, part = match.attack, match.part
        if part.kind == WORLD:
            world = play_world(
                match.mechanism,
                match.plan,
                trials=part.trials,
                world=stream_seed(part.setup.seed, "attack", *b"world"),
                seed=stream_seed(part.setup.seed, "attack", *b"world", int(part.index or 0) + 1),
            )
            releases = part.setup.steps * int(part.setup.mechanism_parameters.get("directions", 1))
            counts = {"secrets": world.secrets, "codes": world.codes, "charged": world.charged}
            return Played(rounds=(), extra={**counts, "releases": releases})
        played = play_subsets(
            match.mechanism,
            match.plan,
            trials=part.trials or attack.trials,
            seed=match.seed(part.attack),
            progress=match.steps("trials"),
        )
        scores = attack.score(played.observations, match.generator(part.attack))
        beliefs = attack.beliefs(played.observations)
        extra: dict[str, Any] = {}
        details: Mapping[str, float] = {**scores.details, **game_details(played, beliefs)}
        if part.index is not None:
            details = {"information_bits": scores.details["information_bits"]}
            extra = {
                "series": trial_series(played, beliefs),
                "curves": step_curves(played, beliefs),
                "candidates": played.shape[0],
            }
        scored = Round(
            name=part.attack,
            scores=scores.values,
            members=played.included,
            terms=self.terms(view=attack.view, beyond=beyond_subset(match.mechanism, attack.view)),
            details=details,
        )
        return Played(rounds=(scored,), subject=played.subject, extra=extra)

    def terms(self, *, view: str, beyond: str = "") -> GameTerms:
        """Returns what is played, for the judge.

        `view` is the attack's; `beyond` what the adversary knows that the claim does not grant
        (`beyond_subset`).
        """
        return GameTerms(
            description=self.words().text("terms", view=view),
            trials=Trials.INDEPENDENT,
            prior=0.5,
            released=self.released,
            beyond=beyond,
        )

    def record(self, match: Match[SubsetAttack], played: Played) -> dict[str, Any]:
        """Returns the trials of a part, or the counts of the small setup."""
        return flat_record(played) if played.rounds else dict(played.extra)

    def evidence(
        self, name: str, records: Sequence[Mapping[str, JSON]], *, seed: int, confidence: float
    ) -> tuple[Evidence, ...]:
        """Reads all parts as one piece of evidence."""

        parts = [record for record in records if "scores" in record]
        series = {key: joined([part["series"][key] for part in parts]) for key in parts[0]["series"]}
        count = int(parts[0]["candidates"])
        sizes = np.array([len(part["scores"]) for part in parts], dtype=np.float64)
        bits = [float(part["details"]["information_bits"]) for part in parts]
        details = series_details(series, candidates=count, confidence=confidence)
        scores, members = pooled(parts)
        evidence = SubsetEvidence(
            scores=scores,
            members=members,
            game=terms_from(parts[0]["game"]),
            attack=name,
            seeds={"audit": seed},
            cost=pooled_cost(parts),
            details={**details, "information_bits": float(np.average(bits, weights=sizes))},
            candidates=count,
            record_success=series["record_success"],
            log_scores=series["log_score"],
        )
        return (evidence,)

    def members_claim(self, claim: Claim, delta: float) -> tuple[str, Claim]:
        """Tests records of the universe against the comparable epsilon.

        From ln 2 nats on no epsilon is comparable; then the largest one that is ever tested stands for none.
        """
        if not isinstance(claim.guarantee, MutualInformation):
            return super().members_claim(claim, delta)
        epsilon = min(comparable_epsilon(claim.guarantee.nats), LARGEST_READING)
        return "outside", Claim(
            guarantee=ApproximateDP(epsilon=epsilon, delta=delta),
            about=Adjacency.ADD_REMOVE,
            released=claim.released,
            source="the comparable epsilon (Ertan et al. 2026, section 2): a reference point, nobody's claim",
        )

    def views(self, judged: Judged) -> dict[str, JSON]:
        """Words the audit inside the claim, and outside it where records of the universe were attacked."""
        control, error = judged.control, percent(1.0 - judged.confidence)
        claim, outside = judged.by_view["claim"], judged.by_view.get("outside")
        forms, areas = [_view(self.words(), "inside", "claim", claim, error)], None
        if outside is not None:
            forms.append(_view(self.words(), "outside", "outside", outside, error))
            if control is not None:
                areas = [
                    max(interval(attack, "auc")[0] for attack in subject["attacks"])
                    for subject in (outside, control)
                ]
        decided = {bound["quantity"] for attack in claim["attacks"] for bound in attack["verdict"]["bounds"]}
        notes = self.words().entries(
            "notes",
            claim=claim,
            outside=outside,
            control=control,
            judged_by=[text for quantity, text in _DECIDED_BY.items() if quantity in decided],
            claims_nats=claimed_otherwise(claim["own_claim"], guarantee_of(claim)),
            mechanism=judged.mechanism,
            confidence=judged.confidence,
        )
        return {
            "heading": "Inside the claim, and outside it",
            "in_short": self.words().text("in_short", forms=forms, areas=areas),
            "notes": notes["note"],
            "of": forms,
            "curves": dict(claim.get("curves", {})),
        }

    def facts(self, records: Sequence[Mapping[str, JSON]], *, confidence: float) -> dict[str, JSON]:
        """Returns curves over the releases, and the counts of secrets and bits."""
        worlds = [record for record in records if "codes" in record]
        return {
            "curves": pooled_curves([record for record in records if "scores" in record]),
            "counted": counted(worlds, confidence=confidence),
        }


def beyond_subset(mechanism: Mechanism, view: str) -> str:
    """Returns what an adversary of this view knows that the claim does not grant; empty for nothing.

    A ledger that charges for the values behind the bits must hold when they are seen; one that conditions on
    the released bits alone promises nothing about the values.
    """
    if view == "values" and isinstance(mechanism, SubsetMechanism) and mechanism.conditions_on_bits:
        return "the values behind the released bits, for which the ledger does not charge"
    return ""


def world_jobs(
    setup: TrainingSetup, included: Sequence[bool], name: str, given: Mapping[str, Any], trials: int
) -> list[Job]:
    """Returns the parts of a counted setup; none for 0 trials."""
    small, parts = small_world(setup), -(-trials // MOST_COUNTED)
    content = content_digest(small)
    jobs = []
    for index in range(parts):
        part = Part(
            setup=small,
            attack=name,
            parameters=dict(given),
            included=tuple(map(bool, included)),
            trials=trials * (index + 1) // parts - trials * index // parts,
            index=index,
            kind=WORLD,
        )
        job = {"setup": plain(small), "included": list(part.included), "trials": part.trials, "part": index}
        identity = {"kind": "subset world", "job": job, "content": content}
        jobs.append(Job(identity=identity, payload=part, label=f"{name}, counted", content=content))
    return jobs


def small_world(setup: TrainingSetup) -> TrainingSetup:
    """Returns the setup with few candidates and few steps, otherwise the same."""
    given = {**setup.mechanism_parameters, "subset_count": WORLD_SUBSETS}
    steps = max(1, WORLD_STEPS // int(given.get("directions", 1)))
    if "mi_steps" in given:
        given["mi_steps"] = min(int(given["mi_steps"]), steps)
    return replace(setup, mechanism_parameters=given, steps=steps)


def pooled_curves(parts: Sequence[Mapping[str, JSON]]) -> dict[str, list[float]]:
    """Returns means over all trials after each release, for the report's page."""
    sizes = np.array([len(part["scores"]) for part in parts], dtype=np.float64)
    return {
        name: np.average(np.stack([joined([part["curves"][name]]) for part in parts]), axis=0, weights=sizes)
        .round(6)
        .tolist()
        for name in CURVES
    }


def counted(parts: Sequence[Mapping[str, JSON]], *, confidence: float) -> dict[str, float]:
    """Returns what the joint counts of secret and bits say; empty for no parts.

    Returns:
        `plug_in`, `corrected`, `lower`, `upper` in nats, `n`, `candidates`, `releases`, `charged`, with
        `excess_lower` and `excess_upper` the interval of the information less the expected charge, and
        `sparse`, by which both intervals are to be judged (`workbench.estimation.information.PlugIn`).
    """
    if not parts:
        return {}
    secrets, codes, charged = (
        joined([part[name] for part in parts]) for name in ("secrets", "codes", "charged")
    )
    pairs = secrets.astype(np.int64), codes.astype(np.int64)
    information = plug_in_information(*pairs, confidence=confidence)
    excess = plug_in_information(*pairs, confidence=confidence, charged=charged)
    return {
        "plug_in": information.plug_in,
        "corrected": information.corrected,
        "lower": information.lower,
        "upper": information.upper,
        "n": float(information.n),
        "candidates": float(WORLD_SUBSETS),
        "releases": float(parts[0]["releases"]),
        "charged": float(charged.mean()),
        "excess_lower": excess.lower,
        "excess_upper": excess.upper,
        "sparse": information.sparse,
    }


def joined(parts: Sequence[Sequence[JSON]]) -> FloatArray:
    """Returns the numbers of all parts, in their order."""
    numbers: FloatArray = np.concatenate(
        [np.array([float(x) for x in part], dtype=np.float64) for part in parts]
    )
    return numbers


def comparable_epsilon(nats: float) -> float:
    """Returns the pure-DP epsilon that allows as many right guesses as these nats (>= 0) at prior 1/2.

    A reference point for readers, not a conversion; infinite from ln 2 (Ertan et al. 2026, section 2).
    """
    success = MutualInformation(nats=nats, secret=Secret.SUBSET).max_success()
    return math.inf if success >= 1.0 else math.log(success / (1.0 - success))


_DECIDED_BY = {"success": "guesses about records", "nats": "nats about the index"}
"""What a claim is judged by (`workbench.estimation.deciding.mean_tests`), in words."""


def _view(words: Words, macro: str, key: str, subject: Form, error: str) -> dict[str, JSON]:
    kind, context = kind_of(subject), dict[str, Any]()
    if macro == "inside":
        context = {"counted": subject.get("counted"), "most_sparse": MOST_SPARSE}
    else:
        context = {"best": max(subject["attacks"], key=lambda attack: interval(attack, "auc")[0])}
    guarantee = guarantee_of(subject)
    entries = words.entries(
        macro, subject=subject, guarantee=guarantee, kind=kind.value, error=error, **context
    )
    return view_form(entries, key, kind)

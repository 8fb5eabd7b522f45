"""The membership game: which candidates was the subject trained on?

Each candidate is a member by a fair coin (under replace-one, one of each pair of candidates is); the
adversary asks the trained subject for its likelihoods and scores every candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from workbench.core.registry import register
from workbench.games.base import Game, Match, Played, Round, require_scores
from workbench.interfaces import Adjacency, Attack, BoolArray, GameTerms, Record, Released, Subject, Trials
from workbench.training.setup import load_corpus, prepare


@dataclass(frozen=True, kw_only=True)
class References:
    """Models that the adversary trained by the same mechanism, with their own members.

    `subjects`: the shadow models. `included`: which candidate each was trained on, shape `(n_references,
    n_candidates)`.
    """

    subjects: tuple[Subject, ...] = ()
    included: BoolArray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))


@dataclass(frozen=True, kw_only=True)
class MembershipSeen:
    """What the adversary of the membership game is given.

    Attributes:
        subject: The target, which answers likelihoods.
        records: The candidates, members and non-members alike.
        references: The adversary's shadow models.
        population: Records of the same source that are nobody's members, as the corpus holds them out; empty
            where there are none.
    """

    subject: Subject
    records: tuple[Record, ...]
    references: References = References()
    population: tuple[Record, ...] = ()


class MembershipAttack(Attack[MembershipSeen]):
    """An attack that scores candidates; its scores have one value a record."""

    game = "membership"
    answers: ClassVar[str] = "likelihoods"
    """What of the trained model's answers the attack reads."""
    of_checkpoints: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Parameters with which the attack scores a finished model of somebody else's, by the name of the score.

    One that wants `references` is given the reference model, which was trained on no candidate.
    """


@register("game", "membership")
class MembershipGame(Game[MembershipAttack]):
    """Candidates of one training are scored by their likelihoods under the trained subject."""

    name = "membership"
    title = "membership"
    attack_type = MembershipAttack
    adjacencies = frozenset({Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE})
    released = Released.SCORES
    uses_target = True
    trains_once = True
    unit = "candidates of one training"

    def check(self, match: Match[MembershipAttack]) -> None:
        """Refuses nothing: every subject answers likelihoods."""

    def play(self, match: Match[MembershipAttack]) -> Played:
        """Scores each candidate that the part says once; the labels are the coins of the training set.

        Under replace-one each coin of an audit chose between two candidates, half the pool apart
        (`workbench.audit.subjects.coins_of`): the score is the difference of theirs.
        """
        target, part, places = match.required_target(), match.part, match.scored()
        candidates = match.candidates()
        records = tuple(candidates[place] for place in places)
        shadows = np.array(part.shadows, dtype=bool).reshape(-1, len(candidates))[:, places]
        references = References(subjects=match.references, included=shadows)
        seen = MembershipSeen(
            subject=target,
            records=records,
            references=references,
            population=load_corpus(part.setup).held_out,
        )
        scores = match.attack.score(seen, match.generator())
        require_scores(part.attack, scores.values, len(records))
        values, labels = scores.values, np.array(part.included, dtype=bool)[places]
        adjacency = match.mechanism.capabilities.adjacency
        is_paired = adjacency is Adjacency.REPLACE_ONE and part.by_coin
        if is_paired:
            half = len(records) // 2
            values, labels = values[:half] - values[half : 2 * half], labels[:half]
        inserted = prepare(part.setup)[1].replaced
        words = {
            "is_paired": is_paired,
            "shadows": len(match.references),
            "answers": match.attack.answers,
            "crafted": sum(record.image is not None for record in inserted),
        }
        terms = GameTerms(
            description=self.words().text("terms", **words),
            trials=Trials.ONE_RUN,
            released=self.released,
            adjacency=adjacency,
        )
        texts = tuple(record.text for record in records[: len(labels)]) if records[0].text else ()
        scored = Round(
            name=part.attack, scores=values, members=labels, terms=terms, details=scores.details, texts=texts
        )
        return Played(rounds=(scored,), subject=target)

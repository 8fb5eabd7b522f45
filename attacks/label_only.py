"""Membership from predicted labels alone (Choquette-Choo, Tramèr, Carlini and Papernot 2021, ICML).

"Label-Only Membership Inference Attacks": a model is surer of what it was trained on, and keeps its answer
where the record is changed a little. The adversary asks for the label of the record and of changed copies,
and counts the right answers. One query of the record itself is the gap attack of Yeom et al. 2018.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from workbench.attacks.shared.augmentations import MOVES, noisy, shifted
from workbench.attacks.shared.statistics import checked_records, checked_share, secret_insertions
from workbench.core.arguments import number, whole_number
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.games.membership import MembershipAttack, MembershipSeen
from workbench.interfaces import Corpus, Insertions, Scores

MOST_QUERIES = 1000


@register("attack", "label_only")
class LabelOnlyAttack(MembershipAttack):
    """Share of right labels among queries near a record (Choquette-Choo et al. 2021).

    A language model's labels are its next tokens: the score is the share of the record's tokens, given all
    before them, that are its most likely ones. A text that is classified is asked once, as it is. The authors
    also fit the threshold on a shadow model; here the estimators choose it, and price the choice.

    Args:
        shifts: Images moved by at most a pixel that are asked for, from 1 (the record as it is) to 9.
        noisy_copies: Images with Gaussian noise that are asked for, from 0 to 1,000.
        noise: Standard deviation of that noise, in the images' unit; above 0.
        canaries: Share of a text corpus's candidates that get a secret id before the membership coins.

    Raises:
        InputError: a number or a share out of range.
    """

    answers: ClassVar[str] = "predicted labels"

    def __init__(
        self, *, shifts: int = 9, noisy_copies: int = 20, noise: float = 0.2, canaries: float = 1.0
    ) -> None:
        self.shifts = whole_number("shifts", shifts, least=1, most=len(MOVES))
        self.noisy_copies = whole_number("noisy_copies", noisy_copies, least=0, most=MOST_QUERIES)
        self.noise = number("noise", noise, above=0, below=float("inf"))
        self.canaries = checked_share(canaries)

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Secret ids for a share of the candidates of a text corpus; nothing for images."""
        return secret_insertions(corpus, self.canaries, generator)

    def score(self, seen: MembershipSeen, generator: np.random.Generator) -> Scores:
        """Share of right answers of every candidate.

        Returns:
            Shape `(n,)`, in [0, 1]. Details: queries a record, and the share of right answers to the records
            as they are.

        Raises:
            InputError: no candidates, a record of which nothing is predicted, or images that are not square
                and shall be shifted.
            UnsupportedError: the model predicts neither a label nor the tokens of a text.
        """
        records = checked_records(seen.records, "label_only")
        copies = [tuple(records)]
        if records[0].image is not None:
            copies = shifted(records, self.shifts, "shifts")
            copies += noisy(records, self.noisy_copies, self.noise, generator)
        hits = seen.subject.predicted_right([record for copy in copies for record in copy])
        for record, answers in zip(records, hits, strict=False):
            if not answers.size:
                raise InputError(f"record {record.id!r} is too short: the model predicts no token of it")
        shares = np.array([answers.mean() for answers in hits]).reshape(len(copies), len(records))
        details = {"queries": float(len(copies)), "right_as_they_are": float(shares[0].mean())}
        return Scores(values=shares.mean(axis=0), details=details)

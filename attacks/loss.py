"""The loss attack: who was trained on is predicted better.

The oldest membership score (Yeom et al. 2018), in the forms of the two papers that report it for private
language models. It needs nothing but the trained model, and its threshold is left to the estimators: they
price the choice, where a threshold fitted to the labels (the midpoint of the DP-Weights paper) does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.attacks._statistics import (
    checked_records,
    checked_share,
    scored_log_likelihoods,
    secret_insertions,
)
from workbench.errors import unknown_name
from workbench.interfaces import (
    AccessLevel,
    Corpus,
    FloatArray,
    Insertions,
    Observations,
    Plan,
    Record,
    References,
    Scores,
    Subject,
)
from workbench.registry import register

SCORES = ("log_likelihood", "confidence")

BASE_BATCH = 32
"""Records in one pass through the base model."""


@register("attack", "loss")
class LossAttack:
    """Threshold on the model's loss, log-likelihood or confidence; no reference models.

    Args:
        score: `"log_likelihood"`: mean log-probability of the true tokens (RLDP, section 3.3, Eq. 37).
            `"confidence"`: mean probability of the true tokens. The DP-Weights paper (section 3.3) scores
            by "the softmax output of the model logits" without saying which entry; this reading takes
            the true token's, the other one (the largest entry) needs logits, which no subject gives.
        ending_marker: Score only what follows the last occurrence of this text, given all before it:
            RLDP's split into prompt and ending. With canaries, `"secret_id="` scores the secret alone.
            Empty: the whole record.
        calibrate: Subtract the same score under the base model that training started from (difficulty
            calibration, Watson et al. 2022, with the public base model as reference): a record that was
            easy beforehand is no sign of membership.
        canaries: Share of a text corpus's candidates that get a secret id before the membership coins.

    Raises:
        InputError: an unknown score, or a share outside [0, 1].
    """

    access = AccessLevel.MEMBERSHIP
    references_needed = 0

    def __init__(
        self,
        *,
        score: str = "log_likelihood",
        ending_marker: str = "",
        calibrate: bool = False,
        canaries: float = 1.0,
    ) -> None:
        if score not in SCORES:
            raise unknown_name("score", score, SCORES)
        self.score_name = score
        self.ending_marker = ending_marker
        self.calibrate = calibrate
        self.canaries = checked_share(canaries)

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Secret ids for a share of the candidates of a text corpus; nothing for images."""
        return secret_insertions(corpus, self.canaries, generator)

    def score(
        self,
        subject: Subject,
        candidates: Sequence[Record] | Observations,
        references: References,
        generator: np.random.Generator,
    ) -> Scores:
        """Score every candidate by how well the subject predicts it.

        Args:
            subject: The target.
            candidates: Records, members and non-members alike.
            references: Not used.
            generator: Not used; the attack is deterministic.

        Returns:
            One score a record: nats for `"log_likelihood"`, a probability for `"confidence"`, or a
            difference of two where calibrated. Details are over all candidates, blind to the labels.

        Raises:
            InputError: observations instead of records, a record without the marker, or a model whose
                training diverged.
        """
        records = checked_records(candidates, "loss")
        log_likelihoods = scored_log_likelihoods(subject, records, self.ending_marker)
        values = self._statistic(log_likelihoods)
        if self.calibrate:
            base = _BaseModel(subject.plan)
            values = values - self._statistic(scored_log_likelihoods(base, records, self.ending_marker))
        means = np.array([tokens.mean() for tokens in log_likelihoods])
        return Scores(
            values=values,
            details={
                "mean_log_likelihood_nats": float(means.mean()),
                "mean_perplexity": float(np.exp(np.minimum(-means, 700.0)).mean()),
                "mean_scored_tokens": float(np.mean([len(tokens) for tokens in log_likelihoods])),
            },
        )

    def _statistic(self, log_likelihoods: Sequence[FloatArray]) -> FloatArray:
        """One number a record, shape `(n,)`."""
        if self.score_name == "confidence":
            return np.array([np.exp(tokens).mean() for tokens in log_likelihoods])
        return np.array([tokens.mean() for tokens in log_likelihoods])


class _BaseModel:
    """The public model that the subject's training started from."""

    def __init__(self, plan: Plan) -> None:
        from workbench.training.fine_tuning import build_model

        self._model = build_model(plan)

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        import torch

        values: list[FloatArray] = []
        self._model.module.eval()
        with torch.no_grad():
            for start in range(0, len(records), BASE_BATCH):
                batch = self._model.encode(records[start : start + BASE_BATCH])
                values.extend(self._model.token_log_likelihoods(batch))
        return values

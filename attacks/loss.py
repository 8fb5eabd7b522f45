"""The loss attack: who was trained on is predicted better.

The oldest membership score (Yeom et al. 2018), in the forms of the papers that report it for private language
models, and three that need little more than the trained model: compared with the text's compressed length
(Carlini et al. 2021), of the least likely tokens alone (Shi et al. 2024), and less what a reference model
makes of the record (Carlini et al. 2021; Watson et al. 2022). Its threshold is left to the estimators: they
price the choice, where a threshold fitted to the labels (the midpoint of the DP-Weights paper) does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from workbench.attacks.shared.statistics import (
    TokenScorer,
    checked_records,
    checked_share,
    crafted_insertions,
    ending_log_likelihoods,
    least_likely_mean,
    secret_insertions,
    zlib_bytes,
)
from workbench.core.arguments import whole_number
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.games.membership import MembershipAttack, MembershipSeen, References
from workbench.interfaces import Corpus, FloatArray, Insertions, Plan, Record, Scores
from workbench.training.crafts import CanaryKind
from workbench.training.endings import scored_log_likelihoods

SCORES = ("log_likelihood", "confidence", "zlib", "min_k", "min_k_plus_plus")
REFERENCES = ("base", "shadow")
NATURAL = "natural"
CRAFTS = (NATURAL, CanaryKind.LOUD.value, CanaryKind.MISLABELLED.value)

BASE_BATCH = 32
"""Records in one pass through the base model."""


@register("attack", "loss")
class LossAttack(MembershipAttack):
    """Threshold on the model's loss, log-likelihood or confidence, as it is or against a reference.

    RLDP discards a record whose split into prompt and ending fails. Here each candidate has a score, and one
    that `ending_share` cannot split (the model predicts no token of it) gets the median of all others, which
    says neither "member" nor "non-member"; whether a record can be split does not depend on its coin.
    `failed_splits` counts them. RLDP's section 4.3 credits this threshold to Carlini et al. 2022, whose own
    attack is another one (`lira`).

    Args:
        score: `"log_likelihood"`: mean log-probability of the true tokens (RLDP, section 3.3, Eq. 37).
            `"confidence"`: mean probability of the true tokens. The DP-Weights paper (section 3.3) scores
            by "the softmax output of the model logits" without saying which entry; this reading takes
            the true token's, the other one (the largest entry) needs logits, which no subject gives.
            `"zlib"`: mean log-probability over the bytes of the zlib-compressed text (the negative of Carlini
            et al. 2021, "Extracting Training Data from Large Language Models", section 5.2: log-perplexity to
            zlib entropy): a text that anybody could compress is no sign of membership where it is likely.
            `"min_k"`: mean log-probability of the least likely tokens (Shi et al. 2024, "Detecting
            Pretraining Data from Large Language Models": Min-K% Prob): a text never seen has a few words that
            surprise. `"min_k_plus_plus"`: the same mean of each token's log-probability less its expectation
            under the model's own prediction, over its standard deviation (Zhang et al. 2025, "Min-K%++:
            Improved Baseline for Pre-Training Data Detection from Large Language Models").
        ending_marker: Score only what follows the last occurrence of this text, given all before it:
            RLDP's split into prompt and ending. With canaries, `"secret_id="` scores the secret alone.
            Empty: the whole record.
        ending_share: Score only the last share of the record's tokens, given all before: the same split
            where no text marks it. The paper does not say where it splits. 1: the whole record. `"zlib"` then
            compresses the same share of the characters, since an attack sees no tokenizer.
        min_k_share: k of `"min_k"` as a share of the scored tokens; the paper's 20 %.
        calibrate: Subtract the same score under a reference model (difficulty calibration, Watson et al.
            2022): a record that was easy beforehand is no sign of membership.
        reference: `"base"`: the public base model that training started from. `"shadow"`: models trained by
            the same mechanism on halves of the same candidates, the mean over those without the record.
        shadows: Number of shadow models, at least 2, so that each record has one without it.
        canaries: Share of the candidates that get a secret id, in a text corpus, or are crafted, in one of
            images, before the membership coins.
        craft: What crafted images are: `"natural"` for none, or a kind of `workbench.training.crafts`,
            `"loud"` or `"mislabelled"`. A record far from all others is remembered better.

    Raises:
        InputError: an unknown score, reference or craft, a share out of range, a reference without
            `calibrate`, both kinds of ending, or fewer than 2 shadows.
    """

    of_checkpoints: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "loss": {},
        "min-k": {"score": "min_k"},
        "min-k++": {"score": "min_k_plus_plus"},
        "zlib": {"score": "zlib"},
        "reference ratio": {"calibrate": True, "reference": "shadow"},
    }
    later_parameters: ClassVar[Mapping[str, object]] = {
        "ending_share": 1.0,
        "min_k_share": 0.2,
        "reference": "base",
        "shadows": 2,
        "craft": NATURAL,
    }

    def __init__(
        self,
        *,
        score: str = "log_likelihood",
        ending_marker: str = "",
        ending_share: float = 1.0,
        min_k_share: float = 0.2,
        calibrate: bool = False,
        reference: str = "base",
        shadows: int = 2,
        canaries: float = 1.0,
        craft: str = NATURAL,
    ) -> None:
        if craft not in CRAFTS:
            raise unknown_name("craft", craft, CRAFTS)
        if score not in SCORES:
            raise unknown_name("score", score, SCORES)
        if reference not in REFERENCES:
            raise unknown_name("reference", reference, REFERENCES)
        for name, share in {"ending_share": ending_share, "min_k_share": min_k_share}.items():
            if not 0.0 < share <= 1.0:
                raise InputError(f"{name} must be in (0, 1], got {share:g}")
        if not isinstance(ending_marker, str):
            raise InputError(f"ending_marker must be text, got {ending_marker!r}")
        if ending_marker and ending_share < 1.0:
            raise InputError(
                f"ending_share must be 1 where ending_marker splits the record, got {ending_share:g}"
            )
        if score == "min_k_plus_plus" and (ending_marker or ending_share < 1.0 or calibrate):
            raise InputError("score 'min_k_plus_plus' goes with no ending and no reference")
        if reference != "base" and not calibrate:
            raise InputError(f"reference goes with calibrate = true, got {reference!r} without it")
        shadows = whole_number("shadows", shadows, least=2)
        self.score_name = score
        self.ending_marker = ending_marker
        self.ending_share = ending_share
        self.min_k_share = min_k_share
        self.calibrate = calibrate
        self.reference = reference
        if reference == "shadow":
            self.references_needed = shadows
        self.canaries = checked_share(canaries)
        self.craft = craft

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Secret ids for a share of the candidates of a text corpus; crafted images, if any are wanted."""
        if corpus.kind == "image" and self.craft != NATURAL:
            return crafted_insertions(corpus, self.canaries, CanaryKind(self.craft), generator)
        return secret_insertions(corpus, self.canaries, generator)

    def score(self, seen: MembershipSeen, generator: np.random.Generator) -> Scores:
        """Score every candidate by how well the subject predicts it.

        Returns:
            One score a record: nats for `"log_likelihood"` and `"min_k"`, a probability for `"confidence"`,
            nats a byte for `"zlib"`, or a difference of two where calibrated. Details are over all candidates
            that can be split, blind to the labels (Eq. 38, there over the valid ones): mean log-likelihood
            and mean of their perplexities, of the scored tokens.

        Raises:
            InputError: no candidates, a record without the marker or, for `"zlib"`, without
                text, no record that can be split, references that do not match the candidates, or a model
                whose training diverged.
        """
        subject, records = seen.subject, checked_records(seen.records, "loss")
        if self.score_name == "zlib":
            _require_texts(records)
        tokens = self._tokens(subject, records)
        values = self._statistic(tokens, records)
        if self.calibrate and self.reference == "base":
            values = values - self._of_model(_BaseModel(subject.plan), records)
        elif self.calibrate:
            values = values - self._of_shadows(seen.references, records)
        failed = np.isnan(values)
        if failed.all():
            raise InputError(
                f"ending_share must leave a token to score, got {self.ending_share:g} and {len(records)} "
                "records of which the model predicts nothing"
            )
        values[failed] = np.median(values[~failed])
        scored = [one for one in tokens if one.size]
        means = np.array([one.mean() for one in scored])
        details = {
            "mean_log_likelihood_nats": float(means.mean()),
            "mean_perplexity": float(np.exp(np.minimum(-means, 700.0)).mean()),
            "mean_scored_tokens": float(np.mean([len(one) for one in scored])),
        }
        if self.ending_share < 1.0:
            details["failed_splits"] = float(failed.sum())
        return Scores(values=values, details=details)

    def _tokens(self, model: TokenScorer, records: Sequence[Record]) -> list[FloatArray]:
        """Log-likelihoods of the tokens that count, nats; standardised ones for `"min_k_plus_plus"`."""
        if self.score_name == "min_k_plus_plus":
            return model.token_z_scores(records)
        if self.ending_share < 1.0:
            return ending_log_likelihoods(model, records, self.ending_share)
        return scored_log_likelihoods(model, records, self.ending_marker)

    def _of_model(self, model: TokenScorer, records: Sequence[Record]) -> FloatArray:
        return self._statistic(self._tokens(model, records), records)

    def _of_shadows(self, references: References, records: Sequence[Record]) -> FloatArray:
        """Mean statistic over the shadows that were not trained on a record, shape `(n,)`."""
        expected = (len(references.subjects), len(records))
        if references.included.shape != expected:
            raise InputError(
                f"references.included must have shape {expected}, got {references.included.shape}"
            )
        without = ~references.included
        if not without.any(axis=0).all():
            place = int(np.argmin(without.any(axis=0)))
            raise InputError(f"references must hold a model without record {records[place].id!r}, got none")
        found = np.stack([self._of_model(shadow, records) for shadow in references.subjects])
        means: FloatArray = np.where(without, found, 0.0).sum(axis=0) / without.sum(axis=0)
        return means

    def _statistic(self, log_likelihoods: Sequence[FloatArray], records: Sequence[Record]) -> FloatArray:
        """One number a record, shape `(n,)`; NaN where no token counts."""
        pairs = zip(log_likelihoods, records, strict=True)
        return np.array([self._of_tokens(one, record) if one.size else np.nan for one, record in pairs])

    def _of_tokens(self, tokens: FloatArray, record: Record) -> float:
        if self.score_name == "confidence":
            return float(np.exp(tokens).mean())
        if self.score_name in ("min_k", "min_k_plus_plus"):
            return least_likely_mean(tokens, self.min_k_share)
        if self.score_name == "zlib":
            return float(tokens.mean()) / zlib_bytes(self._scored_text(record.text))
        return float(tokens.mean())

    def _scored_text(self, text: str) -> str:
        """What of the text is scored, as far as an attack without a tokenizer knows."""
        if self.ending_marker:
            return text.rpartition(self.ending_marker)[2]
        return text[len(text) - round(self.ending_share * len(text)) :]


def _require_texts(records: Sequence[Record]) -> None:
    for record in records:
        if not record.text:
            raise InputError(f"score 'zlib' needs texts to compress, and record {record.id!r} has none")


class _BaseModel:
    """The public model that the subject's training started from."""

    def __init__(self, plan: Plan) -> None:
        from workbench.training.fine_tuning import build_model

        self._model = build_model(plan)

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        """Per-record token log-likelihoods, nats."""
        import torch

        values: list[FloatArray] = []
        self._model.module.eval()
        with torch.no_grad():
            for start in range(0, len(records), BASE_BATCH):
                batch = self._model.encode(records[start : start + BASE_BATCH])
                values.extend(self._model.token_log_likelihoods(batch))
        return values

    def token_z_scores(self, records: Sequence[Record]) -> list[FloatArray]:
        """Per-record token log-likelihoods, standardised under the model's own distribution."""
        from workbench.training.fine_tuning import record_z_scores

        return record_z_scores(self._model, records)

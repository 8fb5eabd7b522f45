"""The two small encoders for the classification of texts: `bert_base` and `roberta_base`.

Both are pretrained once on the user's machine (`workbench models build`, under a minute of one core each), on
generated clinical narratives alone: they guess masked words, and they have met the tasks of corpus
`clinical_tasks` in other wordings (`workbench.data.bases.encoder_texts`), as a checkpoint that is tuned on
one task has often been tuned on a kindred one before. The architectures are their families' own: absolute
positions, normalisation after each block; BERT with segments and a pooling layer, RoBERTa with neither, its
masks drawn anew each time. What is missing is BERT's next-sentence task: whether two narratives are of one
encounter, one of the four, takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.core.registry import register
from workbench.data.bases import checkpoint, encoder_texts, encoders, hugging_face
from workbench.data.bases.encoder_builds import EncoderBase, EncoderRecipe
from workbench.data.bases.models import _folder_fingerprint
from workbench.data.bases.task_builds import pace, text_sha256
from workbench.data.bases.task_texts import ASKED_AS
from workbench.data.clinical import wordings
from workbench.data.shared.parts import checked_count

if TYPE_CHECKING:
    from workbench.training.text_classifier import TextClassifier

POSITIONS = 128

_ALL = {
    "vocab_size": None,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.18,
    "pad_token_id": 1,
    "tie_word_embeddings": True,
}

_TEXT = {
    "encounters": encoder_texts.ENCOUNTERS,
    "seed": encoder_texts.ENCOUNTER_SEED,
    "examples": encoder_texts.EXAMPLES,
    "words": text_sha256(
        wordings.RETOLD,
        wordings.PUBLIC_RETOLD,
        wordings.DOSES,
        wordings.PUBLIC_DOSES,
        ASKED_AS,
        encoder_texts.CODES,
    ),
}

BERT = EncoderRecipe(
    name="bert_base",
    family="BERT",
    stands_for="BERT-base before GLUE",
    parameters=221_952,
    model_type="bert",
    config={**_ALL, "max_position_embeddings": POSITIONS, "type_vocab_size": 2},
    steps=1000,
    pace=pace(seed=0, peak_learning_rate=2e-3),
    text=_TEXT,
    narratives=8,
    examples=10,
    masked_share=0.3,
    is_masked_anew=False,
)

ROBERTA = EncoderRecipe(
    name="roberta_base",
    family="RoBERTa",
    stands_for="RoBERTa-base before GLUE",
    parameters=217_856,
    model_type="roberta",
    # Positions are counted from beyond the padding's index, 1.
    config={**_ALL, "max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1},
    steps=1300,
    pace=pace(seed=0, peak_learning_rate=2e-3),
    text=_TEXT,
    narratives=8,
    examples=10,
    masked_share=0.3,
    is_masked_anew=True,
)


@register("base", "bert_base")
def _bert() -> EncoderBase:
    """BERT family, pretrained on generated narratives."""
    return EncoderBase(recipe=BERT)


@register("base", "roberta_base")
def _roberta() -> EncoderBase:
    """RoBERTa family, pretrained on generated narratives."""
    return EncoderBase(recipe=ROBERTA)


def _load(base: EncoderBase, *, seed: int, classes: int, max_length: int, path: str | None) -> TextClassifier:
    """A built encoder, or the folder that stands in for it, with a fresh head."""
    checked_count("classes", classes, minimum=2)
    checked_count("max_length", max_length, minimum=8)
    name = base.recipe.name
    if path is not None:
        return encoders.classifier_from_folder(
            path, classes=classes, max_length=max_length, seed=seed, name=name
        )
    folder = base.checked_folder()
    sha256 = checkpoint.read_json(folder / checkpoint.RECIPE)["sha256"][checkpoint.WEIGHTS]
    return encoders.load_classifier(
        folder, sha256, classes=classes, max_length=max_length, seed=seed, name=name
    )


@register("model", "bert_base")
def bert_base(
    *, seed: int, classes: int = 2, max_length: int = 64, path: str | None = None
) -> TextClassifier:
    """BERT family, a classifier of texts whose head is fresh; for `text_classifier`; is built first.

    Args:
        seed: Of the head; the other weights are those of the build, whatever the seed.
        classes: Number of labels.
        max_length: Longest text, or pair, in tokens, 8 to 128.
        path: A local Hugging Face folder of a BERT or RoBERTa model that stands in for it.

    Raises:
        InputError: it is not built, a parameter is out of range, or the folder holds no such model.
        UnsupportedError: the folder holds a model of another family.
    """
    return _load(_bert(), seed=seed, classes=classes, max_length=max_length, path=path)


@register("model", "roberta_base")
def roberta_base(
    *, seed: int, classes: int = 2, max_length: int = 64, path: str | None = None
) -> TextClassifier:
    """RoBERTa family, a classifier of texts whose head is fresh; for `text_classifier`; is built first.

    Args:
        seed, classes, max_length, path: See `bert_base`.

    Raises:
        InputError, UnsupportedError: see `bert_base`.
    """
    return _load(_roberta(), seed=seed, classes=classes, max_length=max_length, path=path)


def _fingerprint(make: Callable[[], EncoderBase]) -> Callable[..., str]:
    """What gives the hash of a base's files, or of the folder that stands in for it."""

    def fingerprint(*, path: str | None = None, **_: object) -> str:
        return make().fingerprint() if path is None else _folder_fingerprint(path=path)

    return fingerprint


def _described() -> None:
    """Give the models what the keys of results hold of their files, and what refuses a stand-in unread."""
    for model, make in ((bert_base, _bert), (roberta_base, _roberta)):
        model.fingerprint = _fingerprint(make)  # type: ignore[attr-defined]
        model.check_folder = hugging_face.check_folder  # type: ignore[attr-defined]


_described()

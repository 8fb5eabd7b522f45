"""Encoders of BERT's and RoBERTa's kind: their vocabularies, and reading them with a fresh head on top."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError, UnsupportedError
from workbench.data.bases import checkpoint, hugging_face
from workbench.data.bases.task_builds import UNKNOWN, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from workbench.training.text_classifier import TextClassifier

MODEL_TYPES = ("bert", "roberta")
"""What a folder's model may be."""

FIRST_SPREAD = 0.02 * 768**0.5
"""Standard deviation of a head's first entries times the root of the width: 0.02 in BERT-base."""


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The marks of a family's vocabulary.

    Attributes:
        begin: Before every text; the head reads what it becomes.
        end: After every text.
        mask: In the place of a token that is to be guessed.
        pair: How two texts are put together, as `tokenizers` writes it.
    """

    begin: str
    end: str
    mask: str
    pair: str

    @property
    def every(self) -> tuple[str, str, str]:
        """The three marks."""
        return self.begin, self.end, self.mask


MARKS = {
    "bert": Marks(begin="[CLS]", end="[SEP]", mask="[MASK]", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"),
    "roberta": Marks(begin="<s>", end="</s>", mask="<mask>", pair="<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0"),
}
"""By model type: segments and the doubled mark as the families have them."""


def write_encoder_tokenizer(path: Path, words: Sequence[str], model_type: str) -> None:
    """Write a vocabulary of words, letters and marks.

    Args:
        path: The file.
        words: Each a token after a space.
        model_type: One of `MODEL_TYPES`.
    """
    from tokenizers import Tokenizer, processors

    marks = MARKS[model_type]
    write_tokenizer(path, words, (), is_lower=False)
    tokenizer: Any = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(list(marks.every))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{marks.begin}:0 $A:0 {marks.end}:0",
        pair=marks.pair,
        special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in marks.every],
    )
    tokenizer.save(str(path))


def tokenizer_settings(model_type: str) -> dict[str, str]:
    """What transformers asks for beside `tokenizer.json`."""
    marks = MARKS[model_type]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "pad_token": checkpoint.END,
        "cls_token": marks.begin,
        "sep_token": marks.end,
        "mask_token": marks.mask,
    }


def load_encoder_tokenizer(folder: Path, model_type: str) -> Any:
    """The tokenizer of a built encoder."""
    from transformers import PreTrainedTokenizerFast

    given = {
        name: value for name, value in tokenizer_settings(model_type).items() if name != "tokenizer_class"
    }
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / checkpoint.TOKENIZER), **given)


def new_classifier(config: dict[str, Any], classes: int, seed: int) -> torch.nn.Module:
    """A classifier of a configuration, all of it drawn from the seed."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from workbench.data.bases import vision

    # One label and two labels would be told apart by the type of the problem only.
    made = AutoConfig.for_model(**{**config, "num_labels": classes, "problem_type": None})
    return vision.seeded(lambda: AutoModelForSequenceClassification.from_config(made), seed)


def _draw_head(module: Any, seed: int) -> None:
    """Draw the head anew, also a folder's own, which may be for other labels.

    Its entries are as large as the families' are at a width of 768, in proportion to the root of the width.
    """
    import torch

    spread = FIRST_SPREAD / float(module.config.hidden_size) ** 0.5
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.classifier.named_parameters():
            if name.endswith("weight"):
                parameter.normal_(0.0, spread, generator=generator)
            else:
                parameter.zero_()


@contextmanager
def _silent() -> Iterator[None]:
    """Keep transformers' bars and its remarks on fresh heads out of our own output; put back as they were."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def load_classifier(
    folder: Path, sha256: str, *, classes: int, max_length: int, seed: int, name: str
) -> TextClassifier:
    """A built encoder with a fresh head.

    Args:
        folder: Of the built base.
        sha256: Of its weights.
        classes: Number of labels.
        max_length: Longest row in tokens.
        seed: Of the head.
        name: Registry name.

    Raises:
        InputError: the weights are not those that the hash names, or do not fit; a number is out of range.
    """
    from safetensors.torch import load_file

    from workbench.training.text_classifier import TextClassifier

    checkpoint.check_sha256(folder / checkpoint.WEIGHTS, sha256)
    config = checkpoint.read_json(folder / checkpoint.CONFIG)
    module: Any = new_classifier(config, classes, seed)
    tensors = {key: value.float() for key, value in load_file(folder / checkpoint.WEIGHTS).items()}
    missing, unexpected = module.base_model.load_state_dict(tensors, strict=False)
    if missing or unexpected:
        raise InputError(f"{checkpoint.WEIGHTS} does not fit {checkpoint.CONFIG} in {folder}")
    _draw_head(module, seed)
    tokenizer = load_encoder_tokenizer(folder, config["model_type"])
    return TextClassifier(module.eval(), tokenizer, classes=classes, max_length=max_length, name=name)


def classifier_from_folder(
    path: str, *, classes: int, max_length: int, seed: int, name: str
) -> TextClassifier:
    """A local Hugging Face folder of a BERT or RoBERTa model, with a fresh head.

    Args:
        path: The folder: `config.json`, safetensors weights and the tokenizer's files.
        classes: Number of labels.
        max_length: Longest row in tokens.
        seed: Of the head, and of weights that the folder lacks.
        name: Registry name.

    Raises:
        InputError: the folder holds no model that can be read.
        UnsupportedError: it is of another family.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    from workbench.training.text_classifier import TextClassifier

    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise InputError(f"path must be a local folder with a model, got {path!r}")
    hugging_face.check_folder(folder)
    try:
        with _silent(), torch.random.fork_rng(devices=[]):
            config: Any = AutoConfig.from_pretrained(folder, num_labels=classes, trust_remote_code=False)
            if config.model_type not in MODEL_TYPES:
                raise UnsupportedError(
                    f"path {path!r} must hold a BERT or RoBERTa model for a text classifier, it holds "
                    f"{config.model_type!r}"
                )
            torch.default_generator.manual_seed(seed)
            module: Any = AutoModelForSequenceClassification.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
            )
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"path {path!r} does not give a model: {reason[:200]}") from error
    _draw_head(module, seed)
    return TextClassifier(module.eval(), tokenizer, classes=classes, max_length=max_length, name=name)

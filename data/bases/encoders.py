"""Encoders of BERT's and RoBERTa's kind: their vocabularies, and reading them with a fresh head on top."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError, UnsupportedError
from workbench.data.bases import checkpoint, hugging_face
from workbench.data.bases.task_builds import UNKNOWN, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.training.text_classifier import TextClassifier

FIRST_SPREAD = 0.02 * 768**0.5
"""Standard deviation of a head's first entries times the root of the width: 0.02 in BERT-base."""


MARKS = {"bert": ("[CLS]", "[SEP]", "[MASK]"), "roberta": ("<s>", "</s>", "<mask>")}
"""By model type, the marks before a text (which the head reads), after it, and of a hidden token."""

PAIRS = {"bert": "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", "roberta": "<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0"}
"""How two texts are put together: segments and the doubled mark as the families have them."""


def write_encoder_tokenizer(path: Path, words: Sequence[str], model_type: str) -> None:
    """Write a vocabulary of words (each a token after a space), letters and a family's marks."""
    from tokenizers import Tokenizer, processors

    begin, end, _ = marks = MARKS[model_type]
    write_tokenizer(path, words, (), is_lower=False)
    tokenizer: Any = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(list(marks))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}:0 $A:0 {end}:0",
        pair=PAIRS[model_type],
        special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in marks],
    )
    tokenizer.save(str(path))


def tokenizer_settings(model_type: str) -> dict[str, str]:
    """What transformers asks for beside `tokenizer.json`."""
    begin, end, mask = MARKS[model_type]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "pad_token": checkpoint.END,
        "cls_token": begin,
        "sep_token": end,
        "mask_token": mask,
    }


def load_encoder_tokenizer(folder: Path, model_type: str) -> Any:
    """The tokenizer of a built encoder."""
    from transformers import PreTrainedTokenizerFast

    settings = tokenizer_settings(model_type)
    del settings["tokenizer_class"]
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / checkpoint.TOKENIZER), **settings)


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


def load_classifier(
    folder: Path, sha256: str, *, classes: int, max_length: int, seed: int, name: str
) -> TextClassifier:
    """A built encoder with a fresh head, drawn from the seed; the arguments are those of `TextClassifier`.

    Raises:
        InputError: the weights are not those that the hash names, or do not fit; a number is out of range.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from workbench.data.bases import vision
    from workbench.training.text_classifier import TextClassifier

    tensors = checkpoint.load_tensors(folder, sha256)
    config = checkpoint.read_json(folder / checkpoint.CONFIG)
    # One label and two labels would be told apart by the type of the problem only.
    made = AutoConfig.for_model(**{**config, "num_labels": classes, "problem_type": None})
    module: Any = vision.seeded(lambda: AutoModelForSequenceClassification.from_config(made), seed)
    missing, unexpected = module.base_model.load_state_dict(tensors, strict=False)
    if missing or unexpected:
        raise InputError(f"{checkpoint.WEIGHTS} does not fit {checkpoint.CONFIG} in {folder}")
    _draw_head(module, seed)
    tokenizer = load_encoder_tokenizer(folder, config["model_type"])
    return TextClassifier(module.eval(), tokenizer, classes=classes, max_length=max_length, name=name)


def classifier_from_folder(
    path: str, *, classes: int, max_length: int, seed: int, name: str
) -> TextClassifier:
    """A local Hugging Face folder of a BERT or RoBERTa model, with a fresh head, drawn from the seed.

    Raises `InputError`: the folder holds no model that can be read. `UnsupportedError`: it is of another
    family.
    """
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    from workbench.training.text_classifier import TextClassifier

    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise InputError(f"path must be a local folder with a model, got {path!r}")
    hugging_face.check_folder(folder)
    with hugging_face.reading(path, is_silent=True), torch.random.fork_rng(devices=[]):
        config: Any = AutoConfig.from_pretrained(folder, num_labels=classes, trust_remote_code=False)
        if config.model_type not in MARKS:
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
    _draw_head(module, seed)
    return TextClassifier(module.eval(), tokenizer, classes=classes, max_length=max_length, name=name)

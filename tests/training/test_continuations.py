"""Continuations behind a prompt that is read once, against a twin that reads all of it for every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.training import continuations as sampling
from workbench.training.continuations import Decoding, Prompt, language_model
from workbench.training.models import LanguageModel

PROMPT = "The patient has the following profile. race is Asian. gender is Female. secret_id="


@pytest.fixture(scope="module")
def tiny() -> Any:
    model = registry.create("model", "tiny_gpt2", seed=0)
    model.module.eval()
    return model


def all_logits(model: Any, ids: Sequence[int]) -> Tensor:
    with torch.no_grad():
        read = model.module(input_ids=torch.tensor([list(ids)]), attention_mask=torch.ones(1, len(ids)))
    logits: Tensor = read.logits[0]
    return logits


def warped(logits: Tensor, decoding: Decoding) -> Tensor:
    """The distribution of the next token, by transformers' own warpers in the order of its generation."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    found = logits[None]
    for warp in (
        TemperatureLogitsWarper(decoding.temperature),
        TopKLogitsWarper(decoding.top_k),
        TopPLogitsWarper(decoding.top_p),
    ):
        found = warp(torch.zeros(1, 1, dtype=torch.int64), found)
    return found.softmax(1)[0]


def naive(model: Any, prompt: str, decoding: Decoding, uniforms: Tensor) -> list[str]:
    """One row at a time, without a cache, from sorted probabilities."""
    texts = []
    for uniform in uniforms:
        ids = list(model.tokenizer(prompt)["input_ids"])
        start = len(ids)
        for number in uniform:
            shares = warped(all_logits(model, ids)[-1].double(), decoding)
            order = shares.argsort(descending=True)
            place = int((shares[order].cumsum(0) <= number).sum())
            ids.append(int(order[min(place, int((shares > 0).sum()) - 1)]))
            if ids[-1] == model.tokenizer.eos_token_id:
                ids.pop()
                break
        texts.append(model.tokenizer.decode(ids[start:], skip_special_tokens=True))
    return texts


def test_samples_are_those_of_the_naive_twin(tiny: Any) -> None:
    decoding = Decoding(tokens=4)
    uniforms = torch.rand((6, 4), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = Prompt(tiny, PROMPT).sample(6, decoding, torch.Generator().manual_seed(3))
    assert found == naive(tiny, PROMPT, decoding, uniforms)
    assert len(set(found)) > 3


def test_likelihoods_are_those_of_the_naive_twin(tiny: Any) -> None:
    prompt, texts = Prompt(tiny, PROMPT), ["O119XP9N56.", "7", " and so on", "AAAAAAAAAA"]
    found = prompt.log_likelihoods(texts)
    for text, value in zip(texts, found, strict=True):
        ids = tiny.tokenizer(PROMPT + text)["input_ids"]
        shares = all_logits(tiny, ids).log_softmax(1)
        start = len(tiny.tokenizer(PROMPT)["input_ids"])
        naive_sum = sum(float(shares[i - 1, ids[i]]) for i in range(start, len(ids)))
        assert value == pytest.approx(naive_sum, abs=1e-3)


def test_how_many_rows_are_read_at_once_changes_nothing(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"A{i}B." for i in range(7)]
    samples, likelihoods = [], []
    for at_once in (128, 5):
        monkeypatch.setattr(sampling, "PACKED", at_once)
        monkeypatch.setattr(sampling, "DRAWN", at_once)
        prompt = Prompt(tiny, PROMPT)
        samples.append(prompt.sample(40, Decoding(tokens=3), torch.Generator().manual_seed(1)))
        likelihoods.append(prompt.log_likelihoods(texts))
    assert samples[0] == samples[1]
    assert likelihoods[0] == pytest.approx(likelihoods[1], abs=1e-3)


def way_of(prompt: Prompt) -> str:
    """The name of what reads for a prompt."""
    with torch.inference_mode():
        return type(prompt._reader()).__name__


def plain_again(model: Any) -> Any:
    """The same model behind a module that is no transformers model, so that nothing of it can be kept."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model.module

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
            return self.inner(input_ids=input_ids, attention_mask=attention_mask)

    return LanguageModel(Bare(), model.tokenizer, 128, "bare")


def test_a_module_that_keeps_nothing_says_the_same(tiny: Any) -> None:
    bare = plain_again(tiny)
    ours, theirs = Prompt(tiny, PROMPT), Prompt(bare, PROMPT)
    assert (way_of(theirs), way_of(ours)) == ("_Whole", "_Packed")
    draws = [p.sample(6, Decoding(tokens=3), torch.Generator().manual_seed(5)) for p in (ours, theirs)]
    assert draws[0] == draws[1]
    texts = ["O119XP9N56.", "7"]
    assert ours.log_likelihoods(texts) == pytest.approx(theirs.log_likelihoods(texts), abs=1e-3)


def windowed(window: int | None) -> Any:
    """A random Mistral with a sliding window that is shorter than its prompts, beside one without."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=2048,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        sliding_window=window,
        initializer_range=0.5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = MistralForCausalLM(config).eval()
    tokenizer = registry.create("model", "tiny_gpt2", seed=0).tokenizer
    return LanguageModel(module, tokenizer, 64, "windowed")


def test_a_sliding_window_is_kept(tiny: Any) -> None:
    """Rows behind a prompt that is longer than the window see what they would see if all were read again."""
    model = windowed(12)
    assert len(tiny.tokenizer(PROMPT)["input_ids"]) > 14
    packed, again = Prompt(model, PROMPT), Prompt(model, PROMPT)
    assert way_of(packed) == "_Packed"
    again._read = sampling._Whole(model.module, again._prompt)
    texts = ["O119XP9N56.", "7", "AAAAAAAAAA"]
    assert packed.log_likelihoods(texts) == pytest.approx(again.log_likelihoods(texts), abs=1e-3)
    drawn = [p.sample(6, Decoding(tokens=4), torch.Generator().manual_seed(2)) for p in (packed, again)]
    assert drawn[0] == drawn[1]
    wide = Prompt(windowed(None), PROMPT).log_likelihoods(texts)
    assert np.abs(wide - packed.log_likelihoods(texts)).max() > 0.1


def test_a_packing_that_leaks_between_rows_is_not_used(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a backbone that overlooks the mask is found out, and read the slow way."""
    inner: Callable[..., Any] = sampling._Packed._hidden

    def leaking(self: Any, kept: Any, tokens: Any, places: Any, seen: Tensor) -> Tensor:
        hidden: Tensor = inner(self, kept, tokens, places, torch.ones_like(seen))
        return hidden

    monkeypatch.setattr(sampling._Packed, "_hidden", leaking)
    assert way_of(Prompt(tiny, PROMPT)) == "_Whole"


@pytest.mark.parametrize(
    "decoding",
    [Decoding(), Decoding(top_k=3, top_p=1.0), Decoding(temperature=2.0, top_k=2048, top_p=0.5)],
)
def test_draws_follow_the_warped_distribution(decoding: Decoding) -> None:
    """Chi-square over what is likely; with fixed draws, a false alarm for one seed in a million."""
    logits = 2.0 * torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = warped(logits, decoding).numpy()
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen = decoding.choose(logits.expand(len(uniform), -1), uniform)
    counts = np.bincount(chosen.numpy(), minlength=60)
    assert not counts[expected == 0.0].any()
    likely = expected * len(uniform) >= 5
    others = np.array([counts[~likely].sum(), len(uniform) * expected[~likely].sum()])
    statistic = float(np.sum((counts[likely] - 20_000 * expected[likely]) ** 2 / (20_000 * expected[likely])))
    statistic += float((others[0] - others[1]) ** 2 / max(others[1], 1.0))
    assert stats.chi2.sf(statistic, likely.sum()) > 1e-6


def test_a_uniform_number_next_to_one_draws_the_last_token_that_is_left() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, -9.0]])
    almost = torch.tensor([1.0 - 2.0**-53], dtype=torch.float64)
    assert Decoding(top_k=3, top_p=1.0).choose(logits, almost).tolist() == [2]
    assert Decoding(top_k=4, top_p=0.1).choose(logits, almost).tolist() == [0]


def test_the_smallest_temperature_draws_the_likeliest_token() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, -9.0]])
    for uniform in (0.0, 1.0 - 2.0**-53):
        given = torch.tensor([uniform], dtype=torch.float64)
        assert Decoding(temperature=5e-324).choose(logits, given).tolist() == [0]


def test_long_prompts_lose_their_beginning(tiny: Any) -> None:
    prompt = Prompt(tiny, "word " * 700 + "secret_id=", room=16)
    assert prompt.length == 512 - 16
    assert prompt.dropped > 0
    assert np.isfinite(prompt.log_likelihoods(["A1B2."])).all()


def test_what_cannot_be_asked_is_refused(tiny: Any) -> None:
    for field, value in {"temperature": 0.0, "top_p": 1.5, "top_k": 0, "tokens": 0}.items():
        with pytest.raises(InputError, match=field):
            Decoding(**{field: value})
    with pytest.raises(InputError, match="at most the prompt's room 4, got 10"):
        Prompt(tiny, PROMPT, room=4).sample(1, Decoding(), torch.Generator())
    with pytest.raises(InputError, match="1 to 16 tokens, got 0"):
        Prompt(tiny, PROMPT).log_likelihoods([""])
    with pytest.raises(UnsupportedError, match="continues no text"):
        Prompt(registry.create("model", "digits_logistic", seed=0), PROMPT)


def test_a_wrapped_subject_has_its_model(tiny: Any) -> None:
    assert language_model(SimpleNamespace(model=tiny)) is tiny
    assert language_model(tiny) is tiny

"""Per-record norms and weighted sums against the one-record-at-a-time twin."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import peft
import pytest
import torch
import transformers
from oracles.one_at_a_time import one_at_a_time
from torch import Tensor, nn

from workbench.core.errors import InputError, UnsupportedError
from workbench.training import flat, per_record, recorder
from workbench.training.per_record import EmptySignals, per_record_signals
from workbench.training.recorder import Recorder

# peft asks transformers 5 for a property by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads, and lose where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


VOCABULARY = 40
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


class Language:
    """A language model as `workbench.interfaces.Model` describes it: mean loss over predicted tokens."""

    kind, name = "language", "test"

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        logits = self.module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        mask = batch["attention_mask"][:, 1:].to(logits.dtype)
        targets = batch["input_ids"][:, 1:]
        losses = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")
        return (losses * mask).sum(1) / mask.sum(1)


class Vision:
    """A classifier of `batch["x"]`."""

    kind, name = "classification", "test"

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        output = self.module(batch["x"])
        output = getattr(output, "logits", output).flatten(1)
        targets = torch.arange(len(output)) % output.shape[1]
        if len(output) == 1:
            targets = targets * 0
        return nn.functional.cross_entropy(output, batch.get("y", targets), reduction="none")


def text_batch(n: int = 5, length: int = 11) -> dict[str, Tensor]:
    """Token ids with right padding of unequal length."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (n, length), generator=generator)
    mask = torch.ones_like(ids)
    for i in range(n):
        mask[i, length - (3 * i) % (length - 3) :] = 0
    mask[0] = 1
    return {"input_ids": torch.where(mask == 1, ids, 1), "attention_mask": mask}


def vectors(*shape: int, classes: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(*shape, generator=generator)
    return {"x": x, "y": torch.randint(0, classes, (shape[0],), generator=generator)}


def gpt2(**changes: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=24, bos_token_id=0, eos_token_id=0,
        **changes,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def rotary(kind: str, **changes: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=24,
        bos_token_id=0, eos_token_id=0, **changes,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def opt() -> nn.Module:
    config = transformers.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=24, word_embed_proj_dim=16, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.OPTForCausalLM(config)


def bloom() -> nn.Module:
    config = transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.BloomForCausalLM(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=24,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def lora(module: nn.Module, targets: list[str], fan_in_fan_out: bool = False) -> nn.Module:
    config = peft.LoraConfig(r=2, target_modules=targets, lora_dropout=0.0, fan_in_fan_out=fan_in_fan_out)
    adapted = peft.get_peft_model(module, config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # starts at zero, where the gradient of lora_A vanishes
            nn.init.normal_(parameter, std=0.2)
    return adapted


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "gpt2 (tied)": gpt2,
    "gpt2 (untied)": lambda: gpt2(tie_word_embeddings=False),
    "llama": lambda: rotary("Llama"),
    "llama (tied)": lambda: rotary("Llama", tie_word_embeddings=True),
    "qwen2": lambda: rotary("Qwen2"),
    "opt (tied)": opt,
    "bloom (tied)": bloom,
    "bert (tied)": bert,
    "gpt2 + lora": lambda: lora(gpt2(), ["c_attn", "c_fc"], fan_in_fan_out=True),
    "llama + lora": lambda: lora(rotary("Llama"), ["q_proj", "v_proj"]),
    "opt + lora": lambda: lora(opt(), ["q_proj", "fc1"]),
}
NOT_MAPPED = {"bloom (tied)", "bert (tied)"}
"""Families whose transformers code torch.func cannot follow (a custom autograd function, branching masks)."""


def build(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    """The module in evaluation mode with every parameter moved off its symmetric initial value."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make().to(dtype).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return module


def assert_same_signals(model: Any, batch: Mapping[str, Tensor], method: str, tolerance: float) -> None:
    twin = one_at_a_time(model, batch)
    signals = per_record_signals(model, batch, method=method)
    assert signals.n == twin.n
    assert signals.dimension == twin.dimension
    assert list(signals.layout) == [k for k, p in model.module.named_parameters() if p.requires_grad]
    torch.testing.assert_close(signals.losses, twin.losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(signals.norms(), twin.norms(), rtol=tolerance, atol=0.0)
    bound = float(twin.norms().median())
    clipped = (bound / twin.norms()).clamp(max=1.0)
    for weights in (clipped, torch.linspace(-1.0, 2.0, twin.n).to(clipped)):
        expected = twin.weighted_sum(weights)
        error = (signals.weighted_sum(weights) - expected).norm() / expected.norm()
        assert error <= tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_book_keeping_matches_the_twin(family: str, dtype: torch.dtype) -> None:
    model = Language(build(FAMILIES[family], dtype))
    assert_same_signals(model, text_batch(), "book_keeping", TOLERANCE[dtype])


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NOT_MAPPED])
def test_vmap_matches_the_twin(family: str) -> None:
    model = Language(build(FAMILIES[family], torch.float32))
    assert_same_signals(model, text_batch(), "vmap", TOLERANCE[torch.float32])


def test_vmap_restores_the_attention_implementation() -> None:
    module = build(gpt2)
    before = module.config._attn_implementation
    per_record_signals(Language(module), text_batch(), method="vmap")
    assert before == "sdpa"
    assert module.config._attn_implementation == before


@pytest.mark.parametrize("ratio", [0, 10**9])
@pytest.mark.parametrize("family", ["gpt2 (tied)", "opt (tied)", "qwen2"])
def test_gram_norms_and_multiplied_out_gradients_agree(
    family: str, ratio: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_KEEP_RATIO", ratio)
    monkeypatch.setattr(recorder, "_GRAM_ELEMENTS", 250)  # two records a block
    assert_same_signals(Language(build(FAMILIES[family])), text_batch(), "book_keeping", 1e-10)


def test_a_dropped_cross_term_of_tied_weights_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the comparison rejects the norm of a library that forgets the cross term."""

    def without_cross_term(self: recorder.ParameterGradients, n: int) -> Tensor:
        del n
        return torch.stack([recorder.inner_products(a, a) for a in self._factors]).sum(0)

    monkeypatch.setattr(recorder, "_KEEP_RATIO", 0)
    model, batch = Language(build(gpt2)), text_batch()
    assert_same_signals(model, batch, "book_keeping", 1e-10)
    correct = recorder.ParameterGradients.squared_norms
    monkeypatch.setattr(
        recorder.ParameterGradients,
        "squared_norms",
        lambda self, n: without_cross_term(self, n) if len(self._factors) > 1 else correct(self, n),
    )
    with pytest.raises(AssertionError):
        assert_same_signals(model, batch, "book_keeping", 1e-5)


def test_one_clipped_record_of_a_tied_model_has_norm_c() -> None:
    model, batch = Language(build(gpt2, torch.float32)), text_batch()
    signals = per_record_signals(model, batch)
    bound = 0.5 * float(signals.norms().min())
    for i in range(signals.n):
        weights = torch.zeros(signals.n)
        weights[i] = bound / signals.norms()[i]
        assert float(signals.weighted_sum(weights).norm()) == pytest.approx(bound, rel=1e-5)


def test_rows_given_to_the_wrong_record_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the check against autograd."""
    correct = Recorder.record

    def rolled(self: Recorder, operation: str, output: Tensor, used: Any, gradients: Any, **rest: Any) -> Any:
        return correct(self, operation, output, used, lambda error: gradients(error.roll(1, 0)), **rest)

    monkeypatch.setattr(Recorder, "record", rolled)
    with pytest.raises(UnsupportedError, match=r"disagrees with autograd on parameter"):
        per_record_signals(Language(build(gpt2)), text_batch(), method="book_keeping")


# Modules that are no language model.


class PositionsAsVector(nn.Module):
    """Position ids of shape (T,), broadcast over the records after the look-up."""

    def __init__(self, length: int = 4) -> None:
        super().__init__()
        self.positions = nn.Embedding(length, 5)
        self.inner = nn.Linear(5, 3)
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.positions(torch.arange(self.length))).mean(1)


class SharedTwice(nn.Module):
    """One layer applied twice in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(torch.tanh(self.layer(x))))


class Transformer(nn.Module):
    """A small vision transformer with a class token and positions as bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 6, kernel_size=2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.positions = nn.Parameter(torch.randn(1, 17, 6))
        self.scale = nn.Parameter(torch.randn(6))
        self.norm = nn.RMSNorm(6)
        self.mix = nn.Linear(17, 17)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.positions
        h = h + self.mix(self.norm(h).transpose(1, 2)).transpose(1, 2).tanh() * self.scale
        return self.head(h[:, 0])


class InPlace(nn.Module):
    """In-place activations, on a layer's output and on the output of a first embedding-like layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.relu(self.first(x), inplace=True)
        h = nn.functional.elu(self.second(h) * 1.0, inplace=True)
        return self.head(h)


class OverwrittenInput(InPlace):
    """Overwrites what a layer has read; autograd does not need it where that layer is frozen."""

    def forward(self, x: Tensor) -> Tensor:
        h = x.clone()
        first = self.first(h)
        with torch.no_grad():
            h.mul_(2.0)
        return self.head(self.second(first))


class Matmul(nn.Module):
    """Bare parameters in matrix products and sums, one parameter unused."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(3))
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w + self.b


def image_vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, image_size=8,
        patch_size=4, num_channels=1, num_labels=3,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def wide_convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1, dilation=2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)
    )


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6, 5)),
    "positions as a vector": (PositionsAsVector, (6, 4, 5)),
    "layer used twice": (SharedTwice, (6, 5)),
    "vision transformer": (Transformer, (6, 1, 8, 8)),
    "vision transformer of transformers": (image_vit, (6, 1, 8, 8)),
    "convolution": (wide_convolution, (6, 2, 7, 7)),
    "in-place activations": (InPlace, (6, 5)),
    "bare parameters": (Matmul, (6, 5)),
    "layer normalisation over two dimensions": (
        lambda: nn.Sequential(nn.LayerNorm((4, 5)), nn.Flatten(), nn.Linear(20, 3)), (6, 4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("method", ["book_keeping", "vmap"])
@pytest.mark.parametrize("name", MODULES)
def test_other_modules_match_the_twin(name: str, method: str) -> None:
    make, shape = MODULES[name]
    batch = vectors(*shape)
    batch["x"] = batch["x"].double()
    # Mapped, transformers' attention takes its softmax in float32.
    tolerance = 1e-7 if method == "vmap" and "of transformers" in name else 1e-10
    assert_same_signals(Vision(build(make)), batch, method, tolerance)


@pytest.mark.parametrize("method", ["book_keeping", "vmap"])
def test_a_single_record(method: str) -> None:
    assert_same_signals(Language(build(gpt2)), text_batch(1), method, 1e-10)


def test_position_vector_as_long_as_the_batch_is_never_wrong() -> None:
    """Position ids of shape (T,) look like one id a record where T = n: refused, and mapped instead."""
    model, batch = Vision(build(PositionsAsVector)), vectors(4, 4, 5)
    batch["x"] = batch["x"].double()
    with pytest.raises(UnsupportedError, match="positions"):
        per_record_signals(model, batch, method="book_keeping")
    assert_same_signals(model, batch, "auto", 1e-10)
    longer = vectors(6, 4, 5)
    longer["x"] = longer["x"].double()
    assert_same_signals(model, longer, "book_keeping", 1e-10)


@pytest.mark.parametrize("method", ["book_keeping", "vmap"])
def test_frozen_parameters_take_no_place(method: str) -> None:
    module = build(gpt2)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("bias" in name or "ln_" in name)
    model, batch = Language(module), text_batch()
    signals = per_record_signals(model, batch, method=method)
    assert signals.dimension == sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert not [name for name in signals.layout if "wte" in name]
    assert_same_signals(model, batch, method, 1e-10)
    assert all(p.grad is None for p in module.parameters())


def test_padding_index_gets_no_gradient() -> None:
    module = nn.Sequential(nn.Embedding(9, 4, padding_idx=-1), nn.Flatten(), nn.Linear(12, 3))
    batch = {"x": torch.tensor([[8, 1, 2], [3, 8, 8], [1, 1, 1]]), "y": torch.tensor([0, 1, 2])}
    assert_same_signals(Vision(module), batch, "book_keeping", 1e-5)


def test_empty_batch() -> None:
    module = build(gpt2)
    for method in ("auto", "book_keeping", "vmap"):
        batch = {name: tensor[:0] for name, tensor in text_batch().items()}
        signals = per_record_signals(Language(module), batch, method=method)
        assert isinstance(signals, EmptySignals)
        assert signals.n == 0
        assert signals.norms().shape == (0,)
        assert signals.losses.shape == (0,)
        total = signals.weighted_sum(torch.zeros(0))
        assert total.shape == (signals.dimension,)
        assert not total.any()


# Refusals.


class Squared(nn.Module):
    """A parameter that is transformed before it meets a record."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.square())


class Attention(nn.Module):
    """Torch's own attention hands its parameters to one fused function."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


@pytest.mark.parametrize(
    ("make", "shape", "owner"),
    [(Squared, (4, 5), "Squared"), (Attention, (4, 3, 4), "MultiheadAttention")],
)
def test_unsupported_modules_are_refused_by_name_and_mapped_instead(
    make: Callable[[], nn.Module], shape: tuple[int, ...], owner: str
) -> None:
    model, batch = Vision(build(make)), vectors(*shape)
    batch["x"] = batch["x"].double()
    with pytest.raises(UnsupportedError, match=rf"'book_keeping' .* module {owner}"):
        per_record_signals(model, batch, method="book_keeping")
    for _ in range(2):  # the second call takes the remembered way
        assert_same_signals(model, batch, "auto", 1e-10)


class FirstDimensionTime(nn.Module):
    """Flattens with time before records, so that rows do not lie as a record's neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        return self.layer(x.transpose(0, 1).reshape(n * t, 5)).view(t, n, 3).mean(0)


def test_rows_in_an_unexpected_order_are_refused_and_mapped_instead() -> None:
    model, batch = Vision(build(FirstDimensionTime)), vectors(4, 3, 5)
    batch["x"] = batch["x"].double()
    with pytest.raises(UnsupportedError, match=r"disagrees .* 'layer\.weight'"):
        per_record_signals(model, batch, method="book_keeping")
    assert_same_signals(model, batch, "auto", 1e-10)


class Centred(nn.Module):
    """Subtracts the batch's mean: no record has a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h - 0.5 * h.mean(0)


@pytest.mark.parametrize("method", ["auto", "vmap", "book_keeping"])
def test_records_that_depend_on_each_other_are_refused(method: str) -> None:
    batch = vectors(4, 5)
    batch["x"] = batch["x"].double()
    with pytest.raises(UnsupportedError, match="disagrees with autograd"):
        per_record_signals(Vision(build(Centred)), batch, method=method)
    with pytest.raises(UnsupportedError, match="BatchNorm1d"):
        per_record_signals(Vision(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))), batch, method=method)


def test_an_overwritten_input_is_refused() -> None:
    model, batch = Vision(OverwrittenInput()), vectors(4, 5)
    with pytest.raises(UnsupportedError, match="modified in place"):
        per_record_signals(model, batch, method="book_keeping")


@pytest.mark.parametrize("method", ["auto", "book_keeping", "vmap"])
def test_bad_input(method: str) -> None:
    model = Vision(mlp())
    with pytest.raises(InputError, match="unknown method 'vmaps'"):
        per_record_signals(model, vectors(4, 5), method="vmaps")
    with pytest.raises(InputError, match="first dimension"):
        per_record_signals(model, {"x": torch.zeros(2, 5), "y": torch.zeros(3)}, method=method)
    with pytest.raises(InputError, match=r"weights must have shape \(4,\), got \(3,\)"):
        per_record_signals(model, vectors(4, 5), method=method).weighted_sum(torch.ones(3))
    model.module.requires_grad_(False)
    with pytest.raises(InputError, match="trainable parameter"):
        per_record_signals(model, vectors(4, 5), method=method)


# Randomness.


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 30), nn.Dropout(0.5), nn.Tanh(), nn.Linear(30, 3))


def test_book_keeping_keeps_the_dropout_masks_of_its_forward_pass() -> None:
    module, batch = dropped().train(), vectors(6, 5)
    model = Vision(module)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        signals = per_record_signals(model, batch, method="book_keeping")
        after = torch.rand(1)
        torch.manual_seed(3)
        gradients = torch.autograd.grad(model.losses(batch).sum(), list(module.parameters()))
        assert torch.equal(after, torch.rand(1))  # the check against autograd moved no stream
    torch.testing.assert_close(
        signals.weighted_sum(torch.ones(6)), torch.cat([g.flatten() for g in gradients]), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("elements", [1, 700, 10**6])
def test_vmap_sums_what_it_measured(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed blocks draw the dropout masks of the pass that measured the norms."""
    monkeypatch.setattr(per_record, "_BLOCK_ELEMENTS", elements)
    signals = per_record_signals(Vision(dropped().train()), vectors(5, 5), method="vmap")
    for i in range(5):
        total = signals.weighted_sum(torch.eye(5)[i])
        assert float(total.norm()) == pytest.approx(float(signals.norms()[i]), rel=1e-5)


def test_vmap_refuses_to_sum_after_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_record, "_BLOCK_ELEMENTS", 1)
    model = Vision(mlp())
    signals = per_record_signals(model, vectors(5, 5), method="vmap")
    with torch.no_grad():
        next(model.module.parameters()).add_(1.0)
    with pytest.raises(UnsupportedError, match="updated"):
        signals.weighted_sum(torch.ones(5))


@pytest.mark.parametrize("method", ["auto", "book_keeping", "vmap"])
def test_gradient_checkpointing_is_refused(method: str) -> None:
    module = build(gpt2).train()
    module.transformer.h[1].gradient_checkpointing = True
    with pytest.raises(UnsupportedError, match=r"GPT2Block.*gradient checkpointing"):
        per_record_signals(Language(module), text_batch(), method=method)


def test_bf16_parameters_are_summed_in_float32() -> None:
    model, batch = Language(build(gpt2, torch.bfloat16)), text_batch()
    signals = per_record_signals(model, batch, method="book_keeping")
    twin = one_at_a_time(model, batch)
    assert signals.weighted_sum(torch.ones(5)).dtype == torch.float32
    torch.testing.assert_close(signals.norms(), twin.norms(), rtol=0.05, atol=0.0)


def test_factors_are_kept_where_the_gradient_would_take_more_memory() -> None:
    """Wide layers of short records keep T (p + q) numbers a record, not p q."""
    model = Vision(nn.Sequential(nn.Linear(200, 100), nn.Tanh(), nn.Linear(100, 3)))
    signals = per_record_signals(model, vectors(4, 200), method="book_keeping")
    assert [g._matrix is None for g in signals._gradients][:2] == [True, False]  # weight, bias


def test_norms_of_a_million_float32_entries_are_exact_to_a_millionth() -> None:
    rows = torch.randn(2, 1_100_000, generator=torch.Generator().manual_seed(0))
    expected = rows.double().square().sum(1)
    torch.testing.assert_close(flat.squared_norms(rows), expected, rtol=1e-6, atol=0.0)
    short = rows[:, :3]
    torch.testing.assert_close(flat.squared_norms(short), short.double().square().sum(1), rtol=1e-6, atol=0.0)


def test_the_example_in_the_documentation_runs() -> None:
    results = doctest.testmod(per_record)
    assert results.attempted >= 5
    assert results.failed == 0

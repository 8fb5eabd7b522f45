"""Weight permutations: group laws, functions and gradients that stay, whole trainings, what is left alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from workbench import registry
from workbench.errors import InputError, UnsupportedError
from workbench.interfaces import Model, Record
from workbench.training._flat import FlatLayout
from workbench.training.permutations import Permutation, PermutationGroup, Reach, permute_state_
from workbench.training.random_transformers import random_transformer

pytestmark = pytest.mark.usefixtures("one_thread")

LAWS = settings(max_examples=30, deadline=None)
EXACT = 1e-9
"""Largest difference that float64 leaves of two equal functions; a wrong permutation leaves 1e-3 and more."""
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, lambda: nn.Softmax(-1))


@st.composite
def perceptrons(draw: st.DrawFn) -> nn.Module:
    """Plain perceptrons of one to three hidden layers, with any biases and activations."""
    widths = draw(st.lists(st.integers(1, 6), min_size=3, max_size=5))
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=draw(st.booleans())), draw(st.sampled_from(ACTIVATIONS))()]
    return randomised(nn.Sequential(*layers[:-1]), draw(seeds))


seeds = st.integers(0, 2**32 - 1)


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in float64 with all weights drawn anew, biases and norms among them; in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return module.double().eval()


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def drawn(group: PermutationGroup, seed: int = 0) -> Permutation:
    return group.draw(np.random.default_rng(seed))


def images(seed: int = 1) -> Tensor:
    return torch.rand((5, 64), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tokens() -> Tensor:
    return torch.randint(0, 256, (3, 7), generator=torch.Generator().manual_seed(1))


def digits(**given: int) -> tuple[nn.Module, Tensor]:
    model: Model = registry.create("model", "digits_mlp", seed=0, **given)
    return randomised(model.module), images()


def digits_vit() -> tuple[nn.Module, Tensor]:
    model: Model = registry.create("model", "digits_vit", seed=0)
    return randomised(model.module), images()


def transformer(family: str, **given: int) -> tuple[nn.Module, Tensor]:
    model = random_transformer(family, seed=0, width=12, layers=2, heads=3, **given)
    return randomised(model.module), images() if family == "vit" else tokens()


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "digits_mlp": digits,
    "digits_mlp, 3 layers": lambda: digits(hidden=5, hidden_layers=3),
    "digits_vit": digits_vit,
    **{
        family: lambda family=family: transformer(family)  # type: ignore[misc]
        for family in ("vit", "bert", "roberta", "gpt2", "bloom", "llama", "qwen2")
    },
    "qwen2, grouped": lambda: transformer("qwen2", value_heads=1),
}
KINDS = {
    "digits_mlp": {"mlp": 1},
    "digits_mlp, 3 layers": {"mlp": 3},
    "digits_vit": {"mlp": 2, "query-key": 8, "value": 2},
    "vit": {"mlp": 2, "query-key": 6, "value": 2},
    "bert": {"mlp": 3, "query-key": 6, "value": 2},
    "roberta": {"mlp": 3, "query-key": 6, "value": 2},
    "gpt2": {"mlp": 2, "query-key": 6, "value": 2},
    "bloom": {"mlp": 2, "query-key": 6, "value": 2},
    "llama": {"value": 2},
    "qwen2": {"value": 2},
    "qwen2, grouped": {},
}
WIDE = Reach(value_per_head=True, gated=True, grouped=True)
WIDE_KINDS = {
    **{name: {**kinds, "value": 6} for name, kinds in KINDS.items()},
    "digits_mlp": {"mlp": 1},
    "digits_mlp, 3 layers": {"mlp": 3},
    "digits_vit": {"mlp": 2, "query-key": 8, "value": 8},
    "llama": {"mlp": 2, "value": 6},
    "qwen2": {"mlp": 2, "value": 6},
    "qwen2, grouped": {"mlp": 2, "value": 2},
}
cases = pytest.mark.parametrize("case", CASES)
reaches = pytest.mark.parametrize("reach", [Reach(), WIDE], ids=["printed", "wide"])


def outputs(module: nn.Module, inputs: Tensor) -> Tensor:
    found = module(inputs)
    return found if isinstance(found, Tensor) else found.logits


def loss(module: nn.Module, inputs: Tensor) -> Tensor:
    """A number that depends on every output."""
    found = outputs(module, inputs)
    factors = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(3))
    return (found * factors).sum() + found.square().sum()


def difference(here: Tensor, there: Tensor) -> float:
    return float(((here - there).abs().max() / (1 + here.abs().max())).detach())


def gradients(module: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    module.zero_grad(set_to_none=True)
    loss(module, inputs).backward()  # type: ignore[no-untyped-call]
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}


# Group laws


@LAWS
@given(module=perceptrons(), seed=seeds)
def test_permutations_are_a_group(module: nn.Module, seed: int) -> None:
    group = PermutationGroup.of(module)
    rng = np.random.default_rng(seed)
    one, two, three = (group.draw(rng) for _ in range(3))
    assert one.then(two).then(three) == one.then(two.then(three))
    assert one.then(one.inverse()) == group.identity() == one.inverse().then(one)
    assert one.inverse().inverse() == one
    assert one.then(group.identity()) == one
    assert one.then(two).inverse() == two.inverse().then(one.inverse())
    assert hash(one.then(one.inverse())) == hash(group.identity())


@LAWS
@given(module=perceptrons(), seed=seeds)
def test_composition_is_one_after_the_other(module: nn.Module, seed: int) -> None:
    group = PermutationGroup.of(module)
    rng = np.random.default_rng(seed)
    one, two = group.draw(rng), group.draw(rng)
    after, at_once = weights(module), weights(module)
    one.apply_(after)
    two.apply_(after)
    one.then(two).apply_(at_once)
    assert all(torch.equal(after[name], at_once[name]) for name in after)
    one.then(two).inverse().apply_(after)
    assert all(torch.equal(after[name], value) for name, value in weights(module).items())


@LAWS
@given(module=perceptrons(), seed=seeds)
def test_functions_and_gradients_of_random_perceptrons_stay(module: nn.Module, seed: int) -> None:
    inputs = torch.rand((4, module[0].in_features), dtype=torch.float64)  # type: ignore[index]
    before, slopes = outputs(module, inputs), gradients(module, inputs)
    permutation = drawn(PermutationGroup.of(module), seed)
    permutation.apply_(dict(module.named_parameters()))
    permutation.apply_(slopes)
    assert difference(before, outputs(module, inputs)) < EXACT
    moved = gradients(module, inputs)
    assert all(difference(slope, moved[name]) < EXACT for name, slope in slopes.items())


def test_indices_say_where_a_number_comes_from() -> None:
    module = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    group = PermutationGroup.of(module)
    tensors = {"0.bias": torch.tensor([10.0, 11.0, 12.0]), "2.weight": torch.tensor([[0.0, 1.0, 2.0]])}
    group.permutation({"0.hidden": np.array([2, 0, 1])}).apply_(tensors)
    assert tensors["0.bias"].tolist() == [12.0, 10.0, 11.0]
    assert tensors["2.weight"].tolist() == [[2.0, 0.0, 1.0]]


def test_draws_are_uniform() -> None:
    """Each of the six permutations of three indices: chi-squared with 5 degrees, false alarm 1e-6."""
    group = PermutationGroup.of(nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1)))
    rng = np.random.default_rng(0)
    seen: dict[bytes, int] = {}
    for _ in range(1200):
        key = group.draw(rng).indices["0.hidden"].tobytes()
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == math.factorial(3)
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 36.0
    assert group.log_size == pytest.approx(math.log(6))


def test_the_same_seed_draws_the_same_permutation() -> None:
    group = PermutationGroup.of(digits()[0])
    assert drawn(group, 5) == drawn(group, 5) != drawn(group, 6)


def test_fixed_share_tells_what_a_guess_has_right() -> None:
    group = PermutationGroup.of(digits(hidden=8)[0])
    truth = drawn(group)
    swapped = np.array(truth.indices["0.hidden"])
    swapped[[0, 1]] = swapped[[1, 0]]
    guess = group.permutation({"0.hidden": swapped})
    assert truth.then(truth.inverse()).fixed_share() == {"0.hidden": 1.0}
    assert truth.then(guess.inverse()).fixed_share() == {"0.hidden": 6 / 8}


# Architectures


@cases
@reaches
def test_outputs_and_gradients_stay(case: str, reach: Reach) -> None:
    module, inputs = CASES[case]()
    group = PermutationGroup.of(module, reach)
    before, slopes, old = outputs(module, inputs), gradients(module, inputs), weights(module)
    for seed in range(2):
        permutation = drawn(group, seed)
        permutation.apply_(dict(module.named_parameters()))
        permutation.apply_(slopes)
    assert difference(before, outputs(module, inputs)) < EXACT
    moved = gradients(module, inputs)
    worst = max(difference(slope, moved[name]) for name, slope in slopes.items())
    assert worst < EXACT
    names = {slot.parameter for unit in group.units for slot in unit.slots}
    new = weights(module)
    assert {name for name in old if not torch.equal(old[name], new[name])} == names
    assert names.isdisjoint(group.left_alone)
    assert names | set(group.left_alone) == {n for n, p in module.named_parameters() if p.requires_grad}


@cases
def test_every_unit_moves_by_itself(case: str) -> None:
    """One unit at a time leaves the function; each of its parameters matters, so no unit is idle."""
    module, inputs = CASES[case]()
    group = PermutationGroup.of(module, WIDE)
    before = outputs(module, inputs)
    for unit in group.units[::3]:
        turned = {unit.name: np.roll(np.arange(unit.size), 1)}
        group.permutation(turned).apply_(dict(module.named_parameters()))
        assert difference(before, outputs(module, inputs)) < EXACT, unit
        broken = copy.deepcopy(module)
        first = next(slot for slot in unit.slots if slot.parameter.endswith("weight"))
        group.permutation(turned).apply_({first.parameter: broken.get_parameter(first.parameter)})
        assert difference(before, outputs(broken, inputs)) > 1e-6, unit


@cases
@reaches
def test_units_are_those_of_the_theorems(case: str, reach: Reach) -> None:
    group = PermutationGroup.of(CASES[case]()[0], reach)
    found: dict[str, int] = {}
    for unit in group.units:
        found[unit.kind] = found.get(unit.kind, 0) + 1
    assert found == (KINDS if reach == Reach() else WIDE_KINDS)[case]


def test_shares_and_sizes_of_the_vision_transformer() -> None:
    """Counted by hand: 2 blocks, width 48, 4 heads, hidden 192."""
    group = PermutationGroup.of(digits_vit()[0])
    assert group.shuffled_count == 2 * (3 * 48 * 49 + 48 * 48 + 192 * 49 + 48 * 192)
    per_block = 4 * math.lgamma(13) + math.lgamma(13) + math.lgamma(193)
    assert group.log_size == pytest.approx(2 * per_block)
    layout = FlatLayout.of(digits_vit()[0])
    assert int(group.covered(layout.places).sum()) == group.shuffled_count
    assert group.shuffled_share == pytest.approx(group.shuffled_count / layout.dimension)


def test_a_gpt2_of_the_paper_size_is_not_shuffled_whole() -> None:
    """Table I has 100 % for GPT-2; embeddings, norms and output biases are in neither theorem."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        module = GPT2LMHeadModel(GPT2Config())
    group = PermutationGroup.of(module)
    assert group.trainable_count == 124_439_808
    per_block = 2304 * 769 + 768 * 768 + 3072 * 769 + 768 * 3072
    assert group.shuffled_count == 12 * per_block
    assert group.shuffled_share == pytest.approx(0.683, abs=1e-3)
    assert group.left_alone["transformer.wte.weight"] == "tied"


@cases
def test_flat_vectors_move_like_the_weights(case: str) -> None:
    module, _ = CASES[case]()
    layout = FlatLayout.of(module)
    group = PermutationGroup.of(module)
    permutation = drawn(group)
    flat = torch.cat([p.detach().reshape(-1) for p in layout.parameters])
    moved = permutation.applied(torch.stack([flat, 2 * flat]), layout.places)
    kept = flat.clone()
    permutation.apply_(dict(module.named_parameters()))
    expected = torch.cat([p.detach().reshape(-1) for p in layout.parameters])
    assert torch.equal(moved, torch.stack([expected, 2 * expected]))
    assert torch.equal(flat, kept)
    away = permutation.applied(torch.arange(len(flat)), layout.places) != torch.arange(len(flat))
    assert not bool((away & ~group.covered(layout.places)).any())


@cases
def test_features_go_with_their_index(case: str) -> None:
    module, _ = CASES[case]()
    group = PermutationGroup.of(module)
    for unit in group.units[::4]:
        permutation = group.permutation({unit.name: drawn(group).indices[unit.name]})
        before = unit.features(dict(module.named_parameters()))
        permutation.apply_(dict(module.named_parameters()))
        after = unit.features(dict(module.named_parameters()))
        assert torch.equal(after, before[permutation.indices[unit.name].copy()])


# Whole trainings


OPTIMISERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
}


def trained(
    module: nn.Module,
    inputs: Tensor,
    optimiser: str,
    group: PermutationGroup | None = None,
    *,
    moves_state: bool = True,
) -> Mapping[str, Tensor]:
    """Six steps, permuted after each where there is a group; weights at the start's places."""
    parameters = dict(module.named_parameters())
    optimizer = OPTIMISERS[optimiser](list(parameters.values()))
    rng = np.random.default_rng(0)
    so_far = None if group is None else group.identity()
    for step in range(6):
        optimizer.zero_grad()
        outputs(module, inputs).roll(step, 0).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if group is not None and so_far is not None:
            permutation = group.draw(rng)
            permutation.apply_(parameters)
            if moves_state:
                permute_state_(permutation, optimizer, parameters)
            so_far = so_far.then(permutation)
    found = weights(module)
    if so_far is not None:
        so_far.inverse().apply_(found)
    return found


def farthest(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> float:
    return max(difference(here[name], there[name]) for name in here)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("case", ["digits_mlp, 3 layers", "digits_vit", "bert", "gpt2", "bloom"])
def test_shuffled_training_is_the_same_training(case: str, optimiser: str) -> None:
    module, inputs = CASES[case]()
    twin = copy.deepcopy(module)
    plain = trained(module, inputs, optimiser)
    assert farthest(plain, trained(twin, inputs, optimiser, PermutationGroup.of(twin))) < 1e-7
    assert difference(outputs(module, inputs), outputs(twin, inputs)) < 1e-7
    assert farthest(weights(module), weights(twin)) > 0.01


@LAWS
@given(module=perceptrons(), optimiser=st.sampled_from(sorted(OPTIMISERS)))
def test_shuffled_training_of_random_perceptrons(module: nn.Module, optimiser: str) -> None:
    inputs = torch.rand((4, module[0].in_features), dtype=torch.float64)  # type: ignore[index]
    twin = copy.deepcopy(module)
    plain = trained(module, inputs, optimiser)
    assert farthest(plain, trained(twin, inputs, optimiser, PermutationGroup.of(twin))) < 1e-7


@pytest.mark.parametrize("optimiser", ["momentum", "adamw"])
def test_state_that_stays_behind_spoils_the_training(optimiser: str) -> None:
    """The negative control of the tests above."""
    module, inputs = CASES["digits_mlp, 3 layers"]()
    twin = copy.deepcopy(module)
    plain = trained(module, inputs, optimiser)
    group = PermutationGroup.of(twin)
    assert farthest(plain, trained(twin, inputs, optimiser, group, moves_state=False)) > 1e-4


def test_state_of_unknown_shape_is_refused() -> None:
    module, inputs = CASES["digits_mlp"]()
    parameters = dict(module.named_parameters())
    optimizer = OPTIMISERS["adamw"](list(parameters.values()))
    outputs(module, inputs).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.state[parameters["0.weight"]]["exp_avg"] = torch.zeros(64)
    with pytest.raises(UnsupportedError, match=r"'exp_avg' of '0.weight' in shape \(64,\)"):
        permute_state_(drawn(PermutationGroup.of(module)), optimizer, parameters)


# What is left alone, and why


class Residual(nn.Module):
    """An architecture that nobody knows, around a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(5, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs plus what the sequence makes of them."""
        entered: Tensor = self.entry(inputs).relu()
        result: Tensor = entered + self.inner(entered)
        return result


def left(module: nn.Module, reach: Reach | None = None) -> Mapping[str, str]:
    return PermutationGroup.of(module, reach).left_alone


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (nn.LayerNorm(4), "normalisation follows"),
        (nn.BatchNorm1d(4), "normalisation follows"),
        (nn.Flatten(), "no elementwise activation follows"),
        (nn.PReLU(4), "no elementwise activation follows"),
        (nn.Softmax(0), "no elementwise activation follows"),
    ],
)
def test_what_lies_between_decides(between: nn.Module, reason: str) -> None:
    module = nn.Sequential(nn.Linear(3, 4), between, nn.ReLU(), nn.Linear(4, 2))
    group = PermutationGroup.of(module)
    assert not group.units
    assert group.left_alone["0.weight"] == group.left_alone["0.bias"] == reason
    assert group.shuffled_share == group.log_size == 0.0


def test_unknown_architectures_are_left_alone_but_for_their_sequences() -> None:
    module = Residual()
    group = PermutationGroup.of(module)
    assert [unit.name for unit in group.units] == ["inner.0.hidden"]
    assert group.left_alone == {
        "entry.weight": "no theorem covers it",
        "entry.bias": "no theorem covers it",
        "inner.3.bias": "added after the permuted sum",
    }
    assert set(left(nn.TransformerEncoderLayer(4, 2, 8)).values()) == {
        "unknown architecture",
        "normalisation",
    }
    assert left(nn.Linear(3, 2)) == dict.fromkeys(["weight", "bias"], "unknown architecture")


def test_a_subclass_of_a_known_block_may_compute_something_else() -> None:
    module, _ = CASES["gpt2"]()
    block = module.get_submodule("transformer.h.0.mlp")
    block.__class__ = type("Own", (type(block),), {})
    assert not any(unit.name.startswith("transformer.h.0.mlp") for unit in PermutationGroup.of(module).units)


def test_tied_and_frozen_weights_are_left_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module[2].weight = module[0].weight  # type: ignore[union-attr]
    assert not PermutationGroup.of(module).units
    assert left(module)["0.weight"] == left(module)["4.weight"] == "tied"
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module[0].weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    assert left(module)["0.bias"] == left(module)["2.weight"] == "frozen partner"
    assert "0.weight" not in left(module)


def test_single_units_have_nothing_to_permute() -> None:
    assert left(nn.Sequential(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 3)))["0.weight"] == "a single index"


def test_reasons_of_transformers() -> None:
    llama, grouped = left(CASES["llama"]()[0]), left(CASES["qwen2, grouped"]()[0])
    assert llama["model.layers.0.self_attn.q_proj.weight"] == "rotary embeddings"
    assert llama["model.layers.1.mlp.gate_proj.weight"] == "gated layer"
    assert llama["model.layers.0.input_layernorm.weight"] == llama["model.norm.weight"] == "normalisation"
    assert llama["lm_head.weight"] == "no theorem covers it"
    assert grouped["model.layers.0.self_attn.k_proj.bias"] == "rotary embeddings"
    assert grouped["model.layers.0.self_attn.v_proj.weight"] == "grouped queries"
    assert grouped["model.layers.0.self_attn.o_proj.weight"] == "grouped queries"
    bert = left(CASES["bert"]()[0])
    assert bert["bert.embeddings.word_embeddings.weight"] == "embedding"
    assert bert["bert.encoder.layer.0.attention.output.dense.bias"] == "added after the permuted sum"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_adapters_are_left_alone() -> None:
    import peft

    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0)
    module = peft.get_peft_model(CASES["gpt2"]()[0], config)
    reasons = left(module)
    assert reasons
    assert set(reasons.values()) == {"adapter"}
    assert not PermutationGroup.of(module).units


# Refusals


def test_indices_must_be_permutations_of_known_units() -> None:
    group = PermutationGroup.of(digits(hidden=3)[0])
    with pytest.raises(InputError, match=r"unknown unit '0.hiden'; did you mean '0.hidden'\?"):
        group.permutation({"0.hiden": np.arange(3)})
    with pytest.raises(InputError, match=r"indices of '0.hidden' must be a permutation of 0..2"):
        group.permutation({"0.hidden": np.array([0, 0, 2])})
    other = PermutationGroup.of(digits(hidden=4)[0])
    with pytest.raises(InputError, match="same units"):
        group.identity().then(other.identity())


def test_tensors_must_have_their_parameters_shape() -> None:
    permutation = drawn(PermutationGroup.of(digits(hidden=3)[0]))
    with pytest.raises(InputError, match=r"'0.weight' must have shape \(3, 64\), got \(64, 3\)"):
        permutation.apply_({"0.weight": torch.zeros(64, 3)})
    permutation.apply_({"someone_elses": torch.zeros(2)})


def test_random_transformers_read_records() -> None:
    record = Record(id="a", text="to be", label=1, image=tuple(64 * [0.5]))
    for family in ("vit", "roberta", "gpt2"):
        model = random_transformer(family, seed=0, width=8, layers=1, heads=2)
        assert model.losses(model.encode([record, record])).shape == (2,)
    with pytest.raises(InputError, match="unknown family 'birt'; did you mean 'bert'"):
        random_transformer("birt", seed=0)
    with pytest.raises(InputError, match="width must be a multiple of heads, got 8 and 3"):
        random_transformer("bert", seed=0, width=8, heads=3)
    with pytest.raises(InputError, match="record 'b' has no label"):
        random_transformer("bert", seed=0).encode([Record(id="b", text="x")])

"""Weight permutations: group laws, and functions and gradients of known architectures that stay."""

from __future__ import annotations

import copy
import math
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.random_transformers import FAMILIES, random_transformer
from permutation_cases import (
    CASES,
    EXACT,
    LAWS,
    WIDE,
    covered,
    difference,
    digits,
    digits_vit,
    drawn,
    features,
    gradients,
    images,
    outputs,
    perceptrons,
    randomised,
    seeds,
    tokens,
    weights,
)
from torch import nn

from workbench.core.errors import InputError
from workbench.interfaces import Record
from workbench.training.flat import FlatLayout
from workbench.training.permutations import Permutation, PermutationGroup, Reach

pytestmark = pytest.mark.usefixtures("one_thread")

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


def test_each_unit_draws_for_itself_in_the_units_order() -> None:
    """The naive twin of a draw: numbers of earlier runs stay what they were."""
    group = PermutationGroup.of(digits_vit()[0])
    rng = np.random.default_rng(5)
    expected = {unit.name: rng.permutation(unit.size) for unit in group.units}
    found = drawn(group, 5)
    assert list(found.indices) == list(expected)
    assert all(np.array_equal(found.indices[name], own) for name, own in expected.items())
    assert found == group.permutation(expected)
    with pytest.raises(ValueError, match="read-only"):
        found.indices[group.units[0].name][0] = 1


def test_a_stream_of_permutations_is_one_draw_after_the_other() -> None:
    module, _ = digits_vit()
    group, rng = PermutationGroup.of(module), np.random.default_rng(5)
    for one in islice(group.draws(np.random.default_rng(5)), 40):
        expected, found = weights(module), weights(module)
        other = group.draw(rng)
        assert one == other
        other.apply_(expected)
        one.apply_(found)
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def fixed_share(permutation: Permutation) -> dict[str, float]:
    """Share of each unit's indices that stay where they are."""
    return {name: float(np.mean(own == np.arange(len(own)))) for name, own in permutation.indices.items()}


def test_truth_then_the_inverse_of_a_guess_keeps_what_the_guess_has_right() -> None:
    group = PermutationGroup.of(digits(hidden=8)[0])
    truth = drawn(group)
    swapped = np.array(truth.indices["0.hidden"])
    swapped[[0, 1]] = swapped[[1, 0]]
    guess = group.permutation({"0.hidden": swapped})
    assert fixed_share(truth.then(truth.inverse())) == {"0.hidden": 1.0}
    assert fixed_share(truth.then(guess.inverse())) == {"0.hidden": 6 / 8}


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


@settings(max_examples=12, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    heads=st.integers(1, 4),
    half_size=st.integers(1, 3),
    layers=st.integers(1, 2),
    shared=st.booleans(),
    reach=st.builds(Reach, value_per_head=st.booleans(), gated=st.booleans(), grouped=st.booleans()),
    seed=seeds,
)
def test_functions_and_gradients_of_random_transformers_stay(
    *, family: str, heads: int, half_size: int, layers: int, shared: bool, reach: Reach, seed: int
) -> None:
    model = random_transformer(
        family,
        seed=0,
        width=2 * half_size * heads,
        layers=layers,
        heads=heads,
        value_heads=1 if shared else heads,
    )
    module, inputs = randomised(model.module, seed), images() if family == "vit" else tokens()
    before, slopes, old = outputs(module, inputs), gradients(module, inputs), weights(module)
    parameters = dict(module.named_parameters())
    group = PermutationGroup.of(module, reach)
    one, two = drawn(group, seed), drawn(group, seed + 1)
    for permutation in (one, two):
        permutation.apply_(parameters)
        permutation.apply_(slopes)
    assert difference(before, outputs(module, inputs)) < EXACT
    moved = gradients(module, inputs)
    assert all(difference(slope, moved[name]) < EXACT for name, slope in slopes.items())
    assert one.then(two).inverse() == two.inverse().then(one.inverse())
    one.then(two).inverse().apply_(parameters)
    assert all(torch.equal(parameters[name], value) for name, value in old.items())


def test_shares_and_sizes_of_the_vision_transformer() -> None:
    """Counted by hand: 2 blocks, width 48, 4 heads, hidden 192."""
    group = PermutationGroup.of(digits_vit()[0])
    assert group.shuffled_count == 2 * (3 * 48 * 49 + 48 * 48 + 192 * 49 + 48 * 192)
    per_block = 4 * math.lgamma(13) + math.lgamma(13) + math.lgamma(193)
    assert group.log_size == pytest.approx(2 * per_block)
    layout = FlatLayout.of(digits_vit()[0])
    assert int(covered(group, layout.places).sum()) == group.shuffled_count
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
    assert not bool((away & ~covered(group, layout.places)).any())


@cases
def test_features_go_with_their_index(case: str) -> None:
    module, _ = CASES[case]()
    group = PermutationGroup.of(module)
    for unit in group.units[::4]:
        permutation = group.permutation({unit.name: drawn(group).indices[unit.name]})
        before = features(unit, module)
        permutation.apply_(dict(module.named_parameters()))
        after = features(unit, module)
        assert torch.equal(after, before[permutation.indices[unit.name].copy()])


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
    with pytest.raises(InputError, match="heads must be a multiple of value_heads, got 4 and 3"):
        random_transformer("llama", seed=0, value_heads=3)
    for name in ("heads", "layers", "value_heads", "positions"):
        with pytest.raises(InputError, match=f"{name} must be at least [13], got 0"):
            random_transformer("qwen2", seed=0, **{name: 0})
    with pytest.raises(InputError, match="record 'b' has no label"):
        random_transformer("bert", seed=0).encode([Record(id="b", text="x")])

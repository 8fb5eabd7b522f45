"""The vision base: drawn letters, a build that is whole, and a network whose last layer is fresh."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data.bases import checkpoint, letters, vision_base
from workbench.studies import bases
from workbench.training.permutations import PermutationGroup


@pytest.fixture(autouse=True)
def small_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of our own, and a recipe of a few steps."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vision_base, "RECIPE", replace(vision_base.RECIPE, steps=3))


def test_letters_are_grey_pictures_of_one_seed() -> None:
    drawn, labels = letters.pictures(np.random.default_rng(0), 200)
    again, _ = letters.pictures(np.random.default_rng(0), 200)
    assert drawn.shape == (200, 64)
    assert np.array_equal(drawn, again)
    assert drawn.min() == 0.0
    assert 0.9 < drawn.max() <= 1.0
    assert 0.2 < drawn.mean() < 0.45  # load_digits: 0.31
    assert np.mean((drawn > 0.05) & (drawn < 0.95)) > 0.2  # grey, not black and white
    assert set(labels) <= set(range(len(letters.LETTERS)))


def test_no_letter_looks_like_a_digit_and_none_is_drawn_as_another() -> None:
    assert not set("IOSZ0123456789") & set(letters.LETTERS)
    assert len(set(letters.LETTERS.values())) == len(letters.LETTERS)
    corners = [corner for strokes in letters.LETTERS.values() for stroke in strokes for corner in stroke]
    assert {x for x, _ in corners} <= set(range(letters.WIDE + 1))
    assert {y for _, y in corners} <= set(range(letters.HIGH + 1))


def test_it_is_built_once_and_only_its_last_layer_hangs_on_the_seed() -> None:
    sentence = "model 'vit_base' is not built: run `workbench models build vit_base`"
    with pytest.raises(InputError, match=sentence):
        registry.create("model", "vit_base", seed=0)
    assert bases.missing(["vit_base"]) == ("vit_base",)
    folder = bases.find("vit_base").build(lambda step: None)
    assert bases.find("vit_base").is_built()
    assert bases.find("vit_base").card().parameters == vision_base.RECIPE.parameters
    first = registry.create("model", "vit_base", seed=1).module
    second = registry.create("model", "vit_base", seed=2).module
    told = {name for name, p in first.named_parameters() if not torch.equal(p, second.get_parameter(name))}
    assert told == {"head.weight", "head.bias"}
    assert first(torch.zeros(2, 64)).shape == (2, 10)
    recipe = checkpoint.read_json(folder / checkpoint.RECIPE)
    known = vision_base.read(folder, recipe["sha256"][checkpoint.WEIGHTS])
    assert recipe["parameters"] == sum(p.numel() for p in known.parameters())
    assert 0.0 <= recipe["validation"]["letters"]["accuracy"] < 0.6  # of three steps


@pytest.mark.slow
def test_its_permutations_are_those_of_the_digits_transformer() -> None:
    bases.find("vit_base").build(lambda step: None)
    built = PermutationGroup.of(registry.create("model", "vit_base", seed=0).module)
    drawn = PermutationGroup.of(registry.create("model", "digits_vit", seed=0).module)
    assert [unit.name for unit in built.units] == [unit.name for unit in drawn.units]
    assert built.shuffled_share == drawn.shuffled_share


@pytest.mark.parametrize(
    "file", [checkpoint.WEIGHTS, pytest.param(checkpoint.CONFIG, marks=pytest.mark.slow)]
)
def test_damage_is_refused_in_one_line(file: str) -> None:
    path = bases.find("vit_base").build(lambda step: None) / file
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert not bases.find("vit_base").is_built()
    with pytest.raises(InputError, match="run `workbench models build vit_base`"):
        registry.create("model", "vit_base", seed=0)


@pytest.mark.slow
def test_the_whole_build_knows_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision_base, "RECIPE", replace(vision_base.RECIPE, steps=500))
    folder = bases.find("vit_base").build(lambda step: None)
    said = checkpoint.read_json(folder / checkpoint.RECIPE)["validation"]["letters"]
    assert said["accuracy"] > 0.9

"""Study files: what they say, what is refused and how, the grid's laws, and the studies that ship."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.interfaces import Sampling
from workbench.studies.experiments import Experiment, Study
from workbench.studies.file import parse
from workbench.studies.grid import expand
from workbench.studies.jobs import jobs_of
from workbench.studies.study import load_study, profiles, select, study_names

HEAD = """
schema = 1
title = "A study"
replication = "seed"
"""

BASE = """
[base]
mechanism = "dp_sgd"
attack = "loss"
corpus = "clinical"
model = "tiny_gpt2"
members = 100
epochs = 1
batch_size = 10
learning_rate = 1e-3
seed = 0
epsilon = 1
delta = "1/N^2"
"""

GROUP = """
[[group]]
name = "one"
grid = { batch_size = [5, 10] }
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    """A study file; returns its path."""
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


def cells(experiments: tuple[Experiment, ...], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(one, name) for name in names) for one in experiments]


# What a file says


def test_base_and_grid_make_experiments_in_the_order_of_the_file(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, HEAD + BASE + GROUP))
    assert cells(study.experiments, "batch_size") == [(5,), (10,)]
    first = study.experiments[0]
    assert (first.group, first.variant) == ("one", "dp_sgd")
    assert (first.epsilon, first.delta) == (1.0, 1e-4)
    assert isinstance(first.epsilon, float)
    assert first.sampling is Sampling.POISSON
    assert (study.name, study.profile, study.replication, study.paper) == ("mine", "", "seed", "")
    assert len(study.source_sha256) == 64


def test_tags_are_the_groups_with_the_variants_laid_over_them_and_no_part_of_a_key(tmp_path: Path) -> None:
    text = """
    [variant."DP-SGD"]
    [variant."Ours"]
    tags = { method = "mean of two", form = "ours" }
    [[group]]
    name = "one"
    tags = { part = "main", method = "any" }
    grid = { batch_size = [5] }
    """
    plain, ours = load_study(write(tmp_path, HEAD + BASE + textwrap.dedent(text))).experiments
    assert (plain.tags, ours.tags) == (
        {"part": "main", "method": "any"},
        {"part": "main", "method": "mean of two", "form": "ours"},
    )
    assert jobs_of(plain).measuring.key == jobs_of(replace(plain, tags={})).measuring.key


def test_a_group_may_zip_lists_and_cross_them_with_the_grid(tmp_path: Path) -> None:
    text = """
    [[group]]
    name = "zipped"
    grid = { seed = [0, 1] }
    zip = [{ batch_size = [5, 10], learning_rate = [1e-3, 2e-3] }]
    """
    study = load_study(write(tmp_path, HEAD + BASE + textwrap.dedent(text)))
    assert cells(study.experiments, "batch_size", "learning_rate", "seed") == [
        (5, 1e-3, 0),
        (5, 1e-3, 1),
        (10, 2e-3, 0),
        (10, 2e-3, 1),
    ]


def test_exclusions_drop_what_matches_all_of_a_table(tmp_path: Path) -> None:
    text = """
    [[group]]
    name = "less"
    grid = { batch_size = [5, 10], seed = [0, 1] }
    exclude = [{ batch_size = 5, seed = 1 }, { variant = "dp_sgd", batch_size = 10, seed = 0 }]
    """
    study = load_study(write(tmp_path, HEAD + BASE + textwrap.dedent(text)))
    assert cells(study.experiments, "batch_size", "seed") == [(5, 0), (10, 1)]


VARIANTS = """
[variant."DP"]
[variant."Fine-tuned"]
mechanism = "non_private"
sampling = "shuffled"
without = ["epsilon"]
[[group]]
name = "both"
grid = { epsilon = [1, 4], seed = [0, 1] }
[[group]]
name = "one"
grid = { epsilon = [4] }
variants = ["DP"]
"""


def test_variants_lay_fields_over_the_group_and_may_lack_an_axis(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, HEAD + BASE + VARIANTS))
    assert cells(study.experiments, "group", "variant", "epsilon", "seed") == [
        ("both", "DP", 1.0, 0),
        ("both", "DP", 4.0, 0),
        ("both", "DP", 1.0, 1),
        ("both", "DP", 4.0, 1),
        ("both", "Fine-tuned", None, 0),
        ("both", "Fine-tuned", None, 1),
        ("one", "DP", 4.0, 0),
    ]
    fine_tuned = study.experiments[4]
    assert fine_tuned.delta is None
    assert fine_tuned.budget is None
    assert fine_tuned.sampling is Sampling.SHUFFLED


def test_a_variant_without_one_column_of_a_zip_collapses_to_the_distinct_rows(tmp_path: Path) -> None:
    text = """
    [variant."Fine-tuned"]
    mechanism = "non_private"
    without = ["epsilon"]
    [[group]]
    name = "zipped"
    zip = [{ batch_size = [5, 5, 10], epsilon = [1, 2, 1] }]
    """
    study = load_study(write(tmp_path, HEAD + BASE + textwrap.dedent(text)))
    assert cells(study.experiments, "batch_size", "epsilon") == [(5, None), (10, None)]


def test_equal_experiments_of_two_groups_stay_once_each(tmp_path: Path) -> None:
    other = GROUP.replace('"one"', '"two"')
    study = load_study(write(tmp_path, HEAD + BASE + GROUP + other))
    first, second = study.experiments[0], study.experiments[2]
    assert (first.group, second.group) == ("one", "two")
    assert replace(first, group="") == replace(second, group="")


PROFILES = """
[lists]
seeds = [0, 1, 2]
[profile.quick]
base = { members = 50 }
lists = { seeds = [7] }
notes = ["Half the members."]
groups = ["few"]
[profile.full]
[[group]]
name = "few"
grid = { seed = "$seeds" }
[[group]]
name = "many"
grid = { seed = "$seeds", epochs = [1, 2] }
"""


def test_delta_may_be_half_a_record_also_where_experiments_are_left_out(tmp_path: Path) -> None:
    half = (HEAD + BASE).replace('"1/N^2"', '"1/(2N)"')
    study = load_study(write(tmp_path, half + GROUP))
    assert {one.delta for one in study.experiments} == {1 / (2 * study.experiments[0].members)}
    left_out = half + GROUP + 'exclude = [{ delta = "1/(2N)", batch_size = 5 }]\n'
    assert cells(load_study(write(tmp_path, left_out)).experiments, "batch_size") == [(10,)]


def test_profiles_lay_base_and_lists_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + 'notes = ["Always."]\n' + BASE + PROFILES)
    assert profiles(path) == ["quick", "full"]
    quick, full = load_study(path), load_study(path, profile="full")
    assert quick.profile == "quick"
    assert cells(quick.experiments, "group", "members", "seed", "delta") == [("few", 50, 7, 1 / 2500)]
    assert quick.notes == ("Always.", "Half the members.")
    assert len(full.experiments) == 3 + 6
    assert full.notes == ("Always.",)
    assert {one.members for one in full.experiments} == {100}


def test_an_exclusion_may_bite_under_another_profile_only(tmp_path: Path) -> None:
    text = (
        HEAD
        + BASE
        + PROFILES.replace(
            'grid = { seed = "$seeds" }', 'grid = { seed = "$seeds" }\nexclude = [{ seed = 2 }]'
        )
    )
    assert len(load_study(write(tmp_path, text)).experiments) == 1
    assert len(load_study(write(tmp_path, text), profile="full").experiments) == 2 + 6


@pytest.mark.parametrize(
    ("modules", "slow"),
    [
        ("workbench.studies.study", ("torch", "scipy", "distributed", "dask")),
        ("workbench.studies.costs", ("torch", "distributed", "dask")),
    ],
)
def test_importing_the_module_is_light(modules: str, slow: tuple[str, ...], tmp_path: Path) -> None:
    code = f"import sys, {modules}; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# Laws of the grid

AXES = {
    "members": st.integers(50, 10_000),
    "epochs": st.integers(1, 99),
    "batch_size": st.integers(1, 50),
    "learning_rate": st.floats(1e-6, 10.0),
    "seed": st.integers(0, 10_000),
    "epsilon": st.floats(0.01, 1e4),
}


@st.composite
def grids(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Axes with their values, in an order of their own."""
    names = draw(st.lists(st.sampled_from(sorted(AXES)), unique=True, max_size=4))
    return {name: draw(st.lists(AXES[name], unique=True, min_size=1, max_size=4)) for name in names}


def toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def text_of(grid: dict[str, list[Any]], exclude: list[dict[str, Any]] | None = None) -> str:
    excluded = f"exclude = {toml(exclude)}\n" if exclude else ""
    return f'{HEAD}{BASE}\n[[group]]\nname = "one"\ngrid = {toml(grid)}\n{excluded}'


@given(grid=grids())
def test_the_grid_is_the_product_of_its_axes(grid: dict[str, list[Any]]) -> None:
    experiments = expand(parse(text_of(grid)), None)
    found = cells(experiments, *grid)
    assert len(found) == len(set(found))
    assert set(found) == set(itertools.product(*grid.values()))


@given(grid=grids(), data=st.data())
def test_the_order_of_keys_means_nothing(grid: dict[str, list[Any]], data: st.DataObject) -> None:
    shuffled = {name: grid[name] for name in data.draw(st.permutations(list(grid)))}
    assert expand(parse(text_of(grid)), None) == expand(parse(text_of(shuffled)), None)


@given(grid=grids().filter(bool), data=st.data())
def test_an_exclusion_drops_what_it_names_and_adds_nothing(
    grid: dict[str, list[Any]], data: st.DataObject
) -> None:
    whole = expand(parse(text_of(grid)), None)
    name = data.draw(st.sampled_from(sorted(grid)))
    table = {name: data.draw(st.sampled_from(grid[name]))}
    expected = tuple(one for one in whole if getattr(one, name) != table[name])
    if expected:
        assert expand(parse(text_of(grid, [table])), None) == expected
    else:
        with pytest.raises(InputError, match="everything is excluded"):
            expand(parse(text_of(grid, [table])), None)


@given(text=st.text(max_size=60))
@settings(max_examples=50)
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for whole in (text, HEAD + text, HEAD + BASE + GROUP + f"variants = [{toml(text)}]"):
        said = []
        for _ in range(2):
            try:
                said.append(repr(parse(whole)))
            except InputError as error:
                said.append(str(error))
        assert said[0] == said[1]
        assert len(said[0].splitlines()) == 1


# Selecting


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return load_study(write(tmp_path_factory.mktemp("study"), HEAD + BASE + VARIANTS))


def test_only_keeps_what_fits_all_fields_and_one_value_of_each(chosen: Study) -> None:
    kept = select(chosen, only=["epsilon=1", "epsilon = 4.0", "seed=1"])
    assert cells(kept.experiments, "epsilon", "seed") == [(1.0, 1), (4.0, 1)]
    assert cells(select(chosen, only=["epsilon=none"]).experiments, "variant") == [("Fine-tuned",)] * 2
    assert cells(select(chosen, only=["one"]).experiments, "group") == [("one",)]
    assert cells(select(chosen, only=["both", "DP"]).experiments, "group", "variant") == [("both", "DP")] * 4
    assert len(select(chosen, only=["group=one"]).experiments) == 1
    assert len(select(chosen, only=["sampling=shuffled"]).experiments) == 2
    assert select(chosen) == chosen


def test_a_parameter_can_be_selected_by(tmp_path: Path) -> None:
    text = """
    [[group]]
    name = "clips"
    grid = { mechanism_parameters = [{ l2_clip_norm = 1.0 }, { l2_clip_norm = 2.0 }] }
    """
    study = load_study(write(tmp_path, HEAD + BASE + textwrap.dedent(text)))
    kept = select(study, only=["mechanism_parameters.l2_clip_norm=2"])
    assert [one.mechanism_parameters for one in kept.experiments] == [{"l2_clip_norm": 2.0}]


def test_a_seed_is_selected_by_all_its_digits(tmp_path: Path) -> None:
    seeds = (2**63 - 1, 2**53, 2**53 + 1)
    text = HEAD + BASE.replace("seed = 0", "") + f'[[group]]\nname = "one"\ngrid = {{ seed = {list(seeds)} }}'
    study = load_study(write(tmp_path, text))
    for seed in seeds:
        assert [one.seed for one in select(study, only=[f"seed={seed}"]).experiments] == [seed]


def test_limit_keeps_the_first_ones(chosen: Study) -> None:
    assert select(chosen, limit=3).experiments == chosen.experiments[:3]
    assert select(chosen, limit=100) == chosen
    assert select(chosen, only=["one"], limit=1).experiments == chosen.experiments[-1:]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["sed=1"], "unknown field 'sed'; did you mean 'seed'?"),
        (["seed=3"], "no experiment has seed = 3; there are 0, 1"),
        (["seed=1", "seed=3"], "no experiment has seed = 3"),
        (["epsilon=lots"], "no experiment has epsilon = lots; there are 1, 4, none"),
        (["Fine-tune"], "unknown group or variant 'Fine-tune'; did you mean 'Fine-tuned'?"),
        (["group=oen"], "unknown group 'oen'; did you mean 'one'?"),
        (["one", "epsilon=none"], "no experiment of study 'mine' matches one and epsilon=none"),
        (["mechanism_parameters=1"], "unknown field 'mechanism_parameters'"),
    ],
)
def test_a_selection_that_cannot_be_meant_is_refused(chosen: Study, only: list[str], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        select(chosen, only=only)
    assert expected in str(caught.value)


@pytest.mark.parametrize("limit", [0, -1, True])
def test_a_limit_below_one_is_refused(chosen: Study, limit: int) -> None:
    with pytest.raises(InputError, match="limit must be at least 1"):
        select(chosen, limit=limit)


# The studies that ship

SHIPPED = [(name, profile) for name in study_names() for profile in profiles(name)]


def test_dp_weights_ships() -> None:
    assert "dp_weights" in study_names()
    assert profiles("dp_weights") == ["quick", "medium", "full", "decide"]


@pytest.mark.parametrize(("name", "profile"), SHIPPED)
def test_every_profile_of_a_shipped_study_loads(name: str, profile: str) -> None:
    study = load_study(name, profile=profile)
    assert study.profile == profile
    assert study.title
    assert study.notes
    assert study == load_study(name, profile=profile)


def test_a_shipped_study_goes_by_path_too() -> None:
    with as_file(files("workbench.reports") / "papers" / "dp_weights" / "dp_weights.toml") as path:
        assert load_study(str(path)) == load_study("dp_weights")


def test_dp_weights_covers_the_papers_grid() -> None:
    study = load_study("dp_weights", profile="full")
    by_group = {
        group: [one for one in study.experiments if one.group == group] for group in ("batch size", "epochs")
    }
    assert {(one.batch_size, one.epochs) for one in by_group["batch size"]} == {
        (b, 10) for b in (5, 10, 50, 100)
    }
    assert {(one.batch_size, one.epochs) for one in by_group["epochs"]} == {(100, e) for e in (1, 5, 10, 20)}
    epsilons = {one.epsilon for one in study.experiments} - {None}
    assert len(epsilons) == 28
    assert (min(epsilons), max(epsilons)) == (1.0, 1000.0)  # type: ignore[type-var]
    assert {one.members for one in study.experiments} == {1000}
    assert {one.delta for one in study.experiments} == {1e-6, None}
    assert {one.seed for one in study.experiments} == {0, 1, 2, 3, 4}
    for group in by_group.values():
        counts = {name: sum(one.variant == name for one in group) for name in {one.variant for one in group}}
        budgeted = 4 * 28 * 5
        assert counts == {
            "DP-SGD": budgeted,
            "DP-Weights": budgeted,
            "DP-Weights (eq. 1)": budgeted,
            "Fine-tuned": 4 * 5,
        }
    assert {one.attack_parameters["canaries"] for one in study.experiments} == {0.0}
    for one in study.experiments:
        assert (one.sampling is Sampling.POISSON) == (one.variant == "DP-SGD")

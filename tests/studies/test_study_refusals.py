"""What a study file may not say, and the one line with which each mistake is refused."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.studies.study import load_study

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


PLAIN = HEAD + BASE + GROUP


def based(old: str, new: str) -> str:
    """A good file with one thing changed in its base."""
    return HEAD + BASE.replace(old, new) + GROUP


def grouped(old: str, new: str) -> str:
    """A good file with one thing changed in its group."""
    return HEAD + BASE + GROUP.replace(old, new)


def varied(old: str, new: str) -> str:
    """A good file with variants, one thing changed in them or their groups."""
    return HEAD + BASE + VARIANTS.replace(old, new)


def profiled(old: str, new: str) -> str:
    """A good file with profiles, one thing changed in them or their groups."""
    return HEAD + BASE + PROFILES.replace(old, new)


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    """A study file; returns its path."""
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


def refusal(folder: Path, text: str, profile: str | None = None) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(InputError) as caught:
        load_study(write(folder, text), profile=profile)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("study 'mine': ")
    return message.removeprefix("study 'mine': ")


REFUSALS = {
    "line of a syntax error": (HEAD + "x = = 1", "is no TOML: Invalid value (at line 5, column 5)"),
    "too deep": (HEAD + "x = " + "[" * 5000, "is no TOML: "),
    "too long a number": (HEAD + "x = " + "9" * 5000, "is no TOML: "),
    "key": (HEAD + "grup = 1", "unknown key 'grup'; did you mean 'group'?"),
    "schema": (HEAD.replace("schema = 1", "schema = 2"), "schema must be 1, got 2"),
    "no schema": ('title = "t"', "schema must be 1, got none"),
    "boolean schema": ("schema = true", "schema must be 1, got True"),
    "title": ('schema = 1\nreplication = "seed"', "title is missing"),
    "control characters": (HEAD.replace("A study", "A\\u001b study"), "title must be a text on one line"),
    "replication": (
        HEAD.replace('"seed"', '"sed"') + BASE + GROUP,
        "unknown field of replication 'sed'; did you mean 'seed'?",
    ),
    "paper": (HEAD + 'paper = "dp_weight"', "unknown paper 'dp_weight'; did you mean 'dp_weights'?"),
    "report": (HEAD + 'report = "no such"' + BASE + GROUP, "unknown report 'no such'"),
    "notes": (HEAD + 'notes = "one"', "notes must be a list of texts, got 'one'"),
    "field": (
        HEAD + BASE + "epoch = 2" + GROUP,
        "base: unknown field 'epoch'; did you mean 'epochs'?",
    ),
    "name as field": (HEAD + BASE + 'group = "g"' + GROUP, "base: group is the name of a table"),
    "missing field": (based("members = 100", ""), "group 'one': members is missing"),
    "boolean": (based("= 100", "= true"), "base: members must be a whole number, got True"),
    "fraction": (based("= 100", "= 99.5"), "base: members must be a whole number, got 99.5"),
    "members": (based("= 100", "= 1"), "base: members must be in [2, 1000000000], got 1"),
    "epochs": (based("epochs = 1", "epochs = 0"), "base: epochs must be in [1, "),
    "seed": (based("seed = 0", "seed = -1"), "base: seed must be in [0, "),
    "learning rate": (
        based("1e-3", "inf"),
        "base: learning_rate must be finite and > 0, got inf",
    ),
    "not a number": (
        based("1e-3", "nan"),
        "base: learning_rate must be finite and > 0, got nan",
    ),
    "boolean rate": (based("1e-3", "true"), "base: learning_rate must be a number, got True"),
    "epsilon": (based("epsilon = 1", "epsilon = 0"), "base: epsilon must be finite and > 0"),
    "huge epsilon": (
        based("epsilon = 1", "epsilon = 1" + "0" * 400),
        "base: epsilon must be finite, got (a number of 401 digits)",
    ),
    "delta": (based('"1/N^2"', "1.5"), "base: delta must be in (0, 1), got 1.5"),
    "delta's text": (
        based('"1/N^2"', '"1/N"'),
        'base: delta must be a number or "1/N^2" or "1/(2N)", got \'1/N\'',
    ),
    "sampling": (
        HEAD + BASE + 'sampling = "shuffle"' + GROUP,
        "base: unknown sampling 'shuffle'; did you mean 'shuffled'?",
    ),
    "date": (
        HEAD + BASE + "mechanism_parameters = { x = 2020-01-01 }" + GROUP,
        "base: mechanism_parameters.x must be",
    ),
    "batch size": (
        grouped("[5, 10]", "[5, 101]"),
        "group 'one': batch_size must be in [1, members = 100], got 101",
    ),
    "scored members": (
        HEAD + BASE + "scored_members = 101" + GROUP,
        "group 'one': scored_members must be in [2, members = 100], got 101",
    ),
    "part of an epoch": (
        based("epochs = 1", "epochs = -0.5"),
        "base: epochs must be finite and > 0, got -0.5",
    ),
    "no epoch": (based("epochs = 1", "epochs = 0.0"), "base: epochs must be in [1, 1000000000], got 0"),
    "epsilon without delta": (
        based('delta = "1/N^2"', ""),
        "group 'one': epsilon = 1 is given without delta: a budget needs both",
    ),
    "delta without epsilon": (
        based("epsilon = 1", ""),
        "group 'one': delta = 0.0001 is given without epsilon: a budget needs both",
    ),
    "no group": (HEAD + BASE, "at least one [[group]] table is needed"),
    "a field as a tag": (
        HEAD + BASE + '[[group]]\nname = "one"\ntags = { model = "GPT2" }',
        "group 'one': tags: model is a field of an experiment, and no tag",
    ),
    "a tag's value": (
        HEAD + BASE + '[[group]]\nname = "one"\ntags = { size = 3 }',
        "group 'one': tags: size must be a text on one line, got 3",
    ),
    "tags set as a field": (HEAD + BASE + 'tags = { part = "main" }' + GROUP, "base: tags stand in a group"),
    "group's name": (HEAD + BASE + "[[group]]\nset = {}", "group number 1: name is missing"),
    "group twice": (HEAD + BASE + GROUP + GROUP, "group 'one' is given twice"),
    "group's key": (PLAIN + "grids = {}", "group 'one': unknown key 'grids'; did you mean 'grid'?"),
    "axis": (
        grouped("batch_size", "batchsize"),
        "group 'one': grid: unknown field 'batchsize'; did you mean 'batch_size'?",
    ),
    "axis's value": (
        grouped("[5, 10]", '[5, "10"]'),
        "group 'one': grid: batch_size must be a whole number, got '10'",
    ),
    "no list": (grouped("[5, 10]", "5"), "group 'one': grid: batch_size must be a list of"),
    "empty list": (grouped("[5, 10]", "[]"), "group 'one': grid: batch_size must be a list of"),
    "duplicate": (
        grouped("batch_size = [5, 10]", "epsilon = [1, 1.0]"),
        "group 'one': grid: epsilon = 1.0 is given twice",
    ),
    "duplicate rows": (
        HEAD + BASE + '[[group]]\nname = "one"\nzip = [{ batch_size = [5, 5], seed = [1, 1] }]',
        "group 'one': zip: batch_size = 5, seed = 1 is given twice",
    ),
    "unequal zip": (
        HEAD + BASE + '[[group]]\nname = "one"\nzip = [{ batch_size = [5, 10], seed = [1] }]',
        "group 'one': zip: lists that go together must be of equal length: batch_size has 2, seed has 1",
    ),
    "axis twice": (
        PLAIN + "zip = [{ batch_size = [5], seed = [1] }]",
        "group 'one': batch_size stands in both grid and zip",
    ),
    "axis and set": (PLAIN + "set = { batch_size = 5 }", "batch_size stands in both set and grid"),
    "unknown list": (
        HEAD + BASE + "[lists]\nseeds = [1]\n" + GROUP.replace("batch_size = [5, 10]", 'seed = "$seed"'),
        "lists: unknown list 'seeds'; did you mean 'seed'?",
    ),
    "no such list": (
        grouped("batch_size = [5, 10]", 'seed = "$seeds"'),
        "unknown list 'seeds'",
    ),
    "list's value": (
        HEAD + BASE + "[lists]\nsizes = [5, true]\n" + GROUP.replace("[5, 10]", '"$sizes"'),
        "group 'one': grid: list 'sizes': batch_size must be a whole number, got True",
    ),
    "empty named list": (
        HEAD + BASE + "[lists]\nsizes = []\n" + GROUP,
        "lists: sizes must be a list of at least one",
    ),
    "everything excluded": (
        PLAIN + 'exclude = [{ mechanism = "dp_sgd" }]',
        "group 'one' has no experiments: everything is excluded",
    ),
    "idle exclusion": (
        PLAIN + "exclude = [{ batch_size = 7, seed = 0 }]",
        "group 'one': exclude: nothing matches batch_size = 7, seed = 0",
    ),
    "exclusion's field": (
        PLAIN + "exclude = [{ batchsize = 7 }]",
        "group 'one': exclude: unknown field 'batchsize'; did you mean 'batch_size'?",
    ),
    "exclusion's variant": (
        HEAD + BASE + VARIANTS + 'exclude = [{ variant = "Fine-tune" }]',
        "group 'one': exclude: unknown variant 'Fine-tune'; did you mean 'Fine-tuned'?",
    ),
    "variant": (
        varied('["DP"]', '["PD"]'),
        "group 'one': unknown variant 'PD'; did you mean 'DP'?",
    ),
    "variant's axis": (
        varied('[variant."DP"]', '[variant."DP"]\nseed = 3'),
        "group 'both': seed is an axis here, and variant 'DP' sets it",
    ),
    "idle variant": (
        varied('name = "both"', 'name = "both"\nvariants = ["DP"]'),
        "variant 'Fine-tuned': no group has this variant",
    ),
    "without": (
        varied('["epsilon"]', '["epsilon", "members"]'),
        "variant 'Fine-tuned': without 'members': no group of this variant has that axis",
    ),
    "without's field": (
        varied('["epsilon"]', '["epsilo"]'),
        "variant 'Fine-tuned': without: unknown field 'epsilo'; did you mean 'epsilon'?",
    ),
    "without with delta": (
        varied('without = ["epsilon"]', 'without = ["epsilon"]\ndelta = 0.1'),
        "variant 'Fine-tuned': a variant without epsilon has no delta",
    ),
    "profile's key": (profiled("notes", "note"), "profile 'quick': unknown key 'note'"),
    "profile's list": (
        profiled("{ seeds = [7] }", "{ seed = [7] }"),
        "profile 'quick': lists: unknown list 'seed'; did you mean 'seeds'?",
    ),
    "profile's group": (
        profiled('["few"]', '["fewer"]'),
        "profile 'quick': unknown group 'fewer'; did you mean 'few'?",
    ),
    "profile's field": (
        profiled("{ members = 50 }", "{ members = 0 }"),
        "profile 'quick': base: members must be in [2, ",
    ),
    "mechanism": (
        based("dp_sgd", "dp_sdg"),
        "base: unknown mechanism 'dp_sdg'; did you mean 'dp_sgd'?",
    ),
    "attack": (based('"loss"', '"los"'), "base: unknown attack 'los'; did you mean 'loss'?"),
    "corpus": (based("clinical", "clincal"), "base: unknown corpus 'clincal'; did you mean"),
    "model": (based("tiny_gpt2", "tiny_gpt"), "base: unknown model 'tiny_gpt'; did you mean"),
    "optimizer": (
        HEAD + BASE + 'optimizer = "adam"' + GROUP,
        "base: unknown optimizer 'adam'; did you mean 'adamw'?",
    ),
    "adapter": (
        HEAD + BASE + 'adapter = "lore"' + GROUP,
        "base: unknown adapter 'lore'; did you mean 'lora'?",
    ),
    "mechanism of a list": (
        HEAD + BASE + '[lists]\nm = ["dp_sdg"]\n' + GROUP.replace("batch_size = [5, 10]", 'mechanism = "$m"'),
        "unknown mechanism 'dp_sdg'; did you mean 'dp_sgd'?",
    ),
    "parameter": (
        HEAD + BASE + "mechanism_parameters = { clip = 1.0 }" + GROUP,
        "variant 'dp_sgd': unknown parameter of mechanism 'dp_sgd': 'clip'; did you mean 'clipping'?",
    ),
    "parameter's type": (
        HEAD + BASE + "mechanism_parameters = { l2_clip_norm = true }" + GROUP,
        "mechanism 'dp_sgd': l2_clip_norm must be of type float, got True",
    ),
    "parameter's value": (
        HEAD + BASE + "mechanism_parameters = { l2_clip_norm = -1.0 }" + GROUP,
        "l2_clip_norm must be finite and > 0, got -1.0",
    ),
    "parameter that is no number": (
        HEAD + BASE + "mechanism_parameters = { l2_clip_norm = nan }" + GROUP,
        "base: mechanism_parameters.l2_clip_norm must be a number, got nan",
    ),
    "infinite parameter": (
        HEAD + BASE + "mechanism_parameters = { l2_clip_norm = inf }" + GROUP,
        "mechanism 'dp_sgd': l2_clip_norm must be finite, got inf",
    ),
    "negatively infinite parameter": (
        HEAD + BASE.replace("dp_sgd", "paczero") + "mechanism_parameters = { clip = -inf }" + GROUP,
        "base: mechanism_parameters.clip must be finite, got -inf",
    ),
    "attack's parameter": (
        HEAD + BASE + 'attack_parameters = { score = "confidenc" }' + GROUP,
        "unknown score 'confidenc'; did you mean 'confidence'?",
    ),
    "no parameters": (
        HEAD + BASE.replace("dp_sgd", "non_private") + "mechanism_parameters = { x = 1 }" + GROUP,
        "mechanism 'non_private'",
    ),
    "corpus's own parameter": (
        HEAD + BASE + "corpus_parameters = { size = 5 }" + GROUP,
        "corpus parameter 'size' is set by the study's members",
    ),
    "model needs a parameter": (
        based("tiny_gpt2", "huggingface"),
        "model 'huggingface' needs model_parameters.path",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_mistake_is_refused_in_one_line_that_names_it(case: str, tmp_path: Path) -> None:
    text, expected = REFUSALS[case]
    assert expected in refusal(tmp_path, text)


def test_an_unknown_profile_or_study_is_refused_with_a_hint(tmp_path: Path) -> None:
    text = HEAD + BASE + PROFILES
    assert "unknown profile 'quik'; did you mean 'quick'?" in refusal(tmp_path, text, profile="quik")
    assert "unknown profile 'quick'" in refusal(tmp_path, HEAD + BASE + GROUP, profile="quick")
    with pytest.raises(InputError, match="unknown study 'dp_weight'; did you mean 'dp_weights'"):
        load_study("dp_weight")


def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*No such file"):
        load_study(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match=r"cannot read .*directory"):
        load_study(str(tmp_path / "folder.toml"))
    (tmp_path / "latin.toml").write_bytes(b'title = "\xe9"')
    with pytest.raises(InputError, match="is no UTF-8 text"):
        load_study(str(tmp_path / "latin.toml"))
    with pytest.raises(InputError, match="must start with a letter or digit"):
        load_study(str(tmp_path / "...toml"))


def test_too_many_experiments_are_refused_before_they_are_made(tmp_path: Path) -> None:
    numbers = ", ".join(map(str, range(1, 1001)))
    text = f"""
    [[group]]
    name = "many"
    grid = {{ seed = [{numbers}], epochs = [{numbers}], batch_size = [1, 2] }}
    """
    message = refusal(tmp_path, HEAD + BASE + textwrap.dedent(text))
    assert message == "2000000 experiments are more than 1000000"


def test_a_corpus_with_too_few_records_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HEAD + BASE.replace('"clinical"', '"digits"').replace('"tiny_gpt2"', '"digits_mlp"') + GROUP
    file = tmp_path / "mine.toml"
    file.write_text(text.replace("members = 100", "members = 5000"))
    assert main(["run", str(file), "--out", str(tmp_path / "out"), "--workers", "0"]) == 2
    line = capsys.readouterr().err
    assert "group 'one'" in line
    assert "2 x members must leave room for held_out and public: 10000 + " in line
    assert "has 1797" in line
    assert len(line.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_file_may_start_with_a_byte_order_mark_and_have_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(
        b"\xef\xbb\xbf" + (HEAD + BASE + GROUP).replace("\n", "\r\n").encode()
    )
    assert len(load_study(str(tmp_path / "mine.toml")).experiments) == 2


def test_a_device_that_never_ends_is_refused() -> None:
    with pytest.raises(InputError, match="cannot read /dev/zero: Not a regular file"):
        load_study("/dev/zero")


@pytest.mark.parametrize("depth", [21, 3000])
def test_a_parameter_that_lies_too_deep_is_refused(tmp_path: Path, depth: int) -> None:
    text = based("[base]", f"[base]\nmechanism_parameters{'.x' * depth} = 1")
    found = refusal(tmp_path, text)
    assert "must not be nested deeper than 20 levels" in found

"""The small bases: what they are made of, that a stopped build goes on, and that damage is noticed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError
from workbench.data import docstrings
from workbench.data.bases import builds, checkpoint, narrative_bases
from workbench.data.bases import catalogue as room
from workbench.data.bases.texts import public as pretraining_text
from workbench.data.shared.near_duplicates import near_duplicates
from workbench.data.shared.parts import normal_form
from workbench.interfaces import Record
from workbench.studies import bases
from workbench.studies.bases import BuildStage, BuildStep
from workbench.training.models import LanguageModel

BUILT = tuple(room.RECIPES)
EVERY = (*BUILT, "gpt2_base")
MICRO = tuple(name for name in BUILT if name.startswith("micro_"))
SHIPPED_RECIPES = {name: room.RECIPES[name] for name in MICRO}
STEPS = 6
TEXTS = (
    "Patient is 63 years old.",
    "A longer record, with many more words than the others have, so that all of those are padded.",
    "secret_id=A7QK20ZZ91",
)
RECORDS = [Record(id=str(i), text=text) for i, text in enumerate(TEXTS)]


def put_text(texts: list[str]) -> None:
    """Put texts of our own where the public text is cached, which building processes read too."""
    half = len(texts) // 2
    found = {"packages": texts[:half], "python": texts[half:], "docstrings": texts[::40]}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pretraining_text, "_collect", lambda: found)
        for place in Path(os.environ["WORKBENCH_CACHE"]).glob("base-text-*"):
            place.unlink()
        pretraining_text.load()


def squares(first: int = 0) -> list[str]:
    """Texts of our own."""
    numbers = range(first, first + 400)
    return [f"The square of the number {i}, which is what this text is about, is {i * i}." for i in numbers]


@pytest.fixture(autouse=True)
def few_steps(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes of six small steps on a text of our own."""
    for name, recipe in room.RECIPES.items():
        pace = replace(recipe.pace, batch_tokens=64, block=16, positions=32, warm_up_steps=2)
        monkeypatch.setitem(room.RECIPES, name, replace(recipe, steps=STEPS, pace=pace))
    put_text(squares())


def weights(folder: Path) -> bytes:
    """What two builds are compared by."""
    return (folder / checkpoint.WEIGHTS).read_bytes()


def fingerprint(name: str, **parameters: str) -> str:
    """What the keys of results hold of a model's files."""
    facets: Any = registry.entries("model")[name].facets
    return str(facets.fingerprint(**parameters))


class Stopping:
    """A progress callback that raises after a step of the training."""

    def __init__(self, after: int) -> None:
        """Raise after this step; 0 for never."""
        self.after = after
        self.steps: list[BuildStep] = []

    def __call__(self, step: BuildStep) -> None:
        """Keep the step."""
        self.steps.append(step)
        if step.stage is BuildStage.TRAINING and step.done == self.after:
            raise KeyboardInterrupt

    @property
    def trained(self) -> list[int]:
        """The training's steps that were told."""
        return [step.done for step in self.steps if step.stage is BuildStage.TRAINING]


def test_there_are_six_and_others_for_tasks_and_the_shipped_one_needs_no_build() -> None:
    others = {"bert_base", "gpt2_large_base", "roberta_base", "vit_base"}
    others |= {"micro_question", "micro_sentiment", "question_base", "sentiment_base"}
    narratives = set(narrative_bases.RECIPES)
    assert set(bases.names()) == {*EVERY, *others, *narratives}
    assert set(EVERY) <= set(registry.entries("model"))
    assert {name for name in bases.names() if bases.find(name).is_built()} == {"gpt2_base", *narratives}
    assert bases.missing(["tiny_gpt2", "llama_base", "gpt2_base", "llama_base"]) == ("llama_base",)
    with pytest.raises(InputError, match="unknown base 'qwen_base'; did you mean 'qwen2_base'"):
        bases.ensure(["qwen_base"])


@pytest.mark.parametrize("name", EVERY)
def test_a_base_has_about_a_million_parameters_as_its_card_says(name: str) -> None:
    if name in room.RECIPES:
        module = room.RECIPES[name].new_module()
    else:
        module = registry.create("model", name, seed=0).module
    count = sum(p.numel() for p in module.parameters())
    assert bases.find(name).card().parameters == count
    if name in MICRO:
        assert 0.7 < count / 1e5 < 1.3
    else:
        assert 0.9 < count / 1e6 < 1.2


@pytest.mark.parametrize("name", MICRO)
def test_a_shipped_base_is_of_todays_recipe_and_the_same_everywhere(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(room.RECIPES, name, SHIPPED_RECIPES[name])
    base = bases.find(name)
    assert base.is_built()
    assert base.build(Stopping(after=0)).parent == builds.SHIPPED
    assert not list(cache.glob("bases/*micro_*"))
    model = registry.create("model", name, seed=0)
    recipe = checkpoint.read_json(builds.SHIPPED / name / checkpoint.RECIPE)
    assert recipe["sample"] == checkpoint.sample_json(builds.SHIPPED / name, model.module)
    other = replace(SHIPPED_RECIPES[name], steps=SHIPPED_RECIPES[name].steps + 1)
    monkeypatch.setitem(room.RECIPES, name, other)
    assert not bases.find(name).is_built()


def test_the_families_keep_their_proportions() -> None:
    configs = {name: recipe.new_module().config for name, recipe in room.RECIPES.items()}
    kinds = ("qwen2", "llama", "bloom", "llama", "mistral", "gpt2")
    assert tuple(config.model_type for config in configs.values()) == (*kinds, *kinds[:5])
    tied = ["bloom_base", "smollm_base", "micro_base", "micro_bloom", "micro_smollm"]
    assert [name for name in BUILT if configs[name].tie_word_embeddings] == tied
    llama, smollm = configs["llama_base"], configs["smollm_base"]
    assert 1 < llama.num_key_value_heads < llama.num_attention_heads
    assert smollm.num_attention_heads == 3 * smollm.num_key_value_heads  # SmolLM-360M: 15 and 5
    assert smollm.num_hidden_layers > 2 * llama.num_hidden_layers
    assert smollm.hidden_size < llama.hidden_size
    mistral = configs["mistral_base"]
    assert mistral.num_attention_heads == 4 * mistral.num_key_value_heads  # Mistral-7B: 32 and 8
    assert mistral.intermediate_size == 3.5 * mistral.hidden_size  # 14,336 and 4,096


def test_mistral_looks_back_as_far_as_its_window() -> None:
    """One layer's output knows the last `sliding_window` tokens and no others; without a window, all."""
    tokens = torch.arange(1, 21)[None]
    other = tokens.clone()
    other[0, 3] = 30
    for window, changed in ((4, range(3, 7)), (None, range(3, 20))):
        config = {**room.RECIPES["mistral_base"].config, "sliding_window": window, "num_hidden_layers": 1}
        module = replace(room.RECIPES["mistral_base"], config=config).new_module().eval()
        with torch.no_grad():
            apart = (module(input_ids=tokens).logits - module(input_ids=other).logits).abs().amax(-1)[0]
        assert [int(i) for i in torch.nonzero(apart > 1e-7)] == list(changed)


def test_a_base_that_is_not_built_names_the_command() -> None:
    sentence = "model 'llama_base' is not built: run `workbench models build llama_base`"
    with pytest.raises(InputError, match=sentence):
        registry.create("model", "llama_base", seed=0)
    with pytest.raises(InputError, match=sentence):
        fingerprint("llama_base")


@pytest.mark.thinned
@pytest.mark.parametrize("name", BUILT)
def test_a_built_base_is_a_language_model_whose_rows_are_alone(name: str) -> None:
    told = Stopping(after=0)
    folder = bases.find(name).build(told)
    assert told.trained == list(range(1, STEPS + 1))
    assert bases.find(name).is_built()
    model = registry.create("model", name, seed=3)
    assert isinstance(model, LanguageModel)
    assert model.name == name
    with torch.no_grad():
        together = model.losses(model.encode(RECORDS))
        alone = torch.cat([model.losses(model.encode([record])) for record in RECORDS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    theirs = registry.create("model", "huggingface", seed=0, path=str(folder))
    torch.testing.assert_close(theirs.losses(theirs.encode(RECORDS)), together, atol=1e-5, rtol=1e-5)
    again = Stopping(after=1)
    assert bases.find(name).build(again) == folder
    assert again.steps == []
    assert [path.name for path in folder.parent.iterdir() if path.name.endswith(".work")] == []


def test_training_lowers_the_loss_and_the_recipe_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(room.RECIPES, "llama_base", replace(room.RECIPES["llama_base"], steps=40))
    folder = bases.find("llama_base").build(lambda step: None)
    recipe = checkpoint.read_json(folder / checkpoint.RECIPE)
    tenths = recipe["training_loss_by_tenths"]
    assert len(tenths) == 10
    assert tenths[-1] < tenths[0] - 1
    assert {"sources", "text_sha256", "versions", "threads", "validation", "key"} <= set(recipe)
    card = bases.find("llama_base").card()
    assert card.perplexity == recipe["validation"]["docstrings"]["perplexity_per_token"]
    assert card.size_bytes == len(weights(folder))


def test_the_bytes_depend_neither_on_threads_nor_on_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    first = weights(bases.find("smollm_base").build(lambda step: None))
    print_before = fingerprint("smollm_base")
    shutil.copytree(os.environ["WORKBENCH_CACHE"], tmp_path / "other", ignore=shutil.ignore_patterns("bases"))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "other"))
    torch.set_num_threads(2)
    try:
        assert weights(bases.find("smollm_base").build(lambda step: None)) == first
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert fingerprint("smollm_base") == print_before


def test_a_stopped_build_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights(bases.find("qwen2_base").build(lambda step: None))
    shutil.copytree(os.environ["WORKBENCH_CACHE"], tmp_path / "other", ignore=shutil.ignore_patterns("bases"))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "other"))
    with pytest.raises(KeyboardInterrupt):
        bases.find("qwen2_base").build(Stopping(after=4))
    assert not bases.find("qwen2_base").is_built()
    rest = Stopping(after=0)
    assert weights(bases.find("qwen2_base").build(rest)) == whole
    assert rest.trained == [5, 6]


def test_a_kept_state_of_other_text_or_a_broken_one_is_not_used() -> None:
    for spoil in (lambda: put_text(squares(1000)), _break_states):
        with pytest.raises(KeyboardInterrupt):
            bases.find("llama_base").build(Stopping(after=3))
        spoil()
        rest = Stopping(after=1)
        with pytest.raises(KeyboardInterrupt):
            bases.find("llama_base").build(rest)
        assert rest.trained == [1]


def _break_states() -> None:
    """Cut the kept states short."""
    for state in Path(os.environ["WORKBENCH_CACHE"]).glob("bases/.*.work/state"):
        state.write_bytes(state.read_bytes()[:1000])


@pytest.mark.thinned
@pytest.mark.parametrize("file", [*builds.HASHED, checkpoint.RECIPE])
def test_damage_is_refused_in_one_line_and_a_build_mends_it(file: str) -> None:
    folder = bases.find("llama_base").build(lambda step: None)
    whole, content = weights(folder), bytearray((folder / file).read_bytes())
    content[-5] ^= 1
    (folder / file).write_bytes(content if file != checkpoint.RECIPE else content[:40])
    assert not bases.find("llama_base").is_built()
    for ask in (
        lambda: registry.create("model", "llama_base", seed=0),
        lambda: fingerprint("llama_base"),
    ):
        with pytest.raises(InputError, match="run `workbench models build llama_base`") as caught:
            ask()
        assert "\n" not in str(caught.value)
        assert str(folder) in str(caught.value)
    assert weights(bases.find("llama_base").build(lambda step: None)) == whole
    assert bases.find("llama_base").is_built()


def test_two_builds_of_one_base_wait_for_each_other() -> None:
    recipe = room.RECIPES["bloom_base"]
    lock = room.cached("bloom_base").folder()
    lock.parent.mkdir(parents=True)
    waits: list[BuildStage] = []

    class WaitedError(Exception):
        """The build told that it waits."""

    def told(step: BuildStep) -> None:
        waits.append(step.stage)
        raise WaitedError

    with (
        builds.locked(lock.with_name(f".{recipe.name}-{recipe.key}.lock"), lambda: None),
        pytest.raises(WaitedError),
    ):
        bases.find("bloom_base").build(told)
    assert waits == [BuildStage.WAITING]


@pytest.mark.slow
def test_processes_build_what_is_missing_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[BuildStep] = []
    assert bases.ensure(["llama_base", "gpt2_base", "llama_base"], steps.append, workers=2) == ("llama_base",)
    assert [step.done for step in steps if step.stage is BuildStage.TRAINING] == list(range(1, STEPS + 1))
    assert bases.ensure(["llama_base"], steps.append) == ()
    built = weights(bases.find("llama_base").card().place)
    shutil.copytree(os.environ["WORKBENCH_CACHE"], tmp_path / "other", ignore=shutil.ignore_patterns("bases"))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "other"))
    assert weights(bases.find("llama_base").build(lambda step: None)) == built


@pytest.mark.slow
def test_a_process_that_dies_or_refuses_is_told_in_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(room.RECIPES, "llama_base", replace(room.RECIPES["llama_base"], steps=100_000))

    def kill(step: BuildStep) -> None:
        if step.done == 2:
            (child,) = _children()
            os.kill(child, signal.SIGKILL)

    with pytest.raises(InconclusiveError, match=r"base 'llama_base': 2 workers died .*killed by SIGKILL"):
        bases.ensure(["llama_base"], kill)
    (cache / "bases" / f".{room.cached('llama_base').folder().name}.lock").unlink()
    (cache / "bases" / f".{room.cached('llama_base').folder().name}.lock").mkdir()
    with pytest.raises(InputError, match=r"base 'llama_base': .*Is a directory"):
        bases.ensure(["llama_base"])


def _children() -> list[int]:
    """Process ids of the builders that this process has started."""
    from multiprocessing import active_children

    return [child.pid for child in active_children() if child.pid is not None]


@pytest.mark.slow
def test_what_the_caller_raises_ends_the_processes_and_keeps_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(room.RECIPES, "llama_base", replace(room.RECIPES["llama_base"], steps=100_000))
    with pytest.raises(KeyboardInterrupt):
        bases.ensure(["llama_base"], Stopping(after=3))
    assert _children() == []
    rest = Stopping(after=0)

    def first(step: BuildStep) -> None:
        rest(step)
        if step.stage is BuildStage.TRAINING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bases.find("llama_base").build(first)
    assert rest.trained[0] > 3


def test_a_local_folder_stands_in_for_any_base(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(bases.find("bloom_base").build(lambda step: None), folder)
    own = registry.create("model", "bloom_base", seed=0)
    expected = own.losses(own.encode(RECORDS))
    prints = set()
    for name in EVERY:
        model = registry.create("model", name, seed=0, path=str(folder), max_length=64)
        assert model.name == name
        torch.testing.assert_close(model.losses(model.encode(RECORDS)), expected, atol=1e-5, rtol=1e-5)
        prints.add(fingerprint(name, path=str(folder)))
    assert len(prints) == 1  # of the files, not of the built weights
    assert fingerprint("bloom_base") not in prints
    with pytest.raises(InputError, match="path must be a local folder with a model, got 'no/such'"):
        registry.create("model", "llama_base", seed=0, path="no/such")
    (folder / checkpoint.WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickled weights only"):
        registry.create("model", "llama_base", seed=0, path=str(folder))


@pytest.mark.parametrize("name", ["bloom_base", "gpt2_base", "llama_base"])
@pytest.mark.parametrize("max_length", [1, 513])
def test_a_length_beyond_the_positions_is_refused(name: str, max_length: int) -> None:
    bases.find(name).build(lambda step: None)
    with pytest.raises(InputError, match=f"max_length must be .*, got {max_length}"):
        registry.create("model", name, seed=0, max_length=max_length)


def test_the_text_leaves_out_what_the_corpus_docstrings_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = [f"Return the {word} of the values along the given axis." for word in ("mean", "sum", "product")]
    own = "Draw a graph of nodes and edges in the plane, with no two edges that cross each other."
    monkeypatch.setattr(docstrings, "load_texts", lambda: corpus)
    monkeypatch.setattr(docstrings, "collect", lambda packages: [corpus[0].upper(), own, own + " Again."])
    monkeypatch.setattr(
        pretraining_text, "_reference", lambda: ["Along the given axis, return the mean of the values."]
    )
    near = "Return the mean of the values along the given axis, as a number."
    monkeypatch.setattr(pretraining_text, "_standard_library", lambda: [near, "x" * 30_000])
    found = pretraining_text._collect()
    assert found["packages"] == [own]
    assert near not in found["python"]
    assert not any(len(text) > pretraining_text.LONGEST_BYTES for text in found["python"])
    assert not set(pretraining_text.PACKAGES) & set(docstrings.PACKAGES)


def test_only_texts_are_trained_on_that_are_not_held_out() -> None:
    text = pretraining_text.load()
    train = {one for source in text.sources for one in source.train}
    held_out = {one for source in text.sources for one in source.held_out}
    assert train
    assert held_out
    assert not train & held_out


def test_a_long_topic_is_cut_between_paragraphs() -> None:
    paragraphs = [f"Paragraph {i} " + "of some words " * 60 for i in range(6)]
    parts = pretraining_text._in_parts("\n\n".join(paragraphs))
    assert "\n\n".join(parts) == "\n\n".join(paragraphs).strip()
    assert max(map(len, parts)) < 2000 + len(paragraphs[0])
    assert len(parts) == 3


@pytest.mark.slow
def test_no_base_has_seen_a_record_of_the_corpus_docstrings(cache: Path) -> None:
    shutil.rmtree(cache)
    text = pretraining_text.load()
    train = [one for source in text.sources for one in source.train]
    assert len(train) > 5_000
    made = registry.create("corpus", "docstrings", size=4_000, seed=5, held_out=1_000, public=10)
    handed_out = [record.text for record in (*made.records, *made.held_out)]
    assert not {normal_form(one) for one in handed_out} & {normal_form(one) for one in train}
    whole = docstrings.load_texts()
    flags = near_duplicates([*whole, *train], docstrings.SIMILARITY)[len(whole) :]
    # What is left repeats another text that is trained on: the threshold among those is higher.
    repeats = [one for one, flag in zip(train, flags, strict=True) if flag]
    alone = near_duplicates(train, docstrings.SIMILARITY)
    assert len(repeats) == sum(alone)


BUILDING = """
import json, sys
from dataclasses import replace
from workbench.studies import bases
from workbench.data.bases import builds
from workbench.data.bases import catalogue as room

if __name__ == "__main__":
    builds.SAVE_SECONDS = 1.0
    room.RECIPES["qwen2_base"] = replace(room.RECIPES["qwen2_base"], steps=30)

    def told(step):
        print(step.stage.name, step.done, flush=True)

    print("BUILT", bases.find("qwen2_base").build(told), flush=True)
"""


@pytest.mark.slow
def test_a_build_that_is_killed_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(BUILDING, encoding="utf-8")
    caches = [tmp_path / "whole", tmp_path / "killed"]
    for place in caches:
        shutil.copytree(os.environ["WORKBENCH_CACHE"], place, ignore=shutil.ignore_patterns("bases"))

    def start(place: Path) -> subprocess.Popen[str]:
        environment = {**os.environ, "WORKBENCH_CACHE": str(place), "TRANSFORMERS_VERBOSITY": "error"}
        return subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def finish(place: Path) -> tuple[bytes, list[str]]:
        with start(place) as process:
            out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        lines = out.split("\n")
        return weights(Path(lines[-2].removeprefix("BUILT "))), lines

    whole, _ = finish(caches[0])
    with start(caches[1]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if any(caches[1].glob("bases/.*.work/state")) and line.startswith("TRAINING"):
                process.kill()
                break
        process.wait()
    killed_at = int(line.split()[1])
    assert killed_at < 30
    resumed, lines = finish(caches[1])
    first = int(next(line for line in lines if line.startswith("TRAINING")).split()[1])
    assert 1 < first <= killed_at + 1
    assert resumed == whole


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_build_has_one_thread_however_many_the_process_has(workers: int, cache: Path) -> None:
    before = torch.get_num_threads()
    built = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            seen: list[int] = []
            bases.ensure(
                ["llama_base"], lambda _, seen=seen: seen.append(torch.get_num_threads()), workers=workers
            )
            assert torch.get_num_threads() == threads
            assert workers or set(seen) == {1}
            folder = Path(bases.find("llama_base").card().place or "")
            built.append(weights(folder))
            shutil.rmtree(folder)
    finally:
        torch.set_num_threads(before)
    assert built[0] == built[1]

"""Four classification tasks on clinical narratives, in the places of SST-2, QQP, MNLI and QNLI.

Labels follow from the encounters, never from a person's judgement:

- "outcome" (SST-2): was the treatment raised (1) or lowered (0), on balance over the drugs in the text?
- "pairs" (QQP): do two narratives tell of the same encounter (1), in other words and with other clauses, or
  is the second one of another encounter, the most similar of seven (0)?
- "inference" (MNLI): does a narrative entail a statement (0), not say it (1), or contradict it (2)?
- "answers" (QNLI): does a narrative hold the answer to a question (1), or not (0)?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.clinical import GENERATED, load_encounters
from workbench.data.clinical.encounters import Encounter
from workbench.data.clinical.examples import BLOCK, MAKERS, Words
from workbench.data.clinical.generator import generate
from workbench.data.clinical.questions import TOPICS
from workbench.data.clinical.wordings import DOSES, RETOLD, TOLD
from workbench.data.shared.parts import Sizes, checked_seed, normal_form, part_sizes, split
from workbench.interfaces import Corpus, Record
from workbench.training.tasks import PAIR_MARK, classes_of

WORDS = Words(retold=RETOLD, doses=DOSES, asked={name: (TOPICS[name].question,) for name in TOLD})
"""The corpus's wordings."""

PAIR_CLAUSES = 2
"""Of each narrative of task "pairs", of which one speaks of the same attribute in both."""

MOST_BLOCKS = 20
"""Blocks that are drawn for each record that is wanted before the generator is given up."""

_AT_ONCE = 128
"""Blocks that are generated together."""


def _generated(generator: np.random.Generator, wanted: int) -> Iterator[Sequence[Encounter]]:
    """Blocks of generated encounters, as many as may be drawn."""
    for start in range(0, MOST_BLOCKS * wanted, _AT_ONCE):
        drawn = generate(_AT_ONCE * BLOCK, generator, first=start * BLOCK)
        yield from (drawn[i : i + BLOCK] for i in range(0, len(drawn), BLOCK))


def _read(path: str) -> Iterator[Sequence[Encounter]]:
    """Blocks of the file's encounters, each in one."""
    encounters = load_encounters(path)
    yield from (encounters[i : i + BLOCK] for i in range(0, len(encounters) - BLOCK + 1, BLOCK))


def _records(
    blocks: Iterator[Sequence[Encounter]], task: str, wanted: int, generator: np.random.Generator
) -> list[Record]:
    """Records with distinct texts, of each class as many as of any other, up to one; as many as there are."""
    classes = classes_of(task)
    words = replace(WORDS, clauses=(PAIR_CLAUSES,)) if task == "pairs" else WORDS
    records: list[Record] = []
    seen: set[str] = set()
    for block in blocks:
        if len(records) == wanted:
            break
        label = len(records) % classes
        example = MAKERS[task](block, label, words, generator)
        text = "" if example is None else PAIR_MARK.join(example)
        if example is None or normal_form(text) in seen:
            continue
        seen.add(normal_form(text))
        records.append(Record(id=f"clinical_tasks-{block[0].encounter_id}", text=text, label=label))
    return records


@register("corpus", "clinical_tasks")
def clinical_tasks(
    *,
    size: int,
    seed: int,
    task: str = "outcome",
    path: str | None = None,
    held_out: int | None = None,
    public: int | None = None,
) -> Corpus:
    """Classification of hospital encounters (as SST-2, QQP, MNLI, QNLI); texts or pairs, generated or UCI's.

    No two texts are alike, and classes are as large as each other before the split. The two texts of a pair
    stand in `Record.text` with `workbench.training.tasks.PAIR_MARK` between them. Public records follow
    the private ones' distribution.

    Args:
        size, seed, held_out, public: See `workbench.data.shared.parts.part_sizes`.
        task: "outcome", "pairs", "inference" (three classes) or "answers".
        path: The real `diabetic_data.csv`; None generates. Every record takes eight of its encounters.

    Raises `InputError`: a parameter or the file is unusable.
    """
    sizes, generator = part_sizes(size, held_out, public), checked_seed(seed)
    classes = classes_of(task)
    records = _drawn(sizes, task, path, generator)
    if path is None:
        what, origin = "the generator", f"task {task!r} of ours on encounters {GENERATED}"
    else:
        what = f"{path!r} (eight encounters a record)"
        origin = f"task {task!r} of ours on encounters of {Path(path).name} (UCI data set 296)"
    parts = split(records, sizes, generator, what)
    return Corpus(name="clinical_tasks", kind="text", classes=classes, origin=origin, **parts._asdict())


def _drawn(sizes: Sizes, task: str, path: str | None, generator: np.random.Generator) -> list[Record]:
    """The records of all parts."""
    if path is not None:
        return _records(_read(path), task, sizes.total, generator)
    # The encounters have a stream of their own, so that wordings do not decide which are drawn.
    encounters, wordings = generator.spawn(2)
    records = _records(_generated(encounters, sizes.total), task, sizes.total, wordings)
    if len(records) < sizes.total:
        raise InputError(
            f"size must be smaller, got {sizes.candidates}: task {task!r} tells only {len(records)} of "
            f"{sizes.total} generated encounters apart"
        )
    return records

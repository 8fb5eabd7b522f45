"""SST-2 and SQuAD from the user's own files, for the prompts of MeZO; nothing is downloaded.

SST-2 is the task folder of GLUE (`train.tsv`, `dev.tsv`: a header, then sentence, tab, label, unquoted);
SQuAD is the JSON of version 1.1. Socher et al. 2013, Wang et al. 2019, Rajpurkar et al. 2016.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.shared.parts import (
    Parts,
    Sizes,
    checked_seed,
    given_path,
    majority,
    normal_form,
    part_sizes,
    pick,
    require,
    split,
    without_duplicates,
)
from workbench.interfaces import Corpus, Record
from workbench.training.tasks import question_text

LABELS = {"0": 0, "1": 1}


def _read(path: str | Path) -> str:
    """The text of a file."""
    try:
        return Path(path).expanduser().read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"path must be a readable file, got {str(path)!r}: {error}") from error


def read_sst2(path: str | Path) -> list[Record]:
    """The sentences of a file of GLUE's SST-2, the first of those with the same text; no quoting."""
    lines = _read(path).split("\n")
    header = lines[0].rstrip("\r").split("\t")
    absent = [name for name in ("sentence", "label") if name not in header]
    if absent:
        raise InputError(f"path must be GLUE's SST-2 with labels; {str(path)!r} has no column {absent[0]!r}")
    text_place, label_place = header.index("sentence"), header.index("label")
    records = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = line.rstrip("\r").split("\t")
        where = f"line {number} of {str(path)!r}"
        if len(cells) != len(header):
            raise InputError(f"{where} has {len(cells)} cells, the header {len(header)}")
        text, label = " ".join(cells[text_place].split()), cells[label_place].strip()
        if label not in LABELS:
            raise InputError(f"{where} must have label 0 or 1, got {label!r}")
        if text:
            records.append(Record(id=f"sst2-{number}", text=text, label=LABELS[label]))
    return without_duplicates(records)


def read_squad(path: str | Path, generator: np.random.Generator) -> list[Record]:
    """One question, drawn, of each paragraph of a SQuAD v1.1 file; those without an answer are skipped."""
    text = _read(path)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"path {str(path)!r} is not JSON: {error.msg} at line {error.lineno}") from error
    except RecursionError as error:
        raise InputError(f"path {str(path)!r} is not of SQuAD's form: it is nested too deeply") from error
    records: list[Record] = []
    seen: set[str] = set()
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                key = normal_form(paragraph["context"])
                questions = [question for question in paragraph["qas"] if question.get("answers")]
                if questions and key not in seen:
                    seen.add(key)
                    drawn = pick(questions, generator)
                    records.append(_question(article["title"], paragraph["context"], drawn))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"path {str(path)!r} is not of SQuAD's form (data, paragraphs, context, qas, answers): "
            f"{type(error).__name__} {error}"
        ) from error
    twice = [name for name, times in Counter(record.id for record in records).items() if times > 1]
    if twice:
        raise InputError(
            f"path {str(path)!r} must name each question once, got id "
            f"{twice[0].removeprefix('squad-')!r} twice"
        )
    return records


def _question(title: str, context: str, question: dict[str, Any]) -> Record:
    """A question of SQuAD as a record."""
    return Record(
        id=f"squad-{question['id']}",
        text=question_text(title, context.strip(), question["question"].strip()),
        answers=tuple(dict.fromkeys(str(answer["text"]) for answer in question["answers"])),
    )


Read = Callable[[str], Sequence[Record]]


def _split(
    read: Read, path: str, held_out_path: str | None, sizes: Sizes, generator: np.random.Generator
) -> Parts:
    """The parts, all from one file, or the held-out ones from a second one."""
    records = read(path)
    if held_out_path is None:
        return split(records, sizes, generator, repr(path))
    texts = {normal_form(record.text) for record in records}
    others = [record for record in read(held_out_path) if normal_form(record.text) not in texts]
    parts = split(records, sizes._replace(held_out=0), generator, repr(path))
    require(Sizes(candidates=0, held_out=sizes.held_out, public=0), len(others), repr(held_out_path))
    drawn = generator.permutation(len(others))[: sizes.held_out]
    return parts._replace(held_out=tuple(others[i] for i in drawn))


@register("corpus", "sst2")
def sst2(
    *,
    size: int,
    seed: int,
    path: str | None = None,
    held_out_path: str | None = None,
    held_out: int | None = None,
    public: int | None = None,
) -> Corpus:
    """Sentences of films with labels, from your own SST-2 file of GLUE, given by path=.

    Args:
        size, seed, held_out, public: See `workbench.data.shared.parts.part_sizes`.
        path: GLUE's `train.tsv` of SST-2.
        held_out_path: Its `dev.tsv`, from which the held-out records are drawn as in MeZO; None draws them
            from `path` too. GLUE's training file holds phrases of its sentences, which share words: then
            parts do, too.

    Raises `InputError`: a parameter or a file is unusable.
    """
    sizes, generator = part_sizes(size, held_out, public), checked_seed(seed)
    parts = _split(read_sst2, given_path(path, "sst2"), held_out_path, sizes, generator)
    positive = sum(record.label or 0 for record in parts.records) / sizes.candidates
    file = f"the user's {Path(str(path)).name}, in GLUE's form of SST-2"
    origin = f"{file}; {majority(positive, 'the candidates')}"
    return Corpus(name="sst2", kind="text", classes=2, origin=origin, **parts._asdict())


@register("corpus", "squad")
def squad(
    *,
    size: int,
    seed: int,
    path: str | None = None,
    held_out_path: str | None = None,
    held_out: int | None = None,
    public: int | None = None,
) -> Corpus:
    """Questions about paragraphs of Wikipedia, from your own SQuAD v1.1 file, given by path=.

    One question of each paragraph is drawn, so that no two records share a text.

    Args:
        size, seed, held_out, public: See `workbench.data.shared.parts.part_sizes`.
        path: `train-v1.1.json`.
        held_out_path: `dev-v1.1.json`, from which the held-out records are drawn as in MeZO; None draws them
            from `path` too.

    Raises `InputError`: a parameter or a file is unusable.
    """
    sizes, generator = part_sizes(size, held_out, public), checked_seed(seed)

    path = given_path(path, "squad")
    parts = _split(lambda file: read_squad(file, generator), path, held_out_path, sizes, generator)
    origin = f"the user's {Path(str(path)).name}, in the form of SQuAD v1.1; one question a paragraph"
    return Corpus(name="squad", kind="text", origin=origin, **parts._asdict())

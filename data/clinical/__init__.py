"""Pseudo-clinical narratives of diabetic encounters, after RLDP (section 2.1, Table 1).

One record is one hospital encounter of the Diabetes-130 schema, told in one templated paragraph: generated
(nobody's data), or read from the real `diabetic_data.csv`. Both pass through the same verbaliser.

RLDP carves out 20 % of the encounters as its Attack set and splits the rest 90 to 10 into Train and Eval. An
AUC says something of leakage only where members and non-members are exchangeable: had the two any other
difference, a score could see that one. The paper does not say that its encounters are drawn at random; read
so, encounters are exchangeable and patients are not: 30,248 of the file's 101,766 encounters are of a
patient who has an earlier one (Strack et al. 2014), so patients stand in Train and in Attack at once, and
what a model learns of them it knows of "non-members", too. Here each patient is one record.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.data.clinical.encounters import (
    ATTRIBUTES,
    BRIEF_ATTRIBUTES,
    COLUMNS,
    MISSING,
    SHORT_ATTRIBUTES,
    Encounter,
    verbalise,
)
from workbench.data.clinical.generator import generate
from workbench.data.shared.parts import Sizes, checked_count, checked_seed, normal_form, part_sizes, split
from workbench.interfaces import Corpus, Record

MOST_ROUNDS = 20
"""Rounds of drawing before a generator that repeats itself is given up."""

GENERATED = (
    "generated from the marginals of the Diabetes-130 file (data/marginals/diabetes130.toml says which are "
    "published and which invented); no real patient"
)

Maker: TypeAlias = Callable[[Encounter], Record | None]
"""The record of an encounter; None where there is nothing to record."""


def load_encounters(path: str | Path) -> list[Encounter]:
    """Read `diabetic_data.csv` of the UCI archive (data set 296), the first encounter of each patient.

    Several encounters of a patient would straddle members and non-members (Strack et al. 2014 keep the first
    one likewise). The columns may be in any order; an empty cell counts as missing, like "?". Raises
    `InputError`: the file cannot be read, lacks a column, or has a row of another length.
    """
    file = Path(path)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            return _read_rows(_numbered(stream), file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"path must be a readable CSV file, got {str(file)!r}: {error}") from error


def _numbered(stream: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the number of its last line."""
    reader = csv.reader(stream, strict=True)
    for row in reader:
        if row:
            yield reader.line_num, row


def _read_rows(rows: Iterator[tuple[int, list[str]]], file: Path) -> list[Encounter]:
    _, header = next(rows, (0, []))
    absent = [column for column in COLUMNS if column not in header]
    if absent:
        raise InputError(
            f"path must have the columns of diabetic_data.csv; {str(file)!r} lacks {', '.join(absent)}"
        )
    places = [header.index(column) for column in ATTRIBUTES]
    encounter_place, patient_place = header.index("encounter_id"), header.index("patient_nbr")
    seen: set[str] = set()
    encounters = []
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"line {line} of {str(file)!r} has {len(row)} cells, the header {len(header)}")
        if row[patient_place] in seen:
            continue
        seen.add(row[patient_place])
        values = {name: row[place].strip() or MISSING for name, place in zip(ATTRIBUTES, places, strict=True)}
        encounters.append(
            Encounter(encounter_id=row[encounter_place], patient_nbr=row[patient_place], values=values)
        )
    return encounters


def distinct_records(encounters: Iterable[Encounter], make: Maker, seen: set[str]) -> list[Record]:
    """Records of the encounters in order, without those whose text was made before.

    `seen` holds the normal forms of the earlier texts; those of these records are added.
    """
    records: list[Record] = []
    for encounter in encounters:
        record = make(encounter)
        if record is not None and normal_form(record.text) not in seen:
            seen.add(normal_form(record.text))
            records.append(record)
    return records


def generated_records(sizes: Sizes, make: Maker, generator: np.random.Generator, apart: str) -> list[Record]:
    """Exactly as many distinct records of generated encounters as the parts need.

    `generator` is the source of the encounters, and of whatever `make` draws; `apart` says in the error what
    tells the records apart, {} being how many of how many.
    """
    records: list[Record] = []
    seen: set[str] = set()
    drawn = 0
    for _ in range(MOST_ROUNDS):
        missing = sizes.total - len(records)
        if missing <= 0:
            return records[: sizes.total]
        batch = generate(missing + missing // 20 + 8, generator, first=drawn)
        drawn += len(batch)
        records.extend(distinct_records(batch, make, seen))
    reason = apart.format(f"only {len(records)} of {sizes.total}")
    raise InputError(f"size must be smaller, got {sizes.candidates}: {reason}")


def encounter_corpus(
    name: str,
    make: Maker,
    sizes: Sizes,
    generator: np.random.Generator,
    path: str | None,
    *,
    apart: str,
    unit: str,
    origin: str,
) -> Corpus:
    """A text corpus with one record an encounter, no two with the same text.

    Args:
        name: Of the corpus.
        make: See `Maker`.
        sizes: Of the parts.
        generator: Source of the encounters, of whatever `make` draws, and of the split.
        path: The UCI file; None generates.
        apart: See `generated_records`.
        unit: What each patient of a file has one of.
        origin: Of the records of a file; {file} is its name, {what} its path with the unit.
    """
    if path is None:
        records, source, what = generated_records(sizes, make, generator, apart), GENERATED, "the generator"
    else:
        records = distinct_records(load_encounters(path), make, set())
        what = f"{path!r} (one distinct {unit} a patient)"
        source = origin.format(file=Path(path).name, what=what)
    parts = split(records, sizes, generator, what)
    return Corpus(name=name, kind="text", origin=source, **parts._asdict())


SPLITS = ("bench", "rldp")

RLDP_EVAL = 0.08 / 0.92
"""Records of RLDP's Eval to one of its Train and Attack together: 10 % of 80 % to 72 % and 20 %."""

CHOICES = {"all": ATTRIBUTES, "short": SHORT_ATTRIBUTES, "brief": BRIEF_ATTRIBUTES}


def to_record(encounter: Encounter, attributes: Sequence[str] = ATTRIBUTES) -> Record:
    """The record of an encounter, its id prefixed with the corpus's name."""
    return Record(id=f"clinical-{encounter.encounter_id}", text=verbalise(encounter, attributes))


@register("corpus", "clinical")
def clinical(
    *,
    size: int,
    seed: int,
    attributes: str = "all",
    path: str | None = None,
    held_out: int | None = None,
    public: int | None = None,
    split: str = "bench",
) -> Corpus:
    """Narratives of diabetic hospital encounters, generated or from the UCI file; text, no labels.

    No two records have the same text; public ones follow the private ones' distribution.

    Args:
        size, seed, held_out, public: See `workbench.data.shared.parts.part_sizes`.
        attributes: "all" (48 clauses, RLDP's narrative), "short" (nine clauses, for quick audits) or "brief"
            (five clauses, for studies of many trainings).
        path: The real `diabetic_data.csv`; None generates.
        split: How many held-out and public records there are where their numbers are not given. "rldp": as in
            RLDP (section 2.1), `held_out` is Eval, 8 records to 92 candidates, and nothing is public. The
            candidates are Train and Attack together, from which the game draws Train (the members) by an
            exchangeable split. As many are Attack, where the paper has 72 to 20: a mean AUC is the same, its
            interval narrower.

    Raises `InputError`: a parameter or the file is unusable.
    """
    if attributes not in CHOICES:
        raise unknown_name("attributes", attributes, CHOICES)
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if split == "rldp":
        candidates = checked_count("size", size)
        held_out = max(1, round(RLDP_EVAL * candidates)) if held_out is None else held_out
        public = 0 if public is None else public
    sizes, generator = part_sizes(size, held_out, public), checked_seed(seed)
    return encounter_corpus(
        "clinical",
        lambda encounter: to_record(encounter, CHOICES[attributes]),
        sizes,
        generator,
        path,
        apart="these attributes tell {} generated encounters apart",
        unit="encounter",
        origin="{file}: Diabetes 130-US hospitals, 1999-2008 (UCI data set 296; Strack et al. 2014)",
    )

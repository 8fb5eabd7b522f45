"""Pseudo-clinical narratives of diabetic encounters, after RLDP (section 2.1, Table 1).

One record is one hospital encounter of the Diabetes-130 schema, told in one templated paragraph. Without a
path the encounters are generated (nobody's data); with the path of the real `diabetic_data.csv` they are
read. Both are the same type and pass through the same verbaliser.

RLDP carves out 20 % of the encounters as its Attack set and splits the rest 90 to 10 into Train and Eval. An
AUC says something of leakage only where members and non-members are exchangeable: had the two any other
difference, a score could see that one, in either direction. The paper does not say that its encounters are
drawn at random; read so, encounters are exchangeable and patients are not: 30,248 of the file's 101,766
encounters are of a patient who has an earlier one (71,518 patients; Strack et al. 2014), so patients stand in
Train and in Attack at once, and what a model learns of them it knows of "non-members", too. Here each patient
is one record.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

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
from workbench.data.shared.parts import (
    Sizes,
    checked_count,
    checked_seed,
    normal_form,
    part_sizes,
    without_duplicates,
)
from workbench.data.shared.parts import split as split_records
from workbench.interfaces import Corpus, Record

SPLITS = ("bench", "rldp")

RLDP_EVAL = 0.08 / 0.92
"""Records of RLDP's Eval to one of its Train and Attack together: 10 % of 80 % to 72 % and 20 %."""

CHOICES = {"all": ATTRIBUTES, "short": SHORT_ATTRIBUTES, "brief": BRIEF_ATTRIBUTES}

MOST_ROUNDS = 20
"""Rounds of drawing before a generator that repeats itself is given up."""

GENERATED = (
    "generated from the marginals of the Diabetes-130 file (data/marginals/diabetes130.toml says which are "
    "published and which invented); no real patient"
)


def load_encounters(path: str | Path) -> list[Encounter]:
    """Read `diabetic_data.csv` of the UCI archive (data set 296), the first encounter of each patient.

    One patient, one record: several encounters of a patient would straddle members and non-members
    (Strack et al. 2014 keep the first one likewise).

    Args:
        path: The CSV file, with the 50 columns of the public file in any order; an empty cell counts as
            missing, like "?".

    Returns:
        Encounters in the order of the file.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a row of another length.
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


def to_record(encounter: Encounter, attributes: Sequence[str] = ATTRIBUTES) -> Record:
    """The record of an encounter, its id prefixed with the corpus's name.

    Raises:
        InputError: a value does not exist in the schema.
    """
    return Record(id=f"clinical-{encounter.encounter_id}", text=verbalise(encounter, attributes))


def _generated(sizes: Sizes, attributes: Sequence[str], generator: np.random.Generator) -> list[Record]:
    """Exactly as many records as needed, no two with the same text."""
    records: list[Record] = []
    texts: set[str] = set()
    drawn = 0
    for _ in range(MOST_ROUNDS):
        missing = sizes.total - len(records)
        if not missing:
            return records
        batch = generate(missing + missing // 20 + 8, generator, first=drawn)
        drawn += len(batch)
        for encounter in batch:
            record = to_record(encounter, attributes)
            key = normal_form(record.text)
            if key not in texts and len(records) < sizes.total:
                texts.add(key)
                records.append(record)
    raise InputError(
        f"size must be smaller, got {sizes.candidates}: these attributes tell only {len(records)} of "
        f"{sizes.total} generated encounters apart"
    )


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

    Args:
        size: Number of candidate records.
        seed: Seed of generation and split.
        attributes: "all" (48 clauses, RLDP's narrative), "short" (nine clauses, for quick audits) or "brief"
            (five clauses, for studies of many trainings).
        path: The real `diabetic_data.csv`; None generates.
        held_out: Number of held-out records; a quarter of `size`, at least 64, if None.
        public: Number of public records, likewise. They follow the private records' own distribution:
            generated (or read) with the same schema, and disjoint from the rest.
        split: How many held-out and public records there are where their numbers are not given. "rldp": as in
            RLDP (section 2.1), `held_out` is Eval, 8 records to 92 candidates, and nothing is public. The
            candidates are Train and Attack together, from which the game draws Train (the members) by an
            exchangeable split. As many are Attack, where the paper has 72 to 20: a mean AUC is the same, its
            interval narrower.

    Returns:
        The corpus; no two records of it have the same text.

    Raises:
        InputError: a parameter or the file is unusable.
    """
    if attributes not in CHOICES:
        raise unknown_name("attributes", attributes, CHOICES)
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if split == "rldp":
        candidates = checked_count("size", size)
        held_out = max(1, round(RLDP_EVAL * candidates)) if held_out is None else held_out
        public = 0 if public is None else public
    sizes = part_sizes(size, held_out, public)
    generator = checked_seed(seed)
    chosen = CHOICES[attributes]
    if path is None:
        records, origin, what = _generated(sizes, chosen, generator), GENERATED, "the generator"
    else:
        records = without_duplicates(to_record(row, chosen) for row in load_encounters(path))
        what = f"{path!r} (one distinct encounter a patient)"
        origin = (
            f"{Path(path).name}: Diabetes 130-US hospitals, 1999-2008 (UCI data set 296; Strack et al. 2014)"
        )
    parts = split_records(records, sizes, generator, what)
    return Corpus(name="clinical", kind="text", origin=origin, **parts._asdict())

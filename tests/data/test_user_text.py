"""Text from the user: every form is read alike, and every mistake gets one line that says where."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.data.user_text import huggingface_dataset, read_file, text_file, to_records

SMALL = {"size": 4, "seed": 0, "held_out": 1, "public": 1}
ROWS = [{"text": f"Text, number {i}.", "kind": ["b", "a"][i % 2], "stars": i % 3} for i in range(8)]


def write(folder: Path, ending: str) -> Path:
    """The rows in one of the known forms."""
    path = folder / f"rows{ending}"
    if ending == ".txt":
        content = "\n\n".join(str(row["text"]) for row in ROWS)
    elif ending in (".csv", ".tsv"):
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(ROWS[0]), delimiter="\t" if ending == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(ROWS)
        content = buffer.getvalue()
    else:
        content = "\n".join(json.dumps(row) for row in ROWS)
    path.write_text(content, "utf-8")
    return path


@pytest.mark.parametrize("ending", [".txt", ".csv", ".tsv", ".jsonl", ".ndjson"])
def test_every_form_gives_the_same_texts(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path, ending)
    records = to_records(read_file(path), "x", "text", None)
    assert [record.text for record in records] == [row["text"] for row in ROWS]
    corpus = text_file(path=str(path), **SMALL)
    assert corpus.classes == 0
    assert corpus.origin == f"the user's rows{ending}, 8 records, 8 distinct"


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@pytest.mark.parametrize(("field", "labels"), [("kind", [1, 0] * 4), ("stars", [0, 1, 2, 0, 1, 2, 0, 1])])
def test_labels_are_numbered_in_order(tmp_path: Path, ending: str, field: str, labels: list[int]) -> None:
    records = to_records(read_file(write(tmp_path, ending)), "x", "text", field)
    assert [record.label for record in records] == labels


def test_integer_labels_are_ordered_by_value(tmp_path: Path) -> None:
    rows = [("row", {"text": f"t{i}", "stars": str(stars)}) for i, stars in enumerate([10, 2, -1, 2])]
    assert [record.label for record in to_records(rows, "x", "text", "stars")] == [2, 1, 0, 1]


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1, max_size=5))
def test_any_text_survives_csv(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        writer.writerows([["text"], *([text] for text in texts)])
    assert [r.text for r in to_records(read_file(path), "x", "text", None)] == [
        text.strip() for text in texts
    ]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": ', {}, r"^line 2 of .* is not JSON: .* at column 10$"),
        ("a.jsonl", '{"text": "x"}\n\n[1]', {}, r"^line 3 of .* must be a JSON object, got list$"),
        ("a.jsonl", '{"txt": "x"}', {}, r"^text_field 'text' is not a field of .*; did you mean 'txt'\?$"),
        ("a.jsonl", '{"zzz": 1}', {}, r"; it has 'zzz'$"),
        ("a.jsonl", '{"text": 3}', {}, r"^text_field 'text' of line 1 of .* must hold text, got 3$"),
        ("a.jsonl", '{"text": "x"}\n{"text": " "}', {}, r"^text_field 'text' of line 2 of .* is empty$"),
        ("a.jsonl", '{"text": "x"}', {"label_field": "kind"}, r"^label_field 'kind' is not a field"),
        ("a.jsonl", '{"text": "x", "k": null}', {"label_field": "k"}, r"an integer or a name, got None$"),
        ("a.jsonl", '{"text": "x", "k": 1.5}', {"label_field": "k"}, r"got 1\.5$"),
        ("a.csv", "text,kind\nx,1\ny\n", {}, r"^line 3 of .* has 1 cells, the header 2$"),
        ("a.csv", "body,kind\nx,1\n", {"text_field": "bdy"}, r"did you mean 'body'\?$"),
        ("a.csv", 'text\n"x', {}, r"cannot be read"),
        ("a.txt", "one\ntwo\n", {}, r"^size must leave room .* 4 \+ 1 \+ 1 records wanted, .* has 2$"),
        ("a.txt", "one\n" * 30, {}, r"has 1$"),
        ("a.txt", "", {}, r"has 0$"),
        ("a.txt", b"\xff\xfe", {}, r"cannot be read: 'utf-8'"),
        ("a.docx", "x", {}, r"^path must end in \.jsonl, .*, got "),
        ("a.txt", None, {}, r"^path must be an existing file, got "),
    ],
)  # fmt: skip
def test_mistakes_get_one_line(
    tmp_path: Path, name: str, content: str | bytes | None, options: dict[str, str], message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as caught:
        text_file(path=str(path), **SMALL, **options)
    assert "\n" not in str(caught.value)


def test_path_must_be_given() -> None:
    with pytest.raises(InputError, match="path must be given"):
        text_file(**SMALL)
    with pytest.raises(InputError, match="path must be given"):
        huggingface_dataset(**SMALL)


def read_texts(folder: Path, **options: Any) -> set[str]:
    corpus = huggingface_dataset(
        path=str(folder), size=8, seed=0, held_out=0, public=0, label_field="stars", **options
    )
    assert corpus.classes == 3
    return {record.text for record in corpus.records}


def test_folders_of_every_kind(tmp_path: Path, save_dataset: Callable[..., None]) -> None:
    expected = {str(row["text"]) for row in ROWS}
    save_dataset(tmp_path / "saved", ROWS)
    assert read_texts(tmp_path / "saved") == expected
    for name in ("train", "test"):
        save_dataset(tmp_path / "dict" / name, ROWS, shards=1)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}', "utf-8")
    assert read_texts(tmp_path / "dict", part="test") == expected
    (tmp_path / "parquet" / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "parquet" / "data" / "train.parquet")
    assert read_texts(tmp_path / "parquet") == expected
    (tmp_path / "arrow").mkdir()
    table = pa.Table.from_pylist(ROWS)
    with (
        pa.OSFile(str(tmp_path / "arrow" / "x.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as file,
    ):
        file.write_table(table)
    assert read_texts(tmp_path / "arrow") == expected


def test_what_the_datasets_package_saves(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).shuffle(seed=1).save_to_disk(tmp_path / "saved", num_shards=2)
    assert read_texts(tmp_path / "saved") == {row["text"] for row in ROWS}


def test_bad_folders_get_one_line(tmp_path: Path, save_dataset: Callable[..., None]) -> None:
    def error(folder: Path, **options: Any) -> str:
        with pytest.raises(InputError) as caught:
            huggingface_dataset(path=str(folder), **SMALL, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    saved = tmp_path / "saved"
    save_dataset(saved, ROWS, shards=1)
    assert "must be an existing folder" in error(tmp_path / "absent")
    assert "did you mean 'text'?" in error(saved, text_field="txt")
    assert "is no dataset dict" in error(saved, part="train")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["saved", "other"]}', "utf-8")
    assert "part must be one of saved, other" in error(tmp_path)
    assert "did you mean 'saved'?" in error(tmp_path, part="savd")
    (saved / "state.json").write_text('{"_indices_data_files": [{"filename": "i.arrow"}]}', "utf-8")
    assert "call flatten_indices() before saving" in error(saved)
    (saved / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}', "utf-8")
    assert "names data files outside its folder" in error(saved)
    (saved / "state.json").write_text("{", "utf-8")
    assert "unreadable state.json" in error(saved)
    (saved / "state.json").unlink()
    (saved / "data-00000-of-00001.arrow").write_bytes(b"junk")
    assert "cannot be read" in error(saved)
    (saved / "data-00000-of-00001.arrow").unlink()
    assert "must hold state.json, Parquet or Arrow files" in error(saved)

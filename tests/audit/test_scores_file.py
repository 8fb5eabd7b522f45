"""Scores files: what is read, and one line with file, column and row for what is not."""

from __future__ import annotations

import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from workbench.audit.scores_file import ScoresFile, read_scores
from workbench.core.errors import InputError

GOOD_CSV = "score,member,id\n0.5,1,a\n-1e3,0,b\n2,1,c\n"
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "scores.npz"
    np.savez(path, **arrays)
    return path


def write_parquet(folder: Path, **columns: Any) -> Path:
    path = folder / "scores.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def check(content: ScoresFile) -> None:
    np.testing.assert_array_equal(content.scores, [0.5, -1000.0, 2.0])
    np.testing.assert_array_equal(content.members, [True, False, True])
    assert content.scores.dtype == np.float64
    assert content.members.dtype == np.bool_


@pytest.mark.parametrize(
    "content",
    [
        GOOD_CSV,
        "\ufeff" + GOOD_CSV,
        GOOD_CSV.replace("\n", "\r\n"),
        GOOD_CSV + "\n\n",
        GOOD_CSV.rstrip("\n"),
        ' member , extra, score \n1,x,0.5\n"0","a,\n""b""",-1e3\nTrue,y,2\n',
        "score,member\n0.5,true\n-1000,FALSE\n2.0,1.0\n",
    ],
    ids=["plain", "bom", "crlf", "blank-lines", "no-final-newline", "quoted-extra", "booleans"],
)
def test_csv_dialects_mean_the_same(tmp_path: Path, content: str) -> None:
    check(read_scores(write(tmp_path, "SCORES.CSV", content)))


@pytest.mark.parametrize("member", [[True, False, True], [1, 0, 1], [1.0, 0.0, 1.0]])
def test_npz_and_parquet_mean_the_same(tmp_path: Path, member: list[Any]) -> None:
    check(read_scores(write_npz(tmp_path, score=[0.5, -1000.0, 2.0], member=member, other=np.eye(2))))
    check(read_scores(write_parquet(tmp_path, member=member, score=[0.5, -1000.0, 2.0], other=["", "", ""])))


def test_ids_and_texts_are_kept_and_optional(tmp_path: Path) -> None:
    assert read_scores(write(tmp_path, "a.csv", GOOD_CSV)).ids == ("a", "b", "c")
    from_npz = read_scores(write_npz(tmp_path, score=[1, 2], member=[0, 1], id=[7, 8], text=["x", "y"]))
    assert (from_npz.ids, from_npz.texts) == (("7", "8"), ("x", "y"))
    columns = {"score": [Decimal("1.5"), Decimal(2)], "member": [0, 1], "text": ["x", None]}
    from_parquet = read_scores(write_parquet(tmp_path, **columns))
    assert (from_parquet.ids, from_parquet.texts) == ((), ("x", ""))
    np.testing.assert_array_equal(from_parquet.scores, [1.5, 2.0])


def test_a_folder_name_with_an_equals_sign_adds_no_column(tmp_path: Path) -> None:
    (tmp_path / "member=1").mkdir()
    path = write_parquet(tmp_path / "member=1", score=[1.0, 2.0])
    with pytest.raises(InputError, match="column 'member' is missing"):
        read_scores(path)


def fails(path: Path, *parts: str) -> bool:
    """Whether reading the file fails in one line that holds its name and these parts."""
    with pytest.raises(InputError) as caught:
        read_scores(path)
    message = str(caught.value)
    return "\n" not in message and all(part in message for part in (path.name, *parts))


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["'score' is missing", "no columns"]),
        ("score,member\n", ["no rows"]),
        ("Score,member\n1,1\n", ["'score' is missing", "did you mean 'Score'?"]),
        ("score,is_member\n1,1\n", ["'member' is missing", "did you mean 'is_member'?"]),
        ('"sc\nore\x1b[31m",member\n1;1\n', ["'score' is missing", "\\x1b[31m"]),
        ("score;member\n1;1\n", ["commas between them", "'score;member'"]),
        ("score,member,score\n1,1,1\n", ["'score' occurs 2 times"]),
        ("score,member\n1,1\n2\n", ["row 2 has 1 fields, the header has 2"]),
        ("score,member\n1,1\n2,0,3\n", ["row 2 has 3 fields, the header has 2"]),
        ("score,member\n1,1\n\nnan,0\n", ["'score', row 2", "finite", "nan"]),
        ("score,member\n1,1\n-inf,0\n", ["'score', row 2", "finite", "-inf"]),
        ("score,member\n1,1\n1e999,0\n", ["'score', row 2", "finite", "1e999"]),
        ("score,member\n,1\n2,0\n", ["'score', row 1", "''"]),
        ("score,member\n1,1\nhigh,0\n", ["'score', row 2", "'high'"]),
        ("score,member\n1,1\n2,2\n", ["'member', row 2", "'2'"]),
        ("score,member\n1,1\n2,\n", ["'member', row 2", "''"]),
        ("score,member\n1,1\n2,yes\n", ["'member', row 2", "'yes'"]),
        ("score,member\n1,1\n2,1\n", ["'member': all 2 rows are members"]),
        ("score,member\n1,0\n2,0\n", ["'member': all 2 rows are non-members"]),
        ("score,member\n3,1\n3,0\n", ["'score' is constant (3 in all 2 rows)"]),
        ("score,member,id\n1,1,a\n2,0,b\n3,0,a\n", ["'id', row 3", "'a'", "row 1"]),
        ('score,member\n1,1\n"2,0\n', ["not a readable CSV"]),
        ("score,member\n1," + "1" * 200_000 + "\n", ["not a readable CSV"]),
        (b"score,member\n1,1\n\xff\xfe,0\n", ["not a readable CSV", "UnicodeDecodeError"]),
        (b"PK\x03\x04\x00\x00\x80", ["not a readable CSV"]),
    ],
)
def test_a_bad_csv_gets_one_line(tmp_path: Path, content: str | bytes, parts: list[str]) -> None:
    assert fails(write(tmp_path, "bad.csv", content), *parts)


def test_a_bad_npz_gets_one_line(tmp_path: Path) -> None:
    assert fails(write_npz(tmp_path, score=[1.0, 2.0]), "'member' is missing")
    assert fails(write_npz(tmp_path, score=[1.0, 2.0], member=[0, 1, 1]), "one length", "2", "3")
    assert fails(
        write_npz(tmp_path, score=np.ones((2, 2)), member=[0, 1]), "'score' must have one dimension", "(2, 2)"
    )
    assert fails(write_npz(tmp_path, score=1.0, member=1), "'score' must have one dimension", "()")
    assert fails(write_npz(tmp_path, score=["a", "b"], member=[0, 1]), "'score' has unusable type")
    assert fails(write_npz(tmp_path, score=[1j, 2], member=[0, 1]), "'score' has unusable type complex128")
    assert fails(write_npz(tmp_path, score=[1.0, np.nan], member=[0, 1]), "'score', row 2", "nan")
    assert fails(write_npz(tmp_path, score=[1.0, 2.0], member=[0, 3]), "'member', row 2", "got 3")
    assert fails(write_npz(tmp_path, score=[1.0, 2.0], member=[0.0, 0.5]), "'member', row 2", "got 0.5")
    assert fails(write_npz(tmp_path, score=[], member=[]), "no rows")
    assert fails(write(tmp_path, "empty.npz", b""), "not a readable NPZ")
    assert fails(write(tmp_path, "text.npz", b"score,member\n"), "not a readable NPZ")
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
        archive.writestr("score.npy", b"\x93NUMPY\x01\x00")
        archive.writestr("member.npy", b"not an array")
    assert fails(tmp_path / "lies.npz", "not a readable NPZ")
    with zipfile.ZipFile(tmp_path / "names.npz", "w") as archive:
        archive.writestr("score", b"1")
        archive.writestr("member", b"1")
    assert fails(tmp_path / "names.npz", "'score' is not an array")
    np.save(tmp_path / "bare.npy", np.ones(3))
    assert fails(write(tmp_path, "bare.npz", (tmp_path / "bare.npy").read_bytes()), "no archive of arrays")


class Trap:
    """Says so if it is ever unpickled."""

    sprung = False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return setattr, (Trap, "sprung", True)


def test_python_objects_in_an_npz_are_refused_unopened(tmp_path: Path) -> None:
    path = write_npz(tmp_path, score=np.array([Trap(), 1.0], dtype=object), member=[0, 1])
    assert fails(path, "not a readable NPZ", "of Python objects, which are never loaded")
    assert not Trap.sprung


def test_a_bad_parquet_gets_one_line(tmp_path: Path) -> None:
    assert fails(write_parquet(tmp_path, score=[1.0, 2.0]), "'member' is missing")
    assert fails(write_parquet(tmp_path, score=[1.0, None], member=[0, 1]), "'score', row 2", "None")
    assert fails(write_parquet(tmp_path, score=[1.0, float("nan")], member=[0, 1]), "'score', row 2", "nan")
    assert fails(write_parquet(tmp_path, score=[[1.0], [2.0]], member=[0, 1]), "'score', row 1", "[1.0]")
    assert fails(write_parquet(tmp_path, score=[1.0, 2.0], member=[0, None]), "'member', row 2", "None")
    assert fails(write_parquet(tmp_path, score=[1.0, 2.0], member=[0, -1]), "'member', row 2", "-1")
    assert fails(write_parquet(tmp_path, score=[1.0, 1.0], member=[0, 1]), "constant")
    assert fails(write_parquet(tmp_path, score=[], member=[]), "no rows")
    assert fails(write(tmp_path, "text.parquet", GOOD_CSV), "not a readable Parquet")
    assert fails(write(tmp_path, "empty.parquet", b""), "not a readable Parquet")


def test_a_path_that_is_no_scores_file_gets_one_line(tmp_path: Path) -> None:
    assert fails(tmp_path / "none.csv", "does not exist")
    assert fails(write(tmp_path, "scores.txt", GOOD_CSV), ".csv, .csv.gz, .npz, .parquet", "scores.txt'")
    (tmp_path / "folder.csv").mkdir()
    assert fails(tmp_path / "folder.csv", "is not a file")


def read_or_refused(path: Path) -> bool:
    """Whether the file is read into a well-formed game or refused in one line."""
    try:
        content = read_scores(path)
    except InputError as error:
        return "\n" not in str(error)
    return (
        content.scores.shape == content.members.shape
        and bool(np.isfinite(content.scores).all())
        and 0 < content.members.sum() < content.members.size
        and len(content.ids) in {0, content.scores.size}
    )


@FUZZ
@given(
    st.binary(max_size=300)
    | st.lists(
        st.sampled_from(["score", "member", "id", ",", "\n", '"', "1", "0", "nan", "true", "\x00"])
    ).map(lambda pieces: "".join(pieces).encode())
)
def test_no_csv_raises_anything_else(tmp_path: Path, content: bytes) -> None:
    assert read_or_refused(write(tmp_path, "fuzz.csv", b"score,member,id\n" + content))
    assert read_or_refused(write(tmp_path, "fuzz.csv", content))


@FUZZ
@given(st.data())
def test_no_damaged_archive_raises_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    for path in (
        write_npz(tmp_path, score=np.arange(4.0), member=[0, 1, 0, 1]),
        write_parquet(tmp_path, score=[0.0, 1.0, 2.0, 3.0], member=[0, 1, 0, 1]),
    ):
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        assert read_or_refused(path)

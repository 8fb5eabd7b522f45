"""What a call of the public Python API returns: a verdict, bounds, a table, and a page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.arguments import path_of
from workbench.core.keys import JSON
from workbench.core.outputs import require_file_place, write_atomically

if TYPE_CHECKING:
    import pandas

_MOST_ROWS = 200
"""Rows of a table that a notebook shows; `to_frame` has them all."""


class Result(ABC):
    """Something that was found, with the record of it.

    Attributes:
        record: All of it as JSON types: what the command's `--json` writes.
    """

    def __init__(self, record: Mapping[str, JSON]) -> None:
        self.record = record

    @property
    @abstractmethod
    def verdict(self) -> str:
        """The verdict in a word, as the command prints it."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The verdict in a sentence that a reader can quote."""

    @property
    @abstractmethod
    def exit_code(self) -> int:
        """What the command exits with."""

    @abstractmethod
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """What was found, a mapping a row, all with the same keys."""

    def to_frame(self) -> pandas.DataFrame:
        """Returns the rows as a `pandas.DataFrame`."""
        import pandas

        return pandas.DataFrame(list(self.rows()))

    def save(self, file: str | Path) -> Path:
        """Writes one self-contained HTML page, and returns where.

        Raises `InputError`: the place cannot be written.
        """
        path = path_of("file", file)
        require_file_place("file", path)
        write_atomically(path, self.page())
        return path

    def page(self) -> str:
        """Returns an HTML page of the result."""
        return str(_template().page(self.verdict, self.sentence, self._table(None)))

    def _repr_html_(self) -> str:
        """The verdict, the sentence and the table, for a notebook."""
        return str(_template().part(self.verdict, self.sentence, self._table(_MOST_ROWS)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.verdict}: {self.sentence}>"

    def _table(self, most: int | None) -> str:
        """The rows as an HTML table."""
        frame = self.to_frame()
        if frame.empty:
            return ""
        table: str = frame.to_html(index=False, escape=True, border=0, max_rows=most, na_rep="")
        return table


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, autoescape=True)
    text = Path(__file__).with_suffix(".j2").read_text(encoding="utf-8")
    return environment.from_string(text).module

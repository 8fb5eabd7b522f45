"""What a paper's `report.toml` declares: its runs, tables, tests and checks, and all words of its report.

Words are Jinja templates. `[words]` holds those that others include (`{% include "scale" %}`), and so may
files of the folder's `templates/`; `[own]` is what the paper's Python reads, and templates as `own`. `notes`
follow those of the study, and `opening` stands before them. A list of the file is named by `"$name"`
wherever a list may stand. A `[[table]]` with `like` has whatever it does not say from the table of that id.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    DictLoader,
    Environment,
    FunctionLoader,
    StrictUndefined,
    Template,
)

from workbench.core.errors import InputError, unknown_name
from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import UNIT, Layout
from workbench.reports.shared.printed import enumerated

_WORDS = ("opening", "notes", "words", "figures", "remark")
_TOP = ("runs", "lists", "tests", "test", "table", "check", "own", *_WORDS)
_RUNS = ("unit", "no_unit", "parts", "columns", "means", "without_budget")


@dataclass(frozen=True, eq=False)
class Declared:
    """A paper's `report.toml`, read.

    Attributes:
        paper: Name of its folder.
        content: As TOML gives it.
        environment: Renders its words.
    """

    paper: str
    content: Mapping[str, Any]
    environment: Environment

    @property
    def layout(self) -> Layout:
        """How the report reads the runs of a study, as declared under `[runs]`."""
        runs = self.content["runs"]
        columns = {}
        for name, source in runs.get("columns", {}).items():
            entry = source if isinstance(source, dict) else {"of": source}
            sources = [entry["of"]] if isinstance(entry["of"], str) else entry["of"]
            columns[name] = tuple(sources), entry.get("values", {})
        return Layout(
            unit=runs.get("unit", UNIT),
            no_unit=tuple(runs.get("no_unit", ())),
            parts=tuple(runs["parts"]),
            columns=columns,
            means={name: tuple(methods) for name, methods in runs.get("means", {}).items()},
            without_budget=tuple(runs.get("without_budget", ())),
        )

    def list(self, stated: Any) -> list[Any]:
        """A list, or the list of a name `"$name"`.

        Raises:
            InputError: there is no such list.
        """
        if not isinstance(stated, str):
            return list(stated)
        lists: Mapping[str, Any] = self.content.get("lists", {})
        if not stated.startswith("$") or stated[1:] not in lists:
            raise unknown_name(f"list of {self.paper}/report.toml:", stated.removeprefix("$"), lists)
        return list(lists[stated[1:]])

    def entry(self, kind: str, name: str, key: str = "id") -> Mapping[str, Any]:
        """The entry of the declared list `[[kind]]` that has this name.

        Raises:
            InputError: there is none.
        """
        entries: Sequence[Mapping[str, Any]] = self.content.get(kind, ())
        entry = next((candidate for candidate in entries if candidate[key] == name), None)
        if entry is None:
            raise unknown_name(
                f"{kind} of {self.paper}/report.toml:", name, [candidate[key] for candidate in entries]
            )
        return entry

    def render(self, text: str, **facts: Any) -> str:
        """A text with its facts put in."""
        return _template(self.environment, text).render(facts)

    def lines(self, texts: Sequence[str], **facts: Any) -> tuple[str, ...]:
        """Each line of each text, empty ones left out."""
        rendered = (line.strip() for text in texts for line in self.render(text, **facts).splitlines())
        return tuple(line for line in rendered if line)


@lru_cache(maxsize=4096)
def _template(environment: Environment, text: str) -> Template:
    return environment.from_string(text)


@cache
def declared(paper: str) -> Declared:
    """The `report.toml` of a paper's folder.

    Raises:
        InputError: it is no TOML, or a key of it is unknown or given twice.
    """
    folder = files("workbench.reports") / "papers" / paper
    try:
        content = tomllib.loads((folder / "report.toml").read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{paper}/report.toml is no TOML: {error}") from error
    for table, known in ((content, _TOP), (content.get("runs", {}), _RUNS)):
        for key in table:
            if key not in known:
                raise unknown_name(f"key of {paper}/report.toml:", key, known)
    tables = {table["id"]: table for table in content.get("table", ())}
    content["table"] = [{**tables.get(table.get("like"), {}), **table} for table in content.get("table", ())]
    for kind, key in (("table", "id"), ("check", "name")):
        names = [entry[key] for entry in content.get(kind, ())]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{paper}/report.toml: {kind} {twice!r} is given twice")

    def source(name: str) -> str | None:
        path = folder / "templates" / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    loaders: list[BaseLoader] = [DictLoader(content.get("words", {})), FunctionLoader(source)]
    environment = Environment(
        loader=ChoiceLoader(loaders), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "g": "{:g}".format, "fixed": _fixed, "digits": _digits}
    environment.filters["enumerated"] = enumerated
    environment.globals["own"] = content.get("own", {})
    return Declared(paper, content, environment)


def _fixed(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}"


def _digits(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}"

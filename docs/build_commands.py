"""Writes `docs/commands/`: a page for each subcommand, from the table of commands, and an index.

`python docs/build_commands.py` writes the pages, `--check` only says whether they are what the code gives
(exit code 1 where not). The same code gives the same bytes, whatever the terminal.

All that a page says stands in the code: purpose and exit codes in the command's docstring, arguments and
options in its signature, the worked example in `data/commands.toml`.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import typer

from workbench.cli.app import COMMANDS, callback_of

FOLDER = Path(__file__).parent / "commands"
WIDTH = 110
FOOTER = "(Built from the code by `docs/build_commands.py`.)"
ALWAYS = ("130 interrupted", "70 a bug of ours, with its traceback")
"""Exit codes that every command has."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """An argument or option of a command.

    Attributes:
        shown: As it is typed: `--out FOLDER`, `--grid quick|full`, `TARGET...`.
        is_option: False for an argument.
        is_required: True where it must be given.
        says: Help and default, in sentences.
    """

    shown: str
    is_option: bool
    is_required: bool
    says: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """A command as its page of the documentation describes it.

    Attributes:
        name: After `workbench`: `"accountants check"`.
        purpose: Paragraphs; the first is the summary.
        parameters: In the order of the signature.
        exit_codes: `"0 not refuted"`, ...
    """

    name: str
    purpose: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    exit_codes: tuple[str, ...]

    @property
    def file(self) -> str:
        """The file name of the command's page."""
        return f"{self.name.replace(' ', '-')}.md"


def pages() -> list[Page]:
    """The pages of all commands, sorted by name."""
    return [_page(name, callback_of(name)) for name in sorted(COMMANDS)]


def build() -> dict[str, str]:
    """File names and contents of the whole folder."""
    known = pages()
    return {"README.md": _index(known), **{page.file: _text(page) for page in known}}


def differences(folder: Path = FOLDER) -> list[str]:
    """A line for each page that is missing, differs from the code, or is of no command."""
    wanted = build()
    present = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    lines = [f"{name}: missing" for name in wanted if name not in present]
    lines += [
        f"{name}: not what the code gives"
        for name in wanted
        if present.get(name, wanted[name]) != wanted[name]
    ]
    return lines + [f"{name}: of no command" for name in present if name not in wanted]


def main(words: Sequence[str]) -> int:
    """Write the pages, or with `--check` compare them. Returns the exit code."""
    if list(words) not in ([], ["--check"]):
        print("usage: python docs/build_commands.py [--check]", file=sys.stderr)
        return 2
    if words:
        found = differences()
        print(
            "\n".join([*found, "run: python docs/build_commands.py"])
            if found
            else "docs/commands is up to date"
        )
        return 1 if found else 0
    FOLDER.mkdir(exist_ok=True)
    wanted = build()
    for path in FOLDER.glob("*.md"):
        if path.name not in wanted and FOOTER in path.read_text(encoding="utf-8"):
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def _page(name: str, call: Callable[..., Any]) -> Page:
    paragraphs = [
        " ".join(part.split()) for part in re.split(r"\n\s*\n", inspect.cleandoc(call.__doc__ or ""))
    ]
    codes = [part for part in paragraphs if part.startswith("Exit code: ")]
    if len(codes) != 1 or not paragraphs[0]:
        raise ValueError(
            f"workbench {name}: its docstring needs a summary and one paragraph 'Exit code: 0 ...'"
        )
    return Page(
        name=name,
        purpose=tuple(part for part in paragraphs if part not in codes),
        parameters=tuple(
            _parameter(one) for one in inspect.signature(call, eval_str=True).parameters.values()
        ),
        exit_codes=_exit_codes(codes[0]),
    )


def _exit_codes(paragraph: str) -> tuple[str, ...]:
    """The items of `"Exit code: 0 done, 1 refuted; 2 bad input."`."""
    text = paragraph.removeprefix("Exit code: ").rstrip(".")
    items = tuple(item.strip() for item in re.split(r"[,;] (?=\d+ )", text))
    given = {item.split()[0] for item in items}
    return items + tuple(item for item in ALWAYS if item.split()[0] not in given)


def _parameter(one: inspect.Parameter) -> Parameter:
    kind, *notes = get_args(one.annotation)
    (info,) = (note for note in notes if hasattr(note, "param_decls"))
    is_option = isinstance(info, type(typer.Option()))
    value, is_list = _inner(kind)
    is_required = one.default is inspect.Parameter.empty
    says = [str(info.help or "").rstrip(".")]
    if is_list and "repeated" not in says[0] and is_option:
        says.append("May be repeated")
    default = _default(info, one.default)
    if is_required:
        says.append("Required")
    elif default:
        says.append(f"Default: {default}")
    name = _flags(info, one.name, value) if is_option else ""
    place = _place(info, one.name, value, is_option=is_option)
    return Parameter(
        shown=" ".join(filter(None, (name, place))),
        is_option=is_option,
        is_required=is_required,
        says=". ".join(says) + ".",
    )


def _inner(kind: Any) -> tuple[Any, bool]:
    """The type of one value, and whether several may be given."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (option for option in get_args(kind) if option is not type(None))
    if get_origin(kind) is list:
        return get_args(kind)[0], True
    return kind, False


def _flags(info: Any, name: str, value: Any) -> str:
    # With `Annotated` the first of them arrives where the default is declared otherwise.
    declared = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    flag = f"--{name.replace('_', '-')}"
    if declared:
        return " / ".join(part for text in declared for part in text.split("/"))
    return f"{flag} / --no-{flag[2:]}" if value is bool else flag


def _place(info: Any, name: str, value: Any, *, is_option: bool) -> str:
    """What stands for the value: the name that the code gives it, or its type."""
    if is_option and value is bool:
        return ""
    if info.metavar:
        return str(info.metavar)
    if not is_option:
        return name.upper()
    if isinstance(value, type) and issubclass(value, Enum):
        return "|".join(str(member.value) for member in value)
    return {int: "INTEGER", float: "NUMBER", Path: "PATH"}.get(value, "TEXT")


def _default(info: Any, value: Any) -> str:
    if isinstance(info.show_default, str):
        return info.show_default
    if value is None or value is False or value is inspect.Parameter.empty:
        return ""
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _text(page: Page) -> str:
    arguments = [one for one in page.parameters if not one.is_option]
    options = [one for one in page.parameters if one.is_option]
    needed = [one.shown for one in options if one.is_required]
    words = ["workbench", page.name, *needed, *(["[OPTION...]"] if len(options) > len(needed) else [])]
    words += [one.shown if one.is_required else f"[{one.shown}]" for one in arguments]
    blocks = [f"# workbench {page.name}", *map(_wrapped, page.purpose)]
    blocks += ["## Usage", _code("text", " ".join(words))]
    for title, group in (("Arguments", arguments), ("Options", options)):
        if group:
            blocks += [f"## {title}", "\n".join(_item(one.shown, one.says) for one in group)]
    codes = (item.split(" ", 1) for item in page.exit_codes)
    blocks += ["## Exit codes", "\n".join(_item(code, says) for code, says in codes)]
    example = COMMANDS[page.name]
    blocks += ["## Example", _code("sh", example.command), _wrapped(example.says)]
    return "\n\n".join([*blocks, "[All commands](README.md)", FOOTER]) + "\n"


def _index(known: Sequence[Page]) -> str:
    items = [f"- [`workbench {page.name}`]({page.file}): {page.purpose[0]}" for page in known]
    intro = (
        "A page for each subcommand; `workbench COMMAND --help` says the same. Every command exits with 2 "
        "and one line on the error stream where its input is bad, before any work starts."
    )
    lines = "\n".join(textwrap.fill(item, WIDTH, subsequent_indent="  ", **_WHOLE) for item in items)
    return "\n\n".join(["# Commands", _wrapped(intro), lines, FOOTER]) + "\n"


_WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, **_WHOLE)


def _item(head: str, says: str) -> str:
    return textwrap.fill(f"- `{head}`: {says}", WIDTH, subsequent_indent="  ", **_WHOLE)


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

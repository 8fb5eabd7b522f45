"""Docstrings of the installed scientific packages: public English text with a technical vocabulary.

Sources are read as text and parsed with `ast`; nothing is imported. Near-duplicates (methods that repeat
their base class's text, families of similar functions) are removed: in a membership game they would be
members and non-members at once.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.shared.near_duplicates import near_duplicates
from workbench.data.shared.parts import cached_json, checked_seed, normal_form, part_sizes, split
from workbench.interfaces import Corpus, Record

PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas", "statsmodels", "torch")
"""Distributions that are read by default; those that are not installed are passed over."""

MODULES = {"scikit-learn": "sklearn"}
"""Import names that differ from the distribution's."""

SIMILARITY = 0.3
"""Jaccard similarity of three-word shingles from which two docstrings count as near-duplicates.

Measured on the six default packages: of 27,105 docstrings of eight words or more 3 % repeat another one word
by word, and 20 % of the rest are near-duplicates at 0.3 (16 % at 0.4, 12 % at 0.5)."""

FEWEST_WORDS = 8

SCHEMA = 1
"""Raised whenever cleaning or filtering changes; part of the cache key."""

TEST_FOLDERS = {"tests", "testing", "test", "_vendor", "externals"}

DOCTEST = re.compile(r"^\s*(>>>|\.\.\. )")
DIRECTIVE = re.compile(r"^\s*\.\. ")
UNDERLINE = re.compile(r"^\s*([-=~^\"'*#+])\1{2,}\s*$")
ROLE = re.compile(r":[\w:.+-]+:`~?([^`<]*?)(?:\s*<[^`>]*>)?`")
TICKS = re.compile(r"`{1,2}([^`]*)`{1,2}_{0,2}")
REFERENCE = re.compile(r"\s*\[(?:\d+|[A-Za-z]+\d{2,4}\w?)\]_")


def _without_blocks(lines: Sequence[str]) -> Iterator[str]:
    """Lines outside doctests (with their output, up to a blank line) and rst directives (with their body)."""
    in_doctest = False
    directive_indent: int | None = None
    for line in lines:
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if directive_indent is not None:
            if not bare or indent > directive_indent:
                continue
            directive_indent = None
        if DIRECTIVE.match(line):
            directive_indent = indent
        elif DOCTEST.match(line):
            in_doctest = True
        elif in_doctest and bare:
            continue
        else:
            in_doctest = False
            yield line


def clean(docstring: str) -> str:
    """Plain text of a docstring: no doctests, directives, underlines, roles or back-ticks; dedented."""
    kept: list[str] = []
    for line in _without_blocks(inspect.cleandoc(docstring).splitlines()):
        if UNDERLINE.match(line):
            continue
        text = TICKS.sub(r"\1", ROLE.sub(r"\1", REFERENCE.sub("", line))).replace("::", ":").rstrip()
        if text or (kept and kept[-1]):
            kept.append(text)
    while kept and not kept[-1]:
        kept.pop()
    return "\n".join(kept)


def _docstrings_of(source: str) -> Iterator[str]:
    """All docstrings of a module's source, from top to bottom."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's sources are not our concern
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text


def _source_files(module: str) -> list[Path]:
    """The Python files of an installed package, sorted, without its tests; the package is not imported."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return []
    files: list[tuple[str, Path]] = []
    for place in spec.submodule_search_locations:
        root = Path(place)
        for path in root.rglob("*.py"):
            inner = path.relative_to(root)
            if not TEST_FOLDERS & set(inner.parts[:-1]) and not inner.name.startswith(("test_", "conftest")):
                files.append((inner.as_posix(), path))
    return [path for _, path in sorted(files)]


def _versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of those distributions that are installed, in the given order."""
    versions = {}
    for name in packages:
        try:
            versions[name] = distribution(name).version
        except PackageNotFoundError:
            continue
    return versions


def collect(packages: Sequence[str]) -> list[str]:
    """Cleaned docstrings of the packages, exact duplicates and short ones removed, in a fixed order."""
    texts: list[str] = []
    seen: set[str] = set()
    for package in packages:
        for path in _source_files(MODULES.get(package, package.replace("-", "_"))):
            try:
                docstrings = list(_docstrings_of(path.read_text("utf-8")))
            except (SyntaxError, UnicodeDecodeError, ValueError):
                continue  # a template or a file for another Python version holds no docstrings for us
            for text in map(clean, docstrings):
                key = normal_form(text)
                if len(text.split()) >= FEWEST_WORDS and key not in seen:
                    seen.add(key)
                    texts.append(text)
    return texts


def load_texts(packages: Sequence[str] = PACKAGES) -> list[str]:
    """Cleaned docstrings without near-duplicates; from the user's cache where the versions are unchanged.

    Packages that are not installed are passed over. Texts are ordered by package as given, then by file, then
    from top to bottom by nesting.
    """
    versions = _versions(packages)
    if not versions:
        raise InputError(f"packages must name an installed distribution, got {', '.join(packages) or 'none'}")

    def collected() -> list[str]:
        texts = collect(list(versions))
        return [t for t, drop in zip(texts, near_duplicates(texts, SIMILARITY), strict=True) if not drop]

    key = [SCHEMA, SIMILARITY, list(versions.items())]
    texts: list[str] = cached_json("docstrings", key, collected, lambda content: isinstance(content, list))
    return texts


@register("corpus", "docstrings")
def docstrings(
    *,
    size: int,
    seed: int,
    packages: str = ",".join(PACKAGES),
    longest: int = 2000,
    held_out: int | None = None,
    public: int | None = None,
) -> Corpus:
    """Docstrings of the installed scientific packages, cleaned, near-duplicates removed; text, no labels.

    Args:
        size, seed, held_out, public: See `workbench.data.shared.parts.part_sizes`.
        packages: Distribution names, separated by commas.
        longest: Characters that a text is cut to, at a line's end where there is one.

    Raises `InputError`: a parameter is unusable, or the packages have too few docstrings.
    """
    sizes, generator = part_sizes(size, held_out, public), checked_seed(seed)
    names = [name.strip() for name in packages.split(",") if name.strip()]
    texts = load_texts(names)
    records = [Record(id=f"docstrings-{i:06d}", text=_cut(text, longest)) for i, text in enumerate(texts)]
    parts = split(records, sizes, generator, "the installed packages' docstrings")
    read = ", ".join(f"{name} {version}" for name, version in _versions(names).items())
    return Corpus(name="docstrings", kind="text", origin=f"docstrings of {read}", **parts._asdict())


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    head = text[:longest]
    end = head.rfind("\n")
    return head[:end].rstrip() if end > longest // 2 else head.rstrip()

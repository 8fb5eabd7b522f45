"""The source files that a user's file imports, itself or through others, as far as nobody installed them.

They are read, never run: statements of import wherever they stand, also within functions. What is imported by
a text (`importlib.import_module`) is not seen.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

_INSTALLED = tuple(
    {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OURS = "workbench"


def sources_sha256(path: Path) -> str:
    """Returns one digest of a file and the local files that it imports; of the file alone if none."""
    sources = local_sources(path)
    digests = [hashlib.sha256(source.read_bytes()).hexdigest() for source in sources]
    if len(sources) == 1:
        return digests[0]
    folder = sources[0].parent
    named = sorted(zip((os.path.relpath(source, folder) for source in sources), digests, strict=True))
    return hashlib.sha256(repr(named).encode()).hexdigest()


def local_sources(path: Path) -> tuple[Path, ...]:
    """Returns a file, and then the local files that it imports, each once."""
    known: dict[Path, None] = {}
    pending = [path.resolve()]
    while pending:
        source = pending.pop(0)
        if source not in known:
            known[source] = None
            pending += _imported(source)
    return tuple(known)


def _imported(source: Path) -> Iterator[Path]:
    """The local files that one file imports, those of the packages around them too."""
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _absolute(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            for alias in node.names:
                if node.level > len(source.parents):
                    continue
                if node.level:
                    yield from _below([source.parents[node.level - 1]], [*parts, alias.name])
                else:
                    yield from _absolute([*parts, alias.name])


def _absolute(parts: Sequence[str]) -> Iterator[Path]:
    """The files of a module that is named from the top."""
    first, *rest = parts
    if first == _OURS or first in sys.stdlib_module_names:
        return
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    origin = [Path(spec.origin)] if spec.origin else []
    if any(_is_installed(place) for place in (*folders, *origin)):
        return
    yield from (place.resolve() for place in origin if place.suffix == ".py" and place.is_file())
    yield from _below(folders, rest)


def _below(folders: Sequence[Path], parts: Sequence[str]) -> Iterator[Path]:
    """The files of a module that is named from a package's folders; its last part may be no module."""
    for part in parts:
        files = [
            place for folder in folders for place in (folder / f"{part}.py", folder / part / "__init__.py")
        ]
        yield from (file.resolve() for file in files if file.is_file())
        folders = [folder / part for folder in folders]


def _is_installed(place: Path) -> bool:
    real = os.path.realpath(place)
    return real.startswith(_INSTALLED) or bool({"site-packages", "dist-packages"} & set(Path(real).parts))

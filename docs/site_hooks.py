"""MkDocs hooks: links from a page to files outside `docs/` work in the site as they do in the repository.

A page links to a file by its place in the repository (`../benchmarks/results/watch.md`). The site gets a copy
of each file that a page links to, under `repository/`, and a page that lists the files of each folder that a
page links to; the links are turned there. What does not exist stays as it is, and MkDocs warns of it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
COPIES = "repository/"
ALWAYS = ("CONTRIBUTING.md", "benchmarks/README.md")
"""Pages of the repository that stand in the site's navigation."""

_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_ROW_CODE = re.compile(r"`[^`]+`")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def place_of(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    return uri.removeprefix(COPIES) if uri.startswith(COPIES) else f"docs/{uri}"


def uri_of(place: str) -> str:
    """Where a file or folder of the repository lies in the site."""
    uri = place.removeprefix("docs/") if place.startswith("docs/") else COPIES + place
    return posixpath.join(uri, "index.md") if (ROOT / place).is_dir() else uri


def targets(text: str, place: str) -> set[str]:
    """Files and folders of the repository that a page links to; `place` is the page's own."""
    found = set()
    for _, target, _ in _LINK.findall(_CODE.sub("", text)):
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        if "://" not in target and not linked.startswith("..") and (ROOT / linked).exists():
            found.add(linked)
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to and the site does not have yet, and what these pages link to."""
    waiting = [place_of(file.src_uri) for file in files.documentation_pages()]
    for place in ALWAYS:
        files.append(File.generated(config, uri_of(place), abs_src_path=str(ROOT / place)))
        waiting.append(place)
    while waiting:
        place = waiting.pop()
        for linked in sorted(targets((ROOT / place).read_text(encoding="utf-8"), place)):
            if files.get_file_from_path(uri_of(linked)) is not None:
                continue
            if (ROOT / linked).is_dir():
                files.append(File.generated(config, uri_of(linked), content=listing(ROOT / linked)))
            else:
                files.append(File.generated(config, uri_of(linked), abs_src_path=str(ROOT / linked)))
                waiting += [linked] if linked.endswith(".md") else []
    return files


def listing(folder: Path) -> str:
    """A page that links to the files of a folder."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    return "\n".join([f"# {folder.name}", "", *(f"- [{name}]({name})" for name in names), ""])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the page's links to files of the repository to their copies in the site.

    A bar within code in a table is escaped for forges; Python-Markdown reads it as it is.
    """
    uri = page.file.src_uri
    place = place_of(uri)

    def turned(link: re.Match[str]) -> str:
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(place), link[2]))
        if "://" in link[2] or linked.startswith("..") or files.get_file_from_path(uri_of(linked)) is None:
            return link[0]
        return link[1] + posixpath.relpath(uri_of(linked), posixpath.dirname(uri) or ".") + link[3]

    def prose(text: str) -> str:
        rows = re.compile(r"^\|.*", re.MULTILINE)
        text = rows.sub(lambda row: _ROW_CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text)
        return _LINK.sub(turned, text)

    # Code blocks stay as they are.
    parts, end = [], 0
    for block in _CODE.finditer(markdown):
        parts += [prose(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, prose(markdown[end:])])

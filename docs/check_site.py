"""Checks the built site: `python docs/check_site.py FOLDER`; exit code 1 where something is wrong.

MkDocs checks the links of the pages' Markdown. This checks the HTML that comes of it, docstrings included:
every link within the site has a target and an anchor that exist, and nothing is loaded from other hosts.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}
"""Elements that a browser loads by itself, and the attribute that says from where."""

NOT_LOADED = {"canonical", "edit", "next", "prev"}
"""Values of `rel` with which a browser does not load a link's target."""


class Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what the element links to, loads, and is named."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if (name := LOADED.get(tag)) in values and not NOT_LOADED & set(values.get("rel", "").split()):
            self.loaded.add(values[name])


def problems(folder: Path) -> list[str]:
    """What is wrong with the site in a folder, a line each."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        for link in sorted(page.links | page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    found.append(f"{name}: loads {link}")
                continue
            start = folder if parts.path.startswith("/") else path.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name}: {link}: no such file")
            elif target.suffix == ".html" and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: {link}: no such anchor")
    return found if pages else [f"{folder}: no pages"]


def main() -> int:
    """Print what is wrong."""
    found = problems(Path(sys.argv[1]).resolve())
    print("\n".join(found) or "every link of the site has its target, and nothing is loaded from elsewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

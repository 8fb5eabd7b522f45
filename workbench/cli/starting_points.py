"""What a run does first, on the command line: it builds bases, and fetches corpora."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from workbench.cli import terminal
from workbench.cli.display import plural
from workbench.core.errors import InputError
from workbench.studies.running import fetch_corpora

if TYPE_CHECKING:
    from workbench.studies.bases import BuildProgress, BuildStep
    from workbench.studies.experiments import Study


def folders_of(given: Sequence[str]) -> dict[str, str]:
    """The folder of each base that `--base NAME=FOLDER` options name.

    Raises:
        InputError: no `=`, or a base that is given twice.
    """
    folders: dict[str, str] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or not name or not folder:
            raise InputError(f"--base must be NAME=FOLDER, got {text!r}")
        if name in folders:
            raise InputError(f"--base: {name} is given twice")
        folders[name] = folder
    return folders


def fetch(study: Study, *, quiet: bool) -> None:
    """Fetch the corpora of a study that are not shipped and not there yet, saying so unless quiet.

    Raises:
        InputError: one cannot be had.
    """
    fetch_corpora(study, None if quiet else partial(_say, terminal.error_console()))


def _say(console: Console, corpus: str, line: str) -> None:
    console.print(Text(f"corpus {corpus}: {line}"), soft_wrap=True)


def build_bases(names: Sequence[str], *, workers: int, quiet: bool) -> None:
    """Build bases in so many processes (0: this one), saying so on the error stream unless quiet.

    Raises:
        InputError: a build refuses.
        InconclusiveError: a building process died.
    """
    from workbench.studies import bases

    if not names:
        return
    console = terminal.error_console()
    if not quiet:
        what = f"{plural(len(names), 'base model')} to build first, once: {', '.join(names)}"
        console.print(Text(f"{what} (as `workbench models build` does)"), soft_wrap=True)
    bases.ensure(names, None if quiet else _told(console), workers=workers)


def _told(console: Console) -> BuildProgress:
    """A line for each stage of a build, and for every quarter of its training."""
    printed: dict[str, tuple[str, int]] = {}

    def tell(step: BuildStep) -> None:
        """Print a line at every stage of a build and at every quarter of its steps."""
        quarter = 4 * step.done // step.total if step.total else 0
        if printed.get(step.name) == (step.stage.value, quarter):
            return
        printed[step.name] = (step.stage.value, quarter)
        share = f", step {step.done} of {step.total}" if step.total else ""
        loss = f", loss {step.loss:.3f}" if step.loss is not None else ""
        console.print(Text(f"{step.name}: {step.stage.value}{share}{loss}"), soft_wrap=True)

    return tell


def print_to_build(console: Console, names: Sequence[str]) -> None:
    """Print which base models a run would build before anything else; nothing where there is none."""
    if names:
        line = f"{plural(len(names), 'base model')} would be built first, once: {', '.join(names)}"
        console.print(Text(f"{line} (`workbench models build`); that is not in the cost"), soft_wrap=True)

"""What a study starts from: base models, folders that stand in for them, corpora that are fetched; and where.

Bases that are missing are built, and corpora that are not shipped are fetched, before anything else.
`--base NAME=FOLDER` puts a local Hugging Face folder in the place of a base in every experiment that starts
from it, so that one study file serves the bench's small bases and somebody's own large models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from workbench.cli import terminal
from workbench.cli.display import plural
from workbench.core import registry
from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import CorpusFacets

if TYPE_CHECKING:
    from workbench.studies.bases import BuildProgress, BuildStep
    from workbench.studies.experiments import Experiment, Study


def stand_ins(given: Sequence[str]) -> dict[str, str]:
    """The absolute folder of each base that `--base NAME=FOLDER` options name.

    Raises:
        InputError: no `=`, an unknown base, one given twice, or a folder that is not there or no model's.
    """
    from workbench.studies import bases

    folders: dict[str, str] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or not name or not folder:
            raise InputError(f"--base must be NAME=FOLDER, got {text!r}")
        if name not in bases.names():
            raise InputError(f"--base: {unknown_name('base', name, bases.names())}")
        if name in folders:
            raise InputError(f"--base: {name} is given twice")
        if not Path(folder).is_dir():
            raise InputError(f"--base: {name} must be a folder that exists, got {folder!r}")
        _check_folder(name, Path(folder))
        folders[name] = str(Path(folder).resolve())
    return folders


def _check_folder(name: str, folder: Path) -> None:
    """Refuse a folder that is no model's, where the base can tell without reading weights."""
    from workbench.training.content import model_facets

    check = model_facets(name).check_folder
    try:
        if check is not None:
            check(folder)
    except InputError as error:
        raise InputError(f"--base: {name}: {error}") from error


def with_stand_ins(study: Study, folders: Mapping[str, str]) -> Study:
    """The study with these folders in the place of bases; InputError where no experiment uses one."""
    used = bases_of(study)
    for name in folders:
        if name not in used:
            raise InputError(
                f"--base: no experiment of study {study.name!r} starts from {name!r}; "
                f"they start from {', '.join(used)}"
            )

    def changed(experiment: Experiment) -> Experiment:
        name, parameter = _starts_from(experiment)
        if name not in folders:
            return experiment
        return replace(experiment, model_parameters={**experiment.model_parameters, parameter: folders[name]})

    return replace(study, experiments=tuple(map(changed, study.experiments)))


def on_device(study: Study, device: str) -> Study:
    """The study with every experiment on this device; empty for those of its file."""
    if not device:
        return study
    return replace(study, experiments=tuple(replace(each, device=device) for each in study.experiments))


def placed(study: Study, option: str | None) -> Study:
    """The study on the device of `--device`, or of its file; `InputError` for one that is not here."""
    from workbench.training import devices

    if option is not None:
        return on_device(study, devices.require_device(option, "--device"))
    for device in dict.fromkeys(experiment.device for experiment in study.experiments):
        devices.require_device(device, f"study {study.name!r}: device")
    return study


def missing_bases(study: Study) -> tuple[str, ...]:
    """The bases that experiments of a study start from and that are not built; stand-ins need no building."""
    from workbench.studies import bases

    wanted = ((experiment, *_starts_from(experiment)) for experiment in study.experiments)
    return bases.missing(
        name for experiment, name, parameter in wanted if not experiment.model_parameters.get(parameter)
    )


def bases_of(study: Study) -> list[str]:
    """The models whose weights a study's experiments start from, each once."""
    return list(dict.fromkeys(_starts_from(experiment)[0] for experiment in study.experiments))


def _starts_from(experiment: Experiment) -> tuple[str, str]:
    """Whose weights an experiment starts from, and which parameter names a folder in their place."""
    from workbench.studies import bases

    return bases.starts_from(experiment.model, experiment.model_parameters)


def fetch_corpora(study: Study, *, quiet: bool) -> None:
    """Fetch the corpora of a study that are not shipped and not there yet, saying so unless quiet.

    Raises:
        InputError: one cannot be had.
    """
    known = registry.entries("corpus")
    console = terminal.error_console()
    for name in dict.fromkeys(experiment.corpus for experiment in study.experiments):
        facets = known[name].facets if name in known else None
        if isinstance(facets, CorpusFacets) and facets.fetch is not None:
            facets.fetch(None if quiet else partial(_say, console, name))


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

"""What a study starts from: base models, folders that stand in for them, and devices.

A local Hugging Face folder may stand in for a base in every experiment that starts from it, so that one study
file serves the bench's small bases and somebody's own large models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.arguments import path_of
from workbench.core.errors import ArgumentError, InputError, unknown_name
from workbench.core.one_line import object_line

if TYPE_CHECKING:
    from workbench.studies.experiments import Experiment, Study


def stand_ins(given: Mapping[str, Any]) -> dict[str, str]:
    """The absolute folder of each base that a caller names a folder for.

    Raises:
        InputError: an unknown base, or a folder that is not there or no model's.
    """
    from workbench.studies import bases

    if not isinstance(given, Mapping):
        raise ArgumentError("base", f"must be a dict of folders by base, got {object_line(given)}")
    folders: dict[str, str] = {}
    for name, value in given.items():
        if name not in bases.names():
            raise ArgumentError("base", f": {unknown_name('base', str(name), bases.names())}")
        folder = path_of("base", value)
        if not folder.is_dir():
            raise ArgumentError("base", f": {name} must be a folder that exists, got {str(folder)!r}")
        _check_folder(name, folder)
        folders[name] = os.path.realpath(folder)
    return folders


def _check_folder(name: str, folder: Path) -> None:
    """Refuse a folder that is no model's, where the base can tell without reading weights."""
    from workbench.training.content import model_facets

    check = model_facets(name).check_folder
    try:
        if check is not None:
            check(folder)
    except InputError as error:
        raise ArgumentError("base", f": {name}: {error}") from error


def with_stand_ins(study: Study, folders: Mapping[str, str]) -> Study:
    """The study with these folders in the place of bases; InputError where no experiment uses one."""
    used = bases_of(study)
    for name in folders:
        if name not in used:
            raise ArgumentError(
                "base",
                f": no experiment of study {study.name!r} starts from {name!r}; "
                f"they start from {', '.join(used)}",
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
    """The study on a device, or, for None, on that of its file; `InputError` for one that is not here."""
    from workbench.training import devices

    if option is not None:
        return on_device(study, devices.require_device(option))
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

"""Checks the names and parameters in a study file against the registry, before anything runs.

Mechanisms and attacks are cheap to make, so their parameters are tried; corpora and models are not made, and
only the names and types of their parameters are checked.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workbench.core import registry
from workbench.core.errors import InputError, unknown_name
from workbench.core.one_line import object_line
from workbench.games.base import game_of
from workbench.interfaces import Attack
from workbench.studies.experiments import Experiment
from workbench.studies.fields import NAMED
from workbench.studies.file import StudyFile, place

SET_BY_STUDY = {"corpus": {"size": "members", "seed": "seed"}, "model": {"seed": "seed"}}
"""Parameters of factories that the runner gives, and the field that decides each."""

TRIED = ("mechanism", "attack")
"""Kinds that are made, to see whether they take their parameters."""

_SIMPLE = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,), "None": ()}


def check_file(file: StudyFile) -> None:
    """Refuse names that are registered nowhere, with the place in the file where they stand.

    Raises:
        InputError: an unknown mechanism, attack, corpus, model, optimizer, adapter, LoRA target or report.
    """
    known = _known_names()
    if file.report and file.report not in registry.entries("study_report"):
        raise unknown_name("report", file.report, registry.entries("study_report"))
    for where, table in _tables(file):
        with place(where):
            for name, values in table.items():
                for value in values if name in known else ():
                    if value not in known[name]:
                        raise unknown_name(name, value, known[name])


def check_experiments(experiments: Iterable[Experiment]) -> None:
    """Refuse parameters that a factory does not take, and attacks whose game does not accept them.

    Raises:
        InputError: a parameter is unknown, missing, of a wrong type or refused; or an attack is.
    """
    seen: set[tuple[str, str, str]] = set()
    for experiment in experiments:
        for field_name, kind in NAMED.items():
            name = getattr(experiment, field_name)
            parameters = getattr(experiment, f"{field_name}_parameters")
            combination = (kind, name, json.dumps(parameters, sort_keys=True))
            if combination not in seen:
                seen.add(combination)
                with place(f"group {experiment.group!r}, variant {experiment.variant!r}"):
                    _check_parameters(kind, name, parameters)


def _known_names() -> dict[str, Iterable[str]]:
    """What each field that holds a name may hold."""
    from workbench.training.fine_tuning import ADAPTERS, OPTIMIZERS
    from workbench.training.lora import LORA_TARGETS

    known: dict[str, Iterable[str]] = {name: registry.entries(kind) for name, kind in NAMED.items()}
    return {**known, "optimizer": OPTIMIZERS, "adapter": ADAPTERS, "lora_targets": LORA_TARGETS}


def _tables(file: StudyFile) -> Iterable[tuple[str, dict[str, list[Any]]]]:
    """Every table that sets fields: its place, and the values of each field (named lists left out)."""
    fixed = [("base", file.base)]
    fixed += [(f"profile {name!r}: base", profile.base) for name, profile in file.profiles.items()]
    fixed += [(f"variant {name!r}", variant.fields) for name, variant in file.variants.items()]
    fixed += [(f"group {name!r}: set", group.fields) for name, group in file.groups.items()]
    for where, table in fixed:
        yield where, {name: [value] for name, value in table.items()}
    for name, group in file.groups.items():
        for where, axes in (("grid", group.grid), *(("zip", table) for table in group.zips)):
            listed = {key: list(values) for key, values in axes.items() if not isinstance(values, str)}
            yield f"group {name!r}: {where}", listed
        for excluded in group.exclude:
            yield f"group {name!r}: exclude", {key: [value] for key, value in excluded.items()}


def _check_parameters(kind: str, name: str, parameters: Mapping[str, Any]) -> None:
    known = registry.entries(kind)
    if name not in known:  # From a named list, which has no place of its own in the file.
        raise unknown_name(kind, name, known)
    _check_signature(kind, name, known[name].factory, parameters)
    if kind in TRIED:
        made = registry.create(kind, name, **parameters)
        if kind == "attack":
            if not isinstance(made, Attack):
                raise InputError(f"attack {name!r} must be a subclass of workbench.interfaces.Attack")
            game_of(made).adopt(name, made)


def _check_signature(
    kind: str, name: str, factory: Callable[..., Any], parameters: Mapping[str, Any]
) -> None:
    """Refuse parameters by the factory's signature."""
    set_by_study = SET_BY_STUDY.get(kind, {})
    accepted = {
        key: parameter
        for key, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    takes_any = any(
        parameter.kind is parameter.VAR_KEYWORD
        for parameter in inspect.signature(factory).parameters.values()
    )
    for key, value in parameters.items():
        if key in set_by_study:
            raise InputError(f"{kind} parameter {key!r} is set by the study's {set_by_study[key]}")
        if key not in accepted and not takes_any:
            choices = [key for key in accepted if key not in set_by_study]
            if not choices:
                raise InputError(f"{kind} {name!r} takes no parameters, got {key!r}")
            raise unknown_name(f"parameter of {kind} {name!r}:", key, choices)
        if value == math.inf and (key not in accepted or accepted[key].default != math.inf):
            raise InputError(f"{kind} {name!r}: {key} must be finite, got inf")
        if key in accepted:
            _check_type(f"{kind} {name!r}: {key}", accepted[key].annotation, value)
    for key, parameter in accepted.items():
        if key not in parameters and key not in set_by_study and parameter.default is parameter.empty:
            raise InputError(f"{kind} {name!r} needs {kind}_parameters.{key}")


def _check_type(what: str, annotation: Any, value: Any) -> None:
    """Refuse a value of another type, where the annotation is made of Python's simple types."""
    choices = [part.strip() for part in str(annotation).split("|")] if isinstance(annotation, str) else []
    if not choices or any(choice not in _SIMPLE for choice in choices):
        return
    allowed = tuple(kind for choice in choices for kind in _SIMPLE[choice])
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise InputError(f"{what} must be of type {annotation}, got {object_line(value)}")

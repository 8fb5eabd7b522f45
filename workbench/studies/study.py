"""Studies: a TOML file that names a grid of experiments, read and checked before anything runs.

```toml
schema = 1
title = "Noise against utility"
replication = "seed"                 # the field whose values are independent repeats

[base]                               # any field of Experiment; what is not varied
mechanism = "private"
attack = "loss"
corpus = "clinical"
model = "tiny_gpt2"
members = 100
epochs = 2
learning_rate = 1e-3
delta = "1/N^2"                      # a number, or this text or "1/(2N)": N is the number of members

[lists]
seeds = [0, 1, 2]

[profile.quick]                      # lays fields (base) and lists over the file's, and adds notes;
lists = { seeds = [0] }              # groups and variants, if given, restrict to those
notes = ["One seed: no spread is known."]

[profile.full]

[variant."DP-SGD"]                   # fields laid over the group's; what tables call this mechanism
tags = { method = "ours" }           # what a report tells the experiments by; over the group's

[variant."Fine-tuned"]
mechanism = "plain"
without = ["epsilon"]                # axes that the variant does not have: its experiments collapse;
                                     # without epsilon there is no delta either

[[group]]
name = "batch size"
set = { epochs = 4 }                 # over base
grid = { epsilon = [1, 4], seed = "$seeds" }            # every combination; "$seeds" is a named list
zip = [{ batch_size = [5, 10], learning_rate = [1e-3, 2e-3] }]   # lists that go together
exclude = [{ variant = "DP-SGD", batch_size = 5 }]      # drops what matches all of a table
variants = ["DP-SGD", "Fine-tuned"]                     # default: all
tags = { part = "main" }
```

A table of parameters (`mechanism_parameters`, ...) is one value: laying one over another replaces it whole.
Without `[variant]` tables a mechanism is called by its own name. Experiments stand in the order of the file:
groups, variants, then values, the fields of `Experiment` in their own order with the first one slowest; the
order of keys in a table means nothing. An experiment that two groups name stands in both, with one identity.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from workbench.core import registry
from workbench.core.errors import InputError, unknown_name
from workbench.core.inputs import read_bytes
from workbench.core.one_line import object_line, one_line
from workbench.interfaces import Attack
from workbench.studies.experiments import Experiment, Study
from workbench.studies.fields import FIELDS, NAMED, PARAMETERS, value_text
from workbench.studies.file import StudyFile, parse, place
from workbench.studies.grid import expand

ENDING = ".toml"

MOST_BYTES = 10_000_000
"""Of a study file."""

NONE = "none"
"""How `select` writes the epsilon of an experiment without a budget."""


_WHOLE = re.compile(r"[+-]?\d{1,30}")


def study_names() -> list[str]:
    """Names of the studies that the package ships, sorted."""
    return sorted(_shipped())


def _shipped() -> dict[str, Traversable]:
    """The shipped study files by name: every TOML file in a paper's folder but its `report.toml`."""
    folders = [folder for folder in (files("workbench.reports") / "papers").iterdir() if folder.is_dir()]
    items = [item for folder in folders for item in folder.iterdir() if item.name.endswith(ENDING)]
    return {item.name.removesuffix(ENDING): item for item in items if item.name != f"report{ENDING}"}


def profiles(name_or_path: str) -> list[str]:
    """Names of a study's profiles, in the order of its file.

    Args:
        name_or_path: A shipped study's name, or the path of a file (it ends in `.toml` or has a separator).

    Raises:
        InputError: there is no such study, or its file is unusable.
    """
    _, file, _ = _read(name_or_path)
    return list(file.profiles)


def title(name_or_path: str) -> str:
    """A study's title; like `profiles` it looks no mechanism or attack up, which would import frameworks."""
    _, file, _ = _read(name_or_path)
    return file.title


def load_study(name_or_path: str, *, profile: str | None = None) -> Study:
    """Read a study, check all that it says, and expand it; a pure function of the file's content and name.

    Args:
        name_or_path: As in `profiles`.
        profile: One of the file's profiles; None for its first one, or for the file as it stands where it
            has none.

    Raises:
        InputError: there is no such study or profile, or the file is unusable; names the place and the value.
    """
    name, file, digest = _read(name_or_path)
    chosen = profile if profile is not None else next(iter(file.profiles), None)
    with place(f"study {name!r}"):
        check_file(file)
        experiments = expand(file, chosen)
        check_experiments(experiments)
    notes = file.profiles[chosen].notes if chosen is not None else ()
    return Study(
        name=name,
        title=file.title,
        profile=chosen or "",
        replication=file.replication,
        experiments=experiments,
        source_sha256=digest,
        paper=file.paper,
        report=file.report,
        notes=(*file.notes, *notes),
    )


def select(study: Study, *, only: Sequence[str] = (), limit: int | None = None) -> Study:
    """The experiments of a study that `workbench run --only` and `--limit` choose.

    Args:
        only: What to keep: `"field=value"`, where a field is one of `Experiment` (also `group` and
            `variant`), or a parameter (`mechanism_parameters.form`), and `epsilon=none` means without a
            budget; or just the name of a group or variant. Several values of one field are alternatives;
            different fields must all fit.
        limit: Number of experiments to keep, the first ones; None for all.

    Raises:
        InputError: an unknown field or name, a value that no experiment has, nothing left, or a limit < 1.
    """
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise InputError(f"limit must be at least 1, got {limit}")
    wanted: dict[str, list[str]] = {}
    for text in only:
        field_name, value = _condition(study, text)
        wanted.setdefault(field_name, []).append(value)
    kept = tuple(
        experiment
        for experiment in study.experiments
        if all(
            any(_equals(_value(experiment, field_name), value) for value in values)
            for field_name, values in wanted.items()
        )
    )
    if not kept:
        raise InputError(one_line(f"no experiment of study {study.name!r} matches {' and '.join(only)}"))
    return replace(study, experiments=kept[:limit])


def _read(name_or_path: str) -> tuple[str, StudyFile, str]:
    """The study's name, its parsed file, and the hash of its bytes."""
    path = Path(name_or_path)
    if name_or_path.endswith(ENDING) or any(mark in name_or_path for mark in (os.sep, "/")):
        name = path.name.removesuffix(ENDING)
        if not name[:1].isalnum() or not name.isprintable():
            raise InputError(f"a study file's name must start with a letter or digit, got {name_or_path!r}")
        place_of_file: Any = path
    else:
        name = name_or_path
        shipped = _shipped()
        if name not in shipped:
            raise unknown_name("study", name, shipped)
        place_of_file = shipped[name]
    with place(f"study {name!r}"):
        try:
            content = read_bytes(place_of_file, MOST_BYTES)
            text = content.decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            raise InputError(f"cannot read {name_or_path}: {error.strerror or error}") from error
        except (UnicodeDecodeError, ValueError) as error:
            raise InputError(f"is no UTF-8 text: {error}") from error
        return name, parse(text), hashlib.sha256(content).hexdigest()


def _condition(study: Study, text: str) -> tuple[str, str]:
    """A field and the text of its value, from `"field=value"` or from the name of a group or variant."""
    groups = {experiment.group for experiment in study.experiments}
    variants = {experiment.variant for experiment in study.experiments}
    for field_name, names in (("group", groups), ("variant", variants)):
        if text in names:
            return field_name, text
    field_name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise unknown_name("group or variant", text, groups | variants)
    known = ("group", "variant", *(name for name in FIELDS if name not in PARAMETERS))
    head, dot, _ = field_name.partition(".")
    if field_name not in known and not (dot and head in PARAMETERS):
        raise unknown_name("field", field_name, known)
    values = [_value(experiment, field_name) for experiment in study.experiments]
    if not any(_equals(present, value) for present in values):
        texts = (NONE if present is None else value_text(present).strip("'") for present in values)
        raise _no_such_value(field_name, value, list(dict.fromkeys(texts)))
    return field_name, value


def _no_such_value(field_name: str, value: str, present: Sequence[str]) -> InputError:
    if field_name in ("group", "variant"):
        return unknown_name(field_name, value, present)
    more = ", ..." if len(present) > 12 else ""
    return InputError(
        one_line(f"no experiment has {field_name} = {value}; there are {', '.join(present[:12])}{more}")
    )


def _value(experiment: Experiment, field_name: str) -> Any:
    head, dot, key = field_name.partition(".")
    if not dot:
        return getattr(experiment, head)
    parameters: Mapping[str, Any] = getattr(experiment, head)
    return parameters.get(key)


def _equals(value: Any, text: str) -> bool:
    """Does a value read as the text says? Numbers compare as numbers."""
    if value is None:
        return text.lower() == NONE
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, int | float):
        try:  # A seed may have more digits than a float tells apart.
            return (
                int(text) == value
                if isinstance(value, int) and _WHOLE.fullmatch(text)
                else float(text) == value
            )
        except ValueError:
            return False
    return str(value) == text


# Names and parameters, against the registry: mechanisms and attacks are made, corpora and models are not

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
            from workbench.games.base import game_of  # Which imports frameworks.

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

"""`workbench.audit_training` and `workbench.replay`: a user's training function under a claim.

The function is named as `"path/to/file.py:function"`, or given as one that stands at the top level of a file:
worker processes load it from there. What worker processes cannot load (a lambda, a closure, a function of a
notebook's cell) is refused in one line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from workbench.audit.api.arguments import (
    ClaimLike,
    PathLike,
    call_of,
    confidence_of,
    kept_in,
    known,
    seed_of,
)
from workbench.audit.api.result import AuditResult
from workbench.audit.claims import EXAMPLE, claimed
from workbench.audit.embedded import EMBEDDED
from workbench.core.arguments import one_of, parameters_of, whole_number, yes_or_no
from workbench.core.errors import ArgumentError, naming_extras
from workbench.core.one_line import object_line
from workbench.interfaces import Adjacency, Released
from workbench.training.crafts import CanaryKind
from workbench.training.devices import CPU, require_device

if TYPE_CHECKING:
    from workbench.audit.settings import AuditSettings
    from workbench.execution.engine import Progress

Trainer: TypeAlias = str | Callable[..., Any]
"""A training function, or where it is: `"path/to/file.py:function"`."""

LEAST_CANDIDATES = 20

LEAST_CANARIES = 16
"""Fewer could refute nothing but the smallest claims, and leave no room for chance in their coins. Where two
records share a coin, twice as many are needed of these and of candidates.
"""

FEWEST_TRAININGS = 20
"""Of a retraining game: fewer refute nothing but the smallest claims."""

REPLAYED_CANDIDATES = 200
"""Records that a replayed function trains on, unless the caller says otherwise."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@naming_extras
def audit_training(
    function: Trainer,
    *,
    claim: ClaimLike = EXAMPLE,
    corpus: str | None = None,
    corpus_parameters: Mapping[str, Any] = _NOTHING,
    candidates: int | None = None,
    runs: int = 1,
    replay: bool = True,
    stated: Mapping[str, Any] = _NOTHING,
    canaries: int | None = None,
    canary_kind: CanaryKind | str | None = None,
    retrain: int | None = None,
    sequential: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
    workers: int | None = None,
    scheduler: str | None = None,
    device: str = CPU,
    out: PathLike | None = None,
    progress: Progress | None = None,
    announce: Callable[[str], None] | None = None,
    command: str = "",
) -> AuditResult:
    """Audit a training function: flip coins, let it train, score every candidate, and replay it.

    Args:
        function: Called as `function(records, seed)`; the contract is in docs/user_training.md.
        claim: A text such as `"epsilon=1,delta=1e-5,adjacency=add-remove"`, or a `Claim`.
        corpus, corpus_parameters: Where the records come from, and its parameters.
        candidates: Number of candidate records, each of which is trained on by a fair coin; None for the
            corpus' own number.
        runs: Trainings of the membership game.
        replay: Forced replay too.
        stated: What the code is said to do, by name: `noise_multiplier`, `l2_clip_norm`,
            `sampling_probability`, `steps`, `divisor`; a replay then tells which part does otherwise.
        canaries: Crafted records to look for in scores and updates; 0 for none, None for as many as
            candidates, 400 at most.
        canary_kind: `"loud"`, `"mislabelled"` or `"secret"`; None for secrets where records are texts without
            labels, and loud ones elsewhere.
        retrain: So many more trainings, half of them with one crafted record; None for no such game.
        sequential: The game of `retrain` ends as soon as it refutes the claim.
        confidence: Of the verdict, shared by all games.
        seed: Of every random choice.
        workers: Processes (2 unless given); the function never runs in this one.
        scheduler: Address of a Dask scheduler, which then has the workers.
        device: What the function is told to train on, unless it is the CPU.
        out: Folder of the store, with which a second call goes on where this one ended; None keeps nothing.
        progress: Called with the stage, the jobs done, and the jobs in all.
        announce: Called with lines that say how many records go where, before anything is trained.
        command: How the report says that it was made; this call, unless given.

    Raises `InputError`: an argument is unusable, or the function fails or breaks its contract.
    `UnsupportedError`: the games do not test such a claim.
    """
    from workbench.audit import foretold
    from workbench.audit import run_training as runner
    from workbench.audit.canaries.run import usual_count
    from workbench.audit.replay.stated import stated_from
    from workbench.audit.starting import started

    spec = spec_of(function)
    held = claimed(claim, released=Released.SCORES)
    # Where nobody says what is released, it is what the scorer answers to the attack, and every update here.
    of_updates = claimed(claim, released=Released.EVERY_UPDATE)
    runs = whole_number("runs", runs, least=1)
    if retrain is not None:
        retrain = whole_number("retrain", retrain, least=FEWEST_TRAININGS)
    if yes_or_no("sequential", sequential) and retrain is None:
        raise ArgumentError("sequential", "watches the trainings of `retrain`, which is missing")
    said = stated_from(stated)
    if not yes_or_no("replay", replay) and said is not None:
        raise ArgumentError("stated", "is held against what `replay` measures, which is turned off")
    a_coin = 2 if held.about is Adjacency.REPLACE_ONE else 1
    kind = None if canary_kind is None else one_of(CanaryKind, "canary_kind", canary_kind)
    settings = _settings(
        corpus,
        corpus_parameters,
        candidates,
        least=LEAST_CANDIDATES * a_coin,
        claim=held,
        confidence=confidence_of(confidence),
        seed=seed_of(seed),
        sequential=bool(sequential),
        device=require_device(device),
        scheduler=scheduler,
        **({} if workers is None else {"workers": whole_number("workers", workers, least=0)}),
    )
    count = (
        usual_count(settings.candidates) if canaries is None else _canaries(canaries, LEAST_CANARIES * a_coin)
    )
    said_first = foretold.of_training(
        spec.rpartition(":")[2],
        settings,
        runs=runs,
        canaries=count,
        replays=bool(replay) and runner.is_replayable(of_updates),
        trainings=retrain or 0,
    )

    def begins() -> None:
        for line in said_first:
            if announce is not None:
                announce(line)

    call = partial(call_of, "audit_training", function, claim=claim, corpus=corpus, candidates=candidates)
    with kept_in(out) as folder, started(spec, settings, folder, progress) as engine:
        record = runner.audit_training(
            spec,
            settings,
            engine,
            runs=runs,
            command=command or call(retrain=retrain, seed=seed, out=out),
            replayed=of_updates if replay else None,
            watched=of_updates if count else None,
            canaries=count,
            canary_kind=kind,
            retrained=of_updates if retrain else None,
            trainings=retrain or 0,
            stated=said,
            begins=begins,
        )
    return AuditResult(record)


@naming_extras
def replay(
    function: Trainer,
    *,
    claim: ClaimLike = EXAMPLE,
    corpus: str = "digits",
    corpus_parameters: Mapping[str, Any] = _NOTHING,
    candidates: int = REPLAYED_CANDIDATES,
    stated: Mapping[str, Any] = _NOTHING,
    confidence: float = 0.95,
    seed: int = 0,
    device: str = CPU,
    out: PathLike | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> AuditResult:
    """Measure what a training function releases of one record, by replaying it with another one.

    The function runs some seventy times with one seed or another, in a process of its own: as it is; without
    its noise and with each gradient replaced by that of the first run; and so again with one record replaced.

    Args:
        function, claim, corpus, corpus_parameters: As in `audit_training`.
        candidates: Number of records that it trains on, at least 20.
        stated, confidence, seed, device, out, progress, command: As in `audit_training`.

    Raises `InputError`: an argument is unusable, or the function fails. `UnsupportedError`: the claim is not
    one of (epsilon, delta)-DP.
    """
    from workbench.audit.settings import embedded_settings
    from workbench.audit.starting import started

    spec = spec_of(function)
    settings = embedded_settings(
        corpus=known("corpus", "corpus", corpus),
        corpus_parameters=parameters_of("corpus_parameters", corpus_parameters),
        candidates=whole_number("candidates", candidates, least=LEAST_CANDIDATES, most=None),
        claim=claimed(claim, released=Released.EVERY_UPDATE),
        seed=seed_of(seed),
        confidence=confidence_of(confidence),
        device=require_device(device),
        workers=1,
    )
    call = call_of("replay", function, claim=claim, corpus=corpus, candidates=candidates, seed=seed)
    with kept_in(out) as folder, started(spec, settings, folder, progress) as engine:
        from workbench.audit.replay.stated import stated_from
        from workbench.audit.run_training import audit_replay

        record = audit_replay(spec, settings, engine, command=command or call, stated=stated_from(stated))
    return AuditResult(record)


def spec_of(function: Any) -> str:
    """Returns `path/to/file.py:function` for a function that a worker process can load from its file.

    Raises `InputError`: it cannot be carried to one.
    """
    if isinstance(function, str):
        return function
    if not callable(function):
        raise ArgumentError(
            "function", f"must be 'FILE.py:FUNCTION' or a function, got {object_line(function)}"
        )
    reason = _not_carried(function)
    if reason:
        raise ArgumentError(
            "function",
            f"cannot be carried to a worker process: {reason}; write it into a file and give "
            "'FILE.py:FUNCTION'",
        )
    return f"{Path(inspect.getfile(function)).resolve()}:{function.__name__}"


def _not_carried(function: Any) -> str:
    """Why a callable cannot be loaded from a file by its name; empty where it can."""
    if not isinstance(function, FunctionType):
        return f"it is no plain function but a {type(function).__name__}"
    if function.__name__ == "<lambda>":
        return "it is a lambda"
    if "." in function.__qualname__:
        return f"{function.__qualname__!r} is not at the top level of its file"
    if not Path(function.__code__.co_filename).is_file():
        return f"{function.__name__!r} is in no file (a notebook's cell, or typed at a prompt)"
    return ""


def _settings(
    corpus: Any, given: Mapping[str, Any], candidates: Any, *, least: int, **fields: Any
) -> AuditSettings:
    """The settings of an audit of a user's training, with what fits the corpus where nobody says."""
    from workbench.audit.settings import default_settings

    default = default_settings(None)
    chosen = default.corpus if corpus is None else known("corpus", "corpus", corpus)
    kept = default.corpus_parameters if chosen == default.corpus else {}
    laid = {**kept, **parameters_of("corpus_parameters", given)}
    count = EMBEDDED["elsewhere_candidates"].get(chosen, default.candidates)
    if candidates is not None:
        count = whole_number("candidates", candidates, least=least, most=None)
    made = default_settings(None, members={}, corpus=chosen, corpus_parameters=laid, **fields)
    return replace(made, candidates=count)


def _canaries(value: Any, least: int) -> int:
    count = whole_number("canaries", value, least=0)
    if 0 < count < least:
        raise ArgumentError("canaries", f"must be 0 or at least {least}, got {count}")
    return count

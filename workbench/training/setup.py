"""The setup of a trained subject, the plan made from it, and the task that trains it.

A task's payload is plain data; the same function trains in this process, on a pool and on a cluster.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core import registry
from workbench.core.cost import cost_since
from workbench.core.errors import ContentError, InputError, RoomError, UnsupportedError
from workbench.core.keys import LATER
from workbench.core.streams import stream, stream_seed
from workbench.interfaces import (
    Attack,
    BoolArray,
    Corpus,
    Guarantee,
    Insertions,
    Mechanism,
    Plan,
    Record,
    TaskModel,
    TimedSpec,
)
from workbench.training import content
from workbench.training.content import Given, Parameters, model_facets


@dataclass(frozen=True, kw_only=True)
class TrainingSetup(TimedSpec):
    """Everything that decides a trained subject except which candidates are members.

    Attributes:
        mechanism, corpus: Registry names, each with its parameters.
        budget: The guarantee that training must meet; None for none.
        candidates: Size of the candidate pool.
        attack_parameters: Parameters of each attack that inserts canaries, by attack name, in order.
        seed: Of the whole audit.
    """

    mechanism: str
    corpus: str
    budget: Guarantee | None
    candidates: int
    mechanism_parameters: Parameters = field(default_factory=dict)
    corpus_parameters: Parameters = field(default_factory=dict)
    attack_parameters: Mapping[str, Parameters] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Train on the included candidates; `run` 0 is the target, 1, 2, ... are the shadows."""

    setup: TrainingSetup
    included: tuple[bool, ...]
    run: int


def forget_corpora() -> None:
    """Clear the caches of corpora and models' files, which may have changed since an earlier run."""
    content.forget()
    _require_read_whole.cache_clear()


def _corpus_arguments(setup: TrainingSetup) -> tuple[str, int, int, Given]:
    """Arguments of `content.corpus`; an `InputError` where parameters set what the audit sets."""
    for kind, given, reserved in (
        ("corpus", setup.corpus_parameters, {"size": "candidates", "seed": "seed"}),
        ("model", setup.model_parameters, {"seed": "seed"}),
    ):
        for name in sorted(set(given) & set(reserved)):
            raise InputError(
                f"{kind} parameter {name!r} is set by the audit's {reserved[name]}, got {given[name]!r}"
            )
    seed = stream_seed(setup.seed, "corpus")
    return setup.corpus, setup.candidates, seed, Given.of(setup.corpus_parameters)


def load_corpus(setup: TrainingSetup) -> Corpus:
    """The candidate pool before canaries, the same in every job of an audit.

    Raises `InputError`: a parameter of the corpus or of the model is one that the audit sets, or there are
    not so many records (`RoomError`).
    """
    try:
        return content.corpus(*_corpus_arguments(setup))
    except RoomError as error:
        raise error.of("candidates") from None


def content_digest(setup: TrainingSetup) -> str:
    """Hash of the records, the model's files and the plug-ins' code behind the setup's names, for store keys.

    Cached for the life of the process; `forget_corpora` clears it.
    """
    records = content.records_digest(*_corpus_arguments(setup))
    model = content.model_fingerprint(setup.model, Given.of(setup.model_parameters))
    named = [("corpus", setup.corpus), ("model", setup.model), ("mechanism", setup.mechanism)]
    for attack in setup.attack_parameters:
        entry = registry.entries("attack").get(attack)
        game = None if entry is None else getattr(entry.factory, "game", None)
        named += [("attack", attack), *([("game", game)] if isinstance(game, str) else [])]
    code = "".join(content.plugin_digest(kind, name) for kind, name in named)
    return hashlib.sha256(f"{records}{model}{code}".encode()).hexdigest()[:32]


def require_content(setup: TrainingSetup, digest: str) -> None:
    """Refuse data that differ from those of a key's `content_digest`; an empty digest allows any.

    Raises `ContentError`: the corpus or the model's files are not those, as a worker's may be.
    """
    if not digest or content_digest(setup) == digest:
        return
    forget_corpora()
    if content_digest(setup) != digest:
        raise ContentError(
            f"corpus {setup.corpus!r} or model {setup.model!r} is not what it was where the run started: its "
            "files were changed meanwhile, or differ on the worker's machine"
        )


def create_attack(setup: TrainingSetup, name: str, given: Parameters | None = None) -> Attack[Any]:
    """The attack with its parameters, or with `given`, and with its knowledge of the mechanism.

    Raises `InputError`: the registered entry is no attack, or a parameter is unusable.
    """
    parameters = dict(setup.attack_parameters.get(name, {}) if given is None else given)
    attack = registry.create("attack", name, **parameters)
    if not isinstance(attack, Attack):
        raise InputError(f"attack {name!r} must be a subclass of workbench.interfaces.Attack")
    return attack.informed(lambda: create_mechanism(setup), parameters)


def prepare(setup: TrainingSetup) -> tuple[tuple[Record, ...], Insertions]:
    """Candidates with every attack's canaries inserted, and the merged insertions.

    A run has one gradient canary, that of the first attack with one. All attacks draw their canaries from the
    same stream, so that attacks with the same canaries share one subject. Raises `InputError`: two attacks
    want different canaries in one record.
    """
    corpus = load_corpus(setup)
    replaced: dict[str, Record] = {}
    planted: dict[str, Record] = {}
    gradient_canary = None
    for name in setup.attack_parameters:
        insertions = create_attack(setup, name).prepare(corpus, stream(setup.seed, "insertions"))
        for kept, wanted in ((replaced, insertions.replaced), (planted, insertions.planted)):
            for record in wanted:
                if kept.setdefault(record.id, record) != record:
                    raise InputError(
                        f"attack {name!r} wants another canary in record {record.id!r} than the others"
                    )
        gradient_canary = gradient_canary or insertions.gradient_canary
    candidates = corpus.records
    if replaced:
        candidates = tuple(replaced.get(record.id, record) for record in corpus.records)
    for record in (*candidates, *corpus.held_out) if planted else ():
        if record.id in planted:
            raise InputError(f"planted record {record.id!r} has the id of a record of the corpus")
    return candidates, Insertions(
        replaced=tuple(replaced.values()), gradient_canary=gradient_canary, planted=tuple(planted.values())
    )


def make_plan(setup: TrainingSetup, included: BoolArray, run: int) -> Plan:
    """The plan of one training run; shadows (run > 0) get no gradient canary.

    Planted records follow the members in every run, and count in the public size.
    """
    candidates, insertions = prepare(setup)
    if run > 0:
        insertions = replace(insertions, gradient_canary=None)
    members = tuple(record for record, used in zip(candidates, included, strict=True) if used)
    return Plan(
        records=members + insertions.planted,
        held_out=load_corpus(setup).held_out,
        dev=load_corpus(setup).public,
        **setup.spec(),
        budget=setup.budget,
        insertions=insertions,
        public_size=setup.candidates // 2 + len(insertions.planted),
        seed=stream_seed(setup.seed, "training", run),
    )


def with_attacks(setup: TrainingSetup, attack_parameters: Mapping[str, Parameters]) -> TrainingSetup:
    """The same setup with canaries of other attacks."""
    return replace(setup, attack_parameters=dict(attack_parameters))


def create_mechanism(setup: TrainingSetup) -> Mechanism:
    """The mechanism with its parameters."""
    return mechanism_of(setup.mechanism, setup.mechanism_parameters)


def mechanism_of(name: str, parameters: Parameters) -> Mechanism:
    """A registered mechanism with these parameters.

    Raises `InputError`: the registered entry is no mechanism, or a parameter is unusable.
    """
    mechanism = registry.create("mechanism", name, **dict(parameters))
    if not isinstance(mechanism, Mechanism):
        raise InputError(f"mechanism {name!r} must be a subclass of workbench.interfaces.Mechanism")
    return mechanism


def check_fit(setup: TrainingSetup) -> None:
    """Refuse a model that cannot do its task on the corpus, or that would cut planted records.

    Also a mechanism that needs a task where the model has none. A model's facet `check_records` decides which
    records it takes. What cannot be prepared or built passes here, and fails where it is used. Raises
    `InputError`: they do not fit.
    """
    check = model_facets(setup.model).check_records
    wanted = create_mechanism(setup).capabilities.needs_task if check is None else ""
    if wanted and not _has_task(setup):
        raise InputError(f"{wanted} needs a model with a task, got model {setup.model!r}")
    try:
        records, insertions = prepare(setup)
    except Exception:  # Of any kind: a plug-in's corpus.
        return
    if insertions.planted:
        _require_read_whole(setup.model, Given.of(setup.model_parameters), insertions.planted)
    if check is None:
        return
    try:
        check(records, **setup.model_parameters)
    except InputError as error:
        raise InputError(
            f"model {setup.model!r} does not go with corpus {setup.corpus!r}: {error}"
        ) from error


@lru_cache(maxsize=256)
def _require_read_whole(model: str, given: Given, planted: tuple[Record, ...]) -> None:
    """Refuse planted records that the model would cut, with an `InputError`; once for all mechanisms."""
    from workbench.training.models import require_read_whole

    try:
        made = registry.create("model", model, seed=0, **given.parameters)
    except Exception:  # Of any kind: a plug-in's model, or a base that is not built yet.
        return
    require_read_whole(made, planted)


def _has_task(setup: TrainingSetup) -> bool:
    """Whether a model whose facets name no task has one."""
    if setup.model in registry.entries("base"):  # Plain language models, which may not be built yet.
        return False
    try:
        made = registry.create("model", setup.model, seed=0, **setup.model_parameters)
    except Exception:  # Of any kind: a plug-in's model.
        return True
    return isinstance(made, TaskModel)


@dataclass(frozen=True, kw_only=True)
class ShadowsJob:
    """Train shadows of a setup as an ensemble; row r of `included` has the members of run `first` + r."""

    setup: TrainingSetup
    included: tuple[tuple[bool, ...], ...]
    first: int = field(default=1, metadata=LATER)

    @property
    def runs(self) -> range:
        """The runs of the shadows."""
        return range(self.first, self.first + len(self.included))


def train_shadows(
    job: ShadowsJob, inputs: Mapping[str, Path], scratch: Path, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Train the job's shadows, and save each to a scratch folder named after its run; returns `cost`."""
    from workbench.training.ensemble.together import train_together
    from workbench.training.loop import GradientMechanism

    started, mechanism = time.perf_counter(), create_mechanism(job.setup)
    if not isinstance(mechanism, GradientMechanism):
        raise UnsupportedError(f"mechanism {job.setup.mechanism!r} is not a gradient mechanism")
    plans = [
        make_plan(job.setup, np.array(row, dtype=bool), run)
        for run, row in zip(job.runs, job.included, strict=True)
    ]
    for run, subject in zip(job.runs, train_together(mechanism, plans, progress), strict=True):
        (scratch / str(run)).mkdir()
        subject.save(scratch / str(run))
    return {"cost": cost_since(started)}


def train(
    job: TrainingJob | ShadowsJob,
    inputs: Mapping[str, Path],
    scratch: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Train one subject and save it to the scratch folder; returns `claim`, `losses`, `metrics`, `cost`.

    Shadows: see `train_shadows`.
    """
    if isinstance(job, ShadowsJob):
        return train_shadows(job, inputs, scratch, progress)
    started = time.perf_counter()
    plan = make_plan(job.setup, np.array(job.included, dtype=bool), job.run)
    subject = create_mechanism(job.setup).train(plan, progress)
    subject.save(scratch)
    return {
        "claim": subject.claim,
        "losses": subject.transcript.losses,
        "metrics": subject.transcript.metrics,
        "cost": cost_since(started),
    }

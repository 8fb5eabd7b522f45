"""Shipped results: what the report of a study is made from on a machine where the study was not run.

A paper's folder may hold, beside a study's file, `STUDY.results.gz`: the outcomes of one profile as compact
data, with who ran it, on what and for how long. An outcome is found by what its experiment says, all defaults
included, so results of a study file or of defaults that changed since are not taken for those of today.

Scores of a membership game are kept as ranks: every number that a report makes of them depends on their order
alone. Where more than `MOST_RANKED` records are scored, they are kept as the part of the order that each is
in (`EDGES`, finer where the highest are), less that of the run of the same records that is most like it: ROC
curves and the like are of those parts then. Losses and traces are rounded (`DIGITS`), metrics not: what tests
compare between seeds must not become equal.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from workbench.core.errors import InputError
from workbench.core.keys import JSON, key_of, plain
from workbench.execution.store import Store
from workbench.interfaces import FloatArray
from workbench.studies.experiments import Experiment, Outcome, Status, Study, StudyResults
from workbench.studies.jobs import jobs_of, setup_of
from workbench.studies.results import read_record, read_results
from workbench.training.content import settled
from workbench.training.setup import content_digest

SCHEMA = 1
"""Of the file; raised whenever the meaning of a field, or of what a job computes, changes."""

MOST_BYTES = 500_000_000
"""Of a file's text, beyond which it is no file of ours."""

MOST_RANKED = 5_000
"""Candidates whose scores are kept as ranks."""

EDGES = np.concatenate([np.arange(1, 50) / 50, 1 - np.array([10, 5, 2, 1, 0.5, 0.2, 0.1]) / 1e3])
"""Shares of the order between which scores are not told apart."""

ENDING = ".results.gz"
DIGITS, LONG, FEW_DIGITS = 8, 1_000, 4
"""Digits of series of numbers, and of those longer than that, of which no test reads single numbers."""

Parts: TypeAlias = npt.NDArray[np.uint8]

_SETTLED = ("mechanism", "corpus", "model")


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """The results of one profile of a study.

    Attributes:
        looks: At conclusions; empty where no seeds were added.
        made: `machine` (processor, cores, memory), `versions`, `core_seconds`, `trainings`, `experiments`,
            `seeds`, `command`, `written` (date).
        outcomes: By `identity`.
    """

    study: str
    profile: str
    looks: Mapping[str, Sequence[int]]
    made: Mapping[str, JSON]
    outcomes: Mapping[str, Mapping[str, JSON]]
    _read: dict[int, Outcome] = field(default_factory=dict, init=False, repr=False, compare=False)
    _of_key: dict[str, Outcome] = field(default_factory=dict, init=False, repr=False, compare=False)
    _parts_of: dict[str, Parts] = field(default_factory=dict, init=False, repr=False, compare=False)

    def results(self, study: Study) -> StudyResults:
        """The outcomes of a study's experiments; those that are not in the file are missing."""
        memberships: dict[str, tuple[bool, ...]] = {}
        for experiment in study.experiments:
            # An outcome holds its experiment, so no other object can have that id while it is kept.
            if id(experiment) not in self._read:
                key = identity(experiment)
                if key not in self._of_key:
                    self._of_key[key] = self._outcome(experiment, key, memberships)
                self._read[id(experiment)] = replace(self._of_key[key], experiment=experiment)
        outcomes = tuple(self._read[id(experiment)] for experiment in study.experiments)
        return StudyResults(study=study, outcomes=outcomes)

    def _outcome(self, experiment: Experiment, key: str, memberships: dict[str, tuple[bool, ...]]) -> Outcome:
        form = self.outcomes.get(key)
        if form is None:
            return Outcome(experiment=experiment, key=key, status=Status.MISSING)
        if form["status"] != Status.DONE:
            return Outcome(experiment=experiment, key=key, status=Status.FAILED, error=form["error"])
        packed = form["included"]
        if packed not in memberships:
            memberships[packed] = _labels(packed, form["candidates"])
        return Outcome(
            experiment=experiment,
            key=key,
            status=Status.DONE,
            metrics={name: float(value) for name, value in form["metrics"].items()},
            scores=self._scores(key, form),
            included=memberships[packed],
            claim=form["claim"],
            cost=form["cost"],
            training_losses=tuple(map(float, form["losses"])),
            traces={name: tuple(map(float, series)) for name, series in form["traces"].items()},
            audit=form["audit"],
        )

    def _scores(self, key: str, form: Mapping[str, JSON]) -> tuple[float, ...]:
        """The scores of an outcome: the values themselves, ranks, or parts of the order."""
        kept = form["scores"]
        if not isinstance(kept, str):
            return tuple(map(float, kept))
        return tuple((self._parts(key) if "like" in form else _ranks(kept)).tolist())

    def _parts(self, key: str) -> Parts:
        """Which part of the order each record is in."""
        if key not in self._parts_of:
            form = self.outcomes[key]
            parts = np.frombuffer(zlib.decompress(base64.b85decode(form["scores"])), dtype=np.uint8)
            self._parts_of[key] = parts + self._parts(form["like"]) if form["like"] else parts
        return self._parts_of[key]

    def sentence(self) -> str:
        """Whose run it was, on what machine, for how long, and when it was written down."""
        made = self.made
        machine, versions = made["machine"], made["versions"]
        are_parts = any("like" in form for form in self.outcomes.values())
        parts = f"; scores are kept as {len(EDGES) + 1} parts of their order" if are_parts else ""
        packages = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch") if name in versions)
        return (
            f"Shipped results of profile {self.profile}: run by this project on {machine['cpu']} "
            f"({machine['cores']} cores, {machine['memory_gb']:g} GB), {made['trainings']} trainings and "
            f"{made['experiments']} experiments in {made['core_seconds'] / 3600:.1f} hours of one core "
            f"(seeds {_ranges(made['seeds'])}; {packages}; written {made['written']}{parts})"
        )


def identity(experiment: Experiment) -> str:
    """Hash of all that an experiment says, defaults included; corpora and models' files are not read."""
    setup: dict[str, Any] = plain(setup_of(experiment))
    for kind in _SETTLED:
        name = getattr(experiment, kind)
        setup[f"{kind}_parameters"] = settled(kind, name, getattr(experiment, f"{kind}_parameters"))
    setup["attack_parameters"] = settled("attack", experiment.attack, experiment.attack_parameters)
    return key_of({"kind": "shipped experiment", "attack": experiment.attack, "setup": setup})


def read(study: str) -> Shipped | None:
    """The results that the package ships of a study; None where it ships none.

    Raises:
        InputError: the file is of another schema.
    """
    for folder in (files("workbench.reports") / "papers").iterdir():
        place = folder / f"{study}{ENDING}"
        if folder.is_dir() and place.is_file():
            return parse(place.read_bytes())
    return None


def parse(content: bytes) -> Shipped:
    """Results from the bytes of a file; InputError where it is none, or of another schema."""
    try:
        with gzip.open(io.BytesIO(content)) as file:
            text = file.read(MOST_BYTES + 1)
        form: Any = json.loads(text) if len(text) <= MOST_BYTES else None
        schema = form.pop("schema")
    except (OSError, EOFError, ValueError, TypeError, AttributeError, KeyError, RecursionError, zlib.error):
        raise InputError("it is no file of exported results") from None
    if schema != SCHEMA:
        raise InputError(f"the shipped results are not of schema {SCHEMA}: run the study again")
    names = {one.name for one in fields(Shipped) if one.init}
    if set(form) != names or not all(isinstance(form[name], str) for name in ("study", "profile")):
        raise InputError(f"exported results must have the fields {', '.join(sorted(names))}")
    if not all(isinstance(form[name], dict) for name in names - {"study", "profile"}):
        raise InputError("looks, made and outcomes of exported results must be objects")
    return Shipped(**form)


def export(study: Study, store: Store, *, looks: Mapping[str, Sequence[int]], command: str) -> Shipped:
    """What a store holds of a study, as it is shipped.

    Args:
        study: With the experiments that its looks added.
        looks: At its conclusions.
        command: That makes them anew.

    Raises:
        InputError: the store holds nothing of the study.
    """
    outcomes: dict[str, dict[str, JSON]] = {}
    packer = _Packer()
    trainings: dict[str, float] = {}
    where: dict[str, JSON] = {}
    seconds = 0.0
    for outcome in read_results(study, store).outcomes:
        key = identity(outcome.experiment)
        if outcome.status is Status.MISSING or key in outcomes:
            continue
        jobs = jobs_of(outcome.experiment)
        outcomes[key] = _form(outcome)
        if outcome.status is Status.DONE and jobs.trainings:
            outcomes[key] |= _packed_scores(key, outcome, packer)
        for job in (*jobs.trainings, jobs.measuring):
            record = read_record(store, job.key) or {}
            where = {name: record[name] for name in ("versions", "hardware") if name in record} or where
            cost = float(record.get("cost", {}).get("seconds", 0.0))
            if job is jobs.measuring:
                seconds += cost
            else:
                trainings[job.key] = cost
    if not outcomes:
        raise InputError(f"store {str(store.folder)!r} holds no result of study {study.name!r}")
    made = {
        "machine": where["hardware"],
        "versions": where["versions"],
        "core_seconds": round(seconds + sum(trainings.values()), 1),
        "trainings": len(trainings),
        "experiments": len(outcomes),
        "seeds": sorted({experiment.seed for experiment in study.experiments}),
        "command": command,
        "written": datetime.now(UTC).date().isoformat(),
    }
    return Shipped(study=study.name, profile=study.profile, looks=looks, made=made, outcomes=outcomes)


def combined(later: Shipped, earlier: Shipped) -> Shipped:
    """The results of two runs of one study; what both have is the later one's, and its cost counts twice.

    Raises:
        InputError: they are of two studies, or of two profiles of one.
    """
    for name in ("study", "profile"):
        mine, other = getattr(later, name), getattr(earlier, name)
        if mine != other:
            raise InputError(f"results of {name} {other!r} cannot be combined with those of {name} {mine!r}")
    packer = _Packer()
    outcomes: dict[str, Mapping[str, JSON]] = {}
    for key in (*earlier.outcomes, *(key for key in later.outcomes if key not in earlier.outcomes)):
        source = later if key in later.outcomes else earlier
        form = source.outcomes[key]
        # Parts of an order are kept less those of another run, which may have been done again.
        is_packed = "like" in form
        outcomes[key] = (
            {**form, **packer.packed(key, form["included"], source._parts(key))} if is_packed else form
        )
    made = {
        **later.made,
        "machine": {**later.made["machine"], "cpu": _of_both(later, earlier)},
        "core_seconds": round(later.made["core_seconds"] + earlier.made["core_seconds"], 1),
        "trainings": later.made["trainings"] + earlier.made["trainings"],
        "experiments": len(outcomes),
        "seeds": sorted({*later.made["seeds"], *earlier.made["seeds"]}),
    }
    if earlier.looks:
        made["command"] = earlier.made["command"]
    looks = {
        claim: max(earlier.looks.get(claim, ()), later.looks.get(claim, ()), key=len)
        for claim in {**earlier.looks, **later.looks}
    }
    return replace(later, looks=looks, made=made, outcomes=outcomes)


def _of_both(later: Shipped, earlier: Shipped) -> str:
    """The processors, each once."""
    names = [str(run.made["machine"]["cpu"]) for run in (earlier, later)]
    return " and ".join(dict.fromkeys(" and ".join(names).split(" and ")))


def encoded(found: Shipped) -> bytes:
    """The bytes of a file; equal results give equal bytes."""
    form = {
        "schema": SCHEMA,
        "study": found.study,
        "profile": found.profile,
        "looks": {claim: list(counts) for claim, counts in found.looks.items()},
        "made": found.made,
        "outcomes": found.outcomes,
    }
    text = json.dumps(form, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return gzip.compress(text.encode(), 9, mtime=0)


def _packed_scores(key: str, outcome: Outcome, packer: _Packer) -> dict[str, JSON]:
    """The order of a membership game's scores."""
    if len(outcome.scores) > MOST_RANKED:
        order = (rankdata(outcome.scores) - 0.5) / len(outcome.scores)
        parts = np.searchsorted(EDGES, order, side="right").astype(np.uint8)
        return packer.packed(key, outcome.included, parts)
    return {"scores": _packed((2 * rankdata(outcome.scores)).astype("<u4"))}


def _form(outcome: Outcome) -> dict[str, JSON]:
    """The plain form of an outcome that was run, with its scores as they are."""
    if outcome.status is not Status.DONE:
        return {"status": str(outcome.status), "error": outcome.error}
    return {
        "status": str(outcome.status),
        "metrics": plain(outcome.metrics),
        "scores": [float(f"{score:.7g}") for score in outcome.scores],
        "included": _packed(np.packbits(np.array(outcome.included, dtype=bool))),
        "candidates": len(outcome.included),
        "claim": outcome.claim,
        "cost": {name: float(f"{value:.3g}") for name, value in outcome.cost.items()},
        "losses": _rounded(outcome.training_losses),
        "traces": {name: _rounded(series) for name, series in outcome.traces.items()},
        "audit": outcome.audit,
        "content": content_digest(setup_of(outcome.experiment)),
    }


def _packed(values: Any) -> str:
    """Bytes of an array as text, the low bytes of all its numbers before the high ones."""
    planes = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    return base64.b85encode(planes.T.tobytes()).decode("ascii")


def _ranks(packed: str) -> FloatArray:
    planes = np.frombuffer(base64.b85decode(packed), dtype=np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view("<u4")[:, 0] / 2.0


class _Packer:
    """Packs parts of the order of scores, each less those of a run before it that is most like it."""

    def __init__(self) -> None:
        self._known: dict[Any, dict[str, Parts]] = {}

    def packed(self, key: str, included: Any, parts: Parts) -> dict[str, JSON]:
        """`scores`, and whose `like` of those with the same members: nobody's, where there is none before."""
        known = self._known.setdefault(included, {})
        apart = {other: float(np.abs(parts.astype(int) - theirs).mean()) for other, theirs in known.items()}
        like = min(apart, key=lambda other: apart[other], default="")
        rest = parts - known[like] if like else parts
        known[key] = parts
        return {"scores": base64.b85encode(zlib.compress(rest.tobytes(), 9)).decode("ascii"), "like": like}


def _labels(packed: str, candidates: int) -> tuple[bool, ...]:
    bits = np.unpackbits(np.frombuffer(base64.b85decode(packed), dtype=np.uint8), count=candidates)
    return tuple(bits.astype(bool).tolist())


def _rounded(series: Sequence[float]) -> list[JSON]:
    digits = FEW_DIGITS if len(series) > LONG else DIGITS
    return [plain(float(f"{value:.{digits}g}")) for value in series]


def _ranges(seeds: Sequence[int]) -> str:
    """Seeds as text: "0 to 7" where they are that, else a list."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))

"""A model that is trained already, and two lists of records: trained on, and not trained on.

Nobody flipped a coin for these records. Whatever tells the two lists apart, a date or a source, tells members
apart too, whether the model remembers them or not; so a high score refutes nothing unless the user says with
what probability a coin put each record among the members.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.audit.run import report_record
from workbench.core import registry
from workbench.core.errors import ArgumentError, InputError, UnsupportedError
from workbench.core.keys import JSON
from workbench.core.streams import stream
from workbench.estimation.judge import judged_subject
from workbench.games.membership import MembershipAttack, MembershipSeen, References
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Claim,
    Evidence,
    FloatArray,
    GameTerms,
    Record,
    Released,
    Trials,
)

if TYPE_CHECKING:
    from workbench.execution.engine import Progress

LONGEST = 1024
"""Most tokens of a record that the model reads."""

FEWEST = 8
"""Records that each list must have."""

NO_COIN = "how the two lists were made, by no coin (a difference of date or of source would show alike)"


@dataclass(frozen=True)
class Checkpoint:
    """A causal language model from a local folder, as far as black-box attacks ask it."""

    model: Any

    @classmethod
    def of_folder(cls, argument: str, folder: Path, device: str = "cpu") -> Checkpoint:
        """Loads it to a device: safetensors alone, at most `LONGEST` tokens or its own positions."""
        from workbench.training.devices import place

        with _path_is(argument):
            model = registry.create("model", "huggingface", seed=0, path=str(folder), max_length=2)
        positions = getattr(model.module.config, "max_position_embeddings", None) or LONGEST
        model.max_length = int(min(positions, LONGEST))
        model.module = place(model.module, device)
        return cls(model)

    def token_log_likelihoods(self, records: tuple[Record, ...]) -> list[FloatArray]:
        """Per-record token log-likelihoods, nats."""
        from workbench.training.fine_tuning import record_log_likelihoods

        return record_log_likelihoods(self.model, records)

    def token_z_scores(self, records: tuple[Record, ...]) -> list[FloatArray]:
        """See `workbench.interfaces.Subject`."""
        from workbench.training.fine_tuning import record_z_scores

        return record_z_scores(self.model, records)


@contextmanager
def _path_is(argument: str) -> Iterator[None]:
    """Within, what is refused of a `path` is refused of the argument that gave it."""
    try:
        yield
    except InputError as error:
        if not str(error).startswith("path "):
            raise
        raise ArgumentError(argument, str(error).removeprefix("path ")) from error


def audit_checkpoint(
    folder: Path,
    *,
    members: Path,
    nonmembers: Path,
    claim: Claim,
    reference: Path | None = None,
    prior: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    command: str = "",
    progress: Progress | None = None,
    device: str = "cpu",
) -> dict[str, JSON]:
    """Score the records of two files by a model of Hugging Face's kind, and judge the claim by the scores.

    Args:
        folder: The model, with its tokenizer.
        members, nonmembers: Text files (`workbench.data.user_text`): a record a line or row.
        claim: About adding or removing a record, or replacing one.
        reference: A model that was trained on none of these records, such as the base of the fine-tuning.
        prior: Probability of the coin that put each record among the members; None where there was none: then
            what would refute the claim is UNDECIDED.
        confidence: One-sided, of the whole.
        seed: Of sample splits and of the blind check.
        command: The command line, for the report.
        progress: Told of the scores that are done.
        device: What the models are asked on.

    Returns the report record. Raises `InputError`: a folder, a file or a row is unusable, or a list is too
    short. `UnsupportedError`: scores of one run cannot judge the claim's currency.
    """
    started = datetime.now(UTC)
    if not isinstance(claim.about, Adjacency):
        raise UnsupportedError(f"claim is about {claim.about}; a checkpoint is asked for members, records")
    for argument, place_of_model in (("checkpoint", folder), ("reference", reference)):
        if place_of_model is not None and not (place_of_model / "config.json").is_file():
            raise ArgumentError(
                argument, f"must be a folder with a model (config.json), got {str(place_of_model)!r}"
            )
    inside, outside = _lists(members, nonmembers)
    records = inside + outside
    labels = np.arange(len(records)) < len(inside)
    model = Checkpoint.of_folder("checkpoint", folder, device)
    references = References()
    if reference is not None:
        known: Any = Checkpoint.of_folder("reference", reference, device)
        references = References(subjects=(known,), included=np.zeros((1, len(records)), dtype=bool))
    seen = MembershipSeen(subject=model, records=records, references=references)  # type: ignore[arg-type]
    game = _game(members.name, nonmembers.name, labels, claim.about, prior)
    attacks, games = list(_attacks(with_reference=reference is not None)), []
    for done, (name, attack) in enumerate(attacks):
        scores = attack.score(seen, stream(seed, "attack", done))
        games.append(
            Evidence(
                scores=scores.values,
                members=labels,
                game=game,
                attack=name,
                blind_texts=tuple(record.text for record in records),
                seeds={"audit": seed},
                details=dict(scores.details),
            )
        )
        if progress is not None:
            progress("attacking", done + 1, len(attacks))
    subject = judged_subject(folder.name, "checkpoint", claim, games, confidence=confidence, seed=seed)
    doubtful = [
        attack["verdict"] for attack in subject["attacks"] if attack["verdict"]["kind"] == "UNDECIDED"
    ]
    if doubtful and subject["verdict"]["kind"] != "INVALID":
        subject["verdict"] = {**doubtful[0], "bounds": [], "intervals": []}
    return report_record(claim, [subject], seed=seed, command=command, started=started)


def _lists(members: Path, nonmembers: Path) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """The records of both files.

    Raises:
        InputError: a file is unusable or too short, or both hold one text.
    """
    lists = []
    for name, path in (("members", members), ("nonmembers", nonmembers)):
        with _path_is(name):
            lists.append(tuple(registry.create("records", "file", path=str(path), prefix=name)))
        if len(lists[-1]) < FEWEST:
            raise ArgumentError(name, f"must hold at least {FEWEST} records, got {len(lists[-1])}")
    inside, outside = lists
    both = {record.text for record in inside} & {record.text for record in outside}
    if both:
        raise ArgumentError("nonmembers", f"holds {len(both)} texts of `members`, such as {min(both)[:40]!r}")
    return inside, outside


def _game(
    members: str, nonmembers: str, labels: BoolArray, about: Adjacency, prior: float | None
) -> GameTerms:
    """What was played, from the files' names, who is a member, and the coin's probability, if any."""
    coins = (
        "no coin decided which: whatever else tells the lists apart counts as membership here"
        if prior is None
        else f"a coin of probability {prior:g} decided which, as they say"
    )
    return GameTerms(
        description=(
            f"The user listed {labels.sum()} records of {members} as trained on and "
            f"{(~labels).sum()} of {nonmembers} as not; {coins}."
        ),
        trials=Trials.ONE_RUN,
        prior=float(labels.mean()) if prior is None else prior,
        adjacency=about,
        released=Released.SCORES,
        beyond=NO_COIN if prior is None else "",
    )


def _attacks(*, with_reference: bool) -> Iterator[tuple[str, MembershipAttack]]:
    """The scores that registered attacks offer for a finished model, by name."""
    for entry in registry.entries("attack").values():
        factory: Any = entry.factory
        if isinstance(factory, type) and issubclass(factory, MembershipAttack):
            for name, parameters in factory.of_checkpoints.items():
                attack = factory(**parameters)
                if with_reference or not attack.references_needed:
                    yield name, attack

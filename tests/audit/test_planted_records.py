"""Planted records: trained on in every run beside the members, never candidates, and told apart by keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from study_driver import training_key

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.registry import Entry
from workbench.games.membership import MembershipAttack
from workbench.interfaces import Corpus, Insertions, Record, Scores
from workbench.studies.experiments import Experiment
from workbench.studies.jobs import setup_of
from workbench.training import setup as workers

NAME = "planting_stand_in"


class Planting(MembershipAttack):
    """An attack that plants three records, or one with the id of a candidate."""

    def __init__(self, *, word: str = "a", is_clashing: bool = False) -> None:
        self.word, self.is_clashing = word, is_clashing

    @property
    def plants(self) -> int:
        """Number of planted records."""
        return 3

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Records of one word."""
        ids = [corpus.records[0].id] if self.is_clashing else [f"planted-{i}" for i in range(self.plants)]
        return Insertions(planted=tuple(Record(id=name, text=f"{self.word} word") for name in ids))

    def score(self, *_: object) -> Scores:
        """Not played here."""
        raise NotImplementedError


@pytest.fixture(autouse=True)
def attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack, registered for the length of a test."""
    monkeypatch.setitem(registry._entries["attack"], NAME, Entry(name=NAME, factory=Planting, summary=""))


def experiment(**attack_parameters: object) -> Experiment:
    return Experiment(
        group="all",
        variant="planted",
        mechanism="non_private",
        attack=NAME,
        attack_parameters=attack_parameters,
        corpus="clinical",
        corpus_parameters={"attributes": "short"},
        model="tiny_gpt2",
        members=12,
        epochs=1,
        batch_size=4,
        learning_rate=1e-3,
        seed=0,
        epsilon=None,
        delta=None,
    )


def test_every_run_trains_on_them_after_its_members() -> None:
    setup = setup_of(experiment())
    included = np.arange(24) % 2 == 0
    for run in (0, 1):
        plan = workers.make_plan(setup, included, run)
        assert [record.id for record in plan.records[12:]] == ["planted-0", "planted-1", "planted-2"]
        assert plan.public_size == len(plan.records) == 15
        assert plan.insertions.planted == plan.records[12:]
    assert len(workers.prepare(setup)[0]) == 24


def test_batches_of_a_study_stay_as_large() -> None:
    setup = setup_of(experiment())
    assert setup.sampling_probability * 15 == pytest.approx(4.0)


def test_keys_tell_planted_records_apart() -> None:
    first = training_key(experiment())
    assert first == training_key(experiment())
    assert first != training_key(experiment(word="b"))
    assert first != training_key(replace(experiment(), attack="loss", attack_parameters={"canaries": 0.0}))


def test_nothing_planted_leaves_representations_alone() -> None:
    """Keys of before are hashes of them."""
    assert "planted" not in repr(Insertions())


def test_a_planted_record_cannot_be_a_candidate() -> None:
    with pytest.raises(InputError, match="has the id of a record of the corpus"):
        workers.prepare(setup_of(experiment(is_clashing=True)))

"""The loop of zeroth-order mechanisms: updates, dev records, traces, seeds, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from zeroth_order_parts import bits, digits, direction, full, load, lora, plan, ready, texts, values

from workbench.accounting import NoGuarantee
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.interfaces import (
    Adjacency,
    Claim,
    FloatArray,
    IntArray,
    Model,
    Plan,
    Record,
    Released,
    Sampling,
    Schedule,
    Signals,
)
from workbench.training.fine_tuning import Seeds, record_losses, seed_number, trainable
from workbench.training.zeroth_order import ZerothOrderMechanism, ZerothOrderSteps

pytestmark = pytest.mark.usefixtures("one_thread")


class ScriptedSteps(ZerothOrderSteps):
    """Coefficients that are written down beforehand."""

    mechanism: Scripted

    def coefficients(self, differences: FloatArray, sample: IntArray) -> FloatArray:
        """Those of this step."""
        self.mechanism.seen.append((differences, sample))
        self.trace("first", float(differences[0, 0]) if len(differences) else math.nan)
        return np.asarray(self.mechanism.script[self.done - 1], dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Scripted(ZerothOrderMechanism):
    """A mechanism that does as it is told."""

    script: Sequence[Sequence[float]] = ((1.0,), (-2.0,), (0.5,))
    measures_quality: bool = False
    public_seed: int | None = 5
    seen: list[tuple[FloatArray, IntArray]] = field(default_factory=list)

    def steps(self, plan: Plan, model: Model) -> ScriptedSteps:
        """The scripted ones."""
        return ScriptedSteps(self, plan, model)

    def claim(self, plan: Plan) -> Claim:
        """Nothing."""
        return Claim(
            guarantee=NoGuarantee(), about=Adjacency.ADD_REMOVE, released=Released.EVERY_UPDATE, source="test"
        )


def trained(mechanism: ZerothOrderMechanism, given: Plan) -> Any:
    """Its weights, flat, and the subject."""
    subject = mechanism.train(given)
    return values(list(trainable(subject.model.module).values())), subject


@pytest.mark.parametrize("directions", [1, 3])
def test_updates_are_means_along_the_directions(directions: int) -> None:
    given = plan(digits(6), weight_decay=0.5, learning_rate=0.01, schedule=Schedule.LINEAR)
    script = np.random.default_rng(0).normal(size=(3, directions))
    _, own = ready(given)
    theta = values(own)
    for step in range(3):
        rate = 0.01 * (3 - step) / 3
        z = sum(script[step][k] * direction(own, step * directions + k, 5) for k in range(directions))
        theta = (1 - rate * 0.5) * theta - rate / directions * z
    mechanism = Scripted(directions=directions, script=script.tolist())
    found, subject = trained(mechanism, given)
    assert float((found - theta).abs().max()) < 2e-6
    assert [d.shape for d, _ in mechanism.seen] == [(6, directions)] * 3
    assert subject.transcript.metrics.keys() == {"training_seconds", "seconds"}
    first = [differences[0, 0] for differences, _ in mechanism.seen]
    np.testing.assert_array_equal(subject.transcript.traces["first"], first)


def test_scalars_are_of_the_sample_in_its_order() -> None:
    corpus = digits(12)
    mechanism = Scripted(script=[(0.0,)] * 4)
    trained(mechanism, plan(corpus, steps=4, sampling_probability=0.5))
    everybody = Scripted(script=[(0.0,)] * 4)
    trained(everybody, plan(corpus, steps=4))
    sizes = {len(sample) for _, sample in mechanism.seen}
    assert len(sizes) > 1
    for (some, sample), (all_of_them, order) in zip(mechanism.seen, everybody.seen, strict=True):
        place = {int(record): i for i, record in enumerate(order)}
        np.testing.assert_allclose(some[:, 0], all_of_them[[place[int(i)] for i in sample], 0], atol=5e-3)


def test_an_empty_sample_moves_by_what_the_mechanism_says() -> None:
    given = plan(digits(3), steps=3, sampling_probability=1e-9)
    found, subject = trained(Scripted(script=[(0.0,), (1.0,), (0.0,)]), given)
    _, own = ready(given)
    assert float((found - (values(own) - 1e-3 * direction(own, 1, 5))).abs().max()) < 1e-6
    assert subject.transcript.sample_sizes.tolist() == [0, 0, 0]
    assert np.isnan(subject.transcript.losses).all()


@pytest.mark.parametrize("case", [plan, lora])
def test_the_same_seed_trains_the_same(case: Any) -> None:
    given = case(digits(5)) if case is plan else case(texts(2))
    mechanism = registry.create("mechanism", "mezo", measures_quality=False)
    one, twin = (bits(list(trainable(mechanism.train(given).model.module).values())) for _ in range(2))
    assert torch.equal(one, twin)
    # Directions are the public seed's alone: those of another plan's seed are others.
    named = registry.create(
        "mechanism", "mezo", measures_quality=False, public_seed=seed_number(Seeds.of(given).public)
    )
    assert torch.equal(bits(list(trainable(named.train(given).model.module).values())), one)
    other = registry.create("mechanism", "mezo", measures_quality=False, public_seed=1)
    assert not torch.equal(bits(list(trainable(other.train(given).model.module).values())), one)


def test_the_best_model_on_the_dev_records_is_kept() -> None:
    corpus = digits(30)
    given = plan(corpus, steps=4, dev=corpus.records[20:], learning_rate=1.0)
    # Away, back, away, farther away: the second step ends where training began.
    script = [(0.1,), (-0.1,), (0.2,), (0.3,)]

    class Back(ScriptedSteps):
        def descend(self, learning_rate: float) -> None:
            self._moves = [(0, amount) for _, amount in self._moves]
            super().descend(learning_rate)

    @dataclass(frozen=True, kw_only=True)
    class Returning(Scripted):
        def steps(self, plan: Plan, model: Model) -> ScriptedSteps:
            return Back(self, plan, model)

    model, own = ready(given)
    start = values(own)
    ends = []
    for amount in (-0.1, 0.0, -0.2, -0.5):
        load(own, start + amount * direction(own, 0, 5))
        ends.append(float(record_losses(model, given.dev).mean()))
    best = int(np.argmin(ends))
    found, subject = trained(Returning(script=script, dev_every=1), given)
    np.testing.assert_allclose(subject.transcript.traces["dev_loss"], ends, rtol=1e-4)
    assert subject.transcript.metrics["best_step"] == best + 1
    assert 0 < best + 1 < 4
    assert record_losses(subject.model, given.dev).mean() == pytest.approx(ends[best], rel=1e-4)
    last, kept_last = trained(Returning(script=script), given)
    assert not torch.allclose(found, last)
    assert "best_step" not in kept_last.transcript.metrics
    # Looking changes nothing on the way; every third step and the last are looked at.
    _, rarely = trained(Returning(script=script, dev_every=3), given)
    assert np.isfinite(rarely.transcript.traces["dev_loss"]).tolist() == [False, False, True, True]
    np.testing.assert_allclose(rarely.transcript.traces["dev_loss"][2:], ends[2:], rtol=1e-4)


def test_a_score_chooses_where_it_is_asked_to() -> None:
    corpus = digits(20)
    given = plan(corpus, steps=3, dev=corpus.records[10:], learning_rate=1e-3)
    model, _ = ready(given)
    scores = iter([0.2, 0.7, 0.7])

    class Scored:
        """The model with a task whose score goes up, and stays."""

        def __init__(self) -> None:
            self.module, self.kind, self.name = model.module, model.kind, model.name
            self.encode, self.losses = model.encode, model.losses
            self.token_log_likelihoods = model.token_log_likelihoods

        def task_metrics(self, records: Sequence[Record]) -> dict[str, float]:
            assert records == given.dev
            assert torch.is_inference_mode_enabled()
            return {"accuracy": next(scores), "other": 9.0}

    mechanism = Scripted(dev_every=1, dev_metric="score")
    steps = mechanism.steps(given, Scored())
    kept = []
    for _ in range(3):
        steps.update(np.arange(10))
        steps.descend(1e-3)
        kept.append(bits(list(trainable(model.module).values())))
    steps.close()
    assert steps.metrics() == {"best_step": 2.0}
    assert torch.equal(bits(list(trainable(model.module).values())), kept[1])
    assert steps.released()["traces"]["dev_score"].tolist() == [0.2, 0.7, 0.7]


def test_training_lowers_the_loss() -> None:
    given = plan(digits(60), steps=150, learning_rate=3e-3)
    subject = registry.create("mechanism", "mezo", measures_quality=False).train(given)
    start = record_losses(ready(given)[0], given.records).mean()
    assert record_losses(subject.model, given.records).mean() < start - 0.03


def test_what_diverges_is_inconclusive() -> None:
    given = plan(digits(4))
    for script in ([(math.nan,)] * 3, [(math.inf,)] * 3):
        with pytest.raises(InconclusiveError, match="step 1 released a number that is not finite"):
            Scripted(script=script).train(given)
    with pytest.raises(
        InconclusiveError, match=r"step 1: scale must be at least .*try a learning_rate below"
    ):
        Scripted(script=[(1e12,)] * 3).train(given)


def test_precision_reaches_the_engine() -> None:
    given = replace(full(texts(2)), steps=1)
    exact, rough = Scripted(script=[(0.0,)]), Scripted(script=[(0.0,)], precision="bfloat16")
    exact.train(given)
    rough.train(given)
    assert not np.array_equal(exact.seen[0][0], rough.seen[0][0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scale": 0.0}, "scale must be finite and > 0, got 0.0"),
        ({"scale": math.inf}, "scale must be finite and > 0, got inf"),
        ({"directions": 0}, "directions must be a whole number >= 1, got 0"),
        ({"directions": 1.5}, r"directions must be a whole number >= 1, got 1\.5"),
        ({"dev_every": -1}, "dev_every must be a whole number >= 0, got -1"),
        ({"public_seed": -1}, "public_seed must be a whole number >= 0, got -1"),
        ({"public_seed": 0.5}, r"public_seed must be a whole number >= 0, got 0\.5"),
        ({"dev_metric": "los"}, "did you mean 'loss'"),
        ({"precision": "float23"}, "did you mean 'float32'"),
    ],
)
def test_parameters_out_of_range_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Scripted(**changed)


@pytest.mark.parametrize(
    ("mechanism", "changed", "message"),
    [
        ({}, {"optimizer": "adamw"}, "optimizer must be 'sgd' for a zeroth-order mechanism.*got 'adamw'"),
        ({"dev_every": 2}, {}, "dev_every must be 0 for a plan without dev records, got 2"),
        ({}, {"weight_decay": 1e3}, r"times weight_decay must be below 1, got 0\.001 \* 1000"),
        ({"scale": 1e-9}, {}, "scale must be at least .* got 1e-09"),
        ({"dev_every": 2, "dev_metric": "score"}, {"dev": digits(2).records}, "needs a model with a task"),
    ],
)
def test_plans_that_it_cannot_follow_are_refused(
    mechanism: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Scripted(**mechanism).train(plan(digits(3), **changed))


def test_no_gradient_is_released() -> None:
    signals: Signals = None  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match="Scripted releases scalars along directions"):
        Scripted().privatise(signals, torch.Generator())


def test_shuffled_epochs_are_followed() -> None:
    given = plan(digits(6), steps=4, sampling_probability=0.5, sampling=Sampling.SHUFFLED)
    mechanism = Scripted(script=[(0.1,)] * 4)
    mechanism.train(given)
    assert [len(sample) for _, sample in mechanism.seen] == [3] * 4

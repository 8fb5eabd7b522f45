"""Shuffled training beside the unshuffled one (Table II): private or not, and noise that stays behind."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from oracles.invariance import Invariance, Noise, invariance
from oracles.random_transformers import random_transformer

from workbench.core import registry
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Corpus, Model, Plan, Record

pytestmark = pytest.mark.usefixtures("one_thread")

CLOSE = 2e-3
"""Nats that float32 may drift apart over some steps; runs that really differ are off by ten times as much."""
DOUBLE = 1e-12
"""The same of float64."""


def plan(**changed: object) -> Plan:
    corpus: Corpus = registry.create("corpus", "digits", size=60, seed=0)
    given = Plan(
        records=corpus.records[:40],
        held_out=corpus.records[40:],
        model="digits_mlp",
        steps=8,
        sampling_probability=0.3,
        optimizer="sgd",
        learning_rate=0.5,
        seed=1,
    )
    return replace(given, **changed)  # type: ignore[arg-type]


def compared(name: str, given: Plan, **options: object) -> Invariance:
    settings = {"noise_multiplier": 0.5} if name == "dp_sgd" else {}
    return invariance(given, registry.create("mechanism", name, **settings), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["digits_mlp", "digits_vit"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("mechanism", ["non_private", "dp_sgd"])
def test_losses_and_predictions_stay(mechanism: str, optimizer: str, model: str) -> None:
    rate = 0.5 if optimizer == "sgd" else 3e-3
    found = compared(mechanism, plan(model=model, optimizer=optimizer, learning_rate=rate))
    assert found.step_loss_difference < CLOSE
    assert found.prediction_difference < CLOSE
    assert found.same_predictions == 1.0
    assert found.test_loss == pytest.approx(found.test_loss_shuffled, abs=CLOSE)
    assert found.test_accuracy == found.test_accuracy_shuffled
    assert found.distance > 0.2 * found.norm
    assert found.distance_undone < 1e-2 * found.distance


def test_noise_of_the_same_seed_does_not_move_by_itself() -> None:
    """The negative control, and the reason for moving the noise: the same seed is not the same training."""
    moved, stayed = (compared("dp_sgd", plan(), noise=noise) for noise in (Noise.MOVES, Noise.STAYS))
    assert stayed.prediction_difference > 10 * CLOSE > moved.prediction_difference
    assert stayed.distance_undone > 100 * moved.distance_undone
    assert stayed.test_loss == moved.test_loss


@pytest.mark.parametrize("mechanism", ["non_private", "dp_sgd"])
@pytest.mark.parametrize("family", ["vit", "bert", "roberta", "gpt2"])
def test_transformers_stay(family: str, mechanism: str) -> None:
    texts = [Record(id=str(i), text=f"{10**i} words", label=i % 3) for i in range(12)]
    chosen = plan() if family == "vit" else plan(records=tuple(texts[:8]), held_out=tuple(texts[8:]))

    def made(_: Plan) -> Model:
        return random_transformer(family, seed=0, width=12, layers=1, heads=2, positions=24)

    found = compared(mechanism, replace(chosen, steps=4, learning_rate=0.1), make_model=made)
    assert found.step_loss_difference < CLOSE
    assert found.prediction_difference < CLOSE
    assert math.isnan(found.test_accuracy) == (family == "gpt2")
    assert found.distance_undone < 1e-2 * found.distance


@pytest.mark.parametrize("mechanism", ["non_private", "dp_sgd"])
@pytest.mark.parametrize("family", ["vit", "bert", "roberta"])
def test_nothing_but_rounding_is_left_in_double_precision(family: str, mechanism: str) -> None:
    """What float32 leaves above is rounding: it falls by nine digits with float64."""
    texts = [Record(id=str(i), text=f"{10**i} words", label=i % 3) for i in range(12)]
    chosen = plan() if family == "vit" else plan(records=tuple(texts[:8]), held_out=tuple(texts[8:]))

    def made(_: Plan) -> Model:
        model = random_transformer(family, seed=0, width=12, layers=2, heads=2, positions=24)
        model.module.double()
        if family == "vit":
            model.module.register_forward_pre_hook(lambda _, given: (given[0].double(),))
        return model

    chosen = replace(chosen, steps=4, optimizer="adamw", learning_rate=1e-3)
    found = compared(mechanism, chosen, make_model=made)
    assert found.step_loss_difference < DOUBLE
    assert found.prediction_difference < DOUBLE
    assert found.distance_undone < DOUBLE < 0.1 * found.norm < found.distance


def test_mechanisms_with_steps_of_their_own_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="MeZO has steps of its own"):
        compared("mezo", plan())

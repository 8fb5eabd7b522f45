"""Ensembles of LoRA adapters: each equals its one-at-a-time twin, whoever trains with it; what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.one_at_a_time import one_at_a_time
from oracles.random_transformers import random_transformer
from torch import Tensor

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import (
    Insertions,
    Model,
    ModelFacets,
    NewTokens,
    Plan,
    Record,
    Sampling,
    Schedule,
)
from workbench.mechanisms.dp_lora import DPLoRA
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.non_private import NonPrivate
from workbench.training.ensemble.adapters import StackedAdapters
from workbench.training.ensemble.stacked import flat_of, twin_of, write_flat
from workbench.training.ensemble.together import Ensemble, fitted_weights, refusal, train_together
from workbench.training.fine_tuning import build_model
from workbench.training.loop import GradientMechanism, load_subject
from workbench.training.lora import LORA_TARGETS

TOLERANCE = 1e-4
"""Of weights after some ten steps, relative to the largest: float32 rounding, 6e-8, carried along."""

PRIVATE = DPSGD(noise_multiplier=0.5, l2_clip_norm=0.5, measures_quality=False)
PLAIN = NonPrivate(measures_quality=False)

WORDS = ("rain", "falls", "on", "the", "quiet", "harbour", "while", "seven", "boats", "wait", "for", "dawn")


def texts(count: int, longest: int = 12) -> tuple[Record, ...]:
    """Records of 1 to `longest` words."""
    rng = np.random.default_rng(3)
    return tuple(
        Record(id=str(i), text=" ".join(rng.choice(WORDS, size=1 + int(rng.integers(longest)))))
        for i in range(count)
    )


RECORDS = texts(24)


def plans_of(count: int, **changes: object) -> list[Plan]:
    """Plans on random halves of the records, with seeds of their own."""
    rng = np.random.default_rng(5)
    common = Plan(
        records=(),
        held_out=(),
        model="tiny_gpt2",
        adapter="lora",
        steps=10,
        sampling_probability=0.25,
        learning_rate=0.01,
        optimizer="sgd",
        budget=ApproximateDP(epsilon=8.0, delta=1e-5),
        public_size=12,
    )
    return [
        replace(
            common,
            **{
                "records": tuple(r for r in RECORDS if rng.random() < 0.5),
                "seed": index,
                **changes,
            },  # type: ignore[arg-type]
        )
        for index in range(count)
    ]


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest weight."""
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> str:
    """Registers a model of `nn.Linear` layers whose weights the seed does not change; returns its name."""

    def build(*, seed: int) -> Model:
        del seed
        return random_transformer("llama", seed=1, value_heads=2)

    registry.entries("model")
    facets = ModelFacets(has_one_base=lambda **_: True)
    entry = registry.Entry(name="one_llama", factory=build, summary="", facets=facets)
    monkeypatch.setitem(registry._entries["model"], "one_llama", entry)
    return "one_llama"


def require_twins(mechanism: GradientMechanism, plans: list[Plan]) -> None:
    """Weights, losses and sample sizes are those of the one-at-a-time loop."""
    for plan, subject in zip(plans, train_together(mechanism, plans), strict=True):
        twin = mechanism.train(plan)
        assert distance(flat_of(subject.model.module), flat_of(twin.model.module)) < TOLERANCE
        assert np.array_equal(subject.transcript.sample_sizes, twin.transcript.sample_sizes)
        assert subject.transcript.losses == pytest.approx(
            twin.transcript.losses, rel=1e-4, abs=1e-4, nan_ok=True
        )
        assert subject.claim == twin.claim
        assert set(subject.transcript.metrics) == set(twin.transcript.metrics)


CASES: dict[str, tuple[GradientMechanism, dict[str, object]]] = {
    "DP-SGD": (PRIVATE, {}),
    "plain": (PLAIN, {}),
    "DP-SGD, AdamW": (PRIVATE, {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1}),
    "automatic clipping, calibrated": (DPSGD(clipping="automatic", measures_quality=False), {}),
    "attention, rank 2, alpha 3": (
        PRIVATE,
        {"lora_targets": "attention", "lora_rank": 2, "lora_alpha": 3.0, "schedule": Schedule.LINEAR},
    ),
    "shuffled": (
        PLAIN,
        {"sampling": Sampling.SHUFFLED, "public_size": None, "records": RECORDS[:12]},
    ),
    "empty samples": (PRIVATE, {"sampling_probability": 0.02}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_each_model_equals_its_twin(name: str) -> None:
    """Of GPT-2's layers, on texts of unequal lengths."""
    mechanism, changes = CASES[name]
    require_twins(mechanism, plans_of(2, **changes))


@pytest.mark.slow
def test_without_noise_adamw_departs_no_further_than_the_loop_from_itself() -> None:
    """AdamW divides a gradient by its own size: a coordinate whose gradient is nearly zero follows rounding.

    Such coordinates are few, so that all weights together, in Euclidean norm, are as near as elsewhere; the
    loop in micro-batches of one record, which rounds differently, is as far from itself.
    """
    plans = plans_of(3, optimizer="adamw", learning_rate=1e-3)
    ours, theirs = [], []
    for plan, subject in zip(plans, train_together(PLAIN, plans), strict=True):
        twin = flat_of(PLAIN.train(plan).model.module)
        again = flat_of(replace(PLAIN, micro_batch_size=1).train(plan).model.module)
        ours.append(float((flat_of(subject.model.module) - twin).norm() / twin.norm()))
        theirs.append(float((again - twin).norm() / twin.norm()))
    assert max(ours) < TOLERANCE
    assert max(ours) < 10 * max(theirs)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [PRIVATE, PLAIN], ids=["private", "plain"])
@pytest.mark.parametrize("targets", LORA_TARGETS)
def test_linear_layers_and_all_targets_are_covered(
    llama: str, targets: str, mechanism: GradientMechanism
) -> None:
    """Grouped heads, rotary positions and gated layers too; query-value adapts two layers of a block."""
    require_twins(mechanism, plans_of(2, model=llama, lora_targets=targets))


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [PRIVATE, PLAIN], ids=["private", "plain"])
def test_longer_trainings_on_long_texts_equal_their_twins(mechanism: GradientMechanism) -> None:
    """Texts of up to 200 words, of which some are cut; samples of several passes."""
    require_twins(mechanism, plans_of(4, records=texts(20, longest=200), steps=30))


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [PRIVATE, PLAIN], ids=["private", "plain"])
def test_a_model_does_not_depend_on_who_is_trained_with_it(mechanism: GradientMechanism) -> None:
    """Alone, and among 5 others, whose texts share its passes; up to rounding."""
    plans = plans_of(6)
    alone, many = Ensemble(mechanism, plans[:1]), Ensemble(mechanism, plans)
    alone.train()
    many.train()
    assert distance(many.weights[0], alone.weights[0]) < 1e-5


@pytest.mark.slow
def test_samples_of_many_passes_have_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether tokens or gradients limit a pass."""
    plans = plans_of(3)
    expected = Ensemble(PRIVATE, plans)
    expected.train()
    for name, most in (("TOKENS_AT_ONCE", 30), ("NUMBERS_AT_ONCE", 1), ("LOGITS_AT_ONCE", 1)):
        with monkeypatch.context() as changed:
            changed.setattr(f"workbench.training.ensemble.adapters.{name}", most)
            ensemble = Ensemble(PRIVATE, plans)
            ensemble.train()
        assert distance(ensemble.weights, expected.weights) < 1e-5


class Watched:
    """Factors of one half that remember the norms."""

    def __init__(self) -> None:
        self.norms = torch.zeros(0)

    def __call__(self, norms: Tensor) -> Tensor:
        self.norms = torch.cat([self.norms, norms])
        return torch.full_like(norms, 0.5)


def test_norms_sums_and_losses_are_those_of_records_one_at_a_time() -> None:
    """At weights at which B is not zero, of two models that read the same records and others."""
    model = build_model(plans_of(1)[0])
    weights = 0.05 * torch.randn(2, flat_of(model.module).numel(), generator=torch.Generator().manual_seed(1))
    stacked = StackedAdapters(model, weights, RECORDS)
    indices, sizes = np.array([[3, 0, 7, 9, 11], [7, 5, 0, 0, 0]]), np.array([5, 2])
    watched, total = Watched(), torch.ones_like(weights)
    summed = stacked.add_sums(indices, sizes, watched, total)
    norms = []
    for row in range(2):
        twin_model = twin_of(model)
        write_flat(twin_model.module, weights[row])
        records = [RECORDS[i] for i in indices[row, : sizes[row]]]
        twin = one_at_a_time(twin_model, twin_model.encode(records))
        assert distance(total[row] - 1, 0.5 * twin.weighted_sum(torch.ones(len(records)))) < 1e-4
        assert summed[row] == pytest.approx(float(twin.losses.sum()), rel=1e-5)
        assert stacked.losses(records)[row] == pytest.approx(twin.losses.numpy(), rel=1e-5)
        norms.append(twin.norms())
    assert watched.norms.sort().values.numpy() == pytest.approx(
        torch.cat(norms).sort().values.numpy(), rel=1e-4
    )


def test_a_text_does_not_depend_on_the_padding_of_others() -> None:
    """Its loss and gradient beside a text that is many times longer."""
    long = Record(id="long", text=" ".join(WORDS * 10))
    plan = plans_of(1)[0]
    model = build_model(plan)
    weights = 0.05 * torch.randn(1, flat_of(model.module).numel(), generator=torch.Generator().manual_seed(1))
    stacked = StackedAdapters(model, weights, [RECORDS[0], long])
    sums = {}
    for name, row in {"short": [0], "long": [1], "both": [0, 1]}.items():
        total = torch.zeros_like(weights)
        loss = stacked.add_sums(np.array([row]), np.array([len(row)]), None, total)
        sums[name] = total, float(loss[0])
    assert distance(sums["both"][0], sums["short"][0] + sums["long"][0]) < 1e-4  # Processors round otherwise.
    assert sums["both"][1] == pytest.approx(sums["short"][1] + sums["long"][1], rel=1e-6)


def test_subjects_share_the_base_and_survive_a_save(tmp_path: Path) -> None:
    plans = plans_of(2, steps=3)
    ensemble = Ensemble(PRIVATE, plans)
    ensemble.train()
    losses, subjects = ensemble.losses(RECORDS), ensemble.subjects()
    for index, subject in enumerate(subjects):
        assert losses[index] == pytest.approx(subject.losses(RECORDS), rel=1e-4)
        (tmp_path / str(index)).mkdir()
        subject.save(tmp_path / str(index))
        loaded = load_subject(tmp_path / str(index), PRIVATE, plans[index])
        assert np.array_equal(loaded.losses(RECORDS), subject.losses(RECORDS))
    frozen = [[p for p in s.model.module.parameters() if not p.requires_grad] for s in subjects]
    assert frozen[0]
    assert all(a is b for a, b in zip(*frozen, strict=True))


@pytest.mark.slow
def test_adapters_start_from_their_own_seeds_or_from_weights_of_the_callers() -> None:
    plans = plans_of(2, steps=1, learning_rate=1e-9)
    drawn = Ensemble(PLAIN, plans)
    for row, plan in zip(drawn.weights, plans, strict=True):
        assert torch.equal(row, flat_of(build_model(plan).module))
    assert not torch.equal(*drawn.weights)
    start = torch.linspace(-0.1, 0.1, drawn.weights.shape[1])
    given = Ensemble(PLAIN, plans, initial=start)
    given.train()
    assert torch.allclose(given.weights, start.expand(2, -1), atol=1e-6)


@pytest.mark.slow
def test_fitted_weights_of_adapters_fit_the_records() -> None:
    (plan,) = plans_of(1, records=RECORDS[:3])
    ensemble = Ensemble(PLAIN, [plan], initial=fitted_weights(plan, steps=12))
    before = Ensemble(PLAIN, [plan]).losses(plan.records)
    assert ensemble.losses(plan.records).mean() < before.mean() - 0.5


def test_the_seed_does_not_change_a_base_that_is_said_to_be_one() -> None:
    first, second = (registry.create("model", "tiny_gpt2", seed=seed) for seed in (0, 1))
    assert torch.equal(flat_of(first.module), flat_of(second.module))


def test_what_an_ensemble_of_adapters_cannot_train_is_refused(llama: str) -> None:
    (plan,) = plans_of(1)
    assert (
        refusal(PRIVATE, plan) == refusal(PLAIN, plan) == refusal(PRIVATE, replace(plan, model=llama)) == ""
    )
    assert refusal(PRIVATE, replace(plan, model="qwen2_base")) == ""
    not_known = "language models whose weights the seed does not change, and model '{}' is not known"
    for model, parameters in (
        ("huggingface", {"path": "folder"}),
        ("qwen2_base", {"path": "folder"}),
        ("digits_mlp", {}),
        ("bert_base", {}),
    ):
        refused = replace(plan, model=model, model_parameters=parameters)
        assert not_known.format(model) in refusal(PRIVATE, refused)
    assert "DPLoRA does not release weighted sums" in refusal(DPLoRA(), plan)
    assert "linear layers with ReLU" in refusal(PRIVATE, replace(plan, adapter="full"))
    other = Insertions(new_tokens=NewTokens(tokens=("<new>",), context=" the"))
    with pytest.raises(InputError, match="must have the same new tokens"):
        Ensemble(PRIVATE, [plan, replace(plan, insertions=other)])


def test_a_model_that_is_no_plain_language_model_is_refused() -> None:
    digits = registry.create("model", "digits_mlp", seed=0)
    with pytest.raises(UnsupportedError, match="trains adapters of language models, got 'digits_mlp'"):
        StackedAdapters(digits, torch.zeros(1, 1), [])


def test_a_model_whose_texts_see_each_other_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared is checked: gradients of the ensemble against those of the model by itself."""
    from workbench.training.ensemble import adapters

    forward = adapters._AdaptedLayer.forward
    monkeypatch.setattr(adapters._AdaptedLayer, "forward", lambda self, x: forward(self, x + 0.1 * x.mean(0)))
    with pytest.raises(
        UnsupportedError, match="disagrees with autograd on the adapters of model 'tiny_gpt2'"
    ):
        Ensemble(PRIVATE, plans_of(1))

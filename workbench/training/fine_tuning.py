"""Follows a plan's settings: builds model, adapter and optimizer, and measures losses and quality."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.optim.adamw import adamw

from workbench.core import registry
from workbench.core.errors import ArgumentError, InputError, UnsupportedError, unknown_name
from workbench.interfaces import (
    BoolArray,
    FloatArray,
    IntArray,
    Model,
    Plan,
    Record,
    Sampling,
    Schedule,
    TaskModel,
)
from workbench.training.devices import place
from workbench.training.lora import check_lora, with_lora
from workbench.training.models import LabelModel, LanguageModel
from workbench.training.vocabulary import add_tokens

ADAPTERS = ("full", "lora")
OPTIMIZERS = ("adamw", "sgd")
EVALUATION_BATCH = 64
"""Records in one forward pass without gradients."""
WHOLE = 1e-9
"""Relative error allowed in a float64 product that must be a whole number."""


@dataclass(frozen=True)
class Seeds:
    """Seeds of a run's independent random streams: children of the plan's seed, each made when asked for."""

    seed: int
    initial_seed: int | None = None

    @classmethod
    def of(cls, plan: Plan) -> Seeds:
        """The seeds of a plan's independent random streams."""
        return cls(plan.seed, plan.initial_seed)

    @property
    def sampling(self) -> np.random.SeedSequence:
        """For samples."""
        return self._child(0)

    @property
    def noise(self) -> np.random.SeedSequence:
        """For noise."""
        return self._child(1)

    @property
    def initialisation(self) -> np.random.SeedSequence:
        """For weights of the model or its adapter."""
        return self._child(2) if self.initial_seed is None else np.random.SeedSequence(self.initial_seed)

    @property
    def canary_coins(self) -> np.random.SeedSequence:
        """For the steps in which the gradient canary takes part."""
        return self._child(3)

    @property
    def public(self) -> np.random.SeedSequence:
        """For what a mechanism draws and publishes."""
        return self._child(4)

    def _child(self, place: int) -> np.random.SeedSequence:
        """What `SeedSequence.spawn` gives in that place."""
        return np.random.SeedSequence(self.seed, spawn_key=(place,))


def seed_number(seed: np.random.SeedSequence) -> int:
    """63 bits of the sequence as a number."""
    words = seed.generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def torch_generator(seed: np.random.SeedSequence) -> torch.Generator:
    """A torch generator on the CPU, seeded with 63 bits of the sequence, of which torch takes 32."""
    return torch.Generator().manual_seed(seed_number(seed))


def check_plan(plan: Plan) -> None:
    """Refuse a plan that no training run can follow, with an `InputError`."""
    if not plan.records:
        raise InputError("records must not be empty")
    if plan.public_size is not None and plan.public_size < 1:
        raise InputError(f"public_size must be >= 1, got {plan.public_size}")
    if plan.steps < 1:
        raise InputError(f"steps must be >= 1, got {plan.steps}")
    if not 0 < plan.sampling_probability <= 1:
        raise ArgumentError("sampling_probability", f"must be in (0, 1], got {plan.sampling_probability!r}")
    if not 0 < plan.learning_rate < math.inf:
        raise ArgumentError("learning_rate", f"must be finite and > 0, got {plan.learning_rate!r}")
    if not 0 <= plan.weight_decay < math.inf:
        raise ArgumentError("weight_decay", f"must be finite and >= 0, got {plan.weight_decay!r}")
    if not 0 <= plan.warmup < 1:
        raise ArgumentError("warmup", f"must be in [0, 1), got {plan.warmup!r}")
    if plan.schedule not in list(Schedule):
        raise unknown_name("schedule", plan.schedule, [str(known) for known in Schedule])
    if plan.adapter not in ADAPTERS:
        raise unknown_name("adapter", plan.adapter, ADAPTERS)
    if plan.optimizer not in OPTIMIZERS:
        raise unknown_name("optimizer", plan.optimizer, OPTIMIZERS)
    if plan.adapter == "lora":
        check_lora(plan)
    if plan.sampling not in list(Sampling):
        raise unknown_name("sampling", plan.sampling, [str(known) for known in Sampling])
    if plan.sampling is Sampling.SHUFFLED:
        shuffled_batch_size(plan)


def averaging_size(plan: Plan) -> int:
    """N, the divisor of sums over q N records: the public size, else the number of records."""
    return len(plan.records) if plan.public_size is None else plan.public_size


def shuffled_batch_size(plan: Plan) -> int:
    """Batch size B = q N of a plan that shuffles; an `InputError` where q N is no whole number."""
    product = plan.sampling_probability * averaging_size(plan)
    batch_size = round(product)
    if batch_size < 1 or abs(product - batch_size) > WHOLE * batch_size:
        raise InputError(
            "sampling_probability times the number of records must be a whole number of records where they "
            f"are shuffled, got {plan.sampling_probability!r} * {averaging_size(plan)} = {product:g}"
        )
    return batch_size


def epochs(plan: Plan) -> float:
    """How often a record takes part: the epochs begun if shuffled, the expected q T in Poisson samples."""
    if plan.sampling is Sampling.SHUFFLED:
        return float(math.ceil(plan.steps / math.ceil(averaging_size(plan) / shuffled_batch_size(plan))))
    return plan.sampling_probability * plan.steps


def build_model(plan: Plan) -> Model:
    """The plan's model before training, its adapter in place, on the plan's device.

    Deterministic in the plan; drawn on the CPU.
    """
    model = build_base(plan)
    adapt(model, plan)
    model.module = place(model.module, plan.device)
    return model


def build_base(plan: Plan) -> Model:
    """The plan's model before training, on the CPU, without an adapter; deterministic in the plan."""
    words = _initial_words(plan)
    model: Model = registry.create("model", plan.model, seed=words[0] >> 1, **dict(plan.model_parameters))
    if plan.insertions.new_tokens is not None:
        add_tokens(model, plan.insertions.new_tokens)
    return model


def adapt(model: Model, plan: Plan) -> None:
    """Freeze a model and put the plan's adapter around it, in place, if the plan has one."""
    if plan.adapter == "lora":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(_initial_words(plan)[1])
            model.module = with_lora(model.module, plan)


def _initial_words(plan: Plan) -> tuple[int, int]:
    """Seeds of the model's weights, and of its adapter's."""
    words = Seeds.of(plan).initialisation.generate_state(2, np.uint32)
    return int(words[0]), int(words[1])


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, tied parameters once, in the order of the flat vector."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def make_optimizer(plan: Plan, module: nn.Module, *, fused: bool = False) -> torch.optim.Optimizer:
    """The plan's optimizer over the trainable parameters of a module; see `optimizer_of`."""
    return optimizer_of(plan, list(trainable(module).values()), fused=fused)


def optimizer_of(
    plan: Plan, parameters: Sequence[nn.Parameter], *, fused: bool = False
) -> torch.optim.Optimizer:
    """The plan's optimizer over these parameters, with weight decay on all of them.

    AdamW decays by a share of the weight itself (Loshchilov & Hutter 2019), SGD by an L2 penalty; other
    settings are torch's, as in transformers' `Trainer` (which exempts biases and layer norms from decay).
    `fused` takes one kernel for all tensors: equal up to rounding, and several times faster where most
    gradients are zero.
    """
    kind: type[torch.optim.SGD | torch.optim.AdamW]
    kind = torch.optim.SGD if plan.optimizer == "sgd" else torch.optim.AdamW
    return kind(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay, fused=fused or None)


def learning_rate(plan: Plan, step: int) -> float:
    """The learning rate of step t, from 0, as in `transformers.get_linear_schedule_with_warmup`.

    With W the share `warmup` of the T steps, rounded up: the plan's rate times t / W in the warm-up, so that
    the first step has rate zero; after it times 1, or times (T - t) / (T - W) in a linear schedule.
    """
    warm = math.ceil(plan.steps * plan.warmup)
    if step < warm:
        return plan.learning_rate * (step / warm)
    if plan.schedule == Schedule.LINEAR:
        return plan.learning_rate * max(0.0, (plan.steps - step) / (plan.steps - warm))
    return plan.learning_rate


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode without gradients; the module's mode is restored."""
    was_training = model.module.training
    model.module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.module.train(was_training)


def record_losses(model: Model, records: Sequence[Record]) -> FloatArray:
    """Per-record losses, shape `(n,)`, nats, in evaluation mode."""
    parts = [np.zeros(0)]
    with evaluating(model):
        for batch in _batches(records):
            parts.append(model.losses(model.encode(batch)).cpu().double().numpy())
    return np.concatenate(parts).astype(np.float64)


def record_log_likelihoods(model: Model, records: Sequence[Record]) -> list[FloatArray]:
    """Per-record token log-likelihoods, nats, in evaluation mode."""
    log_likelihoods: list[FloatArray] = []
    with evaluating(model):
        for batch in _batches(records):
            log_likelihoods.extend(model.token_log_likelihoods(model.encode(batch)))
    return log_likelihoods


def record_z_scores(model: Model, records: Sequence[Record]) -> list[FloatArray]:
    """z-scores of each record's tokens (`LanguageModel.token_z_scores`), in evaluation mode."""
    if not isinstance(model, LanguageModel):
        raise UnsupportedError(f"model {model.name!r} predicts no tokens, so that these have no distribution")
    scores: list[FloatArray] = []
    with evaluating(model):
        for batch in _batches(records):
            scores.extend(model.token_z_scores(model.encode(batch)))
    return scores


def perplexity(model: Model, records: Sequence[Record]) -> float:
    """Exponential of the mean negative log-likelihood over the records' predicted tokens or labels."""
    tokens = np.concatenate(record_log_likelihoods(model, records))
    return _exponential(float(-tokens.mean()))


def _exponential(mean: float) -> float:
    """Of a mean loss in nats; infinite beyond exp(700)."""
    return math.exp(mean) if mean < 700 else math.inf


def quality(model: Model, records: Sequence[Record]) -> dict[str, float]:
    """`perplexity` of the records, and a classifier's or a task's scores; empty without records."""
    if not records:
        return {}
    if isinstance(model, LabelModel):  # One pass has both.
        labels, scores = _scored(model, records)
        mean = -float(scores[np.arange(len(labels)), labels].mean())
        right = model.predicted(scores, labels) == labels
        return {"perplexity": _exponential(mean), "accuracy": float(np.mean(right))}
    metrics = {"perplexity": perplexity(model, records)}
    if model.kind == "classification":
        metrics["accuracy"] = float(np.mean(_labels_right(model, records)))
    if isinstance(model, TaskModel):
        with evaluating(model):
            metrics.update(model.task_metrics(records))
    return metrics


def record_hits(model: Model, records: Sequence[Record]) -> list[BoolArray]:
    """Whether each predicted token, or the predicted label, is the record's (`Subject.predicted_right`)."""
    if isinstance(model, LanguageModel):
        hits: list[BoolArray] = []
        with evaluating(model):
            for batch in _batches(records):
                hits.extend(model.token_hits(model.encode(batch)))
        return hits
    if any(record.label is None for record in records):
        raise UnsupportedError(f"model {model.name!r} predicts neither a label nor every token of a record")
    return list(_labels_right(model, records)[:, None])


def _labels_right(model: Model, records: Sequence[Record]) -> BoolArray:
    """Whether each record's label has the lowest loss among all labels that occur, shape `(n,)`."""
    if isinstance(model, LabelModel):
        own, scores = _scored(model, records)
        known = np.unique(own)
        hits: BoolArray = known[scores[:, known].argmax(axis=1)] == own
        return hits
    labels = sorted({record.label for record in records if record.label is not None})
    losses = [record_losses(model, [replace(record, label=label) for record in records]) for label in labels]
    chosen = np.array(labels)[np.argmin(np.stack(losses), axis=0)]
    right: BoolArray = chosen == np.array([record.label for record in records])
    return right


def _scored(model: LabelModel, records: Sequence[Record]) -> tuple[IntArray, FloatArray]:
    """The records' labels, shape `(n,)`, and the log-likelihood of every label, shape `(n, classes)`."""
    with evaluating(model):
        scores = model.label_scores(records)
    return np.array([record.label for record in records], dtype=np.int64), scores


def _batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    for start in range(0, len(records), EVALUATION_BATCH):
        yield records[start : start + EVALUATION_BATCH]


class FlatAdamW:
    """torch's AdamW with its default moments (0.9, 0.999, 1e-8), and decay of all parameters alike.

    The parameters' `grad` are zero and stay in place: write into them, step, and zero what was written.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], weight_decay: float) -> None:
        """Move the parameters into one vector, until `close`.

        `parameters`: of one type and device; see `fits`. `weight_decay`: see `Plan`.
        """
        self._parameters = list(parameters)
        self._weight_decay = weight_decay
        with torch.no_grad():
            self._weights = torch.cat([p.reshape(-1) for p in self._parameters])
        self.gradient = torch.zeros_like(self._weights)
        self._first, self._second = torch.zeros_like(self._weights), torch.zeros_like(self._weights)
        self._done = torch.zeros((), dtype=torch.float32, device=self._weights.device)
        start = 0
        for parameter in self._parameters:
            place = slice(start, start + parameter.numel())
            parameter.data = self._weights[place].view(parameter.shape)
            parameter.grad = self.gradient[place].view(parameter.shape)
            start = place.stop

    @staticmethod
    def fits(parameters: Sequence[nn.Parameter]) -> bool:
        """Whether the parameters can be one vector."""
        return len({(p.dtype, p.device) for p in parameters}) == 1

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One step of AdamW along the gradients."""
        adamw(
            [self._weights],
            [self.gradient],
            [self._first],
            [self._second],
            [],
            [self._done],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def close(self) -> None:
        """Give each parameter memory of its own again, and no gradient."""
        for parameter in self._parameters:
            parameter.grad = None
            parameter.data = parameter.data.clone()

"""How a subject is trained: plans, models, per-record signals, transcripts, and the trained subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from workbench.core.keys import LATER
from workbench.interfaces.arrays import BoolArray, FloatArray, IntArray
from workbench.interfaces.claims import Claim, Guarantee
from workbench.interfaces.data import Record
from workbench.interfaces.evidence import Family

if TYPE_CHECKING:
    import torch


class Sampling(StrEnum):
    """How the records of each step are chosen."""

    POISSON = "poisson"
    """Each record takes part in each step independently, with probability q."""
    SHUFFLED = "shuffled"
    """Each epoch goes through all records once, in a fresh secret order, in batches of q N."""


class Schedule(StrEnum):
    """How the learning rate changes over the steps of a run, after its warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    """Falls linearly to zero at the last step."""


@runtime_checkable
class Model(Protocol):
    """A module with the functions that turn records into tensors and losses.

    A batch is a dict of tensors that share their first dimension, one row a record.
    """

    module: torch.nn.Module
    kind: str
    """`"language"` or `"classification"`."""
    name: str

    def encode(self, records: Sequence[Record]) -> dict[str, torch.Tensor]:
        """Returns tensors of the records, padded; first dimension `len(records)`."""

    def losses(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns per-record losses, shape `(n,)`, nats, differentiable in the module's parameters.

        For a language model the mean over the record's predicted tokens, for a classifier the cross entropy.
        Row i depends on record i alone (no batch statistics, no cross-record attention).
        """

    def token_log_likelihoods(self, batch: Mapping[str, torch.Tensor]) -> list[FloatArray]:
        """Returns each record's log-likelihoods, nats, of its predicted tokens (or of its label)."""


@runtime_checkable
class TaskModel(Model, Protocol):
    """A model of a task with a score besides its loss: sentiment, questions, data to text."""

    def task_metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """Returns the task's scores by name, the one that a checkpoint is chosen by first.

        `accuracy`, `f1` and `exact_match`, or `meteor`, in [0, 1]; `bleu` in [0, 100]. Called in evaluation
        mode without gradients.
        """


@dataclass(frozen=True, kw_only=True)
class ModelFacets:
    """What a model's source declares besides building it, as the `facets` of `register`.

    A source is called with `seed` and its parameters, and returns a `Model` in float32 on the CPU.

    Attributes:
        fingerprint: Hash of the model's files, called with the source's parameters; None for no files.
        stands_on: The two parameters that name another model, around which this one puts a task, and a folder
            that replaces that model; None for a model without such a base.
        check_records: Refuses (`InputError`) records that do not fit the model's task; called with the
            records and the source's parameters. None for a model without a task.
        check_folder: Refuses (`InputError`) a folder that cannot replace the model; None where the source
            cannot tell.
        stacks: The module is linear layers with ReLU between them, so that an ensemble can train many.
        has_one_base: Whether, with these parameters of the source, it is a plain causal language model whose
            weights the seed does not change, so that an ensemble can train many LoRA adapters over one copy.
            None for a model that is no such, or not known to be.
    """

    fingerprint: Callable[..., str] | None = None
    stands_on: tuple[str, str] | None = None
    check_records: Callable[..., None] | None = None
    check_folder: Callable[[Path], None] | None = None
    stacks: bool = False
    has_one_base: Callable[..., bool] | None = None


@dataclass(frozen=True, kw_only=True)
class GradientCanary:
    """A record with the same gradient in every step, zero except in a few coordinates or one.

    One coordinate is the "Dirac" canary of Nasr et al. 2023.

    Attributes:
        coordinate: Index into the flat vector of trainable parameters, or of each group's where the canary is
            everywhere.
        magnitude: Norm of its raw gradient, before any clipping; finite, > 0.
        record: Id of the plan's record whose gradient it replaces: it takes part where that record does.
            None: an additional record, which takes part by a coin each step.
        spread: Number of coordinates, from `coordinate` on (modulo d), that share the gradient evenly; 0 for
            all of them. Only with a `record`.
        opposed: The gradient is instead, in every step, minus `magnitude` times the sum of the gradients of
            all other records of the plan at the current state (of all, not of the step's sample: a record
            cannot know who else takes part). Only with a `record`; `coordinate` and `spread` are not read.
        everywhere: One coordinate in each of the mechanism's clipping groups
            (`workbench.training.loop.GradientMechanism.clipping_groups`), `magnitude` in each: where groups
            are clipped separately, a record may fill every group's bound. Only without a `record`.
    """

    coordinate: int
    magnitude: float
    record: str | None = None
    spread: int = 1
    opposed: bool = False
    everywhere: bool = field(default=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class NewTokens:
    """Tokens that a language model's vocabulary gets before training, each with an embedding of its own.

    Attributes:
        tokens: Their texts; none is in the vocabulary.
        context: A text of at least one token. Each embedding starts as the mean of all that the model expects
            after it, so that to predict a new token there pulls its own embedding and hardly anything else.
    """

    tokens: tuple[str, ...]
    context: str


@dataclass(frozen=True, kw_only=True)
class Insertions:
    """What an attack inserts into the candidate pool before training.

    Attributes:
        replaced: Records that take the place of the candidates with the same ids (a canary appended to a
            narrative keeps its record's id).
        gradient_canary: A gradient canary that takes part in training steps by the auditor's coins.
        planted: Records that are trained on in every run and are never candidates; each takes part in the
            steps like a member, and counts as one.
        new_tokens: Tokens that the model's vocabulary gets, for canaries of a token each.
    """

    replaced: tuple[Record, ...] = ()
    gradient_canary: GradientCanary | None = None
    # Left out of the representation, from which keys and seeds of before are made.
    planted: tuple[Record, ...] = field(default=(), repr=False)
    new_tokens: NewTokens | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """How a model is trained, whatever the data: the fields that plans, audits and studies share.

    A plan, an audit's settings and a study's experiment add fields to it, so that an audit can train whatever
    a study can, and their plain forms stay flat.

    Attributes:
        model, model_parameters: Registry name of the model, and keyword arguments of its source.
        adapter: `"full"` fine-tuning, or `"lora"`.
        lora_rank: Rank r of the LoRA matrices; read where `adapter` is `"lora"`, as are the next two.
        lora_alpha: Their product is scaled by alpha / r; None for an alpha of 2 r.
        lora_targets: Which layers have them: `"all-linear"` (but the output layer), those of the
            `"attention"`, or its `"query-value"` projections (`workbench.training.lora.LORA_TARGETS`).
        optimizer: `"adamw"` or `"sgd"`.
        learning_rate: Step size; the highest one where a schedule changes it.
        weight_decay: Decoupled weight decay of AdamW (Loshchilov & Hutter 2019), L2 penalty of SGD; >= 0.
        warmup: Share of the steps, in [0, 1), over which the learning rate rises linearly from zero.
        device: What it is trained and asked on: `"cpu"`, `"cuda"`, `"cuda:1"`, `"mps"`. Numbers are drawn on
            the CPU whatever it is; results differ by rounding, and each device keeps its own.
        scored_members: S: of the members, the first so many are read to say how well a training fits, and are
            scored by an attack on its candidates, with as many others; None for all.
    """

    model: str
    learning_rate: float
    sampling: Sampling = Sampling.POISSON
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup: float = 0.0
    model_parameters: Mapping[str, Any] = field(default_factory=dict)
    adapter: str = "full"
    lora_rank: int = 4
    lora_alpha: float | None = field(default=None, metadata=LATER)
    lora_targets: str = field(default="all-linear", metadata=LATER)
    device: str = field(default="cpu", metadata=LATER)
    scored_members: int | None = field(default=None, metadata=LATER)

    def spec(self) -> dict[str, Any]:
        """Returns the spec's fields by name, for a record that has them too."""
        return {item.name: getattr(self, item.name) for item in fields(TrainingSpec)}


@dataclass(frozen=True, kw_only=True)
class TimedSpec(TrainingSpec):
    """A training spec with its length.

    `steps`: number of updates T. `sampling_probability`: share q of the N records in a step, in (0, 1]: each
    record's inclusion probability, or the batch size over N where the records are shuffled.
    """

    steps: int
    sampling_probability: float

    def spec(self) -> dict[str, Any]:
        """Returns the timed spec's fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(TimedSpec)}


@dataclass(frozen=True, kw_only=True)
class Plan(TimedSpec):
    """The input of a training run.

    Attributes:
        records: The records that are trained on (the members), in a fixed order.
        held_out: Records for the test perplexity.
        dev: Public records by which a mechanism may choose among its checkpoints; never trained on.
        budget: The guarantee to be met; None for a mechanism that promises nothing.
        public_size: The number by which q-fold sums are averaged; None for `len(records)`. Under add-remove
            adjacency the true number is private, so an audit gives the expected one.
        seed: Every random stream of the run is spawned from it.
        initial_seed: Seed of the weights that are drawn before training, for runs that start from the same
            public ones; None to spawn it from `seed`.
    """

    records: tuple[Record, ...]
    held_out: tuple[Record, ...]
    budget: Guarantee | None = None
    insertions: Insertions = Insertions()
    public_size: int | None = None
    seed: int = 0
    initial_seed: int | None = None
    dev: tuple[Record, ...] = ()


Groups: TypeAlias = Sequence[Sequence[str]]
"""Names of the trainable parameters, each in exactly one group, no group empty."""


class Signals(Protocol):
    """The per-record gradients of one step, as a privatise step sees them.

    They need not be stored: mechanisms ask for norms and weighted sums of the gradients of n records over d
    trainable parameters, whole or by groups of parameters. An audit passes the same object with a canary
    appended, so that it drives the code that trains.

    Only `weighted_sum` and `group_sum` have trial axes. A mechanism may read norms and factors off
    `gradients`; what it releases comes from one of the sums.
    """

    @property
    def n(self) -> int:
        """Number of records in this step's sample (0 is legal under Poisson sampling)."""

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""

    @property
    def layout(self) -> Mapping[str, tuple[slice, torch.Size]]:
        """Place and shape of each named trainable parameter in the flat vector."""

    def norms(self) -> torch.Tensor:
        """Euclidean norm of each record's gradient, shape `(n,)`."""

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Returns the sum over records of `weights[i] * gradient_i`, shape `(..., d)`.

        `weights` has shape `(n,)`. An audit that plays many trials at once returns leading trial axes; a
        privatise step draws noise in the shape that it gets.
        """

    def gradients(self) -> torch.Tensor:
        """Returns the records' gradients, shape `(n, d)`, in the type of the sums.

        Holds n d numbers: for mechanisms that transform each record's gradient before they clip it.
        """

    def group_norms(self, groups: Groups) -> torch.Tensor:
        """Returns the Euclidean norm of each group's part of each record's gradient, shape `(n, G)`.

        Raises `InputError`: the G groups do not hold each name of `layout` once.
        """

    def group_sum(self, weights: torch.Tensor, groups: Groups) -> torch.Tensor:
        """Returns the sum of the records' gradients, each group's part weighted by its column of `weights`.

        `weights` has shape `(n, G)`, the result `(..., d)`; with equal columns it equals `weighted_sum`.
        Raises `InputError`: the groups do not hold each name of `layout` once, or `weights` has another
        shape.
        """


@dataclass(frozen=True, kw_only=True)
class ReleasedSigns:
    """Everything that a mechanism of masked signs releases: which groups fired when, and with which signs.

    Attributes:
        public_seed: Seed from which the mask and every direction are drawn; public.
        groups: Names of the parameter tensors of each group, shape `(G,)` tuples.
        steps: T.
        fired: Step and group (indices from 0) of each firing, by step and then by group, shape `(F, 2)`.
        signs: The released sign of each firing, shape `(F,)`: -1 or 1; 0 where a zero gradient was kept
            silent although the mask fired.
    """

    public_seed: int
    groups: tuple[tuple[str, ...], ...]
    steps: int
    fired: IntArray
    signs: IntArray


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """What training released, and series for plots.

    Attributes:
        losses: Mean training loss of each step's sample, shape `(T,)`, nats; NaN for an empty sample.
        sample_sizes: Records in each step's sample, shape `(T,)`.
        canary_observations: Released value of the gradient canary's coordinate in each step, less what the
            known records contribute, shape `(T,)`; empty without a gradient canary. Of several coordinates
            the sum, each over the scale of its noise.
        canary_included: The auditor's coin of each step, shape `(T,)`. The runner joins it; an attack never
            sees it.
        metrics: Named scalars: `train_perplexity_before`, `train_perplexity_after`, `test_perplexity_before`,
            `test_perplexity_after`, `noise_multiplier`, `seconds`, ...
        released_signs: What a mechanism of masked signs released; None for other mechanisms.
        traces: Named series for plots: one number a step, shape `(T,)`, NaN where a step has none; or another
            length, next to a series that says after which step (`evaluation_steps`). They may hold more than
            was released, and no attack reads them.
    """

    losses: FloatArray
    sample_sizes: IntArray
    canary_observations: FloatArray
    canary_included: BoolArray
    metrics: Mapping[str, float]
    released_signs: ReleasedSigns | None = None
    traces: Mapping[str, FloatArray] = field(default_factory=dict)


class Subject(Protocol):
    """A trained model with its claim and the transcript of what was released."""

    claim: Claim
    transcript: Transcript
    plan: Plan

    @property
    def release_family(self) -> Family:
        """The family of one release's noise, for bounds that assume one."""

    def losses(self, records: Sequence[Record]) -> FloatArray:
        """Returns per-record losses, shape `(n,)`, nats, in evaluation mode."""

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        """Returns per-record token log-likelihoods, nats."""

    def token_z_scores(self, records: Sequence[Record]) -> list[FloatArray]:
        """Returns each token's log-likelihood less its expectation under the model's own distribution, over
        its standard deviation there. Raises `UnsupportedError`: the model is no language model.
        """

    def predicted_right(self, records: Sequence[Record]) -> list[BoolArray]:
        """Returns whether each prediction of a record is right: its label's, or every token's but the first.

        A prediction is the most likely token, or the most likely of the labels that occur in the records.
        Raises `UnsupportedError`: the model predicts neither.
        """

    def release_canary(
        self, canary: GradientCanary, included: BoolArray, generator: np.random.Generator
    ) -> FloatArray:
        """Releases the canary independently at the trained state, each time by the mechanism's privatise
        step.

        `included` holds one coin a trial, shape `(n,)`. Returns the released value of the canary's coordinate
        in each trial, less the known records' share, shape `(n,)`. Raises `UnsupportedError`: the subject has
        no privatise step to drive.
        """

    def save(self, folder: Path) -> None:
        """Writes weights (safetensors) and JSON to an existing folder."""

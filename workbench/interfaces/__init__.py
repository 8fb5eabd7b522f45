"""The nouns of the bench: what the rooms hand to each other.

Everything here is frozen and keyword-only, and imports no deep-learning framework: tensors are named in
annotations only. Scores point one way everywhere: higher means "member".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

from workbench.core.keys import JSON, HasPlainForm

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.int64]


class Adjacency(StrEnum):
    """Which pairs of data sets a differential-privacy claim calls neighbours."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"


class Secret(StrEnum):
    """What a mutual-information claim keeps secret."""

    RECORD = "record"
    """One record's membership, given every other record."""
    SUBSET = "candidate-subset"
    """Which of the public candidate subsets was trained on."""


class Released(StrEnum):
    """What the adversary sees, from most to least."""

    EVERY_UPDATE = "every update"
    FINAL_WEIGHTS = "final weights"
    SCORES = "scores"

    def covers(self, other: Released) -> bool:
        """True where a claim about this release also covers the other one (it shows no more)."""
        order = list(Released)
        return order.index(self) <= order.index(other)


class Family(StrEnum):
    """The family of mechanisms that a bound assumes; outside it the bound proves nothing."""

    ANY = "any (epsilon, delta)"
    GAUSSIAN = "Gaussian"
    SUBSAMPLED_GAUSSIAN = "Poisson-subsampled Gaussian"
    RANDOMISED_RESPONSE = "randomised response"


class Trials(StrEnum):
    """How the scores of one game depend on each other."""

    INDEPENDENT = "independent"
    """Every score comes from its own release: given the labels, scores are independent."""
    ONE_RUN = "one-run"
    """All scores come from one release; the labels are independent coins of probability `prior`."""


class Sampling(StrEnum):
    """How the records of each step are chosen."""

    POISSON = "poisson"
    """Each record takes part in each step independently, with probability q."""
    SHUFFLED = "shuffled"
    """Each epoch goes through all records once, in a fresh secret order, in batches of q N."""


class Schedule(StrEnum):
    """How the learning rate goes over the steps of a run, after its warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    """Falls linearly to zero at the last step."""


class Currency(StrEnum):
    """What the number counts that studies and commands call a budget's epsilon."""

    DP = "epsilon-delta"
    RECORD_NATS = "record-nats"
    """Mutual information in nats about one record."""
    SUBSET_NATS = "subset-nats"
    """Mutual information in nats about which candidate subset was trained on."""


class VerdictKind(StrEnum):
    """What the judge may say. "Not refuted" never means "private"."""

    REFUTED = "REFUTED"
    NOT_REFUTED = "NOT_REFUTED"
    UNDERPOWERED = "UNDERPOWERED"
    INVALID = "INVALID"
    PROVEN = "PROVEN"
    HOLDS_UNDER = "HOLDS_UNDER"
    UNDECIDED = "UNDECIDED"


class Guarantee(HasPlainForm):
    """A formal promise in its own currency; never converted in silence."""

    currency: ClassVar[str]
    """Short name, as used in claims and tables: `"(epsilon, delta)-DP"`."""

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """Largest true-positive rate that the guarantee allows at each false-positive rate.

        Args:
            fpr: False-positive rates in [0, 1], any shape.

        Returns:
            Array of the same shape, in [0, 1].

        Raises:
            UnsupportedError: the guarantee has no trade-off curve.
        """
        from workbench.core.errors import UnsupportedError

        raise UnsupportedError(f"{self.describe()} has no trade-off curve")

    @abstractmethod
    def max_success(self, prior: float = 0.5) -> float:
        """Largest probability of guessing membership right that the guarantee allows.

        Args:
            prior: Probability that the record is a member, in (0, 1).

        Returns:
            A success probability in [max(prior, 1 - prior), 1].
        """

    @abstractmethod
    def describe(self) -> str:
        """The guarantee in words, with its numbers: `"(epsilon = 1, delta = 1e-05)-DP"`."""

    @abstractmethod
    def to_json(self) -> dict[str, JSON]:
        """Plain form with a `"currency"` key; `workbench.accounting.guarantee_from_json` reads it."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A guarantee, about what, under which assumptions, and whose claim it is."""

    guarantee: Guarantee
    about: Adjacency | Secret
    released: Released
    source: str
    """Whose claim: a paper and equation, `"the user"`, or the accountant that computed it."""
    assumptions: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line: the guarantee, its adjacency or secret, and what is released."""
        kind = "adjacency" if isinstance(self.about, Adjacency) else "secret"
        return f"{self.guarantee.describe()}, {kind}: {self.about}, released: {self.released}"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One person's datum. Text corpora fill `text`, image corpora `image` (a flat float32 vector).

    A question about a text has its `answers`, spans of the text, and what is to be told its references: the
    first is trained on, each is right.
    """

    id: str
    text: str = ""
    image: tuple[float, ...] | None = None
    label: int | None = None
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Records drawn from one distribution, so that members and non-members are exchangeable.

    Attributes:
        name: Registry name.
        records: The candidate pool; the runner draws members from it by coin, or by exchangeable split.
        held_out: Further records of the same distribution, never candidates (for test perplexity).
        public: Records of a public distribution that anyone may train on.
        kind: `"text"` or `"image"`.
        classes: Number of labels; 0 where records have none.
        origin: Where the data come from, in a sentence, with source and hash.
    """

    name: str
    records: tuple[Record, ...]
    held_out: tuple[Record, ...]
    public: tuple[Record, ...]
    kind: str
    origin: str
    classes: int = 0


class CorpusSource(Protocol):
    """What a file of the data room registers under a corpus name."""

    def __call__(self, *, size: int, seed: int, **parameters: Any) -> Corpus:
        """Load `size` candidate records, deterministically in `seed`.

        Raises:
            InputError: an unknown parameter or unusable value.
        """


@runtime_checkable
class Model(Protocol):
    """A module with what the bench needs to know of it: how records become tensors and losses.

    `Batch` is a dict of tensors that share their first dimension, one row a record.
    """

    module: torch.nn.Module
    kind: str
    """`"language"` or `"classification"`."""
    name: str

    def encode(self, records: Sequence[Record]) -> dict[str, torch.Tensor]:
        """Tensors of the records, padded; first dimension `len(records)`."""

    def losses(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Per-record losses, shape `(n,)`, nats; differentiable in the module's parameters.

        For a language model the mean over the record's predicted tokens, for a classifier the cross
        entropy. Row i depends on record i alone (no batch statistics, no cross-record attention).
        """

    def token_log_likelihoods(self, batch: Mapping[str, torch.Tensor]) -> list[FloatArray]:
        """For each record the log-likelihoods, nats, of its predicted tokens (or of its label)."""


@runtime_checkable
class TaskModel(Model, Protocol):
    """A model of a task that is scored by more than its loss: sentiment, questions, data to text."""

    def task_metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """What the task is scored by, each in [0, 1]: `accuracy`, `f1` and `exact_match`, or `meteor`.

        But for `bleu`, which is in [0, 100].
        Called in evaluation mode without gradients. The first is the one that a checkpoint is chosen by.
        """


class ModelSource(Protocol):
    """What a file of the data room registers under a model name."""

    def __call__(self, *, seed: int, **parameters: Any) -> Model:
        """Build or load the model, deterministically in `seed`; parameters in float32 on the CPU."""


@dataclass(frozen=True, kw_only=True)
class GradientCanary:
    """A record whose gradient is the same in every step, zero but in a few coordinates or one.

    One coordinate is the "Dirac" canary of Nasr et al. 2023.

    Attributes:
        coordinate: Index into the flat vector of trainable parameters, or of each group's where the canary
            is everywhere.
        magnitude: Norm of its raw gradient, before any clipping; finite, > 0.
        record: Id of the record of the plan whose gradient it is: it takes part where that record does, and
            nowhere in a plan without it. None: a record beside them, which takes part by a coin each step.
        spread: Number of coordinates, from `coordinate` on (modulo d), that share the gradient evenly; 0 for
            all of them. Only with a `record`.
        opposed: The gradient is instead, in every step, minus `magnitude` times the sum of the gradients of
            all other records of the plan at the current state (of all, not of the step's sample: a record
            cannot know who else takes part). Only with a `record`; `coordinate` and `spread` are not read.
        everywhere: One coordinate in each of the mechanism's clipping groups
            (`workbench.training.loop.GradientMechanism.clipping_groups`), `magnitude` in each: where groups
            are clipped by themselves, a record may fill the bound of every one of them. Only without a
            `record`.
    """

    coordinate: int
    magnitude: float
    record: str | None = None
    spread: int = 1
    opposed: bool = False
    everywhere: bool = field(default=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Insertions:
    """What an attack puts into the candidate pool before training.

    Attributes:
        replaced: Records that take the place of the candidates with the same ids (a canary appended to
            a narrative keeps its record's id).
        gradient_canary: A gradient canary that takes part in training steps by the auditor's coins.
        planted: Records that are trained on in every run beside the members, and never are candidates; each
            takes part in the steps like a member, and counts as one.
    """

    replaced: tuple[Record, ...] = ()
    gradient_canary: GradientCanary | None = None
    # Left out of the representation, from which keys and seeds of before are made.
    planted: tuple[Record, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a training run is given.

    Attributes:
        records: The records that are trained on (the members), in a fixed order.
        held_out: Records for the test perplexity.
        dev: Public records by which a mechanism may choose among its checkpoints; never trained on.
        model: Registry name of the model.
        model_parameters: Keyword arguments of its source.
        adapter: `"full"` fine-tuning, or `"lora"`.
        lora_rank: Rank r of the LoRA matrices; read where `adapter` is `"lora"`, as are the next two.
        lora_alpha: Their product is scaled by alpha / r; None for an alpha of 2 r.
        lora_targets: Which layers they stand beside: `"all-linear"` (but the output layer), those of the
            `"attention"`, or its `"query-value"` projections (`workbench.training.lora.LORA_TARGETS`).
        steps: Number of updates T.
        sampling_probability: The share q of the N records that a step takes, in (0, 1]: each record's
            inclusion probability, or the batch size over N where the records are shuffled.
        sampling: How the records of each step are chosen.
        optimizer: `"adamw"` or `"sgd"`.
        learning_rate: Step size; the highest one where a schedule changes it.
        weight_decay: Decoupled weight decay of AdamW (Loshchilov & Hutter 2019), L2 penalty of SGD; >= 0.
        schedule: How the learning rate goes after the warm-up.
        warmup: Share of the steps, in [0, 1), over which the learning rate rises linearly from zero.
        budget: The guarantee to be met; None for a mechanism that promises nothing.
        insertions: Canaries.
        public_size: The number by which q-fold sums are averaged; None for `len(records)`. Under add-remove
            adjacency the true number is private, so an audit gives the expected one.
        seed: Seed of this run; every random stream is spawned from it.
        initial_seed: Seed of the weights that are drawn before training, for runs that start from the same
            public ones; None to spawn it from `seed`.
    """

    records: tuple[Record, ...]
    held_out: tuple[Record, ...]
    model: str
    steps: int
    sampling_probability: float
    learning_rate: float
    sampling: Sampling = Sampling.POISSON
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup: float = 0.0
    model_parameters: Mapping[str, Any] = field(default_factory=dict)
    adapter: str = "full"
    lora_rank: int = 4
    lora_alpha: float | None = None
    lora_targets: str = "all-linear"
    budget: Guarantee | None = None
    insertions: Insertions = Insertions()
    public_size: int | None = None
    seed: int = 0
    initial_seed: int | None = None
    dev: tuple[Record, ...] = ()


Groups: TypeAlias = Sequence[Sequence[str]]
"""Names of the trainable parameters, each in exactly one group, no group empty."""


class Signals(Protocol):
    """The per-record signals of one step, as a privatise step sees them.

    A gradient of each of n records over d trainable parameters, which need not be stored: mechanisms ask
    for the norms and for weighted sums, of the whole gradients or of groups of parameters. An audit hands in
    the same object with a canary appended, so that it drives the code that trains.

    Sums alone have trial axes: `weighted_sum` and `group_sum`. What a mechanism reads off `gradients` is for
    its norms and factors; what it releases comes from one of the sums.
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
        """Sum over records of `weights[i] * gradient_i`; weights of shape `(n,)`.

        Returns:
            Shape `(..., d)`. An audit that plays many trials at once returns leading trial axes; a
            privatise step draws its noise in the shape that it gets.
        """

    def gradients(self) -> torch.Tensor:
        """The records' gradients themselves, shape `(n, d)`, in the type of the sums.

        Holds n d numbers: for mechanisms that transform each record's gradient before they clip it.
        """

    def group_norms(self, groups: Groups) -> torch.Tensor:
        """Euclidean norm of each group's part of each record's gradient, shape `(n, G)`.

        Args:
            groups: G groups that hold each name of `layout` once.

        Raises:
            InputError: the groups are no partition of the names.
        """

    def group_sum(self, weights: torch.Tensor, groups: Groups) -> torch.Tensor:
        """Sum over records of their gradients, each group's part weighted by its own column.

        Args:
            weights: Shape `(n, G)`.
            groups: G groups that hold each name of `layout` once.

        Returns:
            Shape `(..., d)`, as of `weighted_sum`, which it equals where all columns are equal.

        Raises:
            InputError: the groups are no partition of the names, or `weights` is not of shape `(n, G)`.
        """


@dataclass(frozen=True, kw_only=True)
class ReleasedSigns:
    """All that a mechanism of masked signs gives away: who fired when, the seed of the directions, the signs.

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
    """What was released in training, and what the plots need.

    Attributes:
        losses: Mean training loss of each step's sample, shape `(T,)`, nats; NaN for an empty sample.
        sample_sizes: Records in each step's sample, shape `(T,)`.
        canary_observations: Released value of the gradient canary's coordinate in each step, less what
            the known records contribute, shape `(T,)`; empty without a gradient canary. Of several
            coordinates the sum, each over the scale of its noise.
        canary_included: The auditor's coin of each step, shape `(T,)`. The runner joins it; an attack
            never sees it.
        metrics: Named scalars: `train_perplexity_before`, `train_perplexity_after`,
            `test_perplexity_before`, `test_perplexity_after`, `noise_multiplier`, `seconds`, ...
        released_signs: What a mechanism of masked signs released; None for other mechanisms.
        traces: Named series for plots over steps: one number a step, shape `(T,)`, NaN where a step has none;
            or one a decision or a look, of another length, beside a series that says after which step
            (`evaluation_steps`). They may hold more than was released, and no attack reads them.
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

    def losses(self, records: Sequence[Record]) -> FloatArray:
        """Per-record losses, shape `(n,)`, nats, in evaluation mode."""

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        """Per-record token log-likelihoods, nats."""

    def release_canary(
        self, canary: GradientCanary, included: BoolArray, generator: np.random.Generator
    ) -> FloatArray:
        """Independent releases at the trained state, each through the mechanism's own privatise step.

        Args:
            canary: The gradient canary.
            included: One coin a trial, shape `(n,)`.
            generator: Source of the mechanism's noise.

        Returns:
            Released value of the canary's coordinate in each trial, less the known records' share,
            shape `(n,)`.

        Raises:
            UnsupportedError: the subject has no privatise step to drive.
        """

    def save(self, folder: Path) -> None:
        """Write weights (safetensors) and JSON to an existing folder."""


class Mechanism(Protocol):
    """A subject's recipe."""

    def claim(self, plan: Plan) -> Claim:
        """What its authors claim of a run with this plan."""

    def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Subject:
        """Train; deterministic in the plan. `progress(done, total)` is called after each step."""


@runtime_checkable
class PostHocMechanism(Mechanism, Protocol):
    """A mechanism that trains first and privatises the finished model: one training, many releases.

    `train` is `release(train_unreleased(plan), plan)`, and `claim` speaks of the release.
    """

    release_parameters: frozenset[str]
    """Names of the mechanism's parameters that only `release` reads; a training's key leaves them out."""

    def train_unreleased(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Subject:
        """The training alone: reads neither `plan.budget` nor a release parameter. Never given away."""

    def release(self, trained: Subject, plan: Plan) -> Subject:
        """The subject that is given away, with fresh noise; deterministic in the plan, budget included.

        Two budgets draw independent noise. `trained` is left as it was.

        Raises:
            InputError: the plan has no usable budget.
        """


@dataclass(frozen=True, kw_only=True)
class FiredStep:
    """A step of a masked-sign mechanism in which groups fired, as somebody who knows all records can redo it.

    Valid only while the watcher runs: the functions read the model before the step's update.

    Attributes:
        step: Index from 0.
        sample: Indices into `plan.records` of the records that took part.
        groups: Indices of the groups that fired, increasing, k of them.
        signs: What was released for each.
        of_sum: For some records of any plan, the inner product of the sum of their gradients with each fired
            group's direction, shape `(k,)`, in the mechanism's own arithmetic: for the records of the sample
            in their order, the very numbers whose signs were released. A record that stands for a
            gradient canary counts with the canary's gradient. An empty sequence gives zeros.
        of_each: The same of each record by itself, shape `(k, n)`.
    """

    step: int
    sample: IntArray
    groups: tuple[int, ...]
    signs: tuple[int, ...]
    of_sum: Callable[[Sequence[Record]], FloatArray]
    of_each: Callable[[Sequence[Record]], FloatArray]


@runtime_checkable
class WatchedMechanism(Mechanism, Protocol):
    """A mechanism of masked signs whose fired steps can be watched from inside, for the transcript game."""

    def train_watched(
        self,
        plan: Plan,
        watch: Callable[[FiredStep], None],
        progress: Callable[[int, int], None] | None = None,
    ) -> Subject:
        """As `train`, calling `watch` in every step in which a group fired; watching changes no number."""


@dataclass(frozen=True, kw_only=True)
class SubsetRelease:
    """One released bit of a mechanism whose secret is a candidate subset, and all that led to it.

    All but `value` and `bit` is a function of what was released before and of public data.

    Attributes:
        step: Index from 0.
        direction: Which of the step's K directions, from 0.
        differences: Per-record scalars of the universe, as clipped, shape `(N,)`.
        signs: Sign of each candidate subset's mean, -1 or 1, shape `(M,)`, int8.
        noise: Standard deviation of what was added to the secret's sign; 0 for nothing (unanimity), infinite
            for a fair coin in the sign's place.
        budget_nats: What the ledger charged.
        value: The secret's sign with its noise; the bit itself where nothing was added, NaN for a coin.
        bit: What was released, -1 or 1.
    """

    step: int
    direction: int
    differences: FloatArray
    signs: npt.NDArray[np.int8]
    noise: float
    budget_nats: float
    value: float
    bit: int


@runtime_checkable
class SubsetMechanism(Mechanism, Protocol):
    """A mechanism that trains on one of M public candidate subsets, and keeps secret on which.

    The plan's records are the universe.
    """

    def candidate_subsets(self, plan: Plan) -> BoolArray:
        """Which records each candidate holds, shape `(M, N)`; public, and the same for every secret."""

    def train_on(
        self,
        plan: Plan,
        *,
        secret: int | None = None,
        watch: Callable[[SubsetRelease], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Subject:
        """As `train`, with this index as the secret, in [0, M); None to draw it as `train` does.

        `watch` is told of each release; watching changes no number.
        """


class AccessLevel(StrEnum):
    """The game that an attack plays."""

    MEMBERSHIP = "membership"
    """Given the trained subject, score each candidate record."""
    RELEASE = "release"
    """Given released values of a gradient canary, score each release."""
    WEIGHTS = "weights"
    """Given the released weights of independent trainings with or without a canary, score each training."""
    TRANSCRIPT = "transcript"
    """Given the released signs of independent trainings with or without a canary, score each training."""
    SUBSET = "candidate subset"
    """Given all of independent trainings but which candidate subset was the secret, score each training."""
    CONSECUTIVE = "consecutive weights"
    """Given weights before and after permuted steps, with or without a canary, score each step or run."""
    TRAJECTORY = "trajectory"
    """Given the clip radii and noise multipliers of independent trainings, with or without a canary record,
    and nothing else, score each training."""


@dataclass(frozen=True, kw_only=True)
class Observations:
    """What the adversary of a release or weights game sees, without the coins.

    Attributes:
        values: Released values of the canary's coordinate, shape `(n,)`; in a weights game each training's
            released weights less its public initial ones, shape `(n, d)`.
        where: `"one state"` (independent releases at the trained state), `"every step"` (one observation
            a training step) or `"final weights"`.
    """

    values: FloatArray
    where: str


@dataclass(frozen=True, kw_only=True)
class SignReading:
    """One training's released signs, beside what an adversary who knows every record but one works out.

    Attributes:
        step: Step of each firing, shape `(F,)`, non-decreasing.
        sign: Released sign of each firing, shape `(F,)`: -1, 1, or 0 for a zero gradient kept silent.
        canary: Inner product of the canary's gradient with the firing's direction, shape `(F,)`.
        without: Inner product of the sum of the other records that took part, shape `(F,)`; for an adversary
            who knows which ones did. None for one who does not.
        others: Inner product of each other record's gradient, shape `(F, N)`; for an adversary who does not
            know which of them took part. None for one who knows.
    """

    step: IntArray
    sign: IntArray
    canary: FloatArray
    without: FloatArray | None = None
    others: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class SignObservations:
    """What the adversary of a transcript game sees, without the coins.

    Attributes:
        trials: One reading a training.
        sampling_probability: s, with which each record takes part in a step, independently.
        zero_gradient: What a firing of inner product zero releases: `"silent"` (0) or `"coin"`, a fair sign.
    """

    trials: tuple[SignReading, ...]
    sampling_probability: float
    zero_gradient: str


@dataclass(frozen=True, kw_only=True)
class SubsetReading:
    """What an adversary sees of one training on a secret candidate subset, over its D = T K releases.

    Attributes:
        signs: Of each candidate in each release, shape `(D, M)`, int8.
        noise: Noise of each release, shape `(D,)`; 0 unanimous, infinite a coin.
        bits: What was released, -1 or 1, shape `(D,)`.
        values: The secret's sign with its noise, shape `(D,)`; NaN for a coin. More than was released.
        holds_target: Which candidates hold the target record, shape `(M,)`.
    """

    signs: npt.NDArray[np.int8]
    noise: FloatArray
    bits: IntArray
    values: FloatArray
    holds_target: BoolArray


@dataclass(frozen=True, kw_only=True)
class SubsetObservations:
    """What the adversary of a candidate-subset game sees, without the secrets: one reading a training."""

    trials: tuple[SubsetReading, ...]


@dataclass(frozen=True, kw_only=True)
class TrajectoryObservations:
    """What the adversary of a trajectory game sees of n trainings over k steps, without the coins.

    Attributes:
        radii: Clip radius of each clipping group that the mechanism traced, in each step, shape `(n, k, G)`;
            G is 1 for one that has a single radius, or traced their mean alone.
        noise_multipliers: Of each step, shape `(n, k)`.
        canary_norms: Norm of the canary's gradient in each of these groups, in every step, shape `(G,)`.
    """

    radii: FloatArray
    noise_multipliers: FloatArray
    canary_norms: FloatArray


@dataclass(frozen=True, kw_only=True)
class Scores:
    """An attack's scores, one a candidate or observation; higher means member.

    Attributes:
        values: Shape `(n,)`, finite.
        details: Named scalars for the report (for instance the number of shadow models).
    """

    values: FloatArray
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class References:
    """Models that the adversary trained by the same mechanism, with their own membership.

    Attributes:
        subjects: The shadow subjects; loaded from the store's cache, shared by targets and attacks.
        included: Which candidate each was trained on, shape `(n_references, n_candidates)`.
        weights: In a weights game: the finished weights of each less its initial ones, shape
            `(n_references, d)`, with the one candidate of `included` being the canary.
        noise_scale: In a weights game: standard deviation of the noise that the mechanism is known to add
            to finished weights, and that `weights` are still without.
    """

    subjects: tuple[Subject, ...] = ()
    included: BoolArray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    weights: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    noise_scale: float = 0.0


class Attack(Protocol):
    """An attack: blind to the labels, higher score = member."""

    access: AccessLevel
    references_needed: int
    """Number of reference subjects that `score` wants; 0 for none."""

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Canaries to insert before training."""

    def score(
        self,
        subject: Subject,
        candidates: Sequence[Record]
        | Observations
        | SignObservations
        | SubsetObservations
        | TrajectoryObservations,
        references: References,
        generator: np.random.Generator,
    ) -> Scores:
        """Scores of the candidate records (membership) or of the observations (all other games)."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """The game that evidence was measured in.

    Attributes:
        description: Who chose the labels, what the adversary saw and knew, in one or two sentences.
        trials: How scores depend on each other.
        prior: Probability of label "member" in the coin that chose it.
        prior_range: Where the coin's probability is not known: an interval that holds it with 99.8 %
            confidence (`workbench.estimation.deciding.unknown_prior_range`), for which one-run bounds then
            pay.
        released: What the adversary saw; a claim that covers less is not tested by this game.
        adjacency: Which pair of data sets the coin decides between; None where the claim's is meant.
        family: What is known of how scores are distributed; `Family.ANY` where nothing is.
        beyond: What the adversary knows that a claim about the release does not grant, such as coins of the
            mechanism's own that it keeps secret; empty for nothing. Such a game shows what that knowledge is
            worth, and refutes no claim.
        steps: Number T of releases of the run that the claim covers, where a trial is one release.
        sampling_probability: Probability q with which a record takes part in each of them.
    """

    description: str
    trials: Trials
    prior: float = 0.5
    prior_range: tuple[float, float] | None = None
    adjacency: Adjacency | None = None
    released: Released = Released.FINAL_WEIGHTS
    family: Family = Family.ANY
    beyond: str = ""
    steps: int = 1
    sampling_probability: float = 1.0

    @property
    def is_single_release(self) -> bool:
        """True where a trial is one release of a longer run, to be composed before it is judged."""
        return self.steps > 1 or self.sampling_probability < 1.0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Scores joined with their labels, and all that a reader needs to weigh them.

    Attributes:
        scores: Shape `(n,)`, higher = member.
        members: True where the candidate was a member, shape `(n,)`.
        game: The game.
        attack: Name of the attack.
        blind_texts: Text of each candidate for the blind classifier, or empty where there is none.
        seeds: Named seeds.
        cost: `seconds`, `peak_memory_mb`.
        details: Further named scalars.
    """

    scores: FloatArray
    members: BoolArray
    game: Game
    attack: str
    blind_texts: tuple[str, ...] = ()
    seeds: Mapping[str, int] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A one-sided confidence bound from data.

    Attributes:
        name: Which estimator, by registry-like name: `"one_run"`, `"clopper_pearson_all"`, ...
        quantity: `"epsilon"`, `"mu"`, `"success"`, ...; the bound says `quantity >= lower`.
        lower: The bound; `math.inf` where the data admit no finite value under the assumption.
        estimate: Point estimate of the same quantity; may be NaN.
        confidence: One-sided, for instance 0.95.
        delta: The delta at which an epsilon is stated; None for other currencies.
        family: The assumed family.
        trials: The dependence that the bound tolerates: `ONE_RUN` bounds also hold for independent
            trials, `INDEPENDENT` ones need independence.
        assumption: One sentence a reader can check.
        n: Number of scores used.
    """

    name: str
    quantity: str
    lower: float
    estimate: float
    confidence: float
    family: Family
    trials: Trials
    assumption: str
    n: int
    delta: float | None = None


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A two-sided confidence interval of a metric: `lower <= metric <= upper` at `confidence`."""

    name: str
    estimate: float
    lower: float
    upper: float
    confidence: float
    assumption: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judge's answer about one claim.

    Attributes:
        kind: See `VerdictKind`.
        sentence: What a reader can quote, with claim, bound, confidence, delta, adjacency and game.
        bound: The bound that decided; None where none did.
        significance: The error probability that the deciding test was allowed.
        bounds: Every bound that was computed, the deciding ones first.
        intervals: Metrics with their confidence intervals.
        trials_needed: For UNDERPOWERED: how many trials a perfect attack would have needed.
        reasons: For INVALID: what broke. Else further remarks.
    """

    kind: VerdictKind
    sentence: str
    significance: float
    bound: Bound | None = None
    bounds: tuple[Bound, ...] = ()
    intervals: tuple[Interval, ...] = ()
    trials_needed: int | None = None
    reasons: tuple[str, ...] = ()

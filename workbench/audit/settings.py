"""What an audit is asked to do: its settings, and the defaults that a mechanism's currency has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, Claim, Currency, Guarantee, Released, Secret
from workbench.training.neighbours import neighbours_of
from workbench.training.secrets import SECRET_MARKER
from workbench.training.setup import TrainingSetup

READING_DELTA = 1e-5
"""Delta at which a number of nats is read as (epsilon, delta)-DP, where the user says none."""

DEFAULT_EPSILON = {Currency.DP: 1.0, Currency.RECORD_NATS: 0.5, Currency.SUBSET_NATS: 0.33}
"""The claimed number where the user says none. One nat would promise nothing about one bit of ln 2 nats.

PACZero's 0.33 nats allow as many right guesses as epsilon = 2 (its section 2).
"""

SECRETS = {Currency.RECORD_NATS: Secret.RECORD, Currency.SUBSET_NATS: Secret.SUBSET}

EMBEDDED_ATTACKS = ("loss", "lira", "dirac_canary")
"""The last one reads noised sums."""

DEFAULT_CLAIM = Claim(
    guarantee=ApproximateDP(epsilon=1.0, delta=1e-5),
    about=Adjacency.ADD_REMOVE,
    released=Released.EVERY_UPDATE,
    source="the embedded default",
)


def _default_attack_parameters() -> dict[str, dict[str, Any]]:
    """Few shadows, for the three minutes of the embedded audit; the secret is what training memorises.

    Secrets to be extracted stand in as many records as a run without privacy takes to memorise them.
    """
    return {
        "loss": {"ending_marker": SECRET_MARKER},
        "lira": {"ending_marker": SECRET_MARKER, "shadows": 4},
        "canary_extraction": {"insertions": 10},
    }


def currency_of(mechanism: str) -> Currency:
    """What a registered mechanism's budget counts; (epsilon, delta) where it does not say."""
    entry = registry.entries("mechanism").get(mechanism)
    return Currency(getattr(entry.factory if entry else None, "budget_currency", Currency.DP))


def optimizer_of(mechanism: str) -> str:
    """The optimizer that a registered mechanism asks for; AdamW where it does not say."""
    entry = registry.entries("mechanism").get(mechanism)
    return str(getattr(entry.factory if entry else None, "optimizer", "adamw"))


def claims_nothing_spent(mechanism: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a mechanism with these parameters claims 0 nats, whatever it is given: PACZero's `zpl`.

    Args:
        mechanism: Registry name.
        parameters: Of it, as far as they are given.
    """
    return currency_of(mechanism) is Currency.SUBSET_NATS and parameters.get("variant") == "zpl"


def claim_of(mechanism: str, epsilon: float, delta: float, *, source: str = "the user") -> Claim:
    """The claim that a bare number makes: in the mechanism's own currency, about what that is about.

    Args:
        mechanism: Registry name.
        epsilon: The number: epsilon, or nats.
        delta: Of (epsilon, delta)-DP; not read by nats.
        source: Whose claim it is.

    Raises:
        InputError: a number is out of range.
    """
    secret = SECRETS.get(currency_of(mechanism))
    if not (0.0 < epsilon < math.inf or (epsilon == 0.0 and secret is Secret.SUBSET)):
        raise InputError(f"epsilon must be finite and > 0, got {epsilon:g}")
    entry = registry.entries("mechanism").get(mechanism)
    released = Released(getattr(entry.factory if entry else None, "released", Released.EVERY_UPDATE))
    guarantee: Guarantee = ApproximateDP(epsilon=epsilon, delta=delta)
    if secret is not None:
        guarantee = MutualInformation(nats=epsilon, secret=secret)
    about = secret or neighbours_of(mechanism, {})
    return Claim(guarantee=guarantee, about=about, released=released, source=source)


def _default_attacks(mechanism: str) -> tuple[str, ...]:
    """The embedded attacks, without the one on noised sums where a mechanism releases none."""
    entry = registry.entries("mechanism").get(mechanism)
    has_sums = getattr(entry.factory if entry else None, "releases_sums", True)
    return EMBEDDED_ATTACKS if has_sums else EMBEDDED_ATTACKS[:-1]


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """What `workbench audit` trains and attacks; the defaults are the embedded audit.

    Attributes:
        claim: The claim under audit; the mechanism is asked to meet its guarantee (`budget`).
        delta: At which a claim in nats is also read as (epsilon, delta)-DP.
        mechanism, mechanism_parameters: The subject.
        control: Also audit the control under the same claim (does not count for the exit code).
        control_mechanism: Which one: `non_private`, in which the attacks should find something, or for a
            mechanism that shuffles `dp_sgd`, in which they should not.
        attacks: Names, in the order of the report.
        attack_parameters: Parameters by attack name.
        corpus, corpus_parameters, model, model_parameters: What is trained on what.
        candidates: Size of the candidate pool; each is a member by a fair coin.
        steps, sampling_probability, learning_rate, optimizer: See `Plan`.
        adapter, lora_rank, lora_alpha, lora_targets: See `Plan`.
        members: Fields of these settings that attacks on ordinary members have otherwise, beside a game of
            whole trainings that wants a small one; empty for the same training.
        control_learning_rate: The control's own step size; None for the subject's. Noise wants small steps,
            and a control that learns nothing controls nothing.
        counted: Trainings in a world so small that secrets and released bits can be counted, beside the game
            of a candidate subset; 0 for none.
        seed: Of everything.
        confidence: Of the whole audit, shared by its attacks.
        workers: Processes; 0 runs in this process.
        scheduler: Address of a Dask scheduler, which then has the workers; None for none.

    Raises:
        InputError: a value is out of range.
    """

    claim: Claim = DEFAULT_CLAIM
    delta: float = READING_DELTA
    mechanism: str = "dp_sgd"
    mechanism_parameters: Mapping[str, Any] = field(default_factory=dict)
    control: bool = True
    control_mechanism: str = "non_private"
    attacks: tuple[str, ...] = EMBEDDED_ATTACKS
    attack_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=_default_attack_parameters)
    corpus: str = "clinical"
    corpus_parameters: Mapping[str, Any] = field(default_factory=lambda: {"attributes": "short"})
    model: str = "tiny_gpt2"
    model_parameters: Mapping[str, Any] = field(default_factory=lambda: {"max_length": 160})
    candidates: int = 128
    steps: int = 120
    sampling_probability: float = 0.08
    learning_rate: float = 3e-4
    control_learning_rate: float | None = 3e-3
    optimizer: str = "adamw"
    adapter: str = "full"
    lora_rank: int = 4
    lora_alpha: float | None = None
    lora_targets: str = "all-linear"
    members: Mapping[str, Any] = field(default_factory=dict)
    counted: int = 0
    seed: int = 0
    confidence: float = 0.95
    workers: int = 2
    scheduler: str | None = None

    def __post_init__(self) -> None:
        for name, least in {"candidates": 20, "steps": 1, "workers": 0, "seed": 0, "counted": 0}.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0.0 < self.sampling_probability <= 1.0:
            raise InputError(f"sampling_probability must be in (0, 1], got {self.sampling_probability:g}")
        if not 0.0 <= self.delta < 1.0:
            raise InputError(f"delta must be in [0, 1), got {self.delta:g}")
        if not 0.5 < self.confidence < 1.0:
            raise InputError(f"confidence must be in (0.5, 1), got {self.confidence:g}")
        if not self.attacks:
            raise InputError("attacks must name at least one attack")
        if len(set(self.attacks)) < len(self.attacks):
            raise InputError(f"attacks must not repeat, got {', '.join(self.attacks)}")

    @property
    def budget(self) -> Guarantee:
        """What the mechanism is asked to meet: the claim's guarantee.

        A mechanism that budgets in nats is given nats, also under a claim of (epsilon, delta)-DP: then as
        many as the claim's epsilon, which is the reading of its number that such a claim makes.

        Raises:
            UnsupportedError: a mechanism that budgets in nats, and a claim that no number of nats stands for.
        """
        secret, guarantee = SECRETS.get(currency_of(self.mechanism)), self.claim.guarantee
        if secret is None or isinstance(guarantee, MutualInformation):
            return guarantee
        if isinstance(guarantee, ApproximateDP):
            return MutualInformation(nats=guarantee.epsilon, secret=secret)
        raise UnsupportedError(
            f"{self.mechanism} budgets in nats; claim nats, or epsilon and delta, got {guarantee.describe()}"
        )

    def for_members(self) -> AuditSettings:
        """The settings with which attacks on ordinary members train."""
        return replace(self, members={}, **self.members)

    def setup(
        self, mechanism: str, parameters: Mapping[str, Any], attacks: Sequence[str] | None = None
    ) -> TrainingSetup:
        """The training setup of one mechanism, under these attacks (None for all)."""
        chosen = self.attacks if attacks is None else attacks
        return TrainingSetup(
            mechanism=mechanism,
            mechanism_parameters=parameters,
            corpus=self.corpus,
            corpus_parameters=self.corpus_parameters,
            model=self.model,
            model_parameters=self.model_parameters,
            budget=self.budget,
            candidates=self.candidates,
            steps=self.steps,
            sampling_probability=self.sampling_probability,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            adapter=self.adapter,
            lora_rank=self.lora_rank,
            lora_alpha=self.lora_alpha,
            lora_targets=self.lora_targets,
            attack_parameters={name: dict(self.attack_parameters.get(name, {})) for name in chosen},
            seed=self.seed,
        )


def about_claimed(settings: AuditSettings) -> AuditSettings:
    """With the mechanism told whose neighbours the claim is about, where it has a parameter for that."""
    entry = registry.entries("mechanism").get(settings.mechanism)
    has = hasattr(entry.factory if entry else None, "adjacency")
    if not has or "adjacency" in settings.mechanism_parameters:
        return settings
    told = {**settings.mechanism_parameters, "adjacency": str(settings.claim.about)}
    return replace(settings, mechanism_parameters=told)


def as_control(settings: AuditSettings) -> AuditSettings:
    """The settings of the control that shows what the attacks can find: its own step size, and its optimizer.

    The same claim is held against it, about its own neighbours where it has others. An optimizer other than
    the one that the subject's mechanism asks for is the user's wish for both.
    """
    rate = settings.control_learning_rate or settings.learning_rate
    if isinstance(settings.claim.about, Adjacency):
        own = replace(settings.claim, about=neighbours_of(settings.control_mechanism, {}))
        settings = replace(settings, claim=own)
    if settings.control_mechanism != "non_private":  # The same run under another mechanism.
        return replace(settings, learning_rate=rate)
    asked = settings.optimizer == optimizer_of(settings.mechanism)
    optimizer = optimizer_of("non_private") if asked else settings.optimizer
    return replace(settings, learning_rate=rate, optimizer=optimizer)


def default_settings(
    mechanism: str | None, parameters: Mapping[str, Any] = MappingProxyType({})
) -> AuditSettings:
    """The embedded audit of a mechanism: the same for all that budget in epsilon, others for nats.

    Args:
        mechanism: Registry name; None for the embedded one.
        parameters: Of it, as far as they decide what it claims.

    Nats about a record are a matter of thousands of small trainings: a network on the digits, N = 500 of
    1,000 candidates, five epochs of Poisson samples with s = 0.05 (FERRET's batch of 50 is 0.005 of its
    10,000 records, with which a training takes ten times as long). Ordinary members are attacked as papers
    do, in a language model: that of the embedded audit, after five epochs too.

    Nats about a candidate subset: hundreds of trainings of the same network on a universe of about 128
    digits, each step over all of it. Outside the claim one longer training on the same universe.
    """
    if mechanism is None:
        return AuditSettings()
    currency = currency_of(mechanism)
    embedded = AuditSettings(
        mechanism=mechanism, optimizer=optimizer_of(mechanism), attacks=_default_attacks(mechanism)
    )
    if currency is Currency.DP and steers(mechanism):
        return _steered(embedded)
    if currency is Currency.DP:
        return _shuffled(embedded) if shuffles(mechanism) else embedded
    nats = 0.0 if claims_nothing_spent(mechanism, parameters) else DEFAULT_EPSILON[currency]
    claim = claim_of(mechanism, nats, READING_DELTA, source="the embedded default")
    digits = replace(
        embedded, claim=claim, corpus="digits", corpus_parameters={}, model="digits_mlp", model_parameters={}
    )
    if currency is Currency.RECORD_NATS:
        return _record_nats(digits, embedded)
    # A ledger that conditions on the released bits promises nothing about the values behind them.
    return _subset_nats(digits, "bits" if parameters.get("posterior") == "bits" else "values")


def shuffles(mechanism: str) -> bool:
    """Whether a registered mechanism releases permuted weights."""
    entry = registry.entries("mechanism").get(mechanism)
    return hasattr(entry.factory if entry else None, "released_weights")


def steers(mechanism: str) -> bool:
    """Whether a registered mechanism steers radii and noise by what it sees of the records."""
    entry = registry.entries("mechanism").get(mechanism)
    return hasattr(entry.factory if entry else None, "steps_at_first_noise")


def _steered(embedded: AuditSettings) -> AuditSettings:
    """The audit of a mechanism that clips each LoRA pair by itself, and steers radii and noise.

    A canary in every pair at once, the canary in one, ordinary members, and radii and noise alone; these in
    trainings of a small network by the same plan, for hundreds of language models would take hours. The
    control is DP-SGD at the noise that a certified accountant asks for, on the same plan.
    """
    about = neighbours_of(embedded.mechanism, {})
    return replace(
        embedded,
        claim=replace(DEFAULT_CLAIM, about=about),
        adapter="lora",
        lora_rank=8,
        lora_alpha=16.0,
        lora_targets="query-value",
        control_mechanism="dp_sgd",
        control_learning_rate=None,
        attacks=("joint_canary", "dirac_canary", "loss", "trajectory"),
        attack_parameters={
            "loss": {"ending_marker": SECRET_MARKER},
            "trajectory": {"data": "digits", "trials": 200, "steps": 50},
        },
    )


def _shuffled(embedded: AuditSettings) -> AuditSettings:
    """The audit of permuted weights: plain steps of a small network on the digits, in games of their own.

    The control is DP-SGD at the noise that a certified accountant asks for.
    """
    return replace(
        embedded,
        corpus="digits",
        corpus_parameters={},
        model="digits_mlp",
        model_parameters={},
        candidates=1000,
        steps=100,
        sampling_probability=0.05,
        learning_rate=1.0,
        optimizer="sgd",
        control_mechanism="dp_sgd",
        control_learning_rate=None,
        attacks=("weight_tidying",),
        attack_parameters={},
    )


def _record_nats(digits: AuditSettings, embedded: AuditSettings) -> AuditSettings:
    """The audit of nats about one record."""
    names = ("corpus", "corpus_parameters", "model", "model_parameters", "candidates")
    rates = ("learning_rate", "control_learning_rate")
    return replace(
        digits,
        candidates=1000,
        steps=100,
        sampling_probability=0.05,
        learning_rate=3e-3,
        control_learning_rate=1e-2,
        members={name: getattr(embedded, name) for name in (*names, *rates)},
        attacks=("sign_transcript", "loss", "lira"),
        attack_parameters={
            "sign_transcript": {"canary": "opposed,average", "trials": 2000},
            **embedded.attack_parameters,
        },
    )


def _subset_nats(digits: AuditSettings, view: str) -> AuditSettings:
    """The audit of nats about a candidate subset, whose adversary sees values or bits."""
    return replace(
        digits,
        candidates=256,
        steps=100,
        sampling_probability=1.0,
        learning_rate=3e-3,
        control_learning_rate=1e-2,
        members={"steps": 4000},
        attacks=("subset_posterior", "loss"),
        attack_parameters={"subset_posterior": {"view": view, "trials": 400}, "lira": {"shadows": 4}},
        counted=2000,
    )

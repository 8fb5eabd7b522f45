"""The settings of an audit, and the defaults of each mechanism."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.audit.embedded import APART, EMBEDDED
from workbench.core.errors import ArgumentError, UnsupportedError
from workbench.games.base import game_named
from workbench.interfaces import (
    Adjacency,
    Capabilities,
    Claim,
    Guarantee,
    Release,
    Released,
    Secret,
    TimedSpec,
)
from workbench.training.setup import TrainingSetup, mechanism_of

READING_DELTA = 1e-5
"""Delta at which a number of nats is read as (epsilon, delta)-DP, where the user says none."""

GAME_ADJACENCY = Adjacency.ADD_REMOVE
"""What a coin decides in a game, unless the mechanism's claim is about other neighbours."""

DEFAULT_CLAIM = Claim(
    guarantee=ApproximateDP(epsilon=1.0, delta=1e-5),
    about=Adjacency.ADD_REMOVE,
    released=Released.EVERY_UPDATE,
    source="the embedded default",
)

LIMITS = {"candidates": (20, 10**7), "steps": (1, 10**7), "workers": (0, 10**4), "seed": (0, 2**63 - 1)}
"""The least and the most of some settings; beyond, no run would end, or no memory would do."""


@dataclass(frozen=True, kw_only=True)
class AuditSettings(TimedSpec):
    """What `workbench audit` trains and attacks; a training spec, so that an audit trains what a study can.

    Attributes:
        claim: The claim under audit; the mechanism is asked to meet its guarantee (`budget`).
        delta: At which a claim in nats is also read as (epsilon, delta)-DP.
        mechanism, mechanism_parameters: The subject.
        control: Also audit the control under the same claim (does not count for the exit code).
        control_mechanism: Which one: one without privacy, in which the attacks should find something, or a
            private one, in which they should not.
        attacks: Names, in the order of the report.
        attack_parameters: Parameters by attack name.
        candidates: Size of the candidate pool; each is a member by a fair coin.
        members: Fields of these settings that attacks on ordinary members have otherwise, where a game of
            whole trainings wants a small training; empty for the same training.
        control_learning_rate: The control's own step size; None for the subject's. Noise wants small steps,
            and a control that learns nothing controls nothing.
        confidence: Of the whole audit, shared by its attacks.
        sequential: Games of independent trainings end as soon as they refute the claim, by a test that is
            valid whenever it stops.
        workers: Processes; 0 runs in this process.
        scheduler: Address of a Dask scheduler, which then has the workers; None for none.

    Raises `InputError`: a value is out of range.
    """

    claim: Claim = DEFAULT_CLAIM
    delta: float = READING_DELTA
    mechanism: str
    mechanism_parameters: Mapping[str, Any] = field(default_factory=dict)
    control: bool = True
    control_mechanism: str
    attacks: tuple[str, ...]
    attack_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    corpus: str
    corpus_parameters: Mapping[str, Any] = field(default_factory=dict)
    candidates: int
    control_learning_rate: float | None = None
    members: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    confidence: float = 0.95
    sequential: bool = False
    workers: int = 2
    scheduler: str | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            if getattr(self, name) < least:
                raise ArgumentError(name, f"must be at least {least}, got {getattr(self, name)}")
            if getattr(self, name) > most:
                raise ArgumentError(name, f"must be at most {most}, got {getattr(self, name)}")
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ArgumentError(
                "sampling_probability", f"must be in (0, 1], got {self.sampling_probability:g}"
            )
        if not 0.0 <= self.delta < 1.0:
            raise ArgumentError("delta", f"must be in [0, 1), got {self.delta:g}")
        if not 0.5 < self.confidence < 1.0:
            raise ArgumentError("confidence", f"must be in (0.5, 1), got {self.confidence:g}")
        if not self.attacks:
            raise ArgumentError("attacks", "must name at least one attack")
        if len(set(self.attacks)) < len(self.attacks):
            raise ArgumentError("attacks", f"must not repeat, got {', '.join(self.attacks)}")

    @property
    def capabilities(self) -> Capabilities:
        """Of the mechanism with its parameters."""
        return mechanism_of(self.mechanism, self.mechanism_parameters).capabilities

    @property
    def secret(self) -> Secret | None:
        """What the mechanism's nats are about; None for a mechanism that budgets in epsilon."""
        return self.capabilities.currency.secret

    @property
    def budget(self) -> Guarantee:
        """What the mechanism is asked to meet: the claim's guarantee.

        A mechanism that budgets in nats is given nats, also under a claim of (epsilon, delta)-DP: then as
        many as the claim's epsilon, which is the reading of its number that such a claim makes. Raises
        `UnsupportedError`: a mechanism that budgets in nats, and a claim that no number of nats stands for.
        """
        secret, guarantee = self.secret, self.claim.guarantee
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

    def about_claimed(self) -> AuditSettings:
        """These settings, with the claim's adjacency passed to a mechanism that has a parameter for it."""
        if not self.capabilities.adjacencies or "adjacency" in self.mechanism_parameters:
            return self
        parameters = {**self.mechanism_parameters, "adjacency": str(self.claim.about)}
        return replace(self, mechanism_parameters=parameters)

    def as_control(self) -> AuditSettings:
        """The settings of the control: its own step size, and its optimizer.

        The same claim is held against it, about its own neighbours where it has others. A control that is
        private is the same run under another mechanism. Of one without privacy, an optimizer other than the
        one that the subject's mechanism asks for is the user's wish for both.
        """
        mechanism = self.control_mechanism
        control = mechanism_of(mechanism, {}).capabilities
        settings = replace(
            self,
            mechanism=mechanism,
            mechanism_parameters={},
            learning_rate=self.control_learning_rate or self.learning_rate,
        )
        if isinstance(self.claim.about, Adjacency):
            settings = replace(settings, claim=replace(self.claim, about=control.adjacency))
        if control.is_private or self.optimizer != self.capabilities.optimizer:
            return settings
        return replace(settings, optimizer=control.optimizer)

    def setup(self, attacks: Sequence[str] | None = None) -> TrainingSetup:
        """The training setup of the mechanism, under these attacks (None for all)."""
        chosen = self.attacks if attacks is None else attacks
        return TrainingSetup(
            **self.spec(),
            mechanism=self.mechanism,
            mechanism_parameters=self.mechanism_parameters,
            corpus=self.corpus,
            corpus_parameters=self.corpus_parameters,
            budget=self.budget,
            candidates=self.candidates,
            attack_parameters={name: dict(self.attack_parameters.get(name, {})) for name in chosen},
            seed=self.seed,
        )


def embedded_settings(**changes: Any) -> AuditSettings:
    """The embedded audit with these fields changed."""
    content = {name: value for name, value in EMBEDDED.items() if name not in APART}
    return AuditSettings(**{**content, "attacks": tuple(content["attacks"]), **changes})


def claim_of(mechanism: str, epsilon: float, delta: float, *, source: str = "the user") -> Claim:
    """The claim that a bare number (epsilon, or nats) makes: in the mechanism's own currency.

    `delta`: of (epsilon, delta)-DP; not read by nats. `source`: whose claim it is. Raises `InputError`: a
    number is out of range.
    """
    can = mechanism_of(mechanism, {}).capabilities
    secret = can.currency.secret
    if not (0.0 < epsilon < math.inf or (epsilon == 0.0 and secret is Secret.SUBSET)):
        raise ArgumentError("epsilon", f"must be finite and > 0, got {epsilon:g}")
    guarantee: Guarantee = ApproximateDP(epsilon=epsilon, delta=delta)
    if secret is not None:
        guarantee = MutualInformation(nats=epsilon, secret=secret)
    return Claim(guarantee=guarantee, about=secret or can.adjacency, released=can.released, source=source)


def default_settings(
    mechanism: str | None, parameters: Mapping[str, Any] = MappingProxyType({}), **changes: Any
) -> AuditSettings:
    """The embedded audit with the mechanism's own `audit_defaults`, and the fields that a user chose.

    Args:
        mechanism: Registry name; None for the embedded one.
        parameters: Of the mechanism.
        **changes: Fields that a user chose.

    Raises `InputError`: the mechanism takes no such parameters, or a value is out of range.
    """
    embedded = embedded_settings()
    name = mechanism or embedded.mechanism
    made = mechanism_of(name, parameters)
    can, defaults = made.capabilities, made.audit_defaults()
    claim = replace(embedded.claim, about=can.adjacency, released=can.released)
    if defaults.number is not None:
        claim = claim_of(name, defaults.number, READING_DELTA, source=claim.source)
    settings = replace(
        embedded,
        mechanism=name,
        mechanism_parameters=dict(parameters),
        claim=claim,
        optimizer=can.optimizer,
        attacks=tuple(name for name in embedded.attacks if _is_playable(name, can)),
        members={name: getattr(embedded, name) for name in defaults.members_as_embedded},
    )
    settings = replace(settings, **{**defaults.settings, **changes})
    if "attacks" not in {*defaults.settings, *changes} and not _grows(settings, embedded):
        attacks = tuple(EMBEDDED["instead"].get(name, name) for name in settings.attacks)
        settings = replace(settings, attacks=attacks)
    if "attack_parameters" in changes:
        return settings
    members = settings.for_members()
    given = embedded.attack_parameters  # They score the secret in the embedded corpus.
    if members.corpus != embedded.corpus:
        given = {**EMBEDDED["elsewhere"], **(EMBEDDED["together"] if _trains_together(members) else {})}
    return replace(settings, attack_parameters={**given, **defaults.attack_parameters})


def _grows(settings: AuditSettings, embedded: AuditSettings) -> bool:
    """Whether the vocabulary is known to grow, and is trained: of the embedded model."""
    return settings.model == embedded.model and settings.adapter == "full"


def _trains_together(settings: AuditSettings) -> bool:
    """Whether ensembles train the shadows, of subject and control, in the time of a few trainings.

    Those of adapters do not: most of their time is the frozen model's products, a model's share of which does
    not shrink with the number of models.
    """
    from workbench.training.ensemble.together import refusal

    if settings.adapter != "full":
        return False
    trained = [settings, *([settings.as_control()] if settings.control else [])]
    return not any(refusal(mechanism_of(made.mechanism, made.mechanism_parameters), made) for made in trained)


def _is_playable(attack: str, can: Capabilities) -> bool:
    """Whether an embedded attack has anything to read of such a mechanism."""
    game = game_named(attack)
    return can.released.covers(game.released) and (game.trains_once or Release.SUMS in can.releases)

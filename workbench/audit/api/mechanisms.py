"""`workbench.audit`: trains and attacks a registered mechanism, and its control, under a claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench.accounting import MutualInformation
from workbench.audit.api.arguments import (
    ClaimLike,
    PathLike,
    call_of,
    confidence_of,
    kept_in,
    known,
    seed_of,
)
from workbench.audit.api.result import AuditResult
from workbench.audit.claims import claimed
from workbench.core.arguments import names_of, number, one_of, parameters_of, whole_number, yes_or_no
from workbench.core.errors import ArgumentError, naming_extras, unknown_name
from workbench.interfaces import Claim, Sampling, Schedule
from workbench.training.devices import require_device

if TYPE_CHECKING:
    from workbench.audit.settings import AuditSettings
    from workbench.execution.engine import Progress

_NOTHING: Mapping[str, Any] = MappingProxyType({})

_PLAN = {
    **dict.fromkeys(("sampling_probability", "learning_rate", "warmup", "weight_decay", "lora_alpha"), float),
    **dict.fromkeys(("steps", "lora_rank"), int),
    **dict.fromkeys(("optimizer", "adapter", "lora_targets"), str),
    "sampling": Sampling,
    "schedule": Schedule,
}
"""Fields of the training that a caller may choose, with their kinds."""


@naming_extras
def audit(
    mechanism: str | None = None,
    *,
    claim: ClaimLike | None = None,
    epsilon: float | None = None,
    nats: float | None = None,
    delta: float | None = None,
    mechanism_parameters: Mapping[str, Any] = _NOTHING,
    attacks: str | Sequence[str] | None = None,
    attack_parameters: Mapping[str, Mapping[str, Any]] = _NOTHING,
    corpus: str | None = None,
    corpus_parameters: Mapping[str, Any] = _NOTHING,
    model: str | None = None,
    model_parameters: Mapping[str, Any] = _NOTHING,
    candidates: int | None = None,
    steps: int | None = None,
    sampling_probability: float | None = None,
    sampling: Sampling | str | None = None,
    learning_rate: float | None = None,
    schedule: Schedule | str | None = None,
    warmup: float | None = None,
    optimizer: str | None = None,
    weight_decay: float | None = None,
    adapter: str | None = None,
    lora_rank: int | None = None,
    lora_alpha: float | None = None,
    lora_targets: str | None = None,
    control: bool | None = None,
    sequential: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
    workers: int | None = None,
    scheduler: str | None = None,
    device: str | None = None,
    out: PathLike | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> AuditResult:
    """Train, attack and judge a mechanism; without arguments the embedded one under epsilon = 1.

    A mechanism declares its own audit: what is None here is its choice, or that of the embedded audit.

    Args:
        mechanism, mechanism_parameters: A registered name (`workbench list mechanisms`), and its parameters.
        claim: A text such as `"epsilon=1,delta=1e-5,adjacency=add-remove"`, or a `Claim`.
        epsilon, nats: Instead of `claim`: the number that the mechanism claims, in its own currency.
        delta: Of `epsilon`; of nats, that of their reading as (epsilon, delta)-DP.
        attacks, attack_parameters: Registered names, and parameters by attack.
        corpus, corpus_parameters, model, model_parameters: What is trained, on what. Where one of digits is
            named alone, the other is chosen to fit.
        candidates: Number of candidate records, at least 20.
        steps, sampling_probability, sampling, learning_rate, schedule, warmup, optimizer, weight_decay: The
            training.
        adapter, lora_rank, lora_alpha, lora_targets: `"full"` or `"lora"`, and its adapters.
        control: Also attack a control, which does not decide.
        sequential: Games of many trainings end as soon as they refute the claim.
        confidence: Of the verdict, shared by all games.
        seed: Of every random choice.
        workers: Processes; 0 for this one.
        scheduler: Address of a Dask scheduler, which then has the workers.
        device: What models are trained on.
        out: Folder of the store, with which a second call goes on where this one ended; None keeps nothing.
        progress: Called with the stage, the jobs done, and the jobs in all.
        command: How the report says that it was made; this call, unless given.

    Raises `InputError`: an argument is unusable. `UnsupportedError`: no game tests such a claim of it.
    """
    from workbench.audit import run as runner
    from workbench.audit.embedded import EMBEDDED
    from workbench.audit.settings import default_settings

    numbers = {"epsilon": epsilon, "nats": nats, "claim": claim}
    given = [name for name, value in numbers.items() if value is not None]
    if len(given) > 1:
        raise ArgumentError(given[0], f"and `{given[1]}` exclude each other: both say what is claimed")
    name = None if mechanism is None else known("mechanism", "mechanism", mechanism)
    of_mechanism = parameters_of("mechanism_parameters", mechanism_parameters)
    default = default_settings(name, of_mechanism)
    fields: dict[str, Any] = {
        "seed": seed_of(seed),
        "confidence": confidence_of(confidence),
        "sequential": yes_or_no("sequential", sequential),
        "device": default.device if device is None else require_device(device),
    }
    plan = {
        "steps": steps,
        "sampling_probability": sampling_probability,
        "sampling": sampling,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "warmup": warmup,
        "optimizer": optimizer,
        "weight_decay": weight_decay,
        "adapter": adapter,
        "lora_rank": lora_rank,
        "lora_alpha": lora_alpha,
        "lora_targets": lora_targets,
    }
    chosen = {field: _of_plan(field, value) for field, value in plan.items() if value is not None}
    content = {
        "corpus": (corpus, parameters_of("corpus_parameters", corpus_parameters)),
        "model": (model, parameters_of("model_parameters", model_parameters)),
    }
    if model is None and isinstance(corpus, str):
        content["model"] = (EMBEDDED["model_for"].get(corpus), content["model"][1])
    elif corpus is None and isinstance(model, str):
        content["corpus"] = (EMBEDDED["corpus_for"].get(model), content["corpus"][1])
    for kind, (choice, laid) in content.items():
        named = getattr(default, kind) if choice is None else known(kind, kind, choice)
        # The default parameters of a corpus or model belong to it, and stay with it.
        kept = getattr(default, f"{kind}_parameters") if named == getattr(default, kind) else {}
        fields |= {kind: named, f"{kind}_parameters": {**kept, **laid}}
    if learning_rate is not None:
        fields["control_learning_rate"] = chosen["learning_rate"]
    if attacks is not None:
        fields["attacks"] = tuple(known("attacks", "attack", each) for each in names_of("attacks", attacks))
    own = any(choice is not None or laid for choice, laid in content.values())
    if chosen or own or candidates is not None:
        fields["members"] = {}  # What the caller trains is what every attack is for.
    others = {
        "delta": None if delta is None else number("delta", delta, least=0, below=1),
        "candidates": None
        if candidates is None
        else whole_number("candidates", candidates, least=20, most=None),
        "control": None if control is None else yes_or_no("control", control),
        "workers": None if workers is None else whole_number("workers", workers, least=0),
        "scheduler": scheduler,
    }
    fields |= {field: value for field, value in others.items() if value is not None}
    settings = default_settings(name, of_mechanism, **fields, **chosen)
    laid = _attack_parameters(attack_parameters, settings)
    settings = replace(settings, attack_parameters=laid)
    settings = replace(settings, claim=_claim(settings, claim, epsilon, nats, delta))
    call = call_of("audit", mechanism, claim=claim, epsilon=epsilon, nats=nats, attacks=attacks, seed=seed)
    with kept_in(out) as folder:
        record = runner.audit_mechanisms(settings, out=folder, command=command or call, progress=progress)
    return AuditResult(record)


def _of_plan(field: str, value: Any) -> Any:
    """A field of the training in its own kind; the settings check its range."""
    kind = _PLAN[field]
    if kind is float:
        return number(field, value, above=-math.inf, below=math.inf)
    if kind is int:
        return whole_number(field, value, least=1, most=None)
    if kind is str:
        if not isinstance(value, str):
            raise ArgumentError(field, f"must be a text, got {value!r}")
        return str(value)
    return one_of(kind, field, value)


def _attack_parameters(given: Any, settings: AuditSettings) -> dict[str, dict[str, Any]]:
    """Parameters by attack, laid over the defaults."""
    if not isinstance(given, Mapping):
        raise ArgumentError("attack_parameters", f"must be a dict of dicts by attack, got {given!r}")
    for attack in given:
        if attack not in settings.attacks:
            raise unknown_name("attack of this audit", str(attack), settings.attacks)
    return {
        attack: {
            **settings.attack_parameters.get(attack, {}),
            **parameters_of(f"attack_parameters[{attack!r}]", given.get(attack, {})),
        }
        for attack in settings.attacks
    }


def _claim(default: AuditSettings, claim: ClaimLike | None, epsilon: Any, nats: Any, delta: Any) -> Claim:
    """The claim about a mechanism: as given, or as a number in the mechanism's own currency."""
    from workbench.audit.settings import claim_of

    in_nats = default.secret is not None
    if claim is not None:
        held = claimed(claim, released=default.claim.released)
        if delta is not None and not (in_nats and isinstance(held.guarantee, MutualInformation)):
            raise ArgumentError(
                "delta", "goes with `epsilon`, or with a claim in nats; write it into `claim`"
            )
        return held
    if nats is not None:
        if not in_nats:
            raise ArgumentError(
                "nats", f"goes with a mechanism that claims nats, not with {default.mechanism}"
            )
        return claim_of(default.mechanism, number("nats", nats, least=0, below=math.inf), default.delta)
    if epsilon is not None:
        return claim_of(default.mechanism, number("epsilon", epsilon, least=0, below=math.inf), default.delta)
    if delta is not None and not in_nats:
        raise ArgumentError("delta", "goes with `epsilon`, which is missing")
    return default.claim

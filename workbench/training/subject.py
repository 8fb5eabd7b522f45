"""A trained subject: its losses, its releases of canaries for an audit, and its files.

The files are the trained parameters (safetensors) and a JSON of claim and transcript. The model around the
parameters is rebuilt from the plan, so a LoRA subject takes kilobytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from workbench.accounting import guarantee_from_json
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Claim,
    Family,
    FloatArray,
    GradientCanary,
    Model,
    Plan,
    Record,
    Release,
    Released,
    ReleasedSigns,
    Sampling,
    Secret,
    Transcript,
)
from workbench.training.canary import FixedSignals, SignalsWithCanary
from workbench.training.fine_tuning import (
    build_model,
    record_hits,
    record_log_likelihoods,
    record_losses,
    record_z_scores,
    trainable,
)
from workbench.training.samples import poisson_sample

if TYPE_CHECKING:
    from workbench.training.loop import GradientMechanism

WEIGHTS_FILE = "parameters.safetensors"
SUBJECT_FILE = "subject.json"

_RELEASED_NUMBERS = 1 << 18
"""Numbers released at once when trials are batched: a megabyte, which fits a core's cache."""


class TrainedSubject:
    """A model trained by a gradient mechanism; implements `workbench.interfaces.Subject`.

    The mechanism is settled for the plan, the model in evaluation mode.
    """

    def __init__(
        self, *, mechanism: GradientMechanism, model: Model, plan: Plan, claim: Claim, transcript: Transcript
    ) -> None:
        self.mechanism = mechanism
        self.model = model
        self.plan = plan
        self.claim = claim
        self.transcript = transcript

    @property
    def release_family(self) -> Family:
        """The family of one release's noise."""
        return self.mechanism.capabilities.family

    def losses(self, records: Sequence[Record]) -> FloatArray:
        """Per-record losses, shape `(n,)`, nats, in evaluation mode."""
        return record_losses(self.model, records)

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        """Per-record token log-likelihoods, nats."""
        return record_log_likelihoods(self.model, records)

    def token_z_scores(self, records: Sequence[Record]) -> list[FloatArray]:
        """Each token's log-likelihood, standardised under the model's own distribution."""
        return record_z_scores(self.model, records)

    def predicted_right(self, records: Sequence[Record]) -> list[BoolArray]:
        """Whether each predicted token, or the predicted label, is the record's."""
        return record_hits(self.model, records)

    def release_canary(
        self, canary: GradientCanary, included: BoolArray, generator: np.random.Generator
    ) -> FloatArray:
        """Independent releases at the trained state, each through the mechanism's own privatise step.

        Every trial uses the same Poisson sample of the training records, draws its own noise for all d
        coordinates, and differs from a training step only in that no update is applied. Trials with and
        without the canary are privatised separately. Returns the auditor's statistic
        (`GradientMechanism.observed`) of each trial, shape `(n,)`. Raises `UnsupportedError`: the mechanism
        keeps updates secret, releases no privatised sum, or shuffles.
        """
        plan = self.plan
        capabilities = self.mechanism.capabilities
        if capabilities.released is not Released.EVERY_UPDATE:
            raise UnsupportedError(
                f"the mechanism releases its {capabilities.released}; a canary's releases need every update"
            )
        if Release.SUMS not in capabilities.releases:
            raise UnsupportedError(
                f"{type(self.mechanism).__name__} releases no privatised sum of gradients, "
                "in which a canary could be read"
            )
        if plan.sampling is not Sampling.POISSON:
            raise UnsupportedError(
                "a canary's releases are accounted for in Poisson samples, not shuffled ones"
            )
        chosen = poisson_sample(len(plan.records), plan.sampling_probability, generator)
        sample = [plan.records[i] for i in chosen]
        signals = FixedSignals(self.mechanism.sample_signals(self.model, plan, sample, step=plan.steps))
        noise = torch.Generator().manual_seed(int(generator.integers(2**63 - 1)))
        groups = self.mechanism.clipping_groups(signals.layout)
        at_once = max(1, _RELEASED_NUMBERS // signals.dimension)
        values = np.zeros(len(included), dtype=np.float64)
        for coin in (True, False):
            trials = np.flatnonzero(np.asarray(included, dtype=np.bool_) == coin)
            for start in range(0, len(trials), at_once):
                part = trials[start : start + at_once]
                watched = SignalsWithCanary(signals, canary, coin, trials=len(part), groups=groups)
                released = self.mechanism.privatise(watched, noise)
                values[part] = self.mechanism.observed(watched, released).numpy()
        return values

    def save(self, folder: Path) -> None:
        """Write parameters and JSON to an existing folder."""
        parameters = {name: p.detach().cpu().contiguous() for name, p in trainable(self.model.module).items()}
        save_file(parameters, folder / WEIGHTS_FILE)
        signs = _signs_to_json(self.transcript.released_signs)
        transcript = {**plain(replace(self.transcript, released_signs=None)), "released_signs": signs}
        described = {"claim": plain(self.claim), "transcript": transcript}
        (folder / SUBJECT_FILE).write_text(json.dumps(described, allow_nan=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, mechanism: GradientMechanism, plan: Plan) -> TrainedSubject:
        """Read what `save` wrote; the mechanism is settled for the plan. Raises as `loop.load_subject`."""
        for name in (WEIGHTS_FILE, SUBJECT_FILE):
            if not (folder / name).is_file():
                raise InputError(f"folder {folder} holds no subject: {name} is missing")
        model = build_model(plan)
        model.module.eval()
        _load_parameters(model, folder / WEIGHTS_FILE)
        described = json.loads((folder / SUBJECT_FILE).read_text(encoding="utf-8"))
        return cls(
            mechanism=mechanism,
            model=model,
            plan=plan,
            claim=_claim_from_json(described["claim"]),
            transcript=_transcript_from_json(described["transcript"]),
        )


def _load_parameters(model: Model, file: Path) -> None:
    """Copy saved parameters into the model's trainable ones."""
    saved = load_file(file)
    parameters = trainable(model.module)
    shapes = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    if shapes != {name: tuple(p.shape) for name, p in parameters.items()}:
        raise InputError(f"the parameters in {file} are not those of model {model.name!r}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def _claim_from_json(content: dict[str, Any]) -> Claim:
    about = content["about"]
    return Claim(
        guarantee=guarantee_from_json(content["guarantee"]),
        about=Adjacency(about) if about in list(Adjacency) else Secret(about),
        released=Released(content["released"]),
        source=content["source"],
        assumptions=tuple(content["assumptions"]),
    )


_SIGNS = "-0+"
"""One character per sign: -1, 0, 1."""


def _signs_to_json(released: ReleasedSigns | None) -> dict[str, JSON] | None:
    """A compact form, for a long training fires many thousand times."""
    if released is None:
        return None
    return {
        "public_seed": released.public_seed,
        "groups": [list(names) for names in released.groups],
        "steps": released.steps,
        "fired_steps": released.fired[:, 0].tolist(),
        "fired_groups": released.fired[:, 1].tolist(),
        "signs": "".join(_SIGNS[sign + 1] for sign in released.signs.tolist()),
    }


def _signs_from_json(content: dict[str, Any] | None) -> ReleasedSigns | None:
    if content is None:
        return None
    fired = np.array([content["fired_steps"], content["fired_groups"]], dtype=np.int64).reshape(2, -1).T
    return ReleasedSigns(
        public_seed=content["public_seed"],
        groups=tuple(tuple(names) for names in content["groups"]),
        steps=content["steps"],
        fired=fired,
        signs=np.array([_SIGNS.index(letter) - 1 for letter in content["signs"]], dtype=np.int64),
    )


def _transcript_from_json(content: dict[str, Any]) -> Transcript:
    return Transcript(
        losses=np.array([float(x) for x in content["losses"]], dtype=np.float64),
        sample_sizes=np.array(content["sample_sizes"], dtype=np.int64),
        canary_observations=np.array(content["canary_observations"], dtype=np.float64),
        canary_included=np.array(content["canary_included"], dtype=np.bool_),
        metrics={name: float(value) for name, value in content["metrics"].items()},
        released_signs=_signs_from_json(content.get("released_signs")),
        traces={
            name: np.array([float(x) for x in series], dtype=np.float64)
            for name, series in content.get("traces", {}).items()
        },
    )

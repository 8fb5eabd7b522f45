"""From a measured run to the epsilon that it gives, a verdict on the claim, and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.accounting import ApproximateDP
from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.events import Composed, Event, Gaussian, ShuffledBatches, SubsampledGaussian
from workbench.audit.replay.measure import Leak, Measured
from workbench.core.errors import UnsupportedError
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.interfaces import Adjacency, Claim, FloatArray, VerdictKind

BINS = 6
"""Groups of steps with one distance each, for the composition."""

EPOCHS_BY_CHANCE = 1e-4
"""A Poisson sampler that looks like shuffled epochs with less than this probability is taken for these."""


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How a record comes into a step.

    Attributes:
        kind: `"every step"`, `"shuffled epochs"` or `"sampled"` (Poisson, or batches of a fixed size).
        rate: Share of the steps that a record takes part in.
        lower, upper: Interval of the rate.
        batches: Steps of an epoch, for shuffled epochs.
    """

    kind: str
    rate: float
    lower: float
    upper: float
    batches: int = 0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that is wrong, for the developer.

    Attributes:
        part: `"noise"`, `"clip"`, `"normaliser"`, `"sampler"`, `"side channel"` or `"accountant"`.
        says: What was seen, with the step, tensor or record.
    """

    part: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The verdict of a replay.

    Attributes:
        kind: REFUTED, NOT_REFUTED, UNDERPOWERED, or UNDECIDED: something is wrong, of unknown epsilon.
        lower, estimate, upper: Of the epsilon that the run gives by its own measure, at the claim's delta.
        sampler: As measured.
        multiplier: Median noise over the most that one record adds, at the steps that it takes part in.
        faults: What is wrong; empty where nothing is.
        sentence: What a reader can quote.
    """

    kind: VerdictKind
    lower: float
    estimate: float
    upper: float
    sampler: Sampler
    multiplier: float
    faults: tuple[Fault, ...]
    sentence: str


def sampler_of(present: np.ndarray, error: float) -> Sampler:
    """The sampler, from who took part in which step, shape `(places, T)`."""
    places, steps = present.shape
    rate = float(present.mean())
    if present.all():
        return Sampler(kind="every step", rate=1.0, lower=1.0, upper=1.0)
    for batches in range(2, steps // 2 + 1):
        epochs = steps // batches
        blocks = present[:, : epochs * batches].reshape(places, epochs, batches).sum(axis=2)
        chance = (1 - 1 / batches) ** (batches - 1)
        if (blocks == 1).all() and chance**blocks.size < EPOCHS_BY_CHANCE:
            return Sampler(
                kind="shuffled epochs",
                rate=1 / batches,
                lower=1 / batches,
                upper=1 / batches,
                batches=batches,
            )
    hits = int(present.sum())
    return Sampler(
        kind="sampled",
        rate=rate,
        lower=binomial_lower(hits, present.size, error / 2),
        upper=binomial_upper(hits, present.size, error / 2),
    )


def measured_from(form: Mapping[str, Any]) -> Measured:
    """Read back the plain form of what was measured."""
    arrays = {
        "present": np.array(form["present"], dtype=bool),
        **{name: np.array(form[name], dtype=np.float64) for name in ("step_noise", "added", "replaced")},
    }
    return Measured(
        **{
            **form,
            **arrays,
            "names": tuple(form["names"]),
            "naked": tuple(form["naked"]),
            "leaks": tuple(Leak(**leak) for leak in form["leaks"]),
            "noise": {name: float(value) for name, value in form["noise"].items()},
            "loudness": float(form["loudness"]),
        }
    )


def require_judged(claim: Claim) -> ApproximateDP:
    """The guarantee of a claim that replay can judge.

    Raises:
        UnsupportedError: the claim is not of (epsilon, delta)-DP.
    """
    if not isinstance(claim.guarantee, ApproximateDP) or not isinstance(claim.about, Adjacency):
        raise UnsupportedError(
            f"replay judges claims of (epsilon, delta)-DP about a record, got {claim.guarantee.describe()}"
        )
    return claim.guarantee


def judged(claim: Claim, run: Measured, *, confidence: float = 0.95) -> Replayed:
    """Hold a measured run against the claim.

    The epsilon is that of the replaced records at the weights that the run went through: half of what
    replacing a record moves an update is at most what one of the two records adds to it. Half of the error
    is for the noise's scale, half for the sampling rate.

    Raises:
        UnsupportedError: the claim is not of (epsilon, delta)-DP.
    """
    guarantee = require_judged(claim)
    assert isinstance(claim.about, Adjacency)
    error = 1.0 - confidence
    sampler = sampler_of(run.present, error / 2)
    low, high = run.noise_factor(error / 2)
    moved = run.replaced if claim.about is Adjacency.REPLACE_ONE else run.added
    each = [row[here] for row, here in zip(moved, run.present, strict=False)]
    used = np.concatenate(each)
    strongest = max(each, key=lambda row: float(np.median(row)) if row.size else 0.0)
    lower = _epsilon(strongest / high, replace(sampler, rate=sampler.lower), run.steps, claim, which="lower")
    estimate = _epsilon(strongest, sampler, run.steps, claim, which="middle")
    upper = _epsilon(used / low, replace(sampler, rate=sampler.upper), run.steps, claim, which="upper")
    if run.leaks or run.repeated:
        lower = estimate = upper = math.inf
    multiplier = float(1.0 / np.median(used)) if used.size and np.median(used) > 0 else math.nan
    faults = faults_of(run, sampler, lower > guarantee.epsilon, claim, multiplier)
    if not run.present.any() and not run.leaks:
        kind = VerdictKind.UNDERPOWERED
    else:
        kind = VerdictKind.UNDECIDED if faults else VerdictKind.NOT_REFUTED
        kind = VerdictKind.REFUTED if lower > guarantee.epsilon else kind
    found = Replayed(
        kind=kind,
        lower=lower,
        estimate=estimate,
        upper=upper,
        sampler=sampler,
        multiplier=multiplier,
        faults=faults,
        sentence="",
    )
    return replace(found, sentence=_sentence(claim, run, found, confidence))


def _epsilon(distances: FloatArray, sampler: Sampler, steps: int, claim: Claim, *, which: str) -> float:
    """The epsilon of a run whose record moves the updates by these distances (in the noise's units)."""
    delta, adjacency, rate = require_judged(claim).delta, claim.about, sampler.rate
    assert isinstance(adjacency, Adjacency)
    if not distances.size or rate <= 0:
        return 0.0
    if (np.isinf(distances).mean() > 0 and which != "lower") or np.isinf(distances).any():
        return math.inf
    if sampler.kind == "shuffled epochs":
        distance = float(
            {"lower": np.quantile(distances, 0.25), "middle": np.median(distances)}.get(
                which, distances.max()
            )
        )
        event: Event = ShuffledBatches(
            noise_multiplier=1 / distance, batches=sampler.batches, epochs=max(1, steps // sampler.batches)
        )
        known = Adjacency.ZERO_OUT if adjacency is Adjacency.ADD_REMOVE else adjacency
        bounds = epsilon_bounds(event, delta, adjacency=known)
    else:
        parts: list[tuple[Event, int]] = []
        for group in np.array_split(np.sort(distances), min(BINS, distances.size)):
            distance = float({"lower": group.min(), "middle": np.median(group)}.get(which, group.max()))
            share = steps * group.size / distances.size
            count = math.ceil(share) if which == "upper" else math.floor(share)
            if distance <= 0 or count < 1:
                continue
            noise = min(1 / distance, 1e6)
            parts.append(
                (Gaussian(noise_multiplier=noise), count)
                if rate >= 1
                else (SubsampledGaussian(noise_multiplier=noise, sampling_probability=rate), count)
            )
        if not parts:
            return 0.0
        bounds = epsilon_bounds(Composed(events=tuple(parts)), delta, adjacency=adjacency)
    return {"lower": bounds.lower, "upper": bounds.upper}.get(which, (bounds.lower + bounds.upper) / 2)


def faults_of(
    run: Measured, sampler: Sampler, is_refuted: bool, claim: Claim, multiplier: float
) -> tuple[Fault, ...]:
    """What is wrong, the gravest first."""
    found = []
    for leak in run.leaks[:1]:
        found.append(
            Fault(
                part="side channel",
                says=f"replacing record {leak.place} changes {leak.what}, although every update is the same",
            )
        )
    if not any(run.noise.values()):
        found.append(Fault(part="noise", says=f"no noise in any of the {run.steps} steps"))
    elif run.naked:
        shown = ", ".join(run.naked[:3]) + ("…" if len(run.naked) > 3 else "")
        found.append(Fault(part="noise", says=f"no noise on {shown}, which a record moves"))
    if run.repeated:
        found.append(
            Fault(
                part="noise",
                says=f"the noise of {run.repeated} steps is that of another step, or of another seed",
            )
        )
    if run.loudness > 1.5:
        found.append(
            Fault(
                part="clip",
                says=f"a record 16 times as loud moves an update {run.loudness:.3g} times as far: nothing "
                "bounds what one record adds",
            )
        )
    if run.same_norm and any(run.noise.values()):
        found.append(
            Fault(
                part="clip",
                says="all updates have one norm before the noise: the batch is clipped, and not each record",
            )
        )
    shares = run.added[run.present[: len(run.added)]]
    if (
        sampler.kind == "every step"
        and shares.size
        and np.quantile(shares, 0.9) > 4 * np.quantile(shares, 0.1)
    ):
        found.append(
            Fault(
                part="side channel",
                says="a replaced record moves every update, most of them a little: something before the "
                "sampling reads all records (preprocessing, statistics)",
            )
        )
    if run.noise_steps and not run.is_schedule and not run.naked:
        spread = float(run.step_noise.max() / max(run.step_noise.min(), 1e-30))
        found.append(
            Fault(
                part="normaliser",
                says=f"the noise's scale changes from step to step, by a factor of {spread:.3g}: does its "
                "divisor count the records of the batch?",
            )
        )
    if is_refuted and not found:
        found.append(_undersized(run, sampler, claim, multiplier))
    return tuple(found)


def _undersized(run: Measured, sampler: Sampler, claim: Claim, multiplier: float) -> Fault:
    """A run in which every part does its work, and which spends more than is claimed."""
    from workbench.accounting.certified import calibrate_noise_multiplier

    guarantee = claim.guarantee
    assert isinstance(guarantee, ApproximateDP)
    if sampler.kind == "shuffled epochs":
        return Fault(
            part="sampler",
            says=f"every record is in exactly one of each {sampler.batches} steps (shuffled epochs), and the "
            f"noise multiplier is {multiplier:.4g}",
        )
    needed = calibrate_noise_multiplier(
        target_epsilon=guarantee.epsilon,
        target_delta=guarantee.delta,
        sampling_probability=sampler.rate,
        steps=run.steps,
    )
    return Fault(
        part="accountant",
        says=f"noise over what one record adds is {multiplier:.4g}; {run.steps} steps at sampling rate "
        f"{sampler.rate:.3g} need {needed:.4g} for the claim",
    )


def _sentence(claim: Claim, run: Measured, found: Replayed, confidence: float) -> str:
    sampler = found.sampler
    said = (
        f"forced replay of {run.steps} steps gives epsilon >= {found.lower:.4g} (estimate "
        f"{found.estimate:.4g}) with {100 * confidence:g} % confidence, by the noise and the updates that "
        f"the code itself made ({sampler.kind}, rate {sampler.rate:.3g}; released: every update, noise as "
        "recorded)"
    )
    faults = "".join(f" {fault.part}: {fault.says}." for fault in found.faults)
    if found.kind is VerdictKind.REFUTED:
        return f"REFUTED: {said}, against the claim of {claim.describe()}.{faults}"
    if found.kind is VerdictKind.UNDERPOWERED:
        return f"UNDERPOWERED: none of the {len(run.present)} replaced records took part in a step.{faults}"
    if found.kind is VerdictKind.UNDECIDED:
        return f"UNDECIDED: {said}, compatible with the claim of {claim.describe()}; but{faults}"
    return (
        f"NOT REFUTED: {said}, compatible with the claim of {claim.describe()}. This does not show that the "
        f"claim is true."
    )

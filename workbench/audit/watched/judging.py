"""From a watched run to the epsilon that it gives at least, and a verdict on the claim.

What a record adds is not measured. It is taken to be the clip, which some record's gradient reaches;
everything else is read in favour of the training: batches as Poisson samples of the lowest rate that is
compatible with their sizes (or shuffled epochs where they have one size), and noise as large as the setting
or the size of the updates allows.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binom, chi2

from workbench.audit.replay.composing import composed_epsilon, judged_guarantee
from workbench.audit.replay.faults import Fault, undersized
from workbench.audit.replay.sampler import BY_CHANCE, Sampler, sampler_of
from workbench.audit.watched.run_file import FORWARD, WatchedRun, is_read
from workbench.core.errors import UnsupportedError
from workbench.core.templates import percent
from workbench.interfaces import Bound, Claim, Family, FloatArray, Released, Trials, Verdict, VerdictKind

ROUNDING = 1e-3
"""By how much, relatively, a norm may be off by the rounding of a short number format."""

SAME_NORM = 1e-5
"""Three updates whose norms are the largest, and this close, are cut to one norm: noise does not do that."""

BY_SETTING = "the optimizer's own setting"
BY_USER = "what the user states"
BY_SIZE = "the size of the updates, were they nothing but noise"


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise over what one record adds.

    Attributes:
        most: At each step, not more than this, shape `(T,)`; infinite where nothing is known.
        likely: As the settings say, likewise; NaN where they say nothing.
        source: Whence `most` is, at most of the steps.
        doubts: Why the size of the updates says nothing of the noise.
        faults: What is wrong with the noise.
    """

    most: FloatArray
    likely: FloatArray
    source: str
    doubts: tuple[str, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict on a watched run.

    Attributes:
        verdict: REFUTED, NOT_REFUTED, UNDECIDED (something is unknown or wrong), UNDERPOWERED (no step).
        lower: Of the epsilon, at the claim's delta, in the reading that favours the training most.
        estimate: As the settings say; NaN where they say nothing.
        sampler: Read from the sizes of the batches; None where they say nothing.
        noise: See there.
        faults: What is wrong.
        unknown: What the run does not say.
    """

    verdict: Verdict
    lower: float
    estimate: float
    sampler: Sampler | None
    noise: Noise
    faults: tuple[Fault, ...]
    unknown: tuple[str, ...]


def _column(run: WatchedRun, name: str, stated: float | None = None) -> FloatArray:
    """A number of each step, else what the user states, else NaN."""
    default = math.nan if stated is None else stated
    found = [getattr(step, name) for step in run.steps]
    return np.array([default if value is None else value for value in found], dtype=np.float64)


def noise_of(run: WatchedRun, error: float) -> Noise:
    """The noise multiplier of each step, at most.

    The norm of a gradient that is a sum over records plus Gaussian noise of one scale is, whatever the sum,
    at most with probability p below the p-quantile of the noise's own norm, a chi distribution's. So the norm
    bounds the scale from above, with error `error` over all steps whose norm is read. In the others the scale
    is taken to be no larger than the largest of those.
    """
    header, count = run.header, len(run.steps)
    setting = _column(run, "noise_multiplier")
    known = np.where(np.isnan(setting), header.noise_multiplier or math.nan, setting)
    clip, divisor = _column(run, "clip", header.clip), _column(run, "divisor", header.divisor)
    norm, values, std = _column(run, "norm"), _column(run, "values"), _column(run, "std")
    has_norm = np.isfinite(norm)
    is_between = (values > 0) & ~np.array([is_read(step.step) for step in run.steps], dtype=bool)
    quantile = np.sqrt(chi2.ppf(error / max(int(has_norm.sum()), 1), np.maximum(values, 1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        most_noise = (1 + ROUNDING) * norm * divisor / quantile
        room = most_noise / clip
    room = np.where((room > 0) & np.isfinite(room), room, math.inf)
    # A norm of 0 leaves no room for noise.
    room[is_between & ~has_norm] = room[has_norm & (norm > 0)].max(initial=0.0) or math.inf
    doubts, faults = [], []
    ordered = np.sort(norm[has_norm])
    if ordered.size >= 3 and ordered[-1] > 0 and ordered[-1] - ordered[-3] < SAME_NORM * ordered[-1]:
        doubts.append("three updates and more share the largest norm, so they are rescaled after the noise")
    beyond = next((step.beyond for step in run.steps if step.beyond), "")
    if beyond:
        doubts.append(f"more than the gradients moves the weights, where noise may be: {beyond}")
    crowded = 0 if beyond else int((((std != 1) & (std > most_noise)) & np.isfinite(most_noise)).sum())
    if crowded:
        worst = int(np.nanargmax(np.where(np.isfinite(most_noise), std / most_noise, math.nan)))
        doubts.append("the noise that is drawn is more than the updates can hold")
        faults.append(
            Fault(
                part="noise",
                says=f"noise of scale {std[worst]:.4g} is drawn before step {worst + 1}, and the update has "
                f"room for {most_noise[worst]:.4g} at most: the noise is scaled or left out, the update is "
                f"rescaled after it, or its divisor is not {divisor[worst]:.4g}",
            )
        )
    if header.processes > 1:
        doubts.append("several processes share the noise")
    if doubts:
        room = np.full(count, math.inf)
    bare = int((setting == 0).sum())
    if bare:
        says = f"no noise in {bare} of the {count} steps, by the optimizer's own setting"
        faults.append(Fault(part="noise", says=says))
    draws = _column(run, "draws")
    noisy, looked = int((draws > 0).sum()), int(np.isfinite(draws).sum())
    if np.isnan(setting).all() and 0 < noisy < looked:
        them = f"{looked} steps before which draws are read" if looked < count else f"{count} steps"
        faults.append(Fault(part="noise", says=f"noise is drawn before {noisy} of the {them} alone"))
    limit = np.where(np.isnan(known), math.inf, known)
    by_size = count > 0 and float(np.mean(room < limit)) > 0.5
    stated = BY_USER if np.isnan(setting).all() else BY_SETTING
    return Noise(
        most=np.minimum(limit, room),
        likely=known,
        source=BY_SIZE if by_size else stated,
        doubts=tuple(doubts),
        faults=tuple(faults),
    )


def rate_of(run: WatchedRun, error: float) -> tuple[Sampler | None, str]:
    """The sampler, from the sizes of the batches, or None with the reason.

    Where the batches are counted by what the model is called with, an entry may be no record (several views
    of one): the divisor has to be stated, and the rate is not said to be more than that over the number of
    records.
    """
    records = run.header.records
    batches = [step.batch or 0 for step in run.steps]
    if records is None:
        return None, "the number of records that it trains on (records=)"
    if not any(batches):
        return None, "the batches' sizes, which were not seen"
    if max(batches) > records:
        return None, f"the batches: one counts {max(batches)}, which is more than the {records} records"
    sampler = sampler_of(
        np.zeros((0, 0), dtype=bool), error, counted=sum(batches), tries=records * len(batches)
    )
    divisor = _column(run, "divisor", run.header.divisor)
    is_forward = any(step.counted == FORWARD for step in run.steps)
    if is_forward and not (divisor > 1).any():
        known = divisor[~np.isnan(divisor)]
        why = f"and a divisor of {known.max():g} does not tell" if known.size else "(divisor=)"
        return None, f"whether each entry of what the model is called with is another record {why}"
    if is_forward:
        most = float(divisor[divisor > 1].min()) / records
        if sampler.lower > most:
            sampler = replace(sampler, kind="sampled", rate=most, lower=most)
    return sampler, ""


def size_of_epochs(run: WatchedRun) -> tuple[int, bool]:
    """The one size that batches have if they may be those of shuffled epochs, else 0; and whether they must.

    They may where all have one size, but for some that have one smaller size; Poisson samples of so many of
    one size have probability below `BY_CHANCE`.
    """
    records, sizes = (
        run.header.records or 0,
        Counter(step.batch for step in run.steps if step.batch is not None),
    )
    if not sizes or not records:
        return 0, False
    (size, times), count = sizes.most_common(1)[0], sum(sizes.values())
    if size >= records or size < 1:
        return 0, False
    mean = sum(batch * n for batch, n in sizes.items()) / count
    likeliest = float(binom.pmf(math.floor((records + 1) * mean / records), records, mean / records))
    certain = (records + 1) * float(binom.sf(times - 1, count, likeliest)) < BY_CHANCE
    possible = count > 1 and len(sizes) <= 2 and max(sizes) == size
    return (size if possible or certain else 0), certain


def lower_end(run: WatchedRun, claim: Claim, error: float) -> tuple[float, Sampler | None, Noise]:
    """The epsilon of the run at least, with error probability `error`; half each for rate and noise."""
    epsilon, delta = judged_guarantee(claim).epsilon, judged_guarantee(claim).delta
    noise, (sampler, _) = noise_of(run, error / 2), rate_of(run, error / 2)
    if sampler is None or not run.steps:
        return 0.0, sampler, noise
    with np.errstate(divide="ignore"):
        distances = 1.0 / noise.most
    bare = int(np.isinf(distances).sum())
    if bare and -math.expm1(bare * math.log1p(-min(sampler.lower, 1 - 1e-15))) <= delta:
        distances[np.isinf(distances)] = 0.0  # With this delta the record may be in none of them.
    at_lower = replace(sampler, rate=sampler.lower)
    lower = composed_epsilon(distances, at_lower, len(run.steps), claim, which="lower")
    size, _ = size_of_epochs(run)
    if size and epsilon < lower < math.inf:
        lower = min(lower, _in_shuffled_epochs(run, distances, size, claim))
    return lower, sampler, noise


def _in_shuffled_epochs(run: WatchedRun, distances: FloatArray, size: int, claim: Claim) -> float:
    """The lower end if every record is in one batch of each whole epoch; 0 where no bound is known."""
    batches = math.ceil((run.header.records or 0) / size)
    if len(run.steps) < batches or not (distances > 0).all():
        return 0.0
    share = 1 / batches
    shuffled = Sampler(kind="shuffled epochs", batches=batches, rate=share, lower=share, upper=share)
    try:
        least = np.full(1, distances.min())
        return composed_epsilon(least, shuffled, len(run.steps), claim, which="lower")
    except UnsupportedError:
        return 0.0


def judged(claim: Claim, run: WatchedRun, *, confidence: float = 0.95) -> Judged:
    """Hold a watched run against a claim.

    A claim about something else than every update is composed, and not refuted by it.

    Raises:
        UnsupportedError: the claim is not of (epsilon, delta)-DP about a record.
    """
    guarantee, error = judged_guarantee(claim), 1.0 - confidence
    lower, sampler, noise = lower_end(run, claim, error)
    faults, unknown = list(noise.faults), list(_unknown(run, noise, rate_of(run, error / 2)[1]))
    size, is_certain = size_of_epochs(run)
    if is_certain:
        says = f"batches have one size ({size}), which Poisson sampling does not give"
        faults.append(Fault(part="sampler", says=says))
    if sampler is not None and sampler.lower == sampler.rate < 1 and not is_certain:
        mean = np.mean([step.batch or 0 for step in run.steps])
        says = (
            f"batches count {mean:.4g} on the average, more than the divisor: entries are no records, or the "
        )
        faults.append(Fault(part="sampler", says=f"{says}rate is higher than {sampler.rate:.3g}"))
    if claim.released is not Released.EVERY_UPDATE:
        unknown.append(f"what {claim.released} show: every update is watched, and the claim covers less")
    likely = float(np.median(noise.likely)) if run.steps else math.nan
    estimate = math.nan
    if sampler is not None and (noise.likely > 0).all():
        steps = len(run.steps)
        estimate = max(lower, composed_epsilon(1 / noise.likely, sampler, steps, claim, which="middle"))
    exceeds = lower > guarantee.epsilon
    is_named = any(fault.part == "noise" for fault in faults) or is_certain
    if exceeds and not is_named and sampler is not None and math.isfinite(lower):
        multiplier = likely if likely > 0 else float(np.median(noise.most))
        faults.append(undersized(len(run.steps), sampler, claim, multiplier))
    if not run.steps:
        kind = VerdictKind.UNDERPOWERED
    elif exceeds and claim.released is Released.EVERY_UPDATE:
        kind = VerdictKind.REFUTED
    else:
        kind = VerdictKind.UNDECIDED if faults or unknown or exceeds else VerdictKind.NOT_REFUTED
    bound = Bound(
        name="watched_run",
        quantity="epsilon",
        lower=lower,
        estimate=estimate,
        confidence=confidence,
        family=Family.SUBSAMPLED_GAUSSIAN,
        trials=Trials.ONE_RUN,
        assumption="every update is released, noise has one scale and is drawn afresh in each step, and some "
        "record's gradient reaches the clip",
        n=len(run.steps),
        delta=guarantee.delta,
    )
    found = Judged(
        verdict=Verdict(kind=kind, sentence="", significance=error, bound=bound, bounds=(bound,)),
        lower=lower,
        estimate=estimate,
        sampler=sampler,
        noise=noise,
        faults=tuple(faults),
        unknown=tuple(unknown),
    )
    return replace(found, verdict=replace(found.verdict, sentence=_sentence(claim, run, found, confidence)))


def _unknown(run: WatchedRun, noise: Noise, sampling: str) -> tuple[str, ...]:
    """What the run does not say, in words that follow "it does not say"."""
    reasons = [sampling] if sampling else []
    has_draws = any(step.draws for step in run.steps)
    if np.isfinite(noise.most).any() and (has_draws or noise.source != BY_SIZE):
        return tuple(reasons)
    if not has_draws:
        reasons.append("whether there is noise: no draw of it was recognised (run workbench replay)")
    elif noise.doubts:
        reasons.append(f"how large the noise is: {noise.doubts[0]}")
    else:
        reasons.append("what one record adds (clip=, divisor=), so the noise is known without its measure")
    return tuple(reasons)


def _sentence(claim: Claim, run: WatchedRun, found: Judged, confidence: float) -> str:
    kind, sampler, noise = found.verdict.kind, found.sampler, found.noise
    if kind is VerdictKind.UNDERPOWERED:
        return "UNDERPOWERED: the watched run has no optimizer step."
    least = "no finite epsilon" if math.isinf(found.lower) else f"epsilon >= {found.lower:.4g}"
    if math.isfinite(found.estimate):
        least += f" (estimate {found.estimate:.4g})"
    sampling = "shuffled epochs or Poisson samples" if size_of_epochs(run)[0] else "Poisson samples"
    rate = f"a rate of at least {sampler.lower:.3g}" if sampler is not None else "an unknown rate"
    is_forward = sampler is not None and any(step.counted == FORWARD for step in run.steps)
    entries = "an entry of what the model is called with is a record, " if is_forward else ""
    said = (
        f"the watched run of {len(run.steps)} steps gives {least} with {percent(confidence, 4)} confidence, "
        f"even if every record is clipped and batches are {sampling} of {rate} (noise by {noise.source}; "
        f"assumed: every update is released, {entries}noise has one scale and is drawn afresh in each step, "
        "some record's gradient reaches the clip)"
    )
    more = "".join(f" {fault.part}: {fault.says}." for fault in found.faults)
    more += "".join(f" It does not say {reason}." for reason in found.unknown)
    if not run.end:
        more += " The file has no end: the run was cut off, or goes on."
    if kind is VerdictKind.REFUTED:
        return f"REFUTED: {said}, against the claim of {claim.describe()}.{more}"
    if kind is VerdictKind.UNDECIDED:
        return f"UNDECIDED: {said}, beside the claim of {claim.describe()}; but:{more}"
    return (
        f"NOT REFUTED: {said}, compatible with the claim of {claim.describe()}.{more} What a record adds was "
        "not measured, and this does not show that the claim is true."
    )

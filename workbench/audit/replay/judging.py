"""From a measured run to the epsilon that it gives, a verdict on the claim, and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binom

from workbench.accounting.events import Event
from workbench.accounting.samples import BatchMean
from workbench.audit.replay.composing import composed_epsilon, judged_guarantee
from workbench.audit.replay.faults import (
    Fault,
    cautions_of,
    changes_midway,
    faults_of,
    is_steered_by_records,
    kept_sums,
    moves_all_a_little,
    steps_together,
)
from workbench.audit.replay.measured import WEAK, Measured
from workbench.audit.replay.sampler import Sampler, sampler_of
from workbench.audit.replay.stated import Stated, otherwise
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.templates import percent
from workbench.interfaces import (
    Adjacency,
    Bound,
    Claim,
    Family,
    FloatArray,
    Released,
    Trials,
    Verdict,
    VerdictKind,
)

SPENT = 0.02
"""Share of the error that intervals spend: replays are run again and again, on every change of a trainer."""

UNSEEN_STRETCH = 1.25
"""Noise that is projected is taken to lose a fifth of its directions at least; where that might go unseen,
the lower end pays for what might."""

FEWER = 0.9
"""Share of its steps in which a record that is replaced by many crafts is seen to move the update."""

ALLOTTED = 5e-3
"""With less probability than this records are taken to have a number of steps each, and not a rate."""

MOVED_BY_CHANCE = 1e-6
"""With less probability a record of the counted rate is in so many batches."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The verdict of a replay.

    Attributes:
        verdict: REFUTED, NOT_REFUTED, UNDERPOWERED, or UNDECIDED: something is wrong, of unknown epsilon.
        lower, estimate, upper: Of the epsilon that the run gives by its own measure, at the claim's delta.
        sampler: As measured.
        multiplier: Median noise over the most that one record adds, at the steps that it takes part in.
        faults: What is wrong; empty where nothing is.
        caution: What the claim rests on besides, in words; empty where nothing was seen.
    """

    verdict: Verdict
    lower: float
    estimate: float
    upper: float
    sampler: Sampler
    multiplier: float
    faults: tuple[Fault, ...]
    caution: str = ""


def judged(
    claim: Claim, run: Measured, *, confidence: float = 0.95, stated: Stated | None = None
) -> Replayed:
    """Hold a measured run against the claim.

    The epsilon is that of a mechanism whose noise is as measured and in which one record adds, at each step
    that it takes part in, as much as some craft is shown to add: that of training that clips to C and counts
    on C is not less. Of `SPENT` of the error, half is for the noise's scale, half for the sampling rate.

    A claim about something else than every update is measured, and not refuted by it. What is `stated` of the
    training decides no verdict: it tells which part spends more than it should.

    Raises:
        UnsupportedError: the claim is not of (epsilon, delta)-DP.
    """
    guarantee, error = judged_guarantee(claim), 1.0 - confidence
    sampler = sampler_of(
        run.present, SPENT * error / 2, run.compared, counted=run.counted, tries=run.tries, sizes=run.sizes
    )
    sure = _surely(run, sampler, SPENT * error / 2)
    each = _added(run, claim)
    unfit = _unfit(run, sampler)
    lower, estimate, upper = _composed(run, claim, (sampler, sure), each, SPENT * error / 2)
    is_shown = _lacks_noise(run) and not run.depends
    if (run.leaks and not run.elsewhere and not run.follows) or is_shown or run.repeats_noise:
        lower = estimate = upper = math.inf
    elif unfit and (math.isfinite(lower) or run.depends):
        lower, estimate, upper = 0.0, math.nan, math.inf
    elif _is_mean(run, sampler):
        with suppress(InputError, UnsupportedError):
            lower, estimate, upper = _of_means(run, claim, (sampler, sure), SPENT * error / 2)
    known = _strongest(each)
    known = known[known > 0]
    multiplier = float(1.0 / np.median(known)) if known.size else math.nan
    exceeds = lower > guarantee.epsilon
    differs = otherwise(run, sampler, multiplier, stated) if stated is not None else ()
    faults = faults_of(run, sampler, claim, multiplier, differs, is_refuted=exceeds)
    faults = (*faults, *_in_its_place(run, claim, sampler, SPENT * error / 2))
    if not exceeds:
        faults = (*faults, *_of_no_proof(run, claim, sampler, each, SPENT * error / 2))
    outside = (*unfit, *_outside(run, claim))
    if exceeds and claim.released is Released.EVERY_UPDATE:
        kind = VerdictKind.REFUTED
    elif not any(row.size for row in each) and not run.leaks:
        kind = VerdictKind.UNDERPOWERED
    else:
        kind = VerdictKind.UNDECIDED if faults or outside or exceeds else VerdictKind.NOT_REFUTED
    bound = Bound(
        name="forced_replay",
        quantity="epsilon",
        lower=lower,
        estimate=estimate,
        confidence=confidence,
        family=Family.GAUSSIAN,
        trials=Trials.ONE_RUN,
        assumption="every update is released, and each one's noise is as recorded, drawn afresh",
        n=run.steps,
        delta=guarantee.delta,
    )
    found = Replayed(
        verdict=Verdict(kind=kind, sentence="", significance=error, bound=bound, bounds=(bound,)),
        lower=lower,
        estimate=estimate,
        upper=max(lower, estimate, upper) if math.isfinite(estimate) else max(lower, upper),
        sampler=sampler,
        multiplier=multiplier,
        faults=faults,
        caution="; ".join(
            [
                *(f"{fault.part}: {fault.says}" for fault in differs if fault not in faults),
                *cautions_of(run, claim),
            ]
        ),
    )
    sentence = _sentence(claim, run, found, confidence, outside)
    return replace(found, verdict=replace(found.verdict, sentence=sentence))


def _added(run: Measured, claim: Claim) -> list[FloatArray]:
    """What one record adds to the steps that it is in, by the places that were replaced by many crafts.

    With a claim that is not about replacing a record, also what it adds to each step by itself, if known.
    """
    moved = run.replaced if claim.about is Adjacency.REPLACE_ONE else run.added
    each = [row[here] for row, here in zip(moved, run.present, strict=False)]
    return each if claim.about is Adjacency.REPLACE_ONE or not run.alone.any() else [*each, run.alone]


def _strongest(each: Sequence[FloatArray]) -> FloatArray:
    """The distances of the place that moves updates most; before all one that moves them without bound."""
    return max(each, key=lambda row: (bool(np.isinf(row).any()), float(np.median(row)) if row.size else 0.0))


def _in_its_place(run: Measured, claim: Claim, sampler: Sampler, error: float) -> list[Fault]:
    """Batches of one size, where a record that is removed leaves its place to another.

    Next to records that are all one craft, another one moves an update by the distance of the two.
    """
    is_asked = sampler.kind == "fixed batches" and claim.about is Adjacency.ADD_REMOVE
    if not is_asked or _may_be_epochs(run, sampler):
        return []
    each = [2 * row[here] for row, here in zip(run.replaced, run.present, strict=False)]
    farthest, (_, high) = _strongest(each), run.noise_factor(error)
    rate = replace(sampler, rate=sampler.lower)
    epsilon = composed_epsilon(farthest / high, rate, run.steps, claim, which="lower")
    if not judged_guarantee(claim).epsilon < epsilon < math.inf:
        return []
    return [
        Fault(
            part="sampler",
            says="batches have one size, so that another record takes the place of a removed one, and an "
            f"update moves by both: epsilon >= {epsilon:.4g} about removing a record, if fewer records make "
            "batches of the same size; what was measured is a claim about records that leave an empty place "
            "(adjacency=zero-out)",
        )
    ]


def _of_no_proof(
    run: Measured, claim: Claim, sampler: Sampler, each: Sequence[FloatArray], error: float
) -> list[Fault]:
    """Shuffled epochs that certified bounds do not show to keep the claim, though they do not exceed it.

    Even for the least that a record adds to one of its steps, under the most noise that it may be.
    """
    moves = _strongest(each)
    moves = moves[moves > 0]
    if sampler.kind != "shuffled epochs" or not moves.size:
        return []
    least = np.full(1, moves.min() / run.noise_factor(error)[1])
    ends = [composed_epsilon(least, sampler, run.steps, claim, which=which) for which in ("lower", "upper")]
    if not ends[0] <= judged_guarantee(claim).epsilon < ends[1]:
        return []
    return [
        Fault(
            part="sampler",
            says=f"every record is in exactly one of each {sampler.batches} steps (shuffled epochs), which "
            f"have an epsilon of {ends[0]:.4g} at least and {ends[1]:.4g} at most by certified bounds, under "
            "this noise: an accountant of Poisson samples does not speak about them",
        )
    ]


def _surely(run: Measured, sampler: Sampler, error: float) -> float:
    """The rate's lower end, without the steps that a record moves weakly, as where sums keep some of it."""
    if run.tries or not run.weak.any():
        return sampler.lower
    return min(sampler.lower, sampler_of(run.present & ~run.weak, error, run.compared).lower)


def _composed(
    run: Measured,
    claim: Claim,
    sampled: tuple[Sampler, float],
    each: Sequence[FloatArray],
    error: float,
) -> tuple[float, float, float]:
    """Lower end, estimate and upper end of epsilon.

    Args:
        sampled: The sampler, and the lower end of the rate of steps that a record surely takes part in.
        each: Of `_added`.
        error: What the noise's scale may take.
    """
    sampler, sure = sampled
    strongest = _strongest(each)
    # Noise on most of the directions would pass for noise on all, and be larger on those.
    hidden = math.sqrt(run.unseen) if run.unseen > UNSEEN_STRETCH else 1.0
    scales = len({scale for scale in run.noise.values() if scale > 0}) * (run.steps if run.noise_steps else 1)
    low, high = run.noise_factor(error / max(scales, 1))
    used = np.concatenate(each)
    if run.noise_steps and np.isfinite(used).all() and strongest is not run.alone:
        # The noise of all steps is known: one distance under each, not that of the steps that a record is in.
        raw = [
            row * run.step_noise[here] for row, here in zip(each[: len(run.added)], run.present, strict=False)
        ]
        finite = np.concatenate(raw) if used.size else np.zeros(1)
        under = np.where(run.step_noise > 0, 1.0 / np.maximum(run.step_noise, 1e-30), 0.0)
        least, middle, most = (reduce(finite) * under for reduce in (np.min, np.median, np.max))
    else:
        middle = strongest
        least = (
            strongest if sure == sampler.lower else strongest[strongest >= WEAK * strongest.max(initial=0)]
        )
        most = np.full(run.steps, strongest.max()) if strongest is run.alone else used
        if most is used and strongest.size and np.isfinite(used).all():
            # At least the strongest record's distances, and as many far ones as all records have.
            farther = np.quantile(used, np.linspace(0, 1, strongest.size))
            most = np.maximum(np.sort(strongest), farther)
    ends = {
        which: composed_epsilon(distances, replace(sampler, rate=rate), run.steps, claim, which=which)
        for which, distances, rate in (
            ("lower", least / high / hidden, sure),
            ("middle", middle, sampler.rate),
            ("upper", most / low, sampler.upper),
        )
    }
    lower = ends["lower"]
    if judged_guarantee(claim).epsilon < lower < math.inf and _may_be_epochs(run, sampler):
        # Disjoint batches are no random samples: with little noise, their epsilon is smaller.
        epochs = replace(sampler, kind="shuffled epochs", batches=max(2, round(1 / sampler.rate)))
        lower = min(lower, composed_epsilon(least / high / hidden, epochs, run.steps, claim, which="lower"))
    return lower, ends["middle"], ends["upper"]


def _is_mean(run: Measured, sampler: Sampler) -> bool:
    """Whether updates are means over Poisson samples, which no other seed has."""
    is_sampled = sampler.kind in {"Poisson", "sampled"} and not _may_be_epochs(run, sampler)
    return run.divides and is_sampled and not run.is_schedule


def _of_means(
    run: Measured, claim: Claim, sampled: tuple[Sampler, float], error: float
) -> tuple[float, float, float]:
    """Lower end, estimate and upper end of epsilon where updates are means over the batch's own records.

    Next to records that are all one craft, another one moves such a mean by the distance of the two, which is
    twice the unit of `BatchMean`; their number does not move it.
    """
    sampler, sure = sampled
    apart = _strongest([row[here] for row, here in zip(run.replaced, run.present, strict=False)])
    hidden = math.sqrt(run.unseen) if run.unseen > UNSEEN_STRETCH else 1.0
    # One number over the sizes is the noise of all steps.
    low, high = replace(run, noise_values=run.noise_values * run.steps).noise_factor(error)

    def mean(rate: float) -> Callable[[float], Event]:
        return lambda noise: BatchMean(
            noise_multiplier=noise,
            sampling_probability=rate,
            dataset_size=run.records,
            dimension=max(2, run.noise_values),
        )

    lower, middle, upper = (
        composed_epsilon(by, sampler, run.steps, claim, which=which, step=mean(rate))
        for which, by, rate in (
            ("lower", apart / high / hidden, sure),
            ("middle", apart, sampler.rate),
            ("upper", apart / low, sampler.upper),
        )
    )
    return lower, middle, upper


def _may_be_epochs(run: Measured, sampler: Sampler) -> bool:
    """Whether every record may be in one batch of each epoch: all are in equally many, but for the last."""
    times = (run.present & run.compared).sum(axis=1)
    is_known = sampler.kind in {"fixed batches", "sampled", "Poisson"} and 0 < sampler.rate <= 0.5
    return is_known and int(times.max() - times.min()) <= 1


def _lacks_noise(run: Measured) -> bool:
    """Whether a record moves an update that has no noise, in some step or tensor, or a copied one."""
    is_bare = (run.step_noise == 0) & run.present & run.compared
    return (run.copies > 0 and not run.is_spread) or bool(run.naked) or bool(is_bare.any())


def _unfit(run: Measured, sampler: Sampler) -> tuple[str, ...]:
    """Why the composed bound does not speak about this run."""
    reasons = []
    if run.in_some_steps:
        reasons.append(
            "some coordinates get noise in some steps and none in others (layers that take turns, masks), "
            "which has no bound here"
        )
    elif not run.is_gaussian:
        reasons.append(f"the noise is not Gaussian of one scale (excess kurtosis {run.excess:.3g})")
    if run.stretched > 1.0 and not (run.is_correlated or run.in_some_steps):
        reasons.append(
            f"the noise of a step is stronger along some directions than others, as in {run.stretched:.3g} "
            "times fewer of them"
        )
    if run.fresh < 1:
        reasons.append(
            f"fewer numbers are drawn as noise than updates have noisy values ({run.fresh:.3g} for each): "
            "some are used again, or spread"
        )
    if run.is_correlated:
        most = f"by {run.correlation:.3g} at most" if run.correlation > 0 else "a little, over many steps"
        reasons.append(f"the noise of steps is correlated ({most})")
    if run.repeats and not run.copies:
        reasons.append(
            f"{run.repeats} noises are that of another step or tensor, and so is what a record moves there: "
            "noisy sums are used again, which would be composed as if they were new"
        )
    if _lacks_noise(run) and run.depends:
        reasons.append(
            "updates without noise, or with copied noise, also depend on other random numbers that the code "
            "draws, which may be noise"
        )
    if _are_allotted(run, sampler):
        reasons.append(
            "all replaced records take part in equally many steps, which are no epochs: each may draw its "
            "steps by itself (random allocation), which has no bound here"
        )
    if run.rate_varies:
        reasons.append(
            "batches vary more than Poisson samples of one rate do: the rate changes between steps, records "
            "are drawn together, or an update sums several samples"
        )
    if run.follows_contents:
        reasons.append(
            "who is in a batch is not seen where a record moves the updates that it is not in"
            if is_steered_by_records(run)
            else "batches that follow what the records hold have no bound here"
        )
    if sampler.kind == "one of each epoch's steps":
        reasons.append(
            "records that are each in one step of an epoch, in batches that vary, have no bound here"
        )
    if run.is_bent:
        reasons.append(
            "half of the noise, turned round, does not move the updates half as far back "
            f"({100 * run.bent:.2g} % off): something clips or rounds them, or they follow gradients that "
            "the code read before a step"
        )
    if run.reads_early:
        reasons.append(
            "more than the updates follows gradients that the code reads before the step, where replay has "
            "not put the run's own yet, so that what else a record changes is not known"
        )
    if run.follows and run.leaks:
        reasons.append("another optimizer's steps may read records and have noise of their own")
    elif run.elsewhere and (run.leaks or moves_all_a_little(run, sampler)):
        reasons.append("what else reads the records may be paid for by the other noise that is drawn")
    seen, cells = int((run.present & run.compared).sum()), int(run.compared.sum())
    if run.tries and binom.sf(seen - 1, cells, sampler.upper) < MOVED_BY_CHANCE:
        reasons.append("a replaced record moves more updates than batches have it: others are moved with it")
    sure = run.present[: len(run.added)] & run.compared[: len(run.added)]
    tried = int(run.compared[: len(run.added)].sum())
    if run.tries and binom.cdf(sure.sum(), tried, FEWER * sampler.lower) < MOVED_BY_CHANCE:
        reasons.append("batches of copies have more records than those of the data")
    if steps_together(run, sampler):
        reasons.append("records that take part in steps that go together have no bound here")
    if kept_sums(run) == "fading":
        reasons.append("sums that are carried on before the noise have no bound here")
    if sampler.kind in {"sampled", "sampled unevenly"} and changes_midway(run):
        reasons.append("records take part more often in one half of the steps: the rate changes")
    return tuple(reasons)


def _are_allotted(run: Measured, sampler: Sampler) -> bool:
    """Whether records take part in one number of steps, by more than chance.

    Replaced records do; or the batches of each training that could be counted have so many records together
    that it might be.
    """
    if sampler.batches or sampler.kind == "fixed batches" or not 0 < sampler.rate < 1:
        return False
    times = run.present[run.compared.all(axis=1)].sum(axis=1)
    usual = binom.pmf(np.arange(run.steps + 1), run.steps, sampler.rate)
    if (
        times.size > 1
        and (times == times[0]).all()
        and times[0] < run.steps
        and float((usual**times.size).sum()) < ALLOTTED
    ):
        return True
    if not run.sizes or len(run.sizes) % run.steps:
        return False
    records = run.tries // len(run.sizes)
    totals = np.array(run.sizes).reshape(-1, run.steps).sum(axis=1)
    likeliest = float(binom.pmf(int(totals[0]), records * run.steps, totals[0] / (records * run.steps)))
    return bool(
        (totals == totals[0]).all() and totals[0] % records == 0 and likeliest**totals.size < ALLOTTED
    )


def _outside(run: Measured, claim: Claim) -> tuple[str, ...]:
    """Why what was measured does not speak about this claim, or about other noise than this."""
    reasons = []
    if run.fixed and run.ignores_seed:
        reasons.append("the training is the same under another seed, so that it says nothing of fresh noise")
    if claim.released is not Released.EVERY_UPDATE:
        reasons.append(f"the claim is about {claim.released}, and replay measures every update")
    return tuple(reasons)


def _epsilon_words(found: Replayed) -> str:
    if math.isinf(found.lower):
        return "no finite epsilon"
    if math.isnan(found.estimate):
        return f"epsilon >= {found.lower:.4g} (no estimate)"
    return f"epsilon >= {found.lower:.4g} (estimate {found.estimate:.4g})"


def _sentence(
    claim: Claim, run: Measured, found: Replayed, confidence: float, outside: tuple[str, ...]
) -> str:
    sampler, kind = found.sampler, found.verdict.kind
    said = (
        f"forced replay of {run.steps} steps gives {_epsilon_words(found)} with {percent(confidence, 4)} "
        f"confidence, by the noise and the updates that the code itself made ({sampler.kind}, rate "
        f"{sampler.rate:.3g}; released: every update, noise as recorded)"
    )
    faults = "".join(f" {fault.part}: {fault.says}." for fault in found.faults)
    faults += "".join(f" Outside the composed bound: {reason}." for reason in outside)
    faults += f" Caution: {found.caution}." if found.caution else ""
    faults = faults.replace("?.", "?")
    if kind is VerdictKind.REFUTED:
        return f"REFUTED: {said}, against the claim of {claim.describe()}.{faults}"
    if kind is VerdictKind.UNDERPOWERED:
        what = "takes part in a step" if run.compared.any() else "leaves the random numbers as they were"
        return f"UNDERPOWERED: none of the {len(run.present)} replaced records {what}.{faults}"
    if kind is VerdictKind.UNDECIDED:
        return f"UNDECIDED: {said}, beside the claim of {claim.describe()}; but:{faults}"
    return (
        f"NOT REFUTED: {said}, compatible with the claim of {claim.describe()}. This does not show that the "
        f"claim is true.{faults}"
    )

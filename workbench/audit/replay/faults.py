"""What is wrong with a training, by what was measured of it, in words that a developer can act on."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import chi2_contingency, norm

from workbench.accounting import ApproximateDP
from workbench.audit.replay.measured import Leak, Measured
from workbench.audit.replay.sampler import BY_CHANCE, SAMPLED, Sampler, in_one_part, neighbouring
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency, Claim

FARTHER = 3.0
"""Times as far as any finite craft that one that is not finite has to move an update."""

LEAST_SHARE = 0.3
"""Of the steps: a record that moves so many may do so outside its batches."""

STEERED = 1e-3
"""A replaced record that changes a step's noise by more than this share changes its scale."""

UNBOUNDED = 10.0
"""A record 100 times as loud that adds more times as much is not held by any clipping."""

UNHELD = 30.0
"""A record that adds so many times the noise, and so many times what it usually adds, is held to no norm."""

HELD = 0.05
"""A record that adds more than the loudest does by this share is not held by its norm."""

SQUARED = 0.05
"""A record 100 times as loud that adds a hundredth, but for this share, is divided by its norm's square."""

ENOUGH = 0.03
"""Noise that is too small by less than this share was calibrated for what it is compared with."""

NOT_ADDED, ROUNDED = 0.01, 0.1
"""Share of what records add together that is not what each adds: more than rounding to 32 bits makes; and
more than sums of 16-bit numbers, or weights that are read, make."""

FADING = 0.02
"""A record's moves shrink from step to step by one factor, but for this share."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that is wrong, for the developer.

    Attributes:
        part: `"noise"`, `"clip"`, `"normaliser"`, `"sampler"`, `"side channel"` or `"accountant"`.
        says: What was seen, with the step, tensor or record.
    """

    part: str
    says: str


def faults_of(
    run: Measured,
    sampler: Sampler,
    claim: Claim,
    multiplier: float,
    differs: Sequence[Fault] = (),
    *,
    is_refuted: bool,
) -> tuple[Fault, ...]:
    """What is wrong, the gravest first.

    Args:
        differs: Where the run is not what is stated of it.
    """
    found = [
        Fault(
            part="side channel",
            says=f"replacing {_replaced(leak)} changes {leak.what}, although every update is the same"
            + (
                " (there is other noise; if this was released with it, it is paid for elsewhere)"
                * bool(run.elsewhere)
                + " (that optimizer may have noise of its own, which pays for it)" * run.follows
            ),
        )
        for leak in run.leaks[:1]
    ]
    signs = [*_signs(run, sampler), *_signs_for(claim, run, sampler, multiplier)]
    found += [Fault(part=part, says=says) for part, says, is_so in signs if is_so]
    if is_refuted:
        found += [fault for fault in differs if fault.part not in {own.part for own in found}]
    if is_refuted and not found:
        found.append(_not_held(run) or undersized(run.steps, sampler, claim, multiplier, run.groups))
    return tuple(found)


def _replaced(leak: Leak) -> str:
    """Which records were replaced."""
    if leak.records == 1:
        return f"record {leak.place}"
    return f"{leak.records} records, one after the other,"


def _signs(run: Measured, sampler: Sampler) -> list[tuple[str, str, bool]]:
    """Part, words, and whether it is so, of each fault that shows in what was measured."""
    is_steered = is_steered_by_records(run)
    return [
        *_signs_of_noise(run),
        (
            "accountant" if run.elsewhere else "clip",
            f"a replaced record changes the scale of the noise, by {100 * run.noise_moved:.3g} % of a "
            "step's: what is clipped to, or what noisy sums are multiplied by, follows what the records hold"
            + (", with noise of its own that has to be paid for" if run.elsewhere else ""),
            is_steered,
        ),
        *_signs_of_clipping(run, is_steered),
        (
            "side channel",
            "a replaced record moves many updates, and most of these a little: something before the sampling "
            "reads all records (preprocessing, statistics)",
            moves_all_a_little(run, sampler) and not (is_steered or run.reads_early),
        ),
        *_signs_of_scale(run, is_steered),
        *_signs_of_sampling(run, sampler, is_steered),
    ]


def _signs_for(
    claim: Claim, run: Measured, sampler: Sampler, multiplier: float
) -> list[tuple[str, str, bool]]:
    """What is wrong under this claim, and need not be under another."""
    counts = claim.about is Adjacency.ADD_REMOVE
    each = run.present.sum(axis=1)
    # Where all take part equally often none does more often than that; else one may in every step.
    times = int(each[0]) if each.size and (each == each[0]).all() else run.steps
    return [
        (
            "sampler",
            f"{sampler.cut} of {len(run.sizes)} batches have {max(run.sizes, default=0)} records and none "
            "has more, where some of Poisson's would: are they cut, so that one record keeps out another?",
            counts and sampler.cut > 0,
        ),
        (
            "normaliser",
            "the rates of the steps follow the number of records of the batch, which is not public "
            "(adjacency=add-remove)",
            counts and run.sized_rates,
        ),
        (
            "sampler",
            "the batches are the same under another seed: they follow from a number in the code, or from the "
            "records' ids, and what sampling saves holds only where that stays secret",
            run.same_batches
            and sampler.kind in SAMPLED
            and not multiplier >= (1 - ENOUGH) * needed_for(claim, times, 1.0),
        ),
    ]


def is_steered_by_records(run: Measured) -> bool:
    """Whether the noise's scale follows the records.

    A schedule follows none, but sums that are rounded may say so; a controller that comes to the same scales
    under another seed only looks like one.
    """
    is_rounded = run.coarse or run.by_weights or run.is_bent
    return run.noise_steps and run.noise_moved > STEERED and not (run.is_schedule and is_rounded)


def _signs_of_noise(run: Measured) -> list[tuple[str, str, bool]]:
    """Noise that is missing, or not fresh."""
    has_noise = any(run.noise.values())
    shown = ", ".join(run.naked[:3]) + ("…" if len(run.naked) > 3 else "")
    bare = int(((run.step_noise == 0) & run.present.any(axis=0)).sum())
    return [
        ("noise", f"no noise in any of the {run.steps} steps", not has_noise),
        ("noise", f"no noise on {shown}, which a record moves", has_noise and bool(run.naked)),
        (
            "noise",
            f"where a record moves {', '.join(run.patchy[:3])}, some coordinates have noise in some steps "
            "and none in others: does it follow the batch which have some?",
            bool(run.patchy) and not run.naked,
        ),
        (
            "noise",
            f"no noise in {bare} of the {run.steps} steps, which a record moves",
            has_noise and bare > 0,
        ),
        (
            "noise",
            f"no noise is larger than {run.reach:.4g} standard deviations, where Gaussian noise would be: it "
            "is clipped or drawn within bounds, which show what is beyond them",
            run.is_bounded and has_noise and not (run.copies or run.is_correlated or run.stretched > 1.0),
        ),
        (
            "noise",
            f"fewer numbers are drawn as noise than updates have noisy values ({run.fresh:.3g} for each): "
            "what is spread over a tensor or a row leaves all directions but few without noise",
            run.is_spread,
        ),
        (
            "noise",
            f"{run.copies} noises are copies of that of another step or tensor",
            run.copies > 0 and not run.is_spread,
        ),
        (
            "noise",
            f"the noise of {run.fixed} steps is the same under another seed"
            if run.fixed
            else f"{run.seeds[1]} seeds give {run.seeds[0]} different noises: all of them can be tried",
            run.repeats_noise and not run.copies,
        ),
    ]


def _signs_of_clipping(run: Measured, is_steered: bool) -> list[tuple[str, str, bool]]:
    """Nothing bounds what a record adds, or a record changes what others add."""
    return [
        (
            "clip",
            f"a record 100 times as loud moves an update {run.loudness:.3g} times as far: nothing bounds "
            "what one record adds",
            run.loudness > UNBOUNDED,
        ),
        (
            "clip",
            f"where all records are 100,000 times as loud as the data, each adds {run.louder:.3g} times as "
            "much as where they are 1,000 times as loud, although what replay put in one place was held: "
            "nothing bounds there what one adds (it is scaled by norms of earlier steps, say)",
            run.louder > UNBOUNDED and not (run.loudness > UNBOUNDED or run.follows),
        ),
        (
            "clip",
            f"a record 100 times as loud adds {run.louder:.3g} times as much: it is divided by more than its "
            "norm, so that fainter ones may add more than any that was tried",
            abs(100 * run.louder - 1) < SQUARED,
        ),
        (
            "clip",
            "all updates have one norm before the noise: the batch is clipped, and not each record",
            run.same_norm and any(run.noise.values()),
        ),
        (
            "clip",
            f"what records add together is not what each adds ({100 * run.together:.3g} % apart): a record "
            "changes what others add, or whether they take part",
            run.together > (ROUNDED if run.coarse or run.by_weights else NOT_ADDED)
            and not (run.same_norm or run.leaks or is_steered or run.follows_contents or run.is_bent),
        ),
        (
            "clip",
            f"a record that is not finite moves an update {run.emptied:.3g} times as far as any other: it "
            "takes away what the others add",
            run.emptied > FARTHER and not run.follows_contents,
        ),
    ]


def _signs_of_scale(run: Measured, is_steered: bool) -> list[tuple[str, str, bool]]:
    """Noise whose scale follows the records."""
    spread = float(run.step_noise.max() / max(run.step_noise.min(), 1e-30))
    changes = run.noise_steps and not (run.is_schedule or is_steered or run.is_spread)
    return [
        (
            "normaliser",
            f"the noise's scale changes from step to step, by a factor of {spread:.3g}: does its divisor "
            "count the records of the batch?",
            changes and not run.naked and not run.bare_steps,
        ),
        (
            "normaliser",
            f"what records hold changes the noise itself, by {100 * run.noise_moved:.3g} % of a step's",
            run.noise_moved > 0.05 and not run.noise_steps,
        ),
    ]


def _signs_of_sampling(run: Measured, sampler: Sampler, is_steered: bool) -> list[tuple[str, str, bool]]:
    """Batches that are no Poisson samples of one rate, and sums that keep what has come."""
    keeps = kept_sums(run)
    is_otherwise = bool(run.leaks or keeps or is_steered or run.follows_contents)
    together = steps_together(run, sampler)
    return [
        (
            "sampler",
            "records are drawn with replacement: one may be in a batch several times, and moves it as often, "
            "which the bounds of samples without replacement do not cover",
            run.with_replacement,
        ),
        (
            "sampler",
            "who is in a batch follows from what the records hold: their rates differ, and a replaced record "
            "moves others in and out, or changes what all are read or weighted by (a vocabulary, weights of "
            "classes); or records are sorted, capped in number or taken out before the draw, so that others "
            "get other random numbers",
            # Where another clipping norm moves all updates, a record seems to be in more of them.
            run.follows_contents and not is_steered,
        ),
        (
            "sampler",
            f"batches are drawn from {run.dropped} records fewer where some are near copies of others: a "
            "record decides whether others take part",
            run.dropped > 0,
        ),
        (
            "sampler",
            f"every record is in one of each {sampler.batches} steps, and batches "
            + (
                "vary: each draws its step by itself (balls in bins)"
                if run.sizes
                else "could not be counted: balls in bins, or shuffled epochs"
            ),
            sampler.kind == "one of each epoch's steps",
        ),
        (
            "sampler",
            f"none of {len(run.sizes)} batches is empty, by Poisson sampling some would be: are empty ones "
            "drawn again?",
            bool(run.sizes) and sampler.kind in {"Poisson", "sampled"} and _lacks_empty(run),
        ),
        (
            "accountant",
            "every record moves all updates after the first that it is in: sums are not cleared, so that "
            "what is paid for once counts in all steps",
            keeps == "whole",
        ),
        (
            "accountant",
            "every record moves all updates after the first that it is in, ever less: sums are carried on "
            "before the noise (momentum), so that what is paid for once counts in all steps",
            keeps == "fading",
        ),
        (
            "sampler",
            "some records take part more often than others, by more than chance",
            sampler.kind == "sampled unevenly" and not is_otherwise,
        ),
        (
            "sampler",
            "records take part in neighbouring steps more often than by chance: is a batch used for several "
            "steps, or an earlier step's sum once more? What is paid for once counts in each",
            together == "neighbours",
        ),
        (
            "sampler",
            "each record takes part in a part of the steps alone, more often there than in all: do several "
            "models have records of their own, or does the rate change?",
            together == "part",
        ),
    ]


def cautions_of(run: Measured, claim: Claim) -> list[str]:
    """What the claim rests on besides: public steps, the optimizer's state, and the number of records.

    The noise follows that number where it changes by more than chance, and by more than a rate of 1/N would.
    """
    found = []
    if run.public and run.follows and run.leaks:
        found.append(
            f"the steps of other optimizers ({run.public}) are not measured: at this one's updates they are "
            f"bit for bit the same without its noise, and a record changes {run.leaks[0].what}, so that they "
            "may read records, and not only follow what this one releases"
        )
    elif run.public and run.follows:
        found.append(
            f"the steps of other optimizers ({run.public}) are taken to follow what this one releases: at "
            "its updates they are bit for bit the same without its noise, and on other records"
        )
    elif run.public:
        found.append(
            f"the steps of other optimizers ({run.public}) were bit for bit the same on other records: they "
            "are taken to follow from none, and are not among those measured"
        )
    if run.wide:
        found.append(
            "noise is taken to be all normal or uniform numbers that are drawn after the gradients of a step"
        )
    if run.by_weights:
        found.append(
            "no torch optimizer is given all that moves the weights: what they move by from one call of the "
            "model to the next is taken for a step's update"
        )
    if run.unmoved:
        found.append(
            f"the gradients of {run.unmoved:,} parameters have no noise, but no step moves these: they "
            "are taken not to leave the training"
        )
    if run.state:
        found.append(
            f"side channel: a replaced record changes what the optimizer keeps ({run.state}), although every "
            "update is the same: its state is not to leave with the model"
        )
    if run.counts and claim.about is Adjacency.ADD_REMOVE:
        found.append(
            f"side channel: what the finished model keeps in {run.counts} is another number under another "
            "seed: does it count the records of batches? That is not public (adjacency=add-remove)"
        )
    records = run.tries // len(run.sizes) if run.sizes else 0
    change = abs(run.fewer - 1.0) - 2.0 / records if records else math.nan
    follows = change > norm.isf(BY_CHANCE / 2) * run.fewer_spread
    if not follows or claim.about is not Adjacency.ADD_REMOVE:
        return found
    return [
        *found,
        f"normaliser: with one record fewer, the noise is {run.fewer:.4g} times as large, so its divisor "
        "counts the records, and the claim holds at most where their number is public (adjacency=zero-out)",
    ]


def _lacks_empty(run: Measured) -> bool:
    """Whether no batch is empty, where Poisson's would be."""
    empty = (1.0 - run.counted / run.tries) ** (run.tries / len(run.sizes))
    return min(run.sizes) > 0 and (1.0 - empty) ** len(run.sizes) < BY_CHANCE


def steps_together(run: Measured, sampler: Sampler) -> str:
    """Whether records take part in `"neighbours"` of steps, or in one `"part"` of them, by more than chance.

    Empty where they do not, and where something else may move neighbouring steps.
    """
    if sampler.kind not in SAMPLED:
        return ""
    is_noise_kept = run.is_bent or run.reads_early or run.is_correlated
    if run.leaks or run.follows_contents or is_noise_kept or is_steered_by_records(run) or kept_sums(run):
        return ""
    if run.rate_varies or changes_midway(run):
        return ""
    seen = run.present[run.compared.all(axis=1)]
    neighbours, part = neighbouring(seen), in_one_part(seen)
    if min(neighbours, part) >= BY_CHANCE:
        return ""
    return "neighbours" if neighbours <= part else "part"


def changes_midway(run: Measured) -> bool:
    """Whether replaced records are in batches of one half of the steps more often, by more than chance.

    To be asked of these few where batches are not counted; else their sizes tell (`Measured.rate_varies`).
    """
    half = run.steps // 2
    table = np.array(
        [
            [cells[:, :half].sum(), cells[:, half:].sum()]
            for cells in (run.present & run.compared, ~run.present & run.compared)
        ]
    )
    if run.tries or kept_sums(run) or not table.sum(axis=0).all() or not table.sum(axis=1).all():
        return False
    return bool(chi2_contingency(table, correction=False).pvalue < BY_CHANCE)


def kept_sums(run: Measured) -> str:
    """How records that have come move all later updates: `"whole"`, `"fading"`; empty where they do not."""
    first = run.present.argmax(axis=1)
    later = [row[start:] for row, start in zip(run.present, first, strict=True) if row.any()]
    if not later or not all(row.all() for row in later) or int(first.max()) == 0:
        return ""
    if sum(map(len, later)) <= 30:
        return ""
    moves = [row[start:] for row, start in zip(run.added, first, strict=False)]
    if all(row.size == 0 or row.min() > 0.3 * row.max() for row in moves):
        return "whole"
    shrinking = np.concatenate([row[1:] / row[:-1] for row in moves])
    usual = float(np.median(shrinking))
    return "fading" if usual < 1 and (np.abs(shrinking / usual - 1) < FADING).mean() > 0.5 else ""


def moves_all_a_little(run: Measured, sampler: Sampler) -> bool:
    """Whether a record moves many updates, by distances of two heaps that are far apart.

    One is three times as far as the other where a record moves every update, and ten times where not all.
    """
    if sampler.kind != "every step" and sampler.rate < LEAST_SHARE:
        return False
    apart = 3.0 if sampler.kind == "every step" else 10.0
    distances = run.added[run.present[: len(run.added)]]
    ordered = np.sort(distances[np.isfinite(distances) & (distances > 0)])
    if ordered.size < 6:
        return False
    return bool((ordered[3:-2] > apart * ordered[2:-3]).any())


def _not_held(run: Measured) -> Fault | None:
    """Says so where no norm holds what one record adds, as any clipping to one would."""
    added = run.added[np.isfinite(run.added) & (run.added > 0)]
    if added.size and float(added.max()) > UNHELD * max(float(np.median(added)), 1.0):
        if not run.peak > UNHELD:
            return Fault(
                part="noise",
                says=f"the noise of one step is {float(added.max() / np.median(added)):.3g} times smaller "
                "beside what a record adds than that of most",
            )
        return Fault(
            part="clip",
            says=f"a record adds {run.peak:.3g} times as much at one step as at most others: nothing bounds "
            "there what it adds",
        )
    least, most = run.loudest
    if not least > 0 or run.follows:  # A gradient of what follows is in the updates too.
        return None
    if run.length > (1 + HELD) * most:
        return Fault(
            part="clip",
            says=f"a record adds {run.length / most:.4g} times as much as one 100,000 times as loud as the "
            "data, which any clipping norm holds: the norm that it is clipped by is not that of its "
            "gradient, or its clipped gradient is multiplied (by a weight, or once for each of several "
            "views)",
        )
    if most > (1 + HELD) * least and most > (1 - HELD) * run.length:
        return Fault(
            part="clip",
            says="what a record 100,000 times as loud as the data adds varies between steps, by a factor of "
            f"{most / least:.4g}, which no one clipping norm lets it: its gradient is clipped in parts, "
            "or by another norm than its own, or is divided by the records of its batch or microbatch, or "
            "the norm or the rate follows a schedule that the noise does not",
        )
    return None


def needed_for(claim: Claim, count: int, rate: float, about: Adjacency | None = None) -> float:
    """The noise multiplier that certified bounds ask for; 0 where any will do.

    Args:
        about: Another adjacency than the claim's.
    """
    from workbench.accounting.certified import calibrate_noise_multiplier

    guarantee = claim.guarantee
    assert isinstance(guarantee, ApproximateDP)
    own = claim.about if isinstance(claim.about, Adjacency) else Adjacency.ADD_REMOVE
    with suppress(InputError):
        return calibrate_noise_multiplier(
            target_epsilon=guarantee.epsilon,
            target_delta=guarantee.delta,
            sampling_probability=rate,
            steps=max(count, 1),
            adjacency=about or own,
        )
    return 0.0  # So few steps of so small a rate meet the claim with any noise.


def undersized(
    steps: int, sampler: Sampler, claim: Claim, multiplier: float, groups: Mapping[str, float] | None = None
) -> Fault:
    """A run in which every part does its work, and which spends more than is claimed.

    Args:
        multiplier: Noise over what one record adds.
        groups: Of tensors that are clipped by themselves, the norm of each over that of all.
    """
    if sampler.kind == "shuffled epochs":
        return Fault(
            part="sampler",
            says=f"every record is in exactly one of each {sampler.batches} steps (shuffled epochs), and the "
            f"noise multiplier is {multiplier:.4g}",
        )

    needed = needed_for(claim, steps, sampler.rate)
    of_parts = multiplier / max((groups or {"": 1.0}).values())
    if groups and (1 - ENOUGH) * needed < of_parts < 1.3 * needed:
        return Fault(
            part="clip",
            says=f"{len(groups)} groups of tensors ({', '.join(groups)}) are each clipped by "
            f"themselves, and the noise is for one of them: {of_parts:.4g} times the largest one's norm and "
            f"{multiplier:.4g} times that of all together, where {steps} steps at sampling rate "
            f"{sampler.rate:.3g} need {needed:.4g} for the claim",
        )
    enough = [f"if a record added {multiplier / needed:.3g} times as much"]
    fewer = bisect_right(
        range(1, steps + 1),
        multiplier,
        key=lambda count: (1 - ENOUGH) * needed_for(claim, count, sampler.rate),
    )
    if fewer:
        enough.insert(0, f"for {fewer} steps")
    less = partial(needed_for, claim, steps, sampler.rate, Adjacency.ADD_REMOVE)
    if claim.about is Adjacency.REPLACE_ONE and multiplier > (1 - ENOUGH) * less():
        enough.append("for a claim about adding or removing a record, which moves an update half as far")
    return Fault(
        part="accountant",
        says=f"noise over what one record adds is {multiplier:.4g}; {steps} steps at sampling rate "
        f"{sampler.rate:.3g} need {needed:.4g} for the claim; it would be enough {' or '.join(enough)}: "
        "the noise, the clipping norm, the rate or the steps are not what was accounted for"
        + "; each record moves every update, as where batches are not sampled, or records are joined and cut "
        "anew" * (sampler.kind == "every step" and steps > 1),
    )

"""What a forced replay measured: the run as it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import chi2

from workbench.interfaces import BoolArray, FloatArray

BENT = 1e-4
"""Of `Measured.bent`: more than sums of 32 bits round."""

WEAK = 0.1
"""A record moves an update weakly by less than this part of the most: it may be left over from before."""


SCORES = "the scores"
"""Of a finished model, as a `Leak.part`."""

STATES = "the optimizers' states"
"""Likewise."""


@dataclass(frozen=True)
class Leak:
    """Something that differs between two trainings whose released updates are equal.

    Attributes:
        what: In words: `"weights before step 3"`.
        place: Which record was replaced; None where the training does not even repeat itself.
        tensor: The parameter in which it shows, where it is one.
        records: How many records were replaced.
        part: Of what is left at the end: `SCORES`, `STATES`, or a buffer's place and name; empty for the
            training itself.
    """

    what: str
    place: int | None = None
    tensor: str = ""
    records: int = 1
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The run as it was.

    Attributes:
        steps: T, the number of optimizer steps.
        records: N, the records that it trains on.
        parameters: d, the trained parameters.
        noise: Standard deviation of the noise by tensor, over all steps; 0 where there is none.
        noise_values: Number of noise values behind the least known scale.
        step_noise: Of each step over that, shape `(T,)`; 1 where all steps are alike.
        noise_steps: Whether the noise differs between steps by more than chance.
        is_schedule: Whether it does so in the same way under another seed.
        stretched: How many times fewer directions the noise has than coordinates; 1 where none is missed.
        unseen: Up to how many times fewer go unseen.
        fresh: Numbers drawn as noise over the noisy values of all updates: below 1 some are used again.
        reach: The largest noise in standard deviations, `is_bounded` whether Gaussian noise goes further.
        excess: Excess kurtosis of the noise; `is_gaussian` says whether that is chance.
        correlation: Of the noise of two steps, the largest; `is_correlated` likewise.
        copies: Steps or tensors whose noise is a copy of another's, while a record moves the two otherwise.
        repeats: Such copies where every replaced record moves both alike, as where a noisy sum is used again.
        fixed: Steps whose noise is the same under another seed.
        seeds: How many different noises were drawn, and under how many seeds.
        depends: Whether updates, where some have no noise or copied noise, also depend on other draws, which
            may be noise.
        ignores_seed: The whole training is the same under another seed.
        same_batches: At the same weights, all updates without noise are the same under another seed.
        counts: The name of a whole number that the finished model keeps and that another seed changes at the
            same weights, without noise; empty where there is none.
        sized_rates: The rates of the steps change, under another seed too, and follow the sizes of batches.
        same_norm: All updates without noise have one norm, also those that a replaced record moves.
        present: Which replaced record took part in which step, shape `(places, T)`.
        weak: Where it moved the update much less than at other steps, same shape.
        counted, tries: Records that took part in steps whose batch could be counted, and that might have; the
            record whose steps these are is left out.
        sizes: The batch of each step that can be compared, in records; empty where they are not all known.
        rate_varies: Whether batches vary more than those of Poisson samples of one rate.
        divides: Whether the noise of each step is one number over the records of its batch.
        follows_contents: Whether who is in a batch follows from what records hold, not from their places.
        fewer: The noise of a training with one record fewer over that of this one, and `fewer_spread` its
            standard error; NaN where the two do not compare.
        together: How much of the move of many replaced records their parts do not add up to; about 0 where
            no record changes what another one adds, NaN where that was not seen.
        dropped: By how many fewer records batches are drawn where a quarter are near copies of others, than
            where what they are near is not there; 0 where batches are not seen to be drawn from all at first.
        coarse: Whether updates may be sums of 16-bit numbers, which are rounded by some hundredths.
        emptied: How much further than other crafts one that is not finite moves an update; NaN where the
            update is not finite either.
        noise_moved: How much of the noise of a step replaced records change, likewise.
        bare_steps: Steps without any noise.
        compared: Where the random draws of run and replay agree, so that their batches do, same shape.
        added: At least so much one of the crafts adds to the update of each step, in standard deviations of
            the noise, shape `(deep, T)` for the places that were replaced by many crafts; infinite where
            something without noise moves.
        alone: What one record adds to each step in trainings on copies of a craft, likewise, shape `(T,)`; 0
            where that is not known. Empty where batches could not be counted, or records change what others
            add.
        replaced: Half of the largest distance of two crafts' updates, likewise.
        length: What one record adds at the median step, in the gradient's own units; NaN where none moves
            any update.
        groups: The largest length of each group of tensors over that of all, where each is clipped by itself.
        loudest: The least and the most that a record 100,000 times as loud as the data adds; NaN where that
            is not known.
        louder: What a record 100,000 times as loud as the data adds over one 1,000 times as loud, likewise.
        loudness: How much further a record of 100 times the loudness moves an update; about 1 where it is
            clipped, NaN where records have no loudness.
        naked: Tensors that a record moves where they have no noise.
        patchy: Likewise, where they have none in some steps alone.
        leaks: What left the training past the noise.
        state: What the optimizer keeps otherwise at the end where a record is replaced, by its name, although
            nothing leaks; empty where it keeps the same.
        bent: How far half of the noise, turned round, is from moving an update half as far back, over half of
            the noise.
        reads_early: Whether more than updates follows the gradients that the code reads before run A's take
            their place: then it is not known what leaks.
        failed: What the user's code said of crafts that it cannot train on.
        recognised: Draws of noise that were met, by kind.
        scores_repeat: Whether equal runs give equal scores; otherwise scores tell nothing of a record.
        public: Optimizers whose steps were the same on other records, and are not among `steps`.
        follows: Whether those follow what the measured one releases, rather than no record.
        other: How much noise may be missed where only what is drawn after the gradients counts, over that.
        peak: What a record adds to updates where it adds most, over what it adds at the median step.
        with_replacement: Whether records are drawn so that one may come twice.
        by_weights: Whether steps were read by the weights, and lengths are in their units (`WeightsWatch`).
        wide: Whether all that is drawn after a step's gradients is taken for its noise.
        unmoved: Parameters whose gradients a record moves without noise, but whose weights no step moves.
        in_some_steps: Whether some steps leave a part of the noisy coordinates without noise.
        elsewhere: Draws that are no parameter's noise or initial weights, and not of a sampler's kind.
    """

    steps: int
    records: int
    parameters: int
    noise: Mapping[str, float]
    noise_values: int
    step_noise: FloatArray
    noise_steps: bool
    is_schedule: bool
    stretched: float
    unseen: float
    fresh: float
    reach: float
    is_bounded: bool
    excess: float
    is_gaussian: bool
    correlation: float
    is_correlated: bool
    copies: int
    repeats: int
    fixed: int
    seeds: tuple[int, int]
    depends: bool
    ignores_seed: bool
    same_batches: bool
    counts: str
    sized_rates: bool
    same_norm: bool
    present: BoolArray
    weak: BoolArray
    compared: BoolArray
    counted: int
    tries: int
    sizes: tuple[int, ...]
    rate_varies: bool
    divides: bool
    follows_contents: bool
    fewer: float
    fewer_spread: float
    together: float
    emptied: float
    noise_moved: float
    bare_steps: int
    added: FloatArray
    alone: FloatArray
    replaced: FloatArray
    length: float
    groups: Mapping[str, float]
    loudest: tuple[float, float]
    louder: float
    loudness: float
    naked: tuple[str, ...]
    patchy: tuple[str, ...]
    leaks: tuple[Leak, ...]
    state: str
    dropped: int = 0
    bent: float = 0.0
    reads_early: bool = False
    failed: tuple[str, ...] = ()
    recognised: Mapping[str, int] = field(default_factory=dict)
    unmoved: int = 0
    elsewhere: int = 0
    in_some_steps: bool = False
    public: int = 0
    follows: bool = False
    with_replacement: bool = False
    other: float = 0.0
    peak: float = math.nan
    by_weights: bool = False
    wide: bool = False
    coarse: bool = False
    scores_repeat: bool = True

    @property
    def is_spread(self) -> bool:
        """Whether noise of any shape has fewer numbers than it moves, so that two noises may look alike."""
        return self.wide and self.fresh < 1

    @property
    def is_bent(self) -> bool:
        """Whether noise moves some update in another way than sums of 32 bits round."""
        return self.bent > BENT and not (self.coarse or self.by_weights)

    @property
    def repeats_noise(self) -> bool:
        """Whether another seed's noise is the same, though the training is not."""
        return not (self.ignores_seed or self.is_spread) and (self.fixed > 0 or self.seeds[0] < self.seeds[1])

    def noise_factor(self, error: float) -> tuple[float, float]:
        """Between what multiples of the estimated noise the true one lies, with error probability `error`."""
        n = max(self.noise_values, 1)
        low, high = math.sqrt(n / chi2.ppf(1 - error / 2, n)), math.sqrt(n / chi2.ppf(error / 2, n))
        return low, high * math.hypot(1.0, self.other)


@dataclass(frozen=True)
class NotMeasured:
    """Why a training cannot be replayed."""

    reason: str


_NUMBERS = (
    "length",
    "louder",
    "loudness",
    "stretched",
    "unseen",
    "fresh",
    "reach",
    "excess",
    "correlation",
    "together",
    "emptied",
    "noise_moved",
    "fewer",
    "fewer_spread",
)


def measured_from(form: Mapping[str, Any]) -> Measured:
    """Read back the plain form of what was measured."""
    arrays = {
        **{name: np.array(form[name], dtype=bool) for name in ("present", "weak", "compared")},
        **{
            name: np.array(form[name], dtype=np.float64)
            for name in ("step_noise", "added", "alone", "replaced")
        },
    }
    return Measured(
        **{
            **form,
            **arrays,
            "naked": tuple(form["naked"]),
            "patchy": tuple(form["patchy"]),
            "failed": tuple(form["failed"]),
            "sizes": tuple(form["sizes"]),
            "seeds": tuple(form["seeds"]),
            "loudest": tuple(map(float, form["loudest"])),
            "leaks": tuple(Leak(**leak) for leak in form["leaks"]),
            "noise": {name: float(value) for name, value in form["noise"].items()},
            **{name: float(form[name]) for name in _NUMBERS},
        }
    )

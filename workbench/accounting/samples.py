"""Events on samples of the records: other noise, several records of one person, and batches of fixed size."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from workbench.accounting.events import Composed, Event
from workbench.core.arguments import number, whole_number
from workbench.core.errors import InputError

MOST_RECORDS = 10_000
"""Records of one person whose binomial weights are computed."""


NOISE_OF_MIXTURES = (1e-10, 1e30)
"""Least and most noise multipliers of events whose pairs are mixtures of Gaussians."""


MOST_STEPS = 100_000
"""Steps among which records are allocated."""

MOST_CAPPED_RECORDS = 10**15
"""Records of a data set with capped batches: of more, the chance to be in a batch takes minutes."""


_LEAST_DIVIDED = 1e-100
"""Least sampling probability of a batch mean: float64 holds its product with the likelihood ratios."""


@dataclass(frozen=True, kw_only=True)
class SubsampledLaplace(Event):
    """The Laplace event on a Poisson sample: each record takes part with this probability, in secret.

    Raises:
        InputError: a parameter is out of range.
    """

    scale: float
    sampling_probability: float

    def __post_init__(self) -> None:
        self._set_positive("scale")
        q = number("sampling_probability", self.sampling_probability, above=0, most=1)
        object.__setattr__(self, "sampling_probability", q)

    def describe(self) -> str:
        """`Poisson-subsampled Laplace (scale 1, sampling probability 0.01)`."""
        return (
            f"Poisson-subsampled Laplace (scale {self.scale:g}, "
            f"sampling probability {self.sampling_probability:g})"
        )


@dataclass(frozen=True, kw_only=True)
class SubsampledUser(Event):
    """The Gaussian event on a Poisson sample of records, of which one person has up to so many.

    Neighbours differ by all of the person's records, each of which takes part by a coin of its own.

    Attributes:
        noise_multiplier: In units of one record's largest contribution; in [1e-10, 1e30] where there are
            several records, sampled.
        sampling_probability: Of each record.
        records: The most that one person has.

    Raises:
        InputError: a parameter is out of range.
    """

    noise_multiplier: float
    sampling_probability: float
    records: int

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")
        q = number("sampling_probability", self.sampling_probability, above=0, most=1)
        object.__setattr__(self, "sampling_probability", q)
        records = whole_number("records", self.records, least=1, most=MOST_RECORDS)
        object.__setattr__(self, "records", records)
        if records > 1 and q < 1:
            least, most = NOISE_OF_MIXTURES
            number("noise_multiplier", self.noise_multiplier, least=least, most=most)

    def describe(self) -> str:
        """`Poisson-subsampled Gaussian (noise multiplier 1, ..., 5 records a person)`."""
        return (
            f"Poisson-subsampled Gaussian (noise multiplier {self.noise_multiplier:g}, "
            f"sampling probability {self.sampling_probability:g}, {self.records} records a person)"
        )


@dataclass(frozen=True, kw_only=True)
class FixedBatch(Event):
    """The Gaussian event on a batch of fixed size, drawn uniformly from the data set without replacement.

    Attributes:
        noise_multiplier: In units of one record's largest contribution; the sum is over the batch.
        dataset_size: Records of the data set; under add-remove, of the larger neighbour.
        batch_size: Records of a batch, at least 1 and below the data set's.

    Raises:
        InputError: a parameter is out of range.
    """

    noise_multiplier: float
    dataset_size: int
    batch_size: int

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")
        self._set_whole("dataset_size", least=2)
        self._set_whole("batch_size", least=1)
        if self.batch_size >= self.dataset_size:
            raise InputError(
                f"batch_size must be below dataset_size ({self.dataset_size}), got {self.batch_size}"
            )

    @property
    def sampling_probability(self) -> Fraction:
        """Of each record to be in the batch."""
        return Fraction(self.batch_size, self.dataset_size)

    def describe(self) -> str:
        """`Gaussian on fixed batches (noise multiplier 1, 10 of 1000 records)`."""
        return (
            f"Gaussian on fixed batches (noise multiplier {self.noise_multiplier:g}, "
            f"{self.batch_size} of {self.dataset_size} records)"
        )


@dataclass(frozen=True, kw_only=True)
class CappedPoisson(Event):
    """The Gaussian event on a Poisson sample, of which a random batch is kept where it is over a cap.

    Given that at least as many others as the cap are drawn, the batch without the record is a uniform set of
    that size, whatever their number; the record takes the place of a uniformly drawn member with a chance
    that depends on the number only. So on average it is a fixed batch (`grid.fixed_batch`), with shifts of 2;
    given fewer, it is a Poisson sample. By joint convexity, a mechanism that says which of the two it was
    dominates (Chua et al. 2024, "Scalable DP-SGD", bound the same by total variation). Others that contribute
    nothing give the Gaussian on a sample of the record's probability to be in the batch.

    Attributes:
        noise_multiplier: In units of one record's largest contribution; the sum is over the batch.
        sampling_probability: Of each record, before the cap.
        dataset_size: Records of the data set, at most 10^15; under add-remove, of the larger neighbour.
        largest_batch: The cap.

    Raises:
        InputError: a parameter is out of range.
    """

    noise_multiplier: float
    sampling_probability: float
    dataset_size: int
    largest_batch: int

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")
        q = number("sampling_probability", self.sampling_probability, above=0, most=1)
        object.__setattr__(self, "sampling_probability", q)
        size = whole_number("dataset_size", self.dataset_size, least=1, most=MOST_CAPPED_RECORDS)
        object.__setattr__(self, "dataset_size", size)
        self._set_whole("largest_batch", least=1)

    def describe(self) -> str:
        """`Gaussian on capped Poisson samples (noise multiplier 1, sampling probability 0.01, ...)`."""
        return (
            f"Gaussian on capped Poisson samples (noise multiplier {self.noise_multiplier:g}, "
            f"sampling probability {self.sampling_probability:g}, "
            f"at most {self.largest_batch} of {self.dataset_size} records)"
        )


@dataclass(frozen=True, kw_only=True)
class BatchMean(Event):
    """The Gaussian event on a Poisson sample, divided by the number of records that were drawn.

    (sum + noise) / b with the real batch size b, as where a loss is averaged over the batch, and not by a
    number that was fixed before. How the ends are proved says `balls.batch_mean`. They all but meet at half
    of the noise multiplier: a record that others point away from moves the mean twice as far as the sum.
    What an empty batch releases is left open.

    Attributes:
        noise_multiplier: Of the sum, in units of one record's largest contribution.
        sampling_probability: Of each record, in [1e-100, 1).
        dataset_size: Records of the data set; under add-remove, of the larger neighbour.
        dimension: Numbers that are released (parameters of a model), at least 2; they show the divisor.

    Raises:
        InputError: a parameter is out of range.
    """

    noise_multiplier: float
    sampling_probability: float
    dataset_size: int
    dimension: int

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")
        q = number("sampling_probability", self.sampling_probability, least=_LEAST_DIVIDED, below=1)
        object.__setattr__(self, "sampling_probability", q)
        self._set_whole("dataset_size", least=2)
        self._set_whole("dimension", least=2)

    def describe(self) -> str:
        """`Gaussian over the real batch size (noise multiplier 1, sampling probability 0.01, ...)`."""
        return (
            f"Gaussian over the real batch size (noise multiplier {self.noise_multiplier:g}, sampling "
            f"probability {self.sampling_probability:g}, {self.dataset_size} records, "
            f"{self.dimension} dimensions)"
        )


@dataclass(frozen=True, kw_only=True)
class RandomAllocation(Event):
    """Gaussian sums over `steps` batches, into one of which each record is put at random, in secret.

    Balls in bins: each record by a uniform choice of its own, which no other record changes. It is one epoch;
    several, with fresh choices, are its composition.

    Attributes:
        noise_multiplier: Of each batch's sum, in units of one record's largest contribution.
        steps: How many batches there are.

    Raises:
        InputError: a parameter is out of range.
    """

    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")
        object.__setattr__(self, "steps", whole_number("steps", self.steps, least=1, most=MOST_STEPS))

    def describe(self) -> str:
        """`Gaussian on random allocation (noise multiplier 1, 100 steps)`."""
        return (
            f"Gaussian on random allocation (noise multiplier {self.noise_multiplier:g}, {self.steps} steps)"
        )


def user_run(
    *, noise_multiplier: float, sampling_probability: float, steps: int, records_per_user: int
) -> Event:
    """A run of `steps` Gaussian releases on fresh Poisson samples of records, about a person's records.

    Args:
        noise_multiplier: In units of one record's largest contribution.
        sampling_probability: Of each record in each step, in (0, 1].
        steps: Number of releases.
        records_per_user: The most that one person has.

    Raises:
        InputError: a parameter is out of range.
    """
    records = whole_number("records_per_user", records_per_user, least=1, most=MOST_RECORDS)
    step = SubsampledUser(
        noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, records=records
    )
    return Composed(events=((step, whole_number("steps", steps, least=1, most=None)),))

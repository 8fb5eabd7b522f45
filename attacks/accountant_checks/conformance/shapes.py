"""Shapes of questions: how a question is built from named parameters, and which values are simple."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workbench.accounting.events import (
    Composed,
    Event,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.accounting.integers import DiscreteGaussian, DiscreteLaplace, Skellam
from workbench.accounting.samples import FixedBatch, RandomAllocation, SubsampledLaplace, user_run
from workbench.attacks.accountant_checks.conformance.questions import Question
from workbench.interfaces import Adjacency

Parameters = Mapping[str, float]
"""Values of a shape's parameters, by name; counts are whole numbers."""

NOISES = (1.0, 2.0, 0.5, 5.0, 10.0, 0.3, 50.0, 0.1)
RATES = (1.0, 0.5, 0.1, 0.01, 0.001, 1e-4)
STEPS = (1, 2, 3, 4, 5, 10, 20, 50, 100, 1000)
DELTAS = (1e-5, 1e-3, 1e-2, 0.1, 1e-6, 1e-8, 1e-10, 1e-12, 1e-15)
EPSILONS = (1.0, 2.0, 0.5, 0.1, 4.0, 8.0, 10.0)
FPRS = (0.1, 0.01, 0.5, 1e-3, 1e-4, 1e-6)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of question to an accountant, with the parameters that it may be asked with.

    Attributes:
        simple: For each parameter its simple values, simplest first; the first parameter counts most.
    """

    build: Callable[..., Question]
    simple: Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A shape with its parameters."""

    shape: Shape
    parameters: Parameters

    @property
    def question(self) -> Question:
        """The question to the accountant that this cell stands for."""
        return self.shape.build(**self.parameters)


def repeated(event: Event, steps: int) -> Event:
    """The event itself, or its composition with a count."""
    return event if steps == 1 else Composed(events=((event, steps),))


def _run(adjacency: Adjacency, quantity: str = "epsilon") -> Callable[..., Question]:
    def build(
        *, noise_multiplier: float, sampling_probability: float, steps: float, **argument: float
    ) -> Question:
        """The question about one run."""
        event = gaussian_run(
            noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, steps=int(steps)
        )
        (value,) = argument.values()
        return Question(quantity=quantity, event=event, argument=value, adjacency=adjacency)

    return build


_RUN_SIMPLE = {"steps": STEPS, "sampling_probability": RATES, "noise_multiplier": NOISES}
RUN = Shape(build=_run(Adjacency.ADD_REMOVE), simple={**_RUN_SIMPLE, "delta": DELTAS})
RUN_REPLACE_ONE = Shape(build=_run(Adjacency.REPLACE_ONE), simple={**_RUN_SIMPLE, "delta": DELTAS})
DELTA_OF_RUN = Shape(build=_run(Adjacency.ADD_REMOVE, "delta"), simple={**_RUN_SIMPLE, "epsilon": EPSILONS})
DELTA_OF_RUN_REPLACE_ONE = Shape(
    build=_run(Adjacency.REPLACE_ONE, "delta"), simple={**_RUN_SIMPLE, "epsilon": EPSILONS}
)
TPR_OF_RUN = Shape(build=_run(Adjacency.ADD_REMOVE, "tpr"), simple={**_RUN_SIMPLE, "fpr": FPRS})
TPR_OF_RUN_REPLACE_ONE = Shape(build=_run(Adjacency.REPLACE_ONE, "tpr"), simple={**_RUN_SIMPLE, "fpr": FPRS})


def epsilon_question(event: Event, delta: float, adjacency: Adjacency) -> Question:
    """The question for epsilon of an event."""
    return Question(quantity="epsilon", event=event, argument=delta, adjacency=adjacency)


def _laplace(adjacency: Adjacency) -> Callable[..., Question]:
    def build(*, steps: float, scale: float, delta: float) -> Question:
        return epsilon_question(repeated(Laplace(scale=scale), int(steps)), delta, adjacency)

    return build


def _delta_of_laplace(*, steps: float, scale: float, epsilon: float) -> Question:
    event = repeated(Laplace(scale=scale), int(steps))
    return Question(quantity="delta", event=event, argument=epsilon)


_LAPLACE_SIMPLE = {"steps": STEPS, "scale": NOISES, "delta": DELTAS}
LAPLACE = Shape(build=_laplace(Adjacency.ADD_REMOVE), simple=_LAPLACE_SIMPLE)
LAPLACE_REPLACE_ONE = Shape(build=_laplace(Adjacency.REPLACE_ONE), simple=_LAPLACE_SIMPLE)
DELTA_OF_LAPLACE = Shape(
    build=_delta_of_laplace, simple={"steps": STEPS, "scale": NOISES, "epsilon": EPSILONS}
)


def _randomised_response(
    *, steps: float, categories: float, noise_parameter: float, delta: float
) -> Question:
    event = RandomisedResponse(noise_parameter=noise_parameter, categories=int(categories))
    return epsilon_question(repeated(event, int(steps)), delta, Adjacency.REPLACE_ONE)


RANDOMISED_RESPONSE = Shape(
    build=_randomised_response,
    simple={
        "steps": STEPS,
        "categories": (2, 3, 5, 10),
        "noise_parameter": (0.5, 0.1, 0.9, 0.01),
        "delta": DELTAS,
    },
)


def _gaussian_and_laplace(
    *, noise_multiplier: float, scale: float, gaussians: float, laplaces: float, delta: float
) -> Question:
    parts = (
        (Gaussian(noise_multiplier=noise_multiplier), int(gaussians)),
        (Laplace(scale=scale), int(laplaces)),
    )
    return epsilon_question(Composed(events=parts), delta, Adjacency.ADD_REMOVE)


def _two_phases(
    *,
    noise_multiplier: float,
    second_noise_multiplier: float,
    sampling_probability: float,
    steps: float,
    second_steps: float,
    delta: float,
) -> Question:
    first = SubsampledGaussian(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability)
    second = SubsampledGaussian(
        noise_multiplier=second_noise_multiplier, sampling_probability=sampling_probability
    )
    parts = ((first, int(steps)), (second, int(second_steps)))
    return epsilon_question(Composed(events=parts), delta, Adjacency.ADD_REMOVE)


def _three_phases(
    *, noise_multiplier: float, sampling_probability: float, steps: float, growth: float, delta: float
) -> Question:
    """Three runs: noise and sampling probability grow by a factor from each to the next."""
    parts = tuple(
        (
            SubsampledGaussian(
                noise_multiplier=noise_multiplier * growth**phase,
                sampling_probability=min(sampling_probability * growth**phase, 1.0),
            ),
            int(steps),
        )
        for phase in range(3)
    )
    return epsilon_question(Composed(events=parts), delta, Adjacency.ADD_REMOVE)


def _gaussian_and_response(
    *, noise_multiplier: float, noise_parameter: float, gaussians: float, responses: float, delta: float
) -> Question:
    parts = (
        (Gaussian(noise_multiplier=noise_multiplier), int(gaussians)),
        (RandomisedResponse(noise_parameter=noise_parameter), int(responses)),
    )
    return epsilon_question(Composed(events=parts), delta, Adjacency.REPLACE_ONE)


GAUSSIAN_AND_LAPLACE = Shape(
    build=_gaussian_and_laplace,
    simple={
        "gaussians": STEPS,
        "laplaces": STEPS,
        "noise_multiplier": NOISES,
        "scale": NOISES,
        "delta": DELTAS,
    },
)
TWO_PHASES = Shape(
    build=_two_phases,
    simple={
        "steps": STEPS,
        "second_steps": STEPS,
        "sampling_probability": RATES[1:],
        "noise_multiplier": NOISES,
        "second_noise_multiplier": NOISES,
        "delta": DELTAS,
    },
)
THREE_PHASES = Shape(
    build=_three_phases,
    simple={
        "steps": STEPS,
        "growth": (2.0, 1.5),
        "sampling_probability": RATES[2:],
        "noise_multiplier": NOISES,
        "delta": DELTAS,
    },
)
GAUSSIAN_AND_RESPONSE = Shape(
    build=_gaussian_and_response,
    simple={
        "gaussians": STEPS,
        "responses": STEPS,
        "noise_multiplier": NOISES,
        "noise_parameter": (0.5, 0.1, 0.9),
        "delta": DELTAS,
    },
)


def _mixtures(*, weight: float, shift: float, standard_deviation: float, delta: float) -> Question:
    event = GaussianMixturePair(
        p_means=(0.0, shift),
        p_weights=(1 - weight, weight),
        q_means=(0.0,),
        q_weights=(1.0,),
        standard_deviation=standard_deviation,
    )
    return epsilon_question(event, delta, Adjacency.ADD_REMOVE)


MIXTURES = Shape(
    build=_mixtures,
    simple={"weight": (0.5, 0.1, 0.01), "shift": (1.0, 2.0), "standard_deviation": NOISES, "delta": DELTAS},
)


def _shuffled(*, batches: float, epochs: float, noise_multiplier: float, delta: float) -> Question:
    event = ShuffledBatches(noise_multiplier=noise_multiplier, batches=int(batches), epochs=int(epochs))
    return epsilon_question(event, delta, Adjacency.ZERO_OUT)


SHUFFLED = Shape(
    build=_shuffled,
    simple={"epochs": STEPS, "batches": (10, 100, 1000), "noise_multiplier": NOISES, "delta": DELTAS},
)


def _fixed_batch(
    *, noise_multiplier: float, batch_size: float, dataset_size: float, steps: float, delta: float
) -> Question:
    step = FixedBatch(
        noise_multiplier=noise_multiplier, dataset_size=int(dataset_size), batch_size=int(batch_size)
    )
    return epsilon_question(repeated(step, int(steps)), delta, Adjacency.ADD_REMOVE)


FIXED_BATCH = Shape(
    build=_fixed_batch,
    simple={
        "steps": STEPS,
        "dataset_size": (100, 1000, 10_000),
        "batch_size": (10, 1, 50, 100),
        "noise_multiplier": NOISES,
        "delta": DELTAS,
    },
)


def _subsampled_laplace(*, scale: float, sampling_probability: float, steps: float, delta: float) -> Question:
    step = SubsampledLaplace(scale=scale, sampling_probability=sampling_probability)
    return epsilon_question(repeated(step, int(steps)), delta, Adjacency.ADD_REMOVE)


SUBSAMPLED_LAPLACE = Shape(
    build=_subsampled_laplace,
    simple={"steps": STEPS, "sampling_probability": RATES[1:], "scale": NOISES, "delta": DELTAS},
)


def _user(
    *, noise_multiplier: float, sampling_probability: float, records: float, steps: float, delta: float
) -> Question:
    event = user_run(
        noise_multiplier=noise_multiplier,
        sampling_probability=sampling_probability,
        steps=int(steps),
        records_per_user=int(records),
    )
    return epsilon_question(event, delta, Adjacency.ADD_REMOVE)


USER = Shape(
    build=_user,
    simple={
        "steps": STEPS,
        "records": (2, 3, 5, 10),
        "sampling_probability": RATES[1:],
        "noise_multiplier": NOISES,
        "delta": DELTAS,
    },
)


def _allocation(*, noise_multiplier: float, batches: float, epochs: float, delta: float) -> Question:
    event = RandomAllocation(noise_multiplier=noise_multiplier, steps=int(batches))
    return epsilon_question(repeated(event, int(epochs)), delta, Adjacency.ADD_REMOVE)


ALLOCATION = Shape(
    build=_allocation,
    simple={"epochs": STEPS, "batches": (10, 100, 1000), "noise_multiplier": NOISES, "delta": DELTAS},
)

_INTEGERS: tuple[tuple[type[DiscreteLaplace | DiscreteGaussian | Skellam], str], ...] = (
    (DiscreteLaplace, "noise_parameter"),
    (DiscreteGaussian, "sigma"),
    (Skellam, "variance"),
)
"""Noise on integers by place, each with its parameter."""


def _integer_noise(
    *, place: float, noise: float, contribution: float, steps: float, delta: float
) -> Question:
    kind, name = _INTEGERS[int(place)]
    event = kind(largest_contribution=int(contribution), **{name: noise})
    return epsilon_question(repeated(event, int(steps)), delta, Adjacency.ADD_REMOVE)


INTEGER_NOISE = Shape(
    build=_integer_noise,
    simple={
        "steps": STEPS,
        "place": (0, 1, 2),
        "contribution": (1, 2, 5),
        "noise": NOISES,
        "delta": DELTAS,
    },
)


SHAPES = {
    "run": RUN,
    "run, replace-one": RUN_REPLACE_ONE,
    "laplace": LAPLACE,
    "laplace, replace-one": LAPLACE_REPLACE_ONE,
    "randomised response": RANDOMISED_RESPONSE,
    "gaussian and laplace": GAUSSIAN_AND_LAPLACE,
    "two phases": TWO_PHASES,
    "three phases": THREE_PHASES,
    "gaussian and response": GAUSSIAN_AND_RESPONSE,
    "mixtures": MIXTURES,
    "shuffled": SHUFFLED,
    "fixed batch": FIXED_BATCH,
    "subsampled laplace": SUBSAMPLED_LAPLACE,
    "user": USER,
    "allocation": ALLOCATION,
    "integer noise": INTEGER_NOISE,
    "delta of run": DELTA_OF_RUN,
    "delta of run, replace-one": DELTA_OF_RUN_REPLACE_ONE,
    "delta of laplace": DELTA_OF_LAPLACE,
    "tpr of run": TPR_OF_RUN,
    "tpr of run, replace-one": TPR_OF_RUN_REPLACE_ONE,
}
"""Shapes by their names in `cells.toml`."""

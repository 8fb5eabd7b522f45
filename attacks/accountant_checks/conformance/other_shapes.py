"""Shapes of questions about events that few accountants know: capped and divided batches, correlated noise,
choices, and mechanisms of which a promise or all outputs are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from workbench.accounting.correlated import CorrelatedGaussian, SampledCorrelatedGaussian
from workbench.accounting.encoders import toeplitz_encoder, tree_encoder
from workbench.accounting.events import Event, FinitePair
from workbench.accounting.samples import BatchMean, CappedPoisson
from workbench.accounting.selections import BestOfRuns, ExponentialMechanism, PrivateStep
from workbench.accounting.thresholds import SparseVector
from workbench.attacks.accountant_checks.conformance.questions import Question
from workbench.attacks.accountant_checks.conformance.shapes import (
    DELTAS,
    NOISES,
    RATES,
    STEPS,
    Shape,
    epsilon_question,
    repeated,
)
from workbench.interfaces import Adjacency

_SIZES = (100, 1000, 10_000)


def _steps_of(
    kind: type[Event], *, whole: Sequence[str] = (), flags: Sequence[str] = ()
) -> Callable[..., Question]:
    """Questions about an event that is repeated; some of its fields are whole numbers, or flags."""

    def build(*, steps: float, delta: float, **fields: float) -> Question:
        given = {
            name: int(value) if name in whole else bool(value) if name in flags else value
            for name, value in fields.items()
        }
        return epsilon_question(repeated(kind(**given), int(steps)), delta, Adjacency.ADD_REMOVE)

    return build


def _coefficients(decay: float, bands: float) -> tuple[float, ...]:
    """A first column 1, decay, decay^2, ... of so many entries."""
    return tuple(decay**place for place in range(int(bands)))


def _correlated(
    *,
    noise_multiplier: float,
    decay: float,
    bands: float,
    steps: float,
    participations: float,
    separation: float,
    delta: float,
) -> Question:
    encoder = toeplitz_encoder(coefficients=_coefficients(decay, bands), steps=int(steps))
    event = CorrelatedGaussian(
        noise_multiplier=noise_multiplier,
        encoder=encoder,
        participations=int(participations),
        separation=int(separation),
    )
    return epsilon_question(event, delta, Adjacency.ADD_REMOVE)


def _tree(*, noise_multiplier: float, steps: float, participations: float, delta: float) -> Question:
    event = CorrelatedGaussian(
        noise_multiplier=noise_multiplier,
        encoder=tree_encoder(steps=int(steps)),
        participations=int(participations),
    )
    return epsilon_question(event, delta, Adjacency.ADD_REMOVE)


def _sampled_correlated(
    *,
    noise_multiplier: float,
    decay: float,
    groups: float,
    steps: float,
    sampling_probability: float,
    delta: float,
) -> Question:
    event = SampledCorrelatedGaussian(
        noise_multiplier=noise_multiplier,
        encoder=toeplitz_encoder(coefficients=_coefficients(decay, groups), steps=int(steps)),
        sampling_probability=sampling_probability,
        groups=int(groups),
    )
    return epsilon_question(event, delta, Adjacency.ADD_REMOVE)


def _best(*, epsilon: float, shape: float, mean: float, steps: float, delta: float) -> Question:
    """The shape below 0 stands for a Poisson number of runs."""
    step = BestOfRuns(epsilon=epsilon, shape=math.inf if shape < 0 else shape, mean=mean)
    return epsilon_question(repeated(step, int(steps)), delta, Adjacency.ADD_REMOVE)


def _promise(*, epsilon: float, promised_delta: float, steps: float, delta: float) -> Question:
    step = PrivateStep(epsilon=epsilon, delta=promised_delta)
    return epsilon_question(repeated(step, int(steps)), delta, Adjacency.ADD_REMOVE)


def _finite_pair(
    *, with_record: float, without: float, exposed: float, steps: float, delta: float
) -> Question:
    """Three outputs: one of these chances in thousandths, one that only the record makes, in millionths."""
    only, p, q = (
        Fraction(int(exposed), 10**6),
        Fraction(int(with_record), 1000),
        Fraction(int(without), 1000),
    )
    pair = FinitePair(p=((1 - only) * p, (1 - only) * (1 - p), only), q=(q, 1 - q, Fraction(0)))
    return epsilon_question(repeated(pair, int(steps)), delta, Adjacency.ADD_REMOVE)


_BATCHES = {
    "steps": STEPS,
    "dataset_size": _SIZES,
    "sampling_probability": RATES[1:],
    "noise_multiplier": NOISES,
    "delta": DELTAS,
}
_DECAYS = (0.5, 0.9, 0.2)

OTHER_SHAPES = {
    "capped": Shape(
        build=_steps_of(CappedPoisson, whole=("dataset_size", "largest_batch")),
        simple={**_BATCHES, "largest_batch": (10, 20, 50, 100)},
    ),
    "batch mean": Shape(
        build=_steps_of(BatchMean, whole=("dataset_size", "dimension")),
        simple={**_BATCHES, "dimension": (1_000_000, 1000, 100, 2)},
    ),
    "correlated": Shape(
        build=_correlated,
        simple={
            "steps": STEPS,
            "participations": (1, 2, 3, 5, 10),
            "separation": (1, 2, 5, 10),
            "bands": (1, 2, 3, 5),
            "decay": _DECAYS,
            "noise_multiplier": NOISES,
            "delta": DELTAS,
        },
    ),
    "tree": Shape(
        build=_tree,
        simple={
            "steps": (2, 4, 8, 16, 64),
            "participations": (1, 2, 3),
            "noise_multiplier": NOISES,
            "delta": DELTAS,
        },
    ),
    "sampled, correlated": Shape(
        build=_sampled_correlated,
        simple={
            "steps": STEPS,
            "groups": (1, 2, 3, 5),
            "sampling_probability": RATES[1:],
            "decay": _DECAYS,
            "noise_multiplier": NOISES,
            "delta": DELTAS,
        },
    ),
    "exponential": Shape(
        build=_steps_of(ExponentialMechanism, flags=("monotone",)),
        simple={"steps": STEPS, "monotone": (0, 1), "scale": NOISES, "delta": DELTAS},
    ),
    "best of runs": Shape(
        build=_best,
        simple={
            "steps": STEPS,
            "shape": (1, 0, 2, -1),
            "mean": (10, 2, 100),
            "epsilon": (1.0, 0.1, 0.5, 2.0),
            "delta": DELTAS,
        },
    ),
    "sparse vector": Shape(
        build=_steps_of(SparseVector, whole=("cutoff",), flags=("monotone",)),
        simple={
            "steps": STEPS,
            "cutoff": (1, 2, 3, 5),
            "monotone": (0, 1),
            "threshold_scale": NOISES,
            "query_scale": NOISES,
            "delta": DELTAS,
        },
    ),
    "promise": Shape(
        build=_promise,
        simple={
            "steps": STEPS,
            "promised_delta": (0.0, 1e-6, 1e-8),
            "epsilon": (1.0, 0.1, 0.5, 2.0),
            "delta": DELTAS,
        },
    ),
    "finite pair": Shape(
        build=_finite_pair,
        simple={
            "steps": STEPS,
            "exposed": (0, 1, 100),
            "with_record": (500, 100, 900, 10),
            "without": (500, 100, 900, 10),
            "delta": DELTAS,
        },
    ),
}
"""Shapes by their names in `cells.toml`."""

"""RLDP's baselines on the digits, from clipping norms that suit them and that do not, against a static norm.

A method that chooses its clipping norm is worth something where nobody has tuned it. So each begins with a
norm far too small, a usual one, and one far too large, at one learning rate; a static norm is run at these,
and over a grid, whose best by its own test accuracy is what tuning could reach at most.

Beside it the setting of GeoClip's and AdaCliP's theory: the mean of Gaussian vectors whose coordinates spread
over two decades, released T times, by the errors of the releases.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy import stats
from shared import machine, options, quiet, write
from torch import nn

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.interfaces import Plan
from workbench.training.flat import FlatLayout
from workbench.training.per_record import MatrixSignals

MEMBERS, HELD_OUT, BATCH, STEPS = 1000, 500, 128, 100
EPSILON, DELTA, RATE = 2.0, 1e-5, 1.0
FIRST_NORMS = (0.01, 1.0, 100.0)
GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
AXES, POPULATION, SAMPLE, RELEASES, NOISE = 10, 1280, 256, 300, 1.0
LEAST_SCALE = 0.01
"""AdaCliP's smallest scale of a coordinate, over its largest."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Contestant:
    """A mechanism with parameters.

    Attributes:
        name: In the tables.
        mechanism: As registered.
        parameters: But the clipping norm and the noise.
    """

    name: str
    mechanism: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def mechanism_at(self, norm: float, **more: Any) -> Any:
        """The mechanism that begins with this clipping norm."""
        least = {"least_l2_clip_norm": LEAST_SCALE * norm} if self.mechanism == "adaclip" else {}
        return registry.create(
            "mechanism", self.mechanism, l2_clip_norm=norm, **least, **self.parameters, **more
        )


Measure = Callable[[Contestant, float, int], float]
Best = Callable[..., str]
"""`max` or `min`."""


STATIC = Contestant("static", "dp_sgd")
CONTESTANTS = (
    Contestant("AUTO-S", "dp_sgd", {"clipping": "automatic"}),
    Contestant("PSAC", "psac"),
    Contestant("AutoClip (quantile, paid)", "autoclip", {"estimate": "private"}),
    Contestant("DC-SGD-P", "dc_sgd", {"choice": "percentile"}),
    Contestant("DC-SGD-P, bins by the norm", "dc_sgd", {"choice": "percentile", "bins_follow": "norm"}),
    Contestant("DC-SGD-E", "dc_sgd", {"choice": "expected-error"}),
    Contestant("AdaCliP, of a mean", "adaclip", {"variance_of": "mean"}),
    Contestant("AdaCliP, of a record", "adaclip", {"variance_of": "record"}),
    Contestant("GeoClip, of a record", "geoclip", {"covariance_of": "record"}),
    Contestant("GeoClip, of a mean", "geoclip", {"covariance_of": "mean"}),
)
OF_MEANS = tuple(one for one in CONTESTANTS if one.mechanism in ("dp_sgd", "adaclip", "geoclip"))


def mean_and_half_width(values: list[float]) -> tuple[float, float]:
    """The mean over seeds, and the half width of its t interval."""
    spread = statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values), float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * spread


def accuracy(contestant: Contestant, norm: float, seed: int) -> float:
    """Test accuracy of a logistic model of the digits, percent."""
    corpus = registry.create("corpus", "digits", size=MEMBERS, seed=seed, held_out=HELD_OUT, public=0)
    plan = Plan(
        records=tuple(corpus.records),
        held_out=tuple(corpus.held_out),
        model="digits_logistic",
        steps=STEPS,
        sampling_probability=BATCH / MEMBERS,
        learning_rate=RATE,
        optimizer="sgd",
        budget=ApproximateDP(epsilon=EPSILON, delta=DELTA),
        seed=seed,
    )
    trained = contestant.mechanism_at(norm).train(plan)
    return 100 * float(trained.transcript.metrics["test_accuracy_after"])


def error_of_means(contestant: Contestant, norm: float, seed: int) -> float:
    """Squared error of a released mean of Gaussian vectors, over the second half of the releases."""
    corpus = registry.create("corpus", "toy_regression", size=POPULATION, seed=0)
    plan = Plan(
        records=tuple(corpus.records),
        held_out=(),
        model="toy_regression",
        steps=RELEASES,
        sampling_probability=SAMPLE / POPULATION,
        learning_rate=RATE,
        optimizer="sgd",
        seed=seed,
    )
    mechanism = contestant.mechanism_at(norm, noise_multiplier=NOISE, measures_quality=False)
    steps = mechanism.steps(plan, registry.create("model", "toy_regression", seed=0))
    generator = torch.Generator().manual_seed(seed)
    layout = FlatLayout.of(nn.Linear(AXES, 1, bias=False))
    spread = torch.logspace(-2, 0, AXES)  # And the mean: each vector is this times N(1, 1).
    errors = []
    for step in range(RELEASES):
        rows = (torch.randn(SAMPLE, AXES, generator=generator) + 1) * spread
        released = steps.privatise(MatrixSignals(layout, rows, torch.zeros(SAMPLE)), generator)
        if step >= RELEASES // 2:
            errors.append(float((released.flatten() / SAMPLE - rows.mean(0)).square().sum()))
    return statistics.fmean(errors)


def by_norm(contestant: Contestant, measure: Measure, norms: Sequence[float], seeds: int) -> dict[str, Any]:
    """A contestant's values from each first norm: the mean over seeds, and the interval's half width."""
    values = {
        f"{norm:g}": mean_and_half_width([measure(contestant, norm, seed) for seed in range(seeds)])
        for norm in norms
    }
    return {"name": contestant.name, "values": values}


def compared(contestants: Sequence[Contestant], measure: Measure, best: Best, seeds: int) -> dict[str, Any]:
    """All contestants from the first norms, the static one over the whole grid, and its best norm."""
    static = by_norm(STATIC, measure, GRID, seeds)
    tuned = best(static["values"], key=lambda norm: static["values"][norm][0])
    others = [by_norm(one, measure, FIRST_NORMS, seeds) for one in contestants]
    return {"tuned": {"norm": tuned, "value": static["values"][tuned]}, "rows": [static, *others]}


def main() -> None:
    """Command line."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="trainings of each contestant and first norm")
    given = parser.parse_args()
    quiet(given.threads)
    report = {
        "machine": machine(("torch", "numpy")),
        "seeds": given.seeds,
        "members": MEMBERS,
        "batch": BATCH,
        "steps": STEPS,
        "epsilon": EPSILON,
        "delta": DELTA,
        "rate": RATE,
        "norms": [f"{norm:g}" for norm in FIRST_NORMS],
        "least_scale": LEAST_SCALE,
        "digits": compared(CONTESTANTS, accuracy, max, given.seeds),
        "axes": AXES,
        "sample": SAMPLE,
        "noise": NOISE,
        "means": compared(OF_MEANS, error_of_means, min, given.seeds),
    }
    write(given.out, "clipping_baselines", report)


if __name__ == "__main__":
    main()

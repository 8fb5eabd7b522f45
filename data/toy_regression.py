"""Linear regression as a toy: records drawn from a known line, and the linear model that learns it.

FERRET's appendix B shows what Gaussian dither does on "a simple linear-regression proxy" (its Fig. 5) and
says nothing else of that task. Here it is stated in full:

- d = 10 features, independent and standard normal; a true direction w, drawn once a seed, standard normal
  and scaled to length sqrt(d); target y = <w, x> + 0.1 e, with e standard normal. The best reachable mean
  squared error is 0.01, and a model at the origin has 10.01 in expectation;
- a model without intercept, one parameter tensor (so one group, as the appendix writes it), started at zero;
  its loss is the squared error of a record.

A record's `image` holds the features and, last, the target.

    >>> from workbench.core import registry
    >>> record = registry.create("corpus", "toy_regression", size=1, seed=0).records[0]
    >>> model = registry.create("model", "toy_regression", seed=0)
    >>> bool(abs(model.losses(model.encode([record])).item() - record.image[-1] ** 2) < 1e-6)
    True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.shared.parts import checked_count, checked_seed, part_sizes, require, split
from workbench.interfaces import Corpus, FloatArray, Record

if TYPE_CHECKING:
    from torch import Tensor

FEATURES = 10
"""d, where no other number is given."""

NOISE = 0.1
"""Standard deviation of the target around the line."""

MOST_RECORDS = 100_000
"""More of them teach a line nothing."""

MOST_FEATURES = 10_000


def _checked_features(features: int) -> int:
    if checked_count("features", features) > MOST_FEATURES:
        raise InputError(f"features must be at most {MOST_FEATURES}, got {features}")
    return features


@register("corpus", "toy_regression")
def toy_regression_corpus(
    *,
    size: int,
    seed: int,
    features: int = FEATURES,
    noise: float = NOISE,
    held_out: int | None = None,
    public: int | None = None,
) -> Corpus:
    """Records of a linear regression: standard normal features, and a target on a line with noise.

    `size`, `seed`, `held_out`, `public`: see `workbench.data.shared.parts.part_sizes`. `features`: d, at
    least 1. `noise`: standard deviation of the target around the line, >= 0. Raises `InputError`: a parameter
    is unusable, or more than 100,000 records are wanted.
    """
    sizes, generator = part_sizes(size, held_out, public), checked_seed(seed)
    require(sizes, MOST_RECORDS, "the toy regression")
    _checked_features(features)
    if not 0.0 <= noise < math.inf:
        raise InputError(f"noise must be finite and >= 0, got {noise!r}")
    line = generator.standard_normal(features)
    line *= math.sqrt(features) / np.linalg.norm(line)
    points = generator.standard_normal((sizes.total, features)).astype(np.float32)
    targets = points @ line + noise * generator.standard_normal(sizes.total)
    rows = np.column_stack([points, targets.astype(np.float32)]).tolist()
    records = [Record(id=f"toy-regression-{i:06d}", image=tuple(row)) for i, row in enumerate(rows)]
    parts = split(records, sizes, generator, "the toy regression")
    return Corpus(
        name="toy_regression",
        kind="image",
        origin=f"drawn: {features} standard normal features, a linear target with noise {noise:g}",
        **parts._asdict(),
    )


@register("model", "toy_regression")
def toy_regression_model(*, seed: int, features: int = FEATURES) -> LinearRegression:
    """A linear model without intercept, started at zero, with the squared error as its loss.

    `seed`: unused: the model starts at zero. `features`: d, at least 1; that of the corpus.
    """
    del seed
    return LinearRegression(_checked_features(features), "toy_regression")


class LinearRegression:
    """Prediction <w, x>; implements `workbench.interfaces.Model`.

    Its loss is a squared error and stands where others have nats; what the bench calls a perplexity is then
    the exponential of a mean squared error, and means nothing.
    """

    kind = "regression"

    def __init__(self, features: int, name: str) -> None:
        import torch
        from torch import nn

        self.module = nn.Linear(features, 1, bias=False)
        with torch.no_grad():
            self.module.weight.zero_()
        self.name = name

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """`features`, shape `(n, d)`, and `targets`, shape `(n,)`: float32, on the module's device."""
        import torch

        width = self.module.in_features + 1
        for record in records:
            if record.image is None or len(record.image) != width:
                given = "none" if record.image is None else f"{len(record.image)}"
                raise InputError(
                    f"record {record.id!r} must have {width} values, features and target, has {given}: "
                    f"model {self.name!r} reads corpus 'toy_regression'"
                )
        rows = torch.tensor([record.image for record in records], dtype=torch.float32).reshape(-1, width)
        rows = rows.to(self.module.weight.device)
        return {"features": rows[:, :-1], "targets": rows[:, -1]}

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Squared error of each record, shape `(n,)`; differentiable."""
        predictions: Tensor = self.module(batch["features"])
        return (predictions.squeeze(-1) - batch["targets"]).square()

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Minus the squared error: one float64 array of shape `(1,)` a record."""
        import torch

        with torch.no_grad():
            values = (-self.losses(batch)).cpu().double().numpy()
        return [np.asarray([value], dtype=np.float64) for value in values]

"""Figs. 3 and 4 of Shuffled DPSGD as arrays: the noise of Theorem 6 over epsilon and over the dimension.

Both sides use the paper's accounting: Theorem 6 per step, Theorem 2 for the sampling, Theorem 1 for the
composition. "Unshuffled" is the same at d = 1 (Algorithm 1, line 3), not the RDP accountant of the paper's
baselines.

What the paper does not print is an argument here: the batch size of the trainings (1,000, that of the audit
in Section VI-F, is the only one in the paper), the batch clip c', and the setting of Fig. 4 (by default
the ViT's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray
from workbench.mechanisms.accountants.shuffled_dp_sgd import noise_multiplier_for

FIGURE_3_EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
FIGURE_4_EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
FIGURE_4_DIMENSIONS = (1, 10, 10**2, 10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)
AUDIT_BATCH = 1000
"""Section VI-F."""


@dataclass(frozen=True, kw_only=True)
class PaperRun:
    """One training of Table I.

    Attributes:
        model, dataset: As printed.
        dimension: Trainable parameters, all of which the paper counts as shuffled ("100 %").
        records: N.
        epochs: As printed.
        delta: As printed, 1 / (2 N) worked out.
    """

    model: str
    dataset: str
    dimension: int
    records: int
    epochs: int
    delta: float

    @property
    def name(self) -> str:
        """`ViT, CIFAR100`."""
        return f"{self.model}, {self.dataset}"

    def schedule(self, batch_size: int) -> tuple[float, int]:
        """Sampling probability and number of steps at a batch size.

        Raises:
            InputError: batch_size is outside 1..N.
        """
        if not 1 <= batch_size <= self.records:
            raise InputError(f"batch_size must be in 1..{self.records}, got {batch_size!r}")
        return batch_size / self.records, -(-self.epochs * self.records // batch_size)


_CLASSIFIED = (("SST-2", 67_349, 3), ("QQP", 363_846, 18), ("MNLI", 392_702, 18), ("QNLI", 108_000, 6))
_GENERATED = (("E2E", 42_043, 10, 8e-6), ("DART", 60_591, 15, 1e-5))

PAPER_RUNS: tuple[PaperRun, ...] = (
    PaperRun(model="ViT", dataset="CIFAR100", dimension=85_800_000, records=50_000, epochs=10, delta=5e-6),
    *(
        PaperRun(model=model, dataset=data, dimension=size, records=n, epochs=epochs, delta=1 / (2 * n))
        for model, size in (("BERT", 110_000_000), ("RoBERTa", 125_000_000))
        for data, n, epochs in _CLASSIFIED
    ),
    *(
        PaperRun(model=model, dataset=data, dimension=size, records=n, epochs=epochs, delta=delta)
        for model, size in (("GPT-2", 124_000_000), ("GPT-2-large", 838_000_000))
        for data, n, epochs, delta in _GENERATED
    ),
)
"""Table I. Fig. 3 shows six of them; which data sets its BERT and RoBERTa panels used is not printed."""


def paper_run(name: str) -> PaperRun:
    """The run of Table I with this name.

    Raises:
        InputError: there is none.
    """
    by_name = {run.name: run for run in PAPER_RUNS}
    if name not in by_name:
        raise unknown_name("run of Table I", name, by_name)
    return by_name[name]


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseCurve:
    """Fig. 3, one panel.

    Attributes:
        run: Which training.
        epsilons: Shape `(n,)`.
        shuffled: sigma / c by Theorem 6, shape `(n,)`.
        unshuffled: sigma_0 / c of Algorithm 1, line 3, shape `(n,)`.
    """

    run: PaperRun
    epsilons: FloatArray
    shuffled: FloatArray
    unshuffled: FloatArray

    @property
    def lognormal_sigma(self) -> FloatArray:
        """Spread c / sigma of the lognormals that Theorem 6 sums at each epsilon (Fig. 2 shows 0.25)."""
        values: FloatArray = 1.0 / self.shuffled
        return values


def noise_curve(
    run: PaperRun,
    *,
    epsilons: Sequence[float] = FIGURE_3_EPSILONS,
    batch_size: int = AUDIT_BATCH,
    batch_clip: float = 1.0,
    slack: float = 0.5,
    zeta_2: str = "appendix",
) -> NoiseCurve:
    """Fig. 3: the noise multiplier over epsilon, shuffled and not.

    Args:
        run: A row of Table I, or one's own.
        epsilons: Budgets of the whole training.
        batch_size: |B|; the paper does not print it.
        batch_clip: c' / c; the paper does not print it.
        slack: Share of delta that Theorem 1 keeps for the composition.
        zeta_2: `"appendix"` or `"main text"`.

    Raises:
        InputError: an argument is out of range.
    """
    probability, steps = run.schedule(batch_size)

    def noise(dimension: int) -> FloatArray:
        return np.array(
            [
                noise_multiplier_for(
                    epsilon=float(epsilon),
                    delta=run.delta,
                    sampling_probability=probability,
                    steps=steps,
                    dimension=dimension,
                    batch_clip=batch_clip,
                    slack=slack,
                    zeta_2=zeta_2,
                )
                for epsilon in epsilons
            ]
        )

    return NoiseCurve(
        run=run,
        epsilons=np.asarray(epsilons, dtype=np.float64),
        shuffled=noise(run.dimension),
        unshuffled=noise(1),
    )


def noise_map(
    *,
    epsilons: Sequence[float] = FIGURE_4_EPSILONS,
    dimensions: Sequence[int] = FIGURE_4_DIMENSIONS,
    run: PaperRun = PAPER_RUNS[0],
    batch_size: int = AUDIT_BATCH,
    batch_clip: float = 1.0,
    slack: float = 0.5,
    zeta_2: str = "appendix",
) -> FloatArray:
    """Fig. 4: noise multipliers over epsilon and dimension; d = 1 is the unshuffled mechanism.

    Args:
        epsilons: Budgets of the whole training, one a row.
        dimensions: Numbers d of shuffled coordinates, one a column.
        run: Where N, epochs and delta are taken from; its dimension is not used.
        batch_size: See `noise_curve`.
        batch_clip: See there.
        slack: See there.
        zeta_2: See there.

    Returns:
        Shape `(len(epsilons), len(dimensions))`.

    Raises:
        InputError: an argument is out of range.
    """
    probability, steps = run.schedule(batch_size)
    return np.array(
        [
            [
                noise_multiplier_for(
                    epsilon=float(epsilon),
                    delta=run.delta,
                    sampling_probability=probability,
                    steps=steps,
                    dimension=int(dimension),
                    batch_clip=batch_clip,
                    slack=slack,
                    zeta_2=zeta_2,
                )
                for dimension in dimensions
            ]
            for epsilon in epsilons
        ]
    )

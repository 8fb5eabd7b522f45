"""The stats layer: what the papers print, and what a statistician would add.

The unit of replication comes first. A `Sample` says to which independent unit (a seed, a trained model) each
measurement belongs, and every test, interval and effect size works on units. A function whose name ends in
`_as_printed` counts every measurement as a replicate, as a paper did; the unit of its results says so.

Each result is frozen plain data with its confidence, number of units, unit and assumption.
Degenerate questions (one seed, no spread) get a `NotTestable` with the reason; unusable input raises an
`InputError`; nothing warns.

Error rates, measured at confidence 0.95 by simulations like those of `tests/reports/test_statistics_rates.py`
(1,000 data sets each):

- Pseudo-replication: two sides without a difference, 28 measurements for each of 2 to 10 seeds a side.
  Where half of the variance lies between seeds, the t tests and the Wilcoxon test as printed call a
  difference in 60 to 66 % of studies; where a tenth does, in 27 to 32 %. On seeds `paired_t` does so in 4 to
  6 %, `welch_t` in 2 to 5 %, `wilcoxon` in 0 to 4 %.
- The t interval of 3, 5, 10 or 20 units covers the mean of a normal and of a heavy-tailed distribution (t
  with 3 degrees of freedom) 94 to 97 % of the time, but of a strongly skewed one (lognormal, sigma = 1) only
  83 to 87 %: there it fails, and so does every test that is built on it if the differences are skewed.
- Power of `paired_t` for a mean difference of 1.06 SD of the differences: 19, 46, 84, 99 % at 3, 5, 10, 20
  pairs. `wilcoxon` cannot reject at 5 % with fewer than 6 pairs, whatever they are.
- TOST at the margin's edge declares equivalence in 3 to 5 %.

>>> dp = Sample([2.9, 3.1, 3.0, 3.2], (0, 1, 2, 3), "seed")
>>> noisy = Sample([3.8, 4.1, 3.7, 4.2], (0, 1, 2, 3), "seed")
>>> answer = paired_t(dp, noisy)
>>> answer.n_units, round(answer.estimate, 3), answer.significant
(4, -0.9, True)
>>> tost_paired(dp, noisy, margin=0.1).equivalent
False
"""

from __future__ import annotations

from workbench.reports.shared.statistics.many import CORRECTIONS, adjust
from workbench.reports.shared.statistics.metrics import comparison_by_unit, spread_within_units
from workbench.reports.shared.statistics.results import (
    Answer,
    Equivalence,
    Interval,
    NotTestable,
    StatisticalTest,
    value_of,
)
from workbench.reports.shared.statistics.sample import Sample, matched
from workbench.reports.shared.statistics.student import POWER, power_of_t, units_to_decide
from workbench.reports.shared.statistics.tests import (
    mean_interval,
    paired_t,
    pooled_t_as_printed,
    tost_paired,
    tost_welch,
    welch_t,
    wilcoxon_as_printed,
)

__all__ = [
    "CORRECTIONS",
    "POWER",
    "Answer",
    "Equivalence",
    "Interval",
    "NotTestable",
    "Sample",
    "StatisticalTest",
    "adjust",
    "comparison_by_unit",
    "matched",
    "mean_interval",
    "paired_t",
    "pooled_t_as_printed",
    "power_of_t",
    "spread_within_units",
    "tost_paired",
    "tost_welch",
    "units_to_decide",
    "value_of",
    "welch_t",
    "wilcoxon_as_printed",
]

"""The stats layer: what the papers print, and what a statistician would add.

The unit of replication comes first. A `Sample` says to which independent unit (a seed, a trained model) each
measurement belongs, and every test, interval and effect size works on units. A function whose name ends in
`_as_printed` counts every measurement as a replicate, as a paper did; its results are labelled so.

Each result is frozen plain data with its confidence, number of units, unit, assumption and `describe()`.
Degenerate questions (one seed, no spread) get a `NotTestable` with the reason; unusable input raises an
`InputError`; nothing warns.

Error rates, measured at confidence 0.95 by simulations like those of `tests/reports/test_statistics_rates.py`
(1,000 data sets each; bootstrap: 250):

- Pseudo-replication: two sides without a difference, 28 measurements for each of 2 to 10 seeds a side.
  Where half of the variance lies between seeds, the t tests and the Wilcoxon test as printed call a
  difference in 60 to 66 % of studies; where a tenth does, in 27 to 32 %. On seeds `paired_t` does so in 4 to
  6 %, `welch_t` in 2 to 5 %, `wilcoxon` in 0 to 4 %.
- The t interval of 3, 5, 10 or 20 units covers the mean of a normal and of a heavy-tailed distribution (t
  with 3 degrees of freedom) 94 to 97 % of the time, but of a strongly skewed one (lognormal, sigma = 1) only
  83 to 87 %: there it fails, and so does every test that is built on it if the differences are skewed.
- The bootstrap covers less than it says: normal units 80 % at 5 (refused), 90 % at 10, 94 % at 20; lognormal
  80 % at 10, 88 % at 20. It repairs neither few units nor skewness.
- Power of `paired_t` for a mean difference of 1.06 SD of the differences: 19, 46, 84, 99 % at 3, 5, 10, 20
  pairs. `wilcoxon` cannot reject at 5 % with fewer than 6 pairs, whatever they are.
- TOST at the margin's edge declares equivalence in 3 to 5 %; Cohen's d and d_z cover in 94 to 97 %.

>>> dp = Sample([2.9, 3.1, 3.0, 3.2], (0, 1, 2, 3), "seed")
>>> noisy = Sample([3.8, 4.1, 3.7, 4.2], (0, 1, 2, 3), "seed")
>>> answer = paired_t(dp, noisy)
>>> answer.n_units, round(answer.estimate, 3), answer.significant
(4, -0.9, True)
>>> print(tost_paired(dp, noisy, margin=0.1).describe().partition(" (")[0])
TOST, paired over 4 seeds: equivalence within ±0.1 not shown
"""

from __future__ import annotations

from workbench.reports.shared.statistics.bootstrap import LEAST_UNITS, bootstrap, bootstrap_difference
from workbench.reports.shared.statistics.effects import (
    cohens_d,
    cohens_d_paired,
    hedges_factor,
    rank_biserial,
)
from workbench.reports.shared.statistics.many import CORRECTIONS, adjust
from workbench.reports.shared.statistics.metrics import (
    MEASURES,
    PairMetrics,
    Summary,
    coefficient_of_variation,
    comparison,
    comparison_by_unit,
    spread_within_units,
    summary,
    summary_as_printed,
)
from workbench.reports.shared.statistics.power import (
    POWER,
    detectable_difference,
    power_of_t,
    units_to_decide,
)
from workbench.reports.shared.statistics.results import (
    AS_PRINTED,
    Answer,
    Equivalence,
    Interval,
    NotTestable,
    StatisticalTest,
    value_of,
)
from workbench.reports.shared.statistics.sample import Matched, Sample, matched
from workbench.reports.shared.statistics.tests import (
    ZEROS,
    mean_interval,
    paired_t,
    paired_t_as_printed,
    pooled_t,
    pooled_t_as_printed,
    tost_paired,
    tost_welch,
    welch_t,
    welch_t_as_printed,
    wilcoxon,
    wilcoxon_as_printed,
)

__all__ = [
    "AS_PRINTED",
    "CORRECTIONS",
    "LEAST_UNITS",
    "MEASURES",
    "POWER",
    "ZEROS",
    "Answer",
    "Equivalence",
    "Interval",
    "Matched",
    "NotTestable",
    "PairMetrics",
    "Sample",
    "StatisticalTest",
    "Summary",
    "adjust",
    "bootstrap",
    "bootstrap_difference",
    "coefficient_of_variation",
    "cohens_d",
    "cohens_d_paired",
    "comparison",
    "comparison_by_unit",
    "detectable_difference",
    "hedges_factor",
    "matched",
    "mean_interval",
    "paired_t",
    "paired_t_as_printed",
    "pooled_t",
    "pooled_t_as_printed",
    "power_of_t",
    "rank_biserial",
    "spread_within_units",
    "summary",
    "summary_as_printed",
    "tost_paired",
    "tost_welch",
    "units_to_decide",
    "value_of",
    "welch_t",
    "welch_t_as_printed",
    "wilcoxon",
    "wilcoxon_as_printed",
]

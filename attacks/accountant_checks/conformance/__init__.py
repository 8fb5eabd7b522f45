"""A conformance suite for anybody's accountant: named checks against certified two-sided values.

An accountant's answer is understood as an upper bound, so an answer below the certified *lower* bound is
wrong, whatever the accountant's method: `never_below_certified_lower[...]` finds these, family by family, and
a build should stop at them. The other checks find what bounds alone do not: steps in the wrong direction,
counts and orders that change the answer, an adjacency that is ignored, a calibration that lands on the wrong
side, corners that give NaN. Where a check fails, it prints the smallest counterexample that Hypothesis finds
and a line for a shell that prints the accountant's answer there.

What counts as an under-report: an answer strictly below the certified lower bound. Where the shortfall is at
most 1e-9 of the bound (1e-12 in epsilon), floating-point rounding explains it: it is counted apart, as
rounding, said in the result's notes, and no failure. Under-reports that rest on bounds which do not carry
every error fail only where a second, independent method finds the same. The worst and the smallest of each
check are computed a second time where a second method covers the event, and say so.

An accountant may refuse any question with a clear error; a check of which every cell was refused ends as
refused, which is neither passed nor failed. Time is limited: what was not asked for want of it is counted in
the result. A single call is never cut off.

In a user's own test file, each promise one test:

    from workbench.attacks.accountant_checks.conformance import parametrize_with_accountant_checks

    @parametrize_with_accountant_checks(["mypkg.acct:epsilon"])
    def test_accountant(accountant_check):
        accountant_check()

and the same without pytest:

>>> from workbench.accounting.gaussian import epsilon_of_delta
>>> def epsilon(*, noise_multiplier, sampling_probability, steps, delta):
...     return epsilon_of_delta(steps**0.5 / noise_multiplier, delta)
>>> checks = dict(accountant_checks(epsilon))
>>> checks["never_below_certified_lower[gaussian]"]().status
<CheckStatus.PASSED: 'passed'>
"""

from workbench.attacks.accountant_checks.conformance.results import (
    Cells,
    Check,
    CheckResult,
    CheckStatus,
    ConformanceReport,
    UnderReport,
)
from workbench.attacks.accountant_checks.conformance.suite import (
    CHECKS,
    GRIDS,
    accountant_checks,
    parametrize_with_accountant_checks,
    run_checks,
)

__all__ = [
    "CHECKS",
    "GRIDS",
    "Cells",
    "Check",
    "CheckResult",
    "CheckStatus",
    "ConformanceReport",
    "UnderReport",
    "accountant_checks",
    "parametrize_with_accountant_checks",
    "run_checks",
]

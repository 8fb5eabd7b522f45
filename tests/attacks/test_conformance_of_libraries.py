"""What the conformance suite finds in the libraries that people use, at the versions that we test."""

from __future__ import annotations

import pytest

from workbench.attacks.accountant_checks.conformance import CheckStatus, run_checks

SUBSAMPLED = "never_below_certified_lower[subsampled_gaussian]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("dp_accounting_pld", "never_below_certified_lower[randomised_response]"),
        ("dp_accounting_pld", "n_fold_compose_equals_n_composes"),
        ("opacus_gdp", SUBSAMPLED),
        ("opacus_rdp", "edge_cases"),
    ],
)
def test_what_is_known_of_libraries(name: str, check: str) -> None:
    """Faults that the libraries have at the versions that we test; where one is mended, this says so."""
    pytest.importorskip({"dp_accounting_pld": "dp_accounting"}.get(name, "opacus"))
    result = run_checks(name, only=[check], seconds=30).results[0]
    assert result.status is CheckStatus.FAILED
    if result.under_reports:
        assert result.under_reports[0].confirmed_by

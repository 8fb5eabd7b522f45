"""The figures of the hold-out of random cells that the documentation prints are those of its data."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_documentation_has_the_figures_of_the_data() -> None:
    found = json.loads((ROOT / "benchmarks/results/certified_holdout.json").read_text())
    text = " ".join((ROOT / "docs/accountants.md").read_text().split())
    assert found["outside_by_contour"] == found["refused"] == 0
    for words in (
        f"draws {found['cells']} Poisson-sampled runs",
        f"1e-3 in {100 * found['share_within_1e-3']:.1f} % and at most 1e-2 in "
        f"{100 * found['share_within_1e-2']:.1f} % of them",
        f"Of {found['contour_answers']} contour integrals none",
        f"Of {found['dp_accounting_answers']} intervals of dp-accounting "
        f"{found['disjoint_from_dp_accounting']} is disjoint",
    ):
        assert words in text

"""The report of any study: means over the unit of replication, comparisons, failures counted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from workbench.core.errors import InputError
from workbench.core.registry import create
from workbench.studies.experiments import Experiment, Outcome, Status, Study, StudyResults
from workbench.studies.report import Cell, StudyReport, Table

Metric = Callable[[Experiment], float]


def experiment(variant: str = "DP-SGD", **fields: Any) -> Experiment:
    settings: dict[str, Any] = {
        "group": "budgets",
        "variant": variant,
        "mechanism": "dp_sgd",
        "attack": "loss",
        "corpus": "clinical",
        "model": "tiny_gpt2",
        "members": 10,
        "epochs": 1,
        "batch_size": 5,
        "learning_rate": 1e-3,
        "seed": 0,
    }
    return Experiment(**(settings | fields))


def noise(item: Experiment) -> float:
    """The same draw for equal seeds whatever the variant, and a smaller one for the experiment itself."""
    shared = np.random.default_rng(item.seed).normal()
    own = np.random.default_rng([item.seed, int(item.epsilon or 0), len(item.variant)]).normal()
    return float(shared + 0.05 * own)


def results(
    experiments: Sequence[Experiment],
    metric: Metric,
    *,
    failed: Callable[[Experiment], bool] = lambda item: False,
    missing: Callable[[Experiment], bool] = lambda item: False,
) -> StudyResults:
    outcomes = []
    for place, item in enumerate(experiments):
        key = f"key-{place}"
        if failed(item):
            outcomes.append(
                Outcome(experiment=item, key=key, status=Status.FAILED, error="NaN: loss diverged")
            )
        elif missing(item):
            outcomes.append(Outcome(experiment=item, key=key, status=Status.MISSING))
        else:
            outcomes.append(
                Outcome(experiment=item, key=key, status=Status.DONE, metrics={"roc_auc": metric(item)})
            )
    study = Study(
        name="mine",
        title="Mine",
        profile="quick",
        replication="seed",
        experiments=tuple(experiments),
        source_sha256="0" * 64,
        notes=("a note of the study",),
    )
    return StudyResults(study=study, outcomes=tuple(outcomes))


def test_a_metric_and_a_group_may_have_any_name() -> None:
    found = results([experiment(group="ü" * 300, seed=seed) for seed in range(3)], noise)
    names = ("attack_tpr@0.1%", "../../evil", "attack_tpr_0_1", "\x1b[31m<script>", "x" * 400)
    renamed = [
        replace(outcome, metrics=dict.fromkeys(names, outcome.metrics["roc_auc"]))
        for outcome in found.outcomes
    ]
    made = create(
        "study_report",
        "generic",
        results=replace(found, outcomes=tuple(renamed)),
        published=None,
        confidence=0.95,
    )
    identifiers = [figure.id for figure in made.figures]
    assert len(set(identifiers)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{1,200}", one) for one in [*identifiers, made.tables[0].id])


def grid(seeds: int = 5, epsilons: Sequence[float] = (1.0, 4.0)) -> list[Experiment]:
    """Two budgeted variants and one without a budget, on the same seeds."""
    budgeted = [
        experiment(variant, epsilon=epsilon, delta=1e-5, seed=seed)
        for variant in ("DP-SGD", "DP-Weights")
        for epsilon in epsilons
        for seed in range(seeds)
    ]
    return budgeted + [experiment("fine-tuned", mechanism="non_private", seed=seed) for seed in range(seeds)]


def shifted(item: Experiment) -> float:
    return noise(item) + {"DP-SGD": 0.0, "DP-Weights": 0.0, "fine-tuned": 1.0}[item.variant]


def report(found: StudyResults, **parameters: Any) -> StudyReport:
    made = create("study_report", "generic", results=found, **parameters)
    assert isinstance(made, StudyReport)
    return made


def row(table: Table, *headers: str) -> tuple[Cell, ...]:
    return next(cells for names, cells in table.rows if names == headers)


class TestMeans:
    def test_a_row_for_each_variant_and_axis_that_varies(self) -> None:
        table = report(results(grid(), shifted)).tables[0]
        assert table.row_headers == ("variant", "epsilon")
        assert [names for names, _ in table.rows] == [
            ("DP-SGD", "1"),
            ("DP-SGD", "4"),
            ("DP-Weights", "1"),
            ("DP-Weights", "4"),
            ("fine-tuned", "none"),
        ]

    def test_the_cell_is_the_mean_over_seeds_with_its_t_interval(self) -> None:
        table = report(results(grid(), shifted)).tables[0]
        value = row(table, "DP-SGD", "4")[0].ours
        assert value is not None
        values = np.array([shifted(experiment(epsilon=4.0, seed=seed)) for seed in range(5)])
        # Student's t at 4 degrees of freedom, 97.5 %: 2.7764 (any table).
        half = 2.7764451 * np.std(values, ddof=1) / math.sqrt(5)
        assert value.n == 5
        assert value.estimate == pytest.approx(np.mean(values))
        assert value.spread == pytest.approx(np.std(values, ddof=1))
        assert (value.lower, value.upper) == pytest.approx((np.mean(values) - half, np.mean(values) + half))

    def test_a_row_without_numbers_says_what_came_of_it(self) -> None:
        found = results(
            grid(),
            shifted,
            failed=lambda item: item.epsilon == 1.0 and item.seed < 2,
            missing=lambda item: item.epsilon == 1.0 and item.seed >= 2,
        )
        cell = row(report(found).tables[0], "DP-SGD", "1")[0]
        assert cell.ours is None
        assert cell.why_blank == "2 seeds failed, 3 seeds not run yet"

    @pytest.mark.parametrize("value", [math.inf, math.nan, 1e200])
    def test_an_infinite_value_is_not_left_out_of_a_mean_in_silence(self, value: float) -> None:
        def diverged(item: Experiment) -> float:
            return value if item.epsilon == 1.0 and item.seed == 0 else shifted(item)

        made = report(results(grid(), diverged))
        assert row(made.tables[0], "DP-SGD", "1")[0].why_blank == "not finite in 1 of 5 seeds"
        assert "not finite" in row(made.tables[1], "DP-SGD", "fine-tuned", "roc_auc")[0].why_blank

    def test_a_parameter_that_varies_is_an_axis(self) -> None:
        items = [experiment(mechanism_parameters={"form": form}) for form in ("3.1", "8.1.2")]
        table = report(results(items, noise)).tables[0]
        assert table.row_headers == ("variant", "mechanism_parameters.form")


class TestComparisons:
    def test_variants_on_shared_seeds_are_compared_in_pairs(self) -> None:
        made = report(results(grid(), shifted))
        table = made.tables[1]
        difference, p_value, adjusted, _ = (c.ours for c in row(table, "DP-SGD", "fine-tuned", "roc_auc"))
        assert difference is not None
        assert p_value is not None
        assert adjusted is not None
        assert difference.n == 5  # Seeds: not 10 measurements.
        assert difference.lower is not None
        assert difference.upper is not None
        assert difference.lower < -1.0 < difference.upper
        assert p_value.estimate < adjusted.estimate <= 3.0 * p_value.estimate
        # The shared draw of a seed has SD 1 and cancels within pairs alone.
        assert difference.upper - difference.lower < 0.3
        assert any("paired t" in note for note in table.notes)

    def test_other_splits_are_no_pairs(self) -> None:
        items = grid()[:10] + [
            experiment("fine-tuned", corpus_parameters={"records": 7}, seed=seed) for seed in range(5)
        ]
        table = report(results(items, shifted)).tables[1]
        assert any("Welch t" in note for note in table.notes)

    def test_equivalence_needs_a_margin_and_both_tests(self) -> None:
        found = results(grid(), shifted)
        assert "equivalence" not in report(found).tables[1].columns
        wide = report(found, margins={"roc_auc": 0.5}).tables[1]
        cells = row(wide, "DP-SGD", "DP-Weights", "roc_auc")
        assert cells[-1].ours is not None
        assert cells[-1].ours.text == "equivalent within ±0.5"
        assert cells[-1].ours.p_value is not None
        assert cells[-1].ours.p_value < 0.05
        apart = row(wide, "DP-SGD", "fine-tuned", "roc_auc")[-1].ours
        assert apart is not None
        assert apart.text == "not shown within ±0.5"

    def test_one_seed_gives_no_p_value_anywhere(self) -> None:
        made = report(results(grid(seeds=1), shifted), margins={"roc_auc": 0.5})
        for names, cells in made.tables[1].rows:
            assert all(cell.ours is None for cell in cells), names
            assert all("needs at least 2 seeds, got 1" in cell.why_blank for cell in cells), names
        values = [cells[0].ours for _, cells in made.tables[0].rows]
        assert all(v is not None and v.lower is None and v.spread is None and v.n == 1 for v in values)
        assert any("With one seed nothing can be tested" in note for note in made.notes)

    def test_a_failed_budget_does_not_shift_the_comparison_with_the_baseline(self) -> None:
        def steep(item: Experiment) -> float:
            return noise(item) + (100.0 if item.epsilon == 4.0 else 0.0)

        whole = report(results(grid(), steep)).tables[1]
        broken = report(
            results(
                grid(), steep, failed=lambda i: i.variant == "DP-SGD" and i.epsilon == 4.0 and i.seed == 0
            )
        ).tables[1]
        for table, seeds in ((whole, 5), (broken, 4)):
            value = row(table, "DP-SGD", "fine-tuned", "roc_auc")[0].ours
            assert value is not None
            assert value.n == seeds
            assert value.estimate == pytest.approx(50.0, abs=0.2)


class TestFigures:
    def test_lines_over_the_budget_with_the_baseline_level(self) -> None:
        (figure,) = report(results(grid(), shifted)).figures
        assert figure.id == "group-1-budgets-roc-auc"
        assert [key.label for key in figure.legend][:3] == ["DP-SGD", "DP-Weights", "fine-tuned"]
        assert "95 % t interval of the mean over seeds" in figure.caption

    def test_every_seed_where_nothing_varies(self) -> None:
        items = [experiment(variant, seed=seed) for variant in ("DP-SGD", "DP-Weights") for seed in range(3)]
        (figure,) = report(results(items, shifted)).figures
        assert "Each point is one seed" in figure.caption

    def test_more_series_than_can_be_told_apart_are_not_drawn(self) -> None:
        items = [
            experiment(epsilon=epsilon, batch_size=batch_size)
            for epsilon in (1.0, 4.0)
            for batch_size in range(1, 10)
        ]
        made = report(results(items, noise))
        assert made.figures == ()
        assert any("9 series are too many for one picture" in note for note in made.notes)

    def test_the_whole_report_can_be_written(self) -> None:
        made = report(results(grid(), shifted), margins={"roc_auc": 0.5})
        for table in made.tables:
            for writer in ("table_markdown", "table_latex", "table_csv"):
                assert "DP-Weights" in create("report", writer, table=table)


class TestNotes:
    def test_failures_are_counted_and_named(self) -> None:
        found = results(grid(), shifted, failed=lambda item: item.seed == 0 and item.variant == "DP-SGD")
        notes = report(found).notes
        assert notes[0] == "a note of the study"
        assert any("23 of 25 experiments done, 2 failed, 0 not run yet" in note for note in notes)
        assert any(note.startswith("Failed (2): NaN: loss diverged") for note in notes)

    def test_a_study_without_any_record_has_a_report(self) -> None:
        made = report(results(grid(), shifted, missing=lambda item: True), margins={"roc_auc": 1.0})
        assert [table.columns for table in made.tables] == [()]

    @pytest.mark.parametrize(
        ("parameters", "words"),
        [
            ({"confidence": 1.5}, r"confidence must be in \(0.5, 1\), got 1.5"),
            ({"correction": "holms"}, "did you mean 'holm'"),
            ({"margins": {"roc_auc": -1.0}}, "margin must be a finite number above 0, got -1.0"),
            ({"margins": {"auc": 1.0}}, "margins names 'auc'"),
        ],
    )
    def test_what_cannot_be_used_is_named(self, parameters: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            report(results(grid(), shifted), **parameters)

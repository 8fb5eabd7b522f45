"""ROC curves of a DP-Weights report: whose they are, and what is left out of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from workbench.reports.papers.dp_weights.report import REPORT, figures, roc_figure
from workbench.reports.shared import study as studies
from workbench.reports.shared.context import Context
from workbench.studies.experiments import Experiment, Outcome, Status, Study, StudyResults
from workbench.studies.report import Figure

BUDGETS = {"DP-SGD": (1.0, 30.0, 1000.0), "DP-Weights": (1.0, 30.0, 1000.0), "Fine-tuned": (None,)}
INCLUDED = (True, False) * 20


def scores_of(variant: str, place: int) -> tuple[float, ...]:
    """Of 40 candidates: the fine-tuned model tells all members, the others guess."""
    if variant == "Fine-tuned":
        return tuple(map(float, INCLUDED))
    return tuple(map(float, np.random.default_rng(place).normal(size=len(INCLUDED))))


def context_of(**changes: dict[tuple[str, int], Any]) -> Context:
    """Of three seeds at batch sizes 5 and 100 and epochs 1 and 20.

    Args:
        changes: Fields of the outcomes of a variant and seed, by field.
    """
    outcomes = []
    settings = [("batch size", "batch_size", 5), ("batch size", "batch_size", 100)]
    settings += [("epochs", "epochs", 1), ("epochs", "epochs", 20)]
    for group, field, value in settings:
        for variant, budgets in BUDGETS.items():
            for epsilon in budgets:
                for seed in range(3):
                    fields: dict[str, Any] = {"epochs": 10, "batch_size": 50, field: value}
                    experiment = Experiment(
                        group=group,
                        variant=variant,
                        mechanism="m",
                        attack="loss",
                        corpus="c",
                        model="m",
                        members=20,
                        learning_rate=1e-3,
                        seed=seed,
                        epsilon=epsilon,
                        delta=None if epsilon is None else 1e-4,
                        **fields,
                    )
                    found: dict[str, Any] = {
                        "status": Status.DONE,
                        "scores": scores_of(variant, len(outcomes)),
                        "included": INCLUDED,
                    }
                    found |= {
                        name: by_place[variant, seed]
                        for name, by_place in changes.items()
                        if (variant, seed) in by_place
                    }
                    outcomes.append(Outcome(experiment=experiment, key="k", **found))
    study = Study(
        name="s",
        title="T",
        profile="quick",
        replication="seed",
        experiments=tuple(outcome.experiment for outcome in outcomes),
        source_sha256="0",
    )
    results = StudyResults(study=study, outcomes=tuple(outcomes))
    return studies.context_of(REPORT, results, None, 0.95)


def drawn(context: Context, group: str) -> Figure:
    figure = roc_figure(context, group)
    assert figure is not None
    return figure


def test_the_curves_are_of_one_training_each_where_most_steps_are_made() -> None:
    by_batch, by_epochs = (drawn(context_of(), group) for group in ("batch size", "epochs"))
    assert by_batch.title == "ROC of the attack at batch size 5"
    assert by_epochs.title == "ROC of the attack at epochs 20"
    assert by_batch.caption.startswith(
        "One training each, of seed 0, epsilon 30 (none for Fine-tuned). DP-SGD: 20 members, 20 non-members"
    )
    assert "Fine-tuned: 20 members, 20 non-members, AUC 1," in by_batch.caption
    assert [key.label for key in by_batch.legend[:3]] == ["DP-SGD", "DP-Weights", "Fine-tuned"]


@pytest.mark.parametrize(
    "change",
    [
        {"scores": (math.nan,) * 40},
        {"scores": ()},
        {"included": (True,) * 40},
        {"status": Status.FAILED},
    ],
)
def test_a_seed_that_lacks_a_curve_gives_way_to_one_that_has_all(change: dict[str, Any]) -> None:
    changes = {name: {("DP-Weights", 0): value} for name, value in change.items()}
    assert "of seed 1, epsilon 30" in drawn(context_of(**changes), "batch size").caption


def test_what_has_no_curve_in_any_seed_is_left_out() -> None:
    lost = {("DP-Weights", seed): () for seed in range(3)}
    figure = drawn(context_of(scores=lost), "epochs")
    assert "DP-Weights" not in figure.caption
    nobody = {(variant, seed): () for variant in BUDGETS for seed in range(3)}
    assert roc_figure(context_of(scores=nobody), "epochs") is None


def test_the_report_has_them() -> None:
    names = {figure.id for figure in figures(context_of())}
    assert {"roc-batch-size", "roc-epochs"} <= names

"""What a report on Shuffled DPSGD reads of its trainings, after they were run and stored as a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workbench.accounting.subsampled_gaussian import same_sigma_epsilon
from workbench.execution.store import Store
from workbench.studies.experiments import Experiment, Outcome, Status, Study
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study

NUMBERS = 64 * 8 + 8 + 8 * 10 + 10
LEFT_ALONE = 10


def experiment(variant: str, mechanism: str, parameters: dict[str, Any], **changes: Any) -> Experiment:
    """Forty of 80 digits in eight steps."""
    return Experiment(
        **{
            "group": "vision",
            "variant": variant,
            "mechanism": mechanism,
            "mechanism_parameters": parameters,
            "attack": "loss",
            "corpus": "digits",
            "corpus_parameters": {"held_out": 40},
            "model": "digits_mlp",
            "model_parameters": {"hidden": 8},
            "members": 40,
            "epochs": 2,
            "batch_size": 10,
            "learning_rate": 0.5,
            "optimizer": "sgd",
            "seed": 0,
            "epsilon": 0.5,
            "delta": 1e-5,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The variants of one place of the tables, by name."""
    shuffled = {"uncovered": "sigma", "batch_clip_norm": 4.0}
    free = {"epsilon": None, "delta": None}
    experiments = (
        experiment("Non-private", "non_private", {}, **free),
        experiment("Non-private, shuffled", "non_private", {"shuffle": True}, **free),
        experiment("Ghost", "dp_sgd", {"accountant": "dp_accounting_rdp"}),
        experiment("DPSGD", "dp_sgd", {}),
        experiment("Shuffled DPSGD", "shuffled_dp_sgd", shuffled),
        experiment("Twin", "shuffled_dp_sgd", {**shuffled, "carry_noise": True}),
        experiment("Twin, unshuffled", "shuffled_dp_sgd", {**shuffled, "shuffle": False}),
        experiment(
            "DPSGD at the same sigma",
            "shuffled_dp_sgd",
            {**shuffled, "shuffle": False, "clips_batch": False},
        ),
        experiment("Fallen", "shuffled_dp_sgd", shuffled, model="digits_logistic", model_parameters={}),
    )
    study = Study(
        name="small",
        title="Small",
        profile="quick",
        replication="seed",
        experiments=experiments,
        source_sha256="0" * 64,
    )
    folder: Path = tmp_path_factory.mktemp("study")
    run_study(study, out=folder, options=RunOptions(workers=0))
    found = read_results(study, Store(folder / "store")).outcomes
    assert all(one.status is Status.DONE for one in found), [one.error for one in found]
    return {one.experiment.variant: one for one in found}


def guarantee(outcome: Outcome) -> Any:
    assert outcome.claim is not None
    return outcome.claim["guarantee"]


def test_the_settings_of_a_run_are_read_back(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["Shuffled DPSGD"].metrics
    assert found["dimension"] == NUMBERS
    assert found["shuffled_share"] == pytest.approx(1 - LEFT_ALONE / NUMBERS)
    assert (found["l2_clip_norm"], found["batch_clip_norm"], found["falls_back"]) == (1.0, 4.0, 0.0)
    assert found["least_noise_multiplier"] == found["noise_multiplier"]
    assert 0 < found["noise_multiplier"] < found["unshuffled_noise_multiplier"]
    assert (found["clips_batch"], outcomes["DPSGD at the same sigma"].metrics["clips_batch"]) == (1.0, 0.0)
    fallen = outcomes["Fallen"].metrics
    assert (fallen["falls_back"], fallen["shuffled_share"], fallen["shuffle_distance"]) == (1.0, 0.0, 0.0)
    assert fallen["least_noise_multiplier"] == fallen["unshuffled_noise_multiplier"]
    assert outcomes["Ghost"].metrics["noise_multiplier"] > outcomes["DPSGD"].metrics["noise_multiplier"]


def test_the_column_that_the_paper_lacks_can_be_made(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["Shuffled DPSGD"]
    own, delta = outcome.experiment, outcome.experiment.delta
    assert delta is not None
    column = same_sigma_epsilon(
        noise_multiplier=outcome.metrics["least_noise_multiplier"],
        sampling_probability=own.batch_size / own.members,
        steps=own.steps,
        delta=delta,
    )
    plain = outcomes["DPSGD at the same sigma"]
    assert plain.metrics["noise_multiplier"] == outcome.metrics["noise_multiplier"]
    assert guarantee(plain)["epsilon"] == column.upper
    assert guarantee(outcome)["epsilon"] == 0.5
    # By its own accountant's noise, plain DP-SGD is at most worth what is claimed of it.
    ghost = outcomes["Ghost"].metrics["noise_multiplier"]
    schedule = {"sampling_probability": 0.25, "steps": 8, "delta": delta}
    assert same_sigma_epsilon(noise_multiplier=ghost, **schedule).upper <= 0.5


@pytest.mark.parametrize(
    ("shuffled", "control"), [("Non-private, shuffled", "Non-private"), ("Twin", "Twin, unshuffled")]
)
def test_losses_stay_and_weights_move(outcomes: dict[str, Outcome], shuffled: str, control: str) -> None:
    found, other = outcomes[shuffled], outcomes[control]
    assert found.training_losses == pytest.approx(other.training_losses, rel=1e-4)
    assert found.metrics["test_accuracy_after"] == other.metrics["test_accuracy_after"]
    assert found.metrics["shuffle_distance"] > 1.0
    assert other.metrics.get("shuffle_distance", 0.0) == 0.0
    assert 0 < found.cost["shuffling_seconds"] < found.cost["training_seconds"]
    assert not any(name.endswith("seconds") for name in found.metrics)
    assert other.cost.get("shuffling_seconds", 0.0) == 0.0

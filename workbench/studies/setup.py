"""From an experiment to the setup of its training: a study's batch size, and what its attack plants."""

from __future__ import annotations

from workbench.core import registry
from workbench.interfaces import Attack
from workbench.studies.experiments import Experiment
from workbench.training.setup import TrainingSetup


def setup_of(experiment: Experiment) -> TrainingSetup:
    """The training setup of an experiment: 2 N candidates, T steps, q = B / N.

    Where the attack plants P records beside the members, q = B / (N + P): the batches stay as large.
    """
    return TrainingSetup(
        **experiment.spec(),
        steps=experiment.steps,
        sampling_probability=experiment.batch_size / (experiment.members + _planted(experiment)),
        mechanism=experiment.mechanism,
        mechanism_parameters=experiment.mechanism_parameters,
        corpus=experiment.corpus,
        corpus_parameters=experiment.corpus_parameters,
        budget=experiment.budget,
        candidates=2 * experiment.members,
        attack_parameters={experiment.attack: experiment.attack_parameters},
        seed=experiment.seed,
    )


def _planted(experiment: Experiment) -> int:
    """Number of records that the attack plants beside the members, as it says itself (`plants`).

    What is wrong with the attack is told where its jobs are made.
    """
    try:
        attack = registry.create("attack", experiment.attack, **experiment.attack_parameters)
    except Exception:  # Of any kind: a plug-in's attack, or a parameter that it refuses.
        return 0
    return attack.plants if isinstance(attack, Attack) else 0

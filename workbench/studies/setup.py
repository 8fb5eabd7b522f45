"""From an experiment to the setup of its training: a study's batch size, and what its attack plants."""

from __future__ import annotations

from workbench.core import registry
from workbench.studies.experiments import Experiment
from workbench.training.setup import TrainingSetup


def setup_of(experiment: Experiment) -> TrainingSetup:
    """The training setup of an experiment: 2 N candidates, T steps, q = B / N.

    Where the attack plants P records beside the members, q = B / (N + P): the batches stay as large.
    """
    return TrainingSetup(
        mechanism=experiment.mechanism,
        mechanism_parameters=experiment.mechanism_parameters,
        corpus=experiment.corpus,
        corpus_parameters=experiment.corpus_parameters,
        model=experiment.model,
        model_parameters=experiment.model_parameters,
        budget=experiment.budget,
        candidates=2 * experiment.members,
        steps=experiment.steps,
        sampling_probability=experiment.batch_size / (experiment.members + _planted(experiment)),
        sampling=experiment.sampling,
        learning_rate=experiment.learning_rate,
        optimizer=experiment.optimizer,
        weight_decay=experiment.weight_decay,
        schedule=experiment.schedule,
        warmup=experiment.warmup,
        adapter=experiment.adapter,
        lora_rank=experiment.lora_rank,
        lora_alpha=experiment.lora_alpha,
        lora_targets=experiment.lora_targets,
        attack_parameters={experiment.attack: experiment.attack_parameters},
        seed=experiment.seed,
    )


def _planted(experiment: Experiment) -> int:
    """Number of records that the attack plants beside the members, as it says itself (`plants`).

    What is wrong with the attack is told where its jobs are made.
    """
    try:
        attack = registry.create("attack", experiment.attack, **experiment.attack_parameters)
        return int(getattr(attack, "plants", 0))
    except Exception:  # Of any kind: a plug-in's attack, or a parameter that it refuses.
        return 0

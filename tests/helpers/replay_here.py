"""Forced replay of a trainer of the digits, in this process."""

from __future__ import annotations

from dataclasses import replace

from workbench.audit.claims import EXAMPLE, parse_claim
from workbench.audit.replay.generators import own_generators
from workbench.audit.replay.judging import Replayed, judged
from workbench.audit.replay.measure import measured
from workbench.audit.replay.measured import Measured, NotMeasured
from workbench.audit.settings import embedded_settings
from workbench.audit.user_training import UserTraining, as_dicts
from workbench.interfaces import Released
from workbench.training.setup import prepare


def measured_here(spec: str, *, seed: int = 0, candidates: int = 200) -> Measured | NotMeasured:
    """What the replay of a trainer of the digits in this process measures."""
    settings = embedded_settings(corpus="digits", corpus_parameters={}, candidates=candidates)
    records, _ = prepare(replace(settings, seed=seed).setup(()))
    with own_generators():
        training = UserTraining(spec)
        return measured(
            lambda own, number: training.asking(own, seed + number, records[:64]),
            as_dicts(records),
            seed=seed,
        )


def judged_here(
    spec: str, *, seed: int = 0, candidates: int = 200, claim: str = EXAMPLE
) -> Replayed | NotMeasured:
    """The same, held against a claim."""
    run = measured_here(spec, seed=seed, candidates=candidates)
    if isinstance(run, NotMeasured):
        return run
    return judged(parse_claim(claim, released=Released.EVERY_UPDATE), run)

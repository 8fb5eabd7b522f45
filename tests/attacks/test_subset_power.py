"""How often a true claim about a candidate subset is refuted, and how often an altered mechanism is.

Whole games of a stand-in, judged as an audit judges them: error 5 % over both tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import subsets_stand_in as stand_in
from scipy.stats import binom

from workbench.accounting import MutualInformation
from workbench.attacks.subset_posterior import SubsetPosterior
from workbench.estimation.judge import judge
from workbench.estimation.subset_trials import SubsetEvidence
from workbench.games.subset import SubsetGame
from workbench.games.subset.play import play_subsets, trial_series
from workbench.interfaces import Claim, Plan, Record, Released, Secret, VerdictKind

PLAN = Plan(
    records=tuple(Record(id=str(i), image=(0.0,), label=0) for i in range(24)),
    held_out=(),
    model="none",
    steps=10,
    sampling_probability=1.0,
    learning_rate=1.0,
    optimizer="sgd",
)


def refuted(mechanism: Any, nats: float, *, games: int, trials: int, view: str = "values") -> int:
    """Of so many games, those that refute the claim."""
    attack = SubsetPosterior(view=view)
    claim = Claim(
        guarantee=MutualInformation(nats=nats, secret=Secret.SUBSET),
        about=Secret.SUBSET,
        released=Released.EVERY_UPDATE,
        source="the test",
    )
    found = 0
    for seed in range(games):
        played = play_subsets(mechanism, PLAN, trials=trials, seed=seed)
        scores = attack.score(played.observations, np.random.default_rng(seed))
        series = trial_series(played, attack.beliefs(played.observations))
        evidence = SubsetEvidence(
            scores=scores.values,
            members=played.included,
            game=SubsetGame().terms(view=view),
            attack="subset_posterior",
            candidates=played.shape[0],
            record_success=series["record_success"],
            log_scores=series["log_score"],
        )
        verdict = judge(claim, evidence, confidence=0.95, generator=np.random.default_rng(seed))
        found += verdict.kind is VerdictKind.REFUTED
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nats", "subsets", "view"),
    [(0.0, "pairs", "values"), (0.0, "halves", "bits"), (0.05, "pairs", "values"), (1.0, "halves", "values")],
)
def test_true_claims_are_refuted_in_five_percent_of_games_at_most(
    nats: float, subsets: str, view: str
) -> None:
    """The tightest claim that is true: the budget itself, which the noise spends to within a few per cent.

    At the nominal 5 % more than 12 of 100 games have probability below 0.2 %; measured: none, for the bounds
    hold at every sample size and pay for that. 0 nats are tight whatever the game shows: there every share of
    right guesses above one half would refute.
    """
    assert binom.sf(12, 100, 0.05) < 0.002
    mechanism = stand_in.SubsetsStandIn(nats=nats, subsets=subsets)
    assert refuted(mechanism, nats, games=100, trials=40, view=view) <= 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nats", "altered", "trials"), [(0.0, "coins", 20), (0.33, "noise", 60), (0.05, "noise", 300)]
)
def test_altered_mechanisms_are_refuted(nats: float, altered: str, trials: int) -> None:
    """A third of the stated noise, or the secret's sign for a coin: in 8 of 10 games at least.

    Measured: 20 of 20 games each. Of a power of 97 % fewer than 8 of 10 would have probability 0.3 %. The
    same mechanism without the alteration is the control of the test before this one.
    """
    assert binom.cdf(7, 10, 0.97) < 0.003
    mechanism = stand_in.SubsetsStandIn(nats=nats, altered=altered)
    assert refuted(mechanism, nats, games=10, trials=trials) >= 8


@pytest.mark.slow
def test_a_claim_of_a_quarter_of_what_is_spent_is_refuted() -> None:
    """No alteration but of the number: 2 nats are spent, 1/2 is claimed. Measured: 20 of 20 games."""
    assert refuted(stand_in.SubsetsStandIn(nats=2.0), 0.5, games=10, trials=80) >= 8

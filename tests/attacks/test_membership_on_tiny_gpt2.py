"""The membership attacks against a real language model, fine-tuned without privacy on clinical narratives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats

from workbench.core import registry
from workbench.estimation.blind import blind_p_value
from workbench.games.membership import MembershipAttack, MembershipSeen, References
from workbench.interfaces import BoolArray, FloatArray, Plan, Record, Scores, Subject
from workbench.training.secrets import SECRET_MARKER
from workbench.training.shadows import shadow_memberships

CANDIDATES, SHADOWS = 64, 4
NOBODY = References()


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Candidates with secrets, and the coins that chose the target's members."""

    candidates: tuple[Record, ...]
    members: BoolArray

    def trained(self, members: BoolArray, *, seed: int, steps: int = 100, rate: float = 3e-3) -> Subject:
        plan = Plan(
            records=tuple(r for r, member in zip(self.candidates, members, strict=True) if member),
            held_out=(),
            model="tiny_gpt2",
            steps=steps,
            sampling_probability=0.12,
            learning_rate=rate,
            seed=seed,
        )
        subject: Subject = registry.create("mechanism", "non_private").train(plan)
        return subject

    def scores(self, attack: MembershipAttack, subject: Subject, references: References = NOBODY) -> Scores:
        seen = MembershipSeen(subject=subject, records=self.candidates, references=references)
        return attack.score(seen, np.random.default_rng(0))

    def p_value(self, scores: FloatArray) -> float:
        return float(stats.mannwhitneyu(scores[self.members], scores[~self.members]).pvalue)

    def auc(self, scores: FloatArray) -> float:
        statistic = stats.mannwhitneyu(scores[self.members], scores[~self.members]).statistic
        return float(statistic) / (int(self.members.sum()) * int((~self.members).sum()))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small is no faster on two threads, and far slower where they wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pool() -> Pool:
    corpus = registry.create("corpus", "clinical", size=CANDIDATES, seed=0, attributes="short")
    insertions = registry.create("attack", "loss").prepare(corpus, np.random.default_rng(1))
    assert [record.id for record in insertions.replaced] == [record.id for record in corpus.records]
    members = np.random.default_rng(2).permutation(np.arange(CANDIDATES) < CANDIDATES // 2)
    return Pool(candidates=insertions.replaced, members=members)


@pytest.fixture(scope="module")
def target(pool: Pool) -> Subject:
    return pool.trained(pool.members, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("ending_marker", ["", SECRET_MARKER])
def test_loss_tells_members_of_a_memorised_pool(pool: Pool, target: Subject, ending_marker: str) -> None:
    """Chance reaches 0.75 (3.5 standard errors above one half) once in 4,000 pools."""
    attack = registry.create("attack", "loss", ending_marker=ending_marker)
    scores = pool.scores(attack, target)
    assert pool.auc(scores.values) > 0.75


@pytest.mark.slow
def test_lira_tells_members_of_a_memorised_pool(pool: Pool, target: Subject) -> None:
    """Online and offline, with four shadows; chance as above."""
    included = shadow_memberships(CANDIDATES, SHADOWS, np.random.default_rng(3))
    shadows = tuple(pool.trained(row, seed=10 + i) for i, row in enumerate(included))
    references = References(subjects=shadows, included=included)
    for mode in ("online", "offline"):
        attack = registry.create("attack", "lira", shadows=SHADOWS, mode=mode, ending_marker=SECRET_MARKER)
        scores = pool.scores(attack, target, references)
        assert pool.auc(scores.values) > 0.75
        assert scores.details["mean_shadow_logit_gap"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"score": "zlib"},
        {"score": "min_k"},
        {"ending_share": 0.5},
        {"calibrate": True},
        {"score": "min_k", "ending_share": 0.5, "calibrate": True},
    ],
    ids=str,
)
def test_every_score_tells_members_of_a_memorised_pool(
    pool: Pool, target: Subject, given: dict[str, object]
) -> None:
    """Chance as above."""
    attack = registry.create("attack", "loss", **given)
    scores = pool.scores(attack, target)
    assert pool.auc(scores.values) > 0.75


@pytest.mark.slow
def test_calibration_by_two_shadows_tells_members_of_a_memorised_pool(pool: Pool, target: Subject) -> None:
    """Chance as above. The control: shadows alone, which know no coin of the target's (p > 0.001)."""
    included = shadow_memberships(CANDIDATES, 2, np.random.default_rng(4))
    shadows = tuple(pool.trained(row, seed=20 + i) for i, row in enumerate(included))
    attack = registry.create("attack", "loss", calibrate=True, reference="shadow", shadows=2)
    references = References(subjects=shadows, included=included)
    scores = pool.scores(attack, target, references)
    assert pool.auc(scores.values) > 0.75
    blind = pool.scores(attack, shadows[0], references)
    assert pool.p_value(blind.values) > 0.001


@pytest.mark.slow
def test_untrained_model_and_blind_classifier_tell_nothing(pool: Pool) -> None:
    """The control: no learning, no leakage; two-sided tests at 0.001 are this test's false-alarm rate."""
    idle = pool.trained(pool.members, seed=0, steps=1, rate=1e-12)
    attack = registry.create("attack", "loss", ending_marker=SECRET_MARKER)
    scores = pool.scores(attack, idle)
    assert pool.p_value(scores.values) > 0.001
    texts = [record.text for record in pool.candidates]
    assert blind_p_value(texts, pool.members, generator=np.random.default_rng(0)) > 0.001


@pytest.mark.slow
def test_calibration_by_the_untrained_base_of_an_untrained_model_is_zero(pool: Pool) -> None:
    idle = pool.trained(pool.members, seed=0, steps=1, rate=1e-12)
    attack = registry.create("attack", "loss", calibrate=True)
    scores = replace(pool, candidates=pool.candidates[:8]).scores(attack, idle)
    assert scores.values == pytest.approx(np.zeros(8), abs=1e-4)

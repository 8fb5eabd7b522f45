"""Where PACZero's secret flows: nowhere, in ZPL; and that these checks see a leak."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from workbench.accounting import MutualInformation
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.games.subset.play import SubsetRelease
from workbench.interfaces import Corpus, Plan, Secret
from workbench.mechanisms import paczero
from workbench.mechanisms.accountants.paczero import Charge
from workbench.mechanisms.paczero import PACZero, SecretSubset, SignRelease, SubsetReleases
from workbench.mechanisms.shared.candidate_subsets import Signs
from workbench.training.fine_tuning import build_model, trainable

M = 6
ZPL = PACZero(variant="zpl", subset_count=M, micro_batch_size=64, measures_quality=False)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads, and lose where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=24, seed=0)
    return corpus


def make_plan(**changes: Any) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=(),
        model="digits_mlp",
        steps=24,
        sampling_probability=1.0,
        learning_rate=1e-2,
        weight_decay=1e-2,
        optimizer="sgd",
        seed=3,
    )
    return replace(plan, **changes)


def shown(mechanism: PACZero, plan: Plan, secret: int | None) -> tuple[bytes, ...]:
    """All that a run leaves behind, to the last bit: weights, releases, transcript, traces."""
    releases: list[SubsetRelease] = []
    subject = mechanism.train_on(plan, secret=secret, watch=releases.append)
    transcript = subject.transcript
    assert len(releases) == plan.steps * mechanism.directions
    metrics = {k: v for k, v in transcript.metrics.items() if "seconds" not in k}
    return (
        b"".join(p.detach().numpy().tobytes() for p in trainable(subject.model.module).values()),
        b"".join(
            r.differences.tobytes()
            + r.signs.tobytes()
            + np.array([r.noise, r.budget_nats, r.value, r.bit]).tobytes()
            for r in releases
        ),
        transcript.losses.tobytes() + transcript.sample_sizes.tobytes(),
        repr(sorted(metrics.items())).encode(),
        b"".join(name.encode() + series.tobytes() for name, series in sorted(transcript.traces.items())),
    )


def is_the_same_for_every_secret(mechanism: PACZero, plan: Plan) -> bool:
    runs = {shown(mechanism, plan, secret) for secret in (*range(mechanism.subset_count), None)}
    return len(runs) == 1


# --- (i) every secret, the same bytes --------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"directions": 2, "subsets": "halves"},
        {"unanimous_release": "majority", "tolerance": 0.5},
        {"posterior": "bits", "clip": 0.01},
    ],
)
def test_zpl_is_the_same_to_the_last_bit_for_every_secret(changes: dict[str, Any]) -> None:
    mechanism = replace(ZPL, **changes)
    assert is_the_same_for_every_secret(mechanism, make_plan())
    transcript = mechanism.train(make_plan()).transcript
    if "tolerance" not in changes:
        # There were steps of both kinds, else the above says little.
        assert 0 < transcript.metrics["unanimity_rate"] < 1
    assert transcript.metrics["nats_used"] == 0
    assert len(set(transcript.traces["posterior_entropy"])) == 1
    assert transcript.traces["posterior_entropy"][0] == pytest.approx(math.log(M))


def test_mi_is_not_and_at_0_nats_it_is_zpl() -> None:
    """The same check on a mechanism that spends nats, and on one that has none to spend."""
    nats = {n: make_plan(budget=MutualInformation(nats=n, secret=Secret.SUBSET)) for n in (0.0, 1.0)}
    spends = replace(ZPL, variant="mi")
    assert not is_the_same_for_every_secret(spends, nats[1.0])
    assert is_the_same_for_every_secret(spends, nats[0.0])
    assert shown(spends, nats[0.0], 2) == shown(ZPL, make_plan(), 4)


def test_the_hybrids_tail_is_the_same_for_every_secret_given_what_came_before() -> None:
    """All that follows the first part is a function of it and of the coins: bits agree until they differ."""
    plan = make_plan(budget=MutualInformation(nats=1.0, secret=Secret.SUBSET))
    mechanism = replace(ZPL, variant="hybrid", mi_steps=4)
    seen: dict[tuple[float, ...], list[tuple[int, ...]]] = {}
    for secret in range(M):
        releases: list[SubsetRelease] = []
        mechanism.train_on(plan, secret=secret, watch=releases.append)
        values = tuple(r.value for r in releases[:4])
        seen.setdefault(values, []).append(tuple(r.bit for r in releases[4:]))
    assert len(seen) < M
    assert all(len(set(tails)) == 1 for tails in seen.values())


# --- (ii) a secret that may only be looked at on unanimity -----------------------------------------


CAUGHT = r"read where it must not be|something else than an index"
"""An index that numpy is refused it asks for as an array, too."""


class Token:
    """A secret index that can do nothing but index an array, and that only when it is allowed to."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.allowed = False
        self.reads = 0

    def __index__(self) -> int:
        if not self.allowed:
            raise AssertionError("the secret was read where it must not be")
        self.reads += 1
        return self._index

    def _refuse(self, *args: object) -> Any:
        raise AssertionError("the secret was used for something else than an index")

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = __bool__ = __repr__ = __str__ = __format__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __mul__ = __rmul__ = __array__ = __reduce_ex__ = _refuse


def run_with_token(monkeypatch: pytest.MonkeyPatch, mechanism: PACZero, plan: Plan) -> tuple[Token, int]:
    """Train on a token; how often it may have been read, too."""
    token = Token(2)
    permitted = 0

    class OnUnanimity(SecretSubset):
        def sign(self, signs: Signs, charge: Charge) -> int:
            nonlocal permitted
            permitted += charge.unanimous
            token.allowed = charge.unanimous
            try:
                return super().sign(signs, charge)
            finally:
                token.allowed = False

    monkeypatch.setattr(paczero, "SecretSubset", OnUnanimity)
    settled = mechanism.for_plan(plan)
    settled.trained(
        plan,
        settled.claim(plan),
        None,
        lambda own, model: settled.steps(own, model, token),  # type: ignore[arg-type]
    )
    return token, permitted


def test_zpl_reads_the_secret_on_unanimous_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    token, permitted = run_with_token(monkeypatch, ZPL, make_plan())
    rate = ZPL.train(make_plan()).transcript.metrics["unanimity_rate"]
    assert token.reads == permitted == round(24 * rate) > 0


def test_majority_never_reads_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    token, _ = run_with_token(monkeypatch, replace(ZPL, unanimous_release="majority"), make_plan())
    assert token.reads == 0


def test_the_token_catches_mi(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(budget=MutualInformation(nats=1.0, secret=Secret.SUBSET))
    with pytest.raises(AssertionError, match=CAUGHT):
        run_with_token(monkeypatch, replace(ZPL, variant="mi"), plan)


def test_the_secret_refuses_to_be_read_for_a_coin() -> None:
    secret = SecretSubset(1)
    coin = Charge(agreement=0.5, unanimous=False, budget_nats=0.0, noise=math.inf)
    with pytest.raises(
        InputError, match="noise must be finite where the secret's sign is asked for, got inf"
    ):
        secret.sign(np.array([1, -1], dtype=np.int8), coin)
    assert secret.reads == 0
    assert secret.sign(np.array([1, -1], dtype=np.int8), replace(coin, noise=2.0)) == -1
    assert secret.reads == 1


# --- (iii) mechanisms that leak are caught by both -------------------------------------------------


def index_of(releases: SubsetReleases) -> int:
    found: int = releases._secret._SecretSubset__index  # type: ignore[attr-defined]
    return found


class Rigged(SubsetReleases):
    """The coin is the secret's sign."""

    def release(self, signs: Signs) -> SignRelease:
        found = super().release(signs)
        return found if found.charge.unanimous else replace(found, bit=int(signs[index_of(self)]))


class Biased(SubsetReleases):
    """The coin is tossed twice where the secret's sign is +1, which shows in nothing but later coins."""

    def _coin(self) -> int:
        found = super()._coin()
        return super()._coin() if int(signs_seen[-1][index_of(self)]) > 0 else found

    def release(self, signs: Signs) -> SignRelease:
        signs_seen.append(signs)
        return super().release(signs)


class Gossip(SubsetReleases):
    """Bits and weights are right; the trace of q+ betrays the secret in its last digits."""

    def release(self, signs: Signs) -> SignRelease:
        found = super().release(signs)
        said = found.charge.agreement + 1e-15 * int(signs[index_of(self)])
        return replace(found, charge=replace(found.charge, agreement=said))


signs_seen: list[Signs] = []


@pytest.mark.parametrize("leaky", [Rigged, Biased, Gossip])
def test_a_leak_is_caught(monkeypatch: pytest.MonkeyPatch, leaky: Callable[..., SubsetReleases]) -> None:
    monkeypatch.setattr(paczero, "SubsetReleases", leaky)
    assert not is_the_same_for_every_secret(ZPL, make_plan())
    with pytest.raises(AssertionError, match=CAUGHT):
        run_with_token(monkeypatch, ZPL, make_plan())


def test_more_tolerance_than_one_in_m_shows_the_secret_and_its_claim_says_so() -> None:
    loose = replace(ZPL, tolerance=1 / M)
    assert not is_the_same_for_every_secret(loose, make_plan())
    assert any("shows the secret's sign" in note for note in loose.claim(make_plan()).assumptions)
    assert not any("shows the secret's sign" in note for note in ZPL.claim(make_plan()).assumptions)


# --- where the secret comes from -------------------------------------------------------------------


def test_the_drawn_secret_is_uniform_secret_and_that_of_train() -> None:
    """Drawn from the noise's stream: over 300 plan seeds a chi-square of 5 degrees, alarm at 1e-6."""
    plan = make_plan(steps=1)
    model = build_model(plan)
    counts = np.zeros(M)
    for seed in range(300):
        steps = replace(ZPL, public_seed=1).steps(replace(plan, seed=seed), model)
        counts[index_of(steps._releases)] += 1
    assert ((counts - 50) ** 2 / 50).sum() < 37.3

    budget = MutualInformation(nats=1.0, secret=Secret.SUBSET)
    mechanism = replace(ZPL, variant="mi", public_seed=1)
    steps = mechanism.steps(make_plan(budget=budget), model)
    own = index_of(steps._releases)
    plan = make_plan(budget=budget)
    assert shown(mechanism, plan, own) == shown(mechanism, plan, None)
    assert any(
        shown(mechanism, plan, other) != shown(mechanism, plan, own) for other in range(M) if other != own
    )


def test_subsets_and_directions_are_public_and_noise_is_not() -> None:
    """With a public seed of its own, another plan seed keeps subsets and differences, and changes coins."""
    mechanism = replace(ZPL, public_seed=11)
    first: list[SubsetRelease] = []
    other: list[SubsetRelease] = []
    plan = make_plan(initial_seed=5)
    mechanism.train_on(plan, watch=first.append)
    mechanism.train_on(replace(plan, seed=99), watch=other.append)
    np.testing.assert_array_equal(
        mechanism.candidate_subsets(plan), mechanism.candidate_subsets(replace(plan, seed=99))
    )
    np.testing.assert_array_equal(first[0].differences, other[0].differences)
    assert [r.bit for r in first] != [r.bit for r in other]
    assert (ZPL.candidate_subsets(plan) != ZPL.candidate_subsets(replace(plan, seed=99))).any()

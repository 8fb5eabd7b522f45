"""The likelihood ratio over released signs, beside sums over everything that may have happened."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from workbench.attacks import sign_transcript
from workbench.attacks.sign_transcript import SignTranscript, batches, log_ratio
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.estimation.low_fpr import CERTAIN
from workbench.games import transcript as transcript_game
from workbench.games.transcript import SignObservations, SignReading
from workbench.interfaces import FloatArray

RULES = ("silent", "coin")


def score(readings: list[SignReading], *, s: float, rule: str = "silent") -> FloatArray:
    """The attack's scores."""
    seen = SignObservations(trials=tuple(readings), sampling_probability=s, zero_gradient=rule)
    return SignTranscript().score(seen, np.random.default_rng(0)).values


def ratio(reading: SignReading, *, s: float, rule: str = "silent") -> float:
    return log_ratio(reading, SignObservations(trials=(reading,), sampling_probability=s, zero_gradient=rule))


def chance(value: float, sign: int, rule: str) -> float:
    """Probability of one released sign, written out once more."""
    if value > 0:
        return float(sign == 1)
    if value < 0:
        return float(sign == -1)
    return float(sign == 0) if rule == "silent" else 0.5 * abs(sign)


def log_of(inside: float, outside: float) -> float:
    if outside == 0.0:
        return CERTAIN
    return -CERTAIN if inside == 0.0 else math.log(inside / outside)


def brute_force_known(reading: SignReading, s: float, rule: str) -> float:
    """Sum over all participations of the canary, all steps at once."""
    steps = np.unique(reading.step)
    assert reading.without is not None
    likelihoods = []
    for rate in (s, 0.0):
        total = 0.0
        for coins in itertools.product((0, 1), repeat=steps.size):
            weight = math.prod(rate if c else 1 - rate for c in coins)
            for step, b, c, sign in zip(
                reading.step, reading.without, reading.canary, reading.sign, strict=True
            ):
                present = coins[int(np.searchsorted(steps, step))]
                weight *= chance(b + present * c, int(sign), rule)
            total += weight
        likelihoods.append(total)
    return log_of(*likelihoods)


def brute_force_unknown(reading: SignReading, s: float, rule: str) -> float:
    """Sum over all participations of all records, all steps at once."""
    steps = np.unique(reading.step)
    assert reading.others is not None
    n = reading.others.shape[1]
    likelihoods = []
    for rate in (s, 0.0):
        total = 0.0
        for coins in itertools.product((0, 1), repeat=steps.size * (n + 1)):
            table = np.array(coins).reshape(steps.size, n + 1)
            weight = math.prod((s if c else 1 - s) for row in table for c in row[:n]) * math.prod(
                rate if c else 1 - rate for c in table[:, n]
            )
            for firing, step in enumerate(reading.step):
                row = table[np.searchsorted(steps, step)]
                value = float(reading.others[firing] @ row[:n] + reading.canary[firing] * row[n])
                weight *= chance(value, int(reading.sign[firing]), rule)
            total += weight
        likelihoods.append(total)
    return log_of(*likelihoods)


def random_reading(generator: np.random.Generator, *, known: bool, n: int = 3) -> SignReading:
    """Small whole numbers, so that zeros and ties occur, and signs that were really released."""
    step = np.sort(generator.integers(3, size=4)) * 5
    canary = generator.integers(-3, 4, size=4).astype(float)
    others = generator.integers(-2, 3, size=(4, n)).astype(float)
    present = {int(t): generator.random(n + 1) < 0.5 for t in np.unique(step)}
    without = np.array([row @ present[int(t)][:n] for row, t in zip(others, step, strict=True)])
    own = np.array([c * present[int(t)][n] for c, t in zip(canary, step, strict=True)])
    sign = np.sign(without + own).astype(np.int64)
    if known:
        return SignReading(step=step, sign=sign, canary=canary, without=without)
    return SignReading(step=step, sign=sign, canary=canary, others=others)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("s", [0.3, 1.0])
def test_ratio_beside_brute_force_where_batches_are_known(rule: str, s: float) -> None:
    generator = np.random.default_rng(1)
    kinds = set()
    for _ in range(200):
        reading = random_reading(generator, known=True)
        if rule == "coin":
            fair = np.where(generator.random(4) < 0.5, 1, -1)
            reading = SignReading(
                step=reading.step,
                sign=np.where(reading.sign == 0, fair, reading.sign),
                canary=reading.canary,
                without=reading.without,
            )
        found = ratio(reading, s=s, rule=rule)
        assert found == pytest.approx(brute_force_known(reading, s, rule), abs=1e-12)
        kinds.add("certain" if found == CERTAIN else "out" if found == -CERTAIN else "finite")
    assert kinds == ({"certain", "finite"} if s < 1 else {"certain", "out", "finite"})


@pytest.mark.parametrize("rule", RULES)
def test_ratio_beside_brute_force_where_batches_are_unknown(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole numbers add up without rounding, so no sum counts as near zero here."""
    monkeypatch.setattr(sign_transcript, "TIE", -1.0)
    generator = np.random.default_rng(2)
    finite = 0
    for _ in range(12):
        step = np.sort(generator.integers(2, size=3))
        reading = random_reading(generator, known=False)
        sign = reading.sign[:3] if rule == "silent" else np.where(reading.sign[:3] >= 0, 1, -1)
        assert reading.others is not None
        reading = SignReading(step=step, sign=sign, canary=reading.canary[:3], others=reading.others[:3])
        found = ratio(reading, s=0.3, rule=rule)
        exact = brute_force_unknown(reading, 0.3, rule)
        assert found == pytest.approx(exact, abs=1e-9)
        finite += abs(found) < CERTAIN
    assert finite >= 4


def test_one_coin_decides_for_all_groups_of_a_step() -> None:
    """Two signs that only a partaking canary and only an absent one could have given: impossible at once."""
    apart = SignReading(
        step=np.array([0, 1]),
        sign=np.array([1, 1]),
        canary=np.array([-9.0, 2.0]),
        without=np.array([1.0, 1.0]),
    )
    assert ratio(apart, s=0.25) == pytest.approx(math.log(0.75))
    together = SignReading(
        step=np.array([0, 0]), sign=apart.sign, canary=np.array([-9.0, -9.0]), without=apart.without
    )
    assert ratio(together, s=0.25) == pytest.approx(math.log(0.75))  # Once, not twice.


def test_certain_lies_above_every_finite_score() -> None:
    generator = np.random.default_rng(3)
    readings = [random_reading(generator, known=True) for _ in range(300)]
    values = score(readings, s=0.3)
    assert np.isfinite(values).all()
    finite = values[np.abs(values) < CERTAIN]
    assert (values == CERTAIN).any()
    assert finite.size > 0
    assert finite.max() < 100 < CERTAIN


def test_no_firing_says_nothing() -> None:
    empty = SignReading(
        step=np.zeros(0, dtype=np.int64),
        sign=np.zeros(0, dtype=np.int64),
        canary=np.zeros(0),
        without=np.zeros(0),
    )
    assert ratio(empty, s=0.5) == 0.0
    values = score([empty] * 20, s=0.5)
    assert np.unique(values).size == 20
    assert np.abs(values).max() < 1e-8


def test_sums_near_zero_are_rounding_and_prove_nothing() -> None:
    """0.1 + 0.2 - 0.3 is not 0 in floats: whoever adds in another order may see another sign."""
    reading = SignReading(
        step=np.array([0]),
        sign=np.array([-1]),
        canary=np.array([1.0]),
        others=np.array([[0.1, 0.2, -0.3]]),
    )
    sums, sizes, weights = batches(np.array([[0.1, 0.2, -0.3]]), 0.5)
    full = int(np.argmax(sizes[0]))
    assert 0 < sums[0, full] < 1e-15
    assert weights.sum() == pytest.approx(1.0)
    lone = SignReading(
        step=reading.step, sign=reading.sign, canary=reading.canary, others=np.array([[1e-12, -1e-12]])
    )
    assert ratio(lone, s=0.5) < CERTAIN
    steady = SignReading(
        step=reading.step, sign=reading.sign, canary=-reading.canary, others=np.array([[0.5, 0.25]])
    )
    assert ratio(steady, s=0.5) == CERTAIN  # No batch of positive numbers is negative.


@pytest.mark.slow
def test_ratios_average_to_the_share_of_possible_releases() -> None:
    """E_out[exp(score)] = 1 - P_in[certain]: both by the same 4,000 trials of a Z-channel.

    The bound is 4.5 standard errors (false-alarm rate 7e-6); scores of the wrong s fail.
    """
    generator = np.random.default_rng(4)
    s, size = 0.2, 4000

    def play(inside: bool) -> SignReading:
        fired = int(generator.binomial(6, 0.5))
        part = (generator.random(fired) < s) & inside
        return SignReading(
            step=np.arange(fired),
            sign=np.where(part, -1, 1),
            canary=np.full(fired, -5.0),
            without=np.ones(fired),
        )

    inside, outside = ([play(one) for _ in range(size)] for one in (True, False))
    missed = 1 - np.mean(score(inside, s=s) == CERTAIN)

    def gap(believed: float) -> float:
        weights = np.exp(score(outside, s=believed))
        spread = math.sqrt((missed * (1 - missed) + weights.var()) / size)
        return abs(float(weights.mean()) - missed) / spread

    assert gap(s) < 4.5
    assert gap(2 * s) > 4.5


def test_details_count_what_was_released() -> None:
    reading = SignReading(
        step=np.array([0, 0, 3]),
        sign=np.array([1, 0, 1]),
        canary=np.array([1.0, 1.0, 1.0]),
        without=np.array([1.0, 0.0, -1.0]),
    )
    seen = SignObservations(trials=(reading, reading), sampling_probability=0.5, zero_gradient="silent")
    details = SignTranscript().score(seen, np.random.default_rng(0)).details
    assert dict(details) == {
        "certain": 2.0,
        "firings": 3.0,
        "fired_steps": 2.0,
        "silent_zero_firings": 1.0,
    }


def test_names_are_those_of_the_game() -> None:
    """Rooms and bench cannot share them, so they are kept equal here."""
    for name in ("CANARIES", "OTHERS", "KNOWLEDGE"):
        assert getattr(sign_transcript, name) == getattr(transcript_game, name)
    attack = registry.create("attack", "sign_transcript", canary="average", trials=40)
    assert attack.game == "transcript"
    assert attack.references_needed == 0


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"canary": "opposite"}, "opposed"),
        ({"others": "copis"}, "copies"),
        ({"knowledge": "batch"}, "batches"),
        ({"trials": math.inf}, "trials must be an even whole number >= 20, got inf"),
        ({"trials": 21}, "trials must be an even whole number >= 20, got 21"),
        ({"trials": 2}, "got 2"),
    ],
)
def test_refused_parameters(parameters: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SignTranscript(**parameters)  # type: ignore[arg-type]


def test_refused_observations() -> None:
    bare = SignReading(step=np.array([0]), sign=np.array([1]), canary=np.array([1.0]))
    for reading, s, rule, words in (
        (bare, 0.5, "silent", "got neither"),
        (bare, 0.0, "silent", "sampling_probability must be in"),
        (bare, 0.5, "mute", "zero_gradient"),
    ):
        with pytest.raises(InputError, match=words):
            ratio(reading, s=s, rule=rule)

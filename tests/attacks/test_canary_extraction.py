"""Canary extraction: its numbers are their formulas, its tests are exact, and its verdict needs a memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from workbench.attacks.canary_extraction import (
    INSTRUCTION,
    CanaryExtraction,
    paper_prompt,
    planted_in,
    planted_records,
    verdict,
)
from workbench.attacks.canary_extraction.overlap import matches, ngrams, secret_like, similarities
from workbench.attacks.canary_extraction.verdict import Exchanged, choices, exposures, judged, of_means
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.games.membership import MembershipSeen
from workbench.interfaces import Corpus, FloatArray, Insertions, Plan, Record, Subject
from workbench.training.secrets import secret_id

PLANTED, REFERENCES = 4, 60


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 20])


def drawn_secrets(seed: int, count: int) -> list[str]:
    source = generator(seed)
    return [secret_id(source) for _ in range(count)]


# The filter


@pytest.mark.parametrize(
    ("text", "printed", "sentence", "run"),
    [
        ("O119XP9N56", "O119XP9N56", "O119XP9N56", "O119XP9N56"),
        (" 7A", "7A", "7A", "7A"),
        ("O119XP9N56. The", None, "O119XP9N56", "O119XP9N56"),
        ("AB\nthe patient", None, "AB", "AB"),
        ("ABCDEFGHIJK", None, None, "ABCDEFGHIJ"),
        ("AB and more", None, None, "AB"),
        ("o119", None, None, None),
        ("", None, None, None),
        (".", None, None, None),
        ("Ä1", None, None, None),
    ],
)
def test_what_counts_as_a_secret(
    text: str, printed: str | None, sentence: str | None, run: str | None
) -> None:
    found = [secret_like(text, rule) for rule in ("printed", "sentence", "run")]
    assert found == [printed, sentence, run]


def test_an_unknown_filter_is_refused() -> None:
    with pytest.raises(InputError, match="filter"):
        secret_like("A", "prinetd")


# Similarities


def naive_similarity(texts: Sequence[str], secrets: Sequence[str], n: int) -> tuple[float, float]:
    """Eqs. 29 to 36 by indicator vectors, pair by pair."""
    vocabulary = sorted(set().union(*(ngrams(s, n) for s in (*texts, *secrets))))
    values = []
    for text in texts:
        for secret in secrets:
            x = [int(gram in ngrams(text, n)) for gram in vocabulary]
            y = [int(gram in ngrams(secret, n)) for gram in vocabulary]
            shared = sum(a * b for a, b in zip(x, y, strict=True))
            union = sum(x) + sum(y) - shared
            values.append(shared / union if union else 0.0)
    return float(np.mean(values)), float(np.std(values))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_similarities_are_the_printed_formulas(n: int) -> None:
    secrets = drawn_secrets(0, 5)
    texts = [*drawn_secrets(1, 6), secrets[0], secrets[0], secrets[1][:6], "7", "AAB", "7"]
    found = similarities(texts, secrets, n)
    assert found.of(slice(0, 5)) == pytest.approx(naive_similarity(texts, secrets, n), abs=1e-12)
    assert found.of(slice(1, 3)) == pytest.approx(naive_similarity(texts, secrets[1:3], n), abs=1e-12)


def test_a_short_text_has_no_ngram_and_no_similarity() -> None:
    assert similarities(["AB"], ["ABABABABAB"], 3).mean[0] == 0.0
    assert similarities(["AB"], ["AB"], 3).mean[0] == 0.0  # 0/0 counts as 0.
    assert similarities(["AB"], ["ABABABABAB"], 2).mean[0] == pytest.approx(1 / 2)


def test_no_valid_text_has_no_similarity() -> None:
    assert math.isnan(similarities([], drawn_secrets(0, 3), 1).mean[0])


# Matches


def test_matches_count_what_is_verbatim() -> None:
    secrets = ["ABCDEFGHIJ", "KLMNOPQRST"]
    found = matches(["ABCDEFGHIJ", "ABCDEFGHIJ", "KLMX", "7"], secrets)
    assert (found.exact, found.recovered, found.longest) == (2, 1, 10)
    assert found.p_values[10] == pytest.approx(2 * 1 / 36**10)
    assert found.p_values[1] == pytest.approx(1 - (1 - 3 / 36) ** 2)
    assert found.chance_exact == pytest.approx(2 * 2 / 36**10)
    assert matches([], secrets).p_values.tolist() == [1.0] + [0.0] * 10
    assert matches([], secrets).p_value == 1.0


def test_the_chance_of_a_common_beginning_is_that_of_fresh_secrets() -> None:
    """Against 4,000 draws of four secrets; each comparison fails once in 10^5."""
    texts, source = drawn_secrets(0, 40), generator(9)
    found = matches(texts, drawn_secrets(1, PLANTED))
    longest = [matches(texts, [secret_id(source) for _ in range(PLANTED)]).longest for _ in range(4000)]
    for length in (1, 2):
        hits = int(np.sum(np.array(longest) >= length))
        assert stats.binomtest(hits, 4000, float(found.p_values[length])).pvalue > 1e-5
    assert np.mean(longest) == pytest.approx(found.chance_longest, abs=0.06)


# Exchanging secrets


def test_choices_are_all_equally_likely() -> None:
    """Two of four, in order: twelve choices; chi-square with 11 degrees of freedom, wrong once in 10^5."""
    counts = Counter(map(tuple, choices(2, 4, 12_000, generator(0)).tolist()))
    assert len(counts) == 12
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 43.5


def naive_exposures(table: FloatArray, planted: int) -> list[float]:
    bits = []
    for j in range(planted):
        row = table[j if len(table) > 1 else 0]
        rank = 1 + sum(row[i] > row[j] for i in range(planted, len(row)))
        bits.append(math.log2(len(row) - planted + 1) - math.log2(rank))
    return bits


@pytest.mark.parametrize("rows", [1, PLANTED])
def test_exposures_are_ranks_among_references(rows: int) -> None:
    table = generator(rows).normal(size=(rows, PLANTED + REFERENCES))
    drawn = choices(PLANTED, PLANTED + REFERENCES, 50, generator(1))
    found = exposures(table, drawn, generator(2))
    assert found.bits == pytest.approx(naive_exposures(table, PLANTED))
    for choice, bits in zip(drawn[:10], found.null, strict=False):
        rest = [i for i in range(PLANTED + REFERENCES) if i not in choice]
        exchanged = table[:, [*choice, *rest]]
        assert bits == pytest.approx(naive_exposures(exchanged, PLANTED))


def test_ties_are_broken_at_random_and_priced_by_the_interval() -> None:
    table = np.zeros((1, PLANTED + REFERENCES))
    drawn = choices(PLANTED, PLANTED + REFERENCES, 20, generator(1))
    found = [exposures(table, drawn, generator(seed)) for seed in range(300)]
    ranks = np.array([one.ranks for one in found])
    assert ranks.mean() == pytest.approx(31.0, abs=2.5)  # Four standard errors.
    low, high = found[0].interval(0.95)
    assert (low, high) == (0.0, pytest.approx(verdict.MOST_EXPOSURE_BITS))


def test_exposure_intervals_hold_the_truth() -> None:
    """A secret that a known share of all secrets is likelier than; misses are rarer than one in twenty."""
    source, misses = generator(5), 0
    truth = np.array([0.5, 0.1, 0.02, 0.001])
    for _ in range(400):
        others = source.random(200)
        table = np.concatenate([-truth, -others])[None, :]
        found = exposures(table, choices(PLANTED, 204, 2, source), source)
        low, high = found.interval(0.95)
        misses += not low <= float(np.mean(-np.log2(truth))) <= high
    assert misses <= 20


def test_a_secret_is_memorised_by_its_own_rank() -> None:
    table = np.concatenate([[9.0, 0.05, -9.0, 8.0], np.linspace(-1, 1, 1000)])[None, :]
    found = exposures(table, choices(PLANTED, 1004, 10, generator(0)), generator(0))
    assert found.memorised(0.0125).tolist() == [True, False, False, True]
    assert found.memorised(0.001).tolist() == [False] * 4
    assert found.best_p_value == pytest.approx(4 / 1001)


def test_p_values_are_ranks_among_choices() -> None:
    found = Exchanged.of(2.0, np.array([1.0, 2.0, 3.0, 0.0]))
    assert found.p_value == pytest.approx(3 / 5)
    assert Exchanged.of(math.nan, np.array([1.0])).p_value == 1.0


def test_the_least_value_called_is_the_least() -> None:
    values = generator(0).normal(size=999)
    least = Exchanged.of(0.0, values).least(0.05)
    assert Exchanged.of(least, values).p_value <= 0.05
    assert Exchanged.of(float(np.sort(values)[-50]), values).p_value > 0.05
    assert Exchanged.of(0.0, values).least(1e-4) == math.inf


def test_the_power_that_is_told_is_the_power() -> None:
    """As many fully memorised secrets as are said to be found four times in five, and one less."""
    drawn = choices(10, 1010, 4000, generator(0))
    found = exposures(generator(1).normal(size=(1, 1010)), drawn, generator(2))
    needed, least = found.secrets_for_power(0.0125), found.mean.least(0.0125)
    rates = []
    for count in (needed, needed - 1):
        null = np.log2(1001 / generator(3).integers(1, 1002, size=(4000, 10)))
        null[:, :count] = math.log2(1001)
        rates.append(float(np.mean(null.mean(axis=1) >= least)))
    assert rates[0] > 0.77
    assert rates[1] < 0.83


# The verdict


def null_verdict(seed: int, texts: int = 60) -> dict[str, float]:
    """A model that has its own taste in secrets, and never saw any: letters and likelihoods of its own."""
    source = generator(seed)
    secrets = [secret_id(source) for _ in range(PLANTED + 10 * PLANTED)]
    taste = source.normal(size=(10, 128))
    table = np.array([[sum(taste[i, ord(c)] for i, c in enumerate(secret)) for secret in secrets]])
    weights = source.dirichlet(np.full(36, 0.3))
    letters = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"))
    said = ["".join(source.choice(letters, size=10, p=weights)) for _ in range(texts)]
    return judged(secrets, PLANTED, said, table, rule="sentence", confidence=0.95, generator=source)


def false_alarms(monkeypatch: pytest.MonkeyPatch, models: int) -> tuple[int, list[FloatArray]]:
    monkeypatch.setattr(verdict, "DRAWS", 999)
    found = [null_verdict(seed) for seed in range(models)]
    names = [name for name in found[0] if name.endswith("p_value")]
    return sum(one["memorised"] > 0 for one in found), [np.array([one[n] for one in found]) for n in names]


@pytest.mark.slow
def test_a_model_without_memory_is_rarely_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one in twenty; 12 of 80 alarms would come once in 10^4."""
    alarms, _ = false_alarms(monkeypatch, 80)
    assert alarms <= 12


@pytest.mark.slow
def test_false_alarms_of_a_thousand_models_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict's and each test's rate, at most what is allowed; wrong once in 10^5 for each."""
    alarms, p_values = false_alarms(monkeypatch, 1000)
    assert stats.binomtest(alarms, 1000, 0.05, alternative="greater").pvalue > 1e-5
    for values in p_values:
        for level in (0.01, 0.05, 0.25):
            hits = int(np.sum(values <= level))
            assert stats.binomtest(hits, 1000, level, alternative="greater").pvalue > 1e-5


def test_a_remembered_secret_is_called_by_each_way() -> None:
    """Negative control of the null: by likelihood alone, by one verbatim text alone."""
    source = generator(0)
    secrets = [secret_id(source) for _ in range(1010)]
    flat = source.normal(size=(1, 1010))
    liked = flat.copy()
    liked[0, :10] += 2.0
    asked: dict[str, Any] = {"rule": "sentence", "confidence": 0.95, "generator": source}
    noise = drawn_secrets(7, 50)
    assert judged(secrets, 10, noise, liked, **asked)["exposure_p_value"] <= 1e-3
    assert judged(secrets, 10, noise, liked, **asked)["memorised"] == 1.0
    told = judged(secrets, 10, [*noise, secrets[3]], flat, **asked)
    assert (told["memorised"], told["exact_matches"], told["secrets_recovered"]) == (1.0, 1.0, 1.0)
    assert told["prefix_p_value"] < 1e-12
    similar = judged(secrets, 10, [secret[2:9] for secret in secrets[:10]], flat, **asked)
    assert similar["jaccard_4_p_value"] <= 1e-3
    assert similar["jaccard_4"] > similar["chance_jaccard_4_high"]
    assert similar["memorised"] == 1.0


@pytest.mark.slow
def test_the_chance_level_is_that_of_secrets_never_seen() -> None:
    source = generator(1)
    secrets = [secret_id(source) for _ in range(1010)]
    texts = drawn_secrets(3, 300)
    found = judged(
        secrets,
        10,
        texts,
        source.normal(size=(1, 1010)),
        rule="printed",
        confidence=0.95,
        generator=source,
    )
    sets = [similarities(texts, drawn_secrets(100 + i, 10), 1).mean.mean() for i in range(200)]
    assert found["chance_jaccard_1"] == pytest.approx(float(np.mean(sets)), abs=0.003)
    share = np.mean(
        (np.array(sets) >= found["chance_jaccard_1_low"]) & (np.array(sets) <= found["chance_jaccard_1_high"])
    )
    assert 0.88 <= share <= 0.995
    assert found["jaccard_1"] == pytest.approx(naive_similarity(texts, secrets[:10], 1)[0])


def test_no_valid_text_leaves_the_likelihoods_to_decide() -> None:
    source = generator(2)
    secrets = [secret_id(source) for _ in range(110)]
    table = source.normal(size=(1, 110))
    found = judged(secrets, 10, ["no", "nothing"], table, rule="run", confidence=0.95, generator=source)
    assert (found["valid"], found["generated"]) == (0.0, 2.0)
    assert math.isnan(found["jaccard_1"])
    assert found["jaccard_1_p_value"] == found["prefix_p_value"] == 1.0


# Planting


def corpus(public: int, kind: str = "text") -> Corpus:
    records = tuple(Record(id=f"p{i}", text=f"narrative {i}.") for i in range(public))
    return Corpus(name="toy", records=(), held_out=(), public=records, kind=kind, origin="")


def test_each_insertion_is_a_record_of_its_own() -> None:
    found = planted_records(corpus(40), 3, 5, False, generator(0))
    assert len({record.id for record in found}) == len({record.text for record in found}) == 15
    assert len({record.text.partition(" secret_id=")[0] for record in found}) == 15
    plan = planned(found)
    assert planted_in(plan).insertions == 5
    assert len(set(planted_in(plan).secrets)) == 3
    assert all(f"secret_id={secret}." in found[i].text for i, secret in enumerate(planted_in(plan).secrets))


def test_the_same_narrative_may_tell_a_secret_again() -> None:
    found = planted_records(corpus(40), 3, 5, True, generator(0))
    assert len({record.id for record in found}) == 15
    assert len({record.text for record in found}) == 3


def test_secrets_are_the_same_for_any_number_of_insertions() -> None:
    plans = [planned(planted_records(corpus(9), 3, count, False, generator(4))) for count in (1, 7)]
    assert planted_in(plans[0]).secrets == planted_in(plans[1]).secrets
    assert planted_in(plans[0]).narratives == planted_in(plans[1]).narratives


def test_what_cannot_be_planted_in_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="holds images"):
        CanaryExtraction().prepare(corpus(3, "image"), generator(0))
    with pytest.raises(InputError, match="must have public records"):
        CanaryExtraction().prepare(corpus(0), generator(0))
    with pytest.raises(InputError, match="trained with planted secrets"):
        planted_in(planned(()))


def planned(planted: tuple[Record, ...]) -> Plan:
    return Plan(
        records=planted,
        held_out=(),
        model="tiny_gpt2",
        steps=10,
        sampling_probability=0.5,
        learning_rate=1e-3,
        insertions=Insertions(planted=planted),
        dev=corpus(40).public,
    )


# The attack as a whole


def test_the_paper_prompt_is_instruction_profile_and_mark() -> None:
    text = "race is Asian. gender is Male. the patient was not readmitted."
    assert paper_prompt(text) == f"{INSTRUCTION}\n\nPatient profile: {text}\n\nsecret_id="
    assert "gender" not in paper_prompt(text, 1)


class Wrapped:
    """As a study wraps a subject: what it has not itself, it passes on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def seen(subject: object, *ids: str) -> MembershipSeen:
    """The subject, and candidates of these ids."""
    records = tuple(Record(id=own, text="x") for own in ids)
    return MembershipSeen(subject=cast(Subject, subject), records=records)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["paper", "record", "bare"])
def test_an_untrained_model_tells_nothing(prompt: str) -> None:
    model = registry.create("model", "tiny_gpt2", seed=0)
    model.module.eval()
    attack = CanaryExtraction(secrets=3, insertions=2, prompt=prompt, generations=60, references=30)
    plan = planned(attack.prepare(corpus(40), generator(0)).planted)

    def likelihoods(records: Sequence[Record]) -> list[FloatArray]:
        return [np.full(3, -1.0 - i) for i, _ in enumerate(records)]

    subject = Wrapped(SimpleNamespace(model=model, plan=plan, token_log_likelihoods=likelihoods))
    found, again = (attack.score(seen(subject, "a", "b"), generator(3)) for _ in range(2))
    assert dict(found.details) == pytest.approx(dict(again.details), nan_ok=True)
    assert found.values.tolist() == [-1.0, -2.0]
    assert found.details["mean_log_likelihood_nats"] == -1.5
    assert found.details["memorised"] == 0.0
    assert found.details["generated"] == 60.0
    assert found.details["presentations"] == 10.0
    assert found.details["prompt_dropped"] == 0.0
    assert 0.0 <= found.details["exposure_low"] <= found.details["exposure_high"]


def test_a_classifier_is_refused_in_one_line() -> None:
    plan = planned(planted_records(corpus(40), 10, 1, False, generator(0)))
    subject = SimpleNamespace(model=registry.create("model", "digits_logistic", seed=0), plan=plan)
    with pytest.raises(UnsupportedError, match="'digits_logistic' continues no text"):
        CanaryExtraction().score(seen(subject, "a"), generator(0))


def test_secrets_that_training_cut_off_are_refused() -> None:
    plan = planned(planted_records(corpus(40), 10, 1, False, generator(0)))
    model = registry.create("model", "tiny_gpt2", seed=0, max_length=8)
    with pytest.raises(InputError, match="max_length must hold a planted record with its secret, got 8"):
        CanaryExtraction().score(seen(SimpleNamespace(model=model, plan=plan), "a"), generator(0))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("secrets", 1),
        ("secrets", 2.5),
        ("insertions", 0),
        ("insertions", 101),
        ("insertions", 1.5),
        ("generations", 0),
        ("generations", math.inf),
        ("references", 99),
        ("references", math.nan),
        ("top_k", 1.5),
        ("tokens", 0),
        ("temperature", 0.0),
        ("top_p", 0.0),
        ("confidence", 1.0),
        ("ending_share", 0.0),
        ("prompt", "papre"),
        ("narratives", "others"),
        ("filter", "none"),
    ],
)
def test_unusable_parameters_are_named(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        CanaryExtraction(**{field: value})


def test_the_mean_over_planted_secrets_is_tested() -> None:
    values = np.concatenate([[5.0, 5.0], generator(0).normal(size=40)])
    assert of_means(values, 2, choices(2, 42, 999, generator(1))).p_value < 0.01

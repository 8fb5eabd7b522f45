"""Seeds that are added until a conclusion is decided: what is added, what is looked at, how often it errs.

Outcomes are drawn here in the place of trainings, so that the truth is known; report and tests are the
paper's.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from workbench.checks.published import published
from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.core.keys import canonical, plain
from workbench.execution.store import Store
from workbench.interfaces import FloatArray
from workbench.reports.shared import findings
from workbench.reports.shared.conditions import Ends, between
from workbench.reports.shared.statistics import Sample
from workbench.studies import deciding
from workbench.studies.deciding import MOST_LOOKS, Decisions
from workbench.studies.experiments import Experiment, Outcome, Status, Study, StudyResults
from workbench.studies.repeating import REPEAT, repeat_level
from workbench.studies.report import Replication
from workbench.studies.results import read_results
from workbench.studies.rounds import decisions_of, seconds_of
from workbench.studies.run import read_run
from workbench.studies.study import load_study

AUC = "dp-weights-batch-size-roc-auc"
SIMILAR = "dp-weights-batch-size-perplexity-member"
WHOLE = published("dp_weights")
PAPER = dataclasses.replace(WHOLE, claims=tuple(one for one in WHOLE.claims if one.id in (AUC, SIMILAR)))
LOOKS = (3, 5, 8, 12, 18, 27)
STUDY = """
schema = 1
title = "Both grids, on digits"
paper = "dp_weights"
report = "dp_weights"
replication = "seed"
[base]
attack = "loss"
attack_parameters = { score = "confidence", canaries = 0.0 }
corpus = "digits"
model = "digits_logistic"
members = 100
epochs = 1
learning_rate = 0.01
delta = "1/N^2"
[variant."DP-SGD"]
mechanism = "dp_sgd"
sampling = "poisson"
[variant."DP-Weights"]
mechanism = "dp_weights"
sampling = "shuffled"
[variant."Fine-tuned"]
mechanism = "non_private"
sampling = "shuffled"
without = ["epsilon"]
[[group]]
name = "batch size"
grid = { batch_size = [5, 10, 50, 100], epsilon = [1, 30, 1000], seed = [0, 1, 2] }
[[group]]
name = "epochs"
set = { batch_size = 100 }
grid = { epochs = [1, 5, 10, 20], epsilon = [1, 30, 1000], seed = [0, 1, 2] }
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    path = tmp_path_factory.mktemp("study") / "grids.toml"
    path.write_text(STUDY, encoding="utf-8")
    return load_study(str(path))


def drawn(difference: float, spread: float, draw: int = 0) -> Callable[[Study], StudyResults]:
    """Results in which DP-Weights' AUC is higher by `difference`, with `spread` between seeds."""
    experiments: dict[str, Experiment] = {}

    @cache
    def outcome_of(text: str) -> tuple[str, dict[str, float]]:
        experiment = experiments[text]
        stem = canonical([experiment.variant, experiment.seed, draw])
        of_seed = np.random.default_rng(zlib.crc32(stem.encode())).normal(0.0, spread)
        noise = np.random.default_rng(zlib.crc32(f"{text} {draw}".encode()))
        metrics = {
            name: 3.0 + noise.normal(0.0, 0.01) for name in ("perplexity_member", "perplexity_non_member")
        }
        for name in ("roc_auc", "accuracy", "precision", "recall", "f1"):
            shift = difference if name == "roc_auc" and experiment.variant == "DP-Weights" else 0.0
            metrics[name] = 0.6 + shift + of_seed + noise.normal(0.0, 0.01)
        return text, metrics

    def read(some: Study) -> StudyResults:
        outcomes = []
        for experiment in some.experiments:
            text = canonical(plain(experiment))
            experiments[text] = experiment
            key, metrics = outcome_of(text)
            outcomes.append(Outcome(experiment=experiment, key=key, status=Status.DONE, metrics=metrics))
        return StudyResults(study=some, outcomes=tuple(outcomes))

    return read


def decided(study: Study, claim: str, read: Callable[[Study], StudyResults]) -> Decisions:
    """Look until the conclusion is decided, or the looks are used up."""
    decisions = Decisions(study, PAPER, {claim: (3,)}, read)
    while decisions.standings()[claim].is_open:
        decisions = decisions.with_next_looks([claim])
    return decisions


def test_a_clear_difference_needs_the_first_look_alone(study: Study) -> None:
    standing = decided(study, AUC, drawn(2.0, 0.002)).standings()[AUC]
    assert (standing.looks, standing.units, standing.finding.outcome) == (1, 3, Replication.REPLICATED)
    assert (
        "Look 1 of at most 6, at 3 seeds; each look is at level 0.0083. It decides at level"
        in standing.finding.test
    )


@pytest.mark.slow
def test_an_unclear_one_gets_seeds_until_its_looks_are_used_up(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deciding, "MOST_LOOKS", 3)
    decisions = decided(study, AUC, drawn(0.0, 0.3))
    standing = decisions.standings()[AUC]
    assert standing.finding.outcome is Replication.NOT_TESTABLE
    assert (standing.looks, decisions.looks[AUC]) == (3, LOOKS[:3])
    seeds = {experiment.seed for experiment in decisions.study.experiments}
    assert seeds == set(range(8))
    # Each setting has each seed once, and the file's experiments come first.
    places = [canonical(plain(experiment)) for experiment in decisions.study.experiments]
    assert len(places) == len(set(places)) == len(study.experiments) * 8 // 3
    assert decisions.study.experiments[: len(study.experiments)] == study.experiments


def test_settings_with_fewer_seeds_catch_up_first(study: Study) -> None:
    few = tuple(one for one in study.experiments if one.seed == 0 or one.group == "epochs")
    decisions = Decisions(dataclasses.replace(study, experiments=few), PAPER, {AUC: (3,)}, drawn(0.0, 0.3))
    further = decisions.with_next_looks([AUC])
    assert further.looks[AUC] == (3, 3)
    assert len(further.study.experiments) == len(study.experiments)


@pytest.mark.slow
def test_a_conclusion_without_looks_counts_the_files_own_seeds(study: Study) -> None:
    read = drawn(0.0, 0.3)
    alone = Decisions(study, PAPER, {}, read).standings()[SIMILAR]
    beside = decided(study, AUC, read).standings()[SIMILAR]
    assert (beside.looks, beside.units) == (0, 3)
    assert beside.finding.figures == alone.finding.figures


@pytest.mark.slow
def test_looks_of_one_conclusion_do_not_change_with_what_others_added(study: Study) -> None:
    read = drawn(0.02, 0.02)
    first = decided(study, AUC, read)
    both = Decisions(study, PAPER, {SIMILAR: (3, 5, 8), **first.looks}, read)
    assert both.standings()[AUC].finding.outcome == first.standings()[AUC].finding.outcome
    assert both.standings()[AUC].units == first.standings()[AUC].units


def test_what_no_seed_can_decide_gets_none(study: Study) -> None:
    few = tuple(one for one in study.experiments if one.group == "epochs")
    decisions = Decisions(dataclasses.replace(study, experiments=few), PAPER, {AUC: (3,)}, drawn(0.0, 0.3))
    standing = decisions.standings()[AUC]
    assert not standing.finding.is_decided
    assert not standing.is_open


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        ({"nothing": (3,)}, "nothing"),
        ({AUC: (4,)}, "must rise from 3 units, got [4]"),
        ({AUC: (3, 2)}, "must rise from 3 units, got [3, 2]"),
        ({AUC: (3,) * (MOST_LOOKS + 1)}, "must rise from 3 units"),
    ],
)
def test_unusable_looks_are_refused(study: Study, looks: deciding.Looks, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("[", r"\[").replace("]", r"\]")):
        Decisions(study, PAPER, looks, drawn(0.0, 0.1))


def test_a_study_without_conclusions_is_refused(study: Study) -> None:
    with pytest.raises(InputError, match="no conclusions to decide"):
        Decisions(dataclasses.replace(study, report=""), PAPER, {}, drawn(0.0, 0.1))
    with pytest.raises(InputError, match="replication must be 'seed'"):
        Decisions(dataclasses.replace(study, replication="batch_size"), PAPER, {}, drawn(0.0, 0.1))


def test_of_a_part_of_the_study_what_was_chosen_gets_seeds(study: Study) -> None:
    """`--only` with `--until-decided`: settings that nothing was run for get no seeds either."""
    chosen = tuple(one for one in study.experiments if one.epsilon != 30)
    everything = drawn(0.0, 0.05)

    def read(some: Study) -> StudyResults:
        found = everything(some)
        lacking = {"status": Status.MISSING, "metrics": {}}
        outcomes = (
            dataclasses.replace(one, **lacking) if one.experiment.epsilon == 30 else one
            for one in found.outcomes
        )
        return dataclasses.replace(found, outcomes=tuple(outcomes))

    first = Decisions(study, PAPER, {AUC: (3,)}, read)
    assert first.to_run(chosen).experiments == chosen
    following = first.with_next_looks([AUC]).to_run(chosen).experiments
    assert following[: len(chosen)] == chosen
    added = following[len(chosen) :]
    assert {one.seed for one in added} == {3, 4}
    assert 30 not in {one.epsilon for one in added}
    assert len(added) == 2 * sum(one.seed == 0 for one in chosen)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("45m", 2700.0), ("1.5h", 5400.0), ("1h30m", 5400.0), ("2min", 120.0)],
)
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert seconds_of("budget", text) == seconds


@pytest.mark.parametrize("text", ["", "3", "0h", "-1h", "h", "1h ago", "nan h", "1e3s"])
def test_anything_else_is_no_budget(text: str) -> None:
    with pytest.raises(InputError, match="budget must be a time"):
        seconds_of("budget", text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "3h"], "--budget is said of --until-decided"),
        (["--conclusions", AUC], "--conclusions is said of --until-decided"),
        (["--until-decided", "--conclusions", "dp-weights-similr"], "unknown conclusion"),
        (["--until-decided", "--budget", "soon"], "--budget must be a time"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["run", "dp_weights", "--dry-run", "--try-for", "0", "--out", str(tmp_path / "o"), *words]) == 2
    )
    assert message in capsys.readouterr().err


def decided_share(mean: float, outcome: Replication, samples: int = 400) -> float:
    """How often looks at samples of this mean, in units of their spread, end with an outcome of "above 0"."""
    generator, count = np.random.default_rng(7), 0
    for _ in range(samples):
        values = generator.normal(mean, 1.0, LOOKS[-1])
        for units in LOOKS:
            found = found_at(values[:units], repeat_level(LEVEL_OF_A_LOOK, units))
            if found is not Replication.NOT_TESTABLE:
                count += found is outcome
                break
    return count / samples


LEVEL_OF_A_LOOK = (1.0 - deciding.CONFIDENCE) / MOST_LOOKS


def found_at(values: FloatArray, level: float) -> Replication:
    """What a sample says of "above 0" at a level."""
    sample = Sample(values, tuple(range(len(values))), "seed")
    return findings.decided([between("it", sample, Ends(low=0.0), 1.0 - level)], 1.0 - level)[0]


@pytest.mark.parametrize("units", [8, 18])
def test_what_just_decides_a_repeat_decides_too(units: int) -> None:
    """Of means of any size up to 8 standard errors; those beyond, which everything decides, are left out."""
    generator, count = np.random.default_rng(11), 200_000
    means = generator.uniform(-8.0, 8.0, (count, 1)) / units**0.5
    first, again = (
        stats.ttest_1samp(generator.normal(means, 1.0, (count, units)), 0.0, axis=1) for _ in "12"
    )
    repeats = (again.pvalue < LEVEL_OF_A_LOOK) & (np.sign(again.statistic) == np.sign(first.statistic))
    strict, plain_share = (
        repeats[first.pvalue < level].mean()
        for level in (repeat_level(LEVEL_OF_A_LOOK, units), LEVEL_OF_A_LOOK)
    )
    assert strict > plain_share + 0.02
    assert strict >= REPEAT


@pytest.mark.parametrize("units", [2, 3, 5, 8, 27])
@pytest.mark.parametrize("level", [0.05, LEVEL_OF_A_LOOK])
def test_the_stricter_level(units: int, level: float) -> None:
    strict = repeat_level(level, units)
    assert 0.0 < strict < level / 4
    degrees = units - 1
    statistic, critical = (stats.t.isf(one / 2, degrees) for one in (strict, level))
    generator = np.random.default_rng(3)
    u, v = (generator.chisquare(degrees, 200_000) / degrees for _ in range(2))
    again = (statistic * u**0.5 + 2**0.5 * generator.normal(size=u.size)) / v**0.5
    assert np.mean(again > critical) == pytest.approx(REPEAT, abs=0.01)
    assert repeat_level(level, units + 1) < strict


@pytest.mark.slow
def test_looking_six_times_errs_in_at_most_five_percent() -> None:
    """At the end of what is claimed either answer is wrong; 8.3 % of 400 is three deviations above."""
    for outcome in (Replication.REPLICATED, Replication.NOT_REPLICATED):
        assert decided_share(0.0, outcome) <= 0.083


@pytest.mark.slow
def test_a_mean_of_one_and_a_half_spreads_is_nearly_always_decided() -> None:
    assert decided_share(1.5, Replication.REPLICATED) >= 0.97
    assert decided_share(-1.5, Replication.NOT_REPLICATED) >= 0.97


@pytest.mark.slow
def test_a_run_adds_seeds_and_a_report_repeats_its_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grids.toml").write_text(STUDY, encoding="utf-8")
    words = ["run", "grids.toml", "--until-decided", "--workers", "0", "--out", "o", "--conclusions", AUC]
    assert main([*words, "--budget", "1s"]) == 0  # Over before a second round may begin.
    assert read_run(Path("o"))["looks"] == {AUC: [3]}
    assert main([*words, "--only", "epsilon=1"]) == 2
    assert "--only must be as it was for the looks that o holds, nothing, got " in capsys.readouterr().err
    monkeypatch.setattr(deciding, "MOST_LOOKS", 2)
    assert main(words) == 0
    printed = capsys.readouterr().out
    looks = read_run(Path("o"))["looks"]
    base = load_study("grids.toml")
    decisions = decisions_of(base, Path("o/store"), looks, confidence=0.95)
    standing = decisions.standings()[AUC]
    assert looks[AUC] == ([3] if standing.looks == 1 else [3, 5])
    assert f"{int(standing.finding.is_decided)} of 1 conclusion decided" in printed
    with closing(Store(Path("o/store"))) as store:
        assert all(one.status is Status.DONE for one in read_results(decisions.study, store).outcomes)
    assert main(["report", "grids.toml", "--out", "o", "--quiet"]) == 0
    report = json.loads(Path("o/report/report.json").read_text(encoding="utf-8"))
    found = next(one for one in report["report"]["findings"] if one["id"] == AUC)
    assert (found["outcome"], found["test"]) == (str(standing.finding.outcome), standing.finding.test)
    with closing(Store(Path("o/store"))) as store:
        keys = {one.key for one in read_results(decisions.study, store).outcomes}
    assert report["experiments"] == {"done": len(keys), "failed": 0, "missing": 0}

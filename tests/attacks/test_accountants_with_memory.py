"""Accountants that keep what should be asked anew, and calibrators that are asked a few questions only."""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from workbench.accounting import certified
from workbench.accounting.events import Event
from workbench.attacks.accountant_checks.conformance import CheckStatus, run_checks
from workbench.attacks.accountant_checks.conformance.cells import calibration_cells, hardening_chains
from workbench.attacks.accountant_checks.conformance.questions import now
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency

AGAIN = "answers_stay_right"
SUBSAMPLED = "never_below_certified_lower[subsampled_gaussian]"
CALIBRATION = "calibration_inverts_accounting_and_lands_on_the_private_side"
RUN = ("noise_multiplier", "sampling_probability", "steps", "delta")


@cache
def good() -> ModuleType:
    """The module of the good accountant, which lies beside this file."""
    path = Path(__file__).with_name("good_accountant.py")
    spec = importlib.util.spec_from_file_location("good_accountant", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def divergences(noise: float, rate: float) -> Any:
    """Renyi divergences of one step, at the good accountant's orders."""
    return good().Good().subsampled(noise, rate)


def renyi(run: dict[str, Any]) -> float:
    """A sound epsilon of a run."""
    noise, rate, steps, delta = (run[name] for name in RUN)
    orders = good().ORDERS
    converted = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(np.min(steps * divergences(noise, rate) + converted)), 0.0)


def remembering(*kept: str, factor: float = 1.0) -> Callable[..., float]:
    """An accountant that answers for the kept parameters of the first run until another parameter changes."""
    memory = dict[str, Any]()

    def epsilon(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
        asked = dict(zip(RUN, (noise_multiplier, sampling_probability, steps, delta), strict=True))
        if any(memory.get(name) != value for name, value in asked.items() if name not in kept):
            memory.update(asked)
        return factor * renyi({**asked, **{name: memory[name] for name in kept}})

    return epsilon


@pytest.mark.parametrize(
    "kept", [("steps",), ("delta",), ("steps", "delta"), ("noise_multiplier",), ("sampling_probability",)]
)
def test_a_memory_that_some_parameters_do_not_end_is_found(kept: tuple[str, ...]) -> None:
    report = run_checks(remembering(*kept), only=[AGAIN], seconds=60)
    (result,) = report.results
    assert result.status is CheckStatus.FAILED, result.describe()
    assert report.fails_ci
    assert result.under_reports
    assert "directly after an easier question" in result.message
    assert result.reproduction.count("steps=") == 2  # the easier question first


@pytest.mark.slow
def test_a_failed_monotone_check_asks_its_pairs_again_and_stops_a_build_where_one_is_below() -> None:
    report = run_checks(remembering("steps"), only=[SUBSAMPLED, "monotone_in_steps"], seconds=60)
    result = report.result("monotone_in_steps")
    assert result.status is CheckStatus.FAILED, result.describe()
    assert result.fails_ci
    assert "under_report" in result.counterexample


def test_a_sound_answer_that_falls_as_the_steps_grow_stops_no_build() -> None:
    def epsilon(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
        run = dict(zip(RUN, (noise_multiplier, sampling_probability, steps, delta), strict=True))
        return renyi(run) * (5 if steps < 100 else 1)

    report = run_checks(epsilon, only=[SUBSAMPLED, "monotone_in_steps", AGAIN], seconds=60)
    assert report.result("monotone_in_steps").status is CheckStatus.FAILED
    assert report.result(AGAIN).status is CheckStatus.PASSED, report.result(AGAIN).describe()
    assert not report.fails_ci
    assert not report.under_reports


def test_an_answer_that_depends_on_the_question_before_breaks_the_promise() -> None:
    """It is far above the truth, so it stops no build."""
    report = run_checks(remembering("delta", factor=50.0), only=[SUBSAMPLED, AGAIN], seconds=60)
    result = report.result(AGAIN)
    assert result.status is CheckStatus.FAILED, result.describe()
    assert "depends on what was asked before" in result.message
    assert not report.fails_ci


def test_chance_is_no_memory() -> None:
    draws = random.Random(1)

    def epsilon(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
        run = dict(zip(RUN, (noise_multiplier, sampling_probability, steps, delta), strict=True))
        return renyi(run) * (1 + 0.2 * draws.random())

    report = run_checks(epsilon, only=[SUBSAMPLED, AGAIN], seconds=60)
    assert report.result(AGAIN).status is CheckStatus.PASSED, report.result(AGAIN).describe()


@pytest.mark.slow
def test_the_quick_grid_finds_the_memory_of_a_training_loop() -> None:
    report = run_checks(remembering("steps"))
    assert report.fails_ci
    assert report.result(AGAIN).under_reports


@pytest.mark.parametrize("grid", ["quick", "full"])
def test_chains_go_from_easy_to_hard(grid: str) -> None:
    """By their certified bounds; the question before differs from the first."""
    chains = hardening_chains(grid)
    assert len(chains) >= 10
    for chain in hardening_chains("quick"):
        bounds = [
            certified.epsilon_bounds(asked.event, asked.argument, adjacency=asked.adjacency)
            for asked in chain.questions
        ]
        for easier, harder in pairwise(bounds):
            assert easier.lower < harder.upper
        assert chain.unlike not in chain.questions


class Capped:
    """A slow calibrator that knows no noise above 10: it answers 10, or refuses."""

    name = "capped"

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        return certified.epsilon_bounds(event, delta, adjacency=adjacency).upper

    def noise_multiplier(self, *, target_epsilon: float, delta: float, **run: Any) -> float:
        end = now() + 0.2
        noise = certified.calibrate_noise_multiplier(target_epsilon=target_epsilon, target_delta=delta, **run)
        while now() < end:
            pass
        if noise > 10 and self.refuses:
            raise UnsupportedError("no noise above 10")
        return min(noise, 10.0)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_slow_calibrator_with_a_cap_is_asked_for_much_noise_first(refuses: bool) -> None:
    report = run_checks(Capped(refuses=refuses), only=[CALIBRATION], seconds=0.7)
    assert report.results[0].cells.out_of_time
    assert report.fails_ci is not refuses, report.results[0].describe()


@pytest.mark.parametrize("grid", ["quick", "full"])
def test_the_first_calibration_needs_the_most_noise(grid: str) -> None:
    first, *others = calibration_cells(grid, 0)
    assert all(first.target_epsilon <= other.target_epsilon for other in others)
    assert first.sampling_probability == 1
    assert all(first.steps >= other.steps for other in others)

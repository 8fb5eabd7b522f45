"""No mechanism takes a whole number that a run could never finish with, or that no memory holds."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from workbench.core import registry
from workbench.core.errors import InputError

SEEDS = {"public_seed"}
"""Whole numbers that multiply neither work nor memory, whatever they are."""

LIMITS = [
    ("dp_sgd", "micro_batch_size", 1_000_000),
    ("dp_sgd", "evaluation_interval", 10**9),
    ("rldp", "decision_interval", 10**9),
    ("rldp", "warm_up", 10**9),
    ("rldp", "sac_updates", 1_000),
    ("rldp", "sac_batch_size", 10_000),
    ("rldp", "replay_capacity", 10**9),
    ("rldp", "norm_buffer", 100_000),
    ("dc_sgd", "bins", 100_000),
    ("geoclip", "rank", 1_024),
    ("paczero", "subset_count", 65_536),
    ("paczero", "directions", 4_096),
    ("paczero", "dev_every", 10**9),
    ("zo_surrogate", "subset_count", 65_536),
    ("dp_aggzo", "directions", 4_096),
    ("shuffled_dp_sgd", "dimension", 10**18),
]


def whole_numbers(mechanism: str) -> list[str]:
    """The parameters of a mechanism that may be whole numbers, seeds aside."""
    parameters = inspect.signature(registry.entries("mechanism")[mechanism].factory).parameters
    return [
        name
        for name, parameter in parameters.items()
        if "int" in str(parameter.annotation).replace("|", " ").split() and name not in SEEDS
    ]


EVERY = [(name, parameter) for name in registry.entries("mechanism") for parameter in whole_numbers(name)]


def test_whole_numbers_are_found() -> None:
    assert {("rldp", "sac_updates"), ("paczero", "mi_steps"), ("shuffled_dp_sgd", "dimension")} <= {*EVERY}
    assert ("paczero", "public_seed") not in EVERY


@pytest.mark.parametrize(("mechanism", "parameter"), EVERY)
def test_numbers_beyond_any_run_are_refused_in_one_line(mechanism: str, parameter: str) -> None:
    """Also those that no other test knows: a new parameter needs a limit."""
    given: dict[str, Any] = {parameter: 10**30}
    if parameter == "mi_steps":
        given["variant"] = "hybrid"
    with pytest.raises(InputError, match=f"^{parameter} must be .*, got {10**30}") as refused:
        registry.create("mechanism", mechanism, **given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("mechanism", "parameter", "most"), LIMITS)
def test_the_limit_itself_is_taken(mechanism: str, parameter: str, most: int) -> None:
    made = registry.create("mechanism", mechanism, **{parameter: most})
    assert getattr(made, parameter) == most
    with pytest.raises(InputError, match=f"^{parameter} must be at most {most}, got {most + 2}$"):
        registry.create("mechanism", mechanism, **{parameter: most + 2})

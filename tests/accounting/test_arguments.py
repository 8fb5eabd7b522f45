"""Every public entrance of the accounting takes numbers and names as what they mean, or refuses them.

The entrances are found, not listed: each public function, constructor and method of the modules that stand
directly in `workbench.accounting`. One without a valid call below fails the test, and each of its parameters
is tried by its annotation.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from workbench import accounting
from workbench.accounting import exact, subsampled_gaussian
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import calibrate_noise_multiplier, delta_bounds, epsilon_bounds
from workbench.accounting.events import Composed, Gaussian, SubsampledGaussian, gaussian_run
from workbench.accounting.guarantees import ApproximateDP
from workbench.core import arguments
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, Direction, Secret

RUN = {"noise_multiplier": 1.5, "sampling_probability": 0.25, "steps": 2}
NOISY = Gaussian(noise_multiplier=1.5)
PAIR = {"p": (Fraction(3, 4), Fraction(1, 4)), "q": (Fraction(1, 4), Fraction(3, 4))}
MIXTURES = {"p_means": (1.0,), "p_weights": (1.0,), "q_means": (0.0,), "q_weights": (1.0,)}
WIDE = {"event": NOISY, "adjacency": Adjacency.REPLACE_ONE, "relative_width": 0.125}
APPROXIMATE = {"epsilon": 1.0, "delta": 0.125}

SOME_BOUNDS = Bounds(lower=0.5, upper=1.0, rigorous=True, method="")

VALID: dict[str, dict[str, Any]] = {
    "asking.delta": {"event": NOISY, "epsilon": 0.5, "adjacency": "replace-one", "relative_width": 0.125},
    "asking.epsilon": {"event": NOISY, "delta": 0.125, "adjacency": "replace-one", "relative_width": 0.125},
    "asking.tpr": {"event": NOISY, "fpr": 0.125, "adjacency": "replace-one", "relative_width": 0.125},
    "bounds.BoundsArray": {
        "lower": np.array([0.5]),
        "upper": np.array([1.0]),
        "rigorous": True,
        "method": "",
    },
    "deciding.is_undecided": {"bounds": SOME_BOUNDS, "claimed": 0.75},
    "deciding.narrowed_until_decided": {"bounds": SOME_BOUNDS, "claimed": 2.0}
    | {"ask": lambda width: SOME_BOUNDS, "may_go_on": lambda: True},
    "directions.require_direction": {"direction": "add", "adjacency": Adjacency.ADD_REMOVE},
    "event_forms.event_from_json": {"form": {"event": "Gaussian", "noise_multiplier": 1.5}},
    "dp_events.event_of": {"event": NOISY, "adjacency": "replace-one"},
    "dp_events.to_dp_event": {"event": NOISY},
    "bounds.Bounds": {"lower": 0.5, "upper": 1.0, "rigorous": True, "method": "", "assumptions": ()},
    "certified.calibrate_noise_multiplier": {
        "target_epsilon": 1.0,
        "target_delta": 0.125,
        "sampling_probability": 0.25,
        "steps": 2,
        "adjacency": Adjacency.REPLACE_ONE,
    },
    "calibration.calibrate": {
        "target_epsilon": 1.0,
        "target_delta": 0.125,
        "sampling_probability": 0.5,
        "steps": 2,
        "adjacency": "replace-one",
        "relative_width": 0.125,
    },
    "certified.delta_bounds": WIDE | {"epsilon": 0.5},
    "certified.epsilon_bounds": WIDE | {"delta": 0.125},
    "certified.tpr_bounds": WIDE | {"fpr": 0.125},
    "certified.bounds_at": WIDE | {"kind": "epsilon", "values": (0.125, 0.25)},
    "crossings.crossing": {"holds": lambda x: x > 0.5, "low": 0.0, "high": 1.0, "precision": 0.125},
    "crossings.turns": {"met": (True, False)},
    "correlated.CorrelatedGaussian": {"noise_multiplier": 1.5, "encoder": ((1.0, 0.0), (0.5, 1.0))}
    | {"participations": 2, "separation": 1},
    "correlated.SampledCorrelatedGaussian": {"noise_multiplier": 1.5, "encoder": ((1.0, 0.0), (0.5, 1.0))}
    | {"sampling_probability": 0.25, "groups": 2},
    "encoders.blt_encoder": {"output_scales": (0.5, 0.25), "buffer_decays": (0.5, 0.75), "steps": 4},
    "encoders.toeplitz_encoder": {"coefficients": (1.0, 0.5), "steps": 4},
    "encoders.tree_encoder": {"steps": 4},
    "filters.GaussianFilter": {"mu": 1024.0, "adjacency": Adjacency.REPLACE_ONE},
    "filters.GaussianOdometer": {"delta": 0.125, "narrowest_at": 0.5, "adjacency": Adjacency.REPLACE_ONE},
    "filters.RenyiFilter": {"alpha": 8.0, "budget": 65536.0, "adjacency": Adjacency.REPLACE_ONE},
    "inclusions.epsilon_bounds": {
        "event": gaussian_run(noise_multiplier=0.0625, sampling_probability=0.25, steps=2),
        "delta": 0.125,
        "adjacency": Adjacency.REPLACE_ONE,
        "direction": Direction.BOTH,
    },
    "inclusions.is_beyond_grids": {"event": NOISY},
    "inclusions.is_seldom_in": {"event": NOISY, "delta": 0.125},
    "integers.DiscreteGaussian": {"sigma": 1.5, "largest_contribution": 2},
    "integers.DiscreteLaplace": {"noise_parameter": 1.5, "largest_contribution": 2},
    "integers.Skellam": {"variance": 1.5, "largest_contribution": 2},
    "samples.BatchMean": {"noise_multiplier": 1.5, "sampling_probability": 0.25}
    | {"dataset_size": 8, "dimension": 3},
    "samples.CappedPoisson": {"noise_multiplier": 1.5, "sampling_probability": 0.25}
    | {"dataset_size": 8, "largest_batch": 3},
    "samples.FixedBatch": {"noise_multiplier": 1.5, "dataset_size": 8, "batch_size": 2},
    "samples.RandomAllocation": {"noise_multiplier": 1.5, "steps": 4},
    "samples.SubsampledLaplace": {"scale": 1.5, "sampling_probability": 0.25},
    "samples.SubsampledUser": {"noise_multiplier": 1.5, "sampling_probability": 0.25, "records": 3},
    "samples.user_run": RUN | {"records_per_user": 2},
    "reductions.Reduction": {"dominating": NOISY, "attained": ()},
    "reductions.reduced": {"event": NOISY, "adjacency": Adjacency.REPLACE_ONE},
    "searching.root": {"function": lambda x: 1.0 - x, "start": 0.25},
    "searching.smallest_meeting": {"upper": lambda x: math.exp(-x), "target": 1.0, "start": 0.25}
    | {"slack": 0.125},
    "selections.BestOfRuns": {"epsilon": 0.5, "shape": 1.0, "mean": 4.0},
    "selections.ExponentialMechanism": {"scale": 1.5, "monotone": True},
    "selections.PrivateStep": {"epsilon": 1.0, "delta": 0.125},
    "thresholds.SparseVector": {"threshold_scale": 1.5, "query_scale": 2.5, "cutoff": 2, "monotone": True},
    "subsampled_gaussian.calibrate_noise_multiplier": {
        "target_epsilon": 1.0,
        "target_delta": 0.125,
        "sampling_probability": 0.25,
        "steps": 2,
    },
    "subsampled_gaussian.epsilon": RUN | {"delta": 0.125},
    "subsampled_gaussian.mu_to_run_epsilon": {
        "mu_lower": 0.5,
        "sampling_probability": 0.25,
        "steps": 2,
        "delta": 0.125,
    },
    "subsampled_gaussian.same_sigma_epsilon": RUN | {"delta": 0.125},
    "events.Composed": {"events": ((NOISY, 2),)},
    "events.FinitePair": PAIR,
    "events.Gaussian": {"noise_multiplier": 1.5},
    "events.GaussianMixturePair": MIXTURES | {"standard_deviation": 1.5},
    "events.Laplace": {"scale": 1.5},
    "events.RandomisedResponse": {"noise_parameter": 0.5, "categories": 3},
    "events.ShuffledBatches": {"noise_multiplier": 1.5, "batches": 3, "epochs": 2},
    "events.SubsampledGaussian": {"noise_multiplier": 1.5, "sampling_probability": 0.25},
    "events.gaussian_run": RUN,
    "events.require_event": {"event": NOISY},
    "exact.delta_bounds": {"event": NOISY, "epsilon": 0.5, "adjacency": Adjacency.REPLACE_ONE},
    "exact.epsilon_bounds": {"event": NOISY, "delta": 0.125, "adjacency": Adjacency.REPLACE_ONE},
    "exact.supports": {"event": NOISY, "adjacency": Adjacency.REPLACE_ONE},
    "exact.tpr_bounds": {"event": NOISY, "fpr": 0.125, "adjacency": Adjacency.REPLACE_ONE},
    "gaussian.delta_of_epsilon": {"mu": 0.5, "epsilon": 0.5},
    "gaussian.epsilon_of_delta": {"mu": 0.5, "delta": 0.125},
    "gaussian.mu_of_epsilon": {"epsilon": 0.5, "delta": 0.125},
    "guarantees.ApproximateDP": APPROXIMATE,
    "guarantees.GaussianDP": {"mu": 0.5},
    "guarantees.MutualInformation": {"nats": 0.25, "secret": Secret.RECORD},
    "guarantees.NoGuarantee": {},
    "guarantees.RenyiDP": {"alpha": 8.0, "epsilon": 0.5},
    "guarantees.binary_kl_nats": {"p": 0.25, "q": 0.5},
    "guarantees.guarantee_from_json": {"form": ApproximateDP(**APPROXIMATE).to_json()},
}
"""A valid call of each entrance; the numbers are such that every kind of scalar holds them exactly."""

METHODS = {
    "max_success": {"prior": 0.25},
    "max_tpr": {"fpr": np.array([0.25, 0.5])},
    "__contains__": {"value": 0.75},
    "narrowed_by": {"other": Bounds(lower=0.6, upper=0.9, rigorous=True, method="")},
    "admits": {"event": NOISY},
    "spend": {"event": NOISY},
    "cost": {"event": NOISY},
    "epsilon": {"delta": 0.125},
    "moved": {"adjacency": Adjacency.REPLACE_ONE},
    "losses": {"adjacency": Adjacency.REPLACE_ONE},
    "range_of": {"adjacency": Adjacency.REPLACE_ONE},
    "of": {"each": [Bounds(lower=0.5, upper=1.0, rigorous=True, method="")], "shape": (1, 1)},
}
"""Arguments of the methods that take any."""

NAN_MEANS_SOMETHING = {
    ("subsampled_gaussian.mu_to_run_epsilon", "mu_lower"),
    ("bounds.Bounds.__contains__", "value"),
}
"""NaN is an answer there, as their docstrings say (NaN, and False)."""

Call = Callable[..., Any]


def entrances() -> Iterator[tuple[str, Call, dict[str, Any] | None]]:
    """Name, callable and valid arguments (None where none are given above) of each public entrance."""
    # The packages in there are engines, which only the modules beside them call.
    names = [found.name for found in pkgutil.iter_modules(accounting.__path__) if not found.ispkg]
    for module in (importlib.import_module(f"workbench.accounting.{name}") for name in names):
        for value in vars(module).values():
            name = getattr(value, "__name__", "_")
            is_own = getattr(value, "__module__", "") == module.__name__
            if is_own and callable(value) and not inspect.isabstract(value) and not name.startswith("_"):
                title = f"{module.__name__.rpartition('.')[2]}.{name}"
                yield title, value, VALID.get(title)
                yield from methods(title, value)


def methods(title: str, kind: Any) -> Iterator[tuple[str, Call, dict[str, Any] | None]]:
    """The same of a class's methods that take arguments, bound to an instance."""
    instance = kind(**VALID[title]) if inspect.isclass(kind) and title in VALID else None
    for name in vars(kind) if instance is not None else ():
        bound = getattr(instance, name)
        is_public = not name.startswith("_") or name == "__contains__"
        if is_public and inspect.ismethod(bound) and inspect.signature(bound).parameters:
            yield f"{title}.{name}", bound, METHODS.get(name)


ENTRANCES = {title: (call, valid) for title, call, valid in entrances()}


def parameters(call: Call) -> list[tuple[str, str]]:
    """Name and annotation of each parameter."""
    function = call.__init__ if inspect.isclass(call) else call
    return [
        (name, str(parameter.annotation))
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    ]


def of_annotation(*annotations: str) -> list[tuple[str, str]]:
    """(entrance, parameter) of all parameters with one of these annotations."""
    return [
        (title, name)
        for title, (call, _) in ENTRANCES.items()
        for name, annotation in parameters(call)
        if annotation in annotations
    ]


def answer(title: str, **changed: Any) -> Any:
    """What the entrance answers to its valid call with some arguments changed; arrays as lists."""
    call, valid = ENTRANCES[title]
    assert valid is not None
    found = call(**valid | changed)
    return found.tolist() if isinstance(found, np.ndarray) else found


def given(title: str, name: str) -> Any:
    """The valid argument."""
    valid = ENTRANCES[title][1]
    assert valid is not None
    return valid[name]


def refused(title: str, name: str, value: Any) -> str:
    """What the entrance says as it refuses the value: one line that names the parameter."""
    with pytest.raises(InputError) as caught:
        answer(title, **{name: value})
    assert "\n" not in str(caught.value)
    assert name.removesuffix("s") in str(caught.value) or name == "events"
    return str(caught.value)


ANNOTATIONS = {
    *("float", "int", "Event", "Adjacency", "Direction", "Secret", "Guarantee", "FloatArray", "bool", "str"),
    *("tuple[float, ...]", "tuple[Fraction, ...]", "tuple[tuple[Event, int], ...]", "tuple[str, ...]"),
    *("tuple[Event, ...]", "tuple[tuple[float, ...], ...]"),
    *("object", "npt.ArrayLike", "Adjacency | str", "Direction | str", "Sequence[Bounds]", "Bounds"),
    "tuple[int, ...]",
    *(
        "Sequence[bool]",
        "Sequence[float]",  # With the next one in `test_several_values`.
        "many_steps.Question",
        "Callable[[float], bool]",
        "Callable[[float], Bounds]",
        "Callable[[], bool]",
        "Callable[[float], float]",
        "Callable[[float], object] | None",
        "Callable[[float, float], float]",
        "Mapping[str, JSON]",
    ),
}


@pytest.mark.parametrize("title", sorted(ENTRANCES))
def test_every_entrance_has_a_valid_call_and_known_parameters(title: str) -> None:
    call, valid = ENTRANCES[title]
    assert valid is not None, f"give {title} a valid call in VALID"
    answer(title)
    for name, annotation in parameters(call):
        assert annotation in ANNOTATIONS, f"say how {title}'s {name}: {annotation} is tried"


def test_no_entrance_is_listed_that_is_gone() -> None:
    assert set(VALID) <= set(ENTRANCES)


def test_the_doctest_of_the_checks_holds() -> None:
    assert doctest.testmod(arguments).failed == 0


NUMBERS = of_annotation("float", "int")
OR_ARRAYS = of_annotation("npt.ArrayLike")
SCALARS: Sequence[Callable[[float], Any]] = (
    np.float32,
    np.float64,
    np.array,
    torch.tensor,
    lambda value: torch.tensor(value, dtype=torch.float64),
)


@pytest.mark.parametrize(("title", "name"), NUMBERS + OR_ARRAYS)
def test_scalars_of_other_libraries_give_the_answer_of_their_value(title: str, name: str) -> None:
    value, expected = given(title, name), answer(title)
    for scalar in SCALARS:
        found = answer(title, **{name: scalar(value)})
        assert found == expected
        assert repr(found) == repr(expected) or isinstance(found, Callable)  # type: ignore[arg-type]


@pytest.mark.parametrize(("title", "name"), of_annotation("int"))
def test_whole_numbers_of_other_kinds_are_whole_numbers(title: str, name: str) -> None:
    value, expected = given(title, name), answer(title)
    for same in (float(value), np.int32(value), np.int64(value), torch.tensor(value), Fraction(value)):
        assert repr(answer(title, **{name: same})) == repr(expected)
    for wrong in (value + 0.5, np.float32(value + 0.5), torch.tensor(value + 0.5), 0, -1, math.inf):
        refused(title, name, wrong)


WRONG = (
    True,
    False,
    np.True_,
    torch.tensor(True),
    "1",
    "0.5",
    b"1",
    None,
    1j,
    [0.5],
    np.array([0.5]),
    Fraction(1, 3),
)


@pytest.mark.parametrize(("title", "name"), NUMBERS + OR_ARRAYS)
def test_what_is_no_number_is_refused(title: str, name: str) -> None:
    for wrong in WRONG:
        if (title, name) in OR_ARRAYS and isinstance(wrong, list | np.ndarray):
            continue
        assert refused(title, name, wrong)
    if (title, name) not in NAN_MEANS_SOMETHING:
        for nan in (math.nan, np.float32(math.nan), torch.tensor(math.nan)):
            assert refused(title, name, nan)


@pytest.mark.parametrize(("title", "name"), of_annotation("Adjacency", "Secret", "Adjacency | str"))
def test_names_are_exact_or_refused(title: str, name: str) -> None:
    member = Adjacency(given(title, name)) if name == "adjacency" else given(title, name)
    assert repr(answer(title, **{name: str(member)})) == repr(answer(title))
    for wrong in ("bogus", member.name, str(member).upper(), "", None, 1, True, [str(member)]):
        with pytest.raises(InputError, match=f"{name} must be one of {', '.join(type(member))}, got "):
            answer(title, **{name: wrong})


@pytest.mark.parametrize(("title", "name"), of_annotation("Direction", "Direction | str"))
def test_directions_are_exact_or_refused(title: str, name: str) -> None:
    adjacency = {} if title == "directions.require_direction" else {"adjacency": "add-remove"}
    once = answer(title, **adjacency, direction=Direction.ADD)
    assert repr(answer(title, **adjacency, direction="add")) == repr(once)
    if title != "exact.supports":
        with pytest.raises(UnsupportedError, match="direction must be both under replace-one"):
            answer(title, adjacency="replace-one", direction="remove")
    for wrong in ("bogus", "ADD", "", None, 1, True, ["add"]):
        with pytest.raises(InputError, match="direction must be one of both, add, remove, got "):
            answer(title, **{name: wrong})


@pytest.mark.parametrize(("title", "name"), of_annotation("Event", "Guarantee", "object"))
def test_what_is_no_event_or_guarantee_is_refused(title: str, name: str) -> None:
    for wrong in (None, "Gaussian", 1.5, (NOISY, 2)):
        assert refused(title, name, wrong)


@pytest.mark.parametrize(
    ("title", "name"),
    of_annotation("tuple[float, ...]", "tuple[Fraction, ...]", "tuple[tuple[Event, int], ...]"),
)
def test_rows_are_tried_entry_by_entry(title: str, name: str) -> None:
    row, expected = given(title, name), answer(title)
    assert answer(title, **{name: list(row)}) == expected
    refused(title, name, 1.0)
    if name == "events":
        for count in (2.0, np.int32(2), torch.tensor(2)):
            assert repr(answer(title, events=((NOISY, count),))) == repr(expected)
        for wrong in (2.5, True, "2", 0, math.nan, None):
            refused(title, name, ((NOISY, wrong),))
        refused(title, name, (("Gaussian", 2),))
        refused(title, name, (NOISY, 2))
        refused(title, name, ())
        return
    for scalar in SCALARS:
        assert repr(answer(title, **{name: tuple(scalar(float(value)) for value in row)})) == repr(expected)
    for wrong in (True, "0.5", None, math.nan, math.inf):
        refused(title, name, (wrong, *row[1:]))


@pytest.mark.parametrize(
    ("title", "name"), [pair for pair in of_annotation("FloatArray") if pair[0] != "bounds.BoundsArray"]
)
def test_arrays_hold_rates(title: str, name: str) -> None:
    rates = given(title, name)
    for same in (rates.astype(np.float32), torch.tensor(rates), rates.tolist()):
        assert answer(title, **{name: same}) == answer(title)
    for wrong in (["0.5"], [True], [math.nan], [1.5], [-0.5], None, "0.5"):
        refused(title, name, wrong)


@pytest.mark.parametrize("name", ["lower", "upper"])
def test_ends_are_numbers_of_one_shape_in_order(name: str) -> None:
    for wrong in (["0.5"], [True], [math.nan], [[0.75]], None, "0.5", [5.0 if name == "lower" else 0.25]):
        assert refused("bounds.BoundsArray", name, wrong)


# The fault that this file began with: a name as a string answered another question, and stayed in the cache.


def test_a_string_gives_the_answer_of_its_adjacency_and_does_not_poison_the_cache() -> None:
    run = gaussian_run(noise_multiplier=2.0, sampling_probability=0.01, steps=170)
    by_text = epsilon_bounds(run, 1e-5, adjacency="replace-one")  # type: ignore[arg-type]
    assert by_text == epsilon_bounds(run, 1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert by_text.lower > epsilon_bounds(run, 1e-5).upper
    with pytest.raises(
        InputError, match="adjacency must be one of add-remove, replace-one, zero-out, got 'bogus'"
    ):
        delta_bounds(run, 1.0, adjacency="bogus")  # type: ignore[arg-type]


def test_a_calibration_for_a_string_meets_its_target() -> None:
    schedule: dict[str, Any] = {"sampling_probability": 0.1, "steps": 10}
    target: dict[str, Any] = {"target_epsilon": 1.0, "target_delta": 1e-5}
    noise = calibrate_noise_multiplier(**target, **schedule, adjacency="replace-one")
    run = gaussian_run(noise_multiplier=noise, **schedule)
    assert epsilon_bounds(run, 1e-5, adjacency=Adjacency.REPLACE_ONE).upper <= 1.0
    assert noise == calibrate_noise_multiplier(**target, **schedule, adjacency=Adjacency.REPLACE_ONE)


def test_scalars_hit_the_cache_entry_of_their_float() -> None:
    event = SubsampledGaussian(noise_multiplier=np.float32(1.1), sampling_probability=torch.tensor(0.3))
    same = SubsampledGaussian(
        noise_multiplier=float(np.float32(1.1)), sampling_probability=float(np.float32(0.3))
    )
    assert event == same
    assert type(event.noise_multiplier) is float
    certified = importlib.import_module("workbench.accounting.certified")
    twice = Composed(events=((event, 2),))
    first = epsilon_bounds(twice, np.float32(1e-4))
    before = certified.on_grid.cache_info()
    assert epsilon_bounds(Composed(events=((same, 2),)), float(np.float32(1e-4))) == first
    after = certified.on_grid.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


def test_booleans_do_not_get_the_cached_answer_of_the_number() -> None:
    once: dict[str, Any] = {"noise_multiplier": 1.5, "sampling_probability": 1.0, "delta": 0.125}
    subsampled_gaussian.epsilon(**once, steps=1)
    with pytest.raises(InputError, match="steps must be a whole number >= 1, got True"):
        subsampled_gaussian.epsilon(**once, steps=True)
    exact.supports(NOISY, Adjacency.ADD_REMOVE)
    with pytest.raises(InputError, match="adjacency must be one of"):
        exact.supports(NOISY, "bogus")  # type: ignore[arg-type]

"""Values that look like numbers and are none, and numbers too large to read: refused in one short line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event

from workbench import accounting
from workbench.accounting import (
    BatchMean,
    BestOfRuns,
    CappedPoisson,
    DiscreteLaplace,
    FixedBatch,
    GaussianMixturePair,
    PrivateStep,
    RandomisedResponse,
    ShuffledBatches,
    event_from_json,
    guarantee_from_json,
)
from workbench.core.arguments import number, parameters_of, require_count, whole_number
from workbench.core.errors import ArgumentError, InputError, WorkbenchError
from workbench.core.one_line import object_line, one_line

HUGE = 1.7e308
MASKED = np.ma.masked


def test_a_huge_data_set_is_refused_by_its_own_name() -> None:
    with pytest.raises(InputError, match=r"^dataset_size must be at most 10{15}, got 1.7e\+308$"):
        CappedPoisson(noise_multiplier=1.0, sampling_probability=0.1, dataset_size=HUGE, largest_batch=10)
    largest = CappedPoisson(
        noise_multiplier=1.0, sampling_probability=0.1, dataset_size=1e15, largest_batch=1
    )
    assert largest.dataset_size == 10**15


@pytest.mark.parametrize(
    "refused",
    [
        lambda: accounting.epsilon(RandomisedResponse(noise_parameter=0.5, categories=HUGE), 1e-5),
        lambda: accounting.epsilon(ShuffledBatches(noise_multiplier=1.0, batches=HUGE, epochs=HUGE), 1e-5),
        lambda: FixedBatch(noise_multiplier=1.0, dataset_size=HUGE, batch_size=HUGE),
        lambda: accounting.epsilon(
            BatchMean(noise_multiplier=1e-9, sampling_probability=0.1, dataset_size=HUGE, dimension=HUGE),
            1e-5,
        ),
        lambda: accounting.epsilon(DiscreteLaplace(noise_parameter=1.0, largest_contribution=HUGE), 1e-5),
        lambda: require_count("steps", 10**308, least=1),
        lambda: number("share", 10**308, above=0, below=1),
        lambda: whole_number("steps", -(10**308), least=1),
        lambda: whole_number("steps", 10**400, least=1),
    ],
)
def test_long_whole_numbers_are_shortened(refused: Callable[[], object]) -> None:
    with pytest.raises(WorkbenchError) as caught:
        refused()
    message = str(caught.value)
    assert len(message) < 300, message
    assert "\n" not in message
    if isinstance(caught.value, ArgumentError):
        assert len(caught.value.reason) < 200  # what the command line says


def test_numbers_are_shortened_and_names_are_not() -> None:
    assert one_line(f"got {10**300}, not 17") == "got 1e+300, not 17"
    assert one_line(f"got {10**400}.") == "got (a number of 401 digits)."
    assert object_line(name := "0123456789" * 4) == repr(name)
    assert object_line([10**300]) == "[1e+300]"
    assert one_line(f"0x{name} a{name} {name}b /runs/{name}x") == f"0x{name} a{name} {name}b /runs/{name}x"
    assert one_line(f"got {10**30}") == f"got {10**30}"


@pytest.mark.parametrize(
    "masked",
    [MASKED, np.ma.array(3.0, mask=True), np.ma.array([1.0, 2.0], mask=[True, False])[0]],
)
def test_what_is_masked_is_no_number(masked: object) -> None:
    for refused in (
        lambda: number("epsilon", masked, least=0),
        lambda: whole_number("steps", masked, least=0),
        lambda: PrivateStep(epsilon=masked),
        lambda: PrivateStep(epsilon=1.0, delta=masked),
        lambda: BestOfRuns(epsilon=1.0, shape=masked, mean=2.0),
        lambda: parameters_of("options", {"rate": masked}),
    ):
        with pytest.raises(InputError, match=r"must be a (whole )?number"):
            refused()
    assert number("epsilon", np.ma.array(3.0)) == 3.0
    assert number("epsilon", np.ma.array([1.0, 2.0], mask=[True, False])[1]) == 2.0


@pytest.mark.parametrize("row", [b"1", bytearray(b"1"), memoryview(b"1")])
def test_bytes_are_no_row_of_numbers(row: object) -> None:
    with pytest.raises(InputError, match="q_means must be a row of values, got"):
        GaussianMixturePair(
            p_means=(0.0,), p_weights=(1.0,), q_means=row, q_weights=(1.0,), standard_deviation=1.0
        )
    with pytest.raises(InputError, match="p must be a row of values, got"):
        accounting.FinitePair(p=row, q=(1.0,))


def test_deep_and_wide_compositions_are_refused() -> None:
    deep: accounting.Event = accounting.Gaussian(noise_multiplier=1.0)
    for _ in range(100):
        deep = accounting.Composed(events=((deep, 1),))
    assert accounting.epsilon(deep, 1e-5).lower > 0
    with pytest.raises(InputError, match=r"^events must be nested at most 100 deep$"):
        accounting.Composed(events=((deep, 1),))
    wide: accounting.Event = accounting.Gaussian(noise_multiplier=1.0)
    for _ in range(19):
        wide = accounting.Composed(events=((wide, 1), (wide, 1)))
    with pytest.raises(
        InputError, match=r"^events must hold at most 1,000,000 events in all, got 1,048,576$"
    ):
        accounting.Composed(events=((wide, 1), (wide, 1)))
    theirs = dp_event.GaussianDpEvent(1.0)
    for _ in range(3000):
        theirs = dp_event.SelfComposedDpEvent(theirs, 1)
    with pytest.raises(
        InputError, match=r"^event must be nested less deep, got a SelfComposedDpEvent of many$"
    ):
        accounting.epsilon(theirs, 1e-5)


@pytest.mark.parametrize("form", [None, 3, "abc", [1]])
def test_a_guarantee_is_read_from_an_object_alone(form: Any) -> None:
    with pytest.raises(InputError, match=r"^form must be an object with a currency, got "):
        guarantee_from_json(form)


@pytest.mark.parametrize("text", ["1e99999999", "1e-99999999", "1/0", "٣/4", "0x1", "1_000", ""])
def test_a_probability_as_text_is_a_short_number(text: str) -> None:
    form = {"event": "FinitePair", "p": ["1/2", "5e-1"], "q": [text, "1/2"]}
    with pytest.raises(InputError, match=r"^q must hold numbers or fractions such as '1/3', got "):
        event_from_json(form)

"""Events as JSON: what is read is the event, and what cannot be read is named."""

from __future__ import annotations

import inspect
import json
from fractions import Fraction
from typing import Any

import pytest

from workbench.accounting import events
from workbench.accounting.event_forms import KINDS, event_from_json
from workbench.core.errors import InputError


def kinds(kind: type[Any]) -> set[type[Any]]:
    return {kind}.union(*(kinds(each) for each in kind.__subclasses__()))


def test_every_elementary_event_has_a_form() -> None:
    named = {kind for kind in kinds(events.Event) if kind.__module__.startswith("workbench.accounting")}
    assert set(KINDS.values()) == {kind for kind in named if not inspect.isabstract(kind)} - {events.Composed}


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ('{"event": "Laplace", "scale": 2}', events.Laplace(scale=2.0)),
        (
            '{"event": "Laplace", "scale": 2, "count": 100}',
            events.Composed(events=((events.Laplace(scale=2.0), 100),)),
        ),
        (
            '[{"event": "Gaussian", "noise_multiplier": 1}, {"event": "Laplace", "scale": 2, "count": 3}]',
            events.Composed(
                events=((events.Gaussian(noise_multiplier=1.0), 1), (events.Laplace(scale=2.0), 3))
            ),
        ),
        (
            '{"event": "FinitePair", "p": ["1/3", "2/3"], "q": [0.5, 0.5]}',
            events.FinitePair(p=(Fraction(1, 3), Fraction(2, 3)), q=(Fraction(1, 2), Fraction(1, 2))),
        ),
    ],
)
def test_a_form_is_its_event(text: str, event: events.Event) -> None:
    assert event_from_json(json.loads(text)) == event


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (3, "form must be an object with the kind's name"),
        ({"scale": 2}, "form must be an object with the kind's name"),
        ({"event": 2}, "form must be an object with the kind's name"),
        ([], "form must hold an event, got an empty list"),
        ([[{"event": "Laplace", "scale": 2}]], "form must be an object"),
        ({"event": "Laplas", "scale": 2}, "unknown event 'Laplas'; did you mean 'Laplace'"),
        ({"event": "Laplace"}, "scale must be given for the event Laplace"),
        ({"event": "Laplace", "scale": 2, "noise": 1}, "unknown parameter of Laplace 'noise'"),
        ({"event": "Laplace", "scale": "2"}, "scale must be a number, got '2'"),
        ({"event": "Laplace", "scale": [2]}, "scale must be a number"),
        ({"event": "Laplace", "scale": -2}, "scale must be finite and > 0, got -2"),
        ({"event": "Laplace", "scale": 2, "count": 0}, "count must be a whole number >= 1, got 0"),
        ({"event": "Laplace", "scale": 2, "count": True}, "count must be a whole number >= 1, got True"),
        ({"event": "FinitePair", "p": ["1/0"], "q": [1]}, "p must hold numbers or fractions"),
        ({"event": "FinitePair", "p": ["x"], "q": [1]}, "p must hold numbers or fractions"),
        ({"event": "FinitePair", "p": ["１/2"], "q": [1]}, "p must hold numbers or fractions"),
        ({"event": "FinitePair", "p": 3, "q": [1]}, "p must be a row of values, got 3"),
    ],
)
def test_what_is_no_form_is_named_in_one_line(form: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        event_from_json(form)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

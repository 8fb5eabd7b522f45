"""`workbench.certified`: what an event keeps, from both sides, and whether it keeps a claim.

>>> from workbench import certified
>>> found = certified(noise_multiplier=1.0, sampling_probability=0.01, steps=1000, delta=1e-5)
>>> round(found.bounds.lower, 2), round(found.bounds.upper, 2)
(1.83, 1.83)
>>> certified(noise_multiplier=1.0, steps=1, claim="epsilon=1,delta=1e-5,adjacency=add-remove").verdict
'REFUTED'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workbench.accounting import ApproximateDP, Bounds, BoundsArray, gaussian_run
from workbench.accounting.asking import delta as delta_of
from workbench.accounting.asking import epsilon as epsilon_of
from workbench.accounting.asking import tpr as tpr_of
from workbench.accounting.certified import RELATIVE_WIDTH
from workbench.audit.claims import claimed
from workbench.core.arguments import number, whole_number
from workbench.core.errors import ArgumentError, InputError, UnsupportedError
from workbench.core.keys import plain
from workbench.core.one_line import object_line
from workbench.core.results import Result
from workbench.interfaces import Adjacency, Claim, Direction, Released

_QUESTIONS: Mapping[str, tuple[str, Callable[..., Bounds | BoundsArray]]] = {
    "delta": ("epsilon", epsilon_of),
    "epsilon": ("delta", delta_of),
    "fpr": ("tpr", tpr_of),
}
"""What is given, and what is bounded."""

_SAYS = {
    "PROVEN": "the event keeps the claim",
    "REFUTED": "the event does not keep the claim",
    "UNDECIDED": "the claim lies between the bounds",
    "BOUNDED": "",
}


class CertifiedResult(Result):
    """Certified bounds, and, where a claim was given, what they say of it.

    Attributes:
        bounds: On the asked quantity; arrays where several values were given.
    """

    def __init__(
        self, bounds: Bounds | BoundsArray, asked: Mapping[str, Any], claim: str, verdict: str
    ) -> None:
        self.bounds = bounds
        self._asked, self._verdict = asked, verdict
        found = {name: plain(getattr(bounds, name)) for name in ("lower", "upper", "rigorous", "method")}
        super().__init__({**asked, **found, "claim": claim or None, "verdict": verdict})

    @property
    def verdict(self) -> str:
        """`PROVEN`, `REFUTED` or `UNDECIDED` of the claim; `BOUNDED` without one."""
        return self._verdict

    @property
    def sentence(self) -> str:
        """The bounds in words."""
        quantity, given = self.record["quantity"], self.record["given"]
        values = np.atleast_1d(self.record["at"])
        at = f"{given} = {values[0]:g}" if values.size == 1 else f"{values.size} values of {given}"
        ends = "" if isinstance(self.bounds, BoundsArray) else f" in {self.bounds.describe()}"
        claim = f"; {_SAYS[self.verdict]} {self.record['claim']}" if self.record["claim"] else ""
        return f"{quantity}{ends} at {at} of {self.record['event']}, {self.record['adjacency']}{claim}"

    @property
    def exit_code(self) -> int:
        """0 proven, or no claim; 1 refuted; 3 undecided."""
        return {"REFUTED": 1, "UNDECIDED": 3}.get(self.verdict, 0)

    def rows(self) -> list[dict[str, Any]]:
        """A row a value that was asked for."""
        columns = (np.ravel(each) for each in (self.record["at"], self.bounds.lower, self.bounds.upper))
        return [
            {self.record["given"]: at, "lower": lower, "upper": upper, "rigorous": self.bounds.rigorous}
            for at, lower, upper in zip(*columns, strict=True)
        ]


def certified(
    event: object = None,
    *,
    noise_multiplier: float | None = None,
    sampling_probability: float | None = None,
    steps: int | None = None,
    delta: Any = None,
    epsilon: Any = None,
    fpr: Any = None,
    claim: Claim | str | None = None,
    adjacency: Adjacency | str | None = None,
    direction: Direction | str = Direction.BOTH,
    relative_width: float = RELATIVE_WIDTH,
) -> CertifiedResult:
    """Bound what an event keeps, with every error carried in the ends.

    Args:
        event: One of `workbench.accounting`, or dp-accounting's; None for the DP-SGD run of the next three.
        noise_multiplier, sampling_probability, steps: Of that run; probability 1 unless given.
        delta, epsilon, fpr: A number or an array of one of them: delta asks for epsilon, epsilon for delta,
            and a false-positive rate for the largest true-positive rate.
        claim: Of (epsilon, delta)-DP, instead of these: its delta is asked for, and its epsilon compared.
        adjacency: `"add-remove"` unless given; of a claim its own.
        direction: `"both"`, `"remove"` or `"add"`; a claim is about both.
        relative_width: At which bounds are no longer refined.

    Raises `InputError`: an argument is unusable. `UnsupportedError`: the event has no certified bounds.
    """
    known = _event(event, noise_multiplier, sampling_probability, steps)
    given = {"delta": delta, "epsilon": epsilon, "fpr": fpr}
    named = [name for name, value in given.items() if value is not None]
    held = None if claim is None else _claim(claim)
    if held is not None:
        if named or adjacency is not None:
            raise ArgumentError("claim", f"and {(named or ['adjacency'])[0]} exclude each other")
        given, named, adjacency = (
            {"delta": held.guarantee.to_json()["delta"]},
            ["delta"],
            Adjacency(held.about),
        )
    if len(named) != 1:
        got = ", ".join(named) or "none"
        raise InputError(f"one of delta, epsilon, fpr and claim must be given, and one alone; got {got}")
    adjacency = Adjacency.ADD_REMOVE if adjacency is None else adjacency
    quantity, ask = _QUESTIONS[named[0]]
    bounds = ask(
        known, given[named[0]], adjacency=adjacency, direction=direction, relative_width=relative_width
    )
    asked = {
        "event": known.describe() if hasattr(known, "describe") else object_line(known),
        "adjacency": str(adjacency),
        "given": named[0],
        "at": np.asarray(given[named[0]], dtype=float).tolist(),
        "quantity": quantity,
    }
    if held is None:
        return CertifiedResult(bounds, asked, "", "BOUNDED")
    return CertifiedResult(bounds, asked, held.describe(), _verdict(bounds, held))


def _event(event: Any, noise_multiplier: Any, sampling_probability: Any, steps: Any) -> Any:
    """The event, or the run of the other arguments."""
    run = {"noise_multiplier": noise_multiplier, "steps": steps}
    if event is not None:
        for name, value in {**run, "sampling_probability": sampling_probability}.items():
            if value is not None:
                raise ArgumentError(name, f"and event exclude each other, got {object_line(value)}")
        return event
    for name, value in run.items():
        if value is None:
            raise ArgumentError(name, "must be given where event is not")
    return gaussian_run(
        noise_multiplier=number("noise_multiplier", noise_multiplier, above=0, below=np.inf),
        sampling_probability=number(
            "sampling_probability",
            1.0 if sampling_probability is None else sampling_probability,
            above=0,
            most=1,
        ),
        steps=whole_number("steps", steps, least=1, most=None),
    )


def _claim(claim: Claim | str) -> Claim:
    """A claim of (epsilon, delta)-DP with a delta above 0."""
    held = claimed(claim, released=Released.EVERY_UPDATE)
    if not isinstance(held.guarantee, ApproximateDP) or not held.guarantee.delta > 0:
        raise UnsupportedError(
            "claim: certified compares claims of (epsilon, delta)-DP with a delta above 0, got "
            f"{held.describe()}"
        )
    return held


def _verdict(bounds: Any, claim: Claim) -> str:
    """What bounds on epsilon say of a claim."""
    epsilon = claim.guarantee.to_json()["epsilon"]
    if bounds.rigorous and bounds.upper <= epsilon:
        return "PROVEN"
    return "REFUTED" if bounds.rigorous and bounds.lower > epsilon else "UNDECIDED"

"""The smallest counterexample: Hypothesis looks for one among simpler parameters, and shrinks it."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from workbench.core.errors import InputError

Parameters = Mapping[str, float]

LARGEST_SEARCH = 120
"""Most parameter sets that Hypothesis draws; shrinking tries more, within the time."""


class _Judge:
    """`fails` with a memory and a time limit: after it, whatever is not known passes."""

    def __init__(self, fails: Callable[[Parameters], bool], seconds: float) -> None:
        self._fails = fails
        self._deadline = time.perf_counter() + seconds
        self._known: dict[tuple[float, ...], bool] = {}

    def extend(self, seconds: float) -> None:
        """More time, from now on or from the limit, whichever is later."""
        self._deadline = max(self._deadline, time.perf_counter()) + seconds

    def __call__(self, parameters: Parameters) -> bool:
        key = tuple(parameters.values())
        if key not in self._known:
            if time.perf_counter() > self._deadline:
                return False
            try:
                self._known[key] = self._fails(parameters)
            except InputError:  # these parameters make no question
                self._known[key] = False
        return self._known[key]


def smallest_counterexample(
    start: Parameters,
    simple: Mapping[str, Sequence[float]],
    fails: Callable[[Parameters], bool],
    *,
    seed: int,
    seconds: float,
) -> Parameters:
    """The simplest failing parameters that are found within the time; `start` itself where none are simpler.

    Only values that `simple` puts before the starting value are tried, so a search never asks dearer
    questions than the one that failed.

    Args:
        start: Parameters that fail.
        simple: For each parameter its simple values, simplest first.
        fails: Whether parameters fail; may raise `InputError` where they make no question.
        seed: Of the search.
        seconds: After this time nothing new is tried.
    """
    choices = {name: _no_less_simple(simple[name], start[name]) for name in simple}
    judge = _Judge(fails, 0.6 * seconds)
    found = _found_by_hypothesis(choices, judge, seed)
    judge.extend(0.4 * seconds)
    return _found_by_descent(found or {name: start[name] for name in choices}, choices, judge)


def _no_less_simple(values: Sequence[float], start: float) -> tuple[float, ...]:
    """The simpler values, and the starting value last."""
    known = list(values)
    before = known[: known.index(start)] if start in known else known
    return (*before, start)


def _found_by_hypothesis(
    choices: Mapping[str, Sequence[float]], judge: _Judge, seed: int
) -> Parameters | None:
    from hypothesis import HealthCheck, Phase, Verbosity, find, settings
    from hypothesis import strategies as st
    from hypothesis.errors import HypothesisException

    strategy = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in choices.items()})
    bounded = settings(
        max_examples=LARGEST_SEARCH,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    try:
        with _no_traces():
            found: Parameters = find(strategy, judge, settings=bounded, random=random.Random(seed))
    except HypothesisException:  # nothing simpler was found
        return None
    return found


@contextlib.contextmanager
def _no_traces() -> Iterator[None]:
    """Hypothesis's files go to a folder that is deleted, and not into the user's project."""
    from hypothesis import configuration

    before = getattr(configuration, "__hypothesis_home_directory", None)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)


def _found_by_descent(start: Parameters, choices: Mapping[str, Sequence[float]], judge: _Judge) -> Parameters:
    """One parameter at a time to its simplest failing value, until nothing changes."""
    best = dict(start)
    changed = True
    while changed:
        changed = False
        for name, values in choices.items():
            for value in values[: values.index(best[name])]:
                if judge({**best, name: value}):
                    best[name] = value
                    changed = True
                    break
    return best

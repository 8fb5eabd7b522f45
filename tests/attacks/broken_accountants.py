"""Accountants of an evaluator: `BROKEN` ones, each right but in one respect, and `SOUND` ones.

Most are functions of a DP-SGD run that answer the certified upper end, so that only the one respect can be
found; the others answer for any event.
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from good_accountant import ORDERS, Good

from workbench.accounting import certified
from workbench.accounting.events import (
    Composed,
    Event,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.accounting.samples import FixedBatch
from workbench.interfaces import Adjacency

Run = tuple[float, float, int, float]
"""Noise multiplier, sampling probability, steps, delta."""

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


@cache
def upper(event: Event, delta: float, adjacency: Adjacency = ADD_REMOVE) -> float:
    return certified.epsilon_bounds(event, delta, adjacency=adjacency).upper


def epsilon_of(noise: float, rate: float, steps: int, delta: float) -> float:
    """The certified upper end of a run."""
    run = gaussian_run(noise_multiplier=noise, sampling_probability=rate, steps=steps)
    return upper(run, delta)


@cache
def divergences(noise: float, rate: float) -> Any:
    return Good().subsampled(noise, rate)


def converted(run: Run, convert: Callable[[Any, float], Any]) -> float:
    """The least over the orders of a conversion of the run's Renyi divergences."""
    noise, rate, steps, delta = run
    return max(float(np.min(convert(steps * divergences(noise, rate), delta))), 0.0)


def tight(total: Any, delta: float) -> Any:
    return total + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)


BROKEN: dict[str, Any] = {}
SOUND: dict[str, Any] = {}


def function(table: dict[str, Any], name: str, answer: Callable[..., Any]) -> None:
    """Put a least function into a table, and into this module, where its name loads it."""

    def epsilon(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> Any:
        return answer(noise_multiplier, sampling_probability, steps, delta)

    epsilon.__name__ = epsilon.__qualname__ = name
    globals()[name] = table[name] = epsilon


WHERE: dict[str, Callable[[float, float, int, float], bool]] = {
    "noise_below_half": lambda noise, rate, steps, delta: noise < 0.5,
    "noise_3_to_5": lambda noise, rate, steps, delta: 3 < noise < 5,
    "noise_above_20": lambda noise, rate, steps, delta: noise > 20,
    "noise_off_the_lattice": lambda noise, rate, steps, delta: float(f"{noise:.2g}") != noise,
    "odd_steps": lambda noise, rate, steps, delta: steps > 1 and steps % 2 == 1,
    "even_steps": lambda noise, rate, steps, delta: steps % 2 == 0,
    "steps_11_to_99": lambda noise, rate, steps, delta: 11 <= steps <= 99,
    "steps_1001_to_50000": lambda noise, rate, steps, delta: 1001 <= steps <= 50_000,
    "steps_2000_to_5000": lambda noise, rate, steps, delta: 2000 <= steps <= 5000,
    "steps_above_1e5": lambda noise, rate, steps, delta: steps > 100_000,
    "rate_0.011_to_0.099": lambda noise, rate, steps, delta: 0.011 < rate < 0.099,
    "rate_below_0.001": lambda noise, rate, steps, delta: rate < 1e-3,
    "rate_above_half": lambda noise, rate, steps, delta: 0.5 < rate < 1,
    "delta_below_1e-9": lambda noise, rate, steps, delta: delta < 1e-9,
    "delta_above_0.01": lambda noise, rate, steps, delta: delta > 0.01,
    "delta_2e-5_to_9e-5": lambda noise, rate, steps, delta: 2e-5 < delta < 9e-5,
    "broken_epochs": lambda noise, rate, steps, delta: steps * rate > 1 and steps * rate % 1 > 1e-9,
    "many_epochs": lambda noise, rate, steps, delta: rate < 1 and rate * steps > 50,
    "little_noise_rare_sampling": lambda noise, rate, steps, delta: rate < 0.01 and noise < 0.8,
    "epsilon_4_to_8": lambda *run: 4 < epsilon_of(*run) < 8,
    "epsilon_above_700": lambda *run: epsilon_of(*run) > 700,
    "epsilon_below_0.1": lambda *run: epsilon_of(*run) < 0.1,
}
"""Where an accountant is 20 % low, and exact elsewhere."""

TAKEN_FOR: dict[str, Callable[[float, float, int, float], Run]] = {
    "delta_at_powers_of_ten": lambda s, q, t, d: (s, q, t, min(10.0 ** math.ceil(math.log10(d)), 0.5)),
    "delta_with_three_decimals": lambda s, q, t, d: (s, q, t, max(round(d, 3), 1e-3)),
    "delta_at_least_1e-10": lambda s, q, t, d: (s, q, t, max(d, 1e-10)),
    "delta_twice": lambda s, q, t, d: (s, q, t, min(2 * d, 0.99)),
    "delta_times_steps": lambda s, q, t, d: (s, q, t, min(d * t, 0.99)),
    "rate_with_three_decimals": lambda s, q, t, d: (s, round(q, 3) or 5e-4, t, d),
    "rate_one_over_a_whole_number": lambda s, q, t, d: (s, 1 / math.ceil(1 / q - 1e-9), t, d),
    "rate_squared": lambda s, q, t, d: (s, q * q, t, d),
    "batch_of_60000_rounded_down": lambda s, q, t, d: (s, max(int(60_000 * q), 1) / 60_000, t, d),
    "noise_with_one_decimal": lambda s, q, t, d: (max(round(s, 1), 0.1), q, t, d),
    "noise_for_half_the_sensitivity": lambda s, q, t, d: (2 * s, q, t, d),
    "variance_for_deviation": lambda s, q, t, d: (s * s, q, t, d),
    "steps_at_most_1e5": lambda s, q, t, d: (s, q, min(t, 100_000), d),
    "steps_in_tens": lambda s, q, t, d: (s, q, max(t // 10 * 10, 1), d),
    "steps_less_one": lambda s, q, t, d: (s, q, max(t - 1, 1), d),
    "steps_in_16_bits": lambda s, q, t, d: (s, q, max(t & 0x7FFF, 1), d),
    "whole_epochs_only": lambda s, q, t, d: (
        s,
        q,
        max(1, int(int(q * t + 1e-9) / q)) if q * t >= 1 else t,
        d,
    ),
}
"""Runs that are taken for other runs."""


@cache
def _adding(noise: float, rate: float, steps: int, delta: float) -> float:
    run = gaussian_run(noise_multiplier=noise, sampling_probability=rate, steps=steps)
    return certified.epsilon_bounds(run, delta, direction="add").upper


FORMULAS: dict[str, Callable[[float, float, int, float], Any]] = {
    "one_percent_low": lambda *run: 0.99 * epsilon_of(*run),
    "tenth_of_a_percent_low": lambda *run: 0.998 * epsilon_of(*run),
    "with_two_decimals": lambda *run: round(epsilon_of(*run), 2),
    "in_half_precision": lambda *run: np.float16(epsilon_of(*run)),
    "at_most_10": lambda *run: min(epsilon_of(*run), 10.0),
    "zero": lambda *run: 0.0,
    "log_to_base_10": lambda *run: converted(run, lambda r, d: r - math.log10(d) / (ORDERS - 1)),
    "divided_by_the_order": lambda *run: converted(run, lambda r, d: r - math.log(d) / ORDERS),
    "half_the_log_of_delta": lambda *run: converted(run, lambda r, d: r - math.log(d) / 2 / (ORDERS - 1)),
    "small_terms_twice": lambda *run: converted(
        run, lambda r, d: 2 * tight(r, d) - r + math.log(d) / (ORDERS - 1)
    ),
    "central_limit": lambda s, q, t, d: epsilon_of_delta(
        (q * math.sqrt(t * math.expm1(s**-2))) if q < 1 else math.sqrt(t) / s, d
    ),
    "central_limit_without_expm1": lambda s, q, t, d: epsilon_of_delta(q * math.sqrt(t) / s, d),
    "zcdp_by_the_rate_squared": lambda s, q, t, d: (
        q * q * t / (2 * s * s) + 2 * math.sqrt(q * q * t / (2 * s * s) * math.log(1 / d))
    ),
    "moments_asymptotically": lambda s, q, t, d: q * math.sqrt(t * math.log(1 / d)) / s,
    "renyi_to_first_order": lambda s, q, t, d: max(
        float(np.min(tight(t * q * q * ORDERS / (2 * s * s), d))), 0.0
    ),
    "adding_a_record_only": _adding,
}
"""Formulas that are none, and roundings of the answer."""


ANSWERS: dict[str, Callable[[float, float, int, float], Any]] = {
    "nan_for_long_runs": lambda s, q, t, d: math.nan if t > 3000 else epsilon_of(s, q, t, d),
    "none_for_rare_sampling": lambda s, q, t, d: None if q < 0.005 else epsilon_of(s, q, t, d),
    "complex_numbers": lambda *run: complex(epsilon_of(*run), 0),
    "text": lambda *run: str(epsilon_of(*run)),
    "a_list": lambda *run: [epsilon_of(*run)],
    "negative_numbers": lambda *run: -epsilon_of(*run),
    "raises_for_long_runs": lambda s, q, t, d: [epsilon_of(s, q, t, d)][t // 500],
    "exits_for_long_runs": lambda s, q, t, d: sys.exit(0) if t > 500 else epsilon_of(s, q, t, d),
    "infinity": lambda *run: math.inf,
}
"""What is no answer, or none that says anything."""

KEYS: dict[str, Callable[[float, float, int, float], Any]] = {
    "kept_by_noise_and_rate": lambda s, q, t, d: (s, q),
    "kept_without_delta": lambda s, q, t, d: (s, q, t),
    "kept_without_rate": lambda s, q, t, d: (s, t, d),
    "kept_by_rounded_values": lambda s, q, t, d: (round(s, 1), round(q, 2), t, round(math.log10(d))),
}
"""Answers that are kept by too little."""


class Kept:
    """Answers a run by the first that had the same key."""

    def __init__(self, key: Callable[..., Any]) -> None:
        self.key, self.known = key, dict[Any, float]()

    def __call__(self, *run: Any) -> float:
        return self.known.setdefault(self.key(*run), epsilon_of(*run))


class Counting:
    """20 % low by the number of calls so far, and the run."""

    def __init__(self, is_low: Callable[[int, Run], bool]) -> None:
        self.is_low, self.calls = is_low, 0

    def __call__(self, *run: Any) -> float:
        self.calls += 1
        return epsilon_of(*run) * (0.8 if self.is_low(self.calls, run) else 1.0)


_random, _seen = random.Random(), set[Run]()
STATE: dict[str, Callable[[int, Run], bool]] = {
    "after_500_calls": lambda calls, run: calls > 500,
    "every_50th_call": lambda calls, run: calls % 50 == 0,
    "the_second_time": lambda calls, run: run in _seen or bool(_seen.add(run)),
    "at_random": lambda calls, run: _random.random() < 0.05,
    "in_a_second_process": lambda calls, run: _is_second_process(),
}
"""Memory: when an accountant is 20 % low."""


def _is_second_process() -> bool:
    """Whether another process has left its mark, in a file whose place the environment names."""
    mark = Path(os.environ.get("MARK_OF_THE_FIRST", os.devnull))
    if not mark.exists():
        mark.write_text(str(os.getpid()))
    return mark != Path(os.devnull) and mark.read_text() != str(os.getpid())


for _name, _where in WHERE.items():
    function(BROKEN, _name, lambda *run, w=_where: epsilon_of(*run) * (0.8 if w(*run) else 1.0))
for _name, _other in TAKEN_FOR.items():
    function(BROKEN, _name, lambda *run, o=_other: epsilon_of(*o(*run)))
for _name, _answer in (FORMULAS | ANSWERS).items():
    function(BROKEN, _name, _answer)
for _name, _key in KEYS.items():
    function(BROKEN, _name, Kept(_key))
for _name, _low in STATE.items():
    function(BROKEN, _name, Counting(_low))


class Exact:
    """The certified upper ends of everything."""

    name = "exact"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        return upper(event, delta, adjacency)


def _object(table: dict[str, Any], name: str, **methods: Any) -> None:
    globals()[name] = table[name] = type(name, (Exact,), {"name": name, "__module__": __name__, **methods})


class ByIdentity(Exact):
    """Keeps answers by the id of the event, which a later one has too once that event is gone."""

    name = "by_identity"

    def __init__(self) -> None:
        self.kept: dict[Any, float] = {}

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        return self.kept.setdefault((id(event), delta, adjacency), upper(event, delta, adjacency))


BROKEN["by_identity"] = by_identity = ByIdentity


def _has(event: Event, kind: type[Event]) -> bool:
    return all(isinstance(part, kind) for part, _ in event.parts())


def _steps(event: Event) -> int:
    return sum(count for _, count in event.parts())


def _is_between(event: Event) -> bool:
    return any(0.011 < getattr(part, "sampling_probability", 1.0) < 0.099 for part, _ in event.parts())


LOW_EVENTS: dict[str, Callable[[Event, Adjacency], bool]] = {
    "replace_one_sampled": lambda event, adjacency: (
        adjacency is REPLACE_ONE and _has(event, SubsampledGaussian)
    ),
    "replace_one_long": lambda event, adjacency: adjacency is REPLACE_ONE and _steps(event) > 200,
    "replace_one_between": lambda event, adjacency: adjacency is REPLACE_ONE and _is_between(event),
    "laplace_long": lambda event, adjacency: _has(event, Laplace) and _steps(event) > 20,
    "laplace_off_the_lattice": lambda event, adjacency: (
        _has(event, Laplace) and any(part.scale not in (0.5, 1, 2, 5, 10) for part, _ in event.parts())
    ),
    "many_categories": lambda event, adjacency: (
        _has(event, RandomisedResponse) and any(part.categories > 5 for part, _ in event.parts())
    ),
    "responses_off_the_lattice": lambda event, adjacency: (
        _has(event, RandomisedResponse)
        and any(part.noise_parameter not in (0.1, 0.5, 0.9) for part, _ in event.parts())
    ),
    "three_phases": lambda event, adjacency: len(list(event.parts())) == 3,
    "two_rates": lambda event, adjacency: (
        _has(event, SubsampledGaussian) and len({part.sampling_probability for part, _ in event.parts()}) > 1
    ),
    "mixtures": lambda event, adjacency: _has(event, GaussianMixturePair),
}
"""Events of which an accountant is 20 % low."""


def _low_event(is_low: Callable[[Event, Adjacency], bool]) -> Any:
    def epsilon(self: Exact, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        return upper(event, delta, adjacency) * (0.8 if is_low(event, adjacency) else 1.0)

    return epsilon


def _by_parts(join: Callable[[list[float]], float]) -> Any:
    def epsilon(self: Exact, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        parts = [part if count == 1 else Composed(events=((part, count),)) for part, count in event.parts()]
        return join([upper(part, delta, adjacency) for part in parts])

    return epsilon


def _fixed_as_poisson(self: Exact, event: Event, *, delta: float, adjacency: Adjacency) -> float:
    parts = tuple(
        (
            SubsampledGaussian(
                noise_multiplier=part.noise_multiplier, sampling_probability=float(part.sampling_probability)
            )
            if isinstance(part, FixedBatch)
            else part,
            count,
        )
        for part, count in event.parts()
    )
    return upper(Composed(events=parts), delta, adjacency)


def _low_delta(is_low: Callable[[Event, float, Adjacency], bool]) -> Any:
    def delta(self: Exact, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        bounds = certified.delta_bounds(event, epsilon, adjacency=adjacency)
        return bounds.upper * (0.8 if is_low(event, epsilon, adjacency) else 1.0)

    return delta


def _low_tpr(is_low: Callable[[Event, float, Adjacency], bool]) -> Any:
    def tpr(self: Exact, event: Event, *, fpr: float, adjacency: Adjacency) -> float:
        bounds = certified.tpr_bounds(event, fpr, adjacency=adjacency)
        return bounds.upper * (0.8 if is_low(event, fpr, adjacency) else 1.0)

    return tpr


def _calibrating(change: Callable[..., float]) -> Any:
    def noise_multiplier(self: Exact, *, target_epsilon: float, delta: float, **run: Any) -> float:
        noise = certified.calibrate_noise_multiplier(target_epsilon=target_epsilon, target_delta=delta, **run)
        return change(noise, target_epsilon, run["steps"], run["adjacency"])

    return noise_multiplier


for _name, _is_low in LOW_EVENTS.items():
    _object(BROKEN, _name, epsilon=_low_event(_is_low))
_object(BROKEN, "largest_part", epsilon=_by_parts(max))
_object(BROKEN, "root_of_the_sum_of_squares", epsilon=_by_parts(lambda parts: math.hypot(*parts)))
_object(BROKEN, "fixed_batches_as_poisson_samples", epsilon=_fixed_as_poisson)
_object(BROKEN, "delta_between", delta=_low_delta(lambda e, x, a: x not in (0.1, 1.0, 2.0, 4.0, 8.0)))
_object(BROKEN, "delta_at_large_epsilon", delta=_low_delta(lambda e, x, a: x > 5))
_object(BROKEN, "delta_of_replaced_records", delta=_low_delta(lambda e, x, a: a is REPLACE_ONE))
_object(BROKEN, "tpr_at_1e-6", tpr=_low_tpr(lambda e, x, a: x <= 1e-6))
_object(BROKEN, "tpr_between", tpr=_low_tpr(lambda e, x, a: f"{x:.1g}" != f"{x:.5g}"))
_object(BROKEN, "tpr_of_replaced_records", tpr=_low_tpr(lambda e, x, a: a is REPLACE_ONE))
_object(
    BROKEN,
    "noise_for_long_runs",
    noise_multiplier=_calibrating(lambda n, e, t, a: n * (0.9 if t > 1500 else 1)),
)
_object(
    BROKEN,
    "noise_for_replaced_records",
    noise_multiplier=_calibrating(lambda n, e, t, a: n * (0.9 if a is REPLACE_ONE else 1)),
)
_object(BROKEN, "noise_with_a_decimal", noise_multiplier=_calibrating(lambda n, e, t, a: round(n, 1)))


def _one_step(noise: float, rate: float, delta: float) -> float:
    """Epsilon of one step, exactly."""
    if delta >= rate:
        return 0.0
    return math.log1p(rate * math.expm1(min(epsilon_of_delta(1 / noise, delta / rate), 700.0)))


def _basic(noise: float, rate: float, steps: int, delta: float) -> float:
    return steps * _one_step(noise, rate, delta / steps) * (1 + 1e-9)


def _advanced(noise: float, rate: float, steps: int, delta: float) -> float:
    """Dwork and Roth 2014, theorem 3.20, with half of delta for the steps."""
    step = _one_step(noise, rate, delta / 2 / steps)
    many = math.sqrt(2 * steps * math.log(2 / delta)) * step + steps * step * math.expm1(min(step, 700.0))
    return min(_basic(noise, rate, steps, delta), many * (1 + 1e-9))


def _zcdp(noise: float, steps: int, delta: float) -> float:
    rho = steps / (2 * noise * noise)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _unsampled(answer: Callable[..., float]) -> Callable[..., float]:
    def epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
        if rate < 1:
            raise NotImplementedError("no sampling here")
        return answer(noise, steps, delta)

    return epsilon


def _refusing(noise: float, rate: float, steps: int, delta: float) -> float:
    if noise < 0.5 or delta < 1e-9 or steps > 10_000:
        raise ValueError("out of this accountant's range")
    return converted((noise, rate, steps, delta), tight)


_upwards = random.Random(5)
for _name, _answer in {
    "certified_upper_end": epsilon_of,
    "renyi": lambda *run: converted(run, tight),
    "renyi_with_the_old_conversion": lambda *run: converted(run, lambda r, d: r - math.log(d) / (ORDERS - 1)),
    "renyi_with_few_orders": lambda *run: converted(run, lambda r, d: tight(r, d)[:5]),
    "gaussian_alone": _unsampled(lambda s, t, d: epsilon_of_delta(math.sqrt(t) / s, d)),
    "zcdp_alone": _unsampled(_zcdp),
    "zcdp_that_ignores_sampling": lambda s, q, t, d: _zcdp(s, t, d),
    "basic_composition": _basic,
    "advanced_composition": _advanced,
    "noisy_upper_end": lambda *run: epsilon_of(*run) * (1 + 0.1 * _upwards.random()),
    "rounded_up": lambda *run: math.ceil(100 * epsilon_of(*run)) / 100,
    "single_precision_upwards": lambda *run: np.nextafter(np.float32(epsilon_of(*run)), np.float32(np.inf)),
    "an_array_of_no_dimension": lambda *run: np.array(epsilon_of(*run)),
    "ten_times": lambda *run: 10 * epsilon_of(*run),
    "infinite_at_tiny_delta": lambda s, q, t, d: math.inf if d < 1e-9 else converted((s, q, t, d), tight),
    "refuses_much": _refusing,
}.items():
    function(SOUND, _name, _answer)
_object(
    SOUND,
    "certified_upper_ends",
    delta=_low_delta(lambda e, x, a: False),
    tpr=_low_tpr(lambda e, x, a: False),
    noise_multiplier=_calibrating(lambda n, e, t, a: n),
)
_object(
    SOUND,
    "loose_everywhere",
    epsilon=lambda self, event, *, delta, adjacency: 1.05 * upper(event, delta, adjacency),
)

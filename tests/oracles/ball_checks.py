"""Slow, independent answers that the fast ones are held against.

Three methods that share with the fast engine nothing but the definitions: rigorous quadrature of the
positive part of P - e^epsilon Q at one step (`subsampled_gaussian_delta_quadrature`), rigorous polynomial
powers in ball arithmetic for compositions (`composed_delta_polynomial`, `composed_epsilon_polynomial`),
and inversion of the privacy loss's characteristic function in floats (`composed_delta_inversion`: not
rigorous, but with nothing discretised in the loss). The golden values in
`data/certified/subsampled_gaussian.json` come from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from flint import acb, arb, ctx
from scipy.optimize import minimize_scalar

from oracles.ball_steps import OracleSteps, composed_curves, step_orders
from workbench.accounting.balls.ball import ends, to_arb
from workbench.accounting.balls.mixture import Mixture, ThresholdCurve, ThresholdOrder, subsampled_orders
from workbench.accounting.balls.shuffled import GridChoice
from workbench.accounting.bounds import Bounds
from workbench.accounting.events import Event, SubsampledGaussian, gaussian_run
from workbench.core.errors import InconclusiveError, InputError
from workbench.core.keys import JSON
from workbench.interfaces import Adjacency, FloatArray

TAIL_SHARE = 1e-5
"""Share of delta that may leave the window of a composition."""

_QUADRATURE_BITS = 160
_NODES = 8001
_LARGEST_NODE_COUNT = 1 << 15
_BLOCK = 128


def _require_epsilon(epsilon: float) -> None:
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be finite and >= 0, got {epsilon!r}")


def subsampled_gaussian_delta_quadrature(
    event: SubsampledGaussian, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> Bounds:
    """delta of one Poisson-subsampled Gaussian release, by rigorous quadrature; the larger of both orders.

    Integrates max(0, P - e^epsilon Q) with Arb's validated integration (Johansson 2018) from a sign change of
    the density itself, found by certified bisection.

    Args:
        event: Sampling probability below 1.
        epsilon: Finite, >= 0.
        adjacency: How neighbours differ.

    Raises:
        InputError: epsilon is out of range, or the sampling probability is 1.
    """
    _require_epsilon(epsilon)
    if event.sampling_probability == 1:
        raise InputError("sampling_probability must be in (0, 1) for the quadrature, got 1")
    orders = subsampled_orders(event, replace_one=adjacency is Adjacency.REPLACE_ONE)
    with ctx.workprec(_QUADRATURE_BITS):
        found = [ends(_positive_part(order, epsilon)) for order in orders]
    return Bounds(
        lower=max(0.0, *(low for low, _ in found)),
        upper=min(1.0, max(high for _, high in found)),
        rigorous=True,
        method="validated quadrature in ball arithmetic",
    )


def _density(mixture: Mixture, x: acb) -> acb:
    sigma = to_arb(mixture.sigma)
    total = acb(0)
    for weight, mean in mixture.components:
        total += to_arb(weight) * (-(((x - to_arb(mean)) / sigma) ** 2) / 2).exp()
    return total / (sigma * (2 * arb.pi()).sqrt())


def _positive_part(order: ThresholdOrder, epsilon: float) -> arb:
    """The integral, for an order whose loss increases with x."""
    growth = arb(epsilon).exp()
    sigma = float(order.p.sigma)

    def excess(x: acb, _analytic: bool = False) -> acb:
        return _density(order.p, x) - growth * _density(order.q, x)

    reach = 1.2 * math.sqrt(_QUADRATURE_BITS)
    top = max(float(mean) for _, mean in order.p.components) + reach * sigma
    low, high = arb(-1.01 * top), arb(top)
    rest = order.p.above(high).union(arb(0))
    if not excess(acb(high)).real > 0:
        return rest
    while high - low > arb(2) ** (-_QUADRATURE_BITS // 2):
        middle = ((low + high) / 2).mid()
        value = excess(acb(middle)).real
        if not (value > 0 or value < 0):
            break
        low, high = (low, middle) if value > 0 else (middle, high)
    # Between the two ends of the sign change lies at most the width times the height of P.
    gap = (high - low) / (to_arb(order.p.sigma) * (2 * arb.pi()).sqrt())
    return acb.integral(excess, acb(high), acb(top)).real + gap.union(arb(0)) + rest


def composed_delta_polynomial(
    event: Event,
    epsilon: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    *,
    choice: GridChoice | None = None,
) -> Bounds:
    """delta of a composition by polynomial powers in ball arithmetic; the larger of both orders.

    Args:
        event: Gaussians, subsampled Gaussians, Laplace and finite mechanisms, composed in any way.
        epsilon: Finite, >= 0.
        adjacency: How neighbours differ.
        choice: Grid; by default one that fits the answer.

    Raises:
        InputError: epsilon is out of range.
        UnsupportedError: the event holds something else.
    """
    _require_epsilon(epsilon)
    found = []
    for steps in step_orders(event, adjacency):
        fitting = choice or GridChoice(tail=max(_chernoff(steps, epsilon) * TAIL_SHARE / 10, 1e-280))
        below, above = composed_curves(steps, fitting)
        found.append((below.delta_ends(epsilon)[0], above.delta_ends(epsilon)[1]))
    return _larger(found)


def composed_epsilon_polynomial(
    event: Event,
    delta: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    *,
    choice: GridChoice | None = None,
) -> Bounds:
    """epsilon of a composition by polynomial powers in ball arithmetic; the larger of both orders.

    Args:
        event: As in `composed_delta_polynomial`.
        delta: In (0, 1).
        adjacency: How neighbours differ.
        choice: Grid; by default one that fits the answer.

    Raises:
        InputError: delta is out of range.
        UnsupportedError: the event holds something else.
    """
    if not 0 < delta < 1:
        raise InputError(f"delta must be in (0, 1), got {delta!r}")
    fitting = choice or GridChoice(tail=delta * TAIL_SHARE)
    return _larger([_epsilon_ends(steps, delta, fitting) for steps in step_orders(event, adjacency)])


def _epsilon_ends(steps: OracleSteps, delta: float, choice: GridChoice) -> tuple[float, float]:
    below, above = composed_curves(steps, choice)
    return below.epsilon_ends(delta)[0], above.epsilon_ends(delta)[1]


def _larger(found: list[tuple[float, float]]) -> Bounds:
    return Bounds(
        lower=max(low for low, _ in found),
        upper=max(high for _, high in found),
        rigorous=True,
        method="polynomial powers of dominated and dominating grid laws in ball arithmetic",
    )


def _log_moment(steps: OracleSteps, order: float) -> float:
    """log E_P exp(order * loss) of the composition."""
    total = 0.0
    for law, count in steps:
        losses, weights = law.nodes()
        exponents = order * losses
        peak = float(np.max(exponents[weights > 0]))
        total += count * (peak + math.log(float(weights @ np.exp(exponents - peak))))
    return total


def _chernoff(steps: OracleSteps, epsilon: float) -> float:
    """An upper bound on delta, far above it by one or two orders of magnitude at most."""
    orders = np.geomspace(1e-3, 1e4, 141)
    exponent = min(_log_moment(steps, order) - order * epsilon for order in orders)
    return math.exp(min(exponent, 0.0))


def composed_delta_inversion(
    event: Event,
    epsilon: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    *,
    relative_tolerance: float = 1e-7,
) -> Bounds:
    """delta of a composition by inverting its privacy loss's characteristic function; not rigorous.

    For any tilt t > 0, (1 - e^(epsilon - s))_+ is the inverse Laplace transform of e^(-z epsilon) /
    (z (z + 1)) on the line Re z = t. Hence, with M(z) = E_P e^(z S) of the loss S,

        delta = (1 / pi) Re int_0^inf M(z) e^(-z epsilon) / (z (z + 1)) du,  z = t + iu.

    The trapezoid rule at the saddle point converges geometrically where M decays; the ends are its last value
    widened by the difference from the one before and by the tolerance.

    Args:
        event: As in `composed_delta_polynomial`, without outputs that only one neighbour can give.
        epsilon: Finite, >= 0.
        adjacency: How neighbours differ.
        relative_tolerance: Wanted of the refinements' difference.

    Raises:
        InputError: epsilon is out of range.
        InconclusiveError: the refinements do not agree, because the characteristic function decays too slowly
            (few steps, or a small expected number of participations).
        UnsupportedError: the event holds something else.
    """
    _require_epsilon(epsilon)
    found = [_inverted(steps, epsilon, relative_tolerance) for steps in step_orders(event, adjacency)]
    value = max(middle for middle, _ in found)
    slack = max(error for _, error in found) + relative_tolerance * value
    return Bounds(
        lower=max(value - slack, 0.0),
        upper=min(value + slack, 1.0),
        rigorous=False,
        method="inversion of the characteristic function of the privacy loss",
    )


def _inverted(steps: OracleSteps, epsilon: float, tolerance: float) -> tuple[float, float]:
    """Value and the difference of the last two refinements, for one order."""

    def height(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return _log_moment(steps, tilt) - tilt * epsilon - math.log(tilt * (tilt + 1))

    tilt = math.exp(float(minimize_scalar(height, bounds=(-7.0, 9.0), method="bounded").x))
    level = _log_moment(steps, tilt) - tilt * epsilon
    width = 1e-3 * tilt
    spread = (_log_moment(steps, tilt + width) - 2 * _log_moment(steps, tilt)) / width**2
    spread = math.sqrt(spread + _log_moment(steps, tilt - width) / width**2)
    step = min(2 * math.pi * tilt / (30 - min(level, 0.0)), math.pi / (8 * spread), tilt / 4)
    previous = math.nan
    for _ in range(3):
        value = math.exp(level) * _trapezoid(steps, epsilon, tilt, step) / math.pi
        if abs(value - previous) <= tolerance * abs(value):
            return value, abs(value - previous)
        previous, step = value, step / 2
    raise InconclusiveError(
        f"the inversion did not settle to {tolerance:g} at epsilon = {epsilon!r}; last value {previous!r}"
    )


def _trapezoid(steps: OracleSteps, epsilon: float, tilt: float, step: float) -> float:
    """The integral over u > 0, relative to its integrand's size at u = 0 without the denominator."""
    laws = []
    for law, count in steps:
        losses, weights = law.nodes(_NODES)
        exponents = tilt * losses
        tilted = weights * np.exp(exponents - np.max(exponents[weights > 0]))
        tilted /= np.sum(tilted)
        kept = tilted > 1e-22
        laws.append((losses[kept], tilted[kept], count))
    total, peak = 0.0, 0.0
    for start in range(0, _LARGEST_NODE_COUNT, _BLOCK):
        u = step * np.arange(start, start + _BLOCK, dtype=np.float64)
        terms = _integrand(laws, epsilon, tilt, u)
        if start == 0:
            terms[0] /= 2
        total += float(np.sum(terms.real)) * step
        size = float(np.max(np.abs(terms)))
        peak = max(peak, size)
        if size * u[-1] < 1e-11 * peak * step:
            return total
    raise InconclusiveError(
        f"the characteristic function of the privacy loss decays too slowly at epsilon = {epsilon!r}"
    )


def _integrand(
    laws: list[tuple[FloatArray, FloatArray, int]], epsilon: float, tilt: float, u: FloatArray
) -> np.ndarray[tuple[int], np.dtype[np.complex128]]:
    """Normalised M(tilt + iu) exp(-iu epsilon) / ((tilt + iu) (tilt + 1 + iu)), shape of `u`."""
    z = tilt + 1j * u
    logarithm = -1j * u * epsilon - np.log(z * (z + 1))
    for losses, weights, count in laws:
        # The mean loss is taken out, so that the powers of the factors do not spin.
        centre = float(weights @ losses)
        factor = np.exp(1j * np.outer(u, losses - centre)) @ weights
        with np.errstate(divide="ignore"):
            logarithm = logarithm + count * (np.log(factor) + 1j * u * centre)
    result: np.ndarray[tuple[int], np.dtype[np.complex128]] = np.exp(logarithm)
    return result


ORDERS = ("remove", "add", "replace-one")
"""Orders of neighbours: with the record against without, the reverse, one value against its opposite."""

GOLDEN = (
    # noise multiplier, sampling probability, steps, delta, orders
    (0.3, 1e-4, 1, 1e-10, ORDERS),
    (0.3, 0.01, 1, 1e-5, ORDERS),
    (1.0, 0.01, 1, 1e-5, ORDERS),
    (5.0, 0.5, 1, 1e-15, ORDERS),
    (50.0, 0.999, 1, 1e-12, ("remove", "add")),
    (0.3, 1e-3, 10, 1e-6, ("remove", "add")),
    (0.5, 0.01, 100, 1e-5, ("remove", "add")),
    (0.7, 1e-3, 1000, 1e-8, ("remove",)),
    (2.0, 1e-4, 10_000, 1e-6, ("remove", "add")),
    (3.0, 1e-3, 10_000, 1e-5, ("remove",)),
    (1.0, 0.01, 1000, 1e-5, ORDERS),
    (1.0, 0.01, 1000, 1e-10, ("remove", "add")),
    (1.0, 0.01, 1000, 1e-15, ("remove",)),
    (1.0, 0.1, 100, 1e-3, ("remove", "add")),
    (2.0, 0.01, 10_000, 1e-5, ("remove", "replace-one")),
    (2.0, 0.5, 100, 1e-5, ("remove", "add")),
    (4.0, 0.1, 1000, 1e-6, ("remove",)),
    (10.0, 0.9, 100, 1e-10, ("remove", "add")),
    (20.0, 0.1, 10_000, 1e-5, ("remove",)),
    (50.0, 0.5, 1000, 1e-15, ("remove",)),
    (1.0, 1.0, 10, 1e-5, ("remove", "replace-one")),
    (50.0, 1.0, 10_000, 1e-15, ("remove",)),
)
"""The cells of the golden table, over the range that the accountants' tests use."""


def golden_cells() -> Iterator[tuple[float, float, int, float, str]]:
    """(noise multiplier, sampling probability, steps, delta, order) of each golden value."""
    for sigma, q, steps, delta, orders in GOLDEN:
        for order in orders:
            yield sigma, q, steps, delta, order


def golden_value(
    noise_multiplier: float, sampling_probability: float, steps: int, delta: float, order: str
) -> dict[str, JSON]:
    """A golden value's record: parameters, rigorous ends of epsilon for this one order, method and precision.

    Raises:
        InputError: a parameter is out of range, or the order is unknown.
    """
    if order not in ORDERS:
        raise InputError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    event = gaussian_run(
        noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, steps=steps
    )
    adjacency = Adjacency.REPLACE_ONE if order == "replace-one" else Adjacency.ADD_REMOVE
    record: dict[str, JSON] = {
        "noise_multiplier": noise_multiplier,
        "sampling_probability": sampling_probability,
        "steps": steps,
        "delta": delta,
        "order": order,
    }
    if sampling_probability < 1 and steps == 1:
        step = SubsampledGaussian(
            noise_multiplier=noise_multiplier, sampling_probability=sampling_probability
        )
        orders = subsampled_orders(step, replace_one=adjacency is Adjacency.REPLACE_ONE)
        low, high = ThresholdCurve([orders[1 if order == "add" else 0]]).epsilon_ends(delta)
        return record | {"lower": low, "upper": high, "method": "closed form", "bits": "adaptive"}
    laws = step_orders(event, adjacency)
    choice = replace(GridChoice(), tail=delta * TAIL_SHARE)
    low, high = _epsilon_ends(laws[1 if order == "add" and len(laws) > 1 else 0], delta, choice)
    return record | {"lower": low, "upper": high, "method": "polynomial powers", "bits": choice.bits}


def golden_table() -> dict[str, JSON]:
    """The whole of `data/certified/subsampled_gaussian.json`; takes minutes."""
    return {
        "what": "Rigorous ends of epsilon at delta, steps-fold Poisson-subsampled Gaussian, one order of the "
        "neighbours; noise multiplier per unit of a record's largest contribution.",
        "how": "oracles.ball_checks.golden_table",
        "values": [golden_value(*cell) for cell in golden_cells()],
    }

"""The losses of Laplace noise on a Poisson sample.

Add-remove and zero-out: P = (1 - q) L(0) + q L(1) against Q = L(0). Replace-one: P against its mirror image
(1 - q) L(0) + q L(-1). L(m) is Laplace noise around m; c = 1 / scale is the largest loss without sampling.

Why these pairs dominate, in any dimension with contributions of l1 norm at most 1: the proof in
`balls.mixture` rests on two properties of the noise alone. A shift by v turns a test of error rate p into one
of rate at least g(p, |v|), g falling in |v| (`balls.gaussian`: for Laplace noise |v| is the l1 norm), and
half-lines attain g for all shifts at once (the loss of a shift is monotone). Both hold here.

All is a function of the position x along the line, in which both losses increase:

    add-remove:   loss(x) = log(1 - q + q exp(c clip(2 x - 1, -1, 1)))
    replace-one:  loss(x) = sign(x) log((1 - q + q exp(c (2 min(|x|, 1) - 1))) / (1 - q + q exp(-c)))
"""

from __future__ import annotations

import math

import numpy as np

from workbench.accounting.grid.laws import ROUND_OFF, CellMasses, LossLaw
from workbench.core.errors import UnsupportedError
from workbench.interfaces import FloatArray

_LARGEST = 300.0
"""Of the losses without sampling whose exponentials float64 holds with room."""


class SampledLaplaceLaw(LossLaw):
    """The law above.

    Args:
        scale: Of the noise.
        q: Sampling probability, in (0, 1).
        replace_one: Which of the two pairs.

    Raises:
        UnsupportedError: scale or rate are too small for the grid.
    """

    def __init__(self, scale: float, q: float, *, replace_one: bool) -> None:
        self._c, self._q, self._replace_one = 1 / scale, q, replace_one
        if not 1e-100 < self._c < _LARGEST or q < 1e-100:
            raise UnsupportedError(
                f"scale {scale:g} at sampling_probability {q:g} is out of the grid's reach"
            )
        self._low = -1.0 if replace_one else 0.0
        """Left of it, and right of 1, the loss is constant."""
        self.lattice = float(self._loss(np.array([1.0]))[0])

    def _mixed(self, exponent: FloatArray) -> FloatArray:
        """log(1 - q + q exp(exponent)), relative to itself."""
        mixed: FloatArray = np.log1p(self._q * np.expm1(exponent))
        return mixed

    def _loss(self, x: FloatArray) -> FloatArray:
        """The loss at x in [low, 1]."""
        if not self._replace_one:
            return self._mixed(self._c * (2 * x - 1))
        none = np.full_like(x, -self._c)
        loss: FloatArray = np.sign(x) * (
            self._mixed(self._c * (2 * np.minimum(np.abs(x), 1.0) - 1)) - self._mixed(none)
        )
        return loss

    def span(self, tail: float) -> tuple[float, float]:
        """The least and the largest loss."""
        low, high = self._loss(np.array([self._low, 1.0]))
        return float(low), float(high)

    def _thresholds(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """The x that reaches each loss (-inf below the least, inf from the largest on), and what it misses.

        By bisection, as the loss is monotone; the miss is measured, with the rounding of the loss itself.
        """
        least, most = self.span(0.0)
        low, high = np.full_like(losses, self._low), np.ones_like(losses)
        for _ in range(60):
            middle = (low + high) / 2
            below = self._loss(middle) < losses
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        x = (low + high) / 2
        # Rounding must not push an edge that means an end below it.
        slack = 1e-12 * max(abs(least), abs(most))
        reached, started = losses >= most - slack, losses >= least - slack
        usable = started & ~reached
        missed = float(np.max(np.abs(self._loss(x) - losses)[usable], initial=0.0))
        x = np.where(reached, np.inf, np.where(started, np.maximum(x, self._low), -np.inf))
        # The logarithm's argument is at least 1 - q and at least exp(-c): so much its rounding counts more.
        amplified = min(1 / (1 - self._q), math.exp(self._c))
        return x, missed + 2 * slack + 64 * ROUND_OFF * (1 + self._c + amplified)

    def _masses(self, x: FloatArray, mean: float) -> FloatArray:
        """Mass of L(mean) below x_0, between neighbours, and above the last."""
        with np.errstate(over="ignore"):
            tail = 0.5 * np.exp(-self._c * np.abs(x - mean))
        below = np.where(x <= mean, tail, 1 - tail)
        right = x[:-1] >= mean
        inner = np.where(right, tail[:-1] - tail[1:], np.diff(below))
        last = tail[-1] if x[-1] >= mean else 1 - tail[-1]
        masses: FloatArray = np.concatenate((below[:1], np.maximum(inner, 0.0), [last]))
        return masses

    def _errors(self, x: FloatArray, mean: float) -> FloatArray:
        """Bounds on their errors: each tail is off by some roundings of its exponent, and 1 - tail by one."""
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.where(np.isfinite(x), self._c * (np.abs(x - mean) + np.abs(x)), 0.0)
            tail = 0.5 * np.exp(-self._c * np.abs(x - mean))
        each = ROUND_OFF * (16 + 16 * size) * tail
        errors: FloatArray = np.append(each, 0.0) + np.append(0.0, each)
        # Where 1 - tail is taken: between thresholds on both sides of the mean, and beyond it at the ends.
        errors[1:-1] += 4 * ROUND_OFF * ((x[:-1] < mean) & (x[1:] > mean))
        errors[0] += 2 * ROUND_OFF * bool(x[0] > mean)
        errors[-1] += 2 * ROUND_OFF * bool(x[-1] < mean)
        return errors

    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Both atoms, and midpoints of 400 cells between."""
        x = np.linspace(self._low, 1.0, 401)
        p, q = (mass for mass, _ in self._mixtures(x))
        losses = self._loss(np.concatenate(([self._low], (x[:-1] + x[1:]) / 2, [1.0])))
        return losses, p, q

    def _mixtures(self, x: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Masses and errors of P and of Q."""
        q, other = self._q, -1.0 if self._replace_one else 0.0
        sides = (((1 - q, 0.0), (q, 1.0)), ((1 - q, 0.0), (q, other)))
        found = []
        for components in sides:
            mass: FloatArray = sum((w * self._masses(x, m) for w, m in components), np.zeros(len(x) + 1))
            error: FloatArray = sum((w * self._errors(x, m) for w, m in components), 16 * ROUND_OFF * mass)
            found.append((mass, error))
        return found

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """Masses of half-cells of width h / 2 and bounds on their errors, as `LossLaw.cells` defines them."""
        edges = offset + (first + np.arange(count + 1, dtype=np.float64)) * (h / 2)
        x, eta = self._thresholds(edges)
        (p, p_error), (q, q_error) = self._mixtures(np.maximum.accumulate(x))
        eta += 8 * ROUND_OFF * float(np.max(np.abs(edges), initial=0.0))
        return CellMasses.of((p, q, p_error, q_error), first=first, eta=eta, offset=offset)

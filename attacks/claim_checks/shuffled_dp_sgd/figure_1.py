"""Shuffled DPSGD, Fig. 1: two distances of densities on a grid, of which the step is not said.

It need not be. Let p and q be the round normals at (a, 0) and (-a, 0), P and Q their even mixtures with those
of exchanged coordinates. The square of a density's difference is a sum of normal densities of half the
variance, so by Poisson's summation formula its sum over a regular grid of step h is its integral over h^2, up
to factors exp(-pi^2 |n|^2 / h^2), n in Z^2 and not 0: wherever the grid lies, for every step up to 1. What
lies outside the square is bounded by the normal tail. So on all such grids both Frobenius norms are the L2
distances over h, and their ratio is that of the L2 distances. On coarser grids there are too few points for
norms like these.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from workbench.attacks.claim_checks.shared.claims import Counterexample, ball, in_balls, setting, settle, show
from workbench.core.registry import register
from workbench.interfaces.findings import Finding

COARSEST = 1
"""Step up to which sums are compared with integrals, in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """A sum of squared differences over a grid, times the square of its step: bounds over all fine grids.

    Attributes:
        integral: What it tends to.
        lower, upper: For every grid of a step in (0, `COARSEST`].
    """

    integral: Any
    lower: Any
    upper: Any


def grid_sums(place: Any, half_width: Any, *, shuffled: bool) -> Sums:
    """Of the squared difference of the two laws, standard deviation 1.

    Args:
        place: a, the distance of either point from the origin.
        half_width: Of the square that the grid covers; above a.
        shuffled: Of the mixtures, instead of the normals.
    """
    near, far = (-place * place / 2).exp(), (-place * place).exp()
    unit = 1 / (4 * _pi())
    own, cross = (1 + near, far + near) if shuffled else (ball(2), 2 * far)
    integral, absolute = unit * (own - cross), unit * (own + cross)
    wave = (-(_pi() ** 2) / COARSEST**2).exp()
    line = 2 * (wave + wave**4 / (1 - wave))
    alias = absolute * ((1 + line) ** 2 - 1)
    margin = half_width - place
    # Beyond one side: the first point, and an integral from there on; along the other axis, as at the centre.
    beyond = (-margin * margin).exp() * (1 + 1 / (2 * margin))
    outside = 2 * 4 * beyond * (1 + _pi().sqrt()) / (4 * _pi() ** 2)
    return Sums(integral=integral, lower=integral - alias - outside, upper=integral + alias)


@register("claim_check", "shuffled_figure_1")
@setting(
    "densities on any regular grid on the printed square, wherever it lies; balls of 192 bits, no samples"
)
@in_balls
def figure_1(
    *, before: str = "18.53", after: str = "13.96", coordinate: str = "2", half_width: str = "10"
) -> Finding:
    """Fig. 1: some regular grid has both printed distances.

    Args:
        before, after: The printed distances, as decimals, to the last digit.
        coordinate: a, in standard deviations.
        half_width: Of the printed square.
    """
    place, width = ball(coordinate), ball(half_width)
    plain, mixed = (grid_sums(place, width, shuffled=shuffled) for shuffled in (False, True))
    first, second = _printed(before), _printed(after)
    least, most = (plain.lower / mixed.upper).sqrt(), (plain.upper / mixed.lower).sqrt()
    ratio = (plain.integral / mixed.integral).sqrt()
    expected = ball(before) / ratio
    coarse = (2 * width / COARSEST + 1) / (2 * _pi())
    wrong, proof = None, None
    if coarse < first[0] and (first[1] / second[0] < least or first[0] / second[1] > most):
        wrong = Counterexample(
            sentence=(
                f"{before} and {after} have the ratio {show(ball(before) / ball(after), 4)}, but on every "
                f"regular grid on which the first is about {before} shuffling divides the norm by "
                f"{show(ratio, 5)} (within {show((most - least) / 2, 2)}): to {show(expected, 4)}"
            ),
            values={
                "before": before,
                "after": after,
                "ratio_at_least": show(least),
                "ratio_at_most": show(most),
                "after_of_that_before": show(expected),
            },
        )
    step = plain.integral.sqrt() / ball(before)
    if step <= COARSEST and all(
        limits[0] <= sums.lower.sqrt() / step and sums.upper.sqrt() / step <= limits[1]
        for sums, limits in ((plain, first), (mixed, second))
    ):
        proof = f"a grid of step {show(step)} has the norms {before} and {after}"
    return settle(
        proof=proof,
        counterexample=wrong,
        evidence=(
            f"the L2 distances are {show(plain.integral.sqrt())} and {show(mixed.integral.sqrt())}, so "
            "shuffling does bring these two laws closer",
            f"a grid of a step above {COARSEST} has norms below {show(coarse, 3)}",
            f"over all finer grids, aliasing and the area outside change the ratio by "
            f"{show((most - least) / 2, 2)} at most",
            "a norm over histograms of samples, whose noise adds to both, is another quantity; so is any "
            "epsilon",
        ),
    )


def _printed(text: str) -> tuple[Any, Any]:
    """What a decimal that is rounded to its last digit may stand for."""
    half = ball(str(Decimal(1).scaleb(int(Decimal(text).as_tuple().exponent)) / 2))
    return ball(text) - half, ball(text) + half


def _pi() -> Any:
    from flint import arb

    return arb.pi()

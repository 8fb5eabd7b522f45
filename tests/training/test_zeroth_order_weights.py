"""Directions that are drawn in parts, and weights that come back: the streams, the lattice, and its edges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from zeroth_order_parts import SEED, bits, digits, direction, lattice, plan, ready, values

from workbench.core.errors import InputError, UnsupportedError
from workbench.training.lattice import BLOCK, FARTHEST, LEVELS, Directions, Lattice, levels, power_above

pytestmark = pytest.mark.usefixtures("one_thread")

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance."""


def parameters(*sizes: int, scale: float = 0.1, seed: int = 0) -> list[nn.Parameter]:
    """Random tensors of these sizes."""
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(scale * torch.randn(size, generator=generator)) for size in sizes]


def test_levels_are_those_of_a_standard_normal() -> None:
    table = levels().double()
    assert len(table) == LEVELS
    assert bool((table.diff() >= 0).all())
    assert torch.equal(table, -table.flip(0))
    assert float(table.square().mean()) == pytest.approx(1.0, abs=1e-7)
    assert float((table**4).mean()) == pytest.approx(3.0, abs=5e-4)
    assert float(table[-1]) < FARTHEST
    # The distribution function of the table is never farther from the normal's than one slice.
    exact = stats.norm.cdf(table.numpy())
    steps = np.arange(LEVELS + 1) / LEVELS
    assert max(np.abs(exact - steps[1:]).max(), np.abs(exact - steps[:-1]).max()) <= 1.01 / LEVELS


def distance(sample: Tensor) -> float:
    """Kolmogorov's distance from the standard normal, in units of what `FALSE_ALARM` allows."""
    ordered = np.sort(sample.numpy())
    steps = np.arange(len(ordered) + 1) / len(ordered)
    cdf = stats.norm.cdf(ordered)
    found = max(np.abs(cdf - steps[1:]).max(), np.abs(cdf - steps[:-1]).max())
    # Massart 2 exp(-2 n d^2), and one slice for what the table lacks.
    allowed = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * len(ordered))) + 1 / LEVELS
    return float(found / allowed)


def test_directions_are_gaussian() -> None:
    z = direction(parameters(BLOCK + 77, 3, 40_000), 5)
    n = len(z)
    far = stats.norm.isf(FALSE_ALARM / 2)
    assert distance(z) < 1
    assert abs(float(z.mean())) < far / math.sqrt(n)
    assert abs(float(z.square().mean()) - 1) < far * math.sqrt(2 / n)
    assert abs(float((z**4).mean()) - 3) < far * math.sqrt(96 / n) + 5e-4
    # Neighbours in a word, neighbouring blocks and neighbouring directions share nothing.
    other = direction(parameters(BLOCK + 77, 3, 40_000), 6)
    for a, b in ((z[:-1], z[1:]), (z[: n - BLOCK], z[BLOCK:]), (z, other)):
        assert abs(float((a * b).mean())) < far / math.sqrt(len(a))
    # What is not normal is caught: the same variance, but flat.
    flat = (torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5) * 12**0.5
    assert distance(flat) > 1


def test_a_direction_is_its_seed_and_index() -> None:
    own = parameters(1000, 7)
    z = direction(own, 3)
    assert torch.equal(z, direction(own, 3))
    assert not torch.equal(z, direction(own, 4))
    assert not torch.equal(z, direction(own, 3, seed=SEED + 1))
    # Only the numbers of weights count, not how they are divided.
    assert torch.equal(z, direction(parameters(1, 500, 506), 3))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_adds_the_same(threads: int) -> None:
    sizes = (2 * BLOCK + 5, 100_000, 3 * BLOCK)
    own, twin = parameters(*sizes), parameters(*sizes)
    lattice(own).move(2, 0.01)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        lattice(twin).move(2, 0.01)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(bits(own), bits(twin))


def test_parts_and_visits_are_one_direction() -> None:
    own = parameters(70_000, 31, 0, 5, scale=0.0)
    lattice(own, scale=1.0).perturb(8, 1)
    # mu = 1: a perturbation is z in steps of 2^-11 of it.
    assert float((values(own) - direction(own, 8)).abs().max()) <= 2.0**-11


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([1e-5, 1e-3, 0.03, 1.0]),
    st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 7.9, 8.0]),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, -1])), min_size=1, max_size=3),
)
def test_perturbations_are_exact_both_ways(
    seed: int, scale: float, size: float, taken: list[tuple[int, int]]
) -> None:
    own = parameters(300, 5, scale=size, seed=seed)
    with torch.no_grad():
        own[1][:4] = torch.tensor([0.0, -0.0, size, -1e-12])
    if scale < 1e-4 and size > 0.9:
        with pytest.raises(InputError, match="scale must be at least"):
            lattice([nn.Parameter(p * 100) for p in own], scale)
        return
    laid = lattice(own, scale)
    before = bits(own)
    for index, sign in taken:
        laid.perturb(index, sign)
        laid.perturb(index, -2 * sign)
        assert not torch.equal(bits(own), before)
        laid.perturb(index, sign)
        assert torch.equal(bits(own), before)


def test_a_lattice_keeps_the_bits_of_small_weights() -> None:
    own = parameters(5000, 5000, scale=0.1)
    with torch.no_grad():
        own[0][0] = 3.0  # one large weight does not take the bits of the others
    raw = values(own)
    lattice(own)
    assert float((values(own) - raw).abs().max()) <= 2.0**-23
    ordinary = raw.abs() < 0.1
    assert float((values(own) - raw)[ordinary].abs().max()) <= 2.0**-28


def drift(weights: np.ndarray, directions: Iterable[np.ndarray]) -> tuple[float, float]:
    """What the float loop +mu z, -2 mu z, +mu z leaves: the share of weights that differ, and how far."""
    start, weights = weights, weights.copy()
    for z in directions:
        shift = (1e-3 * z).astype(np.float32)
        weights += shift
        weights -= 2 * shift
        weights += shift
    return float(np.mean(weights != start)), float(np.abs(weights - start).max())


def returns_after(own: list[nn.Parameter], steps: int) -> bool:
    """Whether all weights come back to the bit after so many perturbations there and back."""
    laid = lattice(own)
    before = bits(own)
    for step, times in itertools.product(range(steps), (1, -2, 1)):
        laid.perturb(step, times)
    return torch.equal(bits(own), before)


def test_steps_do_not_drift() -> None:
    own = parameters(50, 7)
    start = np.concatenate([p.detach().numpy() for p in own])
    assert returns_after(own, 1000)
    # The loop over floats, on the same weights and for as long, does.
    share, farthest = drift(start, (direction(own, step).numpy() for step in range(1000)))
    assert share > 0.9
    assert farthest > 1e-7


@pytest.mark.slow
def test_ten_thousand_steps_do_not_drift() -> None:
    _, own = ready(plan(digits(2)))
    start = np.concatenate([p.detach().numpy().ravel() for p in own])
    assert returns_after(own, 10_000)
    share, farthest = drift(start, (direction(own, step).numpy() for step in range(10_000)))
    assert share > 0.98  # docs/paczero.md gives both numbers.
    assert 1e-6 < farthest < 3e-6


def test_small_moves_are_not_lost() -> None:
    own = parameters(4000, scale=0.1)
    with torch.no_grad():
        own[0][0] = 3.0
    laid = lattice(own)
    before = values(own)
    for _ in range(200):
        laid.move(1, 2e-8)
    moved, wanted = (values(own) - before)[1:], 200 * 2e-8 * direction(own, 1)[1:]
    assert float((moved - wanted).norm() / wanted.norm()) < 0.2
    # Rounded to the grid of the perturbations, as the large weight must be, none of it would be left.
    assert min(laid._grid) > 2 * 2e-8 * FARTHEST


def test_moves_commute_and_invert_but_for_rounding() -> None:
    own, twin = parameters(3000), parameters(3000)
    first, second = lattice(own), lattice(twin)
    start = values(own)
    first.move(1, 3e-3)
    first.move(2, -1e-3)
    second.move(2, -1e-3)
    second.move(1, 3e-3)
    ulp = 2.0**-24  # of weights below 1
    assert float((values(own) - values(twin)).abs().max()) <= 2 * ulp
    first.move(1, -3e-3)
    first.move(2, 1e-3)
    assert float((values(own) - start).abs().max()) <= 4 * ulp


@pytest.mark.parametrize("amount", [1e-9, -3e-5, 0.02, -1.0])
def test_a_move_on_the_way_back_is_the_move_after_it(amount: float) -> None:
    own, twin = parameters(3000, 9), parameters(3000, 9)
    first, second = lattice(own), lattice(twin)
    assert first.fits(amount)
    first.perturb(4, 1)
    first.perturb(4, -2)
    first.move(4, amount, back=1)
    second.move(4, amount)
    assert torch.equal(bits(own), bits(twin))


def test_a_move_too_long_for_one_rounding_is_known() -> None:
    assert not lattice(parameters(10)).fits(1e4)


def test_a_tensor_that_outgrows_its_grid_gets_a_coarser_one() -> None:
    own = parameters(500, 500, scale=0.05)
    laid = lattice(own, scale=0.1)
    grids = list(laid._grid)
    laid.move(0, 2e4)
    laid.check()
    assert all(after > before for after, before in zip(laid._grid, grids, strict=True))
    before = bits(own)
    for times in (1, -2, 1):
        laid.perturb(3, times)
    assert torch.equal(bits(own), before)
    # Without the coarser grid, it would not have come back.
    laid._grid = grids
    for times in (1, -2, 1):
        laid.perturb(3, times)
    assert not torch.equal(bits(own), before)


class Peak(TorchDispatchMode):
    """The most bytes that tensors made here held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        import weakref

        kwargs = kwargs or {}
        known = {t.untyped_storage().data_ptr() for t in (*args, *kwargs.values()) if isinstance(t, Tensor)}
        made = func(*args, **kwargs)
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in known:
            size = made.untyped_storage().nbytes()
            self.held += size
            self.most = max(self.most, self.held)
            weakref.finalize(made.untyped_storage(), self._freed, size)
        return made

    def _freed(self, size: int) -> None:
        self.held -= size


def test_no_direction_is_kept_beside_the_weights() -> None:
    own = parameters(4 * BLOCK)
    laid = lattice(own)
    laid.perturb(0, 1)
    laid.perturb(0, -1)
    with Peak() as peak:
        laid.perturb(1, 1)
        laid.move(2, 1e-3)
        laid.shrink(0.01)
        laid.check()
    assert 0 < peak.most < own[0].numel() * 4 * 0.75
    with Peak() as whole:
        torch.randn(own[0].numel()) * 1e-3
    assert whole.most > own[0].numel() * 4


def test_shrinking_takes_a_share_off() -> None:
    own = parameters(1000)
    laid = lattice(own)
    before = values(own)
    laid.shrink(0.25)
    assert float((values(own) - 0.75 * before).abs().max()) <= 2.0**-24


def test_no_parameters_half_weights_and_no_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="needs a trainable parameter, got none"):
        lattice([])
    with pytest.raises(UnsupportedError, match=r"needs float32 weights, got torch\.float16"):
        lattice([nn.Parameter(torch.zeros(3, dtype=torch.float16))])
    with pytest.raises(UnsupportedError, match="all weights on one device"):
        lattice([*parameters(3), nn.Parameter(torch.zeros(3, device="meta"))])
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match="weights must be finite"):
            lattice([nn.Parameter(torch.tensor([1.0, bad, 2.0]))])
    with pytest.raises(InputError, match=r"scale must be at least .* for weights as large as 1e\+06"):
        lattice([nn.Parameter(torch.tensor([1e6]))])


def test_weights_that_lie_the_other_way_are_moved_in_place() -> None:
    weight = nn.Parameter(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).t())
    before = weight.detach().clone()
    Lattice([weight], 1e-3, 0).move(0, 0.1)
    assert not torch.allclose(weight, before)


def test_power_above_is_the_least() -> None:
    assert [power_above(x) for x in (1.0, 1.5, 0.25, 0.3)] == [1.0, 2.0, 0.25, 0.5]


def test_the_streams_are_those_of_the_seed() -> None:
    """Written out: SFC64 by NumPy's SeedSequence(7, spawn_key=(3, 0)), streams that NumPy keeps."""
    words = np.random.SFC64(np.random.SeedSequence(7, spawn_key=(3, 0))).random_raw(2)
    numbers = [int(word) >> (16 * i) & 0xFFFF for word in words for i in range(4)]
    (_, _, z) = next(iter(Directions(parameters(8), 7).parts(3)))
    assert torch.equal(z, levels()[numbers])

"""What the released network computes, as an adversary sees it: numbers that no permutation changes.

A permutation that leaves a network's function unchanged hides nothing of that function. Of a release W' the
adversary takes outputs on probe inputs, less those of the weights that were expected without the canary:

    r = f(W') - f(W_expected) = J noise + (J e_w shift where the canary took part) + higher orders

with J the Jacobian of the outputs at the expected weights and e_w the canary's weight. For a direction a in
output space a . r is nearly normal with variance |J^T a|^2, weighted by the noise of each weight, and moves
by a . b where b = f(W_expected + shift e_w) - f(W_expected). The best direction solves J S J^T a = b, S being
the noise's variances; conjugate gradients from zero come nearer to it with each turn, and every a of theirs
gives a statistic whose mean and variance are known, only with less power. Where releases from one state are
many, the adversary rehearses: it draws its own releases, with the canary and without, and takes the turn that
separates them best, with their mean and deviation. That leaves out directions in which the linear part of the
noise is small and the rest is not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.core.errors import UnsupportedError
from workbench.execution.tasks import StepProgress, silent
from workbench.games.consecutive import Projection
from workbench.interfaces import Model, Record
from workbench.training.flat import FlatLayout

MOST_VALUES = 4096
"""Most outputs that are looked at."""


MOST_WORK = 2.5e9
"""Limit on one query of all probes: numbers of an input (pixels, tokens) times trainable weights times
probes.

An audit makes some four hundred queries before the first release: a minute or so on one core at this size.
"""

LEAST_PROBES = 4
"""With fewer probes, hardly anything is seen of the function."""


def probes_within(model: Model, records: Sequence[Record]) -> int:
    """How many of the probes are used: all, or as many as `MOST_WORK` allows, whatever they would show.

    Raises `UnsupportedError`: that would be fewer than `LEAST_PROBES`.
    """
    size = max(int(values[0].numel()) for values in model.encode(records).values())
    weights = FlatLayout.of(model.module).dimension
    able = int(MOST_WORK / (size * weights))
    if able < min(LEAST_PROBES, len(records)):
        raise UnsupportedError(
            f"model {model.name!r} is too large to look for a canary in its outputs ({weights:,} weights, "
            f"{size} numbers an input): give the attack invariant=sorted and probes=0"
        )
    return min(able, len(records))


class OutputProbe:
    """Computes outputs of a copy of the model at other weights, and their linearisation.

    Args:
        model: Copied.
        records: Whose inputs are the probes. Inputs of floating-point numbers are replaced by standard normal
            ones: images have pixels that no record lights, whose weights no record's output shows.
        seed: Of those inputs.
    """

    def __init__(self, model: Model, records: Sequence[Record], seed: int) -> None:
        self._model = copy.copy(model)
        self._model.module = copy.deepcopy(model.module).eval()
        self._layout = FlatLayout.of(self._model.module)
        self._generator = torch.Generator().manual_seed(seed)
        self.count = len(records)
        self._batch = _random_where_real(self._model.encode(records), self._generator)

    def at(
        self,
        expected: Tensor,
        *,
        place: int,
        shift: float,
        noise: Tensor,
        turns: int,
        rehearsals: int = 0,
        progress: StepProgress = silent,
    ) -> OutputView:
        """Returns the view from the expected weights towards a canary.

        Args:
            expected: Weights without canary and noise, shape `(d,)`.
            place: Of the canary's weight.
            shift: What the canary adds to it.
            noise: Standard deviation of each weight's noise, shape `(d,)`.
            turns: Conjugate-gradient steps, >= 1.
            rehearsals: Releases that the adversary draws, of each kind; 0 to go all turns.
            progress: Of the rehearsals.
        """
        inside = expected.clone()
        inside[place] += shift
        with torch.no_grad():
            moved = self.outputs(inside)
        self._set(expected)
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            plain = self._forward()
            towards = moved - plain.detach()
            directions = _directions(plain, self._layout.parameters, towards, self._parts(noise), turns)
        plain = plain.detach()
        if rehearsals:
            drawn = self._rehearsed((expected, inside), noise, rehearsals, progress)
            without, there = drawn - plain
            return _best(self, plain, [direction for direction, _ in directions], without, there)
        direction, spread = directions[-1]
        return OutputView(
            probe=self, plain=plain, direction=direction, shift=float(direction @ towards), noise=spread
        )

    def _rehearsed(
        self, worlds: Sequence[Tensor], noise: Tensor, count: int, progress: StepProgress
    ) -> Tensor:
        """Outputs of `count` releases that the adversary draws of each world, shape `(worlds, count, m)`."""
        seen: list[Tensor] = []
        for weights in worlds:
            for _ in range(count):
                drawn = torch.randn(weights.shape, generator=self._generator, dtype=weights.dtype)
                seen.append(self.outputs(weights + noise * drawn))
                progress(len(seen), count * len(worlds), "rehearsals")
        return torch.stack(seen).reshape(len(worlds), count, -1)

    def outputs(self, weights: Tensor) -> Tensor:
        """Returns the outputs at these weights as one vector, float64, detached."""
        self._set(weights)
        with torch.no_grad():
            return self._forward()

    def _forward(self) -> Tensor:
        """Logits where the model has one row of them a record, else its losses."""
        seen: list[Any] = []
        hook = self._model.module.register_forward_hook(lambda _module, _given, output: seen.append(output))
        try:
            losses = self._model.losses(self._batch)
        finally:
            hook.remove()
        output = getattr(seen[-1], "logits", seen[-1]) if seen else losses
        values = output if isinstance(output, Tensor) and output.ndim == 2 else losses
        return values.double().reshape(-1)[:MOST_VALUES]

    def _set(self, weights: Tensor) -> None:
        with torch.no_grad():
            for parameter, part in zip(self._layout.parameters, self._parts(weights), strict=True):
                parameter.copy_(part)

    def _parts(self, flat: Tensor) -> list[Tensor]:
        return [flat[place].view(shape) for place, shape in self._layout.places.values()]


class OutputView:
    """One direction in output space, ready for releases from one state."""

    def __init__(
        self,
        *,
        probe: OutputProbe,
        plain: Tensor,
        direction: Tensor,
        shift: float,
        noise: float,
        without: float = 0.0,
    ) -> None:
        self._probe, self._plain, self._direction = probe, plain, direction
        self._shift, self._noise, self._without = shift, noise, without

    def seen(self, released: Tensor) -> Projection:
        """Returns a release's outputs along the direction."""
        apart = self._probe.outputs(released) - self._plain
        value = float(self._direction @ apart) - self._without
        return Projection(value=value, shift=self._shift, noise=self._noise)


def _random_where_real(batch: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    return {
        name: torch.randn(values.shape, generator=generator, dtype=values.dtype).to(values.device)
        if values.is_floating_point()
        else values
        for name, values in batch.items()
    }


def _best(
    probe: OutputProbe, plain: Tensor, directions: Sequence[Tensor], without: Tensor, there: Tensor
) -> OutputView:
    """The direction that separates rehearsed releases best."""
    views: list[tuple[float, int, OutputView]] = []
    for direction in directions:
        low, high = without @ direction, there @ direction
        noise = float(((low.var() + high.var()) / 2.0).sqrt())
        shift = float(high.mean() - low.mean())
        view = OutputView(
            probe=probe, plain=plain, direction=direction, shift=shift, noise=noise, without=float(low.mean())
        )
        views.append((shift / noise if noise > 0.0 else math.inf, len(views), view))
    return max(views)[2]


def _directions(
    outputs: Tensor, parameters: Sequence[Tensor], towards: Tensor, noise: Sequence[Tensor], turns: int
) -> list[tuple[Tensor, float]]:
    """Conjugate gradients for J S J^T a = `towards`, after 1, 2, 4, ... turns and at the end.

    Each with the deviation of a . (J noise).
    """
    free = torch.zeros_like(outputs, requires_grad=True)
    # Linear in `free`: its derivative along weights is J times them.
    pulled = torch.autograd.grad(outputs, parameters, free, create_graph=True, materialize_grads=True)

    def back(values: Tensor) -> list[Tensor]:
        parts = torch.autograd.grad(outputs, parameters, values, retain_graph=True, materialize_grads=True)
        return [part * scale for part, scale in zip(parts, noise, strict=True)]

    def ahead(weights: Sequence[Tensor]) -> Tensor:
        scaled = [part * scale for part, scale in zip(weights, noise, strict=True)]
        (moved,) = torch.autograd.grad(pulled, free, scaled, retain_graph=True, materialize_grads=True)
        return moved

    size = float(towards.norm()) or 1.0
    left = towards / size
    solution, line, squared = torch.zeros_like(left), left.clone(), float(left @ left)
    kept: list[Tensor] = []
    turns = min(turns, outputs.numel())  # More find nothing: the space has no more dimensions.
    for turn in range(1, turns + 1):
        if squared < 1e-20:
            break
        bent = ahead(back(line))
        curvature = float(line @ bent)
        if curvature <= 0.0:  # No noise along this line: nothing tells the canary better.
            solution = line
            break
        solution = solution + squared / curvature * line
        left = left - squared / curvature * bent
        now = float(left @ left)
        line, squared = left + now / squared * line, now
        if turn & (turn - 1) == 0 and turn < turns:
            kept.append(solution)
    return [(direction, _spread(back(direction))) for direction in (*kept, solution)]


def _spread(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))

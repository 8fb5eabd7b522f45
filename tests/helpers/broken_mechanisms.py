"""Faults that a mechanism of clipped, noised sums can be given on purpose: negative controls of an audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from workbench.interfaces import Capabilities, Claim, Groups, Plan, Signals
from workbench.training.canary import SignalsWithCanary
from workbench.training.flat import Layout
from workbench.training.loop import GradientMechanism


class _Wrapped:
    """Signals behind signals."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self.dimension, self.layout = signals.dimension, signals.layout

    @property
    def n(self) -> int:
        return self._signals.n

    def norms(self) -> Tensor:
        return self._signals.norms()

    def gradients(self) -> Tensor:
        return self._signals.gradients()

    def group_norms(self, groups: Groups) -> Tensor:
        return self._signals.group_norms(groups)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._signals.weighted_sum(weights)

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        return self._signals.group_sum(weights, groups)


class _Shrunk(_Wrapped):
    """Tells of gradients that are too small to be clipped; its sums are of the true ones."""

    def norms(self) -> Tensor:
        return super().norms() * 1e-9

    def gradients(self) -> Tensor:
        return super().gradients() * 1e-9

    def group_norms(self, groups: Groups) -> Tensor:
        return super().group_norms(groups) * 1e-9


class _Emptied(_Wrapped):
    """An empty sample, whose sums have the trial axes of the wrapped one's."""

    @property
    def n(self) -> int:
        return 0

    def norms(self) -> Tensor:
        return super().norms()[:0]

    def gradients(self) -> Tensor:
        return super().gradients()[:0]

    def group_norms(self, groups: Groups) -> Tensor:
        return super().group_norms(groups)[:0]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return super().weighted_sum(weights.new_zeros(self._signals.n)).clone()

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        return super().group_sum(weights.new_zeros(self._signals.n, weights.shape[1]), groups).clone()


def _no_clipping(sound: GradientMechanism, signals: Signals, generator: torch.Generator) -> Tensor:
    return sound.privatise(_Shrunk(signals), generator)


def _half_the_noise(sound: Any, signals: Signals, generator: torch.Generator) -> Tensor:
    halved: GradientMechanism = replace(sound, noise_multiplier=sound.noise_multiplier / 2)
    return halved.privatise(signals, generator)


def _noise_forgotten(sound: GradientMechanism, signals: Signals, generator: torch.Generator) -> Tensor:
    """No noise on the tensor of the canary."""
    before = generator.get_state()
    released = sound.privatise(signals, generator).clone()
    generator.set_state(before)
    noise = sound.privatise(_Emptied(signals), generator)
    place = next(iter(signals.layout.values()))[0]
    released[..., place] -= noise[..., place]
    return released


FAULTS: dict[str, Callable[[GradientMechanism, Signals, torch.Generator], Tensor]] = {
    "no clipping": _no_clipping,
    "half the noise": _half_the_noise,
    "noise forgotten on one group": _noise_forgotten,
}


@dataclass(frozen=True, kw_only=True)
class Broken(GradientMechanism):
    """A mechanism with a fault, under the sound one's claim; a negative control.

    Attributes:
        sound: The mechanism.
        fault: A key of `FAULTS`.
    """

    sound: GradientMechanism
    fault: str
    measures_quality: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """The sound one's."""
        return self.sound.capabilities

    def check(self, plan: Plan) -> None:
        """The sound one's."""
        self.sound.check(plan)

    def claim(self, plan: Plan) -> Claim:
        """The sound one's."""
        return self.sound.claim(plan)

    def for_plan(self, plan: Plan) -> Self:
        """With the sound one settled."""
        return replace(self, sound=self.sound.for_plan(plan))

    def clipping_groups(self, layout: Layout) -> Groups:
        """The sound one's."""
        return self.sound.clipping_groups(layout)

    def release_scales(self, layout: Layout) -> Sequence[float]:
        """The sound one's."""
        return self.sound.release_scales(layout)

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The sound one's."""
        return self.sound.observed(watched, released)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The sound one's, but for the fault."""
        return FAULTS[self.fault](self.sound, signals, generator)

"""The Dirac gradient canary: a white-box audit of the privatise step (Nasr et al. 2023).

The canary is a record whose gradient is zero but in one coordinate, of a norm so large that it is always
clipped: it then adds exactly the clipping norm to that coordinate, the most that any record may. The auditor
tosses a fair coin for each release; the adversary sees every released update, knows all other records and
their share of the update, and guesses the coin from what is left in the coordinate: noise, or noise about the
clipping norm. Against a Gaussian mechanism this canary is a worst case, which is why the audit is tight.

Two modes, told apart by `ReleaseSeen.where`:

- "one state": many independent releases at the trained state (`Subject.release_canary`). Any number of
  observations at milliseconds each; shows a privatise step that is broken.
- "every step": one observation a training step, from the run itself (`Transcript.canary_observations`). The
  adversary of the claim, who watches one run; as many observations as steps.

Both see the whole release of the very privatise step that trains. Each observation shows one release. What
that says of the run is another step: under the assumed family (Gaussian noise of one scale) the releases
bound a mu, and `workbench.accounting.subsampled_gaussian.mu_to_run_epsilon` composes it over the run's T
steps with the sampling probability q. A clipping that was forgotten lets the full magnitude through and shows
as a large mu; so does noise that is too small.

A mechanism that clips several groups of parameters apart lets a record add its bound to each of them. The
canary of one coordinate then shows one group's release, not the joint one, and passes a claim that accounts
for the groups as if they were one. `everywhere` (attack `joint_canary`) stands in all n of them: the score is
the sum of the released values, each over its group's scale of noise, and mu is sqrt(n) / sigma.

Source: Nasr, Hayes, Steinke, Balle, Tramer, Jagielski, Carlini and Terzis 2023, "Tight auditing of
differentially private machine learning", sections 4 and 5 (white-box access, Dirac canary).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from workbench.core.arguments import whole_number
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.games.release import ReleaseAttack, ReleaseSeen
from workbench.interfaces import Corpus, GradientCanary, Insertions, Scores

LARGEST_MAGNITUDE = 1e15
"""Beyond what float32 holds, the canary would be clipped to nothing, and show nothing."""


@register("attack", "dirac_canary")
class DiracCanary(ReleaseAttack):
    """White-box audit by a one-coordinate gradient canary, per release (Nasr et al. 2023).

    Attributes:
        magnitude: The canary's raw gradient norm, far above any clipping norm in use.
        releases: How many releases at the trained state the runner plays.
        everywhere: Stand in one coordinate of each of the mechanism's clipping groups, `magnitude` in each,
            and score their whitened sum. Where there is one group this is the same canary.

    Raises:
        InputError: a parameter is out of range.
    """

    title = "One clipping group"
    label = "a record that fills the bound of one"
    later_parameters: ClassVar[Mapping[str, object]] = {"everywhere": False}

    def __init__(self, *, magnitude: float = 100.0, releases: int = 4000, everywhere: bool = False) -> None:
        if not 0 < magnitude < math.inf:
            raise InputError(f"magnitude must be finite and > 0, got {magnitude!r}")
        if magnitude > LARGEST_MAGNITUDE:
            raise InputError(f"magnitude must be at most {LARGEST_MAGNITUDE:g}, got {magnitude!r}")
        self.magnitude = magnitude
        self.releases = whole_number("releases", releases, least=20)
        if not isinstance(everywhere, bool):
            raise InputError(f"everywhere must be true or false, got {everywhere!r}")
        self.everywhere = everywhere

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Insert one gradient canary; no record of the corpus is changed.

        The coordinate is drawn before the model is known, from [0, 2^31); it counts modulo the number of
        trainable parameters, or of each group's (`workbench.training.canary.SignalsWithCanary`).
        """
        coordinate = int(generator.integers(2**31))
        canary = GradientCanary(coordinate=coordinate, magnitude=self.magnitude, everywhere=self.everywhere)
        return Insertions(gradient_canary=canary)

    def score(self, seen: ReleaseSeen, generator: np.random.Generator) -> Scores:
        """The released values themselves: the canary is positive, so higher means that it took part."""
        return Scores(values=seen.values.astype(np.float64), details={"magnitude": self.magnitude})


@register("attack", "joint_canary")
class JointCanary(DiracCanary):
    """The Dirac canary in one coordinate of each of the mechanism's clipping groups at once.

    `magnitude` is its raw gradient norm in each group; see `DiracCanary`.
    """

    title = "All clipping groups at once"
    label = "a record that fills the bound of each"
    later_parameters: ClassVar[Mapping[str, object]] = {}

    def __init__(self, *, magnitude: float = 100.0, releases: int = 4000) -> None:
        super().__init__(magnitude=magnitude, releases=releases, everywhere=True)

"""The joint canary: the Dirac canary (Nasr et al. 2023) in every clipping group at once.

A mechanism that clips n groups of parameters to C_i each, and adds noise of standard deviation sigma C_i to
each, lets one record fill all n bounds. The sum then moves by sqrt(n) in units of the noise's sigma, and
whoever reads all groups sees mu = sqrt(n) / sigma. The canary has one coordinate of large gradient in each
group; the score is the sum of the released values there, each over its group's scale of noise. In a mechanism
with one group it is the Dirac canary, number for number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from workbench.attacks.dirac_canary import DiracCanary
from workbench.core.registry import register


@register("attack", "joint_canary")
class JointCanary(DiracCanary):
    """The Dirac canary in one coordinate of each of the mechanism's clipping groups at once.

    Attributes:
        magnitude: The canary's raw gradient norm in each group, far above any clipping norm in use.
        releases: How many releases at the trained state the runner plays.

    Raises:
        InputError: a parameter is out of range.
    """

    title = "All clipping groups at once"
    label = "a record that fills the bound of each"
    later_parameters: ClassVar[Mapping[str, object]] = {}

    def __init__(self, *, magnitude: float = 100.0, releases: int = 4000) -> None:
        """Keep the parameters."""
        super().__init__(magnitude=magnitude, releases=releases, everywhere=True)

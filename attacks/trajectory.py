"""The trajectory attack: membership from clip radii and noise multipliers alone.

RLDP computes its radii from raw statistics of the batches: in warm-up they are medians of the records' own
gradient norms (Khadangi et al. 2025, Algorithm 1, lines 15 to 17), and later a controller sets them from such
statistics. Its proof takes them for functions of noised values (Lemma 7.14). Whoever sees the radii, printed
in a figure or read off the scale of the noise in each update, sees what this attack sees.

The canary is a record of one and the same gradient norm in every step (`workbench.games.trajectory`).
The score was fixed before anything was looked at:

- canary "middle": how often a radius equals the canary's own norm in that group, to the last bit. A median of
  other records' norms is another number, whatever they are, so a single such radius is all but proof.
- canary "large": the mean logarithm of all radii, which an outlier pushes up.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workbench.core import registry
from workbench.core.arguments import whole_number
from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.games.trajectory import TrajectoryAttack, TrajectoryObservations
from workbench.interfaces import Insertions, Plan, Scores

CANARIES = ("middle", "large")
DATA = ("plan", "digits")


@register("attack", "trajectory")
class Trajectory(TrajectoryAttack):
    """Membership from the clip radii and noise multipliers of many trainings, and nothing else.

    Attributes:
        canary: `"middle"` or `"large"`.
        trials: Number of independent trainings.
        steps: Watched steps of each, from the first on; 0 for all.
        data: What is trained on what: `"plan"`, as the audited subject; or `"digits"`, as many handwritten
            digits and a small network by an otherwise equal plan. A mechanism's claim is about any data and
            model, so either may refute it.

    Raises:
        InputError: a parameter is out of range.
    """

    title = "Radii and noise alone"
    label = "no update and no weights are seen"

    def __init__(
        self, *, canary: str = "middle", trials: int = 200, steps: int = 0, data: str = "plan"
    ) -> None:
        if data not in DATA:
            raise unknown_name("data", data, DATA)
        self.data = data
        if canary not in CANARIES:
            raise unknown_name("canary", canary, CANARIES)
        self.canary = canary
        self.trials = whole_number("trials", trials, least=20)
        self.steps = whole_number("steps", steps, least=0)

    def world(self, plan: Plan) -> Plan:
        """The plan, or as many handwritten digits and a small network by an otherwise equal one."""
        if self.data == "plan":
            return plan
        corpus = registry.create("corpus", "digits", size=len(plan.records), seed=0)
        return replace(
            plan,
            records=corpus.records,
            held_out=(),
            dev=(),
            model="digits_mlp",
            model_parameters={},
            adapter="full",
            insertions=Insertions(),
        )

    def score(self, seen: TrajectoryObservations, generator: np.random.Generator) -> Scores:
        """Score each training; higher means that the canary took part.

        The details are `canary_norm` (in the first group) and `hit_trials` (how many trainings have a radius
        that equals the canary's norm).
        """
        hits = np.sum(seen.radii == seen.canary_norms, axis=(1, 2)).astype(np.float64)
        values = hits if self.canary == "middle" else np.log(seen.radii).mean(axis=(1, 2))
        details = {
            "canary_norm": float(seen.canary_norms[0]),
            "hit_trials": float(np.sum(hits > 0)),
        }
        return Scores(values=values, details=details)

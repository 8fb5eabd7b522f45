"""The trajectory game: what do clip radii and noise multipliers alone reveal of one record?

Half of many independent trainings hold the canary record, in random order; each has its own secret batches
and noise, from the same public initial weights. The adversary sees only which radii and noise multipliers
each step used: no update and no weights. It knows every other record, the plan, the mechanism and the canary.
A mechanism whose radii are functions of released values gives no more away by them than by its updates; one
that computes them from raw statistics may.

The canary's gradient is the same in every step, spread evenly over all parameters, and of a norm that the
adversary chooses by the other records' gradients at the initial weights:

- "middle": in the first clipping group it lies between the two middle ones of the others' norms, where a
  median falls on it.
- "large": a thousand times the largest of the others' norms.

Under add-remove the other data set has one record less; under replace-one it has an ordinary record in the
canary's place.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.interfaces import Attack, FloatArray, Plan


@dataclass(frozen=True, kw_only=True)
class TrajectoryObservations:
    """What the adversary of a trajectory game sees of n trainings over k steps, without the coins.

    Attributes:
        radii: Clip radius of each clipping group that the mechanism traced, in each step, shape `(n, k, G)`;
            G is 1 for one that has a single radius, or traced their mean alone.
        noise_multipliers: Of each step, shape `(n, k)`.
        canary_norms: Norm of the canary's gradient in each of these groups, in every step, shape `(G,)`.
    """

    radii: FloatArray
    noise_multipliers: FloatArray
    canary_norms: FloatArray


class TrajectoryAttack(Attack[TrajectoryObservations]):
    """An attack that scores each training by its radii and noise multipliers.

    Attributes:
        canary: `"middle"` or `"large"`; see the module.
        trials: Number of independent trainings.
        steps: Watched steps of each, from the first on; 0 for all.
    """

    game = "trajectory"
    canary: str
    trials: int
    steps: int

    def world(self, plan: Plan) -> Plan:
        """Plan of the trainings: the audited one, or an equal one on other data and another model.

        A mechanism's claim is about any data and model, so either may refute it.
        """
        return plan

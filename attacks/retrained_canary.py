"""A crafted canary's loss under each of many trained models: the audit of the released model's answers alone.

The canary is a record that no other resembles. An image is bright where all other images are dark; a text
repeats one rare word. Its gradient is large and hardly shared by other records, so that it is clipped to the
full norm in every step, and nothing else undoes what it does: where every record takes part in each step, the
loss moves like the sum of the steps' noise along one direction, and the audit is nearly as tight as one that
sees every update. Weights of the adversary's choice fit all other records, whose gradients then hardly
change, and hold the canary for something else, so that its gradient stays large.

Source: Annamalai and De Cristofaro 2024, "Nearly tight black-box auditing of differentially private machine
learning" (crafted target record, worst-case initial weights, loss of the final model).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from workbench.attacks.lira import logit_confidence
from workbench.core.arguments import whole_number
from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.games.retraining import Initialisation, RetrainingAttack, RetrainingSeen
from workbench.interfaces import Plan, Record, Scores
from workbench.training.crafts import odd_one


@register("attack", "retrained_canary")
@dataclass(frozen=True, kw_only=True)
class RetrainedCanary(RetrainingAttack):
    """Black-box audit by many trainings: one crafted canary, scored by its loss (Annamalai et al. 2024).

    Attributes:
        trials: Number of independent trainings.
        initialisation: `"plan"`, or `"worst-case"`: see `fitted`.
        precision: Of an ensemble's products, `"float32"`, or `"bfloat16"` on a machine that is fast at it.

    Raises:
        InputError: a parameter is out of range.
    """

    later_parameters: ClassVar[Mapping[str, object]] = {"precision": "float32"}

    trials: int = 2000
    initialisation: Initialisation = Initialisation.PLAN
    precision: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "trials", whole_number("trials", self.trials, least=20))
        if self.initialisation not in list(Initialisation):
            raise unknown_name(
                "initialisation", self.initialisation, [str(known) for known in Initialisation]
            )
        object.__setattr__(self, "initialisation", Initialisation(self.initialisation))
        if self.precision not in ("float32", "bfloat16"):
            raise unknown_name("precision", self.precision, ("float32", "bfloat16"))

    def insert(self, plan: Plan, generator: np.random.Generator) -> tuple[Plan, Record]:
        """The plan with the canary in the place of its last record, and the canary; draws nothing."""
        *rest, last = plan.records
        canary = odd_one(last, rest)
        return replace(plan, records=(*rest, canary)), canary

    def fitted(self, others: tuple[Record, ...], canary: Record) -> tuple[Record, ...]:
        """All other records, and the canary's image under another label: the canary's loss is then large."""
        if canary.label is None:
            return others
        labels = sorted({other.label for other in others if other.label is not None} - {canary.label})
        return (*others, *(replace(canary, label=label) for label in labels[:1]))

    def score(self, seen: RetrainingSeen, generator: np.random.Generator) -> Scores:
        """The logit of the canary's probability: its order is that of the losses, its noise nearly normal."""
        return Scores(values=logit_confidence(-seen.losses))

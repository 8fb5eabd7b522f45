"""Which of a plan's trainable numbers Shuffled DPSGD can move, found on the plan's model and remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.interfaces import Plan
from workbench.mechanisms.shared.once_a_model import once_a_model
from workbench.training.fine_tuning import build_model
from workbench.training.permutations import PermutationGroup, Reach


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the permutations of Theorems 3 and 4 reach in a model.

    Attributes:
        trainable: Number of trainable numbers.
        shuffled: How many of them some permutation moves.
        log_permutations: Natural logarithm of the number of permutations.
        covered: Names of the parameters that some permutation moves.
        left_alone: The other trainable parameters, each with its reason.
    """

    trainable: int
    shuffled: int
    log_permutations: float
    covered: tuple[str, ...]
    left_alone: Mapping[str, str]

    @classmethod
    def of(cls, group: PermutationGroup) -> Coverage:
        """Of a group of permutations."""
        return cls(
            trainable=group.trainable_count,
            shuffled=group.shuffled_count,
            log_permutations=group.log_size,
            covered=tuple(name for name in group.shapes if name not in group.left_alone),
            left_alone=group.left_alone,
        )

    @property
    def parameters(self) -> int:
        """Number of trainable parameters, as tensors."""
        return len(self.covered) + len(self.left_alone)

    @property
    def share(self) -> float:
        """Share of the trainable numbers that are moved."""
        return self.shuffled / self.trainable

    def reasons(self) -> str:
        """Why the rest is left alone: `8 parameters (6 normalisation, 2 embedding)`; empty for no rest."""
        counts: dict[str, int] = {}
        for reason in self.left_alone.values():
            counts[reason] = counts.get(reason, 0) + 1
        if not counts:
            return ""
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
        noun = "parameter" if len(self.left_alone) == 1 else "parameters"
        return f"{len(self.left_alone)} {noun} ({listed})"


@once_a_model
def coverage_of(plan: Plan, reach: Reach) -> Coverage:
    """What is covered of the plan's model, its adapter in place.

    `plan`: names the model; built once for all plans that name the same. `reach`: how far to go beyond the
    theorems as printed. Raises `InputError`: unknown model, or parameters that it refuses.
    `UnsupportedError`: LoRA finds no layer to adapt.
    """
    return Coverage.of(PermutationGroup.of(build_model(plan).module, reach))

"""Choices of options of `workbench audit --scores`."""

from __future__ import annotations

from enum import StrEnum

from workbench.interfaces import Trials


class HigherIs(StrEnum):
    """Whether high scores of a file mean member or non-member."""

    MEMBER = "member"
    NONMEMBER = "nonmember"


class FamilyChoice(StrEnum):
    """What is known of how scores are distributed."""

    ANY = "any"
    GAUSSIAN = "gaussian"


class TrialsChoice(StrEnum):
    """`workbench.interfaces.Trials`, as the command line spells it."""

    ONE_RUN = Trials.ONE_RUN.value
    INDEPENDENT = Trials.INDEPENDENT.value

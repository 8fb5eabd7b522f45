"""Choices of `audit_scores`."""

from __future__ import annotations

from enum import StrEnum

from workbench.interfaces import Family


class HigherIs(StrEnum):
    """Whether high scores mean member or non-member."""

    MEMBER = "member"
    NONMEMBER = "nonmember"


class DeclaredFamily(StrEnum):
    """What is known of how scores are distributed."""

    ANY = "any"
    GAUSSIAN = "gaussian"

    @property
    def family(self) -> Family:
        """The family that bounds assume."""
        return Family[self.name]

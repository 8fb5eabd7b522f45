"""The nouns of the bench: records and protocols that packages and rooms hand to each other.

Records are frozen and keyword-only, and no deep-learning framework is imported: tensors appear in annotations
only. Higher scores always mean member. What only one game needs is defined with that game.
"""

from workbench.interfaces.arrays import BoolArray, FloatArray, IntArray
from workbench.interfaces.attacks import Attack, Scores
from workbench.interfaces.claims import Adjacency, Claim, Currency, Direction, Guarantee, Released, Secret
from workbench.interfaces.data import Corpus, CorpusFacets, Record
from workbench.interfaces.evidence import (
    Bound,
    Evidence,
    Family,
    GameTerms,
    Interval,
    Trials,
    Verdict,
    VerdictKind,
)
from workbench.interfaces.findings import Finding
from workbench.interfaces.mechanisms import (
    AuditDefaults,
    Capabilities,
    Mechanism,
    PostHocMechanism,
    Release,
    Workload,
)
from workbench.interfaces.training import (
    GradientCanary,
    Groups,
    Insertions,
    Model,
    ModelFacets,
    NewTokens,
    Plan,
    ReleasedSigns,
    Sampling,
    Schedule,
    Signals,
    Subject,
    TaskModel,
    TimedSpec,
    TrainingSpec,
    Transcript,
)

__all__ = [
    "Adjacency",
    "Attack",
    "AuditDefaults",
    "BoolArray",
    "Bound",
    "Capabilities",
    "Claim",
    "Corpus",
    "CorpusFacets",
    "Currency",
    "Direction",
    "Evidence",
    "Family",
    "Finding",
    "FloatArray",
    "GameTerms",
    "GradientCanary",
    "Groups",
    "Guarantee",
    "Insertions",
    "IntArray",
    "Interval",
    "Mechanism",
    "Model",
    "ModelFacets",
    "NewTokens",
    "Plan",
    "PostHocMechanism",
    "Record",
    "Release",
    "Released",
    "ReleasedSigns",
    "Sampling",
    "Schedule",
    "Scores",
    "Secret",
    "Signals",
    "Subject",
    "TaskModel",
    "TimedSpec",
    "TrainingSpec",
    "Transcript",
    "Trials",
    "Verdict",
    "VerdictKind",
    "Workload",
]

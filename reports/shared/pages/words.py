"""The fixed words of the page: what each verdict means and does not mean, and names in full."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from workbench.interfaces import Trials, VerdictKind
from workbench.reports.shared.markup import source
from workbench.reports.shared.numbers import percent, real


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """How a verdict reads: in a word, what it says, and what must not be read into it."""

    word: str
    means: str
    means_not: str


_WORDS = tomllib.loads(source("words.toml"))
_MEANINGS = {name: Meaning(**words) for name, words in _WORDS["meanings"].items()}

NO_NUMBER_OF_TRIALS = _MEANINGS.pop("NO_NUMBER_OF_TRIALS")
"""UNDERPOWERED where no number of trials can be named that would do."""

MEANINGS = {VerdictKind[name]: meaning for name, meaning in _MEANINGS.items()}
TRIALS = {Trials[name]: words for name, words in _WORDS["trials"].items()}
METRICS: dict[str, str] = _WORDS["metrics"]
ROLES: dict[str, str] = _WORDS["roles"]
HARDWARE: dict[str, str] = _WORDS["hardware"]
SYMBOLS: dict[str, str] = _WORDS["symbols"]


def metric_name(name: str) -> str:
    """A metric's name in words; an unknown one as it stands."""
    prefix = "tpr_at_fpr_"
    if name.startswith(prefix):
        try:
            return f"TPR at FPR {percent(real(name.removeprefix(prefix)))}"
        except ValueError:
            return name
    return METRICS.get(name, name)

"""The audit that `workbench audit` runs without options, from the data room."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

EMBEDDED: dict[str, Any] = tomllib.loads(
    (files("workbench.data") / "embedded_audit.toml").read_text(encoding="utf-8")
)
"""Fields of `workbench.audit.settings.AuditSettings`, and besides: `elsewhere` has parameters of the same
attacks on other corpora, `elsewhere_candidates` numbers of candidates for a user's training on them,
`together` parameters that differ where shadows are trained as an ensemble, `model_for` models of corpora that
the embedded one cannot read, and `corpus_for` corpora of models that cannot read the embedded one."""

APART = ("corpus_for", "elsewhere", "elsewhere_candidates", "instead", "model_for", "together")
"""What is no field of the settings."""

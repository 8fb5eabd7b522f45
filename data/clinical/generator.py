"""Invented encounters with plausible, dependent attributes: a Gaussian copula over tabulated marginals.

Each attribute's values stand in the marginals file in a meaningful order (younger to older, milder to
graver). A few latent normal factors (age, severity, glycaemic control, urgency) push an attribute up or down
that order; because the copula's marginal is uniform, the tabulated shares are kept whatever the loadings.
Afterwards a handful of rules make the row consistent.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, ndtr

from workbench.data.clinical.encounters import ATTRIBUTES, MEDICATIONS, MISSING, Encounter
from workbench.interfaces import FloatArray

FACTORS = ("age", "severity", "control", "urgency")

TextArray = npt.NDArray[np.str_]


@lru_cache(maxsize=1)
def marginals() -> dict[str, Any]:
    """The marginals file: one table for each attribute, and `[rules]`."""
    return tomllib.loads(files("workbench.data").joinpath("marginals/diabetes130.toml").read_text("utf-8"))


def _ranks(table: Mapping[str, Any], factors: Mapping[str, FloatArray], noise: FloatArray) -> FloatArray:
    """Uniform ranks in (0, 1) of one attribute, shape `(n,)`, dependent through the factors."""
    loadings: dict[str, float] = table.get("loadings", {})
    rest = 1.0 - sum(weight**2 for weight in loadings.values())
    latent = math.sqrt(max(rest, 0.0)) * noise
    for factor, weight in loadings.items():
        latent = latent + weight * factors[factor]
    return np.asarray(ndtr(latent), dtype=np.float64)


def _draw(table: Mapping[str, Any], ranks: FloatArray, coins: FloatArray) -> TextArray:
    """Values of one attribute at the given ranks; `coins` decide, apart from them, which are missing."""
    if "mean" in table:
        shape, scale = (table["mean"] / table["sd"]) ** 2, table["sd"] ** 2 / table["mean"]
        numbers = np.clip(np.rint(scale * gammaincinv(shape, ranks)), table["low"], table["high"])
        return np.asarray(numbers, dtype=np.int64).astype(np.str_)
    counts = np.asarray(table["counts"], dtype=np.float64)
    edges = np.cumsum(counts) / counts.sum()
    values = np.asarray(table["values"], dtype=np.str_)
    drawn = values[np.minimum(np.searchsorted(edges, ranks), len(values) - 1)]
    absent = table.get("absent")
    if absent is None:
        return drawn
    share = absent["count"] / (absent["count"] + counts.sum())
    return np.where(coins < share, absent["value"], drawn)


def _apply_rules(columns: dict[str, TextArray], generator: np.random.Generator) -> None:
    """Make rows consistent with themselves, in place."""
    rules = marginals()["rules"]
    n = len(columns["age"])
    adult = ~np.isin(columns["age"], ["[0-10)", "[10-20)"])
    specialty = columns["medical_specialty"]
    wrong_ward = (adult & np.char.startswith(specialty, "Pediatrics")) | (
        (columns["gender"] == "Male") & (specialty == "ObstetricsandGynecology")
    )
    columns["medical_specialty"] = np.where(wrong_ward, rules["fallback_specialty"], specialty)
    diagnoses = columns["number_diagnoses"].astype(np.int64)
    columns["diag_2"] = np.where(diagnoses < 2, MISSING, columns["diag_2"])
    columns["diag_3"] = np.where(diagnoses < 3, MISSING, columns["diag_3"])
    gone = np.isin(columns["discharge_disposition_id"], rules["never_readmitted"])
    columns["readmitted"] = np.where(gone, "NO", columns["readmitted"])
    drugs = np.stack([columns[name] for name in MEDICATIONS])
    taken = (drugs != "No").sum(axis=0)
    dose_changed = np.isin(drugs, ["Up", "Down"]).any(axis=0)
    chance = np.where(taken >= 2, rules["change_if_several_drugs"], rules["change_if_one_drug"])
    regimen_changed = (taken > 0) & (generator.random(n) < chance)
    columns["change"] = np.where(dose_changed | regimen_changed, "Ch", "No")
    columns["diabetesMed"] = np.where(taken > 0, "Yes", "No")


def even_marginals() -> dict[str, Any]:
    """The marginals file with all values of an attribute alike often, and none dependent on another."""
    return {name: _even(table) for name, table in marginals().items()}


def _even(table: Mapping[str, Any]) -> dict[str, Any]:
    values = table.get("values") or [str(i) for i in range(table.get("low", 0), table.get("high", 0) + 1)]
    absent = {"absent": {**table["absent"], "count": 1}} if "absent" in table else {}
    return {"values": values, "counts": [1] * len(values), **absent}


def generate(
    count: int,
    generator: np.random.Generator,
    first: int = 0,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Encounter]:
    """Draw `count` independent encounters of one distribution, one a patient; ids count up from `first`.

    `tables`: each attribute's marginal; the file's where None.
    """
    tables = marginals() if tables is None else tables
    factors = {name: generator.standard_normal(count) for name in FACTORS}
    columns: dict[str, TextArray] = {}
    for attribute in ATTRIBUTES:
        table = tables.get(attribute)
        if table is not None:
            ranks = _ranks(table, factors, generator.standard_normal(count))
            columns[attribute] = _draw(table, ranks, generator.random(count))
    _apply_rules(columns, generator)
    rows = zip(*(columns[attribute].tolist() for attribute in ATTRIBUTES), strict=True)
    return [
        Encounter(
            encounter_id=f"generated-{first + i:06d}",
            patient_nbr=f"generated-{first + i:06d}",
            values=dict(zip(ATTRIBUTES, row, strict=True)),
        )
        for i, row in enumerate(rows)
    ]

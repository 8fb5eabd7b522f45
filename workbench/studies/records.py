"""Reads the records of a study's jobs, and takes none at its word.

A store is a folder, and folders are copied, merged and edited by hand. A record that is not of this job, or
whose fields are not what a job writes, counts as absent like one that was cut short: the work is done again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.core.keys import JSON, key_of
from workbench.core.one_line import one_line
from workbench.execution.store import Store
from workbench.studies.experiments import Status

MEASURED = ("metrics", "scores", "included", "claim", "cost")
"""What the record of a measuring has."""


def read_record(store: Store, key: str) -> dict[str, JSON] | None:
    """The record of a job, or None where it is missing, damaged, another job's, or of no form that we write.

    Args:
        store: The store.
        key: The job's key, which is the hash of the identity that its record holds.
    """
    record = store.read(key)
    if record is None or not _is_of(key, record.get("job")):
        return None
    match record.get("status"):
        case Status.FAILED:
            error = record.get("error")
            is_whole = isinstance(error, dict) and {"kind", "message"} <= error.keys()
        case Status.DONE:
            is_whole = "trainings" not in record["job"] or _is_measured(record)
        case _:
            is_whole = False
    return record if is_whole else None


def _is_of(key: str, identity: object) -> bool:
    try:
        return isinstance(identity, dict) and key_of(identity) == key
    except RecursionError:
        return False


def error_of(record: Mapping[str, Any] | None) -> str:
    """The kind and message of a failed job's record, on one line; empty for any other."""
    if record is None or record["status"] != Status.FAILED:
        return ""
    return one_line(f"{record['error']['kind']}: {record['error']['message']}")


def _is_measured(record: Mapping[str, Any]) -> bool:
    """Does the record of a measuring hold one finite score and one membership a candidate, and numbers?"""
    if not all(name in record for name in MEASURED):
        return False
    scores, included = record["scores"], record["included"]
    return (
        isinstance(scores, list)
        and isinstance(included, list)
        and len(scores) == len(included)
        and all(isinstance(one, bool) for one in included)
        and 0 < sum(included) < len(included)
        and all(_is_number(one) and math.isfinite(float(one)) for one in scores)
        and all(isinstance(record[name], dict) for name in ("metrics", "claim", "cost"))
        and all(_is_number(one) for name in ("metrics", "cost") for one in record[name].values())
    )


def _is_number(value: object) -> bool:
    """Is this what `plain` makes of a number, and one that a float can hold?"""
    try:
        return not isinstance(value, bool) and (
            (isinstance(value, int | float) and math.isfinite(value)) or value in ("nan", "inf", "-inf")
        )
    except OverflowError:
        return False

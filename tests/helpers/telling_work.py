"""Jobs for the engine's tests, in a module that worker processes can import."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.core import errors
from workbench.execution.tasks import StepProgress


def work(payload: Any, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress) -> dict[str, Any]:
    """Reports a step of a part, and says what it got."""
    progress(3, 7, "a part")
    (scratch / "file").write_text(str(payload))
    return {"done": payload, "inputs": sorted(inputs)}


def imported(
    payload: Any, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Which of the modules that its payload names this process has imported."""
    return {"imported": [name for name in payload if name in sys.modules]}


def fails(payload: Any, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress) -> dict[str, Any]:
    """Fails in the way that its payload names, a little after other jobs have ended."""
    if payload == "well":
        return {}
    time.sleep(0.5)
    if payload == "exit":
        os._exit(0)
    if payload == "OSError":
        raise FileNotFoundError(2, "No such file or directory", "weights")
    raise getattr(errors, payload, ZeroDivisionError)("two\nlines")

"""A job that tells how far it is, in a module that worker processes can import."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from workbench.execution.progress import told_in


def work(payload: Any, scratch: Path) -> dict[str, Any]:
    """Tells once, and waits for somebody to hear it."""
    with told_in(scratch, "somebody") as told:
        told("a part", 3, 7)
        time.sleep(0.5)
    return {"done": payload}

"""What a piece of work cost: time and memory."""

from __future__ import annotations

import resource
import sys
import time


def cost_since(started: float) -> dict[str, float]:
    """Returns seconds since `started` (of `time.perf_counter`) and the process's peak memory, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": time.perf_counter() - started,
        "peak_memory_mb": peak / (1024.0 if sys.platform != "darwin" else 1024.0**2),
    }

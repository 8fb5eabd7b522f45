"""What every process that we start needs: a Ctrl-C is for its parent to answer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupt_blocked() -> Iterator[None]:
    """Processes started within inherit a blocked SIGINT, or a Ctrl-C while they start prints a traceback.

    Blocked, and not ignored, because only the main thread may say what is ignored.
    """
    resource_tracker.ensure_running()  # it unblocks SIGINT when it starts, so it must run before
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

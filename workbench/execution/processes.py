"""What every process that we start needs: a Ctrl-C is for its parent to answer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, parent_process, resource_tracker


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


@contextmanager
def one_thread() -> Iterator[None]:
    """Numbers depend on the number of threads, in the last digit; in this process, too, use one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def start_worker() -> None:
    """Set a worker up: one thread, so that two do not fight over two cores, and no life after its parent."""
    import torch

    torch.set_num_threads(1)
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

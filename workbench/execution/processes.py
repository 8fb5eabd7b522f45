"""What every process that we start needs: a Ctrl-C is for its parent to answer."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing import connection, parent_process, resource_tracker
from pathlib import Path


@contextmanager
def starting(environment: Mapping[str, str]) -> Iterator[None]:
    """Processes started within get these variables, and inherit a blocked SIGINT.

    Else a Ctrl-C while they start would print a traceback. Blocked, and not ignored, because only the main
    thread may say what is ignored.
    """
    resource_tracker.ensure_running()  # it unblocks SIGINT when it starts, so it must run before
    before = {name: os.environ.get(name) for name in environment}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def has_torch() -> bool:
    """Whether torch is installed; checks of claims and accountants run without it."""
    return find_spec("torch") is not None


@contextmanager
def one_thread() -> Iterator[None]:
    """Numbers depend on the number of threads, in the last digit; in this process, too, use one."""
    if not has_torch():
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def temporary_scratch() -> Iterator[Callable[[], Path]]:
    """Makes scratch folders for tasks whose results go to no store; they are gone at the end."""
    with tempfile.TemporaryDirectory(prefix="workbench-", ignore_cleanup_errors=True) as place:
        yield lambda: Path(tempfile.mkdtemp(dir=place))


def start_worker() -> None:
    """Set a worker up: one thread, so that two do not fight over two cores, and no life after its parent.

    A Ctrl-C reaches all processes of a terminal, and is the parent's to answer. What a user's code
    prints goes to the error stream: the output stream may hold a report, and nothing else.
    """
    with suppress(OSError):  # Closed.
        os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    if not has_torch():
        return
    import torch

    torch.set_num_threads(1)


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)

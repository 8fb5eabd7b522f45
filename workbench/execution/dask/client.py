"""Reaching a Dask scheduler, in silence, and judging whether its workers are fit for this workbench."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
import warnings
from typing import Any
from urllib.parse import urlsplit

from workbench.core.errors import InputError
from workbench.core.one_line import one_line
from workbench.execution.dask.worker import about

CONNECT_SECONDS = 10.0
"""How long to wait for a scheduler's answer."""


_MOST_FRAMES = 1000
"""A greeting is a small dictionary: a frame or two."""


def import_distributed(scheduler: str) -> Any:
    """The package, which is an optional extra. Raises `InputError`: it is not installed."""
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            f"scheduler {scheduler} needs Dask: pip install 'lm-privacy-workbench[dask]'"
        ) from error
    return distributed


def scheduler_place(address: str) -> tuple[str, int]:
    """Host and port of a scheduler's address. Raises `InputError`: it is malformed."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("tcp", "tls") or not host or not port or parts.path.strip("/"):
        raise InputError(
            f"scheduler must be an address such as tcp://127.0.0.1:8786, got {one_line(address)!r}"
        )
    return host, port


class Quiet:
    """Keeps the loggers of Dask from writing to the terminal; what matters comes as events and errors."""

    def __init__(self) -> None:
        names = [
            name
            for name in logging.root.manager.loggerDict
            if name.split(".")[0] in ("distributed", "tornado")
        ]
        self._levels = {name: logging.getLogger(name).level for name in {*names, "distributed", "asyncio"}}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    def restore(self) -> None:
        """Put the levels back."""
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)


def connect(address: str, seconds: float) -> Any:
    """A client of the scheduler. Raises `InputError`: nobody answers in time, or it is no Dask scheduler."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection(scheduler_place(address), timeout=seconds) as line:
                _require_greeting(address, line)
            break
        except OSError as error:
            if time.monotonic() >= deadline:
                why = error.strerror or one_line(str(error))
                raise InputError(f"scheduler {address} did not answer in {seconds:g} s: {why}") from error
            time.sleep(min(0.2, seconds))
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about versions, which `compare` judges
        threading.Thread(target=lambda: found.put(_client(address, seconds)), daemon=True).start()
        try:
            client = found.get(timeout=seconds)
        except queue.Empty:
            client = None
    if client is None or isinstance(client, Exception):
        raise _no_scheduler(address) from client
    return client


def _no_scheduler(address: str) -> InputError:
    return InputError(f"scheduler {address} does not answer as a Dask scheduler does")


def _require_greeting(address: str, line: socket.socket) -> None:
    """Refuse a server of another kind before a client is made, which would wait on it past our end.

    Who listens for Dask speaks first: the number of frames of its greeting, eight bytes. Under TLS the client
    speaks first, so nothing is asked there. Raises `InputError`: it says nothing, or something else.
    """
    if not address.startswith("tcp"):
        return
    try:
        greeting = line.recv(8, socket.MSG_WAITALL)
    except TimeoutError:
        greeting = b""
    if len(greeting) < 8 or int.from_bytes(greeting, "little") > _MOST_FRAMES:
        raise _no_scheduler(address)


def _client(address: str, seconds: float) -> Any:
    """A client, or why there is none; it waits for ever for a server that never greets."""
    from distributed import Client

    try:
        return Client(address, timeout=max(1.0, seconds), set_as_default=False, name="workbench")
    except Exception as error:
        return error


def is_gone(answer: object) -> bool:
    """True where a worker gave no answer because it left."""
    return isinstance(answer, OSError)


def compare(worker: str, answer: Any) -> str | None:
    """One line on how a worker's Python and packages differ from ours, or None.

    Args:
        worker: Its address.
        answer: Its `about()`, or what it raised instead.

    Raises `InputError`: the worker runs another workbench, or none.
    """
    own = about()
    if isinstance(answer, BaseException):
        raise InputError(
            f"worker {worker} cannot run the workbench ({one_line(str(answer), 200)}); "
            f"install version {own['workbench']} there"
        ) from answer
    if answer["workbench"] != own["workbench"]:
        raise other_version(worker, answer["workbench"])
    different = [
        f"{name} {answer.get(name, 'missing')} (here {here})"
        for name, here in own.items()
        if answer.get(name) != here
    ]
    if not different:
        return None
    return f"worker {worker} has {', '.join(different)}: numbers may differ in their last digits"


def other_version(worker: str, version: str) -> InputError:
    """The error for a worker that runs another workbench."""
    return InputError(
        f"worker {worker} runs workbench {version}, this is {about()['workbench']}: "
        "install the same version there"
    )

"""Where tasks run: in this process, on a process pool, or on a Dask cluster, behind one protocol.

The same pure work function runs everywhere and its result is the same everywhere; only the caller writes to
a store. A task that raises, exits, returns nonsense or kills its worker ends in a `Failed`; the others go on.

>>> import tempfile
>>> def twice(payload, inputs, scratch, progress):
...     return {"number": 2 * payload}
>>> with tempfile.TemporaryDirectory() as place:
...     scratch = lambda: Path(tempfile.mkdtemp(dir=place))
...     with make_backend(workers=0, scheduler=None, scratch=scratch) as backend:
...         backend.submit(Task(id="one", work=twice, payload=21))
...         backend.wait(1.0)[-1].result
{'number': 42}
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workbench.core.errors import InputError
from workbench.execution.tasks import (
    DISK_FULL,
    OTHER_FILES,
    WORKER_DIED,
    Backend,
    Event,
    Failed,
    Finished,
    Listener,
    Notice,
    Started,
    Stepped,
    StepProgress,
    Task,
    Work,
)

__all__ = [
    "DISK_FULL",
    "OTHER_FILES",
    "WORKER_DIED",
    "Backend",
    "Event",
    "Failed",
    "Finished",
    "Listener",
    "Notice",
    "Started",
    "StepProgress",
    "Stepped",
    "Task",
    "Work",
    "make_backend",
]


def make_backend(
    *,
    workers: int,
    scheduler: str | None,
    scratch: Callable[[], Path],
    listener: Listener | None = None,
) -> Backend:
    """The backend that a user asked for; nothing is started in the pool before there is work.

    Args:
        workers: Processes of the pool; 0 runs in this process. Not looked at where there is a scheduler.
        scheduler: Address of a Dask scheduler (`"tcp://host:8786"`), or None.
        scratch: Makes a new empty folder on the disk where results are to lie.
        listener: Told at once of what `wait` would else return late; see `Backend`.

    Raises:
        InputError: `workers` is negative; the address is malformed, nobody answers there, Dask is not
            installed, or a Dask worker runs another version of the workbench.
    """
    if scheduler is not None:
        from workbench.execution.dask_backend import DaskBackend

        return DaskBackend(scheduler, scratch, listener)
    if workers < 0:
        raise InputError(f"workers must be 0 or more, got {workers}")
    if workers == 0:
        from workbench.execution.here import HereBackend

        return HereBackend(scratch, listener)
    from workbench.execution.pool import PoolBackend

    return PoolBackend(workers, scratch, listener)

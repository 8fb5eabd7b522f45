"""A Dask scheduler and workers in processes of their own, to be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

FUNCTIONS = Path(__file__).parents[1] / "execution" / "task_functions"
"""Where workers find the tests' work functions."""


class Cluster:
    """A scheduler and workers as a user starts them, each worker in a folder of its own."""

    def __init__(self, place):
        self.place = place
        self.processes = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.scheduler = self.start(
            "dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"
        )

    def start(self, program, *arguments, path=FUNCTIONS):
        folder = self.place / f"{program} {len(self.processes)}"
        folder.mkdir()
        log = (folder / "log").open("w")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{program}", *arguments],
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")])),
                    "OMP_NUM_THREADS": "1",
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def worker(self, *arguments, **keywords):
        own = ("--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1")
        return self.start("dask_worker", self.address, *own, *arguments, **keywords)

    def close(self):
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with a nanny's worker
            process.wait()

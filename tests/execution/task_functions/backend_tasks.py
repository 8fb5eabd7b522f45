"""Work functions for the backends' tests, in a module that worker processes can import."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path


def square(payload, inputs, scratch, progress):
    """Squares a number, and writes it to a file in a folder."""
    progress(1, 1)
    place = scratch / "deep" / "number.txt"
    place.parent.mkdir()
    place.write_text(str(payload**2))
    return {"square": payload**2, "infinite": float("inf")}


def total_of_inputs(payload, inputs, scratch, progress):
    """Adds the numbers in the files of its inputs, and says where it ran."""
    files = {
        f"{name}/{path.relative_to(folder).as_posix()}": int(path.read_text())
        for name, folder in sorted(inputs.items())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {"files": files, "payload": payload, "folder": os.getcwd()}


def size(payload, inputs, scratch, progress):
    """The bytes of its payload."""
    return {"bytes": len(payload)}


def many_steps(payload, inputs, scratch, progress):
    """Takes its payload's steps in about a second."""
    for step in range(payload):
        time.sleep(1 / payload)
        progress(step + 1, payload)
    return {"threads": _threads()}


def _threads():
    import torch

    return torch.get_num_threads()


def fails(payload, inputs, scratch, progress):
    """Raises, exits, or returns what is no result, after it has written something."""
    (scratch / "half").write_text("half a result")
    if payload == "error":
        raise ValueError("two\nlines")
    if payload == "exit":
        sys.exit(4)
    if payload == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if payload == "number":
        return 3
    return {"function": fails}


def interrupts(payload, inputs, scratch, progress):
    """Raises what Ctrl-C raises."""
    raise KeyboardInterrupt


def kills_its_worker(payload, inputs, scratch, progress):
    """Ends its process, as a crash in compiled code does."""
    os._exit(3)


def sleeps_at_first(payload, inputs, scratch, progress):
    """Writes its process's id to the file of its payload and sleeps; when the file exists, it returns."""
    place = Path(payload)
    if place.exists():
        return {"again": True}
    partial = place.with_suffix(".partial")
    partial.write_text(str(os.getpid()))
    partial.rename(place)
    time.sleep(120)
    return {"again": False}


def own_process(payload, inputs, scratch, progress):
    """Its process's id."""
    time.sleep(payload)
    return {"process": os.getpid()}


def signals_itself(payload, inputs, scratch, progress):
    """Gets a SIGINT, as every process of a terminal does at Ctrl-C, and goes on."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    return {"alive": True}


def keeps_its_state(payload, inputs, scratch, progress):
    """Reports steps without end; what stops it is written to the file of its payload."""
    step = 0
    try:
        while True:
            step += 1
            progress(0, 1, f"step {step}")
            time.sleep(0.05)
    except BaseException as error:
        Path(payload).write_text(type(error).__name__)
        raise

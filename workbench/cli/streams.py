"""The output stream of a command whose reader may leave early (`workbench list attacks | head -1`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO, cast


class _Output:
    """An output stream whose reader may leave (`| head`): after that, what is written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._close()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._close()

    def _close(self) -> None:
        """Connect the stream's descriptor, with what is left in its buffer, to the null device."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def output_that_may_close() -> Iterator[None]:
    """Within the context, a reader of the output stream who leaves early causes no error and no other exit
    code.
    """
    if sys.stdout is None:
        yield
        return
    with redirect_stdout(cast(TextIO, _Output(sys.stdout))):
        try:
            yield
        finally:
            sys.stdout.flush()

"""One copy of a model's trainable weights on disk, for training that may go back to it.

A copy in memory would double what zeroth-order training holds. The file lies where temporary files do
(`TMPDIR`; where that is a file system in memory, nothing is gained) and has no name, so it is gone with the
process, however that ends; raw numbers are written to it and read from it, and nothing in it is executed.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Sequence
from io import BufferedRandom

import torch
from torch import Tensor


class ScratchWeights:
    """Weights that can be put aside and read back; empty at first."""

    def __init__(self) -> None:
        self._file: BufferedRandom | None = None

    def keep(self, weights: Sequence[Tensor]) -> None:
        """Write the weights in the place of those that were kept before.

        Args:
            weights: Of any shapes and types.

        Raises:
            OSError: the disk of temporary files is full, or not writable.
        """
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="workbench-")  # noqa: SIM115 - lives on
            weakref.finalize(self, self._file.close)
        self._file.seek(0)
        for own in weights:
            self._file.write(_bytes_of(own.detach().to("cpu").contiguous()))
        self._file.flush()

    def restore(self, weights: Sequence[Tensor]) -> bool:
        """Read the kept weights back, in place.

        Args:
            weights: The same ones, in the same order.

        Returns:
            Whether any were kept; nothing changes where none were.

        Raises:
            OSError: the file ends too early.
        """
        if self._file is None:
            return False
        self._file.seek(0)
        for own in weights:
            held = own.detach()
            direct = held.device.type == "cpu" and held.is_contiguous()
            read = held if direct else torch.empty(own.shape, dtype=own.dtype)
            buffer = _bytes_of(read)
            if self._file.readinto(buffer) != buffer.nbytes:
                raise OSError("the kept weights are cut short")
            if not direct:
                held.copy_(read)
        return True

    def close(self) -> None:
        """Let the copy go."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in memory, not copied."""
    flat = tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)
    return flat.numpy().data

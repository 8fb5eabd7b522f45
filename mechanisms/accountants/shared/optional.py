"""Libraries that may be missing: imported on use, never on listing, and kept quiet during a call."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from workbench.core.errors import UnsupportedError

EXTRA = "lm-privacy-workbench[accountants]"
"""What to install for the optional accountants."""


def library(module: str, *, distribution: str) -> Any:
    """Import a library's module.

    Args:
        module: Dotted name.
        distribution: Name under which the library is installed.

    Raises:
        UnsupportedError: the library is not installed, or does not import here.
    """
    # autodp appends ".." to the search path when it is imported; that would shadow a user's own packages.
    path = list(sys.path)
    try:
        with quiet():
            return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == root:
            raise UnsupportedError(f"{distribution} is not installed: pip install {EXTRA}") from error
        raise UnsupportedError(f"{distribution} does not import here: {error}") from error
    finally:
        sys.path[:] = path


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep a library's warnings, log lines and prints out of the caller's sight; its exceptions pass."""
    logger = logging.getLogger("absl")  # where dp-accounting says which Renyi orders it gave up
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

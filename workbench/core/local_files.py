"""A user's Python file as a module."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from contextlib import redirect_stdout
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError
from workbench.core.one_line import error_line

OF_FILES = "workbench_user_"
"""What the names of such modules begin with."""


def import_file(path: Path) -> Any:
    """Run a file as a module of its own, compiled from its source.

    Its folder is appended to the module search path, so that it may import its neighbours: last, not first,
    for a neighbour called `datasets.py` must not hide the package of that name. No byte code is cached: an
    edited file of equal length would run as its old version within the resolution of its time stamp.

    Raises:
        InputError: the file cannot be read, or fails; with its line.
        KeyboardInterrupt: raised while it ran.
    """
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = f"{OF_FILES}{path.stem}"
    loader = SourceFileLoader(name, str(path))
    specification = importlib.util.spec_from_loader(name, loader)
    if specification is None:
        raise InputError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        code = loader.source_to_code(loader.get_data(str(path)), str(path))
        with redirect_stdout(sys.stderr):  # The output stream may hold a report, and nothing else.
            exec(code, vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[name]
        raise complaint(path, error) from error
    return module


def complaint(path: Path, error: BaseException) -> InputError:
    """One line for an exception in the user's code: the last line of their file on its way, type, message."""
    frames = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else (frames[-1] if frames else None)
    place = f"{path}:{line}" if line is not None else str(path)
    return InputError(f"{place}: {error_line(error, longest=300)}")

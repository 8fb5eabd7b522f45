"""Makes text from outside fit for a one-line message.

>>> one_line("bad\\nvalue \\x1b[31m")
'bad value \\\\x1b[31m'
"""

from __future__ import annotations

import re

_LONG_NUMBER = re.compile(r"(?<![\w.'\"])\d{40,}(?!\w|\.\d|['\"])")


def shorten_numbers(text: str) -> str:
    """Writes whole numbers of 40 digits and more as floats are, to six digits; not within quotes or names.

    >>> shorten_numbers(f"count must be at most 5, got {10**300}")
    'count must be at most 5, got 1e+300'
    """
    return _LONG_NUMBER.sub(_short, text)


def _short(number: re.Match[str]) -> str:
    """A whole number to six digits; only how long it is where it is beyond the range of floats."""
    digits = number.group()
    value = float(digits)
    return f"(a number of {len(digits)} digits)" if value == float("inf") else f"{value:g}"


def one_line(text: str, longest: int = 2000) -> str:
    """Joins white space, escapes control characters, and cuts the text to `longest` (>= 4) characters.

    A file's column name or an exception's message may hold line breaks, or sequences that a terminal obeys.
    Long whole numbers are shortened (`shorten_numbers`).
    """
    joined = shorten_numbers(" ".join(text.split()))
    escaped = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in joined)
    return escaped if len(escaped) <= longest else f"{escaped[: longest - 3]}..."


def error_line(error: BaseException, longest: int = 2000) -> str:
    """Returns an exception's kind and message in one line; the kind alone where it has no message.

    >>> error_line(KeyError())
    'KeyError'
    """
    try:
        text = str(error)
    except Exception:
        text = ""
    return one_line(f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__, longest)


def object_line(value: object, longest: int = 80) -> str:
    """Returns the `repr` in one line, or the type where `repr` fails (an int of 5000 digits).

    >>> object_line(10**5000)
    'a value of type int that cannot be shown'
    """
    try:
        text = repr(value)
    except Exception:
        text = f"a value of type {type(value).__name__} that cannot be shown"
    return one_line(text, longest)

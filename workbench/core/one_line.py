"""Text from outside, made fit for a one-line message.

>>> one_line("bad\\nvalue \\x1b[31m")
'bad value \\\\x1b[31m'
"""

from __future__ import annotations


def one_line(text: str, longest: int = 2000) -> str:
    """The text with its white space run together and control characters escaped, cut to a length.

    A file's column name or an exception's message may hold line breaks, or sequences that a terminal obeys.

    Args:
        text: Any text.
        longest: Number of characters after which it is cut, at least 4.
    """
    joined = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in joined)
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def error_line(error: BaseException, longest: int = 2000) -> str:
    """An exception's kind and message, even where the message cannot be had.

    >>> error_line(KeyError())
    'KeyError'
    """
    try:
        text = str(error)
    except Exception:
        text = ""
    return one_line(f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__, longest)


def object_line(found: object, longest: int = 80) -> str:
    """What `repr` says, or the kind where it says nothing (an int of 5000 digits, a broken `__repr__`).

    >>> object_line(10**5000)
    'a value of type int that cannot be shown'
    """
    try:
        text = repr(found)
    except Exception:
        text = f"a value of type {type(found).__name__} that cannot be shown"
    return one_line(text, longest)

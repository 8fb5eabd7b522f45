"""Makes text from outside fit for a one-line message.

>>> one_line("bad\\nvalue \\x1b[31m")
'bad value \\\\x1b[31m'
"""

from __future__ import annotations


def one_line(text: str, longest: int = 2000) -> str:
    """Joins white space, escapes control characters, and cuts the text to `longest` (>= 4) characters.

    A file's column name or an exception's message may hold line breaks, or sequences that a terminal obeys.
    """
    joined = " ".join(text.split())
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

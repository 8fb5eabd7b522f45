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

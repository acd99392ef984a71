"""Numbers in the environment."""

from __future__ import annotations

_MAX_DIGITS = 19
"""Of what fits in 64 bits. Python refuses to read thousands, by another error."""


def whole_number(text: str) -> int | None:
    """Return the number that `text` writes in digits alone; None if it is none.

    Stricter than int(), which takes `1_0`, ` 1` and other alphabets' digits, too: what nobody
    meant as a number must not become one.
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None

"""The words of messages: one form for what is wrong, and numbers that agree with their nouns."""

from __future__ import annotations


def problem(rule: object, found: object, remedy: object) -> str:
    """Return the one form of a message, in one line.

    Args:
        rule: what must hold, with its subject: "MASTER_PORT must be free on gpu01".
        found: what was found instead: "29500 in use".
        remedy: what to do: "unset it".

    """
    return printable(" ".join(f"{rule}; found {found}; {remedy}".split()))


def printable(text: str) -> str:
    r"""Write as `\x1b`, `\n` or `\udcff` what moves a terminal's cursor, ends a line or is no text.

    Names of files, logs and checkpoints are anybody's: they must not reach a terminal as they are.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def counted(num: object, noun: str) -> str:
    """Return `1 node` or `2 nodes`, rounded; a damaged file's number is returned as it is."""
    text = f"{num:,.0f}" if isinstance(num, (int, float)) else str(num)
    return f"{text} {noun}{'' if text == '1' else 's'}"


def listed(items: list[str], most: int) -> str:
    """Join at most so many with commas, and count the others."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more

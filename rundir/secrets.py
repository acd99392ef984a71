"""What must not reach a log or a record: values of secret names, and tokens by their shape."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAME = re.compile("TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE")
"""In the name of a variable."""

_WORDS = (
    *("token", "secret", "pass", "passwd", "password", "passphrase", "key", "apikey"),
    *("credential", "credentials", "auth", "authorization", "cookie"),
)
# Closer than for a variable, which may be left out of a record: --tokenizer may not. The last word
# of a name, after no letter or with a capital of its own: --api-key, logger.token, wandbKey.
_LAST = (
    rf"(?:(?<![A-Za-z0-9])(?i:{'|'.join(_WORDS)})"
    rf"|(?<=[a-z0-9])(?:{'|'.join(_WORDS).title()}))"
)
_IS = r"""(?:=| = |:\s+|\\?["']\s*:\s*)(?:(?i:bearer|basic|token)\s+)?"""
_VALUE = r"""(?:"[^"]*"?|'[^']*'?|(?:[^\s"'&;]|"[^"\s]*"|'[^'\s]*')+)"""
"""As a shell, JSON or a header has them, within a longer text."""

_OPTION = re.compile(rf"-[^\s=]*{_LAST}")
"""The word after it is the value."""
_SETTING = re.compile(rf"(\S*{_LAST}(?:=|:\s)).*", re.DOTALL)
"""A word that is a value from there to its end."""
_IN_ADDRESS = (
    re.compile(r"(://[^]/@:\s]*:)[^]/\s]+(?=@)"),  # the password
    re.compile(r"(https?://)[^]/@:?#\s]+(?=@)"),  # a token in its place
)
_TOKEN = re.compile(
    r"((?<![A-Za-z0-9]))"
    r"(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[A-Za-z0-9_-]{16,}"
)
_SHAPES = (
    *_IN_ADDRESS,
    re.compile(rf"({_LAST}{_IS}){_VALUE}"),
    re.compile(rf"((?<!\S)-[^\s=]*{_LAST}\s+){_VALUE}"),
    _TOKEN,
)
"""What stays of each is its group."""
_OF_MESSAGES = (
    *_IN_ADDRESS,
    re.compile(
        r"((?i:password|passwd|passphrase|secret|api[_-]?key|authorization|access[_-]?token)"
        rf"{_IS}){_VALUE}"
    ),
    _TOKEN,
)
"""In a program's own words a key or a token is mostly none that opens anything."""


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is a secret."""
    return _NAME.search(name.upper()) is not None


def hide_shapes(text: str) -> str:
    """Replace what looks like a secret within a text."""
    return _hide(text, _SHAPES)


def hide_in_message(text: str) -> str:
    """Replace what is a secret for sure within the words of a program's error."""
    return _hide(text, _OF_MESSAGES)


def _hide(text: str, shapes: Iterable[re.Pattern[str]]) -> str:
    for shape in shapes:
        text = shape.sub(r"\1***", text)
    return text


def hide_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command as they may stand in a log."""
    shown = []
    is_value = False
    for word in words:
        setting = _SETTING.fullmatch(word)
        if is_value:
            shown.append("***")
        else:
            shown.append(hide_shapes(f"{setting[1]}***" if setting else word))
        is_value = not is_value and _OPTION.fullmatch(word) is not None
    return shown

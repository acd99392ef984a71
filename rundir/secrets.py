"""What must not reach a log or a record: values of secret names, and tokens by their shape."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = re.compile("TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE")
"""In the name of a variable."""

# Closer than for a variable, which may be left out of a record: --tokenizer may not.
_OPTION = re.compile(
    rf"(^|[-_])({_NAME.pattern}|PASSWORD|PASSWD|PASSPHRASE|APIKEY|CREDENTIALS|AUTHORIZATION)$"
)

_SHAPE = re.compile(
    r"(?P<user>://[^]/@:\s]*:)[^]/\s]+@"  # the password in an address
    r"|(?P<before>^|[^A-Za-z0-9])"
    r"(?P<kind>hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[A-Za-z0-9_-]{16,}"
)


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is a secret."""
    return _NAME.search(name.upper()) is not None


def hide_shapes(text: str) -> str:
    """Replace what looks like a secret, whatever its name."""
    return _SHAPE.sub(_hidden, text)


def _hidden(found: re.Match[str]) -> str:
    if found["user"]:
        return found["user"] + "***@"
    return found["before"] + "***"


def hide_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command as they may stand in a log."""
    shown = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if is_value:
            text, is_value = "***", False
        elif _OPTION.search(name.upper()):
            text = f"{name}=***" if equals else word
            is_value = not equals and word.startswith("--")
        else:
            text = word
        shown.append(hide_shapes(text))
    return shown

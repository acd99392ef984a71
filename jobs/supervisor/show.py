"""The settings and the step, as they are shown to people and recorded."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from jobs.forwarded import job_names
from jobs.supervisor.settings import THE_ENVIRONMENT
from rundir import secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.supervisor.settings import Settings

_OF_AN_IMAGE = re.compile("NVIDIA_.*|.*_VERSION|DDP_(CHOSEN|HOME|SUPERVISED|AGENT_SOCKET)")


def table(settings: Settings, environ: Mapping[str, str], python: str) -> str:
    """Show the settings in force, and beside them what else a rank will see of such names.

    Args:
        settings: The settings.
        environ: The ranks' environment.
        python: Our Python, if it was chosen and not set; else empty.

    """
    rows = [("setting", "value", "from")]
    if python:
        rows.append(("DDP_PYTHON", quoted(python), "the first that is there"))
    for name, one in record(settings, environ).items():
        if name in settings.values or not _OF_AN_IMAGE.fullmatch(name):
            rows.append((name, quoted(one["value"]), one["origin"]))
    return "".join(f"{name:<34} {value:<44} {origin}\n" for name, value, origin in rows)


def command_line(words: Sequence[str]) -> str:
    """Show a command without its secrets, as a shell takes it."""
    return "".join(f"{quoted(word)} " for word in secrets.hide_words(words))


def record(settings: Settings, environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The settings and such names as the `settings` event has them."""
    names = [*settings.values, *_others(settings, environ)]
    return {
        name: {
            "value": secrets.hide_shapes(settings.values.get(name, environ.get(name, ""))),
            "origin": settings.origins.get(name, THE_ENVIRONMENT),
        }
        for name in names
    }


def _others(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """Those of the ranks' names that are no settings, and no secrets; an empty DDP_ is unset."""
    names = [n for n in job_names(environ) if environ[n] or not n.startswith("DDP_")]
    return [n for n in names if n not in settings.values and not secrets.is_secret(n)]


def quoted(word: str) -> str:
    """Quote a word so that bash reads it back, and no terminal obeys it."""
    if word.isprintable():
        return shlex.quote(word)
    is_plain = (char.isprintable() and char not in "\\'" for char in word)
    shown = (char if plain else _octal(char) for char, plain in zip(word, is_plain))
    return f"$'{''.join(shown)}'"


def _octal(char: str) -> str:
    data = char.encode("utf-8", "surrogateescape")
    return "".join(f"\\{byte:03o}" for byte in data)

"""Command line and TOML file -> Config. The command line wins."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config import Config, option_name
from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIELDS = {field.name for field in fields(Config)}


def parse(argv: Sequence[str]) -> Config:
    """Build the Config that `argv`, and the TOML file it may name, ask for.

    Raises UserError for whatever is wrong with either; `--help` prints and raises SystemExit(0).
    """
    named = _named_options(argv)
    path = _config_path(argv)
    from_file = _read_toml(path) if path else {}
    rest = {key: value for key, value in from_file.items() if key not in named}
    return _parse_arguments([*_as_arguments(rest, path), *argv])


def _named_options(argv: Sequence[str]) -> set[str]:
    """Fields named on the command line; raises UserError for a name that is no option."""
    named = set()
    for word in argv:
        if not re.match(r"--[A-Za-z]", word) or word == "--help":
            continue
        field = word[2:].partition("=")[0].replace("-", "_")
        if field not in _FIELDS and field.removeprefix("no_") in _FIELDS:
            field = field.removeprefix("no_")
        if field not in _FIELDS:
            raise _unknown(word.partition("=")[0], field, [option_name(f) for f in sorted(_FIELDS)])
        named.add(field)
    return named


def _config_path(argv: Sequence[str]) -> Path | None:
    path = None
    for number, word in enumerate(argv, start=1):
        if word == "--config" and number < len(argv):
            path = Path(argv[number])
        elif word.startswith("--config="):
            path = Path(word.partition("=")[2])
    return path


def _read_toml(path: Path) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"--config {path}", rule="a readable TOML file", found=error, remedy="correct the file"
        ) from error
    options = {key.replace("-", "_"): value for key, value in table.items()}
    for key in options:
        if key not in _FIELDS or key == "config":
            raise _unknown(f"key {key!r} in {path}", key, sorted(_FIELDS - {"config"}))
    return options


def _as_arguments(options: Mapping[str, object], path: Path | None) -> list[str]:
    """TOML values as command-line words, so that one parser checks both."""
    words = []
    for key, value in options.items():
        name = option_name(key)
        if isinstance(value, bool):
            words.append(name if value else "--no-" + name[2:])
        elif isinstance(value, str | int | float):
            words.append(f"{name}={value}")
        else:
            raise UserError(
                f"key {key!r} in {path}",
                rule="a string, a number or a boolean",
                found=repr(value),
                remedy="correct the file",
            )
    return words


def _parse_arguments(words: Sequence[str]) -> Config:
    import tyro  # noqa: PLC0415 -- an import of 50 ms, worth keeping out of other entry points

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Config, args=list(words), prog="python -m trainer")
    except SystemExit as ended:
        if not ended.code:
            raise
        raise UserError(
            "command line",
            rule="options with values of their type",
            found=_one_line(said.getvalue()),
            remedy="see python -m trainer --help",
        ) from None


def _one_line(boxed: str) -> str:
    """tyro's message without its frame, its rulers and its hint about --help."""
    lines = [line.strip(" │╭╮╰╯─|+") for line in boxed.splitlines()]
    told = [line for line in lines if line and "--help" not in line and "Parsing error" not in line]
    return re.sub(r"\x1b\[[0-9;]*m", "", " ".join(told)) or "an unreadable option"


def _unknown(what: str, field: str, valid: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(field, sorted(_FIELDS), n=1)
    hint = f"did you mean {near[0].replace('_', '-')}? " if near else ""
    return UserError(
        what, rule="a known name", found="none such", remedy=f"{hint}valid: {', '.join(valid)}"
    )

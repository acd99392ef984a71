"""A log's text, as it comes: what its `#` lines say, and the rows below them, not yet decoded.

Whoever reads a log reads it here: whole, as it grows, or for its newest rows only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from monitor.logs import dmon, gutil, log_events

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from monitor.logs.dmon import Header
    from monitor.logs.log_events import LogEvent, Place

NARROW = "some may be of an early 525 or 530 driver, too few to tell how they lie"
"""Hint to rows that cannot be read."""

_EVENT = f"## {log_events.KEY}"
_CHANGING = re.compile(r"interval_s|attempt|utc_offset|(gpu|memory_mib) \d{1,4}", re.ASCII)
"""Facts that may change within a log, and then hold for the rows below them."""
_LOST = re.compile(r"(\d{1,9}) samples? could not be written", re.ASCII)
_HASH, _NEWLINE = ord("#"), ord("\n")
_MAX_HEADER_BYTES = 4096


@dataclass(frozen=True)
class Stretch:
    """Rows that lie under the same header, and for which the same facts hold."""

    header: Header | None
    place: Place
    offset: timedelta | None
    """Of local time from UTC; None: the log does not state it."""
    num_changes: int
    """How many facts have changed above them."""
    texts: list[bytes] = field(default_factory=list)
    """Whole lines."""


class Parser:
    """One log, from its beginning on.

    Args:
        place: whose log it is by its name; its own lines win.
        is_patient: more of the text is there already: rows whose layout only later rows settle
            may wait for all of these. Else they are given as soon as two rows agree.

    """

    def __init__(self, place: Place, *, is_patient: bool) -> None:
        self.place = place
        self.facts: dict[str, str] = {}
        """Their last values."""
        self.changes: list[tuple[str, str]] = []
        """Facts of the rows below them, in their order."""
        self.events: list[LogEvent] = []
        self.num_damaged_events = 0
        self.num_lost = 0
        """Samples that their recorder could not write, as on a full disk."""
        self.heads = dmon.Heads()
        self.has_head = False
        """Whether a header was ever understood."""
        self.is_cut = False
        """Whether it is read from somewhere behind its beginning: rows above the first header that
        is seen have one that was not, and are no damage."""
        self.hints: set[str] = set()
        self._is_patient = is_patient
        self._offset: timedelta | None = None
        self._stretches: list[Stretch] = []
        self._waiting: list[bytes] = []
        """Lines since the last `#` line, as long as their layout is open."""
        self._settled: Header | None = None
        """How the rows since the last `#` line lie."""

    def take(self, data: bytes) -> list[Stretch]:
        """Take more of the text, in whole lines; give the rows that can be decoded now."""
        pos = 0
        while pos < len(data):
            again = self.heads.repeated  # as every 44 rows
            if again and data.startswith(again, pos):
                self._end_of_rows()
                end = pos + len(again)
            elif data[pos] == _HASH:
                end = data.index(b"\n", pos) + 1
                self._see(data[pos : end - 1])
            else:
                end = _end_of_rows(data, pos, may_be_torn=self.heads.header is not None)
                text = data[pos:end]
                self._take_rows(text if text.endswith(b"\n") else text + b"\n")
            pos = end
        return self._given()

    def end(self) -> list[Stretch]:
        """No more is to come: give the rows that waited for it."""
        self._end_of_rows()
        return self._given()

    def learn(self, lines: Iterable[bytes]) -> None:
        """Read `#` lines alone, as where the rows between them are not wanted."""
        for line in lines:
            if line.startswith(b"#"):
                self._see(line)

    def _given(self) -> list[Stretch]:
        given, self._stretches = self._stretches, []
        return given

    def _see(self, raw: bytes) -> None:
        """Read a line that begins with `#`."""
        self._end_of_rows()
        line = raw.removesuffix(b"\r").decode("utf-8", "replace")
        if not line.startswith("##"):
            self.heads.see(line)
            self.has_head = self.has_head or self.heads.header is not None
        elif line == _EVENT or line.startswith(f"{_EVENT}:"):
            self._take_event(line)
        else:
            self._take_fact(line)

    def _take_event(self, line: str) -> None:
        """Take up what happened; count it where it is torn or damaged."""
        key, _, value = line.partition(": ")
        event = log_events.parse(value) if key == _EVENT else None
        if event is None:
            self.num_damaged_events += 1
        else:
            self.events.append(replace(event, place=self.place))

    def _take_fact(self, line: str) -> None:
        known = gutil.parse_comment(line)
        if known is None:
            return
        key, value = known
        if self.facts.get(key) != value and _CHANGING.fullmatch(key):
            self.changes.append((key, value))
        self.facts[key] = value
        if key in ("host", "job"):
            self.place = self.place._replace(**{key: value})
        elif key == "utc_offset":
            self._offset = gutil.parse_offset(value)
        elif key == "lost" and (lost := _LOST.fullmatch(value)):
            self.num_lost += int(lost[1])

    def _take_rows(self, text: bytes) -> None:
        header = self.heads.header
        if header is None or header.narrow is None:
            self._give(header, text)
        elif self._settled is not None:
            self._give(self._settled, text)
        else:
            self._waiting.append(text)
            if not self._is_patient:
                self._settle(header)

    def _settle(self, header: Header) -> None:
        """Give waiting rows as soon as they show how they lie; more may follow."""
        text = b"".join(self._waiting)
        signs = dmon.signs_of_layout(header, _lines(text))
        if signs.num_usual or signs.is_narrow:
            self._settled = header if signs.num_usual else header.narrow
        if self._settled or not signs.num_narrow:
            self._waiting = []
            self._give(self._settled or header, text)

    def _end_of_rows(self) -> None:
        """Decide how the rows since the last `#` line lie, for no more are to come."""
        self._settled = None
        header = self.heads.header
        if not self._waiting or header is None:
            return
        text, self._waiting = b"".join(self._waiting), []
        if _are_usual(header, text):
            self._give(header, text)
            return
        signs = dmon.signs_of_layout(header, _lines(text))
        if signs.num_narrow and not (signs.num_usual or signs.is_narrow):
            self.hints.add(NARROW)
        self._give(header.narrow if signs.is_narrow else header, text)

    def _give(self, header: Header | None, text: bytes) -> None:
        if header is None and self.is_cut and not self.has_head:
            return
        key = (header, self.place, self._offset, len(self.changes))
        last = self._stretches[-1] if self._stretches else None
        if last is None or key != (last.header, last.place, last.offset, last.num_changes):
            last = Stretch(*key)
            self._stretches.append(last)
        last.texts.append(text)


def _end_of_rows(data: bytes, pos: int, *, may_be_torn: bool) -> int:
    """Find where the next line that begins with `#` does, or a header behind a torn row."""
    found = data.find(_HASH, pos)  # one byte is found many times as fast as two
    while found > 0 and data[found - 1] != _NEWLINE:
        if may_be_torn and _is_header(data, found):
            break
        found = data.find(_HASH, found + 1)
    return len(data) if found < 0 else found


def _is_header(data: bytes, pos: int) -> bool:
    """Return whether a header begins here, as where dmon was killed and another one appends."""
    end = data.find(b"\n", pos, pos + _MAX_HEADER_BYTES)
    if end < 0:
        return False  # else a line of nothing but # would be read once for each of them
    line = data[pos:end].removesuffix(b"\r")
    return dmon.parse_header(line.decode("utf-8", "replace")) is not None


def _lines(text: bytes) -> list[str]:
    return text.decode("utf-8", "replace").split("\n")


def _are_usual(header: Header, text: bytes) -> bool:
    """Return whether rows are all as long as usual ones, and so no early program's.

    Of those a row is as long only without a `-`, and then it lies both ways.
    """
    return all(
        len(line.removesuffix(b"\r")) in header.usual_lengths for line in text[:-1].split(b"\n")
    )

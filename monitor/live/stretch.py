"""Rows that may be narrow, as they come: what `dmon.settled` decides of a whole stretch.

Whoever watches cannot wait for the next header. A narrow row with a single sign of it is held back
until a second one comes; they do not count once a row lies as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.logs import dmon

if TYPE_CHECKING:
    from monitor.logs.dmon import Header

_ENOUGH = 2


class Stretch:
    """The rows since the last header."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._num_signs = 0
        self._header: Header | None = None  # as decided

    def take(self, line: bytes, header: Header) -> tuple[Header, list[bytes]]:
        """Take a row, without its end: give those that can be read now, and how they lie."""
        slim = header.narrow
        if slim is None:
            return header, [line]
        if self._header is not None:
            return self._header, [line]
        text = line.decode("utf-8", "replace")
        usual, early = dmon.parse_row(text, header), dmon.parse_row(text, slim)
        if (usual is None) == (early is None):
            return header, [line]  # it tells nothing
        lines, self._held = [*self._held, line], []
        if early is None:
            self._header = header
            return header, lines  # those held back do not lie so, and are counted
        self._num_signs += dmon.num_narrow(early, slim)
        if self._num_signs < _ENOUGH:
            self._held = lines
            return header, []
        self._header = slim
        return slim, lines

    def end(self) -> int:
        """Begin another stretch; how many rows of this one were never decided."""
        num, self._held, self._header, self._num_signs = len(self._held), [], None, 0
        return num

"""The terminal of a live view: the other screen, keys, signals; and all as it was at the end.

rich draws and knows no keys: what reads them, and what gives the terminal back, is here.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from rich.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from rich.console import Console

    from monitor.live.columns import Span

_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
_HANDLED = (*_ENDS, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
_ESCAPE_S = 0.05  # a key's escape sequence comes at once, or it was the key Esc
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_CLEAR_REST = Segment("\x1b[0m\x1b[K", None, ())
_SEQUENCES = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "1~": "home",
    "4~": "end",
    "5~": "pgup",
    "6~": "pgdn",
}
_CHARACTERS = {
    "\x1b": "esc",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "ctrl-u",
}
_KEY = re.compile(r"\x1b(?:\[([0-9;]*[A-Za-z~])|O([A-Za-z]))|(.)", re.DOTALL)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-9;]*|O)?\Z")


def keys(data: bytes) -> list[str]:
    """Return the keys that sent these bytes; unknown sequences are left out."""
    found = _KEY.findall(data.decode("utf-8", "replace"))
    names = [
        _CHARACTERS.get(char, char) if char else _SEQUENCES.get(sequence or application)
        for sequence, application, char in found
    ]
    return [name for name in names if name]


class Terminal:
    """Enter it by `with`: whatever ends the block, the terminal is as it was.

    Signals set flags, and wake `wait`.
    """

    def __init__(self, console: Console, stdin_fd: int) -> None:
        self._console = console
        self._fd = stdin_fd
        self._received: set[int] = set()
        self._shown: list[list[Span]] = []
        self._wakeup: tuple[int, int] | None = None
        self._old_handlers: dict[int, Any] = {}
        self._cooked: list[Any] | None = None
        self._is_up = False

    @property
    def ended_by(self) -> int | None:
        """The signal that asked to end; None: none did."""
        return next((number for number in _ENDS if number in self._received), None)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            size = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def __enter__(self) -> Self:
        wakeup = os.pipe()
        for fd in wakeup:
            os.set_blocking(fd, False)
        self._wakeup = wakeup
        try:
            for number in _HANDLED:
                self._old_handlers[number] = signal.signal(number, self._receive)
            signal.set_wakeup_fd(wakeup[1], warn_on_full_buffer=False)
            self._cooked = termios.tcgetattr(self._fd)
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        signal.set_wakeup_fd(-1)
        if self.ended_by == signal.SIGHUP:  # the kernel's own may still be on its way
            self._old_handlers[signal.SIGHUP] = signal.SIG_IGN
        for number, handler in self._old_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._old_handlers.clear()
        if self._wakeup is not None:
            for fd in self._wakeup:
                os.close(fd)
            self._wakeup = None

    def show(self, lines: Sequence[list[Span]]) -> None:
        """Draw the lines that have changed: all of them are too much for a slow connection."""
        try:
            with self._console as console:  # one write
                for number, line in enumerate(lines):
                    if number < len(self._shown) and self._shown[number] == line:
                        continue
                    segments = [Segment(text, console.get_style(style)) for text, style in line]
                    console.update_screen_lines([[*segments, _CLEAR_REST]], 0, number)
        except OSError:
            self._hang_up()
        self._shown = list(lines)

    def _hang_up(self) -> None:
        """End, as the terminal is gone; the interpreter then ends without a complaint."""
        self._received.add(signal.SIGHUP)
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._console.file.fileno())

    def wait(self, timeout_s: float) -> list[str]:
        """Wait for keys; none after `timeout_s`, or when a signal came."""
        assert self._wakeup is not None  # noqa: S101 - within `with`
        self._obey()
        try:
            ready, _, _ = select.select([self._fd, self._wakeup[0]], [], [], max(0.0, timeout_s))
        except InterruptedError:
            ready = []
        if self._wakeup[0] in ready:
            with suppress(BlockingIOError):
                os.read(self._wakeup[0], 512)
        data = self._read() if self._fd in ready else b""
        self._obey()
        return keys(data)

    def _read(self) -> bytes:
        data = more = self._read_now()
        if not data:
            self._received.add(signal.SIGHUP)  # no key can be pressed any more
        while more and _UNFINISHED.search(data):
            ready = select.select([self._fd], [], [], _ESCAPE_S)[0]
            more = self._read_now() if ready else b""
            data += more
        return data

    def _read_now(self) -> bytes:
        try:
            return os.read(self._fd, 1024)
        except OSError:
            return b""  # the terminal is gone

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self._received.add(number)

    def _obey(self) -> None:
        """Do what signals ask for."""
        if self.ended_by is not None:
            return  # a terminal that is gone sends SIGCONT, too
        if signal.SIGTSTP in self._received:
            self._received -= {signal.SIGTSTP, signal.SIGCONT}
            self._give_back()
            # by the default action: we stay here until somebody continues us, and a shell
            # without job control, from which nothing could continue us, does not stop us
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._receive)
            self._received.discard(signal.SIGCONT)
            self._take()
        elif signal.SIGCONT in self._received:
            self._received.discard(signal.SIGCONT)
            self._take()  # stopped by SIGSTOP; a shell may have changed the terminal
        if signal.SIGWINCH in self._received:
            self._received.discard(signal.SIGWINCH)
            self._shown = []

    def _take(self) -> None:
        """Take the terminal: keys at once and unseen, the other screen, no cursor, no wrapping."""
        self._is_up = True
        _retried(lambda: tty.setcbreak(self._fd, termios.TCSADRAIN))
        self._shown = []
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        self._write(_NO_WRAP)

    def _give_back(self) -> None:
        """Leave the terminal as it was; one that is gone needs nothing."""
        if not self._is_up:
            return
        self._is_up = False
        try:
            self._write(_WRAP)
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
        except (OSError, ValueError):
            self._hang_up()
        cooked = self._cooked
        if cooked is not None:
            with suppress(OSError, termios.error):
                _retried(lambda: termios.tcsetattr(self._fd, termios.TCSADRAIN, cooked))

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


def _retried(change: Callable[[], object]) -> None:
    """Change the terminal's mode; a stop of background jobs may interrupt that."""
    while True:
        try:
            change()
        except termios.error as error:
            if error.args[0] != errno.EINTR:
                raise
            time.sleep(0.01)
        else:
            return

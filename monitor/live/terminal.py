"""The terminal of a live view: the other screen, keys, signals; and all as it was at the end."""

from __future__ import annotations

import codecs
import errno
import os
import re
import select
import signal
import sys
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from rich.segment import Segment
from rich.style import Style

from monitor.live.columns import STYLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from rich.console import Console

    from monitor.live.columns import Span

_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
_HEARD = (*_ENDS, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
_ESCAPE_S = 0.05  # a key's escape sequence comes at once, or it was the key Esc
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_KEYS = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "pgup",
    b"\x1b[6~": "pgdn",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
}
_NAMES = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x15": "ctrl-u"}
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])")
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-9;]*|O)?\Z")


def keys(data: bytes) -> list[str]:
    """Tell the keys that sent these bytes; sequences that nobody knows are left out."""
    found: list[str] = []
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    while data:
        sequence = _SEQUENCE.match(data)
        if sequence is not None:
            key = _KEYS.get(sequence.group())
            found += [key] if key else []
            data = data[sequence.end() :]
        elif data[:1] == b"\x1b":
            found.append("esc")
            data = data[1:]
        else:
            char = decode(data[:1])
            found += [_NAMES.get(char, char)] if char else []
            data = data[1:]
    return found


class Terminal:
    """Enter it by `with`: whatever ends the block, the terminal is as it was.

    Signals set flags, and wake `wait`.
    """

    def __init__(self, console: Console, stdin_fd: int = 0) -> None:
        self._console = console
        self._fd = stdin_fd
        self._told: set[int] = set()
        self._shown: list[list[Span]] = []
        self._wakeup: tuple[int, int] | None = None
        self._old_handlers: dict[int, Any] = {}
        self._cooked: list[Any] | None = None
        self._is_up = False

    @property
    def ended_by(self) -> int | None:
        """The signal that asked to end; None: none did."""
        return next((number for number in _ENDS if number in self._told), None)

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
            for number in _HEARD:
                self._old_handlers[number] = signal.signal(number, self._hear)
            signal.set_wakeup_fd(wakeup[1], warn_on_full_buffer=False)
            self._cooked = termios.tcgetattr(self._fd)
            self._up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._down()
        signal.set_wakeup_fd(-1)
        if self.ended_by == signal.SIGHUP:  # the kernel's own word of it may be on its way
            self._old_handlers[signal.SIGHUP] = signal.SIG_IGN
        for number, handler in self._old_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._old_handlers.clear()
        if self._wakeup is not None:
            for fd in self._wakeup:
                os.close(fd)
            self._wakeup = None

    def show(self, lines: Sequence[list[Span]]) -> None:
        """Draw lines: those that differ from what is there."""
        try:
            with self._console as console:  # one write
                for number, line in enumerate(lines):
                    if number < len(self._shown) and self._shown[number] == line:
                        continue
                    segments = [Segment(text, _style(style)) for text, style in line]
                    console.update_screen_lines([[*segments, _CLEAR_REST]], 0, number)
        except OSError:
            self._hung_up()
        self._shown = list(lines)

    def _hung_up(self) -> None:
        """Nobody sees anything any more: end, and let the interpreter end without a complaint."""
        self._told.add(signal.SIGHUP)
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
            self._told.add(signal.SIGHUP)  # nobody can press anything any more
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

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._told.add(number)

    def _obey(self) -> None:
        """Do what signals ask for."""
        if self.ended_by is not None:
            return  # a terminal that is gone sends SIGCONT, too
        if signal.SIGTSTP in self._told:
            self._told -= {signal.SIGTSTP, signal.SIGCONT}
            self._down()
            # as if nobody had heard it: we stand here until somebody continues us, and a shell
            # without job control, which nobody could continue us from, does not stop us
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._hear)
            self._told.discard(signal.SIGCONT)
            self._up()
        elif signal.SIGCONT in self._told:
            self._told.discard(signal.SIGCONT)
            self._up()  # stopped by what we could not hear; a shell may have changed the terminal
        if signal.SIGWINCH in self._told:
            self._told.discard(signal.SIGWINCH)
            self._shown = []

    def _up(self) -> None:
        """Take the terminal: keys at once and unseen, the other screen, no cursor."""
        self._is_up = True
        mode = termios.tcgetattr(self._fd)
        mode[3] &= ~(termios.ECHO | termios.ICANON)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        _set(self._fd, mode)
        self._shown = []
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        self._write(_NO_WRAP)

    def _down(self) -> None:
        """Give it back; a terminal that is gone needs nothing."""
        if not self._is_up:
            return
        self._is_up = False
        with suppress(OSError, ValueError):
            self._write(_WRAP)
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
        if self._cooked is not None:
            with suppress(OSError, termios.error):
                _set(self._fd, self._cooked)

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


_CLEAR_REST = Segment("\x1b[0m\x1b[K", None, ())


def _set(fd: int, mode: list[Any]) -> None:
    """Set the terminal's mode; a stop of background jobs may interrupt it."""
    while True:
        try:
            termios.tcsetattr(fd, termios.TCSADRAIN, mode)
        except termios.error as error:
            if error.args[0] != errno.EINTR:
                raise
            time.sleep(0.01)
        else:
            return


_STYLES: dict[str, Style] = {}


def _style(name: str) -> Style:
    found = _STYLES.get(name)
    if found is None:
        found = _STYLES[name] = Style.parse(STYLES[name] or "none")
    return found

"""A terminal: a program in a pty, and a screen that shows what it writes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyte

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0
_MODES = re.compile(rb"\x1b\[\?(7|25|1049)([hl])")
AS_FOUND = {7: True, 25: True, 1049: False}
"""Wrapping, the cursor, the other screen: how a program has to leave them."""


class Terminal:
    """A program that runs in it; end it by leaving the `with` block."""

    def __init__(
        self,
        *arguments: object,
        width: int = 80,
        height: int = 24,
        env: dict[str, str] | None = None,
    ) -> None:
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        self._master, self._slave = pty.openpty()
        self._set_size(width, height)
        self.found = termios.tcgetattr(self._slave)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DDP_", "PYTHON"))}
        clean |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen(  # in a session of its own, as a login gives one
            [sys.executable, "-P", *map(str, arguments)],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=clean | (env or {}),
            start_new_session=True,
            preexec_fn=self._take,  # noqa: PLW1509 - one thread, and nothing but a system call
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for fd in (self._master, self._slave):
            with suppress(OSError):
                os.close(fd)

    def hang_up(self) -> None:
        """Lose the connection."""
        os.close(self._slave)
        os.close(self._master)

    def _take(self) -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    # ---- what a person does

    def send(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def resize(self, width: int, height: int) -> None:
        """Change the size; the kernel tells the program."""
        self.screen.resize(height, width)
        self._set_size(width, height)

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        os.kill(self.process.pid, number)

    # ---- what a person sees

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines)

    @property
    def modes(self) -> dict[int, bool]:
        """How the program has set the terminal's modes."""
        return AS_FOUND | {int(n): on == b"h" for n, on in _MODES.findall(self.written)}

    def is_as_found(self) -> bool:
        """Whether keys, echo, cursor, wrapping and screen are as the program found them."""
        return termios.tcgetattr(self._slave) == self.found and self.modes == AS_FOUND

    def until(self, holds: Callable[[], Any], limit_s: float = DEADLINE_S) -> None:
        """Look at what is written until something holds."""
        deadline_s = time.monotonic() + limit_s
        while True:
            self._take_up(0.02)
            if holds():
                return
            assert time.monotonic() < deadline_s, f"not within {limit_s} s:\n{self.text}"

    def until_seen(self, *texts: str) -> None:
        """Look until all texts stand on the screen."""
        self.until(lambda: all(text in self.text for text in texts))

    def state(self) -> str:
        """Return the process's state by the kernel: R, S, T (stopped), Z (ended)."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0]

    def end(self, limit_s: float = DEADLINE_S) -> int:
        """Wait for its end; its exit code, or minus the number of a signal."""
        self.until(lambda: self.process.poll() is not None, limit_s)
        self._take_up(0.05)
        return self.process.wait()

    def _take_up(self, wait_s: float) -> None:
        while select.select([self._master], [], [], wait_s)[0]:
            data = os.read(self._master, 65_536)
            self.written += data
            self._stream.feed(data)
            wait_s = 0

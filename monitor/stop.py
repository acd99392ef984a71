"""When the recorder ends: on SIGTERM, or when the process that it belongs to dies."""

from __future__ import annotations

import os
import select
import signal
import time
from enum import Enum
from typing import TYPE_CHECKING

from rundir import procfs

if TYPE_CHECKING:
    from types import FrameType

_POLL_S = 0.5  # without pidfd: how often to check whether the parent still lives


class Reason(Enum):
    """Why to stop."""

    TERMINATED = "terminated"
    ORPHANED = "orphaned"


class ProcessStop:
    """Stop on SIGTERM, or at the death of process `parent_pid`.

    A signal and a death both wake the wait at once: through a pipe, and through a pidfd where the
    kernel has them (5.3 and later; elsewhere by looking twice a second).
    """

    def __init__(self, parent_pid: int) -> None:
        self._parent_pid = parent_pid
        self._is_child = os.getppid() == parent_pid
        self._reason: Reason | None = None
        self._wakeup, writer = os.pipe()
        for fd in (self._wakeup, writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        self._pidfd = self._open_pidfd()

    def wait(self, timeout_s: float) -> Reason | None:
        """Sleep until it is time to stop, but no longer than `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._poll()
            left_s = deadline_s - time.monotonic()
            if self._reason is Reason.TERMINATED and self._parent_died():
                self._reason = Reason.ORPHANED  # the signal was the kernel's word of that death
            if self._reason or left_s <= 0:
                return self._reason
            self._sleep(left_s)

    def _on_term(self, _signum: int, _frame: FrameType | None) -> None:
        self._reason = Reason.TERMINATED

    def _open_pidfd(self) -> int | None:
        try:
            return os.pidfd_open(self._parent_pid)
        except ProcessLookupError:
            self._reason = Reason.ORPHANED  # it died before the check
        except (OSError, AttributeError):
            pass
        return None

    def _poll(self) -> None:
        if self._reason is None and self._pidfd is None and not procfs.is_alive(self._parent_pid):
            self._reason = Reason.ORPHANED

    def _parent_died(self) -> bool:
        """Check the cause of a SIGTERM: PR_SET_PDEATHSIG sends one when a parent dies.

        The kernel gives its children away before it sends them that signal, and only later calls
        it dead: so the parent's id is checked first.
        """
        given_away = self._is_child and os.getppid() != self._parent_pid
        return given_away or not procfs.is_alive(self._parent_pid)

    def _sleep(self, timeout_s: float) -> None:
        fds = [self._wakeup] if self._pidfd is None else [self._wakeup, self._pidfd]
        if self._pidfd is None:
            timeout_s = min(timeout_s, _POLL_S)
        ready, _, _ = select.select(fds, [], [], timeout_s)
        if self._wakeup in ready:
            os.read(self._wakeup, 512)
        if self._pidfd in ready and self._reason is None:
            self._reason = Reason.ORPHANED

"""Calls that may hang (a stalled file system, a process the kernel holds) and must not hold us up.

They run one after another in a thread of their own. Who asks waits for an answer no longer than
it wants to, and goes on without one.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


_LATE_S = 0.2  # while an earlier call hangs, a new one is given only this long


class Bounded:
    """Makes calls in order; one that hangs holds up the later ones, but not the caller."""

    def __init__(self, name: str) -> None:
        """Start the thread; it dies with the process."""
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._num_open = 0
        self._num_given_up = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    @property
    def is_stuck(self) -> bool:
        """Whether a call that was given up has not ended yet."""
        with self._lock:
            return self._num_given_up > 0 and self._num_open > 0

    def ask(self, call: Callable[[], T], limit_s: float) -> T | None:
        """Make a call; None if it raised something or gave no answer within `limit_s` seconds.

        A call that comes too late to be waited for is still made.
        """
        answers: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        limit_s = _LATE_S if self.is_stuck else limit_s
        self._put(lambda: answers.put(_quietly(call)))
        try:
            return answers.get(timeout=limit_s)
        except queue.Empty:
            with self._lock:
                self._num_given_up += 1
            return None

    def question(self, call: Callable[[], T], limit_s: float) -> T | None:
        """Ask what will be asked again: while an earlier call hangs it is not made at all."""
        return None if self.is_stuck else self.ask(call, limit_s)

    def post(self, call: Callable[[], object]) -> None:
        """Make a call some time, without waiting for it."""
        self._put(lambda: _quietly(call))

    def _put(self, call: Callable[[], object]) -> None:
        with self._lock:
            self._num_open += 1
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            self._calls.get()()
            with self._lock:
                self._num_open -= 1
                if not self._num_open:
                    self._num_given_up = 0


def _quietly(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except Exception:  # noqa: BLE001 - whatever it was, the thread goes on with the next call
        return None

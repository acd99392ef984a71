"""What is known of an attempt while it runs: from its reports, in the order of their arrival."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rundir import codes, events
from rundir.failure.attempt import integer

if TYPE_CHECKING:
    from rundir.events import Event


class Reports:
    """The reports of one attempt."""

    def __init__(self, attempt: int) -> None:
        """Nothing is known yet."""
        self._attempt = attempt
        self._lines: set[bytes] = set()
        self.events: list[Event] = []
        self.up: dict[int, str] = {}
        """The nodes of the ranks that are up."""
        self.finished: dict[int, str] = {}
        """The nodes of the ranks that ended with code 0."""
        self.log_offsets: dict[int, int] = {}
        """Where this attempt begins in the ranks' logs."""
        self.num_started = 0
        self.step_ids: dict[int, int] = {}
        """Slurm's numbers of the ranks' steps, of those that reported one."""
        self.has_trained = False
        """Whether a first step is done."""
        self.has_suspicion = False
        """Whether a node has reported on ranks that may hang."""
        self.failed_s: float | None = None
        """When a rank first failed, or the watchdog gave its verdict."""
        self.verdict_s: float | None = None

    def knows(self, line: bytes) -> bool:
        """Whether a line was added before."""
        return line.strip() in self._lines

    def add(self, line: bytes) -> None:
        """Add the line of an event; one of another attempt changes nothing."""
        self._lines.add(line.strip())
        event = events.parse(line)
        if event is not None and event.get("attempt") == self._attempt:
            self.events.append(event)
            self._learn(event)

    def _learn(self, event: Event) -> None:
        name, rank = event.get("event"), event.get("rank")
        if name == "rank_up" and isinstance(rank, int):
            self.up[rank] = str(event.get("node"))
            self.finished.pop(rank, None)
            self.num_started += 1
            self.log_offsets[rank] = integer(event.get("log_offset")) or 0
            step_id = integer(event.get("step_id"))
            if step_id is not None:
                self.step_ids.pop(rank, None)  # the last one that was reported stands last
                self.step_ids[rank] = step_id
        elif name == "rank_end" and isinstance(rank, int):
            node = self.up.pop(rank, "")
            if event.get("code") == codes.FINISHED:
                self.finished[rank] = node
            is_failure = event.get("code") not in (codes.FINISHED, codes.STOPPED)
            if is_failure and event.get("requested") is False:
                self._fail()
        elif name == "first_step":
            self.has_trained = True
        elif name == "hang_report":
            self.has_suspicion = True
        elif name == "verdict":
            self._fail()
            self.verdict_s = self.verdict_s or time.monotonic()

    @property
    def step_id(self) -> int | None:
        """Slurm's number of the step that a rank reported last."""
        return next(reversed(self.step_ids.values()), None)

    def _fail(self) -> None:
        if self.failed_s is None:
            self.failed_s = time.monotonic()

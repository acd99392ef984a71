"""One growing log: its lines told apart, its facts learned, its GPUs' newest readings kept."""

from __future__ import annotations

import math
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from monitor.live.follow import Follower
from monitor.live.stretch import Stretch
from monitor.live.track import Track
from monitor.logs import dmon, files, gutil, marks

if TYPE_CHECKING:
    from monitor.live.rows import Batch, Readings
    from monitor.logs.marks import Mark

TAIL_BYTES = 2**17
"""Of a log that is larger: some 70 samples of 8 GPUs."""

_HEAD_BYTES = 2**13  # what the log tells of its GPUs stands there
_NUM_MARKS = 50


class LiveLog:
    """A node's log as far as it is known."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.facts: dict[str, str] = {}
        self.tracks: tuple[Track, ...] = ()
        """In the order of their indices."""
        self.marks: deque[Mark] = deque(maxlen=_NUM_MARKS)
        self.num_unreadable = 0
        self.problem: str | None = None
        """Why it cannot be read; None: it can."""
        self.job, self.host = files.named(path)
        self.alive_s = -math.inf
        """When it was seen to be written last, monotonic: clocks of nodes may differ."""
        self._no_text: str | None = None
        self._written_s: float | None = None
        self._follower = Follower(path, TAIL_BYTES, _HEAD_BYTES)
        self._num_begun, self._is_begun = 0, True
        self._heads = dmon.Heads()
        self._stretch = Stretch()
        self._offset_s = 0.0
        self._by_gpu: dict[int, Track] = {}

    @property
    def is_there(self) -> bool:
        """Whether the file was there when we last looked."""
        return self._follower.is_there

    def poll(self, batch: Batch) -> None:
        """Look whether there is more, and put its rows into a batch."""
        try:
            data = self._follower.poll()
        except OSError as error:
            self.problem = error.strerror or str(error)
            return
        self._see_alive()
        if self._follower.num_begun != self._num_begun:
            self._num_begun, self._is_begun = self._follower.num_begun, False
        if data and not self._is_begun:
            self._is_begun = True
            self._no_text = files.no_text(self._follower.head or data)
            data = data.removeprefix(files.BYTE_ORDER)
            self._begin()
        self.problem = self._no_text
        if data and self.problem is None:
            self._read(data, batch)

    def _see_alive(self) -> None:
        written_s = self._follower.written_s
        if written_s is None or written_s == self._written_s:
            return
        is_first = self._written_s is None
        age_s = max(0.0, time.time() - written_s) if is_first else 0.0
        self._written_s, self.alive_s = written_s, time.monotonic() - age_s

    def _begin(self) -> None:
        """Learn from the beginning of a log of which we read only the end."""
        heads = dmon.Heads()
        self.num_unreadable += self._stretch.end()
        head = self._follower.head.removeprefix(files.BYTE_ORDER)
        for line in head.decode("utf-8", "replace").split("\n"):
            if line.startswith("#"):
                self._learn(line.rstrip("\r"), heads)
        is_csv = heads.header is not None and heads.header.csv
        if self._follower.head or is_csv:
            # a header in cells comes again every 44 rows: until then nothing is guessed
            self._heads = heads if is_csv else dmon.Heads()

    def _read(self, data: bytes, batch: Batch) -> None:
        was_at_head = self._heads.header is not None
        epoch = 0  # rows under one header are read together; their order is kept
        for raw in data.split(b"\n")[:-1]:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"#"):
                before = (self._heads.header, self._offset_s)
                self.num_unreadable += self._stretch.end()
                self._learn(line.decode("utf-8", "replace"), self._heads)
                epoch += before != (self._heads.header, self._offset_s)
            elif self._heads.header is not None:
                header, rows = self._stretch.take(line, self._heads.header)
                for row in rows:
                    batch.add(self, header, self._offset_s, epoch, row)
            elif (was_at_head or not self._follower.head) and line.strip():
                self.num_unreadable += 1

    def _learn(self, line: str, heads: dmon.Heads) -> None:
        if not line.startswith("##"):
            heads.see(line)
            return
        known = gutil.parse_comment(line)
        if known is None:
            return
        key, value = known
        if key == marks.KEY:
            mark = marks.parse(value)
            if mark is not None:
                self.marks.append(mark)
            else:
                self.num_unreadable += 1
            return
        self.facts[key] = value
        self.host = value if key == "host" else self.host
        self.job = value if key == "job" else self.job
        if key == "utc_offset":
            self._offset_s = (gutil.parse_offset(value) or timedelta()).total_seconds()

    def take(self, readings: Readings) -> None:
        """Take up readings, the newest last."""
        names, gpu, time_s, values = readings
        gpus = gpu.tolist()
        if len(set(gpus)) == len(gpus):  # the usual case: one cycle of the recorder
            for i, one in enumerate(gpus):
                self._track(one).add(names, time_s[i : i + 1], values[i : i + 1])
            return
        for one in dict.fromkeys(gpus):
            chosen = gpu == one
            self._track(one).add(names, time_s[chosen], values[chosen])

    def _track(self, gpu: int) -> Track:
        track = self._by_gpu.get(gpu)
        if track is None or track.host != self.host:
            index = gpu if gpu >= 0 else None
            track = self._by_gpu[gpu] = Track(self.host, index, self.job, self.facts)
            # whoever draws meanwhile keeps the tuple it has
            self.tracks = tuple(self._by_gpu[number] for number in sorted(self._by_gpu))
        return track

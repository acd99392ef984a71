"""XID and ECC errors, the moment the driver reports them.

A thread of its own waits for them: NVML has no other way. It never holds up a poll or the end.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from contextlib import suppress
from ctypes import byref, c_uint, c_void_p, cast
from typing import TYPE_CHECKING

import pynvml

from monitor.logs.log_events import LogEvent
from monitor.nvml.calls import function
from rundir import xids
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitor.nvml.calls import Handle

_WAIT_MS = 5000
_PAUSE_S = 10.0  # after an error, such as a GPU that is lost: the next wait may fail at once
_MINUTE_S = 60
_MAX_PER_MINUTE = 20  # of a kind and a GPU: a storm of single-bit errors must not fill the disk
_KINDS = {
    pynvml.nvmlEventTypeXidCriticalError: ("xid", ""),
    pynvml.nvmlEventTypeDoubleBitEccError: ("ecc", "double"),
    pynvml.nvmlEventTypeSingleBitEccError: ("ecc", "single"),
}
"""What is watched: the event's kind, and the bits of an ECC error."""
_NO_INSTANCE = 2**32 - 1


class Events:
    """Waits for events of some GPUs, and reports each."""

    def __init__(self, report: Callable[[LogEvent], None]) -> None:
        self._report = report
        self._ended = threading.Event()
        self._reported_s: dict[tuple[str, int | None], deque[float]] = {}
        """When the last events of one kind and GPU were reported, monotonic."""
        self._num_left_out: Counter[tuple[str, int | None]] = Counter()
        self._thread: threading.Thread | None = None
        self._handles: Mapping[int, Handle] = {}
        self._indices: dict[int | None, int] = {}
        self._num_registered = 0
        self._is_outdated = False
        self.fact = ""
        """What the log states of it."""

    def start(self, handles: Mapping[int, Handle]) -> None:
        """Register for the events of GPUs by index.

        Called where it may hang: as one of the calls of a poll.
        """
        self._handles = handles
        event_set = self._register()
        if event_set is None:
            return
        self._thread = threading.Thread(
            target=self._watch, args=(event_set,), name="nvml-events", daemon=True
        )
        self._thread.start()

    def go_on(self, handles: Mapping[int, Handle]) -> None:
        """Go on with these GPUs, some of which are back: those are registered anew. As `start`."""
        if self._thread is None:
            self.start(handles)
        self._handles, self._is_outdated = handles, True

    def _register(self) -> Handle | None:
        """Make a set of the GPUs that answer; None if there is none."""
        handles, num_registered, why = self._handles, 0, "no GPU"
        self._num_registered = 0
        try:
            event_set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self.fact = f"none: {error}"
            return None
        for index, handle in handles.items():
            try:
                known = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                wanted = sum(kind for kind in _KINDS if kind & known)
                pynvml.nvmlDeviceRegisterEvents(handle, wanted, event_set)
            except pynvml.NVMLError as error:
                why = str(error)
            else:
                self._indices[_address(handle)] = index
                num_registered += 1
        self._num_registered = num_registered
        if num_registered:
            self.fact = f"watched on {num_registered} of {counted(len(handles), 'GPU')}"
            return event_set
        self.fact = f"none: {why}"
        _free(event_set)
        return None

    def end(self) -> None:
        """Watch no more, without waiting for the thread."""
        self._ended.set()

    def is_over(self) -> bool:
        """Whether the thread has left NVML."""
        return self._thread is None or not self._thread.is_alive()

    def _watch(self, event_set: Handle | None) -> None:
        wait = function("nvmlEventSetWait_v2", "nvmlEventSetWait")
        data = pynvml.c_nvmlEventData_t()
        while not self._ended.is_set():
            if event_set is not None and self._is_outdated:
                self._is_outdated = False
                _free(event_set)
                event_set = self._register()
            if event_set is None:  # none of them answers: one may be back later
                self._ended.wait(_PAUSE_S)
                event_set = self._register()
                continue
            code = wait(event_set, byref(data), c_uint(_WAIT_MS))
            if code == pynvml.NVML_SUCCESS:
                with suppress(Exception):  # the next event is reported all the same
                    self._see(data)
            elif code == pynvml.NVML_ERROR_UNINITIALIZED:
                return
            elif code == pynvml.NVML_ERROR_GPU_IS_LOST:
                event_set = self._without_the_lost(event_set)
            elif code != pynvml.NVML_ERROR_TIMEOUT:
                self._ended.wait(_PAUSE_S)
        if event_set is not None:
            _free(event_set)

    def _without_the_lost(self, event_set: Handle) -> Handle | None:
        """Begin a new set: one that has a lost GPU reports no other any more."""
        before = self._num_registered
        _free(event_set)
        event_set = self._register()
        if self._num_registered == before:  # no GPU can be registered
            self._ended.wait(_PAUSE_S)
        return event_set

    def _see(self, data: pynvml.c_nvmlEventData_t) -> None:
        if data.eventType not in _KINDS:
            return
        (kind, bits), number = _KINDS[data.eventType], str(data.eventData)
        details = {"bits": bits} if bits else {"xid": number, "text": xids.look_up(number).name}
        if data.gpuInstanceId != _NO_INSTANCE and data.gpuInstanceId:
            details["gi"] = str(data.gpuInstanceId)
        gpu = self._indices.get(_address(data.device))
        left_out = self._left_out(kind, gpu)
        if left_out is not None:
            more = {"left_out": str(left_out)} if left_out else {}
            self._report(LogEvent(time.time(), kind, gpu, details | more))

    def _left_out(self, kind: str, gpu: int | None) -> int | None:
        """Count an event: how many were left out before it, or None: leave it out, too."""
        now_s, key = time.monotonic(), (kind, gpu)
        reported_s = self._reported_s.setdefault(key, deque(maxlen=_MAX_PER_MINUTE))
        if len(reported_s) == _MAX_PER_MINUTE and now_s - reported_s[0] <= _MINUTE_S:
            self._num_left_out[key] += 1
            return None
        reported_s.append(now_s)
        return self._num_left_out.pop(key, 0)


def _free(event_set: Handle) -> None:
    with suppress(pynvml.NVMLError):
        pynvml.nvmlEventSetFree(event_set)


def _address(handle: Handle) -> int | None:
    return cast(handle, c_void_p).value

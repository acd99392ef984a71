"""What NVML reports of the time between two polls: rates, shares, the driver's own samples.

Each keeps what it saw last. The first poll, and one after the GPU was away, has no reading.
"""

from __future__ import annotations

import math
import struct
import time
from ctypes import byref, c_int, c_ulonglong
from typing import TYPE_CHECKING

import pynvml

from monitor.nvml.calls import LOST, Entries, Fields, Handle, function, refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.nvml.workers import Values

_LINK_KIB = (
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
)
_LINK_BYTES = (
    pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
)
_ALL_LINKS = 2**32 - 1
_KIB, _MB = 1024, 10**6
_GPM_METRICS = {"sm_active_pct": 2, "tensor_active_pct": 5, "dram_active_pct": 10}
_GPM_MIN_GAP_S = 0.1  # NVML's own rule: two samples lie over 100 ms apart
_SAMPLE = struct.Struct("<QI4x")  # c_nvmlSample_t: µs, and a value that is an unsigned int here
_TIMES = struct.Struct("<QQ")  # c_nvmlViolationTime_t: µs of reference, ns of violation
_FUTURE_S = 1.0  # the driver stamps samples by the time of day
_NUM_SAMPLES = 256  # drivers keep 60 to 120; one that has more is asked again with more room


class NvLink:
    """Payload over all links of a GPU, in MB/s, both ways.

    From Blackwell on each link has its own counters, in bytes; before, there is one for all.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._fields = Fields(handle, tuple((field, _ALL_LINKS) for field in _LINK_KIB))
        self._unit = _KIB
        self._has_searched = False
        self._before: tuple[float, list[int | None]] | None = None

    def read(self, values: Values) -> bool | None:
        """Poll once."""
        now_s, counts = time.monotonic(), self._fields.read(values)
        before, self._before = self._before, None
        if counts is None:
            return LOST in values
        if counts == [None, None] and not self._has_searched:
            self._has_searched = True
            self._find_links(values)
        self._before = now_s, counts
        if before is not None and now_s > before[0] and len(counts) == len(before[1]):
            num = len(counts) // 2
            for name, of in zip(_NVLINK_FIELDS, (slice(num), slice(num, None)), strict=True):
                grown = _growth(counts[of], before[1][of])
                if grown is not None:
                    values[name] = int(grown * self._unit / _MB / (now_s - before[0]))
        return None

    def _find_links(self, values: Values) -> None:
        """Ask once which links count for themselves; where none does, there is no NVLink."""
        links = range(pynvml.NVML_NVLINK_MAX_LINKS)
        received = Fields(self._handle, tuple((_LINK_BYTES[0], link) for link in links))
        counts = zip(links, received.read(values) or (), strict=False)
        counting = [link for link, count in counts if count is not None]
        if counting:
            wanted = tuple((field, link) for field in _LINK_BYTES for link in counting)
            self._fields, self._unit = Fields(self._handle, wanted), 1


def _growth(new: Sequence[int | None], old: Sequence[int | None]) -> int | None:
    """Sum what the links have counted that answered both times and did not begin anew."""
    pairs = zip(new, old, strict=True)
    grown = [n - o for n, o in pairs if n is not None and o is not None and n >= o]
    return sum(grown) if grown else None


_NVLINK_FIELDS = ("nvlink_rx_mb_s", "nvlink_tx_mb_s")


class Violation:
    """Share of the time in which a policy (power, heat) held the clocks down, in percent."""

    def __init__(self, handle: Handle, policy: int, field: str) -> None:
        self._call = function("nvmlDeviceGetViolationStatus")
        self._answer = (c_ulonglong * 2)()
        self._given = (handle, c_int(policy), byref(self._answer))
        self._field = field
        self._before: tuple[int, int] | None = None

    def read(self, values: Values) -> bool | None:
        """Poll once."""
        code = self._call(*self._given)
        before, self._before = self._before, None
        if code:
            return refused(values, code)
        reference_us, violation_ns = self._before = _TIMES.unpack_from(self._answer)
        if before is not None and reference_us > before[0] and violation_ns >= before[1]:
            share = (violation_ns - before[1]) / (1000 * (reference_us - before[0]))
            values[self._field] = round(100 * min(1.0, share))
        return None


class Samples:
    """Utilisation as the driver itself sampled it since the last poll: mean and peak."""

    def __init__(self, handle: Handle) -> None:
        self._seen_us = c_ulonglong(0)
        asked = (handle, c_int(pynvml.NVML_GPU_UTILIZATION_SAMPLES), self._seen_us, byref(c_int()))
        call = function("nvmlDeviceGetSamples")
        self._entries = Entries(call, _SAMPLE, _NUM_SAMPLES, lambda *places: (*asked, *places))

    def read(self, values: Values) -> bool | None:
        """Poll once."""
        if self._seen_us.value / 1e6 > time.time() + _FUTURE_S:
            self._seen_us.value = 0  # the clock was set back: all that comes would be older
        samples = self._entries.read(values)
        if samples is None:
            return LOST in values
        seen_us = self._seen_us.value
        new = [sample for sample in samples if sample[0] > seen_us]  # some drivers give all again
        if not new:
            return None
        self._seen_us.value = max(new)[0]
        if seen_us:  # else they are of a time before we were there
            used = [pct for _, pct in new]
            values["sm_avg_pct"] = round(sum(used) / len(used))
            values["sm_max_pct"] = max(used)
        return None


class Gpm:
    """SM, tensor and DRAM activity of one GPU between two polls (Hopper and later)."""

    def __init__(self, handle: Handle) -> None:
        """Allocate two samples.

        Raises:
            pynvml.NVMLError: this GPU has no GPM, or NVML refuses.

        """
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._handle = handle
        self._last = pynvml.nvmlGpmSampleAlloc()
        self._spare = pynvml.nvmlGpmSampleAlloc()
        self._taken_s: float | None = None
        self._sample = pynvml.nvmlLib.nvmlGpmSampleGet
        self._metrics = pynvml.nvmlLib.nvmlGpmMetricsGet
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_GPM_METRICS)
        self._place = byref(self._request)
        for number, entry in zip(_GPM_METRICS.values(), self._request.metrics, strict=False):
            entry.metricId = number

    def read(self, values: Values) -> bool | None:
        """Poll once."""
        now_s, before_s = time.monotonic(), self._taken_s
        if before_s is not None and now_s - before_s < _GPM_MIN_GAP_S:
            return None
        self._taken_s = None
        code = self._sample(self._handle, self._spare)
        if code:
            return refused(values, code)
        self._last, self._spare, self._taken_s = self._spare, self._last, now_s
        return self._compare(values) if before_s is not None else None

    def _compare(self, values: Values) -> bool | None:
        self._request.sample1, self._request.sample2 = self._spare, self._last
        code = self._metrics(self._place)
        if code:
            return refused(values, code)
        answers = _GPM_ANSWERS.unpack_from(self._request, _GPM_OFFSET)
        for name, refusal, share in zip(_GPM_METRICS, answers[::2], answers[1::2], strict=True):
            # a NaN is what GPM gives for an idle GPU on some drivers: no reading
            if not refusal and 0 <= share < math.inf:
                values[name] = round(share)
        return None


_GPM_ANSWERS = struct.Struct("<" + "4xid24x" * len(_GPM_METRICS))
"""c_nvmlGpmMetric_t: which, return code, value, and what it is called."""
_GPM_OFFSET = pynvml.c_nvmlGpmMetricsGet_t.metrics.offset

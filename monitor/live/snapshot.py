"""What a live view shows of each GPU and of all of them: readings and states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from monitor.analysis.rules_logs import is_stale
from monitor.analysis.thresholds import Thresholds
from monitor.logs import constants, throttling
from monitor.logs.columns import COLUMNS, SIGNS_OF_LIFE
from monitor.logs.gutil import parse_number
from monitor.words import natural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from monitor.live.log import LiveLog, Track
    from monitor.live.run import Progress

_SHOWN = tuple(column.name for column in COLUMNS if column.live is not None)

TREND = 64
"""Samples, for a sparkline."""

_UNKNOWN_INTERVAL_S = 15.0

LOST, STALE, THROTTLED, IDLE, GONE = "lost", "stale", "throttled", "idle", "gone"
STATES = (LOST, GONE, STALE, THROTTLED, IDLE)
"""What may be wrong, the worst first."""

_OF_GPU = ("memory_mib", "power_limit_w")
"""Facts that only a GPU that answers has."""

_AT = Thresholds()
_IDLE_S = 60 * _AT.idle_now_minutes


@dataclass(frozen=True, kw_only=True)
class Row:
    """One GPU, or a node without any (`gpu` is None); None is a reading that does not exist."""

    host: str
    gpu: int | None
    model: str
    """UUID and name, as its log has them: words to filter by."""
    util_pct: float | None
    """Of a node without a GPU: of its processors."""
    trend: NDArray[np.float32]
    """(samples,) of it, the newest last."""
    mem_mib: float | None
    mem_total_mib: float | None
    power_w: float | None
    power_limit_w: float | None
    temp_c: float | None
    pcie_mb_s: float | None
    """Both ways together."""
    readings: Mapping[str, float | None]
    """Of the further columns that the registry has a live view show, by name."""
    throttle: tuple[str, ...]
    is_throttled: bool
    """By heat or a fault; a power cap does not count."""
    idle_s: float
    """How long it has been idle until now, as far as we know."""
    quiet_s: float
    """How long its log has not grown."""
    states: tuple[str, ...]
    """What is wrong with it, the worst first."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is shown at one moment."""

    name: str
    clock: str
    """The time of day."""
    rows: tuple[Row, ...]
    """By node and GPU."""
    progress: Progress | None


class Rows:
    """Rows made anew only where something is new."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Track, tuple[tuple[object, ...], Row]] = WeakKeyDictionary()

    def of(self, logs: Iterable[LiveLog], now_s: float, *, is_over: bool) -> tuple[Row, ...]:
        """Return the rows of all logs."""
        rows = []
        for log in logs:
            quiet_s = now_s - log.alive_s
            gpus = [track for track in log.tracks if track.gpu is not None]
            tracks = gpus or log.tracks
            if not tracks:
                continue
            is_quiet = not is_over and is_stale(quiet_s, interval_s(tracks[0]), _AT)
            state = "" if not is_quiet else STALE if log.is_there else GONE
            for track in tracks:
                key = (track.num_samples, state, round(quiet_s) if state else 0)
                made = self._made.get(track)
                if made is None or made[0] != key:
                    made = self._made[track] = (key, _row(track, state, quiet_s))
                rows.append(made[1])
        return tuple(sorted(rows, key=_place))


def _place(row: Row) -> tuple[object, ...]:
    return natural(row.host), -1 if row.gpu is None else row.gpu


def interval_s(track: Track) -> float:
    """Return the interval that the log records, else that of its last samples."""
    recorded = parse_number(track.facts.get("interval_s"))
    if recorded is not None:
        return recorded
    steps = np.diff(track.time_s(12))
    steps = steps[steps > 0]
    return float(np.median(steps)) if len(steps) else _UNKNOWN_INTERVAL_S


def _row(track: Track, state: str, quiet_s: float) -> Row:
    is_gpu = track.gpu is not None
    bits = int(track.last("throt") or 0)
    idle_s = _idle_s(track) if is_gpu and not state else 0.0
    found = [
        (state, bool(state)),
        (LOST, is_gpu and not state and is_lost(track)),
        (THROTTLED, bool(bits & throttling.FAULT)),
        (IDLE, idle_s >= _IDLE_S),
    ]
    rx, tx = track.last("rxpci"), track.last("txpci")
    return Row(
        host=track.host,
        gpu=track.gpu,
        model="" if track.gpu is None else track.facts.get(f"gpu {track.gpu}", ""),
        util_pct=track.last("sm" if is_gpu else "cpu"),
        trend=track.column("sm" if is_gpu else "cpu", TREND),
        mem_mib=track.last("fb" if is_gpu else "hmem"),
        mem_total_mib=track.number("memory_mib" if is_gpu else "host_memory_mib"),
        power_w=track.last("pwr"),
        power_limit_w=track.number("power_limit_w"),
        temp_c=track.last("gtemp"),
        pcie_mb_s=None if rx is None and tx is None else (rx or 0) + (tx or 0),
        readings={name: track.last(name) for name in _SHOWN},
        throttle=throttling.names(bits),
        is_throttled=bool(bits & throttling.FAULT),
        idle_s=idle_s,
        quiet_s=quiet_s if state else 0.0,
        states=tuple(name for name, is_so in found if is_so),
    )


def is_lost(track: Track) -> bool:
    """Whether a GPU that had readings has none now."""
    names = [name for name in SIGNS_OF_LIFE if name in track.names]
    if not names or any(track.last(name) is not None for name in names):
        return False
    if any(track.number(fact) is not None for fact in _OF_GPU):
        return True  # before the part of the log that we read
    return any(not np.isnan(track.column(name)).all() for name in names)


def _idle_s(track: Track) -> float:
    """Return for how long the last samples were all idle."""
    newest = track.last("sm")
    if newest is None or newest > constants.BUSY_PCT:
        return 0.0
    time_s = track.time_s()
    # between two samples the driver's own samples may have seen work
    is_idle = np.fmax(track.column("sm"), track.column("smavg")) <= constants.BUSY_PCT
    if not is_idle[-1]:
        return 0.0
    begin = 0 if is_idle.all() else len(is_idle) - int(np.argmin(is_idle[::-1]))
    idle_s = float(np.diff(time_s[begin:]).clip(min=0).sum())  # a clock may have been set back
    return idle_s if math.isfinite(idle_s) else 0.0


@dataclass(frozen=True, kw_only=True)
class Sum:
    """All GPUs together; None where no row has a reading."""

    num_nodes: int
    num_gpus: int
    util_pct: float | None
    """Mean of the GPUs; of the nodes' processors where there is no GPU at all."""
    mem_share_pct: float | None
    power_w: float | None
    temp_c: float | None
    """The hottest."""


def total(rows: Sequence[Row]) -> Sum:
    """Sum up rows."""
    gpus = [row for row in rows if row.gpu is not None]
    seen = gpus or list(rows)
    used = [(r.mem_mib, r.mem_total_mib) for r in seen]
    known = [(mem, whole) for mem, whole in used if mem is not None and whole]
    utils = [r.util_pct for r in seen if r.util_pct is not None]
    powers = [r.power_w for r in gpus if r.power_w is not None]
    return Sum(
        num_nodes=len({row.host for row in rows}),
        num_gpus=len(gpus),
        util_pct=sum(utils) / len(utils) if utils else None,
        mem_share_pct=100 * sum(m for m, _ in known) / sum(w for _, w in known) if known else None,
        power_w=sum(powers) if powers else None,
        temp_c=max((r.temp_c for r in gpus if r.temp_c is not None), default=None),
    )

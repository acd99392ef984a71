"""`python -m monitor record`: build the recorder, run it, leave the run tidy."""

from __future__ import annotations

import gc
import os
import signal
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from monitor import __version__
from monitor.errors import UserError
from monitor.logs import gutil
from monitor.logs.sample import NO_READINGS, Reading
from monitor.recorder.loop import Recorder, SystemClock
from monitor.recorder.sink import Sink
from monitor.stop import ProcessStop, Reason
from monitor.watchdog.thread import WatchdogThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitor.logs.log_events import LogEvent
    from monitor.logs.sample import HostSample, RankSample
    from monitor.watchdog.settings import WatchSettings
    from rundir.events import EventLog

_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.1, 86400.0
_MAX_KEPT = 1000
_MAX_PID = 2**31 - 1  # what fits the kernel's pid_t
_MIB = 2**20
_GARBAGE = 20_000  # objects; the usual 700 would have it search in the middle of every poll
_Polled = TypeVar("_Polled")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to record, where to, and for how long; checked where it is built."""

    out: str
    """The log; appended to."""
    interval_s: float
    columns: str
    """pumt, then letters of the registry."""
    parent_pid: int
    """Recording ends with this process."""
    host: str
    """The node's name, for the log's head."""
    node: str | None = None
    """DDP_NODE, by which the ranks of this node are known."""
    job_id: str | None = None
    attempt: int | None = None
    launch_id: str | None = None
    """DDP_LAUNCH_ID of the ranks to end when the parent dies."""
    run_dir: str | None = None
    """Where to compose run.json at the end."""
    watch: WatchSettings | None = None
    """Which ranks to watch; None: no watchdog."""
    user: str | None = None
    heartbeat_dir: str | None = None
    """DDP_BEAT_DIR, the directory of this node's heartbeats."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES; if it names all of the job's GPUs, no others have rows."""
    num_gpus: int = 1
    """How many the job has on this node at least."""
    rotate_mib: int | None = None
    """The log is moved away at this size; None: never."""
    num_kept: int = 4
    """How many that were moved away are kept."""

    def __post_init__(self) -> None:
        """Raise UserError where a value breaks its rule."""
        if not _MIN_INTERVAL_S <= self.interval_s <= _MAX_INTERVAL_S:
            raise UserError(
                f"--interval must lie between {_MIN_INTERVAL_S:g} and {_MAX_INTERVAL_S:g} seconds",
                f"{self.interval_s:g}",
                "15 suits a long job, 1 a short look",
            )
        if not 1 <= self.parent_pid <= _MAX_PID:
            raise UserError(
                f"--parent-pid must be a process id, from 1 to {_MAX_PID}",
                self.parent_pid,
                "pass the shell's $$, or leave it out",
            )
        if self.rotate_mib is not None and self.rotate_mib < 1:
            raise UserError(
                "--rotate-mib must be a size of 1 MiB or more",
                self.rotate_mib,
                "64 holds about four days of 8 GPUs at 15 s; leave it out for one file",
            )
        if not 1 <= self.num_kept <= _MAX_KEPT:
            raise UserError(
                f"--rotate-keep must lie between 1 and {_MAX_KEPT} files",
                self.num_kept,
                "the default is 4",
            )


def record(settings: Settings, emit: Callable[[str], None]) -> int:
    """Record until asked to end; 0, whatever happened meanwhile."""
    layout = gutil.Layout(settings.columns)
    max_bytes = None if settings.rotate_mib is None else settings.rotate_mib * _MIB
    sink = Sink(settings.out, emit, max_bytes, settings.num_kept)
    signal.signal(signal.SIGHUP, lambda _signum, _frame: sink.reopen())
    stop = ProcessStop(settings.parent_pid)
    watchdog = WatchdogThread(settings.watch, emit)
    letters, folder = layout.letters, os.path.dirname(settings.out) or "."
    recorder: Recorder
    gpus = _later(lambda: _nvml(settings, letters, stop, _faults(settings, recorder.report)))
    host = _later(lambda: _host(letters, folder))
    recorder = Recorder(gpus, host, sink, layout, SystemClock(), _facts(settings), emit)
    recorder.see = watchdog.see_gpus
    if settings.heartbeat_dir and set("sq") & set(letters):
        heartbeat_dir, visible = settings.heartbeat_dir, settings.visible
        recorder.ranks = _later(lambda: _rank_gpus(heartbeat_dir, visible))
    watchdog.start()
    reason = recorder.run(stop, settings.interval_s)
    sink.close()
    _leave(settings, reason, watchdog, emit)
    return 0


def _faults(settings: Settings, record: Callable[[LogEvent], None]) -> Callable[[LogEvent], None]:
    """Take what happens to GPUs; the run, if there is one, is told of broken hardware."""
    if settings.run_dir is None:
        return record
    from monitor.recorder.gpu_faults import GpuFaults  # noqa: PLC0415 - see _later

    return GpuFaults(record, lambda: _event_log(settings), settings.node or settings.host)


def _nvml(
    settings: Settings, letters: str, stop: ProcessStop, report: Callable[[LogEvent], None]
) -> Callable[[], Reading]:
    try:
        from monitor.nvml.chosen import Named  # noqa: PLC0415 - see _later
        from monitor.nvml.source import Nvml  # noqa: PLC0415
    except (ImportError, AttributeError) as error:  # or what is called pynvml is another package
        nothing = Reading(facts=(("gpus", f"{NO_READINGS}: {error}"),))
        return lambda: nothing  # the log says so
    _spare_the_collector()
    return Nvml(letters, stop, report, named=Named(settings.visible, settings.num_gpus)).read


def _host(letters: str, folder: str) -> Callable[[], HostSample]:
    from monitor.recorder.host import Host  # noqa: PLC0415 - see _later

    return Host(letters, folder).read


def _rank_gpus(
    heartbeat_dir: str, visible: str | None
) -> Callable[[Reading], Sequence[RankSample]]:
    from monitor.recorder.rank_gpus import RankGpus  # noqa: PLC0415 - see _later

    return RankGpus(heartbeat_dir, visible).read


def _spare_the_collector() -> None:
    """Leave what is loaded for good out of every search for garbage: a poll makes next to none."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE)


def _later(build: Callable[[], Callable[..., _Polled]]) -> Callable[..., _Polled]:
    """Load and build a source at its first poll: the head of the log does not wait."""
    built = cache(build)

    def poll(*given: object) -> _Polled:
        return built()(*given)

    return poll


def _facts(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return what the head of the log says before any GPU was asked."""
    memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB
    known = (
        ("host", settings.host),
        ("monitor", f"{__version__} python {sys.version.split()[0]}"),
        ("interval_s", f"{settings.interval_s:g}"),
        ("host_memory_mib", memory_mib),
        ("user", settings.user),
        ("job", settings.job_id),
        ("attempt", settings.attempt),
    )
    return tuple((key, str(value)) for key, value in known if value)


def _leave(
    settings: Settings, reason: Reason, watchdog: WatchdogThread, emit: Callable[[str], None]
) -> None:
    """Once nothing is recorded any more: end orphaned ranks, and compose the record."""
    steps: list[Callable[[], None]] = [watchdog.end]
    if reason is Reason.ORPHANED and settings.launch_id:
        steps.append(lambda: _end_orphans(settings, emit))
        steps.append(lambda: _remove_heartbeats(settings.watch))
    if settings.run_dir is not None:
        steps.append(lambda: _compose(settings.run_dir or ""))
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the monitor never fails the job
            emit(str(error) if isinstance(error, UserError) else f"at the end: {error}")


def _end_orphans(settings: Settings, emit: Callable[[str], None]) -> None:
    from monitor.watchdog.orphans import end  # noqa: PLC0415

    ended = end(settings.launch_id or "", settings.node)
    if not ended.asked:
        return
    pids = ", ".join(map(str, ended.asked))
    emit(f"the launcher of {settings.host} died; ended what it left behind: {pids}")
    if settings.run_dir is not None:
        log = _event_log(settings)
        log.write("orphans", node=settings.host, pids=ended.asked, killed=ended.killed)


def _event_log(settings: Settings) -> EventLog:
    from rundir import channel, events  # noqa: PLC0415

    deliver = channel.reporter(settings.run_dir or "", settings.host)
    return events.EventLog(deliver, "monitor", settings.attempt or 1, settings.host)


def _remove_heartbeats(watch: WatchSettings | None) -> None:
    """Do what the launcher, which made the directory, can no longer do."""
    if watch is not None:
        import shutil  # noqa: PLC0415

        shutil.rmtree(watch.heartbeat_dir, ignore_errors=True)


def _compose(run_dir: str) -> None:
    from monitor.runs.record import compose_file  # noqa: PLC0415

    compose_file(run_dir)

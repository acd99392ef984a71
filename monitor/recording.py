"""`python -m monitor record`: build the recorder, run it, leave the run tidy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor import __version__, gutil
from monitor.errors import UserError
from monitor.recorder import BoundedSource, Recorder, SystemClock
from monitor.sample import Reading
from monitor.sink import Sink
from monitor.stop import ProcessStop, Reason
from monitor.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor import orphans
    from monitor.sample import GpuSource, HostSample, HostSource
    from monitor.watch_settings import WatchSettings

_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.1, 86400.0
_LIMIT_S = 5.0  # a look at the GPUs that takes longer leaves its cells empty


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to record, where to, and for how long; checked where it is built."""

    out: str
    """The log; appended to."""
    interval_s: float
    columns: str
    """pumt, then letters of `gutil.FURTHER_LETTERS`."""
    parent_pid: int
    """Recording ends with this process."""
    host: str
    """The node's name, for the log's head."""
    node: str | None = None
    """DDP_NODE, by which the ranks of this node are known."""
    job_id: str | None = None
    attempt: str | None = None
    launch_id: str | None = None
    """DDP_LAUNCH_ID of the ranks to end when the parent dies."""
    run_dir: str | None = None
    """Where to compose run.json at the end."""
    watch: WatchSettings | None = None
    """Which ranks to watch; None: nobody watches."""

    def __post_init__(self) -> None:
        """Raise UserError where a value breaks its rule."""
        if not _MIN_INTERVAL_S <= self.interval_s <= _MAX_INTERVAL_S:
            raise UserError(
                f"--interval: must lie between {_MIN_INTERVAL_S:g} and {_MAX_INTERVAL_S:g}"
                f" seconds; found {self.interval_s:g}: 15 suits a long job, 1 a short look"
            )
        if self.parent_pid < 1:
            raise UserError(
                f"--parent-pid: must be a process id of 1 or more; found {self.parent_pid}:"
                " pass the shell's $$, or leave it out"
            )


def record(settings: Settings, say: Callable[[str], None]) -> int:
    """Record until told to end; 0, whatever happened meanwhile.

    Raises:
        UserError: the input is wrong.

    """
    layout = gutil.Layout(settings.columns)
    sink = Sink(settings.out, say)
    stop = ProcessStop(settings.parent_pid)
    watcher = Watcher(settings.watch, say)
    gpus = watcher.shown(BoundedSource(_Gpus(layout.letters), _LIMIT_S, stop))
    recorder = Recorder(gpus, _Host(), sink, layout, SystemClock(), _facts(settings), say)
    watcher.start()
    reason = recorder.run(stop, settings.interval_s)
    sink.close()
    _leave(settings, reason, watcher, say)
    return 0


class _Gpus:
    """NVML, imported at the first look: the head of the log does not wait for it."""

    def __init__(self, letters: str) -> None:
        self._letters = letters
        self._source: GpuSource | None = None

    def read(self) -> Reading:
        if self._source is None:
            try:
                from monitor.nvml import Nvml  # noqa: PLC0415
            except ImportError as error:
                return Reading(facts=(("gpus", f"no readings: {error}"),))
            self._source = Nvml(self._letters)
        return self._source.read()


class _Host:
    """psutil, imported at the first look."""

    def __init__(self) -> None:
        self._source: HostSource | None = None

    def read(self) -> HostSample:
        if self._source is None:
            from monitor.host import Host  # noqa: PLC0415

            self._source = Host()
        return self._source.read()


def _facts(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Tell what the head of the log says before any GPU was asked."""
    known = (
        ("host", settings.host),
        ("monitor", f"{__version__} python {sys.version.split()[0]}"),
        ("interval_s", f"{settings.interval_s:g}"),
        ("job", settings.job_id),
        ("attempt", settings.attempt),
    )
    return tuple((key, value) for key, value in known if value)


def _leave(
    settings: Settings, reason: Reason, watcher: Watcher, say: Callable[[str], None]
) -> None:
    """Once nothing is recorded any more: end orphaned ranks, and compose the record."""
    steps: list[Callable[[], None]] = [watcher.end]
    if reason is Reason.ORPHANED and settings.launch_id:
        steps.append(lambda: _end_orphans(settings, say))
        steps.append(lambda: _remove_beats(settings.watch))
    if settings.run_dir is not None:
        steps.append(lambda: _compose(settings.run_dir or ""))
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the monitor never fails the job
            say(f"at the end: {error}")


def _end_orphans(settings: Settings, say: Callable[[str], None]) -> None:
    from monitor.orphans import end  # noqa: PLC0415

    ended = end(settings.launch_id or "", settings.node)
    if not ended.asked:
        return
    pids = ", ".join(map(str, ended.asked))
    say(f"the launcher of {settings.host} died; ended what it left behind: {pids}")
    if settings.run_dir is not None:
        _tell(settings, ended)


def _tell(settings: Settings, ended: orphans.Ended) -> None:
    from monitor.events import EventLog  # noqa: PLC0415

    log = EventLog(f"{settings.run_dir}/events.jsonl", _attempt(settings), settings.host)
    log.append("orphans", node=settings.host, pids=ended.asked, killed=ended.killed)


def _attempt(settings: Settings) -> int:
    attempt = settings.attempt or ""
    return int(attempt) if attempt.isdecimal() else 1


def _remove_beats(watch: WatchSettings | None) -> None:
    """Do what the launcher, which made the directory, can no longer do."""
    if watch is not None:
        import shutil  # noqa: PLC0415

        shutil.rmtree(watch.beat_dir, ignore_errors=True)


def _compose(run_dir: str) -> None:
    from monitor.record import compose_file  # noqa: PLC0415

    compose_file(run_dir)

"""The GPUs of this node through NVML, which only `monitor/nvml/` opens.

Nothing here raises or hangs: a reading that NVML refuses is None, a call that hangs costs its own
cells, a lost GPU keeps its place with nothing but its index, and when NVML itself is gone it is
started again now and then.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pynvml

from monitor.logs.log_events import LogEvent
from monitor.logs.sample import NO_READINGS, GpuSample, Reading
from monitor.nvml.calls import LOST, OVER, quietly
from monitor.nvml.chosen import ALL, Named, keep
from monitor.nvml.events import Events
from monitor.nvml.gpu import Gpu
from monitor.nvml.workers import Job, WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitor.nvml.calls import Handle
    from monitor.nvml.workers import Values
    from monitor.stop import ProcessStop

Facts = tuple[tuple[str, str], ...]

_POLL_S = 5.0  # a poll that takes longer leaves its other cells empty
_START_S = 5.0  # without persistence mode the driver itself is started first
_RETRY_S = 60.0
_NO_OWNER = -1


class Nvml:
    """All GPUs of this node. `report` is called from any thread; `stop` cuts a poll short."""

    def __init__(
        self,
        letters: str,
        stop: ProcessStop,
        report: Callable[[LogEvent], None],
        monotonic: Callable[[], float] = time.monotonic,
        named: Named = ALL,
    ) -> None:
        self._letters = letters
        self._report = report
        self._monotonic = monotonic
        self._named = named
        self._next_start_s = monotonic()
        self._pool = WorkerPool("nvml", stop, self._report_slow)
        self._start_job = Job(_NO_OWNER, "nvmlInit", self._start, timeout_s=_START_S)
        self._catch_up_job = Job(_NO_OWNER, "nvmlDeviceGetName", self._catch_up)
        self._is_behind = False
        """Whether a GPU is back of which there is more to learn."""
        self._started: Values = {}
        """What the start has found; it may come back after it was given up."""
        self._alive = False
        self._gpus: tuple[Gpu, ...] = ()
        self._facts: Facts = ()
        self._is_renumbered = False
        self._events: Events | None = None
        self._lost: set[int] = set()
        self._remaps: dict[int, tuple[int, tuple[bool, bool]]] = {}

    def read(self) -> Reading:
        """Poll once; raises nothing. GPUs seen before keep their row when NVML is dead."""
        if not self._alive:
            self._try_start()
        if not self._alive:
            lost = tuple(GpuSample(index=gpu.index) for gpu in self._gpus)
            return Reading(lost, self._all_facts, self._is_renumbered)
        found = self._poll()
        samples = tuple(self._see(gpu, found[gpu.index]) for gpu in self._gpus)
        is_silent = all(not values or LOST in values for values in found.values())
        is_over = is_silent or any(OVER in values for values in found.values())
        if is_over and not self._pool.is_stuck:
            self._stop()  # not one reading of any GPU: the library is dead, not a GPU
        return Reading(samples, self._all_facts + self._mig_facts(found), self._is_renumbered)

    def _poll(self) -> dict[int, Values]:
        """Make the calls of all GPUs; what they found, by index."""
        jobs = [job for gpu in self._gpus for job in gpu.due()]
        found: dict[int, Values] = {gpu.index: {} for gpu in self._gpus}
        learned: Values = {}
        if self._is_behind:
            jobs.append(self._catch_up_job)
        self._pool.run(jobs, {**found, _NO_OWNER: learned}, _POLL_S)
        if "facts" in learned:
            self._is_behind = False
            self._facts = learned["facts"]
        return found

    @property
    def handles(self) -> dict[int, Handle]:
        """NVML's handles of the GPUs that answered, by index, for calls beside a poll."""
        return {gpu.index: gpu.handle for gpu in self._gpus if gpu.handle is not None}

    def _see(self, gpu: Gpu, found: Values) -> GpuSample:
        """Make a sample of what was read, and report what has changed."""
        if OVER in found:
            return GpuSample(index=gpu.index)
        values = gpu.complete(found)
        is_lost = values.pop(LOST, False) or not gpu.jobs
        if is_lost != (gpu.index in self._lost):
            self._lost ^= {gpu.index}
            self._report(LogEvent(time.time(), "lost" if is_lost else "back", gpu.index))
            self._is_behind |= not is_lost
        values.pop("mig_used_mib", None)
        state = values.pop("remap_state", None)
        if state is not None:
            self._see_remap(gpu.index, values["remapped_rows"], state)
        return GpuSample(index=gpu.index, **({} if is_lost else values))

    def _see_remap(self, index: int, num_rows: int, state: tuple[bool, bool]) -> None:
        """Report rows that were replaced since the last poll, or wait to be."""
        before = self._remaps.get(index, (num_rows, (False, False)))
        self._remaps[index] = (num_rows, state)
        if before == (num_rows, state):
            return
        pending, failed = ("yes" if flag else "no" for flag in state)
        details = {"rows": str(num_rows), "pending": pending, "failed": failed}
        self._report(LogEvent(time.time(), "remap", index, details))

    def _report_slow(self, job: Job) -> None:
        """Report a call that hangs: its cells stay empty until it comes back."""
        index = None if job.owner == _NO_OWNER else job.owner
        self._report(LogEvent(time.time(), "slow", index, {"call": job.kind}))

    def _try_start(self) -> None:
        """Start where it is time to, or take what a start has found that came back late."""
        is_late = bool(self._started)
        if not is_late and (self._start_job.is_stuck or self._monotonic() < self._next_start_s):
            return
        if not is_late:
            self._next_start_s = self._monotonic() + _RETRY_S
            self._pool.run([self._start_job], {_NO_OWNER: self._started}, _START_S)
        started = self._started
        if not started:
            self._facts = self._with_count(f"{NO_READINGS}: no answer within {_START_S:g} s")
            return
        self._started = {}
        self._facts = started["facts"]
        if "gpus" in started:
            self._gpus, self._events = started["gpus"], started["events"]
            self._alive = len(self._gpus) > 0

    def _start(self, started: Values) -> None:
        """Start NVML, and learn what there is; a call of the pool, for it may hang."""
        if self._events is not None and self._events.is_over():
            with suppress(pynvml.NVMLError):  # it may be dead already
                pynvml.nvmlShutdown()
        try:
            pynvml.nvmlInit()
            started |= self._open_all(pynvml.nvmlDeviceGetCount())
        except Exception as error:  # noqa: BLE001 - also a driver that this nvidia-ml-py misreads
            started |= {"facts": self._with_count(f"{NO_READINGS}: {error}")}

    def _open_all(self, num_gpus: int) -> Values:
        gpus = tuple(self._find(num_gpus))
        events = Events(self._report)
        events.start({gpu.index: gpu.handle for gpu in gpus if gpu.jobs})
        return {"gpus": gpus, "events": events, "facts": self._learn(gpus)}

    def _catch_up(self, values: Values) -> None:
        """Learn what is known of GPUs that are back, and watch their events; may hang."""
        values["facts"] = self._learn(self._gpus)
        if self._events is not None:
            self._events.go_on({gpu.index: gpu.handle for gpu in self._gpus if gpu.jobs})

    def _find(self, num_gpus: int) -> list[Gpu]:
        """Open the job's GPUs; at a start anew those of before, also one that counts no more."""
        known = {gpu.index: gpu.uuid for gpu in self._gpus}
        gpus = []
        for index in known or range(num_gpus):
            others = frozenset(uuid for i, uuid in known.items() if uuid and i != index)
            gpu = Gpu(index, self._letters, self._monotonic, uuid=known.get(index), others=others)
            gpu.open({})
            gpus.append(gpu)
        ours = [gpu for gpu in gpus if known or not gpu.is_denied]
        wanted = self._named.among(num_gpus)
        if not known:
            self._is_renumbered = len(ours) < num_gpus
        if known or wanted is None or self._is_renumbered:  # else a cgroup has chosen already
            return ours
        return keep(ours, wanted)

    def _learn(self, gpus: tuple[Gpu, ...]) -> Facts:
        known = dict(self._facts)
        learned = {
            "gpus": str(len(gpus)) if gpus else f"{NO_READINGS}: NVML finds none",
            "driver": str(quietly(pynvml.nvmlSystemGetDriverVersion) or "-"),
            "nvml": str(quietly(pynvml.nvmlSystemGetNVMLVersion) or "-"),
        }
        for gpu in gpus:
            found = dict(gpu.facts())
            if gpu.handle is None:  # it may be back
                found |= {k: v for k, v in known.items() if _index_of(k) == str(gpu.index)}
            learned |= {k: known.get(k, "-") if v == "-" else v for k, v in found.items()}
        return tuple(learned.items())

    @property
    def _all_facts(self) -> Facts:
        return (*self._facts, *([("events", self._events.fact)] if self._events else []))

    def _with_count(self, text: str) -> Facts:
        """Give first how many GPUs there are, or why there are no readings."""
        return (("gpus", text), *(fact for fact in self._facts if fact[0] != "gpus"))

    def _mig_facts(self, found: dict[int, Values]) -> Facts:
        used = ((gpu.index, found[gpu.index].get("mig_used_mib")) for gpu in self._gpus if gpu.mig)
        return tuple((f"mig_used_mib {index}", _join(mib)) for index, mib in used if mib)

    def _stop(self) -> None:
        self._alive = False
        self._facts = self._with_count(f"{NO_READINGS}: NVML answers nothing more")
        self._next_start_s = self._monotonic() + _RETRY_S
        if self._events is not None:
            self._events.end()
        for gpu in self._gpus:
            gpu.close()


def _index_of(key: str) -> str:
    """Return whose fact this is: `gpu 1` and `mig 1.0` are of GPU 1."""
    return key.rpartition(" ")[2].partition(".")[0]


def _join(mib: tuple[int | None, ...]) -> str:
    return " ".join("-" if one is None else str(one) for one in mib)

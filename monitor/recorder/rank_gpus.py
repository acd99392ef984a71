"""Which rank computes on which GPU, and how far it is: NVML's processes beside the heartbeats.

A process on a GPU is a rank's if it, or a process above it, is the one with a heartbeat or that the
launcher started; and one that has left those above it is whose variables it has. Most drivers
report the pids that the machine's first namespace has: in a container that has pids of its own they
are no process's here, until a rank's own pid is among those of the very GPU that its heartbeat
names. Until then a rank that names its GPU is known to be there, and not what it holds.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from monitor.logs.sample import GpuSample, RankSample, Reading
from monitor.recorder.memory_owners import Owners, attribute
from monitor.watchdog import heartbeats
from monitor.watchdog.bounded import Bounded
from monitor.watchdog.visible import VISIBLE, gpu_of
from rundir.procfs import environment, parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rundir.heartbeat import Child, Heartbeat

_LIST_S = 5.0  # how often to list the ranks; where they are is looked up each time
_READ_S = 0.2
_MAX_DEPTH = 12
_NOTHING = Owners()
_FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel


class RankGpus:
    """The ranks of this node, by the GPU they are on."""

    def __init__(
        self,
        directory: str,
        visible: str | None = None,
        *,
        shares_pids: bool | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read a directory of heartbeats.

        Args:
            directory: DDP_BEAT_DIR.
            visible: CUDA_VISIBLE_DEVICES of ranks whose own cannot be read; None: all GPUs.
            shares_pids: whether NVML's pids are ours; None: ask the kernel.
            monotonic: the clock by which to list new ranks, in seconds.

        """
        self._directory = directory
        self._visible = visible
        self._shares_pids = _shares_pids() if shares_pids is None else shares_pids
        self._monotonic = monotonic
        self._heartbeats: dict[int, Heartbeat] = {}
        """The last of each rank: one that is just being written does not count."""
        self._children: Mapping[int, Child] = {}
        self._memory = Bounded("ranks")  # the kernel may hold up who reads a process's memory
        self._env_of: dict[int, Mapping[str, str]] = {}
        """By pid of a rank's command, its own variables."""
        self._index_of: dict[int, int] = {}
        """By rank, the GPU that it should be on."""
        self._of_pid: dict[int, int | None] = {}
        """Whose process it is; None: no rank's."""
        self._owned: dict[int | None, Owners] = {}
        """By GPU."""
        self._seen: dict[int | None, tuple[tuple[int, int | None], ...]] = {}
        """By GPU, the processes that `_owned` is about, since the ranks were listed."""
        self._listed_s = -_LIST_S

    def read(self, reading: Reading) -> list[RankSample]:
        """Poll once: a sample for each GPU; raises nothing."""
        now_s = self._monotonic()
        is_due = now_s - self._listed_s >= _LIST_S
        before = {} if is_due else self._heartbeats
        self._heartbeats = found = before | heartbeats.read_heartbeats(self._directory)
        if is_due:
            self._listed_s = now_s
            self._children = heartbeats.read_children(self._directory)
            self._of_pid = {child.pid: rank for rank, child in self._children.items()}
            self._of_pid |= {heartbeat.pid: rank for rank, heartbeat in found.items()}
            self._seen = {}
            self._place(found, reading)
        return [self._sample(gpu, found) for gpu in reading.gpus]

    def _place(self, found: Mapping[int, Heartbeat], reading: Reading) -> None:
        """Find which GPU each rank should be on, and whether NVML's pids are those of here."""
        self._index_of = {}
        for rank in sorted(found.keys() | self._children.keys()):
            uuid = found[rank].gpu if rank in found else None
            child = self._children.get(rank)
            env = self._environment(child.pid) if child and uuid is None else {}
            if uuid or child:
                index = gpu_of(env, child.local_rank if child else None, reading, uuid)[1]
                if index is not None:
                    self._index_of[rank] = index
        self._shares_pids = self._shares_pids or any(
            pid == found[rank].pid
            for gpu in reading.gpus
            for pid, _ in gpu.processes
            for rank, index in self._index_of.items()
            if index == gpu.index and rank in found and found[rank].gpu
        )

    def _sample(self, gpu: GpuSample, found: Mapping[int, Heartbeat]) -> RankSample:
        owners = self._owners(gpu) if self._shares_pids else _NOTHING
        ranks = self._mapped(gpu, found) if owners.rank is None else [owners.rank]
        heartbeat = found.get(ranks[0]) if ranks else None
        step = heartbeat.step if heartbeat else None
        is_known = len(ranks) == 1 and heartbeat is not None and heartbeat.gpu is not None
        return RankSample(
            step=step,
            rank=ranks[0] if is_known else owners.rank,
            held_mib=owners.rank_mib,
            other_mib=owners.other_mib,
            processes=owners.words,
        )

    def _owners(self, gpu: GpuSample) -> Owners:
        """Find the ranks again where the processes are not those of the poll before."""
        index = gpu.index
        if self._seen.get(index) is not gpu.processes:
            before = self._owned.get(index, _NOTHING)
            self._owned[index] = attribute(gpu.processes, self._rank_of, before)
            self._seen[index] = gpu.processes
        return self._owned[index]

    def _rank_of(self, pid: int) -> int | None:
        """Find whose process it is: its own, by those above it, or by its variables."""
        if pid not in self._of_pid:
            above = parent(pid)
            for _ in range(_MAX_DEPTH):
                if above is None or above in self._of_pid:
                    break
                above = parent(above)
            by_place = None if above is None else self._of_pid.get(above)
            self._of_pid[pid] = self._by_variables(pid) if by_place is None else by_place
        return self._of_pid[pid]

    def _by_variables(self, pid: int) -> int | None:
        """Find the rank of a daemon that one has left behind on purpose, as Ray's are."""
        env = self._memory.question(lambda: environment(pid), _READ_S) or {}
        rank = env.get("RANK", "")
        is_ours = env.get("DDP_BEAT_DIR") == self._directory
        return int(rank) if is_ours and rank.isdecimal() else None

    def _mapped(self, gpu: GpuSample, found: Mapping[int, Heartbeat]) -> list[int]:
        """Return whose GPU it should be."""
        if gpu.index is None:  # a node without GPUs is as far as the last of its ranks
            return sorted(found, key=lambda rank: found[rank].step)
        return [rank for rank, index in self._index_of.items() if index == gpu.index]

    def _environment(self, pid: int) -> Mapping[str, str]:
        if pid not in self._env_of:
            env = self._memory.question(lambda: environment(pid), _READ_S)
            self._env_of[pid] = env or ({} if self._visible is None else {VISIBLE: self._visible})
        return self._env_of[pid]


def _shares_pids() -> bool:
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return False

"""The newest states of a run in its nodes' memory, for a restart within the same job.

A rank copies what it holds, but for what another rank of its node copies, into a file in /dev/shm
whose pages are the buffer. A thread adds its SHA-256 and sends it to a rank of the next node. A
state counts when every rank has done so; until then the one before is kept. In a node's directory:

    <rank>.<slot>        tensors, one after the other; there are two slots
    <rank>.<slot>.json   the step, where each tensor lies, the SHA-256; without it the file is void
    child-<rank>         that rank's process: while one lives, agents of other jobs leave all this
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import threading
import time
from dataclasses import asdict
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from rundir import heartbeat
from rundir.paths import snapshots_prefix
from trainer.checkpoint import manifest, saving
from trainer.checkpoint.host_copies import (
    divide,
    local_of,
    missing_memory,
    num_local_bytes,
    part_of,
)
from trainer.checkpoint.layout import loss_sum_of
from trainer.checkpoint.loading import Stored
from trainer.checkpoint.process_group import ProcessGroup
from trainer.checkpoint.snapshot_files import lay_out, map_pages, name_of, view
from trainer.checkpoint.train_state import State
from trainer.distributed import host_memory
from trainer.errors import UserError, short_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from trainer.checkpoint.train_state import TrainState
    from trainer.distributed.mesh import Mesh
    from trainer.telemetry.events import EventLog

MEMORY = Path("/dev/shm")  # noqa: S108 -- the directory in it is checked to be ours
_NUM_SLOTS = 2
_EVENT_INTERVAL_S = 60
_REMEDY = "give the job more memory, or a larger /dev/shm"


class Snapshots:
    """Those of a run, as one rank works with them. Every method is called by all ranks together."""

    def __init__(  # noqa: PLR0913 -- all of it by name
        self,
        mesh: Mesh,
        events: EventLog,
        *,
        every: int,
        launch_id: str,
        run_dir: Path,
        state_of: Callable[[TrainState], State],
        memory: Path = MEMORY,
        num_free_bytes: Callable[[], int] = host_memory.num_free_bytes,
    ) -> None:
        self.every = every
        """Steps from one to the next; 0: there are none."""
        self._mesh = mesh
        self._events = events
        self._state_of = state_of
        self._memory = memory
        self._num_free_bytes = num_free_bytes
        self._rank = mesh.ranks.rank
        self._peers = [r for r, node in enumerate(mesh.nodes) if node == mesh.nodes[self._rank]]
        self._keepers = keepers(mesh.nodes)
        self._kept = [rank for rank, keeper in self._keepers.items() if keeper == self._rank]
        self._layout = f"{mesh.layout.describe()} {[mesh.nodes.index(n) for n in mesh.nodes]}"
        """A snapshot fits the same layout, on nodes of the same numbers of ranks, only."""
        self._shapes: dict[str, torch.Size] = {}
        self._parts: list[dict[str, Any]] = []
        self._held: dict[str, tuple[list[int], str]] = {}
        self._buffers: dict[tuple[int, int], Tensor] = {}
        self._good: dict[int, int] = {}
        """Of each rank whose files this one writes: the slot of its last complete one."""
        self._num_bytes = 0
        self._is_open = False
        self._thread: threading.Thread | None = None
        self._is_copied = threading.Event()
        self._is_copied.set()
        self._problem = ""
        self._event_s = -float(_EVENT_INTERVAL_S)
        if every:
            self._group = ProcessGroup(mesh)
            self._open(*self._group.share((launch_id, run_dir)))

    def is_due(self, step: int) -> bool:
        """Whether to take one at this step."""
        return self.every > 0 and step % self.every == 0

    def _open(self, launch_id: str, run_dir: Path) -> None:
        problem = "" if launch_id else "no launcher that would restart the ranks"
        if launch_id:
            node = self._mesh.nodes[self._rank]
            run = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:8]  # a job may have several
            self._path = self._memory / f"{snapshots_prefix(launch_id)}{run}.{node}"
            try:
                self._path.mkdir(mode=0o700, exist_ok=True)
                found = self._path.lstat()  # its name can be guessed
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                    problem = f"{self._path} is another user's"
                child = heartbeat.child_line(
                    os.getpid(), self._mesh.ranks.local_rank, is_trainer=True
                )
                (self._path / f"{heartbeat.CHILD_PREFIX}{self._rank}").write_bytes(child)
            except OSError as error:
                problem = short_line(error)
        self._is_open = not self._give_up(self._group.first_problem(problem))

    def _give_up(self, problem: str) -> bool:
        """If there is a problem, report it, and do without snapshots from now on."""
        if problem:
            self.every = 0
            if self._is_open:
                shutil.rmtree(self._path, ignore_errors=True)
            self._buffers = {}
            self._mesh.warn(f"training goes on without snapshots in memory: {problem}")
        return bool(problem)

    def _file(self, rank: int, slot: int) -> Path:
        return self._path / f"{rank}.{slot}"

    def _index(self, rank: int, slot: int) -> Path:
        return self._path / f"{rank}.{slot}.json"

    # ---- taking one ------------------------------------------------------------------------------

    def take(
        self, shared: Mapping[str, Tensor], own: Mapping[str, Tensor], state: TrainState
    ) -> None:
        """Begin to copy the state; a thread does that. Waits for the one before.

        Of what ranks have in common, `shared`, one of a node copies each tensor, and that may not
        change before `wait_for_copy`, so a step's update waits. `own` is copied at once.
        """
        self.wait()
        if not self.every:
            return
        began_s = time.monotonic()
        tensors = {**shared, **own}
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if shapes != self._shapes:  # as they are since the optimizer's first step, on every rank
            if self._give_up(self._plan(shared, own)):
                return
            self._shapes = shapes
        slot = self._next_slot(self._rank)
        self._index(self._rank, slot).unlink(missing_ok=True)
        self._copy(own, slot)
        self._is_copied.clear()
        stream = None
        if self._mesh.device.type == "cuda":
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
        # A daemon: a process that must end does not wait for a rank that is gone.
        self._thread = threading.Thread(
            target=self._complete,
            args=(shared, stream, slot, state, began_s),
            name="snapshot",
            daemon=True,
        )
        self._thread.start()

    def _copy(self, tensors: Mapping[str, Tensor], slot: int) -> None:
        buffer = self._buffers[self._rank, slot]
        with torch.no_grad():
            for part in self._parts:
                if part["name"] in tensors:
                    source = local_of(tensors[part["name"]])
                    view(buffer, part).copy_(source, non_blocking=True)
        if self._mesh.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def wait_for_copy(self) -> None:
        """Wait until weights and the optimizer's state are copied. Only this rank waits."""
        self._is_copied.wait()

    def wait(self) -> None:
        """Wait for the one that is being completed; after it, all ranks know of a failure."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._give_up(self._problem)

    def _next_slot(self, rank: int) -> int:
        return 1 - self._good.get(rank, 1)

    def _plan(self, shared: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
        """Share out what a node's ranks have in common, and get the memory; return a problem."""
        held = self._group.gather({part_of(n, t): num_local_bytes(t) for n, t in shared.items()})
        share = divide([held[peer] for peer in self._peers])[self._peers.index(self._rank)]
        tensors = {n: t for n, t in shared.items() if part_of(n, t) in share} | dict(own)
        self._parts, size = lay_out(tensors)
        self._held = {n: (list(t.shape), name_of(t.dtype)) for n, t in {**shared, **own}.items()}
        sizes = self._group.gather(size)
        self._num_bytes = sum(sizes)
        files = {(r, s): sizes[r] for r in (self._rank, *self._kept) for s in range(_NUM_SLOTS)}
        present = sum(p.stat().st_size for p in starmap(self._file, files) if p.exists())
        free = min(self._num_free_bytes(), saving.num_free_bytes(self._path))
        asked = self._group.gather((sum(files.values()) - present, free))
        problem = missing_memory(self._mesh.nodes, *zip(*asked, strict=True), remedy=_REMEDY)
        if problem:
            return problem
        try:
            self._pin(is_pinned=False)
            self._buffers = {key: map_pages(self._file(*key), n) for key, n in files.items()}
            self._pin(is_pinned=True)
        except OSError as error:
            problem = f"{short_line(error)} ({_REMEDY})"
        return self._group.first_problem(problem)

    def _pin(self, *, is_pinned: bool) -> None:
        """Let a GPU write the buffers by itself; where it cannot, the copies are slower."""
        if self._mesh.device.type == "cuda":
            cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            for buffer in self._buffers.values():
                if is_pinned:
                    cuda.cudaHostRegister(buffer.data_ptr(), buffer.numel(), 0)
                else:
                    cuda.cudaHostUnregister(buffer.data_ptr())

    # ---- in the thread ---------------------------------------------------------------------------

    def _complete(
        self,
        tensors: Mapping[str, Tensor],
        stream: torch.cuda.Stream | None,
        slot: int,
        state: TrainState,
        began_s: float,
    ) -> None:
        """Copy, write the index of that, exchange it with other nodes, report the outcome."""
        text, problem = "", ""
        try:
            with torch.cuda.stream(stream):
                self._copy(tensors, slot)
        except Exception as error:  # noqa: BLE001 -- the other ranks wait for the outcome
            problem = short_line(error)
        self._is_copied.set()
        try:
            if not problem:
                text = self._describe(slot, state)
                self._write_index(self._rank, slot, text)
        except Exception as error:  # noqa: BLE001 -- the other ranks wait for the outcome
            problem = short_line(error)
        try:
            received = self._exchange(slot, text)
            problem = self._group.first_problem(problem or received)
        except Exception as error:  # noqa: BLE001 -- such as another rank's death
            problem = short_line(error)
        self._problem = problem
        if problem:
            return
        self._good |= {rank: self._next_slot(rank) for rank in (self._rank, *self._kept)}
        now_s = time.monotonic()
        if self._mesh.ranks.is_main and now_s - self._event_s >= _EVENT_INTERVAL_S:
            self._event_s, seconds = now_s, round(now_s - began_s, 4)
            self._events.write("snapshot", step=state.step, bytes=self._num_bytes, seconds=seconds)

    def _describe(self, slot: int, state: TrainState) -> str:
        return json.dumps(
            {
                "step": state.step,
                "layout": self._layout,
                "state": self._state_of(state).to_json(),
                "file": asdict(manifest.examine(self._file(self._rank, slot))),
                "held": self._held,
                "parts": self._parts,
            }
        )

    def _write_index(self, rank: int, slot: int, text: str) -> None:
        beside = self._path / f".{rank}.{slot}.partial"
        beside.write_text(text, encoding="utf-8")
        beside.replace(self._index(rank, slot))

    def _exchange(self, slot: int, text: str) -> str:
        """Send this rank's to its keeper, receive those that it keeps; return what went wrong."""
        sent: list[Any] = []
        if self._keepers:
            sent = self._send(self._keepers[self._rank], text, self._buffers[self._rank, slot])
        problem = ""
        for rank in self._kept:
            kept_slot = self._next_slot(rank)
            self._index(rank, kept_slot).unlink(missing_ok=True)
            kept, _ = self._receive_index(rank)
            dist.recv(self._buffers[rank, kept_slot], src=rank, group=self._group.handle)
            try:
                self._write_index(rank, kept_slot, kept)
            except OSError as error:
                problem = short_line(error)
        for work, _ in sent:
            work.wait()
        return problem

    def _send(self, rank: int, text: str, data: Tensor) -> list[Any]:
        """Begin to send an index and its file; return what to wait for, and to keep till then."""
        index = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        messages = torch.tensor([index.numel(), data.numel()]), index, data
        return [(dist.isend(one, dst=rank, group=self._group.handle), one) for one in messages]

    def _receive_index(self, rank: int) -> tuple[str, int]:
        """Receive an index; also return the size of the file that follows."""
        sizes = torch.zeros(2, dtype=torch.int64)
        dist.recv(sizes, src=rank, group=self._group.handle)
        index = torch.empty(int(sizes[0]), dtype=torch.uint8)
        dist.recv(index, src=rank, group=self._group.handle)
        return bytes(index.numpy()).decode(), int(sizes[1])

    # ---- going on from one -----------------------------------------------------------------------

    def load(
        self, after: int, prepare: Callable[[Stored], dict[str, Tensor]]
    ) -> tuple[dict[str, Tensor], TrainState, Path] | None:
        """Load the newest one, if it is of a step `after` that which rank 0 names; else None.

        `prepare` is given what this rank held, and returns the tensors to read it into.
        """
        if not self.every:
            return None
        after = self._group.share(after)
        found = self._group.gather(self._list())
        loaded = None
        for step in _complete_steps(found):
            if step > after and loaded is None:
                loaded = self._load(step, found, prepare)
        self._keep_only(None if loaded is None else loaded[1].step)
        self._group.gather(None)  # no rank writes before all have looked
        return loaded

    def _load(
        self,
        step: int,
        found: list[dict[tuple[int, int], int]],
        prepare: Callable[[Stored], dict[str, Tensor]],
    ) -> tuple[dict[str, Tensor], TrainState, Path] | None:
        loaded, problem = None, ""
        try:
            self._fetch(step, found)
            self._verify(step)
        except manifest.DamagedError as error:
            problem = f"rank {self._rank}: {error}"
        except (OSError, LookupError) as error:
            problem = f"rank {self._rank}: {short_line(error)}"
        problem = self._group.first_problem(problem)
        slots = {rank: slot for (s, rank), slot in self._list().items() if s == step}
        if not problem:
            try:
                loaded = *self._read(slots, prepare), self._path
            except UserError:
                raise
            except Exception as error:  # noqa: BLE001 -- the disk has a checkpoint
                problem = f"rank {self._rank}: {short_line(error)}"
            problem = self._group.first_problem(problem)
        if problem:
            self._mesh.warn(f"the snapshot of step {step} is not used: {problem}")
            return None
        self._good = {r: slots[r] for r in (self._rank, *self._kept) if r in slots}
        return loaded

    def _list(self) -> dict[tuple[int, int], int]:
        """Return the slot of each (step, rank) that is on this node and of the run's layout."""
        slots = {}
        for path in self._path.glob("*.json"):
            rank, slot, _ = path.name.split(".")
            with contextlib.suppress(OSError, ValueError, KeyError):
                index = self._read_index(int(rank), int(slot))
                if index["layout"] == self._layout:
                    slots[index["step"], int(rank)] = int(slot)
        return slots

    def _read_index(self, rank: int, slot: int) -> dict[str, Any]:
        index: dict[str, Any] = json.loads(self._index(rank, slot).read_text(encoding="utf-8"))
        return index

    def _verify(self, step: int) -> None:
        """Each rank verifies its own file, which others of its node read, too."""
        slot = self._list()[step, self._rank]
        record = manifest.FileRecord(**self._read_index(self._rank, slot)["file"])
        manifest.check_digests(self._path, {self._file(self._rank, slot).name: record})

    def _fetch(self, step: int, found: list[dict[tuple[int, int], int]]) -> None:
        """Bring each rank's file to its node, from one that has it."""
        for rank, on_node in enumerate(found):
            key = (step, rank)
            if key in on_node:
                continue
            holder = next(r for r, on_its_node in enumerate(found) if key in on_its_node)
            if self._rank == holder:
                slot = found[holder][key]
                path = self._file(rank, slot)
                data = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
                for work, _ in self._send(rank, self._index(rank, slot).read_text(), data):
                    work.wait()
            elif self._rank == rank:
                used = {slot for (_, of), slot in on_node.items() if of == rank}
                slot = 1 if used == {0} else 0
                self._index(rank, slot).unlink(missing_ok=True)
                text, size = self._receive_index(holder)
                dist.recv(
                    map_pages(self._file(rank, slot), size), src=holder, group=self._group.handle
                )
                self._write_index(rank, slot, text)

    def _read(
        self, slots: Mapping[int, int], prepare: Callable[[Stored], dict[str, Tensor]]
    ) -> tuple[dict[str, Tensor], TrainState]:
        """Read what this rank held from the files of its node's ranks."""
        values: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        index: dict[str, Any] = {}
        for rank in sorted(self._peers, key=lambda peer: peer == self._rank):  # its own wins
            index, path = self._read_index(rank, slots[rank]), self._file(rank, slots[rank])
            data = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
            values |= {(p["name"], tuple(p["place"])): view(data, p) for p in index["parts"]}
        state = State.from_json(index["state"])
        entries = {n: (torch.Size(s), getattr(torch, d)) for n, (s, d) in index["held"].items()}
        tensors = prepare(Stored(path=self._path, state=state, entries=entries))
        for name, tensor in tensors.items():
            local_of(tensor).copy_(values[part_of(name, tensor)])
        for rank in range(self._mesh.ranks.world_size):  # this rank needs its own alone
            tensors.setdefault(loss_sum_of(rank), torch.zeros(()))
        return tensors, state.position

    def _keep_only(self, step: int | None) -> None:
        """Make void what is not of that step. Other ranks of the node do the same."""
        for path in self._path.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                if step is None or json.loads(path.read_text(encoding="utf-8"))["step"] != step:
                    path.unlink()

    def clear(self) -> None:
        """Make all of them void: the run goes back behind them."""
        self.wait()
        if self.every:
            self._keep_only(None)

    def close(self) -> None:
        """Remove them: a checkpoint holds as much."""
        self.wait()
        if self.every:
            shutil.rmtree(self._path, ignore_errors=True)


def keepers(nodes: Sequence[str]) -> dict[int, int]:
    """Return, of each rank, the one of the next node that keeps a copy of its; none on one node."""
    ranks: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        ranks.setdefault(node, []).append(rank)
    groups = list(ranks.values())
    if len(groups) == 1:
        return {}
    pairs = zip(groups, [*groups[1:], groups[0]], strict=True)
    return {r: after[i % len(after)] for group, after in pairs for i, r in enumerate(group)}


def _complete_steps(found: Sequence[Mapping[tuple[int, int], int]]) -> list[int]:
    """Return the steps of which each rank's file is on some node, the newest first."""
    there = set().union(*found)
    steps = {step for step, _ in there}
    whole = [s for s in steps if all((s, rank) in there for rank in range(len(found)))]
    return sorted(whole, reverse=True)

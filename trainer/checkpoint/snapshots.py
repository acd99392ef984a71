"""The newest states of a run in its nodes' memory, for a restart within the same job.

A rank copies what it holds, but for what another rank of its node copies, into a file in /dev/shm
whose pages are the buffer. A thread adds its checksum and sends it to a rank of the next node. A
state counts when every rank has done so; until then the one before is kept. What lies in a node's
directory is in snapshot_files.py, what goes from node to node in snapshot_exchange.py; here is what
the ranks do together.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rundir.paths import MEMORY, snapshots_prefix
from trainer.checkpoint import manifest, saving
from trainer.checkpoint.host_copies import missing_memory
from trainer.checkpoint.loading import Stored
from trainer.checkpoint.process_group import ProcessGroup
from trainer.checkpoint.shards import divide, local_of, num_local_bytes, part_of
from trainer.checkpoint.snapshot_exchange import Exchange, keepers, wait
from trainer.checkpoint.snapshot_files import (
    NUM_SLOTS,
    Key,
    NodeFiles,
    lay_out,
    name_of,
    view,
)
from trainer.checkpoint.tensor_names import LOSS_SUM, of_rank
from trainer.checkpoint.train_state import State
from trainer.distributed import host_memory
from trainer.errors import UserError, short_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from trainer.checkpoint.train_state import TrainState
    from trainer.distributed.mesh import Mesh
    from trainer.telemetry.events import EventLog

_EVENT_INTERVAL_S = 60
_REMEDY = "give the job more memory, or a larger /dev/shm"


class Snapshots:
    """The snapshots of a run, as one rank works with them. All ranks call each method together."""

    def __init__(  # noqa: PLR0913 -- all of it by name
        self,
        mesh: Mesh,
        events: EventLog,
        *,
        every: int,
        launch_id: str,
        run_dir: Path,
        state_of: Callable[[TrainState], State],
        memory: Path = Path(MEMORY),
        num_free_bytes: Callable[[], int] = host_memory.num_free_bytes,
    ) -> None:
        self.every = every
        """Steps from one to the next; 0: there are none."""
        self._mesh = mesh
        self._events = events
        self._state_of = state_of
        self._num_free_bytes = num_free_bytes
        self._rank = mesh.ranks.rank
        self._peers = [r for r, node in enumerate(mesh.nodes) if node == mesh.nodes[self._rank]]
        self._keepers = keepers(mesh.nodes)
        self._kept = [rank for rank, keeper in self._keepers.items() if keeper == self._rank]
        """Ranks of another node whose snapshots this rank keeps, too."""
        self._shapes: dict[str, torch.Size] = {}
        self._parts: list[dict[str, Any]] = []
        """What this rank copies, and where each part lies in its file."""
        self._held: dict[str, tuple[list[int], str]] = {}
        """Shape and type of each tensor that this rank has, also of those that others copy."""
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
            self._open(memory, *self._group.share((launch_id, run_dir)))

    def is_due(self, step: int) -> bool:
        """Whether to take one at this step."""
        return self.every > 0 and step % self.every == 0

    def _open(self, memory: Path, launch_id: str, run_dir: Path) -> None:
        nodes = self._mesh.nodes
        run = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:8]  # a job may have several
        # A snapshot fits the same layout, on nodes of the same numbers of ranks, only.
        layout = f"{self._mesh.layout.describe()} {[nodes.index(node) for node in nodes]}"
        name = f"{snapshots_prefix(launch_id)}{run}.{nodes[self._rank]}"
        self._files = NodeFiles(memory / name, layout, self._mesh.device)
        self._between_nodes = Exchange(self._files, self._group)
        problem = "no launcher that would restart the ranks"
        if launch_id:
            problem = self._files.open(self._mesh.ranks)
        self._is_open = not self._give_up(self._group.first_problem(problem))

    def _give_up(self, problem: str) -> bool:
        """If there is a problem, report it, and do without snapshots from now on."""
        if problem:
            self.every = 0
            if self._is_open:
                self._files.remove()
            self._mesh.warn(f"training goes on without snapshots in memory: {problem}")
        return bool(problem)

    # ---- taking one ------------------------------------------------------------------------------

    def take(
        self, shared: Mapping[str, Tensor], own: Mapping[str, Tensor], state: TrainState
    ) -> None:
        """Begin a snapshot, which a thread completes; first wait for the one before.

        `own` is copied at once. Of `shared`, which ranks have in common, one rank of a node copies
        each tensor, in the thread: it may not change until `wait_for_copy` returns, for which a
        step's update waits.
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
        key = self._next(self._rank)
        self._files.void(key)
        self._files.copy(own, self._parts, key)
        self._is_copied.clear()
        stream = None
        if self._mesh.device.type == "cuda":
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
        # A daemon: a process that must end does not wait for a rank that is gone.
        self._thread = threading.Thread(
            target=self._complete,
            args=(shared, stream, key, state, began_s),
            name="snapshot",
            daemon=True,
        )
        self._thread.start()

    def wait_for_copy(self) -> None:
        """Wait until weights and the optimizer's state are copied; other ranks need not call."""
        self._is_copied.wait()

    def wait(self) -> None:
        """Wait for the one that is being completed; after it, all ranks know of a failure."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._give_up(self._problem)

    def _next(self, rank: int) -> Key:
        """Return which file of a rank is written next."""
        return rank, 1 - self._good.get(rank, 1)

    def _plan(self, shared: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
        """Share out what a node's ranks have in common, and get the memory; return a problem."""
        held = self._group.gather({part_of(n, t): num_local_bytes(t) for n, t in shared.items()})
        share = divide([held[peer] for peer in self._peers])[self._peers.index(self._rank)]
        tensors = {n: t for n, t in shared.items() if part_of(n, t) in share} | dict(own)
        self._parts, size = lay_out(tensors)
        self._held = {n: (list(t.shape), name_of(t.dtype)) for n, t in {**shared, **own}.items()}
        sizes = self._group.gather(size)
        self._num_bytes = sum(sizes)
        files = {(r, s): sizes[r] for r in (self._rank, *self._kept) for s in range(NUM_SLOTS)}
        present = sum(p.stat().st_size for p in map(self._files.file, files) if p.exists())
        free = min(self._num_free_bytes(), saving.num_free_bytes(self._files.path))
        asked = self._group.gather((sum(files.values()) - present, free))
        problem = missing_memory(self._mesh.nodes, *zip(*asked, strict=True), remedy=_REMEDY)
        if problem:
            return problem
        try:
            self._files.allocate(files)
        except OSError as error:
            problem = f"{short_line(error)} ({_REMEDY})"
        return self._group.first_problem(problem)

    # ---- in the thread ---------------------------------------------------------------------------

    def _complete(
        self,
        tensors: Mapping[str, Tensor],
        stream: torch.cuda.Stream | None,
        key: Key,
        state: TrainState,
        began_s: float,
    ) -> None:
        """Copy, write the index of that, exchange it with other nodes, report the outcome."""

        def copy() -> None:
            with torch.cuda.stream(stream):
                self._files.copy(tensors, self._parts, key)

        def seal() -> None:
            content = {"held": self._held, "parts": self._parts}
            text = self._state_of(state).to_json()
            self._files.seal(key, step=state.step, state=text, **content)

        # Whatever is wrong, the other ranks wait for the outcome.
        problem = _problem_of(copy)
        self._is_copied.set()
        problem = problem or _problem_of(seal)
        try:
            received = self._exchange(key, "" if problem else self._files.read_text(key))
            problem = self._group.first_problem(problem or received)
        except Exception as error:  # noqa: BLE001 -- such as another rank's death
            problem = short_line(error)
        self._problem = problem
        if problem:
            return
        self._good |= dict(map(self._next, (self._rank, *self._kept)))
        now_s = time.monotonic()
        if self._mesh.ranks.is_main and now_s - self._event_s >= _EVENT_INTERVAL_S:
            self._event_s, seconds = now_s, round(now_s - began_s, 4)
            self._events.write("snapshot", step=state.step, bytes=self._num_bytes, seconds=seconds)

    def _exchange(self, key: Key, text: str) -> str:
        """Send this rank's to its keeper, receive those that it keeps; return what went wrong."""
        exchange, sent = self._between_nodes, []
        if self._keepers:
            sent = exchange.send(self._keepers[self._rank], text, self._files.buffers[key])
        problems = [
            _problem_of(partial(exchange.receive, rank, self._next(rank))) for rank in self._kept
        ]
        wait(sent)
        return next(filter(None, problems), "")

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
        found = self._group.gather(self._files.list())
        loaded = None
        for step in _complete_steps(found):
            if step > after and loaded is None:
                loaded = self._load(step, found, prepare)
        self._files.keep_only(None if loaded is None else loaded[1].step)
        self._group.gather(None)  # no rank writes before all have looked
        return loaded

    def _load(
        self,
        step: int,
        found: list[dict[tuple[int, int], Key]],
        prepare: Callable[[Stored], dict[str, Tensor]],
    ) -> tuple[dict[str, Tensor], TrainState, Path] | None:
        keys: dict[int, Key] = {}
        loaded: list[tuple[dict[str, Tensor], TrainState]] = []

        def fetch() -> None:
            self._fetch(step, found)
            # Each rank verifies its own file, which others of its node read, too.
            own = self._files.list().get((step, self._rank))
            if own:  # else the rank that was to send it says why it did not
                self._files.verify(own)

        def read() -> None:
            keys.update({rank: key for (of, rank), key in self._files.list().items() if of == step})
            loaded.append(self._read(keys, prepare))

        problem = self._together(fetch) or self._together(read)
        if problem:
            self._mesh.warn(f"the snapshot of step {step} is not used: {problem}")
            return None
        self._good = dict(keys[rank] for rank in (self._rank, *self._kept) if rank in keys)
        return *loaded[0], self._files.path

    def _together(self, work: Callable[[], None]) -> str:
        """Do it on each rank; return the first rank's problem on all: the disk has a checkpoint."""
        problem = _problem_of(work)
        return self._group.first_problem(problem and f"rank {self._rank}: {problem}")

    def _fetch(self, step: int, found: list[dict[tuple[int, int], Key]]) -> None:
        """Bring each rank's file to its node, from one that has it."""
        for rank, on_node in enumerate(found):
            if (step, rank) in on_node:
                continue
            holder = next(r for r, on_its_node in enumerate(found) if (step, rank) in on_its_node)
            if self._rank == holder:
                self._between_nodes.hand_over(found[holder][step, rank], rank)
            elif self._rank == rank:
                used = {slot for of, slot in on_node.values() if of == rank}
                self._between_nodes.receive(holder, (rank, 1 if used == {0} else 0))

    def _read(
        self, keys: Mapping[int, Key], prepare: Callable[[Stored], dict[str, Tensor]]
    ) -> tuple[dict[str, Tensor], TrainState]:
        """Read what this rank held from the files of its node's ranks."""
        values: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        index: dict[str, Any] = {}
        for rank in sorted(self._peers, key=lambda peer: peer == self._rank):  # its own wins
            index, data = self._files.read(keys[rank]), self._files.load(keys[rank])
            values |= {(p["name"], tuple(p["place"])): view(data, p) for p in index["parts"]}
        state = State.from_json(index["state"])
        entries = {n: (torch.Size(s), getattr(torch, d)) for n, (s, d) in index["held"].items()}
        tensors = prepare(Stored(path=self._files.path, state=state, entries=entries))
        for name, tensor in tensors.items():
            local_of(tensor).copy_(values[part_of(name, tensor)])
        for rank in range(self._mesh.ranks.world_size):  # this rank needs its own alone
            tensors.setdefault(of_rank(rank, LOSS_SUM), torch.zeros(()))
        return tensors, state.position

    def clear(self) -> None:
        """Make all snapshots void: the run goes back to a step before them."""
        self.wait()
        if self.every:
            self._files.keep_only(None)

    def close(self) -> None:
        """Remove all snapshots: a checkpoint on disk holds as much."""
        self.wait()
        if self.every:
            self._files.remove()


def _problem_of(work: Callable[[], None]) -> str:
    """Do it; return what went wrong, but for what is the user's, which ends all ranks alike."""
    try:
        work()
    except UserError:
        raise
    except manifest.DamagedError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 -- reported, to all ranks
        return short_line(error)
    return ""


def _complete_steps(found: Sequence[Mapping[tuple[int, int], Key]]) -> list[int]:
    """Return the steps of which each rank's file is on some node, the newest first."""
    there = set().union(*found)
    steps = {step for step, _ in there}
    whole = [s for s in steps if all((s, rank) in there for rank in range(len(found)))]
    return sorted(whole, reverse=True)

"""The checkpoints of a run: when one is taken, which is loaded, and what is told about it.

A checkpoint is taken by all ranks at the same step. It is written by a thread of each, behind the
training from copies in host memory (`async`), or while the training waits (`sync`). It counts only
when it is complete: written into a hidden folder, every file forced to the disk and named with its
SHA-256 in the manifest, renamed, and only then pointed to.
"""

from __future__ import annotations

import math
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rundir import paths
from trainer.checkpoint import saving
from trainer.checkpoint.host_copies import (
    HostCopies,
    is_lack_of_memory,
    lack_of_memory,
    num_host_bytes,
)
from trainer.checkpoint.layout import CheckpointFolder, name_of, step_of
from trainer.checkpoint.process_group import open_peers
from trainer.checkpoint.save_plan import SavePlan
from trainer.checkpoint.saving import Writing
from trainer.checkpoint.shared_reading import list_together, read_together
from trainer.checkpoint.train_state import State
from trainer.distributed import host_memory
from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from trainer.checkpoint.loading import Stored
    from trainer.checkpoint.process_group import Peers
    from trainer.checkpoint.train_state import Position
    from trainer.distributed.mesh import Mesh
    from trainer.telemetry.events import EventLog

_SPACE_MARGIN = 1.02
_SPACE_MARGIN_BYTES = 1 << 20


class Checkpoints:
    """The folder `checkpoints/` of a run directory, as one rank works with it."""

    def __init__(  # noqa: PLR0913 -- all of it by name
        self,
        folder: Path,
        mesh: Mesh,
        events: EventLog,
        *,
        num_kept: int,
        is_async: bool,
        identity: Mapping[str, object],
        interval_s: float = 0.0,
    ) -> None:
        self._folder = CheckpointFolder(folder)
        self._mesh = mesh
        self._events = events
        self._num_kept = num_kept
        self._is_async = is_async
        self._identity = identity
        self._interval_s = interval_s
        self._last_s = time.monotonic()
        self._plan = SavePlan(mesh)
        self._copies = HostCopies()
        self._peers: Peers | None = None
        self._writing: Writing | None = None
        self._position: Position | None = None
        """What the newest checkpoint holds, be it complete or being written."""
        self._damaged: list[str] = []
        self._own: dict[int, Path] = {}
        """What this start began from and what it has saved since, by step, rising: its branch."""
        self.latest_step: int | None = None
        """The last complete one of this run that this process knows of."""
        self.last_seconds: float | None = None
        """How long the last complete one took, from the first copy to the pointer."""
        self.failure: str | None = None
        """Why the last one could not be written; None if it could."""
        if mesh.ranks.is_main:
            self._folder.open()
        mesh.barrier()  # nobody writes before the leftovers are gone

    def save(self, tensors: Mapping[str, Tensor], position: Position, *, is_best: bool) -> None:
        """Take a checkpoint, all ranks together; where nothing is new, only `best` moves.

        Waits for the one before. What fails is reported, and the training goes on; see `wait`.
        """
        began_s = time.monotonic()
        if position == self._position:
            if is_best and self.wait() and self._mesh.ranks.is_main:
                self._point(paths.BEST, position.step)
            return
        self.wait()
        self._last_s = began_s
        peers = self._meet()
        own = self._plan.own(tensors, peers)
        if not self._has_space(position.step):
            return
        copies = self._copied(own, position.step, peers) if self._is_async else None
        is_behind = copies is not None
        self._position = position
        self._writing = Writing(
            self._folder,
            peers,
            self._state(position),
            own if copies is None else copies,
            device=self._mesh.device,
            began_s=began_s,
            stall_s=time.monotonic() - began_s if is_behind else None,
            tell=partial(self._ended, is_best=is_best),
        )
        self._writing.start()
        if not is_behind:
            self.wait()

    def _copied(
        self, tensors: Mapping[str, Tensor], step: int, peers: Peers
    ) -> dict[str, Tensor] | None:
        """Copy to host memory; None, on all ranks, if one of them has no room: the training waits.

        Whatever else goes wrong ends the run, such as a kernel that has failed on the GPU.
        """
        copies, problem = None, ""
        if self._copies.is_new:
            told = peers.gather((num_host_bytes(tensors), host_memory.num_free_bytes()))
            problem = lack_of_memory(self._mesh.nodes, *zip(*told, strict=True))
        if not problem:
            try:
                copies = self._copies.take(tensors)
            except (RuntimeError, MemoryError) as error:
                if not is_lack_of_memory(error):
                    raise
                first = next(iter(str(error).splitlines()), type(error).__name__)
                problem = f"no memory for copies on the host of rank {peers.rank} ({first})"
            problem = next((told for told in peers.gather(problem) if told), "")
        if problem:
            self._copies = HostCopies()  # what there was room for is free again
        if problem and self._mesh.ranks.is_main:
            print(
                f"trainer: the checkpoint of step {step} is written while the training waits: "
                f"{problem}",
                file=sys.stderr,
                flush=True,
            )
        return None if problem else copies

    def is_due(self) -> bool:
        """Whether the last one is older than the interval; by rank 0's clock, the others say no."""
        is_old = time.monotonic() - self._last_s >= self._interval_s > 0
        return is_old and self._mesh.ranks.is_main

    def holds(self, position: Position) -> bool:
        """Whether the newest checkpoint, complete or being written, is of just that position."""
        return position == self._position

    def wait(self) -> bool:
        """Wait until nothing is being written; return whether the last checkpoint is complete."""
        writing = self._writing
        if writing is None:
            return self.failure is None
        writing.join()
        self._writing = None
        if writing.error is None:
            self.latest_step, self.failure = writing.step, None
            self._stand_on(writing.step, self._folder.path_of(writing.step))
            self.last_seconds = writing.ended_s - writing.began_s
        else:
            self._position, self.failure = None, str(writing.error)
        return self.failure is None

    def load(
        self, wish: str, prepare: Callable[[Stored], dict[str, Tensor]]
    ) -> tuple[dict[str, Tensor], Position] | None:
        """Load what `--resume` asks for: `auto`, `none` or a path; None means a fresh start.

        `prepare` looks at what a checkpoint holds, and returns the tensors to read it into. A
        damaged one is skipped with a warning that names it, and the one before it is used.
        Raises UserError when a path was given and cannot be loaded, or when all there are are
        damaged, RunFailedError when what may be whole cannot be read, and what `prepare` raises.
        """
        self.wait()
        named = None if wish == "auto" else wish
        skipped: list[dict[str, str]] = []
        loaded = self._load_first(self._candidates(wish), prepare, skipped, named=named)
        if loaded is None and skipped:
            newest = skipped[0]
            raise UserError(
                f"--resume auto, {self._folder.path}",
                rule="a checkpoint that is whole",
                found=f"all {len(skipped)} damaged, the newest, {Path(newest['path']).name}: "
                f"{newest['problem']}",
                remedy="repair one, name another run's by --resume PATH, or begin anew by "
                "--resume none",
            )
        return loaded

    def load_back(
        self, prepare: Callable[[Stored], dict[str, Tensor]]
    ) -> tuple[dict[str, Tensor], Position] | None:
        """Load the checkpoint that this start stands on: of its own branch, not the newest of all.

        A damaged one is skipped as in `load`; None: there is no other one.
        """
        self.wait()
        return self._load_first(self._shared(self._behind), prepare, [])

    @property
    def back_step(self) -> int | None:
        """The step of what `load_back` tries first; None: there is nothing to go back to."""
        return max(self._own, default=None)

    def _load_first(
        self,
        paths: Sequence[Path],
        prepare: Callable[[Stored], dict[str, Tensor]],
        skipped: list[dict[str, str]],
        *,
        named: str | None = None,
    ) -> tuple[dict[str, Tensor], Position] | None:
        """Load the first that is not damaged; one that the user `named` may not be.

        Damaged ones go into `skipped`.
        """
        for path in paths:
            loaded, problem = read_together(path, prepare, self._meet())
            if loaded is not None:
                stored, tensors = loaded
                position = stored.state.position
                self._take_up(path, position)
                self._tell_resume(position.step, str(path), skipped)
                return tensors, position
            if named is not None:
                raise UserError(
                    f"--resume {named}",
                    rule="a complete checkpoint",
                    found=problem,
                    remedy="name a folder such as out/RUN/checkpoints/step-100, or --resume auto",
                )
            skipped.append({"path": str(path), "problem": problem})
            if path.parent == self._folder.path:
                self._damaged.append(path.name)
            if self._mesh.ranks.is_main:
                print(f"trainer: skipped checkpoint {path}: {problem}", file=sys.stderr, flush=True)
        if not paths:
            self._tell_resume(0, None, [])
        return None

    def _candidates(self, wish: str) -> list[Path]:
        """What to try, in this order, as rank 0 sees it: the same on all ranks."""
        if wish == "none":
            return []
        if wish == "auto":
            return self._shared(self._folder.paths)
        path = Path(wish).expanduser()
        return self._shared(
            # Absolute: another node may have been started elsewhere.
            lambda: [path.absolute() if path.exists() else self._folder.path / wish]
        )

    def _behind(self) -> list[Path]:
        """What to go back to: this start's own branch, then what was written before it began."""
        own = {step: path for step, path in self._own.items() if path.exists()}
        before, first_step = self._folder.paths(), min(own, default=0)
        if own.get(first_step) in before:
            del before[: before.index(own[first_step]) + 1]
        else:  # it began elsewhere: what is here is of another run, or of another branch
            before.clear()
        older = [path for path in before if (step_of(path.name) or 0) < first_step]
        return [*reversed(own.values()), *older]

    def _shared(self, look: Callable[[], list[Path]]) -> list[Path]:
        """Return what rank 0 sees; the group is opened only if that is anything at all."""
        return list_together(look, self._mesh, self._meet)

    def _take_up(self, path: Path, position: Position) -> None:
        """Go on from a loaded checkpoint; a pointer that means nothing is written anew."""
        own = self._folder.path_of(position.step)
        # A user names it as it suits them. Rank 0 looks: no other node may see it otherwise.
        if not self._meet().share(path.resolve() == own.resolve()):
            self._stand_on(position.step, path)
            self._position = self.latest_step = None
            return
        self._stand_on(position.step, own)
        self._position, self.latest_step = position, position.step
        if not self._mesh.ranks.is_main:
            return
        if self._folder.pointed(paths.LATEST) is None:
            self._point(paths.LATEST, position.step)
        best_step = position.best_step
        if self._folder.pointed(paths.BEST) is None and best_step is not None:
            self._point(paths.BEST, best_step)

    def _stand_on(self, step: int, path: Path) -> None:
        self._own = {s: p for s, p in self._own.items() if s < step} | {step: path}

    def _meet(self) -> Peers:
        """The other ranks; the group is opened at the first need."""
        if self._peers is None:
            self._peers = open_peers(self._mesh)
        return self._peers

    def _state(self, position: Position) -> State:
        return State(
            position=position,
            identity={**self._identity, "seed": position.seed},
            world_size=self._mesh.ranks.world_size,
            serial=0,
        )

    def _has_space(self, step: int) -> bool:
        """Ask before writing; all ranks take rank 0's answer."""
        needed = self._plan.num_bytes * _SPACE_MARGIN + _SPACE_MARGIN_BYTES
        free = 0.0
        if self._mesh.ranks.is_main:
            try:
                free = float(saving.num_free_bytes(self._folder.path))
            except OSError:  # such as a folder that is gone: the write says what is wrong
                free = math.inf
        (free,) = self._mesh.max([free])
        if needed <= free:
            return True
        text = f"{needed / 2**20:.1f} MiB needed, {free / 2**20:.1f} MiB free"
        self._position, self.failure = None, f"{saving.NO_SPACE}: {text}"
        self._fail(step, saving.NO_SPACE, text)
        return False

    def _ended(self, writing: Writing, *, is_best: bool) -> None:
        """On rank 0, in the thread that wrote: tell of it, move the pointer, make room."""
        if not self._mesh.ranks.is_main:
            return
        if writing.error is not None:
            self._fail(writing.step, writing.error.reason, writing.error.text)
            return
        self._report(writing)
        if is_best:
            self._point(paths.BEST, writing.step)
        self._make_room(writing)

    def _report(self, writing: Writing) -> None:
        seconds = time.monotonic() - writing.began_s
        self._events.write(
            "checkpoint",
            step=writing.step,
            path=str(self._folder.path_of(writing.step)),
            seconds=round(seconds, 4),
            stall_s=round(seconds if writing.stall_s is None else writing.stall_s, 4),
            is_async=writing.stall_s is not None,
            bytes=writing.size_bytes,
        )

    def _make_room(self, writing: Writing) -> None:
        """Remove what is not to be kept; what was written anew is damaged no more."""
        best_step = writing.state.position.best_step
        kept = () if best_step is None else (name_of(best_step),)
        self._damaged = [name for name in self._damaged if step_of(name) != writing.step]
        if self._num_kept:
            self._folder.prune(self._num_kept, kept=kept, damaged=self._damaged)

    def path_of_best(self, step: int) -> Path | None:
        """Return the checkpoint of `step` if `best` names it; None: it could not be kept."""
        named = self._folder.pointed(paths.BEST)
        return self._folder.path_of(step) if named == name_of(step) else None

    def _point(self, name: str, step: int) -> None:
        """Move a pointer. Where that fails it stays, and the training goes on."""
        try:
            self._folder.point(name, step)
        except OSError as error:
            print(
                f"trainer: `{name}` stays where it was, not at step {step}: {error.strerror}",
                file=sys.stderr,
                flush=True,
            )

    def _fail(self, step: int, reason: str, text: str) -> None:
        if self._mesh.ranks.is_main:
            last = "there is none yet" if self.latest_step is None else f"step {self.latest_step}"
            print(
                f"trainer: the checkpoint of step {step} was not written: {reason}: {text}; "
                f"the last one: {last}",
                file=sys.stderr,
                flush=True,
            )
            self._events.write("checkpoint_failed", step=step, reason=reason, error=text)

    def _tell_resume(self, step: int, path: str | None, skipped: list[dict[str, str]]) -> None:
        if self._mesh.ranks.is_main:
            self._events.write("resume", step=step, path=path, skipped=skipped)

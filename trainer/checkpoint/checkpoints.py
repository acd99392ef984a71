"""The checkpoints of a run: when one is taken, what is reported about it, which are kept.

A checkpoint is taken by all ranks at the same step. It is written by a thread of each, behind the
training from copies in host memory (`async`), or while the training waits (`sync`). It counts only
when it is complete: written into a hidden folder, every file forced to the disk and named with its
SHA-256 in the manifest, renamed, and only then pointed to.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rundir import paths
from rundir.paths import step_name, step_of
from trainer.checkpoint import saving
from trainer.checkpoint.host_copies import HostCopies, SavePlan
from trainer.checkpoint.layout import CheckpointFolder
from trainer.checkpoint.process_group import ProcessGroup
from trainer.checkpoint.saving import SaveError
from trainer.checkpoint.train_state import State
from trainer.errors import short_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from trainer.checkpoint.train_state import TrainState
    from trainer.distributed.mesh import Mesh
    from trainer.telemetry.events import EventLog

_SPACE_MARGIN = 1.02
_SPACE_MARGIN_BYTES = 1 << 20


@dataclass(kw_only=True)
class _Writing:
    """A checkpoint on its way to the disk."""

    state: TrainState
    is_best: bool
    began_s: float
    stall_s: float | None
    """How long the training stood still; None: until the end."""
    thread: threading.Thread | None = None
    error: SaveError | None = None


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
        self.folder = CheckpointFolder(folder)
        self.mesh = mesh
        self._events = events
        self._num_kept = num_kept
        self._is_async = is_async
        self._identity = identity
        self._interval_s = interval_s
        self._last_s = time.monotonic()
        self._plan = SavePlan(mesh)
        self._copies = HostCopies()
        self._writing: _Writing | None = None
        self._newest: TrainState | None = None
        """What the newest checkpoint holds, be it complete or being written."""
        self.damaged: list[str] = []
        """The names of checkpoints that were found damaged."""
        self.branch: dict[int, Path] = {}
        """The checkpoint that this start began from and those it has saved, by step, rising."""
        self.latest_step: int | None = None
        """The step of the run's last complete checkpoint that this process knows of."""
        self.last_seconds: float | None = None
        """How long the last complete checkpoint took, from the first copy to the pointer."""
        self.failure: str | None = None
        """Why the last checkpoint could not be written; None if it could."""
        if mesh.ranks.is_main:
            self.folder.open()
        mesh.barrier()  # no rank writes before the leftovers are gone
        self.group = ProcessGroup(mesh)

    # ---- saving ----------------------------------------------------------------------------------

    def save(self, tensors: Mapping[str, Tensor], state: TrainState, *, is_best: bool) -> None:
        """Take a checkpoint, all ranks together; where nothing is new, only move `best`.

        Waits for the checkpoint before. A failure is reported, and training goes on; see `wait`.
        """
        began_s = time.monotonic()
        if state == self._newest:
            if is_best and self.wait() and self.mesh.ranks.is_main:
                self._point(paths.BEST, state.step)
            return
        self.wait()
        self._last_s = began_s
        own = self._plan.own(tensors, self.group)
        if not self._has_space(state.step):
            return
        copies = self._copied(own, state.step) if self._is_async else None
        self._newest = state
        stall_s = None if copies is None else time.monotonic() - began_s
        writing = _Writing(state=state, is_best=is_best, began_s=began_s, stall_s=stall_s)
        # A daemon: a process that must end does not wait for a disk, or a rank that is gone.
        writing.thread = threading.Thread(
            target=self._write,
            args=(writing, own if copies is None else copies),
            name="checkpoint",
            daemon=True,
        )
        self._writing = writing
        writing.thread.start()
        if copies is None:
            self.wait()

    def _copied(self, tensors: Mapping[str, Tensor], step: int) -> dict[str, Tensor] | None:
        """Copy to host memory; None, on all ranks, if one has no room: the training waits."""
        copies, problem = self._copies.take_together(tensors, self.group, self.mesh.nodes)
        if problem:
            self.mesh.warn(
                f"the checkpoint of step {step} is written while the training waits: {problem}"
            )
        return copies

    def is_due(self) -> bool:
        """Whether the last checkpoint is older than the interval; only rank 0 says so."""
        is_old = time.monotonic() - self._last_s >= self._interval_s > 0
        return is_old and self.mesh.ranks.is_main

    def holds(self, state: TrainState) -> bool:
        """Whether the newest checkpoint, complete or being written, is of just that state."""
        return state == self._newest

    def wait(self) -> bool:
        """Wait until nothing is being written; return whether the last checkpoint is complete."""
        writing, self._writing = self._writing, None
        if writing is None or writing.thread is None:
            return self.failure is None
        writing.thread.join()
        if writing.error is None:
            self.failure = None
            self._continue_from(writing.state.step, self.folder.path_of(writing.state.step))
        else:
            self._newest, self.failure = None, str(writing.error)
        return self.failure is None

    def state_of(self, state: TrainState) -> State:
        """Return what is written of a state, but for its serial."""
        return State(
            position=state,
            identity={**self._identity, "seed": state.seed},
            world_size=self.mesh.ranks.world_size,
            serial=0,
        )

    def _has_space(self, step: int) -> bool:
        """Whether the disk has room, by rank 0's answer. All ranks call this together."""
        needed = self._plan.num_bytes * _SPACE_MARGIN + _SPACE_MARGIN_BYTES
        free = 0.0
        if self.mesh.ranks.is_main:
            try:
                free = float(saving.num_free_bytes(self.folder.path))
            except OSError:  # such as a folder that is gone: the write reports what is wrong
                free = math.inf
        (free,) = self.mesh.max([free])
        if needed <= free:
            return True
        text = f"{needed / 2**20:.1f} MiB needed, {free / 2**20:.1f} MiB free"
        self._newest, self.failure = None, f"{saving.NO_SPACE}: {text}"
        self._report_failure(step, saving.NO_SPACE, text)
        return False

    # ---- in the thread that writes ---------------------------------------------------------------

    def _write(self, writing: _Writing, tensors: Mapping[str, Tensor]) -> None:
        """Write, report the outcome, and remove what is not kept."""
        if self.mesh.device.type == "cuda":
            # A thread begins on GPU 0, which may be another rank's; a GPU that has failed delays no
            # copy.
            with contextlib.suppress(RuntimeError):
                torch.cuda.set_device(self.mesh.device)
        size_bytes = 0
        try:
            state = self.state_of(writing.state)
            size_bytes = saving.write(self.folder, tensors, state, self.group)
            if self.mesh.ranks.is_main:
                self._point(paths.LATEST, writing.state.step)
        except SaveError as error:
            writing.error = error
        except Exception as error:  # noqa: BLE001 -- such as another rank's death
            writing.error = SaveError(saving.WRITE_ERROR, short_line(error))
        else:  # it counts from now on, whenever the training waits for it
            self.latest_step = writing.state.step
            self.last_seconds = time.monotonic() - writing.began_s
        if not self.mesh.ranks.is_main:
            return
        if writing.error is not None:
            self._report_failure(writing.state.step, writing.error.reason, writing.error.text)
        else:
            self._report(writing, size_bytes)
            self._prune(writing.state)

    def _report(self, writing: _Writing, size_bytes: int) -> None:
        """Write the event, and move `best`."""
        seconds, step = time.monotonic() - writing.began_s, writing.state.step
        self._events.write(
            "checkpoint",
            step=step,
            path=str(self.folder.path_of(step)),
            seconds=round(seconds, 4),
            stall_s=round(seconds if writing.stall_s is None else writing.stall_s, 4),
            is_async=writing.stall_s is not None,
            bytes=size_bytes,
        )
        if writing.is_best:
            self._point(paths.BEST, step)

    def _prune(self, state: TrainState) -> None:
        # One that was written anew is no longer damaged.
        self.damaged = [name for name in self.damaged if step_of(name) != state.step]
        if self._num_kept:
            kept = () if state.best_step is None else (step_name(state.best_step),)
            self.folder.prune(self._num_kept, kept=kept, damaged=self.damaged)

    def _report_failure(self, step: int, reason: str, text: str) -> None:
        if not self.mesh.ranks.is_main:
            return
        last = "there is none yet" if self.latest_step is None else f"step {self.latest_step}"
        self.mesh.warn(
            f"the checkpoint of step {step} was not written: {reason}: {text}; the last one: {last}"
        )
        self._events.write("checkpoint_failed", step=step, reason=reason, error=text)

    # ---- the run's branch of checkpoints ---------------------------------------------------------

    @property
    def back_step(self) -> int | None:
        """The step of this start's last checkpoint; None: there is nothing to go back to."""
        return max(self.branch, default=None)

    def continue_from(self, path: Path, state: TrainState) -> None:
        """Go on from a checkpoint that was loaded; mend pointers.

        `latest` must name something; `best` the best one of this branch, not of what comes after.
        """
        own = self.folder.path_of(state.step)
        # A path can be written in many ways, and other nodes may resolve it otherwise: rank 0 does.
        if not self.group.share(path.resolve() == own.resolve()):
            self._continue_from(state.step, path)
            self._newest = self.latest_step = None
            return
        self._continue_from(state.step, own)
        self._newest, self.latest_step = state, state.step
        if not self.mesh.ranks.is_main:
            return
        if not self.folder.pointed(paths.LATEST):
            self._point(paths.LATEST, state.step)
        best = state.best_step
        if (
            best is not None
            and self.path_of_best(best) is None
            and self.folder.path_of(best).exists()
        ):
            self._point(paths.BEST, best)

    def continue_after(self, newest: Path | None) -> None:
        """Go on from a state that is newer than the newest checkpoint."""
        step = None if newest is None else step_of(newest.name)
        if newest is not None and step is not None:
            self._continue_from(step, newest)
            self.latest_step = step

    def _continue_from(self, step: int, path: Path) -> None:
        self.branch = {s: p for s, p in self.branch.items() if s < step} | {step: path}

    def skip(self, path: Path, problem: str) -> None:
        """Remember and report a damaged checkpoint."""
        if path.parent == self.folder.path:
            self.damaged.append(path.name)
        self.mesh.warn(f"skipped checkpoint {path}: {problem}")

    def report_resume(self, step: int, path: Path | None, skipped: list[dict[str, str]]) -> None:
        """Write the event of a resume; no path: a fresh start."""
        if self.mesh.ranks.is_main:
            named = None if path is None else str(path)
            self._events.write("resume", step=step, path=named, skipped=skipped)

    def path_of_best(self, step: int) -> Path | None:
        """Return the checkpoint of `step` if `best` names it; None: it could not be kept."""
        named = self.folder.pointed(paths.BEST)
        return self.folder.path_of(step) if named == step_name(step) else None

    def _point(self, name: str, step: int) -> None:
        """Move a pointer. Where that fails it stays, and the training goes on."""
        try:
            self.folder.point(name, step)
        except OSError as error:
            self.mesh.warn(f"`{name}` stays where it was, not at step {step}: {error.strerror}")

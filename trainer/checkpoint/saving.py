"""Write a checkpoint, all ranks together, and make it complete."""

from __future__ import annotations

import errno
import functools
import os
import sys
import threading
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainer.checkpoint import manifest
from trainer.checkpoint.layout import STATE_FILE
from trainer.errors import MAX_LENGTH, causes, short_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from trainer.checkpoint.layout import CheckpointFolder
    from trainer.checkpoint.manifest import FileRecord
    from trainer.checkpoint.process_group import ProcessGroup
    from trainer.checkpoint.train_state import State

NO_SPACE, WRITE_ERROR = "no space", "write error"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE_BYTES = 1 << 20
_SHORT_TURN_S = 0.0005


class SaveError(Exception):
    """A checkpoint could not be written; `reason` is one of the two above."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
        self.text = text


def write(
    folder: CheckpointFolder, tensors: Mapping[str, Tensor], state: State, group: ProcessGroup
) -> int:
    """Write a checkpoint and return its size in bytes. Every rank calls it with what it holds.

    The serial of `state` is given here. Raises SaveError, on all ranks alike; nothing of the
    checkpoint is left then, and those before are untouched.
    """
    step = state.position.step
    partial = folder.partial(step)
    problem: tuple[str, str] | None = None
    records: dict[str, FileRecord] = {}
    try:
        _write_tensors(tensors, partial, group)
        own = sorted(partial.glob(f"__{group.rank}_*"))
        records = {path.name: manifest.seal(path) for path in own}
    except Exception as error:  # noqa: BLE001 -- the other ranks wait for the outcome
        problem = _explain(error, folder.path)
    outcomes = group.gather((problem, records))
    problem = next((found for found, _ in outcomes if found), None)
    size_bytes = 0
    if group.rank == 0:
        if problem is None:
            written = {name: r for _, records in outcomes for name, r in records.items()}
            problem, size_bytes = _complete(folder, state, written)
        if problem is not None:
            folder.discard(step)
    problem, size_bytes = group.share((problem, size_bytes))
    if problem is not None:
        raise SaveError(*problem)
    return size_bytes


def num_free_bytes(path: Path) -> int:
    """Return what a user may still write to that file system."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _complete(
    folder: CheckpointFolder, state: State, records: dict[str, FileRecord]
) -> tuple[tuple[str, str] | None, int]:
    """Add the rest of the files and the manifest, then the name."""
    step = state.position.step
    partial = folder.partial(step)
    try:
        manifest.check_sizes(partial, records)  # what other nodes wrote must be visible here, too
    except manifest.DamagedError as error:
        text = f"not on one shared file system? rank 0 looked for what all ranks wrote: {error}"
        return (WRITE_ERROR, text[:MAX_LENGTH]), 0
    try:
        text = replace(state, serial=folder.next_serial()).to_json()
        (partial / STATE_FILE).write_text(text, encoding="utf-8")
        for name in (STATE_FILE, ".metadata"):
            records[name] = manifest.seal(partial / name)
        manifest.write(partial, records)
        folder.complete(step)
    except Exception as error:  # noqa: BLE001 -- the other ranks wait for the outcome
        return _explain(error, folder.path), 0
    return None, sum(found.bytes for found in records.values())


def _write_tensors(tensors: Mapping[str, Tensor], folder: Path, group: ProcessGroup) -> None:
    dcp = _distributed_checkpoint()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    # Nothing is copied ahead: torch waits for such copies on the stream of the thread's own device,
    # and on GPUs the bytes of another one would be written before they have arrived.
    writer = dcp.FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0)
    writer.storage_meta = lambda: None  # it holds a Path, which each Python pickles in its own way
    try:
        dcp.save(
            dict(tensors),
            storage_writer=writer,
            process_group=group.handle,
            no_dist=group.handle is None,
        )
    except dcp.CheckpointException as error:  # it is no Exception
        first = next(iter(error.failures.values()))[0]
        raise OSError(str(error)) from first


_IMPORTING = threading.RLock()


@functools.cache
def _keep_forks_out() -> None:
    """Loader workers are forked while this module's thread may import: let a fork wait for it.

    The child would inherit the locks of half-imported modules, and no thread to release them.
    """
    os.register_at_fork(
        before=_IMPORTING.acquire,
        after_in_parent=_IMPORTING.release,
        after_in_child=_IMPORTING.release,
    )


def _distributed_checkpoint() -> Any:  # noqa: ANN401 -- a module
    """torch.distributed.checkpoint, a second of imports, not before the first checkpoint."""
    if "torch.distributed.checkpoint" not in sys.modules:
        _keep_forks_out()
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(_SHORT_TURN_S)  # an import yields seldom, a training step often
        with _IMPORTING:
            from torch.distributed import checkpoint as _  # noqa: F401, PLC0415 -- see above
        sys.setswitchinterval(usual_s)
    return sys.modules["torch.distributed.checkpoint"]


def _explain(error: BaseException, path: Path) -> tuple[str, str]:
    """Return the reason and one line for what was raised while writing."""
    chain = list(causes(error))
    numbered = [e for e in chain if isinstance(e, OSError) and e.errno]
    # torch's writer swallows the number of the error on its way through C++.
    refused = None if numbered else _probe(path)
    for found in (*numbered, refused):
        if found is not None and found.errno in _FULL:
            return NO_SPACE, short_line(found)
    return WRITE_ERROR, short_line(refused or chain[-1])


def _probe(folder: Path) -> OSError | None:
    """Write a little, and return the system's error: it alone knows of a user's quota."""
    # Each rank may ask, on every node.
    probe = folder / f".probe.{os.uname().nodename}.{os.getpid()}"
    try:
        try:
            with probe.open("wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return error
    return None

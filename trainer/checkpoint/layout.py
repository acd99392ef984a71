"""The folder `checkpoints/`: which names are in it, and how a checkpoint gets or loses one.

    step-<n>/             complete
    .step-<n>.partial/    being written
    .step-<n>.replaced/   for the moment in which a step is replaced by a newer state of it
    .step-<n>.removed/    for the moment in which it is removed; .step-<n>.1.removed/ and so on
                          where that one, or the other, could not be removed whole
    latest, best          files that hold a name

Only rank 0 changes anything here.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from typing import TYPE_CHECKING

from rundir import paths, plain
from rundir.paths import step_name, step_of
from trainer.checkpoint import manifest
from trainer.checkpoint.train_state import State

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

STATE_FILE = "state.json"


class CheckpointFolder:
    """`checkpoints/` of a run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        """Create it, and clean up after a run that died while writing."""
        self.path.mkdir(parents=True, exist_ok=True)
        # The one that was replaced last is the newest: it alone takes its name back, and is whole,
        # for another name is given before anything is removed.
        for leftover in sorted(self.path.glob(".step-*.replaced"), key=_turn, reverse=True):
            original = self.path / leftover.name[1:].partition(".")[0]
            if original.exists():
                self._remove(leftover, original.name)
            else:
                leftover.rename(original)
        for leftover in self.path.glob(".step-*"):
            _delete(leftover)

    def names(self) -> list[str]:
        """Return the checkpoints, the last written one first.

        One whose place in that order cannot be read comes before all others: it is damaged, and
        a search for a good one reports it. Raises OSError if the folder cannot be read.
        """
        return list(self._serials())

    def paths(self) -> list[Path]:
        """Return where they are, in the same order."""
        return [self.path / name for name in self.names()]

    def next_serial(self) -> int:
        """Return the number of the next checkpoint in the order of writing."""
        serials = self._serials().values()
        return 1 + max((int(serial) for serial in serials if math.isfinite(serial)), default=0)

    def _serials(self) -> dict[str, float]:
        """Return each checkpoint's place in the order of writing, the last one first."""
        try:
            names = [entry.name for entry in self.path.iterdir()]  # glob would hide an error
        except (FileNotFoundError, NotADirectoryError):
            return {}  # any other error: there may be some, and the run must not begin anew
        serials = {name: self._serial(name) for name in names if step_of(name) is not None}
        return dict(sorted(serials.items(), key=lambda s: (s[1], step_of(s[0])), reverse=True))

    def _serial(self, name: str) -> float:
        try:
            return State.from_json(plain.read_text(self.path / name / STATE_FILE)).serial
        except (OSError, ValueError, RecursionError):
            return math.inf

    def path_of(self, step: int) -> Path:
        """Return where the checkpoint of `step` is, or would be."""
        return self.path / step_name(step)

    def partial(self, step: int) -> Path:
        """Return where to write the checkpoint of `step`."""
        return self.path / f".{step_name(step)}.partial"

    def discard(self, step: int) -> None:
        """Remove what was written of `step` so far."""
        _delete(self.partial(step))

    def complete(self, step: int) -> Path:
        """Give the written folder its name; at any instant a complete one of the step is there."""
        final, replaced = self.path_of(step), self._free(step_name(step), "replaced")
        if os.path.lexists(final):  # be it a link to nothing
            final.rename(replaced)
        try:
            self.partial(step).rename(final)
        except OSError:
            if os.path.lexists(replaced):
                replaced.rename(final)
            raise
        manifest.flush(self.path)
        if os.path.lexists(replaced):
            self._remove(replaced, final.name)
        return final

    def point(self, pointer: str, step: int) -> None:
        """Let `latest` or `best` name the checkpoint of `step`."""
        beside = self.path / f".{pointer}.partial"
        with open(beside, "w", encoding="utf-8", opener=plain.plain_opener) as file:
            file.write(f"{step_name(step)}\n")
        manifest.flush(beside)
        beside.replace(self.path / pointer)
        manifest.flush(self.path)

    def pointed(self, pointer: str) -> str | None:
        """Return the name in a pointer file; None if it names no checkpoint that is there."""
        with contextlib.suppress(OSError, ValueError):
            name = plain.read_text(self.path / pointer).strip()
            if step_of(name) is not None and (self.path / name).is_dir():
                return name
        return None

    def prune(self, num_kept: int, *, kept: Collection[str], damaged: Collection[str]) -> None:
        """Remove all but the last `num_kept`, what the pointers name, and `kept`.

        Those known to be damaged do not count: they go when there are enough good ones. One whose
        place in the order cannot be read neither counts nor goes: it may be whole.
        """
        spared = {self.pointed(paths.LATEST), self.pointed(paths.BEST), *kept}
        try:
            serials = self._serials()
        except OSError:
            return  # the next checkpoint tries again
        good = [n for n, serial in serials.items() if math.isfinite(serial) and n not in damaged]
        surplus = good[num_kept:]
        if len(good) >= num_kept:
            surplus += damaged
        for name in surplus:
            if name not in spared:
                self._remove(self.path / name, name)

    def _remove(self, path: Path, name: str) -> None:
        """Take the name away first: half a checkpoint must not look like a damaged one."""
        with contextlib.suppress(OSError):
            _delete(path.rename(self._free(name, "removed")))

    def _free(self, name: str, fate: str) -> Path:
        """Return a hidden name that nothing has.

        What was moved away before may still be there: NFS keeps a file that is open somewhere as
        `.nfsXXXX`, and with it the folder.
        """
        turn = 0
        path = self.path / f".{name}.{fate}"
        while os.path.lexists(path):
            turn += 1
            path = self.path / f".{name}.{turn}.{fate}"
        return path


def _turn(hidden: Path) -> int:
    """Return i of `.step-<n>.<i>.replaced`, 0 without."""
    turn = hidden.name.split(".")[2]
    return int(turn) if turn.isdecimal() else 0


def _delete(path: Path) -> None:
    """Remove a folder with all that is in it, a file or a link, as far as that can be done."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()

"""The ranks of the attempt that may follow: started while this one trains, and held back.

Most of a restart is `import torch`. What waits has done that, at the lowest priority, and nothing
else: it has no GPU, no port and no file.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from jobs import processes
from rundir import procfs

if TYPE_CHECKING:
    import subprocess

    from jobs.backends.base import Backend, Step
    from jobs.loop import Loop

_END_S, _LOST_S = 5, 1
"""How long the waiting ranks may take to end. They end at once, but for a container that is still
starting: srun complains if it is killed before that. For a lost node it would wait for ever."""


class Standby:
    """A step whose ranks wait."""

    def __init__(self, loop: Loop, backend: Backend, step: Step) -> None:
        """Start it."""
        self._loop, self._step = loop, step
        self._processes, self._fd = processes.piped(lambda stdout: backend.start(step, stdout))

    def fits(self, step: Step) -> bool:
        """Whether its ranks have the nodes and the layout of this step, and all are alive."""
        held = self._step
        is_whole = all(process.poll() is None for process in self._processes)
        return is_whole and (held.layout, held.nodes) == (step.layout, step.nodes)

    def begin(self, step: Step) -> tuple[list[subprocess.Popen[bytes]], int]:
        """Make its ranks this step's; return its processes, and where their output arrives."""
        before, now = self._step.environ, step.environ
        changed = {n: now.get(n) for n in {*before, *now} if before.get(n) != now.get(n)}
        self._tell(json.dumps({"words": step.arguments, "environ": changed}).encode() + b"\n")
        return self._processes, self._fd

    def end(self, *, is_lost: bool = False) -> None:
        """End it, because no attempt follows, or one on other nodes.

        Args:
            is_lost: One of its nodes may be lost.

        """
        self._tell(b"")
        pids = [process.pid for process in self._processes]
        limit_s = _LOST_S if is_lost else _END_S
        self._loop.run(lambda: not any(map(procfs.is_alive, pids)), limit_s)
        processes.stop(pids, _LOST_S, self._loop.pause)
        os.close(self._fd)

    def _tell(self, data: bytes) -> None:
        for process in self._processes:
            if process.stdin:
                with suppress(OSError):  # it has ended
                    process.stdin.write(data)
                    process.stdin.close()

"""The trainer as a command of jobs/prelaunch.sh, with the time of each phase's end written down.

    python -P -m benchmarks.phases FILE [trainer options]

It is `python -m trainer`, which imports torch where the options have been found to be right.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Marks:
    """When each phase ended, in seconds since the epoch."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []

    def mark(self, phase: str) -> None:
        """Note the end of a phase."""
        self.times.append((phase, time.time()))

    def around(self, function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        """Return `function` with a mark before and after it."""

        def marked(*args: object, **kwargs: object) -> object:
            self.mark(before)
            result = function(*args, **kwargs)
            self.mark(after)
            return result

        return marked


def main(marks: Marks, path: Path, argv: list[str]) -> int:
    """Train; write the marks of rank 0."""
    marks.mark("interpreter")
    from trainer import __main__ as entry  # noqa: PLC0415 -- to be timed

    patched: Any = entry  # a function is put in the place of another
    open_heartbeat = patched.open_heartbeat

    def open_and_import(*args: Any) -> object:  # noqa: ANN401 -- those of `open_heartbeat`
        heartbeat = open_heartbeat(*args)
        marks.mark("options and checks")
        import torch  # noqa: F401, PLC0415 -- to be timed

        marks.mark("import torch")
        _import_trainer(marks)
        return heartbeat

    patched.open_heartbeat = open_and_import  # the last before it imports torch
    code = entry.main(argv, os.environ)
    if os.environ.get("RANK", "0") == "0":
        path.write_text(json.dumps(marks.times), encoding="utf-8")
    return code


def _import_trainer(marks: Marks) -> None:
    """Import what needs torch, and have its phases marked."""
    from trainer.loop import loop, run  # noqa: PLC0415 -- to be timed

    marks.mark("the trainer's other imports")
    patched: Any = run
    patched.open_mesh = marks.around(patched.open_mesh, "set-up", "process group")
    patched_loop: Any = loop.Loop
    patched_loop.run = marks.around(loop.Loop.run, "data, model, run directory", "the end")
    patched_loop._log = marks.around(  # noqa: SLF001 -- with --log-every 1, the first step's end
        loop.Loop._log,  # noqa: SLF001
        "first step",
        "its line in metrics.jsonl",
    )


if __name__ == "__main__":
    ended = main(Marks(), Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(ended)  # as the trainer ends: torch's threads do not survive Python's own way

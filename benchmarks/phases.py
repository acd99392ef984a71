"""The trainer as a command of jobs/prelaunch.sh, with the time of each phase's end written down.

    python -P -m benchmarks.phases FILE [trainer options]

It imports torch a little earlier than `python -m trainer` does, and is otherwise the same.
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
    import torch  # noqa: F401, PLC0415 -- to be timed

    marks.mark("import torch")
    from trainer import __main__ as entry  # noqa: PLC0415 -- to be timed
    from trainer import loop, run  # noqa: PLC0415 -- the same

    marks.mark("the trainer's other imports")
    patched: Any = run  # functions are put in the places of others
    patched.open_mesh = marks.around(patched.open_mesh, "options and checks", "process group")
    patched_loop: Any = loop.Loop
    patched_loop.run = marks.around(loop.Loop.run, "data, model, run directory", "the end")
    patched_loop._log = marks.around(  # noqa: SLF001 -- with --log-every 1, the first step's end
        loop.Loop._log,  # noqa: SLF001
        "first step",
        "its line in metrics.jsonl",
    )
    code = entry.main(argv, os.environ)
    if os.environ.get("RANK", "0") == "0":
        path.write_text(json.dumps(marks.times), encoding="utf-8")
    return code


if __name__ == "__main__":
    ended = main(Marks(), Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(ended)  # as the trainer ends: torch's threads do not survive Python's own way

"""The sections whose contestants are forked from a process that has imported what they need.

    python -m benchmarks.forks [--quick] [LAYOUT…]

prints one line of JSON; with names of layouts it measures only those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import gpu, layouts
from trainer.distributed.host_memory import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = Path(__file__).parent.parent
_TIMEOUT_S = 3600
_NEEDED = (
    "benchmarks.by_hand",
    "trainer.__main__",
    "trainer.loop.run",
    "trainer.workloads.language",
    "torch._dynamo",
)


def measure(*, quick: bool) -> tuple[layouts.Layouts, gpu.OnGpu | None]:
    """Measure in a process of its own; None: there is no GPU."""
    env = os.environ | {"PYTHONPATH": str(_ROOT)}
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.forks", *(["--quick"] if quick else [])],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        timeout=_TIMEOUT_S,
    )
    results = json.loads(ended.stdout.splitlines()[-1])
    rows = [layouts.Row(**row) for row in results["layouts"]["rows"]]
    on_gpu = results["gpu"]
    if on_gpu is not None:
        on_gpu = gpu.OnGpu(**on_gpu | {"rows": [gpu.Row(**row) for row in on_gpu["rows"]]})
    return layouts.Layouts(**results["layouts"] | {"rows": rows}), on_gpu


def main(argv: Sequence[str]) -> None:
    """Measure and print."""
    quick, names = "--quick" in argv, [word for word in argv if not word.startswith("--")]
    for name in _NEEDED:
        import_module(name)
    keep_freed_memory(os.environ)  # who is forked has it so, too: no one wins by malloc's chances
    of_layouts = layouts.race(quick=quick, names=names)
    on_gpu = None if names else gpu.race(quick=quick)
    print(json.dumps({"layouts": asdict(of_layouts), "gpu": on_gpu and asdict(on_gpu)}))


if __name__ == "__main__":
    main(sys.argv[1:])

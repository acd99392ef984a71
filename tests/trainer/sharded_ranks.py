"""Ranks of sharded runs, forked from a process that has imported what they need.

What torch imports for shards takes over ten seconds of a core, of each rank. Reads a JSON list of
(options, environment, log file) a line, one for each rank; starts all of them, and answers with
their exit codes. What follows the fork is `python -m trainer` as it is.
"""

import json
import os
import runpy
import sys
from importlib import import_module
from typing import NoReturn

NEEDED = (
    "trainer.run",
    "trainer.workloads.language",
    "trainer.workloads.llama",
    "torch._dynamo",
    "torch._decomp",
    "torch._prims",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils.checkpoint",
)


def _become(options: list[str], env: dict[str, str], log: str) -> NoReturn:
    os.environ.clear()
    os.environ.update(env)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.argv = ["trainer", *options]
    try:
        runpy.run_module("trainer", run_name="__main__", alter_sys=True)
    finally:
        os._exit(1)  # the trainer itself ends before this


def main() -> None:
    """Serve until there are no more lines."""
    for name in NEEDED:
        import_module(name)
    for line in sys.stdin:
        pids = []
        for rank in json.loads(line):
            pid = os.fork()
            if not pid:
                _become(*rank)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()

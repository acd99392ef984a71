"""Ranks as processes of their own that need not import torch: forked from one that has.

What follows the fork is `python -m trainer` as it is. The imports alone take seconds of a core, and
the tests start hundreds of ranks: it has also imported what torch imports late, for checkpoints,
shards, stages and the compiler.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import TYPE_CHECKING
from unittest import mock

from tests import uncovered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.process import BaseProcess
    from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "trainer.loop.run",
        "trainer.workloads.language",
        "trainer.workloads.llama",
        "trainer.workloads.mnist_models",
        "torch._dynamo",
        "torch._decomp",
        "torch._prims",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.pipelining",
        "torch.distributed.tensor.parallel",
        "torch.utils.checkpoint",
    ]
)


@dataclass
class RankProcess:
    """A rank, with the methods of `subprocess.Popen` that tests use."""

    process: BaseProcess
    files: tuple[Path, Path]

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """As `returncode`."""
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("trainer", timeout or 0)
        return self.process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; return what it wrote to stdout and stderr."""
        self.wait(timeout)
        out, err = (file.read_text() for file in self.files)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal; none if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()


def start(
    options: Sequence[str], env: Mapping[str, str], cwd: Path, files: tuple[Path, Path]
) -> RankProcess:
    """Start `python -m trainer` with exactly this environment; stdout and stderr go to `files`.

    Both may be the same file.
    """
    # OMP_NUM_THREADS is read once, by an import. Coverage would take a rank twice the time.
    environ = uncovered.environment() | {"OMP_NUM_THREADS": "1"}
    with mock.patch.dict(os.environ, environ, clear=True):
        forkserver.ensure_running()
    process = _CONTEXT.Process(target=_run, args=(list(options), dict(env), cwd, files))
    process.start()
    return RankProcess(process, files)


def _run(options: list[str], env: dict[str, str], cwd: Path, files: tuple[Path, Path]) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, file in enumerate(files, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["trainer", *options]
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)

"""Torch's flight recorder: the last collectives of a rank, and the lines of code that began them.

Torch fills it; under NCCL it also writes it by itself when a collective takes too long. Here it is
set up, and written where else it is wanted. Each file is a pickle: `torchfrtrace`, which comes with
torch, compares those of all ranks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from torch._C import _distributed_c10d as c10d

from rundir.paths import TRACES, RunDir
from trainer.telemetry.profiling import no_trace_is_worth_a_run

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

    from trainer.config import Config
    from trainer.distributed.rendezvous import Backend

_DUMPS = {"nccl": "_dump_nccl_trace", "gloo": "_dump_fr_trace"}
"""What gives a rank's record. Older torches have none of gloo."""


def remember(config: Config, run_dir: Path | None, env: MutableMapping[str, str]) -> None:
    """Set in `env` what torch reads at the rendezvous; without --flight-recorder, nothing.

    Where `run_dir` is not known yet, what torch writes by itself lies where torch puts it.
    """
    if config.flight_recorder is None:
        return
    env["TORCH_FR_BUFFER_SIZE"] = str(config.flight_recorder)
    env.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    if run_dir is not None:
        env.setdefault("TORCH_FR_DUMP_TEMP_FILE", RunDir(str(run_dir.absolute())).traces)


class FlightRecorder:
    """What this rank remembers, and where it goes."""

    def __init__(self, config: Config, folder: Path, rank: int, backend: Backend) -> None:
        """Make the folder, for torch does not, where anything is to be remembered."""
        self._path = folder / f"{TRACES}{rank}"
        self._backend: Backend = backend if config.flight_recorder else "none"
        if self._backend != "none":
            with contextlib.suppress(OSError):  # `write` reports what is wrong with it
                folder.mkdir(exist_ok=True)

    def write(self) -> None:
        """Write it over what was written before; report on stderr if that cannot be done."""
        if self._backend == "none":
            return
        with no_trace_is_worth_a_run(self._path):
            dump = getattr(c10d, _DUMPS[self._backend])
            self._path.write_bytes(dump())

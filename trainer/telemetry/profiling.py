"""Profiler traces, and snapshots of GPU memory, of chosen steps and ranks; with none, nothing."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from trainer.errors import UserError, one_line
from trainer.text import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch

    from trainer.config import Config

_MAX_NUM_ENTRIES = 1_000_000
"""Allocations that a snapshot remembers; older ones are forgotten."""


def profiled_ranks(config: Config, world_size: int) -> frozenset[int]:
    """Return the ranks that --profile-ranks names, whether or not any step is profiled.

    Raises UserError for any other text, and for ranks that the run does not have.
    """
    chosen = config.profile_ranks
    if chosen == "all":
        return frozenset(range(world_size))
    if re.fullmatch(r"\d+(,\d+)*", chosen):
        ranks = frozenset(map(int, chosen.split(",")))
        if max(ranks) < world_size:
            return ranks
    raise UserError(
        "--profile-ranks",
        rule=f"be all, or ranks from 0 to {world_size - 1} with commas between",
        found=chosen,
        remedy="change it",
    )


def check_device(config: Config, device: torch.device) -> None:
    """Raise UserError if a snapshot is asked of memory that torch does not record."""
    if config.memory_snapshot and device.type != "cuda":
        raise UserError(
            "--memory-snapshot",
            rule="have a GPU, of whose memory torch keeps a record",
            found=device.type,
            remedy="leave it out; `memory` in events.jsonl has what a step took",
        )


class StepProfiler:
    """Traces steps, counted from 1, into files of this rank.

    trace-rank-<r>.json    for Perfetto or chrome://tracing; each step is a bar of its own
    memory-rank-<r>.pickle for https://pytorch.org/memory_viz
    """

    def __init__(  # noqa: PLR0913 -- all of it by name
        self,
        steps: range | None,
        folder: Path,
        rank: int,
        *,
        is_leader: bool = True,
        with_memory: bool = False,
        write_more: Callable[[], None] = lambda: None,
    ) -> None:
        """Trace `steps` (None: none), `with_memory` also what is allocated on the GPU.

        `is_leader`: of all ranks that trace them, the one that reports steps that never came.
        `write_more` is called with the trace written; it raises nothing.
        """
        self._steps = steps or range(0)
        self._folder = folder
        self._rank = rank
        self._with_memory = with_memory
        self._write_more = write_more
        self._is_due = is_leader and bool(self._steps)
        self._memory: Any = None
        self._profiler: Any = None
        self._step: Any = None

    def before(self, step: int) -> None:
        """Start if `step` is the first to trace."""
        if step not in self._steps:
            return
        from torch.profiler import profile, record_function  # noqa: PLC0415 -- only if asked for

        if step == self._steps.start:
            self._is_due = False
            if self._with_memory:
                from torch.cuda import memory  # noqa: PLC0415 -- not before the check

                self._memory = memory
                self._memory._record_memory_history(max_entries=_MAX_NUM_ENTRIES)  # noqa: SLF001 -- its only means
            # There is one cycle; without this, torch 2.11 warns that it clears events between two.
            self._profiler = profile(acc_events=True)
            self._profiler.start()
        if self._profiler is not None:
            self._step = record_function(f"step {step}")
            self._step.__enter__()

    def after(self, step: int) -> None:
        """Write the trace if `step` was the last to trace."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        if self._profiler is not None and step == self._steps.stop - 1:
            self.close()

    def close(self) -> None:
        """Write what was traced so far, if tracing is under way; warn if it never began."""
        if self._is_due:
            warn(
                f"--profile-steps: no trace, for step {self._steps.start} was none of this start's"
            )
            self._is_due = False
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        with no_trace_is_worth_a_run(self._folder):
            profiler.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(self._folder / f"trace-rank-{self._rank}.json"))
        with no_trace_is_worth_a_run(self._folder):
            self._write_memory()
        self._write_more()

    def out_of_memory(self) -> None:
        """Write what was allocated until now, if that is recorded: now it is wanted most."""
        if self._profiler is not None:
            with no_trace_is_worth_a_run(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
                self._write_memory()

    def _write_memory(self) -> None:
        if self._memory is not None:
            path = self._folder / f"memory-rank-{self._rank}.pickle"
            self._memory._dump_snapshot(str(path))  # noqa: SLF001 -- see above
            self._memory._record_memory_history(None)  # noqa: SLF001 -- the same


@contextlib.contextmanager
def no_trace_is_worth_a_run(place: Path) -> Iterator[None]:
    """Warn of what cannot be written, such as on a full disk."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- torch has errors of many types for a full disk
        warn(f"could not write to {place}: {one_line(error)}")

"""A profiler trace of chosen steps; with none chosen, nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class StepProfiler:
    """Traces steps, counted from 1, into a file that Perfetto or chrome://tracing shows."""

    def __init__(self, steps: range | None, path: Path) -> None:
        self._steps = steps or range(0)
        self._path = path
        self._profiler: Any = None

    def before(self, step: int) -> None:
        """Start if `step` is the first to trace."""
        if self._steps and step == self._steps.start:
            from torch.profiler import profile  # noqa: PLC0415 -- only if asked for

            self._profiler = profile()
            self._profiler.start()

    def after(self, step: int) -> None:
        """Write the trace if `step` was the last to trace."""
        if self._profiler is not None and step == self._steps.stop - 1:
            self.close()

    def close(self) -> None:
        """Write what was traced so far, if tracing is under way."""
        if self._profiler is not None:
            self._profiler.stop()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(self._path))
            self._profiler = None

"""Signals by which somebody asks the job for something: handlers set a flag, the loop acts."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobs.loop import Loop

_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""Of the time limit, by sbatch --signal; the second is what submitit asks Slurm for."""
_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_WARNINGS)


class Requests:
    """What this script was asked for."""

    def __init__(self, loop: Loop) -> None:
        """Listen to nothing yet."""
        self._loop = loop
        self.stop_signal: str | None = None
        """The last signal that asked the job to stop, such as TERM."""
        self.on_signal: Callable[[str], object] = lambda _name: None

    def listen(self) -> None:
        """From now on signals are for the loop.

        What was ignored when the script was started stays so: that is how nohup works. Only the
        warnings are ignored by jobs/prelaunch.sh itself, until here.
        """
        caught = [
            number
            for number in _REQUESTS
            if number in _WARNINGS or signal.getsignal(number) != signal.SIG_IGN
        ]
        self._loop.catch(caught, lambda number: self.on_signal(_name(number)), self._remember)

    def _remember(self, number: int, frame: object) -> None:
        del frame
        self.stop_signal = _name(number)

    def ignore(self) -> None:
        """Hear no more of them: the job is ending."""
        for number in _REQUESTS:
            signal.signal(number, signal.SIG_IGN)

    def is_stopped(self) -> bool:
        """Whether one has come."""
        return self.stop_signal is not None

    def pause(self, seconds: float) -> None:
        """Run the loop for so long, or until one comes."""
        self._loop.run(self.is_stopped, seconds)


def _name(number: int) -> str:
    return "USR1" if number in _WARNINGS else signal.Signals(number).name[len("SIG") :]

"""Ranks, processes of this one, that train in laps: a lap of one program, then of another.

Both are in the same processes: two sets of processes have each their own luck with cores and
memory, and the same program in both has differed by 9 % from itself. A slow moment of the machine
is longer than a short lap, so that it hits both; what starting takes is in no lap.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_TIMEOUT_S = 120
CPU = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Variables of a rank that computes on a CPU, wherever it is."""


@dataclass(frozen=True, kw_only=True)
class Lap:
    """So many steps of all ranks."""

    wall_s: float
    cpu_s: float
    """The sum over ranks, of all their threads."""
    loss: float


class Turns:
    """A rank's end of the pipe."""

    def __init__(self, pipe: Any, other: Iterator[float]) -> None:  # noqa: ANN401 -- a Connection, which is generic
        self._pipe = pipe
        self._other = other
        self._cpu_s = time.process_time()

    def lap_done(self, loss: float) -> None:
        """Report the lap that ends here; return when it is this program's turn again."""
        self._send(loss)
        while self._is_for_other():
            self._send(next(self._other))

    def _is_for_other(self) -> bool:
        is_for_other: bool = self._pipe.recv()
        self._cpu_s = time.process_time()
        return is_for_other

    def _send(self, loss: float) -> None:
        self._pipe.send((time.process_time() - self._cpu_s, loss))


class WorkerPool:
    """Ranks that all run `train(turns)`, with the variables that torch's rendezvous wants."""

    def __init__(
        self,
        num_ranks: int,
        train: Callable[[Turns], object],
        other: Iterator[float] | None = None,
        env: Mapping[str, str] = CPU,
        method: Literal["fork", "spawn"] = "fork",
    ) -> None:
        """Start them, with `env` besides; each runs through its first lap by itself.

        `other` is another program: each of its values, which is a loss, takes a lap. Ranks that
        are forked import nothing, which of what torch needs for shards takes ten seconds of a core;
        CUDA wants them spawned, and `train` such that it can be pickled.
        """
        port = free_port()
        context: Any = get_context(method)  # whose types know no `Process`
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115 -- closed by __exit__
        self._pipes, self._ranks = [], []
        for rank in range(num_ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks}
            place |= {"LOCAL_WORLD_SIZE": num_ranks, "MASTER_PORT": port}
            variables = {name: str(value) for name, value in place.items()}
            variables |= {"MASTER_ADDR": "127.0.0.1", **env}
            ours, theirs = context.Pipe()
            words = (train, other or iter(()), theirs, variables, self._log.name)
            process = context.Process(target=_become, args=words, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._ranks.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._ranks:
            process.kill()  # the trainer would save first
        for process in self._ranks:
            process.join()
        self._log.close()

    def await_first_lap(self) -> None:
        """Return when all have taken it."""
        self._read()

    def lap(self, *, of_other: bool = False) -> Lap:
        """Let all take a lap."""
        began_s = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(of_other)
        received = self._read()
        wall_s = time.perf_counter() - began_s
        return Lap(wall_s=wall_s, cpu_s=sum(cpu_s for cpu_s, _ in received), loss=received[0][1])

    def _read(self) -> list[tuple[float, float]]:
        received = []
        for pipe in self._pipes:
            try:
                if not pipe.poll(_TIMEOUT_S):
                    raise RuntimeError(f"a lap took over {_TIMEOUT_S} s: {self._log_end()}")
                received.append(pipe.recv())
            except EOFError as error:
                raise RuntimeError(f"a rank ended: {self._log_end()}") from error
        return received

    def _log_end(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]


def _become(
    train: Callable[[Turns], object],
    other: Iterator[float],
    pipe: object,
    variables: dict[str, str],
    log_path: str,
) -> None:
    with Path(log_path).open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.environ.update(variables)
    train(Turns(pipe, other))


def train_ours(
    argv: Sequence[str], turns: Turns, *, lap_ends: Literal["step", "log"] = "log"
) -> None:
    """Train as `python -m trainer` does; a lap ends with each step, or with each line of the log.

    What a step has behind it, such as that line, is then in the next lap.
    """
    from trainer import __main__ as entry  # noqa: PLC0415 -- in the rank only
    from trainer.loop.loop import Loop  # noqa: PLC0415 -- the same

    patched: Any = Loop
    name = {"step": "_train_step", "log": "_log"}[lap_ends]
    method = getattr(patched, name)  # no public hook; what it does is left as it is

    def marked(loop: Loop, step: int) -> None:
        method(loop, step)
        turns.lap_done(loop.state.last_loss or 0.0)

    setattr(patched, name, marked)
    entry.main(argv, os.environ)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

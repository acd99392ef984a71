import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.loop.stop import StopRequest


def test_one_request_delivered_twice_is_one() -> None:
    """Slurm and the launcher may both deliver it."""
    stop = StopRequest()
    stop._handle(signal.SIGUSR1, None)  # noqa: SLF001 -- as the interpreter calls it
    stop._handle(signal.SIGTERM, None)  # noqa: SLF001
    assert stop.signal_name == "USR1"


@pytest.mark.parametrize("num_open", [0, 1100])
def test_a_second_request_later_ends_at_once(
    patience: Callable[[float], float], num_open: int
) -> None:
    """With 128 + the signal's number; also where more descriptors are open than select takes."""
    code = (
        f"import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))\n"
        f"for _ in range({num_open}): os.dup(2)\n"
        "import os, signal, time, trainer.loop.stop as s; s._SAME_REQUEST_S = 0.01\n"
        "s.StopRequest().install(); os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.1)\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"
    )
    root = str(Path(__file__).parents[3])
    began_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, check=False
    )
    assert ended.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - began_s < patience(8)

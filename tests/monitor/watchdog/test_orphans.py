"""Real processes that carry, or do not carry, a launch's token."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.watchdog import orphans

pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds

TOKEN = f"launch-{os.getpid()}"  # another run of the tests beside this one is another launch
RANK = {"DDP_LAUNCH_ID": TOKEN, "DDP_NODE": "n1", "LOCAL_RANK": "0"}
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.1; done"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Leave no process behind, whatever the test found."""
    yield
    for pid in orphans.find(TOKEN, "n1"):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that carries the given variables; it is running its program already.

    `sleep` is started without a shell: bash loses a signal that comes just before its `exec`.
    """
    started = []

    def begin(script: str | None = None, **further: str) -> Any:
        env = {k: v for k, v in os.environ.items() if not k.startswith("DDP_")}
        command = ["bash", "-c", script] if script else ["sleep", "60"]
        process = subprocess.Popen(
            command, env={**env, **further}, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        if script:
            assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_ranks_of_this_launch_on_this_node_are_found(start: Start) -> None:
    """Another launch's, another node's and the batch script's processes are not."""
    mine = start(**RANK)
    start(**{**RANK, "DDP_LAUNCH_ID": f"{TOKEN}0"})
    start(**{**RANK, "DDP_NODE": "n10"})
    start(DDP_LAUNCH_ID=TOKEN)
    assert orphans.find(TOKEN, "n1") == [mine.pid]


def test_without_a_node_a_rank_is_known_by_its_local_rank(start: Start) -> None:
    """`srun` and the script carry the token alone; they are left alone."""
    mine = start(DDP_LAUNCH_ID=TOKEN, LOCAL_RANK="1")
    start(DDP_LAUNCH_ID=TOKEN)
    assert orphans.find(TOKEN, None) == [mine.pid]


def test_the_watcher_is_not_found() -> None:
    """The recorder carries the token itself and does not end itself."""
    script = f"from monitor.watchdog import orphans; print(orphans.find({TOKEN!r}, 'n1'))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **RANK},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_polite_process_is_asked_only(start: Start, patience: Callable[[float], float]) -> None:
    """SIGTERM ends it at once; nothing is killed and nothing waits."""
    mine = start(**RANK)
    began = time.monotonic()
    assert orphans.end(TOKEN, "n1") == orphans.Ended((mine.pid,), ())
    assert mine.wait(timeout=5) == -signal.SIGTERM
    assert time.monotonic() - began < patience(1)


def test_a_stubborn_process_is_killed(start: Start) -> None:
    """One that ignores SIGTERM is killed after the grace, and its children with it."""
    mine = start(STUBBORN, **RANK)
    ended = orphans.end(TOKEN, "n1", term_s=0.3)
    assert mine.pid in ended.killed
    assert mine.wait(timeout=5) == -signal.SIGKILL
    assert orphans.find(TOKEN, "n1") == []


def test_a_stopped_process_is_woken_to_end(start: Start) -> None:
    """A rank stopped by a debugger hears SIGTERM, too."""
    mine = start(**RANK)
    mine.send_signal(signal.SIGSTOP)
    assert orphans.end(TOKEN, "n1").killed == ()
    assert mine.wait(timeout=5) == -signal.SIGTERM


def test_a_process_that_ends_meanwhile_is_no_trouble(start: Start) -> None:
    """Between finding and asking it may be gone."""
    mine = start(**RANK)
    mine.kill()
    mine.wait()
    orphans.send(mine.pid, signal.SIGTERM)


LAUNCHER = """
env LOCAL_RANK=0 bash -c "trap '' TERM; while :; do sleep 0.1; done" &
"$@" &
echo "$!"
wait
"""


@pytest.mark.parametrize("word", ["silent", "PDEATHSIG"])
def test_the_recorder_ends_the_ranks_of_a_dead_launcher(
    bench: Any, until: Callable[..., None], tmp_path: Path, word: str
) -> None:
    """`kill -9` of the launcher: its rank ends, that is reported and recorded; the log is whole.

    With PR_SET_PDEATHSIG the recorder hears of that death by a SIGTERM: it is a death all the same.
    """
    out = tmp_path / "job.gutil"
    run = tmp_path / "run"
    run.mkdir()
    options = ("--out", out, "--launch-id", TOKEN, "--compose", run, "--interval", 60)
    guard = ["setpriv", "--pdeathsig", "TERM"] if word == "PDEATHSIG" else []
    with (tmp_path / "output").open("w") as output:
        launcher = subprocess.Popen(
            ["bash", "-c", LAUNCHER, "_", *guard, *bench.command(*options)],
            env={**os.environ, "DDP_LAUNCH_ID": TOKEN, "DDP_NODE": "n1", "DDP_ATTEMPT": "2"},
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    assert launcher.stdout is not None
    monitor = int(launcher.stdout.readline())
    until(lambda: out.exists() and "\n 2" in out.read_text())
    assert len(orphans.find(TOKEN, "n1")) >= 2
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    until(lambda: orphans.find(TOKEN, "n1") == [], limit_s=8)
    until(lambda: not orphans._carries(monitor, set(), "n1"))  # noqa: SLF001 - itself ends last
    assert out.read_text().count("\n 2") == 2
    event = json.loads((run / "events.jsonl").read_text())
    assert list(event)[:5] == ["time", "event", "source", "attempt", "host"]
    assert (event["event"], event["attempt"], event["node"]) == ("orphans", 2, "n1")
    assert event["killed"]
    assert json.loads((run / "run.json").read_text())["attempts"][0]["attempt"] == 2
    assert "died" in (tmp_path / "output").read_text()


def test_sigterm_of_the_recorder_ends_no_rank(
    bench: Any, until: Callable[..., None], start: Start
) -> None:
    """Told to end by a launcher that lives, it leaves the ranks to it."""
    rank = start(**RANK)
    recording = bench.start("--launch-id", TOKEN, env={"DDP_NODE": "n1"})
    until(recording.rows)
    assert recording.end() == (0, "")
    assert rank.poll() is None

"""One trainer at a time in a run directory, and a count of its starts."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.ports import free_port
from tests.trainer.quick_run import QUICK

pytestmark = pytest.mark.slow
ENDLESS = (*QUICK, "--log-every", "1", "--epochs", "100000", "--val-every", "1000000")
Start = Callable[..., Any]


def test_a_second_trainer_in_a_run_directory_is_refused(start_ranks: Start) -> None:
    """It says which process is in it, writes nothing, and the first one goes on."""
    first = start_ranks(2, *ENDLESS)
    first.wait_for_step(5)
    before = len(first.run.events("summary"))
    second = start_ranks(2, *ENDLESS)
    assert second.wait() == [64, 64]
    assert len(first.run.events("summary")) == before
    assert first.processes[0].poll() is None


def test_a_killed_trainer_holds_nothing(start_ranks: Start) -> None:
    """Not even where its data loaders live on; the next start is attempt 2."""
    first = start_ranks(1, *ENDLESS, "--num-workers", "2", "--checkpoint-every", "1")
    first.wait_for_step(5)
    first.processes[0].send_signal(signal.SIGKILL)
    first.wait()
    again = start_ranks(1, *QUICK, "--epochs", "1", "--force")
    assert again.wait() == [0], again.output
    assert {event["attempt"] for event in again.run.events("summary")} == {2}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("4711 0 node9 pid:[1] 12 100 4711.1.12", 64),
        ("- 0 {host} {namespace} {pid} 100 x.1.{pid}", 64),
        ("- 0 {host} {namespace} 99999999 100 x.1.99999999", 0),
        ("- 0 {host} {namespace} torn", 0),
        ("released", 0),
    ],
)
def test_a_directory_of_a_job_is_the_jobs(
    train: Callable[..., tuple[int, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    line: str,
    code: int,
) -> None:
    """The script's lock counts as long as it is renewed and, on this machine, its process lives."""
    (tmp_path / "run").mkdir()
    lock = tmp_path / "run/lock.3"
    namespace = Path("/proc/self/ns/pid").readlink()
    words = {"host": socket.gethostname(), "namespace": namespace, "pid": os.getpid()}
    lock.write_text(line.format(**words) + "\n")
    assert train(*QUICK, "--max-steps", "2")[0] == code
    if code:
        output = capsys.readouterr().err
        assert output.count("\n") == 1
        assert "used by one run at a time; found" in output
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock.3"]
    os.utime(lock, (1, 1))  # it was not renewed for long
    assert train(*QUICK, "--max-steps", "2")[0] == 0


def test_a_pipe_or_a_link_in_a_files_place_costs_nothing(
    train: Callable[..., tuple[int, Any]], tmp_path: Path
) -> None:
    """A lock that is none has no owner: opening it would wait for a writer for ever.

    A link may lead to a file of this user's, where others may write.
    """
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run/lock.3")
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "run/.trainer").symlink_to(tmp_path / "mine")
    assert train(*QUICK, "--max-steps", "2")[0] == 0
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_restart_by_torchrun_goes_on_in_the_same_directory(
    clean_env: dict[str, str], tmp_path: Path
) -> None:
    """With and without --rdzv-id: one directory, one more attempt, steps from the checkpoint.

    A rank alone shows the second: each of torchrun's starts imports torch once a rank.
    """
    clean_env["PYTHONPATH"] = str(Path(__file__).parents[3])
    program = tmp_path / "dies_once.py"
    program.write_text(
        "import os, pathlib, sys, threading, time\n"
        "from trainer.__main__ import main\n"
        "def die():\n"
        "    while not list(pathlib.Path('out').glob('*/checkpoints/step-*')): time.sleep(0.01)\n"
        "    os._exit(9)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    threading.Thread(target=die, daemon=True).start()\n"
        "    sys.argv.append('--epochs=100000')\n"
        "sys.exit(main(sys.argv[1:], os.environ))\n"
    )
    alone = ["--nproc-per-node=1", f"--master-port={free_port()}"]
    for number, words in enumerate((["--nproc-per-node=2", "--standalone"], alone)):
        folder = tmp_path / str(number)
        folder.mkdir()
        torchrun = [sys.executable, "-m", "torch.distributed.run", *words, "--max-restarts=1"]
        ended = subprocess.run(
            [*torchrun, program, *QUICK, "--checkpoint-every=5", "--max-steps=60"],
            cwd=folder, env=clean_env, capture_output=True, text=True, check=False, timeout=180,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        (run_dir,) = (folder / "out").iterdir()
        events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
        resumes = [event for event in events if event["event"] == "resume"]
        assert [(event["attempt"], event["step"] > 0) for event in resumes][-1] == (2, True)

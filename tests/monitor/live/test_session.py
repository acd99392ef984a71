"""`python -m monitor watch` in a real terminal: keys, sizes, files that change, ways to end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.monitor.live.test_run import Run
from tests.monitor.live_logs import NONE, LogWriter, gpu, log_of
from tests.monitor.terminal import AS_FOUND, ROOT, Terminal

pytestmark = pytest.mark.slow

WATCH = ("-m", "monitor", "watch")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run on two nodes, one of which has no GPU."""
    run = Run(tmp_path)
    run.add_event("start", job_id="7", world_size=2)
    run.step(50, 10.0, loss=1.25, total_steps=1060)
    run.step(60, 12.0, loss=1.0, total_steps=1060)
    writer = log_of(tmp_path, "n1")
    for _ in range(5):
        writer.write(gpu(0), gpu(1, sm_pct=40))
    log_of(tmp_path, "n2").write(NONE, cpu=35)
    return tmp_path


def row(terminal: Terminal, host: str, gpu_index: str = "0") -> list[str]:
    """Give the cells of a GPU's row on the screen."""
    rows = [line.split() for line in terminal.lines]
    return next((cells for cells in rows if cells[:2] == [host, gpu_index]), [])


def test_a_person_looks_at_a_run(out: Path) -> None:
    """At 80x24, then at 160x50 and very small; keys sort, filter, pause, show help, quit."""
    with Terminal(*WATCH, out / "slurm-7") as terminal:
        terminal.until_seen("slurm-7  running  2 ranks", "step 60/1060", "0:03:20 left", "? help")
        assert "loss 1.0000" in terminal.text
        assert row(terminal, "n1", "1")[2] == "40%"
        assert row(terminal, "n2", "cpu")[2] == "35%"
        assert all(len(line) <= 80 for line in terminal.lines)
        assert terminal.modes == {7: False, 25: False, 1049: True}
        terminal.send("s")
        terminal.until_seen("s sort: util")
        assert terminal.text.index("n2       cpu") < terminal.text.index("n1         1")
        terminal.send("/n1 gpu0\r")
        terminal.until_seen("1-1 of 1", "/ n1 gpu0")
        terminal.send("\x1b")
        terminal.until_seen("1-3 of 3")
        terminal.send("?")
        terminal.until_seen("a node without a GPU")
        terminal.send("q")
        terminal.until_seen("q quit")
        terminal.resize(160, 50)
        terminal.until_seen("pcie MB/s")
        assert terminal.lines[49].startswith("1-3 of 3  q quit")
        terminal.resize(24, 6)
        terminal.until(lambda: terminal.lines[5].startswith("1-3 of 3"))
        terminal.send("q")
        assert terminal.end() == 0
        assert terminal.is_as_found()


def test_what_changes_in_the_files_is_seen(out: Path) -> None:
    """Growth, a torn line, a node that appears, a rotation, a shrunk log; not while it pauses."""
    log = LogWriter(out / "slurm-7.n1.gutil", "n1", num_rows=10, num_cycles=5)
    log._begun = True  # noqa: SLF001 - it goes on with the fixture's log
    with Terminal(*WATCH, out / "slurm-7") as terminal:
        terminal.until_seen("1-3 of 3")
        torn = log.text(gpu(0, sm_pct=71), gpu(1, sm_pct=72))
        with log.path.open("a") as file:
            file.write(torn[:-20])
            file.flush()
            terminal.until(lambda: row(terminal, "n1")[2] == "71%")
            assert row(terminal, "n1", "1")[2] == "40%"
            file.write(torn[-20:])
            file.flush()
            terminal.until(lambda: row(terminal, "n1", "1")[2] == "72%")
        log_of(out, "n3").write(gpu(0, sm_pct=33))
        terminal.until_seen("1-4 of 4", "3 nodes, 3 GPUs")
        log.write(gpu(0), gpu(1, sm_pct=73))
        log.path.rename(f"{log.path}.1")
        log.begin_anew()
        log.write(gpu(0, sm_pct=81), gpu(1, sm_pct=82))
        terminal.until(lambda: row(terminal, "n1")[2] == "81%")
        log.path.write_text("")
        log.begin_anew()
        log.write(gpu(0, sm_pct=91), gpu(1, sm_pct=92))
        terminal.until(lambda: row(terminal, "n1")[2] == "91%")
        terminal.send("p")
        terminal.until_seen("PAUSED")
        log.write(gpu(0, sm_pct=5), gpu(1, sm_pct=6))
        clock = terminal.lines[0]
        terminal.send("r")  # a picture is drawn, of the same moment
        terminal.until_seen("p go on")
        assert row(terminal, "n1")[2] == "91%"
        assert terminal.lines[0] == clock
        terminal.send("p")
        terminal.until(lambda: row(terminal, "n1")[2] == "5%")
        assert "could not be read" not in terminal.text


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_a_signal_leaves_the_terminal_as_it_was(out: Path, number: int, code: int) -> None:
    """128 and its number; Ctrl-C is one way to quit."""
    with Terminal(*WATCH, out / "slurm-7") as terminal:
        terminal.until_seen("? help")
        assert not terminal.is_as_found()
        terminal.signal(number)
        assert terminal.end() == code
        assert terminal.is_as_found()
        assert "Traceback" not in terminal.text


def test_an_error_leaves_the_terminal_as_it_was(out: Path) -> None:
    """And is seen, on the screen that the user has then."""
    broken = (
        "import sys; from monitor.live import frame; from monitor.cli import main\n"
        "real = frame.picture\n"
        "def picture(*a, **k):\n"
        "    if a[2].page == 'help': raise RuntimeError('broken')\n"
        "    return real(*a, **k)\n"
        "frame.picture = picture\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    with Terminal("-c", broken, "watch", out / "slurm-7") as terminal:
        terminal.until_seen("? help")
        terminal.send("?")
        assert terminal.end() == 1
        assert terminal.is_as_found()
        assert b"RuntimeError: broken" in terminal.written.split(b"\x1b[?1049l")[-1]


def test_it_can_be_stopped_and_continued(out: Path) -> None:
    """Ctrl-Z gives the terminal back; SIGCONT takes it again and draws anew."""
    shell = (
        "import subprocess, sys, os, signal, time\n"
        "signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-P', *sys.argv[1:]], process_group=0)\n"
        "os.tcsetpgrp(0, child.pid)\n"
        "while True:\n"
        "    _, status = os.waitpid(child.pid, os.WUNTRACED)\n"
        "    if not os.WIFSTOPPED(status): sys.exit(os.waitstatus_to_exitcode(status))\n"
        "    os.tcsetpgrp(0, os.getpgrp())\n"
        "    print('STOPPED', flush=True)\n"
        "    input()\n"
        "    os.tcsetpgrp(0, child.pid)\n"
        "    os.kill(child.pid, signal.SIGCONT)\n"
    )
    with Terminal("-c", shell, *WATCH, out / "slurm-7") as terminal:
        for _ in range(2):
            terminal.until_seen("? help")
            terminal.send("\x1a")
            terminal.until_seen("STOPPED")
            assert terminal.is_as_found()
            terminal.screen.reset()
            terminal.send("\n")
        terminal.until_seen("? help", "slurm-7  running")
        assert not terminal.is_as_found()
        terminal.send("q")
        assert terminal.end() == 0
        assert terminal.is_as_found()


def test_a_stop_that_is_not_received_is_made_good(out: Path) -> None:
    """After SIGSTOP and a shell that reset the terminal, SIGCONT takes it again."""
    with Terminal(*WATCH, out / "slurm-7") as terminal:
        terminal.until_seen("? help")
        terminal.signal(signal.SIGSTOP)
        terminal.until(lambda: terminal.state() == "T")
        terminal.screen.reset()
        terminal.signal(signal.SIGCONT)
        terminal.until_seen("? help", "slurm-7  running")
        terminal.send("q")
        assert terminal.end() == 0


def test_a_terminal_that_hangs_up_ends_it(out: Path) -> None:
    """As when the connection is lost: no process is left behind."""
    with Terminal(*WATCH, out / "slurm-7") as terminal:
        terminal.until_seen("? help")
        terminal.hang_up()
        assert terminal.process.wait(timeout=20) == 129


HANGS_UP = """
import os, signal, sys
from rich.console import Console
from monitor.live.terminal import Terminal
ours, its = os.openpty()
with open(os.devnull, "w") as nowhere, Terminal(Console(file=nowhere), its) as terminal:
    os.close(ours)
    terminal.wait(10)
os.kill(os.getpid(), signal.SIGHUP)
sys.exit(128 + terminal.ended_by)
"""


def test_word_of_a_hang_up_may_come_after_it_was_seen() -> None:
    """The kernel lets a reader see the end of a terminal before it sends SIGHUP."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", HANGS_UP],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 129


# ---- without a terminal --------------------------------------------------------------------------


def printed(*arguments: object, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run it with its output in a pipe."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DDP_", "COLUMNS"))}
    done = subprocess.run(
        [sys.executable, "-P", *WATCH, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=clean | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"} | (env or {}),
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_without_a_terminal_one_picture_is_printed(out: Path) -> None:
    """Plain text, all rows, code 0; the newest run where none is named."""
    code, text = printed(cwd=out, env={"DDP_OUT": str(out), "COLUMNS": "100"})
    lines = text.splitlines()
    assert code == 0
    assert lines[0].split()[:2] == ["slurm-7", "running"]
    assert [line.split()[0] for line in lines[4:7]] == ["n1", "n1", "n2"]
    assert "\x1b" not in text
    assert max(map(len, lines)) <= 100
    assert "help" not in text


def test_without_a_standard_input_one_picture_is_printed(out: Path) -> None:
    """As a service manager or `<&-` starts it."""
    command = ["bash", "-c", 'exec "$@" <&-', "bash", sys.executable, *WATCH, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "slurm-7" in done.stdout


def test_a_terminal_that_can_do_nothing_gets_one_picture(out: Path) -> None:
    """TERM=dumb."""
    with Terminal(*WATCH, out, env={"TERM": "dumb"}) as terminal:
        assert terminal.end() == 0
        assert terminal.modes == AS_FOUND
        assert b"slurm-7" in terminal.written


def test_nothing_to_watch_is_reported_in_one_line(tmp_path: Path) -> None:
    """Code 64, and what to do."""
    code, text = printed(cwd=tmp_path)
    assert code == 64
    assert text.count("\n") == 1
    assert "found none in out; name a run directory" in text

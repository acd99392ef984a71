"""Signals to prelaunch.sh in place, and what becomes of the ranks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Cluster
from tests.jobs.alive import LEAVES_CHILDREN, gone, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Scripts


pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_signals_end_every_rank(
    scripts: Scripts, name: str, patience: Callable[[float], float]
) -> None:
    """A signal to the script acts at once, although the ranks would run for minutes."""
    process = scripts.start("prelaunch.sh", "--", "bash", "-c", LEAVES_CHILDREN)
    wait_for(scripts.directory, "rank_up", 2)
    began = time.monotonic()
    process.send_signal(getattr(signal, f"SIG{name}"))
    result = scripts.finish(process)
    assert time.monotonic() - began < patience(8)
    assert result.code == 143
    assert gone(str(scripts.directory))
    assert result.of("signal")[0]["signal"] in {name, "TERM"}
    assert result.of("end")[-1]["code"] == 143


FILLS = """
import os, signal, time
me = os.getpid()
signal.signal(signal.SIGTERM, lambda *_: os._exit(75 if os.getpid() == me else 0))
open("up-" + os.environ["RANK"], "w").close()
while not os.path.exists("up-1"):
    time.sleep(0.01)
try:
    while os.environ["RANK"] == "0":
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
except OSError:
    print("no more processes", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming a user with a limit of its own needs root")
def test_ranks_that_use_up_what_their_user_may_start(anybody: Scripts) -> None:
    """Neither agents nor supervisor can start a thread then; the ranks end as ever."""
    stranger = ("setpriv", "--reuid=61234", "--regid=61234", "--clear-groups", "prlimit")
    job = (anybody.root / "jobs" / "prelaunch.sh", "--", "/usr/bin/python3", "-c", FILLS)
    words, logs = [*stranger, "--nproc=40", *job], anybody.directory.glob
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            words, cwd=anybody.directory, env=anybody.env, stdout=log, stderr=log
        )
        try:
            Cluster.until(
                lambda: any("no more" in one.read_text() for one in logs("out/*/logs/rank-0.log")),
                20,
                "no process can be started",
            )
        finally:
            process.terminate()
            code = process.wait(60)
        log.seek(0)
        assert code == 75, log.read()


@pytest.mark.parametrize("script", ["prelaunch.sh", "launcher.sh"])
def test_an_interrupt_while_a_script_only_starts(scripts: Scripts, script: str) -> None:
    """It ends what it meets: no traceback of an import."""
    for name in ("jobs", "rundir"):
        shutil.copytree(scripts.root / name, scripts.directory / name)
    (scripts.directory / "jobs" / "loop.py").write_text(
        "import time\nopen('importing', 'w').close()\ntime.sleep(30)\n"
    )
    process = subprocess.Popen(
        [scripts.directory / "jobs" / script, "--", "true"],
        cwd=scripts.directory,
        env=scripts.env,
        stderr=subprocess.PIPE,
    )
    Cluster.until((scripts.directory / "importing").exists, 20, "it imports its modules")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1] == b""
    assert process.returncode == -signal.SIGINT


def test_a_second_signal_reaches_the_ranks(scripts: Scripts) -> None:
    """They decide what it means: ours end at once, without the checkpoint they were writing."""
    program = (
        "trap 'echo told; ((++n < 2)) || exit 143' TERM; echo ready; while :; do sleep .1; done"
    )
    process = scripts.start("prelaunch.sh", "--", "bash", "-c", program, DDP_GRACE="60")
    wait_for(scripts.directory, "rank_up", 2)
    logs = next(scripts.directory.glob("out/*/logs"))

    def say(word: str, count: int) -> None:
        texts = (logs / f"rank-{rank}.log" for rank in (0, 1))
        Cluster.until(
            lambda: all(text.read_text().count(word) == count for text in texts), 20, word
        )

    for word, count in (("ready", 1), ("told", 1)):
        say(word, count)
        process.terminate()
    result = scripts.finish(process)
    assert result.code == 143
    assert gone(str(scripts.directory))


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2])
def test_usr1_reaches_only_programs_that_catch_it(scripts: Scripts, signum: signal.Signals) -> None:
    """It asks for a checkpoint, as SIGUSR2 does; a program without a handler survives it."""
    program = 'if ((RANK)); then trap "exit 75" USR1; echo ready; while :; do sleep 0.1; done; '
    process = scripts.start(
        "prelaunch.sh", "--", "bash", "-c", program + "else echo ready; sleep 3; exit 0; fi"
    )
    wait_for(scripts.directory, "rank_up", 2)
    logs = next(scripts.directory.glob("out/*/logs"))
    Cluster.until(lambda: "ready" in (logs / "rank-1.log").read_text(), 10, "rank 1 is ready")
    process.send_signal(signum)
    result = scripts.finish(process)
    ends = {event["rank"]: event["code"] for event in result.of("rank_end")}
    assert ends[1] == 75
    assert ends[0] in {0, 143}  # ended by itself, or told to when its peer had stopped
    assert result.code == 75
    assert "checkpoint" in result.err.splitlines()[-1]


def test_usr1_waits_for_a_program_that_is_still_starting(scripts: Scripts) -> None:
    """The time limit may be near before a program has a handler: it is told when it has one."""
    program = 'sleep 2; trap "exit 75" USR1; for _ in {1..100}; do sleep 0.1; done'
    process = scripts.start("prelaunch.sh", "--", "bash", "-c", program)
    wait_for(scripts.directory, "rank_up", 2)
    process.send_signal(signal.SIGUSR1)
    assert scripts.finish(process).code == 75


def test_usr1_waits_for_launchers_that_are_still_starting(scripts: Scripts) -> None:
    """Before it has a handler an agent could not pass it on, and the request would be lost."""
    mark = scripts.directory / "starting"
    starting = f"""case "$*" in *jobs/agent/*) sleep 1; : >'{mark}'; sleep 1 ;; esac"""
    scripts.fake("slow-python", f"""{starting}; exec '{sys.executable}' "$@" """)
    program = 'trap "exit 75" USR1; for _ in {1..100}; do sleep 0.1; done'
    command = ("prelaunch.sh", "--", "bash", "-c", program)
    process = scripts.start(*command, DDP_PYTHON="slow-python")
    Cluster.until(mark.exists, 20, "a launcher is starting")
    process.send_signal(signal.SIGUSR1)
    result = scripts.finish(process)
    assert result.code == 75
    assert len(result.of("rank_up")) == 2


def test_a_warning_before_the_supervisor_listens(scripts: Scripts) -> None:
    """Slurm sends it at once where the time limit is shorter than the warning's time."""
    warned = f'[[ $* != *supervisor.main* ]] || kill -USR1 $$; exec "{sys.executable}" "$@"'
    scripts.fake("warned-python", warned)
    result = scripts.run("prelaunch.sh", "--", "true", DDP_PYTHON="warned-python")
    assert (result.code, len(result.of("rank_end"))) == (0, 2), result.err


def test_a_time_limit_that_leaves_no_time(scripts: Scripts) -> None:
    """Each start of such a job would end before its first step: it is said why."""
    process = scripts.start("prelaunch.sh", "--model=mlp", "--epochs=9", DDP_NPROC_PER_NODE="1")
    wait_for(scripts.directory, "rank_up", 1)
    process.send_signal(signal.SIGUSR1)
    result = scripts.finish(process)
    assert result.code == 75
    assert "raise --time, or lower the 120 (--signal=B:USR1@SECONDS)" in result.err


def test_a_term_that_is_ignored_ends_after_the_grace(scripts: Scripts) -> None:
    """A rank that ignores SIGTERM is killed when DDP_GRACE is over."""
    process = scripts.start(
        "prelaunch.sh",
        "--",
        "bash",
        "-c",
        "trap '' TERM; touch up-$RANK; while :; do sleep 0.1; done",
        DDP_GRACE="1",
    )
    Cluster.until(lambda: len(list(scripts.directory.glob("up-*"))) == 2, 20, "ranks with a trap")
    process.terminate()
    result = scripts.finish(process, timeout=20)
    assert result.code == 137
    assert gone(str(scripts.directory))


def test_a_signal_does_not_change_a_code_that_bash_has_a_use_for(scripts: Scripts) -> None:
    """127 is also what bash says of a child that it knows no longer."""
    asks_its_launcher = "sleep 1; kill -USR1 $PPID; sleep 0.5; exit 127"
    command = ("--", "bash", "-c", asks_its_launcher)
    result = scripts.run("prelaunch.sh", *command, DDP_NPROC_PER_NODE="1")
    assert result.code == 127
    assert [event["code"] for event in result.of("rank_end")] == [127]


def test_a_signal_at_any_instant_is_survived(scripts: Scripts) -> None:
    """Ranks that are told to stop in the middle of their start still say how they ended.

    bash 5.2 can break off with a syntax error when a trap runs while it parses a substitution.
    """
    for number in range(12):
        result = scripts.run(
            "prelaunch.sh",
            "--",
            "bash",
            "-c",
            "exit $((RANK == 3 ? 3 : 0))",
            DDP_NPROC_PER_NODE="4",
            DDP_RUN_NAME=f"run-{number}",
        )
        assert result.code == 3, result.err
        assert "unexpected EOF" not in result.err


@pytest.mark.parametrize(
    ("script", "num_times", "delay_s"), [("launcher.sh", 40, 0.0003), ("prelaunch.sh", 20, 0.03)]
)
def test_a_signal_at_the_end_costs_no_code(
    scripts: Scripts,
    script: str,
    num_times: int,
    delay_s: float,
    patience: Callable[[float], float],
) -> None:
    """Slurm tells all processes of a step at once: the rank's end and the signal come together.

    bash can lose a child whose end it has just been told when a trap breaks into `wait`, and a
    `read` in a trap takes away the timeout of the one that it interrupts: both wait for ever.
    """
    program = ("perl", "-e", "$SIG{TERM} = sub { exit 143 }; sleep 600")
    settings = {"DDP_NPROC_PER_NODE": "1", "DDP_GRACE": "300"}
    for number in range(num_times):
        directory = scripts.directory / str(number)
        directory.mkdir()
        process = scripts.start(script, "--", *program, cwd=directory, **settings)
        (up,) = wait_for(directory, "rank_up", 1, timeout_s=patience(20))
        time.sleep(0.05)  # until it has its handler, mostly
        os.kill(up["pid"], signal.SIGTERM)
        time.sleep(delay_s * (1 + number % 8))
        process.terminate()
        assert scripts.finish(process, timeout=patience(30)).code == 143
        (end,) = wait_for(directory, "rank_end", 1)
        assert end["code"] == 143


def test_sigterm_under_srun_on_a_slow_machine(slurm: Scripts) -> None:
    """What a trap starts does its own work, whatever `read` of its parent it interrupted."""
    slurm.fake("sed", 'case $* in *step_id*) sleep 0.5 ;; esac; exec /usr/bin/sed "$@"')
    slurm.fake("scancel", "exit 1")
    program = ("bash", "-c", "trap 'exit 75' TERM; touch up; while :; do sleep 0.1; done")
    process = slurm.start("prelaunch.sh", "--", *program, DDP_MONITOR="0")
    Cluster.until((slurm.directory / "up").exists, 20, "a rank with a trap")
    process.send_signal(signal.SIGTERM)
    result = slurm.finish(process)
    assert result.code == 75
    assert len(result.of("decision")) == 1

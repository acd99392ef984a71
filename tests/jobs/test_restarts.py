"""Restarts within the allocation, without Slurm: what follows a failure, and when it ends."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Result, Scripts

pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds

# Rank 1 kills itself in the attempts before the given one, once rank 0 has spoken; every attempt
# writes a "checkpoint".
FAILS_BEFORE = """
echo "port $MASTER_PORT launch $DDP_LAUNCH_ID"
[[ $SAVES != 1 ]] || echo "step-$((DDP_ATTEMPT * 20))" >"$DDP_RUN_DIR/checkpoints/latest"
: >"$DDP_RUN_DIR/spoken-$DDP_ATTEMPT-$RANK"
if ((RANK == 1 && DDP_ATTEMPT < GOOD)); then
    until [[ -e $DDP_RUN_DIR/spoken-$DDP_ATTEMPT-0 ]]; do sleep 0.02; done
    kill -9 $$
fi
((DDP_ATTEMPT >= GOOD)) || sleep 60
"""


def failing(scripts: Scripts, *, good: int, saves: bool, **env: str) -> object:
    """Runs two ranks of which one dies in every attempt before number `good`."""
    return scripts.run(
        "prelaunch.sh",
        "--",
        "bash",
        "-c",
        FAILS_BEFORE,
        **{"GOOD": str(good), "SAVES": str(int(saves)), "DDP_MAX_RESTARTS": "3"} | env,
    )


def test_a_failed_rank_starts_again(scripts: Scripts) -> None:
    """The step starts again with a new port and a new token, and the job finishes."""
    result = failing(scripts, good=3, saves=True)
    assert result.code == 0, result.err
    assert [event["attempt"] for event in result.of("start")] == [1, 2, 3]
    assert [event["code"] for event in result.of("end")] == [137, 137, 0]
    decisions = [(e["decision"], e["restarts"], e["idle"]) for e in result.of("decision")]
    assert decisions == [("restart", 1, 0), ("restart", 1, 0), ("finish", 1, 0)]
    lines = {line for line in result.out.splitlines() if line.startswith("[0] port")}
    assert len({line.split()[2] for line in lines}) == 3
    assert len({line.split()[4] for line in lines}) == 3
    assert "SIGKILL" in result.err
    assert "restart 1 of 3 from step 20\n" in result.err
    assert result.err.splitlines()[-1].startswith("prelaunch: all 2 ranks finished")
    record = json.loads((result.run_dir / "run.json").read_text())
    assert [attempt["code"] for attempt in record["attempts"]] == [137, 137, 0]


def test_restarts_have_a_limit(scripts: Scripts) -> None:
    """After DDP_MAX_RESTARTS the job ends with the failure's code, and says why."""
    limits = {"DDP_MAX_RESTARTS": "1", "DDP_MAX_IDLE_RESTARTS": "9"}
    result = failing(scripts, good=9, saves=False, **limits)
    assert result.code == 137
    assert len(result.of("start")) == 2
    last = result.err.splitlines()[-1]
    assert "rank 1 on" in last
    assert "DDP_MAX_RESTARTS=1 is reached" in last


def test_what_is_shown_of_a_log_is_of_this_attempt(scripts: Scripts) -> None:
    """An exception of the attempt before is not what a rank died of that was killed in this one."""
    command = """
        ((RANK == 1)) || exec sleep 60
        if ((DDP_ATTEMPT == 1)); then echo 'ValueError: old'; exit 1; fi
        kill -9 $$
    """
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", command, DDP_MAX_RESTARTS="1")
    assert result.code == 137
    assert [result.err.count(text) for text in ("the end of", "    ValueError: old")] == [1, 1]


def test_a_new_checkpoint_gives_the_restarts_back(scripts: Scripts) -> None:
    """A run of weeks may fail more often than one of minutes, as long as it gets on."""
    result = failing(scripts, good=4, saves=True, DDP_MAX_RESTARTS="1")
    assert result.code == 0, result.err
    assert [event["restarts"] for event in result.of("decision")] == [1, 1, 1, 1]


@pytest.mark.parametrize(("limit", "starts"), [("0", 1), ("1", 2)])
def test_starts_without_progress_end_sooner(scripts: Scripts, limit: str, starts: int) -> None:
    """No new checkpoint between two starts: the smaller limit ends it."""
    result = failing(scripts, good=9, saves=False, DDP_MAX_IDLE_RESTARTS=limit)
    assert result.code == 137
    assert len(result.of("start")) == starts
    assert "no new checkpoint" in result.err.splitlines()[-1]
    assert result.of("decision")[-1]["decision"] == "fail"


def test_a_users_mistake_is_not_tried_again(scripts: Scripts) -> None:
    """64 ends the job at once."""
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", "exit 64", DDP_MAX_RESTARTS="3")
    assert result.code == 64
    assert len(result.of("start")) == 1


def test_a_command_of_ones_own_is_not_started_again_by_itself(scripts: Scripts) -> None:
    """What it does at a second start only its user knows."""
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", "exit 3")
    assert result.code == 3
    assert len(result.of("start")) == 1
    assert "DDP_MAX_RESTARTS=0" in result.err.splitlines()[-1]


@pytest.mark.parametrize("name", ["TERM", "INT", "USR1"])
def test_a_signal_between_two_attempts_is_acted_upon(
    scripts: Scripts, name: str, patience: Callable[[float], float]
) -> None:
    """While the job waits for its restart a signal ends it: no rank starts again."""
    process = scripts.start(
        "prelaunch.sh", "--", "bash", "-c", "kill -9 $$", DDP_MAX_RESTARTS="9",
        DDP_MAX_IDLE_RESTARTS="9", DDP_NPROC_PER_NODE="1",
    )  # fmt: skip
    deadline = time.monotonic() + 60
    events = scripts.directory / "out"
    while sum(text.count('"end"') for text in map(_text, events.glob("*/events.jsonl"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    began = time.monotonic()
    process.send_signal(getattr(signal, f"SIG{name}"))
    result = scripts.finish(process)
    assert time.monotonic() - began < patience(7.5)  # the third restart would wait for 8 s
    assert result.code == 75
    assert len(result.of("rank_up")) == 2
    assert "stopped on request" in result.err.splitlines()[-1]


def _text(path: object) -> str:
    return path.read_text()


def test_a_verdict_is_the_last_word(scripts: Scripts) -> None:
    """What the watchdog found names the failure, also where a rank's end came first: code 76."""
    verdict = (
        '{"time": "2026-11-21T08:00:00.000Z", "event": "verdict", "source": "monitor", '
        '"attempt": 1, "host": "n1", "kind": "hung", "rank": 1, "node": "n1", "gpu": null, '
        '"top": "x", "text": "rank 1 on n1 hangs in \\"data\\", C:\\\\x"}'
    )
    program = (
        'if ((RANK == 0)); then echo "$LINE" >>"$DDP_RUN_DIR/events.jsonl"; exit 9; fi; sleep 60'
    )
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", program, LINE=verdict)
    assert result.code == 76
    assert 'rank 1 on n1 hangs in "data", C:\\x; no restart' in result.err.splitlines()[-1]
    (failure,) = result.of("first_failure")
    assert (failure["rank"], failure["code"]) == (1, 76)


def test_a_verdict_ends_ranks_that_nobody_ends(
    scripts: Scripts, patience: Callable[[float], float]
) -> None:
    """After a verdict the step ends within seconds, though every rank would hang for ever."""
    verdict = (
        '{"time": "t", "event": "verdict", "source": "monitor", "attempt": 1, "host": "n1", '
        '"kind": "network", "rank": null, "node": "n2", "text": "n2 is not reached"}'
    )
    report = "import os, socket as s; s.socket(s.AF_UNIX, s.SOCK_DGRAM).sendto"
    report += "(os.environ['LINE'].encode() + b'\\n', os.environ['DDP_AGENT_SOCKET'])"
    program = f"trap '' TERM; {sys.executable} -c \"{report}\"; while :; do sleep 1; done"
    began = time.monotonic()
    result = scripts.run(
        "prelaunch.sh", "--", "bash", "-c", program, LINE=verdict, DDP_NPROC_PER_NODE="1"
    )
    assert result.code == 76
    assert time.monotonic() - began < patience(25)
    assert "n2 is not reached" in result.err.splitlines()[-1]


def test_starts_that_nobody_could_end_are_no_endless_loop(scripts: Scripts) -> None:
    """Slurm requeues a job whose script or node dies, and nobody decides that but Slurm."""
    run_dir = scripts.directory / "out" / "loop"
    run_dir.mkdir(parents=True)
    events = run_dir / "events.jsonl"

    def tell(name: str, attempt: int) -> None:
        with events.open("a") as file:
            file.write(
                json.dumps({"event": name, "attempt": attempt, "decision": "requeue"}) + "\n"
            )

    def again(count: int) -> Result:
        env = {"DDP_RUN_NAME": "loop", "SLURM_RESTART_COUNT": str(count)}
        return scripts.run("prelaunch.sh", "--", "true", **env)

    tell("start", 1)
    assert again(1).code == 0  # one is allowed
    tell("start", 3)
    tell("start", 4)
    result = again(3)
    assert result.code == 70
    assert "2 starts in a row ended with their script or node" in result.err.splitlines()[-1]
    assert "start again with DDP_RUN_NAME=loop" in result.err.splitlines()[-1]
    tell("checkpoint", 4)
    assert again(3).code == 0
    tell("start", 6)
    tell("start", 7)
    assert again(0).code == 0  # a person's own wish


# Rank 1 of a trainer is killed after step 30 in the attempts before the given one.
KILLED_TRAINER = """
if ((RANK == 1 && DDP_ATTEMPT < GOOD)); then
    (until grep -qs '"step": *30,' "$DDP_RUN_DIR/metrics.jsonl"; do sleep 0.05; done; kill -9 $$) &
fi
exec "$PYTHON" -m trainer --model mlp --max-steps 300 --log-every 1 --val-every 1000 \
    --checkpoint-minutes 0 --num-workers 0 --snapshot-every 5
"""


@pytest.mark.parametrize(("good", "code"), [(2, 0), (9, 137)])
def test_a_restart_goes_on_from_a_snapshot(scripts: Scripts, good: int, code: int) -> None:
    """Not from step 0, though there is no checkpoint yet; the job leaves nothing in memory."""
    result = scripts.run(
        "prelaunch.sh",
        "--",
        "bash",
        "-c",
        KILLED_TRAINER,
        GOOD=str(good),
        PYTHON=sys.executable,
        DDP_MAX_RESTARTS="0" if code else "1",
    )
    assert result.code == code, result.err
    first, *later = result.of("resume")
    assert (first["step"], first["path"]) == (0, None)
    assert [(e["step"] >= 20, e["path"].startswith("/dev/shm/")) for e in later] == [
        (True, True) for _ in later
    ]
    assert len(later) == (0 if code else 1)
    job_id = result.of("start")[0]["job_id"]
    assert result.of("snapshot")
    assert not list(Path("/dev/shm").glob(f"ddp-snapshots.{job_id}.*"))

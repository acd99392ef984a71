"""The preflight as a step: what becomes of it when it cannot run, is slow, or is interrupted."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from jobs.messages import UsageError
from jobs.supervisor import arguments
from jobs.supervisor.preflight import _Inbox
from rundir.preflight.verdict import Reading

if TYPE_CHECKING:
    from tests.jobs.conftest import Scripts

ON = {"DDP_PREFLIGHT": "1"}


def instead(slurm: Scripts, body: str) -> None:
    """Let the preflight's srun run this; the ranks' own goes on as before."""
    real = slurm.directory / "fake-bin" / "srun"
    real.rename(real.with_name("srun.ranks"))
    slurm.fake("srun", f'[[ ${{DDP_PREFLIGHT_STEP-}} ]] && {{ {body}\n}}\nexec "$0.ranks" "$@"')


def report(node: str, *readings: tuple[str, object, str], **keys: object) -> str:
    """A frame as an agent prints it."""
    event = {"event": "preflight_report", "attempt": 1, "node": node, "part": "trainer"}
    line = json.dumps({**event, "readings": readings, "measured": [], **keys})
    return f"\x1eddp {node}.1 1/1 {line}\n"


def test_one_that_cannot_run_stops_no_job(slurm: Scripts) -> None:
    """One line says so, and the ranks start."""
    instead(slurm, "exit 64")
    done = slurm.run("prelaunch.sh", "--", "true", **ON)
    assert done.code == 0, done.err
    assert "preflight: it could not run here, and nothing was checked: its step ended with" in (
        done.err
    )
    assert not done.of("preflight")
    assert done.of("start")


def test_one_that_fails_leaves_no_event_to_the_ranks(slurm: Scripts) -> None:
    """What its agent kept of its end, as a failing rank's does, is not of the run."""
    python = slurm.directory / "python"
    python.write_text(
        f'#!/bin/bash\n[[ "$*" != *trainer.preflight* ]] || exit 3\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    task = "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2"
    words = "while [[ $1 == -* ]]; do shift; done"
    instead(slurm, f"{words}; export {task} SLURM_STEP_TASKS_PER_NODE='1(x2)'; exec \"$@\"")
    done = slurm.run("prelaunch.sh", "--", "true", DDP_PYTHON=str(python), **ON)
    assert done.code == 0, done.err
    assert {event["code"] for event in done.of("rank_end")} == {0}


def test_a_node_is_named_and_the_table_shown(slurm: Scripts) -> None:
    """It leaves the job before the start, which nothing is left for here; no report is an event."""
    name = os.uname().nodename
    fine, bad = ("wrong_elements", 0, "GPU 1"), ("wrong_elements", 3, "GPU 1")
    text = slurm.directory / "reports"
    text.write_text(report(name, fine) + report("other", bad))
    instead(slurm, f"cat {text}; exit 0")
    done = slurm.run("prelaunch.sh", "--", "true", **ON)
    assert done.code == 70, done.err
    assert "prelaunch: preflight: 2 nodes, bad: other" in done.err
    found = "GPU 1: wrong elements of a product: 3 (wrong_elements)"
    assert f"prelaunch: node other is bad: {found}" in done.err.splitlines()[-1]
    assert f"\nother  hardware  {found}" in done.err  # the table
    first, second = done.of("preflight")
    assert (first["node"], first["is_bad"], first["findings"]) == (name, False, [])
    assert (second["node"], second["is_bad"]) == ("other", True)
    assert second["readings"] == [["wrong_elements", 3.0, "GPU 1"]]
    assert [event["node"] for event in done.of("bad_node")] == ["other"]
    assert not done.of("start")
    assert not done.of("preflight_report")


def test_a_node_whose_file_the_supervisor_does_not_see(slurm: Scripts) -> None:
    """It has written one, elsewhere; the other's is there, with this start's token."""
    name, text = os.uname().nodename, slurm.directory / "reports"
    text.write_text("".join(report(node, ("run_dir_s", 0.1, "")) for node in (name, "other")))
    left = f'"$DDP_RUN_DIR/.preflight/{name}"'
    instead(slurm, f'printf %s "$DDP_LAUNCH_ID" >{left}; cat {text}; exit 0')
    done = slurm.run("prelaunch.sh", "--preflight")
    assert done.code == 70, done.err
    reasons = {event["node"]: event["reason"] for event in done.of("preflight")}
    assert reasons.pop(name) is None
    assert "its file, by the supervisor: not seen across nodes" in reasons["other"]
    assert not (done.run_dir / ".preflight").exists()


@pytest.mark.parametrize(("num_tasks", "code"), [("4", 70), ("3", 0)])
def test_fewer_gpus_than_others_are_no_fault_where_nodes_have_fewer_ranks(
    slurm: Scripts, num_tasks: str, code: int
) -> None:
    """Slurm gives a node what its tasks need: `--ntasks=3 --gpus-per-task=1` on two nodes."""
    text, name = slurm.directory / "reports", os.uname().nodename
    counted = [("gpus", num, "") for num in (2, 1)], [("nvml_gpus", num, "") for num in (2, 1)]
    text.write_text("".join(map(report, (name, "other"), *counted)))
    instead(slurm, f"cat {text}; exit 0")
    done = slurm.run("prelaunch.sh", "--preflight", SLURM_NTASKS=num_tasks)
    assert done.code == code, done.err


def test_by_hand_the_code_says_whether_all_nodes_are_fine(slurm: Scripts) -> None:
    """0, or 70; no rank is started, and the next job finds the lock released."""
    text = slurm.directory / "reports"
    name = os.uname().nodename
    instead(slurm, f"cat {text}; exit 0")
    for node, code in ((name, 70), ("other", 0)):  # one report, then both
        with text.open("a") as file:
            file.write(report(node, ("hung", 0, "")))
        done = slurm.run("prelaunch.sh", "--preflight")
        assert done.code == code, done.err
        assert not done.of("start")


def test_that_no_node_has_torch_is_said_where_each_has_reported(slurm: Scripts) -> None:
    """One that reported nothing may have it: its step was broken off."""
    text = slurm.directory / "reports"
    instead(slurm, f"cat {text}; exit 0")
    for node in (os.uname().nodename, "other"):  # one report, then both
        with text.open("a") as file:
            file.write(report(node, ("hung", 0, ""), part="monitor"))
        done = slurm.run("prelaunch.sh", "--preflight")
        assert ("because no node has Python with torch" in done.err) == (node == "other")


def test_a_signal_ends_it_at_once(slurm: Scripts) -> None:
    """No rank is started, and nothing is left."""
    mark = slurm.directory / "began"
    instead(slurm, f"touch {mark}; exec sleep 600")
    process = slurm.start("prelaunch.sh", "--", "true", **ON)
    deadline_s = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    began_s = time.monotonic()
    done = slurm.finish(process)
    assert time.monotonic() - began_s < 20
    assert done.code != 0
    assert not done.of("rank_up")
    assert not (done.run_dir / ".preflight").exists()


@pytest.mark.slow
def test_one_that_takes_too_long_is_ended(slurm: Scripts) -> None:
    """After whole_s, and the ranks start."""
    instead(slurm, "exec sleep 600")
    done = slurm.run("prelaunch.sh", "--", "true", **ON, DDP_PREFLIGHT_LIMITS="whole_s=1")
    assert done.code == 0, done.err
    assert "nothing was checked: it took too long" in done.err


def test_on_one_node_there_is_none(scripts: Scripts) -> None:
    """Unless it is asked for by hand."""
    done = scripts.run("prelaunch.sh", "--", "true", **ON)
    assert done.code == 0
    assert "preflight:" not in done.err


def test_wrong_words_and_limits_are_refused(scripts: Scripts) -> None:
    """One line, code 64, nothing left behind."""
    with pytest.raises(UsageError, match="--preflight must stand alone"):
        arguments.parse(["--preflight", "--epochs"], "/", {})
    done = scripts.run("prelaunch.sh", "--", "true", DDP_PREFLIGHT_LIMITS="speed=1")
    assert done.code == 64
    assert "DDP_PREFLIGHT_LIMITS must name checks of the table; found 'speed'; the names are" in (
        done.err
    )
    assert not list(scripts.directory.glob("out"))


def test_a_clock_is_compared_when_its_report_arrives() -> None:
    """With this node's, in seconds."""
    inbox = _Inbox(1)
    text = report("n1", clock_s=time.time() - 60.0)
    inbox.add(text.split(" ", 3)[3].encode())
    ((reading,),) = (one.readings for one in inbox.found)
    assert isinstance(reading, Reading)
    assert -61 < float(reading.value) < -59


def test_nodes_that_were_stopped_for_anothers_failure_are_not_missing() -> None:
    """They had been asked to end."""
    inbox = _Inbox(1)
    for node, requested in (("n1", True), ("n2", False)):
        event = {"event": "rank_end", "attempt": 1, "rank": 0, "node": node, "code": 1}
        inbox.add(json.dumps({**event, "requested": requested}).encode())
    assert inbox.stopped_nodes == {"n1"}

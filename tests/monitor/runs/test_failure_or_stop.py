"""What was asked to end did not fail: by whose wish, and what is a failure all the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.monitor.blamed import TRACEBACK, blame, classified


@pytest.mark.parametrize(
    ("signals", "job_id", "reason", "blamed"),
    [
        (["USR1"], "42", "", "time limit"),
        (["USR1", "TERM"], "42", "", "time limit"),
        (["TERM"], "42", "preempted by a higher partition", "preempted"),
        (["TERM"], "42", "cancelled by its user", "cancelled"),
        (["TERM"], "42", "the time limit", "time limit"),
        (["TERM"], "local-1-2", "", "cancelled"),
        (["INT"], "42", "", "cancelled"),
        ([], "42", "", "preempted"),
    ],
)
def test_a_stop_on_request_has_its_reason(
    story: Any, signals: list[str], job_id: str, reason: str, blamed: str
) -> None:
    """By Slurm's word in the decision, else by the signal; no rank failed."""
    story.start(job_id=job_id)
    for signal in signals:
        story.add_event("signal", signal=signal)
    story.rank_end(0, 75, requested=True)
    story.rank_end(1, 75)  # asked by its peers, not by its launcher
    story.add_event("decision", decision="requeue", reason=reason, restarts=0, idle=0, exclude=None)
    story.add_event("end", code=75)
    attempt = classified(story)
    assert (attempt["failure_class"], attempt["first_failure"]) == (blamed, None)
    assert attempt["steps_lost"] is None


def test_a_command_may_ask_by_itself_to_go_on_later(story: Any) -> None:
    """Code 75 without a request: no other job and no time limit is blamed for it."""
    story.start(job_id="42")
    story.rank_end(0, 75)
    story.rank_end(1, 143, "TERM", requested=True)  # ended with it
    story.add_event("decision", decision="requeue", reason="", restarts=0, idle=0, exclude=None)
    story.add_event("end", code=75)
    assert blame(story) == ("stopped", None)


@pytest.mark.parametrize(
    ("signals", "message", "blamed"),
    [
        (["USR1", "TERM"], "requeing job 42...\nRequeued SLURM job: 42\n", "time limit"),
        (["TERM"], "requeing job 42...\n", "stopped"),
        (["USR1", "TERM"], "step 8\n", "preempted"),
    ],
)
def test_a_job_that_the_program_requeued_was_not_preempted(
    story: Any, signals: list[str], message: str, blamed: str
) -> None:
    """Lightning requeues its job on SIGUSR1, then ignores Slurm's SIGTERM until it is killed."""
    story.start(command=("--", "python", "lit.py"))
    story.emit(0, message)
    for signal in signals:
        story.add_event("signal", signal=signal)
    story.rank_end(0, 137, "KILL", requested=True)
    story.rank_end(1, 137, "KILL", requested=True)
    reason = "Slurm has requeued job 42, which will go on from"
    reason += " the command's own checkpoint (if any)"
    story.add_event("decision", decision="requeue", reason=reason, restarts=0, idle=1, exclude=None)
    story.add_event("end", code=137)
    assert blame(story) == (blamed, None)


def test_a_command_that_is_cancelled_was_not_killed_from_outside(story: Any) -> None:
    """143 because the launcher passed the signal on: the request is the reason."""
    story.start(command=("--", "sleep", "9"))
    story.add_event("signal", signal="TERM")
    story.rank_end(0, 143, "TERM", requested=True)
    story.rank_end(1, 143, "TERM", requested=True)
    story.add_event("decision", decision="fail", reason="Slurm: CANCELLED", restarts=0, idle=0)
    story.add_event("end", code=143)
    assert blame(story) == ("cancelled", None)


def test_what_slurm_killed_after_the_request_did_not_fail(story: Any) -> None:
    """A launcher that got SIGKILL after the grace tells no end; the script names its rank."""
    story.start(command=("--", "sleep", "9"))
    story.add_event("signal", signal="TERM")
    story.rank_end(0, 143, "TERM", requested=True)
    story.add_event("first_failure", rank=1, node="n2", code=137, signal="KILL")
    story.add_event("decision", decision="fail", reason="the job was cancelled", restarts=0, idle=0)
    story.add_event("end", code=137)
    assert blame(story) == ("cancelled", None)


def test_a_failure_before_the_request_counts(story: Any) -> None:
    """A program that breaks while it is asked to stop has failed by itself."""
    story.start()
    story.add_event("signal", signal="USR1")
    story.fail(1, 1, text=TRACEBACK + "TypeError: in my handler\n")
    assert blame(story) == ("program", 1)


def test_a_rank_that_stopped_as_agreed_did_not_fail(story: Any) -> None:
    """Rank 0 ends with 75 and is the script's choice; rank 1 broke at its last checkpoint."""
    story.start()
    story.add_event("signal", signal="USR1")
    story.rank_end(0, 75)
    story.emit(1, "OSError: [Errno 28] No space left on device\n")
    story.rank_end(1, 70)
    story.add_event("first_failure", rank=0, node="n1", code=75, signal=None)
    story.add_event("end", code=70)
    assert blame(story) == ("storage", 1)


def test_an_end_without_a_report(story: Any) -> None:
    """The batch script was killed: no rank failed, the run was killed."""
    story.start()
    assert blame(story) == ("killed", None)


def test_a_killed_script_was_not_asked_to_end(story: Any) -> None:
    """Slurm signals the ranks, and the trainer notes it: the script itself got nothing."""
    story.start()
    story.add_event("signal", signal="TERM", source="trainer")
    story.rank_end(0, 75, requested=True)
    story.rank_end(1, 75, requested=True)
    assert blame(story) == ("killed", None)

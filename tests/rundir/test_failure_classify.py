"""What is said of an attempt's failure: the rank's reason, its evidence, the nodes to ask for."""

from __future__ import annotations

import pytest

from rundir.codes import signal_name
from rundir.failure import classify, suspected_nodes
from tests.rundir.test_failure import UPS, ended, event


def test_a_recorded_error_beats_a_guess_from_the_log() -> None:
    """Whatever code the program ends with."""
    told = event("failure", 1, error="MyError: disk 3 of 4")
    ends = (ended(1, 3), ended(0, 0), ended(2, 0))
    found = classify((*UPS, told, *ends), lambda _rank: "OtherError: x\n", step_code=3)
    assert (found.why, found.error) == ("MyError: disk 3 of 4", "MyError: disk 3 of 4")


@pytest.mark.parametrize(
    ("log", "code", "why"),
    [
        ("trainer: y\nOtherError: x\n", 70, "OtherError: x"),
        ("OtherError: x\n", 3, "OtherError: x"),
        ("trainer: y\n", 70, "y"),
        ("trainer: y\n", 3, "last line 'trainer: y'"),
        ("no data in /data\n", 1, "last line 'no data in /data'"),
        ("panicked:\nboom\nnote: run with `RUST_BACKTRACE=1`\n", 101, "last line 'boom'"),
        (
            (
                "panicked:\nboom\nstack backtrace:\n   5: b::main\n             at b.rs:9:5\n"
                "note: Some details are omitted, run with `RUST_BACKTRACE=full`.\n"
            ),
            101,
            "last line 'boom'",
        ),
        ("OtherError: of before\r\n" + "\r 5%|" * 9, 3, "last line '5%|'"),
        ("\n", 1, ""),
        ("OtherError: of before\n", 139, ""),
        (
            "terminate called after throwing an instance of 'c10::Error'\n  what():  bad link\n"
            "Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n"
            + '  File "/a.py", line 8 in deep\n'
            * 70,
            134,
            "terminate called after throwing an instance of 'c10::Error': bad link",
        ),
        ("Fatal Python error: Aborted\n", 134, ""),
        (
            "a.out: a.c:3: main: Assertion `x' failed.\n",
            134,
            "last line 'a.out: a.c:3: main: Assertion `x' failed.'",
        ),
        (
            (
                "free(): invalid pointer\nFatal Python error: Aborted\n\n"
                'Current thread 0x7f (most recent call first):\n  File "/a.py", line 8 in deep\n'
            ),
            134,
            "last line 'free(): invalid pointer'",
        ),
        ("no data\nstep 10/90  epoch 1  loss 0.5\n", 3, ""),
    ],
)
def test_the_exception_with_which_a_log_ends_is_quoted(log: str, code: int, why: str) -> None:
    """Whoever wrote the program; a signal's end says nothing, but what aborts says why."""
    ends = (ended(1, code, signal=signal_name(code)), ended(0, 0), ended(2, 0))
    assert classify((*UPS, *ends), lambda _rank: log, step_code=code).why == why


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("Traceback (most recent call last):\n  a.py\nKeyError: 'lr'\n", "KeyError: 'lr'"),
        ("Traceback (most recent call last):\n  a.py\nKeyError: 'lr'\n" + "step\n" * 9, ""),
        ("Error: 0.03\n", ""),
        ("", ""),
    ],
)
def test_a_log_may_contradict_a_rank_that_finished(log: str, why: str) -> None:
    """The first, as others follow: a shell's pipe ends with the code of its last program."""
    ends = (ended(1, 0), ended(0, 0), ended(2, 0))
    found = classify((*UPS, *ends), {0: "", 1: log, 2: ""}.__getitem__, step_code=0)
    assert found.why == (why and f"rank 1's log ends with an error: {why}")
    assert (found.code, found.end, found.error) == (0, None, None)


def test_neither_a_password_nor_an_escape_is_quoted() -> None:
    """Neither in the last line, nor in the record, nor as evidence."""
    log = "OperationalError: no \x1b[2Jway to postgres://me:hunter2@db/x\n"
    for further in ((), (event("failure", 1, error=log.strip()),)):
        found = classify((*UPS, *further, ended(1, 1)), lambda _rank: log, step_code=1)
        assert found.why == "OperationalError: no \\x1b[2Jway to postgres://me:***@db/x"
        assert "hunter2" not in repr(found)


def test_the_message_of_a_rank_of_ours_is_shown() -> None:
    """Its own words, with the remedy they may hold, as they are and not too many of them."""
    words = 'RunFailedError: the loss of "step" 7 is not finite; lower --lr\n'
    ends = (ended(1, 70), ended(0, 0), ended(2, 0))
    failed = event("failure", 1, error=words + "x" * 1000)
    why = classify((*UPS, failed, *ends), step_code=70).why
    assert why.startswith('RunFailedError: the loss of "step" 7 is not finite; lower --lr\\nxxx')
    assert len(why) == 300
    assert classify((*UPS, *ends), step_code=70).why == ""
    log = "trainer: a\ntrainer: rendezvous at n:1\nbye\n"
    assert classify((*UPS, *ends), lambda _rank: log, step_code=70).why == "rendezvous at n:1"


def test_the_remedy_is_shown_where_the_kernel_ended_a_rank_for_its_memory() -> None:
    """As its agent saw it in its cgroup."""
    ends = (*UPS, ended(1, 137, oom=True), ended(0, 0), ended(2, 0))
    chosen = event("first_failure", 1, source="prelaunch", code=137, signal="KILL")
    for found in (classify(ends, step_code=137), classify((*ends, chosen), code=137)):
        assert (found.why, found.finding.failure_class) == (
            "out of memory, ask for more (sbatch --mem, docker run --memory)",
            "program",
        )
        assert found.end == (1, "n1", 137, "KILL")
        assert "memory" in found.finding.words


def test_nodes_to_ask_for_are_those_that_are_silent() -> None:
    """Those of ranks without an end, and the one that the watchdog does not reach."""
    verdict = event("verdict", None, kind="network", node="n7", text="cut")
    lost = event("lost_node", node="n2", how="gone")
    assert suspected_nodes((*UPS, ended(0, 0), verdict, lost)) == ["n1", "n7"]
    assert suspected_nodes((*UPS, *(ended(rank, 1) for rank in range(3)))) == []


def test_a_decision_says_why_slurm_ended_the_job() -> None:
    """In a key of its own; older runs have it in words only."""
    asked = event("signal", source="prelaunch", signal="TERM")
    ends = (asked, ended(0, 75, requested=True), ended(1, 0), ended(2, 0))
    reported = event("decision", decision="fail", reason="", cause="cancelled")
    found = classify((*UPS, *ends, reported), code=75)
    assert (found.finding.failure_class, found.finding.words) == ("cancelled", "was cancelled")
    # Slurm wanted nothing of the job: scancel --full -s TERM. Older runs had null for it.
    for decision, cause in (("fail", "nothing"), ("requeue", "nothing"), ("requeue", None)):
        reported = event("decision", decision=decision, reason="", cause=cause)
        assert classify((*UPS, *ends, reported), code=75).finding.failure_class == "stopped"

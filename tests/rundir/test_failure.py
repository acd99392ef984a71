"""Which rank or node gives the job its code, by what the events of an attempt hold."""

from __future__ import annotations

from typing import Any

import pytest

from rundir.codes import signal_name
from rundir.failure import classify, suspected_nodes

LOST_PEER = "RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:7888. GLHF!"


def event(name: str, rank: int | None = None, **keys: Any) -> dict[str, Any]:
    """An event as the agents write it."""
    head = {"time": "2026-11-21T08:00:00.000Z", "event": name, "source": "launcher", "attempt": 1}
    return {**head, "host": "n", "rank": rank, "node": f"n{rank}"} | keys


def ended(rank: int, code: int, *, requested: bool = False, **keys: Any) -> dict[str, Any]:
    """The end of a rank."""
    return event("rank_end", rank, code=code, requested=requested, **keys)


UPS = tuple(event("rank_up", rank) for rank in range(3))


def blame(
    *events: dict[str, Any], logs: dict[int, str] | None = None, step_code: int = 1, guard: str = ""
) -> tuple[int | None, int | None]:
    """The rank and the code that the attempt's end is laid to, when its step has just ended."""
    found = classify(
        (*UPS, *events), lambda rank: (logs or {}).get(rank, ""), step_code=step_code, guard=guard
    )
    return (found.end.rank if found.end else None), found.code


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        ((ended(1, 3), ended(0, 143, requested=True), ended(2, 0)), (1, 3)),
        # who lost a peer may tell it before that peer's launcher does
        ((ended(0, 70), ended(1, 137), ended(2, 70)), (1, 137)),
        ((ended(0, 70), ended(2, 70), ended(1, 143, requested=True)), (0, 70)),
        ((ended(2, 143, requested=True), ended(0, 0), ended(1, 0)), (2, 143)),
        # a launcher that was killed tells no end
        ((ended(0, 70), ended(2, 70)), (1, 137)),
    ],
)
def test_the_cause_is_blamed_and_not_what_follows(
    ends: tuple[dict[str, Any], ...], blamed: tuple[int, int]
) -> None:
    """Of several ends the one that explains the others counts."""
    assert blame(*ends) == blamed


def test_a_rank_whose_launcher_was_killed_was_killed() -> None:
    """The end that is missing is told as SIGKILL's, with its class."""
    found = classify((*UPS, ended(0, 1), ended(2, 1)), step_code=137)
    assert (found.first, found.finding.failure_class) == ((1, "n1", 137, "KILL"), "killed")


def test_who_failed_before_the_step_was_killed_is_blamed() -> None:
    """PMIx has all agents killed at once where one process dies; a lost node is one node alone."""
    kill = {"step_code": 137}
    assert blame(ended(1, 137, signal="KILL"), **kill) == (1, 137)
    here = {"node": "n0"}
    on_one = [event("rank_up", rank) | here for rank in range(3)]
    assert blame(*on_one, ended(1, 3) | here, **kill) == (1, 3)
    both_of_a_node = event("rank_up", 2) | {"node": "n1"}
    assert blame(both_of_a_node, ended(0, 1), **kill) == (1, 137)


def started(*nodes: str) -> dict[str, Any]:
    """The start of an attempt."""
    return event("start", source="prelaunch", nodes=list(nodes))


STOPPED_BY_SLURM = tuple(ended(rank, 143, requested=True) for rank in range(3))


def test_a_node_on_which_no_rank_came_up_is_blamed() -> None:
    """Slurm ends the others for it; why, its agent may say."""
    why = event("failure", rank=3, host="n3", error="the run directory must be writable")
    known = (started("n0", "n1", "n2", "n3"), *UPS, why, *STOPPED_BY_SLURM)
    found = classify(known, step_code=143)
    assert found.first == found.end == (None, "n3", 143, "TERM")
    assert (found.why, found.error) == ("the run directory must be writable",) * 2
    assert found.finding == ("hardware", "could not start a rank", "start", "no rank came up on n3")
    assert classify(known, code=143).first == found.first  # as `why` asks, afterwards


def test_that_the_others_stop_as_if_they_were_asked_makes_it_no_request() -> None:
    """They get Slurm's SIGTERM, and end with 75; the job has failed, and is not requeued for it."""
    trainers = event("signal", source="trainer", signal="TERM"), ended(0, 75, requested=True)
    found = classify((started("n0", "n1"), UPS[0], *trainers), step_code=75)
    assert (found.code, found.first) == (70, (None, "n1", 70, None))
    assert classify((started("n0", "n1"), UPS[0], *trainers), code=70).first == found.first
    asked = event("signal", source="prelaunch", signal="USR1")
    assert classify((started("n0", "n1"), UPS[0], asked, *trainers), step_code=75).code == 75


@pytest.mark.parametrize(
    ("events", "guard"),
    [
        ((started("n0", "n1", "n2"), *UPS, *STOPPED_BY_SLURM), ""),
        ((started("n0", "n1", "n2", "n3"), *UPS, ended(0, 1), *STOPPED_BY_SLURM[1:]), ""),
        ((started("n0", "n1", "n2", "n3"), *UPS, event("signal", signal="TERM")), ""),
        ((started("n0", "n1", "n2", "n3"), *UPS, *STOPPED_BY_SLURM), "failed"),
        ((started("n0", "n1"), event("failure", rank=0, host="n0", error="x")), ""),
        ((*UPS, *STOPPED_BY_SLURM), ""),
    ],
    ids=["all came up", "a rank failed", "a request", "ended by us", "none came up", "not known"],
)
def test_no_node_is_blamed_for_another_end(events: tuple[dict[str, Any], ...], guard: str) -> None:
    """Where something else ended the step, or nothing tells the nodes apart."""
    first = classify(events, step_code=143, guard=guard).first
    assert first is None or first.rank is not None


def test_that_no_rank_came_up_at_all_is_no_fault_of_one_node() -> None:
    """Such as an image that is damaged: nothing of the program's has run."""
    found = classify((started("n0", "n1"),), step_code=1)
    assert (found.code, found.first) == (1, None)
    assert found.finding[:3] == ("program", "could not start its ranks", "start")
    assert classify((started("n0", "n1"),), step_code=0).finding.failure_class is None


def test_who_finished_is_not_blamed() -> None:
    """The job's code is then the step's own; a missing line was lost, not a rank."""
    assert blame(ended(0, 0), ended(1, 0), ended(2, 0), step_code=0) == (None, 0)
    assert blame(ended(0, 0), ended(2, 0), step_code=0) == (None, 0)


def test_a_signal_before_there_were_ranks_is_a_stop_on_request() -> None:
    """Nothing is lost; without a signal it is the step's own failure to start."""
    reported = event("signal", source="prelaunch", signal="USR1")
    assert classify([reported], step_code=138).code == 75
    assert classify([], step_code=138).code == 138
    assert classify([reported], step_code=1).code == 1


def test_who_only_lost_a_peer_is_not_the_cause() -> None:
    """Every rank of a foreign program fails with 1: its last words tell who only follows."""
    logs = {0: f"step 5\n[rank0]: {LOST_PEER}\n", 2: "[rank2]: RuntimeError: no data\n"}
    ends = (ended(0, 1), ended(2, 1), ended(1, 0))
    assert blame(*ends, logs=logs) == (2, 1)
    assert blame(*ends, logs=logs | {0: "[rank0]: ValueError: the data is bad\n"}) == (0, 1)


def test_where_all_only_lost_a_peer_the_first_counts() -> None:
    """Somebody has to give the code."""
    logs = dict.fromkeys(range(3), LOST_PEER)
    assert blame(ended(2, 70), ended(0, 1), ended(1, 70), logs=logs) == (2, 70)


def test_of_our_own_ranks_who_only_lost_a_peer_comes_second() -> None:
    """The trainer ends with 70 for cause and consequence: what it reported says which."""
    followed = event("failure", 0, error=LOST_PEER)
    full = event("failure", 2, error="OSError: [Errno 28] No space left on device: '/out'")
    found = classify((*UPS, followed, ended(0, 70), full, ended(2, 70), ended(1, 0)), step_code=70)
    assert (found.end and found.end.rank, found.code) == (2, 70)
    assert found.finding.failure_class == "storage"
    assert blame(followed, ended(0, 70), ended(1, 0), ended(2, 0)) == (0, 70)


def test_a_recorded_error_that_a_lost_peer_caused_comes_second() -> None:
    """Its own words may say nothing of it: its traceback does."""
    wrapped = "RuntimeError: training failed"
    followed = event("failure", 0, error=wrapped, causes=f"{LOST_PEER}\n{wrapped}")
    own = event("failure", 2, error="ValueError: bad", causes="ValueError: bad")
    ends = (followed, ended(0, 1), own, ended(2, 1), ended(1, 0))
    assert blame(*ends) == (2, 1)
    found = classify((*UPS, *ends), step_code=1)
    assert (found.why, found.error) == ("ValueError: bad", "ValueError: bad")
    assert blame(event("failure", 0, error=wrapped, causes=7), *ends[1:]) == (0, 1)


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
        ("no data\nstep 10/90  epoch 1  loss 0.5\n", 3, ""),
    ],
)
def test_the_exception_with_which_a_log_ends_is_quoted(log: str, code: int, why: str) -> None:
    """Whoever wrote the program; a signal's end says nothing, but for C++'s own words."""
    ends = (ended(1, code, signal=signal_name(code)), ended(0, 0), ended(2, 0))
    assert classify((*UPS, *ends), lambda _rank: log, step_code=code).why == why


def test_neither_a_password_nor_an_escape_is_quoted() -> None:
    """Neither in the last line, nor in the record, nor as evidence."""
    log = "OperationalError: no \x1b[2Jway to postgres://me:hunter2@db/x\n"
    for further in ((), (event("failure", 1, error=log.strip()),)):
        found = classify((*UPS, *further, ended(1, 1)), lambda _rank: log, step_code=1)
        assert found.why == "OperationalError: no \\x1b[2Jway to postgres://me:***@db/x"
        assert "hunter2" not in repr(found)


def test_whose_loss_was_not_finite_is_blamed() -> None:
    """All ranks end at once, with the same words; the event tells whose it was."""
    reported = event("non_finite", 0, step=7, action="stop", steps=[7], ranks=[1, 2])
    ends = (ended(0, 70), ended(1, 70), ended(2, 70))
    assert blame(reported, *ends) == (1, 70)
    assert blame(reported | {"ranks": []}, *ends) == (0, 70)
    assert blame(reported, ended(2, 3), *ends[:2]) == (2, 3)


def test_whose_loss_was_skipped_is_not_blamed() -> None:
    """Training went on; what ended it later is another matter."""
    skipped = event("non_finite", 0, step=7, action="skip", steps=[7], ranks=[1])
    assert blame(skipped, ended(0, 70), ended(1, 70), ended(2, 70)) == (0, 70)


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


def test_a_signal_is_a_cause_whatever_was_reported_before() -> None:
    """Who is killed says nothing; who aborts does."""
    logs = {0: f"{LOST_PEER}\n"}
    assert blame(ended(0, 137), ended(2, 1), ended(1, 0), logs=logs) == (0, 137)
    assert blame(ended(0, 134), ended(2, 1), ended(1, 0), logs=logs) == (2, 1)


@pytest.mark.parametrize(
    ("kind", "blamed"), [("hung", "hung"), ("network", "network"), ("stopped", "hung")]
)
def test_a_verdict_comes_before_the_ends_it_caused(kind: str, blamed: str) -> None:
    """The ranks that the watchdog ended are not the cause."""
    verdict = event("verdict", 2, kind=kind, gpu=None, top="x", text="rank 2 hangs")
    found = classify((*UPS, ended(0, 137), verdict, ended(1, 137)), step_code=137)
    assert (found.first, found.code, found.verdict) == (found.end, 76, "rank 2 hangs")
    assert (found.end, found.finding.failure_class) == ((2, "n2", 76, None), blamed)


@pytest.mark.parametrize("kind", ["hung", "stopped"])
def test_a_lost_node_comes_before_a_hang_but_not_before_a_cut_network(kind: str) -> None:
    """Its peers wait for it; where nodes do not reach each other, a node only seems lost."""
    verdict = event("verdict", 0, kind=kind, text="rank 0 hangs")
    lost = event("lost_node", node="n1", how="no answer")
    found = classify((*UPS, verdict, lost, ended(0, 137)), step_code=137)
    assert found.end == (1, "n1", 137, "KILL")
    assert (found.verdict, found.lost) == ("", (("n1", "no answer"),))
    cut = classify((*UPS, verdict | {"kind": "network"}, lost), step_code=137)
    assert (cut.end, cut.verdict) == ((0, "n0", 76, None), "rank 0 hangs")
    assert cut.lost == found.lost


def test_of_a_lost_node_the_rank_that_is_missing_is_named() -> None:
    """One that had ended before is not; if all had, the node is blamed by its first rank."""
    ups = [event("rank_up", rank, node="n1") for rank in (3, 4)]
    lost = event("lost_node", node="n1", how="no answer")
    found = classify([*ups, ended(3, 0, node="n1"), lost], step_code=1)
    assert found.end == (4, "n1", 137, "KILL")
    both = (ended(3, 1, node="n1"), ended(4, 1, node="n1"))
    assert classify([*ups, *both, lost], step_code=1).end == (3, "n1", 137, "KILL")
    assert classify([lost], step_code=1).end == (None, "n1", 137, "KILL")


def test_of_a_rank_that_came_back_its_last_end_counts() -> None:
    """It had left, and the others went on: what ended them came later."""
    ups = [event("rank_up", rank) for rank in (0, 1)]
    back = event("rank_up", 1)
    found = classify([*ups, ended(1, 3), back, ended(0, 5), ended(1, 1)], step_code=5)
    assert (found.code, found.end and found.end.rank) == (5, 0)
    assert classify([*ups, ended(1, 3), ended(0, 5)], step_code=5).code == 3


def test_the_first_verdict_and_the_first_lost_node_count() -> None:
    """What came later followed."""
    lost = [event("lost_node", node=node, how="gone") for node in ("n2", "n1")]
    found = classify((*UPS, *lost), step_code=137)
    assert (found.end and found.end.node, [node for node, _ in found.lost]) == ("n2", ["n2", "n1"])
    verdicts = [event("verdict", rank, kind="hung", text=f"{rank} hangs") for rank in (2, 0)]
    assert classify((*UPS, *verdicts), step_code=137).verdict == "2 hangs"


def test_a_step_that_the_supervisor_ended_has_victims_without_an_end() -> None:
    """They were killed for another's failure; if no rank failed they count."""
    assert blame(ended(0, 3), step_code=137, guard="failed") == (0, 3)
    assert blame(ended(0, 3), ended(2, 70), step_code=137) == (1, 137)
    stopped = ended(0, 143, requested=True)
    assert blame(stopped, step_code=137, guard="failed") == (1, 137)


def test_where_all_were_killed_at_once_no_rank_is_blamed() -> None:
    """No agent lived to report an end, as where PMIx kills a step: which was first is not known."""
    assert blame(step_code=137) == (None, 137)
    assert blame(ended(0, 137), step_code=137) == (0, 137)
    alone = classify(UPS[:1], step_code=137)
    assert alone.end
    assert alone.end.rank == 0  # of one rank there is no doubt


def test_where_srun_was_killed_no_rank_is_blamed_for_its_request_to_end() -> None:
    """Slurm asks them to; but for who asked the job, or a rank that had to be killed."""
    found = classify((*UPS, *STOPPED_BY_SLURM), step_code=137)
    assert (found.first, found.code) == ((None, None, 137, "KILL"), 137)
    assert found.finding.failure_class == "killed"
    assert classify((*UPS, *STOPPED_BY_SLURM), code=137).first == found.first
    asked = event("signal", source="prelaunch", signal="TERM")
    late = ended(1, 137, requested=True)
    for events in ((*UPS, asked, *STOPPED_BY_SLURM), (*UPS, *STOPPED_BY_SLURM[:1], late)):
        assert classify((*events, ended(2, 143, requested=True)), step_code=137).first is None


def test_a_rank_without_an_end_has_the_code_of_the_step_if_a_signal_ended_that() -> None:
    """srun knows more than its missing agent."""
    assert blame(ended(0, 0), ended(2, 0), step_code=139) == (1, 139)
    assert blame(ended(0, 0), ended(2, 0), step_code=1) == (1, 137)


def test_who_was_killed_after_the_job_was_asked_to_end_did_not_fail() -> None:
    """Slurm kills what does not end in time, agents too; the job's code still says so."""
    asked = event("signal", source="prelaunch", signal="TERM")
    found = classify((*UPS, asked, ended(0, 75, requested=True), ended(2, 0)), step_code=137)
    assert (found.code, found.end and found.end.rank, found.first) == (137, 1, None)
    own = classify((*UPS, asked, ended(0, 3), ended(2, 0)), step_code=137)
    assert own.first == (0, "n0", 3, None)


def test_who_asks_to_go_on_later_did_not_fail() -> None:
    """Its code is the job's, and no rank failed first."""
    found = classify((*UPS, ended(0, 75), ended(1, 75), ended(2, 70)), step_code=75)
    assert (found.code, found.end and found.end.rank, found.first) == (75, 0, None)


def test_an_attempt_known_to_have_failed_did_not_end_by_its_75() -> None:
    """Asked afterwards, when the end is reported."""
    events = (*UPS, ended(0, 75), ended(1, 70), ended(2, 0))
    found = classify(events, code=70)
    assert found.first == (1, "n1", 70, None)


def test_what_the_supervisor_chose_is_found_again() -> None:
    """Afterwards it is unknown whether it had ended the step itself: its own event says it."""
    events = (*UPS, ended(0, 3))
    live = classify(events, step_code=137, guard="failed")
    assert live.first is not None
    chosen = event("first_failure", source="prelaunch", **live.first._asdict())
    after = classify((*events, chosen, event("end", code=live.code)), code=live.code)
    assert (after.first, after.code, after.finding) == (live.first, live.code, live.finding)


def test_what_the_supervisor_chose_stands_though_it_only_lost_a_peer() -> None:
    """It had ended the step for it, so that the rank without an end is a victim."""
    chosen = event("first_failure", 0, source="prelaunch", code=1, signal=None)
    found = classify((*UPS, ended(0, 1), ended(2, 0), chosen), lambda _rank: LOST_PEER, code=1)
    assert found.first == (0, "n0", 1, None)


def test_of_a_killed_supervisors_run_a_rank_that_failed_is_named() -> None:
    """The job's code is unknown; that another one stopped in good order explains nothing."""
    found = classify((*UPS, ended(0, 75), ended(1, 3), ended(2, 75)))
    assert (found.code, found.first) == (None, (1, "n1", 3, None))


def test_who_was_out_of_memory_or_signalled_is_a_cause_whatever_it_says() -> None:
    """Only what a rank ends by itself, or by an abort, says why."""
    logs = {0: LOST_PEER}
    assert blame(ended(0, 143), ended(2, 1), ended(1, 0), logs=logs) == (0, 143)
    assert blame(ended(0, 1, oom=True), ended(2, 1), ended(1, 0), logs=logs) == (0, 1)
    found = classify((*UPS, ended(0, 143), ended(1, 0), ended(2, 0)), logs.__getitem__, code=143)
    assert found.finding.failure_class == "killed"


def test_of_many_ranks_not_every_log_is_read() -> None:
    """A file system may take its time for each; what the ranks reported themselves is all used."""
    asked: list[int] = []

    def log_end(rank: int) -> str:
        asked.append(rank)
        return LOST_PEER

    ups = [event("rank_up", rank) for rank in range(4096)]
    ends = [ended(rank, 1) for rank in range(4096)]
    found = classify([*ups, *ends], log_end, step_code=1)
    assert found.end == (0, "n0", 1, None)
    assert len(set(asked)) <= 17
    reported = [event("failure", rank, error=LOST_PEER) for rank in range(4095)]
    reported.append(event("failure", 4095, error="ValueError: bad"))
    asked.clear()
    found = classify([*ups, *reported, *ends], log_end, step_code=1)
    assert found.end == (4095, "n4095", 1, None)
    assert set(asked) == {4095}


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

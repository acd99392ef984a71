"""What follows an attempt's end: pure comparisons of codes, counters and Slurm's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobs.backends import scontrol
from jobs.backends.base import Layout
from jobs.supervisor import decide as pure
from jobs.supervisor.ending import Counters, Ending, Job
from rundir.failure import Failure
from rundir.failure.attempt import End
from rundir.failure.patterns import DONE
from rundir.nodes import BadNode

if TYPE_CHECKING:
    from jobs.supervisor.decide import Decision

RUNNING = "JobId=7 JobState=RUNNING Reason=None Requeue=1 Restarts=0"
COMPLETING = "JobId=7 JobState=COMPLETING Reason=None Requeue=1 Restarts=0"
# As Slurm 22.05 tells it; the second column is what we take it for.
FATES = [
    (RUNNING, "running"),
    ("JobId=7 JobState=SIGNALING Reason=None Restarts=0", "running"),
    ("JobId=7 JobState=SUSPENDED Reason=None Restarts=0", "running"),
    (COMPLETING, "cancelled"),
    ("JobId=7 JobState=CANCELLED Reason=None Requeue=1 Restarts=0", "cancelled"),
    ("JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=0", "time limit"),
    ("JobId=7 JobState=TIMEOUT Reason=None Restarts=0", "time limit"),
    ("JobId=7 JobState=COMPLETING Reason=NodeDown Restarts=0", "NodeDown"),
    ("JobId=7 JobState=COMPLETING Reason=None Restarts=1", "requeued"),
    ("JobId=7 JobState=COMPLETING Reason=None Restarts=0 PreemptTime=None", "cancelled"),
    (
        "JobId=7 JobState=COMPLETING Reason=None Restarts=0 PreemptTime=2026-11-21T07:59:33",
        "preempted",
    ),
    ("", "unknown"),
]
GO_ON = "to go on: start again with DDP_RUN_NAME=mine"
DEFAULTS = {
    "DDP_RUN_DIR": "/out/mine",
    "DDP_JOB_ID": "7",
    "SLURM_JOB_ID": "7",
    "DDP_MAX_RESTARTS": "3",
    "DDP_MAX_IDLE_RESTARTS": "1",
    "DDP_REQUEUE": "1",
    "DDP_NO_KILL": "0",
    "WORLD_SIZE": "4",
    "NUM_NODES": "2",
    "NUM_NODES_ALLOCATED": "2",
    "NUM_NODES_WANTED": "2",
    "NUM_TASKS": "4",
    "NUM_LOCAL_TASKS": "2",
    "PLACE": "bare-srun",
    "UNDER_SLURM": "1",
    "HAVE_CLIENT": "1",
    "INTERACTIVE": "0",
    "IS_OWN_COMMAND": "0",
    "STOP_SIGNAL": "",
    "ATTEMPT_BEGAN": "-100",
    "LATEST": "step-40",
    "LATEST_AT_START": "step-20",
    "LATEST_AT_JOB_START": "",
    "LOST": "",
    "LOST_HOW": "it does not answer",
    "LOST_NODES": "",
    "BAD": "",
    "BAD_BEFORE": "",
    "HAS_BEGUN": "1",
    "MIN_NODES": "",
    "RETURNED": "",
    "REFUSED": "",
    "VERDICT": "",
    "FAILED_WHY": "",
    "RESTARTS": "0",
    "IDLE": "0",
    "STEP_CODE": "137",
    "FAILED_RANK": "2",
    "FAILED_NODE": "n2",
    "FAILED_CODE": "137",
    "FAILED_BY_REQUEST": "0",
    "INFO": RUNNING,
}


def failure_of(given: dict[str, str]) -> Failure:
    """The failure that the classifier would have found."""
    rank, code = given["FAILED_RANK"], int(given["FAILED_CODE"])
    lost = tuple((node, given["LOST_HOW"]) for node in given["LOST"].split())
    number = None if rank in ("all", "none") else int(rank or 0)
    node = None if rank == "all" else given["FAILED_NODE"]
    end = End(number, node, code, None) if rank else None
    stopped = int(given["STEP_CODE"]) > 128 and given["STOP_SIGNAL"]
    reached = code if end else 75 if stopped else int(given["STEP_CODE"])
    first = None if given["FAILED_BY_REQUEST"] == "1" or reached == 75 else end
    return Failure(reached, end, first, given["FAILED_WHY"], None, given["VERDICT"], lost, DONE)


def decided(**env: str) -> Decision:
    """What is decided if this is given."""
    given = DEFAULTS | env
    job = Job(
        given["DDP_JOB_ID"],
        given["DDP_RUN_DIR"],
        given.get("DDP_IMAGE", ""),
        int(given["NUM_NODES_ALLOCATED"]),
        int(given["NUM_NODES_WANTED"]),
        is_own_command=given["IS_OWN_COMMAND"] == "1",
        is_under_slurm=given["UNDER_SLURM"] == "1",
        is_interactive=given["INTERACTIVE"] == "1",
        has_client=given["HAVE_CLIENT"] == "1",
        restart_count=0,
        max_restarts=int(given["DDP_MAX_RESTARTS"]),
        max_idle_restarts=int(given["DDP_MAX_IDLE_RESTARTS"]),
        may_requeue=given["DDP_REQUEUE"] == "1",
        is_no_kill=given["DDP_NO_KILL"] == "1",
        min_nodes=int(given["MIN_NODES"]) if given["MIN_NODES"] else None,
    )
    tasks, local = int(given["NUM_TASKS"]), int(given["NUM_LOCAL_TASKS"])
    failure = failure_of(given)
    is_foreign = given["PLACE"] == "host-image" and not failure.end and failure.code == 2
    end = Ending(
        failure,
        64 if is_foreign else failure.code,
        given["STOP_SIGNAL"] or None,
        Layout(int(given["NUM_NODES"]), tasks, local, local),
        given["LATEST"],
        given["LATEST_AT_START"],
        given["LATEST_AT_JOB_START"],
        lost=tuple(given["LOST"].split()),
        lost_before=tuple(given["LOST_NODES"].split()),
        took_s=-float(given["ATTEMPT_BEGAN"]),
        returned=tuple(given["RETURNED"].split()),
        refused=frozenset(map(int, given["REFUSED"].split())),
        is_foreign_image=is_foreign,
        bad=bad_of(given["BAD"]),
        bad_before=bad_of(given["BAD_BEFORE"]),
        has_begun=given["HAS_BEGUN"] == "1",
    )
    counters = Counters(int(given["RESTARTS"]), int(given["IDLE"]))
    what = pure.decide if end.has_begun else pure.before_start
    return what(job, end, counters, lambda: given["INFO"])


def bad_of(nodes: str) -> tuple[BadNode, ...]:
    """Nodes that are bad for one reason."""
    return tuple(BadNode(node, "GPU 3: XID 79", "hardware") for node in nodes.split())


def decide(**env: str) -> tuple[str, str]:
    """The decision and the last words."""
    decision = decided(**env)
    return decision.kind, decision.message


@pytest.mark.parametrize(("info", "fate"), FATES)
def test_what_slurm_has_in_mind(info: str, fate: str) -> None:
    """A completing job does not show its state: what explains its end tells it."""
    assert scontrol.fate(info, 0) == fate


@pytest.mark.parametrize(
    ("info", "cause"),
    [
        (RUNNING, "nothing"),
        (COMPLETING, "cancelled"),
        ("JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=0", "time limit"),
        ("JobId=7 JobState=COMPLETING Reason=None Restarts=1", "preempted"),
        ("JobId=7 JobState=COMPLETING Reason=None PreemptTime=2026-11-21T07:59:33", "preempted"),
        ("", None),
    ],
)
def test_a_decision_carries_what_slurm_had_in_mind(info: str, cause: str | None) -> None:
    """So that nobody has to read it out of its words."""
    assert decided(STOP_SIGNAL="TERM", INFO=info).cause == cause


NO_LAUNCHER = {"FAILED_RANK": "", "FAILED_NODE": "", "STEP_CODE": "2", "DDP_IMAGE": "./x.sqsh"}


@pytest.mark.parametrize(
    ("given", "decision", "words"),
    [
        ({"FAILED_RANK": "", "FAILED_NODE": "", "STEP_CODE": "0"}, "finish", "all 4 ranks"),
        ({}, "restart", "SIGKILL), code 137; its log: /out/mine/logs/rank-2.log; restart 1 of 3"),
        ({"RESTARTS": "3"}, "restart", "restart 1 of 3 from step 40"),
        (
            {"RESTARTS": "3", "LATEST_AT_START": "step-40"},
            "fail",
            f"DDP_MAX_RESTARTS=3 is reached without a new checkpoint; mend what fails; {GO_ON}",
        ),
        ({"LOST": "n2", "DDP_NO_KILL": "1"}, "restart", "restart 1 of 3 on 1 node from step 40"),
        ({"DDP_MAX_RESTARTS": "0"}, "fail", "no restart: DDP_MAX_RESTARTS=0"),
        ({"LATEST_AT_START": "step-40"}, "restart", "from step 40 in 2 s"),
        ({"LATEST_AT_START": "step-40", "IDLE": "1"}, "fail", "2 starts in a row"),
        ({"IDLE": "1"}, "restart", "from step 40"),
        ({"FAILED_CODE": "64"}, "fail", "not tried again"),
        ({"FAILED_CODE": "76", "VERDICT": "rank 2 hangs"}, "restart", "rank 2 hangs; restart"),
        (NO_LAUNCHER | {"PLACE": "host-image"}, "fail", "an image with bash and Python 3.9"),
        (NO_LAUNCHER, "restart", "the ranks could not be started"),
        ({"FAILED_RANK": "none"}, "restart", "no rank came up on n2: the step was killed"),
        ({"FAILED_RANK": "all"}, "restart", "all 4 ranks were killed at once, code 137, and none"),
    ],
)
def test_a_failure(given: dict[str, str], decision: str, words: str) -> None:
    """A failed step starts again as long as both limits allow it."""
    found = decide(**given)
    assert found[0] == decision
    assert words in found[1]


STOPPED = {"FAILED_CODE": "75", "STOP_SIGNAL": "USR1"}
CANCELLED = {"STOP_SIGNAL": "TERM", "INFO": COMPLETING}
# The signal came before a launcher could take it: no rank was up yet.
NOT_BEGUN = {"FAILED_RANK": "", "FAILED_NODE": "", "STEP_CODE": "138", "LATEST": ""}


@pytest.mark.parametrize(
    ("given", "decision", "words"),
    [
        ({}, "requeue", "job 7 is requeued and will go on from step 40"),
        ({"INFO": RUNNING.replace("Requeue=1", "Requeue=0")}, "successor", "a successor of job 7"),
        ({"DDP_REQUEUE": "0"}, "fail", "DDP_REQUEUE=0; to go on: start again"),
        (CANCELLED, "fail", "the job was cancelled; to go on: start again with DDP_RUN_NAME=mine"),
        (
            CANCELLED | {"INFO": f"{COMPLETING} Restarts=1".replace("Restarts=0 ", "")},
            "requeue",
            "",
        ),
        ({"STOP_SIGNAL": "INT"}, "fail", "to go on"),
        ({"INTERACTIVE": "1"}, "fail", "to go on"),
        ({"UNDER_SLURM": "0"}, "fail", "to go on"),
        ({"HAVE_CLIENT": "0"}, "fail", "to go on"),
        ({"INFO": ""}, "fail", "Slurm does not answer"),
        ({"LATEST": ""}, "requeue", "there is no checkpoint yet; job 7 is requeued"),
        ({}, "requeue", "code 75; the newest checkpoint is step-40; job 7"),
        ({"LATEST": "", "IDLE": "1"}, "fail", "no requeue: 2 starts in a row"),
        ({"LATEST": "", "IDLE": "1", "IS_OWN_COMMAND": "1"}, "requeue", ""),
        ({"FAILED_CODE": "143"}, "requeue", ""),
        (
            {"FAILED_CODE": "137", "FAILED_RANK": "all", "FAILED_BY_REQUEST": "1"},
            "requeue",
            "stopped on request (SIGUSR1); all 4 ranks were killed at once, code 137; ",
        ),
        ({"FAILED_CODE": "143", "DDP_MAX_RESTARTS": "0"}, "fail", "did not end with code 75"),
        ({"STOP_SIGNAL": ""}, "requeue", ""),
        (NOT_BEGUN, "requeue", "(SIGUSR1) before the ranks were started (code 75); job 7 is"),
        (NOT_BEGUN | {"STEP_CODE": "143", "STOP_SIGNAL": "TERM"}, "requeue", "(SIGTERM) before"),
        (NOT_BEGUN | CANCELLED | {"STEP_CODE": "1"}, "fail", "(SIGTERM) before the ranks were s"),
        (NOT_BEGUN | {"IDLE": "1", "IS_OWN_COMMAND": "1"}, "fail", "2 starts in a row"),
        (NOT_BEGUN | {"STOP_SIGNAL": "", "DDP_MAX_RESTARTS": "0"}, "fail", "could not be started"),
    ],
)
def test_a_stop(given: dict[str, str], decision: str, words: str) -> None:
    """After 75 the job goes back to the queue, unless a person ended it."""
    found = decide(**STOPPED | given)
    assert found[0] == decision
    assert words in found[1]


def test_only_a_start_that_brought_nothing_is_waited_after() -> None:
    """Twice as long each time, up to half a minute."""
    assert (decided().delay_s, decided().message.endswith("from step 40")) == (0, True)
    delays = [
        decided(LATEST_AT_START="step-40", IDLE=str(idle), DDP_MAX_IDLE_RESTARTS="99").delay_s
        for idle in range(6)
    ]
    assert delays == [2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize(
    ("given", "decision", "words"),
    [
        ({}, "restart", "restart 1 of 3 from the command's own checkpoint (if any) in 2 s"),
        (
            STOPPED,
            "requeue",
            "is requeued and will go on from the command's own checkpoint (if any)",
        ),
        (
            {"FAILED_CODE": "75"},
            "requeue",
            "rank 2 on n2 requested a requeue by exit code 75; by this",
        ),
        ({"FAILED_CODE": "75", "IDLE": "1"}, "requeue", ""),
        ({"FAILED_CODE": "75", "ATTEMPT_BEGAN": "0"}, "requeue", ""),
        ({"FAILED_CODE": "75", "ATTEMPT_BEGAN": "0", "IDLE": "1"}, "fail", "2 starts in a row"),
        (STOPPED | {"ATTEMPT_BEGAN": "0", "IDLE": "1"}, "requeue", ""),
        ({"LATEST": "step-40"}, "restart", "restart 1 of 3 from step 40"),
        (
            {"IDLE": "1"},
            "fail",
            "2 starts in a row brought no new checkpoint by the word of /out",
        ),
        ({"IDLE": "1"}, "fail", "writes none there needs a higher DDP_MAX_IDLE_RESTARTS"),
    ],
)
def test_a_command_of_ones_own(given: dict[str, str], decision: str, words: str) -> None:
    """Where it carries on only it knows: nobody says that it begins anew, or kept nothing."""
    found = decide(**{"IS_OWN_COMMAND": "1", "LATEST": "", "LATEST_AT_START": ""} | given)
    assert found[0] == decision
    assert words in found[1]


@pytest.mark.parametrize(
    ("given", "decision"),
    [
        ({}, "requeue"),
        ({"DDP_NO_KILL": "1"}, "restart"),
        ({"DDP_NO_KILL": "1", "NUM_TASKS": "3"}, "requeue"),
        ({"DDP_NO_KILL": "1", "LOST": "n1 n2"}, "requeue"),
        ({"DDP_NO_KILL": "1", "LOST": "n1 n2", "NUM_NODES_ALLOCATED": "3"}, "restart"),
        ({"DDP_NO_KILL": "1", "LOST_NODES": "n1"}, "requeue"),
        ({"DDP_NO_KILL": "1", "DDP_MAX_RESTARTS": "0"}, "fail"),
        ({"DDP_MAX_RESTARTS": "0"}, "requeue"),
    ],
)
def test_a_lost_node(given: dict[str, str], decision: str) -> None:
    """With --no-kill on what is left, if that is enough; else elsewhere."""
    assert decide(**{"LOST": "n2"} | given)[0] == decision


IS_BAD = "node n2 is bad: GPU 3: XID 79"
SPARE = {"NUM_NODES_ALLOCATED": "3"}


@pytest.mark.parametrize(
    ("given", "decision", "num_nodes", "words"),
    [
        (SPARE, "restart", 2, f"rank-2.log; {IS_BAD}; restart 1 of 3 on 2 nodes from step 40"),
        ({}, "requeue", 1, f"{IS_BAD}; job 7 is requeued and will go on from step 40"),
        ({"DDP_NO_KILL": "1"}, "restart", 1, f"{IS_BAD}; restart 1 of 3 on 1 node"),
        ({"DDP_NO_KILL": "1", "MIN_NODES": "2"}, "requeue", 0, "is requeued"),
        (SPARE | {"BAD_BEFORE": "n1"}, "requeue", 1, "; no spare node is left: job 7 is requeued"),
        (SPARE | {"NUM_TASKS": "3"}, "requeue", 2, "is requeued"),
        (SPARE | {"LOST": "n3"}, "requeue", 1, "is requeued"),
        ({"NUM_NODES": "1", "NUM_TASKS": "2", "NUM_NODES_ALLOCATED": "1"}, "requeue", 0, IS_BAD),
        ({"DDP_REQUEUE": "0"}, "fail", 1, f"{IS_BAD}; no requeue: DDP_REQUEUE=0; {GO_ON}"),
        ({"UNDER_SLURM": "0"}, "fail", 1, f"{IS_BAD}; {GO_ON}"),
        ({"DDP_MAX_RESTARTS": "0"}, "fail", 1, f"{IS_BAD}; no requeue: it did not end with"),
        ({"STOP_SIGNAL": "USR1", "FAILED_CODE": "75"}, "requeue", 1, f"step-40; {IS_BAD}; job 7"),
        ({"INFO": COMPLETING}, "fail", 1, "the job was cancelled"),
        ({"LATEST": "", "IDLE": "1"}, "fail", 1, "no requeue: 2 starts in a row"),
    ],
)
def test_a_bad_node(given: dict[str, str], decision: str, num_nodes: int, words: str) -> None:
    """A spare one takes its place; else fewer, if the run can; else the job goes elsewhere."""
    found = decided(**{"BAD": "n2"} | given)
    assert (found.kind, found.num_nodes) == (decision, num_nodes)
    assert words in found.message
    assert "n2" in found.exclude


def test_a_bad_node_is_in_the_jobs_comment() -> None:
    """With its reason, and those that left before."""
    comment = decided(BAD="n2", BAD_BEFORE="n1").comment
    assert comment == f"{IS_BAD.replace('n2', 'n1')}; {IS_BAD}"
    assert decided(LOST="n2").comment == ""


@pytest.mark.parametrize(
    ("given", "decision", "words"),
    [
        (SPARE, "restart", IS_BAD),
        ({}, "requeue", f"{IS_BAD}; job 7 is requeued"),
        ({"IS_OWN_COMMAND": "1", "DDP_MAX_RESTARTS": "0"}, "requeue", ""),
        ({"DDP_REQUEUE": "0"}, "fail", f"{IS_BAD}; no requeue: DDP_REQUEUE=0; {GO_ON}"),
        ({"LATEST": "", "IDLE": "1"}, "fail", "no requeue: 2 starts in a row"),
    ],
)
def test_a_bad_node_before_the_first_start(
    given: dict[str, str], decision: str, words: str
) -> None:
    """The same, of a job whose ranks have not begun: that is no failure of theirs."""
    found = decided(**{"BAD": "n2", "HAS_BEGUN": "0", "FAILED_RANK": "", "STEP_CODE": "70"} | given)
    assert found.kind == decision
    assert words in found.message
    assert found.message.startswith(IS_BAD)
    assert found.counters.restarts == 0


ELASTIC = {
    "MIN_NODES": "2",
    "DDP_NO_KILL": "1",
    "NUM_NODES_ALLOCATED": "4",
    "NUM_NODES_WANTED": "4",
    "NUM_NODES": "4",
    "NUM_TASKS": "8",
}
ON_THREE = {"NUM_NODES": "3", "NUM_TASKS": "6", "LOST_NODES": "n2"}
IS_BACK = {"FAILED_CODE": "75", "RETURNED": "n2"}


@pytest.mark.parametrize(
    ("given", "decision", "num_nodes", "words"),
    [
        ({"LOST": "n2"}, "restart", 3, "restart 1 of 3 on 3 nodes from step 40"),
        ({"LOST": "n2", "REFUSED": "3"}, "restart", 2, "on 2 nodes from step 40"),
        ({"LOST": "n2", "REFUSED": "3 2"}, "requeue", 0, "is requeued"),
        ({"LOST": "n2 n3 n4"}, "requeue", 0, "is requeued"),
        (ON_THREE | {"FAILED_CODE": "64", "REFUSED": "3"}, "restart", 2, "cannot use 3 nodes: it"),
        (ON_THREE | {"FAILED_CODE": "64", "REFUSED": "3 2"}, "requeue", 0, ""),
        ({"FAILED_CODE": "64", "REFUSED": "4"}, "fail", 3, "not tried again"),
        (ON_THREE | IS_BACK, "restart", 4, "n2 is back: it goes on on 4 nodes from step 40"),
        (ON_THREE | IS_BACK | {"DDP_MAX_RESTARTS": "0"}, "restart", 4, "is back"),
        (ON_THREE | IS_BACK | {"IS_OWN_COMMAND": "1"}, "restart", 4, "stopped on request, code 75"),
        (ON_THREE | IS_BACK | {"STOP_SIGNAL": "USR1"}, "requeue", 4, "is requeued"),
        (ON_THREE | IS_BACK | {"FAILED_CODE": "137"}, "restart", 4, "restart 1 of 3"),
        (ON_THREE | {"FAILED_CODE": "137"}, "restart", 3, "restart 1 of 3"),
    ],
)
def test_an_elastic_run(given: dict[str, str], decision: str, num_nodes: int, words: str) -> None:
    """It goes on with as many nodes as are there and as it can use, and takes back what is back."""
    found = decided(**ELASTIC | given)
    assert (found.kind, found.num_nodes) == (decision, num_nodes)
    assert words in found.message


@pytest.mark.parametrize(("latest_at_start", "left"), [("step-20", (0, 0)), ("step-40", (2, 1))])
def test_a_node_that_is_back_counts_as_no_restart(
    latest_at_start: str, left: tuple[int, int]
) -> None:
    """Nothing failed; a new checkpoint starts both counts anew, as ever."""
    given = ELASTIC | ON_THREE | IS_BACK | {"RESTARTS": "2", "IDLE": "1"}
    found = decided(**given, LATEST_AT_START=latest_at_start)
    assert tuple(found.counters) == left
    assert (found.exclude, found.cause) == ((), "more nodes")

"""Who failed first, and of what: a story for each class, and for each way to be misled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from monitor.runs import record
from rundir.failure import patterns
from tests.monitor.blamed import TRACEBACK, blame, classified

if TYPE_CHECKING:
    from collections.abc import Callable

BY_PEER = "RuntimeError: [gloo/pair.cc:534] Connection closed by peer [10.213.77.2]:51612\n"
LOADER = (
    TRACEBACK + "ConnectionResetError: [Errno 104] Connection reset by peer\n\n"
    "During handling of the above exception, another exception occurred:\n\n"
    + TRACEBACK
    + "RuntimeError: DataLoader worker (pid 1444) is killed by signal: Killed. \n"
)
"""Its connection was to a worker, which the kernel may have killed for memory."""
SAID = [
    ("program", TRACEBACK + "ValueError: boom\n"),
    ("program", TRACEBACK + "MemoryError\n"),
    ("program", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"),
    ("program", "trainer: rank 1 must fit in its GPU's memory; found no room (out of memory)\n"),
    ("program", "terminate called after throwing an instance of 'std::bad_alloc'\n"),
    ("program", "Memory cgroup out of memory: Killed process 4242 (python)\n"),
    ("program", TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: 'a.py'\n"),
    ("storage", "OSError: [Errno 28] No space left on device\n"),
    ("storage", "cp: error writing '/data/x': No space left on device\n"),
    ("storage", "OSError: [Errno 116] Stale file handle: '/data/train.bin'\n"),
    ("storage", "OSError: [Errno 5] Input/output error\n"),
    ("storage", "[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/d/7.jpg'\n"),
    ("hardware", "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"),
    ("hardware", "[123.4] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\nx\n"),
    ("hardware", "RuntimeError: CUDA error: hardware stack error\n"),
    ("program", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"),
    ("program", "RuntimeError: CUDA error: out of memory\n"),
    ("user", "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).\n"),
    (
        "user",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
    ),
    ("program", LOADER),
    ("network", BY_PEER),
    ("network", "RuntimeError: The server socket has failed to bind: EADDRINUSE\n"),
    ("network", "socket.gaierror: [Errno -3] Temporary failure in name resolution\n"),
]


@pytest.mark.parametrize(("blamed", "text"), SAID)
def test_what_a_rank_reported_decides_the_class(story: Any, blamed: str, text: str) -> None:
    """The failed rank's own last words, each by a row of the table."""
    story.start()
    story.fail(1, 1, text="epoch 1\n" + text)
    assert blame(story) == (blamed, 1)
    evidence = classified(story)["failure"]["evidence"]
    assert evidence["line"] in text or evidence == {"place": "code", "line": "1"}


def test_a_loaders_worker_is_no_lost_peer(story: Any) -> None:
    """That rank is the cause, whichever ended first."""
    story.start()
    story.fail(0, 1, text=BY_PEER)
    story.fail(1, 1, text=LOADER)
    assert blame(story) == ("program", 1)
    assert classified(story)["failure"]["words"] == "lost a worker of its data loader"


def test_a_gpu_that_broke_is_no_lost_peer(story: Any) -> None:
    """NCCL's watchdog tells its own GPU's end: that rank is the cause, whoever ended first."""
    words = "NCCL: Process group watchdog thread terminated with exception: CUDA error: "
    story.start()
    story.fail(0, 1, text=BY_PEER)
    story.fail(1, 1, text=f"RuntimeError: [Rank 1] {words}unspecified launch failure\n")
    assert blame(story) == ("program", 1)


@pytest.mark.parametrize(
    ("code", "signal", "blamed"),
    [
        (3, None, "program"),
        (127, None, "program"),
        (64, None, "user"),
        (139, "SEGV", "program"),
        (134, "ABRT", "program"),
        (136, "FPE", "program"),
        (132, "ILL", "program"),
        (135, "BUS", "program"),
        (137, "KILL", "killed"),
        (143, "TERM", "killed"),
        (129, "HUP", "killed"),
    ],
)
def test_how_a_silent_rank_ended_tells_the_class(
    story: Any, code: int, signal: str | None, blamed: str
) -> None:
    """A rank that says nothing is judged by its exit code or its signal."""
    story.start()
    story.fail(1, code, signal)
    assert blame(story) == (blamed, 1)


def test_a_crash_by_xid_is_the_machines(story: Any) -> None:
    """A segmentation fault whose log has an XID line is no fault of the program."""
    story.start()
    story.fail(1, 139, "SEGV", text="NVRM: Xid (PCI:0000:3b:00): 48, DBE\n")
    assert blame(story) == ("hardware", 1)


def test_killed_for_its_memory(story: Any) -> None:
    """SIGKILL with the kernel's word for it in the log: the program used too much memory."""
    story.start()
    story.fail(1, 137, "KILL", text="slurmstepd: error: Detected 1 oom_kill event in step 42.0\n")
    attempt = classified(story)
    assert attempt["failure_class"] == "program"
    assert "memory" in attempt["failure"]["words"]


def test_a_file_that_vanishes_is_storages_whatever_its_name(story: Any) -> None:
    """Before the first step a missing file without a suffix may be anything; later it is data."""
    text = "FileNotFoundError: [Errno 2] No such file or directory: '/data/part-17'\n"
    story.start()
    story.fail(1, 1, text=text)
    assert blame(story) == ("program", 1)
    story.again()
    story.start()
    story.train(0, 20)
    story.fail(1, 1, text=text)
    assert blame(story) == ("storage", 1)


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_consequence_is_not_the_cause(story: Any, *, is_reported: bool) -> None:
    """Rank 0 ends first because rank 1 closed its connection: rank 1 is to blame, all the same."""
    story.start()
    story.emit(0, TRACEBACK + BY_PEER)
    story.emit(1, TRACEBACK + "KeyError: 'label'\n")
    story.rank_end(0, 1)
    story.rank_end(1, 1)
    if is_reported:
        story.add_event("first_failure", rank=0, node="n1", code=1, signal=None)
    story.add_event("end", code=1)
    assert blame(story) == ("program", 1)
    failed = classified(story)["failure"]
    assert (failed["node"], failed["error"]) == ("n2", "KeyError: 'label'")


def test_a_peer_that_went_home_early_explains_a_lost_connection(story: Any) -> None:
    """It ended with code 0 while others still needed it: the fault is not the network's."""
    story.start()
    story.rank_end(1, 0)
    story.fail(0, 1, text=BY_PEER)
    failed = classified(story)["failure"]
    assert (failed["class"], failed["rank"]) == ("program", 0)
    assert failed["evidence"] == {"place": "early", "line": "rank 1 on n2 had ended with code 0"}


def test_a_peer_that_ended_after_the_failure_does_not_explain_it(story: Any) -> None:
    """Whoever ended later was there when the connection was lost."""
    story.start()
    story.fail(0, 1, text=BY_PEER)
    story.rank_end(1, 0)
    assert blame(story) == ("network", 0)


def test_a_crash_of_a_peer_explains_a_lost_connection(story: Any) -> None:
    """A crashed rank says nothing; what its peers say of it is no fault of the network."""
    story.start()
    story.emit(0, BY_PEER)
    story.rank_end(0, 70)
    story.rank_end(1, 139, "SEGV")
    story.add_event("end", code=70)
    assert blame(story) == ("program", 1)


def test_a_verdict_may_name_a_node_alone(story: Any) -> None:
    """A node whose links are down: none of its ranks is to blame."""
    story.start()
    reported = {"kind": "network", "rank": None, "node": "n2", "gpu": None, "top": "train.py:9"}
    reported["text"] = "n2 does not reach the others"
    story.add_event("verdict", **reported)
    story.rank_end(0, 137, "KILL")
    story.add_event("end", code=76)
    attempt = classified(story)
    failed = attempt["failure"]
    assert (failed["class"], failed["rank"], failed["node"]) == ("network", None, "n2")
    assert (failed["code"], failed["signal"]) == (76, None)
    assert attempt["verdict"] == reported


def test_code_76_without_a_verdict_is_hung(story: Any) -> None:
    """The code alone says it."""
    story.start()
    story.rank_end(0, 143, "TERM", requested=True)
    story.rank_end(1, 143, "TERM", requested=True)
    story.add_event("end", code=76)
    assert blame(story) == ("hung", None)


def test_a_lost_node_is_hardware(story: Any) -> None:
    """Whatever the others say of the connection."""
    story.start()
    story.emit(0, BY_PEER)
    story.rank_end(0, 1)
    story.add_event("lost_node", node="n2", how="no answer from slurmd")
    story.add_event("end", code=137)
    attempt = classified(story)
    assert blame(story) == ("hardware", 1)
    assert attempt["failure"]["node"] == "n2"
    assert attempt["lost_nodes"] == [{"node": "n2", "how": "no answer from slurmd"}]


def test_a_node_that_took_the_script_along_is_reported_afterwards(story: Any) -> None:
    """The next start tells it; the time between them is not the first one's."""
    story.start()
    story.rank_end(1, 76)
    ended = story.time
    story.add_event("lost_node", 600, node="n1", how="no answer from slurmd", afterwards=True)
    attempt = classified(story)
    assert blame(story) == ("hardware", 0)
    assert attempt["failure"]["node"] == "n1"
    assert attempt["outcome"] == "killed"
    assert attempt["end_time"] == ended


def test_a_checkpoint_that_could_not_be_written(story: Any) -> None:
    """It is the cause where the rank itself reported nothing; an exception beats it."""
    story.start()
    story.add_event("checkpoint_failed", step=5, reason="no space", error="OSError: [Errno 28]")
    story.fail(0, 70)
    assert blame(story) == ("storage", 0)
    story.add_event("failure", rank=0, error="ValueError: x")
    assert blame(story) == ("program", 0)


def test_a_save_that_failed_because_a_peer_was_killed(story: Any) -> None:
    """The kill is the cause, not what the save then met; nor is an older full disk."""
    story.start()
    story.add_event("checkpoint_failed", step=3, reason="no space", error="OSError: [Errno 28]")
    story.fail(1, 137, "KILL")
    assert blame(story) == ("killed", 1)
    met = "RuntimeError: Read error: Connection reset by peer"
    story.add_event("checkpoint_failed", step=5, reason="write error", error=met)
    assert blame(story) == ("killed", 1)


def test_a_loss_that_is_not_finite(story: Any) -> None:
    """The program's own, in these words."""
    story.start()
    story.add_event("non_finite", step=5, epoch=1, samples=[3], policy="stop", action="stop")
    story.fail(0, 70, text="trainer: stopped\n")
    attempt = classified(story)
    assert attempt["failure_class"] == "program"
    assert "not finite" in attempt["failure"]["words"]


def test_old_words_do_not_count(story: Any) -> None:
    """What stands far from the end of the log was survived."""
    story.start()
    story.emit(1, "OSError: [Errno 28] No space left on device\n" + "step\n" * 100)
    story.fail(1, 1, text="ValueError: x\n")
    assert blame(story) == ("program", 1)


def test_each_attempt_has_its_own_words(story: Any) -> None:
    """All attempts write to one log a rank; each is judged by its own part."""
    story.start()
    story.fail(1, 1, text="OSError: [Errno 28] No space left on device\n")
    story.again()
    story.start()
    story.fail(1, 1, text="ValueError: x\n")
    made = record.read(str(story.write()))["attempts"]
    assert [one["failure_class"] for one in made] == ["storage", "program"]
    assert [one["failure"]["error"][:7] for one in made] == ["OSError", "ValueEr"]


def test_without_offsets_only_the_last_attempt_has_words(story: Any) -> None:
    """Which attempt the earlier ones are of is unknown: they count for none of the earlier."""
    for _ in range(2):
        story.start()
        story.fail(1, 1, text="OSError: [Errno 28] No space left on device\n")
        story.again()
    for event in story.events:
        event.pop("log_offset", None)
    made = record.read(str(story.write()))["attempts"]
    assert [one["failure_class"] for one in made] == ["program", "storage"]


def test_the_order_of_the_file_counts_not_the_clocks(story: Any) -> None:
    """A node whose clock is an hour behind did not fail first."""
    story.start()
    story.rank_end(0, 1)
    story.rank_end(1, 2)
    story.events[-1]["time"] = "2026-11-21T03:17:00.000Z"
    story.add_event("end", code=1)
    assert classified(story)["first_failure"]["rank"] == 0


def test_every_class_has_rows_and_every_row_a_place() -> None:
    """The table speaks of the classes of the contract, and of no others."""
    classes = {"user", "program", "hardware", "network", "storage", "preempted", "time limit"}
    reported = {sign.failure_class for sign in patterns.TABLE} - {None}
    assert reported == classes | {"hung", "killed", "cancelled", "stopped"}
    places = "code log oom later node start fault copies verdict stop error nan early follows save"
    assert {sign.place for sign in patterns.TABLE} == {*places.split(), "signal", "end"}


@pytest.mark.slow
@pytest.mark.parametrize("strange", [None, "x", [], {}, 1.5, True, -1, [None], {"a": 1}])
def test_strange_values_break_nothing(story: Any, strange: object) -> None:
    """Whatever one key of one event holds, the record is composed."""
    story.start()
    story.train(0, 20, saves=(10,))
    reported: list[Callable[[], None]] = [
        lambda: story.add_event(
            "verdict", kind="hung", rank=1, node="n2", gpu=0, top="x", text="y"
        ),
        lambda: story.add_event("lost_node", node="n2", how="x"),
        lambda: story.add_event("last_beats", node="n1", ranks={"0": {"step": 3, "phase": 1}}),
        lambda: story.add_event("hang_report", node="n1", ranks=[{"rank": 0, "step": 3}]),
        lambda: story.add_event("decision", decision="fail", reason="x", restarts=0, idle=0),
        lambda: story.add_event("summary", summary={"slow_ranks": [{"rank": 0, "node": "n1"}]}),
    ]
    for one in reported:
        one()
    story.fail(1, 1, text="x\n")
    for event in story.events:
        for key in [key for key in event if key != "event"]:
            kept, event[key] = event[key], strange
            assert classified(story)["attempt"] == 1 or key == "attempt"
            event[key] = kept

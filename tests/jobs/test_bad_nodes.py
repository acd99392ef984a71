"""Which nodes are bad, and what must stay silent: pure comparisons of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.supervisor.bad_nodes import Blame, Found, Past, find, within_limit
from jobs.supervisor.history import History
from rundir.events import encode
from rundir.failure import classify
from rundir.nodes import BadNode

Event = dict[str, Any]

NOTHING = Past()

XID = "GPU 3: XID 79, the GPU has fallen off the bus"
UPS = [{"event": "rank_up", "rank": rank, "node": f"n{rank}"} for rank in range(4)]


def ended(rank: int, code: int, signal: str | None = None, **more: object) -> Event:
    """The end that a rank's agent reports."""
    known = {"event": "rank_end", "rank": rank, "node": f"n{rank}", "code": code}
    return {**known, "signal": signal, "requested": False, **more}


def fault(node: str, text: str = XID) -> Event:
    """What a node's monitor reports."""
    return {"event": "gpu_fault", "node": node, "gpu": 3, "kind": "xid", "text": text}


def verdict(*suspects: str, kind: str = "hung", rank: int = 2) -> Event:
    """The verdict on a hang."""
    known = {"event": "verdict", "kind": kind, "rank": rank, "text": f"rank {rank} hangs"}
    return known | {"suspects": list(suspects)}


def error(rank: int, text: str) -> Event:
    """What a rank itself reports of its failure."""
    return {"event": "failure", "rank": rank, "error": text}


def slow(*ranks: tuple[int, float, float]) -> Event:
    """A trainer's summary that names slow ranks: rank, ratio, percent of a step."""
    keys = ("rank", "ratio", "cost_pct")
    several = [dict(zip(keys, one, strict=True)) | {"node": f"n{one[0]}"} for one in ranks]
    return {"event": "summary", "summary": {"slow_ranks": several}}


def found(
    *events: Event,
    past: Past = NOTHING,
    log: str = "",
    code: int = 137,
    stopped: bool = False,
    nodes: int = 4,
) -> Found:
    """What an attempt with these events shows, beside the starts of four ranks on as many nodes."""
    several = [*UPS, *events]
    failure = classify(several, lambda rank: log if rank == 2 else "", step_code=code)
    return find(failure, several, past, is_stopped=stopped, num_nodes=nodes)


CRASHED = ended(2, 139, "SEGV")
BEFORE = Past(Blame("n2", 2, "rank 2 hung"))
"""The attempt before blamed the same node."""


@pytest.mark.parametrize(
    ("events", "log", "node", "reason"),
    [
        ((fault("n2"), CRASHED), "", "n2", XID),
        ((fault("n1"), ended(2, 70), error(2, "RuntimeError: NCCL timeout")), "", "n1", XID),
        ((fault("n1"), verdict("n2")), "", "n1", XID),
        ((CRASHED,), "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", "n2", "79"),
        ((ended(2, 70),), "CUDA error: uncorrectable ECC error encountered", "n2", "ECC"),
        ((fault("n2"), fault("n2", "GPU 1: lost"), CRASHED), "", "n2", f"{XID} and 1 more"),
    ],
)
def test_broken_hardware(events: tuple[Event, ...], log: str, node: str, reason: str) -> None:
    """A fault of a GPU's hardware makes its node bad at once, whatever the ranks say of it."""
    (bad,) = found(*events, log=log).bad
    assert (bad.node, bad.source) == (node, "hardware")
    assert reason in bad.reason


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (verdict("n2"), "rank 2 hung"),
        (verdict("n2", kind="network"), "could not be reached"),
        (CRASHED, "rank 2 was killed by SIGSEGV"),
        (ended(2, 137, "KILL"), "rank 2 was killed by SIGKILL"),
        (ended(2, 135, "BUS"), "rank 2 was killed by SIGBUS"),
    ],
)
def test_blamed_twice_in_a_row(event: Event, text: str) -> None:
    """A hang or a wordless crash proves nothing; on the same node in the next attempt it does."""
    once = found(event)
    assert once.bad == ()
    assert once.blame is not None
    assert (once.blame.node, once.blame.rank) == ("n2", 2)
    assert text in once.blame.text
    (bad,) = found(event, past=BEFORE).bad
    assert (bad.node, bad.source) == ("n2", "repeated")
    assert bad.reason.startswith("blamed twice in a row: rank 2 hung, then ")


def test_twice_in_a_row_no_rank_came_up() -> None:
    """On the same node, where others started theirs."""
    start = {"event": "start", "nodes": ["n0", "n1", "n2", "n3", "n4"]}
    events = (start, *(ended(rank, 143, requested=True) for rank in range(4)))
    once = found(*events, code=143)
    assert once == Found((), Blame("n4", None, "no rank came up on it"))
    (bad,) = found(*events, past=Past(once.blame), code=143).bad
    assert (bad.node, bad.source) == ("n4", "repeated")


def test_slow_twice_in_a_row() -> None:
    """Slowness beyond the limit counts also where the attempt ended well."""
    once = found(*(ended(rank, 0) for rank in range(4)), slow((1, 2.5, 40.0)), code=0)
    assert (once.bad, once.blame) == ((), Blame("n1", 1, "rank 1 took 2.5 x the median"))
    (bad,) = found(slow((1, 3.0, 60.0)), past=Past(once.blame), code=0).bad
    assert bad == BadNode("n1", bad.reason, "repeated")
    assert bad.reason.endswith("rank 1 took 2.5 x the median, then rank 1 took 3.0 x the median")


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_a_programs_own_xid(number: int) -> None:
    """An illegal access of the program's own breaks no hardware."""
    log = f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=9"
    failed = (ended(2, 70), error(2, "CUDA error: illegal access"))
    assert found(*failed, past=BEFORE, log=log) == Found()


NOISE: dict[str, dict[str, Any]] = {
    "two hangs on different nodes": {"events": [verdict("n1", rank=1)]},
    "a hang in which nothing tells the nodes apart": {"events": [verdict()]},
    "a hang of two nodes": {"events": [verdict("n1", "n2")]},
    "a verdict of an older version": {"events": [{"event": "verdict", "kind": "hung", "rank": 2}]},
    "stopped by somebody": {"events": [verdict(kind="stopped")]},
    "an exception": {"events": [ended(2, 70), error(2, "ValueError: no")]},
    "an exception that no event reports": {"events": [ended(2, 1)], "log": "ValueError: no"},
    "a crash after an error": {"events": [error(2, "ValueError: no"), CRASHED]},
    "an abort, which a program chooses": {"events": [ended(2, 134, "ABRT")]},
    "a bare code": {"events": [ended(2, 3)]},
    "out of memory": {"events": [ended(2, 137, "KILL", oom=True)]},
    "out of GPU memory": {"events": [ended(2, 70)], "log": "torch.OutOfMemoryError: CUDA out of"},
    "the user's mistake": {"events": [ended(2, 64)], "code": 64},
    "somebody's SIGTERM": {"events": [ended(2, 143, "TERM")]},
    "cancelled": {
        "events": [{"event": "signal", "signal": "TERM"}, ended(2, 137, "KILL", requested=True)],
        "stopped": True,
    },
    "preempted with a checkpoint": {
        "events": [{"event": "signal", "signal": "TERM"}, ended(2, 75, requested=True)],
        "stopped": True,
        "code": 75,
    },
    "a lost node, which Slurm takes": {"events": [{"event": "lost_node", "node": "n2"}]},
    "a little slow": {"events": [slow((2, 1.8, 90.0))], "code": 0},
    "slow, and it costs nothing": {"events": [slow((2, 9.0, 6.0))], "code": 0},
    "several slow nodes": {"events": [slow((1, 3.0, 50.0), (2, 3.0, 50.0))], "code": 0},
    "a summary that is none": {"events": [{"event": "summary", "summary": [1]}], "code": 0},
    "finished": {"events": [fault("n2"), *(ended(rank, 0) for rank in range(4))], "code": 0},
    "one node, which nothing is compared with": {"events": [CRASHED], "nodes": 1},
    "copies that differ, of two nodes": {
        "events": [
            *({"event": "replica_differs", "node": f"n{rank}", "rank": rank} for rank in (1, 2)),
            ended(2, 70),
        ]
    },
}


@pytest.mark.parametrize("name", NOISE)
def test_noise(name: str) -> None:
    """None of these makes a node bad, though the attempt before blamed the same one."""
    given_ = dict(NOISE[name])
    assert found(*given_.pop("events"), past=BEFORE, **given_).bad == ()


def test_a_failure_that_follows_its_rank() -> None:
    """A rank that fails twice on a second node, too, is the program's: no further node leaves."""
    moved = BEFORE._replace(ranks=frozenset({2}))
    repeated = found(CRASHED, past=moved)
    assert repeated.bad == ()
    assert "rank 2 fails as on another node" in repeated.note
    assert found(CRASHED, past=BEFORE._replace(ranks=frozenset({1}))).bad


def test_one_node_that_differs_from_its_copies() -> None:
    """Where several report and all are on one node, it is that one."""
    differs = {"event": "replica_differs", "node": "n2", "rank": 2}
    (bad,) = found(differs, ended(2, 70), error(2, "RunFailedError: other weights")).bad
    assert (bad.node, bad.source) == ("n2", "hardware")
    assert found(differs | {"rank": 3}, ended(2, 70), error(2, "ValueError: no")).bad == ()


NODES = st.lists(st.sampled_from([f"n{number}" for number in range(8)]), max_size=10)


@given(bad=NODES, before=st.sets(st.sampled_from([f"n{number}" for number in range(8)])))
def test_never_more_than_half(bad: list[str], before: set[str]) -> None:
    """Of several bad nodes at most half of the job's leave, all of them or none; each once."""
    leaves, note = within_limit([BadNode(node, "why", "x") for node in bad], before, 8)
    new = set(bad) - before
    names = [one.node for one in leaves]
    assert len(names) == len(set(names))
    assert set(names) in (set(), new)
    if names and len(new | before) > 1:
        assert 2 * len(new | before) <= 8
    assert bool(note) == (bool(new) and not names)


def test_the_only_node_of_a_job() -> None:
    """A job of one node is not half a job: its node may leave."""
    one = (BadNode("n1", XID, "hardware"),)
    assert within_limit(one, (), 1) == (one, "")


def test_too_many_nodes_are_named() -> None:
    """Who is kept although it is bad stands in the line."""
    bad = [BadNode(f"n{number}", "slow disk", "preflight") for number in range(3)]
    text = (
        "3 of 4 nodes would have left the job, which is taken for no node's fault: going on with"
        " n0 (slow disk), n1 (slow disk), n2 (slow disk)"
    )
    assert within_limit(bad, (), 4) == ((), text)


def test_what_a_requeued_job_finds() -> None:
    """The blame of the start before, and ranks whose node has left, stand in the events."""
    lines = [
        {"event": "bad_node", "attempt": 1, "node": "n9", "source": "repeated", "rank": 7},
        {"event": "bad_node", "attempt": 1, "node": "n8", "source": "hardware", "rank": None},
        {"event": "decision", "attempt": 2, "blamed": Blame("n2", 2, "rank 2 hung")._asdict()},
    ]
    history = History(b"".join(encode(line) for line in lines))
    assert history.past(3) == BEFORE._replace(ranks=frozenset({7}))
    assert history.past(4).blame is None, "not in a row"
    assert History(b"").past(1) == Past()

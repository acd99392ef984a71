"""What the supervisor says while the run is alive is what `why` says afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rundir.failure import classify
from tests.rundir.test_failure import LOST_PEER, event

RANKS = st.integers(0, 2)
CODES = st.sampled_from([0, 1, 3, 64, 70, 70, 75, 134, 137, 139, 143])
WORDS = st.sampled_from(["", LOST_PEER, "ValueError: bad"])
UP = st.builds(lambda rank: event("rank_up", rank), RANKS)
END = st.builds(
    lambda rank, code, requested, oom: event(
        "rank_end", rank, code=code, requested=requested, oom=oom
    ),
    RANKS,
    CODES,
    st.booleans(),
    st.sampled_from([False, False, False, True]),
)
FAILURE = st.builds(lambda rank, error: event("failure", rank, error=error), RANKS, WORDS)
SIGNAL = st.builds(
    lambda name, source: event("signal", signal=name, source=source),
    st.sampled_from(["TERM", "USR1", "INT"]),
    st.sampled_from(["prelaunch", "trainer"]),
)
NON_FINITE = st.builds(
    lambda action, rank: event("non_finite", 0, action=action, ranks=[rank]),
    st.sampled_from(["stop", "skip"]),
    RANKS,
)
VERDICT = st.builds(
    lambda kind, rank: event("verdict", rank, node="n1", kind=kind, text="v"),
    st.sampled_from(["hung", "network", "stopped"]),
    st.one_of(st.none(), RANKS),
)
LOST = st.builds(lambda rank: event("lost_node", node=f"n{rank}", how="gone"), RANKS)
COMMON = st.one_of(UP, END, END, END, FAILURE, SIGNAL, NON_FINITE)
EVENTS = st.lists(st.one_of(*[COMMON] * 6, VERDICT, LOST), max_size=14)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    events=EVENTS,
    logs=st.dictionaries(RANKS, WORDS),
    step_code=CODES.filter(bool),
    guard=st.sampled_from(["", "failed"]),
)
def test_live_and_afterwards_are_one_answer(
    events: list[dict[str, Any]], logs: dict[int, str], step_code: int, guard: str
) -> None:
    """Whatever the events, in whatever order: by what the supervisor wrote the same is found."""

    def log_end(rank: int) -> str:
        return logs.get(rank, "")

    live = classify(events, log_end, step_code=step_code, guard=guard)
    written = [] if live.first is None else [event("first_failure", **live.first._asdict())]
    after = classify([*events, *written, event("end", code=live.code)], log_end, code=live.code)
    assert after.first == live.first
    assert (after.code, after.verdict, after.lost) == (live.code, live.verdict, live.lost)
    assert after.finding == live.finding

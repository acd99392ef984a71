"""The verdict on ranks that hang, in a time that goes on as it is told."""

from __future__ import annotations

from typing import Any

from jobs.supervisor.hang import HangWatch
from jobs.supervisor.reports import Reports
from rundir import events
from rundir.hang.nodes import ASK_S, COLLECT_S
from rundir.hang.reports import NodeReport, RankReport


class Journal:
    """The reports that have arrived, and what was written."""

    def __init__(self) -> None:
        self.reports = Reports(1)
        self.is_stuck = False
        self.now_s = 1000.0
        self.watch = HangWatch(self, 2, "n0:29500", lambda: self.now_s)  # type: ignore[arg-type] # all it needs
        for node in (0, 1):
            self.write("monitor_up", node=f"n{node}", pid=1)

    def write(self, event: str, **keys: Any) -> None:
        """Take an event, as JSON has it."""
        self.reports.add(events.encode({"event": event, "attempt": 1, **keys}))

    def report(self, node: int, *, hung: bool, age_s: float = 100.0, **keys: Any) -> None:
        """What the watchdog of a node sees of its one rank."""
        rank = RankReport(rank=node, step=5, collective=9, phase="backward", state="S", hung=hung)
        rank = RankReport(**{**rank.__dict__, "age_s": age_s, "limit_s": 60.0, **keys})
        told = NodeReport(node=f"n{node}", node_rank=node, ranks=(rank,), suspicious=hung)
        self.write("hang_report", **told.to_event())

    def verdicts(self, after_s: float = 0.0) -> list[Any]:
        """All verdicts, once so much time has passed, with a look every half second."""
        end_s = self.now_s + after_s
        while self.now_s < end_s:
            self.watch.poll()
            self.now_s += 0.5
        self.watch.poll()
        return [event for event in self.reports.events if event["event"] == "verdict"]


def test_when_all_nodes_have_reported_it_decides_at_once() -> None:
    """And once."""
    journal = Journal()
    journal.report(0, hung=True)
    assert not journal.verdicts(1)
    journal.report(1, hung=True, collective=8)
    (verdict,) = journal.verdicts()
    assert (verdict["kind"], verdict["rank"], verdict["node"]) == ("hung", 1, "n1")
    assert len(journal.verdicts(100)) == 1


def test_a_node_that_works_prevents_a_verdict() -> None:
    """The others wait for it; it reports because it reads that they do."""
    journal = Journal()
    journal.report(1, hung=False, age_s=1.0, collective=8, phase="validate")
    for _ in range(20):
        journal.report(0, hung=True)
        journal.report(1, hung=False, age_s=1.0, collective=8, phase="validate")
        assert not journal.verdicts(20)


def test_a_node_without_a_report_is_lost_after_a_while() -> None:
    """It is down, or cut off from the supervisor."""
    journal = Journal()
    journal.report(0, hung=True)
    assert not journal.verdicts(COLLECT_S - 1)
    (verdict,) = journal.verdicts(2)
    assert (verdict["kind"], verdict["node"]) == ("network", "n1")
    assert "n1 gave no report" in verdict["text"]


def test_a_node_that_cannot_be_reached_is_not_waited_for() -> None:
    """No report can come from it; those that can be reached are waited for, however late."""
    journal = Journal()
    journal.report(0, hung=True)
    assert not journal.verdicts(1)
    assert journal.watch.missing == ["n1"]
    journal.watch.gone = {"n0": "no answer", "n7": "no answer"}
    assert not journal.verdicts(COLLECT_S - 3)
    journal.watch.gone = {"n1": "no answer"}
    (verdict,) = journal.verdicts()
    assert (verdict["kind"], verdict["node"]) == ("network", "n1")


def test_a_node_that_could_not_be_reached_before_is_waited_for() -> None:
    """That was in a suspicion that has been withdrawn: it may have come back since."""
    journal = Journal()
    journal.report(0, hung=True)
    assert not journal.verdicts(1)
    journal.report(0, hung=False, age_s=0.0)
    journal.watch.gone = {"n1": "no answer"}
    assert not journal.verdicts(1)
    journal.report(0, hung=True)
    assert not journal.verdicts(COLLECT_S - 1)


def test_a_node_that_was_only_late_is_not_blamed() -> None:
    """It could not be reached for a moment, and reported all the same."""
    journal = Journal()
    journal.report(0, hung=True)
    assert not journal.verdicts(3)
    journal.report(1, hung=False, age_s=1.0, collective=8, phase="validate")
    journal.watch.gone = {"n1": "no answer"}
    assert not journal.verdicts(60)
    assert journal.watch.missing == []


def test_all_are_asked_as_long_as_one_node_calls_for_a_verdict() -> None:
    """Not before, and not after; seldom, and soon enough for those who wait for the supervisor."""
    journal = Journal()

    def num_asked(seconds: float) -> int:
        num = 0
        for _ in range(int(seconds * 2)):
            journal.verdicts(0.5)
            num += journal.watch.is_time_to_ask()
        return num

    assert num_asked(60) == 0
    journal.report(0, hung=True)
    journal.report(1, hung=False, age_s=1.0, collective=8, phase="validate")
    assert num_asked(1) == 1
    assert num_asked(ASK_S - 1.5) == 0
    assert num_asked(ASK_S) == 1
    journal.report(0, hung=False, age_s=0.0)
    assert num_asked(60) == 0


def test_while_the_events_cannot_be_read_no_node_is_lost() -> None:
    """It may not know that others wait for its report."""
    journal = Journal()
    journal.is_stuck = True
    journal.report(0, hung=True)
    (verdict,) = journal.verdicts(COLLECT_S + 1)
    assert (verdict["kind"], verdict["node"]) == ("hung", "n0")


def test_a_node_whose_watchdog_has_ended_is_not_waited_for() -> None:
    """Its ranks have finished."""
    journal = Journal()
    journal.write("last_beats", node="n1", node_rank=1, ranks={})
    journal.report(0, hung=True)
    (verdict,) = journal.verdicts()
    assert (verdict["kind"], verdict["node"]) == ("hung", "n0")


def test_a_suspicion_that_is_withdrawn_starts_no_clock() -> None:
    """The rank went on; later another one hangs, and everybody has his time again."""
    journal = Journal()
    journal.report(0, hung=True)
    assert not journal.verdicts(COLLECT_S - 1)
    journal.report(0, hung=False, age_s=0.0)
    assert not journal.verdicts(200)
    journal.report(0, hung=True)
    assert not journal.verdicts(COLLECT_S - 1)


def test_what_hangs_by_its_age_alone_is_no_suspicion() -> None:
    """A silent command counts only where another node calls for a verdict; reports grow old."""
    journal = Journal()
    journal.report(0, hung=True)
    journal.write("last_beats", node="n9", node_rank=9, ranks={})
    journal.report(0, hung=False, age_s=0.0)
    told = NodeReport(node="n1", node_rank=1, ranks=(RankReport(rank=1, state="S", hung=True),))
    journal.write("hang_report", **told.to_event())
    assert not journal.verdicts(300)


def test_strange_reports_break_nothing() -> None:
    """What is no report changes nothing."""
    journal = Journal()
    for ranks in (None, 1, [None], [{"rank": "x"}], [{"rank": 1, "age_s": None}]):
        journal.write("hang_report", node="n0", node_rank=0, ranks=ranks)
    assert not journal.verdicts(COLLECT_S + 5)

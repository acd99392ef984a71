"""The guard of a step, with a step and a backend that only remember what they are told."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from jobs.backends.slurm import Slurm
from jobs.loop import Loop
from jobs.supervisor import guard as guards
from jobs.supervisor.guard import Guard, lost_nodes
from jobs.supervisor.journal import Journal
from rundir import events
from rundir.hang.reports import NodeReport, RankReport
from rundir.paths import RunDir
from tests.jobs.backend import Fake, now

if TYPE_CHECKING:
    from pathlib import Path


class Step:
    """A step that never ends by itself."""

    left: tuple[str, ...] = ()

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.told: list[str] = []

    @property
    def failed_s(self) -> float | None:
        """When a rank failed, or a verdict came."""
        return self.journal.reports.failed_s

    def is_over(self) -> bool:
        """It is not."""
        return False

    def ask_for_reports(self) -> None:
        """Remember it."""
        self.told.append("report")

    def terminate(self) -> None:
        """The same."""
        self.told.append("terminate")

    def kill(self) -> None:
        """The same."""
        self.told.append("kill")

    def lose(self, node: str, how: str) -> bool:
        """It cannot go on without a node."""
        del node, how
        return False

    def signal(self, number: int) -> None:
        """The same."""
        self.told.append(signal.Signals(number).name)


class Bench:
    """Two nodes with a rank each; this process is on none of them."""

    def __init__(
        self, path: Path, backend: Any, num_nodes: int = 2, *, may_return: bool = False
    ) -> None:
        self.loop = Loop()
        self.journal = Journal(self.loop, RunDir(str(path)), "n0")
        self.journal.open(1)
        self.step = Step(self.journal)
        self.nodes = [f"n{number}" for number in range(num_nodes)]
        shared = now(path, backend, self.nodes, min_nodes=1 if may_return else None)
        shared.loop, shared.journal = self.loop, self.journal
        self.guard = Guard(shared, self.step)  # type: ignore[arg-type] # all that it needs
        for name in self.nodes:
            self.journal.write("monitor_up", node=name, pid=1)

    def report(self, node: int, *, hung: bool = True, age_s: float = 99.0) -> None:
        """What the watchdog of a node sees of its one rank."""
        rank = RankReport(rank=node, step=5, collective=9, phase="backward", state="S", hung=hung)
        rank = RankReport(**{**rank.__dict__, "age_s": age_s, "limit_s": 60.0})
        told = NodeReport(node=f"n{node}", node_rank=node, ranks=(rank,), suspicious=hung)
        self.journal.write("hang_report", **told.to_event())

    def passes(self, seconds: float, until: str = "") -> float:
        """Let time pass, until the step is told something; seconds."""
        began_s = time.monotonic()

        def is_told() -> bool:
            return self.guard.is_over() or until in self.step.told

        self.loop.run(is_told, seconds)
        return time.monotonic() - began_s


def test_nothing_wakes_up_while_all_is_well(tmp_path: Path) -> None:
    """But to look for lost nodes, where there are several."""
    bench = Bench(tmp_path, Fake(is_in_place=True))
    bench.journal.write("rank_up", rank=0, node="n0")
    bench.passes(0.1)
    assert bench.loop._timers == []  # noqa: SLF001 -- what it would wake up for


@pytest.mark.parametrize("num_early", [1, 2, 3])
def test_a_rank_that_ends_well_long_before_the_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_early: int
) -> None:
    """They may wait for it, and no one of them fails; once, and not if rank 0 only saves longer."""
    said: list[str] = []
    monkeypatch.setattr(guards, "_EARLY_S", 0)
    monkeypatch.setattr(guards, "info", said.append)
    bench = Bench(tmp_path, Fake(is_in_place=True))
    for rank in (0, 1, 2):
        bench.journal.write("rank_up", rank=rank, node=f"n{rank}")
    for rank in (1, 2, 0)[:num_early]:
        bench.journal.write("rank_end", rank=rank, node=f"n{rank}", code=0, requested=False)
    bench.guard.is_over()
    bench.loop.run(lambda: bench.guard.is_over() or not bench.loop._timers, 5)  # noqa: SLF001 -- done
    named = "rank 1 on n1 ended with code 0, 0 s ago; not ended, and perhaps waiting for it: "
    assert said == ([f"{named}rank 0 on n0, rank 2 on n2"] if num_early == 1 else [])


@pytest.mark.slow
def test_a_verdict_ends_the_ranks_once_and_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get their grace; what is left of them some seconds later is killed."""
    monkeypatch.setattr(guards, "_TEARDOWN_S", 1.2)
    bench = Bench(tmp_path, Fake(is_in_place=True))
    bench.report(0)
    bench.report(1)
    assert bench.passes(20, "terminate") < 5
    bench.passes(20, "SIGKILL")
    assert bench.step.told == ["terminate", "SIGKILL"]
    assert bench.guard.why == "failed"


@pytest.mark.slow
def test_the_other_nodes_are_asked(tmp_path: Path) -> None:
    """One whose ranks work knows of nothing; until it has reported there is no verdict."""
    bench = Bench(tmp_path, Fake())
    bench.report(0)
    assert bench.passes(20, "report") < 5
    bench.report(1, hung=False, age_s=1.0)
    bench.passes(2)
    assert bench.step.told == ["report"]


@pytest.mark.parametrize("may_return", [True, False])
def test_a_node_that_does_not_answer_is_not_waited_for(tmp_path: Path, *, may_return: bool) -> None:
    """What cannot be reached cannot report, nor end: verdict and end come at once.

    Where the job would lose it for good, it is asked again first, and not lost yet.
    """
    bench = Bench(tmp_path, Fake({"n1": "its port does not answer"}), may_return=may_return)
    bench.report(0)
    assert bench.passes(20, "terminate") < 8
    (verdict,) = [e for e in bench.journal.reports.events if e["event"] == "verdict"]
    assert (verdict["kind"], verdict["node"]) == ("network", "n1")
    assert bench.passes(20, "SIGKILL") < 3
    assert bench.step.told == ["report", "terminate", "kill", "SIGKILL"]
    lost = [e["node"] for e in bench.journal.reports.events if e["event"] == "lost_node"]
    assert lost == (["n1"] if may_return else [])


@pytest.mark.slow
def test_a_node_that_answers_is_waited_for(tmp_path: Path) -> None:
    """Its report is only late; and of thousands that are late, none is called."""
    bench = Bench(tmp_path, Fake())
    bench.report(0)
    bench.passes(4)
    assert bench.step.told == ["report"]
    called: list[str] = []

    class Counting(Fake):
        def lost(self, node: str) -> str | None:
            called.append(node)
            return "it is gone"

    many = Bench(tmp_path, Counting(), num_nodes=100)
    many.report(0)
    many.passes(2)
    assert many.step.told == ["report"]
    assert not called


@pytest.mark.slow
def test_srun_is_not_waited_for_where_a_node_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for that node's ranks for ever; those of the others are killed first."""
    monkeypatch.setattr(guards, "_QUIET_S", -14.9)  # beyond the interval of 15 s
    bench = Bench(tmp_path, Fake({"n1": "its port does not answer"}))
    for rank, node in enumerate(bench.nodes):
        bench.journal.write("rank_up", rank=rank, node=node)
    bench.passes(20, "kill")
    assert bench.passes(20, "SIGKILL") < 2
    assert bench.step.told == ["kill", "SIGKILL"]
    assert bench.guard.why == "lost n1"


@pytest.mark.slow
@pytest.mark.parametrize("has_ended", [True, False], ids=["ended", "still there"])
def test_srun_is_waited_for_less_where_all_ranks_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_ended: bool
) -> None:
    """It has had its time: a slurmstepd is dead, and srun waits for it for ever."""
    monkeypatch.setattr(guards, "_TEARDOWN_S", 0.2)
    bench = Bench(tmp_path, Fake())
    for rank, node in enumerate(bench.nodes):
        bench.journal.write("rank_up", rank=rank, node=node)
    for rank in (1, 0) if has_ended else (1,):
        bench.journal.write("rank_end", rank=rank, node=f"n{rank}", code=1, requested=False)
    bench.passes(20, "kill")
    assert (bench.passes(20, "SIGKILL") < 2) == has_ended


@pytest.mark.slow
def test_what_a_quiet_node_could_not_deliver_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its slurmstepd is dead, srun hands nothing on, and would wait for ever."""
    monkeypatch.setattr(guards, "_QUIET_S", -14.9)  # beyond the interval of 15 s
    bench = Bench(tmp_path, Fake())
    for rank, node in enumerate(bench.nodes):
        bench.journal.write("rank_up", rank=rank, node=node)
    end = {"event": "rank_end", "attempt": 1, "rank": 1, "code": 137, "requested": False}
    (tmp_path / "events.n1.jsonl").write_bytes(events.encode(end) + b'{"event": "half')
    assert bench.loop.run(lambda: bench.step.failed_s, 20)
    bench.journal.flush()
    assert (tmp_path / "events.jsonl").read_bytes().endswith(events.encode(end))


@pytest.mark.parametrize(
    ("kept", "dropped"),
    [("n1 n3", ["n2"]), ("n1 n2", []), ("", [])],
    ids=["one is gone", "all are there", "no answer"],
)
def test_a_node_that_slurm_took_out_of_the_job_is_lost(
    monkeypatch: pytest.MonkeyPatch, kept: str, dropped: list[str]
) -> None:
    """It may answer again, and a step on it would still wait for ever."""
    listed = "kept" if kept else "(null)"
    monkeypatch.setattr(Slurm, "job_info", lambda _self: f"JobId=7 NodeList={listed} X=1")
    monkeypatch.setattr(Slurm, "hostnames", lambda _self, listed: {"kept": kept}[listed].split())
    assert Slurm({"SLURM_JOB_ID": "7"}).dropped(["n1", "n2"]) == dropped


@pytest.mark.parametrize("may_have_dropped", [True, False])
def test_only_a_job_with_no_kill_may_have_lost_a_node_that_answers(
    *, may_have_dropped: bool
) -> None:
    """Without it the whole job would have ended."""
    backend = Fake(dropped_nodes=["n2"])
    found = lost_nodes(backend, [], ["n1", "n2"], may_have_dropped=may_have_dropped)
    how = "Slurm has taken it out of the job"
    assert found == ([("n2", how)] if may_have_dropped else [])

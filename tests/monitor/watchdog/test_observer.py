"""All ranks of a node at one moment, and what the watchdog is to watch."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from monitor.errors import UserError
from monitor.logs.sample import GpuSample, Reading
from monitor.watchdog import orphans
from monitor.watchdog import settings as watch_settings
from monitor.watchdog.bounded import Bounded
from monitor.watchdog.event_channel import EventChannel
from monitor.watchdog.observer import RankObserver
from monitor.watchdog.timeouts import Timeouts
from rundir import procfs
from rundir.events import EventLog, append
from rundir.heartbeat import Child, Heartbeat


@dataclass
class Machine:
    """One node: its ranks are this very process, the rest is as the test tells it."""

    now_s: float = 5000.0
    beating: dict[int, Heartbeat] = field(default_factory=dict)
    running: dict[int, Child] = field(default_factory=dict)
    mark: Hashable = 1
    env: dict[str, str] = field(default_factory=dict)

    def heartbeats(self) -> Mapping[int, Heartbeat]:
        """The last heartbeats."""
        return self.beating

    def children(self) -> Mapping[int, Child]:
        """What runs."""
        return self.running

    def log_state(self, _rank: int) -> Hashable:
        """The same for all."""
        return self.mark

    def environment(self, _pid: int) -> Mapping[str, str]:
        """The same for all."""
        return self.env

    def times(self, _rank: int) -> Mapping[int, float]:
        """Nothing works."""
        return {1: 0.0}

    def heartbeat(self, rank: int, step: int, phase: str = "forward", pid: int = 0) -> None:
        """Heartbeat now."""
        time_ns = int(self.now_s * 1e9)
        self.beating[rank] = Heartbeat(
            rank, pid or os.getpid(), step, time_ns, phase, step, step, 0
        )


def watched(machine: Machine, given_s: float | None = 5.0) -> RankObserver:
    """A watch whose clock is the machine's."""
    return RankObserver(machine, Timeouts(given_s), lambda: machine.now_s)


def stepping(machine: Machine, watch: RankObserver) -> None:
    """Take two steps on two ranks."""
    for step in (1, 2):
        machine.heartbeat(0, step)
        machine.heartbeat(1, step)
        watch.poll()
        machine.now_s += 0.5


def observe(machine: Machine, watch: RankObserver, seconds: float) -> Any:
    """Poll as often as it wants to; the last poll."""
    end_s = machine.now_s + seconds
    while machine.now_s < end_s:
        machine.now_s += watch.timeouts.poll_s()
        poll = watch.poll()
    return poll


def test_who_is_silent_past_the_limit_hangs() -> None:
    """Each rank by its own heartbeat."""
    machine = Machine()
    watch = watched(machine)
    stepping(machine, watch)
    for _ in range(10):
        machine.heartbeat(0, 3)
        poll = watch.poll()
        assert not poll.is_suspicious
        machine.now_s += 0.45
    machine.now_s += 0.2
    first, second = watch.poll().ranks
    assert (first.hung, second.hung) == (False, True)
    assert (second.step, second.phase, second.limit_s) == (2, "forward", 5)


@pytest.mark.slow
def test_a_heartbeat_that_cannot_be_read_is_the_one_before() -> None:
    """A poll that falls into the writing of a heartbeat knows as much as the poll before."""
    machine = Machine()
    machine.running[1] = Child(1, os.getpid(), 1, is_trainer=True)
    watch = watched(machine)
    stepping(machine, watch)
    for _ in range(2):  # an hour lies between: no silence is counted from the one to the other
        reported = machine.beating.pop(1)
        second = watch.poll().ranks[1]
        assert (second.step, second.phase, second.hung) == (2, "forward", False)
        machine.beating[1] = reported
        for step in range(3, 3600):
            machine.heartbeat(0, step)
            machine.heartbeat(1, 2)
            watch.poll()
            machine.now_s += 1


def test_a_suspended_job_has_not_hung() -> None:
    """There was no poll for an hour, since nothing ran."""
    machine = Machine()
    watch = watched(machine)
    stepping(machine, watch)
    machine.now_s += 3600
    assert not watch.poll().is_suspicious
    assert observe(machine, watch, 6).is_suspicious


def test_a_rank_that_is_gone_is_not_hung() -> None:
    """Neither one whose process has ended nor one whose number another process has."""
    machine = Machine()
    gone = subprocess.Popen(["true"])
    gone.wait()
    watch = watched(machine)
    machine.heartbeat(0, 5, pid=gone.pid)
    machine.now_s += 1000
    (rank,) = watch.poll().ranks
    assert (rank.state, rank.hung) == (None, False)


def test_a_number_that_was_given_away_is_not_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is known by its start, too."""
    machine = Machine()
    watch = watched(machine)
    stepping(machine, watch)
    other = procfs.Identity(os.getpid(), 1)
    monkeypatch.setattr(procfs, "identity", lambda _pid: other)
    machine.now_s += 100
    assert [rank.state for rank in watch.poll().ranks] == [None, None]


def test_our_trainer_without_a_heartbeat_has_the_timeout_of_a_start() -> None:
    """And even then only silence counts against it."""
    machine = Machine(running={0: Child(0, os.getpid(), 0, is_trainer=True)})
    watch = watched(machine)
    assert not observe(machine, watch, 120).is_suspicious
    assert observe(machine, watch, 15).is_suspicious
    machine.mark = 2
    assert not watch.poll().is_suspicious


def test_a_command_without_a_limit_is_classified_by_its_gpu_alone() -> None:
    """A silent command that uses nothing may be waiting for its user; a collective does not."""
    machine = Machine(running={0: Child(0, os.getpid(), 0, is_trainer=False)})
    watch = watched(machine, None)
    assert not observe(machine, watch, 4000).is_suspicious
    waiting = GpuSample(index=0, sm_pct=100, mem_pct=0, power_w=100)
    watch.see_gpus(Reading((waiting,), (("power_limit_w 0", "700"),)))
    poll = observe(machine, watch, 10)
    assert poll.is_suspicious
    assert (poll.ranks[0].gpu, poll.ranks[0].pattern) == ("GPU 0", "waiting")


def test_without_a_known_limit_the_most_that_was_drawn_counts() -> None:
    """Low is low beside what this GPU drew while it worked."""
    machine = Machine(running={0: Child(0, os.getpid(), 0, is_trainer=False)})
    watch = watched(machine)
    for power_w, pattern in ((300, "working"), (100, "waiting")):
        watch.see_gpus(Reading((GpuSample(index=0, sm_pct=99, mem_pct=0, power_w=power_w),)))
        assert watch.poll().ranks[0].pattern == pattern


@pytest.mark.slow
def test_a_call_that_hangs_blocks_nothing_else(patience: Callable[[float], float]) -> None:
    """Its caller goes on after the limit, later ones sooner; what was asked is done in the end."""
    calls, gate, done = Bounded("test"), threading.Event(), []
    assert calls.ask(lambda: 7, 5) == 7
    began = time.monotonic()
    assert calls.ask(lambda: gate.wait(20), 0.3) is None
    assert calls.is_stuck
    for number in range(3):
        assert calls.ask(lambda number=number: done.append(number), 60) is None
    assert time.monotonic() - began < patience(5)
    gate.set()
    assert calls.ask(lambda: 8, 5) == 8
    assert done == [0, 1, 2]
    assert not calls.is_stuck


def test_questions_do_not_pile_up_behind_a_call_that_hangs() -> None:
    """Hours of a stalled file system leave no hours of polls to make up for; reports stay."""
    calls, gate, done = Bounded("test"), threading.Event(), []
    assert calls.question(lambda: 7, 5) == 7
    assert calls.question(lambda: gate.wait(20), 0.1) is None
    for number in range(1000):
        assert calls.question(lambda number=number: done.append(number), 60) is None
    calls.post(lambda: done.append("reported"))
    gate.set()
    assert calls.ask(lambda: 8, 5) == 8
    assert done == ["reported"]
    assert calls.question(lambda: 9, 5) == 9


def test_a_call_that_fails_gives_nothing() -> None:
    """And the thread lives on."""

    def broken() -> int:
        raise OSError("stale")

    calls = Bounded("test")
    assert calls.ask(broken, 5) is None
    calls.post(broken)
    assert calls.ask(lambda: 1, 5) == 1


def channel(path: Path, host: str = "n1") -> EventChannel:
    """What one watchdog reports and receives by."""
    log = EventLog(partial(append, str(path)), "monitor", 1, host)
    return EventChannel(log, str(path), Bounded("test"))


def test_watchdogs_reach_each_other_through_the_events(tmp_path: Path) -> None:
    """Each line once, whole lines only, and only what concerns them."""
    path = tmp_path / "events.jsonl"
    assert channel(path).receive() == []
    mine, yours = channel(path), channel(path, "n2")
    mine.report("hang_report", node="n1")
    mine.report("checkpoint", step=1)
    assert [event["event"] for event in yours.receive()] == ["hang_report"]
    assert yours.receive() == []
    with path.open("a") as file:
        file.write('{"event": "verdict", ')
        file.flush()
        assert yours.receive() == []
        file.write('"text": "x"}\n')
    assert [event["text"] for event in yours.receive()] == ["x"]


def test_what_comes_late_is_received_then_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow server's answer is not thrown away, only to be asked for again."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "verdict", "text": "x"}\n')
    gate, num_reads = threading.Event(), [0]
    read = os.pread

    def slowly(descriptor: int, size: int, offset: int) -> bytes:
        data = read(descriptor, size, offset)
        num_reads[0] += size > 0
        gate.wait(20)
        return data

    monkeypatch.setattr("monitor.watchdog.event_channel._LIMIT_S", 0.1)
    monkeypatch.setattr(os, "pread", slowly)
    yours = channel(path)
    assert yours.receive() == []
    assert yours.is_stuck
    assert yours.receive() == []
    gate.set()
    deadline_s = time.monotonic() + 20
    while yours.is_stuck and time.monotonic() < deadline_s:
        time.sleep(0.01)
    monkeypatch.setattr("monitor.watchdog.event_channel._LIMIT_S", 10)
    assert [event["text"] for event in yours.receive()] == ["x"]
    assert yours.receive() == []
    assert num_reads == [1]


LAUNCH = {"DDP_BEAT_DIR": "/dev/shm/x", "DDP_ATTEMPT": "3", "NODE_RANK": "2"}


def test_what_to_watch_comes_from_the_launcher() -> None:
    """Its environment, parsed once."""
    env = LAUNCH | {
        "WORLD_SIZE": "12",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "n0",
        "MASTER_PORT": "29500",
        "DDP_HANG_TIMEOUT": "7.5",
    }
    settings = watch_settings.from_environment(env, "/run", "token", "n2")
    assert settings is not None
    assert (settings.node, settings.node_rank, settings.attempt) == ("n2", 2, 3)
    assert (settings.num_nodes, settings.master, settings.hang_timeout_s) == (3, "n0:29500", 7.5)
    env["DDP_NUM_NODES"] = "2"
    settings = watch_settings.from_environment(env, "/run", "token", "n2")
    assert settings is not None
    assert settings.num_nodes == 2


@pytest.mark.parametrize(
    ("env", "run_dir", "launch_id"), [({}, "r", "t"), (LAUNCH, None, "t"), (LAUNCH, "r", None)]
)
def test_outside_of_a_launch_no_rank_is_watched(
    env: dict[str, str], run_dir: str | None, launch_id: str | None
) -> None:
    """The recorder alone records."""
    assert watch_settings.from_environment(env, run_dir, launch_id, "n") is None


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "9999999999"])
def test_a_wrong_timeout_is_the_users_mistake(text: str) -> None:
    """It is not guessed."""
    with pytest.raises(UserError, match="DDP_HANG_TIMEOUT must"):
        watch_settings.from_environment(LAUNCH | {"DDP_HANG_TIMEOUT": text}, "r", "t", "n")


def test_ranks_are_found_by_what_they_carry() -> None:
    """Rank and descendants by number; launchers, torchrun and other launches are none."""
    token = f"find-{os.getpid()}"
    carried = [f"{token}/0", f"{token}/0", f"{token}/11", f"{token}/node0", f"{token}0/5", ""]
    env = {k: v for k, v in os.environ.items() if not k.startswith("DDP_")}
    started = [
        subprocess.Popen(
            ["sleep", "30"],
            env=env | {"DDP_LAUNCH_ID": token, "DDP_NODE": "n1", "DDP_RANK_ID": rank_id},
        )
        for rank_id in carried
    ]
    found = orphans.find_ranks(token, "n1")
    for process in started:
        process.kill()
        process.wait()
    assert {rank: sorted(pids) for rank, pids in found.items()} == {
        0: sorted(process.pid for process in started[:2]),
        11: [started[2].pid],
    }

"""How long a rank may be silent: given, or learned from its own heartbeats."""

import pytest

from monitor.watchdog.timeouts import BeatAge, Timeouts
from rundir.heartbeat import Heartbeat

BEAT = Heartbeat(
    rank=0, pid=1, step=0, time_ns=0, phase="start", num_heartbeats=1, collective=0, first_step=0
)


@pytest.mark.parametrize(
    ("given_s", "phase", "has_stepped", "limit_s"),
    [
        (None, "start", False, 1800),
        (None, "forward", False, 1800),
        (None, "forward", True, 300),
        (None, "validate", True, 300),
        (None, "end", True, 300),
        (None, "save", True, 3000),
        (None, "load", False, 3000),
        (5, "forward", True, 5),
        (5, "save", True, 50),
        (5, "start", False, 120),
        (60, "start", False, 600),
        (600, "load", False, 6000),
    ],
)
def test_limits(given_s: float | None, phase: str, has_stepped: bool, limit_s: float) -> None:  # noqa: FBT001
    """What is given holds for training; start-up and storage have ten times as much."""
    assert Timeouts(given_s).limit_s(phase, has_stepped=has_stepped) == limit_s


def test_slow_steps_make_it_patient() -> None:
    """Twenty times the longest gap, if that is more than 300 s."""
    patience = Timeouts(longest_gap_s=40)
    assert patience.limit_s("forward", has_stepped=True) == 800
    assert patience.limit_s("save", has_stepped=True) == 8000
    assert Timeouts(10, longest_gap_s=40).limit_s("forward", has_stepped=True) == 10


class Rank:
    """A rank that beats as the test tells it, and is looked at every 5 s."""

    def __init__(self) -> None:
        self.patience = Timeouts()
        self.age = BeatAge(self.patience)
        self.heartbeat = BEAT
        self.now_s = 0.0

    def heartbeats(self, phase: str, step: int) -> None:
        """Heartbeat now."""
        self.heartbeat = self.heartbeat._replace(
            time_ns=int(self.now_s * 1e9), phase=phase, step=step, num_heartbeats=self.count()
        )

    def count(self) -> int:
        """The number of the next beat."""
        return self.heartbeat.num_heartbeats + 1

    def age_after(self, seconds: float, skipped_s: float = 0.0) -> float:
        """Let time pass, with a poll every 5 s; the age at the end."""
        for _ in range(int(seconds // 5)):
            self.now_s += 5
            age_s = self.age.update(self.heartbeat, self.now_s, skipped_s)
        return age_s


def test_a_heartbeat_ages_by_the_clock_of_the_node() -> None:
    """Its age counts from the time in the heartbeat, not from when it was first seen."""
    rank = Rank()
    assert rank.age_after(50) == 50
    rank.heartbeats("data", 0)
    assert rank.age_after(5) == 5


def test_the_first_step_is_done_where_the_number_moves() -> None:
    """A resumed run begins with a large number: that is no step of this attempt."""
    rank = Rank()
    rank.age_after(5)
    for phase, first, step, has_stepped in (
        ("load", None, 0, False),
        ("agree", 500, 500, False),
        ("forward", 500, 500, False),
        ("data", 500, 501, True),
    ):
        rank.heartbeat = rank.heartbeat._replace(first_step=first)
        rank.heartbeats(phase, step)
        rank.age_after(5)
        assert rank.age.has_stepped is has_stepped
    assert rank.age.limit_s() == 300


def test_steps_between_two_polls_are_steps() -> None:
    """A fast run has hung in step 56 before it was looked at for the first time."""
    rank = Rank()
    rank.heartbeats("forward", 56)
    rank.age_after(5)
    assert rank.age.has_stepped


def test_gaps_are_learned_once_they_are_over() -> None:
    """A rank that hangs does not make the watchdog patient with itself."""
    rank = Rank()
    for step in (1, 2, 3):
        rank.heartbeats("forward", step)
        rank.age_after(5)
    rank.age_after(35)
    assert rank.patience.longest_gap_s == 5
    rank.heartbeats("forward", 4)
    rank.age_after(5)
    assert rank.patience.longest_gap_s == 40
    assert rank.age.limit_s() == 800


@pytest.mark.parametrize("phase", ["save", "load", "start"])
def test_storage_teaches_nothing(phase: str) -> None:
    """A slow save says nothing about the steps; nor does what comes before the first one."""
    rank = Rank()
    rank.heartbeats("forward", 0)
    rank.age_after(1000)
    rank.heartbeats("forward", 1)
    rank.age_after(5)
    rank.heartbeats(phase, 2)
    rank.age_after(1000)
    rank.heartbeats("forward", 2)
    rank.age_after(5)
    assert rank.patience.longest_gap_s == 5


def test_time_without_a_watcher_does_not_count() -> None:
    """A job that was suspended for an hour, its watcher with it, has not hung."""
    rank = Rank()
    rank.heartbeats("forward", 1)
    rank.age_after(10)
    rank.now_s += 3600
    assert rank.age_after(5, skipped_s=3600) == 15


def test_a_heartbeat_between_the_last_poll_and_the_suspension() -> None:
    """Only what was skipped after it is taken off, and nothing is learned from an hour's gap."""
    rank = Rank()
    for step in (1, 2):
        rank.heartbeats("forward", step)
        rank.age_after(5)
    rank.now_s += 1
    rank.heartbeats("forward", 3)
    rank.now_s += 3594
    assert rank.age_after(5, skipped_s=3595) == 4
    rank.heartbeats("forward", 4)
    assert rank.age_after(5, skipped_s=3595) == 5
    assert rank.age.limit_s() == 300


@pytest.mark.parametrize(
    ("given_s", "poll_s"), [(None, 5), (1, 0.25), (5, 0.5), (30, 3), (9999, 5)]
)
def test_it_polls_as_often_as_it_must(given_s: float | None, poll_s: float) -> None:
    """Often enough for the limit, and never in a hurry."""
    assert Timeouts(given_s).poll_s() == poll_s


def test_a_command_has_what_is_given_or_half_an_hour() -> None:
    """It has no heartbeat, so there is nothing to learn from."""
    assert Timeouts(7).command_limit_s() == 7
    assert Timeouts().command_limit_s() == 1800

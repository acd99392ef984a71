import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monitor.nvml import workers
from monitor.nvml.workers import Job, Values, WorkerPool
from monitor.stop import Reason

pytestmark = pytest.mark.slow


class Never:
    """It is never time to stop, unless requested."""

    reason: Reason | None = None

    def wait(self, _timeout_s: float) -> Reason | None:
        """Do not wait."""
        return self.reason


class World:
    """Calls of some owners, of which some hang until the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.never = Never()
        self.reported: list[tuple[int, str]] = []
        self.made: list[tuple[int, str]] = []
        self.pool = WorkerPool(
            "test", self.never, lambda job: self.reported.append((job.owner, job.kind))
        )

    def report(self, job: Job) -> None:
        """Receive the report of a call that was given up."""
        self.reported.append((job.owner, job.kind))

    def job(self, owner: int, kind: str, *, hangs: bool = False) -> Job:
        """Build a call; one that hangs leaves its value when the gate is open."""

        def call(values: Values) -> None:
            self.made.append((owner, kind))
            if hangs:
                self.gate.wait(20)
            values[kind] = owner

        return Job(owner, kind, call, timeout_s=0.1)

    def poll(self, jobs: list[Job], limit_s: float = 10) -> dict[tuple[int, str], Any]:
        """Look once: what each call has left."""
        values: dict[int, Values] = {job.owner: {} for job in jobs}
        self.pool.run(jobs, values, limit_s)
        return {(o, k): v for o, found in values.items() for k, v in dict(found).items()}


@pytest.fixture
def world() -> Iterator[World]:
    """A crew whose gate is open at the end."""
    made = World()
    yield made
    made.gate.set()


def threads() -> int:
    """How many threads of a crew there are."""
    return sum(thread.name == "test" for thread in threading.enumerate())


def test_calls_are_made_in_order_by_one_thread(world: World) -> None:
    """Look after look, and each leaves its value."""
    jobs = [world.job(owner, kind) for owner in (0, 1) for kind in "ab"]
    before = threads()
    for _ in range(3):
        assert set(world.poll(jobs)) == {(0, "a"), (0, "b"), (1, "a"), (1, "b")}
    assert world.made == [(0, "a"), (0, "b"), (1, "a"), (1, "b")] * 3
    assert threads() == before + 1


def test_a_call_that_hangs_costs_its_own_value(world: World, until: Callable[..., None]) -> None:
    """All others are made, in this poll and in the next; it is asked again once it is back."""
    jobs = [world.job(0, "a"), world.job(0, "b", hangs=True), world.job(0, "c"), world.job(1, "b")]
    rest = {(0, "a"), (0, "c"), (1, "b")}
    assert set(world.poll(jobs)) == rest
    assert set(world.poll(jobs)) == rest
    assert world.reported == [(0, "b")]
    assert world.made.count((0, "b")) == 1
    world.gate.set()
    until(lambda: not jobs[1].is_stuck)
    assert set(world.poll(jobs)) == {*rest, (0, "b")}


def test_a_call_that_comes_back_in_the_same_poll_costs_no_other(world: World) -> None:
    """Its worker takes no further call: another one makes them by then."""
    late = Job(0, "late", lambda _values: time.sleep(0.25), timeout_s=0.1)
    short = [Job(1, f"{n}", lambda _values: time.sleep(0.02)) for n in range(20)]
    jobs = [job for one in short for job in (one, world.job(1, f"after {one.kind}"))]
    assert len(world.poll([late, *jobs])) == 20


def test_a_late_answer_belongs_to_no_poll(world: World, until: Callable[..., None]) -> None:
    """What comes back after it was given up does not show up in a later look."""
    jobs = [world.job(0, "a", hangs=True)]
    assert world.poll(jobs) == {}
    world.gate.set()
    until(lambda: not jobs[0].is_stuck)
    assert world.poll([world.job(0, "b")]) == {(0, "b"): 0}


def test_a_call_that_was_back_when_it_was_given_up_is_made_again(world: World) -> None:
    """Its worker has left, and it counts no longer as stuck."""
    job, other = world.job(0, "a"), world.job(0, "b")
    poll = workers._Round([other], {0: {}})  # noqa: SLF001 - a moment too short to meet otherwise
    job.worker = worker = workers._Worker("test")  # noqa: SLF001
    worker.current = job
    assert job.is_stuck
    worker.inbox.put(poll)  # which is another's by now
    for _ in range(200):
        if not job.is_stuck:
            break
        time.sleep(0.01)
    assert not job.is_stuck
    assert not world.made
    assert world.poll([job]) == {(0, "a"): 0}


def test_the_last_call_may_hang(world: World) -> None:
    """Nothing is left to do then: the poll ends with what there is."""
    jobs = [world.job(0, "a"), world.job(0, "b", hangs=True)]
    for _ in range(2):
        assert world.poll(jobs) == {(0, "a"): 0}


def test_an_owner_that_hangs_in_three_calls_is_left_alone(world: World) -> None:
    """The other owners lose nothing, and only three threads are lost however often one looks."""
    jobs = [world.job(0, kind, hangs=True) for kind in "abcdefgh"] + [world.job(1, "a")]
    before = threads()
    for _ in range(4):
        assert world.poll(jobs) == {(1, "a"): 1}
    assert world.reported == [(0, "a"), (0, "b"), (0, "c")]
    assert threads() <= before + 4


def test_a_call_known_to_hang_gets_little_time_of_the_others(world: World) -> None:
    """When one GPU hangs in a call, the same call of seven more is not waited for as long."""
    jobs = [world.job(owner, "a", hangs=True) for owner in range(8)]
    for job in jobs:
        job.timeout_s = 0.5
    began_s = time.monotonic()
    assert world.poll(jobs) == {}
    assert time.monotonic() - began_s < 3.0  # and not 4
    assert len(world.reported) == 8


def test_a_poll_has_a_limit(world: World) -> None:
    """What was not asked by then is left out; what was read stays."""
    jobs = [world.job(0, "a"), world.job(0, "b", hangs=True), world.job(0, "c")]
    jobs[1].timeout_s = 60
    assert world.poll(jobs, limit_s=0.2) == {(0, "a"): 0}
    assert world.reported == [(0, "b")]


def test_the_end_cuts_a_poll_short(world: World) -> None:
    """Once it is time to stop, a call that hangs holds nothing up for long."""
    job = world.job(0, "a", hangs=True)
    job.timeout_s = 60
    world.never.reason = Reason.TERMINATED
    began_s = time.monotonic()
    assert world.poll([job], limit_s=60) == {}
    assert time.monotonic() - began_s < 10


def test_a_call_may_say_that_nothing_more_is_to_be_had(world: World) -> None:
    """The rest of its owner is skipped in this poll, the others are asked."""
    lost = Job(0, "lost", lambda _values: True)
    assert set(world.poll([lost, world.job(0, "a"), world.job(1, "a")])) == {(1, "a")}
    assert set(world.poll([world.job(0, "a")])) == {(0, "a")}


def test_a_call_that_raises_leaves_no_value(world: World) -> None:
    """The thread lives on."""

    def broken(_values: Values) -> None:
        raise RuntimeError("boom")

    assert set(world.poll([Job(0, "x", broken), world.job(0, "a")])) == {(0, "a")}


def test_all_that_hang_cost_nothing_more(world: World) -> None:
    """Once every call is stuck, a poll is over at once."""
    jobs = [world.job(0, "a", hangs=True)]
    world.poll(jobs)
    began_s = time.monotonic()
    world.poll(jobs)
    assert time.monotonic() - began_s < 1

"""A supervisor of thousands of simulated ranks: what each phase of their job costs is bounded."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from benchmarks.simulation.__main__ import render
from benchmarks.simulation.job import Simulated, simulate
from benchmarks.simulation.links import bad_nodes
from benchmarks.simulation.srun import FAILED_CODE, LOG_LINE, failing_rank
from rundir import codes

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, MANY, ALL = 16, 64, 512
NUM_LOCAL = 8
REQUESTS = {
    "preflight, start": {"scontrol": 3, "srun": 2},
    "training": {},
    "all nodes quiet": {"scontrol": 1},
    "failure": {},
    "restart": {"srun": 1},
    "requeue": {"scontrol": 2},
    "preflight again, start again": {"scontrol": 3, "srun": 2},
    "end": {},
}
"""Of the controller, whatever the number of nodes."""
NUM_CHECKED = 3
"""Messages of a node in the preflight: two parts, and the end."""
MESSAGES = {"start": 2, "restart": 2, "requeue": 1, "start again": 2, "end": 1}
"""A rank's, but for the failure's: half of the ranks report twice there."""
FILES = {"start": 4, "restart": 8, "requeue": 12, "start again": 4, "end": 12}
"""Different ones at most, whatever the number of nodes."""


@pytest.fixture(scope="module")
def jobs() -> dict[int, Simulated]:
    """One of few nodes and one of many, at the same time: most of it is waiting."""
    sizes = (FEW, MANY)
    with ThreadPoolExecutor() as pool:
        return dict(
            zip(sizes, pool.map(lambda size: simulate(size, NUM_LOCAL), sizes), strict=True)
        )


def check_outcome(job: Simulated, num_nodes: int) -> None:
    """Check what became of the job: nothing lost, nothing twice, the right one blamed."""
    num_ranks = num_nodes * NUM_LOCAL
    failed = failing_rank(num_ranks)
    assert job.codes == [codes.STOPPED, codes.FINISHED]
    for attempt in (1, 2, 3):
        of = [event for event in job.events if event["attempt"] == attempt]
        for name in ("rank_up", "first_step", "rank_end"):
            assert sum(event["event"] == name for event in of) == num_ranks
    (first,) = (event for event in job.events if event["event"] == "first_failure")
    node = f"sim{failed // NUM_LOCAL:04}"
    assert (first["rank"], first["node"], first["code"]) == (failed, node, FAILED_CODE)
    assert f"rank {failed} on {node} " in job.words
    assert job.output.count(LOG_LINE) == 3 * num_ranks
    decisions = [event["decision"] for event in job.events if event["event"] == "decision"]
    assert decisions == ["restart", "requeue", "finish"]


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [FEW, MANY])
def test_the_life_of_a_job(jobs: dict[int, Simulated], num_nodes: int) -> None:
    """A failure in the middle, which half of the ranks follow, a restart, a requeue and an end."""
    check_outcome(jobs[num_nodes], num_nodes)


def check_requests(job: Simulated) -> None:
    """Check them, and that a phase whose end may fall into the next has its sum right."""
    asked = {name: Counter(phase.requests) for name, phase in job.phases.items()}
    for names, requests in REQUESTS.items():
        several = names.split(", ")
        if several[0] in asked:
            assert sum((asked[name] for name in several), Counter()) == requests, names


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [FEW, MANY])
def test_requests_do_not_grow_with_the_nodes(jobs: dict[int, Simulated], num_nodes: int) -> None:
    """Nor where all nodes are quiet at once, as when their file system stalls."""
    check_requests(jobs[num_nodes])


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [FEW, MANY])
def test_three_bad_nodes_are_found(jobs: dict[int, Simulated], num_nodes: int) -> None:
    """In two rounds, though two are measured with each other; rank 0 serves six values a node."""
    job, bad = jobs[num_nodes], bad_nodes(num_nodes)
    assert job.bad_nodes == [f"sim{number:04}" for number in bad]
    num_rounds, num_pairs, num_store_calls = job.links
    assert num_rounds == 2
    assert num_pairs <= num_nodes / 2 + 2 * len(bad)
    num_told = num_rounds + 1  # the last time: that there is nothing to measure
    assert num_store_calls == (3 + num_told) * num_nodes + 2 * num_pairs + num_told
    for name in ("preflight", "preflight again"):
        assert job.phases[name].num_messages == NUM_CHECKED * num_nodes
        assert job.phases[name].num_files <= num_nodes + 24


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [FEW, MANY])
def test_messages_and_files(jobs: dict[int, Simulated], num_nodes: int) -> None:
    """A file a node is touched where nodes keep their reports or are looked at; none a rank."""
    job, num_ranks = jobs[num_nodes], num_nodes * NUM_LOCAL
    phases = job.phases
    for name, num in MESSAGES.items():
        assert phases[name].num_messages == num * num_ranks
    num_failures = sum(event["event"] == "failure" for event in job.events)
    assert phases["failure"].num_messages == num_ranks + num_failures
    for name, most in FILES.items():
        assert phases[name].num_files <= most
    assert phases["training"].num_files <= num_nodes + 1
    assert phases["all nodes quiet"].num_files <= num_nodes + 2
    assert phases["failure"].num_files <= 2 * num_nodes + 12


@pytest.mark.slow
def test_time_and_memory(jobs: dict[int, Simulated], patience: Callable[[float], float]) -> None:
    """512 ranks cost the supervisor less than a second of CPU a phase, and 40 MiB."""
    for phase in jobs[MANY].phases.values():
        assert phase.cpu_s < patience(1), phase
        assert phase.peak_mib < 40, phase
        assert phase.compose_cpu_s < patience(2), phase
        assert phase.compose_mib < 60, phase


@pytest.mark.slow
def test_512_nodes(patience: Callable[[float], float]) -> None:
    """4,096 ranks: less than 10 s of CPU in all and 200 MiB, and no more requests."""
    job = simulate(ALL, NUM_LOCAL, is_idle=False)
    check_outcome(job, ALL)
    phases = job.phases
    assert sum(phase.cpu_s for phase in phases.values()) < patience(10)
    assert max(phase.peak_mib for phase in phases.values()) < 200
    check_requests(job)


@pytest.mark.slow
def test_the_page(jobs: dict[int, Simulated]) -> None:
    """A table a size, a row a phase."""
    sizes = {f"{size} nodes": job for size, job in jobs.items()}
    text = render(sizes, "a machine", 0.0)
    assert text.count("| all nodes quiet |") == len(jobs)
    assert "| 16 nodes | 2 | 12 | " in text

"""Other people's frameworks on two nodes of two ranks: one task a rank, or one task a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.examples.conftest import FEW, FOLDERS, ON_CPUS, laptop_lines
from tests.thorough import parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.examples.conftest import Example

STEPS = 5
"""So many have one checkpoint."""
REQUEUED = ("tasks", "lightning")
KILLED = ("a task a node", "jax")
"""What has a test of its own; that each framework bears a kill test_in_place.py shows."""
CASES = [
    ("tasks", "megatron", f"env TP=2 PP=2 {ON_CPUS}"),
    ("a task a node", "megatron", f"env PP=2 {ON_CPUS}"),
] + [
    (layout, folder, laptop_lines(folder)[0])
    for folder in FOLDERS
    for layout in ("tasks", "a task a node")
    if (layout, folder) not in (REQUEUED, KILLED)
]
LEFT_FOLDERS = {
    ("tasks", "accelerate"),
    ("tasks", "transformers"),
    ("a task a node", "deepspeed"),
    ("a task a node", "megatron"),
}
"""These read torchrun's variables, whoever set them: one of two layouts shows it. Lightning and JAX
look for Slurm's, too. Of Megatron's part for a GPU test_in_place.py shows the pipeline."""
LEFT = [case for case in CASES if case[:2] in LEFT_FOLDERS or case == CASES[0]]

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.mark.parametrize(
    ("example", "folder", "command"), parameters(CASES, LEFT), indirect=["example"]
)
def test_it_trains_as_one_world(
    example: Callable[[str], Example], folder: str, command: str
) -> None:
    """The first line of its page: four ranks on two nodes train to the end, with one rank 0."""
    it = example(folder)
    run = it.start(command, steps=STEPS)
    assert run.end(timeout_s=240) == ("COMPLETED", 0, 0), run.log
    assert {(up["rank"], up["node"]) for up in run.events("rank_up")} == {
        (0, "node1"), (1, "node1"), (2, "node2"), (3, "node2")
    }  # fmt: skip
    assert it.last("finished at", 1) == STEPS
    logs = [path.read_text() for path in run.run_dir.glob("logs/rank-*.log")]
    assert sum("finished at step" in log for log in logs) == 1  # ranks 1 to 3 know of rank 0
    assert run.all_gone()


@pytest.mark.parametrize(("example", "folder"), [KILLED], indirect=["example"])
def test_torchrun_ranks_start_again(example: Callable[[str], Example], folder: str) -> None:
    """A rank that torchrun started on the other node is killed: all four go on."""
    it = example(folder)
    it.start(laptop_lines(folder)[0])
    it.goes_on_after_a_kill()


@pytest.mark.parametrize(("example", "folder"), [REQUEUED], indirect=["example"])
def test_it_is_requeued_before_the_time_limit(
    example: Callable[[str], Example], folder: str
) -> None:
    """On SIGUSR1 Lightning's ranks save after one step and end with 75; the next start goes on."""
    it = example(folder)
    run = it.start(laptop_lines(folder)[0])
    run.wait_for_word("saved step ")
    run.cluster.run(["scancel", "--batch", "--signal=USR1", str(run.id)])
    run.wait_for("end")
    stopped = it.last("saved", 1)
    it.leave(stopped + FEW)
    assert run.end(timeout_s=240) == ("COMPLETED", 0, 0), run.log
    first, second = it.record()["attempts"]
    assert (first["job_id"], second["job_id"]) == (str(run.id),) * 2
    assert (first["code"], first["decision"]["decision"]) == (75, "requeue")
    assert (second["code"], second["restart_count"]) == (0, 1)
    assert it.last("resumed at", 2) == stopped
    assert it.last("finished at", 2) == stopped + FEW
    assert run.all_gone()

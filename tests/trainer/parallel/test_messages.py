"""What ranks send each other in a step, counted in the trace that the trainer itself writes."""

import json
from collections import Counter

import pytest

from tests.trainer.parallel.test_layouts import SHAPE, Server, server

__all__ = ["server"]  # a fixture

pytestmark = pytest.mark.slow

NUM_LAYERS = SHAPE["num_hidden_layers"]


def messages_of(server: Server, strategy: str, num_microbatches: int) -> Counter[str]:
    """Return the messages of a step of a strategy."""
    size = 4 // num_microbatches
    options = f"--strategy {strategy} --micro-batch-size {size}"
    return messages_with(server, options, f"{strategy}-{num_microbatches}")


def messages_with(server: Server, options: str, out: str) -> Counter[str]:
    """Return the collectives of the second step of 2 ranks, by torch's names, on rank 0."""
    codes, run, output = server.train(2, f"{options} --max-steps 2 --profile-steps 2:2", out)
    assert codes == [0, 0], output
    events = json.loads((run.path / "debug/trace-rank-0.json").read_text())["traceEvents"]
    names = [event.get("name", "") for event in events]
    return Counter(name for name in names if name.startswith("c10d::"))


@pytest.mark.parametrize("num_microbatches", [1, 4])
def test_ddp_reduces_gradients_once_a_step(server: Server, num_microbatches: int) -> None:
    """All gradients fit one bucket: one message, however many microbatches there are."""
    assert messages_of(server, "ddp", num_microbatches) == {"c10d::allreduce_": 1}


def test_targets_of_unknown_number_are_counted_with_one_message_a_step(server: Server) -> None:
    """Beside that of the gradients."""
    counted = "--micro-batch-size 1 --workload tests.trainer.counted:Counted"
    assert messages_with(server, counted, "counted") == {"c10d::allreduce_": 2}


@pytest.mark.parametrize("num_microbatches", [1, 4])
def test_fsdp_reduces_gradients_once_a_step(server: Server, num_microbatches: int) -> None:
    """One message a block, and one for the rest; parameters are gathered for each microbatch.

    Blocks for the forward and again for the backward, the rest once. Of shards the ranks sum up the
    norm, which shows, too, whether all gradients are finite.
    """
    assert messages_of(server, "fsdp", num_microbatches) == {
        "c10d::_reduce_scatter_base_": NUM_LAYERS + 1,
        "c10d::allreduce_": 1,
        "c10d::_allgather_base_": num_microbatches * (2 * NUM_LAYERS + 1),
    }


@pytest.mark.parametrize(("how", "num_forwards"), [("full", 2), ("selective", 1)])
def test_a_ring_goes_around_once_for_each_forward(
    server: Server, how: str, num_forwards: int
) -> None:
    """Selective recomputation keeps what attention gave, so that nothing is sent for it again.

    A forward passes keys on to all others; so does a backward, and its sums come home, too.
    """
    options = f"--cp 2 --activation-checkpointing {how} --micro-batch-size 8"
    messages = messages_with(server, options, f"ring-{how}")
    assert messages["c10d::alltoall_base_"] == NUM_LAYERS * (num_forwards + 1 + 2)

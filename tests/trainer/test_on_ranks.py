"""What several ranks show together: memory, the scaler of fp16, and traces."""

import pytest

from tests.trainer.conftest import RunDir
from tests.trainer.test_layouts import SHAPE, Server, server  # noqa: F401 -- a fixture

pytestmark = pytest.mark.slow

KINDS = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")


def memory_of(run: RunDir, what: str) -> dict[str, int]:
    """What a `memory` event tells of the largest rank."""
    (event,) = [event for event in run.events("memory") if event["what"] == what]
    return {key: event[key] for key in (*KINDS, "activations_bytes")}


def shards(count: int) -> int:
    """Bytes of the largest of `count` shares of SHAPE's parameters, split by rows."""
    dim, ffn, vocab = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["vocab_size"]
    kv_dim = dim * SHAPE["num_key_value_heads"] // SHAPE["num_attention_heads"]
    layer = [(dim, dim), (kv_dim, dim), (kv_dim, dim), (dim, dim), (ffn, dim), (ffn, dim)]
    layer += [(dim, ffn), (dim, 1), (dim, 1)]
    matrices = SHAPE["num_hidden_layers"] * layer + [(vocab, dim), (vocab, dim), (dim, 1)]
    return sum(4 * -(-rows // count) * columns for rows, columns in matrices)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fsdp_memory_falls_as_the_arithmetic_says(server: Server, count: int) -> None:  # noqa: F811
    """A rank's parameters, gradients and moments: all of it divided by the ranks."""
    options = "--max-steps 2 --strategy fsdp --micro-batch-size 1 --optimizer adamw"
    codes, run, said = server.train(count, options, f"memory-{count}")
    assert codes == [0] * count, said
    measured = memory_of(run, "measured")
    num_tensors = 21
    assert measured["parameters_bytes"] == shards(count)
    assert measured["gradients_bytes"] == shards(count)
    assert measured["optimizer_bytes"] == 2 * shards(count) + 4 * num_tensors  # counts of steps
    assert shards(4) * 4 == shards(1)  # all of its dimensions divide
    expected = memory_of(run, "expected")
    assert expected["parameters_bytes"] == expected["gradients_bytes"] == shards(count)
    assert expected["optimizer_bytes"] == 2 * shards(count)
    assert measured["activations_bytes"] == pytest.approx(expected["activations_bytes"], rel=0.01)

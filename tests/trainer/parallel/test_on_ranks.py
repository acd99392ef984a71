"""What several ranks show together: memory, the scaler of fp16, and traces."""

import json

import pytest

from tests.trainer.conftest import RunDir
from tests.trainer.parallel.test_layouts import (
    SHAPE,
    Server,
    server,  # noqa: F401 -- a fixture
    tensors_of,
)
from trainer.checkpoint.lookup import find
from trainer.parallel.plan import ForwardPlan
from trainer.workloads.llama_hf import read_shape
from trainer.workloads.llama_memory import activation_bytes

pytestmark = pytest.mark.slow

KINDS = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")


def memory_of(run: RunDir, what: str) -> dict[str, int]:
    """What a `memory` event reports of the largest rank."""
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
    codes, run, output = server.train(count, options, f"memory-{count}")
    assert codes == [0] * count, output
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


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (2, "--micro-batch-size 2"),
        (4, "--strategy fsdp --tp 2 --sequence-parallel --cpu-offload"),
    ],
    ids=["ddp", "fsdp x tp with offload"],
)
def test_what_is_expected_is_what_is_measured(
    server: Server,  # noqa: F811
    count: int,
    options: str,
) -> None:
    """With gradients as views of buckets, and with matrices that are split twice."""
    codes, run, output = server.train(count, f"--max-steps 1 {options}", f"both-{count}")
    assert codes == [0] * count, output
    expected, measured = memory_of(run, "expected"), memory_of(run, "measured")
    assert measured == pytest.approx(expected, rel=1e-3)
    assert 0 < expected["parameters_bytes"] < (shards(1) + 1) // (count // 2)
    (event,) = (event for event in run.events("memory") if event["what"] == "expected")
    assert event["on_host"] == ("offload" in options)
    assert output.count("trainer: memory of a rank, expected") == 1
    assert ("on the host" in output) == event["on_host"]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_pipeline_keeps_what_is_under_way(
    server: Server,  # noqa: F811
    schedule: str,
) -> None:
    """Besides, torch checks the shapes in the first step by one pass more of the first stage."""
    options = f"--max-steps 1 --pp 2 --micro-batch-size 2 --pp-schedule {schedule}"
    codes, run, output = server.train(2, options, f"pipe-{schedule}")
    assert codes == [0] * 2, output
    expected = memory_of(run, "expected")["activations_bytes"]
    measured = memory_of(run, "measured")["activations_bytes"]
    a_pass = activation_bytes(
        read_shape(server.folder / "model"),
        SHAPE["max_position_embeddings"],
        ForwardPlan(micro_batch_size=2, num_layers=SHAPE["num_hidden_layers"] // 2, num_heads=0),
    )
    num_passes = 2 if schedule == "1f1b" else 4
    assert expected >= num_passes * a_pass
    assert 0.99 * expected < measured < expected + a_pass


def scaler_of(run: RunDir) -> dict[str, float]:
    """The gradient scaler in the run's last checkpoint."""
    state = json.loads((find(run.path) / "state.json").read_text())
    scaler: dict[str, float] = state["position"]["scaler"]
    return scaler


def overflow(
    server: Server,  # noqa: F811
    count: int,
    layout: str,
    *,
    is_clipped: bool,
) -> RunDir:
    """Six steps in fp16 of which one overflows."""
    words = "--workload tests.trainer.overflowing:Overflowing --precision fp16 --max-steps 6"
    if not is_clipped:
        words += " --optimizer adamw --lr 0.001"
    out = f"overflow-{count}-{is_clipped}{layout}".replace(" ", "")
    codes, run, output = server.train(count, f"{words} {layout}", out, clipped=is_clipped)
    assert codes == [0] * count, output
    return run


@pytest.fixture(scope="module")
def overflow_alone(server: Server) -> dict[bool, RunDir]:  # noqa: F811
    """The same on one process, by whether it is clipped."""
    return {
        is_clipped: overflow(server, 1, "", is_clipped=is_clipped) for is_clipped in (True, False)
    }


@pytest.mark.parametrize(
    ("layout", "is_clipped"),
    [
        ("--strategy fsdp", True),
        ("--strategy fsdp", False),
        ("--tp 2 --strategy fsdp", True),
        ("--pp 2 --pp-schedule gpipe --dp-shard 2", True),
        ("--pp 2 --pp-schedule gpipe --tp 2", False),
    ],
)
def test_an_overflow_on_one_rank_is_everyones(
    server: Server,  # noqa: F811
    overflow_alone: dict[bool, RunDir],
    layout: str,
    *,
    is_clipped: bool,
) -> None:
    """One number of one rank's shard overflows: all leave the step out and scale by half."""
    plain = overflow_alone[is_clipped]
    sharded = overflow(server, 4, layout, is_clipped=is_clipped)
    assert scaler_of(plain) == scaler_of(sharded)
    assert scaler_of(sharded)["scale"] == 2**15
    assert scaler_of(sharded)["_growth_tracker"] == 3
    assert sharded.losses() == pytest.approx(plain.losses(), rel=1e-3)
    ours, theirs = tensors_of(sharded), tensors_of(plain)
    for name, tensor in theirs.items():
        if name.endswith("/step"):
            assert float(ours[name]) == float(tensor) == 5
        elif name.startswith("model/"):
            assert float((ours[name] - tensor).norm() / tensor.norm()) < 1e-3, name


def test_chosen_ranks_leave_traces_of_chosen_steps(server: Server) -> None:  # noqa: F811
    """A file for each of them, with a bar for each of the steps, and what they did in it."""
    options = "--max-steps 4 --strategy fsdp --profile-steps 2:3 --profile-ranks 0,2"
    codes, run, output = server.train(3, f"{options} --global-batch-size 6", "traced")
    assert codes == [0] * 3, output
    traces = sorted((run.path / "debug").iterdir())
    assert [path.name for path in traces] == ["trace-rank-0.json", "trace-rank-2.json"]
    for path in traces:
        names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
        assert {name for name in names if str(name).startswith("step ")} == {"step 2", "step 3"}
        assert "aten::mm" in names


def test_a_snapshot_is_refused_where_no_gpu_is(server: Server) -> None:  # noqa: F811
    """By all ranks, before anything is written."""
    options = "--profile-steps 1:2 --memory-snapshot --max-steps 2"
    codes, run, output = server.train(2, options, "snapshot")
    assert codes == [64, 64]
    assert output.startswith("trainer: --memory-snapshot must have a GPU")
    assert not run.path.exists()

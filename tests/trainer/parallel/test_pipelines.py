"""Every pipeline trains, and measures, the model that one plain process does."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.thorough import parameters
from tests.trainer.conftest import RunDir
from tests.trainer.parallel.test_layouts import SHAPE, Server, serve, tensors_of, worst
from trainer import inspect, tokenize
from trainer.checkpoint.lookup import find
from trainer.command import run as run_command

pytestmark = pytest.mark.slow

PIPELINES = {
    "gpipe": "--pp 4 --pp-schedule gpipe --micro-batch-size 2",
    "1f1b": "--pp 4 --micro-batch-size 1 --activation-checkpointing full",
    "interleaved": "--pp 2 --dp-shard 2 --pp-schedule interleaved --micro-batch-size 1",
    "one microbatch": "--pp 4 --pp-schedule gpipe",
    "pp x ddp": "--strategy pp --micro-batch-size 1 --activation-checkpointing full",
    "pp x fsdp": "--pp 2 --strategy fsdp --micro-batch-size 2 --no-reshard-after-forward",
    "pp x tp": "--pp 2 --tp 2 --micro-batch-size 4",
    "pp, counted": "--pp 4 --micro-batch-size 2 --workload tests.trainer.counted:Counted",
    "pp x cp": "--pp 2 --cp 2 --micro-batch-size 4 --activation-checkpointing full",
    "pp x cp, interleaved": "--pp 2 --cp 2 --pp-schedule interleaved --micro-batch-size 2",
    "pp x tp with sp": "--strategy 3d --sequence-parallel --micro-batch-size 4",
}
SHOWN_BY_OTHERS = ("one microbatch", "pp x fsdp", "pp x tp", "pp x cp", "pp x tp with sp")
TRAIN = " ".join(str(i * i) for i in range(500))  # 21 steps
HELD_OUT = " ".join(str(i**3) for i in range(24))  # 7: neither ranks nor batches share it evenly


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """One for all tests here, with a model of four layers, and a text."""
    folder = tmp_path_factory.mktemp("pipelines")
    (folder / "data").mkdir()
    for name, text in (("train", TRAIN), ("val", HELD_OUT)):
        (folder / name).write_text(text)
        target = folder / f"data/{name}.tokens"
        assert run_command(tokenize.main, [str(folder / name), "--out", str(target)]) == 0
    return serve(folder, SHAPE | {"num_hidden_layers": 4, "vocab_size": 256})


def train(server: Server, count: int, options: str, out: str) -> RunDir:
    """Train on the text, on `count` ranks."""
    data = f"--mock-tokens 0 --data-dir {server.folder / 'data'}"
    codes, run, output = server.train(count, f"{data} {options}", out)
    assert codes == [0] * count, output
    assert run.summary()["outcome"] == "finished"
    return run


@pytest.fixture(scope="module")
def plain(server: Server) -> RunDir:
    """20 steps of one process."""
    return train(server, 1, "--max-steps 20 --val-every 6", "plain")


def check(run: RunDir, plain: RunDir) -> None:
    """Losses, gradient norms, weights and moments, and the loss on held-out text."""
    assert max(line["grad_norm"] for line in run.metrics("grad_norm")) > 0.5  # it was clipped
    assert max(worst(run, plain).values()) < 1e-4, worst(run, plain)
    expected = {line["step"]: line["test_loss"] for line in plain.metrics("test_loss")}
    reported = {line["step"]: line["test_loss"] for line in run.metrics("test_loss")}
    assert 20 in reported
    assert reported == pytest.approx({step: expected[step] for step in reported}, rel=1e-5)


@pytest.mark.parametrize("name", parameters(PIPELINES, SHOWN_BY_OTHERS))
def test_a_pipeline_is_the_plain_run(server: Server, plain: RunDir, name: str) -> None:
    """Over 20 steps, with clipping."""
    out = name.replace(" ", "-")
    check(train(server, 4, f"--max-steps 20 {PIPELINES[name]}", out), plain)


def test_all_axes_that_split_a_sequence_at_once(server: Server, plain: RunDir) -> None:
    """What a stage hands on is then a part, along tp, of a part, along cp, of the positions."""
    options = "--max-steps 20 --pp 2 --cp 2 --tp 2 --sequence-parallel --micro-batch-size 4"
    check(train(server, 8, options, "eight"), plain)


def test_a_checkpoint_is_of_every_pipeline(
    server: Server, plain: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 stages of 2 shards, then 1 process, then 4 stages on 2 ranks: one run, moments included."""
    parts = [
        (4, "--max-steps 6 --pp 2 --dp-shard 2 --micro-batch-size 2 --checkpoint-mode async"),
        (1, "--max-steps 12"),
        (2, "--max-steps 20 --pp 2 --pp-schedule interleaved --micro-batch-size 2"),
    ]
    for count, options in parts:
        run = train(server, count, f"--val-every 6 {options}", "resharded")
        assert run_command(inspect.main, [str(find(run.path))]) == 0
        assert "verified" in capsys.readouterr().out
    assert [event["step"] for event in run.events("resume")] == [0, 6, 12]
    check(run, plain)


def test_what_is_not_finite_is_left_out_by_all_stages(server: Server, tmp_path: Path) -> None:
    """The last stage sees the loss; and a watcher sees all ranks meet equally often."""
    words = "--max-steps 8 --workload tests.trainer.poisoned:Poisoned --on-nan skip"
    plain = train(server, 1, words, "poisoned")
    watched = replace(server, env=server.env | {"DDP_BEAT_DIR": str(tmp_path)})
    options = f"{words} --pp 2 --dp-replicate 2 --micro-batch-size 1"
    run = train(watched, 4, options, "poisoned-pp")
    reported, expected = ([e["steps"] for e in r.events("non_finite")] for r in (run, plain))
    assert reported == expected
    assert len(reported) > 1
    assert {rank for e in run.events("non_finite") for rank in e["ranks"]} <= {2, 3}
    ours, theirs = tensors_of(run), tensors_of(plain)
    assert max(float((ours[n] - theirs[n]).norm() / theirs[n].norm()) for n in theirs) < 1e-4
    heartbeats = [
        struct.unpack("<8s7q16x", (tmp_path / f"rank-{r}").read_bytes()) for r in range(4)
    ]
    assert len({meetings for *_, meetings, _ in heartbeats}) == 1
    assert all(count > 8 * 4 * 2 for *_, count, _, _ in heartbeats)  # each forward, and its end


def test_a_step_reduces_gradients_once(server: Server) -> None:
    """Of 4 microbatches: once for each of the first stage's 3 layers, and for what is left."""
    options = "--pp 2 --strategy fsdp --micro-batch-size 1 --no-reshard-after-forward"
    run = train(server, 4, f"--max-steps 3 --profile-steps 3:3 {options}", "traced")
    events = json.loads((run.path / "debug/trace-rank-0.json").read_text())["traceEvents"]
    names = [event.get("name") for event in events]
    assert names.count("c10d::_reduce_scatter_base_") == 4
    assert names.count("c10d::_allgather_base_") == 4
    assert names.count("gloo:send") == names.count("gloo:recv") == 4


def test_stages_of_unequal_numbers_of_layers(server: Server) -> None:
    """lm's own model, of 5 layers, in 2 and in 4 stages: the losses of one process."""
    losses = []
    for count, options in ((1, ""), (2, "--strategy pp"), (2, "--pp 2 --pp-schedule interleaved")):
        words = f"--workload lm --model toy --max-steps 4 --micro-batch-size 2 {options}"
        codes, run, output = server.train(count, words, f"unequal-{len(losses)}")
        assert codes == [0] * count, output
        losses.append(run.losses())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)

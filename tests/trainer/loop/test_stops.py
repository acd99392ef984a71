"""Requests to stop at awkward moments, and with little time left."""

import json
import math
import os
import re
import signal
import struct
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist

from tests.trainer.ports import free_port
from trainer.checkpoint import saving
from trainer.loop.stop import StopRequest
from trainer.telemetry.heartbeat import FORWARD

pytestmark = pytest.mark.slow

OPTIONS = ("--global-batch-size", "8", "--log-every", "1", "--schedule", "constant")
Start = Callable[..., Any]

_WORKLOADS = """
    import os, pathlib, time
    import torch
    import trainer.checkpoint.saving
    from trainer.workloads.base import TensorData, Workload

    class Line(Workload):
        '''An odd number of held-out samples: one of two ranks has a batch more than the other.'''
        def build_model(self):
            return torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.2),
                                       torch.nn.Linear(4, 1))
        def train_data(self):
            x = torch.linspace(-1, 1, 160).view(-1, 1)
            return TensorData(inputs=x, targets=2 * x[:, 0])
        def test_data(self):
            x = torch.linspace(-1, 1, 3001).view(-1, 1)
            return TensorData(inputs=x, targets=2 * x[:, 0])
        def loss(self, outputs, targets): return (outputs[:, 0] - targets).square().mean()
        def num_correct(self, outputs, targets):
            pathlib.Path("validating").touch()
            time.sleep(float(os.environ.get("SLOW_BATCH_S", "0")))
            return ((outputs[:, 0] - targets).abs() < 0.1).sum()

    class Endless(Line):
        '''150 steps an epoch, of over 10 ms each.'''
        default_epochs = 10**6
        def train_data(self):
            x = torch.linspace(-1, 1, 1200).view(-1, 1)
            return TensorData(inputs=x, targets=2 * x[:, 0])
        def test_data(self): return None
        def loss(self, outputs, targets):
            time.sleep(0.01)
            return super().loss(outputs, targets)

    def slow(*arguments, write=trainer.checkpoint.saving._write_tensors):
        pathlib.Path("saving").touch()
        time.sleep(float(os.environ.get("SLOW_SAVE_S", "0")))
        return write(*arguments)

    trainer.checkpoint.saving._write_tensors = slow
"""


@pytest.fixture
def workload(tmp_path: Path) -> Callable[[str], str]:
    """Return the name of one of the workloads above; ranks run where its module lies."""
    (tmp_path / "own_stops.py").write_text(textwrap.dedent(_WORKLOADS))
    return lambda name: f"own_stops:{name}"


def wait_for(path: Path, timeout_s: float = 90) -> None:
    """Wait until a file is there."""
    deadline_s = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline_s, f"no {path}"
        time.sleep(0.02)


def numbers(run: Any) -> list[tuple[Any, ...]]:
    """All that metrics.jsonl says of losses and accuracies, in its order."""
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    keys = ("step", "epoch", "loss", "lr", "test_loss", "test_accuracy")
    return [tuple(line.get(key) for key in keys) for line in lines]


def test_a_validation_is_broken_off_and_made_up(
    start_ranks: Start,
    workload: Callable[[str], str],
    tmp_path: Path,
    patience: Callable[[float], float],
) -> None:
    """One rank is asked, both end long before it is through; the numbers are an unbroken run's."""
    options = ("--workload", workload("Line"), *OPTIONS, "--epochs", "2", "--log-every", "7")
    whole = start_ranks(2, *options, out="whole")
    assert whole.wait() == [0, 0]
    (tmp_path / "validating").unlink()
    parts = start_ranks(2, *options, out="parts", env={"SLOW_BATCH_S": "3"})
    wait_for(tmp_path / "validating")
    began_s = time.monotonic()
    parts.processes[1].send_signal(signal.SIGUSR1)
    assert parts.wait() == [75, 75]
    assert time.monotonic() - began_s < patience(6 * 3)
    assert not parts.run.metrics("test_loss")
    assert parts.run.summary()["steps"] == 20
    again = start_ranks(2, *options, out="parts")
    assert again.wait() == [0, 0]
    assert numbers(parts.run) == numbers(whole.run)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_request_during_a_compile_waits_for_the_first_step(
    start_ranks: Start, workload: Callable[[str], str], tmp_path: Path, world_size: int
) -> None:
    """It is acted upon when there is a step to end, also when only the last rank receives it."""
    env = {"DDP_BEAT_DIR": str(tmp_path)}
    options = ("--workload", workload("Endless"), *OPTIONS, "--compile")
    started = start_ranks(world_size, *options, env=env)
    heartbeat = tmp_path / f"rank-{world_size - 1}"
    wait_for(heartbeat)
    deadline_s = time.monotonic() + 90
    while struct.unpack_from("<q", heartbeat.read_bytes(), 32) != (FORWARD,):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    started.processes[-1].send_signal(signal.SIGTERM)
    assert started.wait(200) == [75] * world_size
    steps = started.run.summary()["steps"]
    # several ranks ask each other now and then: at most every second, of steps of over 10 ms
    assert steps == 1 if world_size == 1 else 1 <= steps < 150
    assert started.run.summary()["checkpoint_step"] == steps


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_rank_is_asked_during_a_save(
    start_ranks: Start, workload: Callable[[str], str], tmp_path: Path, mode: str
) -> None:
    """It is not the one that writes: both end on one step, and what was begun is complete."""
    options = ("--workload", workload("Endless"), *OPTIONS, "--checkpoint-every", "5")
    env = {"SLOW_SAVE_S": "1"}
    started = start_ranks(2, *options, "--checkpoint-mode", mode, env=env)
    wait_for(tmp_path / "saving")
    started.processes[1].send_signal(signal.SIGUSR1)
    assert started.wait() == [75, 75]
    assert started.run.summary()["checkpoint_step"] == started.run.summary()["steps"]
    assert "step-5" in started.run.checkpoints()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_request_during_a_save_waits_for_it(
    train: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It is complete when the run ends, and no step is lost."""
    write = saving._write_tensors  # noqa: SLF001 -- to be asked in the middle of it

    def asked(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        write(*arguments)
        monkeypatch.setattr(saving, "_write_tensors", write)

    monkeypatch.setattr(saving, "_write_tensors", asked)
    options = ("--model", "mlp", "--checkpoint-every", "5", "--checkpoint-mode", mode)
    code, run = train(*options)
    assert (code, run.summary()["outcome"]) == (75, "stopped")
    assert run.summary()["checkpoint_step"] == run.summary()["steps"]
    assert "step-5" in run.checkpoints()
    if mode == "sync":
        assert run.summary()["steps"] == 5


def test_what_cannot_be_saved_in_time_is_not_begun(
    start_ranks: Start, workload: Callable[[str], str], patience: Callable[[float], float]
) -> None:
    """The last save shows how long one takes; 75 at once, and the log says what counts."""
    options = ("--workload", workload("Endless"), *OPTIONS, "--checkpoint-mode", "sync")
    env = {"SLOW_SAVE_S": "5", "DDP_GRACE": "5"}
    started = start_ranks(2, *options, env=env)
    started.wait_for_step(152)
    began_s = time.monotonic()
    for process in started.processes:
        process.send_signal(signal.SIGTERM)
    assert started.wait() == [75, 75]
    assert time.monotonic() - began_s < patience(4)
    assert "trainer: no time for a checkpoint: " in started.output[0][1]
    assert re.search(r"s left, the last took \d+\.\d s; step 150 counts", started.output[0][1])
    (failed,) = started.run.events("checkpoint_failed")
    assert failed["reason"] == "too late"
    assert started.run.summary()["checkpoint_step"] == 150
    assert (started.run.path / "checkpoints" / "latest").read_text() == "step-150\n"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_save_that_takes_too_long_is_left_behind(
    start_ranks: Start,
    workload: Callable[[str], str],
    mode: str,
    patience: Callable[[float], float],
) -> None:
    """It was unknown: the first save is under way when the time limit's grace is up."""
    options = ("--workload", workload("Endless"), *OPTIONS, "--checkpoint-mode", mode)
    env = {"SLOW_SAVE_S": "60", "DDP_END_TIME": str(int(time.time()) + 60)}
    started = start_ranks(2, *options, env={**env, "DDP_GRACE": "4"})
    started.wait_for_step(5)
    started.processes[1].send_signal(signal.SIGTERM)
    began_s = time.monotonic()
    assert started.wait() == [75, 75]
    assert 2 < time.monotonic() - began_s < patience(10)
    assert "none was written yet; none counts" in started.output[0][1]
    assert [e["reason"] for e in started.run.events("checkpoint_failed")] == ["too late"]
    assert started.run.events("ledger")
    assert started.run.summary()["outcome"] == "stopped"


def test_a_rank_that_waits_for_a_stopped_one_ends_in_time(
    start_ranks: Start, workload: Callable[[str], str], patience: Callable[[float], float]
) -> None:
    """Its main thread receives nothing in there; its time runs out all the same."""
    options = ("--workload", workload("Endless"), *OPTIONS)
    started = start_ranks(2, *options, env={"DDP_GRACE": "3"})
    started.wait_for_step(5)
    started.processes[1].send_signal(signal.SIGSTOP)
    time.sleep(1)
    began_s = time.monotonic()
    started.processes[0].send_signal(signal.SIGTERM)
    assert started.processes[0].wait(20) == 75
    assert time.monotonic() - began_s < patience(6)
    started.processes[1].kill()
    started.wait()
    assert "no time for a checkpoint" in started.output[0][1]


def test_a_rank_that_waits_for_one_that_does_not_come_ends_in_time(
    start_ranks: Start, workload: Callable[[str], str], patience: Callable[[float], float]
) -> None:
    """Its node's container may have failed; there is nothing to save, whatever the grace."""
    port = free_port()
    own = {"DDP_GRACE": "60", "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    started = start_ranks(1, "--workload", workload("Line"), env=own)
    process = started.processes[0]
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.PrefixStore("trainer/0", store).wait(["place/0"])  # it is there, and waits for rank 1
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert started.wait(60) == [75]
    assert time.monotonic() - began_s < patience(8)
    assert "asked to stop before training began" in started.output[0][1]


def _stop_request(name: str, grace_s: float | None, end_epoch_s: float | None) -> StopRequest:
    stop = StopRequest()
    stop.allow(grace_s=grace_s, end_epoch_s=end_epoch_s, report_shutdown=lambda _left_s: None)
    stop._handle(getattr(signal, f"SIG{name}"), None)  # noqa: SLF001 -- as the interpreter calls it
    return stop


def test_the_time_left_is_the_graces_or_the_time_limits() -> None:
    """Less a margin; unknown is for ever, and a clock that must be wrong says nothing."""
    now_s = time.time()
    assert _stop_request("TERM", 30, now_s + 99).remaining_s == pytest.approx(28, abs=0.5)
    assert _stop_request("INT", 5, None).remaining_s == pytest.approx(4, abs=0.5)
    assert _stop_request("USR1", 30, now_s + 60).remaining_s == pytest.approx(58, abs=0.5)
    assert _stop_request("USR1", 30, None).remaining_s == math.inf
    assert _stop_request("USR1", 30, now_s - 3000).remaining_s == math.inf
    assert _stop_request("TERM", None, None).remaining_s == math.inf
    assert StopRequest().remaining_s == math.inf


def test_the_rank_with_the_least_time_speaks_for_all() -> None:
    """What another has left counts here, too, also for a rank that was not asked."""
    stop = _stop_request("TERM", 30, None)
    stop.limit(3)
    assert stop.remaining_s == pytest.approx(3, abs=0.5)
    unlimited = StopRequest()
    unlimited.limit(3)
    assert unlimited.remaining_s == pytest.approx(3, abs=0.5)

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trainer.distributed.device import lost_gpus
from trainer.distributed.mesh import Mesh, choose_num_threads, open_mesh
from trainer.environment import Ranks
from trainer.errors import RunFailedError, UserError
from trainer.loop.stop import StopConsensus, StopRequest
from trainer.telemetry.heartbeat import Heartbeat


def test_a_gpu_that_cannot_be_used_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line: that of the driver, without torch's advice."""

    def lost(_device: object) -> None:
        raise RuntimeError("CUDA error: devices are busy or unavailable\nFor debugging consider")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lost)
    with pytest.raises(
        RunFailedError, match=r"^GPU 1 of 2 must be usable by rank 3; .*unavailable; look at"
    ):
        open_mesh(Ranks(rank=3, local_rank=1, world_size=4, local_world_size=2), {})


def test_threads_are_the_users_or_a_share_of_the_cpus() -> None:
    """Never none, and nonsense in the variable counts as unset."""
    assert choose_num_threads({"OMP_NUM_THREADS": "7"}, num_cpus=2, local_world_size=2) == 7
    assert choose_num_threads({}, num_cpus=8, local_world_size=3) == 2
    assert choose_num_threads({}, num_cpus=2, local_world_size=4) == 1
    for text in ("x", "1_0", ""):
        env = {"OMP_NUM_THREADS": text}
        assert choose_num_threads(env, num_cpus=4, local_world_size=1) == 4
    assert choose_num_threads({"OMP_NUM_THREADS": "0"}, num_cpus=4, local_world_size=1) == 1


@pytest.mark.parametrize("visible", [None, "", "-1", "NoDevFiles"])
def test_a_rank_without_a_gpu_gets_no_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str | None
) -> None:
    """The CPU is what was asked for then."""
    monkeypatch.setattr("trainer.distributed.device._DEVICES", tmp_path)
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert lost_gpus(env, "13.0") is None


def test_gpus_that_cuda_does_not_see_are_reported_with_a_remedy() -> None:
    """The driver, or a torch that could use none."""
    reported = lost_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, "13.0")
    assert reported == "GPUs were given (CUDA_VISIBLE_DEVICES=0,1), CUDA sees none"
    reported = lost_gpus({"CUDA_VISIBLE_DEVICES": "GPU-5a1"}, None)
    assert reported == (
        "GPUs were given (CUDA_VISIBLE_DEVICES=GPU-5a1), this torch is built without CUDA"
    )


def test_no_rank_trains_for_hours_on_the_cpu_of_a_gpu_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the node has a driver and the job was given GPUs, a run on the CPU is refused."""
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr("trainer.distributed.device._DEVICES", tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "1"}
    with pytest.raises(UserError, match=r"CUDA_VISIBLE_DEVICES=0,1.*is the driver in"):
        open_mesh(Ranks(), env)
    assert open_mesh(Ranks(), env | {"CUDA_VISIBLE_DEVICES": ""}).device.type == "cpu"


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_warns_of_lost_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    """In one line; and the run goes on."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(
        "trainer.distributed.mesh.open_process_group", lambda *_: ("none", ["a", "b"])
    )
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "1"}
    ranks = Ranks(rank=rank, world_size=2, local_rank=rank, local_world_size=2)
    assert open_mesh(ranks, env).device.type == "cpu"
    output = capsys.readouterr().err
    assert output.count("trainer: GPUs were given (CUDA_VISIBLE_DEVICES=0,1)") == (rank == 0)
    assert output.count("\n") == (rank == 0)


def test_a_single_process_needs_no_group() -> None:
    """Its reductions are what it has."""
    mesh = open_mesh(Ranks(), {"OMP_NUM_THREADS": "1"})
    assert not mesh.is_distributed
    assert mesh.sum([1.5, 2]) == [1.5, 2]
    mesh.broadcast([torch.zeros(1)])
    assert mesh.describe().startswith(f"1 rank on {mesh.device.type}, 1 thread each")


class TwoRanks:
    """A mesh of this rank and another, which answers as requested."""

    is_distributed = True

    def __init__(self) -> None:
        self.asked = self.answered = 0
        self.other_stop = 0.0
        self.other_gap = 1e9
        self.other_remaining_s = math.inf

    def max_later(self, values: list[float]) -> Callable[[], list[float]]:
        """Our values and the other rank's, the larger of each."""
        self.asked += 1
        others = [self.other_stop, 0.0, -self.other_gap, -self.other_remaining_s]

        def answer() -> list[float]:
            self.answered += 1
            assert self.answered == self.asked
            return [max(pair) for pair in zip(values, others, strict=True)]

        return answer


def agreement(mesh: object, stop: StopRequest, step_s: float) -> StopConsensus:
    """An agreement whose clock we hold."""
    ticks = iter(range(10**6))
    # The clock moves on by a step each time it is read, once a question and once an answer.
    return StopConsensus(mesh, stop, Heartbeat(), clock=lambda: next(ticks) * step_s)  # type: ignore[arg-type]


def test_alone_a_request_counts_at_once() -> None:
    """Without other ranks there is none to ask."""
    stop = StopRequest()
    mesh = Mesh(ranks=Ranks(), device=torch.device("cpu"), backend="none", num_threads=1)
    alone = StopConsensus(mesh, stop, Heartbeat())
    assert not alone.reached()
    stop.signal_name = "TERM"
    assert alone.reached()


def test_quick_steps_are_not_all_asked_about() -> None:
    """Thousands of steps of no time cost a handful of reductions."""
    mesh = TwoRanks()
    asks = agreement(mesh, StopRequest(), step_s=1e-5)
    assert not any(asks.reached() for _ in range(5000))
    assert 3 <= mesh.asked <= 12


def test_slow_steps_are_asked_about_each_time() -> None:
    """When a step takes longer than the lag, every one is asked about."""
    mesh = TwoRanks()
    asks = agreement(mesh, StopRequest(), step_s=1.0)
    assert not any(asks.reached() for _ in range(20))
    assert mesh.asked == 20


def test_the_slowest_rank_sets_the_pace_and_any_rank_stops_all() -> None:
    """The gap is the least of all ranks' wishes; another rank's request is ours."""
    mesh = TwoRanks()
    mesh.other_gap = 3
    asks = agreement(mesh, StopRequest(), step_s=1e-5)
    assert not any(asks.reached() for _ in range(31))
    assert mesh.asked == 8  # at 1, and then each time three after the answer
    mesh.other_stop = 1.0
    assert [asks.reached() for _ in range(2)] == [False, True]


def test_of_quick_steps_no_rank_waits_for_another() -> None:
    """The answer is taken a step later; and by a rank that begins anew, as it is on its way."""
    mesh = TwoRanks()
    mesh.other_gap = 2
    asks = agreement(mesh, StopRequest(), step_s=1e-5)
    reported = []
    for _ in range(6):
        asks.reached()
        reported.append((mesh.asked, mesh.answered))
    assert reported == [(1, 1), (1, 1), (2, 1), (2, 2), (2, 2), (3, 2)]
    asks.begin()
    assert mesh.answered == 3
    mesh.other_stop = 1.0
    assert asks.reached()

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.conftest import RunDir
from trainer.distributed.device import choose_device, hardware_of, lost_gpus, lost_gpus_error
from trainer.distributed.rendezvous import Place, choose_backend
from trainer.environment import Ranks
from trainer.errors import misfit

TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12080). Please update your GPU "
    "driver by downloading and installing a new version from the URL"
)


def test_a_driver_too_old_for_this_torch_is_the_users(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    train: Callable[..., tuple[int, RunDir]],
) -> None:
    """NVML counts its GPUs all the same; a restart on this node would end like this, too."""

    def refuse(_device: object) -> None:
        raise RuntimeError(TOO_OLD)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    code, run = train("--model", "mlp")
    assert code == 64
    assert not run.path.exists()
    assert capsys.readouterr().err == (
        "trainer: CUDA of this torch must fit the driver and the GPUs of this node; "
        "found a driver for CUDA 12.8, which is too old; "
        "update the driver, or take a torch that is built for it (docs/image.md)\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        "CUDA driver version is insufficient for CUDA runtime version",
        "unsupported display driver / cuda driver combination",
        "no kernel image is available for execution on the device",
        "PTX was compiled with an unsupported toolchain",
    ],
)
def test_what_this_torch_cannot_use_is_reported_wherever_it_turns_up(words: str) -> None:
    """Also as the cause of another error, such as that of the group of ranks."""
    error = torch.AcceleratorError(f"CUDA error: {words}\nCUDA kernel errors might be")
    outer = RuntimeError("nccl between 2 ranks must start")
    outer.__cause__ = error
    reported = misfit(outer)
    assert reported is not None
    assert f"found that {words};" in str(reported)


def test_other_errors_of_cuda_are_no_misfit() -> None:
    """They end a rank with 70, and another start may do."""
    words = "CUDA error: an illegal memory access was encountered"
    assert misfit(torch.AcceleratorError(words)) is None


def test_a_gpu_that_was_not_named_is_not_passed_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where this process may open one and CUDA sees none, the CPU is not what was wanted."""
    monkeypatch.setattr("trainer.distributed.device._DEVICES", tmp_path)
    for name in ("nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert lost_gpus({}, "13.0") is None
    (tmp_path / "nvidia3").touch()
    assert lost_gpus({}, "13.0") == f"a GPU is there ({tmp_path}/nvidia3), CUDA sees none"
    assert lost_gpus({}, None) is None  # a torch for CPUs was chosen
    assert lost_gpus({"CUDA_VISIBLE_DEVICES": ""}, "13.0") is None
    monkeypatch.setattr("os.access", lambda *_: False)  # as under a device cgroup, also for root
    assert lost_gpus({}, "13.0") is None


def test_lost_gpus_come_with_cudas_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning at most otherwise, which is far from the line that ends the run."""

    def refuse() -> None:
        raise RuntimeError("Unexpected error from cudaGetDeviceCount().\nError 802")

    monkeypatch.setattr(torch.cuda, "init", refuse)
    reported = str(lost_gpus_error("CUDA sees none"))
    assert "found CUDA sees none: Unexpected error from cudaGetDeviceCount().; is the" in reported


class Instances:
    """CUDA on a GPU in MIG mode: a process sees the first instance that is named, and no other."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        """Of that instance."""
        assert device.index == 0
        first = self.env["CUDA_VISIBLE_DEVICES"].split(",")[0]
        return SimpleNamespace(uuid=first[4:], pci_domain_id=0, pci_bus_id=27, pci_device_id=0)


def test_each_rank_has_an_instance_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name alone, as CUDA shows no second one; all of them in the one slot of their GPU."""
    found = []
    for local_rank in (0, 1, 2):
        env = {"CUDA_VISIBLE_DEVICES": "MIG-11,MIG-22"}
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", Instances(env).get_device_properties
        )
        ranks = Ranks(rank=local_rank, local_rank=local_rank, world_size=3, local_world_size=3)
        found.append(hardware_of(choose_device(ranks, env), "n1"))
    assert [uuid for uuid, _ in found] == ["11", "22", "11"]
    (slot,) = {slot for _, slot in found}
    assert slot.startswith("n1 ")
    assert slot.endswith(" 0000:1b:00")
    assert choose_backend([Place("n1", *one) for one in found[:2]]) == "gloo"


def test_other_names_of_gpus_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA shows a process all of them, and a rank takes its own by number."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    env = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    ranks = Ranks(rank=1, local_rank=1, world_size=2, local_world_size=2)
    assert choose_device(ranks, env) == torch.device("cuda:1")
    assert env == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import psutil
import pytest
import torch

from tests.trainer.ports import free_port
from trainer.distributed import rendezvous
from trainer.distributed.rendezvous import (
    Place,
    check_places,
    choose_backend,
    name_interface,
    open_process_group,
)
from trainer.distributed.rendezvous_socket import open_rendezvous_socket
from trainer.environment import Ranks
from trainer.errors import RunFailedError


def on_gpus(*slots: str) -> list[Place]:
    """Ranks on whole GPUs in these slots."""
    return [Place("a", slot and f"uuid of {slot}", slot) for slot in slots]


def test_nccl_wants_a_gpu_to_each_rank() -> None:
    """Ranks that share a GPU, or have none, talk over gloo."""
    assert choose_backend(on_gpus("a 1b", "a 2b")) == "nccl"
    assert choose_backend(on_gpus("a 1b", "b 1b")) == "nccl"
    assert choose_backend(on_gpus("a 1b", "a 1b")) == "gloo"
    assert choose_backend(on_gpus("", "")) == "gloo"


def test_nccl_has_no_two_instances_of_one_gpu() -> None:
    """Each has a UUID of its own, and NCCL reads the slot; one instance a GPU will do."""
    instances = [Place("a", "one", "a 1b"), Place("a", "two", "a 1b"), Place("b", "three", "b 1b")]
    assert choose_backend(instances) == "gloo"
    assert choose_backend(instances[1:]) == "nccl"


def test_all_ranks_see_a_gpu_or_none_does() -> None:
    """Else all would train on CPUs' messages: reported with the ranks, and their nodes."""
    check_places([Place("a"), Place("a"), Place("b")])
    check_places(on_gpus("1", "2", "2"))
    with pytest.raises(
        RunFailedError, match=r"^GPUs must be .*; found none on rank 1 on a, 2 on b; look"
    ):
        check_places([*on_gpus("1"), Place("a"), Place("b")])
    with pytest.raises(RunFailedError, match="7 on n7, 8 on n8 and 2 more"):
        check_places([*on_gpus("1"), *(Place(f"n{i}") for i in range(1, 11))])


def refused(devices: list[str], *restarts: str) -> list[str]:
    """The message for ranks on these devices, each on a node of its own, at their rendezvous.

    `restarts` is how often each node's torchrun has restarted its ranks.
    """
    count = len(devices)
    master_port = free_port()

    def reported(rank: int) -> str:
        ranks = Ranks(
            rank=rank,
            world_size=count,
            local_world_size=count,
            master_addr="127.0.0.1",
            master_port=master_port,
        )
        env = {"GLOO_SOCKET_IFNAME": "lo"}
        env |= {"TORCHELASTIC_RESTART_COUNT": restarts[rank]} if restarts else {}
        with pytest.raises(RunFailedError) as raised:
            open_process_group(
                ranks,
                torch.device(devices[rank]),
                env,
                f"n{rank}",
                open_rendezvous_socket(ranks, env),
            )
        return str(raised.value)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(reported, range(count)))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each index is a GPU."""
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(
            uuid=str(device), pci_domain_id=0, pci_bus_id=device.index, pci_device_id=0
        ),
    )


@pytest.mark.usefixtures("gpus")
def test_ranks_that_see_no_gpu_end_the_run_on_all() -> None:
    """Each rank reports it, though one of them serves what the others read."""
    first, second = refused(["cuda:0", "cpu"])
    assert first == second
    assert "found none on rank 1 on n1;" in first


@pytest.mark.usefixtures("gpus")
def test_nodes_whose_torchruns_count_restarts_differently_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a store of rank 0's own, which has nothing of a former start."""
    monkeypatch.setattr(rendezvous, "_RENDEZVOUS_TIMEOUT", timedelta(seconds=5))
    first, second = refused(["cuda:0", "cpu"], "0", "1")
    assert first == second


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("is_late", [False, True])
def test_nccl_that_does_not_start_is_reported(
    monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """In a line, be it at once or, before torch 2.15, with the first message."""

    def fail(*_args: object, **_named: object) -> None:
        raise torch.distributed.DistBackendError("NCCL error: bad call\nLast error:\nno socket")

    name = "all_reduce" if is_late else "init_process_group"
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_args, **_named: None)
    monkeypatch.setattr(torch, "zeros", lambda *_args, **_named: None)
    monkeypatch.setattr(torch.distributed, name, fail)
    for line in refused(["cuda:0", "cuda:1"]):
        assert line == (
            "nccl between 2 ranks must start; found NCCL error: bad call: no socket; "
            "set NCCL_DEBUG=INFO, and look at NCCL_SOCKET_IFNAME"
        )


def test_the_interface_is_the_one_that_owns_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first, and none when none does."""
    addresses = {"lo": ["127.0.0.1"], "ib0": ["10.0.0.7", "fe80::1"]}
    owned = {k: [SimpleNamespace(address=a) for a in own] for k, own in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: owned)
    for address, expected in (("10.0.0.7", {"GLOO_SOCKET_IFNAME": "ib0"}), ("10.0.0.8", {})):
        monkeypatch.setattr(rendezvous, "_local_address", lambda *_, address=address: address)
        env: dict[str, str] = {}
        name_interface(Ranks(world_size=2), env)
        assert env == expected


@pytest.mark.slow
def test_a_rendezvous_that_cannot_be_fails_the_run() -> None:
    """It is tried again, unlike a mistake; one line names who did not come."""
    ranks = Ranks(rank=0, world_size=2, local_world_size=2, master_addr="127.0.0.1", master_port=1)
    env = {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "_RENDEZVOUS_TIMEOUT", timedelta(seconds=1))
        with pytest.raises(RunFailedError, match="found nothing of rank 1; look at"):
            open_process_group(ranks, torch.device("cpu"), env, "n0")

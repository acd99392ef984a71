"""What a node's fabric is, and when its ranks are warned that it stays unused."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.conftest import Ranks
from trainer.telemetry import fabric
from trainer.telemetry.fabric import Fabric, check_fabric, read_fabric

VERBS = "7f0000-7f1000 r-xp 0 0 0 /usr/lib/libibverbs.so.1.14\n"
PLUGIN = "7f2000-7f3000 r-xp 0 0 0 /opt/aws-ofi-nccl/lib/libnccl-net.so\n"


class Node:
    """A node's /sys, and what a container has of its /dev."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        (root / "dev/infiniband").mkdir(parents=True)
        self.maps(VERBS)

    def maps(self, libraries: str) -> None:
        """What NCCL could load."""
        (self.root / "proc/self/maps").write_text(libraries)

    def port(
        self,
        device: str,
        rate: str = "400 Gb/sec (4X NDR)",
        *,
        is_open: bool = True,
        **other: str,
    ) -> None:
        """One of a device of its own; `other` may be its state, link_layer, and driver."""
        at = self.root / "sys/class/infiniband" / device
        (at / "ports/1").mkdir(parents=True)
        files = {"rate": rate, "state": "4: ACTIVE", "link_layer": "InfiniBand", **other}
        driver = files.pop("driver", "mlx5_core")
        for name, text in files.items():
            (at / "ports/1" / name).write_text(f"{text}\n")
        (at / "device").mkdir()
        (at / "device/driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
        verbs = self.root / "sys/class/infiniband_verbs" / f"uverbs-{device}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"{device}\n")
        if is_open:
            (self.root / "dev/infiniband" / verbs.name).touch()

    def reported(self) -> tuple[float, str]:
        """What is read of it: its fastest port, and what is wrong."""
        found = read_fabric(self.root)
        return found.port_gbit_per_s, fabric._PROBLEMS[found.problem]  # noqa: SLF001 -- their words


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """One without a fabric."""
    return Node(tmp_path)


def test_the_fastest_active_port_of_a_fabric_counts(node: Node) -> None:
    """Not one that is down, and none of Ethernet, whose use cannot be known."""
    node.port("mlx5_0", "100 Gb/sec (4X EDR)")
    node.port("mlx5_1", "200 Gb/sec (4X HDR)")
    node.port("mlx5_2", "400 Gb/sec (4X NDR)", state="1: DOWN")
    node.port("mlx5_3", "400 Gb/sec (4X NDR)", link_layer="Ethernet")
    node.port("broken", "unknown")
    assert node.reported() == (200, "")


def test_a_node_of_ethernet_has_none(node: Node) -> None:
    """It is a problem only where other nodes have one."""
    node.port("mlx5_0", link_layer="Ethernet", is_open=False)
    assert node.reported()[0] == 0
    assert node.reported()[1].startswith("it has no active port, as other nodes have")


def test_what_the_container_lacks_is_named(node: Node) -> None:
    """The device's file before the library that would open it, and EFA's plugin last."""
    node.port("mlx5_0", is_open=False)
    node.maps("")
    assert node.reported()[1].startswith("/dev/infiniband cannot be opened")
    (node.root / "dev/infiniband/uverbs-mlx5_0").touch()
    assert node.reported()[1].startswith("no libibverbs is loaded")
    node.maps(VERBS)
    assert node.reported() == (400, "")


def test_efa_is_known_by_its_driver_and_wants_a_plugin(node: Node) -> None:
    """Its link layer has no name."""
    node.port("rdmap0s6", "100 Gb/sec (4X EDR)", link_layer="Unspecified", driver="efa")
    assert node.reported()[0] == 100
    assert node.reported()[1].startswith("no plugin for EFA is loaded")
    node.maps(VERBS + PLUGIN)
    assert node.reported() == (100, "")


Warned = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Warned:
    """What rank 0 of two records, and says, when an all-reduce goes so fast."""

    def reported(
        own: Fabric, gbit_per_s: float, env: dict[str, str] | None = None, **other: Any
    ) -> tuple[dict[str, Any], str]:
        mesh: dict[str, Any] = {
            "nodes": ("n0", "n1"),
            "device": None,
            "backend": "nccl",
            "ranks": SimpleNamespace(rank=0, world_size=2, is_main=True),
            "max": list,
        }
        written: dict[str, Any] = {}
        events: Any = SimpleNamespace(write=lambda _name, **keys: written.update(keys))
        seconds = (1 << 26) * 8e-9 / gbit_per_s
        monkeypatch.setattr(fabric, "read_fabric", lambda: own)
        monkeypatch.setattr(fabric, "time_all_reduce", lambda *_, **__: (1 << 26, seconds))
        check_fabric(SimpleNamespace(**(mesh | other)), env or {}, events)  # type: ignore[arg-type]
        return written, capsys.readouterr().err

    return reported


UNUSED = Fabric(port_gbit_per_s=400, problem=fabric._NO_DEVICE)  # noqa: SLF001 -- as it is found
USED = Fabric(port_gbit_per_s=400)


def test_a_fabric_that_stays_unused_is_reported(warned: Warned) -> None:
    """With the reason, where the node shows one; and else only where it is far too slow."""
    record, output = warned(UNUSED, 90)
    assert output == (
        "trainer: warning: an all-reduce over 2 nodes went at 90 Gbit/s, and one port of their "
        "fabric has 400; on n0 /dev/infiniband cannot be opened: mount it into the container\n"
    )
    assert record["gbit_per_s"] == pytest.approx(90)
    assert (record["nodes"], record["port_gbit_per_s"]) == (2, 400)
    assert record["problem"].startswith("on n0 /dev/infiniband")
    assert "NCCL_DEBUG=INFO tells why" in warned(USED, 39)[1]


@pytest.mark.parametrize(
    ("own", "gbit_per_s", "other"),
    [
        (USED, 41, {}),
        (UNUSED, 201, {}),
        (Fabric(problem=fabric._NO_PORT), 1, {}),  # noqa: SLF001 -- nodes of Ethernet
        (UNUSED, 1, {"env": {"NCCL_IB_DISABLE": "1"}}),
        (UNUSED, 1, {"env": {"NCCL_NET": "Socket"}}),
        (UNUSED, 1, {"backend": "gloo"}),
    ],
)
def test_no_rank_is_warned_of_what_is_right_or_wanted(
    warned: Warned, own: Fabric, gbit_per_s: float, other: dict[str, Any]
) -> None:
    """It is recorded all the same."""
    record, output = warned(own, gbit_per_s, **other)
    assert output == ""
    assert record["gbit_per_s"] == pytest.approx(gbit_per_s)
    assert record["problem"] is None


def test_one_node_has_no_fabric_to_miss(warned: Warned) -> None:
    """Nothing is measured there."""
    assert warned(UNUSED, 1, nodes=("n0", "n0")) == ({}, "")


@pytest.mark.slow
def test_ranks_of_two_nodes_time_a_message(start_ranks: Callable[..., Ranks]) -> None:
    """Before the first step, in less than a second; on CPUs no rank is warned."""
    ranks = start_ranks(2, "--model", "mlp", "--max-steps", "1", env={"DDP_NODE": "node{rank}"})
    assert ranks.wait() == [0, 0], ranks.output
    (reported,) = ranks.run.events("network")
    assert reported["nodes"] == 2
    assert reported["gbit_per_s"] == pytest.approx(8e-9 * reported["bytes"] / reported["seconds"])
    assert (reported["port_gbit_per_s"], reported["problem"]) == (None, None)
    assert not re.search("warning", ranks.output[0][1])

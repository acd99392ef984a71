"""A rank runs on the CPUs beside its GPU, within what Slurm gave it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from jobs.agent import binding
from jobs.agent.binding import Binding

ROOT = Path(__file__).resolve().parents[3]
ALL = range(64)
BY_BUS = {"DDP_BIND": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """8 GPUs on 2 NUMA nodes of 16 cores: core n has the threads n and n + 32.

    Minor numbers run against the order on the bus.
    """
    for index in range(8):
        bus, numa = f"0000:{index + 1}b:00.0", index // 4
        _write(
            tmp_path / "proc/driver/nvidia/gpus" / bus / "information",
            f"Model: \t\t NVIDIA X\nVideo BIOS: \t \nGPU UUID: \t GPU-{index}a-1\n"
            f"Bus Location: \t {bus}\nDevice Minor: \t {7 - index}\n",
        )
        _write(tmp_path / f"dev/nvidia{index}", "")
        cpus = f"{16 * numa}-{16 * numa + 15},{32 + 16 * numa}-{47 + 16 * numa}\n"
        _write(tmp_path / "sys/bus/pci/devices" / bus / "local_cpulist", cpus)
        _write(tmp_path / "sys/bus/pci/devices" / bus / "numa_node", f"{numa}\n")
    for cpu in ALL:
        siblings = f"{cpu % 32},{cpu % 32 + 32}\n"
        _write(
            tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings
        )
    return tmp_path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def chosen(
    machine: Path, local_rank: int, num_ranks: int, allowed: range | set[int] = ALL, **env: str
) -> tuple[str, int | None] | None:
    """What a rank of a node gets."""
    place = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(num_ranks)}
    found = binding.choose(BY_BUS | place | env, allowed, str(machine))
    return found and (binding.as_text(found.cpus), found.numa)


def test_ranks_divide_the_cores_of_their_numa_node(machine: Path) -> None:
    """Both threads of a core go to one rank, and no CPU to two."""
    assert chosen(machine, 0, 8) == ("0-3,32-35", 0)
    assert chosen(machine, 5, 8) == ("20-23,52-55", 1)
    assert chosen(machine, 1, 2) == ("8-15,40-47", 0)
    texts = [chosen(machine, rank, 8) for rank in range(8)]
    assert len(set(texts)) == len(texts)


def test_a_cgroup_that_allows_half(machine: Path) -> None:
    """Of the CPUs beside the GPU those that Slurm gave; none of them: nothing is changed."""
    assert chosen(machine, 1, 8, range(8)) == ("2-3", 0)
    assert chosen(machine, 5, 8, range(8)) is None
    assert chosen(machine, 3, 8, {3, 20}) == ("3", 0)  # fewer cores than ranks: they share


def test_visible_gpus_are_the_ranks(machine: Path) -> None:
    """By number, by UUID; where each rank sees one, it shares its NUMA node with the others."""
    assert chosen(machine, 0, 2, CUDA_VISIBLE_DEVICES="3,4") == ("0-15,32-47", 0)
    assert chosen(machine, 1, 2, CUDA_VISIBLE_DEVICES="3,4") == ("16-31,48-63", 1)
    assert chosen(machine, 1, 2, CUDA_VISIBLE_DEVICES="GPU-2a,GPU-7a-1") == ("16-31,48-63", 1)
    assert chosen(machine, 3, 4, CUDA_VISIBLE_DEVICES="6") == ("16-31,48-63", 1)
    # CUDA sees none behind the -1, and both ranks are on the first.
    assert chosen(machine, 1, 2, CUDA_VISIBLE_DEVICES="0,-1,4") == ("0-15,32-47", 0)


def test_gpus_that_a_cgroup_hides(machine: Path) -> None:
    """CUDA's 0 is the first one that can be opened."""
    for minor in range(4, 8):  # the first four on the bus
        (machine / f"dev/nvidia{minor}").unlink()
    assert chosen(machine, 0, 1, CUDA_VISIBLE_DEVICES="0") == ("16-31,48-63", 1)
    assert chosen(machine, 0, 1, CUDA_VISIBLE_DEVICES="4") is None


@pytest.mark.parametrize(
    "env",
    [
        {"DDP_BIND": "0"},
        {"SLURM_CPU_BIND_TYPE": "mask_cpu:"},
        {"SLURM_CPUS_ON_NODE": "65"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "MIG-0a-1,MIG-1a-1"},
        {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
    ],
)
def test_left_as_it_is(machine: Path, env: dict[str, str]) -> None:
    """Switched off, bound already, no GPU, a part of one, or one that cannot be known."""
    assert chosen(machine, 0, 8, **env) is None
    none = {"SLURM_CPU_BIND_TYPE": "quiet,none", "SLURM_CPUS_ON_NODE": "64"}
    assert chosen(machine, 0, 8, **none) == ("0-3,32-35", 0)


def test_files_that_are_missing(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No driver, no list of CPUs: nothing is changed. No NUMA node: none is reported."""
    assert chosen(tmp_path_factory.mktemp("bare"), 0, 8) is None
    device = machine / "sys/bus/pci/devices/0000:1b:00.0"
    (device / "numa_node").write_text("-1\n")
    assert chosen(machine, 0, 8) == ("0-3,32-35", None)
    (device / "local_cpulist").unlink()
    assert chosen(machine, 0, 8) is None
    assert chosen(machine, 1, 8) == ("0-4,32-36", 0)


def test_a_process_has_them_and_this_one_is_as_before() -> None:
    """As the kernel shows it in /proc/self/status."""
    before = os.sched_getaffinity(0)
    cpu = max(before)
    with binding.bound(Binding(frozenset({cpu}), 0)):
        status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, check=True)
    assert f"Cpus_allowed_list:\t{cpu}\n".encode() in status.stdout
    assert os.sched_getaffinity(0) == before
    with binding.bound(None):
        assert os.sched_getaffinity(0) == before


def test_a_rank_runs_there_and_the_record_says_so(tmp_path: Path) -> None:
    """Its log has what the kernel shows of it; the choice alone is ours."""
    cpu = max(os.sched_getaffinity(0))
    program = (
        "import sys; from jobs.agent import binding, main;"
        f"binding.choose = lambda *_: binding.Binding(frozenset([{cpu}]), 1);"
        "sys.exit(main.main(['--', 'grep', 'Cpus_allowed_list', '/proc/self/status']))"
    )
    env = {"PATH": os.environ["PATH"], "DDP_OUT": str(tmp_path), "DDP_MONITOR": "0"}
    command = [ROOT / ".venv/bin/python", "-c", program]
    subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True)
    (run,) = tmp_path.iterdir()
    assert (run / "logs/rank-0.log").read_text() == f"Cpus_allowed_list:\t{cpu}\n"
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    up = next(event for event in events if event["event"] == "rank_up")
    assert (up["cpus"], up["numa"]) == (str(cpu), 1)

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.logs.sample import GpuSample, RankSample, Reading
from monitor.recorder.rank_gpus import RankGpus

NOTHING = RankSample()
NOBODY = 2**22  # more than any pid
FIRST, SECOND, SLICE = (f"00000000-0000-4000-8000-00000000000{digit}" for digit in "abc")
FACTS = (("gpu 0", f"GPU-{FIRST} H"), ("gpu 1", f"GPU-{SECOND} H"), ("mig 1.0", f"MIG-{SLICE} a=1"))


def write_heartbeat(place: Path, rank: int, pid: int, step: int, uuid: str = "") -> None:
    """Let a rank beat, on the GPU with the UUID, if it tells one."""
    reported = bytes.fromhex(uuid.replace("-", ""))
    data = struct.pack("<8s7q16s", b"DDPBEAT1", pid, step, 1, 2, 1, 1, 1, reported)
    (place / f"rank-{rank}").write_bytes(data)


def child(place: Path, rank: int, pid: int, local_rank: int) -> None:
    """Let a launcher have started a rank's command."""
    (place / f"child-{rank}").write_text(f"{pid} {local_rank} trainer\n")


def gpu(index: int | None, *processes: tuple[int, int | None]) -> GpuSample:
    """A GPU on which these processes compute."""
    return GpuSample(index=index, processes=processes)


def poll(
    place: Path, *gpus: GpuSample, visible: str | None = None, shares: bool = True
) -> list[RankSample]:
    """Poll once."""
    return RankGpus(str(place), visible, shares_pids=shares).read(Reading(gpus, FACTS))


def test_a_process_on_a_gpu_is_the_rank_with_a_heartbeat(tmp_path: Path) -> None:
    """Its step, its number, and what its processes hold; what is unknown is no rank's."""
    write_heartbeat(tmp_path, 4, 1001, 120)
    write_heartbeat(tmp_path, 5, 1002, 121)
    found = poll(tmp_path, gpu(0, (1002, 300), (77, 9)), gpu(1, (1001, None)), gpu(2, (77, 9)))
    assert found == [
        RankSample(121, 5, 300, 9, processes="77 9 MiB; 1002 rank 5 300 MiB"),
        RankSample(120, 4, None, 0, processes="1001 rank 4 - MiB"),
        RankSample(other_mib=9, processes="77 9 MiB"),
    ]


def test_several_ranks_on_one_gpu(tmp_path: Path) -> None:
    """The one that holds most is reported, with all of its processes."""
    for rank in (0, 1):
        write_heartbeat(tmp_path, rank, 1000 + rank, rank)
    (found,) = poll(tmp_path, gpu(0, (1000, 200), (1001, 300), (1000, 200)))
    assert found == RankSample(0, 0, 400, 0, processes="1000 rank 0 400 MiB; 1001 rank 1 300 MiB")


def test_a_process_below_the_command_is_the_ranks(tmp_path: Path) -> None:
    """Such as Python under a shell that the launcher started."""
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as below:
        child(tmp_path, 3, os.getpid(), 0)
        (found,) = poll(tmp_path, gpu(0, (below.pid, 50)))
        assert found == RankSample(None, 3, 50, 0, processes=f"{below.pid} rank 3 50 MiB")
        below.communicate(b"\n")


def test_a_daemon_of_a_rank_is_the_ranks(tmp_path: Path) -> None:
    """By the variables that it was started with: none is above it any more. Others' are not."""
    env = {**os.environ, "RANK": "6", "DDP_BEAT_DIR": str(tmp_path)}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    for variables, rank in ((env, 6), (env | {"DDP_BEAT_DIR": "/dev/shm/other"}, None)):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, env=variables, **pipes) as daemon:  # type: ignore[call-overload]
            daemon.stdout.readline()  # only now its environment can be read for certain
            (found,) = poll(tmp_path, gpu(0, (daemon.pid, 50)))
            assert (found.rank, found.other_mib) == (rank, 50 if rank is None else 0)
            daemon.communicate(b"\n")


def test_in_a_container_the_pids_match_no_process(tmp_path: Path) -> None:
    """Then the rank stays unknown; whose step it is follows from who should be there."""
    write_heartbeat(tmp_path, 6, 1001, 120)
    child(tmp_path, 6, 1000, 1)
    found = poll(tmp_path, gpu(0, (1001, 300)), gpu(1, (1001, 300)), shares=False)
    assert found == [NOTHING, RankSample(120)]


def test_a_rank_that_names_its_gpu_is_there(tmp_path: Path) -> None:
    """Whatever the words of CUDA_VISIBLE_DEVICES would say; what it holds there is unknown."""
    write_heartbeat(tmp_path, 0, 1001, 7, SECOND)
    write_heartbeat(tmp_path, 1, 1002, 8, FIRST)
    for rank in (0, 1):
        child(tmp_path, rank, NOBODY + rank, rank)
    found = poll(tmp_path, gpu(0, (5, 300)), gpu(1, (6, 300)), visible="0,1", shares=False)
    assert found == [RankSample(8, 1), RankSample(7, 0)]


def test_of_two_ranks_on_instances_of_a_gpu_neither_is_named(tmp_path: Path) -> None:
    """Unless their processes tell which holds most."""
    write_heartbeat(tmp_path, 0, 1001, 7, SLICE)
    write_heartbeat(tmp_path, 1, 1002, 8, SECOND)
    assert poll(tmp_path, gpu(1, (1002, 3)), shares=False)[0].rank == 1  # its pid is NVML's, too
    (tmp_path / "rank-1").unlink()
    write_heartbeat(tmp_path, 2, 1003, 9, SLICE)
    assert poll(tmp_path, gpu(0), gpu(1), shares=False) == [NOTHING, RankSample(7)]


def test_a_driver_that_tells_the_containers_pids_is_believed(tmp_path: Path) -> None:
    """Once it reported a rank's own on the very GPU that this rank names; on another is chance."""
    write_heartbeat(tmp_path, 0, 1001, 7, FIRST)
    write_heartbeat(tmp_path, 1, 1002, 8, SECOND)
    elsewhere = poll(tmp_path, gpu(0, (1002, 9)), gpu(1, (1001, 9)), shares=False)
    assert elsewhere == [RankSample(7, 0), RankSample(8, 1)]
    there = poll(tmp_path, gpu(0, (1001, 300)), gpu(1, (77, 9)), shares=False)
    assert there[0] == RankSample(7, 0, 300, 0, processes="1001 rank 0 300 MiB")
    assert there[1] == RankSample(8, 1, None, 9, processes="77 9 MiB")


@pytest.mark.parametrize(
    ("visible", "steps"),
    [(None, [7, 8, None]), ("2,0", [8, None, 7]), ("GPU-1,", [None] * 3), ("", [None] * 3)],
)
def test_without_processes_the_place_tells_the_step(
    tmp_path: Path, visible: str | None, steps: list[int | None]
) -> None:
    """Local rank n has the nth GPU that CUDA_VISIBLE_DEVICES names."""
    for rank in (0, 1):
        write_heartbeat(tmp_path, rank, 1000 + rank, 7 + rank)
        child(tmp_path, rank, NOBODY + rank, rank)
    found = RankGpus(str(tmp_path), visible).read(Reading((gpu(0), gpu(1), gpu(2))))
    assert [sample.step for sample in found] == steps


def test_a_rank_names_its_own_gpu(tmp_path: Path) -> None:
    """Where each has one word, that of the first rank, which started the monitor, is not theirs."""
    command = [sys.executable, "-c", "input()"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "2"}
    write_heartbeat(tmp_path, 1, 1001, 8)
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as second:
        child(tmp_path, 1, second.pid, 1)
        ranks = RankGpus(str(tmp_path), "0", shares_pids=False)
        assert [one.step for one in ranks.read(Reading((gpu(0), gpu(1), gpu(2))))] == [
            None,
            None,
            8,
        ]
        second.communicate(b"\n")
    child(tmp_path, 1, NOBODY, 1)
    ranks = RankGpus(str(tmp_path), "0", shares_pids=False)
    assert ranks.read(Reading((gpu(0),))) == [NOTHING]  # it is not the monitor's 0


def test_a_node_without_gpus_is_as_far_as_its_last_rank(tmp_path: Path) -> None:
    """Its one row has the least of the steps."""
    write_heartbeat(tmp_path, 0, 1000, 9)
    write_heartbeat(tmp_path, 1, 1001, 8)
    assert poll(tmp_path, gpu(None)) == [RankSample(8)]


def test_steps_are_read_each_time_and_ranks_looked_for_now_and_then(tmp_path: Path) -> None:
    """A rank that is new is seen within 5 s; one that is gone, or was never whole, is none."""
    now_s = [0.0]
    write_heartbeat(tmp_path, 0, 1000, 1)
    ranks = RankGpus(str(tmp_path), shares_pids=True, monotonic=lambda: now_s[0])
    both = Reading((gpu(0, (1000, 1)), gpu(1, (1001, 1))))
    of_none = [RankSample(other_mib=1, processes=f"{pid} 1 MiB") for pid in (1000, 1001)]
    assert ranks.read(both) == [RankSample(1, 0, 1, 0, processes="1000 rank 0 1 MiB"), of_none[1]]
    with (tmp_path / "rank-0").open("r+b") as file:
        file.seek(16)
        file.write(struct.pack("<q", 2))
    write_heartbeat(tmp_path, 1, 1001, 5)
    first = RankSample(2, 0, 1, 0, processes="1000 rank 0 1 MiB")
    assert ranks.read(both) == [first, of_none[1]]
    now_s[0] = 5.0
    assert ranks.read(both) == [first, RankSample(5, 1, 1, 0, processes="1001 rank 1 1 MiB")]
    (tmp_path / "rank-1").write_bytes(b"\0" * 80)  # just being written
    assert ranks.read(both) == [first, RankSample(5, 1, 1, 0, processes="1001 rank 1 1 MiB")]
    (tmp_path / "rank-0").unlink()
    (tmp_path / "rank-1").write_bytes(b"DDPBEAT1")
    now_s[0] = 10.0
    assert ranks.read(both) == of_none


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    """Nobody beats there, and nothing is raised."""
    found = poll(tmp_path / "none", gpu(0, (1, 1)), gpu(None))
    assert found == [RankSample(other_mib=1, processes="1 1 MiB"), NOTHING]

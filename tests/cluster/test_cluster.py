"""The virtual cluster behaves as a cluster does, faults included, and leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import own_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Cluster = Any  # the class lives in conftest.py, which cannot be imported

pytestmark = pytest.mark.slurm

ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo", rank=int(os.environ["SLURM_PROCID"]), world_size=2,
                        init_method=f"tcp://{os.environ['MASTER']}:29511")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("sum", total.item(), os.uname().nodename)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def own(cluster_at: Callable[..., Cluster]) -> Generator[Cluster]:
    """A cluster of this file's own, beside the shared one, that may be broken."""
    yield from own_cluster(cluster_at, "tc", 99, nodes=2)


def traces(own: Cluster) -> dict[str, list[str]]:
    """Everything on the machine that carries this cluster's names."""
    directory = own.env["DDP_CLUSTER_DIR"]
    links = [path.name for path in Path("/sys/class/net").glob("ddp*-tc*")]
    rules = own.run(["iptables", "-S"]).stdout.splitlines() if shutil.which("iptables") else []
    commands = own.run(["ps", "-eo", "args"]).stdout.splitlines()
    return {
        "links": links,
        "namespaces": [path.name for path in Path("/run/netns").glob("ddp-tc*")],
        "processes": [line for line in commands if directory in line],
        "rules": [rule for rule in rules if "ddp-tc" in rule],
        "hosts": [h for h in Path("/etc/hosts").read_text().splitlines() if "10.213.99." in h],
        "cgroups": [str(path) for path in Path("/sys/fs/cgroup").glob("**/slurm_tc*")],
        "mounts": [m for m in Path("/proc/mounts").read_text().splitlines() if directory in m],
        "files": [directory] if Path(directory).exists() else [],
    }


def test_a_job_runs_on_two_nodes_with_names_and_addresses_of_their_own(own: Cluster) -> None:
    """Each task sees its node's host name and address, and the GPUs it asked for."""
    show = (
        "echo $(hostname) $(hostname -i) $(getent hosts tc2 | cut -d' ' -f1) $CUDA_VISIBLE_DEVICES"
    )
    result = own.run(
        ["srun", "--immediate=10", "-N2", "-n2", "--gpus-per-node=2", "bash", "-c", show]
    )
    assert sorted(result.stdout.splitlines()) == [
        "tc1 10.213.99.1 10.213.99.2 0,1",
        "tc2 10.213.99.2 10.213.99.2 0,1",
    ]


def test_a_batch_job_ends_with_its_code_and_its_output(own: Cluster, tmp_path: Path) -> None:
    """Nested steps run, the output lands where it was asked for, and the code is reported."""
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nsrun --immediate=10 hostname\nexit 7\n")
    output = tmp_path / "out.txt"
    job = own.submit(["-N2", "-n2", "-o", output, script])
    assert own.wait(job) == ("FAILED", 7, 0)
    assert sorted(output.read_text().split()) == ["tc1", "tc2"]


def test_a_cancelled_job_leaves_no_process_even_a_detached_one(own: Cluster) -> None:
    """A process that left its session and its parent ends with its job."""
    wrap = "setsid sleep 4242.7 & disown; srun --immediate=10 sleep 4242.7"
    job = own.submit(["-N2", "-n2", "-o", "/dev/null", "--wrap", wrap])
    mark = "sleep\x004242.7"
    own.until(lambda: len(own.processes("tc1", mark)) >= 2, 30, "both sleeps run")
    own.run(["scancel", str(job)])
    own.until(lambda: not own.processes("tc1", mark) + own.processes("tc2", mark), 15, "all gone")
    assert own.wait(job).state == "CANCELLED"


def test_interactive_allocations_work_from_host_and_node(own: Cluster) -> None:
    """`salloc` and `srun --pty` work on the host, and `srun` works from a node."""
    held = own.run(["salloc", "-Q", "--immediate=10", "-N2", "srun", "hostname"])
    assert sorted(held.stdout.split()) == ["tc1", "tc2"], held.stderr
    pty = own.run(["script", "-qec", "srun --immediate=10 --pty tty", "/dev/null"])
    assert "/dev/pts/" in pty.stdout
    nested = own.exec("tc2", "srun", "--immediate=10", "-N2", "hostname")
    assert sorted(nested.stdout.split()) == ["tc1", "tc2"], nested.stderr


def test_a_requeued_job_starts_again(own: Cluster, tmp_path: Path) -> None:
    """`scontrol requeue` runs the script once more, and Slurm counts it."""
    output = tmp_path / "out.txt"
    count = "${SLURM_RESTART_COUNT:-0}"
    wrap = f'echo "start {count}"; [ "{count}" -gt 0 ] || sleep 300'
    job = own.submit(["--open-mode=append", "-o", output, "--wrap", wrap])
    own.until(lambda: output.exists() and "start 0" in output.read_text(), 30, "first start")
    own.run(["scontrol", "requeue", str(job)])
    assert own.wait(job, 60) == ("COMPLETED", 0, 0)
    assert "start 1" in output.read_text()


def test_gloo_reduces_between_two_nodes(own: Cluster, tmp_path: Path) -> None:
    """Ranks on two nodes find each other and add their tensors over the cluster's network."""
    program = tmp_path / "reduce.py"
    program.write_text(ALL_REDUCE)
    result = own.run(
        ["srun", "--immediate=10", "-N2", "-n2", sys.executable, program],
        timeout=120,
        env={"MASTER": "tc1", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
    )
    assert sorted(result.stdout.splitlines()) == ["sum 3.0 tc1", "sum 3.0 tc2"], result.stderr


def reaches(own: Cluster, source: str, target: str) -> bool:
    """Whether a TCP connection from node to node is answered by the target's slurmd."""
    port = own.run(["scontrol", "show", "config"]).stdout.split("SlurmdPort")[1].split()[1]
    probe = f"timeout 2 bash -c '</dev/tcp/{target}/{port}'"
    return own.exec(source, "bash", "-c", probe).returncode == 0


def test_a_cut_cable_cuts_and_a_healed_one_heals(own: Cluster) -> None:
    """Between cut and heal nothing gets through, and the node goes on running alone."""
    assert reaches(own, "tc1", "tc2")
    own.script("cut", "tc2")
    try:
        assert not reaches(own, "tc1", "tc2")
        assert own.exec("tc2", "hostname").stdout == "tc2\n"
        assert "cut" in own.script("status").stdout
    finally:
        own.script("heal", "tc2")
    assert reaches(own, "tc1", "tc2")


def test_slurm_notices_a_node_without_power_and_takes_it_back(own: Cluster) -> None:
    """A killed node is empty at once; its job ends as NODE_FAIL; heal brings the node back."""
    own.until(lambda: {own.node_state("tc1"), own.node_state("tc2")} == {"idle"}, 60, "idle nodes")
    wrap = "srun --immediate=10 sleep 4343.7"
    job = own.submit(["-N2", "-n2", "--no-requeue", "-o", "/dev/null", "--wrap", wrap])
    own.until(lambda: bool(own.processes("tc1", "4343.7")), 30, "the job runs on tc1")
    own.until(lambda: bool(own.processes("tc2", "4343.7")), 30, "the job runs on tc2")
    assert own.script("kill", "tc1").returncode == 0  # the node of the batch script
    assert own.processes("tc1", "") == []
    assert own.exec("tc1", "true").returncode == 64
    own.until(lambda: own.node_state("tc1").startswith("down"), 60, "Slurm notices")
    assert own.wait(job, 60).state == "NODE_FAIL"
    own.script("heal", "tc1")
    own.until(lambda: own.node_state("tc1") == "idle", 60, "the node is back")


def test_up_again_changes_nothing_and_mends_what_died(own: Cluster) -> None:
    """A second `up` starts no second daemon; after a crash it starts what is missing."""

    def daemons() -> list[str]:
        conf = own.env["SLURM_CONF"]
        return own.run(["pgrep", "-f", f"slurm(ctl)?d -f {conf}"]).stdout.split()

    before = daemons()
    own.up()
    assert daemons() == before
    assert len(before) == 3
    subprocess.run(["kill", "-KILL", *before], check=True)
    own.up()
    assert len(daemons()) == 3
    assert own.run(["srun", "--immediate=10", "-N2", "hostname"]).returncode == 0


def test_the_number_of_nodes_changes_under_a_running_job(own: Cluster, tmp_path: Path) -> None:
    """`up 3` adds a node and `up 2` takes it away; a job on the others goes on."""
    go = tmp_path / "go"
    wrap = f"until [ -e {go} ]; do sleep 0.1; done"
    job = own.submit(["-w", "tc1", "-o", "/dev/null", "--wrap", wrap])
    own.wait_running(job)
    own.up("3")
    assert own.nodes == ["tc1", "tc2", "tc3"]
    assert own.run(["srun", "--immediate=10", "-w", "tc3", "hostname"]).stdout == "tc3\n"
    own.up("2")
    assert own.nodes == ["tc1", "tc2"]
    go.touch()
    assert own.wait(job) == ("COMPLETED", 0, 0)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["up", "0"], "the number of nodes must be 1 to 16; found"),
        (["up", "two"], "the number of nodes must be 1 to 16; found"),
        (["cut", "tc9"], "the node must be one of tc1 tc2; found"),
        (["cut"], "the node must be one of tc1 tc2; found"),
        (["exec", "tc1"], "exec must have a node and a command; found no command"),
        (["explode"], "; found explode; see "),
    ],
)
def test_wrong_input_is_one_line_and_code_64(own: Cluster, args: list[str], expected: str) -> None:
    """A user's mistake is named in one line, and the cluster stays as it was."""
    result = own.script(*args)
    assert result.returncode == 64
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


def test_further_lines_of_slurm_conf_come_from_a_file(own: Cluster) -> None:
    """A file that is not there is named, and the cluster stays as it was."""
    missing = {"DDP_CLUSTER_EXTRA": "/nowhere/extra.conf"}
    result = own.run([Path(__file__).parent / "cluster.sh", "up"], env=missing)
    assert (result.returncode, "DDP_CLUSTER_EXTRA must be a file" in result.stderr) == (64, True)


def test_real_gpus_are_spread_over_the_nodes(
    own: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has its share and no other's, by the machine's numbers, whichever were chosen."""
    files = [tmp_path / f"nvidia{number}" for number in (0, 1, 2, 10, 11)]
    for file in files:
        subprocess.run(["mknod", file, "c", "1", "3"], check=True)
    given = ",".join(map(str, [files[1], *files[2:]]))
    monkeypatch.setitem(own.env, "DDP_CLUSTER_GPU_FILES", given)
    own.up("2")
    gres = Path(own.env["DDP_CLUSTER_DIR"], "etc/gres.conf").read_text().splitlines()
    nodes = ("tc1", "tc1", "tc2", "tc2")
    pairs = zip(nodes, given.split(","), strict=True)
    assert gres == [f"NodeName={node} Name=gpu File={file}" for node, file in pairs]
    show = "echo $(hostname) $CUDA_VISIBLE_DEVICES"
    srun = ["srun", "--immediate=20", "-N2"]
    both = own.run([*srun, "--gpus-per-node=2", "bash", "-c", show])
    assert sorted(both.stdout.splitlines()) == ["tc1 1,2", "tc2 3,4"], both.stderr
    each = own.run([*srun, "-n4", "--gpus-per-task=1", "bash", "-c", show])
    assert sorted(each.stdout.splitlines()) == ["tc1 1", "tc1 2", "tc2 3", "tc2 4"], each.stderr
    output = tmp_path / "out.txt"
    wrap = f"{show}; srun --immediate=20 bash -c '{show}'"
    job = own.submit(["-w", "tc2", "--gpus-per-node=1", "-o", output, "--wrap", wrap])
    assert own.wait(job) == ("COMPLETED", 0, 0)
    assert output.read_text().splitlines() == ["tc2 3", "tc2 3"]
    monkeypatch.undo()
    own.up("2")
    again = own.run([*srun, "--gpus-per-node=2", "bash", "-c", show])
    assert sorted(again.stdout.splitlines()) == ["tc1 0,1", "tc2 0,1"], again.stderr


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("DIR/nvidia0,DIR/nvidia1,DIR/nvidia2", "each of 2 nodes must get as many of the GPUs"),
        ("DIR/nvidia0,DIR/nvidia0", "must name a GPU once, as a GPU belongs to one node"),
        ("DIR/nvidia0,DIR/nvidia9", "must name the machine's GPUs, with commas between"),
        ("DIR/plain", "must name the machine's GPUs, with commas between"),
    ],
)
def test_gpus_that_cannot_be_spread(
    own: Cluster, tmp_path: Path, files: str, expected: str
) -> None:
    """One line and 64, before anything is changed."""
    for number in range(3):
        subprocess.run(["mknod", tmp_path / f"nvidia{number}", "c", "1", "3"], check=True)
    (tmp_path / "plain").touch()
    env = {"DDP_CLUSTER_GPU_FILES": files.replace("DIR", str(tmp_path))}
    script = Path(__file__).parent / "cluster.sh"
    result = own.run([script, "up", "2"], env=env)
    assert (result.returncode, result.stderr.count("\n")) == (64, 1), result.stderr
    assert expected in result.stderr


def test_it_does_not_take_over_a_directory_or_a_name_of_others(
    own: Cluster, tmp_path: Path
) -> None:
    """A directory with other files, and node names in use, are refused and left alone."""
    (tmp_path / "theirs").touch()
    other = {"DDP_CLUSTER_PREFIX": "td", "DDP_CLUSTER_SUBNET": "10.213.98"}
    for settings, expected in [
        (other | {"DDP_CLUSTER_DIR": str(tmp_path)}, "other files in it"),
        (other | {"DDP_CLUSTER_DIR": str(tmp_path / "new")}, "closed to others"),
        ({"DDP_CLUSTER_DIR": str(tmp_path)}, "must be of one cluster a machine; found another one"),
    ]:
        result = own.run([Path(__file__).parent / "cluster.sh", "up"], env=settings)
        assert (result.returncode, expected in result.stderr) == (64, True), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_down_leaves_nothing(own: Cluster) -> None:
    """After `down`, with a job running, nothing on the machine carries the cluster's name."""
    job = own.submit(["-N2", "-n2", "-o", "/dev/null", "--wrap", "srun sleep 4444.7"])
    own.wait_running(job)
    assert all(traces(own)[kind] for kind in ("links", "namespaces", "processes", "hosts", "files"))
    assert own.script("down").returncode == 0
    assert {kind: found for kind, found in traces(own).items() if found} == {}
    assert own.script("status").returncode == 3
    assert own.script("down").returncode == 0


def test_daemons_of_another_process_namespace_are_not_its_own() -> None:
    """A container, or a root of another Debian, may have a cluster of the same names."""
    elsewhere = ["unshare", "--pid", "--fork", "--kill-child"]
    daemon = ["bash", "-c", "exec -a slurmctld sleep $0", "97.5"]
    look = f'source "{Path(__file__).parent}/lib.sh"; wait_for $0 is_running slurmctld 97.5'
    for command, is_ours, limit_s in (daemon, True, "10"), ([*elsewhere, *daemon], False, "1"):
        with subprocess.Popen(command) as process:
            seen = subprocess.run(["bash", "-c", look, limit_s], check=False)
            process.kill()
        assert (seen.returncode == 0) == is_ours

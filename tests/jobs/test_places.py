"""The five places of the batch script, the srun command of each, and the master's address."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from conftest import Scripts

HOST = socket.gethostname()
PYXIS = "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image"


def test_bare_machine_under_slurm(slurm: Scripts) -> None:
    """On the host without an image: srun starts the launchers, and a bad exit ends them all."""
    result = slurm.run("prelaunch.sh", "--dry-run", "--epochs", "3")
    assert result.code == 0, result.err
    words = result.step.split()
    assert words[0] == "srun"
    assert {"--kill-on-bad-exit=1", "--nodes=2", "--ntasks=4", "--export=ALL"} <= set(words)
    assert "--overlap" not in words
    assert words[-3:] == [f"{slurm.root}/jobs/launcher.sh", "--epochs", "3"]
    assert result.setting("WORLD_SIZE") == "4"
    assert result.setting("MASTER_ADDR") == HOST
    assert not list(slurm.directory.glob("out"))


def test_interactive_session(slurm: Scripts) -> None:
    """In salloc or srun --pty the step overlaps the shell's own, and its count is the job's."""
    del slurm.env["ENVIRONMENT"]
    result = slurm.run(
        "prelaunch.sh", "--dry-run", SLURM_STEP_ID="0", SLURM_NTASKS="1", SLURM_NTASKS_PER_NODE="2"
    )
    assert {"--overlap", "--ntasks=4"} <= set(result.step.split())


def test_cpus_per_task(slurm: Scripts) -> None:
    """srun no longer inherits --cpus-per-task, so it is handed on."""
    result = slurm.run("prelaunch.sh", "--dry-run", SLURM_CPUS_PER_TASK="6")
    assert result.setting("SRUN_CPUS_PER_TASK") == "6"
    assert result.setting("OMP_NUM_THREADS") == "6"


def test_master_is_never_sorted(scripts: Scripts) -> None:
    """Rank 0's node is the first in Slurm's order, and is probed there when it is another."""
    scripts.fake_slurm("gpu007", "gpu001", "login-1")
    scripts.fake("getent", 'echo "10.1.2.3 STREAM $2"')
    result = scripts.run("prelaunch.sh", "--dry-run", SLURMD_NODENAME="login-1")
    assert result.setting("MASTER_ADDR") == "gpu007"
    assert "--nodelist=gpu007" in (scripts.directory / "srun.calls").read_text()


def test_master_of_a_host_file(slurm: Scripts) -> None:
    """With an arbitrary distribution the user's own order counts."""
    hosts = slurm.directory / "hosts"
    hosts.write_text("other\nfirst\n")
    result = slurm.run(
        "prelaunch.sh", "--dry-run", SLURM_DISTRIBUTION="arbitrary", SLURM_HOSTFILE=str(hosts)
    )
    assert result.setting("MASTER_ADDR") == "other"


def test_master_is_never_loopback_with_several_nodes(slurm: Scripts) -> None:
    """A name that resolves to loopback is replaced by Slurm's address of the node."""
    slurm.fake("getent", '[[ $2 == 10.* ]] && echo "$2 STREAM" || echo "127.0.1.1 STREAM $2"')
    result = slurm.run("prelaunch.sh", "--dry-run")
    assert result.setting("MASTER_ADDR") == "10.9.8.7"


def test_a_loopback_master_of_the_users(slurm: Scripts) -> None:
    """What the user set is not replaced: it is refused."""
    result = slurm.run("prelaunch.sh", MASTER_ADDR="127.0.0.1")
    assert result.code == 64
    assert "MASTER_ADDR" in result.err


def test_interface(scripts: Scripts) -> None:
    """DDP_IFACE gives the master's address and the traffic's interface."""
    scripts.fake(
        "ip", "[[ $3 == addr && $2 == -4 ]] && echo '2: ib0 inet 10.4.4.4/24 scope global ib0'"
    )
    result = scripts.run("prelaunch.sh", "--dry-run", DDP_IFACE="ib0")
    assert result.setting("MASTER_ADDR") == "10.4.4.4"
    assert result.setting("NCCL_SOCKET_IFNAME") == "=ib0"  # NCCL takes a bare name for a prefix
    assert result.setting("GLOO_SOCKET_IFNAME") == "ib0"


def test_an_interface_that_only_one_node_has(slurm: Scripts) -> None:
    """Several nodes do not meet on loopback, whoever chose it."""
    slurm.fake(
        "ip", "[[ $3 == addr && $2 == -4 ]] && echo '1: lo inet 127.0.0.1/8 scope global lo'"
    )
    result = slurm.run("prelaunch.sh", DDP_IFACE="lo")
    assert result.code == 64
    assert "prelaunch: DDP_IFACE must be an interface that other nodes reach" in result.err


@pytest.mark.skipif(not shutil.which("scontrol"), reason="Slurm's own expansion needs scontrol")
def test_a_list_of_nodes_as_slurm_writes_it(scripts: Scripts) -> None:
    """In its order, with its own zeros."""
    real = shutil.which("scontrol")
    names = ("gpu001", "gpu002", "gpu003", "gpu007", "login-1")
    scripts.fake_slurm(*names)
    fake = scripts.directory / "fake-bin" / "scontrol"
    fake.rename(fake.with_name("scontrol.fake"))
    conf = scripts.directory / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=localhost\nNodeName=n\n")
    scripts.fake(
        "scontrol",
        f"""[[ "$*" != *"show hostnames"* ]] || SLURM_CONF='{conf}' exec {real} "$@"
        exec "$0.fake" "$@" """,
    )
    scripts.fake("getent", 'echo "10.1.2.3 STREAM $2"')
    result = scripts.run("prelaunch.sh", "--dry-run", SLURM_JOB_NODELIST="gpu[001-003,7],login-1")
    assert result.code == 0, result.err
    assert result.setting("MASTER_ADDR") == "gpu001"
    assert result.setting("WORLD_SIZE") == "10"
    assert {"--nodes=5", "--ntasks=10"} <= set(result.step.split())
    none = scripts.run("prelaunch.sh", "--dry-run", SLURM_JOB_NODELIST="")
    assert none.code == 64
    assert "prelaunch: scontrol must tell the job's nodes; found none of ''" in none.err


def test_what_the_user_set_is_shown_with_the_rest(scripts: Scripts) -> None:
    """Also where nobody but the ranks reads it; no secret, and no version of an image's parts."""
    env = {"NCCL_ALGO": "Ring", "HF_TOKEN": "hf_x", "NCCL_VERSION": "2.30"}
    result = scripts.run("prelaunch.sh", "--dry-run", **env)
    assert result.setting("NCCL_ALGO") == "Ring"
    assert result.setting("DDP_NPROC_PER_NODE") == "2"
    assert "hf_x" not in result.err
    assert "2.30" not in result.err
    python = result.setting("DDP_PYTHON")
    assert scripts.run("prelaunch.sh", "--dry-run", DDP_PYTHON=python).err.count("DDP_PYTHON") == 1


def test_interface_that_is_not_there(scripts: Scripts) -> None:
    """An interface without an address is one clear line."""
    result = scripts.run("prelaunch.sh", DDP_IFACE="nope0")
    assert result.code == 64
    assert "nope0" in result.err.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace of its own needs root")
@pytest.mark.parametrize("low", ["1024", "10000"])
def test_a_port_where_the_ephemeral_range_is_everything(low: str) -> None:
    """A common tuning of busy servers leaves no room beside it."""
    probe = Path(__file__).resolve().parents[2] / "jobs" / "probe.sh"
    script = f"""
        echo '{low} 65535' >/proc/sys/net/ipv4/ip_local_port_range
        exec '{probe}' 7 '' ''
    """
    said = subprocess.run(
        ["unshare", "--net", "bash", "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout == "- 10007\n", said.stderr


@pytest.mark.parametrize(
    "asked",
    [
        {"SLURM_GPUS_PER_TASK": "1"},
        {"SLURM_NTASKS_PER_GPU": "1"},
        {"SLURM_TRES_PER_TASK": "cpu=7,gres/gpu=1", "SLURM_TRES_BIND": "gres/gpu:per_task:1"},
    ],
)
def test_every_rank_sees_all_gpus_of_its_node(slurm: Scripts, asked: dict[str, str]) -> None:
    """Else srun shows each rank one; who asked for a binding, or has a command, keeps it."""
    slurm.fake("srun", f"env | grep -cE '^({'|'.join(asked)})=' >>'{slurm.directory}/seen' || :")
    slurm.run("prelaunch.sh", "--max-steps", "1", **asked)
    slurm.run("prelaunch.sh", "--max-steps", "1", **asked, SLURM_GPU_BIND="closest")
    slurm.run("prelaunch.sh", "--", "true", **asked)
    kept = str(len(asked))
    assert (slurm.directory / "seen").read_text().split() == ["0", kept, kept]


def test_gpus_that_nobody_will_use(slurm: Scripts) -> None:
    """Eight GPUs and two ranks are a mistake; a command may start its own ranks."""
    told = slurm.run("prelaunch.sh", "--dry-run", SLURM_GPUS_ON_NODE="8").err
    assert "warning: 8 GPUs on a node for 2 of our ranks: give --ntasks-per-node=8" in told
    for words in (["--dry-run", "--", "torchrun"], ["--dry-run"]):
        gpus = "8" if len(words) > 1 else "2"
        assert (
            "GPUs on a node" not in slurm.run("prelaunch.sh", *words, SLURM_GPUS_ON_NODE=gpus).err
        )


def ephemeral() -> range:
    """The kernel's range for outgoing connections."""
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(low), int(high) + 1)


def test_port_by_job_and_the_next_one_if_taken(slurm: Scripts) -> None:
    """Outside the ephemeral range; a port somebody listens on is passed over."""
    port = int(slurm.run("prelaunch.sh", "--dry-run").setting("MASTER_PORT"))
    assert port not in ephemeral()
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", port))
        taken.listen()
        again = int(slurm.run("prelaunch.sh", "--dry-run").setting("MASTER_PORT"))
        assert port < again < port + 100  # other jobs of this machine may have taken some, too
        wanted = slurm.run("prelaunch.sh", MASTER_PORT=str(port))
    assert wanted.code == 64
    assert f"found {port} taken" in wanted.err


def test_the_end_of_the_time_limit_is_told(slurm: Scripts) -> None:
    """DDP_END_TIME is Slurm's EndTime in seconds since the epoch, and empty if unknown."""
    told = "JobId=4242 EndTime=2026-11-21T08:00:00 Command=/x"
    body = f'case "$*" in *hostnames*) echo {HOST}; echo other;; *) echo "TOLD";; esac'
    slurm.fake("scontrol", body.replace("TOLD", told))
    result = slurm.run("prelaunch.sh", "--dry-run", TZ="UTC")
    assert result.setting("DDP_END_TIME") == "1795248000"
    assert result.setting("DDP_NUM_NODES") == "2"
    slurm.fake("scontrol", body.replace("TOLD", told.replace("2026-11-21T08:00:00", "Unknown")))
    assert slurm.run("prelaunch.sh", "--dry-run").setting("DDP_END_TIME") == "''"


def test_spare_nodes_stay_idle(slurm: Scripts) -> None:
    """The step takes the first nodes, and leaves the others to the day one is lost."""
    result = slurm.run("prelaunch.sh", "--dry-run", DDP_SPARE_NODES="1")
    assert {"--nodes=1", "--ntasks=2", f"--nodelist={HOST}"} <= set(result.step.split())
    assert result.setting("WORLD_SIZE") == "2"


def test_an_elastic_run_begins_with_the_most_nodes(slurm: Scripts) -> None:
    """But with no more than it wants; those beyond are spare, and nobody says so twice."""
    result = slurm.run("prelaunch.sh", "--dry-run", DDP_ELASTIC="1:1")
    assert {"--nodes=1", "--ntasks=2", f"--nodelist={HOST}"} <= set(result.step.split())
    assert slurm.run("prelaunch.sh", "--dry-run", DDP_ELASTIC="1:9").setting("WORLD_SIZE") == "4"
    result = slurm.run("prelaunch.sh", "--dry-run", DDP_ELASTIC="1:2", DDP_SPARE_NODES="1")
    assert result.code == 64
    assert "DDP_SPARE_NODES must be unset where DDP_ELASTIC is set" in result.err


def test_requeued_job_keeps_its_seed(slurm: Scripts) -> None:
    """The seed comes from the job, not from the start."""
    first = slurm.run("prelaunch.sh", "--dry-run")
    second = slurm.run("prelaunch.sh", "--dry-run", SLURM_RESTART_COUNT="1")
    assert first.setting("DDP_SEED") == second.setting("DDP_SEED")


def test_array_tasks_take_their_point(slurm: Scripts) -> None:
    """Task n of a sweep adds line n of the points to the trainer's options."""
    points = slurm.directory / "points.txt"
    points.write_text("--lr 0.1 --seed 1\n--lr 0.2 --seed 1\n")
    result = slurm.run(
        "prelaunch.sh",
        "--dry-run",
        DDP_SWEEP_FILE=str(points),
        SLURM_ARRAY_TASK_ID="2",
        SLURM_ARRAY_JOB_ID="90",
    )
    assert result.step.split()[-4:] == ["--lr", "0.2", "--seed", "1"]
    assert result.setting("DDP_RUN_DIR").endswith("slurm-90_2")


@pytest.mark.parametrize("task", ["0", "3"])
def test_an_array_task_without_a_point(slurm: Scripts, task: str) -> None:
    """An --array of one's own that the grid does not have: one line, and nothing is started."""
    points = slurm.directory / "points.txt"
    points.write_text("--lr 0.1\n--lr 0.2\n")
    array = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_JOB_ID": "90"}
    result = slurm.run("prelaunch.sh", DDP_SWEEP_FILE=str(points), **array)
    assert result.code == 64
    (line,) = result.err.splitlines()
    assert f"must have a line {task}" in line


def test_sweep_expands_its_grid(scripts: Scripts) -> None:
    """Every combination is one line of the file and one task of the array."""
    scripts.fake("sbatch", 'printf "%s\\n" "$@"')
    result = scripts.run("sweep.sh", f"{scripts.root}/examples/sweep.grid", "--nodes=2", "--", "-x")
    assert {"--array=1-6", "--nodes=2", "-x"} <= set(result.out.split())
    (points,) = scripts.directory.glob("out/sweep-*.txt")
    lines = [line.split() for line in points.read_text().splitlines()]
    assert lines[0] == ["--lr", "0.01", "--seed", "1"]
    assert lines[-1] == ["--lr", "0.1", "--seed", "3"]


def test_a_refused_sweep_leaves_no_file(scripts: Scripts) -> None:
    """If sbatch fails there are no points that no job will ever take."""
    scripts.fake("sbatch", "echo 'sbatch: error: Invalid partition' >&2; exit 1")
    result = scripts.run("sweep.sh", f"{scripts.root}/examples/sweep.grid", "--partition=nope")
    assert result.code == 64
    assert "Invalid partition" in result.err
    assert not list(scripts.directory.glob("out/*"))


def test_a_controller_that_is_slow_once(slurm: Scripts) -> None:
    """One time-out of scontrol does not make the job believe that there is no Slurm client."""
    real = (slurm.directory / "fake-bin" / "scontrol").read_text()
    mark = slurm.directory / "asked"
    # The first question looks for the scripts, twice; the next one is the first about the place.
    count = f"echo >>{mark}; (($(wc -l <{mark}) > 3)) || exit 1"
    slow = f'if [[ "$*" == *"show job"* ]]; then {count}; fi'
    slurm.fake("scontrol", f"{slow}\n{real}")
    result = slurm.run("prelaunch.sh", "--dry-run")
    assert result.code == 0, result.err
    assert result.step.startswith("srun ")
    assert mark.read_text().count("\n") >= 4


def test_chain_links_its_jobs(scripts: Scripts) -> None:
    """Each job waits for those before it to have stopped unfinished."""
    scripts.fake(
        "sbatch",
        f'cd {scripts.directory}; echo "$DDP_RUN_NAME $DDP_REQUEUE $*" >>calls; wc -l <calls',
    )
    result = scripts.run("chain.sh", "long-run", "3", "--nodes=2", "--", "--epochs", "9")
    assert result.out.split() == ["1", "2", "3"]
    calls = (scripts.directory / "calls").read_text().splitlines()
    assert "--dependency" not in calls[0]
    assert "--dependency=afternotok:1 " in calls[1]
    assert "--dependency=afternotok:1:2 " in calls[2]
    assert all(line.startswith("long-run 0 ") and line.endswith("--epochs 9") for line in calls)


@pytest.mark.parametrize("script", ["sweep.sh", "chain.sh", "interactive.sh"])
def test_job_scripts_say_what_is_missing(scripts: Scripts, script: str) -> None:
    """Wrong use of the small scripts is one line and exit 64."""
    scripts.env["PATH"] = "/usr/bin-without-slurm:/bin"
    arguments = {"sweep.sh": ["nope"], "chain.sh": ["a b"], "interactive.sh": []}
    if script == "interactive.sh":
        scripts.fake("dirname", 'exec /usr/bin/dirname "$@"')
        scripts.env["PATH"] = str(scripts.directory / "fake-bin")
        result = scripts.run(script)  # no bash on this PATH either: env says so
        assert result.code in {64, 127}
        return
    result = scripts.run(script, *arguments[script])
    assert result.code == 64
    assert len(result.err.splitlines()) == 1


def test_a_batch_script_is_no_rank(slurm: Scripts) -> None:
    """In an image of NVIDIA's, Pyxis and Enroot's hook for PyTorch set a rank's variables."""
    slurm.fake("df", "printf 'Type Mounted\\next4 /home\\n'")
    hook = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_PORT": str(4242 + 61000)}
    image = {PYXIS: "/x.sqsh", "PYTORCH_VERSION": "2.11.0"} | hook
    result = slurm.run("prelaunch.sh", "--max-steps", "x", **image)
    assert result.code == 64
    assert "--max-steps" in result.err.splitlines()[-1]  # the user's mistake, and not the hook's
    result = slurm.run("prelaunch.sh", "--dry-run", **image)
    assert result.code == 0, result.err
    assert 10_000 <= int(result.setting("MASTER_PORT")) < 30_000


def test_nested_step_lets_the_jobs_variables_win(slurm: Scripts) -> None:
    """Pyxis takes its options from the environment there, so the names travel in it."""
    option = "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_env"
    slurm.fake("df", "printf 'Type Mounted\\next4 /home\\n'")
    image = {PYXIS: "/x.sqsh", option: "MINE", "PYXIS_CONTAINER_ENV": "ALSO,DDP_OUT"}
    result = slurm.run("prelaunch.sh", "--", "env", **image, NCCL_ALGO="Ring")
    assert result.code == 0, result.err
    (line,) = [line for line in result.out.splitlines() if option in line]
    names = line.partition("=")[2].split(",")
    assert names[0] == "MINE"
    assert {"ALSO", "NCCL_ALGO", "MASTER_ADDR", "MASTER_PORT", "DDP_RUN_DIR"} <= set(names)


def test_ranks_of_a_killed_script_in_a_container_are_told_to_end(slurm: Scripts) -> None:
    """Slurm does so only when Pyxis has removed the script's unpacked container."""
    slurm.fake("df", "printf 'Type Mounted\\next4 /home\\n'")
    told = slurm.directory / "scancel.calls"
    slurm.fake("scancel", f"""echo "$*" >>'{told}'""")
    slurm.fake("squeue", "echo 4242.0 launcher.sh")
    waits = f"touch up; until [[ -s '{told}' ]]; do sleep 0.1; done"
    process = slurm.start("prelaunch.sh", "--", "bash", "-c", waits, **{PYXIS: "/x.sqsh"})
    deadline = time.monotonic() + 20
    while not (slurm.directory / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()  # a zombie would count as alive
    while not told.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    if not told.exists():
        told.write_text("nobody was told: the rank may end")
    slurm.finish(process)
    assert told.read_text() == "--signal=TERM 4242.0\n"

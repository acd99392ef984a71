"""Other people's jobs, sites and folders around ours."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from jobs.backends import surroundings
from jobs.checks import Made
from jobs.messages import UsageError
from jobs.supervisor import run
from rundir.paths import RunDir
from tests.jobs.said import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Scripts

pytestmark = pytest.mark.slow


def test_a_job_submitted_from_within_another(slurm: Scripts) -> None:
    """Of the outer job's variables Slurm overwrites only those that the new job has, too."""
    script = slurm.directory / "slurm_script"  # as slurmd names it
    shutil.copy(slurm.root / "jobs" / "prelaunch.sh", script)
    outer = {
        "SLURM_STEP_ID": "0",
        "SLURM_PTY_PORT": "4711",
        "SLURM_ARRAY_JOB_ID": "99",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_MEM_PER_CPU": "100",
        "SLURM_GPUS": "1",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_CPU_BIND_TYPE": "mask_cpu:",
        "SQUEUE_STATES": "RUNNING",
    }
    slurm.fake("srun", f"env | grep -E '^({'|'.join(outer)})=' >'{slurm.directory}/seen' || :")
    inner = {"SLURM_SUBMIT_DIR": str(slurm.root), "DDP_OUT": str(slurm.directory / "out")}
    told = subprocess.run(
        [script, "--max-steps", "1"],
        env=slurm.env | outer | inner,
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    assert "DDP_JOB_ID                         4242 " in told
    assert "--ntasks=4" in told
    assert "--overlap" not in told
    assert (slurm.directory / "seen").read_text() == "SQUEUE_STATES=RUNNING\n"


def test_what_another_job_chose_is_no_wish_of_the_users(slurm: Scripts) -> None:
    """A rank may submit the next job, which gets its environment."""
    seen = slurm.directory / "seen"
    slurm.fake("srun", f"env -0 >'{seen}'")
    first = slurm.run(
        "prelaunch.sh", "--max-steps", "1", NCCL_DEBUG="TRACE", DDP_TIMESTAMP_INTERVAL="9"
    )
    words = seen.read_text().split("\0")
    rank = dict(word.split("=", 1) for word in words if "=" in word)
    assert rank["MASTER_PORT"] == first.setting("MASTER_PORT")
    new = {"SLURM_JOB_ID": "4243", "SLURM_CPUS_ON_NODE": "48"}
    alone = slurm.run("prelaunch.sh", "--dry-run", **new)
    nested = slurm.run("prelaunch.sh", "--dry-run", **rank | new)
    for name in ("MASTER_PORT", "DDP_RUN_DIR", "DDP_SEED", "OMP_NUM_THREADS"):
        assert nested.setting(name) == alone.setting(name)
        assert nested.setting(name) != first.setting(name)
    assert nested.setting("NCCL_DEBUG") == "TRACE"
    assert nested.setting("DDP_TIMESTAMP_INTERVAL") == "9"
    assert "warning" not in nested.err


@pytest.mark.parametrize("name", ["DDP_NODE", "DDP_PREFLIGHT_STEP", "DDP_STANDBY", "DDP_TASK_RANK"])
def test_what_a_supervisor_tells_its_agents_is_no_setting(scripts: Scripts, name: str) -> None:
    """From outside it replaced the command, and the job finished with nothing run."""
    shown = 'echo "on $DDP_NODE ${DDP_PREFLIGHT_STEP-}${DDP_STANDBY-}${DDP_TASK_RANK-}"; exit 3'
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", shown, **{name: "5"})
    assert result.code == 3, result.err
    log = (result.run_dir / "logs" / "rank-0.log").read_text()
    assert log == f"on {os.uname().nodename} \n"


def test_srun_in_a_batch_job(slurm: Scripts) -> None:
    """Every tutorial's way to start a program would start this one once a rank."""
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    result = slurm.run("prelaunch.sh", **step)
    assert (result.code, "leave srun away" in one_line(result.err)) == (64, True)
    other = slurm.run("prelaunch.sh", **step | {"SLURM_PROCID": "1"})
    assert (other.code, other.err) == (64, "")
    scontrol = slurm.directory / "fake-bin" / "scontrol"
    outer = 'case "$*" in "show step"*) exit 1 ;; esac\n'  # sbatch within another job's step
    scontrol.write_text(scontrol.read_text().replace("case", f"{outer}case", 1))
    assert slurm.run("prelaunch.sh", "--dry-run", **step).code == 0


def test_a_job_without_gpus_on_a_node_that_has_some(slurm: Scripts) -> None:
    """Forgotten options are told; so is one CPU for a rank and all its data loaders."""
    scontrol = slurm.directory / "fake-bin" / "scontrol"
    node = (
        'case "$*" in *"show node"*) echo "NodeName=x Gres=gpu:h100:8(S:0-1) X=1"; exit ;; esac\n'
    )
    scontrol.write_text(scontrol.read_text().replace("case", f"{node}case", 1))
    assert "give --gpus-per-node" in slurm.run("prelaunch.sh", "--dry-run").err
    given = {"SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_ON_NODE": "2"}
    told = slurm.run("prelaunch.sh", "--dry-run", **given).err
    assert "give --gpus-per-node" not in told
    assert "give --cpus-per-task" in told


def test_the_step_in_which_salloc_starts_its_shell(slurm: Scripts) -> None:
    """Many sites have it so: the counts there are the job's, unlike those of srun --pty."""
    step = {"SLURM_STEP_ID": "4294967290", "ENVIRONMENT": "", "SLURM_NTASKS": "16"}
    assert "--ntasks=16" in slurm.run("prelaunch.sh", "--dry-run", **step).step
    step |= {"SLURM_STEP_ID": "0"}
    assert "--ntasks=2" in slurm.run("prelaunch.sh", "--dry-run", **step).step


def test_salloc_on_a_login_node_counts_the_nodes_cpus(slurm: Scripts) -> None:
    """There SLURM_CPUS_ON_NODE is not set, and the login node's own cores mean nothing."""
    cpus = {"SLURM_JOB_CPUS_PER_NODE": "72(x2),36", "ENVIRONMENT": ""}
    assert slurm.run("prelaunch.sh", "--dry-run", **cpus).setting("OMP_NUM_THREADS") == "36"


def test_gpus_asked_for_as_a_sum_on_fewer_nodes(slurm: Scripts) -> None:
    """16 GPUs on 2 nodes are 8 on the one that is left."""
    asked = {"SLURM_GPUS": "16", "SLURM_GPUS_ON_NODE": "8"}
    words = slurm.run("prelaunch.sh", "--dry-run", **asked, DDP_SPARE_NODES="1").step.split()
    assert "--gpus=8" in words
    assert "--gpus" not in slurm.run("prelaunch.sh", "--dry-run", **asked).step


def test_a_node_whose_name_has_dots(slurm: Scripts) -> None:
    """Slurm's own name of it is the one that scontrol and the other nodes know."""
    name = "gpu1.cluster.example"
    result = slurm.run("prelaunch.sh", "--dry-run", SLURMD_NODENAME=name)
    assert result.code == 0, result.err
    assert "srun" in result.step


def test_a_heterogeneous_job(slurm: Scripts) -> None:
    """Ranks would run in the first of its allocations, and the rest would idle unseen."""
    result = slurm.run("prelaunch.sh", "--dry-run", SLURM_HET_SIZE="2")
    assert (result.code, "submit one, without a :" in result.err) == (64, True)


def test_our_ranks_need_no_mpi(slurm: Scripts) -> None:
    """Where pmix is a site's default, srun in a container would not find its library."""
    ours = slurm.run("prelaunch.sh", "--dry-run", SLURM_CPUS_PER_TASK="6").step.split()
    assert {"--mpi=none", "--wait=0", "--cpus-per-task=6"} <= set(ours)
    assert "--mpi=none" not in slurm.run("prelaunch.sh", "--dry-run", "--", "true").step


@pytest.mark.parametrize("words", [(), ("--", "true")])
@pytest.mark.parametrize("mpi", ["pmix", "pmi2", "pmix_v4"])
def test_ranks_of_mpi(slurm: Scripts, mpi: str, words: tuple[str, ...]) -> None:
    """DDP_MPI is what srun gets, whatever the ranks run; a version of a type is one, too."""
    step = slurm.run("prelaunch.sh", "--dry-run", *words, DDP_MPI=mpi).step.split()
    assert [word for word in step if word.startswith("--mpi")] == [f"--mpi={mpi}"]


@pytest.mark.parametrize("mpi", ["openmpi", "types", "pmi"])
def test_a_type_of_mpi_that_srun_does_not_have(slurm: Scripts, mpi: str) -> None:
    """One line with those that there are; srun would say it once a node, and name none."""
    result = slurm.run("prelaunch.sh", "--", "true", DDP_MPI=mpi)
    assert result.code == 64
    told = f"found '{mpi}' where it shows none, pmi2, pmix, pmix_v4; set one of them, or unset it"
    assert told in result.err.splitlines()[-1]
    assert not list(slurm.directory.glob("out"))


def test_mpi_needs_a_task_for_each_rank(slurm: Scripts) -> None:
    """torchrun's ranks of one task would all be the same rank of MPI."""
    one_task = {
        "SLURM_NTASKS": slurm.env["SLURM_JOB_NUM_NODES"],
        "DDP_NPROC_PER_NODE": "2",
        "DDP_MPI": "pmix",
    }
    result = slurm.run("prelaunch.sh", "--", "true", **one_task)
    assert result.code == 64
    assert "DDP_MPI needs a task for each rank; found 2 ranks a task" in result.err
    assert not list(slurm.directory.glob("out"))


def test_mpi_in_place(scripts: Scripts) -> None:
    """Each rank would be a world of its own: mpirun is to start them, as one rank of ours."""
    result = scripts.run("prelaunch.sh", "--", "true", DDP_MPI="pmix")
    assert result.code == 64
    assert "DDP_NPROC_PER_NODE=1 jobs/prelaunch.sh -- mpirun -n 2 …" in result.err
    assert not list(scripts.directory.glob("out"))
    one = scripts.run("prelaunch.sh", "--", "true", DDP_MPI="pmix", DDP_NPROC_PER_NODE="1")
    assert one.code == 0, one.err


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user needs root")
def test_a_run_of_a_colleagues(anybody: Scripts) -> None:
    """In a folder of a group's, what the first user made may be the first user's alone."""
    run_dir = anybody.directory / "out" / "shared"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "events.jsonl").touch(0o644)
    for path in (run_dir, run_dir / "checkpoints"):
        path.chmod(0o777)
    shutil.copytree(anybody.root / "rundir", anybody.directory / "rundir")
    jobs = shutil.copytree(anybody.root / "jobs", anybody.directory / "jobs")
    stranger = ("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups")
    told = subprocess.run(
        [*stranger, jobs / "prelaunch.sh", "--", "true"],
        env=anybody.env | {"DDP_RUN_NAME": "shared", "HOME": "/"},
        cwd=anybody.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 64
    assert "events.jsonl is root:root -rw-r--r--; its owner can chmod" in one_line(told.stderr)
    assert not list(run_dir.glob("lock*"))


@pytest.mark.parametrize("name", ["rc", "none"])
def test_any_image_is_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Also where srun or PYXIS_CONTAINER_IMAGE started it: ranks went to the bare machines."""
    (tmp_path / "rc").touch()
    monkeypatch.setattr(surroundings, "_ENROOT", str(tmp_path / name))
    here = surroundings.look_around("/project", "prelaunch.sh", [], {"PATH": ""})
    assert here.is_in_container is (name == "rc")


@pytest.mark.parametrize("is_in_container", [True, False])
def test_a_container_without_a_temporary_directory(
    tmp_path: Path, *, is_in_container: bool
) -> None:
    """A read-only one has none: the remedy is Docker's."""
    here = surroundings.look_around("/project", "prelaunch.sh", [], {"PATH": ""})
    here = here._replace(is_in_container=is_in_container)
    with pytest.raises(UsageError) as refused:
        run.make(RunDir(tmp_path / "run"), Made(), here, "/no/such")
    assert ("(docker run --tmpfs /tmp), or set TMPDIR" in str(refused.value)) is is_in_container
    assert not (tmp_path / "run").exists()

"""Commands of the user's own that bring a launcher of their own."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from jobs.messages import UsageError
from jobs.supervisor import foreign

if TYPE_CHECKING:
    from conftest import Scripts

WARNED = "starts ranks of its own, and each of 4 ranks runs it"


def check(*command: str, **env: str) -> None:
    """Checks the command of 4 ranks, or of WORLD_SIZE."""
    size = int(env.get("WORLD_SIZE", "4"))
    has_gpus = "SLURM_GPUS_ON_NODE" in env
    foreign.check_launcher(command, size, env, has_gpus=has_gpus)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node 2 train.py",
        "/venv/bin/torchrun train.py",
        "python -m torch.distributed.run --nproc-per-node=2 train.py",
        "python3.12 -u -m torch.distributed.launch --nproc_per_node=2 train.py",
        "deepspeed train.py",
        "mpirun -np 2 ./train",
        "/usr/bin/mpiexec ./train",
        "horovodrun -np 2 python train.py",
        "accelerate launch train.py",
    ],
)
def test_a_launcher_in_every_rank_is_refused(command: str) -> None:
    """Each would start a training of its own: two of them on two nodes, and both end well."""
    with pytest.raises(UsageError, match="where every one would train alone; leave "):
        check(*command.split(), SLURM_GPUS_ON_NODE="2")


def test_accelerate_without_gpus_is_warned_of(capfd: pytest.CaptureFixture[str]) -> None:
    """There it starts nothing of its own, and then it is right."""
    check("accelerate", "launch", "train.py")
    assert f"accelerate {WARNED}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("torchrun --nproc-per-node 2 train.py", {"WORLD_SIZE": "1"}),
        ("torchrun --nnodes=2 --node-rank=0 train.py", {}),
        ("torchrun train.py", {"PET_NNODES": "2"}),
        ("accelerate launch --num_machines 2 train.py", {}),
        ("python train.py -m torch.distributed.run", {}),
        ("python -m mine --launcher torchrun", {}),
        ("accelerate env", {}),
        ("bash -c torchrun", {}),
        ("true", {}),
    ],
)
def test_what_is_no_mistake_passes(
    command: str, env: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """One rank may start others; who names the nodes knows; a script's own words are its own."""
    check(*command.split(), **env)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "environ", "is_elastic"),
    [
        ("torchrun --nnodes=1:3 train.py", {}, True),
        ("torchrun --nnodes 1:3 train.py", {}, True),
        ("python -m torch.distributed.run --nnodes=2:4 train.py", {}, True),
        ("torchrun train.py", {"PET_NNODES": "1:3"}, True),
        ("torchrun --nnodes=3 train.py", {"PET_NNODES": "1:3"}, False),
        ("torchrun --nnodes=3 train.py", {}, False),
        ("python train.py --nnodes=1:3", {}, False),
    ],
)
def test_torchrun_on_a_number_of_nodes_that_may_change(
    command: str, environ: dict[str, str], *, is_elastic: bool
) -> None:
    """It is asked for as torchrun itself takes it; what it says itself beats its variables."""
    assert foreign.is_elastic(command.split(), environ) is is_elastic


def test_each_node_of_an_elastic_torchrun_is_a_step(slurm: Scripts) -> None:
    """One that is lost ends its own alone; otherwise all nodes are one step, as ever."""
    slurm.fake("torchrun", "")
    command = ("prelaunch.sh", "--dry-run", "--", "torchrun", "--nnodes=1:2", "train.py")
    words = slurm.run(*command, SLURM_NTASKS="2").step.split()
    assert {"--nodes=1", "--ntasks=1", f"--nodelist={socket.gethostname()}"} <= set(words)
    words = slurm.run(*command).step.split()  # two torchruns on a node have no part in it
    assert {"--nodes=2", "--ntasks=4"} <= set(words)


def test_in_place_nothing_describes_the_batch_scripts_own_task(scripts: Scripts) -> None:
    """Where no client works: by SLURM_NTASKS Lightning expects srun's SLURM_PROCID beside it."""
    scripts.fake("srun", "exit 1")
    scripts.fake("scontrol", "exit 1")
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "ENVIRONMENT": "BATCH"}
    words = ("bash", "-c", "compgen -e SLURM_ | paste -sd' '")
    result = scripts.run("prelaunch.sh", "--", *words, **job, **dict.fromkeys(names, "1"))
    assert result.code == 0, result.err
    seen = (result.run_dir / "logs" / "rank-1.log").read_text().split()
    assert seen == ["SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"]


@pytest.mark.slow
def test_the_batch_script_refuses_before_it_writes(scripts: Scripts) -> None:
    """One line, 64, nothing left behind; the same command in one rank starts."""
    result = scripts.run("prelaunch.sh", "--", "torchrun", "train.py")
    assert result.code == 64
    assert "found torchrun in each of 2 ranks" in result.err
    assert not (scripts.directory / "out").exists()
    scripts.fake("torchrun", "echo started")
    result = scripts.run("prelaunch.sh", "--", "torchrun", "train.py", DDP_NPROC_PER_NODE="1")
    assert (result.code, result.out) == (0, "[0] started\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "code", "is_requested"), [("", 3, False), ("trap 'exit 4' USR1;", 4, True)]
)
def test_a_failure_after_a_warning_that_nobody_took_is_a_failure(
    scripts: Scripts, handler: str, code: int, *, is_requested: bool
) -> None:
    """A program without a handler is not told of the time limit, so what it dies of is its own."""
    script = f"{handler} echo up; until [ -e go ]; do sleep 0.1; done; sleep 1; exit 3"
    process = scripts.start("prelaunch.sh", "--", "bash", "-c", script, DDP_NPROC_PER_NODE="1")
    log = "out/*/logs/rank-0.log"
    while not any(path.read_text() for path in scripts.directory.glob(log)):
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    while not any(
        '"signal"' in e.read_text() for e in scripts.directory.glob("out/*/events.jsonl")
    ):
        time.sleep(0.02)
    (scripts.directory / "go").touch()
    result = scripts.finish(process)
    assert result.code == code
    assert [end["requested"] for end in result.of("rank_end")] == [is_requested]
    assert len(result.of("first_failure")) == (not is_requested)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("pyhton", "found none named 'pyhton' on "),
        ("./there.py", "found that './there.py' may not; chmod +x it, or name what runs it"),
        ("./gone.py", "found none named './gone.py' on "),
        (
            "HF_TOKEN=hf_secret",
            "found the setting 'HF_TOKEN=…'; write -- env HF_TOKEN=…, or export",
        ),
        ("--epochs", "found the option '--epochs'; leave -- away for the trainer's own options"),
    ],
)
def test_a_mistyped_command(scripts: Scripts, word: str, told: str) -> None:
    """One line before anything is written, and not one of setpriv's from every rank."""
    (scripts.directory / "there.py").write_text("print()\n")
    result = scripts.run("prelaunch.sh", "--", word, "train.py")
    assert result.code == 64
    assert told in result.err.splitlines()[-1]
    assert not list(scripts.directory.glob("out"))


def test_a_program_that_only_compute_nodes_have(slurm: Scripts) -> None:
    """Under salloc the script runs on a login node; a batch job's sees what its ranks see."""
    words = ("prelaunch.sh", "--dry-run", "--", "nvidia-smi-of-the-node")
    assert slurm.run(*words).code == 64
    assert slurm.run(*words, ENVIRONMENT="").code == 0

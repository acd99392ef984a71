"""Commands of the user's own that bring a launcher of their own."""

from __future__ import annotations

import re
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.messages import UsageError
from jobs.supervisor import foreign

if TYPE_CHECKING:
    from conftest import Scripts

WARNED = "starts ranks of its own, and each of 4 ranks runs it"
PAGE = Path(__file__).parents[2] / "docs" / "foreign-programs.md"


def check(*command: str, **env: str) -> None:
    """Checks the command of 4 ranks, or of WORLD_SIZE."""
    size = int(env.get("WORLD_SIZE", "4"))
    has_gpus = "SLURM_GPUS_ON_NODE" in env
    foreign.check_launcher(command, size, env, has_gpus=has_gpus)


def rows() -> list[list[str]]:
    """Give the cells of the page's table of launchers."""
    section = PAGE.read_text(encoding="utf-8").split("\n## Launchers\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_has_the_launchers_of_the_code() -> None:
    """Each once, by the same names, with the same way out and the same line to write."""
    shown = {}
    for name, others, _, told, instead, _ in rows():
        commands = [c.removeprefix("python ") for c in code(name) + code(others)]
        options, variables = code(told)[:], [c for c in code(told) if c.isupper()]
        options = [c for c in options if c.startswith("--")]
        shown[code(name)[0]] = (commands, options, "".join(variables), instead.replace("`", ""))
    assert shown == {
        name: (list(of.commands), list(of.options), of.variable, of.instead)
        for name, of in foreign.LAUNCHERS.items()
    }


@pytest.mark.parametrize("row", rows(), ids=lambda row: code(row[0])[0])
def test_a_launcher_in_every_rank_does_what_the_page_says(
    row: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Refused with the line to write, under every name; told of the others, or in one rank, not.

    Nor where it is no launcher without an option that the page names.
    """
    name, others, several, told, instead, _ = row
    for command in code(name) + code(others):
        starting = [f"{option}=2" for option in code(several) if option.startswith("--")]
        variables = {name: "2" for name in code(several) if name.isupper()}
        if starting or variables:
            check(*command.split(), "train.py")
        words = [*command.split(), *starting, "train.py"]
        with pytest.raises(UsageError, match=re.escape(f"({instead.replace('`', '')})")):
            check(*words, **variables, SLURM_GPUS_ON_NODE="2")
        check(*words, **variables, WORLD_SIZE="1")
        assert capfd.readouterr().err == ""
        if several == "refused with GPUs, else a warning":
            check(*words)
            assert f"{code(name)[0]} {WARNED}" in capfd.readouterr().err
        else:
            assert several.startswith("refused")
            with pytest.raises(UsageError):
                check(*words, **variables)
        options = [f"{c}=2" for c in code(told) if c.startswith("--")]
        if options:
            check(*command.split(), *options, *starting, "train.py")
        assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "command",
    [
        "/venv/bin/torchrun train.py",
        "torchrun --standalone --nnodes=1 --nproc-per-node=2 train.py",
        "torchrun --nnodes 1:1 train.py",
        "python3.12 -u -m torch.distributed.run --nproc-per-node=2 train.py",
        "python /venv/bin/torchrun train.py",
        "deepspeed --no_ssh --node_rank=0 train.py",
        "env A=b torchrun train.py",
        "env -u A -i timeout -k 5 10 nice -n 5 numactl -m all -N 0 torchrun train.py",
        "uv run torchrun train.py",
        "conda run -n mine python -m torch.distributed.run train.py",
        "micromamba run -n mine torchrun train.py",
        "pixi run torchrun train.py",
        "nsys profile -o report --trace=cuda,nvtx torchrun train.py",
        "nsys profile --trace cuda,nvtx --output report torchrun train.py",
        "uv run --with deepspeed torchrun train.py",
        "conda run --name mine --no-capture-output torchrun train.py",
        "catchsegv strace -f torchrun train.py",
        "py-spy record -o profile.svg -- torchrun train.py",
        "python -X faulthandler -W ignore -m torch.distributed.run train.py",
        "apptainer exec --nv -B /data:/data /images/torch.sif torchrun train.py",
        "singularity exec --nv torch.sif bash -c torchrun",
        "ch-run image -- torchrun train.py",
        "shifter --image=torch:2 env A=b python -m torch.distributed.run train.py",
    ],
)
def test_a_launcher_is_seen_in_every_form(command: str) -> None:
    """By its path, by Python, behind what starts it; and saying that it is the only one."""
    with pytest.raises(UsageError, match="where every one would train alone; leave "):
        check(*command.split(), PET_NNODES="1")


def test_torchruns_own_word_beats_its_variable() -> None:
    """As it does for torchrun."""
    with pytest.raises(UsageError, match="every one would train alone"):
        check("torchrun", "--nnodes=1", "train.py", PET_NNODES="2")


@pytest.mark.parametrize(
    "text",
    [
        "exec torchrun train.py",
        "A=b exec torchrun train.py >log 2>&1",
        "source venv/bin/activate && cd /work; torchrun \\\n --nproc-per-node 2 train.py",
        "set -e\nexport A=b\n\nexec env C=d torchrun train.py $LOCAL_RANK",
        "B=c; bash -ec 'torchrun train.py'",
        "torchrun train.py | tee log & wait",
    ],
)
def test_a_launcher_is_seen_in_a_shells_text(text: str) -> None:
    """As its last command, behind commands that decide nothing about it."""
    with pytest.raises(UsageError, match="found torchrun in each of 4 ranks"):
        check("bash", "-c", text)
    check("bash", "-c", text.replace("torchrun", "torchrun --nnodes=2"))


@pytest.mark.parametrize("start", ["{}", "bash -e {}", "timeout 10 env A=b {}"])
def test_a_launcher_is_seen_in_a_script(tmp_path: Path, start: str) -> None:
    """As in a shell's text; a script that ends with itself, or is none, is let be."""
    path = tmp_path / "run.sh"
    command = start.format(path).split()
    head = "#!/usr/bin/env bash\n# a script: 'not quoted\nexport A=b\n"
    path.write_text(f"{head}exec torchrun \\\n  --nproc-per-node 2 train.py\n")
    with pytest.raises(UsageError, match="found torchrun in each of 4 ranks"):
        check(*command)
    for text in (
        f"{head}torchrun --nnodes $SLURM_NNODES train.py\n",
        f"{head}if [ $RANK = 0 ]; then\n  ray start --head\nfi\n",
        f"{head}exec {path}\n",
    ):
        path.write_text(text)
        check(*command)
    path.unlink()
    check(*command)


@pytest.mark.parametrize("command", ["mpirun -np 4 ./train", "/usr/bin/mpiexec ./train"])
def test_who_writes_mpirun_is_told_of_slurms(command: str) -> None:
    """In a job srun starts MPI's ranks; on one machine mpirun does, in one rank of ours."""
    told = "DDP_MPI=pmix jobs/prelaunch.sh -- ./program.*DDP_NPROC_PER_NODE=1"
    with pytest.raises(UsageError, match=told):
        check(*command.split())


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("torchrun train.py", {"PET_NNODES": "2"}),
        ("torchrun --nnodes=1:2 --rdzv-backend=c10d train.py", {}),
        ("accelerate launch --num-machines 2 train.py", {}),
        ("python train.py -m torch.distributed.run", {}),
        ("python -m mine --launcher torchrun", {}),
        ("accelerate env", {}),
        ("ray status", {}),
        ("tune run full_finetune_distributed --config mine.yaml", {}),
        ("llamafactory-cli train mine.yaml", {"NNODES": "2", "SLURM_GPUS_ON_NODE": "2"}),
        ("llamafactory-cli export mine.yaml", {"SLURM_GPUS_ON_NODE": "2"}),
        ("axolotl train mine.yml --launcher python", {"SLURM_GPUS_ON_NODE": "2"}),
        ("swift sft mine.yaml", {"NPROC_PER_NODE": "2", "NNODES": "2"}),
        ("timeout 10 ./mine.sh torchrun", {}),
        ("setsid --wait ./mine.sh torchrun", {}),
        ("nsys profile --stats ./mine torchrun", {}),
        ("uv run --with deepspeed --extra ray python train.py", {}),
        ("uv run --group deepspeed train.py", {}),
        ("apptainer exec --nv torch.sif python train.py --launcher torchrun", {}),
        ("apptainer exec --nv torch.sif mine --launcher torchrun", {}),
        ("python -X torchrun train.py", {}),
        ("true", {}),
        ("env", {}),
        ("bash", {}),
        ("bash mine.sh torchrun", {}),
    ],
)
def test_what_is_no_mistake_passes(
    command: str, env: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Who names the nodes knows; a script's own words are its own."""
    check(*command.split(), **env)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "text",
    [
        "[ $RANK = 0 ] && ray start --head",
        "if [ $RANK = 0 ]; then ray start --head; fi",
        "echo 'torchrun",
        "",
    ],
)
def test_a_shell_that_decides_is_left_alone(text: str) -> None:
    """Whoever starts a launcher in one rank of several knows of the others."""
    check("bash", "-c", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "environ", "is_elastic"),
    [
        ("torchrun --nnodes=1:3 train.py", {}, True),
        ("torchrun --nnodes 1:3 train.py", {}, True),
        ("python -m torch.distributed.run --nnodes=2:4 train.py", {}, True),
        ("env A=b torchrun --nnodes=1:3 train.py", {}, True),
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


@pytest.mark.slow
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

"""The settings: a pure function of the environment and of what is known of the job."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jobs import forwarded
from jobs.backends.base import Layout
from jobs.messages import UsageError
from jobs.supervisor import settings, show
from jobs.supervisor.settings import Settings
from jobs.supervisor.settings_table import Known

ROOT = Path(__file__).resolve().parents[2]
KNOWN = Known(
    root="/project",
    cwd="/home/me",
    submit_dir="/home/me",
    job_id="7",
    job_id_origin="Slurm",
    is_own_command=False,
    num_nodes=2,
    num_nodes_allocated=3,
    kill_wait="30",
    end_time="",
)


def resolved(known: Known = KNOWN, **environ: str) -> Settings:
    """The settings of a job."""
    values = Settings(environ)
    settings.resolve_run(values, environ, known)
    settings.resolve_ranks(values, environ, Layout(2, 4, 2, 2), 8, 0)
    return values


def test_every_setting_says_where_it_came_from() -> None:
    """From the environment, or from what."""
    values = resolved(DDP_OUT="out", DDP_REQUEUE="off", DDP_MONITOR="")
    assert (values["DDP_OUT"], values.origins["DDP_OUT"]) == ("/home/me/out", "the environment")
    assert values["DDP_RUN_DIR"] == "/home/me/out/slurm-7"
    assert (values["DDP_REQUEUE"], values["DDP_MONITOR"]) == ("0", "1")
    assert (values["DDP_GRACE"], values.origins["DDP_GRACE"]) == (
        "25",
        "Slurm's KillWait of 30 s, less 5",
    )
    assert values["OMP_NUM_THREADS"] == "4"
    assert values.origins["WORLD_SIZE"] == "2 nodes, 2 ranks on each"
    assert "DDP_OUT" not in values.chosen.split()
    assert "DDP_SEED" in values.chosen.split()


def test_the_environment_is_not_changed() -> None:
    """Ranks get the user's own, and the settings beside it."""
    environ = {"DDP_OUT": "/x", "MINE": "1"}
    values = Settings(environ)
    settings.resolve_run(values, environ, KNOWN)
    assert environ == {"DDP_OUT": "/x", "MINE": "1"}
    assert values.environ(environ)["MINE"] == "1"
    assert values.environ(environ)["DDP_SUPERVISED"] == "1"


def test_what_another_job_chose_is_forgotten() -> None:
    """It is no wish of the user's."""
    environ = {"DDP_CHOSEN": "DDP_SEED NCCL_DEBUG", "DDP_SEED": "1", "NCCL_DEBUG": "X", "A": "1"}
    settings.forget_chosen(environ)
    assert environ == {"A": "1"}


def test_a_command_of_ones_own_is_not_started_again() -> None:
    """Unless its user says so."""
    known = KNOWN._replace(is_own_command=True)
    assert resolved(known)["DDP_MAX_RESTARTS"] == "0"
    assert resolved(known)["PYTHONUNBUFFERED"] == "1"
    assert resolved(known, DDP_MAX_RESTARTS="2")["DDP_MAX_RESTARTS"] == "2"


def test_a_project_that_pythonpath_cannot_name() -> None:
    """Its modules would not be found."""
    with pytest.raises(UsageError, match=r"must have no ':' in its name.*; found /my:project; ren"):
        resolved(KNOWN._replace(root="/my:project"))


def test_spare_nodes_must_be_there() -> None:
    """One at least has to train."""
    assert resolved(DDP_SPARE_NODES="2")["DDP_SPARE_NODES"] == "2"
    with pytest.raises(UsageError, match="DDP_SPARE_NODES must be a whole number from 0 to 2"):
        resolved(DDP_SPARE_NODES="3")


def test_options_of_a_successor_are_words_of_a_shell() -> None:
    """Sbatch would refuse them when the job is to go on, hours later."""
    assert resolved(DDP_SBATCH_ARGS="--comment='a b'")["DDP_SBATCH_ARGS"] == "--comment='a b'"
    with pytest.raises(UsageError, match=r"as a shell takes them; found No closing quotation"):
        resolved(DDP_SBATCH_ARGS="--comment='a b")


def test_an_elastic_run_needs_no_kill() -> None:
    """Who asks for one is taken to have given it; unset, nothing is elastic."""
    values = resolved(DDP_ELASTIC="1:3")
    assert (values["DDP_NO_KILL"], values.origins["DDP_NO_KILL"]) == ("1", "DDP_ELASTIC")
    assert resolved(DDP_ELASTIC="")["DDP_NO_KILL"] == "0"
    assert "DDP_ELASTIC" not in resolved().values


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("2", "DDP_ELASTIC must be MIN:MAX, the fewest and the most nodes; found '2'"),
        ("3:2", "must be MIN:MAX"),
        ("0:2", "must be MIN:MAX"),
        ("1:x", "must be MIN:MAX"),
        ("4:8", "the job must have the 4 nodes that DDP_ELASTIC=4:8 needs; found 3 nodes"),
    ],
)
def test_bounds_of_an_elastic_run(value: str, told: str) -> None:
    """Two whole numbers in order, and an allocation that has the first."""
    with pytest.raises(UsageError, match=told):
        resolved(DDP_ELASTIC=value)


@pytest.mark.parametrize("name", ["", "a", "slurm-7", "a longer name, with more: é"])
def test_the_seed_is_that_of_cksum(name: str) -> None:
    """Whoever wants to know it can ask a shell."""
    told = subprocess.run(["cksum"], input=name.encode(), capture_output=True, check=True).stdout
    assert settings.cksum(name) == int(told.split()[0])


@pytest.mark.parametrize(
    "word",
    ["", "a", "a b", "it's", "a,b", "*?[]", "#x", "a#b", "~x", "a=~b", "a\nb", "a\x1b[1m", "é",
     "{a,b}", "$x `y`", "a\\b", "é'\\\n\u2028", "!", "-x=y", "a:~", "<>|&;()", "^", "%@+=:"],
)  # fmt: skip
def test_a_shell_reads_a_quoted_word_back(word: str) -> None:
    """So the step's command can be pasted, and what is shown is one line, obeyed by no terminal."""
    assert show.quoted(word).isprintable()
    told = subprocess.run(
        ["bash", "-c", f"printf %s {show.quoted(word)}"],
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == word


def test_an_empty_setting_is_not_shown() -> None:
    """Beside the Python that was chosen, DDP_PYTHON would stand there twice."""
    shown = show.table(resolved(), {"DDP_PYTHON": "", "CUDA_VISIBLE_DEVICES": ""}, "/p")
    assert shown.count("DDP_PYTHON") == 1
    assert "CUDA_VISIBLE_DEVICES" in shown


def test_hosts_without_a_python_forward_the_same_names() -> None:
    """container/pyxis_env.sh runs where sbatch does, which may have none."""
    names = (
        "NCCL_DEBUG",
        "DDP_OUT",
        "DDP_HOME",
        "PYTHONHOME",
        "PYTHONPATH",
        "CUDA_DIR",
        "CUDA_DIRS",
    )
    environ = dict.fromkeys((*names, "CUDA_DIR", "PATHS", "MY_NCCL_DEBUG"), "1")
    shell = f"HERE={ROOT}/container; . $HERE/mounts.sh; forwarded_names"
    told = subprocess.run(
        ["bash", "-c", shell],
        env=environ | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = forwarded.forwarded_names(environ)
    assert sorted(told.stdout.split()) == found
    assert found == ["CUDA_DIRS", "DDP_OUT", "NCCL_DEBUG", "PYTHONPATH"]

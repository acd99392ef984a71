"""Ranks in containers: DDP_IMAGE, a script or a shell in the image, and what Pyxis is told."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Result, Scripts

HOST = socket.gethostname()
MOUNTED = "/sys/x"  # on a mount of its own, as a directory of the host would be
PYXIS = "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image"


def test_host_with_an_image(slurm: Scripts) -> None:
    """DDP_IMAGE: the ranks run in containers, with mounts; the user's variables win."""
    (slurm.directory / "ddp.sqsh").write_text("hsqs")
    result = slurm.run("prelaunch.sh", "--dry-run", DDP_IMAGE="./ddp.sqsh", NCCL_ALGO="Ring")
    assert "--container-image=./ddp.sqsh" in result.step
    mounts = [f"{slurm.root}/{part}:/opt/ddp/{part}:ro" for part in ("jobs", "rundir", "monitor")]
    for mount in [*mounts, f"{slurm.directory}:{slurm.directory}"]:
        assert mount in result.step.replace("\\", "")
    assert "/opt/ddp/jobs/launcher.sh" in result.step
    assert {"NCCL_ALGO", "MASTER_ADDR", "MASTER_PORT", "DDP_RUN_DIR"} <= set(_names(result))


def _names(result: Result) -> list[str]:
    """The variables that win over the image's."""
    (word,) = [word for word in result.step.split() if "--container-env=" in word]
    return word.partition("=")[2].replace("\\", "").split(",")


def test_host_with_an_image_and_names_of_ones_own(slurm: Scripts) -> None:
    """Pyxis drops PYXIS_CONTAINER_ENV where srun is told other names: these bring it along."""
    (slurm.directory / "ddp.sqsh").write_text("hsqs")
    mine = {"PYXIS_CONTAINER_ENV": "MINE,,NCCL_ALGO", "NCCL_ALGO": "Ring"}
    result = slurm.run("prelaunch.sh", "--dry-run", DDP_IMAGE="./ddp.sqsh", **mine)
    names = _names(result)
    assert {"MINE", "NCCL_ALGO", "MASTER_ADDR"} <= set(names)
    assert len(set(names)) == len(names)
    assert "" not in names


@pytest.mark.parametrize("own", ["", "/mine"])
def test_ranks_of_an_image_work_in_the_submit_directory(slurm: Scripts, own: str) -> None:
    """As on the bare machine: what is named with ./ is found. A place of the user's own wins."""
    (slurm.directory / "ddp.sqsh").write_text("hsqs")
    env = {"PYXIS_CONTAINER_WORKDIR": own} if own else {}
    result = slurm.run("prelaunch.sh", "--dry-run", "--", "./x", DDP_IMAGE="./ddp.sqsh", **env)
    wanted = [f"--container-workdir={own or slurm.directory}"]
    assert [word for word in result.step.split() if "--container-workdir" in word] == wanted


@pytest.mark.parametrize("name", ["a,b", "a:b", "a$(touch x)b"])
def test_image_in_a_directory_that_pyxis_cannot_be_told(
    scripts: Scripts, name: str, tmp_path: Path
) -> None:
    """Pyxis would split the mount, or Enroot's bash run it: one line, and nothing is started."""
    submit = tmp_path / name
    submit.mkdir()
    scripts.fake_slurm(HOST)
    (submit / "ddp.sqsh").write_text("hsqs")
    settings = {"DDP_IMAGE": "./ddp.sqsh", "SLURM_SUBMIT_DIR": str(submit)}
    result = scripts.run("prelaunch.sh", "--", "true", cwd=submit, **settings)
    assert result.code == 64
    assert "a path to mount must hold none of" in result.err.splitlines()[-1]
    assert [path.name for path in submit.iterdir()] == ["ddp.sqsh"]


def test_image_without_a_leading_dot(slurm: Scripts) -> None:
    """Pyxis would take ddp.sqsh for a registry image: said before anything starts."""
    (slurm.directory / "ddp.sqsh").touch()
    result = slurm.run("prelaunch.sh", DDP_IMAGE="ddp.sqsh")
    assert result.code == 64
    assert "write ./ddp.sqsh" in result.err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1", "a squashfs file; found something else at"),
        (b"hsqs".ljust(40, b"\0") + (4096).to_bytes(8, "little"), "found 48 of 4096 bytes at"),
        (None, "found './ddp.sqsh': Is a directory"),
    ],
    ids=["text", "truncated", "directory"],
)
def test_image_that_is_no_squashfs_file(slurm: Scripts, content: bytes | None, told: str) -> None:
    """Enroot would say 'Invalid argument', once a node, after the nodes are allocated."""
    image = slurm.directory / "ddp.sqsh"
    image.mkdir() if content is None else image.write_bytes(content)
    result = slurm.run("prelaunch.sh", DDP_IMAGE="./ddp.sqsh")
    assert result.code == 64
    assert told in result.err.splitlines()[-1]
    assert not list(slurm.directory.glob("out"))


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ("data:/data", "'data:/data'"),
        ("./here:/x,/no/such:/y", "no '/no/such'"),
        ("./here:/$HOME", "'/$HOME'"),
        ("./here:/opt/ddp/", "'./here:/opt/ddp/'"),
        ("./here:/opt", "'./here:/opt'"),
    ],
)
def test_mounts_that_cannot_be(slurm: Scripts, mounts: str, found: str) -> None:
    """Told at the door: Pyxis would unpack the image on every node before."""
    (slurm.directory / "ddp.sqsh").write_text("hsqs")
    (slurm.directory / "here").mkdir()
    result = slurm.run("prelaunch.sh", "--", "true", DDP_IMAGE="./ddp.sqsh", DDP_MOUNTS=mounts)
    assert result.code == 64
    assert f"found {found}" in result.err.splitlines()[-1]
    assert not list(slurm.directory.glob("out"))


def test_mounts_of_ones_own(slurm: Scripts) -> None:
    """Spaces in a path, flags, and an empty entry between two commas are no matter."""
    (slurm.directory / "ddp.sqsh").write_text("hsqs")
    (slurm.directory / "a b").mkdir()
    env = {"DDP_IMAGE": "./ddp.sqsh", "DDP_MOUNTS": "./a b:/x:ro,,/usr,tmpfs:/opt/ddp2"}
    result = slurm.run("prelaunch.sh", "--dry-run", **env)
    assert f"{slurm.directory},./a b:/x:ro,/usr,tmpfs:/opt/ddp2' " in result.step


@pytest.mark.parametrize("code", [2, 127])
def test_image_without_a_shell(scripts: Scripts, code: int) -> None:
    """No rank can start in it: told, and not tried again."""
    scripts.fake_slurm(HOST)
    scripts.fake(
        "srun", f"if [[ $1 == --help ]]; then echo --container-image; else exit {code}; fi"
    )
    result = scripts.run("prelaunch.sh", "--epochs", "1", DDP_IMAGE="debian")
    assert result.code == 64
    last = result.err.splitlines()[-1]
    assert "DDP_IMAGE must be an image with bash and Python 3.9 or later" in last
    assert "found that launcher.sh cannot start in debian" in last
    assert len(result.of("start")) == 1


def test_image_without_pyxis(scripts: Scripts) -> None:
    """An srun that knows no containers is said so."""
    scripts.fake_slurm(HOST, pyxis=False)
    result = scripts.run("prelaunch.sh", DDP_IMAGE="ubuntu")
    assert result.code == 64
    assert "Pyxis" in result.err


def test_in_the_container_with_a_client(slurm: Scripts) -> None:
    """A nested srun inherits image and mounts, and must not name them again."""
    result = slurm.run("prelaunch.sh", "--dry-run", **{PYXIS: "/x.sqsh"}, DDP_OUT=MOUNTED)
    assert result.step.split()[0] == "srun"
    assert "--container" not in result.step


def show_job(slurm: Scripts, fields: str, *hosts: str) -> None:
    """Let scontrol show these fields of the job, which has these nodes."""
    names = " ".join(hosts)
    job = f"JobId=4242\n   {fields}\n   Command=/nowhere/prelaunch.sh"
    slurm.fake(
        "scontrol", f'case "$*" in *hostnames*) printf "%s\\n" {names};; *) echo "{job}";; esac'
    )


def test_in_the_container_relative_paths_are_the_jobs(slurm: Scripts) -> None:
    """The nested srun inherits ./ddp.sqsh, which is relative to where the job was submitted."""
    show_job(slurm, "WorkDir=/home/a b\n   Comment=x", HOST, "other")
    image = {PYXIS: "./ddp.sqsh", "DDP_OUT": MOUNTED}
    result = slurm.run("prelaunch.sh", "--dry-run", **image)
    assert "'--chdir=/home/a b'" in result.step
    show_job(slurm, f"WorkDir={slurm.directory}", HOST, "other")
    assert "--chdir" not in slurm.run("prelaunch.sh", "--dry-run", **image).step


def _in_our_image(scripts: Scripts) -> dict[str, str]:
    """The environment of a shell in our image that srun, not sbatch, has started."""
    (scripts.directory / "image" / "jobs").mkdir(parents=True)
    return {"DDP_HOME": str(scripts.directory / "image"), "DDP_OUT": MOUNTED}


def test_in_the_container_of_an_srun(slurm: Scripts) -> None:
    """What srun was told of the image, a nested one does not inherit: no rank on a bare machine."""
    image = _in_our_image(slurm)
    result = slurm.run("prelaunch.sh", "--", "true", **image)
    assert result.code == 64
    assert "DDP_IMAGE=./ddp.sqsh jobs/interactive.sh" in result.err.splitlines()[-1]
    assert not (slurm.directory / "srun.calls").exists()
    known = slurm.run("prelaunch.sh", "--dry-run", **image, PYXIS_CONTAINER_IMAGE="./ddp.sqsh")
    assert known.step.startswith("srun ")


def test_in_the_container_of_an_srun_on_one_node(scripts: Scripts) -> None:
    """There the ranks start in place, in this very container."""
    scripts.fake_slurm(HOST)
    result = scripts.run("prelaunch.sh", "--dry-run", **_in_our_image(scripts))
    assert "srun" not in result.step


SOMEBODY, A_GROUP = os.geteuid() + 1, os.getegid() + 2
OWNER = f"UserId=somebody({SOMEBODY}) GroupId=group1({A_GROUP})"


@pytest.mark.skipif(
    subprocess.run(["unshare", "--user", "true"], check=False, capture_output=True).returncode != 0,
    reason="no user namespace can be made here",
)
def test_in_the_container_as_root_the_script_becomes_the_jobs_user(slurm: Scripts) -> None:
    """Remapped to root, srun and sbatch are root to Slurm, which takes nothing from them."""
    slurm.fake("df", "printf 'Type Mounted\\next4 /home\\n'")
    show_job(slurm, OWNER, HOST, "other")
    command = ("--", "bash", "-c", 'echo "$JOB_ID $(id -u):$(id -g) $1"', "_", "a b")
    result = slurm.run("prelaunch.sh", *command, **{PYXIS: "/x.sqsh"}, JOB_ID="mine")
    assert result.code == 0, result.err
    assert f"mine {SOMEBODY}:{A_GROUP} a b" in result.out
    assert len(result.of("start")) == 1


def test_in_the_container_as_root_slurm_takes_no_step(slurm: Scripts) -> None:
    """Where the image or the kernel cannot make us the job's user: what to add."""
    slurm.fake("unshare", "exit 1")
    show_job(slurm, OWNER, HOST, "other")
    result = slurm.run("prelaunch.sh", "--", "true", **{PYXIS: "/x.sqsh"}, DDP_OUT=MOUNTED)
    assert result.code == 64
    assert "--no-container-remap-root" in result.err
    assert not (slurm.directory / "srun.calls").exists()


def test_in_the_container_as_root_on_one_node(scripts: Scripts) -> None:
    """No step is needed there: the ranks start in place."""
    scripts.fake_slurm(HOST)
    scripts.fake("unshare", "exit 1")
    show_job(scripts, OWNER, HOST)
    result = scripts.run("prelaunch.sh", "--dry-run", **{PYXIS: "/x.sqsh"}, DDP_OUT=MOUNTED)
    assert "srun" not in result.step
    assert result.setting("WORLD_SIZE") == "2"


def test_in_the_container_without_a_client_on_one_node(scripts: Scripts) -> None:
    """The ranks start in this container, as many as tasks were asked for."""
    scripts.fake_slurm(HOST)
    scripts.fake("scontrol", "exit 1")
    result = scripts.run("prelaunch.sh", "--dry-run", **{PYXIS: "/x.sqsh"}, DDP_OUT=MOUNTED)
    assert "srun" not in result.step
    assert result.setting("WORLD_SIZE") == "2"
    assert result.setting("DDP_JOB_ID") == "4242"


@pytest.mark.parametrize(
    ("configuration", "why"),
    [("/dev/null", "libc.so.6: GLIBC_2.34 not found"), ("/no/such.conf", "no /no/such.conf")],
)
def test_in_the_container_without_a_client_on_several_nodes(
    slurm: Scripts, configuration: str, why: str
) -> None:
    """No way to start the other node's ranks: why, and both remedies, as commands to paste.

    A client waits a minute for its configuration each time, so that one without it is not asked.
    """
    asked = slurm.directory / "asked"
    slurm.fake("scontrol", f"touch {asked}; echo 'libc.so.6: GLIBC_2.34 not found'; exit 1")
    result = slurm.run("prelaunch.sh", **{PYXIS: "./x y.sqsh"}, SLURM_CONF=configuration)
    assert asked.exists() is (configuration == "/dev/null")
    assert result.code == 64
    assert f"works here ({why}); paste" in result.err
    assert "pyxis_env.sh" in result.err
    assert "--container-image='./x y.sqsh' jobs/prelaunch.sh" in result.err
    assert "DDP_IMAGE='./x y.sqsh' sbatch" in result.err
    assert not list(slurm.directory.glob("out"))


def test_output_that_would_be_lost(scripts: Scripts) -> None:
    """In a container whose output directory is not mounted: one line, before anything starts."""
    scripts.fake_slurm(HOST)
    scripts.fake("df", "printf 'Type Mounted\\noverlay /\\n'")
    result = scripts.run("prelaunch.sh", "--", "true", **{PYXIS: "/x.sqsh"})
    assert result.code == 64
    (line,) = [line for line in result.err.splitlines() if "outlive" in line]
    assert "--container-mounts" in line
    assert "pyxis_env.sh" in line
    assert not list(scripts.directory.glob("out"))


def test_in_the_image_its_own_python_runs_the_ranks(scripts: Scripts) -> None:
    """Whatever PATH is; a .venv beside mounted scripts was made for the host."""
    python = scripts.directory / "image" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "the image runs $*"\n')
    python.chmod(0o755)
    image = {"DDP_HOME": str(scripts.directory / "image"), PYXIS: "/x.sqsh"}
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    result = scripts.run("launcher.sh", **image, **place, MASTER_ADDR="a", MASTER_PORT="1")
    assert "the image runs -P -m trainer" in result.out

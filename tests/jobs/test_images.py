"""Ranks in containers: DDP_IMAGE, a script or a shell in the image, and what Pyxis is told."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from jobs.backends import containers
from tests.conftest import Cluster
from tests.jobs.alive import carriers

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


def _show_job(slurm: Scripts, fields: str, *hosts: str) -> None:
    names = " ".join(hosts)
    job = f"JobId=4242\n   {fields}\n   Command=/nowhere/prelaunch.sh"
    slurm.fake(
        "scontrol", f'case "$*" in *hostnames*) printf "%s\\n" {names};; *) echo "{job}";; esac'
    )


def test_in_the_container_relative_paths_are_the_jobs(slurm: Scripts) -> None:
    """The nested srun inherits ./ddp.sqsh, which is relative to where the job was submitted."""
    _show_job(slurm, "WorkDir=/home/a b\n   Comment=x", HOST, "other")
    image = {PYXIS: "./ddp.sqsh", "DDP_OUT": MOUNTED}
    result = slurm.run("prelaunch.sh", "--dry-run", **image)
    assert "'--chdir=/home/a b'" in result.step
    _show_job(slurm, f"WorkDir={slurm.directory}", HOST, "other")
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
    _show_job(slurm, OWNER, HOST, "other")
    command = ("--", "bash", "-c", 'echo "$JOB_ID $(id -u):$(id -g) $1"', "_", "a b")
    result = slurm.run("prelaunch.sh", *command, **{PYXIS: "/x.sqsh"}, JOB_ID="mine")
    assert result.code == 0, result.err
    assert f"mine {SOMEBODY}:{A_GROUP} a b" in result.out
    assert len(result.of("start")) == 1


def test_in_the_container_as_root_slurm_takes_no_step(slurm: Scripts) -> None:
    """Where the image or the kernel cannot make us the job's user: what to add."""
    slurm.fake("unshare", "exit 1")
    _show_job(slurm, OWNER, HOST, "other")
    result = slurm.run("prelaunch.sh", "--", "true", **{PYXIS: "/x.sqsh"}, DDP_OUT=MOUNTED)
    assert result.code == 64
    assert "--no-container-remap-root" in result.err
    assert not (slurm.directory / "srun.calls").exists()


def test_in_the_container_as_root_on_one_node(scripts: Scripts) -> None:
    """No step is needed there: the ranks start in place."""
    scripts.fake_slurm(HOST)
    scripts.fake("unshare", "exit 1")
    _show_job(scripts, OWNER, HOST)
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


class Attempts(NamedTuple):
    """A job with DDP_IMAGE whose command fails once and is started again."""

    scripts: Scripts

    def run(self, pyxis: str, *, num_up: int = 1, **env: str) -> Result:
        """Run it where plugstack.conf has these arguments and one rank of `num_up` comes up."""
        scripts, image = self.scripts, self.scripts.directory / "ddp.sqsh"
        image.write_text("hsqs")
        conf = scripts.directory / "slurm.conf"
        conf.write_text("PluginDir=/usr/lib/slurm\n")
        (scripts.directory / "plugstack.conf").write_text(f"required spank_pyxis.so {pyxis}\n")
        settings = {"DDP_IMAGE": str(image), "SLURM_CONF": str(conf), "DDP_MAX_RESTARTS": "1"}
        settings |= {"SLURM_NTASKS": str(num_up), "TMPDIR": str(scripts.directory)}
        return scripts.run("prelaunch.sh", "--", "false", **settings, **env)

    def options(self, name: str, num_steps: int = 2) -> list[str]:
        """What the steps of launchers were given for an option, in their order."""
        lines = (self.scripts.directory / "srun.calls").read_text().splitlines()
        found = [re.findall(rf"--{name}=(\S*)", line) for line in lines if "launcher.sh" in line]
        assert len(found) == num_steps
        return [value for values in found for value in values]


@pytest.fixture
def attempts(scripts: Scripts) -> Attempts:
    """With an srun that starts rank 0 and no container."""
    scripts.fake_slurm(HOST)
    scripts.fake(
        "srun",
        f"""if [[ $1 == --help ]]; then echo --container-image; exit; fi
        echo "$*" >>'{scripts.directory}/srun.calls'
        while [[ $1 == -* ]]; do shift; done
        if [[ $1 != */launcher.sh ]]; then exec "$@"; fi
        export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_ID=0
        export SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_STEP_TASKS_PER_NODE=$SLURM_NTASKS
        exec {scripts.root}/jobs/launcher.sh "${{@:2}}" """,
    )
    return Attempts(scripts)


def test_a_restart_uses_the_container_that_is_there(attempts: Attempts) -> None:
    """Unpacked once; never attached to what is left of the last attempt."""
    result = attempts.run("container_scope=job")
    first, second = attempts.options("container-name")
    assert first == second
    launch_id = result.of("settings")[0]["settings"]["DDP_LAUNCH_ID"]["value"]
    assert first == f"ddp-{launch_id}:no_exec"


def test_a_node_that_may_have_unpacked_half_of_it(attempts: Attempts) -> None:
    """One of two ranks never came up: the next attempt's container has another name."""
    attempts.run("container_scope=job", num_up=2)
    first, second = attempts.options("container-name")
    assert first != second


@pytest.mark.parametrize(
    ("pyxis", "image", "reuse"),
    [
        (["use_squashfuse=1"], "./ddp.sqsh", (False, True)),
        (["use_squashfuse=1"], "debian", (False, False)),
        (["use_squashfuse=1", "container_scope=job"], "debian", (True, True)),
        (["use_squashfuse=1", "importer=/opt/importer"], "debian", (False, True)),
    ],
)
def test_a_registrys_image_is_not_mounted(
    pyxis: list[str], image: str, reuse: tuple[bool, bool]
) -> None:
    """Ranks that wait would have each node fetch and unpack it once more."""
    here: Any = SimpleNamespace(environ={})
    assert containers._reuse(here, image, pyxis) == reuse  # noqa: SLF001 -- else it takes a job


@pytest.mark.parametrize("num_up", [1, 2])
def test_the_preflight_unpacks_for_the_ranks(attempts: Attempts, num_up: int) -> None:
    """Unless a node did not come up: it may have unpacked half of the image."""
    scripts, text = attempts.scripts, attempts.scripts.directory / "reports"
    ups = [{"event": "rank_up", "attempt": 1, "rank": rank} for rank in range(num_up)]
    text.write_text("".join(f"\x1eddp n{up['rank']}.1 1/1 {json.dumps(up)}\n" for up in ups))
    real = scripts.directory / "fake-bin" / "srun"
    real.rename(real.with_name("srun.ranks"))
    shown = f'echo "$*" >>{scripts.directory}/srun.calls; cat {text}; exit'
    scripts.fake("srun", f'[[ ${{DDP_PREFLIGHT_STEP-}} ]] && {{ {shown}; }}\nexec "$0.ranks" "$@"')
    _show_job(scripts, "X=1", HOST, "other")
    nodes = {"SLURM_JOB_NUM_NODES": "2", "MASTER_ADDR": "10.9.8.7", "DDP_PREFLIGHT": "1"}
    scripts.fake("sbcast", 'cp -- "$2" "$3"')
    attempts.run("container_scope=job", num_up=2, DDP_STAGE_IMAGE="1", **nodes)
    preflight, first, _ = attempts.options("container-name", 3)
    assert (preflight == first) is (num_up == 2)
    (local,) = {*attempts.options("container-image", 3)}
    os.kill(*carriers(local), signal.SIGTERM)


@pytest.mark.parametrize(
    ("pyxis", "env"),
    [
        ("", {}),
        ("container_scope=global", {}),
        ("container_scope=job use_squashfuse=1", {}),
        ("container_scope=job", {"PYXIS_CONTAINER_NAME": "mine"}),
        ("container_scope=job", {"PYXIS_CONTAINER_WRITABLE": "1"}),
    ],
)
def test_no_name_of_ours(attempts: Attempts, pyxis: str, env: dict[str, str]) -> None:
    """Nobody would remove it after the job, nothing is unpacked, or it is the user's own."""
    attempts.run(pyxis, **env)
    assert attempts.options("container-name") == []


def test_the_image_is_copied_to_the_nodes(attempts: Attempts) -> None:
    """Once a job, by a name nobody can guess; Slurm's SIGTERM at the end removes the copy."""
    directory = attempts.scripts.directory
    attempts.scripts.fake("sbcast", f'echo >>\'{directory}/sbcast.calls\'; cp -- "$2" "$3"')
    attempts.run("", DDP_STAGE_IMAGE="1")
    (image,) = {*attempts.options("container-image")}
    local = directory / image.removeprefix(f"{directory}/")
    assert re.fullmatch(r"ddp-4242-[0-9a-f]{16}\.sqsh", local.name)
    assert (directory / "sbcast.calls").read_text() == "\n"
    (pid,) = carriers(str(local))
    assert local.read_text() == "hsqs"
    os.kill(pid, signal.SIGTERM)
    Cluster.until(lambda: not local.exists(), 10, "the copy is removed")


def test_an_image_that_cannot_be_copied(attempts: Attempts) -> None:
    """One line says so, half a copy is removed, and the ranks read the shared file."""
    directory = attempts.scripts.directory
    attempts.scripts.fake("sbcast", 'echo >"$3"; echo "sbcast: error: No space left" >&2; exit 1')
    result = attempts.run("", DDP_STAGE_IMAGE="1")
    assert attempts.options("container-image") == [str(directory / "ddp.sqsh")] * 2
    (line,) = [line for line in result.err.splitlines() if "No space left" in line]
    assert f"warning: the image is read from {directory}/ddp.sqsh" in line
    Cluster.until(lambda: not [*directory.glob("ddp-4242*")], 10, "it is removed")

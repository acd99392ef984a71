"""pyxis_env.sh: the variables of a Pyxis job, on a stub Slurm installation."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.container.slurm_host import Host

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "container/pyxis_env.sh"
EVALUATE = 'eval "$("$0")" && env --null'
Run = Callable[..., subprocess.CompletedProcess[str]]


def _evaluated(run: Run, cwd: Path, env: dict[str, str], shell: str = "bash") -> dict[str, str]:
    ended = run(shell, "-c", EVALUATE, ENVIRONMENT, cwd=cwd, env=env)
    assert ended.returncode == 0, ended.stderr
    return dict(entry.split("=", 1) for entry in ended.stdout.split("\0") if "=" in entry)


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_an_odd_directory_is_mounted_at_its_own_path(
    run: Run, host: Host, tmp_path: Path, shell: str
) -> None:
    """Quotes, spaces and globs in the submit directory survive eval, in any shell of the family."""
    submit = tmp_path / "it's * a;dir & #1"
    submit.mkdir()
    env = _evaluated(run, submit, host.env | {"NCCL_DEBUG": "INFO", "DDP_PYTHON": "/x"}, shell)
    mounts = env["PYXIS_CONTAINER_MOUNTS"].split(",")
    assert mounts[0] == f"{submit}:{submit}"
    assert f"{host.conf.parent}:{host.conf.parent}" in mounts
    assert env["PYXIS_CONTAINER_WORKDIR"] == str(submit)
    assert env["DDP_OUT"] == f"{submit}/out"
    assert (submit / "out").is_dir()
    names = env["PYXIS_CONTAINER_ENV"].split(",")
    assert {"DDP_OUT", "DDP_PYXIS", "NCCL_DEBUG"} <= set(names)
    assert "DDP_PYTHON" not in names  # a path of the host's


@pytest.fixture
def turkish(tmp_path: Path) -> dict[str, str]:
    """The environment of a locale in which I is not the capital of i."""
    made = ("-i", "tr_TR", "-f", "UTF-8", tmp_path / "tr_TR.UTF-8")
    if (
        not shutil.which("localedef")
        or subprocess.run(["localedef", *made], check=False).returncode
    ):
        pytest.skip("a locale of one's own needs localedef and its sources")
    return {"LOCPATH": str(tmp_path), "LC_ALL": "tr_TR.UTF-8"}


def test_a_turkish_users_letters_are_slurms(run: Run, host: Host, turkish: dict[str, str]) -> None:
    """Names of variables have an I, and Include is as good as include."""
    shared = host.directory / "all.conf"
    shared.write_text("SlurmUser=daemon\n")
    host.configure(f"Include {shared}")
    env = _evaluated(run, host.directory, host.env | turkish)
    assert env["PYXIS_CONTAINER_WORKDIR"] == str(host.directory)
    assert f"{shared}:{shared}" in env["PYXIS_CONTAINER_MOUNTS"].split(",")
    assert env["LC_ALL"] == "tr_TR.UTF-8"


def test_a_choice_of_gpus_beats_the_images(run: Run, host: Host, tmp_path: Path) -> None:
    """Enroot's hook reads it at every start, also when a container's batch script starts a step."""
    env = _evaluated(run, tmp_path, host.env | {"NVIDIA_VISIBLE_DEVICES": "void"}, "bash")
    assert "NVIDIA_VISIBLE_DEVICES" in env["PYXIS_CONTAINER_ENV"].split(",")


def test_what_the_user_set_stays_and_a_second_time_changes_nothing(
    run: Run, host: Host, tmp_path: Path
) -> None:
    """Mounts of the user's come first, an output elsewhere is mounted, and it is idempotent."""
    settings = {
        "DDP_OUT": str(tmp_path / "results"),
        "DDP_MOUNTS": "/data:/data",
        "PYXIS_CONTAINER_MOUNTS": "/scratch:/scratch",
        "PYXIS_CONTAINER_WORKDIR": "/mine",
    }
    once = _evaluated(run, tmp_path, host.env | settings)
    mounts = once["PYXIS_CONTAINER_MOUNTS"].split(",")
    assert mounts[0] == "/scratch:/scratch"
    assert "/data:/data" in mounts
    assert once["PYXIS_CONTAINER_WORKDIR"] == "/mine"
    twice = _evaluated(run, tmp_path, once | host.env)
    assert twice["PYXIS_CONTAINER_MOUNTS"] == once["PYXIS_CONTAINER_MOUNTS"]


@pytest.mark.parametrize("name", ["a,b", "a:b", "a$(touch x)b", "a`b`", 'a"b', "a\\b", "a\nb"])
def test_a_path_that_pyxis_cannot_take_is_refused(
    run: Run, host: Host, tmp_path: Path, name: str
) -> None:
    """Commas and colons would split the mount; Enroot's bash would run the rest."""
    submit = tmp_path / name
    submit.mkdir()
    ended = run(ENVIRONMENT, cwd=submit, env=host.env)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (64, "", 1), ended.stderr
    assert "a path to mount must hold none of" in ended.stderr
    assert list(submit.iterdir()) == []


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ("/a:/b,data:/data", "'data:/data'"),
        ("/a:/b,/a:/$HOME", r"/\$HOME"),
        ("/a:/b\n,/c:/d", r"$'/b\n'"),
    ],
)
def test_mounts_that_pyxis_would_not_understand(
    run: Run, host: Host, tmp_path: Path, mounts: str, found: str
) -> None:
    """Sbatch would say so, and then start the job without any mount; Enroot's bash runs a $."""
    ended = run(ENVIRONMENT, cwd=tmp_path, env=host.env | {"DDP_MOUNTS": mounts})
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (64, "", 1), ended.stderr
    assert f"found {found}" in ended.stderr
    assert list(tmp_path.glob("out")) == []


@pytest.mark.parametrize("out", ["~/out", "/proc/no"])
def test_an_output_directory_that_cannot_be(run: Run, host: Host, tmp_path: Path, out: str) -> None:
    """A ~ in quotes would name a directory here, in which nobody looks."""
    ended = run(ENVIRONMENT, cwd=tmp_path, env=host.env | {"DDP_OUT": out})
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (64, "", 1), ended.stderr
    assert "DDP_OUT must be" in ended.stderr
    assert list(tmp_path.glob("~")) == []


def test_a_value_of_several_lines_is_not_forwarded(run: Run, host: Host, tmp_path: Path) -> None:
    """Enroot reads one line a variable: the rest would become variables of their own."""
    ended = run(ENVIRONMENT, cwd=tmp_path, env=host.env | {"NCCL_X": "a\nLD_PRELOAD=evil"})
    assert ended.returncode == 0, ended.stderr
    assert "NCCL_X" not in ended.stdout
    assert "NCCL_X is not forwarded" in ended.stderr


def test_a_value_too_long_for_pyxis_is_refused(run: Run, host: Host, tmp_path: Path) -> None:
    """Pyxis reads 4095 characters and takes nothing of a longer value: the mounts would be lost."""
    mounts = ",".join(f"/data{n:03}:/data{n:03}" for n in range(300))
    ended = run(ENVIRONMENT, cwd=tmp_path, env=host.env | {"DDP_MOUNTS": mounts})
    assert (ended.returncode, ended.stdout) == (64, "")
    assert "at most 4095 characters" in ended.stderr
    reported = run(ENVIRONMENT, "--options", cwd=tmp_path, env=host.env | {"DDP_MOUNTS": mounts})
    assert "/data299:/data299" in reported.stdout  # an option may be longer


def test_jobs_on_one_node_need_no_client(run: Run, tmp_path: Path) -> None:
    """--no-client works where no Slurm is configured, and another option is refused."""
    env = {"PATH": os.environ["PATH"], "SLURM_CONF": "/no/such"}
    ended = run(ENVIRONMENT, "--no-client", cwd=tmp_path, env=env)
    assert ended.returncode == 0, ended.stderr
    assert f"PYXIS_CONTAINER_MOUNTS='{tmp_path}:{tmp_path}," in ended.stdout
    assert run(ENVIRONMENT, "--fast", cwd=tmp_path, env=env).returncode == 64


def test_a_project_that_lies_elsewhere_is_mounted(run: Run, tmp_path: Path) -> None:
    """Read-only, where jobs/prelaunch.sh looks for it: no image need hold it."""
    env = {"PATH": os.environ["PATH"], "DDP_OUT": str(tmp_path)}
    elsewhere = run(ENVIRONMENT, "--no-client", cwd=tmp_path, env=env).stdout
    for part in ("jobs", "rundir", "monitor", "trainer"):
        assert f",{ROOT}/{part}:/opt/ddp/{part}:ro" in elsewhere
    assert "/opt/ddp" not in run(ENVIRONMENT, "--no-client", cwd=ROOT, env=env).stdout


KNOWS_VARIABLES = "\0PYXIS_CONTAINER_IMAGE\0PYXIS_CONTAINER_MOUNTS\0"


def _plugstack(host: Host, plugin: str, *arguments: str) -> Path:
    """A site's Pyxis: what its plugin's file holds, and how plugstack.conf names it."""
    file = host.plugins / "spank_pyxis.so"
    file.write_text(f"\x7fELF{plugin}")
    line = " ".join(["required", file.name, "runtime_path=/run/pyxis", *arguments])
    (host.conf.parent / "plugstack.conf").write_text(f"{line}\n")
    return file


def test_a_pyxis_that_knows_no_variables(run: Run, host: Host, tmp_path: Path) -> None:
    """Before 0.21 they would have no effect, and no message would say so: options have one."""
    submit = tmp_path / "it's * a;dir & #1"
    submit.mkdir()
    file = _plugstack(host, "")
    ended = run(ENVIRONMENT, cwd=submit, env=host.env)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (64, "", 1), ended.stderr
    assert f"found an older one, {file}; eval" in ended.stderr
    assert list(submit.iterdir()) == []
    (host.directory / "bin/sbatch").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    command = ended.stderr.rpartition(": ")[2].replace("container/pyxis_env.sh", str(ENVIRONMENT))
    reported = run("dash", "-c", command, cwd=submit, env=host.env | {"NCCL_DEBUG": "INFO"})
    mounts, workdir, names, *rest = reported.stdout.splitlines()
    assert mounts.startswith(f"--container-mounts={submit}:{submit},")
    assert f"{host.conf.parent}:{host.conf.parent}" in mounts.split(",")
    assert workdir == f"--container-workdir={submit}"
    assert names == "--container-env=NCCL_DEBUG"
    assert rest == ["--container-image=./ddp.sqsh", "jobs/prelaunch.sh"]
    assert (submit / "out").is_dir()
    _plugstack(host, KNOWS_VARIABLES)
    assert run(ENVIRONMENT, cwd=submit, env=host.env).returncode == 0


def test_a_batch_script_in_a_container_learns_of_the_plugin(
    run: Run, host: Host, tmp_path: Path
) -> None:
    """Only plugstack.conf on the host says whether containers may be kept for restarts."""
    _plugstack(host, KNOWS_VARIABLES, "container_scope=job")
    env = _evaluated(run, tmp_path, host.env, "bash")
    assert env["DDP_PYXIS"] == "runtime_path=/run/pyxis container_scope=job"
    assert "DDP_PYXIS" in env["PYXIS_CONTAINER_ENV"].split(",")


@pytest.mark.parametrize("options", [[], ["--options"]])
@pytest.mark.parametrize("value", ["0", "no"])
def test_a_site_whose_sbatch_knows_no_images(
    run: Run, host: Host, tmp_path: Path, options: list[str], value: str
) -> None:
    """There Pyxis is for srun alone, however new it is: the script stays on the host."""
    _plugstack(host, KNOWS_VARIABLES, f"sbatch_support={value}")
    ended = run(ENVIRONMENT, *options, cwd=tmp_path, env=host.env)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (64, "", 1), ended.stderr
    assert f"switched off by this site (sbatch_support={value} in plugstack.conf)" in ended.stderr
    assert "DDP_IMAGE=./ddp.sqsh sbatch" in ended.stderr


@pytest.mark.parametrize("plugin", ["", KNOWS_VARIABLES], ids=["0.20", "0.24"])
def test_an_interactive_shell_hands_the_image_on(
    run: Run, host: Host, tmp_path: Path, plugin: str
) -> None:
    """What srun itself was given, the ranks' srun in that shell would not inherit; of any Pyxis."""
    _plugstack(host, plugin, "sbatch_support=0")
    (tmp_path / "ddp.sqsh").write_text("hsqs")
    option = "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container"
    (host.directory / "bin/srun").write_text(
        "#!/bin/sh\n[ $1 != --help ] || echo --container-image\n"
        f'echo "${option}_image ${option}_workdir ${{DDP_IMAGE-none}} $*"\n'
    )
    env = host.env | {"DDP_IMAGE": "./ddp.sqsh"}
    ended = run(ROOT / "jobs/interactive.sh", "--nodes=2", cwd=tmp_path, env=env)
    assert ended.returncode == 0, ended.stderr
    shell = f"./ddp.sqsh {tmp_path} none --job-name=ddp-interactive --pty --nodes=2"
    assert ended.stdout.startswith(shell)


def test_an_interactive_shell_is_in_the_image_or_not_at_all(
    run: Run, host: Host, tmp_path: Path
) -> None:
    """Without Pyxis, srun would start one on the bare host, and say nothing."""
    (tmp_path / "ddp.sqsh").write_text("hsqs")
    env = host.env | {"DDP_IMAGE": "./ddp.sqsh"}
    ended = run(ROOT / "jobs/interactive.sh", cwd=tmp_path, env=env)
    assert (ended.returncode, ended.stderr.count("\n")) == (64, 1), ended.stderr
    assert "DDP_IMAGE needs the Pyxis plugin" in ended.stderr

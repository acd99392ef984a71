"""Images that hold nothing of this project: real scripts in a real root file system.

Pyxis and Enroot are stood in for at the door: a writable layer over the image, the mounts that srun
was given, and a changed root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Result, Scripts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HOST = socket.gethostname()
PARTS = ("jobs", "rundir", "monitor", "trainer", "container")
PYXIS = "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image"
CONTAINER = """
set -euo pipefail
image=$1 mounts=$2 workdir=$3 hidden=$4
shift 4
layer=$(mktemp -d -p "$HOME")
mount -t tmpfs none "$layer"
mkdir "$layer"/{upper,work,root}
root=$layer/root
mount -t overlay -o "lowerdir=$image,upperdir=$layer/upper,workdir=$layer/work" none "$root"
(cd "$root" && rm -f $hidden)
mount -t tmpfs none "$root/tmp"
IFS=, read -ra mounts <<<"$mounts"
for mount in "${mounts[@]}"; do
    IFS=: read -r source target flags <<<"$mount"
    mkdir -p "$(dirname "$root$target")"
    if [[ -d $source ]]; then mkdir -p "$root$target"; else touch "$root$target"; fi
    mount --bind "$source" "$root$target"
    if [[ $flags == ro ]]; then mount -o remount,bind,ro "$root$target"; fi
done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
enter='cd "$0" && exec "$@"'
exec unshare --root="$root" env PATH=/usr/local/bin:/usr/bin:/bin sh -c "$enter" "$workdir" "$@"
"""
"""IMAGE MOUNTS WORKDIR HIDDEN COMMAND…, in a mount namespace of its own."""
SRUN = """if [[ $1 == --help ]]; then echo --container-image; exit; fi
while [[ $1 == -* ]]; do
    case $1 in
        --container-mounts=*) mounts=${1#*=} ;;
        --container-workdir=*) workdir=${1#*=} ;;
    esac
    shift
done
export SLURM_NODEID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2
for SLURM_PROCID in 0 1; do
    export SLURM_PROCID SLURM_LOCALID=$SLURM_PROCID
    "$CONTAINER" "$IMAGE_ROOT" "$mounts" "$workdir" "${HIDDEN-}" "$@" &
done
code=0
for _ in 0 1; do
    wait -n && continue
    last=$?
    ((code)) || code=$last
    kill $(jobs -p) 2>/dev/null # --kill-on-bad-exit
done
exit "$code"
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root of an image with a Python, and nothing else."""
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        pytest.skip("making an image needs root and mmdebstrap: run tests/provision.sh")
    root = tmp_path_factory.mktemp("image") / "root"
    command = ["mmdebstrap", "--variant=minbase", "--include=python3", "bookworm", root]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert made.returncode == 0, made.stderr
    yield root
    shutil.rmtree(root)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project as it is installed somewhere, with a .venv that no image could use."""
    home = tmp_path / "installed"
    for part in PARTS:
        shutil.copytree(ROOT / part, home / part, ignore=shutil.ignore_patterns("__pycache__"))
    packages = home / ".venv" / "lib" / "python3.99" / "site-packages"
    packages.mkdir(parents=True)
    shutil.copy(pynvml.__file__, packages / "pynvml.py")
    (home / ".venv" / "bin").mkdir()
    (home / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    return home


@pytest.fixture
def job(scripts: Scripts, image: Path) -> Scripts:
    """A job of one node with two tasks, submitted from a directory of its own."""
    scripts.directory = scripts.directory / "submit"
    scripts.directory.mkdir()
    scripts.fake_slurm(HOST)
    scripts.fake("container", f'exec unshare --mount bash -c {shlex.quote(CONTAINER)} pyxis "$@"')
    scripts.fake("srun", SRUN)
    (scripts.directory / "nemo.sqsh").write_text("hsqs")
    scripts.env |= {
        "DDP_IMAGE": "./nemo.sqsh",
        "IMAGE_ROOT": str(image),
        "CONTAINER": str(scripts.directory / "fake-bin" / "container"),
        "DDP_MONITOR": "1",
        "DDP_MONITOR_INTERVAL": "1",
    }
    return scripts


def run(job: Scripts, project: Path, *words: str, **env: str) -> Result:
    """`sbatch …/jobs/prelaunch.sh WORDS` of the project as it is installed."""
    return job.run(str(project / "jobs" / "prelaunch.sh"), *words, **env)


def test_any_command_runs_in_any_image(job: Scripts, project: Path) -> None:
    """Ranks, logs, events and a monitor, of which the image has nothing; it cannot change them."""
    (job.directory / "train.py").write_text(
        "import os, sys\n"
        "print(os.environ['RANK'], os.environ['WORLD_SIZE'], sys.version_info[:2], os.getcwd())\n"
        "try:\n    open('/opt/ddp/jobs/x', 'w')\n"
        "except OSError as error:\n    print(error.strerror)"
    )
    result = run(job, project, "--", "python3", "train.py")
    assert result.code == 0, result.err + result.out
    for rank in (0, 1):
        log = (result.run_dir / "logs" / f"rank-{rank}.log").read_text().splitlines()
        assert log == [f"{rank} 2 (3, 11) {job.directory}", "Read-only file system"]
    assert "no monitor" not in result.err
    (gutil,) = (job.directory / "out").glob(f"slurm-4242.{HOST}.gutil")
    assert gutil.stat().st_size > 0
    assert [event["code"] for event in result.of("monitor_end")] == [0]
    assert not (project / "jobs" / "x").exists()


def test_a_failure_in_any_image_is_told(job: Scripts, project: Path) -> None:
    """Its rank and its code, as on the bare machine."""
    command = ("--", "bash", "-c", "((RANK)) || exec sleep 60; exit 41")
    result = run(job, project, *command, DDP_MONITOR="0")
    assert result.code == 41
    assert f"rank 1 on {HOST} ended with code 41" in result.err.splitlines()[-1]


def test_where_the_monitor_has_not_what_it_needs(job: Scripts, project: Path) -> None:
    """One line, and the ranks run."""
    shutil.rmtree(project / ".venv")
    result = run(job, project, "--", "true")
    assert result.code == 0, result.err
    (line,) = [line for line in result.err.splitlines() if "no monitor on" in line]
    assert "it needs nvidia-ml-py; found none for /usr/bin/python3; " in line
    assert not result.of("monitor_up")


def test_an_image_without_python(job: Scripts, project: Path) -> None:
    """One line, and the input is wrong: no retry."""
    result = run(job, project, "--", "true", HIDDEN="usr/bin/python3*")
    assert result.code == 64
    assert "launcher: a rank's agent needs Python 3.9 or later; found none" in result.err
    assert not list(job.directory.glob("out/*/rank_up"))


def test_the_trainer_where_there_is_no_torch(job: Scripts, project: Path) -> None:
    """One line that names the package, and no traceback."""
    result = run(job, project, "--max-steps", "1", DDP_MONITOR="0")
    assert result.code == 64
    logs = [path.read_text() for path in (result.run_dir / "logs").glob("rank-*.log")]
    (line,) = {line for log in logs for line in log.splitlines()}  # who ends first ends the other
    assert "found no tyro in /usr/bin/python3" in line


def in_container(
    job: Scripts, project: Path, mounts: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """`sbatch --container-image=./nemo.sqsh …/jobs/prelaunch.sh WORDS`: Slurm's copy, in it."""
    spool = job.directory.parent / "spool"
    spool.mkdir()
    script = spool / "slurm_script"
    shutil.copy(project / "jobs" / "prelaunch.sh", script)
    mounts = f"{spool}:{spool}{',' if mounts else ''}{mounts}"
    env = job.env | {PYXIS: "./nemo.sqsh"}
    del env["DDP_IMAGE"]
    container = [env["CONTAINER"], env["IMAGE_ROOT"], mounts, "/", "", str(script), *words]
    return subprocess.run(
        container, env=env, cwd=job.directory, capture_output=True, text=True, check=False
    )


def test_the_batch_script_in_any_image(job: Scripts, project: Path) -> None:
    """After pyxis_env.sh the project is there, wherever it is installed."""
    lines = subprocess.run(
        [project / "container" / "pyxis_env.sh", "--no-client"],
        env=job.env,
        cwd=job.directory,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    settings = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    ended = in_container(job, project, settings["PYXIS_CONTAINER_MOUNTS"], "--", "pwd")
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split("\n")) == ["", "[0] /", "[1] /"]
    assert "no monitor" not in ended.stderr
    assert list((job.directory / "out").glob("*.gutil"))


def test_the_project_mounted_by_hand(job: Scripts, project: Path) -> None:
    """The image's Python runs, not the .venv of the host, which has packages for another one."""
    mounts = f"{project}:/opt/ddp:ro,{job.directory}:{job.directory}"
    ended = in_container(job, project, mounts, "--", "true")
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "no monitor on" in line]
    assert "it needs nvidia-ml-py; found none for /usr/bin/python3; " in line


def test_the_batch_script_in_an_image_without_the_project(job: Scripts, project: Path) -> None:
    """One line that says what mounts it."""
    ended = in_container(job, project, "", "--", "true")
    assert ended.returncode == 64
    (line,) = ended.stderr.splitlines()
    assert "found in none" in line
    assert 'eval "$(container/pyxis_env.sh)"' in line

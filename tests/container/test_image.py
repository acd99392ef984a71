"""The real image: built by a real engine, run as a user would."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1200)]

# A stranger without a home, on a root file system that cannot be written.
STRANGER = ("--user", "1234:1234", "--read-only", "--tmpfs", "/tmp")
LIMITED = ("run", "--rm", "--network", "none")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A directory to mount as /out that any user may write."""
    directory = tmp_path / "out put"
    directory.mkdir()
    directory.chmod(0o777)
    return directory


def _mounted(out: Path) -> tuple[str, str]:
    return "--mount", f"type=bind,source={out},target=/out"


def _record(out: Path) -> dict[str, Any]:
    (path,) = out.glob("*/run.json")
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_the_smoke_test_trains_with_two_ranks_as_a_stranger_on_a_read_only_root(
    image: str, out: Path, run: Run
) -> None:
    """`docker run ddp` finishes with 0 and leaves model, record and monitor log on the volume.

    A second one goes on from there: what the image's Python writes, it reads.
    """
    begun = ("docker", *LIMITED, *STRANGER, *_mounted(out), "--env", "DDP_RUN_NAME=one", image)
    for steps in (10, 20):
        ended = run(*begun, "--max-steps", str(steps), timeout=600)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        summary = _record(out)["summary"]
        reported = summary["outcome"], summary["world_size"], summary["steps"]
        assert reported == ("finished", 2, steps)
    assert "steps 10 to 20" in ended.stdout
    (run_dir,) = (path.parent for path in out.glob("*/run.json"))
    assert (run_dir / "checkpoints/step-20/.metadata").stat().st_uid == 1234
    assert len(list(out.glob("slurm-*.gutil"))) == 2


def test_the_image_keeps_the_torch_of_its_base(image: str, base_image: str, run: Run) -> None:
    """Version and place of torch are the base image's; ours are the only ddp packages."""
    show = "import torch; print(torch.__version__, torch.__file__)"
    theirs = run("docker", *LIMITED, base_image, "python3", "-c", show)
    ours = run("docker", *LIMITED, image, "python", "-c", show)
    assert theirs.stdout.startswith("2.13.0")
    assert ours.stdout == theirs.stdout, ours.stderr
    places = "import trainer, monitor; print(trainer.__file__, monitor.__file__)"
    found = run("docker", *LIMITED, "--workdir", "/", image, "python", "-c", places)
    assert found.stdout.split() == ["/opt/ddp/trainer/__init__.py", "/opt/ddp/monitor/__init__.py"]


def test_the_image_says_what_it_is(image: str, run: Run) -> None:
    """For those who find it in a registry."""
    output = run("docker", "image", "inspect", "--format", "{{json .Config.Labels}}", image).stdout
    labels = json.loads(output)
    named = {name.removeprefix("org.opencontainers.image.") for name in labels}
    assert {"title", "description", "licenses", "version", "revision"} <= named
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_image_sets_nothing_that_would_beat_a_job(
    image: str, base_image: str, run: Run
) -> None:
    """Under Enroot an image's environment wins, so ours is what must be: paths, and a driver."""
    shown = [
        run("docker", "image", "inspect", "--format", "{{json .Config.Env}}", tag).stdout
        for tag in (base_image, image)
    ]
    theirs, ours = (dict(e.split("=", 1) for e in json.loads(text) or []) for text in shown)
    changed = {name for name in ours if ours[name] != theirs.get(name)}
    driver = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    assert changed == {"PATH", "DDP_HOME", "PYTHONNOUSERSITE", *driver}
    assert driver.items() <= ours.items()


def test_a_node_without_nvidias_toolkit_starts_the_image_all_the_same(image: str, run: Run) -> None:
    """Enroot's hook for GPUs looks for its program in the image, too: it finds a stub there."""
    output = run("docker", *LIMITED, image, "nvidia-container-cli", "--user", "configure", "/")
    assert output.returncode == 0, output.stderr
    assert "no nvidia-container-cli on this node" in output.stderr


def test_nccl_finds_infiniband_and_compile_its_compiler(image: str, run: Run) -> None:
    """No wheel brings libibverbs, a compiler or Python.h."""
    opened = "import ctypes; ctypes.CDLL('libibverbs.so.1'); ctypes.CDLL('librdmacm.so.1')"
    found = run("docker", *LIMITED, image, "python", "-c", opened)
    assert found.returncode == 0, found.stderr
    program = "#include <Python.h>\\nint main() {return 7;}\\n"
    built = "g++ $(python3-config --includes) -x c++ -o /tmp/seven -"
    compiled = f"printf '{program}' | {built} && /tmp/seven"
    assert run("docker", *LIMITED, image, "sh", "-c", compiled).returncode == 7


def test_the_image_keeps_no_package_that_it_installed(image: str, run: Run) -> None:
    """Nor apt's own indices, where the base is no image of Docker's, whose apt keeps none."""
    found = run(
        *("docker", "run", "--rm", "--entrypoint", "find", image),
        *("/var/cache/apt", "/var/lib/apt/lists", "-type", "f", "-size", "+0"),
    )
    assert found.returncode == 0, found.stderr
    assert not found.stdout


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        (
            ["--", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"; exit $((RANK * 3))'],
            (3, "rank 1 of 2"),
        ),
        (["sh", "-c", "echo as it is; exit 5"], (5, "as it is")),
        (["no-such-program"], (64, "entrypoint: the first word must be")),
        (["--no-such-option"], (64, "--no-such-option")),
    ],
    ids=["any command", "a program", "no program", "no option"],
)
def test_words_after_the_image_are_options_a_command_or_a_program(
    image: str, out: Path, run: Run, words: list[str], ending: tuple[int, str]
) -> None:
    """The container ends with the ranks' own exit code, or 64 for wrong input."""
    ended = run("docker", *LIMITED, *STRANGER, *_mounted(out), image, *words)
    assert ended.returncode == ending[0], ended.stdout + ended.stderr
    assert ending[1] in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ("", "docker run --user 0:0"),
        (":ro", 'docker run -v "$PWD/out:/out"'),
    ],
)
def test_a_volume_that_the_user_cannot_write_to(
    image: str, tmp_path: Path, run: Run, volume: str, message: str
) -> None:
    """One line names user, owner and reason, and what docker can do; no shared file system."""
    tmp_path.chmod(0o755)
    mounted = ("--volume", f"{tmp_path}:/out{volume}")
    ended = run("docker", *LIMITED, "--user", "4711", *mounted, image, "--", "true")
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 64
    assert "user 4711 cannot write to /out of user 0" in last
    assert message in last
    assert "shared file system" not in last


def test_output_that_will_be_lost_is_reported(image: str, out: Path, run: Run) -> None:
    """Docker makes a volume without a name, and --rm removes it; one that is named is kept."""
    lost = run("docker", *LIMITED, image, "--", "true")
    kept = run("docker", *LIMITED, *_mounted(out), image, "--", "true")
    warning = "warning: nothing of the host is mounted at /out: docker run --rm removes all"
    assert (lost.returncode, warning in lost.stderr) == (0, True)
    assert (kept.returncode, warning in kept.stderr) == (0, False)


def test_docker_stop_ends_a_run_with_a_checkpoint(image: str, out: Path, run: Run) -> None:
    """The entry point is process 1: TERM reaches the ranks, and 75 the caller."""
    name = f"ddp-test-{uuid.uuid4().hex[:8]}"
    run(
        *("docker", "run", "--detach", "--network", "none", "--name", name),
        *(*_mounted(out), image, "--epochs", "1000", "--log-every", "1"),
    )
    try:
        _until(lambda: any(path.stat().st_size for path in out.glob("*/metrics.jsonl")), 120)
        run("docker", "stop", "--time", "90", name, timeout=120)
        state = run("docker", "inspect", "--format", "{{.State.ExitCode}}", name)
        logs = run("docker", "logs", name)
        assert state.stdout.strip() == "75", logs.stdout + logs.stderr
    finally:
        run("docker", "rm", "--force", name)
    assert _record(out)["summary"]["outcome"] == "stopped"
    assert list(out.glob("*/checkpoints/step-*/.metadata"))


def _until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.2)

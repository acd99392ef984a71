"""Images across the attempts of a job: containers that are kept, and a copy on the nodes' disks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from jobs.backends import containers
from tests.conftest import Cluster
from tests.jobs.alive import carriers
from tests.jobs.test_images import show_job

if TYPE_CHECKING:
    from conftest import Result, Scripts

pytestmark = pytest.mark.slow

HOST = socket.gethostname()


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
    show_job(scripts, "X=1", HOST, "other")
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
    """Once a job, by a name nobody can guess; Slurm's SIGTERM at the end removes the copy.

    What does so waits already while the image is copied: scancel may break that off.
    """
    directory = attempts.scripts.directory
    attempts.scripts.fake(
        "sbcast",
        f"""cd '{directory}'; echo >>sbcast.calls; cp -- "$2" "$3"
        for ((i = 0; i < 100; i++)); do
            pgrep -f "infinity.*$3" >waiting && exit
            sleep 0.1
        done""",
    )
    attempts.run("", DDP_STAGE_IMAGE="1")
    (image,) = {*attempts.options("container-image")}
    local = directory / image.removeprefix(f"{directory}/")
    assert re.fullmatch(r"ddp-4242-[0-9a-f]{16}\.sqsh", local.name)
    assert (directory / "sbcast.calls").read_text() == "\n"
    (pid,) = carriers(str(local))
    assert (directory / "waiting").read_text() == f"{pid}\n"
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
    os.kill(*carriers(f"{directory}/ddp-4242-"), signal.SIGTERM)

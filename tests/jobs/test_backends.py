"""What every way to start ranks must do; a new backend subclasses `Conformance`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from jobs.backends import containers
from jobs.backends.base import Step, Surroundings
from jobs.backends.containers import HostImage, InContainer
from jobs.backends.local import Local
from jobs.backends.registry import BACKENDS, choose
from jobs.backends.slurm import PYXIS, Slurm
from jobs.backends.srun import Srun
from jobs.messages import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.backends.base import Backend

ROOT = Path(__file__).resolve().parents[2]
SRUN = """#!/bin/bash
if [[ $1 == --help ]]; then echo --container-image; exit; fi
printf '%s\\n' "$@" >"$CALLS"
num=$(printf '%s\\n' "$@" | sed -n 's/^--ntasks=//p')
while [[ $1 == -* ]]; do shift; done
if [[ $1 == /opt/ddp/* ]]; then set -- "$LAUNCHER" "${@:2}"; fi
if ((num == 1)); then exec "$@"; fi
for RANK in 0 1; do RANK=$RANK "$@" & done
wait -n
"""
LAUNCHER = """#!/bin/bash
if [[ ! ${RANK-} ]]; then
    for ((i = 0; i < DDP_NPROC_PER_NODE; i++)); do RANK=$i "$0" "$@" & done
    wait -n
    exit
fi
echo "rank $RANK of $WORLD_SIZE runs $*"
exit "${CODE:-0}"
"""


class Conformance:
    """Two ranks on one node, started by stand-ins of the launcher and of Slurm's programs."""

    kind: ClassVar[type]
    environ: ClassVar[dict[str, str]] = {}
    num_tasks = 2

    @pytest.fixture
    def here(self, tmp_path: Path) -> Surroundings:
        """Where the batch script runs."""
        jobs = tmp_path / "jobs"
        jobs.mkdir()
        image = tmp_path / "image.sqsh"
        image.write_bytes(b"hsqs")
        programs = {"srun": SRUN, "scontrol": "#!/bin/sh\necho node1\n", "scancel": "#!/bin/sh\n"}
        for path, text in {
            jobs / "launcher.sh": LAUNCHER,
            **{tmp_path / name: text for name, text in programs.items()},
        }.items():
            path.write_text(text)
            path.chmod(0o755)
        environ = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "CALLS": str(tmp_path / "calls"),
            "LAUNCHER": str(jobs / "launcher.sh"),
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS": "2",
            **{name: value.replace("IMAGE", str(image)) for name, value in self.environ.items()},
        }
        return Surroundings(
            root=str(tmp_path),
            script="prelaunch.sh",
            words=[],
            environ=environ,
            slurm=Slurm(environ),
            node="node1",
            submit_dir=str(tmp_path),
            is_under_slurm=True,
            is_in_container=f"{PYXIS}image" in environ,
            is_interactive=False,
            has_client=self.kind is not Local,
            info=f"JobId=7 UserId=me({os.geteuid()}) GroupId=us({os.getegid()})",
            num_nodes=1,
            num_local_ranks=int(environ.get("DDP_NPROC_PER_NODE", 0)),
        )

    @pytest.fixture
    def backend(self, here: Surroundings, monkeypatch: pytest.MonkeyPatch) -> Backend:
        """The one that is chosen there."""
        monkeypatch.setenv("PATH", here.environ["PATH"])
        backend = choose(here)[1]
        assert type(backend) is self.kind
        return backend

    def step(self, here: Surroundings, words: Sequence[str] = ("--epochs", "1")) -> Step:
        """What is started."""
        layout = choose(here)[1].layout()
        environ = here.environ | {"WORLD_SIZE": str(layout.world_size)}
        nodes = ["node1"]
        return Step(list(words), environ, layout, nodes, here.submit_dir, is_restart=False)

    def run(self, backend: Backend, step: Step) -> tuple[list[str], list[int]]:
        """The lines of the step's output, and the codes of its processes."""
        reader, writer = os.pipe()
        processes = backend.start(step, writer)
        os.close(writer)
        with open(reader) as output:  # noqa: PTH123 -- a descriptor
            lines = sorted(output.read().splitlines())
        codes = [process.wait(20) for process in processes]
        backend.note_step(None)
        return lines, codes

    def test_ranks_can_wait_where_they_are_cheap(self, backend: Backend) -> None:
        """A container would be unpacked twice, and torchrun starts its ranks itself."""
        is_cheap = self.kind in (Local, Srun) and self.num_tasks == 2
        assert backend.has_standby is is_cheap

    def test_every_rank_runs_the_launcher(self, here: Surroundings, backend: Backend) -> None:
        """What it prints comes up the pipe."""
        lines, codes = self.run(backend, self.step(here))
        assert lines == [f"rank {rank} of 2 runs --epochs 1" for rank in range(2)]
        assert set(codes) == {0}

    def test_it_counts_launchers_and_ranks(self, backend: Backend) -> None:
        """Two ranks, of as many launchers as it starts."""
        layout = backend.layout()
        assert (layout.num_nodes, layout.num_local_ranks, layout.world_size) == (1, 2, 2)
        assert layout.num_tasks == layout.num_local_tasks == self.num_tasks

    def test_a_bad_code_is_known(self, here: Surroundings, backend: Backend) -> None:
        """Of one process at least."""
        step = self.step(here)
        step.environ["CODE"] = "3"
        assert 3 in self.run(backend, step)[1]

    def test_its_command_is_shown(self, here: Surroundings, backend: Backend) -> None:
        """The launcher and the user's words come last."""
        words = ["--", "python", "a b.py"]
        command = backend.command(self.step(here, words))
        assert command[-3:] == words
        assert command[-4].endswith("/jobs/launcher.sh")

    def test_it_knows_its_nodes(self, backend: Backend) -> None:
        """In the order of their ranks; this one is never lost."""
        assert backend.nodes() == ["node1"]
        assert backend.first_node(["node1"]) == "node1"
        assert backend.lost("node1") is None
        assert backend.dropped([]) == []

    def test_what_runs_here_is_run_as_it_is(self, backend: Backend) -> None:
        """Such as the probe of a port."""
        assert backend.probe_words("node1", ["true"], is_restart=False) == ["true"]

    def test_ends_take_no_time(self, backend: Backend) -> None:
        """Neither of a step that no rank has named yet."""
        began_s = time.monotonic()
        assert not backend.end(None)
        backend.kill(7)
        assert time.monotonic() - began_s < 5


class TestLocal(Conformance):
    """In place."""

    kind = Local

    def test_ranks_have_the_supervisors_name_of_the_node(
        self, here: Surroundings, backend: Backend
    ) -> None:
        """A host may call itself by its whole domain: its reports would be another node's."""
        Path(here.launcher).write_text('#!/bin/sh\necho "$DDP_NODE"\n')
        assert self.run(backend, self.step(here))[0] == ["node1", "node1"]


class TestSrun(Conformance):
    """On the bare machines."""

    kind = Srun

    def test_the_users_options_for_its_output_are_left_out(
        self, here: Surroundings, backend: Backend
    ) -> None:
        """Reports travel on it: labels before its lines, or a file in its place, lose them."""
        program = Path(here.root, "srun")
        program.write_text(program.read_text().replace("for RANK", "env | grep -E LABEL; for RANK"))
        step = self.step(here)
        step.environ.update(SLURM_LABELIO="1", SLURM_STDOUTMODE="x", SLURM_UNBUFFEREDIO="1")
        assert self.run(backend, step)[0] == [f"rank {n} of 2 runs --epochs 1" for n in range(2)]
        assert not {"SLURM_LABELIO", "SLURM_STDOUTMODE"} & set(backend._environ(step))  # noqa: SLF001

    @pytest.mark.parametrize(("num_tasks", "told"), [(2, "2"), (1, "1")])
    def test_the_tasks_of_a_node_are_told_as_they_are(
        self, here: Surroundings, backend: Srun, num_tasks: int, told: str
    ) -> None:
        """Of a number that is not the step's srun warns; without one Lightning does not start."""
        step = self.step(here)
        step.environ["SLURM_NTASKS_PER_NODE"] = "2"
        step = step._replace(layout=step.layout._replace(num_tasks=num_tasks))
        assert backend._environ(step)["SLURM_NTASKS_PER_NODE"] == told  # noqa: SLF001

    @pytest.mark.parametrize(
        ("said", "is_told"),
        [
            ("scancel: error: Kill job error on job step id 7: Invalid job id specified", True),
            ("scancel: error: Unable to contact slurm controller", False),
            ("", True),
        ],
    )
    def test_ranks_on_some_of_the_jobs_nodes_are_told_to_end(
        self, here: Surroundings, backend: Backend, said: str, *, is_told: bool
    ) -> None:
        """Of such a step scancel complains, though the signal arrives: they have their grace."""
        code = 225 if said else 0
        Path(here.root, "scancel").write_text(f"#!/bin/sh\necho '{said}' >&2; exit {code}\n")
        assert backend.end(3) is is_told
        assert not backend.end(None)


class TestHostImage(Conformance):
    """Into containers, from the host."""

    kind = HostImage
    environ: ClassVar = {"DDP_IMAGE": "IMAGE"}

    @pytest.mark.parametrize(
        ("pyxis", "environ", "expected"),
        [
            ([], {}, False),
            (["container_scope=global"], {}, False),
            (["container_scope=job"], {}, True),
            (["use_squashfuse=1"], {}, True),
            (["container_scope=job"], {"PYXIS_CONTAINER_NAME": "mine"}, False),
            (["use_squashfuse=1"], {"PYXIS_CONTAINER_WRITABLE": "1"}, False),
        ],
    )
    def test_ranks_wait_where_nothing_is_unpacked_for_them(
        self,
        here: Surroundings,
        monkeypatch: pytest.MonkeyPatch,
        pyxis: list[str],
        environ: dict[str, str],
        expected: bool,  # noqa: FBT001
    ) -> None:
        """In the container that is there, or in one that Pyxis mounts."""
        monkeypatch.setattr(containers, "pyxis_arguments", lambda _: pyxis)
        here.environ.update(environ)
        assert HostImage(here).has_standby is expected


class TestInContainer(Conformance):
    """Into containers, from inside one."""

    kind = InContainer
    environ: ClassVar = {f"{PYXIS}image": "IMAGE"}

    @pytest.mark.parametrize(
        ("pyxis", "own", "expected"),
        [
            ("container_scope=job", "", "ddp-7.1.1:no_exec"),
            ("container_scope=job use_squashfuse=1", "", ""),
            ("", "", ""),
            ("container_scope=job", "mine", "mine"),
        ],
    )
    def test_attempts_share_a_container(
        self, here: Surroundings, pyxis: str, own: str, expected: str
    ) -> None:
        """Where the submit host said that Pyxis removes a named one at the job's end."""
        here.environ.update({"DDP_PYXIS": pyxis, f"{PYXIS}name": own})
        step = self.step(here)._replace(container="7.1.1")
        environ = InContainer(here)._environ(step)  # noqa: SLF001
        assert environ[f"{PYXIS}name"] == expected

    def test_of_ranks_that_waited_the_step_is_ended_too(self, backend: InContainer) -> None:
        """Should the script be killed: they were started while another step ran."""
        backend.note_step(None)
        backend.note_step(4)
        heir = backend._heir  # noqa: SLF001 -- what would end it
        backend.note_step(None)
        assert heir is not None
        assert heir.returncode == 0


TASK_A_NODE = {"SLURM_NTASKS": "1", "DDP_NPROC_PER_NODE": "2"}


class TestTorchrun(Conformance):
    """One task a node, which starts the node's ranks."""

    kind = Srun
    environ: ClassVar = TASK_A_NODE
    num_tasks = 1


class TestTorchrunHostImage(Conformance):
    """The same into containers, from the host."""

    kind = HostImage
    environ: ClassVar = TASK_A_NODE | TestHostImage.environ
    num_tasks = 1


class TestTorchrunInContainer(Conformance):
    """The same into containers, from inside one."""

    kind = InContainer
    environ: ClassVar = TASK_A_NODE | TestInContainer.environ
    num_tasks = 1


def test_every_backend_conforms() -> None:
    """A new one is a file, a line in the registry, and a class here."""
    assert {case.kind for case in Conformance.__subclasses__()} == set(BACKENDS)


def test_slurm_stays_in_its_files() -> None:
    """Nobody else parses what its clients print, or knows of SLURM_PROCID."""
    outside = [
        p for p in (ROOT / "jobs" / "supervisor").glob("*.py") if "show job" in p.read_text()
    ]
    assert outside == []


def in_container(root: Path, num_nodes: int, **environ: str) -> Surroundings:
    """A batch script in a container that does not know its image."""
    return Surroundings(
        root=str(root),
        script="",
        words=[],
        environ=environ,
        slurm=Slurm({}),
        node="node1",
        submit_dir=str(root),
        is_under_slurm=True,
        is_in_container=True,
        is_interactive=True,
        has_client=True,
        info="JobId=7",
        num_nodes=num_nodes,
    )


def test_several_nodes_need_a_way(tmp_path: Path) -> None:
    """Else srun would start ranks on bare machines."""
    with pytest.raises(UsageError, match="must start in the image"):
        choose(in_container(tmp_path, 2))


@pytest.mark.parametrize(
    ("environ", "ignored"),
    [
        ({"DDP_IMAGE": "./x.sqsh", "DDP_STAGE_IMAGE": "0"}, ["DDP_IMAGE"]),
        ({"DDP_STAGE_IMAGE": "1"}, ["DDP_STAGE_IMAGE"]),
        ({}, []),
    ],
)
def test_what_a_container_makes_useless_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], environ: dict[str, str], ignored: list[str]
) -> None:
    """The script runs in its image already: there is none to start or to copy."""
    choose(in_container(tmp_path, 1, **environ))
    said = [line.split()[2] for line in capfd.readouterr().err.splitlines()]
    assert said == ignored

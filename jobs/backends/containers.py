"""srun into containers, by Pyxis: from the host with DDP_IMAGE, or from inside a container."""

from __future__ import annotations

import glob
import os
import re
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from jobs.backends import scontrol, slurm
from jobs.backends.base import tmp_dir
from jobs.backends.srun import Srun
from jobs.forwarded import forwarded_names
from jobs.messages import UsageError, info
from jobs.processes import initial_environment
from rundir.text import problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jobs.backends.base import Step, Surroundings

_MAKE_IT = "make it with container/to_squashfs.sh ddp ddp.sqsh"
_NO_MOUNT = re.compile(r"[,:$`\"\\\n]")
"""Pyxis separates mounts by commas and their parts by colons, and writes them between double quotes
into a script that Enroot's bash runs."""
_PROJECT = "/opt/ddp"
"""Where ranks find the project, in any image; ours has its own Python there, too."""
_PARTS = ("jobs", "rundir", "monitor", "trainer", ".venv/lib/python3*/site-packages/pynvml.py")
"""What a rank may need of the project; the last is all that the monitor lacks in a bare Python."""
_STAGING_S = 1800
_FREE = """trap 'rm -f -- "$0"; kill $!; exit' TERM; trap '' INT HUP USR1; sleep infinity & wait"""
"""Slurm sends SIGTERM to every step of a job that ends, however it ends."""
_OWN_CONTAINER = (
    *("PYXIS_CONTAINER_NAME", "PYXIS_CONTAINER_WRITABLE", "ENROOT_ROOTFS_WRITABLE"),
    *(f"{slurm.PYXIS}name", f"{slurm.PYXIS}writable"),
)
"""The user's own, or one whose next start must not find what this one wrote into it."""
_MOUNT = re.compile(r"(([./][^:]*|tmpfs|umount)(:[./][^:]*(:.*)?)?)?")


class HostImage(Srun):
    """The batch script on the host, the ranks in containers."""

    place = "host-image"
    has_own_image = True

    def __init__(self, here: Surroundings) -> None:
        """Check the image and Pyxis. Raises UsageError."""
        super().__init__(here)
        self._image = here.environ["DDP_IMAGE"]
        check_image(self._image)
        check_pyxis(here.environ)
        self._keeps_containers, can_wait = _reuse(here, self._image, pyxis_arguments(here))
        self.has_standby &= can_wait
        self._freeing: list[subprocess.Popen[bytes]] = []

    @classmethod
    def fits(cls, here: Surroundings) -> bool:
        """Where an image was named."""
        return super().fits(here) and bool(here.environ.get("DDP_IMAGE"))

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Copy the image to the nodes' own disks with DDP_STAGE_IMAGE=1, until the job ends."""
        if environ.get("DDP_STAGE_IMAGE") != "1" or self._image[:1] not in "./":
            return
        # Nobody can have it ready: in /tmp another user's file, or link, would become the image.
        name = f"ddp-{self._slurm.job_id}-{os.urandom(8).hex()}.sqsh"
        local = f"{tmp_dir(environ, is_in_container=False)}/{name}"
        words = ("sbcast", "--force", self._image, local)  # nodes may share that directory
        self._start_beside(["bash", "-c", _FREE, local])  # first: scancel may break the copy off
        complaint = self._slurm.try_to(*words, timeout_s=_STAGING_S)
        if complaint:
            self._start_beside(["rm", "-f", local])
            line = complaint.splitlines()[-1]
            info(f"warning: the image is read from {self._image}, not from {local}: {line}")
        else:
            self._image = local

    def _start_beside(self, command: list[str]) -> None:
        """Start a command once a node, in a step that nobody waits for."""
        step = subprocess.Popen(
            self._beside(self.nodes(), ["--no-kill", *command]),
            env=self._here.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._freeing.append(step)  # kept: one that is forgotten while it runs is a warning

    def _launch(self, step: Step) -> list[str]:
        submit_dir = self._here.submit_dir
        name = container_name(step) if self._keeps_containers else ""
        workdir = step.environ.get("PYXIS_CONTAINER_WORKDIR") or submit_dir  # else the image's own
        return [
            f"--container-image={self._image}",
            *([f"--container-name={name}"] if name else []),
            f"--container-mounts={','.join(self._mounts(step))}",
            f"--container-env={_names(step.environ)}",
            f"--container-workdir={workdir}",
            f"{_PROJECT}/jobs/launcher.sh",
        ]

    def _mounts(self, step: Step) -> list[str]:
        submit_dir = self._here.submit_dir
        mounts = [*_project(self._here.root), _mount(submit_dir, submit_dir)]
        out = _mount(step.out, step.out)
        if not step.out.startswith(f"{submit_dir}/"):
            mounts.append(out)
        for entry in extra_mounts(step.environ.get("DDP_MOUNTS", "")):
            source = entry.partition(":")[0]
            # Pyxis would unpack the whole image before it says so.
            if entry[0] in "./" and not os.path.exists(source):
                raise UsageError(
                    "DDP_MOUNTS must name what is there",
                    f"no '{source}' on {self._here.node}",
                    "correct it, or unset it",
                )
            mounts.append(entry)
        return mounts


class InContainer(Srun):
    """The batch script in a container that has Slurm's client: a nested srun inherits the image."""

    place = "container-srun"
    _heir: subprocess.Popen[bytes] | None = None

    def __init__(self, here: Surroundings) -> None:
        """Take the job as it is. Raises UsageError."""
        super().__init__(here)
        names = (f"{slurm.PYXIS}image", "PYXIS_CONTAINER_IMAGE")
        image = next(filter(None, map(here.environ.get, names)), "")
        pyxis = here.environ.get("DDP_PYXIS", "").split()
        self._keeps_containers, can_wait = _reuse(here, image, pyxis)
        self.has_standby &= can_wait

    @classmethod
    def fits(cls, here: Surroundings) -> bool:
        """Where srun knows the image: else it would start the ranks on the bare machines."""
        return here.is_in_container and here.has_client and _hands_image_on(here.environ)

    def start(self, step: Step, stdout: int) -> list[subprocess.Popen[bytes]]:
        """Start srun, and what ends its step should this script be killed.

        Slurm does so, too, but only after the batch step, for whose end Pyxis first removes an
        unpacked container: on a slow disk the ranks would train on for a minute.
        """
        self._heir = self._heir or self._slurm.end_if_orphaned()
        return super().start(step, stdout)

    def note_step(self, step_id: int | None) -> None:
        """Pass it on to what would end it."""
        if step_id is not None:  # ranks that waited were started beside those of another step
            self._heir = self._heir or self._slurm.end_if_orphaned()
        if self._heir is None or self._heir.stdin is None:
            return
        word = "done" if step_id is None else f"{self._slurm.job_id}.{step_id}"
        with suppress(OSError):
            self._heir.stdin.write(f"{word}\n".encode())
            self._heir.stdin.flush()
        if step_id is None:
            self._heir.stdin.close()
            self._heir.wait()
            self._heir = None

    def _launch(self, step: Step) -> list[str]:
        del step
        # It inherits ./ddp.sqsh and ./:/submit, too, which are relative to the job's directory on
        # the host; this script may be in the image's own, which no host has.
        directory = scontrol.path_field(self._here.info, "WorkDir")
        moved = directory and directory != os.getcwd()
        return [*([f"--chdir={directory}"] if moved else []), self._here.launcher]

    def _environ(self, step: Step) -> dict[str, str]:
        # What wins over the image is inherited in the same way, and so is a container's name.
        environ = super()._environ(step)
        option = f"{slurm.PYXIS}env"
        names = [environ.get(option, ""), _names(step.environ)]
        environ[option] = ",".join(filter(None, names))
        name = container_name(step) if self._keeps_containers else ""
        if name:
            environ[f"{slurm.PYXIS}name"] = name
        return environ


def _reuse(here: Surroundings, image: str, pyxis: Sequence[str]) -> tuple[bool, bool]:
    """Say whether containers are named, for the next attempt, and whether its ranks can wait.

    By its default Pyxis keeps a named container for ever, and of what it mounts nothing has to be
    kept. Ranks that wait have containers of their own, for which nothing may be unpacked anew.

    Args:
        here: Has the user's own choice of a container.
        image: A file, or else a registry's, which only a site's importer makes one to be mounted.
        pyxis: The plugin's arguments, as plugstack.conf has them.

    """
    is_own = any(here.environ.get(name) for name in _OWN_CONTAINER)
    is_file = image[:1] in "./" or any(one.startswith("importer=") for one in pyxis)
    mounts = any(re.fullmatch("use_squashfuse=(1|true|y|yes|on)", one) for one in pyxis)
    is_mounted = is_file and mounts
    is_named = "container_scope=job" in pyxis and not is_own and not is_mounted
    return is_named, is_named or (is_mounted and not is_own)


def container_name(step: Step) -> str:
    """Name the container for Pyxis; empty if this attempt's is not to be kept.

    It is not joined while it runs: what is left of the last attempt may be stuck in it.
    """
    return f"ddp-{step.container}:no_exec" if step.container else ""


def _hands_image_on(environ: dict[str, str]) -> bool:
    names = ("PYXIS_CONTAINER_IMAGE", "PYXIS_CONTAINER_NAME")
    return any(map(environ.get, (f"{slurm.PYXIS}image", f"{slurm.PYXIS}name", *names)))


def as_owner(here: Surroundings) -> Surroundings:
    """Begin the script again as the job's user, where the container made it another.

    In a container that is remapped to root, Slurm's clients say that they are root, and Slurm takes
    no step and no job from them. In a user namespace of its own this script and what it starts are
    the job's user. Where none can be made, there is no client.
    """
    owner = scontrol.owner(here.info)
    if not InContainer.fits(here) or owner is None or int(owner[1]) == os.geteuid():
        return here
    name, user, group = owner
    namespace = ["unshare", "--user", f"--map-user={user}", f"--map-group={group}"]
    environ = initial_environment()
    with suppress(OSError):
        if subprocess.run([*namespace, "true"], env=environ, check=False).returncode == 0:
            os.execvpe("unshare", [*namespace, "bash", here.script, *here.words], environ)  # noqa: S606
    rule = f"Slurm's client must run as the job's user {name}"
    found = f"user {os.geteuid()} and no namespace to change it"
    remedy = (
        "add --no-container-remap-root, or PYXIS_CONTAINER_REMAP_ROOT=0, or have util-linux 2.34"
        " or later in the image"
    )
    info(problem(rule, found, remedy))
    return here._replace(has_client=False, info="")


def check_image(image: str) -> None:
    """An image must be a file that Pyxis takes for one. Raises UsageError."""
    if image[:1] in "./":
        try:
            with open(image, "rb") as file:
                head, size = file.read(48), os.fstat(file.fileno()).st_size
        except OSError as error:
            raise UsageError(
                "DDP_IMAGE must be a readable squashfs file",
                f"'{image}': {error.strerror}",
                f"correct it, or {_MAKE_IT}",
            ) from None
        if head[:4] != b"hsqs":
            raise UsageError(
                "DDP_IMAGE must be a squashfs file", f"something else at '{image}'", _MAKE_IT
            )
        needed = int.from_bytes(head[40:], "little")  # bytes_used of the superblock
        if size < needed:
            raise UsageError(
                "DDP_IMAGE must be a whole squashfs file",
                f"{size} of {needed} bytes at '{image}'",
                f"copy it again, or {_MAKE_IT}",
            )
    elif os.path.exists(image):
        raise UsageError(
            "DDP_IMAGE must begin with / or . (else Pyxis takes it for a registry image)",
            f"'{image}'",
            f"write ./{image}",
        )


def check_pyxis(environ: dict[str, str]) -> None:
    """The plugin must be there. Raises UsageError."""
    shown = subprocess.run(
        ["srun", "--help"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    ).stdout
    if b"--container-image" not in shown:
        raise UsageError(
            "DDP_IMAGE needs the Pyxis plugin",
            "an srun without --container-image",
            "ask the admins for Pyxis, or unset DDP_IMAGE",
        )


def pyxis_arguments(here: Surroundings) -> list[str]:
    """Give this host's plugin and its arguments, as plugstack.conf has them; none if unknown."""
    try:
        done = subprocess.run(
            [f"{here.root}/container/pyxis_env.sh", "--plugin"],
            env=here.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:  # jobs/ alone was copied
        return []
    return done.stdout.decode(errors="replace").split()


def extra_mounts(mounts: str) -> list[str]:
    """Split DDP_MOUNTS. Raises UsageError.

    Pyxis says once a task what it does not understand, and sbatch then goes on without any mount.
    """
    entries = mounts.split(",") if mounts else []
    for entry in entries:
        if not _MOUNT.fullmatch(entry):
            raise UsageError(
                "DDP_MOUNTS must be SOURCE:TARGET, with commas between several, each beginning with"
                " / or .",
                f"'{entry}'",
                "write for example DDP_MOUNTS=/data:/data",
            )
        for part in entry.split(":"):
            _check_mountable(part)
        target = os.path.normpath((entry.split(":") * 2)[1])  # alone it is its own
        if entry and f"{_PROJECT}/".startswith(f"{target}/"):
            raise UsageError(
                f"DDP_MOUNTS must leave {_PROJECT} to the project, which ranks run from there",
                f"'{entry}'",
                "mount it at another place",
            )
    return [entry for entry in entries if entry]


def _project(root: str) -> list[str]:
    """Mount the project, read-only: nothing of it need be in the image. Raises UsageError.

    Agents and supervisor are of one version then. Each part by itself leaves alone what else our
    image has there, and this machine's .venv out.
    """
    found = [path for part in _PARTS for path in glob.glob(f"{glob.escape(root)}/{part}")[:1]]
    return [_mount(path, f"{_PROJECT}/{os.path.basename(path)}") + ":ro" for path in found]


def _mount(path: str, target: str) -> str:
    """Mount a path. Raises UsageError."""
    _check_mountable(path)
    return f"{path}:{target}"


def _check_mountable(path: str) -> None:
    """Only what reaches Enroot as it is can be mounted. Raises UsageError."""
    if _NO_MOUNT.search(path):
        raise UsageError(
            'a path to mount must hold none of , : $ ` " \\ and newlines',
            repr(path),
            "rename it, or work from another directory",
        )


def _names(environ: dict[str, str]) -> str:
    """The variables that win over the image's.

    What is named to srun replaces the list of the user's own, so that one comes along.
    """
    named: Iterable[str] = environ.get("PYXIS_CONTAINER_ENV", "").split(",")
    return ",".join(sorted({*named, *forwarded_names(environ)} - {""}))

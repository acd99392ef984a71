"""The run directory: made, checked, and what is read of it between attempts."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from jobs.checks import DENIED, USABLE, make_writable
from jobs.messages import UsageError, info
from jobs.programs import find_python, is_new, module_command
from rundir import paths, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.backends.base import Surroundings
    from jobs.checks import Made
    from rundir.paths import RunDir

_COMPOSE_S = 60


def check_files(files: RunDir) -> None:
    """A run's own files must be plain ones. Raises UsageError.

    A pipe keeps its reader for ever, and through a link another user's file would be written to.
    """
    for path in (files.events, files.latest):
        if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
            raise UsageError(
                "a run's own files must be plain ones",
                f"something else at {path}",
                "remove it, or choose another DDP_RUN_NAME",
            )


def make(files: RunDir, made: Made, here: Surroundings, temporary: str) -> None:
    """Make the run directory, in which this user can write. Raises UsageError."""
    if not (os.path.isdir(temporary) and os.access(temporary, os.W_OK)):
        is_docker = here.is_in_container and not here.is_under_slurm
        mount = "mount one (docker run --tmpfs /tmp), or " if is_docker else ""
        raise UsageError(
            "a temporary directory is needed",
            f"that none can be made in {temporary}",
            f"{mount}set TMPDIR to one that is writable",
        )
    make_writable(files.path, made, here.node, lambda why, owner: _remedy(here, why, owner))
    _check_owner(files)


def _remedy(here: Surroundings, why: str, owner: os.stat_result) -> str:
    user = f"{owner.st_uid}:{owner.st_gid}"
    if here.is_under_slurm:
        return "set DDP_OUT to a directory on the shared file system that you can write to"
    if here.is_in_container and why == DENIED:
        return (
            f"give it to user {os.geteuid()} on the host (chown), or run as its owner (docker run"
            f" --user {user})"
        )
    if here.is_in_container:
        return 'mount a directory that can be written to (docker run -v "$PWD/out:/out")'
    return "set DDP_OUT to a directory that you can write to"


def _check_owner(files: RunDir) -> None:
    """A colleague's run in a shared folder: what its owner made must be ours to write, too."""
    for path in (
        files.logs,
        files.debug,
        files.checkpoints,
        files.events,
        files.metrics,
        files.latest,
    ):
        if os.path.exists(path) and not os.access(path, os.W_OK | os.R_OK):
            raise UsageError(
                "what belongs to a run must be writable",
                f"that {path} is {_described(path)}",
                f"its owner can chmod -R g+rwX {files.path} (and umask 002 keeps it so); or choose"
                " another DDP_RUN_NAME",
            )


def _described(path: str) -> str:
    import grp  # noqa: PLC0415 -- rarely needed
    import pwd  # noqa: PLC0415

    found = os.stat(path)
    try:
        user, group = pwd.getpwuid(found.st_uid).pw_name, grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        user, group = str(found.st_uid), str(found.st_gid)
    return f"{user}:{group} {stat.filemode(found.st_mode)}"


def fill(files: RunDir, made: Made) -> None:
    """Make its directories. Raises UsageError."""
    directories = (files.logs, files.debug, files.checkpoints)
    with suppress(OSError):
        for path in directories:
            made.make(path)
    if not all(os.path.isdir(path) and os.access(path, USABLE) for path in directories):
        raise UsageError(
            "the run directory must hold the directories logs, debug and checkpoints",
            f"that they cannot be made in {files.path}",
            "is the disk full, a file in their place, or the umask too strict?",
        )


def check_output_survives(path: str, environ: Mapping[str, str]) -> None:
    """What a container writes into its own file system is gone at its end. Raises UsageError."""
    there = path
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    words = ["df", "--output=fstype,target", "--", there]
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=False)
    kind, _, mount = (done.stdout.decode(errors="replace").splitlines() or [""])[-1].partition(" ")
    mount = mount.strip()
    if mount == "/" or kind == "tmpfs":
        raise UsageError(
            "the output must outlive the container",
            f"{path} on the container's own file system",
            "add --container-mounts=./:/submit --container-env=DDP_OUT with DDP_OUT=/submit/out, or"
            ' run eval "$(container/pyxis_env.sh)" before sbatch (docker: -v "$PWD/out:/out")',
        )
    _warn_of_unnamed_volume(mount)


def _warn_of_unnamed_volume(mount: str) -> None:
    """Docker gives a volume that nobody named 64 digits for a name.

    It is removed with the container (--rm), or left where nobody looks.
    """
    with open("/proc/self/mountinfo", errors="replace") as file:
        rows = [line.split() for line in file]
    for row in rows:
        if row[4] == mount and re.search("/volumes/[0-9a-f]{64}/_data$", row[3]):
            info(
                f"warning: nothing of the host is mounted at {mount}: docker run --rm removes all"
                f' that this run writes when it ends; to keep it: docker run -v "$PWD/out:{mount}"'
            )


def latest_checkpoint(files: RunDir) -> str:
    """The name of the newest checkpoint; empty if there is none.

    Where checkpoints/latest is damaged it is the largest step that is there: noise must not get
    into the events.
    """
    try:  # listed first: NFS then asks the server, and forgets that there was none
        names = os.listdir(files.checkpoints)
        with plain.open_plain(files.latest) as file:
            text = file.read(4096).decode(errors="replace")
    except OSError:
        return ""
    first = text.split("\n")[0]
    if paths.step_of(first) is not None:
        return first
    steps = [step for step in map(paths.step_of, names) if step is not None]
    return paths.step_name(max(steps)) if steps else ""


def compose_record(root: str, files: RunDir, environ: Mapping[str, str]) -> None:
    """Compose run.json, a view of the events; without our Python that is done later, on demand."""
    python = find_python(root, environ)
    if python is None or not is_new(python, environ):
        return
    words = [*module_command(root, python, "monitor", environ), "compose", files.path]
    null = subprocess.DEVNULL
    try:
        subprocess.run(words, env=environ, stdin=null, stdout=null, timeout=_COMPOSE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        info(f"the run record is not composed; later: python -m monitor compose {files.path}")


def image_digest(path: str) -> str:
    """What container/to_squashfs.sh left beside it; empty if it did not."""
    try:
        return plain.read_text(f"{path}.sha256").split()[0] if path else ""
    except (OSError, ValueError, IndexError):
        return ""

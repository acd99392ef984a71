"""What a setting's value must be, and a directory to write to."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Callable

from jobs.messages import UsageError
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

Check = Callable[[str, str], str]
"""Takes a setting's name and value, returns the value as it counts. Raises UsageError."""

DENIED = "Permission denied"
USABLE = os.R_OK | os.W_OK | os.X_OK
"""What a user must be able to do in a directory of a run."""
_ON = ("1", "on", "y", "yes", "t", "true")
_OFF = ("0", "off", "n", "no", "f", "false")
_WHOLE = re.compile(r"0|[1-9][0-9]{0,9}")  # int() would take more: 1_0, ' 1', other scripts' digits


def switch(name: str, value: str) -> str:
    """Write a setting that is on or off, in whatever words, as 1 or 0. Raises UsageError."""
    word = value.lower()
    if word in _ON or word in _OFF:
        return "1" if word in _ON else "0"
    raise UsageError(
        f"{name} must be 1/0, on/off, yes/no or true/false",
        f"'{value}'",
        "set one of these, or unset it",
    )


def whole_number(
    name: str,
    value: str,
    least: int,
    most: int,
    remedy: str = "correct it, or unset it for the default",
) -> int:
    """Parse a whole number within bounds, without a leading zero. Raises UsageError."""
    if not _WHOLE.fullmatch(value) or not least <= int(value) <= most:
        raise UsageError(
            f"{name} must be a whole number from {least} to {most}",
            f"'{value}'",
            remedy,
        )
    return int(value)


def integer(least: int, most: int) -> Check:
    """A whole number in these bounds, without leading zeros."""
    return lambda name, value: str(whole_number(name, value, least, most))


def matching(pattern: str, rule: str, remedy: str) -> Check:
    """A text of this form."""

    def check(name: str, value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise UsageError(f"{name} must be {rule}", f"'{value}'", remedy)
        return value

    return check


def node_range(num_nodes: int) -> Check:
    """MIN:MAX, the fewest and the most nodes of a run, in an allocation of so many."""

    def check(name: str, value: str) -> str:
        least, most = bounds(value)
        if not 0 < least <= most:
            raise UsageError(
                f"{name} must be MIN:MAX, the fewest and the most nodes",
                f"'{value}'",
                f"write for example {name}=2:4, or unset it",
            )
        if least > num_nodes:
            raise UsageError(
                f"the job must have the {least} nodes that {name}={value} needs",
                counted(num_nodes, "node"),
                f"give sbatch --nodes={least}-{most}, or lower the first number",
            )
        return value

    return check


def bounds(value: str) -> tuple[int, int]:
    """Read MIN:MAX; both 0 for anything else."""
    found = re.fullmatch("([0-9]{1,6}):([0-9]{1,6})", value)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def refuse_other_launchers(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several that train alone. Raises UsageError.

    torchrun, Kubernetes, mpirun and SageMaker start this script once a rank, a pod or a host, and
    name the others in its environment: nobody would notice.
    """
    outside = "" if environ.get("SLURM_JOB_ID") else "no Slurm job and "
    for name in (
        "WORLD_SIZE",
        "PET_NNODES",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_SIZE",
        "MV2_COMM_WORLD_SIZE",
        "SM_HOSTS",
    ):
        value = environ.get(name, "")
        several = re.search(r"(^|:)0*([2-9]|[1-9][0-9]+)(:|$)", value)
        if several or (name == "SM_HOSTS" and "," in value):
            raise UsageError(
                "several ranks or nodes need Slurm or torchrun",
                f"{outside}{name}={value}, by which this script would train alone",
                "start jobs/launcher.sh once a rank instead, with RANK, LOCAL_RANK, WORLD_SIZE,"
                " LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as torchrun does (torchrun …"
                " --no-python jobs/launcher.sh); to train on this machine alone unset " + name,
            )


def check_command(words: list[str]) -> None:
    """Check that -- is not alone. Raises UsageError."""
    if words == ["--"]:
        remedy = "give one, or leave -- away to run the trainer"
        raise UsageError("a command must follow --", "nothing", remedy)


def check_no_tilde(name: str, path: str) -> None:
    """Check a path that no shell has read. Raises UsageError."""
    if path.startswith("~"):
        raise UsageError(
            f"{name} must be a path, in which no shell has to replace ~",
            f"'{path}'",
            "write $HOME, or leave out the quotes",
        )


def working_directory() -> str:
    """Return it. Raises UsageError where it was removed since a shell went there."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            "the working directory must exist", str(error.strerror), "cd to one that does"
        ) from None


class Made:
    """The directories that a start makes; where it is refused, these alone are taken away again."""

    def __init__(self) -> None:
        """Nothing is made yet."""
        self.paths: list[str] = []

    def make(self, directory: str) -> None:
        """Make a directory with its parents. Raises OSError where it is none then."""
        paths = [directory]
        while not os.path.lexists(paths[-1]):
            paths.append(os.path.dirname(paths[-1]) or ".")
        for path in reversed(paths):
            try:
                os.mkdir(path)
                self.paths.append(path)
            except OSError:  # noqa: PERF203 -- another start may make the same
                if not os.path.isdir(path):
                    raise

    def remove(self) -> None:
        """Take away what was made, but for what another job has written into by now."""
        for path in reversed(self.paths):
            with suppress(OSError):
                os.rmdir(path)


def make_writable(
    directory: str, made: Made, node: str, remedy: Callable[[str, os.stat_result], str]
) -> None:
    """Make a directory of the run, or say who may not write where.

    Args:
        directory: is made with its parents.
        made: learns what is made.
        node: this node's name.
        remedy: given why it failed, and the status of what is there: what to do in this place.

    Raises:
        UsageError: it cannot be made, or not be written to.

    """
    why = DENIED
    try:
        made.make(directory)
    except OSError as error:
        why = error.strerror or why
    if os.path.isdir(directory) and os.access(directory, USABLE):
        return
    there = directory
    while not os.path.lexists(there):
        there = os.path.dirname(there) or "."
    try:
        status = os.stat(there)
        if os.statvfs(there).f_flag & os.ST_RDONLY:
            why = os.strerror(errno.EROFS)
        lacks = "read" if os.access(there, os.W_OK | os.X_OK) else "write to"
        found = f"that user {os.geteuid()} cannot {lacks} {there} of user {status.st_uid}"
        if not stat.S_ISDIR(status.st_mode):
            found = f"that {there} is not a directory"
    except OSError as error:
        status, is_loop = os.lstat(there), error.errno == errno.ELOOP
        which = "leads back to it" if is_loop else "is not there"
        found = f"that {there} is a link to {os.readlink(there)}, which {which}"
    if there in made.paths and not os.access(there, USABLE):
        raise UsageError(
            "a directory that this user makes must be writable",
            f"that {there} was made with mode {stat.S_IMODE(status.st_mode):03o}",
            "set a umask such as 022",
        )
    raise UsageError(
        "the run directory must be writable", f"{found} on {node} ({why})", remedy(why, status)
    )

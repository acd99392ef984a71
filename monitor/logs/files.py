"""Which files are logs, whose they are by their names, which are one log, and what is a run.

`record` moves its log away when it has grown: `FILE` becomes `FILE.1`, what was `FILE.1` becomes
`FILE.2`, and a new `FILE` begins. Together they are one log, the oldest first.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.errors import UserError, emit
from monitor.words import and_more
from rundir import events as event_log
from rundir import paths as run_files
from rundir.plain import open_plain
from rundir.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BYTE_ORDER = b"\xef\xbb\xbf"
"""What Windows sets before a text."""
_NO_TEXT = {
    b"\x1f\x8b": "it is compressed, gunzip it first",
    b"\xfd7zXZ": "it is compressed, unpack it with xz first",
    b"\x28\xb5\x2f\xfd": "it is compressed, unpack it with zstd first",
    b"BZh": "it is compressed, unpack it with bzip2 first",
    b"\xff\xfe": "it is UTF-16, as PowerShell writes it: convert it with iconv first",
    b"\xfe\xff": "it is UTF-16: convert it with iconv first",
}
"""First bytes of files that would be read as unreadable rows."""
_SIGN_BYTES = max(map(len, _NO_TEXT))

_RUN_FILES = (run_files.EVENTS, run_files.METRICS)
_PACKED = (".gz", ".xz", ".bz2", ".zst")
_ROTATED = re.compile(
    rf"(?P<log>.+\.gutil)\.(?P<number>[1-9]\d{{0,3}})({'|'.join(map(re.escape, _PACKED))})?",
    re.ASCII | re.DOTALL,
)
_NAME = re.compile(rf"{run_files.JOB_PREFIX}(?P<job>[^.]+)\.(?P<host>.+)", re.DOTALL)


def no_text(beginning: bytes | bytearray) -> str | None:
    """Return why a file is no text of one byte a character, by its first bytes; None: it may be."""
    return next((why for sign, why in _NO_TEXT.items() if beginning.startswith(sign)), None)


def named(path: str) -> tuple[str | None, str]:
    """Return job and node by the name of a log, `slurm-<job>.<host>.gutil`; its own lines win.

    Any other name is no job's, and the node's own. Both are fit to be shown.
    """
    name = os.path.basename(path)
    rotated = _ROTATED.fullmatch(name)
    stem = printable(os.path.splitext(rotated["log"] if rotated else name)[0])
    found = _NAME.fullmatch(stem)
    return (found["job"], found["host"]) if found else (None, stem)


def in_folder(folder: str, jobs: Iterable[str] | None = None) -> list[str]:
    """List the logs of a folder, sorted, each as the path that is written to.

    What a directory may hold beside files, such as a pipe without a writer, is none. What is not
    there, as behind a link, is one: its reader reports it.

    Args:
        folder: which to list, not below it.
        jobs: whose logs to give; None: all.

    Raises:
        OSError: it cannot be read.

    """
    names = sorted(log for log, old in _listed(folder).items() if not all(map(_is_packed, old)))
    if jobs is not None:
        wanted = frozenset(jobs)
        names = [name for name in names if named(name)[0] in wanted]
    paths = [os.path.join(folder, name) for name in names]
    return [path for path in paths if os.path.isfile(path) or not os.path.exists(path)]


def size_bytes(path: str) -> int:
    """Give a file's size; 0 where there is none."""
    with suppress(OSError):
        return os.stat(path).st_size
    return 0


def unreadable(path: str, error: OSError) -> UserError:
    """Say that a log cannot be read."""
    return UserError(
        "a log must be a file that can be read",
        f"{path}: {error.strerror}",
        "name .gutil files, or a directory that holds some",
    )


def refuse_device(mode: int) -> None:
    """Raise OSError where a file's mode is a device's: such as /dev/zero it may have no end."""
    if stat.S_ISCHR(mode):
        raise OSError(errno.ENODEV, "it is a device")


@contextmanager
def reading_folder(folder: str) -> Iterator[None]:
    """Raise a UserError where a folder cannot be read."""
    try:
        yield
    except OSError as error:
        raise UserError(
            "a directory must be one that can be looked into",
            f"{folder}: {error.strerror}",
            "name the output directory of a job",
        ) from error


def find(paths: Iterable[str]) -> list[tuple[str, ...]]:
    """Find logs: those that are named, and those that directories hold.

    Of files that are not named themselves, those that cannot be read, such as other users' or
    compressed ones, are left out with a line.

    Returns: of each log its files, the oldest first; no file twice.

    Raises:
        UserError: a directory holds none, or cannot be read.

    """
    left_out: dict[str, list[str]] = {}
    known: set[str] = set()
    logs: list[tuple[str, ...]] = []
    listed = cache(_or_none)
    for path in paths:
        is_folder = os.path.isdir(path)
        for log in _in_directory(path) if is_folder else [path]:
            folder, name = os.path.split(log)
            new = {}
            for old in listed(folder or ".").get(name, [name]):
                file = os.path.join(folder, old)
                why = None if file == log and not is_folder else _unreadable(file)
                if why is None:
                    new[os.path.realpath(file)] = file
                else:
                    left_out.setdefault(why, []).append(file)
            logs += [tuple(new[real] for real in new if real not in known)]
            known |= new.keys()
    logs = [log for log in logs if log]
    if not logs:
        return [(file,) for files in left_out.values() for file in files]  # whose reader says why
    for why, files in left_out.items():
        emit(f"left out {files[0]}{and_more(len(files) - 1, 'file')}: {why}")
    return logs


def _unreadable(file: str) -> str | None:
    """Return why a file cannot be read as a log; None: it may be one."""
    if _is_packed(file):
        return "it is compressed, unpack it first"
    try:
        with open_plain(file) as opened:
            return no_text(opened.read(_SIGN_BYTES))
    except OSError as error:
        return error.strerror


def beside_run(run_dir: str) -> list[str]:
    """List the logs of a run's jobs: they lie beside its directory, or beside the link to it.

    Raises:
        UserError: its events cannot be read, or a folder cannot be read.

    """
    job_ids = [line.get("job_id") for line in lines_of(run_dir, run_files.EVENTS)]
    jobs = {job for job in job_ids if isinstance(job, str)}
    logs = []
    for whole in dict.fromkeys([os.path.abspath(run_dir), os.path.realpath(run_dir)]):
        folder, name = os.path.split(whole)
        with reading_folder(folder):
            logs += in_folder(folder, {*jobs_by_name(name), *jobs})
    return logs


def jobs_by_name(name: str) -> list[str]:
    """Return the job that a run directory is named for, `slurm-<job>`; none: it has a name."""
    prefix = run_files.JOB_PREFIX
    return [name.removeprefix(prefix)] if name.startswith(prefix) else []


def _in_directory(path: str) -> list[str]:
    if is_run(path):
        return beside_run(path)
    with reading_folder(path):
        found = in_folder(path)
    if not found:
        raise UserError(
            "a directory must hold .gutil files",
            f"none in {path}",
            "name the output directory of a job",
        )
    return found


def _listed(folder: str) -> dict[str, list[str]]:
    """Find the files of each log of a folder, the oldest first, by the name that is written to."""
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in os.listdir(folder):
        rotated = _ROTATED.fullmatch(name)
        if rotated:
            numbered.setdefault(rotated["log"], []).append((-int(rotated["number"]), name))
        elif name.endswith(run_files.SAMPLES_SUFFIX):
            numbered.setdefault(name, []).append((0, name))
    return {log: [name for _, name in sorted(files)] for log, files in numbered.items()}


def _is_packed(file: str) -> bool:
    return file.endswith(_PACKED)


def _or_none(folder: str) -> dict[str, list[str]]:
    try:
        return _listed(folder)
    except OSError:
        return {}  # the log's reader reports what is wrong


def is_run(path: str) -> bool:
    """Whether a directory is a run's; False where it may not be read."""
    return any(os.path.isfile(os.path.join(path, name)) for name in _RUN_FILES)


def runs_in(folder: str) -> list[str]:
    """List the run directories in a folder, sorted. Raises OSError where it cannot be read."""
    paths = (os.path.join(folder, name) for name in os.listdir(folder))
    return sorted(path for path in paths if is_run(path))


def lines_of(run_dir: str, name: str) -> list[event_log.Event]:
    """Read a run's file of JSON lines; none where there is no such file.

    Raises:
        UserError: it cannot be read.

    """
    path = Path(run_dir, name)
    try:
        with open_plain(str(path)) as file:
            return event_log.read(file.read())[0]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"a run's {name} must be a file that can be read",
            f"{path}: {error.strerror}",
            "name a run directory such as out/slurm-123",
        ) from error


def written_s(run_dir: str) -> float:
    """When the run last reported anything, in seconds since 1970; 0 if never."""
    times = [0.0]
    for name in _RUN_FILES:
        with suppress(OSError):
            times.append(os.stat(os.path.join(run_dir, name)).st_mtime)
    return max(times)

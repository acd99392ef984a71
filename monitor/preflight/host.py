"""The host of a node: memory and disks, links of the fabric, errors of the driver, versions."""

from __future__ import annotations

import os
import platform
import re
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rundir import xids
from rundir.paths import RunDir
from rundir.plain import plain_opener
from rundir.preflight.verdict import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MIB = 1 << 20
_MINUTES = 10
"""How old an Xid may be."""
_XID = re.compile(r"^\d+,\d+,(\d+),[^;]*;NVRM: Xid \((?:PCI:)?([^)]*)\): (\d+)")
"""A record of /dev/kmsg: priority, number, microseconds since boot; text."""
_MAX_RECORD = 1 << 13


def read(run_dir: str, node: str, launch_id: str, add: Callable[[Reading], object]) -> None:
    """Add every reading, the disk that may hang last."""
    root, wanted = Path("/"), os.environ.get("TMPDIR", "")
    # Where the host's is not mounted into a container, programs take /tmp.
    temporary = wanted if os.path.isdir(wanted) else "/tmp"  # noqa: S108 - as every program here
    for readings in (
        memory(root, temporary),
        fabric(root),
        xids_of(root / "dev/kmsg"),
        versions(root),
        run_directory(run_dir, node, launch_id),
    ):
        for reading in readings:
            add(reading)


def memory(root: Path, temporary: str) -> Iterator[Reading]:
    """Room in shared memory and for temporary files, and memory that InfiniBand may lock."""
    for name, path in (("shm_mib", root / "dev/shm"), ("tmp_mib", Path(temporary))):
        with suppress(OSError):
            # statvfs reports room also where nobody may write, and fails where nothing is.
            is_usable = os.access(path, os.W_OK | os.X_OK)
            words = "" if is_usable else f"{path} cannot be written to"
            yield Reading(name, _free_mib(path) if is_usable else 0, words)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and any(_ports(root)):
        yield Reading("memlock_mib", soft / _MIB)


def _free_mib(path: Path) -> float:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize / _MIB


def fabric(root: Path) -> Iterator[Reading]:
    """Ports of InfiniBand: how many are up, and the rate of each."""
    ports, up = [*_ports(root)], []
    for port in ports:
        with suppress(OSError, ValueError, IndexError):
            if "ACTIVE" in (port / "state").read_text():
                up.append((port, float((port / "rate").read_text().split()[0])))
    if ports:
        yield Reading("ib_ports", len(up))
    for port, gbit_per_s in up:
        yield Reading("ib_gbit_per_s", gbit_per_s, f"{port.parents[1].name} port {port.name}")


def _ports(root: Path) -> Iterator[Path]:
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        with suppress(OSError):
            if (port / "link_layer").read_text().strip() == "InfiniBand":
                yield port


def xids_of(kmsg: Path) -> Iterator[Reading]:
    """Xids of the last minutes that show broken hardware, where the kernel's log may be read."""
    oldest_us = (time.clock_gettime(time.CLOCK_BOOTTIME) - 60 * _MINUTES) * 1e6
    found: dict[str, int] = {}
    try:
        for record in _records(kmsg):
            match = _XID.match(record)
            is_new = match is not None and int(match[1]) >= oldest_us
            if match and is_new and xids.look_up(match[3]).owner == "hardware":
                words = f"Xid {match[3]} of {match[2]}"
                found[words] = found.get(words, 0) + 1
    except OSError:
        return  # most sites keep it for the administrators
    yield from (Reading("xids", num, words) for words, num in found.items())


def _records(kmsg: Path) -> Iterator[str]:
    """Read what there is; each read gives one record of the device."""
    fd = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with suppress(BlockingIOError):
            while data := os.read(fd, _MAX_RECORD):
                yield from data.decode(errors="replace").splitlines()
    finally:
        os.close(fd)


def versions(root: Path) -> Iterator[Reading]:
    """Report what the ranks run in: the distribution and its Python."""
    name = "unknown"
    with suppress(OSError):
        text = (root / "etc/os-release").read_text(errors="replace")
        found = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE)
        name = found[1] if found else name
    yield Reading("image", f"{name}, Python {platform.python_version()}")


def run_directory(run_dir: str, node: str, launch_id: str) -> Iterator[Reading]:
    """See the supervisor's file in it, and write one that the supervisor looks for."""
    files = RunDir(run_dir)
    theirs, ours = Path(files.preflight("supervisor")), Path(files.preflight(node))
    began_s = time.monotonic()
    try:
        yield Reading("run_dir_mib", _free_mib(Path(run_dir)))
        beside = ours.with_name(ours.name + ".new")
        with open(beside, "w", opener=plain_opener) as file:
            file.write(launch_id)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(ours)
        is_seen = theirs.read_text() == launch_id
    except OSError as error:
        yield Reading("run_dir_unseen", 1, f"{error.strerror}: {error.filename or ours}")
        return
    yield Reading("run_dir_s", time.monotonic() - began_s)
    yield Reading("run_dir_unseen", int(not is_seen), "the supervisor's file")

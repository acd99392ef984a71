"""The table of failures: what is found where, and the class that it makes of a failure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from rundir import xids

if TYPE_CHECKING:
    from collections.abc import Mapping


class Row(NamedTuple):
    """A row of the table: if `pattern` is found in that `place`, the failure is of this class.

    The words complete a sentence that begins with the rank, or with `the run`.
    """

    place: str
    pattern: str
    failure_class: str | None
    words: str


class Finding(NamedTuple):
    """What an attempt ended of; `line` is the evidence, word for word."""

    failure_class: str | None
    words: str
    place: str
    line: str


NONE_STARTED = "could not start its ranks"
PORT_TAKEN = "found the port taken"
NO_DOWNLOAD = "could not download what it needs"
NO_TASK = "asked Slurm for a rank, but is not a task"
DOWNLOAD = "urlopen error|HTTPSConnection|LocalEntryNotFoundError|Error downloading"
_BROKEN = "|".join(map(str, sorted(xids.BROKEN)))

# Places, and what stands in them; only what is known of the end is filled:
#   code     the attempt's exit code              signal   of the failed rank, such as KILL
#   verdict  the watchdog's kind                  node     which node was lost, and how
#   stop     why the job was asked to end         end      `none` if no end was reported
#   log      the end of the failed rank's log     error    its exceptions there, its last lines
#   later    as `error`, once a step was done     follows  its word for having lost a peer
#   early    a rank that was done before it        save   why its checkpoint was not written
#   oom      `true`: the kernel ended it          nan      what was done about a non-finite loss
#   fault    what the monitor saw break in a GPU of the failed rank's node
#   start    on which node no rank came up, or that none did at all
#   copies   its word for having other weights than its data-parallel copies
TABLE: tuple[Row, ...] = (
    Row("code", r"0", None, "finished"),
    Row("code", r"64", "user", "found its input or environment wrong"),
    # ---- the machine itself, before what follows from it
    Row("log", rf"\bXid \([^)]*\):? *(?:{_BROKEN})\b|"
         r"uncorrectable ECC|double[- ]bit ECC|fallen off the bus|"
         r"NVLink.*(uncorrectable|fatal) error|uncorrectable NVLink error|hardware stack error|"
         r"peer GPU memory over nvlink or a hardware error|CUDA error: system not yet initialized",
         "hardware", "was hit by a fault of its GPU"),
    Row("copies", r".+", "hardware", "has weights that its copies do not have"),
    Row("node", r".+", "hardware", "lost its node"),
    Row("start", r" on \S+", "hardware", "could not start a rank"),
    Row("fault", r".+", "hardware", "was hit by a fault of its GPU"),
    # ---- the watchdog
    Row("verdict", r"network", "network", "could not reach the others"),
    Row("verdict", r"stopped", "hung", "was stopped from outside and did not go on"),
    Row("verdict", r"hung", "hung", "did no more steps"),
    Row("code", r"76", "hung", "did no more steps"),
    # ---- somebody asked for the end
    Row("stop", r"preempted", "preempted", "made way for another job"),
    Row("stop", r"time limit", "time limit", "was ended by the time limit"),
    Row("stop", r"more nodes", "stopped", "made way for a start on more nodes"),
    Row("stop", r"cancelled", "cancelled", "was cancelled"),
    Row("stop", r"itself", "stopped", "requested a requeue (exit code 75)"),
    Row("stop", r"signalled", "stopped", "was sent a signal to end, not by Slurm"),
    # ---- what the rank reported
    Row("error", r"No space left on device|Disk quota exceeded|ENOSPC|EDQUOT|"
         r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+", "storage",
         "found no room on the disk"),
    Row("error", r"Stale file handle|Input/output error|Read-only file system|ESTALE|\bEIO\b|"
         r"Transport endpoint is not connected", "storage", "could not use the file system"),
    Row("error", r"(?m)(FileNotFoundError|No such file or directory).*"
         r"\.(?!(?:py|pyc|so|sh|toml|ya?ml|json|cfg|ini)\b)\w+[^\w/]*$", "storage",
         "missed a file of its data"),
    Row("later", r"FileNotFoundError|No such file or directory", "storage",
         "missed a file that was there before"),
    Row("oom", r"true", "program", "used more memory than it may"),
    Row("log", r"oom[-_ ]?kill|[Oo]ut of memory: Killed|Memory cgroup out of memory", "program",
         "used more memory than it may"),
    Row("error", r"MemoryError|CUDA out of memory|OutOfMemoryError|[Oo]ut of memory|bad_alloc|"
         r"Cannot allocate memory|not enough memory", "program", "ran out of memory"),
    Row("error", r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|"
         r"unsupported display driver|no kernel image is available|unsupported toolchain", "user",
         "has a driver or a GPU that its torch is not built for"),
    Row("error", r"(?m)unrecognized arguments: |No such option|Unrecognized options: |"
         r"Unknown command line flag|Could not consume arg|^Key '.*' is not in struct", "user",
         "was given an option that it does not have"),
    Row("error", r"KeyError: 'SLURM_(PROCID|LOCALID)'|missing 'SLURM_PROCID'|"
         r"coordinator_address should be defined", "user", NO_TASK),
    Row("error", r"CUDA error: device-side assert", "program", "failed an assertion on its GPU"),
    Row("error", r"CUDA error: an illegal memory access", "program",
         "used GPU memory that is not its own"),
    Row("error", r"CUDA error: ", "program", "broke its GPU's context"),
    Row("error", r"DataLoader worker \(pid.* (killed by signal|exited unexpectedly)", "program",
         "lost a worker of its data loader"),
    Row("error", r"ProcessExitedException: .* signal SIG(KILL|TERM)|"
         r"died with <Signals\.SIG(KILL|TERM)|: line \d+: +\d+ Killed\b", "killed",
         "lost a process that it had spawned"),
    Row("nan", r"stop", "program", "met a loss or gradient that is not finite"),
    Row("error", r"[Aa]ddress already in use|EADDRINUSE", "network", PORT_TAKEN),
    Row("error", DOWNLOAD, "network", NO_DOWNLOAD),
    Row("error", r"Name or service not known|Temporary failure in name resolution|"
         r"No route to host|Network is unreachable", "network", "could not reach the others"),
    Row("early", r".+", "program", "lost a peer that had ended with code 0"),
    Row("follows", r".+", "network", "lost its connection, and no rank says why"),
    Row("save", r".+", "storage", "could not write its checkpoint"),
    # ---- how it ended, where it reported nothing
    Row("signal", r"SEGV|BUS|ILL|FPE|ABRT|TRAP|SYS", "program", "crashed"),
    Row("signal", r"KILL|TERM|HUP|INT|QUIT", "killed", "was killed from outside"),
    Row("signal", r".+", "program", "was ended by a signal"),
    Row("code", r"127", "program", "could not find its command"),
    Row("code", r"126", "program", "may not execute its command"),
    Row("start", r".+", "program", NONE_STARTED),
    Row("end", r"none", "killed", "was killed and could not say why"),
    Row("code", r".+", "program", "failed"),
)  # fmt: skip
"""Rows in order: the first that is found decides."""

BY_SLURM = {
    "OUT_OF_MEMORY": ("program", "used more memory than it may"),
    "NODE_FAIL": ("hardware", "lost its node"),
    "TIMEOUT": ("time limit", "was ended by the time limit"),
    "PREEMPTED": ("preempted", "made way for another job"),
    "CANCELLED": ("cancelled", "was cancelled"),
}
"""Class and words of what was killed and could not say why, by the state in which Slurm has it."""

FOLLOWS = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|Connection refused|Socket Timeout|"
    r"remote process exited|ncclRemoteError|ncclSystemError|NCCL.*(watchdog|timeout)|"
    r"Watchdog caught collective operation timeout|"
    r"TCPStore(?!.*(in use|EADDRINUSE))|store->get|recvValue failed|Connection was likely closed|"
    r"Timed out waiting|Poll error condition"
)
"""What a rank says whose peer failed first: the consequence of a failure, never its cause."""

DONE = Finding(None, "finished", "end", "")

_ONE_WORD = ("code", "signal", "verdict", "stop", "end", "oom")
_MAX_LINE = 300


def match(signs: Mapping[str, str]) -> Finding:
    """Find the first row of the table that fits; `signs` has a text for each place."""
    for row in TABLE:
        text = signs.get(row.place, "")
        search = re.fullmatch if row.place in _ONE_WORD else re.search
        found = search(row.pattern, text) if text else None
        if found:
            line = _line_at(text, found.start())
            return Finding(row.failure_class, row.words, row.place, line)
    return Finding("killed", "was killed and could not say why", "end", "")


def _line_at(text: str, position: int) -> str:
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[begin : end if end >= 0 else None].strip()[:_MAX_LINE]

"""Who is to blame: one table from what was seen to the class of a failure."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Sign:
    """A row of the table: if `pattern` is found in that `place`, the failure is of this class.

    The words complete a sentence that begins with the rank, or with `the run`.
    """

    place: str
    pattern: str
    failure_class: str | None
    words: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What an attempt ended of; `line` is the evidence, word for word."""

    failure_class: str | None
    words: str
    place: str
    line: str


# Places, and what stands in them; only what is known of the end is filled:
#   code     the attempt's exit code              signal   of the failed rank, such as KILL
#   verdict  the watchdog's kind                  node     which node was lost, and how
#   stop     why the job was asked to end         end      `none` if no end was told
#   log      the end of the failed rank's log     error    its exceptions there, its last lines
#   later    as `error`, once a step was done     follows  its word for having lost a peer
#   early    a rank that was done before it        save   why its checkpoint was not written
#   oom      `true`: the kernel ended it          nan      what was done about a non-finite loss
TABLE: tuple[Sign, ...] = (
    Sign("code", r"0", None, "finished"),
    Sign("code", r"64", "user", "found its input or environment wrong"),
    # ---- the machine itself, before what follows from it
    Sign("log", r"NVRM: Xid|\bXid \(|uncorrectable ECC|double[- ]bit ECC|fallen off the bus|"
         r"NVLink.*(uncorrectable|fatal) error|uncorrectable NVLink error|hardware stack error|"
         r"peer GPU memory over nvlink or a hardware error|CUDA error: system not yet initialized",
         "hardware", "was hit by a fault of its GPU"),
    Sign("node", r".+", "hardware", "lost its node"),
    # ---- the watchdog
    Sign("verdict", r"network", "network", "could not reach the others"),
    Sign("verdict", r"stopped", "hung", "was stopped from outside and did not go on"),
    Sign("verdict", r"hung", "hung", "did no more steps"),
    Sign("code", r"76", "hung", "did no more steps"),
    # ---- somebody asked for the end
    Sign("stop", r"preempted", "preempted", "made way for another job"),
    Sign("stop", r"time limit", "time limit", "was ended by the time limit"),
    Sign("stop", r"cancelled", "cancelled", "was cancelled"),
    Sign("stop", r"itself", "stopped", "ended by itself and asks to go on later"),
    Sign("stop", r"signalled", "stopped", "was sent a signal to end, not by Slurm"),
    # ---- what the rank said
    Sign("error", r"No space left on device|Disk quota exceeded|ENOSPC|EDQUOT|"
         r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+", "storage",
         "found no room on the disk"),
    Sign("error", r"Stale file handle|Input/output error|Read-only file system|ESTALE|\bEIO\b|"
         r"Transport endpoint is not connected", "storage", "could not use the file system"),
    Sign("error", r"(?m)(FileNotFoundError|No such file or directory).*"
         r"\.(?!(?:py|pyc|so|sh|toml|ya?ml|json|cfg|ini)\b)\w+[^\w/]*$", "storage",
         "missed a file of its data"),
    Sign("later", r"FileNotFoundError|No such file or directory", "storage",
         "missed a file that was there before"),
    Sign("oom", r"true", "program", "used more memory than it may"),
    Sign("log", r"oom[-_ ]?kill|[Oo]ut of memory: Killed|Memory cgroup out of memory", "program",
         "used more memory than it may"),
    Sign("error", r"MemoryError|CUDA out of memory|OutOfMemoryError|[Oo]ut of memory|bad_alloc|"
         r"Cannot allocate memory|not enough memory", "program", "ran out of memory"),
    Sign("error", r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|"
         r"unsupported display driver|no kernel image is available|unsupported toolchain", "user",
         "has a driver or a GPU that its torch is not built for"),
    Sign("error", r"CUDA error: ", "program", "broke its GPU's context"),
    Sign("nan", r"stop", "program", "met a loss or gradient that is not finite"),
    Sign("error", r"[Aa]ddress already in use|EADDRINUSE", "network", "found the port taken"),
    Sign("error", r"Name or service not known|Temporary failure in name resolution|"
         r"No route to host|Network is unreachable", "network", "could not reach the others"),
    Sign("early", r".+", "program", "lost a peer that had ended with code 0"),
    Sign("follows", r".+", "network", "lost its connection, and no rank says why"),
    Sign("save", r".+", "storage", "could not write its checkpoint"),
    # ---- how it ended, where it said nothing
    Sign("signal", r"SEGV|BUS|ILL|FPE|ABRT|TRAP|SYS", "program", "crashed"),
    Sign("signal", r"KILL|TERM|HUP|INT|QUIT", "killed", "was killed from outside"),
    Sign("signal", r".+", "program", "was ended by a signal"),
    Sign("code", r"127", "program", "could not find its command"),
    Sign("code", r"126", "program", "may not execute its command"),
    Sign("end", r"none", "killed", "was killed and could not say why"),
    Sign("code", r".+", "program", "failed"),
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
    r"TCPStore(?!.*(in use|EADDRINUSE))|store->get|recvValue failed|Timed out waiting"
)
"""What a rank says whose peer failed first: the consequence of a failure, never its cause.

The surest of these words stand in jobs/lib/judge.sh, too, where there need not be a Python.
"""

DONE = Finding(None, "finished", "end", "")

_WHOLE = ("code", "signal", "verdict", "stop", "end", "oom")  # places of one word
_PREFIX = re.compile(r"^(?:\[rank\d+\]:\s?|\[\d+\]\s)?")
_EXCEPTION = re.compile(
    r"[\w.]*(?:Error|Exception|Interrupt)\b.*|terminate called.*|.*: error: .*|Fatal Python error.*"
)
_FOLLOWING = re.compile(r"[\w.]*(?:ChildFailedError|ProcessRaisedException|SystemExit)\b")
_UNHEARD = re.compile(r"Exception ignored in|--- Logging error ---|Exception in thread")
_ENDS = re.compile(rf"Traceback|{_UNHEARD.pattern}|{_FOLLOWING.pattern}")
_CHAINED = re.compile(
    r"The above exception was the direct cause|During handling of the above exception"
)
_GOES_ON = re.compile(r"step \d+(/\d+)?\b.*(loss|samples/s|epoch)|epoch \d+\b.*(loss|accuracy)")
_NUM_LINES = 60  # of the end of a log: older words are about something else
_NUM_LAST = 3
_NUM_BELOW = 5  # lines of an error below its first one
_MAX_LINE = 300


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known about one end: a text for each place of the table, empty if none."""

    signs: Mapping[str, str] = field(default_factory=dict)

    def judge(self) -> Finding:
        """Find the first row of the table that fits."""
        for sign in TABLE:
            text = self.signs.get(sign.place, "")
            is_whole = sign.place in _WHOLE
            found = (re.fullmatch if is_whole else re.search)(sign.pattern, text)
            if found and text:
                line = _line_at(text, found.start())
                return Finding(sign.failure_class, sign.words, sign.place, line)
        return Finding("killed", "was killed and could not say why", "end", "")


def errors_in(log_end: str) -> list[str]:
    """Pick the lines that say what went wrong: the last fatal error, else the last lines.

    What came before it was handled, or the program would have ended there. What it names as its
    cause, or was handling, belongs to it; so does what it says below its first line. No error is
    one that Python only tells of (`Exception ignored in`), or that tells of a child's.
    """
    lines = [_PREFIX.sub("", line).rstrip() for line in log_end.splitlines()[-_NUM_LINES:]]
    lines = [line for line in lines if line]
    went_on = [number for number, line in enumerate(lines) if _GOES_ON.search(line)]
    lines = lines[went_on[-1] + 1 :] if went_on else lines
    fatal = [n for n, line in enumerate(lines) if _is_fatal(lines, n, line)]
    if not fatal:
        return [line[:_MAX_LINE] for line in lines[-_NUM_LAST:]]
    chain = [fatal[-1]]
    for before in reversed(fatal[:-1]):
        if not any(_CHAINED.search(line) for line in lines[before : chain[-1]]):
            break
        chain.append(before)
    below = itertools.takewhile(lambda line: not _ENDS.match(line), lines[fatal[-1] + 1 :])
    causes = [lines[number] for number in reversed(chain[1:])]
    told = (*causes, *itertools.islice(below, _NUM_BELOW), lines[fatal[-1]])
    return [line[:_MAX_LINE] for line in told]


def _is_fatal(lines: Sequence[str], number: int, line: str) -> bool:
    """Tell whether a line is an exception that may have ended the program."""
    if not _EXCEPTION.match(line) or _FOLLOWING.match(line) or _UNHEARD.match(line):
        return False
    begin = next((n for n in range(number - 1, -1, -1) if not lines[n].startswith(" ")), None)
    head = "" if begin is None else lines[begin]
    if head.startswith("Traceback") and begin:
        head = lines[begin - 1]
    return not _UNHEARD.match(head)


def headline(told: str | None, log_end: str) -> str:
    """Give the one line that says best why a rank failed; empty if it said nothing."""
    if told:
        return told[:_MAX_LINE]
    errors = errors_in(log_end)
    exceptions = [line for line in errors if _EXCEPTION.match(line)]
    return (exceptions or errors or [""])[-1]


def is_consequence(line: str) -> bool:
    """Whether a rank that says this only lost a peer; an error of CUDA is of its own GPU."""
    return FOLLOWS.search(line) is not None and "CUDA error: " not in line


def _line_at(text: str, position: int) -> str:
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[begin : end if end >= 0 else None].strip()[:_MAX_LINE]

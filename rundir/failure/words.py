"""What a rank's log says of its end: the lines of its last fatal error."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from rundir.failure.patterns import DOWNLOAD, FOLLOWS

if TYPE_CHECKING:
    from collections.abc import Sequence

_PREFIX = re.compile(r"^(?:\[rank\d+\]:\s?|\[\d+\]\s)*(?: *[|│] ?)*")
"""Of a rank, once for each process group that torch had; and what frames at the left, as rich does
and Python a group of exceptions."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_INDENTED = re.compile(r"\t|  +[^\d ]")
"""As in a message, and not as a progress bar's percentage is."""
_WHAT = re.compile(r"\n  what\(\): +")
"""The message of C++'s exception, below its type."""
_STACKS = re.compile(r"\n(?:(?:Current t|T)hread 0x.*\n(?: .*\n)*\n?)+(?:Extension modules: .*\n)?")
"""What Python prints of its threads where a signal ends it."""
_BESIDE = re.compile(
    r"(?m)(?<=\S) *(?=(?:Traceback \(most recent call last\):|terminate called .*)$)"
)
"""Before what begins behind a progress bar that has not ended its line."""
_OTHERS = re.compile(r"\n(?:Thread 0x.*\n(?: .*\n)*\n?)+(?=(?:Current t|T)hread 0x)")
"""The stacks among these of threads before the last, which in Python's order is the main one."""
LOG_BYTES = 1 << 20
"""What `log_end` is to be given: stacks of a hundred threads may be below an error."""
_LOG_END = 1 << 14
_RULE = re.compile(r"[\W_]*(?: \d+ [\W_]*)?")
_COMPLAINT = re.compile(r"╭─[^\n]*(?:[Ee]rror|option|argument)s? ─*╮\n│")
"""The top of the frame in which Typer and tyro refuse a command line."""
TRACEBACK = "Traceback (most recent call last)"
TERMINATE = "terminate called"
"""How C++ reports an exception that nobody catches."""
_EXCEPTION = re.compile(
    rf"[\w.]*(?:Error|Exception|Interrupt)\b.*|{TERMINATE}.*|.*: error: .*|Fatal Python error.*"
    r"|ERROR: Could not consume arg.*|FATAL Flags parsing error.*|Could not override .*"
)
_COMPLAINED = re.compile(r"(?:error|ERROR|fatal|FATAL): .")
"""What a script may say before it exits, where nothing was raised."""
_NAME = re.compile(r"[^\W\d][\w.]*(?::|$)")
"""What ends a traceback: any class may be raised."""
_FOLLOWING = re.compile(r"[\w.]*(?:ChildFailedError|ProcessRaisedException|SystemExit)\b")
_ABORTED = "Fatal Python error: Aborted"
_REPORTS = re.compile(rf"{_FOLLOWING.pattern}|[\w.]*CalledProcessError\b|{_ABORTED}")
"""What only reports the error shortly above it, if there is one: a child's, or C++'s."""
_UNHEARD = re.compile(
    r"Exception ignored in|--- Logging error ---|Exception in thread|future: <Task finished "
)
_ENDS = re.compile(rf"Traceback|{_UNHEARD.pattern}|{_REPORTS.pattern}")
_CHAINED = re.compile(
    r"The above exception was the direct cause|During handling of the above exception"
)
NO_REASON = re.compile(
    r"^(?:Search for `cuda|CUDA kernel errors might be asynchronously|"
    r"For debugging consider passing CUDA_LAUNCH_BLOCKING|Compile with `TORCH_USE_CUDA_DSA`|"
    r"Set the environment variable HYDRA_FULL_ERROR=1|Pass --helpshort or --helpfull|"
    r"note: .*run with `RUST_BACKTRACE=|stack backtrace:$| +\d+: .*::| +at \S+:\d+:\d+$|"
    r" *\[bt\] \(\d+\) |"
    r"Exception raised from \S+ at |C\+\+ CapturedTraceback:|frame #\d+: |#\d+ .* from \S+:\d+$|"
    r"<omitting python frames>|wandb:(?! ERROR)|\S+:\d+:\d+ \[\d+\] NCCL INFO |"
    r"I\d{4} [\d:.]+ +\d+ \S+:\d+\]).*",
    re.MULTILINE,
)
"""Lines below an error that say nothing of it: advice that is always the same, C++'s frames, and
what Weights & Biases, NCCL and torch log at a program's exit, some of them only if asked to."""
_GOES_ON = re.compile(r"step \d+(/\d+)?\b.*(loss|samples/s|epoch)|epoch \d+\b.*(loss|accuracy)")
_OWN = re.compile(rf"CUDA error: |DataLoader worker \(pid|{DOWNLOAD}")
_NUM_LINES = 60  # of the end of a log: older words are about something else
_NUM_LAST = 3
_NUM_BELOW = 5  # lines of an error below its first one
_NUM_RECENT = 20
MAX_LINE = 300
_TRAINER = "trainer: "


def log_end(text: str) -> str:
    """Return the last 16 KiB of a log, without the stacks of threads that did not fail."""
    return _OTHERS.sub("\n", text)[-_LOG_END:]


def errors_in(log_end: str) -> list[str]:
    """Pick the lines that say what went wrong: the last fatal error, else the last lines.

    What came before it was handled, or the program would have ended there. What it names as its
    cause, or was handling, belongs to it; so does what it says below its first line. No error is
    one that Python only reports (`Exception ignored in`), or a report of a child's.
    """
    lines = _lines(log_end)
    went_on = [number for number, line in enumerate(lines) if _GOES_ON.search(line)]
    lines = lines[went_on[-1] + 1 :] if went_on else lines
    fatal = _fatal(lines)
    if not fatal:
        return [line[:MAX_LINE] for line in lines[-_NUM_LAST:]]
    chain = [fatal[-1]]
    for before in reversed(fatal[:-1]):
        if not any(_CHAINED.search(line) for line in lines[before : chain[-1]]):
            break
        chain.append(before)
    below = itertools.takewhile(lambda line: not _ENDS.match(line), lines[fatal[-1] + 1 :])
    causes = [lines[number] for number in reversed(chain[1:])]
    lines_of_error = (*causes, *itertools.islice(below, _NUM_BELOW), lines[fatal[-1]])
    return [line[:MAX_LINE] for line in lines_of_error]


def _lines(log_end: str) -> list[str]:
    text = _STACKS.sub("\n", _WHAT.sub(": ", _COLOUR.sub("", log_end)))
    text = _BESIDE.sub("\n", _COMPLAINT.sub("Error:", text))
    lines = (_PREFIX.sub("", line).rstrip(" \t│") for line in text.splitlines())
    said = [line for line in lines if not _RULE.fullmatch(line) and not NO_REASON.match(line)]
    return said[-_NUM_LINES:]


def _fatal(lines: Sequence[str]) -> list[int]:
    """Number the lines with which the program may have ended."""
    raised = [n for n, line in enumerate(lines) if _is_fatal(lines, n, line)]
    if len(raised) > 1 and _REPORTS.match(lines[raised[-1]]):
        raised = raised[:-1] if _is_end(lines[raised[-2] + 1 : raised[-1]]) else raised
    return raised or [n for n, line in enumerate(lines) if _COMPLAINED.match(line)]


def _is_fatal(lines: Sequence[str], number: int, line: str) -> bool:
    """Tell whether a line is an exception that may have ended the program."""
    if _FOLLOWING.match(line) or _UNHEARD.match(line):
        return False
    begin = next((n for n in range(number - 1, -1, -1) if not lines[n].startswith(" ")), None)
    head = "" if begin is None else lines[begin]
    ends_traceback = head.startswith("Traceback") and _NAME.match(line)
    if not ends_traceback and not _EXCEPTION.match(line):
        return False
    if head.startswith("Traceback") and begin:
        head = lines[begin - 1]
    return not _UNHEARD.match(head)


def headline(reported: str | None, log_end: str) -> str:
    """Return the one line that says best why a rank failed; empty if it wrote nothing."""
    if reported:
        return reported[:MAX_LINE]
    errors = errors_in(log_end)
    heads = [line for line in errors if not line.startswith(" ")]
    return (heads or errors or [""])[-1]


def last_exception(log_end: str) -> str:
    """Return the exception that a log ends with; empty if it ends with anything else."""
    lines = _lines(log_end)
    fatal = _fatal(lines)
    is_end = fatal and _is_end(lines[fatal[-1] + 1 :])
    return lines[fatal[-1]][:MAX_LINE] if is_end else ""


def last_line(log_end: str) -> str:
    """Return the last line of a log, which may be about anything; empty if it is of a step."""
    lines = (line for line in reversed(_lines(log_end)) if line != _ABORTED)
    last = next(lines, "").strip()
    return "" if _GOES_ON.search(last) else last[:MAX_LINE]


def _is_end(below: Sequence[str]) -> bool:
    """Whether an error still is the end, by the lines below it up to a report of it.

    What is indented belongs to its message.
    """
    own = itertools.takewhile(lambda line: not _REPORTS.match(line), below)
    return sum(not _INDENTED.match(line) for line in own) <= _NUM_BELOW


def consequence(reported: str | None, log_end: str) -> str:
    """Return the words that say that the rank only lost a peer; empty if it does not say so.

    An error of CUDA is of its own GPU, a loader's worker is a process of its own, and what it
    downloads is no peer's.
    """
    lines = reported.splitlines() if reported else errors_in(log_end)
    lines = [line[:MAX_LINE] for line in lines]
    if any(_OWN.search(line) for line in lines):
        return ""
    return next((line for line in lines if FOLLOWS.search(line)), "")


def last_message(log_end: str) -> str:
    """Return the last message of our trainer's in a log; empty if there is none near its end."""
    lines = reversed(log_end.splitlines()[-_NUM_RECENT:])
    message = next((line for line in lines if line.startswith(_TRAINER)), "")
    return message.removeprefix(_TRAINER)[:MAX_LINE]

"""What a Python program asks of the shared file system, and what it used: written down as it runs.

`job` has this run in the supervisor and in what it starts, before their own first line, so it
imports nothing of the project. Every call that names a path under SIMULATION_SHARED is a line of
`files` in SIMULATION_NOTES; the end of a program is a line of `used`.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def _begin(notes: str, shared: str) -> None:
    files = os.open(f"{notes}/files", _APPEND)
    used = os.open(f"{notes}/used", _APPEND)

    def note(name: str, path: object) -> None:
        if isinstance(path, (str, bytes)) and os.fsdecode(path).startswith(shared):
            os.write(files, f"{name} {os.fsdecode(path)}\n".encode())

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if arguments and (event == "open" or event.startswith("os.")):
            note(event, arguments[0])

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(path: object, *arguments: object, **options: object) -> object:
            note(name, path)
            return call(path, *arguments, **options)

        return noting

    def end() -> None:
        with open("/proc/self/status") as status:  # noqa: PTH123 -- pathlib need not be there
            peak_kib = next(line.split()[1] for line in status if line.startswith("VmHWM"))
        words = " ".join(word for word in sys.orig_argv if "\n" not in word)
        os.write(used, f"{os.getpid()} {time.process_time()} {peak_kib} {words}\n".encode())

    at_once = os._exit

    def leave(status: int) -> NoReturn:
        end()
        at_once(status)

    sys.addaudithook(audit)
    for name in ("stat", "lstat", "access"):  # which are not audited
        setattr(os, name, noted(name, getattr(os, name)))
    os._exit = leave  # by which the supervisor ends
    atexit.register(end)


_begin(os.environ["SIMULATION_NOTES"], os.environ["SIMULATION_SHARED"])

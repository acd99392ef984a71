"""What a Python program asks of the shared file system, and what it used: written down as it runs.

`simulation` has it run in the supervisor and in what it starts, before their own code: this is no
module of the project's, imports nothing of it, and knows its folders from the environment.
Every call that names a path under `SIMULATION_SHARED` is a line of `files`, in `SIMULATION_NOTES`;
a program's end is a line of `used`.
"""

import atexit
import os
import sys
import time


def _begin(notes, shared):
    fd = os.open(f"{notes}/files", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    used = os.open(f"{notes}/used", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def note(name, path):
        if isinstance(path, str | bytes) and os.fsdecode(path).startswith(shared):
            os.write(fd, f"{name} {os.fsdecode(path)}\n".encode())

    def audit(event, arguments):
        if arguments and (event == "open" or event.startswith("os.")):
            note(event, arguments[0])

    def noted(name, call):
        def wrapper(path, *arguments, **options):
            note(name, path)
            return call(path, *arguments, **options)

        return wrapper

    def end(*_):
        with open("/proc/self/status") as status:
            (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
        words = " ".join(word for word in sys.orig_argv if "\n" not in word)
        os.write(used, f"{os.getpid()} {time.process_time()} {peak} {words}\n".encode())

    def leave(code, at_once=os._exit):
        end()
        at_once(code)

    sys.addaudithook(audit)
    for name in ("stat", "lstat", "access"):  # nothing is audited of these
        setattr(os, name, noted(name, getattr(os, name)))
    os._exit = leave  # how the supervisor ends
    atexit.register(end)


_begin(os.environ["SIMULATION_NOTES"], os.environ["SIMULATION_SHARED"])

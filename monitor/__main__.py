"""`python -m monitor COMMAND`; see monitor/cli.py."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # Not the working directory: where a run was copied from anybody, a json.py may lie beside it.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import signal  # only now: it may be one of these


def main(argv: list[str]) -> int:
    """Dispatch to a subcommand; the exit code."""
    if argv[:1] == ["record"]:
        # before anything that takes time: these three are meant for the ranks, not for us
        for signum in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
    from monitor import cli  # noqa: PLC0415 - after the signals

    return cli.main(argv)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # while it imports
        sys.exit(128 + signal.SIGINT)

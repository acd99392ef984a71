"""The command line: parse, build, run, close. Each subcommand imports only what it needs."""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from monitor.errors import EXIT_USER, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEFAULT_COLUMNS = "pumtcjrgh"


class _Parser(argparse.ArgumentParser):
    """argparse, with our exit code and one line."""

    def error(self, message: str) -> NoReturn:
        hint = f"run `{self.prog} --help` for what there is"
        raise UserError(f"command line: {message}: {hint}")


def main(argv: Sequence[str]) -> int:
    """Run a subcommand; its exit code: 0, or 64 with one line if the input is wrong."""
    try:
        options = _parser().parse_args(argv)
        return int(options.run(options))
    except UserError as error:
        say(str(error))
        return EXIT_USER
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0  # the reader of our output has seen enough


def say(message: str) -> None:
    """Tell a person, in one line; a closed stderr is nobody's trouble."""
    with suppress(OSError):
        os.write(2, f"monitor: {message}\n".encode(errors="replace"))


def _parser() -> _Parser:
    parser = _Parser(prog="python -m monitor", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="record|report|compose|why")
    _add_record(commands.add_parser("record", help="sample the GPUs and the host into a log"))
    _add_report(commands.add_parser("report", help="how jobs used their GPUs, by such logs"))
    compose = commands.add_parser("compose", help="write run.json from a run's events")
    compose.add_argument("run_dir", metavar="RUN_DIR", help="such as out/slurm-123")
    compose.set_defaults(run=_compose)
    why = commands.add_parser("why", help="say on one screen why a run ended")
    why.add_argument("run_dir", metavar="RUN_DIR", help="such as out/slurm-123")
    why.add_argument("--json", action="store_true", help="one JSON document, for programs")
    why.set_defaults(run=_why)
    return parser


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, help="the log; appended to if it is there")
    parser.add_argument("--interval", type=float, default=15.0, metavar="S", help="default 15")
    parser.add_argument(
        "--columns",
        default=_DEFAULT_COLUMNS,
        help="pumt, then letters: c clocks, j energy, r throttle reasons, g SM, tensor and DRAM"
        f" activity, h host (default {_DEFAULT_COLUMNS})",
    )
    parser.add_argument(
        "--parent-pid", type=int, metavar="PID", help="end with this process (default: the parent)"
    )
    parser.add_argument("--host", help="the node's name (default: DDP_NODE, else the host name)")
    parser.add_argument("--compose", metavar="RUN_DIR", help="write its run.json at the end")
    parser.add_argument(
        "--launch-id",
        metavar="TOKEN",
        help="when the parent dies, end the processes of this node that carry DDP_LAUNCH_ID=TOKEN",
    )
    parser.add_argument(
        "--hang-timeout",
        metavar="S",
        help="how long a rank may be silent before it counts as hung (default: DDP_HANG_TIMEOUT,"
        " else learned from the ranks; 0: for ever); ranks are watched where DDP_BEAT_DIR,"
        " --launch-id and --compose are given",
    )
    parser.set_defaults(run=_record)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILES", help="logs, or directories of logs")
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")
    parser.add_argument("--full", action="store_true", help="every GPU, with all that is known")
    parser.add_argument(
        "--co2", type=float, metavar="G_PER_KWH", help="tell CO2 as well, at so many g a kWh"
    )
    parser.set_defaults(run=_report)


def _record(options: argparse.Namespace) -> int:
    # each subcommand imports only what it needs
    from monitor import recording, watch_settings  # noqa: PLC0415

    env = dict(os.environ)
    if options.hang_timeout is not None:
        env["DDP_HANG_TIMEOUT"] = options.hang_timeout
    host = options.host or env.get("DDP_NODE") or os.uname().nodename
    node = env.get("DDP_NODE") or host
    return recording.record(
        recording.Settings(
            out=options.out,
            interval_s=options.interval,
            columns=options.columns,
            parent_pid=os.getppid() if options.parent_pid is None else options.parent_pid,
            host=host,
            node=env.get("DDP_NODE"),
            job_id=env.get("DDP_JOB_ID"),
            attempt=env.get("DDP_ATTEMPT"),
            launch_id=options.launch_id,
            run_dir=options.compose,
            watch=watch_settings.from_environment(env, options.compose, options.launch_id, node),
        ),
        say,
    )


def _report(options: argparse.Namespace) -> int:
    from monitor import report  # noqa: PLC0415

    if options.co2 is not None and not 0 <= options.co2 < math.inf:
        raise UserError(
            f"--co2: must be a number of grams a kWh, 0 or more; found {options.co2:g}:"
            " 30 to 800 is what power grids have"
        )
    return report.report(
        options.files, as_json=options.json, full=options.full, co2_g_per_kwh=options.co2
    )


def _compose(options: argparse.Namespace) -> int:
    from monitor import record  # noqa: PLC0415

    try:
        print(record.compose_file(options.run_dir))
    except OSError as error:
        raise UserError(
            f"run.json: must be writable; found {error.strerror} in {options.run_dir}:"
            " make room or name a directory that you may write to"
        ) from error
    return 0


def _why(options: argparse.Namespace) -> int:
    from monitor import why  # noqa: PLC0415

    return why.why(options.run_dir, as_json=options.json)

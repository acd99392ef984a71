"""What a machine with one GPU and little time is asked for; started by benchmarks/gpu.sh.

Every result is a line of JSON on the standard output and in OUT/results.jsonl as soon as there is
one; OUT/results.md is the same as a page. `--collect` gathers wheels for a machine without a
network, `--publish` puts the results into docs/ and examples/.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.on_gpu import wheels

if TYPE_CHECKING:
    from types import FrameType

_ROOT = Path(__file__).parents[2]
_EXIT_USER = 64
_WHEELS = _ROOT / ".wheels"


def main(began_s: float) -> int:
    """Parse, and do one of the four; return the exit code."""
    options = _parser().parse_args()
    try:
        if options.collect:
            found = wheels.collect(options.collect, options.python, options.there)
            print(*(path.name for path in found), sep="\n")
            return 0
        if options.publish:
            from benchmarks.on_gpu import results  # noqa: PLC0415 -- as `_run` does

            print(*results.publish(options.publish, _ROOT), sep="\n")
            return 0
        if options.case:
            return _case(options)
        with tempfile.TemporaryDirectory() as folder:
            return _run(options, began_s, Path(folder))
    except wheels.WheelsError as error:
        print(f"gpu: {error}", file=sys.stderr)
        return _EXIT_USER


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.sh", description=__doc__)
    parser.add_argument("--budget", type=float, default=540, help="seconds in all (default 540)")
    parser.add_argument("--out", type=Path, default=_ROOT / "out" / "gpu", help="default out/gpu")
    parser.add_argument(
        "--wheels", type=Path, help="packages to take with us; default .wheels/ if it is there"
    )
    parser.add_argument("--only", nargs="+", metavar="CASE", help="only these cases")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, at toy size")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="gather wheels into DIR")
    parser.add_argument("--python", default="3.12", help="with --collect: of that machine")
    parser.add_argument(
        "--there", type=Path, default=wheels.THERE, help="with --collect: what that machine has"
    )
    parser.add_argument("--publish", type=Path, metavar="DIR", help="an OUT that came back")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def _run(options: argparse.Namespace, began_s: float, folder: Path) -> int:
    carried = options.wheels or (_WHEELS if _WHEELS.is_dir() else None)
    site = folder / "site" if carried else None
    if carried and site:
        wheels.install(carried, site)
        sys.path.insert(1, str(site))
    from benchmarks.on_gpu.cases import CASES  # noqa: PLC0415 -- may need what was just installed
    from benchmarks.on_gpu.runner import Session, environment  # noqa: PLC0415 -- the same

    names = [case.name for case in CASES]
    unknown = [name for name in options.only or () if name not in names]
    if unknown:
        print(f"gpu: --only: must be of {', '.join(names)}; found {unknown[0]}", file=sys.stderr)
        return _EXIT_USER
    if not (options.rehearse or _has_gpu()):
        print(
            "gpu: this machine must have a GPU that CUDA sees; found none; "
            "--rehearse runs everything on the CPU at toy size",
            file=sys.stderr,
        )
        return _EXIT_USER
    session = Session(
        out=options.out,
        end_s=began_s + options.budget,
        is_rehearsal=options.rehearse,
        env=environment(site, is_rehearsal=options.rehearse),
    )
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    is_good = session.run([case for case in chosen if case.number == 1 or not options.rehearse])
    return 0 if is_good else 1


def _has_gpu() -> bool:
    """Ask in another process: this one must never hold memory of the GPU."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _case(options: argparse.Namespace) -> int:
    from benchmarks.on_gpu.case import Place  # noqa: PLC0415 -- not before packages are there
    from benchmarks.on_gpu.cases import CASES  # noqa: PLC0415 -- the same
    from benchmarks.on_gpu.runner import run_case  # noqa: PLC0415 -- the same

    (case,) = (case for case in CASES if case.name == options.case)
    run_case(case, Place(folder=options.folder, out=options.out, is_rehearsal=options.rehearse))
    return 0


def _stop(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)  # through `finally`, which ends the case


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main(time.monotonic()))

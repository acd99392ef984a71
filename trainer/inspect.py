"""python -m trainer.inspect PATH: what is in a checkpoint, and whether it is what was written.

Of a run directory, all checkpoints are verified, and the last written one is shown. The exit code
is 64 if one of them is damaged, or cannot be read here.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rundir import codes, paths
from rundir.events import finite
from rundir.text import counted, printable
from trainer import command
from trainer.checkpoint.lookup import find, find_folder
from trainer.checkpoint.manifest import DamagedError, UnknownError, UnreadableError
from trainer.checkpoint.tensor_names import split_rank
from trainer.checkpoint.train_state import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trainer.checkpoint.loading import Stored


def main(argv: Sequence[str]) -> int:
    """Show. Raises UserError for a path that has no checkpoint."""
    parser = command.Parser(prog="python -m trainer.inspect", description=__doc__)
    parser.add_argument("path", type=command.path, help=command.CHECKPOINT_HELP)
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")
    options = parser.parse_args(argv)
    chosen = find(options.path)
    folder = None if chosen == options.path else find_folder(options.path)
    others = folder.names()[1:] if folder else []
    report = {
        **_examine(chosen),
        "others": {name: _problem(chosen.with_name(name)) for name in others},
        "latest": folder.pointed(paths.LATEST) if folder else None,
        "best": folder.pointed(paths.BEST) if folder else None,
    }
    print(
        json.dumps(report, indent=1, default=str)
        if options.json
        else "\n".join(map(printable, _lines(report)))
    )
    has_problem = report["problem"] or any(report["others"].values())
    return codes.USAGE if has_problem else codes.FINISHED


def _problem(path: Path) -> DamagedError | None:
    from trainer.checkpoint import loading  # noqa: PLC0415 -- imports torch: wrong input is reported before

    try:
        loading.verify(path)
    except DamagedError as error:
        return error
    return None


def _examine(path: Path) -> dict[str, Any]:
    """Return all that is known of a checkpoint; what cannot be read is None."""
    from trainer.checkpoint import loading  # noqa: PLC0415 -- see above

    report: dict[str, Any] = {"path": str(path), "problem": _problem(path)}
    keys = ("step", "fingerprint", "identity", "position", "world_size", "tensors", "ranks")
    try:
        stored = loading.read_index(path)
    except DamagedError as error:
        report["problem"] = report["problem"] or error
        return report | dict.fromkeys(keys)
    return report | _describe(stored)


def _describe(stored: Stored) -> dict[str, Any]:
    state, tensors = stored.state, {}
    ranks: dict[str, list[str]] = {}
    for name, (shape, dtype) in sorted(stored.entries.items()):
        size_bytes = shape.numel() * dtype.itemsize
        if split := split_rank(name):
            rank, own = split
            ranks.setdefault(rank, []).append(own)
        else:
            kind = str(dtype).removeprefix("torch.")
            tensors[name] = {"shape": list(shape), "dtype": kind, "bytes": size_bytes}
    return {
        "step": state.position.step,
        "fingerprint": fingerprint(state.identity),
        "identity": dict(state.identity),
        "position": {name: finite(value) for name, value in asdict(state.position).items()},
        "world_size": state.world_size,
        "tensors": tensors,
        "ranks": ranks,
    }


def _lines(report: Mapping[str, Any]) -> list[str]:
    """Render a report for a person."""
    lines = [
        f"checkpoint   {report['path']}",
        f"files        {_verdict(report['problem'])}",
    ]
    if report["others"]:
        lines += [f"others       {name}: {_verdict(p)}" for name, p in report["others"].items()]
        lines.append(f"pointers     latest: {report['latest']}, best: {report['best']}")
    if report["tensors"] is None:
        return lines
    size_bytes = sum(entry["bytes"] for entry in report["tensors"].values())
    lines += [
        f"step         {report['step']}, written by {counted(report['world_size'], 'rank')}",
        f"identity     {report['fingerprint']}",
        *_table(report["identity"]),
        "position",
        *_table(report["position"]),
        "ranks",
        *_table({rank: ", ".join(own) for rank, own in report["ranks"].items()}),
        f"tensors      {len(report['tensors'])}, {counted(size_bytes, 'byte')}",
    ]
    width = max((len(name) for name in report["tensors"]), default=0)
    for name, entry in report["tensors"].items():
        shape = "x".join(map(str, entry["shape"])) or "scalar"
        lines.append(f"  {name:<{width}}  {shape:>16}  {entry['dtype']:<8}  {entry['bytes']:>14,}")
    return lines


def _verdict(problem: DamagedError | None) -> str:
    if isinstance(problem, UnknownError):
        return f"NOT KNOWN to this version: {problem}"
    if isinstance(problem, UnreadableError):
        return f"NOT READ, it may be whole: {problem}"
    return "verified" if problem is None else f"DAMAGED: {problem}"


def _table(values: Mapping[str, object]) -> list[str]:
    return [f"  {name:<28} {'-' if value is None else value}" for name, value in values.items()]


if __name__ == "__main__":
    sys.exit(command.run(main, sys.argv[1:]))

"""The lines of results.jsonl -> a page of Markdown, as pure functions; and its place in docs/."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import gpu
from benchmarks.report import section, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Line = Mapping[str, Any]

_ROOT = Path(__file__).parents[2]
_SPEED = "speed-"
_HEAD = """\
# On one GPU

Written by `make gpu`: what must be right first, then how fast it is.
{versions}.
{rehearsal}
"""
_SPEED_NOTES = """
Medians of the rounds that there was time for, {num_rounds} at most; in a round each has a process
of its own, and compiling is in no number.
The plain loop (`benchmarks/gpu_plain.py`) has the same model, autocast, `torch.compile` and fused
optimizer; the expert's has weights in bf16 besides, and a compiled loss.
"""
_EXAMPLE = """\
# A run recorded on a GPU, to try the readers on

`run/` is the directory of a job that `make gpu` ran, without its checkpoints.
Beside it are its node's log, what `nvidia-smi dmon` wrote in the same seconds, and the results of
every case ([as a page](../../docs/gpu.md)).

    python -m monitor report examples/gpu
    python -m monitor why examples/gpu/run
    python -m monitor report examples/gpu/dmon.txt
"""
_REHEARSED = "**A rehearsal on a CPU, at toy size: no number here means anything.**\n"


def load(path: Path) -> list[Line]:
    """Read the lines; of a case that ran several times the last, of one that was skipped none."""
    found: dict[str, Line] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["status"] != "skipped" or line["case"] not in found:
            found[line["case"]] = line
    return list(found.values())


def render(lines: Sequence[Line]) -> str:
    """Return the page."""
    versions = ", ".join(f"{name} {version}" for name, version in lines[-1]["versions"].items())
    is_rehearsal = any(line["rehearsal"] for line in lines)
    text = _HEAD.format(versions=versions, rehearsal=_REHEARSED if is_rehearsal else "")
    rows = [
        [line["case"], line["status"], f"{line['seconds']:.1f}", _result(line)]
        for line in lines
        if not (line["case"].startswith(_SPEED) and line["status"] == "ok")
    ]
    text += table(["case", "status", "seconds", "measured; `ours / dmon's` for columns"], rows)
    speeds = [row for job in gpu.JOBS if (row := _speed_row(job, lines))]
    if not speeds:
        return text
    head = ["", "plain loop", "expert's loop", "the trainer", "to plain", "to expert", "target"]
    num_rounds = max(int(line["case"].rpartition("-")[2]) for line in _speeds(lines))
    notes = _SPEED_NOTES.format(num_rounds=num_rounds)
    return text + section("Training speed", table(head, speeds), notes)


def _result(line: Line) -> str:
    words = [f"{name} {_text(value)}" for name, value in line.get("values", {}).items()]
    parts = [f"**{line['why']}**"] if "why" in line else []
    return "; ".join([*parts, *([", ".join(words)] if words else [])]).replace("|", "\\|")


def _text(value: object) -> str:
    if isinstance(value, list):  # of two logs
        return " / ".join("-" if item is None else f"{item:g}" for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _speeds(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line["case"].startswith(_SPEED) and line["status"] == "ok"]


def _speed_row(job: gpu.Job, lines: Sequence[Line]) -> list[str] | None:
    """Return the row of a job; None where it was not reached."""
    found = {
        name: [
            float(value)
            for line in _speeds(lines)
            if line["case"].startswith(f"{_SPEED}{job.name}-{name}-")
            for value in line["values"].values()
        ]
        for name in gpu.CONTESTANTS
    }
    per_s = {name: median(values) for name, values in found.items() if values}
    if not per_s:
        return None

    def ratio(other: str) -> str:
        has_both = {"trainer", other} <= per_s.keys()
        return f"{per_s['trainer'] / per_s[other]:.2f}" if has_both else "-"

    cells = [
        f"{per_s[name]:,.0f} {job.unit}" if name in per_s else "-"
        for name in ("plain", "expert", "trainer")
    ]
    target = f"at least {job.target_per_s:,} {job.unit} on an H200"
    return [job.label, *cells, ratio("plain"), ratio("expert"), target]


def publish(folder: Path, root: Path) -> list[Path]:
    """Put the page, a picture and what was recorded into docs/ and examples/ of `root`."""
    folder = folder.absolute()
    page, example = root / "docs" / "gpu.md", root / "examples" / "gpu"
    shutil.rmtree(example, ignore_errors=True)
    shutil.copytree(folder, example, ignore=shutil.ignore_patterns("output.log", "results.md"))
    (example / "README.md").write_text(_EXAMPLE, encoding="utf-8")
    text = render(load(folder / "results.jsonl"))
    written = [page, example]
    if (example / "run").is_dir():
        picture = root / "docs" / "gpu.svg"
        command = [sys.executable, "-m", "monitor", "plot", str(example / "run")]
        subprocess.run([*command, "--out", str(picture)], check=True, cwd=_ROOT)
        text += "\n## The recorded run\n\n![A run on this GPU: readings and loss](gpu.svg)\n"
        text += "\nIts logs, and those of `nvidia-smi dmon` beside it: `examples/gpu/`.\n"
        written.append(picture)
    page.write_text(text, encoding="utf-8")
    return written

"""Runs cases one after the other, each in a process of its own, and writes each result at once."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from benchmarks.on_gpu import results
from benchmarks.on_gpu.case import CaseError, Place
from benchmarks.turns import CPU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.on_gpu.case import Case

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("torch", "triton", "numpy", "tyro", "nvidia-ml-py")
_LEAST_S = 10.0
"""With less time left than this, no case is begun."""
_REHEARSALS_TAKE = 10
"""Times the limit: other programs may have the cores."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, kw_only=True)
class Session:
    """All cases of a command."""

    out: Path
    end_s: float
    """By the monotonic clock."""
    is_rehearsal: bool
    env: Mapping[str, str]
    """Of the cases."""
    program: Sequence[str] = (sys.executable, "-P", "-m", "benchmarks.on_gpu")
    """Runs the case that `--case` names."""

    def run(self, cases: Sequence[Case]) -> bool:
        """Run what there is time for; return whether nothing failed."""
        # What a case leaves behind is this process's child then, and ended before the next one.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.out.mkdir(parents=True, exist_ok=True)
        is_good = True
        for case in cases:
            began_s = time.monotonic()
            try:
                status, outcome = self._run_one(case)
            except (KeyboardInterrupt, SystemExit):
                self._write(case, "skipped", time.monotonic() - began_s, {"why": "asked to stop"})
                raise
            self._write(case, status, time.monotonic() - began_s, outcome)
            is_good &= status != "failed"
        return is_good

    def _run_one(self, case: Case) -> tuple[Literal["ok", "failed", "skipped"], dict[str, Any]]:
        left_s = self.end_s - time.monotonic()
        limit_s = case.limit_s * (_REHEARSALS_TAKE if self.is_rehearsal else 1)
        if left_s < _LEAST_S:
            return "skipped", {"why": "the budget is spent"}
        with tempfile.TemporaryDirectory() as folder, (self.out / "output.log").open("ab") as log:
            log.write(f"== {case.name}\n".encode())
            log.flush()
            result = Path(folder) / "result.json"
            command = [*self.program, "--case", case.name]
            command += ["--folder", folder, "--out", str(self.out.absolute())]
            command += ["--rehearse"] if self.is_rehearsal else []
            process = subprocess.Popen(
                command, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            try:
                code = process.wait(timeout=min(limit_s, left_s))
            except subprocess.TimeoutExpired:
                if left_s < limit_s:
                    return "skipped", {"why": f"cut off after {left_s:.0f} s: the budget is spent"}
                return "failed", {"why": f"ended after its limit of {limit_s:g} s"}
            finally:
                _end_children()
            if not result.exists():
                return "failed", {"why": f"its process ended with {code}; see output.log"}
            outcome: dict[str, Any] = json.loads(result.read_text())
        return ("failed" if "why" in outcome else "ok"), outcome

    def _write(self, case: Case, status: str, seconds: float, outcome: Mapping[str, Any]) -> None:
        line = {"case": case.name, "status": status, "seconds": round(seconds, 1), **outcome}
        line["versions"] = _versions()
        line["rehearsal"] = self.is_rehearsal
        path = self.out / "results.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps({k: v for k, v in line.items() if k != "versions"}), flush=True)
        text = results.render(results.load(path))
        (self.out / "results.md").write_text(text, encoding="utf-8")


def _end_children() -> None:
    """End all that still runs, whichever session it made itself."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            child.kill()
        psutil.wait_procs(children, timeout=10)


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def environment(site: Path | None, *, is_rehearsal: bool) -> dict[str, str]:
    """Return the variables of the cases: without a job's around them, with the carried packages."""
    foreign = ("DDP_", "SLURM_", "COVERAGE_")
    ranks = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK"}
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in ranks}
    paths = [str(_ROOT), *([str(site)] if site else []), env.get("PYTHONPATH", "")]
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    return env | CPU if is_rehearsal else env


def run_case(case: Case, place: Place) -> None:
    """Run a case in this process; write what it gave beside its folder's files."""
    work = place.folder / "work"
    work.mkdir()
    outcome: dict[str, Any]
    try:
        outcome = {
            "values": case.run(Place(folder=work, out=place.out, is_rehearsal=place.is_rehearsal))
        }
    except CaseError as error:
        outcome = {"why": str(error), "values": error.values}
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is this case's alone
        traceback.print_exc()
        outcome = {"why": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    (place.folder / "result.tmp").write_text(json.dumps(outcome))
    (place.folder / "result.tmp").rename(place.folder / "result.json")

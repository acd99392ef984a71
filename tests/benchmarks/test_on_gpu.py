"""`make gpu`, rehearsed on the CPU: what it runs, and that nothing is lost whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.on_gpu import jobs, results, wheels
from benchmarks.on_gpu.case import CaseError

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "benchmarks" / "gpu.sh"
CORRECTNESS = [
    *("machine", "mnist", "resume", "precision", "options", "compile", "nccl", "hang"),
    *("recorder", "preflight", "broken", "restart"),
]
SPEED = ["speed-lm-expert-1"]
"""A quick `make bench` runs the others."""
SESSION = """\
import os, signal, sys, time
from pathlib import Path
from benchmarks.on_gpu.case import Case
from benchmarks.on_gpu import runner

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
out, budget_s, limit_s, *program = sys.argv[1:]
runner._LEAST_S = 0
session = runner.Session(
    out=Path(out),
    end_s=time.monotonic() + float(budget_s),
    is_rehearsal=False,
    env=os.environ,
    program=program,
)
cases = [
    Case(name=name, about="", run=dict, limit_s=float(limit_s)) for name in ("first", "second")
]
sys.exit(0 if session.run(cases) else 1)
"""


def environment() -> dict[str, str]:
    """Ours, without what measures coverage: each case is several processes."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DDP_", "COVERAGE_"))}
    return env | {"PYTHONPATH": str(ROOT)}


def gpu(*options: str | Path, **further: Any) -> subprocess.CompletedProcess[str]:
    """Run benchmarks/gpu.sh with the Python that runs this."""
    env = environment() | {"PYTHON": sys.executable} | further.pop("env", {})
    command = [GPU, *options]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=1600, **further
    )


def session(out: Path, script: str, *, budget_s: float = 60, limit_s: float = 30) -> int:
    """Run two cases, each a shell script; in a process of their own, as all children are ended."""
    command = [sys.executable, "-c", SESSION, out, str(budget_s), str(limit_s)]
    words = ["bash", "-c", script, "case"]
    return subprocess.run([*command, *words], env=environment(), check=False, timeout=60).returncode


def lines_of(out: Path) -> list[dict[str, Any]]:
    """The results so far."""
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(1700)  # a minute; many starts of torch, where other tests have the cores
def test_a_rehearsal_runs_every_case(tmp_path: Path) -> None:
    """Each gives its line, in order; what is kept becomes a page, a picture and an example."""
    out = tmp_path / "out"
    ended = gpu("--rehearse", "--budget", "1500", "--out", out, "--only", *CORRECTNESS, *SPEED)
    lines = lines_of(out)
    wrong = [line for line in lines if line["status"] != "ok"]
    assert ended.returncode == 0, (wrong, (out / "output.log").read_text()[-4000:])
    assert [line["case"] for line in lines] == [*CORRECTNESS, *SPEED]
    output = [json.loads(line)["case"] for line in ended.stdout.splitlines()]
    assert output == [line["case"] for line in lines]
    values = {line["case"]: line["values"] for line in lines}
    assert values["resume"]["digits_tensors"] > 10
    assert "stuck.py" in values["hang"]["verdict"]
    assert values["recorder"]["pwr"] == [294, 294]
    assert values["preflight"]["wrong_elements"] == 0
    assert "ran out of memory" in values["broken"]["memory"]
    assert 0 < values["restart"]["warm_s"] < values["restart"]["cold_s"]
    assert values["speed-lm-expert-1"]["tokens_per_s"] > 0
    kept = [path for path in out.rglob("*") if path.is_file()]
    assert len(kept) <= 8  # as few as come back from anywhere
    (tmp_path / "docs").mkdir()
    results.publish(out, tmp_path)
    page = (tmp_path / "docs" / "gpu.md").read_text()
    assert "A rehearsal on a CPU" in page
    assert all(f"| {name} | ok |" in page for name in CORRECTNESS)
    assert "tinyllama-1.1b" in page
    assert (tmp_path / "docs" / "gpu.svg").stat().st_size
    assert (tmp_path / "examples" / "gpu" / "run" / "events.jsonl").exists()


def test_a_case_that_crashes_costs_itself_alone(tmp_path: Path) -> None:
    """Its line says how its process ended; the next one runs, and the code is 1."""
    assert session(tmp_path, "exit 3") == 1
    first, second = lines_of(tmp_path)
    assert (first["case"], first["status"]) == ("first", "failed")
    assert first["why"] == "its process ended with 3; see output.log"
    assert second["case"] == "second"


@pytest.mark.slow
def test_a_case_that_hangs_costs_its_limit(tmp_path: Path) -> None:
    """It is ended with all that it started, in a session of its own, by a parent that is gone."""
    began_s = time.monotonic()
    script = f"(setsid sleep 600 & echo $! >>{tmp_path}/pids); sleep 600"
    assert session(tmp_path, script, limit_s=1) == 1
    assert time.monotonic() - began_s < 45
    assert [line["why"] for line in lines_of(tmp_path)] == ["ended after its limit of 1 s"] * 2
    for pid in (tmp_path / "pids").read_text().split():
        assert not Path(f"/proc/{pid}").exists()


def test_what_there_is_no_time_for_is_skipped(tmp_path: Path) -> None:
    """Not a failure, and reported of each."""
    assert session(tmp_path, "exit 3", budget_s=0) == 0
    lines = lines_of(tmp_path)
    assert [line["status"] for line in lines] == ["skipped"] * 2
    assert lines[0]["why"] == "the budget is spent"


@pytest.mark.slow
def test_a_case_is_cut_off_where_the_budget_ends(tmp_path: Path) -> None:
    """However long its own limit is; it has not failed, and nothing is begun after it."""
    assert session(tmp_path, "exec sleep 600", budget_s=1.5) == 0
    first, second = lines_of(tmp_path)
    assert (first["status"], second["status"]) == ("skipped", "skipped")
    assert first["why"].startswith("cut off after ")
    assert second["why"] == "the budget is spent"


def test_nothing_is_lost_when_it_is_stopped(tmp_path: Path) -> None:
    """A signal ends the case under way, which has its line, and those before keep theirs."""
    script = f'[[ $2 == first ]] && exit 3; : >"{tmp_path}/there"; exec sleep 600'
    command = [sys.executable, "-c", SESSION, tmp_path / "out", "60", "30", "bash", "-c", script]
    process = subprocess.Popen([*command, "case"], env=environment())
    while not (tmp_path / "there").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30)
    first, second = lines_of(tmp_path / "out")
    assert first["status"] == "failed"
    assert (second["status"], second["why"]) == ("skipped", "asked to stop")
    assert "| second | skipped |" in (tmp_path / "out" / "results.md").read_text()


@pytest.mark.slow
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    """64, one line, and the way to try it all the same."""
    ended = gpu("--out", tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert ended.returncode == 64
    (line,) = ended.stderr.splitlines()
    assert line.startswith("gpu: this machine must have a GPU that CUDA sees; found none; --rehe")


def test_columns_are_compared_over_the_same_seconds(tmp_path: Path) -> None:
    """Their medians may differ by what two readings of one second do, and by no more."""
    dmon = ROOT / "tests" / "monitor" / "data" / "pumt_DT.550.163.01.2gpu.gutil"
    text, changed = dmon.read_text(), tmp_path / "ours.gutil"

    def ours(old: str, new: str) -> Any:
        assert old in text
        changed.write_text(text.replace(old, new))
        return jobs.compare(jobs.read(changed), jobs.read(dmon))

    assert ours("    294", "    314")["pwr"] == [314, 294]
    with pytest.raises(CaseError, match="gtemp: 71 beside 61"):
        ours("     61", "     71")
    with pytest.raises(CaseError, match="sm: none of ours"):
        ours("     98", "      -")
    with pytest.raises(CaseError, match="in common; found 0 among 4 rows of ours and 4"):
        ours("20261121", "20261122")


def test_results_of_several_commands_add_up(tmp_path: Path) -> None:
    """A case counts as it ended last; one that was skipped then keeps what it had."""
    ends = [("a", "failed"), ("a", "ok"), ("b", "ok"), ("b", "skipped"), ("c", "skipped")]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps({"case": n, "status": s}) + "\n" for n, s in ends))
    found = [(line["case"], line["status"]) for line in results.load(path)]
    assert found == [("a", "ok"), ("b", "ok"), ("c", "skipped")]


def test_a_wheel_needs_what_holds_on_the_other_machine(tmp_path: Path) -> None:
    """Neither what older Pythons want, nor extras."""
    wheel = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "some-1.0.dist-info/METADATA",
            "Name: some\nRequires-Dist: typeguard>=4\n"
            'Requires-Dist: old; python_version < "3.12"\n'
            'Requires-Dist: numpy; extra == "all"\n',
        )
    assert [str(need) for need in wheels._needs(wheel, "3.12")] == ["typeguard>=4"]  # noqa: SLF001 -- without a package index
    assert len(list(wheels._needs(wheel, "3.11"))) == 2  # noqa: SLF001 -- the same


def test_what_is_carried_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels and work tree together; what that machine has is not collected."""
    there = tmp_path / "there.txt"
    there.write_text(f"{wheels.THERE.read_text()}\ntyro\npolars\n")
    assert wheels.collect(tmp_path / "wheels", "3.12", there) == []
    monkeypatch.setattr(wheels, "_MOST_BYTES", 1 << 20)
    with pytest.raises(wheels.WheelsError, match="must be 1 MiB together at most"):
        wheels.collect(tmp_path / "wheels", "3.12", there)

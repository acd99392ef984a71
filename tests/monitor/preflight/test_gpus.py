"""The GPUs as the preflight reads them: the real nvidia-ml-py, a stub driver."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def report(driver: Any, directory: Path, **env: str) -> list[list[Any]]:
    """Run `python -m monitor preflight`; the readings of its report."""
    command = [sys.executable, "-m", "monitor", "preflight", str(directory), "--launch-id", "me"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DDP_")}
    env = {**clean, **driver.env, **env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    event = json.loads((directory / "events.jsonl").read_text().splitlines()[-1])
    assert (event["event"], event["part"]) == ("preflight_report", "monitor")
    readings: list[list[Any]] = event["readings"]
    return readings


WRONG = {
    "ecc_uncorrected": "set dbecc 1 2",
    "ecc_pending": "set pages_pending 1 1",
    "remap_pending": "set remap_pending 1 1",
    "remap_failed": "set remap_failed 1 1",
    "held_clocks": "set throttle 1 64",
    "foreign_processes": "process 1 1 500",
    "foreign_mib": "set fb 1 9000000000",
    "pcie_width": "set pcie_width 1 8",
    "nvlinks": "set nvlinks 1 17",
}
"""A line for the stub driver that breaks something of GPU 1, by the check that reads it."""


def test_each_reading_of_a_well_gpu_and_of_one_that_is_not(driver: Any, tmp_path: Path) -> None:
    """Where all is well, both GPUs read the same; else GPU 1 differs, by every check."""
    well = {(name, what): value for name, value, what in report(driver, tmp_path)}
    assert ("driver", "") in well
    for name in WRONG:
        if not name.startswith("remap"):  # read only where there is something
            assert well[name, "GPU 0"] == well[name, "GPU 1"], name
    driver.does("gpus 2", *WRONG.values())
    read = report(driver, tmp_path)
    for name in WRONG:
        changed = [value for check, value, what in read if check == name and "GPU 1" in what]
        assert changed, name
        assert changed[0] != well.get((name, "GPU 1"), 0), name


def test_our_own_process_is_no_foreign_one(driver: Any, tmp_path: Path) -> None:
    """It carries the launch id; its memory is not foreign."""
    own = subprocess.Popen(["sleep", "60"], env={"DDP_LAUNCH_ID": "me"})
    try:
        driver.does("gpus 1", f"process {own.pid} 0 500")
        read = {name: value for name, value, _ in report(driver, tmp_path)}
    finally:
        own.kill()
        own.wait()
    assert read["foreign_processes"] == 0
    assert "foreign_mib" not in read


def test_a_lost_gpu_and_a_call_that_hangs(driver: Any, tmp_path: Path) -> None:
    """Both are readings."""
    driver.does("gpus 2", "lost 1 3", "slow nvmlDeviceGetPowerUsage 3000 0")
    read = [(name, what) for name, _value, what in report(driver, tmp_path)]
    assert ("failed", "GPU 1 is lost") in read
    assert ("hung", "GPU 0: nvmlDeviceGetPowerUsage") in read


@pytest.mark.parametrize(
    ("line", "num", "why"),
    [
        ("gpus 1", 1, ""),
        ("noinit 18", 0, "no readings: RM has detected an NVML/RM version mismatch."),
        ("dead 12", 0, "no readings: NVML answers nothing more"),
    ],
)
def test_gpus_are_counted_where_torch_is_not_there_to(
    driver: Any, tmp_path: Path, line: str, num: int, why: str
) -> None:
    """A node with fewer, or none that answers, says so, and why; a mismatch counts by itself."""
    driver.does("gpus 2", line)
    read = report(driver, tmp_path)
    assert ["nvml_gpus", num, why] in read
    assert (["failed", 1, why] in read) == ("mismatch" in why)


def test_gpus_cut_into_instances_are_not_counted(driver: Any, tmp_path: Path) -> None:
    """The job's instances may lie on more GPUs on another node, and nothing is wrong."""
    driver.does("gpus 2", "set mig 1 2")
    assert "nvml_gpus" not in [name for name, _, _ in report(driver, tmp_path)]


def test_a_driver_that_hangs_altogether_is_reported_in_time(driver: Any, tmp_path: Path) -> None:
    """The process ends after the time limit of a stage, with what it has."""
    driver.does("gpus 1", "slow nvmlDeviceGetCurrPcieLinkWidth 30000")
    read = report(driver, tmp_path, DDP_PREFLIGHT_LIMITS="stage_s=2")
    assert ["hung", 1, "NVML or a disk, for 2 s"] in read
    assert any(name == "ecc_uncorrected" for name, _, _ in read)

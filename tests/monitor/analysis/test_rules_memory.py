"""Rules on memory and disks: just above each threshold and just below."""

import numpy as np
import pytest

from monitor.analysis.engine import evaluate
from tests.monitor.analysis.rule_cases import Case, findings_of
from tests.monitor.made_runs import BEGIN_S, NUM_SAMPLES, STEP_S, at, first, gpu, run

SAVED = {"event": "checkpoint", "bytes": 2**40}

CASES = [
    Case("memory", "hint",
         run(gpu(fb=at(first(2), 77_700, 60_000))), run(gpu(fb=at(first(1), 77_700, 60_000))),
         "at most 76 of 78 GiB in use (97 %)"),
    Case("memory", "hint", run(gpu(fb=39_900)), run(gpu(fb=40_100)), "39 of 78 GiB in use (50 %)"),
    Case("unattributed", "warning",
         run(gpu(ofb=at(first(8), 500, 0), facts={"processes 0": "77 500 MiB"})),
         run(gpu(ofb=at(first(7), 500, 0))),
         "held up to 0.5 GiB of its memory for 2 min; on it at last: 77 500 MiB"),
    Case("unattributed", "warning", run(gpu(ofb=9000)), run(gpu(ofb=499)),
         "8.8 GiB of its memory for"),
    Case("host_memory", "warning",
         run(gpu(hmem=at(first(2), 950_100, 0))), run(gpu(hmem=at(first(2), 949_900, 0))),
         "the machine's memory was up to 95 % full"),
    Case("host_memory", "warning",
         run(gpu(hmem=at(first(2), 960_000, 0))), run(gpu(hmem=at(first(1), 960_000, 0))),
         "96 % full"),
    Case("shm", "warning", run(gpu(shm=at(first(2), 90, 5))), run(gpu(shm=at(first(2), 89, 5))),
         "/dev/shm was up to 90 % full"),
    Case("disk", "warning", run(gpu(disk=95, dfree=9000)), run(gpu(disk=94, dfree=9000)),
         "disk was up to 95 % full, with 9 GiB left"),
    Case("disk", "warning", run(gpu(disk=99, dfree=51_199)), run(gpu(disk=99, dfree=51_200)),
         "99 % full, with 50 GiB left"),
    Case("disk", "warning",
         run(gpu(disk=99, dfree=2**21 - 1024), events=(SAVED,)),
         run(gpu(disk=99, dfree=2**21), events=(SAVED,)),
         "99 % full, with 2047 GiB left"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_threshold(case: Case) -> None:
    """What is just over it is found, with place, time and numbers; what is just below is not."""
    case.check()


def test_an_idle_gpus_empty_memory_is_no_hint_to_a_larger_batch() -> None:
    """It never worked."""
    assert [one.rule for one in evaluate(run(gpu(sm=0, fb=500)))] == ["idle"]


def test_a_full_disk_is_found_whichever_gpu_the_node_has_by_then() -> None:
    """After a requeue an index may be another GPU."""
    later = BEGIN_S + 7200 + STEP_S * np.arange(NUM_SAMPLES)
    starts = (
        gpu(disk=50, dfree=0),
        gpu(disk=99, dfree=0, time_s=later, facts={"gpu 0": "GPU-2 NVIDIA H100"}),
    )
    (found,) = findings_of(run(*starts), "disk")
    assert found.begin_s == later[0]

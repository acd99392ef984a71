"""Plays the scenarios of the fault matrix, several at a time, for the tests that read them."""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # where pytest is not run as `python -m pytest`
    sys.path.insert(0, str(ROOT))

from tests.faults import injectors  # noqa: E402
from tests.faults.driver import play  # noqa: E402
from tests.faults.job import ABANDONED  # noqa: E402
from tests.faults.layout import NUM_NODES, PREFIX, SKEW_S, SKEWED_NODE  # noqa: E402
from tests.faults.table import SCENARIOS  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

    from tests.faults.rows import Row

    Results = dict[str, Row | BaseException]

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
SLURMD_TIMEOUT_S = 60
PROLOG = f"""#!/bin/sh
[ "$SLURMD_NODENAME" = {SKEWED_NODE} ] || exit 0
echo export LD_PRELOAD={FAKETIME}
echo export FAKETIME=+{SKEW_S}
echo export FAKETIME_DONT_FAKE_MONOTONIC=1
"""


@pytest.fixture(scope="session")
def fault_cluster(cluster_at: Callable[..., Any]) -> Generator[Any]:
    """A cluster of its own, with a partition that preempts and a node whose clock is off."""
    # Not in tmp_path, which is closed to others: munged wants its socket reachable.
    folder = Path("/var/tmp/ddp-cluster-faults.etc")
    folder.mkdir(exist_ok=True)
    prolog = folder / "task_prolog.sh"
    prolog.write_text(PROLOG)
    prolog.chmod(0o755)
    # A node that is cut off is given up by Slurm after 300 s by default, and here not before the
    # verdict on its ranks, for which the nodes' reports are waited for; 45 s on a busy machine.
    extra = f"TaskProlog={prolog}\nSlurmdTimeout={SLURMD_TIMEOUT_S}\n"
    (folder / "extra.conf").write_text(extra)
    own = cluster_at(
        {
            "DDP_CLUSTER_DIR": "/var/tmp/ddp-cluster-faults",
            "DDP_CLUSTER_PREFIX": PREFIX,
            "DDP_CLUSTER_SUBNET": "10.213.88",
            "DDP_CLUSTER_EXTRA": str(folder / "extra.conf"),
            "DDP_CLUSTER_PREEMPT": "1",
        }
    )
    assert own.script("down").returncode == 0  # what a run that was killed left behind
    own.up(str(NUM_NODES))
    yield own
    assert own.script("down").returncode == 0
    shutil.rmtree(folder)
    for leftover in Path("/dev/shm").glob("*faketime_s*_[0-9]*"):  # of processes that were killed
        if not Path("/proc", leftover.name.rpartition("_")[2]).exists():
            leftover.unlink()


@pytest.fixture(scope="session")
def played(
    request: pytest.FixtureRequest, fault_cluster: Any, tmp_path_factory: pytest.TempPathFactory
) -> Generator[dict[str, Future[Results]]]:
    """Play the scenarios whose faults are among the chosen tests; a future each, by name."""
    chosen = {
        item.callspec.params["fault"].name
        for item in request.session.items
        if "played" in getattr(item, "fixturenames", ()) and hasattr(item, "callspec")
    }
    directory = tmp_path_factory.mktemp("faults", numbered=True)
    # Most of the time they wait: more of them than cores.
    with ThreadPoolExecutor(int(os.environ.get("DDP_FAULT_JOBS", "4"))) as pool:
        futures = {
            scenario.name: pool.submit(play, scenario, fault_cluster, directory)
            for scenario in SCENARIOS
            if chosen & {fault.name for fault in scenario.faults}
        }
        try:
            yield futures
        finally:
            ABANDONED.set()
            pool.shutdown(cancel_futures=True)
    injectors.remove_memory_limits()

"""torchrun's own elasticity under the launcher: a node leaves, the others go on, it comes back."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import own_cluster, patient
from tests.examples.conftest import EXAMPLES, PRELAUNCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.jobs.conftest import Job, Scripts

TWO = ("--nodes=2", "--ntasks-per-node=1", "--no-kill")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")  # as torchrun, wherever that is
MORE = 60
PROGRAM = f"""
steps=1000000
if [ -e last ]; then steps=$(($(cut -d- -f2 "$DDP_RUN_DIR/checkpoints/latest") + {MORE})); fi
exec {sys.executable} train.py --pause 0.03 --steps $steps
"""
"""Trains for ever, or once the file `last` is there, so many steps more."""
COMMAND = (
    *TORCHRUN,
    *("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"),
    *("--no-python", "bash", "-c", PROGRAM),
)

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture(scope="module")
def own(cluster_at: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster whose cables may be pulled for longer than Slurm would wait."""
    extra = patient(tmp_path_factory.mktemp("slurm"))
    yield from own_cluster(cluster_at, "to", 94, nodes=2, EXTRA=extra)


def text(job: Any) -> str:
    """What the ranks of rank 0's torchrun printed: which of them is rank 0 they settle anew."""
    return "".join(path.read_text() for path in job.run_dir.glob("logs/rank-*.log"))


def test_a_node_leaves_and_comes_back(own: Any, job_on: Callable[..., Job], tmp_path: Path) -> None:
    """One of two torchruns dies: the other trains on alone, and together again when it is back."""
    shutil.copy(EXAMPLES / "elastic" / "train.py", tmp_path)
    settings = {"DDP_MAX_RESTARTS": "1", "OMP_NUM_THREADS": "1"}
    settings["PET_RDZV_CONF"] = "last_call_timeout=2"
    job = job_on(own, *TWO, PRELAUNCH, "--", *COMMAND, **settings)
    own.until(lambda: "on 2 ranks" in text(job), 120, "both train")
    os.kill(job.pid(1), 9)
    (left,) = job.wait_for("node_left", 1, timeout_s=60)
    assert own.script("cut", "to2").returncode == 0
    assert (left["node"], left["rank"], left["how"]) == ("to2", 1, "its task ended with code 137")
    own.until(lambda: "saved step" in text(job).partition("on 1 ranks")[2], 120, "one trains")
    (tmp_path / "last").touch()
    assert own.script("heal", "to2").returncode == 0
    (back,) = job.wait_for("node_back", 1, timeout_s=60)
    assert (back["node"], back["rank"]) == ("to2", 1)
    assert job.end(240) == ("COMPLETED", 0, 0), job.log
    saved = re.findall(r"saved step (\d+) on (\d) ranks", text(job))
    worlds = [world for index, (_, world) in enumerate(saved) if saved[index - 1][1] != world]
    assert worlds in (["2", "1", "2"], ["1", "2"]), saved
    resumed = [int(step) for step in re.findall(r"resumed at step (\d+)", text(job))]
    assert len(resumed) == 2
    assert min(resumed) > 0
    assert f"finished at step {max(resumed) + MORE}" in text(job)
    assert [event["decision"] for event in job.events("decision")] == ["finish"]
    assert len(job.events("start")) == 1
    assert job.all_gone()


def test_on_a_laptop(scripts: Scripts) -> None:
    """The line of its page, without Slurm: two ranks that torchrun starts in the one of ours."""
    text = (EXAMPLES / "elastic" / "README.md").read_text()
    (words,) = re.findall(r"^ +DDP_NPROC_PER_NODE=1 .* -- torchrun (.*)", text, re.MULTILINE)
    shutil.copy(EXAMPLES / "elastic" / "train.py", scripts.directory)
    command = (*TORCHRUN, *words.split())
    result = scripts.run("prelaunch.sh", "--", *command, DDP_NPROC_PER_NODE="1")
    assert result.code == 0, result.err
    log = (result.run_dir / "logs" / "rank-0.log").read_text()
    assert "saved step 200 on 2 ranks" in log
    assert "finished at step 200" in log

"""Snapshots in memory: real ranks that are killed, and what a restart goes on from."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rundir.paths import MEMORY, snapshots_prefix
from tests.trainer.conftest import Ranks
from tests.trainer.saved import ALONE, all_of, events, open_folder, state_at
from trainer.checkpoint.snapshots import Snapshots
from trainer.telemetry.events import EventLog

EVERY = 5
OPTIONS = (
    "--model=mlp",
    "--max-steps=200",
    "--log-every=1",
    "--val-every=1000",
    "--checkpoint-minutes=0",
    "--num-workers=0",
    f"--snapshot-every={EVERY}",
)
LAYOUTS = {
    "fsdp": ("--strategy=fsdp",),
    "pp": (
        "--strategy=pp",
        "--workload=lm",
        "--model=toy",
        "--sequence-length=16",
        "--mock-tokens=20000",
        "--global-batch-size=8",
        "--micro-batch-size=4",
        "--max-steps=100",
    ),
}
"""Each rank has a part of the model that the other has not."""


class Job:
    """The launcher's words for the starts of one job."""

    def __init__(self, name: str, run_dir: Path) -> None:
        self.name = name
        self.run_dir = run_dir

    def env(self, attempt: int, node: str = "one") -> dict[str, str]:
        """Of a rank; {rank} stands for its number."""
        launch_id = f"{self.name}.{attempt}.1"
        return {"DDP_LAUNCH_ID": launch_id, "DDP_NODE": node, "DDP_ATTEMPT": str(attempt)}

    def directory(self, node: str = "one") -> Path:
        """Of a node's snapshots."""
        run = hashlib.sha256(os.fsencode(self.run_dir)).hexdigest()[:8]
        return Path(MEMORY, f"{snapshots_prefix(f'{self.name}.1.1')}{run}.{node}")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job, of which nothing is left in memory."""
    job = Job(f"test-{os.getpid()}-{tmp_path.name}", tmp_path / "run")
    yield job
    for path in Path(MEMORY).glob(f"{snapshots_prefix(f'{job.name}.1.1')}*"):
        shutil.rmtree(path)


def kill_after(ranks: Ranks, step: int, rank: int = 1) -> int:
    """Kill a rank at a step or later, as the launcher then ends the others; the last step."""
    ranks.wait_for_step(step)
    ranks.processes[rank].kill()
    ranks.end()
    return int(ranks.run.metrics()[-1]["step"])


def resumes(ranks: Ranks) -> list[tuple[int, str | None]]:
    """Step and path of each start."""
    return [(e["step"], e["path"]) for e in ranks.run.events("resume")]


def steps_in(directory: Path) -> list[int]:
    """The steps of a node's snapshots, of each rank."""
    found = [json.loads(path.read_text())["step"] for path in directory.glob("*.json")]
    return sorted(found)


def last_losses(ranks: Ranks) -> list[float]:
    """The loss of the last 20 steps."""
    return ranks.run.losses()[-20:]


@pytest.fixture
def start(start_ranks: Callable[..., Ranks]) -> Callable[..., Ranks]:
    """Start two ranks with snapshots."""

    def start(*options: str, env: dict[str, str], out: str = "run") -> Ranks:
        return start_ranks(2, *OPTIONS, *options, env=env, out=out)

    return start


@pytest.mark.slow
def test_a_killed_rank_costs_at_most_the_steps_since_the_last_two(
    start: Callable[..., Ranks], job: Job
) -> None:
    """The restart begins at a snapshot, and ends with the losses of a run that was not killed."""
    ranks = start(env=job.env(1))
    killed_step = kill_after(ranks, 30)
    again = start(env=job.env(2))
    assert again.wait() == [0, 0], again.output
    (_, (step, path)) = resumes(again)
    assert path == str(job.directory())
    # One that was being completed when the rank was killed does not count.
    assert killed_step - 2 * EVERY <= step <= killed_step + 1
    assert step % EVERY == 0
    assert not job.directory().exists()  # a checkpoint holds as much
    whole = start("--snapshot-every=0", env=job.env(1), out="whole")
    assert whole.wait() == [0, 0]
    assert last_losses(again) == last_losses(whole)
    assert again.run.checkpoints() == whole.run.checkpoints()  # it is no checkpoint


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "pp"])
def test_a_lost_node_is_made_up_for_by_its_neighbours_copy(
    start: Callable[..., Ranks], job: Job, strategy: str
) -> None:
    """A node is replaced by a spare, whose rank gets its file from the node that kept a copy."""
    options = LAYOUTS[strategy]
    ranks = start(*options, env=job.env(1, "n{rank}"))
    killed_step = kill_after(ranks, 30)
    assert steps_in(job.directory("n0"))
    shutil.rmtree(job.directory("n1"))
    again = start(*options, env=job.env(2, "n{rank}"))
    assert again.wait() == [0, 0], again.output
    (_, (step, path)) = resumes(again)
    assert path == str(job.directory("n0"))
    assert killed_step - 2 * EVERY <= step <= killed_step + 1
    whole = start(*options, "--snapshot-every=0", env=job.env(1), out="whole")
    assert whole.wait() == [0, 0]
    assert last_losses(again) == last_losses(whole)


@pytest.mark.slow
def test_nodes_may_change_places(start: Callable[..., Ranks], job: Job) -> None:
    """With the first node lost and a spare last, each rank gets its file, wherever it is now."""
    ranks = start(env=job.env(1, "n{rank}"))
    kill_after(ranks, 30)
    shutil.rmtree(job.directory("n0"))
    job.directory("n1").rename(job.directory("n0"))  # n1 runs rank 0 now, and the spare rank 1
    again = start(env=job.env(2, "n{rank}"))
    assert again.wait() == [0, 0], again.output
    assert resumes(again)[1][1] == str(job.directory("n0"))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["changed", "torn"])
def test_a_damaged_snapshot_is_not_used(start: Callable[..., Ranks], job: Job, damage: str) -> None:
    """One whose sums differ is named, one without an index unknown; neither is gone on from."""
    ranks = start(env=job.env(1))
    kill_after(ranks, 30)
    newest = max(
        step for step in steps_in(job.directory()) if steps_in(job.directory()).count(step) == 2
    )
    for index in job.directory().glob("1.*.json"):
        content = json.loads(index.read_text())
        if content["step"] == newest and damage == "changed":
            flip(index.with_suffix(""), content["file"]["bytes"] // 2)
        elif content["step"] == newest:
            index.write_text(index.read_text()[:100])
    again = start(env=job.env(2))
    assert again.wait() == [0, 0], again.output
    (_, (step, _)) = resumes(again)
    assert step < newest
    named = f"the snapshot of step {newest} is not used: rank 1: 1."
    assert (named in again.output[0][1]) == (damage == "changed")


@pytest.mark.slow
def test_a_node_that_cannot_keep_its_neighbours_copy_holds_up_nobody(
    start: Callable[..., Ranks], job: Job
) -> None:
    """The rank that sends it waits for nothing: all go on without snapshots, and one line says so.

    A directory in the place of an index can neither be removed nor replaced by a file.
    """
    ranks = start(env=job.env(1, "n{rank}"))
    ranks.wait_for_step(30)
    for index in job.directory("n0").glob("1.*.json"):
        index.unlink()
        index.mkdir()
    assert ranks.wait() == [0, 0], ranks.output
    assert "goes on without snapshots in memory: IsADirectoryError" in ranks.output[0][1]


@pytest.mark.slow
def test_a_copy_that_cannot_be_read_is_not_waited_for(
    start: Callable[..., Ranks], job: Job
) -> None:
    """Who would receive it is told, and all go on from an older state."""
    ranks = start(env=job.env(1, "n{rank}"))
    kill_after(ranks, 30)
    shutil.rmtree(job.directory("n1"))
    for data in (job.directory("n0") / f"1.{slot}" for slot in range(2)):
        data.unlink()
    again = start(env=job.env(2, "n{rank}"))
    assert again.wait() == [0, 0], again.output
    assert resumes(again)[1] == (0, None)
    assert "is not used: rank 0: FileNotFoundError" in again.output[0][1]


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 1]))


@pytest.mark.slow
def test_a_newer_checkpoint_and_another_job_go_before(
    start: Callable[..., Ranks], job: Job
) -> None:
    """What is on the disk and newer is taken; another job knows of no snapshot at all."""
    ranks = start("--checkpoint-every=7", env=job.env(1))
    kill_after(ranks, 30)
    again = start(env=Job(job.name + "-other", job.run_dir).env(1))
    assert again.wait() == [0, 0], again.output
    assert "/checkpoints/step-" in str(resumes(again)[1][1])
    third = start(env=job.env(2))  # the run is finished, at step 200
    assert third.wait() == [0, 0], third.output
    assert resumes(third)[2][0] == 200
    assert not job.directory().exists()


# ---- one process ---------------------------------------------------------------------------------


def open_snapshots(
    tmp_path: Path, launch_id: str = "1.1.1", run: str = "run", **further: Any
) -> Snapshots:
    """Those of a run of one rank, in a folder of the test's own."""
    return Snapshots(
        ALONE,
        EventLog(path=tmp_path / "events.jsonl", attempt=1, host="h"),
        every=EVERY,
        launch_id=launch_id,
        run_dir=tmp_path / run,
        state_of=open_folder(tmp_path).state_of,
        memory=tmp_path,
        **further,
    )


def take(snapshots: Snapshots, *steps: int) -> None:
    """Take one at each step, its tensors full of the step."""
    for step in steps:
        shared = {"model/w": torch.full((3, 2), float(step)), "optimizer/w/step": torch.tensor(1.0)}
        snapshots.take(shared, {"rank/0/x": torch.full((4,), step)}, state_at(step))
    snapshots.wait()


def loaded_step(snapshots: Snapshots, after: int = 0) -> int | None:
    """The step that is gone on from, after a look at the values."""
    loaded = snapshots.load(after, all_of)
    if loaded is None:
        return None
    tensors, state, _ = loaded
    assert tensors["model/w"].unique().tolist() == [state.step]
    assert tensors["rank/0/x"].tolist() == [state.step] * 4
    return state.step


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    """A next process finds the newest, and goes on beside it; only what is newer is of use."""
    take(open_snapshots(tmp_path), 5, 10, 15)
    (directory,) = tmp_path.glob("ddp-snapshots.*")
    assert steps_in(directory) == [10, 15]
    again = open_snapshots(tmp_path, "1.2.1")
    assert loaded_step(again) == 15
    take(again, 20)
    assert steps_in(directory) == [15, 20]
    assert loaded_step(open_snapshots(tmp_path), after=20) is None
    assert steps_in(directory) == []  # the run goes on from elsewhere
    assert loaded_step(open_snapshots(tmp_path)) is None


def test_runs_of_one_job_have_their_own(tmp_path: Path) -> None:
    """Another run directory, another state."""
    take(open_snapshots(tmp_path), 5)
    assert loaded_step(open_snapshots(tmp_path, run="other")) is None
    assert loaded_step(open_snapshots(tmp_path)) == 5


def test_what_changes_after_the_copy_is_not_in_it(tmp_path: Path) -> None:
    """The update may begin when `wait_for_copy` returns; own tensors may change before."""
    shared = {f"model/{i}": torch.zeros(1 << 20) for i in range(8)}
    own = {"rank/0/x": torch.zeros(4)}
    snapshots = open_snapshots(tmp_path)
    snapshots.take(shared, own, state_at(5))
    own["rank/0/x"].fill_(1)
    snapshots.wait_for_copy()
    for tensor in shared.values():
        tensor.fill_(1)
    snapshots.wait()
    loaded = open_snapshots(tmp_path).load(0, all_of)
    assert loaded is not None
    assert all(not loaded[0][name].any() for name in (*shared, *own))


def test_tensors_of_any_type_and_strides_come_back(tmp_path: Path) -> None:
    """Values, types and shapes are those that were copied."""
    own = {
        "rank/0/a": torch.arange(6).reshape(2, 3).t(),
        "rank/0/b": torch.tensor([True, False]),
        "rank/0/c": torch.tensor(1.5, dtype=torch.bfloat16),
        "rank/0/d": torch.empty(0),
        "rank/0/e": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    snapshots = open_snapshots(tmp_path)
    snapshots.take({}, own, state_at(5))
    snapshots.wait()
    loaded = open_snapshots(tmp_path).load(0, all_of)
    assert loaded is not None
    for name, tensor in own.items():
        torch.testing.assert_close(loaded[0][name], tensor, rtol=0, atol=0)


def test_a_rollback_goes_behind_all_of_them(tmp_path: Path) -> None:
    """What is cleared is not used, and the next one counts."""
    snapshots = open_snapshots(tmp_path)
    take(snapshots, 5, 10)
    snapshots.clear()
    assert loaded_step(open_snapshots(tmp_path)) is None
    take(snapshots, 5)
    assert loaded_step(open_snapshots(tmp_path)) == 5


def test_too_little_memory_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line, nothing is left, and every later one is passed over."""
    snapshots = open_snapshots(tmp_path, num_free_bytes=lambda: 200)
    take(snapshots, 5, 10)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("trainer: training goes on without snapshots in memory: no memory for")
    assert not list(tmp_path.glob("ddp-snapshots.*"))
    assert not snapshots.is_due(15)
    snapshots.close()


def test_without_a_launcher_there_are_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody would restart the ranks: one line says so."""
    snapshots = open_snapshots(tmp_path, "")
    assert not snapshots.is_due(5)
    assert "no launcher that would restart the ranks" in capfd.readouterr().err


def test_an_event_a_minute(tmp_path: Path) -> None:
    """The first one is reported, and those that follow at once are not."""
    take(open_snapshots(tmp_path), 5, 10)
    (event,) = events(tmp_path, "snapshot")
    assert event["step"] == 5
    assert event["bytes"] > 0
    assert event["seconds"] >= 0

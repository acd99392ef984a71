"""A storm: faults drawn at random befall one job, one after the other, and their cost is measured.

The job is the trainer's own on MNIST: two ranks on two nodes, and a third node that is spare. Then
the same runs without faults, whose losses and speed are what the storm is compared with.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults import injectors
from tests.faults.driver import leave_nothing
from tests.faults.job import ROOT, FaultJob, when
from tests.faults.layout import on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Inject = Callable[[FaultJob, random.Random], float]
    Losses = Mapping[int, set[float]]

MNIST = ROOT.parent / "shared" / "mnist"
SHARED_MEMORY = Path("/dev/shm")
NODES = on(12, 13, 14)
TRAINING = (
    *("--workload", "mnist", "--data-dir", str(MNIST), "--global-batch-size", "32"),
    *("--epochs", "1000000", "--schedule", "constant", "--val-every", "1000000"),
    *("--log-every", "10", "--checkpoint-every", "100", "--snapshot-every", "10"),
)
SETTINGS = {
    "DDP_ELASTIC": "2:2",
    "SBATCH_NO_KILL": "set",
    "DDP_MAX_RESTARTS": "99",
    "DDP_MAX_IDLE_RESTARTS": "99",
    "DDP_HANG_TIMEOUT": "4",
    "DDP_BAD_NODES": "0",  # chance strikes a node twice in a row, too
    "DDP_SEED": "1",  # else by the run's name, and the two have different ones
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """What may befall a rank or its node."""

    how: str
    inject: Inject
    signs: tuple[str, ...]
    """Events of which the first shows that it was seen."""
    heal_when: str = ""
    """When its node is as before: `seen`, or `trained` on; empty: nothing was done to it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hit:
    """One fault: seconds after it."""

    kind: str
    attempt: int
    seen_s: float
    decided_s: float
    up_s: float
    """Until the last rank of the next attempt was up."""
    recovered_s: float
    """Until the first step after it was done."""


def _signal_one(number: signal.Signals, job: FaultJob, chance: random.Random) -> float:
    return injectors.signal_rank(chance.randrange(2), number)(job)


def _second_node(injector: injectors.Injector, job: FaultJob, _: random.Random) -> float:
    """Strike the node of rank 1: with its script's node the job goes back to the queue."""
    return injector(job)


_NODE_SIGNS = ("verdict", "lost_node")
KINDS = {
    "rank killed": Kind(
        how="SIGKILL to a rank",
        inject=functools.partial(_signal_one, signal.SIGKILL),
        signs=("rank_end",),
    ),
    "rank stopped": Kind(
        how="SIGSTOP to a rank",
        inject=functools.partial(_signal_one, signal.SIGSTOP),
        signs=("verdict",),
    ),
    "segmentation fault": Kind(
        how="SIGSEGV to a rank",
        inject=functools.partial(_signal_one, signal.SIGSEGV),
        signs=("rank_end",),
    ),
    "node lost": Kind(
        how="a node's power off; on again once the run trains on the spare one, and spare then",
        inject=functools.partial(_second_node, injectors.kill_node(1)),
        signs=_NODE_SIGNS,
        heal_when="trained",
    ),
    "network cut": Kind(
        how="a node's cable pulled, and plugged in again when that was seen",
        inject=functools.partial(_second_node, injectors.cut(1)),
        signs=_NODE_SIGNS,
        heal_when="seen",
    ),
}


def draw(seed: int, num_faults: int) -> list[str]:
    """Draw the faults."""
    return random.Random(seed).choices(list(KINDS), k=num_faults)  # noqa: S311 -- to be repeated


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What a run did in a window of time."""

    num_steps: int
    window_s: float
    losses: Losses
    """By step; a step that was done again has each of its losses."""

    @property
    def steps_per_s(self) -> float:
        """Steps that count, by the time of the clock."""
        return self.num_steps / self.window_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storm:
    """All that was measured."""

    seed: int
    interval_s: float
    hits: list[Hit]
    stormy: Run
    calm: Run
    num_starts: int
    steps_again: Mapping[int, int]
    """By the attempt whose end made them necessary."""

    @property
    def goodput_pct(self) -> float:
        """Steps by time, of those of the run without faults."""
        return 100 * self.stormy.steps_per_s / self.calm.steps_per_s

    @property
    def wrong_losses(self) -> list[int]:
        """Steps of both runs whose losses differ, to the bit."""
        both = self.stormy.losses.keys() & self.calm.losses.keys()
        return sorted(s for s in both if self.stormy.losses[s] != self.calm.losses[s])


def play(  # noqa: PLR0913 -- each by its name
    cluster: Any,
    directory: Path,
    *,
    seed: int,
    duration_s: float,
    interval_s: float,
    reference_s: float | None,
) -> Storm:
    """Let a fault befall the job every `interval_s`; then run the reference.

    Args:
        cluster: where.
        directory: for the files of both.
        seed: of what is drawn.
        duration_s: of the storm.
        interval_s: from one fault to the next; the first comes after half of it.
        reference_s: how long the other runs; None: until it has done as many steps.

    """
    chance, hits = random.Random(seed), []  # noqa: S311 -- to be repeated
    kinds = draw(seed, int(duration_s // interval_s))
    stormy = _submit(cluster, directory, "storm")
    try:
        began_s = _await_training(stormy)
        for number, kind in enumerate(kinds):
            _sleep_until(began_s + (number + 0.5) * interval_s)
            hits.append(_befall(stormy, kind, chance))
        _sleep_until(began_s + duration_s)
    finally:
        _end(stormy, kinds)
    in_storm = _measure(stormy, began_s, duration_s)
    calm = _submit(cluster, directory, "calm")
    try:
        calm_began_s = _await_training(calm)
        last, timeout_s = max(in_storm.losses), 1.5 * duration_s + 60
        if reference_s is None:
            calm.until(lambda: _last_step(calm) >= last, f"step {last}", timeout_s, poll_s=1)
        else:
            _sleep_until(calm_began_s + reference_s)
        calm_s = time.time() - calm_began_s
    finally:
        _end(calm, ())
    attempts = stormy.record()["attempts"]
    return Storm(
        seed=seed,
        interval_s=interval_s,
        hits=hits,
        stormy=in_storm,
        calm=_measure(calm, calm_began_s, calm_s),
        num_starts=len(attempts),
        steps_again={one["attempt"]: one["steps_lost"] or 0 for one in attempts},
    )


def _submit(cluster: Any, directory: Path, name: str) -> FaultJob:
    job = FaultJob(cluster, directory / name, name)
    job.submit(NODES, TRAINING, SETTINGS)
    return job


def _await_training(job: FaultJob) -> float:
    """Wait until the ranks of the next attempt wait, too; the moment of a step after that."""
    job.until_event("checkpoint", attempt=1)
    first = _last_step(job)
    job.until(lambda: _last_step(job) > first, "a step")
    return when(job.metrics()[-1])


def _last_step(job: FaultJob) -> int:
    return max((line["step"] for line in job.metrics()), default=0)


def _sleep_until(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - time.time()))


def _befall(job: FaultJob, name: str, chance: random.Random) -> Hit:
    """Bring one fault about, and see the run train again."""
    kind, attempt = KINDS[name], job.attempt
    job.until_event("first_step", attempt=attempt)
    if kind.heal_when:
        job.until(lambda: not _is_any_lost(job), "there is a spare node")
    node = job.node_of(1)
    moment_s = kind.inject(job, chance)
    since_s = int(moment_s * 1000) / 1000  # as the event log writes it
    seen = job.until_event(*kind.signs, attempt=attempt, since=since_s)
    if kind.heal_when == "seen":
        job.cluster.script("heal", node)
    decision = job.until_event("decision", attempt=attempt)
    first = job.until_event("first_step", attempt=attempt + 1)
    if kind.heal_when == "trained":
        job.cluster.script("heal", node)
    up_s = max(when(event) for event in job.events("rank_up", attempt=attempt + 1))
    return Hit(
        kind=name,
        attempt=attempt,
        seen_s=when(seen) - moment_s,
        decided_s=when(decision) - moment_s,
        up_s=up_s - moment_s,
        recovered_s=when(first) - moment_s,
    )


def _is_any_lost(job: FaultJob) -> bool:
    newest = {event["node"]: event["event"] for event in job.events("lost_node", "node_back")}
    return "lost_node" in newest.values()


def _end(job: FaultJob, kinds: list[str] | tuple[str, ...]) -> None:
    """End it, with all nodes as they were, and see that nothing of it is left anywhere."""
    if any(KINDS[kind].heal_when for kind in kinds):
        for number in (13, 14):
            job.cluster.script("heal", f"fx{number}")
    leave_nothing(job)
    launches = [event["settings"]["DDP_LAUNCH_ID"]["value"] for event in job.events("settings")]
    left = [path for launch in launches for path in SHARED_MEMORY.glob(f"*{launch}*")]
    left += job.run_dir.glob("checkpoints/.step-*")
    left += job.run_dir.glob("events.*.jsonl")
    assert not left, left


def _measure(job: FaultJob, began_s: float, duration_s: float) -> Run:
    losses: dict[int, set[float]] = {}
    for line in job.metrics():
        losses.setdefault(line["step"], set()).add(line["loss"])
    at = [
        max(line["step"] for line in job.metrics() if when(line) <= moment_s)
        for moment_s in (began_s, began_s + duration_s)
    ]
    return Run(num_steps=at[1] - at[0], window_s=duration_s, losses=losses)

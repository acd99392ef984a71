"""What the loop works with, each component built elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.checkpoint.checkpoints import Checkpoints
    from trainer.checkpoint.resume import Resumed
    from trainer.checkpoint.snapshots import Snapshots
    from trainer.checkpoint.train_state import TrainState
    from trainer.config import Config
    from trainer.data.batch_plan import BatchPlan
    from trainer.data.batches import Batches
    from trainer.distributed.mesh import Mesh
    from trainer.loop.evaluation import Evaluation
    from trainer.loop.expected_memory import Demand
    from trainer.loop.model import TrainedModel
    from trainer.loop.optim import LearningRate
    from trainer.loop.stop import StopConsensus, StopRequest
    from trainer.telemetry.events import EventLog
    from trainer.telemetry.heartbeat import Heartbeat
    from trainer.telemetry.metrics import Sinks
    from trainer.telemetry.profiling import StepProfiler
    from trainer.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class Components:
    """All of them."""

    config: Config
    mesh: Mesh
    plan: BatchPlan
    workload: Workload
    trained: TrainedModel
    demand: Demand
    """What a step needs of a rank's memory."""
    learning_rate: LearningRate
    train: Batches
    evaluation: Evaluation | None
    """None where nothing is held out."""
    steps_per_epoch: int
    checkpoints: Checkpoints
    snapshots: Snapshots
    go_back: Callable[[TrainState], Resumed]
    """Loads the run's own last checkpoint into model and optimizer; all ranks call it together."""
    sinks: Sinks
    events: EventLog
    stop: StopRequest
    consensus: StopConsensus
    heartbeat: Heartbeat
    profiler: StepProfiler

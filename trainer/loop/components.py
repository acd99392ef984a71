"""What the loop works with; every part is built elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from trainer.checkpoint.checkpoints import Checkpoints
    from trainer.checkpoint.resume import Resumed
    from trainer.checkpoint.train_state import TrainState
    from trainer.config import Config
    from trainer.data.batch_plan import BatchPlan
    from trainer.data.batches import Batches
    from trainer.distributed.mesh import Mesh
    from trainer.loop.evaluation import Evaluation
    from trainer.loop.optim import LearningRate, Update
    from trainer.loop.stop import StopAgreement, StopRequest
    from trainer.telemetry.events import EventLog
    from trainer.telemetry.heartbeat import Beat
    from trainer.telemetry.metrics import Sinks
    from trainer.telemetry.profiling import StepProfiler
    from trainer.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All of them."""

    config: Config
    mesh: Mesh
    plan: BatchPlan
    workload: Workload
    model: nn.Module
    """The model itself: saved, restored, validated."""
    train_model: nn.Module
    """The same one as it is trained: compiled, and within DistributedDataParallel."""
    stages: Sequence[nn.Module]
    """This rank's of the pipeline; without one, the model."""
    timed: Sequence[nn.Module]
    """Those of its modules whose forwards wait for no other rank."""
    update: Update
    learning_rate: LearningRate
    train: Batches
    evaluation: Evaluation | None
    """None where nothing is held out."""
    steps_per_epoch: int
    checkpoints: Checkpoints
    go_back: Callable[[TrainState], Resumed]
    """Loads the run's own last checkpoint into model and optimizer; all ranks call it together."""
    sinks: Sinks
    events: EventLog
    stop: StopRequest
    agreement: StopAgreement
    beat: Beat
    profiler: StepProfiler

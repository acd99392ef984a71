"""One run, from the first look at the other ranks to its summary."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rundir import paths
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.resume import Resume
from trainer.checkpoint.train_state import TrainState, identity_of
from trainer.data.datasets import Datasets, prepare
from trainer.distributed.device import be_deterministic, uuid_of
from trainer.distributed.host_memory import keep_freed_memory
from trainer.distributed.mesh import open_mesh
from trainer.errors import UserError, one_line
from trainer.loop.compiler import check_compiler
from trainer.loop.components import Parts
from trainer.loop.evaluation import Evaluation
from trainer.loop.expected_memory import Demand, check_free_memory
from trainer.loop.loop import Loop
from trainer.loop.memory import out_of_memory
from trainer.loop.model import build_model
from trainer.loop.optim import LearningRate
from trainer.loop.run_directory import open_run_folder
from trainer.loop.stop import StopAgreement, told_too_early
from trainer.loop.summary import closing_block, out_of_time, summary_of
from trainer.parallel.precision import set_up
from trainer.telemetry.fabric import check_fabric
from trainer.telemetry.flight_recorder import FlightRecorder, remember
from trainer.telemetry.heartbeat import END, LOAD
from trainer.telemetry.metrics import Sinks, open_sinks
from trainer.telemetry.profiling import StepProfiler, check_device, profiled_ranks
from trainer.text import counted
from trainer.workloads.checks import test_data_of, train_data_of

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from pathlib import Path
    from socket import socket

    from trainer.config import Config
    from trainer.data.batch_plan import BatchPlan
    from trainer.distributed.mesh import Mesh
    from trainer.environment import Ranks, RunSettings
    from trainer.loop.model import TrainedModel
    from trainer.loop.run_directory import RunFolder
    from trainer.loop.stop import StopRequest
    from trainer.parallel.layout import Layout
    from trainer.telemetry.events import EventLog
    from trainer.telemetry.heartbeat import Beat
    from trainer.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class Job:
    """What was asked for, all of it checked."""

    config: Config
    ranks: Ranks
    layout: Layout
    settings: RunSettings
    plan: BatchPlan
    workload: Workload
    stop: StopRequest
    beat: Beat
    listener: socket | None
    """Rank 0's, at which the ranks meet."""

    @property
    def run_dir(self) -> Path | None:
        """As it was chosen; None: the ranks have yet to agree on one."""
        return self.config.out or self.settings.run_dir


class Run:
    """Builds the parts, trains, and tells how it ended.

    What was not reached yet is None, so that a failure at any point can still be told.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._mesh: Mesh | None = None
        self._folder: RunFolder | None = None
        self._events: EventLog | None = None
        self._collectives: FlightRecorder | None = None
        self._checkpoints: Checkpoints | None = None
        self._loop: Loop | None = None
        self._sinks = Sinks([])

    @property
    def has_begun(self) -> bool:
        """Whether steps may have been done: from there on each rank sees samples of its own."""
        return self._loop is not None

    def execute(self, env: MutableMapping[str, str]) -> bool:
        """Train to an end; return whether the run is finished, False if it was asked to stop.

        Raises UserError for input that turns out to be wrong, before anything is written.
        """
        settings = self._job.settings
        self._job.stop.allow(
            grace_s=settings.grace_s,
            end_epoch_s=settings.end_epoch_s,
            say_goodbye=self._say_goodbye,
        )
        if self._job.config.deterministic:
            be_deterministic(env)
        remember(self._job.config, self._job.run_dir, env)
        self._mesh = open_mesh(
            self._job.ranks, env, settings.node, self._job.layout, self._job.listener
        )
        self._job.beat.compute_on(uuid_of(self._mesh.device))
        if self._mesh.device.type == "cpu":
            keep_freed_memory(env)
        prepare_device(self._job.config, self._mesh.device, env)
        try:
            self._loop = self._build(self._mesh, env)
            is_finished = self._loop.run()
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, self._job.ranks.rank, self._mesh.device) from error
        finally:
            self._sinks.close()
        self._tell_signal()
        self._summarise("finished" if is_finished else "stopped")
        self._job.beat.meet(END)
        return is_finished

    def fail(self, error: BaseException) -> None:
        """Record a failure. It waits for no other rank: they may be gone."""
        if self._checkpoints is not None and self._job.ranks.world_size == 1:
            self._checkpoints.wait()  # nobody can be gone: what is being written still counts
        if self._events is not None:
            self._events.write("failure", rank=self._job.ranks.rank, error=one_line(error))
            self._summarise("failed")
        if self._collectives is not None:
            self._collectives.write()

    def _build(self, mesh: Mesh, env: Mapping[str, str]) -> Loop:
        """Put the parts together; what can be the user's mistake comes before what writes."""
        job, config = self._job, self._job.config
        prepare(job.workload, mesh)
        data = Datasets(train=train_data_of(job.workload), test=test_data_of(job.workload))
        learning_rate = _learning_rate(job, job.plan.steps_per_epoch(data.num_train))
        fresh = TrainState(
            seed=job.settings.seed if config.seed is None else config.seed,
            global_batch_size=config.global_batch_size,
            num_train_samples=data.num_train,
        )
        trained = build_model(config, job.workload, mesh, fresh.seed)
        check_free_memory(
            Demand(
                config=config,
                mesh=mesh,
                plan=job.plan,
                workload=job.workload,
                model=trained.model,
                stages=trained.stages,
                update=trained.update,
            )
        )
        self._folder = folder = open_run_folder(job.run_dir, job.settings, mesh)
        self._events = events = folder.events
        run_dir = folder.path
        identity = identity_of(config, data.num_train)
        self._collectives = FlightRecorder.open(
            config, run_dir / paths.DEBUG, job.ranks.rank, mesh.backend
        )
        self._checkpoints = _open_checkpoints(job, mesh, run_dir, events, identity)
        job.beat.meet(LOAD)
        check_fabric(mesh, env, events)
        resume = Resume(
            checkpoints=self._checkpoints,
            mesh=mesh,
            model=trained.model,
            optimizer=trained.update.optimizer,
            scaler=trained.update.scaler,
            identity=identity,
            is_forced=config.force,
            elsewhere=trained.elsewhere,
        )
        try:
            resumed = resume(config.resume, fresh)
        except UserError:
            if job.ranks.is_main:
                folder.abandon()
            raise
        if job.ranks.is_main:
            total_steps = learning_rate.total_steps
            _greet(mesh, trained.num_parameters, run_dir, resumed.state, total_steps)
            self._sinks = open_sinks(
                run_dir,
                attempt=folder.attempt,
                started_step=resumed.state.step,
                total_steps=total_steps,
                tensorboard=config.tensorboard,
            )
        begun = _Begun(
            data=data,
            seed=resumed.state.seed,
            trained=trained,
            resume=resume,
            learning_rate=learning_rate,
            events=events,
            sinks=self._sinks,
            profiler=_profiler(job, run_dir, self._collectives),
        )
        return Loop(_parts(job, begun), resumed)

    def _tell_signal(self) -> None:
        if self._job.stop.signal_name is not None and self._events is not None:
            self._events.write("signal", signal=self._job.stop.signal_name)

    def _say_goodbye(self, left_s: float) -> None:
        """Tell that there was no time for a checkpoint. It waits for no other rank."""
        if not self._job.ranks.is_main:
            return
        if self._checkpoints is None or self._events is None or self._loop is None:
            told_too_early(left_s)
            return
        line = out_of_time(left_s, self._checkpoints)
        print(f"trainer: no time for a checkpoint: {line}", file=sys.stderr, flush=True)
        self._tell_signal()
        step = self._loop.state.step
        self._events.write("checkpoint_failed", step=step, reason="too late", error=line)
        self._summarise("stopped")

    def _summarise(self, outcome: str) -> None:
        """Rank 0 leaves the record's summary, and tells a person the same."""
        if not self._job.ranks.is_main or self._events is None or self._folder is None:
            return
        summary = summary_of(
            outcome,
            self._loop,
            self._checkpoints,
            world_size=self._job.ranks.world_size,
            global_batch_size=self._job.config.global_batch_size,
        )
        if self._loop is not None:
            self._events.write("ledger", **self._loop.progress.told())
        self._events.write("summary", summary=summary)
        print(closing_block(summary, self._folder.path), flush=True)


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """What stands when the run knows where to begin."""

    data: Datasets
    seed: int
    trained: TrainedModel
    resume: Resume
    learning_rate: LearningRate
    events: EventLog
    sinks: Sinks
    profiler: StepProfiler


def _parts(job: Job, begun: _Begun) -> Parts:
    """Return what the loop works with."""
    data, trained, resume = begun.data, begun.trained, begun.resume
    mesh, checkpoints = resume.mesh, resume.checkpoints
    train, test = data.batches(job.plan, begun.seed, mesh, job.config.num_workers)
    agreement = StopAgreement(mesh, job.stop, job.beat, wants_save=checkpoints.is_due)
    evaluation = None
    if test is not None:
        evaluation = Evaluation(
            workload=job.workload,
            # A stage is none: it has outputs only together with the others.
            model=trained.model if mesh.layout.pp == 1 else trained.train_model,
            test=test,
            num_samples=data.num_test,
            precision=job.config.precision,
            mesh=mesh,
            agreement=agreement,
            beat=job.beat,
        )
    return Parts(
        config=job.config,
        mesh=mesh,
        plan=job.plan,
        workload=job.workload,
        model=trained.model,
        train_model=trained.train_model,
        stages=trained.stages,
        timed=trained.timed,
        update=trained.update,
        learning_rate=begun.learning_rate,
        train=train,
        evaluation=evaluation,
        steps_per_epoch=job.plan.steps_per_epoch(data.num_train),
        checkpoints=checkpoints,
        go_back=resume.go_back,
        sinks=begun.sinks,
        events=begun.events,
        stop=job.stop,
        agreement=agreement,
        beat=job.beat,
        profiler=begun.profiler,
    )


def prepare_device(config: Config, device: torch.device, env: Mapping[str, str]) -> None:
    """Get `device` ready for what is asked of it. Raises UserError for what it cannot do."""
    set_up(config.precision, device)
    check_device(config, device)
    check_compiler(config, device.type, env)


def _learning_rate(job: Job, steps_per_epoch: int) -> LearningRate:
    config = job.config
    total_steps = (config.epochs or job.workload.default_epochs) * steps_per_epoch
    if config.max_steps is not None:
        # Without --epochs, the steps alone say when to end.
        total_steps = min(total_steps, config.max_steps) if config.epochs else config.max_steps
    return LearningRate(
        peak=config.lr,
        lowest=config.min_lr,
        kind=config.schedule,
        warmup_steps=config.warmup_steps,
        total_steps=total_steps,
        decay_fraction=config.decay_fraction,
    )


def _profiler(job: Job, run_dir: Path, collectives: FlightRecorder) -> StepProfiler:
    config, ranks = job.config, job.ranks
    is_asked = ranks.rank in profiled_ranks(config, ranks.world_size)
    return StepProfiler(
        config.profile_range() if is_asked else None,
        run_dir / paths.DEBUG,
        ranks.rank,
        with_memory=config.memory_snapshot,
        write_more=collectives.write,
    )


def _open_checkpoints(
    job: Job, mesh: Mesh, run_dir: Path, events: EventLog, identity: Mapping[str, object]
) -> Checkpoints:
    return Checkpoints(
        run_dir / paths.CHECKPOINTS,
        mesh,
        events,
        num_kept=job.config.keep_checkpoints,
        is_async=job.config.checkpoint_mode == "async",
        identity=identity,
        interval_s=60 * job.config.checkpoint_minutes,
    )


def _greet(
    mesh: Mesh, num_parameters: int, run_dir: Path, state: TrainState, total_steps: int
) -> None:
    print(
        f"trainer: {mesh.describe()}, {counted(num_parameters, 'parameter')}, "
        f"seed {state.seed}, steps {state.step} to {total_steps}, run directory {run_dir}",
        flush=True,
    )

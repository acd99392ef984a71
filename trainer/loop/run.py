"""One run, from opening the process group to its summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from rundir import paths, secrets
from rundir.text import counted
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.resume import Resume
from trainer.checkpoint.snapshots import Snapshots
from trainer.checkpoint.train_state import TrainState, identity_of
from trainer.data.batches import build_batches
from trainer.distributed.device import be_deterministic, uuid_of
from trainer.distributed.host_memory import keep_freed_memory
from trainer.distributed.mesh import open_mesh
from trainer.errors import UserError, one_line
from trainer.loop.compiler import check_compiler
from trainer.loop.components import Components
from trainer.loop.evaluation import Evaluation
from trainer.loop.expected_memory import Demand, check_free_memory
from trainer.loop.loop import Loop
from trainer.loop.memory import out_of_memory
from trainer.loop.model import build_model
from trainer.loop.optim import LearningRate
from trainer.loop.run_directory import open_run_directory
from trainer.loop.stop import StopConsensus, report_too_early
from trainer.loop.summary import closing_block, out_of_time, summary_of
from trainer.parallel.precision import set_up
from trainer.telemetry.fabric import check_fabric
from trainer.telemetry.flight_recorder import FlightRecorder, remember
from trainer.telemetry.heartbeat import END, LOAD
from trainer.telemetry.metrics import Sinks, open_sinks
from trainer.telemetry.profiling import StepProfiler, check_device, profiled_ranks
from trainer.text import warn
from trainer.workloads.checks import test_data_of, train_data_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping
    from pathlib import Path
    from socket import socket

    from trainer.checkpoint.resume import Resumed
    from trainer.config import Config
    from trainer.data.batch_plan import BatchPlan
    from trainer.data.batches import Batches
    from trainer.distributed.mesh import Mesh
    from trainer.environment import Ranks, RunSettings
    from trainer.loop.model import TrainedModel
    from trainer.loop.run_directory import RunDirectory
    from trainer.loop.stop import StopRequest
    from trainer.parallel.layout import Layout
    from trainer.telemetry.heartbeat import Heartbeat
    from trainer.workloads.base import Workload
    from trainer.workloads.checks import Data

_GRACE_ALONE_S = 5.0
"""The longest grace of a rank that still waits for the others: it has nothing to save yet."""


@dataclass(kw_only=True)
class Run:
    """A run whose options and input are checked: builds the components, trains, reports the end.

    A component that is not built yet is None, so that a failure at any point can be reported.
    """

    config: Config
    ranks: Ranks
    layout: Layout
    settings: RunSettings
    plan: BatchPlan
    workload: Workload
    stop: StopRequest
    heartbeat: Heartbeat
    rendezvous_socket: socket | None
    """Rank 0's, on which the store of the rendezvous is served."""
    _directory: RunDirectory | None = field(default=None, init=False)
    _collectives: FlightRecorder | None = field(default=None, init=False)
    _checkpoints: Checkpoints | None = field(default=None, init=False)
    _loop: Loop | None = field(default=None, init=False)
    _sinks: Sinks = field(default_factory=lambda: Sinks([]), init=False)

    @property
    def has_begun(self) -> bool:
        """Whether steps may have been taken: from there on each rank sees samples of its own."""
        return self._loop is not None

    def execute(self, env: MutableMapping[str, str]) -> bool:
        """Train to an end; return whether the run is finished, False if it was asked to stop.

        Raises UserError for input that turns out to be wrong, before anything is written.
        """
        settings, config = self.settings, self.config
        grace_s = _GRACE_ALONE_S if settings.grace_s is None else settings.grace_s
        self._allow(min(grace_s, _GRACE_ALONE_S))
        if config.deterministic:
            be_deterministic(env)
        remember(config, config.out or settings.run_dir, env)
        mesh = open_mesh(self.ranks, env, settings.node, self.layout, self.rendezvous_socket)
        self._allow(settings.grace_s)
        self.heartbeat.compute_on(uuid_of(mesh.device))
        if mesh.device.type == "cpu":
            keep_freed_memory(env)
        prepare_device(config, mesh.device, env)
        try:
            self._loop = self._build(mesh, env)
            is_finished = self._loop.run()
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, self.ranks.rank, mesh.device) from error
        finally:
            self._sinks.close()
        self._report_signal()
        self._summarise("finished" if is_finished else "stopped")
        self.heartbeat.collective(END)
        return is_finished

    def fail(self, error: BaseException) -> None:
        """Record a failure. It waits for no other rank: they may be gone."""
        if self._checkpoints is not None and self.ranks.world_size == 1:
            self._checkpoints.wait()  # no other rank can be gone: what is being written counts
        if self._directory is not None:
            text = secrets.hide_in_message(one_line(error))
            self._directory.events.write("failure", rank=self.ranks.rank, error=text)
            self._summarise("failed")
        if self._collectives is not None:
            self._collectives.write()

    # ---- what the loop works with ----------------------------------------------------------------

    def _build(self, mesh: Mesh, env: Mapping[str, str]) -> Loop:
        """Build the loop; validate everything the user can get wrong before writing any file."""
        config, plan = self.config, self.plan
        prepare_data(self.workload, mesh)
        train_data, test_data = train_data_of(self.workload), test_data_of(self.workload)
        num_train = len(train_data)  # type: ignore[arg-type] # map-style sets have a length
        steps_per_epoch = plan.steps_per_epoch(num_train)
        total_steps = self._total_steps(steps_per_epoch)
        learning_rate = LearningRate(config=config, total_steps=total_steps)
        fresh = TrainState(
            seed=self.settings.seed if config.seed is None else config.seed,
            global_batch_size=config.global_batch_size,
            num_train_samples=num_train,
        )
        trained = build_model(config, self.workload, mesh, fresh.seed)
        demand = Demand(
            config=config, mesh=mesh, plan=plan, workload=self.workload, trained=trained
        )
        check_free_memory(demand)
        self._directory = directory = open_run_directory(
            config.out or self.settings.run_dir, self.settings, mesh
        )
        self._collectives = FlightRecorder(
            config, directory.path / paths.DEBUG, self.ranks.rank, mesh.backend
        )
        resume = self._build_resume(mesh, trained, num_train, directory)
        self.heartbeat.collective(LOAD)
        check_fabric(mesh, env, directory.events)
        resumed = self._restore(resume, fresh, directory)
        if self.ranks.is_main:
            self._announce(mesh, trained, resumed.state, total_steps, directory)
        batches = self._batches(mesh, resumed.state.seed)
        test = None if test_data is None else batches(test_data)
        consensus = StopConsensus(
            mesh, self.stop, self.heartbeat, wants_save=resume.checkpoints.is_due
        )
        components = Components(
            config=config,
            mesh=mesh,
            plan=plan,
            workload=self.workload,
            trained=trained,
            demand=demand,
            learning_rate=learning_rate,
            train=batches(train_data),
            evaluation=self._evaluation(trained, test, mesh, consensus),
            steps_per_epoch=steps_per_epoch,
            checkpoints=resume.checkpoints,
            snapshots=resume.snapshots,
            go_back=resume.go_back,
            sinks=self._sinks,
            events=directory.events,
            stop=self.stop,
            consensus=consensus,
            heartbeat=self.heartbeat,
            profiler=self._profiler(directory.path / paths.DEBUG, self._collectives),
        )
        return Loop(components, resumed)

    def _total_steps(self, steps_per_epoch: int) -> int:
        config = self.config
        total_steps = (config.epochs or self.workload.default_epochs) * steps_per_epoch
        if config.max_steps is None:
            return total_steps
        # Without --epochs, the steps alone decide when to end.
        return min(total_steps, config.max_steps) if config.epochs else config.max_steps

    def _build_resume(
        self, mesh: Mesh, trained: TrainedModel, num_train: int, directory: RunDirectory
    ) -> Resume:
        """Build what loads and saves the run's state: its checkpoints and snapshots."""
        config = self.config
        identity = identity_of(config, num_train, self.workload.resolved())
        self._checkpoints = Checkpoints(
            directory.path / paths.CHECKPOINTS,
            mesh,
            directory.events,
            num_kept=config.keep_checkpoints,
            is_async=config.checkpoint_mode == "async",
            identity=identity,
            interval_s=60 * config.checkpoint_minutes,
        )
        return Resume(
            checkpoints=self._checkpoints,
            mesh=mesh,
            model=trained.model,
            optimizer=trained.update.optimizer,
            scaler=trained.update.scaler,
            identity=identity,
            is_forced=config.force,
            snapshots=Snapshots(
                mesh,
                directory.events,
                every=config.snapshot_every,
                launch_id=self.settings.launch_id,
                run_dir=directory.path.absolute(),
                state_of=self._checkpoints.state_of,
            ),
            elsewhere=trained.elsewhere,
        )

    def _restore(self, resume: Resume, fresh: TrainState, directory: RunDirectory) -> Resumed:
        """Load what --resume asks for, or begin afresh. Raises UserError, leaving no run behind."""
        try:
            return resume(self.config.resume, fresh)
        except UserError:
            if self.ranks.is_main:
                directory.abandon()
            raise

    def _announce(
        self,
        mesh: Mesh,
        trained: TrainedModel,
        state: TrainState,
        total_steps: int,
        directory: RunDirectory,
    ) -> None:
        """On rank 0: print what begins, and open the sinks of its metrics."""
        print(
            f"trainer: {mesh.describe()}, {counted(trained.num_parameters, 'parameter')}, "
            f"seed {state.seed}, steps {state.step} to {total_steps}, "
            f"run directory {directory.path}",
            flush=True,
        )
        self._sinks = open_sinks(
            directory.path,
            attempt=directory.attempt,
            started_step=state.step,
            total_steps=total_steps,
            tensorboard=self.config.tensorboard,
        )

    def _batches(self, mesh: Mesh, seed: int) -> Callable[[Data], Batches]:
        """Return what makes this rank's batches of a data set."""
        return partial(
            build_batches,
            plan=self.plan,
            seed=seed,
            device=mesh.device,
            num_workers=self.config.num_workers,
            cp=mesh.layout.cp,
            cp_rank=mesh.layout.coordinates(mesh.ranks.rank)["cp"],
        )

    def _evaluation(
        self, trained: TrainedModel, test: Batches | None, mesh: Mesh, consensus: StopConsensus
    ) -> Evaluation | None:
        if test is None:
            return None
        return Evaluation(
            workload=self.workload,
            # A pipeline's stage alone has no outputs: they come from all stages together.
            model=trained.model if mesh.layout.pp == 1 else trained.train_model,
            test=test,
            precision=self.config.precision,
            mesh=mesh,
            consensus=consensus,
            heartbeat=self.heartbeat,
        )

    def _profiler(self, folder: Path, collectives: FlightRecorder) -> StepProfiler:
        config, rank = self.config, self.ranks.rank
        profiled = profiled_ranks(config, self.ranks.world_size)
        return StepProfiler(
            config.profile_range() if rank in profiled else None,
            folder,
            rank,
            is_leader=rank == min(profiled),
            with_memory=config.memory_snapshot,
            write_more=collectives.write,
        )

    # ---- how it ended ----------------------------------------------------------------------------

    def _report_signal(self) -> None:
        if self.stop.signal_name is not None and self._directory is not None:
            self._directory.events.write("signal", signal=self.stop.signal_name)

    def _allow(self, grace_s: float | None) -> None:
        self.stop.allow(
            grace_s=grace_s,
            end_epoch_s=self.settings.end_epoch_s,
            report_shutdown=self._report_shutdown,
        )

    def _report_shutdown(self, left_s: float) -> None:
        """Report that there was no time for a checkpoint. It waits for no other rank."""
        if not self.ranks.is_main:
            return
        if self._checkpoints is None or self._directory is None or self._loop is None:
            report_too_early(left_s)
            return
        line = out_of_time(left_s, self._checkpoints)
        warn(f"no time for a checkpoint: {line}")
        self._report_signal()
        self._directory.events.write(
            "checkpoint_failed", step=self._loop.state.step, reason="too late", error=line
        )
        self._summarise("stopped")

    def _summarise(self, outcome: str) -> None:
        """On rank 0: write the record's summary, and print the same for a person."""
        if not self.ranks.is_main or self._directory is None:
            return
        summary = summary_of(
            outcome,
            self._loop,
            self._checkpoints,
            world_size=self.ranks.world_size,
            global_batch_size=self.config.global_batch_size,
        )
        if self._loop is not None:
            self._directory.events.write("ledger", **self._loop.progress.time_spent())
        self._directory.events.write("summary", summary=summary)
        print(closing_block(summary, self._directory.path), flush=True)


def prepare_device(config: Config, device: torch.device, env: Mapping[str, str]) -> None:
    """Get `device` ready for what is asked of it. Raises UserError for what it cannot do."""
    set_up(config.precision, device)
    check_device(config, device)
    check_compiler(config, device.type, env)


def prepare_data(workload: Workload, mesh: Mesh) -> None:
    """Let one rank of each node fetch what is missing; all ranks fail if one does."""
    problem: UserError | None = None
    if mesh.ranks.is_node_main:
        try:
            workload.prepare()
        except UserError as error:
            problem = error
    (failed,) = mesh.max([float(problem is not None)])
    if problem:
        raise problem
    if failed:
        raise UserError(
            "data",
            rule="be there on every node",
            found="absent on another",
            remedy="see its message",
        )
    workload.check()  # what was fetched is no better than what was there

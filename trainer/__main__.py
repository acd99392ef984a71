"""python -m trainer: parse, check, run, close. The only reader of the environment."""

from __future__ import annotations

import atexit
import gc
import os
import socket
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from rundir import codes
from trainer.checkpoint.lookup import check_initial, find_folder, incomplete, is_missing
from trainer.data.batch_plan import plan_batches
from trainer.distributed.rendezvous_socket import open_rendezvous_socket
from trainer.environment import Ranks, RunSettings, set_torch_defaults, whole_number
from trainer.errors import (
    RunFailedError,
    UserError,
    misfit,
    missing_package,
    short_line,
    unusable_path,
)
from trainer.loop.stop import StopRequest
from trainer.options import parse
from trainer.parallel.checks import check_blocks, check_layout, check_pipeline
from trainer.parallel.layout import plan_layout
from trainer.telemetry.heartbeat import Stacks, open_heartbeat
from trainer.telemetry.profiling import profiled_ranks
from trainer.text import flush_what_can_be, lose_what_cannot_be_written, warn
from trainer.workloads.registry import build_workload

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from trainer.config import Config
    from trainer.data.batch_plan import BatchPlan
    from trainer.loop.run import Run
    from trainer.parallel.layout import Layout
    from trainer.workloads.base import Workload


def main(argv: Sequence[str], env: MutableMapping[str, str]) -> int:
    """Train with the options in `argv` and `env`; return the exit code."""
    stop = StopRequest()
    stop.install()  # first: a request during the seconds of `import torch` counts, too
    set_torch_defaults(env)
    is_leader = env.get("RANK", "0") == "0"
    try:
        config = parse(argv)
        ranks = _ranks(config, env)
        settings = RunSettings.from_environment(env, socket.gethostname())
        # Before the workload is built: a user's own may import torch, which takes seconds.
        rendezvous_socket = None if config.check else open_rendezvous_socket(ranks, env)
        config = _without_used_weights(config, settings)
        workload = build_workload(config)
        layout, plan = plan_shares(config, ranks, workload)
        is_leader = ranks.is_node_main  # from here on it is about files: each node has its own
        _check_input(config, settings, workload, plan)
        if config.check:
            # Not in a job: its batch step may have no GPU where its ranks have one, and
            # `import torch` takes seconds.
            if settings.run_dir is None:
                _check_device(config, ranks, env)
                _check_model(config, workload)
            return codes.FINISHED

        # The stacks before the heartbeat: a watcher that sees the heartbeat may ask for them.
        stacks = Stacks(settings.run_dir, settings.attempt, ranks.rank)
        heartbeat = open_heartbeat(settings.heartbeat_dir, ranks.rank)

        from trainer.loop.run import Run  # noqa: PLC0415 -- imports torch: wrong input is reported before

        _collect_garbage()
        run = Run(
            config=config,
            ranks=ranks,
            layout=layout,
            settings=settings,
            plan=plan,
            workload=workload,
            stop=stop,
            heartbeat=heartbeat,
            rendezvous_socket=rendezvous_socket,
        )
        return _train(run, env, stacks)
    except UserError as error:
        if is_leader:
            warn(error)
        return codes.USAGE
    except ModuleNotFoundError as error:
        # On every rank: the first to end ends the others, and rank 0 may not have come so far.
        warn(missing_package(error, sys.executable))
        return codes.USAGE
    except Exception as error:  # noqa: BLE001 -- such as a workload of one's own that cannot be built
        wrong = misfit(error) or unusable_path(error)
        if wrong is None:
            traceback.print_exc()
            return codes.FAILED
        if is_leader:
            warn(wrong)
        return codes.USAGE


# ---- what was requested --------------------------------------------------------------------------


def _ranks(config: Config, env: MutableMapping[str, str]) -> Ranks:
    """Read this rank from the environment.

    With --check no ranks have started yet: at most their number is known.
    """
    if config.check and not env.get("RANK"):
        world_size = whole_number(env.get("WORLD_SIZE", "")) or 1
        local_size = min(whole_number(env.get("LOCAL_WORLD_SIZE", "")) or world_size, world_size)
        return replace(Ranks(), world_size=world_size, local_world_size=local_size)
    return Ranks.from_environment(env)


def _without_used_weights(config: Config, settings: RunSettings) -> Config:
    """Drop --init-from where the run has checkpoints by now: it goes on from those."""
    if config.init_from is None or config.resume == "none":
        return config
    return replace(config, init_from=None) if _has_checkpoints(config, settings) else config


def _has_checkpoints(config: Config, settings: RunSettings) -> bool:
    """Whether the run goes on from its own checkpoints: what it began with may be gone by now."""
    run_dir = config.out or settings.run_dir
    return run_dir is not None and find_folder(run_dir) is not None


def plan_shares(config: Config, ranks: Ranks, workload: Workload) -> tuple[Layout, BatchPlan]:
    """Plan which rank has which part of model and batch. Raises UserError for what does not fit."""
    sizes = workload.parallel_sizes()
    layout = plan_layout(config, ranks)
    check_layout(config, layout, sizes, counts_targets=workload.counts_targets)
    if config.precision == "fp8":
        check_blocks(workload.parallel_plan(), config.workload)
    profiled_ranks(config, ranks.world_size)  # only checked: `Run` asks again
    plan = plan_batches(
        global_batch_size=config.global_batch_size,
        micro_batch_size=config.micro_batch_size,
        dp_rank=layout.dp_rank(ranks.rank),
        dp_size=layout.dp_size,
        # A sum over targets may be split unevenly, but stages pass on microbatches of one shape.
        may_rest=workload.counts_targets and layout.pp == 1,
    )
    # As it will be: a workload may try its model on a microbatch.
    workload.config = replace(config, micro_batch_size=plan.micro_batch_size)
    check_pipeline(config, layout, sizes, plan.num_microbatches)
    return layout, plan


def _check_input(
    config: Config, settings: RunSettings, workload: Workload, plan: BatchPlan
) -> None:
    """Refuse data, initial weights and checkpoints that cannot be used, before torch is imported.

    With --check another run's checkpoint must also be there, unless this run has its own.
    """
    workload.check()
    num_samples = workload.num_train_samples()
    if num_samples is not None:
        plan.steps_per_epoch(num_samples)  # refuses fewer than a global batch
    if config.init_from is not None:
        check_initial(config.init_from)
    is_gone = is_missing(config.resume)
    if config.check and is_gone and not _has_checkpoints(config, settings):
        raise incomplete(config.resume, "none")


def _check_device(config: Config, ranks: Ranks, env: MutableMapping[str, str]) -> None:
    """Refuse what the run would refuse on the device at hand, if an option asks something of it."""
    if not (config.precision in {"tf32", "fp8"} or config.memory_snapshot or config.compile):
        return
    from trainer.distributed.device import choose_device  # noqa: PLC0415 -- imports torch
    from trainer.loop.run import prepare_device  # noqa: PLC0415 -- imports torch

    prepare_device(config, choose_device(ranks, env), env)


def _check_model(config: Config, workload: Workload) -> None:
    """Refuse a model that the run would refuse, or weights to begin with that are not its own."""
    workload.check_model()
    if config.init_from is not None:
        from trainer.checkpoint.initial_weights import check_weights  # noqa: PLC0415 -- as above

        check_weights(config.init_from, workload.build_empty() or workload.build_model())


# ---- the run, and its end ------------------------------------------------------------------------


def _collect_garbage() -> None:
    """Collect garbage from here on, but never among what the imports made: it all stays."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _train(run: Run, env: MutableMapping[str, str], stacks: Stacks) -> int:
    try:
        is_finished = run.execute(env)
    # Any exception is reported and ends this rank, also sys.exit(), whose code could be 0.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        # CUDA reports at any call that it cannot be used.
        mistake = error if isinstance(error, UserError) else misfit(error)
        if mistake is not None:
            # Once steps are taken each rank has samples of its own: another may never see these.
            if run.ranks.is_node_main or run.has_begun:
                warn(mistake)
        else:
            if isinstance(error, RunFailedError):  # on every rank: a person reads its own log
                warn(error)
            else:
                traceback.print_exc()
            _record(run, error)
        code = codes.FAILED if mistake is None else codes.USAGE
        if run.ranks.world_size > 1:
            _end_at_once(code)
        return code
    stacks.close()
    return codes.FINISHED if is_finished else codes.STOPPED


def _record(run: Run, error: BaseException) -> None:
    """Record a failure; if that fails too, as all of CUDA does after some errors, only warn."""
    try:
        run.fail(error)
    except Exception as another:  # noqa: BLE001 -- the failure itself counts, whatever this one is
        warn(f"could not record all of this failure: {short_line(another)}")


def _end_at_once(code: int) -> NoReturn:
    """End without shutting down: with a rank gone, the process group could wait for ever."""
    flush_what_can_be()
    os._exit(code)


def leave(code: int) -> NoReturn:
    """End without the interpreter's own teardown, which would only take time.

    Leaving a process group can wait for ever, and a thread of torch that still runs while Python
    is taken down ends the process with SIGABRT, after all the work is done and reported.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 -- what was registered must run
    _end_at_once(code)


if __name__ == "__main__":
    gc.disable()  # of `import torch`, a fifth would be looking for garbage where there is none
    lose_what_cannot_be_written()
    leave(main(sys.argv[1:], os.environ))

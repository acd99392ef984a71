"""Faults of processes: they die, hang, or slow down."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.faults import injectors, places
from tests.faults.driver import LONG, Fault, Scenario, Then
from tests.faults.layout import on

if TYPE_CHECKING:
    from tests.faults.job import Event, FaultJob

# ---- a process dies ------------------------------------------------------------------------------


def _crash(name: str, how: str, order: str, code: int, message: str) -> Fault:
    return Fault(
        name=name,
        how=how,
        inject=injectors.strike(order, 1),
        then=Then.RESTART,
        down_within_s=10,
        code=code,
        failure_class="program",
        message=rf"rank 1 on fx2 {message}.*restart \d of 99 from step \d+",
    )


CRASHES = Scenario(
    name="crashes",
    sbatch=on(1, 2),
    env={"DDP_MAX_RESTARTS": "99", "DDP_BAD_NODES": "0"},  # all befall one node
    faults=(
        Fault(
            name="rank killed",
            how="`kill -9` of a rank",
            inject=injectors.signal_rank(1, signal.SIGKILL),
            then=Then.RESTART,
            down_within_s=10,
            code=137,
            failure_class="killed",
            message=r"rank 1 on fx2 was killed by signal 9 .*restart \d of 99 from step \d+",
        ),
        _crash(
            "segmentation fault",
            "a rank reads address 0",
            "segfault",
            139,
            r"was killed by signal 11",
        ),
        _crash("abort", "`os.abort()` in a rank", "abort", 134, r"was killed by signal 6"),
        _crash("silent exit", "`os._exit(3)` in a rank", "exit", 3, "ended with code 3"),
        _crash("exception", "`raise ValueError(…)` in a rank", "raise", 70, "ended with code 70"),
        Fault(
            name="launcher killed",
            how="`kill -9` of a rank's launcher",
            inject=injectors.kill_launcher(1),
            then=Then.RESTART,
            down_within_s=10,
            signs=("first_failure",),
            code=137,
            failure_class="killed",
            message=r"rank 1 on fx2 .*restart \d of 99 from step \d+",
        ),
        Fault(
            name="memory limit reached",
            how="the kernel's limit for a rank (cgroup), which then allocates more",
            inject=injectors.exhaust_memory(1),
            then=Then.RESTART,
            down_within_s=10,
            code=137,
            failure_class="program",
            message=r"rank 1 on fx2 .*memory.*restart \d of 99 from step \d+",
        ),
        Fault(
            name="standby killed",
            how="`kill -9` of a rank that waits for the next start, and then of one that trains",
            inject=injectors.kill_standby(1),
            then=Then.RESTART,
            down_within_s=10,
            code=137,
            failure_class="killed",
            message=r"rank 1 on fx2 was killed by signal 9 .*restart \d of 99 from step \d+",
        ),
    ),
)

PORT = Scenario(
    name="port",
    sbatch=on(1, 2),
    env=places.HELD,
    prepare=places.take_port,
    faults=(
        Fault(
            name="port taken",
            how="another process binds MASTER_PORT after it was chosen, before rank 0 does",
            inject=places.port_was_taken,
            then=Then.RESTART,
            at_start=True,
            code=70,
            failure_class="network",
            message=r"rank 0 on fx1 .*restart 1 of 3",
        ),
    ),
)

# ---- a process lives, and does not go on ---------------------------------------------------------


def _both_nodes_report(job: FaultJob, resume: Event) -> None:
    """Each node reports its own ranks, and to the end where they were; one verdict names rank 1."""
    attempt = resume["attempt"] - 1
    for name in ("hang_report", "last_beats"):
        reports = job.events(name, attempt=attempt)
        assert {event["node"] for event in reports} == {"fx1", "fx2"}, reports
    verdict = job.events("verdict", attempt=attempt)[0]
    assert (verdict["rank"], verdict["node"]) == (1, "fx2"), verdict


def _hang(name: str, how: str, inject: injectors.Injector, message: str) -> Fault:
    return Fault(
        name=name,
        how=how,
        inject=inject,
        then=Then.RESTART,
        signs=("verdict",),
        code=76,
        failure_class="hung",
        message=message + r".*restart \d of 99 from step \d+",
        check=_both_nodes_report,
    )


HANGS = Scenario(
    name="hangs",
    sbatch=on(1, 2),
    env={"DDP_MAX_RESTARTS": "99", "DDP_HANG_TIMEOUT": "8", "DDP_BAD_NODES": "0"},
    faults=(
        _hang(
            "rank stopped for ever",
            "SIGSTOP to a rank",
            injectors.signal_rank(1, signal.SIGSTOP),
            r"rank 1 on fx2 \(no GPU\) is stopped",
        ),
        _hang(
            "rank holds the GIL",
            "a regular expression that backtracks for ever, in a rank",
            injectors.strike("hold-gil", 1),
            r"rank 1 on fx2 .* hangs at step \d+ in forward, .* in _hold_gil, for ",
        ),
        _hang(
            "ranks in different collectives",
            "a rank waits in `recv`, the others reduce their gradients",
            injectors.strike("other-collective", 1),
            r"different collectives: rank 1 on fx2 .* in _other_collective",
        ),
    ),
)

NOT_A_NUMBER = Scenario(
    name="nan",
    sbatch=on(1, 2),
    options=(*LONG, "--on-nan", "stop"),
    env={"DDP_MAX_RESTARTS": "99"},
    faults=(
        Fault(
            name="NaN in one rank's batch",
            how="the loss of one microbatch on one rank is NaN, `--on-nan stop`",
            inject=injectors.strike("poison", 1),
            then=Then.RESTART,
            signs=("non_finite",),
            code=70,
            failure_class="program",
            message=r"restart \d of 99 from step \d+",
        ),
    ),
)

COPIES = Scenario(
    name="copies",
    sbatch=on(2, ranks_per_node=3),
    options=(
        *("--max-steps", "1000000", "--global-batch-size", "48"),
        *("--checkpoint-every", "100", "--snapshot-every", "5"),
    ),
    env={
        "DDP_MAX_RESTARTS": "99",
        "DDP_MAX_IDLE_RESTARTS": "9",
        "DDP_BAD_NODES": "0",  # the job has one node, which would leave it
        "DDP_WARM": "0",  # ranks that had waited would read the snapshots before the damage
    },
    faults=(
        Fault(
            name="snapshot damaged",
            how="one bit of each snapshot in memory flipped, and a rank killed",
            inject=injectors.damage_snapshots(every=100),
            then=Then.RESTART,
            code=137,
            failure_class="killed",
            message=r"restart \d of 99 from step \d+",
            check=places.snapshot_is_not_used,
        ),
        Fault(
            name="corrupted weight on one replica",
            how="one bit of a weight of one of three copies flipped",
            inject=injectors.strike("corrupt", 1),
            then=Then.RESTART,
            signs=("replica_differs",),
            code=70,
            failure_class="hardware",
            message=r"rank 1 on fx2 .*to the bit.*restart \d of 99 from step \d+",
        ),
    ),
)

# ---- what a run must bear ------------------------------------------------------------------------

ENDURED = Scenario(
    name="endured",
    sbatch=on(1, 2),
    options=(*LONG, "--log-every", "10"),
    env={"DDP_HANG_TIMEOUT": "60"},
    faults=(
        Fault(
            name="monitor killed",
            how="`kill -9` of a node's monitor",
            inject=injectors.kill_monitor,
            then=Then.NOTHING,
            signs=(),
        ),
        Fault(
            name="rank stopped for 20 s",
            how="SIGSTOP to a rank, SIGCONT after 20 s",
            inject=injectors.stop_for(1, 20),
            then=Then.NOTHING,
            signs=(),
        ),
        Fault(
            name="rank three times slower",
            how="a rank sleeps in each step until it takes three times as long as the others",
            inject=injectors.strike("slow-down", 1),
            then=Then.NOTHING,
            signs=(),
            notice=places.slow_rank_is_named,
        ),
        Fault(
            name="scancel",
            how="`scancel` of the job",
            inject=injectors.cancel,
            then=Then.END,
            signs=("signal",),
            code=75,
            failure_class="cancelled",
            message=r"the newest checkpoint is step-\d+;"
            r".*start again with DDP_RUN_NAME=fault-endured",
        ),
    ),
)

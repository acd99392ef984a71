"""Faults of nodes and of their network, and Slurm's own wishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults import gpus, injectors, places
from tests.faults.driver import LONG, Fault, Scenario, Then
from tests.faults.layout import PREFIX, on

if TYPE_CHECKING:
    from tests.faults.job import FaultJob


# ---- nodes and their network ---------------------------------------------------------------------


def _heal(job: FaultJob) -> None:
    job.cluster.script("heal", f"{PREFIX}4")


NETWORK = Scenario(
    name="network",
    sbatch=on(3, 4),
    env={"DDP_MAX_RESTARTS": "99", "DDP_HANG_TIMEOUT": "8"},  # below Slurm's own timeout
    prepare=places.heal_after(3, 4),
    faults=(
        Fault(
            name="network cut for 3 s",
            how="the cable of a node pulled, and plugged in again within the timeout",
            inject=injectors.cut_for(1, 3),
            then=Then.NOTHING,
            signs=(),
        ),
        Fault(
            name="network cut beyond the timeout",
            how="the cable of a node pulled, and plugged in again when the verdict is there",
            inject=injectors.cut(1),
            then=Then.RESTART,
            signs=("verdict",),
            mend=_heal,
            code=76,
            failure_class="network",
            message=r"fx4.*restart \d of 99 from step \d+",
        ),
    ),
)

SHRINKING = Scenario(
    name="shrinking",
    sbatch=on(10, 11),
    env={"DDP_MAX_RESTARTS": "99", "SBATCH_NO_KILL": "set"},
    prepare=places.heal_after(11),
    faults=(
        Fault(
            name="node lost, the rest goes on",
            how="slurmd and all processes of a node killed and its cable pulled; `--no-kill`",
            inject=injectors.kill_node(1),
            then=Then.RESTART,
            signs=("lost_node",),
            code=137,
            failure_class="hardware",
            message=r"node fx11 is lost.*restart \d of 99 on 1 nodes? from step \d+",
        ),
    ),
)

LOST_NODE = Scenario(
    name="lost-node",
    sbatch=("--exclude=fx[1-4,8-14]", "--nodes=2", "--ntasks-per-node=1"),
    prepare=places.heal_after(5, 6, 7),
    faults=(
        Fault(
            name="node lost, requeued elsewhere",
            how="slurmd and all processes of a node killed and its cable pulled",
            inject=injectors.kill_node(1),
            then=Then.REQUEUE,
            signs=("lost_node",),
            code=137,
            failure_class="hardware",
            message=r"node fx\d is lost with rank 1 .*will go on from step \d+",
            check=places.runs_elsewhere,
        ),
    ),
)

BATCH_NODE = Scenario(
    name="batch-node",
    sbatch=("--exclude=fx[1-11]", "--nodes=2", "--ntasks-per-node=1"),
    prepare=places.heal_after(12, 13, 14),
    faults=(
        Fault(
            name="the batch script's own node lost",
            how="slurmd, the batch script and all processes of the first node killed and its cable"
            " pulled: Slurm itself requeues the job",
            inject=injectors.kill_node(0),
            then=Then.REQUEUE,
            signs=("rank_end", "lost_node"),
            code=None,
            failure_class="hardware",
            reported_by_next=True,
            message=r"start 1 ended with node fx12, .* does not answer .*Slurm has requeued the "
            r"job",
            check=places.runs_elsewhere,
        ),
    ),
)

WEAK = Scenario(
    name="weak",
    sbatch=on(1, 10),
    env={"DDP_HANG_TIMEOUT": "60", **places.own_memory("fx10")},
    # Small batches: most of a step is what goes over the link.
    options=(*LONG, "--model", "wider", "--global-batch-size", "8", "--snapshot-every", "5"),
    faults=(
        Fault(
            name="link ten times slower",
            how="a token bucket (`tc qdisc … tbf`) on the cable of a node, of a tenth of the speed"
            " that the ranks measured at the start",
            inject=injectors.slow_link(1),
            then=Then.NOTHING,
            signs=(),
            notice=places.steps_are_slower,
            mend=injectors.mend_link(1),
        ),
        Fault(
            name="disk full on one node",
            how="the `/dev/shm` of a node, where its snapshots and heartbeats are, filled",
            inject=places.fill_memory(1),
            then=Then.NOTHING,
            signs=(),
            message="training goes on without snapshots in memory",
        ),
    ),
)

READ_ONLY = Scenario(
    name="read-only",
    sbatch=on(13, 14),
    env=places.read_only_at_first("fx14"),
    prepare=places.hold,
    faults=(
        Fault(
            name="no rank comes up on a node",
            how="the run directory is mounted read-only on a node at the first start",
            inject=places.start_read_only,
            then=Then.RESTART,
            signs=("failure",),
            at_start=True,
            code=70,
            failure_class="hardware",
            message=r"no rank came up on fx14: .*[Rr]ead-only.*restart 1 of 3 from the beginning",
        ),
    ),
)

# ---- nodes that are bad --------------------------------------------------------------------------

BAD_NODES = Scenario(
    name="bad-nodes",
    sbatch=on(1, 2, 3, 10),
    env={"DDP_MAX_RESTARTS": "99", "DDP_SPARE_NODES": "2", **gpus.WITH_GPUS},
    prepare=gpus.nodes_with_gpus,
    faults=(
        Fault(
            name="GPU off the bus",
            how="a stub driver reports XID 79, and the rank reads address 0; two spare nodes",
            inject=gpus.break_gpu(1),
            then=Then.RESTART,
            signs=("gpu_fault",),
            code=139,
            failure_class="hardware",
            message=r"node fx2 is bad: GPU 0: XID 79, .*restart 1 of 99 on 2 nodes from step \d+",
            check=places.runs_without_the_bad,
        ),
        Fault(
            name="node blamed once",
            how="a rank reads address 0",
            inject=injectors.strike("segfault", 1),
            then=Then.RESTART,
            code=139,
            failure_class="program",
            message=r"rank 1 on fx3 was killed by signal 11 .*restart \d of 99 from step \d+",
            check=places.runs_on_the_same,
        ),
        Fault(
            name="node blamed twice in a row",
            how="a rank on the same node reads address 0 in the next start, too",
            inject=injectors.strike("segfault", 1),
            then=Then.RESTART,
            code=139,
            failure_class="program",
            message=r"node fx3 is bad: blamed twice in a row: .*restart \d of 99 on 2 nodes from",
            check=places.runs_without_the_bad,
        ),
    ),
)

PENDING = Scenario(
    name="pending",
    sbatch=on(1, 2, 3),
    env={
        "DDP_PREFLIGHT": "1",
        "DDP_PREFLIGHT_LIMITS": "start_s=120,stage_s=60",  # a busy machine is no bad node
        "DDP_SPARE_NODES": "1",
        **gpus.WITH_GPUS,
    },
    prepare=gpus.pending_at_first("fx2"),
    faults=(
        Fault(
            name="ECC pending at the start",
            how="a stub driver reports memory pages of a GPU that wait to be retired; a spare node",
            inject=gpus.pending("fx2"),
            then=Then.NOTHING,
            signs=("bad_node",),
            at_start=True,
            check=places.no_bad_node_has_ranks,
            message=r"node fx2 is bad and leaves the job: .*\(ecc_pending\)",
        ),
    ),
)

SPARES = Scenario(
    name="spares",
    sbatch=("--exclude=fx[4-6,8-9,11-12,14]", "--nodes=4", "--ntasks-per-node=1"),
    options=(*LONG, "--global-batch-size", "66"),  # of three ranks
    env={"DDP_MAX_RESTARTS": "99", "DDP_SPARE_NODES": "1", **gpus.WITH_GPUS},
    prepare=gpus.nodes_with_gpus,
    faults=(
        Fault(
            name="GPU lost in the middle",
            how="a stub driver answers only that the GPU is lost, and the rank reads address 0; a"
            " spare node",
            inject=gpus.break_gpu(1, gpus.LOST),
            then=Then.RESTART,
            signs=("gpu_fault",),
            code=139,
            failure_class="hardware",
            message=r"GPU 0: the driver has lost it.*restart 1 of 99 on 3 nodes from step \d+",
            check=places.runs_without_the_bad,
        ),
        Fault(
            name="all spares used up",
            how="a stub driver reports XID 79 on another node, and the rank reads address 0",
            inject=gpus.break_gpu(1),
            then=Then.REQUEUE,
            signs=("gpu_fault",),
            code=139,
            failure_class="hardware",
            message=r"node fx\d+ is bad: GPU 0: XID 79, .*is requeued .* from step \d+",
            check=places.no_bad_node_has_ranks,
        ),
    ),
)

# ---- Slurm wants the nodes back ------------------------------------------------------------------

PREEMPTION = Scenario(
    name="preempted",
    sbatch=on(8),
    faults=(
        Fault(
            name="preemption",
            how="a job of a higher partition needs the node",
            inject=injectors.preempt,
            then=Then.REQUEUE,
            signs=("signal",),
            mend=places.let_urgent_job_end,
            code=75,
            failure_class="preempted",
            message=r"the newest checkpoint is step-\d+; .*requeued job \d+, .* from step \d+",
        ),
    ),
)

TIME_LIMIT = Scenario(
    name="time-limit",
    sbatch=(*on(1), "--time=2", "--signal=B:USR1@25"),
    faults=(
        Fault(
            name="time limit",
            how="`--time=2 --signal=B:USR1@25`",
            inject=injectors.await_time_limit,
            then=Then.REQUEUE,
            signs=("signal",),
            code=75,
            failure_class="time limit",
            message=r"the newest checkpoint is step-\d+; .*is requeued .* from step \d+",
        ),
    ),
)

SCRIPT = Scenario(
    name="script",
    sbatch=on(1, 2),
    faults=(
        Fault(
            name="batch script killed",
            how="`kill -9` of the batch script",
            inject=injectors.kill_script,
            then=Then.END,
            code=None,
            failure_class="killed",
            is_silent=True,
            may_be_silent=True,
            message=r"KILLED.*To go on from step \d+: DDP_RUN_NAME=fault-script",
        ),
    ),
)

# ---- clocks --------------------------------------------------------------------------------------

CLOCK = Scenario(
    name="clock",
    sbatch=on(7, 9),
    faults=(
        Fault(
            name="clock of a node an hour ahead",
            how="libfaketime in every process of the node's ranks",
            inject=places.clock_is_off,
            then=Then.NOTHING,
            signs=(),
            notice=places.wall_time_is_sane,
        ),
    ),
)

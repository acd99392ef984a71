"""The data sets of a run: present on every node, and split into batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.data.batches import CutBatches, build_batches
from trainer.errors import UserError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from trainer.data.batch_plan import BatchPlan
    from trainer.data.batches import Batches
    from trainer.distributed.mesh import Mesh
    from trainer.workloads.base import TensorData, Workload
    from trainer.workloads.tokens import TokenData


@dataclass(frozen=True, kw_only=True)
class Datasets:
    """Both sets as the workload gave them."""

    train: TensorData | TokenData | Dataset[Any]
    test: TensorData | TokenData | Dataset[Any] | None

    @property
    def num_train(self) -> int:
        """Samples to train on."""
        return len(self.train)  # type: ignore[arg-type] # map-style sets have a length

    @property
    def num_test(self) -> int:
        """Samples that are held out."""
        return 0 if self.test is None else len(self.test)  # type: ignore[arg-type] # the same

    def batches(
        self, plan: BatchPlan, seed: int, mesh: Mesh, num_workers: int
    ) -> tuple[Batches, Batches | None]:
        """Return this rank's batches of both; None where nothing is held out."""

        def build(data: TensorData | TokenData | Dataset[Any]) -> Batches:
            whole = build_batches(
                data, plan, seed=seed, device=mesh.device, num_workers=num_workers
            )
            return _own_positions(whole, mesh)

        train = build(self.train)
        return train, None if self.test is None or not self.num_test else build(self.test)


def _own_positions(batches: Batches, mesh: Mesh) -> Batches:
    """Cut sequences to this rank's share: the only place where that is done."""
    cp = mesh.layout.cp
    if cp == 1:
        return batches
    return CutBatches(batches, cp, mesh.layout.coordinates(mesh.ranks.rank)["cp"])


def prepare(workload: Workload, mesh: Mesh) -> None:
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

"""The data sets of a run: present on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.errors import UserError

if TYPE_CHECKING:
    from trainer.distributed.mesh import Mesh
    from trainer.workloads.base import Workload


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

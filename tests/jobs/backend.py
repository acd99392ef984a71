"""A backend that starts nothing, and an attempt on it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from jobs.supervisor.settings import Settings
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclasses.dataclass
class Fake:
    """Gives the answers that a test wants."""

    lost_nodes: dict[str, str] = dataclasses.field(default_factory=dict)
    dropped_nodes: list[str] = dataclasses.field(default_factory=list)
    is_in_place: bool = False
    place: str = "bare-srun"

    def lost(self, node: str) -> str | None:
        """How a node is lost."""
        return dict(self.lost_of([node])).get(node)

    def lost_of(self, nodes: Sequence[str]) -> list[tuple[str, str]]:
        """Those that are lost, and how."""
        return [(node, self.lost_nodes[node]) for node in nodes if node in self.lost_nodes]

    def dropped(self, nodes: Sequence[str]) -> list[str]:
        """The nodes that are no longer the job's."""
        return [node for node in nodes if node in self.dropped_nodes]


def now(path: Path, backend: Any, nodes: list[str], interval_s: int = 15, **more: Any) -> Any:
    """What those who have a part in an attempt share: job 7, of which no node is this one."""
    settings = Settings({})
    settings.values |= {"DDP_OUT": str(path), "DDP_MONITOR": "1"}
    settings.values["DDP_MONITOR_INTERVAL"] = str(interval_s)
    job = SimpleNamespace(id="7", num_nodes_allocated=3, is_own_command=False)
    job.num_nodes_wanted = more.pop("num_nodes_wanted", 3)
    job.min_nodes = more.pop("min_nodes", None)
    here = SimpleNamespace(node="elsewhere")
    plan = SimpleNamespace(backend=backend, files=RunDir(str(path)), here=here, job=job)
    environ = {"MASTER_ADDR": "n0", "MASTER_PORT": "1"}
    return SimpleNamespace(plan=plan, nodes=nodes, settings=settings, environ=environ, **more)

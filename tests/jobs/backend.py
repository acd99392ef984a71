"""A backend that starts nothing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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

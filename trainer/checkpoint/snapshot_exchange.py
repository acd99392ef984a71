"""A rank's snapshot on its way to a rank of another node, which keeps or needs a copy of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.checkpoint.process_group import ProcessGroup
    from trainer.checkpoint.snapshot_files import Key, NodeFiles

Sent = list[tuple[Any, "Tensor"]]
"""What is to be waited for, and kept till then."""


class Exchange:
    """Sends a snapshot's index and file, or receives them. A receiver always gets something."""

    def __init__(self, files: NodeFiles, group: ProcessGroup) -> None:
        """Send what is among a node's files to the ranks of a group, and keep what they send."""
        self._files, self._group = files, group

    def send(self, rank: int, text: str, data: Tensor) -> Sent:
        """Begin to send an index and its file."""
        index = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        messages = torch.tensor([index.numel(), data.numel()]), index, data
        return [(dist.isend(one, dst=rank, group=self._group.handle), one) for one in messages]

    def hand_over(self, key: Key, rank: int) -> None:
        """Send one of the node's, even where it cannot be read; return when it has arrived."""
        text, data = "", torch.zeros(1, dtype=torch.uint8)
        try:
            text, data = self._files.read_text(key), self._files.load(key)
        finally:
            wait(self.send(rank, text, data))

    def receive(self, source: int, key: Key) -> None:
        """Receive one from a rank, even where it cannot be kept: that raises OSError."""

        def receive(into: Tensor) -> Tensor:
            dist.recv(into, src=source, group=self._group.handle)
            return into

        num_text, num_data = receive(torch.zeros(2, dtype=torch.int64)).tolist()
        index = receive(torch.empty(num_text, dtype=torch.uint8))
        try:
            self._files.void(key)
            buffer = self._files.buffer(key, num_data)
        except OSError:
            receive(torch.empty(num_data, dtype=torch.uint8))
            raise
        receive(buffer)
        self._files.write_text(key, bytes(index.numpy()).decode())


def wait(sent: Sent) -> None:
    """Wait until it has arrived."""
    for work, _ in sent:
        work.wait()


def keepers(nodes: Sequence[str]) -> dict[int, int]:
    """Return, of each rank, the one of the next node that keeps a copy of its; none on one node.

    `nodes` has the name of each rank's node.
    """
    ranks: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        ranks.setdefault(node, []).append(rank)
    groups = list(ranks.values())
    if len(groups) == 1:
        return {}
    pairs = zip(groups, [*groups[1:], groups[0]], strict=True)
    return {r: after[i % len(after)] for group, after in pairs for i, r in enumerate(group)}

"""Context parallelism: ranks of cp share each sequence, by positions.

All that lies between positions is attention, to which ring.py or all_gather.py brings the keys and
values of the other ranks. The rest needs to know only where in the sequence its positions lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from trainer.errors import UserError
from trainer.parallel.all_gather import GatheringAttention
from trainer.parallel.plan import own_ranges
from trainer.parallel.ring import RingAttention

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import ContextMessages
    from trainer.parallel.layout import Layout


class _Share:
    """Gives a model the positions of its tokens, and its attention their number."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        attention: RingAttention | GatheringAttention,
        num_stream_parts: int,
    ) -> None:
        """Take the ranks, and the number of parts into which sequence parallel splits the stream.

        A stage of a pipeline is handed such a part, with as many fewer positions.
        """
        self._cp, self._cp_rank = group.size(), dist.get_rank(group)
        self._attention = attention
        self._num_stream_parts = num_stream_parts
        self._places: dict[int, torch.Tensor] = {}
        """Where in the sequence this rank's positions lie, by their number."""

    def begin(
        self, _model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Add `positions`, shape (S / cp,), to what the model's forward is given."""
        tokens = inputs[0]
        is_stream = tokens.is_floating_point()
        num_own = tokens.shape[1] * (self._num_stream_parts if is_stream else 1)
        self._attention.prepare(num_own)
        if num_own not in self._places:
            chunks = own_ranges(num_own * self._cp, self._cp, self._cp_rank)
            places = [torch.arange(c.start, c.stop, device=tokens.device) for c in chunks]
            self._places[num_own] = torch.cat(places)
        return inputs, named | {"positions": self._places[num_own]}


def share_sequences(
    model: nn.Module, attention: list[nn.Module], layout: Layout, messages: ContextMessages
) -> None:
    """Let a model take a share of each sequence. All ranks call this at the same point.

    `attention` are the modules whose `attend(q, k, v)` is replaced; the model is given, as
    `positions`, where in the sequence its tokens are.
    """
    if not attention:
        raise UserError(
            "--cp",
            rule="have a workload whose parallel plan names its attention",
            found="none",
            remedy="take fsdp or hsdp",
        )
    group, _ = dist.new_subgroups_by_enumeration(layout.cp_groups())
    assert isinstance(group, dist.ProcessGroup)  # noqa: S101 -- every rank is in one of them
    shared = RingAttention(group) if messages == "p2p" else GatheringAttention(group)
    for module in attention:
        module.attend = shared.attend  # type: ignore[assignment] # a plain attribute
    share = _Share(group, shared, layout.tp if layout.sequence_parallel else 1)
    model.register_forward_pre_hook(share.begin, with_kwargs=True)

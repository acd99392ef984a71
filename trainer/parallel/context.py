"""Context parallelism: ranks of cp share each sequence, by positions.

All that lies between positions is attention, to which a ring (ring.py) or an all-gather brings the
keys and values of the other ranks. The rest needs to know only where its positions lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.nn.attention.bias import CausalBias, causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from trainer.errors import UserError
from trainer.parallel.chunks import holders, own_ranges
from trainer.parallel.ring import RingAttention

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.config import ContextMessages
    from trainer.parallel.layout import Layout


_POSITIONS = -2  # the dim of (B, heads, S, E) that is shared


class _Gather(torch.autograd.Function):
    """Every rank's tensor, put one behind the other along a new first dim."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:  # noqa: ANN401 -- torch's
        """Map a shape of (...) to (cp, ...)."""
        ctx.group = group
        gathered = own.new_empty(group.size() * own.shape[0], *own.shape[1:])
        dist.all_gather_into_tensor(gathered, own.contiguous(), group=group)
        return gathered.view(group.size(), *own.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:  # noqa: ANN401 -- torch's
        """Sum what all ranks have for one's tensor, and leave that with it."""
        (gradient,) = gradients
        own = gradient.new_empty(gradient.shape[1:])
        dist.reduce_scatter_tensor(own, gradient.flatten(0, 1).contiguous(), group=ctx.group)
        return own, None


class GatheringAttention:
    """Causal attention of ranks of which each gathers all keys and values of a layer.

    The backward sums each key's gradient over the ranks whose queries used it, by a reduce-scatter.
    That is how Llama 3 was trained (arXiv 2407.21783, section 3.3.2): with few heads of keys there
    is little to gather. What a rank keeps for its backward is its share, but for keys and values.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Take the ranks, in the order of their chunks."""
        self._group = group
        self._masks: dict[int, list[CausalBias]] = {}
        """Of this rank's two chunks, by its number of positions."""

    def prepare(self, num_own: int) -> None:
        """Make the masks of `num_own` positions: torch cannot make one while it recomputes."""
        if num_own not in self._masks:
            cp, cp_rank = self._group.size(), dist.get_rank(self._group)
            chunks = own_ranges(num_own * cp, cp, cp_rank)
            self._masks[num_own] = [causal_lower_right(len(c), c.stop) for c in chunks]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of this rank's positions to all of the sequence up to each of them.

        `q` has the shape (B, H, S / cp, E), `k` and `v` (B, K, S / cp, E), positions by
        `own_ranges`; the result has that of `q`.
        """
        gathered = _Gather.apply(torch.stack((k, v)), self._group)
        keys, values = _in_order(gathered, self._group.size())
        halves = q.chunk(2, _POSITIONS)
        masks = self._masks[q.shape[_POSITIONS]]
        attended = [_attend_to_end(*own, keys, values) for own in zip(halves, masks, strict=True)]
        return torch.cat(attended, _POSITIONS)


def _attend_to_end(q: Tensor, mask: CausalBias, keys: Tensor, values: Tensor) -> Tensor:
    """Let the last query see the mask's last key, and those before it one less each.

    Kernels that know this take no mask; on a CPU torch makes one, of a chunk's rows and as many
    columns as there are keys, and keeps it for the backward.
    """
    return scaled_dot_product_attention(
        q,
        keys.narrow(_POSITIONS, 0, mask.seq_len_kv),
        values.narrow(_POSITIONS, 0, mask.seq_len_kv),
        attn_mask=mask,
        enable_gqa=q.shape[1] != keys.shape[1],
    )


def _in_order(gathered: Tensor, cp: int) -> tuple[Tensor, ...]:
    """Put chunks in the sequence's order: (cp, 2, B, K, S / cp, E) to twice (B, K, S, E)."""
    halves = gathered.chunk(2, _POSITIONS)
    chunks = [halves[half][rank] for rank, half in holders(cp)]
    return torch.cat(chunks, _POSITIONS).unbind()


class _Share:
    """Gives a model the positions of its tokens, and its attention their number."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        attention: RingAttention | GatheringAttention,
        num_stream_parts: int,
    ) -> None:
        """Take the ranks, and the number of parts into which sequence parallel splits the stream.

        A stage of a pipeline receives such a part, with as many fewer positions.
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

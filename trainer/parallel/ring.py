"""Ring attention: keys and values of a shared sequence go around, and no rank ever has them all.

After "Ring Attention with Blockwise Transformers" (arXiv 2310.01889), on chunks that are dealt out
as chunks.py has it. In turn i a rank has the keys and values of the rank i places before it. What
its queries may see of them is a rectangle, for which no mask is needed:

    its own           as under a plain causal mask: its two chunks are in the sequence's order
    of a lower rank   all queries see the first chunk, and none the second
    of a higher rank  queries of the second chunk see both, and those of the first none

So all ranks have as much to do in each turn, and the next keys arrive meanwhile. A turn gives what
attention would be if there were no other keys, and the logarithm of the sum that it was divided by;
by the latter the former are put together. The backward goes around again, and what the ranks have
summed so far of the gradients of keys and values travels beside these.

To autograd, torch.compile and selective recomputation the whole is one operation, of which only
what it returns is kept.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, compiler
from torch import distributed as dist
from torch.distributed import distributed_c10d

from trainer.parallel import kernels
from trainer.parallel.kernels import Attended, attend, attend_backward, state_like

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALL = slice(None)


class RingAttention:
    """Causal attention within the sequences that a group shares."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Take the ranks, in the order of their chunks."""
        self._group_name = group.group_name

    def prepare(self, num_own: int) -> None:
        """Do nothing: no number of positions needs a mask."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of this rank's positions to all of the sequence up to each of them.

        `q` has the shape (B, H, S / cp, E), `k` and `v` (B, K, S / cp, E), where K divides H,
        positions by `own_ranges`; the result has that of `q`. All ranks call this together.
        """
        attended: Tensor = _forward(q, k, v, self._group_name)[0]
        return attended


@torch.library.custom_op("trainer::ring_attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, group_name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of `Attended`, of all turns."""
    so_far: Attended | None = None
    for turn in _turns(torch.stack((k, v)), group_name):
        part = attend(turn.of(q), *turn.seen(q.shape[1]), is_causal=turn.is_own)
        if so_far is None:
            so_far = part._replace(values=part.values.to(_wide(q)))
        else:
            _merge(turn.of(so_far.values), so_far.log_sums[..., turn.queries], part)
    assert so_far is not None  # noqa: S101 -- a group has members
    values, log_sums, seed, offset = so_far
    return _by_positions(values.to(q.dtype)), log_sums.contiguous(), seed, offset


@torch.library.custom_op("trainer::ring_attention_backward", mutates_args=())
def _backward(
    gradient: Tensor, inputs: list[Tensor], outputs: list[Tensor], group_name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `inputs`: q, k and v; `outputs` are what `_forward` gave for them."""
    q, k, v = inputs
    attended = Attended(*outputs)
    of_q = q.new_zeros(q.shape, dtype=_wide(q))
    travelling: _Passing | None = None
    for turn in _turns(torch.stack((k, v)), group_name):
        of_queries, *of_seen = attend_backward(
            turn.of(gradient).contiguous(),
            (turn.of(q), *turn.seen(q.shape[1])),
            attended._replace(
                values=turn.of(attended.values).contiguous(),
                log_sums=attended.log_sums[..., turn.queries].contiguous(),
            ),
            is_causal=turn.is_own,
        )
        turn.of(of_q).add_(of_queries)
        so_far = (
            travelling.wait() if travelling else torch.zeros_like(turn.blocks, dtype=of_q.dtype)
        )
        for sums, found in zip(so_far, of_seen, strict=True):
            sums[:, :, turn.keys].add_(_by_key_heads(found, k.shape[1]))
        travelling = _pass_on(so_far, group_name)
    assert travelling is not None  # noqa: S101 -- a group has members
    of_k, of_v = travelling.wait().to(k.dtype)  # the last step brought one's own home
    return of_q.to(q.dtype), of_k.clone(), of_v.clone()


class _Turn(NamedTuple):
    """Keys and values of a rank, and what this rank's queries see of them."""

    blocks: Tensor
    """Of the shape (2, B, K, S / cp, E)."""

    queries: slice
    """Positions of this rank's that see any."""

    keys: slice
    """Positions that they see."""

    is_own: bool
    """Each query sees those before it only."""

    def of(self, queries: Tensor) -> Tensor:
        """Return the part of (B, H, S / cp, E) that takes part."""
        return queries[:, :, self.queries]

    def seen(self, num_heads: int) -> tuple[Tensor, ...]:
        """Return the keys and the values that are seen, each once for every head of queries."""
        seen = self.blocks[:, :, :, self.keys]
        return seen.repeat_interleave(num_heads // seen.shape[2], dim=2).unbind()


class _Passing(NamedTuple):
    """A tensor on its way to the next rank, and its like from the rank before."""

    sent: Tensor  # kept until it has left
    received: Tensor
    work: Any

    def wait(self) -> Tensor:
        self.work.wait()
        return self.received


def _turns(own: Tensor, group_name: str) -> Iterator[_Turn]:
    """Yield every rank's blocks, one's own first; those of the next turn are on their way then."""
    group = _group_of(group_name)
    rank, half = dist.get_rank(group), own.shape[-2] // 2
    first, second = slice(half), slice(half, None)
    blocks = own
    for turn in range(group.size()):
        arriving = _pass_on(blocks, group_name) if turn + 1 < group.size() else None
        if turn == 0:
            yield _Turn(blocks, _ALL, _ALL, is_own=True)
        elif turn <= rank:
            yield _Turn(blocks, _ALL, first, is_own=False)
        else:
            yield _Turn(blocks, second, _ALL, is_own=False)
        if arriving:
            blocks = arriving.wait()


def _pass_on(sent: Tensor, group_name: str) -> _Passing:
    """Begin to send a tensor to the next rank.

    By an all-to-all in which each rank has something for one other only: unlike sends, it needs no
    connections besides the group's own.
    """
    group = _group_of(group_name)
    size, rank, count = group.size(), dist.get_rank(group), len(sent)
    to_next = [count * (peer == (rank + 1) % size) for peer in range(size)]
    from_last = [count * (peer == (rank - 1) % size) for peer in range(size)]
    received = torch.empty_like(sent)
    work = dist.all_to_all_single(received, sent, from_last, to_next, group=group, async_op=True)
    return _Passing(sent, received, work)


def _group_of(name: str) -> dist.ProcessGroup:
    """Return the ranks of that name: an operation takes numbers, strings and tensors only."""
    find = distributed_c10d._resolve_process_group  # type: ignore[attr-defined] # noqa: SLF001
    group: dist.ProcessGroup = find(name)  # type: ignore[arg-type] # as torch does
    return group


def _merge(values: Tensor, log_sums: Tensor, part: Attended) -> None:
    """Add in place what other keys gave: either side weighs as the sum that it was divided by."""
    weight = torch.sigmoid(part.log_sums - log_sums).unsqueeze(-1)
    values.lerp_(part.values.to(values.dtype), weight)
    log_sums.copy_(torch.logaddexp(log_sums, part.log_sums))


def _by_positions(x: Tensor) -> Tensor:
    """Lay out (B, H, S, E) as (B, S, H, E): the matrix that is next reads it so, without a copy."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _wide(x: Tensor) -> torch.dtype:
    """Return the type to sum over turns in."""
    return torch.promote_types(x.dtype, torch.float32)


def _by_key_heads(gradient: Tensor, num_kv_heads: int) -> Tensor:
    """Sum over the heads of queries that had the same keys: (B, H, S, E) to (B, K, S, E)."""
    return gradient.view(len(gradient), num_kv_heads, -1, *gradient.shape[2:]).sum(2)


@_forward.register_fake
def _shapes(
    q: Tensor, _k: Tensor, _v: Tensor, _group_name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    log_sums = q.new_empty(q.shape[:-1], dtype=_wide(q))
    return _by_positions(q.new_empty(q.shape)), log_sums, *state_like(q)


@_backward.register_fake
def _gradient_shapes(
    _gradient: Tensor, inputs: list[Tensor], _outputs: list[Tensor], _group_name: str
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401 -- torch's
    *kept, ctx.group_name = inputs
    ctx.save_for_backward(*kept, *output)
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 -- torch's
    kept = ctx.saved_tensors
    return (*_backward(gradient, list(kept[:3]), list(kept[3:]), ctx.group_name), None)


_forward.register_autograd(_differentiate, setup_context=_keep)


def _code() -> str:
    """Return what distinguishes this version of the operations from any other."""
    files = (__file__, kernels.__file__)
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()


# On disk torch keeps what it compiled by the names of operations, and would go on to expect of
# them what an older version returned.
compiler.config.cache_key_tag += _code()

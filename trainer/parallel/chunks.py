"""Which positions of a sequence a rank of cp has. Pure arithmetic, no torch."""

from __future__ import annotations


def num_chunks(cp: int) -> int:
    """Return into how many chunks a sequence is cut; its length is a multiple of that.

    Of 2 cp chunks rank r has the r-th from the front and the r-th from the back. Under a causal
    mask chunk n attends to n + 1 chunks: so every rank attends to 2 cp + 1 in all, where contiguous
    parts would give the last rank nearly twice the mean.
    """
    return 2 * cp


def own_chunks(cp: int, cp_rank: int) -> tuple[int, int]:
    """Return the numbers of a rank's two chunks, in the order of the sequence."""
    return cp_rank, num_chunks(cp) - 1 - cp_rank


def holders(cp: int) -> list[tuple[int, int]]:
    """Return of each chunk, in the order of the sequence, whose it is and which of its two."""
    found = {
        chunk: (rank, half) for rank in range(cp) for half, chunk in enumerate(own_chunks(cp, rank))
    }
    return [found[chunk] for chunk in range(num_chunks(cp))]


def own_ranges(length: int, cp: int, cp_rank: int) -> list[range]:
    """Return a rank's positions of a sequence of `length`, chunk by chunk."""
    size, rest = divmod(length, num_chunks(cp))
    assert not rest, f"{length} positions with cp {cp}"  # noqa: S101 -- the layout's check saw to it
    return [range(chunk * size, (chunk + 1) * size) for chunk in own_chunks(cp, cp_rank)]

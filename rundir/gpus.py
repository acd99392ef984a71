"""CUDA_VISIBLE_DEVICES, read as CUDA itself does."""

from __future__ import annotations

from itertools import takewhile

UUIDS = ("GPU-", "MIG-")
"""How words begin that name a GPU by its UUID."""


def visible(text: str) -> list[str]:
    """Give the words that name GPUs. CUDA sees none of those behind one that does not, as -1."""
    return [*takewhile(_names_a_gpu, (word.strip() for word in text.split(",")))]


def _names_a_gpu(word: str) -> bool:
    return (word.isascii() and word.isdecimal()) or word.startswith(UUIDS)

"""The environment: numbers in it, and what torch reads there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

TORCH_DEFAULTS = {
    # As jobs/supervisor/settings.py has it: the backend that is new in torch 2.15 writes no dump of its
    # collectives when the watchdog asks a hung rank for one.
    "TORCH_DIST_USE_NCCL2": "0",
    # Without it each rank opens a socket to every other one, once more for each group. With it one
    # may wait in vain for a rank that died before they first talked: who starts ranks ends them.
    "TORCH_GLOO_LAZY_INIT": "1",
}
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

_MAX_DIGITS = 19
"""Of what fits in 64 bits. Python refuses to read thousands, by another error."""


def whole_number(text: str) -> int | None:
    """Return the number that `text` writes in digits alone; None if it is none.

    Stricter than int(), which takes `1_0`, ` 1` and other alphabets' digits, too: what nobody
    meant as a number must not become one.
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


def set_torch_defaults(env: MutableMapping[str, str]) -> None:
    """Set in `env`, this process's own, what torch is to find when it is imported.

    What the user has set stays. A GPU's memory is mapped in segments that grow, so that what is
    free of it is not lost in gaps between tensors of other sizes.
    """
    for name, value in TORCH_DEFAULTS.items():
        env.setdefault(name, value)
    if not any(name in env for name in _ALLOCATOR):
        env["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

"""Names that a rank must see as the job sees them, also where an image sets them otherwise.

container/mounts.sh has the same lists, for hosts without a Python.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# NVIDIA_, because Enroot's hook reads it at every start: a batch script's container must hand the
# job's choice to its step.
PREFIXES = re.compile(
    "DDP_|NCCL_|NVIDIA_|NVSHMEM_|TORCH_|TORCHELASTIC_|GLOO_|CUDA_|OMP_|MKL_|PYTHON|PYTORCH_|UCX_"
    "|FI_|MASTER_|HF_|WANDB_"
)
OF_THE_HOST = re.compile("DDP_(HOME|IMAGE|MOUNTS|PYTHON)|PYTHONHOME|CUDA_(HOME|PATH|ROOT|DIR)")
"""Those that mean nothing in an image."""


def job_names(environ: Iterable[str]) -> list[str]:
    """Pick those that ranks must see so."""
    return sorted(name for name in environ if PREFIXES.match(name))


def forwarded_names(environ: Iterable[str]) -> list[str]:
    """Pick those of them that mean something in an image."""
    return [name for name in job_names(environ) if not OF_THE_HOST.fullmatch(name)]

"""What torch finds in the environment, however the trainer is started."""

import subprocess
import sys
from pathlib import Path

import pytest

from trainer.environment import TORCH_DEFAULTS, RunSettings, set_torch_defaults
from trainer.errors import UserError

SEEN = """
from torch.distributed import Backend, is_nccl_available
from trainer.workloads.mnist import Mnist as Seen
ensure = getattr(Backend, "_ensure_backend_registered", None)
if ensure is not None and is_nccl_available():  # older torches have one backend for NCCL
    ensure("nccl")
    assert Backend._plugins["NCCL"].creator_fn.__name__ == "_create_nccl_process_group"
"""
SOCKETS = """
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from trainer.environment import set_torch_defaults
set_torch_defaults(os.environ)
import torch
from torch.distributed import HashStore, ProcessGroupGloo
store = HashStore()
def join(rank):
    group = ProcessGroupGloo(store, rank, 8, timedelta(seconds=60))
    group.allreduce([torch.ones(1)]).wait()
    return group
with ThreadPoolExecutor(8) as pool:
    groups = list(pool.map(join, range(8)))
print(sum(f.is_socket() for f in Path("/proc/self/fd").iterdir()), flush=True)
os._exit(0)
"""


def test_what_a_user_has_set_stays() -> None:
    """Each by itself; and one name of the allocator's settings stands for all of them."""
    env: dict[str, str] = {}
    set_torch_defaults(env)
    assert env == {**TORCH_DEFAULTS, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    mine = {"TORCH_DIST_USE_NCCL2": "1", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    env = dict(mine)
    set_torch_defaults(env)
    assert env == {**TORCH_DEFAULTS, **mine}


@pytest.mark.slow
def test_torch_is_imported_when_they_are_set(clean_env: dict[str, str], tmp_path: Path) -> None:
    """It chooses one of its two NCCL backends as it is imported, and torchrun sets nothing."""
    (tmp_path / "seen.py").write_text(SEEN)
    subprocess.run(
        [sys.executable, "-m", "trainer", "--check", "--workload", "seen:Seen"],
        env=clean_env | {"PYTHONPATH": f"{tmp_path}:{clean_env.get('PYTHONPATH', '.')}"},
        check=True,
        timeout=300,
    )


@pytest.mark.slow
def test_ranks_connect_to_those_they_talk_to(clean_env: dict[str, str]) -> None:
    """Eight ranks, here of one process, would have 8 sockets each: one listens, 7 are connected."""
    ended = subprocess.run(
        [sys.executable, "-c", SOCKETS],
        env=clean_env | {"GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert int(ended.stdout) <= 8 * 4


def test_settings_are_the_contracts_variables() -> None:
    """DDP_* as docs/architecture.md has them; without them, a run by hand."""
    env = {"DDP_RUN_DIR": "/r", "DDP_ATTEMPT": "3", "DDP_SEED": "7", "DDP_NODE": "n1"}
    assert RunSettings.from_environment(env, "h") == RunSettings(
        run_dir=Path("/r"), attempt=3, seed=7, node="n1"
    )
    assert RunSettings.from_environment({}, "h") == RunSettings(node="h")
    for text in ("x", "-1", "1_0", "9" * 5000):
        with pytest.raises(UserError, match="DDP_SEED"):
            RunSettings.from_environment({"DDP_SEED": text}, "h")

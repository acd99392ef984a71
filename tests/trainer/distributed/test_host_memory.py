import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_NUM_STEPS = 20
_STEPS = f"""
import resource, sys
import numpy as np
from trainer.distributed.host_memory import keep_freed_memory

keep_freed_memory(dict(word.split("=", 1) for word in sys.argv[1:]))

def step():
    tensors = [np.ones(1 << 20) for _ in range(4)]  # of 8 MiB, freed together

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({_NUM_STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_a_step(env: Mapping[str, str]) -> float:
    """Page faults of a step that frees all it has allocated, in a process of its own."""
    reported = [f"{name}={value}" for name, value in env.items()]
    printed = subprocess.check_output(
        [sys.executable, "-c", _STEPS, *reported], cwd=_ROOT, text=True
    )
    return int(printed) / _NUM_STEPS


def test_freed_memory_is_used_again_and_not_faulted_in_anew() -> None:
    """32 MiB are some 8,000 pages, or, where the system gives out huge ones, 16."""
    assert faults_a_step({}) < 2


@pytest.mark.slow
def test_what_a_user_says_to_malloc_holds() -> None:
    """Either of glibc's two ways to set it."""
    assert faults_a_step({"MALLOC_ARENA_MAX": "2"}) >= 8
    assert faults_a_step({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}) >= 8

"""Attention over ranks that share a sequence."""

import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import uncovered
from tests.trainer.ports import free_port
from trainer.data.batch_plan import plan_batches
from trainer.data.batches import build_batches
from trainer.errors import UserError
from trainer.parallel.layout import Layout
from trainer.workloads.base import TensorData


@pytest.mark.slow
def test_attention_is_that_of_one_process(tmp_path: Path) -> None:
    """Forward and backward, on 2 and 4 ranks, with as many heads of keys and with fewer."""
    from tests.trainer.context_ranks import compare  # noqa: PLC0415 -- imports torch's compiler

    port = free_port()
    context = multiprocessing.get_context("forkserver")
    ranks = [
        context.Process(target=compare, args=(rank, port, tmp_path), daemon=True)
        for rank in range(4)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [reported.read_text() for reported in tmp_path.glob("*.txt")] == []
    assert [process.exitcode for process in ranks] == [0] * 4


@pytest.mark.slow
def test_another_version_finds_nothing_that_was_compiled(tmp_path: Path) -> None:
    """What torch compiled lies on disk, and knows the ring by its name only."""
    from trainer.parallel import ring  # noqa: PLC0415 -- imports torch's compiler

    ours = Path(ring.__file__).parents[1]
    changed = tmp_path / "trainer"
    shutil.copytree(ours, changed, ignore=shutil.ignore_patterns("__pycache__", "data"))
    with (changed / "parallel" / "kernels.py").open("a") as code:
        code.write("# Another comment.\n")
    asked = (
        "import torch, trainer.parallel.ring; print(torch.compiler.config.cache_key_tag, end='')"
    )
    tags = [
        subprocess.run(
            [sys.executable, "-c", asked],
            cwd=folder.parent,
            env=uncovered.environment() | {"TORCH_COMPILE_CACHE_KEY_TAG": "user's own, "},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for folder in (ours, changed)
    ]
    assert tags[0] == f"user's own, {torch.compiler.config.cache_key_tag}"
    assert tags[1].startswith("user's own, ")
    assert tags[1] != tags[0]


def test_inputs_and_targets_are_cut_alike() -> None:
    """To train and to measure; together the ranks have each position once."""
    tokens = torch.arange(16).view(2, 8)
    data = TensorData(inputs=tokens, targets=tokens + 1)
    plan = plan_batches(global_batch_size=2, micro_batch_size=None, dp_rank=0, dp_size=1)
    seen = []
    for rank in range(2):
        batches = build_batches(
            data, plan, seed=1, device=tokens.device, num_workers=0, cp=2, cp_rank=rank
        )
        for found in (batches.epoch(0, 0), batches.evaluation(range(2))):
            ((inputs, targets),) = found
            assert torch.equal(targets, inputs + 1)
        seen.append(inputs[0].tolist())
    assert seen == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_a_model_without_named_attention_is_refused() -> None:
    """Before any group is made."""
    from trainer.parallel.context import share_sequences  # noqa: PLC0415 -- the same

    with pytest.raises(
        UserError, match="--cp must have a workload whose parallel plan names its attention"
    ):
        share_sequences(torch.nn.Linear(1, 1), [], Layout(cp=2), "p2p")

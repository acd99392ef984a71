"""Whole runs on GPUs that are none: see pretended_gpus.py."""

import re
from collections.abc import Callable

import pytest

from tests.trainer.conftest import Ranks

pytestmark = pytest.mark.slow

DIGITS = "--workload tests.trainer.pretended_gpus:Digits --model mlp --epochs 1"
TEXT = (
    "--workload tests.trainer.pretended_gpus:Text --mock-tokens 4000 --sequence-length 64 "
    "--global-batch-size 8"
)


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (1, DIGITS),
        (2, f"{DIGITS} --precision bf16 --micro-batch-size 8 --clip-grad-norm 1"),
        (2, f"{DIGITS} --precision fp16 --checkpoint-mode sync --deterministic"),
        (2, f"{TEXT} --strategy fsdp --precision bf16 --clip-grad-norm 1"),
        (2, f"{TEXT} --model mini --pp 2 --micro-batch-size 2"),
    ],
    ids=["alone", "ddp", "ddp in fp16", "fsdp", "pp"],
)
def test_a_run_on_gpus_goes_to_its_end(
    start_ranks: Callable[..., Ranks], count: int, options: str
) -> None:
    """Begins, trains, validates, writes its checkpoint from each rank's own GPU, and goes on."""
    for max_steps, resumed in ((2, 0), (4, 2)):
        words = [*options.split(), "--log-every", "1", "--max-steps", str(max_steps), "--force"]
        ranks = start_ranks(count, *words)
        codes = ranks.wait()
        assert codes == [0] * count, ranks.output
        assert f"{count} rank" in ranks.output[0][0]
        assert " on cuda" in ranks.output[0][0]
        assert ranks.run.events("resume")[-1]["step"] == resumed
        assert ranks.run.summary()["checkpoint_step"] == max_steps


def test_a_full_gpu_is_reported_in_a_line(start_ranks: Callable[..., Ranks]) -> None:
    """By the rank that it is, with the numbers; what it had allocated is there to read."""
    ranks = start_ranks(
        2,
        *DIGITS.replace("Digits", "Full").replace("--model mlp", "").split(),
        *("--profile-steps", "1:5", "--profile-ranks", "all", "--memory-snapshot"),
    )
    assert ranks.wait() == [70, 70]
    printed = ranks.output[1][1]
    assert "Traceback" not in printed
    (line,) = (line for line in printed.splitlines() if line.startswith("trainer:"))
    assert line.startswith("trainer: rank 1 must fit in its GPU's memory; found no room for ")
    assert " 2.00 GiB (out of memory) in " in line
    assert "/pretended_gpus.py:" in line
    assert "1 MiB allocated, 2 MiB reserved and 1 GiB free of 80 GiB; lower --micro" in line
    assert (ranks.run.path / "debug" / "memory-rank-1.pickle").exists()
    errors = [event["error"] for event in ranks.run.events("failure") if event["rank"] == 1]
    assert [error.startswith("RunFailedError: rank 1 must fit in") for error in errors] == [True]


@pytest.mark.parametrize("count", [1, 2])
def test_a_gpu_that_answers_no_call_any_more(start_ranks: Callable[..., Ranks], count: int) -> None:
    """The first error is the failure, in one traceback; nothing after it hides it."""
    ranks = start_ranks(
        count,
        *("--workload", "tests.trainer.sticky_gpus:Breaking", "--max-steps", "9"),
        *("--checkpoint-every", "2", "--profile-steps", "1:9", "--memory-snapshot"),
        *("--flight-recorder", "100"),
    )
    assert ranks.wait()[0] == 70, ranks.output
    printed = ranks.output[0][1]
    assert printed.count("Traceback") == 1
    assert printed.count("AcceleratorError: CUDA error: an illegal memory access") >= 1
    assert "could not record" not in printed
    (failure,) = (event for event in ranks.run.events("failure") if event["rank"] == 0)
    assert failure["error"].startswith("AcceleratorError: CUDA error: an illegal memory access")
    assert ranks.run.summary()["outcome"] == "failed"
    assert ranks.run.summary()["peak_memory_bytes"] is None


def test_a_run_that_does_not_fit_ends_before_its_first_step(
    start_ranks: Callable[..., Ranks],
) -> None:
    """With the number, and the microbatch that fits; of one rank's GPU, reported by one alone."""
    options = TEXT.replace("4000", "40000").replace("--global-batch-size 8", "")
    ranks = start_ranks(
        2, *options.split(), "--model", "mini", "--sequence-length", "512", "--max-steps", "1",
        "--global-batch-size", "64", env={"FULL_RANK": "1"},
    )  # fmt: skip
    assert ranks.wait() == [64, 64], ranks.output
    (printed,) = (output[1] for output in ranks.output if output[1])
    need, left, size = re.fullmatch(  # type: ignore[union-attr]
        r"trainer: GPU memory of rank 1 on \S* must have about ([\d.]+) GiB free, "
        r"which a step needs; "
        r"found ([\d.]+) MiB of 80 GiB; lower --micro-batch-size from 32 to (\d+)\n",
        printed,
    ).groups()
    assert float(need) > 1
    assert float(left) == 258  # free, and what the rank has reserved
    assert int(size) in {1, 2, 4, 8}
    assert not ranks.run.path.exists()


def test_what_helps_where_no_microbatch_fits(start_ranks: Callable[..., Ranks]) -> None:
    """What is in force already is not advised."""
    options = f"{TEXT} --model stories15m --precision bf16 --strategy fsdp"
    ranks = start_ranks(2, *options.split(), env={"FULL_RANK": "0", "FREE_BYTES": "1000"})
    assert ranks.wait() == [64, 64], ranks.output
    assert ranks.output[0][1].endswith(
        "; beside a smaller --micro-batch-size take --activation-checkpointing full or more GPUs\n"
    )

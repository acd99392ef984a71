"""Whole runs on GPUs that are none: see pretended_gpus.py."""

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

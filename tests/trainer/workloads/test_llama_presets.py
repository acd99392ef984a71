from trainer.config import Config
from trainer.workloads.llama_presets import PRESETS
from trainer.workloads.registry import build_workload


def test_a_llamas_operations_follow_the_formula() -> None:
    """6 N + 12 L D S, N without an embedding that only looks up."""
    shape = PRESETS["tinyllama-1.1b"]
    num_multiplied = 1_100_048_384 - 32_000 * 2048
    assert shape.flops_per_token(2048) == 6 * num_multiplied + 12 * 22 * 2048 * 2048
    tied = PRESETS["stories15m"]
    assert tied.flops_per_token(256) == 6 * 15_191_712 + 12 * 6 * 288 * 256
    workload = build_workload(Config(workload="lm", model="tinyllama-1.1b"))
    assert workload.flops_per_sample() == 2048 * shape.flops_per_token(2048)
    assert build_workload(Config()).flops_per_sample() is None

import pytest

from trainer.telemetry.speed import Speed, Work, peak_flops_per_s


def test_speed_is_tokens_operations_and_their_share_of_the_peak() -> None:
    """What is unknown is not reported."""
    work = Work(tokens_per_sample=2048, flops_per_sample=1.5e13, peak_flops_per_s=8 * 989.4e12)
    speed = work.speed(256.0)
    assert (speed.tokens_per_s, speed.flops_per_s) == (524_288.0, 3.84e15)
    assert speed.mfu_pct == pytest.approx(48.5, abs=0.02)
    assert speed.texts() == ["524288 tokens/s", "3.84e+03 TFLOP/s", "MFU 48.5 %"]
    nothing = Work(tokens_per_sample=None, flops_per_sample=None, peak_flops_per_s=1e12)
    assert nothing.speed(5.0) == Speed()
    assert Speed().texts() == []


def test_a_devices_peak_is_known_by_its_name() -> None:
    """As the driver spells it; one that is not in the table has none."""
    names = {
        "NVIDIA H200": 989.4, "NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H100 PCIe": 756.4,
        "NVIDIA H100 NVL": 835.5, "NVIDIA A100-SXM4-80GB": 311.9, "NVIDIA A10G": None,
        "NVIDIA L40S": 362.0, "NVIDIA L4": 121.0, "NVIDIA L40": None, "Tesla V100-SXM2-16GB": None,
        "NVIDIA A100 80GB PCIe": 311.9, "NVIDIA B200": 2250.0, "NVIDIA A40": 149.7,
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None, "NVIDIA A100-SXM4-40GB MIG 3g.20gb": None,
    }  # fmt: skip
    for name, tflops in names.items():
        peak = peak_flops_per_s(name)
        assert peak == (None if tflops is None else pytest.approx(tflops * 1e12)), name

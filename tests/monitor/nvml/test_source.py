"""The real nvidia-ml-py against a stub driver library, each time in a process of its own."""

from typing import Any

import pytest

from tests.monitor.nvml_poll import between, poll, readings

pytestmark = pytest.mark.slow


def test_values_are_cut_as_the_driver_cuts_them(driver: Any) -> None:
    """MW, KB/s and bytes become W, MB/s and MiB without rounding up."""
    gpu = poll(driver)[0]["gpus"][1]
    assert gpu["index"] == 1
    assert readings(gpu) == {
        "power_w": 294,
        "temp_c": 61,
        "sm_pct": 98,
        "mem_pct": 57,
        "enc_pct": 0,
        "dec_pct": 0,
        "jpg_pct": 0,
        "ofa_pct": 0,
        "fb_used_mib": 71680,
        "bar1_used_mib": 4,
        "pcie_rx_mb_s": 847,
        "pcie_tx_mb_s": 9,
    }


def test_names_and_versions_are_facts(driver: Any) -> None:
    """UUID, name and driver version are reported beside the samples."""
    facts = poll(driver)[0]["facts"]
    assert facts["driver"] == "550.163.01"
    assert facts["gpu 1"] == "GPU-00000000-0000-0000-0000-000000000001 NVIDIA Stand-In"


def test_further_readings_by_letter(driver: Any) -> None:
    """Clocks, energy and throttle reasons are asked for where their letter is given."""
    gpu = poll(driver, "pumtcjr")[0]["gpus"][0]
    assert (gpu["mem_clock_mhz"], gpu["sm_clock_mhz"]) == (2619, 1980)
    assert (gpu["energy_j"], gpu["throttle_bits"]) == (123456789, 4)
    assert poll(driver)[0]["gpus"][0]["energy_j"] is None


def test_memory_temperature_and_protected_memory(driver: Any) -> None:
    """Where the driver has them they are there; its own entry's return code counts."""
    driver.does("set mtemp 0 77", f"set ccpm 0 {5 * 2**20}")
    first, second = poll(driver)[0]["gpus"]
    assert (first["mem_temp_c"], first["protected_used_mib"]) == (77, 5)
    assert (second["mem_temp_c"], second["protected_used_mib"]) == (None, None)


@pytest.mark.parametrize("share", ["nan", "-3", "inf"])
def test_gpm_needs_two_samples(driver: Any, share: str) -> None:
    """SM and tensor activity come from the second poll on; a refusal is no reading.

    Nor is what is no share: a negative number would cost the row.
    """
    driver.does("set gpm * 1", "set gpm2 * 91.6", f"set gpm5 * {share}")
    first, second = poll(driver, "pumtg", times=2)
    assert first["gpus"][0]["sm_active_pct"] is None
    assert second["gpus"][0]["sm_active_pct"] == 92
    assert second["gpus"][0]["tensor_active_pct"] is None
    assert second["gpus"][0]["dram_active_pct"] is None


def test_samples_too_close_together_give_no_gpm(driver: Any) -> None:
    """Less than 100 ms apart GPM is not asked, as NVML demands."""
    driver.does("set gpm * 1", "set gpm2 * 91.6")
    assert poll(driver, "pumtg", times=2, then="pass")[1]["gpus"][0]["sm_active_pct"] is None


def test_gpm_that_cannot_be_asked_costs_nothing_else(driver: Any) -> None:
    """A GPU whose GPM query fails still gives all the rest."""
    driver.does("fail nvmlGpmQueryDeviceSupport * 3")
    gpu = poll(driver, "pumtg", times=2)[1]["gpus"][0]
    assert gpu["power_w"] == 294
    assert gpu["sm_active_pct"] is None


def test_an_old_driver_lacks_functions(old_driver: Any) -> None:
    """Without the newer symbols their readings are None, or come by the older name."""
    gpu = poll(old_driver, "pumtcjrg", times=2)[1]["gpus"][0]
    assert gpu["fb_used_mib"] == 72896
    assert gpu["throttle_bits"] == 4
    assert gpu["power_w"] == 294
    for name in ("jpg_pct", "ofa_pct", "mem_temp_c", "protected_used_mib", "sm_active_pct"):
        assert gpu[name] is None


def test_the_temperature_by_its_next_name(coming_driver: Any) -> None:
    """The function that everybody calls today goes away with CUDA 14; what fails stays empty."""
    coming_driver.does("gpus 3", "set temp 0 -7", "fail nvmlDeviceGetTemperatureV 1 3")
    reported = [gpu["temp_c"] for gpu in poll(coming_driver, "p")[0]["gpus"]]
    assert reported == [-7, None, 61]


def test_mig_refuses_utilisation_only(driver: Any) -> None:
    """A GPU cut into MIG slices gives everything but the utilisations."""
    names = ["UtilizationRates", "EncoderUtilization", "DecoderUtilization"]
    names += ["JpgUtilization", "OfaUtilization"]
    driver.does(*(f"fail nvmlDeviceGet{name} 0 3" for name in names))
    first, second = poll(driver)[0]["gpus"]
    assert "sm_pct" not in readings(first)
    assert first["power_w"] == 294
    assert second["sm_pct"] == 98


def test_a_lost_gpu_keeps_its_place(driver: Any) -> None:
    """From the moment it is lost only its index is left; the other goes on."""
    driver.does("lost 1 40")
    polls = poll(driver, times=4)
    assert polls[0]["gpus"][1]["power_w"] == 294
    assert polls[3]["gpus"][1]["index"] == 1
    assert readings(polls[3]["gpus"][1]) == {}
    assert all(one["gpus"][0]["power_w"] == 294 for one in polls)


def test_a_gpu_lost_from_the_start_keeps_its_place(driver: Any) -> None:
    """A GPU that gives not even a handle has a row and a fact without content."""
    driver.does("lost 0 0")
    (only,) = poll(driver)
    assert readings(only["gpus"][0]) == {}
    assert only["gpus"][1]["power_w"] == 294
    assert only["facts"]["gpu 0"] == "-"


def test_dead_nvml_is_started_again_now_and_then(driver: Any) -> None:
    """Rows stay empty until a restart after 60 s finds the GPUs back, which then answer again."""
    polls = poll(driver, times=9, step_s=20, then=between([], ["dead 0"], []))
    powers = [one["gpus"][0]["power_w"] for one in polls]
    assert powers == [294, 294, None, None, None, 294, 294, 294, 294]
    assert [gpu["index"] for gpu in polls[2]["gpus"]] == [0, 1]
    assert polls[3]["facts"]["gpus"] == "no readings: NVML answers nothing more"
    assert polls[-1]["facts"]["gpu 0"].startswith("GPU-")


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("noinit 9", "no readings: Driver Not Loaded"),
        ("gpus 0", "no readings: NVML finds none"),
        ("fail nvmlDeviceGetCount_v2 * 999", "no readings: Unknown Error"),
    ],
)
def test_the_facts_say_why_there_are_no_readings(driver: Any, rule: str, why: str) -> None:
    """And how many GPUs there are once there are some."""
    driver.does(rule)
    assert poll(driver)[0]["facts"]["gpus"] == why
    driver.does("gpus 2")
    assert poll(driver)[0]["facts"]["gpus"] == "2"


def test_the_memory_of_a_gpu_is_a_fact(driver: Any, old_driver: Any) -> None:
    """In MiB, of either form of the driver's answer; left out where it does not tell."""
    assert poll(driver)[0]["facts"]["memory_mib 1"] == "81559"
    assert poll(old_driver)[0]["facts"]["memory_mib 1"] == "81559"
    driver.does("fail nvmlDeviceGetMemoryInfo_v2 * 3")
    assert "memory_mib 1" not in poll(driver)[0]["facts"]


def test_the_power_limit_is_a_fact(driver: Any) -> None:
    """In W, where the driver tells it."""
    assert poll(driver)[0]["facts"]["power_limit_w 1"] == "700"
    driver.does("fail nvmlDeviceGetEnforcedPowerLimit * 3")
    assert "power_limit_w 1" not in poll(driver)[0]["facts"]


@pytest.mark.parametrize("rule", ["noinit 9", "gpus 0", "fail nvmlDeviceGetCount_v2 * 999"])
def test_no_gpus_to_see(driver: Any, rule: str) -> None:
    """A driver that does not start, or has no GPU, gives an empty reading each time."""
    driver.does(rule)
    assert [one["gpus"] for one in poll(driver, times=2)] == [[], []]


def test_no_driver_library_at_all(driver: Any, tmp_path: Any) -> None:
    """On a machine without libnvidia-ml.so.1 there are no GPUs, and no error."""
    driver = type(driver)(tmp_path, tmp_path / "none")
    assert poll(driver)[0]["gpus"] == []


def test_versions_that_cannot_be_asked(driver: Any) -> None:
    """A version that the driver refuses to tell is a dash."""
    driver.does("fail nvmlSystemGetDriverVersion * 999", "fail nvmlDeviceGetUUID 0 999")
    facts = poll(driver)[0]["facts"]
    assert (facts["driver"], facts["gpu 0"]) == ("-", "-")

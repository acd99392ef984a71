"""The further columns, marks, MIG and calls that hang: the real nvidia-ml-py, a stub driver."""

import time
from typing import Any

import pytest

from tests.monitor.nvml_poll import between, events, poll, readings

pytestmark = pytest.mark.slow


def test_errors_of_memory(driver: Any, old_driver: Any) -> None:
    """ECC errors since the driver was loaded, and rows remapped; an old driver has none."""
    rows = ["set remap_corrected 1 2", "set remap_uncorrected 1 3"]
    driver.does("set sbecc * 12", "set dbecc 0 1", *rows)
    first, second = poll(driver, "pumte")[0]["gpus"]
    assert (first["ecc_corrected"], first["ecc_uncorrected"], first["remapped_rows"]) == (12, 1, 0)
    assert (second["ecc_uncorrected"], second["remapped_rows"]) == (0, 5)
    old = poll(old_driver, "pumte")[0]["gpus"][0]
    assert old["ecc_corrected"] is None
    assert old["power_w"] == 294


def test_errors_of_memory_are_asked_for_every_five_seconds(driver: Any) -> None:
    """In between the last values are reported; that one happens, an event reports."""
    reported = poll(driver, "pumte", 3, 3, then=between(["set sbecc * 7"]))
    assert [one["gpus"][0]["ecc_corrected"] for one in reported] == [0, 0, 7]


def test_engines_that_rest_are_asked_as_seldom(driver: Any) -> None:
    """And at each poll while one of them works."""
    worlds = (["set dec 0 30"], ["set dec 0 30"], ["set dec 0 40"], ["set dec 0 50"], [])
    reported = poll(driver, "pumt", 6, 3, then=between(*worlds))
    assert [one["gpus"][0]["dec_pct"] for one in reported] == [0, 0, 30, 40, 50, 0]
    assert {one["gpus"][1]["enc_pct"] for one in reported} == {0}


def test_time_throttled(driver: Any) -> None:
    """Share of the time between two polls; the first poll has none."""
    driver.does("grow pviol_ns * 250000000", "set tviol_ns * 5000")
    first, second = poll(driver, "pumtv", 2, then="time.sleep(0.2)")
    assert (first["gpus"][0]["power_pct"], first["gpus"][0]["heat_pct"]) == (None, None)
    assert second["gpus"][1]["power_pct"] == pytest.approx(25, abs=3)
    assert second["gpus"][1]["heat_pct"] == 0


def test_time_throttled_of_a_counter_that_began_anew(driver: Any) -> None:
    """There is none for that poll, and one again for the next."""
    driver.does("set tviol_ns * 5000")
    reported = poll(
        driver, "pumtv", 3, then=between(["set tviol_ns * 4000"], ["set tviol_ns * 4000"])
    )
    assert [one["gpus"][0]["heat_pct"] for one in reported] == [None, None, 0]


def test_the_drivers_own_samples(driver: Any) -> None:
    """Mean and peak of what the driver saw since the last poll; what it saw before is not ours."""
    old = ["sample 1000 0 99", "sample 2000 0 98"]
    new = ["sample 3000 0 10", "sample 4000 0 21", "sample 5000 0 80"]
    driver.does("gpus 2", *old)
    reported = poll(driver, "pumtx", 3, then=between([*old, *new], [*old, *new]))
    pairs = [(one["gpus"][0]["sm_avg_pct"], one["gpus"][0]["sm_max_pct"]) for one in reported]
    assert pairs == [(None, None), (37, 80), (None, None)]
    assert all(one["gpus"][1]["sm_avg_pct"] is None for one in reported)


def test_a_peak_between_two_polls_is_seen(driver: Any) -> None:
    """15 s apart, the GPU idle at both: what it did in between stands in the row."""
    idle = ["set sm * 0", "sample 1000000 0 0"]
    ring = [f"sample {1_000_000 + 166_000 * i} 0 {100 if i < 30 else 0}" for i in range(1, 91)]
    driver.does(*idle)
    reported = poll(driver, "pumtx", 2, 15, then=between([*idle, *ring]))[1]["gpus"][0]
    assert (reported["sm_pct"], reported["sm_avg_pct"], reported["sm_max_pct"]) == (0, 32, 100)


def test_samples_of_a_clock_that_was_set_back(driver: Any) -> None:
    """The driver stamps them by the time of day: those of before the hour are no longer new."""
    now_us = int(time.time() * 1e6)
    ahead = [f"sample {now_us + 3_600_000_000 + i} 0 50" for i in range(3)]
    back = [f"sample {now_us + i} 0 20" for i in range(3)]
    later = [f"sample {now_us + 1000 + i} 0 30" for i in range(3)]
    driver.does("gpus 1", *ahead)
    reported = poll(driver, "pumtx", 4, then=between(back, later))
    assert [one["gpus"][0]["sm_max_pct"] for one in reported] == [None, None, 30, None]


def test_a_ring_larger_than_usual(driver: Any) -> None:
    """A driver that keeps more samples than there is room for is asked again with more room."""
    old, new = ["sample 1000 0 50"], [f"sample {2000 + i} 0 {i % 100}" for i in range(240)]
    driver.does("gpus 1", *old)
    small = "import monitor.nvml.rates as rates; rates._NUM_SAMPLES = 16"
    reported = poll(driver, "pumtx", 2, then=between([*old, *new]), first=small)
    assert reported[1]["gpus"][0]["sm_max_pct"] == 99


def test_nvlink(driver: Any) -> None:
    """MB/s over all links, both ways; a GPU without links has no readings."""
    driver.does("grow nvrx_kib 0 1000000", "grow nvtx_kib 0 500000")
    reported = poll(driver, "pumtn", 2, then="time.sleep(0.2)")
    first, second = reported[1]["gpus"]
    assert first["nvlink_rx_mb_s"] == pytest.approx(1024, rel=0.15)
    assert first["nvlink_tx_mb_s"] == pytest.approx(512, rel=0.15)
    assert second["nvlink_rx_mb_s"] is None
    assert reported[0]["gpus"][0]["nvlink_rx_mb_s"] is None


def test_processes(driver: Any) -> None:
    """Pid and MiB of each, however many there are; of some the size is unknown."""
    many = [f"process {1000 + i} 1 {i}" for i in range(40)]
    driver.does("process 77 0 1234", "process 78 0 -1", *many)
    first, second = poll(driver, "pumtq")[0]["gpus"]
    assert first["processes"] == [[77, 1234], [78, None]]
    assert second["processes"] == [[1000 + i, i] for i in range(40)]


@pytest.mark.parametrize("version", ["535.42", "535.43", "535.86", "535.98"])
def test_processes_of_drivers_with_longer_entries(driver: Any, version: str) -> None:
    """Some of the 535 series have one more number in each."""
    driver.does(f"driver {version}", *(f"process {70 + i} 0 {i}" for i in range(40)))
    first = poll(driver, "pumtq")[0]["gpus"][0]
    assert first["processes"] == [[70 + i, i] for i in range(40)]


def test_mig_devices_are_facts(driver: Any) -> None:
    """Each with UUID, memory and ids; what they use is one line a GPU; there are no more rows."""
    driver.does("set mig 0 2", "fail nvmlDeviceGetUtilizationRates 0 3")
    (reported,) = poll(driver)
    facts = reported["facts"]
    uuid = "MIG-00000000-0000-0000-0000-000000000002"
    assert facts["mig 0.1"] == f"{uuid} memory_mib=9728 gi=8 ci=0"
    assert facts["mig_used_mib 0"] == "12 24"
    assert not any(key.startswith("mig") and " 1" in key for key in facts)
    assert [gpu["index"] for gpu in reported["gpus"]] == [0, 1]
    assert (reported["gpus"][0]["sm_pct"], reported["gpus"][0]["power_w"]) == (None, 294)


def test_mig_without_devices_and_devices_that_do_not_tell(driver: Any) -> None:
    """It is reported; what a device refuses is a dash."""
    driver.does("set mig 0 0", "set mig 1 1", "fail nvmlDeviceGetMemoryInfo 1 3")
    (reported,) = poll(driver)
    assert reported["facts"]["mig 0"] == "enabled, without devices"
    assert "memory_mib=- gi=7" in reported["facts"]["mig 1.0"]
    assert reported["facts"]["mig_used_mib 1"] == "-"


def test_events_are_reported(driver: Any) -> None:
    """XID and ECC errors, with what they are called, each once."""
    driver.does("event 8 1 79", "event 2 0 0", "event 1 0 0", "event 4 0 0", "event 8 0 9999")
    reported = poll(driver, times=2, then=events(4))[1]
    assert reported["marks"] == [
        "xid gpu=1 xid=79 text=GPU_has_fallen_off_the_bus",
        "ecc gpu=0 bits=double",
        "ecc gpu=0 bits=single",
        "xid gpu=0 xid=9999 text=-",
    ]
    assert reported["facts"]["events"] == "watched on 2 of 2 GPUs"


def test_events_go_on_where_a_gpu_is_lost(driver: Any) -> None:
    """A set that has a lost GPU answers nothing but that: the others are watched without it."""
    driver.does("gpus 2", "event 8 0 79")
    worlds = ["event 8 0 79", "lost 0 0"], ["event 8 0 79", "lost 0 0", "event 8 1 13"]
    then = "time.sleep(0.3)\n" + between(*worlds) + "time.sleep(0.3)"
    marks = poll(driver, times=3, then=then)[2]["marks"]
    assert marks[0] == "xid gpu=0 xid=79 text=GPU_has_fallen_off_the_bus"
    assert sorted(marks[1:]) == ["lost gpu=0", "xid gpu=1 xid=13 text=" + XID_13]


def test_a_gpu_that_is_back_is_known_and_watched(driver: Any) -> None:
    """One that needs a reset at the start: its facts are learned, its events registered for."""
    waits = (
        "deadline_s = time.monotonic() + 30\n"
        "while turn == 1 and 'of 2' not in dict(nvml.read().facts)['events']:\n"
        "    assert time.monotonic() < deadline_s\n"
        "    time.sleep(0.1)\n"
        "if turn == 1:\n"
        "    marks.clear()\n"
    )
    driver.does("gpus 2", "fail nvmlDeviceGetHandleByIndex_v2 1 15")
    then = waits + between([], ["event 8 1 79"]) + events(1)
    reported = poll(driver, times=3, then=then)
    assert reported[0]["facts"]["gpu 1"] == "-"
    assert reported[0]["facts"]["events"] == "watched on 1 of 1 GPU"
    assert reported[2]["facts"]["gpu 1"].endswith("NVIDIA Stand-In")
    assert reported[2]["facts"]["memory_mib 1"] == reported[2]["facts"]["memory_mib 0"]
    assert reported[2]["marks"] == ["xid gpu=1 xid=79 text=GPU_has_fallen_off_the_bus"]


def test_a_gpu_away_while_nvml_starts_anew_keeps_its_facts(driver: Any) -> None:
    """They are written into each new file of the log."""
    away = ["fail nvmlDeviceGetHandleByUUID 1 15"]
    reported = poll(driver, times=4, step_s=40, then=between(["dead 0"], away, away))
    assert readings(reported[3]["gpus"][0])
    assert readings(reported[3]["gpus"][1]) == {}
    of_gpus = {k: v for k, v in reported[0]["facts"].items() if k[-1] in "01"}
    assert len(of_gpus) == 8
    assert of_gpus.items() <= reported[3]["facts"].items()


def test_a_storm_of_events_is_cut(driver: Any) -> None:
    """Twenty of a kind and GPU a minute are reported, and how many more there were."""
    driver.does(*["event 1 0 0"] * 30, "event 8 0 13")
    marks = poll(driver, times=2, then=events(21))[1]["marks"]
    assert marks == [*["ecc gpu=0 bits=single"] * 20, "xid gpu=0 xid=13 text=" + XID_13]


XID_13 = "Graphics_engine_exception"


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("fail nvmlEventSetCreate * 3", "none: Not Supported"),
        ("fail nvmlDeviceRegisterEvents * 4", "none: Insufficient Permissions"),
        ("fail nvmlDeviceGetSupportedEventTypes 0 3", "watched on 1 of 2 GPUs"),
    ],
)
def test_where_events_cannot_be_had_it_is_a_fact(driver: Any, rule: str, why: str) -> None:
    """Said once; all else goes on. The words are none that a reader takes for an error."""
    driver.does(rule)
    reported = poll(driver, times=2)[1]
    assert reported["facts"]["events"] == why
    assert reported["gpus"][0]["power_w"] == 294
    assert reported["marks"] == []


def test_an_old_driver_has_no_events(old_driver: Any) -> None:
    """A function that is not there is no reason to fail."""
    assert poll(old_driver)[0]["facts"]["events"] == "none: Function Not Found"


def test_remapped_rows_are_marks_where_they_change(driver: Any) -> None:
    """Also if some wait for a reset at the first poll."""
    driver.does("set remap_pending 1 1")
    worlds = ["set remap_pending 1 1", "set remap_corrected 0 1", "set remap_failed 0 1"]
    reported = poll(driver, "pumte", 3, 10, then=between(worlds))
    assert reported[0]["marks"] == ["remap gpu=1 rows=0 pending=yes failed=no"]
    assert reported[2]["marks"][1:] == ["remap gpu=0 rows=1 pending=no failed=yes"]


def test_a_gpu_lost_and_back_are_marks(driver: Any) -> None:
    """Once each, with its index; a GPU that was never there is lost, too, until it is."""
    driver.does("lost 0 0")
    reported = poll(driver, times=4, then=between(["lost 0 0"], [], []))
    assert reported[1]["marks"] == ["lost gpu=0"]
    assert reported[3]["marks"] == ["lost gpu=0", "back gpu=0"]
    assert reported[3]["gpus"][0]["power_w"] == 294


@pytest.mark.parametrize("code", [15, 16, 28])
def test_a_gpu_that_needs_a_reset_or_is_not_found_is_lost(driver: Any, code: int) -> None:
    """As one that fell off the bus: nothing more is to be had of it."""
    driver.does(f"fail nvmlDeviceGetPowerUsage 0 {code}")
    (reported,) = poll(driver)
    assert reported["marks"] == ["lost gpu=0"]
    assert readings(reported["gpus"][0]) == {}
    assert reported["gpus"][1]["power_w"] == 294


def test_a_library_that_ends_is_no_lost_gpu(driver: Any) -> None:
    """It is started again; that no GPU answers meanwhile is reported once, and not of each."""
    reported = poll(driver, times=5, step_s=40, then=between(["dead 0"], []))
    assert reported[1]["facts"]["gpus"] == "no readings: NVML answers nothing more"
    assert readings(reported[1]["gpus"][0]) == {}
    assert reported[4]["gpus"][0]["power_w"] == 294
    assert reported[4]["marks"] == []


def test_nvlink_by_link(driver: Any) -> None:
    """Where the sum over all links is refused, as on Blackwell, its bytes are summed here."""
    driver.does("grow nvrx_bytes 0 500000000", "grow nvtx_bytes 0 250000000", "set links 0 4")
    reported = poll(driver, "pumtn", 3, then="time.sleep(0.2)")
    first, second = reported[2]["gpus"]
    assert first["nvlink_rx_mb_s"] == pytest.approx(2000, rel=0.15)
    assert first["nvlink_tx_mb_s"] == pytest.approx(1000, rel=0.15)
    assert second["nvlink_rx_mb_s"] is None


def test_a_link_that_leaves_out_a_poll(driver: Any) -> None:
    """What it counted in all its life is no traffic of one interval."""
    constant = ["set nvrx_bytes 0 1e12", "set nvtx_bytes 0 1e12"]
    worlds = [[*constant, f"set links 0 {num}"] for num in (2, 2, 1, 2)]
    driver.does("gpus 2", *worlds[0])
    then = "time.sleep(0.2)\n" + between(*worlds)
    reported = poll(driver, "pumtn", 5, then=then)
    assert [one["gpus"][0]["nvlink_rx_mb_s"] for one in reported[2:]] == [0, 0, 0]


def test_a_call_that_hangs_costs_its_own_cells(driver: Any) -> None:
    """Those of one GPU and one function: all the others are read, in this poll and in the next."""
    then = between(["slow nvmlDeviceGetPowerUsage 20000 0"])
    reported = poll(driver, "pumtc", 3, then=then)
    assert readings(reported[0]["gpus"][0]).keys() == readings(reported[0]["gpus"][1]).keys()
    for one in reported[1:]:
        first, second = one["gpus"]
        assert first["power_w"] is None
        assert first.keys() - readings(first).keys() - {"index", "processes"} == (
            second.keys() - readings(second).keys() - {"index", "processes"} | {"power_w"}
        )
        assert second["power_w"] == 294
    assert reported[2]["marks"] == ["slow gpu=0 call=nvmlDeviceGetPowerUsage"]


SHORT = "import monitor.nvml.source as n; n._START_S = 0.2; nvml._start_job.timeout_s = 0.2\n"


def test_a_start_that_hangs(driver: Any) -> None:
    """After the limit the log says so, and no second start is begun meanwhile."""
    driver.does("slow nvmlDeviceGetHandleByIndex_v2 20000")
    reported = poll(driver, times=2, step_s=100, first=SHORT)
    assert [one["gpus"] for one in reported] == [[], []]
    assert reported[1]["facts"]["gpus"] == "no readings: no answer within 0.2 s"
    assert reported[1]["marks"] == ["slow call=nvmlInit"]


def test_a_start_that_comes_back_late_is_taken(driver: Any) -> None:
    """With the next poll and no sooner start; an event is reported once, and not by two threads."""
    driver.does("slow nvmlDeviceGetName 400 0", "event 8 1 79")
    reported = poll(driver, times=3, step_s=100, first=SHORT, then="time.sleep(1)")
    assert [len(one["gpus"]) for one in reported] == [0, 2, 2]
    assert reported[2]["facts"]["gpus"] == "2"
    assert reported[2]["marks"].count("xid gpu=1 xid=79 text=GPU_has_fallen_off_the_bus") == 1


def test_a_call_that_cannot_be_prepared_costs_its_own_cells(driver: Any) -> None:
    """Such as one whose structure this nvidia-ml-py does not know."""
    broken = "import pynvml; del pynvml.c_nvmlBAR1Memory_t; del pynvml.c_nvmlSample_t\n"
    (reported,) = poll(driver, "pumtx", first=broken)
    first, second = reported["gpus"]
    assert (first["bar1_used_mib"], first["power_w"], first["fb_used_mib"]) == (None, 294, 71680)
    assert first.keys() == second.keys()


def test_a_start_that_breaks_is_a_fact(driver: Any) -> None:
    """An nvidia-ml-py that lacks what we need is reported, and raises nothing."""
    broken = "import pynvml; del pynvml.nvmlDeviceGetHandleByIndex\n"
    (reported,) = poll(driver, first=broken)
    assert "nvmlDeviceGetHandleByIndex" in reported["facts"]["gpus"]

"""Which GPUs are this job's, and which is which after NVML began anew: a stub driver."""

from typing import Any

import pytest

from monitor.nvml.chosen import Named
from tests.monitor.nvml_poll import between, poll, readings

slow = pytest.mark.slow
UUID = "GPU-00000000-0000-0000-0000-00000000000"


@slow
def test_a_gpu_that_may_not_be_opened_is_not_ours(driver: Any) -> None:
    """The driver counts what a device cgroup keeps from us: it has no row, and is not lost."""
    driver.does("gpus 3", "fail nvmlDeviceGetHandleByIndex_v2 0 4")
    reported = poll(driver, times=2)[1]
    assert [gpu["index"] for gpu in reported["gpus"]] == [1, 2]
    assert all(gpu["power_w"] == 294 for gpu in reported["gpus"])
    assert reported["marks"] == []
    assert reported["facts"]["gpus"] == "2"
    assert reported["is_renumbered"]  # CUDA has 0 and 1
    assert "gpu 0" not in reported["facts"]


@slow
def test_where_none_may_be_opened_there_is_none(driver: Any) -> None:
    """As on a node without GPUs."""
    driver.does("fail nvmlDeviceGetHandleByIndex_v2 * 4")
    (reported,) = poll(driver)
    assert reported["gpus"] == []
    assert reported["facts"]["gpus"] == "no readings: NVML finds none"


@slow
def test_only_the_jobs_gpus_are_recorded(driver: Any) -> None:
    """Where NVML shows a whole node to a job that has a part of it."""
    driver.does("gpus 4", "event 8 0 79")
    reported = poll(driver, times=2, first="nvml._named = Named('1,3')", then="time.sleep(0.3)")[1]
    assert [gpu["index"] for gpu in reported["gpus"]] == [1, 3]
    assert reported["marks"] == []  # what befalls another's GPU is not reported here
    assert reported["facts"]["events"] == "watched on 2 of 2 GPUs"
    assert not reported["is_renumbered"]
    named = poll(driver, first=f"nvml._named = Named('{UUID}2')")[0]
    assert [gpu["index"] for gpu in named["gpus"]] == [2]


@slow
def test_a_mig_device_names_its_gpu(driver: Any) -> None:
    """In today's words and in those of driver 460."""
    driver.does("gpus 3", "set mig 1 2")
    device = "MIG-00000000-0000-0000-0000-000000000102"
    for visible in (device, f"MIG-{UUID}1/7/0"):
        (reported,) = poll(driver, first=f"nvml._named = Named({visible!r})")
        assert [gpu["index"] for gpu in reported["gpus"]] == [1], visible


@slow
def test_names_that_fit_nothing_choose_nothing(driver: Any) -> None:
    """Better all than none; nor is there anything to choose where a cgroup has chosen."""
    assert len(poll(driver, first="nvml._named = Named('GPU-77')")[0]["gpus"]) == 2
    driver.does("gpus 3", "fail nvmlDeviceGetHandleByIndex_v2 0 4")
    reported = poll(driver, first="nvml._named = Named('0,1')")[0]
    assert [gpu["index"] for gpu in reported["gpus"]] == [1, 2]


@slow
def test_a_lost_gpu_that_only_a_uuid_names_keeps_its_place(driver: Any) -> None:
    """It does not report its own, and one of the job's is missing."""
    driver.does("gpus 3", "lost 1 0")
    reported = poll(driver, first=f"nvml._named = Named('{UUID}0,{UUID}1')")[0]
    assert [gpu["index"] for gpu in reported["gpus"]] == [0, 1]
    assert reported["marks"] == ["lost gpu=1"]


@pytest.mark.parametrize(
    ("visible", "num_least", "expected"),
    [
        (None, 0, None),
        ("", 1, None),
        (" 0, 2 ,", 2, {"0", "2"}),
        ("0", 2, None),  # each rank has its own: this one does not name all
        ("0,8", 1, None),
        ("-1", 1, None),
        ("GPU-ab,1", 1, {"GPU-ab", "1"}),
        ("NoDevFiles", 1, None),
        ("MIG-ab", 1, {"MIG-ab"}),
    ],
)
def test_what_the_job_names(visible: str | None, num_least: int, expected: set[str] | None) -> None:
    """Indices that there are and UUIDs, as many as there are ranks, at least; else all."""
    assert Named(visible, num_least).among(4) == expected


@slow
def test_after_nvml_began_anew_a_row_has_the_same_gpu(driver: Any) -> None:
    """One is gone for good and counted no more: those behind it keep their own index."""
    temps = ["set temp 1 51", "set temp 2 52"]
    driver.does("gpus 3", *temps)
    worlds = (["gpus 3", *temps, "dead 0"], ["gpus 3", *temps, "set gone 0 1"])
    last = poll(driver, times=5, step_s=70, then=between(*worlds))[-1]
    assert readings(last["gpus"][0]) == {}
    assert [(gpu["index"], gpu["temp_c"]) for gpu in last["gpus"]] == [(0, None), (1, 51), (2, 52)]
    assert [last["facts"][f"gpu {i}"].split(" ")[0] for i in range(3)] == [
        f"{UUID}{i}" for i in range(3)
    ]


@slow
def test_a_gpu_without_a_uuid_takes_no_others_place(driver: Any) -> None:
    """Lost from the start and gone after the restart: the one that moved up stays where it was."""
    driver.does("lost 0 0")
    worlds = (["lost 0 0", "dead 0"], ["set gone 0 1", "set temp 1 51"])
    reported = poll(driver, times=5, step_s=70, then=between(*worlds))
    assert [(gpu["index"], gpu["temp_c"]) for gpu in reported[-1]["gpus"]] == [(0, None), (1, 51)]


@slow
def test_the_recorder_passes_on_what_the_job_names(bench: Any, driver: Any, until: Any) -> None:
    """One of two GPUs; both where the job has more than these, which are the first rank's."""
    for more, expected in (
        ({"LOCAL_WORLD_SIZE": "1"}, {"1"}),
        ({"LOCAL_WORLD_SIZE": "1", "SLURM_GPUS_ON_NODE": "1"}, {"1"}),
        ({"LOCAL_WORLD_SIZE": "2"}, {"0", "1"}),
        ({"LOCAL_WORLD_SIZE": "1", "SLURM_GPUS_ON_NODE": "2"}, {"0", "1"}),
    ):
        ours = {"CUDA_VISIBLE_DEVICES": "1", **more}
        recording = bench.start(env=driver.env | ours)
        until(lambda found=recording: len(found.rows()) >= 1)
        assert recording.end()[0] == 0
        assert {row.split()[2] for row in recording.rows()} == expected
        recording.out.unlink()

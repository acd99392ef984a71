"""Whether a command that has no heartbeat does anything."""

import pytest

from monitor.logs.sample import GpuSample, Reading
from monitor.watchdog.inactivity import Inactivity, gpu_pattern
from monitor.watchdog.visible import gpu_of

WAITING = {"sm_pct": 100, "mem_pct": 0, "power_w": 130}


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({}, "waiting"),
        ({"dram_active_pct": 0}, "waiting"),
        ({"dram_active_pct": 30}, "working"),
        ({"mem_pct": 20}, "working"),
        ({"power_w": 600}, "working"),
        ({"power_w": None}, "working"),
        ({"mem_pct": None}, "working"),
        ({"sm_pct": 50}, "working"),
        ({"sm_pct": 3}, "idle"),
        ({"sm_pct": None}, None),
    ],
)
def test_the_pattern_of_a_waiting_collective(
    changes: dict[str, int | None], pattern: str | None
) -> None:
    """Busy, at low power, with no memory traffic; what cannot be read is taken for work."""
    assert gpu_pattern(GpuSample(index=0, **{**WAITING, **changes}), 700) == pattern


def test_without_a_power_limit_nothing_waits() -> None:
    """Low is only low beside something."""
    assert gpu_pattern(GpuSample(index=0, **WAITING), None) == "working"


class Command:
    """A command whose log and processor time the test tells, looked at every second."""

    def __init__(self) -> None:
        self.cpu_s = {10: 0.0}
        self.mark = 1
        self.pattern: str | None = None
        self.now_s = 0.0
        self.num_asked = 0
        self.answers = True
        self.inactivity = Inactivity(self.times)

    def times(self) -> dict[int, float] | None:
        """Count how often it was asked."""
        self.num_asked += 1
        return dict(self.cpu_s) if self.answers else None

    def runs(self, seconds: int, core_share: float = 0.0, limit_s: float = 60) -> float:
        """Let time pass; how long it has been silent."""
        for _ in range(seconds):
            self.now_s += 1
            self.cpu_s[10] += core_share
            silent_s = self.inactivity.update(self.now_s, self.mark, self.pattern, limit_s)
        return silent_s


def test_a_log_that_grows_is_a_sign_of_life() -> None:
    """Whatever else it does."""
    command = Command()
    for _ in range(10):
        command.mark += 1
        assert command.runs(30) < 30


def test_nothing_at_all_is_silence() -> None:
    """No line, no processor time; the processes are asked twice in that time, not more."""
    command = Command()
    assert command.runs(65) >= 60
    assert command.num_asked == 2


def test_one_percent_of_a_core_is_a_sign_of_life() -> None:
    """A command that computes and does not talk goes on."""
    assert Command().runs(300, core_share=0.02) < 61
    assert Command().runs(300, core_share=0.005) > 200


def test_a_node_too_busy_to_tell_proves_nothing() -> None:
    """What computes is not taken for silent because /proc gave no answer in time."""
    command = Command()
    assert command.runs(61, core_share=0.2) == 59
    command.answers = False
    assert command.runs(30, core_share=0.2) == 0
    command.answers = True
    assert command.runs(1, core_share=0.2) == 0


def test_who_cannot_be_looked_at_for_long_is_silent() -> None:
    """A process that hangs in the kernel may let /proc hang, too."""
    command = Command()
    command.runs(2)
    command.answers = False
    assert command.runs(100) == 0
    assert command.runs(30) >= 120


def test_what_computed_until_it_waits_was_not_silent() -> None:
    """The time of a collective counts, and not that of the processor before it."""
    command = Command()
    command.runs(58, core_share=1)
    command.pattern = "waiting"
    assert command.runs(2, core_share=1) == 1
    assert command.runs(60, core_share=1) == 61


def test_what_was_quiet_before_it_waits_was_silent() -> None:
    """Nothing happened in that time either."""
    command = Command()
    command.runs(50)
    command.pattern = "waiting"
    command.runs(1)
    assert command.runs(9, core_share=1) == 59


def test_new_processes_count_in_full() -> None:
    """A worker that came and worked is a sign of life; one that has gone is none."""
    command = Command()
    command.runs(30)
    command.cpu_s[11] = 5.0
    assert command.runs(45) < 30
    command = Command()
    command.cpu_s[11] = 50.0
    command.runs(30)
    del command.cpu_s[11]
    assert command.runs(45) > 60


def test_a_gpu_that_works_is_a_sign_of_life() -> None:
    """A silent log is nothing unusual then."""
    command = Command()
    command.pattern = "working"
    assert command.runs(300) == 0


def test_a_gpu_that_waits_tells_more_than_the_processor() -> None:
    """A rank that waits for a collective keeps a core busy."""
    command = Command()
    command.pattern = "waiting"
    assert command.runs(65, core_share=1.0) >= 60


def test_a_file_system_that_does_not_answer_proves_nothing() -> None:
    """Where the log's size is unknown, no rank is called silent."""
    command = Command()
    command.mark = None  # type: ignore[assignment]
    assert command.runs(300) == 0


GPUS = Reading(
    (GpuSample(index=0), GpuSample(index=1)),
    (("gpu 0", "GPU-aa01 H"), ("gpu 1", "GPU-bb02 H"), ("mig 1.0", "MIG-a0 memory_mib=1")),
)


@pytest.mark.parametrize(
    ("visible", "local_rank", "expected"),
    [
        (None, 1, ("GPU 1", 1)),
        (None, None, ("no GPU", None)),
        ("", 0, ("no GPU", None)),
        ("1", 0, ("GPU 1", 1)),
        ("1", 3, ("GPU 1", 1)),
        ("1,0", 1, ("GPU 0", 0)),
        ("GPU-bb02", 0, ("GPU GPU-bb02", 1)),
        ("MIG-77", 0, ("GPU MIG-77", None)),
        ("MIG-a0", 0, ("GPU MIG-a0", 1)),
        ("MIG-GPU-bb02/7/0", 0, ("GPU MIG-GPU-bb02/7/0", 1)),
        ("0,1", 3, ("GPU 1", 1)),
        ("0,1", None, ("GPU unknown", None)),
    ],
)
def test_a_ranks_gpu(
    visible: str | None, local_rank: int | None, expected: tuple[str, int | None]
) -> None:
    """What CUDA_VISIBLE_DEVICES names, else the one of its local rank."""
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_of(env, local_rank, GPUS) == expected


@pytest.mark.parametrize(
    ("uuid", "expected"),
    [("bb02", ("GPU 1", 1)), ("a0", ("GPU 1", 1)), ("77", ("GPU 77", None))],
)
def test_the_gpu_that_a_rank_names_itself(uuid: str, expected: tuple[str, int | None]) -> None:
    """Its heartbeat has the UUID, of a GPU or of an instance: no variable tells better."""
    assert gpu_of({"CUDA_VISIBLE_DEVICES": "0"}, 0, GPUS, uuid) == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("0,1", ("GPU 5", 5)), ("1", ("GPU 5", 5)), ("3,3", ("GPU 3", None))],
)
def test_numbers_where_a_cgroup_hides_gpus(visible: str, expected: tuple[str, int | None]) -> None:
    """CUDA numbers those that are left from 0, NVML keeps its own."""
    seen = Reading((GpuSample(index=2), GpuSample(index=5)), is_renumbered=True)
    assert gpu_of({"CUDA_VISIBLE_DEVICES": visible}, 1, seen) == expected


def test_numbers_of_several_kinds_of_gpus() -> None:
    """CUDA has the fastest first, unless it is set to count as NVML does."""
    seen = Reading(GPUS.gpus, (("gpu 0", "GPU-aa01 A"), ("gpu 1", "GPU-bb02 B")))
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert gpu_of(env, 1, seen) == ("GPU unknown", None)
    assert gpu_of(env | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 1, seen) == ("GPU 1", 1)


def test_words_behind_one_that_names_nothing() -> None:
    """CUDA sees none of them."""
    assert gpu_of({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 2, GPUS) == ("GPU 0", 0)
    assert gpu_of({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0, GPUS) == ("no GPU", None)


def test_a_gpu_of_ones_own_that_the_monitor_cannot_see_is_not_named() -> None:
    """Each rank's one GPU is its `0`; the monitor sees the first rank's."""
    seen = Reading((GpuSample(index=0),), (("gpu 0", "GPU-aa01 H"),))
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    assert gpu_of(env, 0, seen) == ("GPU 0", 0)
    assert gpu_of(env, 1, seen) == ("GPU unknown", None)
    assert gpu_of({"CUDA_VISIBLE_DEVICES": "GPU-bb02"}, 1, seen) == ("GPU GPU-bb02", None)


def test_without_a_driver_there_is_no_gpu() -> None:
    """Unless the job names one."""
    assert gpu_of({}, 0, Reading((GpuSample(index=None),))) == ("no GPU", None)
    assert gpu_of({}, 0, None) == ("no GPU", None)
    assert gpu_of({"CUDA_VISIBLE_DEVICES": "2"}, 0, None) == ("GPU 2", None)

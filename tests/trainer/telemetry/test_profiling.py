"""Whose steps are traced."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.config import Config
from trainer.errors import UserError
from trainer.telemetry.profiling import StepProfiler, check_device, profiled_ranks


@pytest.mark.parametrize(("option", "ranks"), [("0", {0}), ("0,3", {0, 3}), ("all", {0, 1, 2, 3})])
def test_ranks_are_named_one_by_one_or_all(option: str, ranks: set[int]) -> None:
    """Of four."""
    assert profiled_ranks(Config(profile_steps="1:2", profile_ranks=option), 4) == ranks


@pytest.mark.parametrize("option", ["4", "0,7", "", "some", "-1", "0,,1"])
def test_a_rank_that_does_not_exist_is_refused(option: str) -> None:
    """With the numbers."""
    config = Config(profile_steps="1:2", profile_ranks=option)
    with pytest.raises(
        UserError, match=f"--profile-ranks must be all, or ranks from 0 to 3 .*{option};"
    ):
        profiled_ranks(config, 4)


def test_a_snapshot_is_of_a_gpu() -> None:
    """On a CPU it is refused in a line that names what there is instead."""
    config = Config(profile_steps="1:2", memory_snapshot=True)
    cpu: Any = SimpleNamespace(type="cpu")
    cuda: Any = SimpleNamespace(type="cuda")
    check_device(config, cuda)
    check_device(Config(), cpu)
    with pytest.raises(
        UserError, match=r"--memory-snapshot must have a GPU.* found cpu; leave it out"
    ):
        check_device(config, cpu)


def test_steps_that_never_came_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, at the end, by one of the ranks; nothing where nothing was to be traced."""
    steps = range(100, 102)
    for profiler in (
        StepProfiler(None, tmp_path, rank=0),
        StepProfiler(steps, tmp_path, rank=1),
        StepProfiler(steps, tmp_path, rank=2, is_leader=False),
    ):
        profiler.before(1)
        profiler.after(1)
        profiler.close()
        profiler.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "trainer: --profile-steps: no trace, for step 100 was none of this start's"


@pytest.mark.slow
def test_a_trace_that_cannot_be_written_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is reported, once."""
    (tmp_path / "profile").write_text("somebody else's")
    profiler = StepProfiler(range(1, 2), tmp_path / "profile", rank=0)
    profiler.before(1)
    profiler.out_of_memory()
    profiler.after(1)
    profiler.close()
    output = [line for line in capsys.readouterr().err.splitlines() if "could not write" in line]
    assert len(output) == 2
    assert "FileExistsError" in output[0]

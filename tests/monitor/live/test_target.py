"""What is watched: a run, a directory or files, and the logs that belong to it as they appear."""

import os
import shutil
from pathlib import Path

import pytest

from monitor.errors import UserError
from monitor.live import target
from monitor.live.fleet import Fleet
from monitor.live.target import Target
from tests.monitor.live_logs import gpu, log_of

SAMPLES = sorted((Path(__file__).parents[1] / "data").glob("*.gutil"))


def run_dir(out: Path, name: str, *, job: str | None = None) -> Path:
    """Begin a run."""
    folder = out / name
    folder.mkdir()
    start = f'{{"event": "start", "attempt": 1, "job_id": "{job or name[6:]}"}}\n'
    (folder / "events.jsonl").write_text(start)
    return folder


def test_logs_that_appear_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the run's job, and no others."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    fleet = Fleet(target.resolve([str(run_dir(tmp_path, "slurm-7"))], {}))
    fleet.poll()
    assert fleet.logs == ()
    log_of(tmp_path, "n2").write(gpu(0))
    log_of(tmp_path, "n1").write(gpu(0))
    log_of(tmp_path, "n1", job="8").write(gpu(0))
    clock[0] += 5
    fleet.poll()
    assert [log.host for log in fleet.logs] == ["n1", "n2"]
    assert all(log.tracks for log in fleet.logs)


def test_a_successor_takes_the_view_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job goes on with the run: its logs are what is shown from then on."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    folder = run_dir(tmp_path, "slurm-7")
    log_of(tmp_path, "n1").write(gpu(0))
    fleet = Fleet(target.resolve([str(folder)], {}))
    fleet.poll()
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "start", "attempt": 2, "job_id": "9"}\n')
    clock[0] += 5
    fleet.poll()
    assert [log.host for log in fleet.logs] == ["n1"]  # until there are others
    log_of(tmp_path, "n5", job="9").write(gpu(0))
    clock[0] += 5
    fleet.poll()
    assert [log.host for log in fleet.logs] == ["n5"]


def test_an_error_of_ours_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view goes on, and says so."""
    fleet = Fleet(Target(folder=str(tmp_path)))
    monkeypatch.setattr(fleet, "_poll", lambda: 1 / 0)
    fleet.poll()
    assert fleet.problem == "reading failed: ZeroDivisionError: division by zero"


def test_a_folder_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """It may come back."""
    fleet = Fleet(Target(folder=str(tmp_path / "gone")))
    fleet.poll()
    assert fleet.problem == "No such file or directory"


def test_the_newest_run_is_meant_where_nothing_is_named(tmp_path: Path) -> None:
    """In $DDP_OUT."""
    old, new = (run_dir(tmp_path, name) for name in ("slurm-9", "slurm-10"))
    os.utime(old / "events.jsonl", (1, 1))
    found = target.resolve([], {"DDP_OUT": str(tmp_path)})
    assert found.run_dir == str(new)
    assert found.folder == str(tmp_path)


def test_of_a_directory_the_newest_job_is_meant(tmp_path: Path) -> None:
    """By its logs; with its run directory, if there is one."""
    for job in ("7", "8"):
        log_of(tmp_path, "n1", job=job).write(gpu(0))
    os.utime(tmp_path / "slurm-7.n1.gutil", (1, 1))
    found = target.resolve([str(tmp_path)], {})
    assert (found.run_dir, found.job, found.name) == (None, "8", "slurm-8")
    assert [Path(log).name for log in found.logs([])] == ["slurm-8.n1.gutil"]
    run_dir(tmp_path, "slurm-8")
    assert target.resolve([str(tmp_path)], {}).run_dir == str(tmp_path / "slurm-8")


@pytest.mark.parametrize(("name", "logs"), [("slurm-7", ["slurm-7.n1.gutil"]), ("7", [])])
def test_a_run_that_has_not_begun_has_the_logs_of_the_job_in_its_name(
    tmp_path: Path, name: str, logs: list[str]
) -> None:
    """A name that its user gave is no job's id."""
    log_of(tmp_path, "n1", job="7").write(gpu(0))
    found = target.resolve([str(run_dir(tmp_path, name, job="7"))], {})
    assert [Path(log).name for log in found.logs([])] == logs


def test_a_directory_may_still_be_empty(tmp_path: Path) -> None:
    """Logs may come; without the path of one, nothing is guessed."""
    assert target.resolve([str(tmp_path)], {}).logs([]) == []
    with pytest.raises(UserError, match=r"watch must have a run to watch; found none in"):
        target.resolve([], {"DDP_OUT": str(tmp_path)})


def test_files_of_any_name_are_logs(tmp_path: Path) -> None:
    """As `dmon -f` was asked to name them; the name stands for the node."""
    copy = shutil.copy(SAMPLES[0], tmp_path / "node7.log")
    fleet = Fleet(target.resolve([str(copy)], {}))
    fleet.poll()
    assert [log.host for log in fleet.logs] == ["node7"]
    with pytest.raises(UserError, match=r"found nowhere: No such file or directory; name .gutil f"):
        target.resolve(["nowhere"], {})
    with pytest.raises(UserError, match=r"found .*; name for example out/slurm-123"):
        target.resolve([str(copy), str(tmp_path)], {})

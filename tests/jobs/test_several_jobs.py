"""`chain.sh` and `sweep.sh`: what is wrong with their words, or a grid, is one clear line."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.jobs.conftest import ROOT
from tests.jobs.test_hostile import unwritable

if TYPE_CHECKING:
    from conftest import Scripts

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--lr 1 2\n--lr 3\n", "found a second one for --lr"),
        ("--lr\n", "an option and its values"),
        ("--lr=0.1 0.01\n", "an option and its values; found '--lr=0.1 0.01'"),
        ("# nothing\n", "at least one line"),
    ],
)
def test_a_wrong_grid(scripts: Scripts, text: str, told: str) -> None:
    """A sweep whose grid is wrong submits nothing."""
    scripts.fake("sbatch", f"touch '{scripts.directory}/submitted'")
    grid = scripts.directory / "grid"
    grid.write_text(text)
    result = scripts.run("sweep.sh", str(grid))
    assert (result.code, told in result.err) == (64, True), result.err
    assert not list(scripts.directory.glob("submitted"))
    assert not list(scripts.directory.glob("out"))


def test_a_grid_of_another_editor(scripts: Scripts) -> None:
    """Windows' line ends are no part of a value."""
    scripts.fake("sbatch", 'cat "$DDP_SWEEP_FILE"')
    grid = scripts.directory / "grid"
    grid.write_bytes(b"--lr 0.1 0.2\r\n--seed 1\r\n")
    result = scripts.run("sweep.sh", str(grid))
    assert result.out.split("\n") == ["--lr 0.1 --seed 1 ", "--lr 0.2 --seed 1 ", ""]


def test_an_output_directory_of_a_sweep(scripts: Scripts) -> None:
    """As a job takes it, and the jobs find the points wherever they run."""
    scripts.fake("sbatch", 'echo "$DDP_OUT"; cd /; cat "$DDP_SWEEP_FILE"')
    grid = scripts.directory / "grid"
    grid.write_text("--lr 0.1\n")
    result = scripts.run("sweep.sh", str(grid), DDP_OUT="mine")
    assert result.out.split("\n") == [f"{scripts.directory}/mine", "--lr 0.1 ", ""]
    for out in ("~/x", str(unwritable(scripts.directory) / "x")):
        result = scripts.run("sweep.sh", str(grid), DDP_OUT=out)
        assert (result.code, "DDP_OUT must be" in result.err) == (64, True)
    assert not (scripts.directory / "~").exists()


def test_jobs_that_would_not_hear_of_their_settings(scripts: Scripts) -> None:
    """Names and points travel in the environment: a site's default of none is overruled."""
    scripts.fake("sbatch", 'echo 7; echo "$@" >>sbatch.calls')
    grid = scripts.directory / "grid"
    grid.write_text("--lr 0.1\n")
    for script, words in (("sweep.sh", [str(grid)]), ("chain.sh", ["name", "1"])):
        for option in ("--export=NONE", "--export"):
            result = scripts.run(script, *words, option, "ALL")
            assert (result.code, "--export must be left away" in result.err) == (64, True)
        assert scripts.run(script, *words, SBATCH_EXPORT="NONE").code == 0
    calls = (scripts.directory / "sbatch.calls").read_text().splitlines()
    assert len(calls) == 2
    assert all("--export=ALL" in call for call in calls)


def test_a_chain_that_cannot_be(scripts: Scripts) -> None:
    """What is wrong with its words, or with sbatch, is one line."""
    scripts.fake("sbatch", "exit 1")
    for words, told in (
        (["a/b", "3"], "must name the run"),
        (["name"], "must be the number of jobs"),
        (["name", "08"], "must be the number of jobs"),
        (["name", "2"], "found job 1 refused"),
    ):
        result = scripts.run("chain.sh", *words)
        assert result.code == 64
        assert told in result.err
    for script in ("chain.sh", "sweep.sh"):
        result = scripts.run(script, "--help")
        assert (result.code, f"jobs/{script} " in result.out) == (0, True)


def test_a_command_for_each_job(scripts: Scripts) -> None:
    """With one `--` or two: prelaunch.sh wants its own before a command only."""
    scripts.fake("sbatch", 'echo 7; echo "${@##*/}" >>sbatch.calls')
    grid = scripts.directory / "grid"
    grid.write_text("--lr 0.1\n")
    for script, words in (("sweep.sh", [str(grid)]), ("chain.sh", ["name", "1"])):
        for command in (["python", "a.py"], ["--", "python", "a.py"], ["--epochs", "3"], []):
            assert scripts.run(script, *words, "--", *command).code == 0
    calls = (scripts.directory / "sbatch.calls").read_text().splitlines()
    words = ["-- python a.py", "-- python a.py", "--epochs 3", ""]
    assert [call.partition("prelaunch.sh")[2].strip() for call in calls] == 2 * words


@pytest.mark.parametrize("script", ["chain.sh", "interactive.sh", "sweep.sh"])
def test_a_cdpath_of_the_users(scripts: Scripts, script: str) -> None:
    """By it cd finds our directory, and says where."""
    done = subprocess.run(
        [f"jobs/{script}", "--version"],
        cwd=ROOT,
        env=scripts.env | {"CDPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout[:4], done.stderr) == (0, b"ddp ", b"")


def test_a_chain_that_waits_for_another_job(scripts: Scripts) -> None:
    """Its first job does; the others wait for each other, or they would all start at once."""
    scripts.fake("sbatch", 'echo 7; echo "$@" >>sbatch.calls')
    assert scripts.run("chain.sh", "name", "2", "--dependency=afterok:3").code == 0
    calls = (scripts.directory / "sbatch.calls").read_text().splitlines()
    dependencies = [[w for w in call.split() if "--dep" in w][-1] for call in calls]
    assert dependencies == ["--dependency=afterok:3", "--dependency=afternotok:7"]


@pytest.mark.parametrize(("made", "left"), [(None, []), ("out", ["out"])])
def test_a_sweep_that_sbatch_refuses(scripts: Scripts, made: str | None, left: list[str]) -> None:
    """Leaves nothing behind: the directories that it made go with the points, no others."""
    scripts.fake("sbatch", "exit 1")
    grid = scripts.directory / "grid"
    grid.write_text("--lr 0.1\n")
    if made:
        (scripts.directory / made).mkdir()
    result = scripts.run("sweep.sh", str(grid), DDP_OUT="out/deep")
    assert (result.code, "found it refused" in result.err) == (64, True)
    assert [path.name for path in scripts.directory.glob("out")] == left
    assert not list(scripts.directory.glob("out/*"))

"""--check refuses what the run would refuse on the device at hand."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer import forked

REPOSITORY = Path(__file__).parents[2]
_NOT_ROOTS = "-dac_override,-dac_read_search"
"""Root's right to any path."""


def trainer(folder: Path, *options: str, module: str = "trainer", **env: str) -> tuple[int, str]:
    """Run it in `folder`, without GPUs and root's rights; its code, and its message."""
    caps = [f"--bounding-set={_NOT_ROOTS}", f"--inh-caps={_NOT_ROOTS}"]
    ended = subprocess.run(
        [
            *(["setpriv", *caps] if os.geteuid() == 0 else []),
            *(sys.executable, "-m", module, *options),
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""} | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (("--precision", "tf32"), {}),
        (("--global-batch-size", "100000"), {}),
        (("--workload", "fake-images", "--global-batch-size", "1025"), {}),
        (("--workload", "fake-images", "--model", "resnet51"), {}),
        (("--workload", "fake-images", "--image-size", "32", "--global-batch-size", "1"), {}),
        (("--workload", "lm", "--mock-tokens", "300"), {}),
        (("--memory-snapshot", "--profile", "1:2"), {}),
        (("--compile",), {"CXX": "no-compiler"}),
    ],
)
@pytest.mark.slow
def test_what_the_run_refuses_the_check_refuses(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    clean_env: dict[str, str],
    options: tuple[str, ...],
    env: dict[str, str],
) -> None:
    """The same line, code 64, and nothing is left behind."""
    printed, ended = tmp_path_factory.mktemp("printed"), []
    for name, words in (("checked", (*options, "--check")), ("run", options)):
        files = (printed / f"{name}.out", printed / f"{name}.err")
        rank = forked.start(words, clean_env | {"CUDA_VISIBLE_DEVICES": ""} | env, tmp_path, files)
        ended.append((rank.wait(120), files[1].read_text()))
    assert ended[0] == ended[1]
    assert ended[0][0] == 64
    assert ended[0][1].count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_job_checks_on_a_node_that_need_not_have_the_gpus(tmp_path: Path) -> None:
    """Its batch step may see none; the ranks look for themselves."""
    output = trainer(tmp_path, "--precision", "tf32", "--check", DDP_RUN_DIR=str(tmp_path / "run"))
    assert output == (0, "")


@pytest.mark.parametrize("place", ["/nowhere/step-5", "nowhere/checkpoints/step-5", "~/step-5"])
def test_another_runs_checkpoint_must_be_there(tmp_path: Path, place: str) -> None:
    """Before any rank starts, with the line that the ranks would end with."""
    code, message = trainer(tmp_path, "--resume", place, "--check", HOME=str(tmp_path))
    assert code == 64
    place = place.replace("~", str(tmp_path))
    assert f"--resume {place} must be a complete checkpoint; found none; name a folder" in message


def test_a_run_may_know_a_name_that_the_check_does_not(tmp_path: Path) -> None:
    """It is looked for in the run's own directory, which is not chosen yet."""
    assert trainer(tmp_path, "--resume", "step-5", "--check") == (0, "")
    (tmp_path / "other" / "step-5").mkdir(parents=True)
    assert trainer(tmp_path, "--resume", "other/step-5", "--check") == (0, "")


@pytest.mark.slow
def test_a_run_that_goes_on_no_longer_needs_what_it_began_with(tmp_path: Path) -> None:
    """A requeued job is checked with the command line that it was submitted with."""
    (tmp_path / "run" / "checkpoints" / "step-5").mkdir(parents=True)
    run_dir = str(tmp_path / "run")
    for option in ("--resume", "--init-from"):
        gone = (option, "gone/checkpoints/step-9", "--check")
        assert trainer(tmp_path, *gone)[0] == 64
        assert trainer(tmp_path, *gone, DDP_RUN_DIR=run_dir) == (0, "")


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A directory that nothing may be looked for in."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    yield folder
    folder.chmod(0o755)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("trainer", ("--data-dir", "{}")),
        ("trainer", ("--workload", "imagefolder", "--data-dir", "{}")),
        ("trainer", ("--workload", "lm", "--data-dir", "{}")),
        ("trainer", ("--workload", "lm", "--model", "{}")),
        ("trainer", ("--init-from", "{}")),
        ("trainer", ("--init-from", "{}.pt")),
        ("trainer", ("--resume", "{}")),
        ("trainer.inspect", ("{}",)),
        ("trainer.evaluate", ("{}",)),
        ("trainer.sample", ("{}", "--prompt", "a")),
        ("trainer.export", ("{}", "out")),
        ("trainer.tokenize", ("{}", "--out", "out")),
    ],
)
@pytest.mark.slow
def test_a_path_that_cannot_be_looked_at_is_one_line(
    closed: Path, module: str, options: tuple[str, ...]
) -> None:
    """One without permission, and one of more characters than a name can have."""
    for path in (str(closed / "x"), "x" * 300):
        named = [option.format(path) for option in options]
        code, message = trainer(closed.parent, *named, module=module)
        assert (code, message.count("\n")) == (64, 1), message
        assert list(closed.parent.iterdir()) == [closed]


@pytest.mark.slow
def test_a_user_that_is_none_has_no_checkpoint(tmp_path: Path) -> None:
    """~NAME/x is one line, with --check and without."""
    for check in ((), ("--check",)):
        code, message = trainer(tmp_path, "--resume", "~nosuchuser/x", *check)
        assert (code, message.count("\n")) == (64, 1), message


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    """One that is there, as one that is to be made in it."""
    folder = tmp_path / "out"
    folder.mkdir(mode=0o555)
    for out in (folder, folder / "run"):
        code, message = trainer(tmp_path, "--max-steps", "1", "--out", str(out))
        assert code == 64
        assert message.startswith(f"trainer: run directory {out} must be a directory that can be")


@pytest.mark.parametrize("kind", ["another user's", "a link to nothing"])
@pytest.mark.slow
def test_checkpoints_that_cannot_be_written_are_found_before_training(
    tmp_path: Path, kind: str
) -> None:
    """Not by the first save: hours of training would be lost."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True, mode=0o555)
    if kind != "another user's":
        folder.rmdir()
        folder.symlink_to("nowhere")
    code, message = trainer(tmp_path, "--max-steps", "1", "--out", "run")
    assert (code, message.count("\n")) == (64, 1), message
    assert f"{folder}'; give another --out" in message
    assert list((tmp_path / "run").iterdir()) == [folder]

"""--check refuses what the run would refuse on the device at hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def trainer(folder: Path, *options: str, **env: str) -> tuple[int, str]:
    """Run the trainer in `folder`, without GPUs; its code, and its message of what is wrong."""
    ended = subprocess.run(
        [sys.executable, "-m", "trainer", *options],
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
        (("--memory-snapshot", "--profile", "1:2"), {}),
        (("--compile",), {"CXX": "no-compiler"}),
    ],
)
@pytest.mark.slow
def test_what_the_run_refuses_the_check_refuses(
    tmp_path: Path, options: tuple[str, ...], env: dict[str, str]
) -> None:
    """The same line, code 64, and nothing is left behind."""
    checked = trainer(tmp_path, *options, "--check", **env)
    assert checked[0] == 64
    assert checked == trainer(tmp_path, *options, **env)
    assert not list(tmp_path.iterdir())


def test_a_job_checks_on_a_node_that_need_not_have_the_gpus(tmp_path: Path) -> None:
    """Its batch step may see none; the ranks look for themselves."""
    output = trainer(tmp_path, "--precision", "tf32", "--check", DDP_RUN_DIR=str(tmp_path / "run"))
    assert output == (0, "")

"""What a run says, where there is no room for words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.growing import json_lines
from trainer.text import LossyStream

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("redirect", [">/dev/full 2>&1", ">&- 2>&-"])
def test_a_run_survives_a_disk_that_is_full_of_words(
    clean_env: dict[str, str], tmp_path: Path, redirect: str
) -> None:
    """Stdout and stderr lie where nothing fits, or are closed: all else is as ever."""
    options = "--model mlp --global-batch-size 250 --log-every 5 --max-steps 10 --out"
    command = f'exec "$0" -m trainer {options} "$1" {redirect}'
    ended = subprocess.run(
        ["bash", "-c", command, sys.executable, str(tmp_path)],
        env=clean_env,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0
    assert (tmp_path / "checkpoints" / "step-10").is_dir()
    steps = [line["step"] for line in json_lines(tmp_path / "metrics.jsonl") if "loss" in line]
    assert steps == [5, 10]


def test_words_that_are_not_flushed_do_not_change_how_it_ends() -> None:
    """What a library printed without a flush is still in the buffer at the end."""
    code = "import trainer.__main__ as m; print('x'); m._end_at_once(64)"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stdout=full,
            check=False,
        )
    assert ended.returncode == 64


def test_only_a_reader_that_has_gone_is_reported(tmp_path: Path) -> None:
    """A full disk is not; and all else is asked of the stream itself."""
    with Path("/dev/full").open("w") as full:
        lossy = LossyStream(full)
        assert lossy.write("x" * 100_000) == 100_000
        lossy.writelines(["a", "b"])
        lossy.flush()
        assert lossy.fileno() == full.fileno()
        assert not lossy.isatty()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # its close must not fail
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        lossy = LossyStream(pipe)
        lossy.write("x")
        with pytest.raises(BrokenPipeError):
            lossy.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())
    with (tmp_path / "plain").open("w") as plain:
        print("said", file=LossyStream(plain))  # type: ignore[arg-type]
    assert (tmp_path / "plain").read_text() == "said\n"

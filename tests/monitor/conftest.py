"""A recorder as users run it, and the driver library it finds."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DATA = HERE / "data"
DEADLINE_S = 20.0


@pytest.fixture
def data() -> Path:
    """True dmon logs."""
    return DATA


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for a condition, with a deadline."""

    def wait(condition: Callable[[], object], limit_s: float = DEADLINE_S) -> None:
        deadline_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {limit_s} s"
            time.sleep(0.01)

    return wait


def _compile(directory: Path, *flags: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: the stand-in driver library cannot be built")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]
    command += [str(directory / "libnvidia-ml.so.1"), *flags, str(HERE / "nvml_standin.c")]
    subprocess.run(command, check=True)
    return directory


@dataclass(frozen=True)
class Driver:
    """A stand-in libnvidia-ml.so.1 and the file it follows."""

    library: Path
    script: Path

    @property
    def env(self) -> dict[str, str]:
        """What a process needs in its environment to find this driver."""
        return {"LD_LIBRARY_PATH": str(self.library), "NVML_STANDIN": str(self.script)}

    def does(self, *lines: str) -> None:
        """Let the driver behave so from its next call on."""
        beside = self.script.with_suffix(".new")
        beside.write_text("".join(f"{line}\n" for line in lines))
        beside.replace(self.script)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver of today."""
    return _compile(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver of yesterday: newer functions are not there at all."""
    return _compile(tmp_path_factory.mktemp("nvml-old"), "-DOLD_DRIVER")


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> Driver:
    """Two GPUs under a driver of today."""
    made = Driver(library, tmp_path / "driver.txt")
    made.does("gpus 2")
    return made


@pytest.fixture
def old_driver(old_library: Path, tmp_path: Path) -> Driver:
    """Two GPUs under a driver of yesterday."""
    made = Driver(old_library, tmp_path / "driver.txt")
    made.does("gpus 2")
    return made


@dataclass
class Recording:
    """A running `python -m monitor record`."""

    process: subprocess.Popen[str]
    out: Path

    def text(self) -> str:
        """What the log holds now."""
        return self.out.read_text() if self.out.exists() else ""

    def rows(self) -> list[str]:
        """The rows of the log now."""
        return [line for line in self.text().splitlines() if line.startswith(" ")]

    def end(self) -> tuple[int, str]:
        """Ask it to end; its exit code and what it said."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, said


@dataclass
class Bench:
    """Starts recorders, and leaves none behind."""

    directory: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, *options: object) -> list[str]:
        """The words of a `record` command."""
        return [sys.executable, "-m", "monitor", "record", *map(str, options)]

    def start(self, *options: object, env: dict[str, str] | None = None) -> Recording:
        """Start a recorder that writes job.gutil."""
        out = self.directory / "job.gutil"
        process = subprocess.Popen(
            self.command("--out", out, *options),
            env={**os.environ, **(env or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return Recording(process, out)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Start recorders; they are ended with the test."""
    made = Bench(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()

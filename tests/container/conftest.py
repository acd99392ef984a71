"""A host with a Slurm; a Docker engine, a base image with its own PyTorch, our image as a file."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.container.slurm_host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

ROOT = Path(__file__).resolve().parents[2]
BASE_DOCKERFILE = Path(__file__).with_name("base.Dockerfile")
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
BUILD_TIMEOUT_S = 900
PROGRAMS = ("docker", "mmdebstrap", "mksquashfs", "unsquashfs")
Completed = subprocess.CompletedProcess[str]


def _run(*command: str | Path, timeout: float = 120, **options: object) -> Completed:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [str(word) for word in command],
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,
    )


@pytest.fixture(scope="session")
def run() -> Callable[..., Completed]:
    """Run a command with its output captured; never raises for its exit code."""
    return _run


def _why_no_docker() -> str | None:
    if os.geteuid() != 0:
        return "building and mounting images needs root"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        return f"building images needs {', '.join(missing)}: run tests/provision.sh"
    if _run("docker", "info").returncode:
        return "no Docker engine answers: run tests/provision.sh"
    return None


@pytest.fixture(scope="session")
def docker() -> None:
    """Skip where no engine is."""
    reason = _why_no_docker()
    if reason:
        pytest.skip(reason)


def _pip_settings() -> tuple[str, Path | None]:
    """Give this machine's settings of pip for the image, and its folder of wheels, if any."""
    lines, wheels = [], None
    for line in _run(sys.executable, "-m", "pip", "config", "list").stdout.splitlines():
        name, _, value = line.partition("=")
        key, plain = name.split(".")[-1].lower().replace("_", "-"), value.strip("'\"")
        if key == "find-links":
            wheels = Path(plain) if Path(plain).is_dir() else None
        elif plain.startswith("file:"):
            continue  # a folder of this machine's, which the image does not see
        elif key in ("index-url", "extra-index-url", "trusted-host", "default-timeout"):
            lines.append(f"{'timeout' if key == 'default-timeout' else key} = {plain}")
    return "\n".join(["[global]", f"cert = {CA_BUNDLE}", *lines, ""]), wheels


@pytest.fixture(scope="session")
def base_image(docker: None, tmp_path_factory: pytest.TempPathFactory) -> str:  # noqa: ARG001
    """The tag of an image with Debian's Python and a PyTorch of its own; made once a machine."""
    settings, wheels = _pip_settings()
    content = hashlib.sha256(BASE_DOCKERFILE.read_bytes() + settings.encode()).hexdigest()
    tag = f"ddp-test-base:{content[:12]}"
    if _run("docker", "image", "inspect", tag).returncode == 0:
        return tag
    context = tmp_path_factory.mktemp("base")
    # For Debian 13's Python there is no build of this torch for CPUs alone.
    packages = "--include=ca-certificates,python3,python3-pip"
    unsynced = "--dpkgopt=force-unsafe-io"  # also where our image installs its compiler
    made = _run(
        *("mmdebstrap", "--variant=minbase", packages, unsynced),
        *("bookworm", context / "base.tar"),
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    shutil.copy(CA_BUNDLE, context / "ca-certificates.crt")
    (context / "pip.conf").write_text(settings)
    (context / "wheels").mkdir()
    for wheel in wheels.glob("torch-*.whl") if wheels else ():
        shutil.copy(wheel, context / "wheels")
    _build(tag, context, "--file", BASE_DOCKERFILE)
    return tag


def _build(tag: str, context: Path, *options: str | Path) -> None:
    """Build with the legacy builder, the host's network being the way to the package index."""
    built = _run(
        *("docker", "build", "--network", "host", "--tag", tag, *options, context),
        timeout=BUILD_TIMEOUT_S,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
    )
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]


@pytest.fixture(scope="session")
def image(base_image: str) -> str:
    """The tag of our image, on that base."""
    _build("ddp-test", ROOT, "--build-arg", f"BASE_IMAGE={base_image}")
    return "ddp-test"


@pytest.fixture(scope="session")
def squashfs(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our image as a squashfs file, in a folder with a space; compressed for speed."""
    file = tmp_path_factory.mktemp("a folder") / "the image.sqsh"
    made = _run(
        *(ROOT / "container/to_squashfs.sh", image, file),
        timeout=BUILD_TIMEOUT_S,
        # A umask of 077 must not lock the image's users out.
        preexec_fn=lambda: os.umask(0o077),
        env={**os.environ, "ENROOT_SQUASH_OPTIONS": "-comp zstd -Xcompression-level 1"},
    )
    assert made.returncode == 0, made.stderr
    return file


@pytest.fixture
def host(tmp_path: Path) -> Generator[Host]:
    """A host with a whole Slurm."""
    made = Host(tmp_path / "host")
    yield made
    made.close()

"""The image's install step, on stand-ins for what a base image brings; needs no engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_an_old_torch_in_the_base_is_refused(tmp_path: Path, run: Run) -> None:
    """A base image's torch below our bound is one clear line, and nothing replaces it."""
    root = tmp_path / "ddp"
    root.mkdir()
    (root / "pyproject.toml").write_text('[project]\ndependencies = ["torch>=2.11", "rich>=13"]\n')
    _fake_distribution(tmp_path / "site", "torch", "2.9.1a0+nv")
    ended = _install(tmp_path, run)
    assert ended.returncode == 64
    assert "torch must be 2.11 or later; found 2.9.1a0+nv" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_alpha_of_the_release_in_the_base_counts_as_the_release(
    tmp_path: Path, run: Run
) -> None:
    """Vendors build 2.11.0a0+…: pip would call it too old, and we keep it, pinned."""
    root = tmp_path / "ddp"
    root.mkdir()
    (root / "pyproject.toml").write_text(
        '[project]\ndependencies = ["torch>=2.11", "packaging>=1"]\n'
    )
    _fake_distribution(tmp_path / "site", "torch", "2.11.0a0+nv")
    _fake_distribution(tmp_path / "site", "packaging", "99.0")  # there already: no network
    ended = _install(tmp_path, run)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    held = (tmp_path / "venv/held-by-the-base-image.txt").read_text()
    assert held == "torch==2.11.0a0+nv\n"
    assert (tmp_path / "venv/requirements.txt").read_text() == "packaging>=1\n"


def test_a_torch_in_a_virtual_environment_of_the_base_is_kept(tmp_path: Path, run: Run) -> None:
    """NeMo's images and those made with uv have one, first on PATH: it is no less their torch."""
    root, base = tmp_path / "ddp", tmp_path / "base"
    root.mkdir()
    (root / "pyproject.toml").write_text(
        '[project]\ndependencies = ["torch>=2.11", "packaging>=1"]\n'
    )
    assert run("python3", "-m", "venv", "--without-pip", base).returncode == 0
    (site,) = base.glob("lib/python3*/site-packages")
    _fake_distribution(site, "torch", "2.13.0")
    _fake_distribution(site, "packaging", "99.0")
    ended = _install(tmp_path, run, PATH=f"{base}/bin:{os.environ['PATH']}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    held = (tmp_path / "venv/held-by-the-base-image.txt").read_text()
    assert held == "torch==2.13.0\n"
    assert "already satisfied: packaging" in ended.stdout


def _fake_distribution(site: Path, name: str, version: str) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("")
    (info / "INSTALLER").write_text("pip\n")


def _install(tmp_path: Path, run: Run, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the image's install step in a directory; `site` stands for the base's packages."""
    settings = {
        "DDP_INSTALL_ROOT": str(tmp_path / "ddp"),
        "DDP_INSTALL_VENV": str(tmp_path / "venv"),
        "PYTHONPATH": str(tmp_path / "site"),
    }
    return run(ROOT / "container/install.sh", "dependencies", env=os.environ | settings | env)

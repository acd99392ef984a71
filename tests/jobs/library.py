"""Parts of the scripts' library, by themselves: sourced into a bash, and asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def ask(parts: tuple[str, ...], script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a line with lib.sh and these parts of lib/, in this environment; it must end well."""
    files = ("lib.sh", *(f"lib/{part}.sh" for part in parts))
    sources = "".join(f"source {JOBS}/{file};" for file in files)
    done = subprocess.run(
        ["bash", "-euc", f"LOG_NAME=t; {sources} {script}"],
        env={"PATH": "/usr/bin:/bin"} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done

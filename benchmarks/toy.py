"""The README's toy: what a Llama learns of the standard library's source within three minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parent.parent
NUM_STEPS = 720
OPTIONS = (
    f"--workload lm --sequence-length 128 --global-batch-size 8 --max-steps {NUM_STEPS} "
    "--lr 4e-3 --warmup-steps 40 --schedule linear"
)
"""As the README has them."""


@dataclass(frozen=True, kw_only=True)
class Toy:
    """One run, by itself on the machine."""

    num_steps: int
    total_s: float
    """From the command to its end, with validation and checkpoint."""
    bits_per_byte: float
    """On files that it never saw."""


def measure(*, quick: bool) -> Toy:
    """Train once; `quick`: two steps, which teach nothing."""
    further = ["--max-steps", "2"] if quick else []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "toy"
        command = [sys.executable, "-P", "-m", "trainer", *OPTIONS.split(), *further]
        began_s = time.monotonic()
        subprocess.run(
            [*command, "--out", out],
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        total_s = time.monotonic() - began_s
        lines = (out / "events.jsonl").read_text(encoding="utf-8").splitlines()
    (ended,) = [event for event in map(json.loads, lines) if event["event"] == "summary"]
    summary = ended["summary"]
    return Toy(
        num_steps=summary["steps"], total_s=total_s, bits_per_byte=summary["test_bits_per_byte"]
    )

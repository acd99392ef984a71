"""Whether the trainer is right on this device: whole runs of `python -m trainer`."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks.on_gpu.case import CaseError

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.on_gpu.case import Place, Values

_LEAST_ACCURACY = 0.9
_PRECISIONS = ("tf32", "bf16", "fp16")
_OPTIONS = {
    "full": "--activation-checkpointing full",
    "selective": "--activation-checkpointing selective",
    "snapshots": "--snapshot-every 2",
    "sync": "--checkpoint-mode sync --checkpoint-every 20",
    "accumulated": "--micro-batch-size 8",
    "profiled": "--profile-steps 3:5 --memory-snapshot",
}
"""Options that change no loss, by the name of a run that has them."""
_MOST_OFF_PCT = 3.0
"""How far another precision's loss may be from that of fp32, and a compiled one's."""
_TEXT = "--workload lm --model mini --sequence-length 256 --global-batch-size 32 --max-steps 60"
_TOY_TEXT = (
    "--workload lm --mock-tokens 2000 --sequence-length 32 --global-batch-size 4 --max-steps 4"
)


class Training:
    """A run under way, in a process of its own: several may share the device."""

    def __init__(self, place: Place, name: str, *options: str, **env: str) -> None:
        self.run_dir = place.folder / name
        self._device = "cpu" if place.is_rehearsal else "cuda"
        self._log_path = place.folder / f"{name}.txt"
        command = [sys.executable, "-P", "-m", "trainer", "--out", str(self.run_dir), *options]
        print("$", " ".join(command), flush=True)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | env, stdout=log, stderr=subprocess.STDOUT
            )

    def finish(self) -> dict[str, Any]:
        """Await its end; return its summary. Raises CaseError if it is not a good one."""
        code = self._process.wait()
        output = self._log_path.read_text(errors="replace")
        print(output, flush=True)
        if code:
            last = (output.splitlines() or ["nothing"])[-1]
            raise CaseError(f"{self.run_dir.name} must end with 0; found {code}: {last}")
        if f" on {self._device}" not in output:
            raise CaseError(f"{self.run_dir.name} must train on {self._device}; see its output")
        return dict(self.events("summary")[-1]["summary"])

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of that name."""
        return events_of(self.run_dir, name)


def events_of(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """Return a run's events of that name, so far."""
    path = run_dir / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == name]


def mnist(place: Place) -> Values:
    """Train on the shipped digits."""
    options = ("--model", "mlp", "--max-steps", "40") if place.is_rehearsal else ()
    summary = Training(place, "mnist", *options).finish()
    least = 0.5 if place.is_rehearsal else _LEAST_ACCURACY
    if not summary["test_accuracy"] >= least:
        raise CaseError(f"accuracy must be {least} or more; found {summary['test_accuracy']}")
    return {
        "test_accuracy": summary["test_accuracy"],
        "samples_per_s": summary["samples_per_s"],
        "train_time_s": summary["train_time_s"],
        "peak_memory_mib": round(summary["peak_memory_bytes"] / 2**20, 1),
    }


def resume(place: Place) -> Values:
    """Stop two runs in their middle, start them again, and compare with those that never stopped.

    One has convolutions and dropout, the other attention in bf16.
    """
    most = 24
    kinds = {
        "digits": "--model cnn",
        "text": "--workload lm --model mini --mock-tokens 999999 --precision bf16",
    }
    if place.is_rehearsal:
        most = 6
        kinds = {"digits": "--model mlp", "text": f"{_TOY_TEXT} --precision bf16"}
    common = ["--schedule", "constant", "--log-every", "4", "--deterministic"]
    kinds["digits"] += " --dropout 0.3"
    given = {kind: [*words.split(), *common] for kind, words in kinds.items()}
    first = [
        Training(place, f"{kind}-{name}", *options, "--max-steps", str(num_steps))
        for kind, options in given.items()
        for name, num_steps in (("whole", most), ("pieces", most // 2))
    ]
    for training in first:
        training.finish()
    second = [
        Training(place, f"{kind}-pieces", *options, "--max-steps", str(most))
        for kind, options in given.items()
    ]
    for training in second:
        training.finish()
        begun = training.events("resume")[-1]["step"]
        if begun != most // 2:
            raise CaseError(f"the second piece must begin at step {most // 2}; found {begun}")
    counts = {
        f"{kind}_tensors": _compare(place.folder / f"{kind}-whole", place.folder / f"{kind}-pieces")
        for kind in kinds
    }
    return {"steps": most, **counts, "differing_tensors": 0}


def _compare(whole: Path, pieces: Path) -> int:
    """Return how many tensors the last checkpoints hold. Raises CaseError where any differs."""
    import torch  # noqa: PLC0415 -- the table of cases needs none

    from trainer.checkpoint import loading  # noqa: PLC0415 -- the same
    from trainer.checkpoint.lookup import find  # noqa: PLC0415 -- the same

    own, other = (
        loading.read_named(loading.read_index(find(path)), "") for path in (whole, pieces)
    )
    if own.keys() != other.keys():
        raise CaseError(f"both must hold the same tensors; found {own.keys() ^ other.keys()}")

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1).view(torch.uint8)

    differing = [name for name in own if not torch.equal(bits(own[name]), bits(other[name]))]
    if differing:
        raise CaseError(
            f"{whole.name} and {pieces.name} must be the same bit by bit; "
            f"found {len(differing)} of {len(own)} tensors that are not: {differing[:5]}"
        )
    return len(own)


def precision(place: Place) -> Values:
    """Train the same text in each precision at once."""
    names = ["bf16"] if place.is_rehearsal else [*_PRECISIONS, *_fp8()]
    options = (_TOY_TEXT if place.is_rehearsal else _TEXT).split()
    runs = {name: Training(place, name, *options, "--precision", name) for name in ("fp32", *names)}
    return _losses(runs, "fp32")


def _fp8() -> list[str]:
    """Return the name of 8 bits, if this GPU and what is installed have them."""
    import torch  # noqa: PLC0415 -- the table of cases needs none

    is_there = torch.cuda.get_device_capability() >= (8, 9) and find_spec("torchao")
    return ["fp8"] if is_there else []


def options(place: Place) -> Values:
    """Train the same text at once with each option that must change nothing of it."""
    words = (_TOY_TEXT if place.is_rehearsal else _TEXT).split()
    further = {"plain": "", **_OPTIONS}
    if place.is_rehearsal:
        further["accumulated"] = "--micro-batch-size 2"
        further["profiled"] = "--profile-steps 2:3"
    runs = {
        name: Training(place, name, *words, *more.split(), DDP_LAUNCH_ID="gpu.1.1")
        for name, more in further.items()
    }
    values = _losses(runs, "plain")
    if not runs["snapshots"].events("snapshot"):
        raise CaseError("--snapshot-every must keep some; found none", values)
    return values


def compiled(place: Place) -> Values:
    """Train the same text compiled and not. A rehearsal does not compile, which takes minutes."""
    options = (_TOY_TEXT if place.is_rehearsal else _TEXT).split()
    env = {"TORCHDYNAMO_DISABLE": "1"} if place.is_rehearsal else {}
    bf16 = (*options, "--precision", "bf16")
    runs = {
        "eager": Training(place, "eager", *bf16),
        "compiled": Training(place, "compiled", *bf16, "--compile", **env),
    }
    values = dict(_losses(runs, "eager"))
    values["compiled_start_s"] = runs["compiled"].events("ledger")[-1]["start_s"]
    return values


def _losses(runs: dict[str, Training], base: str) -> Values:
    """Return each run's last loss. Raises CaseError if one is too far from that of `base`."""
    losses = {name: run.finish()["final_loss"] for name, run in runs.items()}
    values = {f"{name}_loss": round(loss, 5) for name, loss in losses.items()}
    for name, loss in losses.items():
        off_pct = 100 * abs(loss / losses[base] - 1)
        if not (math.isfinite(loss) and off_pct <= _MOST_OFF_PCT):
            raise CaseError(
                f"the loss of {name} must be within {_MOST_OFF_PCT:g} % of {base}'s, "
                f"{losses[base]}; found {loss}",
                values,
            )
    return values

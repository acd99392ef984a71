"""Metrics of a run while it runs: metrics.jsonl, a log line or a live bar, TensorBoard."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rundir.events import time_text
from rundir.paths import METRICS
from trainer.telemetry.events import append_line
from trainer.telemetry.speed import Speed
from trainer.text import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trainer.telemetry.stragglers import SlowRank

_OPTIONAL = {"grad_norm", "rank_spread_pct", "slow_ranks"}
"""Left out of a line where they are not known, or there are none."""
_LONGEST_S = 10**13
"""A timedelta holds 10^9 days; a run without an end may ask for more."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """One log interval, over all ranks."""

    step: int
    total_steps: int
    """At which the run ends, unless something ends it before."""
    epoch: int
    loss: float
    lr: float
    samples_per_s: float
    data_wait_pct: float
    memory_mib: float
    train_time_s: float
    start_s: float = 0.0
    data_wait_s: float = 0.0
    """This sum and those below are over the attempt so far."""
    checkpoint_s: float = 0.0
    validation_s: float = 0.0
    slow_ranks: list[SlowRank] | None = None
    """None where no rank was slow."""
    rank_spread_pct: float | None = None
    """Of the ranks' own times, `Stragglers.spread_pct`; None where they are not known."""
    grad_norm: float | None = None
    """The gradient's global norm in the interval's last step, before clipping; None without."""
    speed: Speed = field(default_factory=Speed)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One pass over the held-out samples, over all ranks, each sample counted once."""

    step: int
    epoch: int
    test_loss: float
    test_accuracy: float | None
    """None where there is no right and wrong."""
    num_samples: int
    train_time_s: float
    derived: Mapping[str, float] = field(default_factory=dict)
    """The workload's own figures, by name."""


class Sink:
    """Takes metrics; this one drops them."""

    def interval(self, interval: Interval) -> None:
        """Report a log interval."""

    def validation(self, validation: Validation) -> None:
        """Report a validation."""

    def close(self) -> None:
        """Report nothing more."""


class MetricsFile(Sink):
    """metrics.jsonl; nothing is open between lines."""

    def __init__(self, path: Path, attempt: int) -> None:
        self._path = path
        self._attempt = attempt

    def interval(self, interval: Interval) -> None:
        """Append a line."""
        values = asdict(interval)
        known = {name: value for name, value in values.pop("speed").items() if value is not None}
        self._append(values | known)

    def validation(self, validation: Validation) -> None:
        """Append a line."""
        values = asdict(validation)
        derived = values.pop("derived")
        if validation.test_accuracy is None:
            del values["test_accuracy"]
        self._append(values | derived)

    def _append(self, values: dict[str, Any]) -> None:
        rounded = {
            k: round(v, 3) if k.endswith(("_s", "_pct", "_mib")) else v
            for k, v in values.items()
            if k not in _OPTIONAL or v not in (None, [])
        }
        head = {"time": time_text(time.time()), "attempt": self._attempt}
        append_line(self._path, head | rounded)


class LogLines(Sink):
    """A line per interval, for a log that is read later."""

    def __init__(self, started_step: int) -> None:
        self._started_step = started_step

    def interval(self, interval: Interval) -> None:
        """Print where we are, how fast, and how long it will take."""
        speed = "  ".join([f"{interval.samples_per_s:.0f} samples/s", *interval.speed.texts()])
        print(
            f"step {interval.step}/{interval.total_steps}  epoch {interval.epoch}  "
            f"loss {interval.loss:.4f}  lr {interval.lr:.2e}  "
            f"{speed}  data wait {interval.data_wait_pct:.0f} %  "
            f"memory {interval.memory_mib:.0f} MiB  eta {_eta(interval, self._started_step)}",
            flush=True,
        )

    def validation(self, validation: Validation) -> None:
        """Print loss and accuracy."""
        print(validation_line(validation), flush=True)


def _eta(interval: Interval, started_step: int) -> timedelta:
    """Return how long the rest takes at the pace of this attempt, which began at a step."""
    num_done = max(1, interval.step - started_step)
    remaining_s = (interval.total_steps - interval.step) * interval.train_time_s / num_done
    return timedelta(seconds=round(min(remaining_s, _LONGEST_S)))


class LiveBar(Sink):
    """A bar for a person who watches; drawn at log intervals, never per step."""

    def __init__(self, total_steps: int, started_step: int) -> None:
        from rich import progress  # noqa: PLC0415 -- only on a terminal

        self._started_step = started_step
        self._progress = progress.Progress(
            progress.TextColumn("epoch {task.fields[epoch]}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("loss {task.fields[loss]:.4f}"),
            progress.TextColumn("{task.fields[rate]:.0f} samples/s"),
            # Not rich's own: it forgets what is older than 30 s, and an interval may be longer.
            progress.TextColumn("eta {task.fields[eta]}"),
            auto_refresh=False,
        )
        self._task = self._progress.add_task(
            "",
            total=total_steps,
            completed=started_step,
            epoch=1,
            loss=float("nan"),
            rate=0.0,
            eta="-",
        )
        self._progress.start()

    def interval(self, interval: Interval) -> None:
        """Move the bar."""
        self._progress.update(
            self._task,
            completed=interval.step,
            epoch=interval.epoch,
            loss=interval.loss,
            rate=interval.samples_per_s,
            eta=_eta(interval, self._started_step),
            refresh=True,
        )

    def validation(self, validation: Validation) -> None:
        """Print a line above the bar."""
        self._progress.console.print(validation_line(validation), highlight=False)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()


class TensorBoard(Sink):
    """TensorBoard's event files."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 -- slow, and only if asked

        self._writer: Any = SummaryWriter(str(folder))

    def interval(self, interval: Interval) -> None:
        """Write the curves of training."""
        for name in ("loss", "lr", "samples_per_s", "data_wait_pct", "memory_mib"):
            self._writer.add_scalar(f"train/{name}", getattr(interval, name), interval.step)
        for name, value in asdict(interval.speed).items():
            if value is not None:
                self._writer.add_scalar(f"train/{name}", value, interval.step)

    def validation(self, validation: Validation) -> None:
        """Write the curves of validation."""
        self._writer.add_scalar("test/loss", validation.test_loss, validation.step)
        if validation.test_accuracy is not None:
            self._writer.add_scalar("test/accuracy", validation.test_accuracy, validation.step)
        for name, value in validation.derived.items():
            self._writer.add_scalar(name.replace("_", "/", 1), value, validation.step)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class Sinks:
    """All of them at once; none on ranks other than 0: the null object."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks

    def interval(self, interval: Interval) -> None:
        """Report to each."""
        self._each(lambda sink: sink.interval(interval))

    def validation(self, validation: Validation) -> None:
        """Report to each."""
        self._each(lambda sink: sink.validation(validation))

    def close(self) -> None:
        """Close each."""
        self._each(lambda sink: sink.close())

    def _each(self, report: Callable[[Sink], None]) -> None:
        """Drop one that cannot write: that is reported once, and training goes on.

        It is not even closed: that would be to write what it still holds.
        """
        for sink in list(self._sinks):
            try:
                report(sink)
            except OSError as error:
                self._sinks.remove(sink)
                _report_loss(type(sink).__name__, error)


def open_sinks(
    run_dir: Path, *, attempt: int, started_step: int, total_steps: int, tensorboard: bool
) -> Sinks:
    """Open the sinks of rank 0: a live bar on a terminal, log lines elsewhere."""
    on_terminal = sys.stdout.isatty()
    sinks: list[Sink] = [MetricsFile(run_dir / METRICS, attempt)]
    sinks.append(LiveBar(total_steps, started_step) if on_terminal else LogLines(started_step))
    if tensorboard:
        try:
            sinks.append(TensorBoard(run_dir / "tensorboard"))
        except OSError as error:
            _report_loss(TensorBoard.__name__, error)
    return Sinks(sinks)


def _report_loss(name: str, error: OSError) -> None:
    with contextlib.suppress(BrokenPipeError):  # its reader may be the one that has gone
        warn(f"no more metrics to {name} in this attempt: {error}")


def figures_of(values: Mapping[str, float | None]) -> list[str]:
    """Describe the figures of a validation that are known, by their names in metrics.jsonl."""
    return [
        f"test accuracy {100 * value:.2f} %"
        if name == "test_accuracy"
        else f"{name.replace('_', ' ')} {value:.4f}"
        for name, value in values.items()
        if value is not None
    ]


def validation_line(validation: Validation) -> str:
    """Describe a validation in one line."""
    named = {"test_loss": validation.test_loss, "test_accuracy": validation.test_accuracy}
    figures = figures_of({**named, **validation.derived})
    return (
        f"step {validation.step}  epoch {validation.epoch}  {'  '.join(figures)} "
        f"of {validation.num_samples}"
    )

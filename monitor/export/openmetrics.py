"""Metrics as text that Prometheus reads: families of samples, in either of its two formats.

Prometheus text 0.0.4 is what node_exporter's textfile collector reads. OpenMetrics 1.0 is its
successor: a counter's family has no `_total`, units have lines, and `# EOF` ends the text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Labels = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TOTAL = "_total"
_UNITS = ("ratio", "bytes", "seconds", "joules", "watts", "celsius", "hertz")
_EXACT = 2**53
_ESCAPED = {"\\": r"\\", "\n": r"\n", '"': r"\""}


@dataclass(frozen=True, slots=True)
class Metric:
    """A family: its name is in base units, and ends in `_total` if it is a counter."""

    name: str
    help: str
    """One sentence."""

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name  # noqa: S101 - ours alone to break

    @property
    def is_counter(self) -> bool:
        """Whether it only grows, but for a new start from 0."""
        return self.name.endswith(_TOTAL)


@dataclass
class Metrics:
    """Samples by family; each set of labels once in a family, the last value put there."""

    _families: dict[Metric, dict[Labels, float]] = field(default_factory=dict)

    def put(self, metric: Metric, labels: Mapping[str, str | None], value: float | None) -> None:
        """Add a sample, unless there is no reading; a label without a value is left out."""
        if value is None or math.isnan(value):
            return
        key = tuple((name, text) for name, text in labels.items() if text)
        self._families.setdefault(metric, {})[key] = value

    def names(self) -> list[str]:
        """Name the families that have samples."""
        return sorted(metric.name for metric in self._families)

    def prometheus(self) -> str:
        """Write Prometheus text 0.0.4."""
        return "".join(
            f"# HELP {metric.name} {_escaped(metric.help, quotes=False)}\n"
            f"# TYPE {metric.name} {'counter' if metric.is_counter else 'gauge'}\n"
            f"{''.join(_lines(metric.name, samples))}"
            for metric, samples in self._sorted()
        )

    def openmetrics(self) -> str:
        """Write OpenMetrics 1.0."""
        return "".join([*map(_openmetrics, self._sorted()), "# EOF\n"])

    def _sorted(self) -> list[tuple[Metric, dict[Labels, float]]]:
        return sorted(self._families.items(), key=lambda item: item[0].name)


def _openmetrics(family: tuple[Metric, Mapping[Labels, float]]) -> str:
    metric, samples = family
    name = metric.name.removesuffix(_TOTAL)
    unit = next((unit for unit in _UNITS if name.endswith(f"_{unit}")), None)
    head = f"# TYPE {name} {'counter' if metric.is_counter else 'gauge'}\n"
    if unit:
        head += f"# UNIT {name} {unit}\n"
    head += f"# HELP {name} {_escaped(metric.help)}\n"
    return head + "".join(_lines(metric.name, samples))


def _lines(name: str, samples: Mapping[Labels, float]) -> Iterator[str]:
    for labels, value in samples.items():
        yield f"{name}{_labels(labels)} {_number(value)}\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(text: str, *, quotes: bool = True) -> str:
    """Escape what would end the text; HELP of 0.0.4 takes quotes as they are."""
    whole = text.encode("utf-8", "replace").decode()  # a name of a file need not be UTF-8
    return "".join(_ESCAPED[c] if c in _ESCAPED and (quotes or c != '"') else c for c in whole)


def _number(value: float) -> str:
    """Write a number: whole ones without a fraction, others as short as they read back."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    is_whole = float(value).is_integer() and abs(value) < _EXACT
    return str(int(value)) if is_whole else repr(float(value))

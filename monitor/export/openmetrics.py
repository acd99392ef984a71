"""Metrics for Prometheus, written by prometheus-client: families of samples, in either format.

Prometheus text 0.0.4 is what node_exporter's textfile collector reads. OpenMetrics 1.0 is its
successor: a counter's family has no `_total`, units have lines, and `# EOF` ends the text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import exposition, metrics_core
from prometheus_client.openmetrics import exposition as openmetrics_exposition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Labels = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TOTAL = "_total"
_UNITS = ("ratio", "bytes", "seconds", "joules", "watts", "celsius", "hertz")


@dataclass(frozen=True, slots=True)
class Metric:
    """A family: its name is in base units, and ends in `_total` if it is a counter."""

    name: str
    help: str
    """One sentence."""

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name  # noqa: S101 - ours alone to break


@dataclass
class Metrics:
    """Samples by family, as prometheus-client collects them; of equal labels the last value."""

    _families: dict[Metric, dict[Labels, float]] = field(default_factory=dict)

    def put(self, metric: Metric, labels: Mapping[str, str | None], value: float | None) -> None:
        """Add a sample, unless there is no reading; a label without a value is left out."""
        if value is None or math.isnan(value):
            return
        # a file's name may be any bytes, and is then no UTF-8
        known = {name: text.encode("utf-8", "replace") for name, text in labels.items() if text}
        key = tuple((name, text.decode()) for name, text in known.items())
        self._families.setdefault(metric, {})[key] = value

    def prometheus(self) -> str:
        """Write Prometheus text 0.0.4."""
        return exposition.generate_latest(self).decode()

    def openmetrics(self) -> str:
        """Write OpenMetrics 1.0."""
        text: bytes = openmetrics_exposition.generate_latest(self)  # type: ignore[no-untyped-call]
        return text.decode()

    def collect(self) -> Iterator[metrics_core.Metric]:
        """Give the families as prometheus-client has them."""
        for metric, samples in sorted(self._families.items(), key=lambda item: item[0].name):
            name = metric.name.removesuffix(_TOTAL)
            unit = next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")
            kind = "counter" if metric.name.endswith(_TOTAL) else "gauge"
            family = metrics_core.Metric(name, metric.help, kind, unit)
            for labels, value in samples.items():
                family.add_sample(metric.name, dict(labels), value)
            yield family

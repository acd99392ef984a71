"""Collects metrics of logs and runs, as a scrape does."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from monitor.export import gpus, metrics, run
from monitor.export.metrics import Collector
from monitor.export.openmetrics import Metric

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOW_S = NOW.timestamp()
Samples = dict[str, list[tuple[dict[str, str], float]]]


def collect(*paths: Path, max_age_s: float | None = None, now_s: float = NOW_S) -> Samples:
    """Collect once; samples by name. Both texts say the same."""
    made = Collector([str(path) for path in paths], max_age_s).collect(now_s)
    plain = families(text_string_to_metric_families(made.prometheus()))
    assert families(openmetrics.text_string_to_metric_families(made.openmetrics())) == plain
    return plain


def every_metric() -> list[Metric]:
    """All that may be exported."""
    values = (value for module in (gpus, run, metrics) for value in vars(module).values())
    single = [value for value in values if isinstance(value, Metric)]
    of_columns = [metric for _, metric in (*gpus.GPU_METRICS, *gpus.NODE_METRICS)]
    return [*single, *of_columns, *(metric for _, _, metric in run.KEYS)]


def families(parsed: Any) -> Samples:
    """Samples by name."""
    found: Samples = {}
    for sample in (sample for family in parsed for sample in family.samples):
        found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from monitor.export.openmetrics import Metric, Metrics

GAUGE = Metric("ddp_test_bytes", 'How "many" there are: a \\ b.')
COUNTER = Metric("ddp_test_errors_total", "Errors.")
ANY_TEXT = st.text(min_size=1)
AWKWARD = st.text(st.sampled_from('a"\\\n{},= \t#'), min_size=1)
LABELS = st.dictionaries(st.sampled_from(["job", "node", "uuid"]), ANY_TEXT | AWKWARD)
NUMBERS = st.floats(allow_nan=False)
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Where hypothesis runs for the first time it draws up its table of characters."""


@PATIENT
@given(labels=LABELS, value=NUMBERS)
def test_prometheus_text_reads_back(labels: dict[str, str], value: float) -> None:
    """Whatever a label's value is, quotes, backslashes and newlines included, and any number."""
    metrics = Metrics()
    metrics.put(GAUGE, labels, value)
    metrics.put(COUNTER, labels, 3)
    text = metrics.prometheus()
    gauge, counter = text_string_to_metric_families(text)
    assert (gauge.name, gauge.type, counter.type) == ("ddp_test_bytes", "gauge", "counter")
    assert gauge.documentation == GAUGE.help
    assert (gauge.samples[0].labels, gauge.samples[0].value) == (labels, value)
    assert (counter.samples[0].name, counter.samples[0].value) == ("ddp_test_errors_total", 3)
    assert "# EOF" not in text.splitlines()[-1]


@PATIENT
@given(labels=LABELS, value=NUMBERS)
def test_openmetrics_reads_back(labels: dict[str, str], value: float) -> None:
    """The same by the strict parser: families, units and the end."""
    metrics = Metrics()
    metrics.put(GAUGE, labels, value)
    metrics.put(COUNTER, labels, 3)
    text = metrics.openmetrics()
    gauge, counter = openmetrics.text_string_to_metric_families(text)
    assert (gauge.name, gauge.type, gauge.unit) == ("ddp_test_bytes", "gauge", "bytes")
    assert (counter.name, counter.type) == ("ddp_test_errors", "counter")
    assert gauge.documentation == GAUGE.help
    assert (gauge.samples[0].labels, gauge.samples[0].value) == (labels, value)
    assert counter.samples[0].name == "ddp_test_errors_total"
    assert text.endswith("# EOF\n")


def test_what_has_no_reading_is_absent() -> None:
    """No sample, and no family without samples; an empty label is no label."""
    metrics = Metrics()
    metrics.put(GAUGE, {}, None)
    metrics.put(GAUGE, {}, math.nan)
    assert (metrics.prometheus(), metrics.openmetrics()) == ("", "# EOF\n")
    metrics.put(GAUGE, {"job": None, "user": "", "node": "n1"}, 0)
    assert metrics.prometheus().splitlines()[2:] == ['ddp_test_bytes{node="n1"} 0.0']


def test_a_series_stands_there_once() -> None:
    """Twice the same labels would cost node_exporter the whole file: the last one counts."""
    metrics = Metrics()
    metrics.put(GAUGE, {"node": "n1"}, 1)
    metrics.put(GAUGE, {"node": "n1"}, 2)
    assert metrics.prometheus().splitlines()[2:] == ['ddp_test_bytes{node="n1"} 2.0']


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.29, "0.29"),
        (64424509440, "6.442450944e+10"),
        (1795265141.5531032, "1.7952651415531032e+09"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (1e300, "1e+300"),
        (-0.5, "-0.5"),
    ],
)
def test_numbers_are_as_short_as_they_read_back(value: float, text: str) -> None:
    """As Go writes them."""
    metrics = Metrics()
    metrics.put(GAUGE, {}, value)
    assert metrics.prometheus().splitlines()[-1] == f"ddp_test_bytes {text}"


def test_a_name_that_is_not_utf8_is_still_text() -> None:
    """A file's name may be any bytes; the text is UTF-8."""
    metrics = Metrics()
    metrics.put(GAUGE, {"node": "n\udcff"}, 1)
    assert 'node="n?"' in metrics.prometheus()


def test_a_metric_without_a_sound_name_is_our_mistake() -> None:
    """Prometheus takes letters, digits and underscores."""
    with pytest.raises(AssertionError):
        Metric("Bad-Name", "No.")

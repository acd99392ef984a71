"""The examples for Prometheus and Grafana speak of what the exporter writes."""

import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from monitor import cli
from monitor.export import export as command
from monitor.logs.throttling import NAMES
from tests.monitor.collected import every_metric

EXAMPLES = Path(__file__).parents[3] / "examples"
RULES = (EXAMPLES / "prometheus" / "ddp-alerts.yml").read_text()
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "grafana" / "ddp.json").read_text())
README = (EXAMPLES / "prometheus" / "README.md").read_text()
UNIT = (EXAMPLES / "prometheus" / "ddp-export.service").read_text()

FUNCTIONS = {
    *("time", "avg_over_time", "increase", "delta", "changes"),
    *("sum", "avg", "max", "by", "on", "and", "label_values"),
}
"""What we use of PromQL, checked by hand with promtool and a Prometheus, and of Grafana."""

LABELS = {
    *("job", "user", "node", "gpu", "uuid", "rank", "name", "driver", "reason", "event", "xid"),
    *("run", "spent_on", "state"),
}


def rules() -> list[str]:
    """The expressions of the alerts."""
    return re.findall(r"^ +expr: (.+)$", RULES, re.MULTILINE)


def queries() -> list[str]:
    """The expressions of the dashboard."""
    targets = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    variables = [v["definition"] for v in DASHBOARD["templating"]["list"] if "definition" in v]
    notes = [note["expr"] for note in DASHBOARD["annotations"]["list"]]
    return [target["expr"] for target in targets] + variables + notes


@pytest.mark.parametrize("expression", [*rules(), *queries()])
def test_every_metric_label_and_function_exists(expression: str) -> None:
    """Names in quotes aside, each word is a metric, a label or a function that we know."""
    bare = re.sub(r'"[^"]*"', "", expression)
    words = set(re.findall(r"(?<![\w$])[a-z_]\w+", bare)) - {"ms", "m", "h"}
    metrics = {word for word in words if word.startswith("ddp_")}
    assert metrics
    assert metrics <= {metric.name for metric in every_metric()}
    assert words - metrics <= FUNCTIONS | LABELS
    assert bare.count("(") == bare.count(")")
    assert bare.count("{") == bare.count("}")


def test_values_of_labels_are_those_that_are_written() -> None:
    """A reason that is never written would never alert."""
    reasons = set(re.findall(r'reason=~"([^"]+)"', RULES)[0].split("|"))
    assert reasons < {reason.replace(" ", "_") for reason in NAMES.values()}


def test_each_alert_has_a_name_of_its_own_and_says_what_and_where() -> None:
    """All keys that a rule needs, in its place."""
    alerts = RULES.split("- alert: ")[1:]
    assert len(alerts) == len(rules()) == len({alert.split("\n")[0] for alert in alerts})
    for alert in alerts:
        keys = re.findall(r"^ {8,}(\w+):", alert, re.MULTILINE)
        assert [key for key in keys if key != "for"] == [
            *("expr", "labels", "severity", "annotations", "summary", "description")
        ]
        assert "{{ $labels." in alert
        assert re.search(r"severity: (warning|critical)\n", alert)
    for wanted in ("Idle", "Lost", "Xid", "Ecc", "NoStep", "Throttled", "DiskNearlyFull"):
        assert f"alert: Ddp{wanted}" in RULES or f"alert: DdpGpu{wanted}" in RULES


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """Panels with ids, places that do not overlap, and the data source one chooses."""
    assert DASHBOARD["schemaVersion"] >= 36
    assert {"title", "uid", "panels", "templating", "time"} <= set(DASHBOARD)
    variables = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "node"]
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("stat", "timeseries", "table")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        ids = [target["refId"] for target in panel["targets"]]
        assert ids
        assert len(set(ids)) == len(ids)
        legends = " ".join(target["legendFormat"] for target in panel["targets"])
        assert set(re.findall(r"{{(\w+)}}", legends)) <= LABELS


def test_the_commands_of_the_examples_run(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the page and of the unit, with other paths."""
    commands = re.findall(r"python -m (monitor export .+)", README + UNIT)
    assert len(commands) == 3
    for line in commands:
        words = shlex.split(line.removeprefix("monitor "))
        words = [str(data) if word == "/shared/out" else word for word in words]
        words[words.index("--out") + 1] = str(tmp_path / "ddp.prom")
        options = cli._parser(words[0]).parse_args(words[1:])  # noqa: SLF001 - --follow never ends
        assert options.run is command.run
        assert options.follow in (None, 15)
        if options.follow is None:
            monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process is the tests'
            assert cli.main(words) == 0
            assert (tmp_path / "ddp.prom").stat().st_size

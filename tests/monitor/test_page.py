"""`python -m monitor html`: what is in the page, without a browser."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor import cli
from monitor.errors import UserError
from monitor.logs import gutil, series
from monitor.logs.sample import GpuSample, HostSample, Row
from monitor.logs.series import GpuSeries, Run
from monitor.page import data as page_data
from monitor.page import html as page_html
from monitor.page import table
from monitor.plot import metrics as plot_metrics
from tests.monitor import made_runs
from tests.monitor.reported import NOON

ROOT = Path(__file__).resolve().parents[2]
BEGIN_S = 1_795_000_000.0
HOSTILE = (
    "n1</script><script>window.hacked=1</script><img src=x onerror='hacked=1'>{{data}}\u2028&amp;"
)


def gpu(host: str = "n1", index: int | None = 0, **columns: object) -> GpuSeries:
    """A GPU's readings, one a second."""
    values = {name: np.array(column, np.float32) for name, column in columns.items()}
    count = len(next(iter(values.values())))
    time_s = BEGIN_S + np.arange(1.0, count + 1)
    return GpuSeries(host, index, "7", time_s, values, {"utc_offset": "+01:00"})


class Page(HTMLParser):
    """The tags of a page, its scripts, and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember it."""
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        """Leave it."""
        del tag
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Collect scripts."""
        if self._inside == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> Any:
        """The payload."""
        return json.loads(self.scripts[0])


def test_one_file_that_asks_for_nothing() -> None:
    """No address, no import, no link but one within the page; a policy that forbids the rest."""
    text = page_html.page(page_data.payload(Run("r", (gpu(sm=[1, 2, 3]),)), None))
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|\bfetch\(|XMLHttp|import\(", text)
    fetching = {"src", "srcset", "data", "action", "poster", "background"}
    assert not any(fetching & set(attributes) for _, attributes in page.tags)
    assert all((a.get("href") or "#").startswith("#") for _, a in page.tags)
    assert not any(tag in {"link", "iframe", "object", "embed", "img"} for tag, _ in page.tags)
    policy = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_the_page_in_docs_is_of_these_scripts_and_styles() -> None:
    """`make pictures page` makes it anew: it would go on showing what the sources no longer do."""
    shown = (ROOT / "docs/page.html").read_text(encoding="utf-8")
    made = page_html.page({"name": "x"})
    inlined = re.compile(r"<(style|script)>(.*?)</", re.DOTALL)
    assert len(inlined.findall(made)) == 2
    assert inlined.findall(shown) == inlined.findall(made)


def test_hostile_names_stay_text() -> None:
    """A name cannot end the script, begin a tag, or stand in for a part of the page."""
    payload = page_data.payload(Run(HOSTILE, (gpu(HOSTILE, sm=[1, 2, 3]),)), None)
    page = Page(page_html.page(payload))
    assert len(page.scripts) == 2
    assert not any(tag == "img" for tag, _ in page.tags)
    assert page.data["rows"] == [[HOSTILE, 0]]
    assert page.data["name"].startswith(HOSTILE)


def unpacked(metric: dict[str, Any], shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """As the page's script does it."""
    kind = "<u2" if metric["wide"] else "u1"
    levels = np.frombuffer(base64.b64decode(metric["data"]), kind).reshape(shape).astype(float)
    levels[levels == (65535 if metric["wide"] else 255)] = np.nan
    return np.asarray(metric["low"] + levels * metric["step"])


@pytest.mark.parametrize("most", [10**6, 1])
def test_readings_come_back(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Whole percents, degrees and kinds of throttling exactly, watts to a 250th; gaps as gaps."""
    monkeypatch.setattr(page_data, "_FEW_CELLS", most)
    columns = {
        "sm": [0, 57, np.nan, 100], "pwr": [70, 699, np.nan, 300], "gtemp": [31, 32, np.nan, 90],
        "throt": [0, 4, np.nan, 32],
    }  # fmt: skip
    payload = page_data.payload(Run("r", (gpu(**columns),)), None)
    found = {metric["name"]: unpacked(metric, (1, 4))[0] for metric in payload["metrics"]}
    np.testing.assert_array_equal(np.rint(found["util"]), columns["sm"])
    np.testing.assert_array_equal(np.rint(found["temp"]), columns["gtemp"])
    np.testing.assert_array_equal(np.rint(found["throttle"]), [0, 1, np.nan, 2])
    np.testing.assert_allclose(found["power"], columns["pwr"], atol=2)


def test_a_large_fleet_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins grow longer until all cells together fit; what fits no page is refused."""
    fleet = tuple(gpu(f"n{i}", sm=np.full(900, i % 100)) for i in range(40))
    monkeypatch.setattr(page_data, "MAX_CELLS", 40 * 5 * 100)
    payload = page_data.payload(Run("r", fleet), None)
    assert payload["axis"]["bins"] == 100
    monkeypatch.setattr(page_data, "_MAX_ROWS", 39)
    with pytest.raises(UserError, match="found 40"):
        page_data.payload(Run("r", fleet), None)


def test_the_table_tells_what_the_samples_tell() -> None:
    """Means of all samples, peaks, shares; nothing known is None and not 0."""
    metrics = plot_metrics.named("util,memory,temp,throttle")
    one = gpu(sm=[0, 100, np.nan], fb=[1024, 2048, 1], gtemp=[1, 2, np.nan], throt=[0, 4, 4])
    two = gpu("n2", sm=[np.nan] * 3)
    found = table.numbers([one, two], metrics, [("n1", 0), ("n2", 0)])
    assert found[0] == [50, 50, 2, 2, pytest.approx(66.67, abs=0.01), 0]
    assert found[1] == [None, None, None, None, None, 100]
    (either,) = table.numbers([gpu(sm=[90, 0], smavg=[4, 4])], metrics[:1], [("n1", 0)])
    assert either[1] == 50, "busy as in the report: by sm or smavg"
    headings = [column["title"] for column in table.columns(metrics)]
    assert headings == [
        "mean utilisation", "busy", "memory peak", "hottest", "throttled", "no reading",
    ]  # fmt: skip


def test_gpus_that_swapped_their_indices_have_a_row_each() -> None:
    """At a requeue: readings, table and findings are by the last index."""
    hours_s = made_runs.BEGIN_S + made_runs.STEP_S * np.arange(240) + 3600 * np.arange(2)[:, None]
    swapped = [
        replace(made_runs.gpu(index, time_s=hour_s, sm=0 if uuid == "A" else 95), uuid=uuid)
        for hour_s, uuids in zip(hours_s, ("AB", "BA"), strict=True)
        for index, uuid in enumerate(uuids)
    ]
    payload = page_data.payload(made_runs.run(*swapped), None)
    util = unpacked(payload["metrics"][0], (2, payload["axis"]["bins"]))
    assert [set(np.rint(row)) for row in util] == [{95}, {0}]
    assert [row[0] for row in payload["table"]] == [95, 0]
    found = page_data.findings(made_runs.run(*swapped), payload["axis"])
    assert [one["where"] for one in found if one["rule"] == "idle"] == ["n1 GPU 1"]


def test_a_node_without_a_gpu_has_a_row(tmp_path: Path) -> None:
    """Its host's CPUs and memory are the page."""
    payload = page_data.payload(Run("r", (gpu(index=None, cpu=[3, 4], hmem=[10, 20]),)), None)
    assert payload["rows"] == [["n1", None]]
    assert [metric["name"] for metric in payload["metrics"]] == ["cpu", "hostmem"]
    assert payload["table"][0][0] == 3.5
    del tmp_path


def test_a_run_without_logs_shows_its_training() -> None:
    """Loss, throughput and events are enough."""
    line = {"time": "2026-11-21T10:00:00Z", "step": 1, "loss": 2.0, "samples_per_s": 5.0}
    later = line | {"time": "2026-11-21T10:01:00Z", "step": 2}
    payload = page_data.payload(Run("r", (), metrics=(line, later)), None)
    assert [curve["name"] for curve in payload["curves"]] == ["training loss", "throughput"]
    far = tuple(one | {"step": 1_234_560 + one["step"]} for one in (line, later))
    curves = page_data.payload(Run("r", (), metrics=far), None)["curves"]
    assert curves[0]["step"] == [1_234_561, 1_234_562]
    with pytest.raises(UserError, match="must hold readings"):
        page_data.payload(Run("r", (gpu(sm=[np.nan, np.nan]),)), None)


def test_true_logs_make_a_page(tmp_path: Path, data: Path) -> None:
    """The command writes one file; a lost GPU has gaps; the title is the user's."""
    out = tmp_path / "page.html"
    logs = str(data / "pumt_DT.550.163.01.gpu1_lost.gutil")
    assert cli.main(["html", logs, "--out", str(out), "--title", "a < b"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    page = Page(out.read_text())
    assert page.data["name"] == "a < b"
    assert page.data["rows"][1][1] == 1
    run = series.load([logs], plot_metrics.WANTED)
    values = unpacked(page.data["metrics"][0], (2, page.data["axis"]["bins"]))
    assert np.isnan(values[1]).any()
    reported = run.gpus[0].values["sm"]
    assert page.data["table"][0][0] == pytest.approx(float(np.nanmean(reported)), abs=0.01)


@pytest.mark.parametrize(("command", "suffix"), [("html", ".html"), ("plot", ".svg")])
def test_gpus_that_cannot_be_placed_are_reported(
    command: str, suffix: str, tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows without a time stand beside rows with one: they are left out, and counted."""
    bare = tmp_path / "bare.gutil"
    bare.write_text("# gpu     sm\n# Idx      %\n    0     50\n    0     60\n")
    timed = str(data / "pumt_DT.550.163.01.2gpu.gutil")
    out = str(tmp_path / f"run{suffix}")
    assert cli.main([command, timed, str(bare), "--out", out]) == 0
    assert "left out 1 GPU whose" in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [["--out", "x.png"], ["--out", "nowhere/x.html"]])
def test_wrong_input_is_one_line(
    arguments: list[str], data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """64, and no file."""
    log = str(data / "pumt_DT.550.163.01.2gpu.gutil")
    assert cli.main(["html", log, *arguments]) == 64
    assert capfd.readouterr().err.count("\n") == 1


def test_findings_have_their_place_on_the_axis(tmp_path: Path, data: Path) -> None:
    """What `diagnose` tells, alike together; a time that the axis does not show is left out."""
    idle = made_runs.gpu(0, sm=made_runs.at(made_runs.first(40), 0, 95))
    again = made_runs.gpu(1, sm=made_runs.at(made_runs.first(20), 0, 95))
    axis = {"begin": made_runs.BEGIN_S - 15, "bin": 15.0, "bins": 240}
    (found,) = page_data.findings(made_runs.run(idle, again), axis)
    assert (found["rule"], found["severity"], found["where"]) == ("idle", "warning", "n1, all GPUs")
    assert found["evidence"].startswith("worst, n1 GPU 0: idle for 10 min")
    assert found["time"] == [100 * 15.0, 140 * 15.0]
    (unplaced,) = page_data.findings(made_runs.run(idle), axis | {"begin": 0.0})
    assert unplaced["time"] is None
    out = tmp_path / "a.html"
    assert (
        cli.main(["html", str(data / "pumt_DT.550.163.01.gpu1_lost.gutil"), "--out", str(out)]) == 0
    )
    (lost,) = Page(out.read_text()).data["findings"]
    assert (lost["rule"], lost["time"]) == ("lost", [3.0, 5.0])
    assert lost["where"] == "pumt_DT.550.163.01.gpu1_lost GPU 1"


def test_findings_lie_on_the_data_where_a_clock_was_set_back(tmp_path: Path) -> None:
    """The axis has what truly passed, and so have they: the idle samples lie below the finding."""
    sm = [95] * 600 + [0] * 1800 + [95] * 600
    written_s = [s - (3600 if s >= 2400 else 0) for s in range(3000)]
    rows = [
        Row(NOON + timedelta(seconds=s), GpuSample(index=0, sm_pct=busy), HostSample(40, 2048))
        for s, busy in zip(written_s, sm, strict=True)
    ]
    layout = gutil.Layout("pumt")
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text(layout.header() + layout.block(rows, 0))
    assert cli.main(["html", str(path), "--out", str(tmp_path / "a.html")]) == 0
    page = Page((tmp_path / "a.html").read_text())
    (idle,) = [one for one in page.data["findings"] if one["rule"] == "idle"]
    values = unpacked(page.data["metrics"][0], (1, page.data["axis"]["bins"]))[0]
    still = np.flatnonzero(values == 0) * page.data["axis"]["bin"]
    assert idle["time"] == pytest.approx([still[0], still[-1]], abs=2 * page.data["axis"]["bin"])

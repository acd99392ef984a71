"""`python -m monitor plot`: what is binned, what is drawn, and what is refused."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.image
import matplotlib.text
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from monitor import cli
from monitor.analysis.events import events_of
from monitor.errors import UserError
from monitor.logs import series
from monitor.logs.log_events import LogEvent, Place
from monitor.logs.series import GpuSeries, Run
from monitor.plot import curves, metrics
from monitor.plot import figure as plot_figure
from monitor.plot import grid as plot_grid
from monitor.plot.picture import picture
from tests.monitor.analysis.test_axis import axis, gpu

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]


def synthetic_logs() -> ModuleType:
    """The generator of the documentation's pictures."""
    spec = importlib.util.spec_from_file_location("synthetic_logs", ROOT / "docs/synthetic_logs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic run with its logs beside it."""
    out = tmp_path_factory.mktemp("run")
    return synthetic_logs().Synthetic(out, 3, 2, 0.5, 15).write()


def test_rows_are_gpus_then_nodes_then_some_nodes() -> None:
    """Hosts come in their natural order; more rows than fit are put together by node."""
    fleet = [gpu(f"n{node}", index) for node in (10, 2, 1) for index in (1, 0)]
    order = plot_grid.keys(fleet, of_host=False)
    assert order == [(f"n{node}", index) for node in (1, 2, 10) for index in (0, 1)]
    assert plot_grid.fold(order, 6).labels[2] == "n2 GPU 0"
    nodes = plot_grid.fold(order, 4)
    assert (nodes.labels, nodes.what) == (("n1", "n2", "n10"), "a node (2 GPUs)")
    some = plot_grid.fold(order, 2)
    assert (some.labels, some.what) == (("n1", "n10"), "2 nodes (4 GPUs)")
    hosts = plot_grid.keys(fleet, of_host=True)
    assert plot_grid.fold(hosts, 2).what == "2 nodes"


def test_folding_keeps_means_and_peaks_and_gaps() -> None:
    """A GPU without readings takes nothing from its node's mean."""
    grid = np.array([[10, np.nan], [30, np.nan], [np.nan, 5]], np.float32)
    rows = plot_grid.fold([("a", 0), ("a", 1), ("b", 0)], 2)
    mean = plot_grid.folded(grid, rows, worst=False)
    assert mean[0].tolist()[0] == 20
    assert np.isnan(mean[0, 1])
    assert plot_grid.folded(grid, rows, worst=True)[0, 0] == 30
    assert mean[1, 1] == 5


def test_hosts_are_reported_without_what_they_share() -> None:
    """The domain goes, a long name loses its middle, what cannot be printed is replaced."""
    short = plot_grid.shortened(["gpu1.cluster.example", "gpu2.cluster.example"])
    assert list(short.values()) == ["gpu1", "gpu2"]
    assert len(plot_grid.shortened(["x" * 60])["x" * 60]) == 18
    assert "\n" not in plot_grid.shortened(["a\nb"])["a\nb"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"throt": [0, 1, 4, 128, 32, 36]}, [0, 0, 1, 1, 2, 2]),
        ({"throt": [np.nan, 64, 8, 8 | 128, 8 | 64, 0]}, [np.nan, 2, 1, 1, 2, 0]),
        (
            {"pviol": [0, 5, 0, np.nan, 1, 0], "tviol": [0, 0, 9, np.nan, 1, 0]},
            [0, 1, 2, np.nan, 2, 0],
        ),
        ({}, [np.nan] * 6),
    ],
)  # fmt: skip
def test_throttling_is_none_power_or_heat(columns: dict[str, object], expected: object) -> None:
    """By the reasons' bits, else by the shares of time."""
    found = metrics.reading(gpu(times=range(6), **columns), metrics.named("throttle")[0])
    np.testing.assert_array_equal(found, expected)


def test_utilisation_is_the_rings_where_there_is_one() -> None:
    """It sampled all the time; where it has nothing, the poll itself does."""
    series = gpu(sm=[0, 50, np.nan, 7], smavg=[80, np.nan, 20, np.nan])
    found = metrics.reading(series, metrics.named("util")[0])
    np.testing.assert_array_equal(found, [80, 50, 20, 7])


def test_a_bin_is_throttled_if_half_of_it_is() -> None:
    """One sample of four is not reported, two are, and heat only where it lasts itself."""
    bits = [0, 4, 0, 0, 0, 4, 4, 0, 32, 4, 4, 0, 32, 32, 4, 0, np.nan, np.nan, np.nan, np.nan]
    throttle = metrics.named("throttle")[0]
    one = gpu(times=np.arange(1, 21), throt=bits)
    found = plot_grid.values([one], throttle, axis(4, 5), [("n1", 0)])
    np.testing.assert_array_equal(found[0], [0, 1, 1, 2, np.nan])


def test_events_have_kinds_and_words() -> None:
    """Starts after the first are restarts; what the driver tells is a GPU fault."""
    lines = [
        {"time": "2026-11-21T10:00:00.000Z", "event": "start", "attempt": 1, "world_size": 2},
        {"time": "2026-11-21T10:05:00.000Z", "event": "start", "attempt": 2, "world_size": 1},
        {"time": "2026-11-21T10:03:00.000Z", "event": "checkpoint", "step": 40},
        {"time": "2026-11-21T10:03:30.000Z", "event": "checkpoint_failed", "step": 50},
        {"time": "2026-11-21T10:04:00.000Z", "event": "signal", "signal": "USR1"},
        {"time": "2026-11-21T10:04:10.000Z", "event": "first_failure", "rank": 1, "code": 1},
        {"time": "2026-11-21T10:04:20.000Z", "event": "verdict"},
        {"time": "2026-11-21T10:04:30.000Z", "event": "lost_node", "node": "n2"},
        {"time": "2026-11-21T10:04:40.000Z", "event": "non_finite", "step": 3, "action": "skip"},
        {"time": "2026-11-21T10:06:00.000Z", "event": "end", "attempt": 2, "code": 0},
        {"time": "never", "event": "end"},
        {"time": "2026-11-21T10:06:00.000Z", "event": "rank_up"},
    ]  # fmt: skip
    node = Place(None, "n2")
    xid = {"xid": "79", "text": "off_the_bus"}
    marks = (
        LogEvent(1_795_255_300.0, "xid", 3, xid, node),
        LogEvent(np.nan, "lost", 1, place=node),
        LogEvent(1_795_255_301.0, "rotated", place=node),
    )
    found = events_of(Run("r", (), log_events=marks, events=tuple(lines)))
    kinds = [event.kind for event in found]
    assert kinds == [
        "start", "fault", "checkpoint", "failure", "signal", "failure", "failure", "failure",
        "failure", "restart", "end",
    ]  # fmt: skip
    assert found[1].text == "XID 79 on n2 GPU 3: off the bus"
    assert found[-2].text == "start 2, 1 rank"


def test_curves_break_between_starts_and_keep_their_spikes() -> None:
    """Thinning leaves the lowest and the highest; a loss that is null is a gap."""
    lines = [
        {"time": f"2026-11-21T10:{i // 60:02d}:{i % 60:02d}Z", "attempt": 1 + (i > 1500), "step": i}
        | {"loss": None if i == 7 else 1.0 + (i == 900), "samples_per_s": 5}
        for i in range(3000)
    ]
    lines.append({"time": "2026-11-21T10:59:59Z", "attempt": 2, "step": 1, "test_loss": 0.5})
    found = curves.curves(lines)
    assert list(found) == ["loss", "test_loss", "samples_per_s"]
    loss = found["loss"]
    assert len(loss.values) <= curves.MAX_POINTS + 10
    assert np.nanmax(loss.values) == 2
    assert np.isnan(loss.values).sum() == 2
    assert not curves.curves([{"time": "2026-11-21T10:00:00Z", "loss": None}])


def test_a_language_models_throughput_is_in_tokens() -> None:
    """In place of samples, of which it is a multiple."""
    line = {"time": "2026-11-21T10:00:00Z", "step": 1, "samples_per_s": 5, "tokens_per_s": 640}
    (found,) = curves.curves([line]).values()
    assert (found.name, found.unit, list(found.values)) == ("throughput", "tokens/s", [640])


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_written_whole_and_the_same_each_time(
    run_dir: Path, tmp_path: Path, suffix: str
) -> None:
    """The command draws a run; nothing lies beside the file; a second time gives the same bytes."""
    out = tmp_path / f"run.{suffix}"
    assert cli.main(["plot", str(run_dir), "--out", str(out), "--show", "util,throttle"]) == 0
    first = out.read_bytes()
    assert cli.main(["plot", str(run_dir), "--out", str(out), "--show", "util,throttle"]) == 0
    assert out.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    if suffix == "png":
        assert matplotlib.image.imread(out).shape[1] == pytest.approx(2126, abs=2)
    else:
        assert ET.fromstring(first).tag.endswith("svg")  # noqa: S314 - our own picture


def test_texts_are_readable_and_inside_at_a_column_s_width(run_dir: Path) -> None:
    """At 88 mm no text is under 7 points or leaves the page, and no two row labels touch."""
    run = series.load([str(run_dir)], metrics.WANTED)
    made = picture(run, None, max_rows=256, max_bins=440, title=None)
    assert [panel.metric.name for panel in made.panels] == [
        "util", "power", "memory", "temp", "throttle",
    ]  # fmt: skip
    figure = plot_figure.laid_out(made, 88 / 25.4)
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text().strip()]
    assert len(texts) > 20
    for text in texts:
        if text.get_visible():
            assert text.get_fontsize() >= 7
    title, note = (text.get_window_extent(renderer) for text in figure.texts)
    assert not title.overlaps(note)
    for axes in figure.axes:
        boxes = [
            label.get_window_extent(renderer)
            for label in axes.get_yticklabels()
            if label.get_text() and axes.get_visible()
        ]
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))


def test_gaps_are_hatched_and_not_zero(run_dir: Path) -> None:
    """Between the two starts there is no sample, and the lost GPU has no readings."""
    run = series.load([str(run_dir)], metrics.WANTED)
    util = picture(run, None, max_rows=256, max_bins=100, title=None).panels[0]
    assert np.isnan(util.values).any()
    assert np.nanmin(util.values) >= 0
    folded = picture(run, None, max_rows=2, max_bins=100, title=None).panels[0]
    assert folded.values.shape[0] == 2
    assert plot_figure.drawn(
        picture(run, None, max_rows=2, max_bins=100, title="$x^"), ".png", 4
    ).startswith(b"\x89PNG")


def test_a_node_without_a_gpu_shows_its_host() -> None:
    """Where no GPU has a reading, the host's CPUs and memory are drawn."""
    host = gpu(index=None, cpu=[5, 6, 7, 8], hmem=[1024] * 4)
    made = picture(Run("r", (host,)), None, max_rows=9, max_bins=9, title=None)
    assert [panel.metric.name for panel in made.panels] == ["cpu", "hostmem"]
    assert made.panels[0].rows.labels == ("n1",)
    assert made.panels[1].values[0, 0] == 1
    assert made.name == "r: 1 node, no GPU"


def test_a_scale_above_a_thousand_has_its_number_in_full() -> None:
    """Two TiB of a host's memory, or a GPU of 1200 W, are no 2.02e+03."""
    host = gpu(index=None, hmem=[2_065_000] * 4, cpu=[5, 6, 7, 8])
    made = picture(Run("r", (host,)), None, max_rows=9, max_bins=9, title=None)
    drawn = plot_figure.drawn(made, ".svg", 4)
    assert b"<!-- 2017 -->" in drawn
    assert b"e+03" not in drawn


def test_a_loss_beyond_all_scales_leaves_the_others_to_be_drawn() -> None:
    """Such as of a run that diverged; where no other is left there is an empty axis."""
    for losses in ([0.5, 1e200, 0.25], [1e200, 1e300, float("inf")]):
        lines = tuple(
            {"time": f"2026-11-18T12:0{minute}:00Z", "step": minute, "loss": loss}
            for minute, loss in enumerate(losses)
        )
        run = Run("r", (gpu(sm=[5, 6, 7, 8]),), metrics=lines)
        made = picture(run, None, max_rows=9, max_bins=9, title=None)
        assert plot_figure.drawn(made, ".png", 4).startswith(b"\x89PNG")


def test_logs_of_dmon_without_dates_stand_alone(data: Path) -> None:
    """Rows without a date are drawn by themselves, and left out beside dated ones."""
    undated = GpuSeries("n", 0, None, np.array([5.0, 6, 7]), {"sm": np.ones(3, np.float32)}, {})
    made = picture(Run(None, (undated,)), None, max_rows=9, max_bins=9, title=None)
    assert "no date" in made.axis.words
    both = picture(
        Run(None, (undated, gpu(sm=[1, 2, 3, 4]))), None, max_rows=9, max_bins=9, title=None
    )
    assert both.num_left_out == 1
    true = series.load([str(data / "pumt_DT.550.163.01.gpu1_lost.gutil")], metrics.WANTED)
    lost = picture(true, None, max_rows=9, max_bins=99, title=None).panels[0]
    assert np.isnan(lost.values[1]).any()
    assert not np.isnan(lost.values[0]).any()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--out", "x.pdf"], "--out must end in .png or .svg"),
        (["--out", "nowhere/x.png"], "the directory of --out must be there"),
        (["--out", "x.png", "--show", "util,size"], "--show must be of util"),
        (["--out", "x.png", "--width", "10"], "--width must be 70 to 1000 mm"),
        (["--out", "x.png", "--show", "cpu"], "found no reading of cpu"),
        (["--out", "/proc/x.png"], "must be a file that can be written"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(  # noqa: PLR0913, PLR0917 - fixtures
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    word: str,
) -> None:
    """64, one line that says which rule, and no file."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plot", str(run_dir), *arguments]) == 64
    output = capfd.readouterr().err
    assert word in output
    assert output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_logs_without_samples_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An empty log, and one without any time."""
    empty = tmp_path / "empty.gutil"
    empty.touch()
    out = str(tmp_path / "x.png")
    assert cli.main(["plot", str(empty), "--out", out]) == 64
    assert "must hold samples" in capfd.readouterr().err
    timeless = gpu(times=[np.nan] * 4, sm=[1, 2, 3, 4])
    with pytest.raises(UserError, match="rows without a time"):
        picture(Run(None, (timeless,)), None, max_rows=9, max_bins=9, title=None)
    blank = gpu(sm=[np.nan] * 4)
    with pytest.raises(UserError, match="must hold readings"):
        picture(Run(None, (blank,)), None, max_rows=9, max_bins=9, title=None)


def test_matplotlib_is_imported_only_to_draw() -> None:
    """No other command pays for it."""
    code = "import sys, monitor.cli, monitor.plot.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0

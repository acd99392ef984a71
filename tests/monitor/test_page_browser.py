"""The page in headless Chromium, at the size of a desk and of a hand."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from monitor import cli
from monitor.page import data, html
from tests.monitor import made_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"desk": (1280, 800), "hand": (390, 844)}
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
CONTRAST = """
const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number);
const back = one => {
  for (; one; one = one.parentElement) {
    const found = numbers(getComputedStyle(one).backgroundColor);
    if (found.length === 3 || found[3] > 0.99) return found;
  }
  return [255, 255, 255];
};
const low = [];
let seen = 0;
for (const one of document.querySelectorAll('body *')) {
  const hasText = [...one.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  if (!hasText || !one.getClientRects().length) continue;
  seen++;
  const [a, b] = [light(numbers(getComputedStyle(one).color)), light(back(one))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) low.push([one.tagName, one.textContent.slice(0, 30), ratio]);
}
return [seen, low];
"""


COUNT_GREY = """
window.grey = 0;
const fill = CanvasRenderingContext2D.prototype.fillRect;
CanvasRenderingContext2D.prototype.fillRect = function (...box) {
  if (this.globalAlpha === 0.25) window.grey++;
  return fill.apply(this, box);
};
"""


def of_docs(name: str) -> Any:
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


headless = of_docs("headless")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic run of 3 nodes with 2 GPUs each, as a page; whatever has a name is hostile."""
    out = tmp_path_factory.mktemp("page")
    run_dir = of_docs("synthetic_logs").Synthetic(out, 3, 2, 0.5, 5).write()
    log = out / "slurm-synthetic.synthetic02.gutil"
    log.write_text(log.read_text().replace("## host: synthetic02", f"## host: {HOSTILE}"))
    for name in ("events.jsonl", "metrics.jsonl"):
        lines = [json.loads(line) for line in (run_dir / name).read_text().splitlines()]
        reported = [
            {HOSTILE: HOSTILE} | line | ({"node": HOSTILE} if "node" in line else {})
            for line in lines
        ]
        (run_dir / name).write_text("".join(json.dumps(line) + "\n" for line in reported))
    options = ("--out", str(out / "page.html"), "--title", f"synthetic {HOSTILE}")
    assert cli.main(["html", str(run_dir), *options]) == 0
    return out / "page.html"


@pytest.fixture(scope="module", params=SIZES)
def browser(request: pytest.FixtureRequest, page: Path) -> Iterator[Any]:
    """A browser without a network that shows the page."""
    pytest.importorskip("selenium.webdriver", reason="selenium is missing")
    if not headless.is_there():
        pytest.skip("Chromium or its driver is missing: run tests/provision.sh")
    with headless.browser(*SIZES[request.param], is_hand=request.param == "hand") as driver:
        driver.get(page.as_uri())
        yield driver


def text(browser: Any, css: str) -> str:
    """What an element says."""
    return str(browser.find_element("css selector", css).text)


def press(browser: Any, *keys: str) -> None:
    """Press keys in the charts."""
    browser.find_element("id", "charts").send_keys(*keys)


def test_nothing_is_fetched_and_nothing_is_wrong(browser: Any, page: Path) -> None:
    """No error in the console, no request but for the file itself, no hostile script run."""
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    inner = ("chrome", "data:")  # the empty tab before the page; what needs no network
    own = {url for url in asked if not url.startswith(inner)}
    assert own == {page.as_uri()}
    assert browser.execute_script("return window.hacked") is None
    assert HOSTILE in text(browser, "h1")
    assert HOSTILE in text(browser, "#gpus tbody")
    assert f"on {HOSTILE}"[:60] in text(browser, "#events")
    assert not browser.find_elements("css selector", "img")
    wide = browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, "nothing stands out to the side"


def test_keys_zoom_move_and_tell(browser: Any) -> None:
    """Plus shows less time, Shift and an arrow another, 0 the whole; arrows read numbers."""
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415 - only where it is installed

    press(browser, "0")
    whole = text(browser, "#range")
    assert "whole run" in whole
    pixels = "return document.querySelectorAll('.panel > canvas')[1].toDataURL()"
    before = browser.execute_script(pixels)
    press(browser, "+")
    zoomed = text(browser, "#range")
    assert "15 min" in zoomed
    assert browser.execute_script(pixels) != before
    press(browser, Keys.SHIFT, Keys.ARROW_RIGHT)
    assert text(browser, "#range") != zoomed
    press(browser, Keys.NULL, "0")
    assert text(browser, "#range") == whole
    press(browser, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    output = text(browser, "#readout")
    assert "GPU 0" in output
    assert " %" in output
    press(browser, Keys.ESCAPE)
    assert not text(browser, "#readout")


def test_a_duration_is_rounded_as_a_whole(browser: Any, page: Path) -> None:
    """119.7 s are 2 min, not 1 min and 60 s."""
    time_s = made_runs.BEGIN_S + 119.7 * np.arange(made_runs.NUM_SAMPLES)
    other = page.with_name("other.html")
    other.write_text(html.page(data.payload(made_runs.run(made_runs.gpu(time_s=time_s)), None)))
    browser.get(other.as_uri())
    assert text(browser, "#range").endswith(" shown, 2 min a cell")
    browser.get(page.as_uri())


def test_wheel_and_drag_zoom_and_hover_tells(browser: Any) -> None:
    """The wheel zooms once the charts have the focus; dragging shows what was dragged over."""
    from selenium.webdriver import ActionChains  # noqa: PLC0415 - only where it is installed
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin  # noqa: PLC0415

    press(browser, "0")
    whole = text(browser, "#range")
    canvas = browser.find_elements("css selector", "#charts .panel > canvas")[1]
    ActionChains(browser).move_to_element(canvas).perform()
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert "utilisation" in text(browser, "#tip")
    ActionChains(browser).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, -100).perform()
    browser.execute_async_script("setTimeout(arguments[0], 100)")
    assert text(browser, "#range") != whole
    press(browser, "0")
    drag = ActionChains(browser).move_to_element(canvas).click_and_hold()
    drag.move_by_offset(80, 0).perform()
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    browser.execute_script(COUNT_GREY)
    ActionChains(browser).release().perform()
    assert "whole run" not in text(browser, "#range")
    assert browser.execute_script("return window.grey") == 0  # what was selected fills it now
    press(browser, "0")


def test_the_table_sorts_filters_and_tells_the_same(browser: Any, page: Path) -> None:
    """Highest first, then lowest; the filter leaves rows, and the heat maps follow."""
    column = (
        "return [...document.querySelectorAll('#gpus tbody tr td:nth-child(2)')]"
        ".map(c => +c.textContent)"
    )
    button = browser.find_elements("css selector", "#gpus thead button")[1]
    browser.execute_script("arguments[0].focus()", button)
    button.send_keys("\n")
    falling = browser.execute_script(column)
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) > 1
    head = browser.find_elements("css selector", "#gpus thead th")[1]
    assert head.get_attribute("aria-sort") == "descending"
    button.send_keys("\n")
    assert browser.execute_script(column) == sorted(falling)
    packed = page.read_text().split('id="data">')[1].split("</script>")[0]
    table = json.loads(packed)["table"]
    assert sorted(falling) == [int(f"{row[0]:.0f}") for row in sorted(table)]
    field = browser.find_element("id", "filter")
    field.send_keys("synthetic01 gpu 1")
    assert len(browser.execute_script(column)) == 1
    label = (
        "return document.querySelectorAll('#charts canvas[role=img]')[1].getAttribute('aria-label')"
    )
    assert "1 rows" in browser.execute_script(label)
    browser.execute_script("arguments[0].value = ''", field)
    field.send_keys(" ")
    assert len(browser.execute_script(column)) == 6


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_themes(browser: Any, scheme: str) -> None:
    """The system's scheme is followed, the switch turns it, and text has a contrast of 4.5."""
    headless.prefer(browser, scheme)
    browser.execute_script("delete document.documentElement.dataset.theme")
    back = "return getComputedStyle(document.body).backgroundColor"
    pixel = "return document.querySelectorAll('#charts canvas[role=img]')[1].toDataURL()"
    switch = browser.find_element("id", "theme")
    reported = []
    for _ in range(2):
        seen, low = browser.execute_script(CONTRAST)
        assert seen > 40
        assert low == []
        reported.append((browser.execute_script(back), browser.execute_script(pixel)))
        browser.execute_script("arguments[0].click()", switch)
    assert reported[0][0] != reported[1][0]
    assert reported[0][1] != reported[1][1], "the canvases follow"
    assert (reported[0][0] == "rgb(255, 255, 255)") == (scheme == "light")
    browser.execute_script("delete document.documentElement.dataset.theme")


def test_the_keyboard_reaches_everything_in_order(browser: Any) -> None:
    """Skip link, theme, findings, buttons, charts, filter, table; each button has words."""
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415 - only where it is installed

    browser.execute_script("document.querySelector('.skip').focus()")
    reached = []
    for _ in range(20):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        reported = "const e = document.activeElement;"
        reported += "return e.id || e.className || e.dataset.do || e.tagName"
        reached.append(browser.execute_script(reported))
    assert "when" in reached, "the time of a finding"
    reached = [one for one in reached if one != "when"]
    expected = [
        "theme",
        "earlier",
        "later",
        "in",
        "out",
        "whole",
        "SUMMARY",
        "charts",
        "filter",
        "scroll",
    ]
    assert reached[: len(expected)] == expected
    silent = """return [...document.querySelectorAll(
        'canvas:not([aria-hidden]), button:not([hidden]), input, [tabindex="0"]')]
        .filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
            || e.textContent.trim() || (e.labels && e.labels.length))).map(e => e.outerHTML)"""
    assert browser.execute_script(silent) == []


def test_a_finding_leads_to_its_time(browser: Any) -> None:
    """What `diagnose` finds is shown on top; its time is a button that shows it in the charts."""
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415 - only where it is installed

    shown = [item.text for item in browser.find_elements("css selector", "#findings li")]
    (idle,) = [
        number for number, reported in enumerate(shown) if reported.startswith("warning: idle")
    ]
    assert "at a stretch" in shown[idle]
    whole = text(browser, "#range")
    browser.find_elements("css selector", "#findings .when")[idle].send_keys(Keys.ENTER)
    assert text(browser, "#range") != whole
    press(browser, "0")
    assert text(browser, "#range") == whole


def test_a_picture_of_it_is_not_blank(browser: Any) -> None:
    """A screenshot has many colours; it is kept where DDP_SCREENSHOTS names a directory."""
    browser.execute_script("window.scrollTo(0, 0)")
    data = browser.get_screenshot_as_png()
    assert len(data) > 20_000
    kept = os.environ.get("DDP_SCREENSHOTS")
    if kept:
        size = browser.get_window_size()["width"]
        Path(kept, f"page-{size}.png").write_bytes(data)

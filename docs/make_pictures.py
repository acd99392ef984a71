"""Make the pictures and the page that README.md and docs/ show; `make pictures` makes all.

python docs/make_pictures.py [--out DIR] [report] [watch] [plot] [page]
make demo > OUTPUT 2>&1; python docs/make_pictures.py demo < OUTPUT

They are of a made-up run (synthetic_logs.py): the same every time, with much of what
can go wrong. What Chromium draws (page-*.png) depends on its version and on the fonts.
`demo` turns the output of a true demo into demo.svg, which no two times is the same.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import headless
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from synthetic_logs import Synthetic

from monitor import cli
from monitor.live import target
from monitor.live.columns import STYLES
from monitor.live.fleet import Fleet
from monitor.live.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable

_WIDTH, _HEIGHT = 110, 32  # columns and lines of a terminal
_DEMO_WIDTH = 134  # what the trainer's lines take
_CLOCK = "03:59:59"
_SHOTS = {
    "page-light.png": (1400, 1500, "light"),
    "page-dark.png": (1400, 1500, "dark"),
    "page-hand.png": (480, 1500, "light"),
}


def main() -> None:
    """Make what the command line names, or everything but the demo."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="default: docs/")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(_MAKERS)}; default: all but demo")
    options = parser.parse_args()
    names = options.names or [name for name in _MAKERS if name != "demo"]
    unknown = [name for name in names if name not in _MAKERS]
    if unknown:
        parser.error(f"must be of {', '.join(_MAKERS)}; found {unknown[0]}")
    if "page" in names and not headless.is_there():
        parser.error(
            "page needs Chromium and its driver; found none; run tests/provision.sh --install-only"
        )
    for name in names:
        _MAKERS[name](options.out)


def _report(out: Path) -> None:
    """Draw a report of the whole run."""
    with tempfile.TemporaryDirectory() as folder:
        _run(folder)
        command = [sys.executable, "-m", "monitor", "report", "--co2", "400", "."]
        env = os.environ | {
            "COLUMNS": str(_WIDTH),
            "FORCE_COLOR": "1",
            "TERM": "xterm-256color",
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        }
        done = subprocess.run(
            command, cwd=folder, env=env, check=True, stdout=subprocess.PIPE, text=True
        )
    _terminal(
        out / "report.svg",
        " ".join(["python", *command[1:]]),
        map(_coloured, done.stdout.splitlines()),
    )


def _watch(out: Path) -> None:
    """Draw the live view, as a terminal shows it while the run is under way."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = _run(folder, under_way=True)
        session = Session(Fleet(target.resolve([str(run_dir)], {})))
        session.fleet.poll(is_only=True)
        session.update()
        session.snapshot = replace(session.snapshot, clock=_CLOCK)
        picture = session.picture((_WIDTH, _HEIGHT), ascii_only=False)
    lines = [
        Text.assemble(*((part, STYLES[style]) for part, style in line)) for line in picture.lines()
    ]
    _terminal(out / "watch.svg", "python -m monitor watch", lines)


def _plot(out: Path) -> None:
    """Draw the run as `plot` does."""
    with tempfile.TemporaryDirectory() as folder:
        _ours("plot", str(_run(folder)), "--out", str(out / "plot.svg"))


def _page(out: Path) -> None:
    """Write the run as `html` does, and take pictures of it."""
    page = out.absolute() / "page.html"
    with tempfile.TemporaryDirectory() as folder:
        _ours("html", str(_run(folder)), "--out", str(page))
    for name, (width, height, scheme) in _SHOTS.items():
        with headless.browser(width, height, is_hand=width < height) as driver:
            headless.prefer(driver, scheme)
            driver.get(page.as_uri())
            driver.execute_async_script(
                "requestAnimationFrame(() => setTimeout(arguments[0], 300))"
            )
            (out / name).write_bytes(driver.get_screenshot_as_png())
        print(out / name)


def _demo(out: Path) -> None:
    """Draw a demo's output, from its first step on, as read from standard input."""
    lines = sys.stdin.read().splitlines()
    first = next((i for i, line in enumerate(lines) if "] trainer: " in line), 0)
    shown = [line for line in lines[first:] if not line.startswith("[1]")]
    _terminal(
        out / "demo.svg", "make demo", [Text("$ make demo"), *map(_coloured, shown)], _DEMO_WIDTH
    )


_MAKERS = {"report": _report, "watch": _watch, "plot": _plot, "page": _page, "demo": _demo}


def _run(folder: str, *, under_way: bool = False) -> Path:
    """Make the run up: 4 nodes with 8 GPUs each, 5 hours."""
    run = Synthetic(Path(folder), nodes=4, gpus=8, hours=5, interval_s=30, under_way=under_way)
    return run.write()


def _ours(*arguments: str) -> None:
    code = cli.main(list(arguments))
    if code:
        raise SystemExit(code)


def _coloured(line: str) -> Text:
    return Text.from_ansi(line.rstrip("\n"))


def _terminal(path: Path, title: str, lines: Iterable[Text], width: int = _WIDTH) -> None:
    """Draw a terminal's lines as an SVG that fetches nothing, no font either."""
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(line, no_wrap=True, overflow="ellipsis")
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("<svg ", '<svg xml:space="preserve" ', 1)
    console.save_svg(str(path), title=title, code_format=form, unique_id=path.stem)
    print(path)


if __name__ == "__main__":
    main()

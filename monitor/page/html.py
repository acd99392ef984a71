"""`python -m monitor html`: a run as one page that opens anywhere, offline."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.analysis import engine
from monitor.logs import series
from monitor.page import data
from monitor.plot import metrics
from monitor.plot.picture import report_skipped
from monitor.whole_file import beside, check, suffix_of

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping

SUFFIXES = (".html", ".htm")

_SCRIPTS = ("data.js", "time.js", "view.js", "draw.js", "charts.js", "table.js", "main.js")
"""In the order in which they need each other."""

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATHS", help="run directories, logs, or directories of logs"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="an .html")
    parser.add_argument("--title", help="default: the run's name and size")


def run(options: Namespace) -> int:
    """Write run directories and logs into one page, and print its name; 0."""
    paths, out = options.paths, options.out
    suffix_of(out, SUFFIXES)
    check(out, paths)
    whole = series.load(paths, metrics.WANTED | engine.columns())
    payload = data.payload(whole, options.title)
    payload["findings"] = data.findings(whole, payload["axis"])
    with beside(out) as path:
        Path(path).write_bytes(page(payload).encode("utf-8", "replace"))
    report_skipped(payload["left_out"])
    print(out)
    return 0


def page(payload: Mapping[str, Any]) -> str:
    """Write the page.

    No name can leave its place: in the JSON no character is left that HTML knows, the script puts
    texts in as texts only, and the policy lets no script run but this one, by its hash.
    """
    style = _read("page.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(_read, _SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        " base-uri 'none'; form-action 'none'"
    )
    parts = {
        "{{policy}}": html.escape(policy, quote=False),
        "{{title}}": html.escape(str(payload["name"])),
        "{{style}}": style,
        "{{data}}": json.dumps(payload, allow_nan=False, separators=(",", ":")).translate(_ESCAPES),
        "{{script}}": script,
    }
    text = _read("page.html")
    pieces = []
    for mark, part in parts.items():  # one after the other: a name may look like a mark
        before, _, text = text.partition(mark)
        pieces += [before, part]
    return "".join([*pieces, text])


def _read(name: str) -> str:
    return (resources.files("monitor.page") / name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"

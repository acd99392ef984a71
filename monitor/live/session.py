"""`python -m monitor watch`: all nodes of a job, live, in a terminal."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text
from rich.theme import Theme

from monitor.analysis.findings import SEVERITIES, Summary
from monitor.live import frame, target, view
from monitor.live.columns import STYLES
from monitor.live.fleet import Fleet
from monitor.live.snapshot import Rows, Snapshot
from monitor.live.view import View
from monitor.watchdog.bounded import Bounded
from monitor.words import brief
from rundir.text import counted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from monitor.live.frame import Picture

PERIOD_S = 0.5
"""Between two polls of the files, and so between two pictures."""

_LIMIT_S = 1.0  # for a poll; keys wait as long
_SILENT_S = 5.0
_WIDTH = 120  # of a picture that goes into a file


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="a run directory, a directory of logs, or logs (default: the newest run in $DDP_OUT,"
        " else in ./out)",
    )


def run(options: Namespace) -> int:
    """Show it until the user quits; 0, or 128 and the number of the signal that ended it.

    Without a terminal it prints one picture.
    """
    session = Session(Fleet(target.resolve(options.paths, os.environ)))
    console = Console(highlight=False, theme=Theme(STYLES))
    has_keys = sys.stdin is not None and sys.stdin.isatty()  # None: it was closed at the start
    if not (has_keys and console.is_terminal) or console.is_dumb_terminal:
        session.fleet.poll(is_only=True)
        session.update()
        _print(session, console)
        return 0
    return _show(session, console)


class Session:
    """What is shown: what has been read, and what the user chose of it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.view = View()
        self.alerts: list[Summary] = []
        self._rows = Rows()
        self._began_s = time.monotonic()
        self.snapshot = self._snapshot()

    def update(self) -> None:
        """Show what has been read since; not while it is paused."""
        if self.view.is_paused:
            return
        self.snapshot = self._snapshot()
        found = [*self._unreadable(), *self.fleet.alerts]
        self.alerts = sorted(found, key=lambda alert: SEVERITIES.index(alert.severity))

    def picture(self, size: tuple[int, int | None], *, ascii_only: bool) -> Picture:
        """Compose what is to be seen."""
        return frame.picture(self.snapshot, self.alerts, self.view, size, ascii_only=ascii_only)

    def press(self, key: str, picture: Picture) -> None:
        """Take a key, pressed by someone who sees that picture."""
        self.view = view.press(
            self.view, key, num_rows=len(picture.rows), num_shown=picture.num_shown
        )

    def _snapshot(self) -> Snapshot:
        fleet = self.fleet
        progress = fleet.progress
        is_over = progress is not None and progress.is_over
        return Snapshot(
            name=fleet.target.name if progress is None else progress.name,
            clock=time.strftime("%H:%M:%S"),
            rows=self._rows.of(fleet.logs, time.monotonic(), is_over=is_over),
            progress=progress,
        )

    def _unreadable(self) -> Iterator[Summary]:
        for problem in self._problems():
            yield Summary(severity="error", rule="unreadable", where="", evidence=problem)
        num_rows = sum(log.num_unreadable for log in self.fleet.logs)
        if num_rows:
            text = f"{counted(num_rows, 'row')} of the logs could not be read"
            yield Summary(severity="hint", rule="unreadable rows", where="", evidence=text)

    def _problems(self) -> list[str]:
        """Return a message for everything that could not be read."""
        fleet = self.fleet
        found = []
        silent_s = time.monotonic() - (fleet.polled_s or self._began_s)
        if silent_s > _SILENT_S:
            found.append(f"the file system has not answered for {brief(silent_s)}")
        if fleet.problem is not None:
            found.append(f"{fleet.target.folder}: {fleet.problem}")
        if fleet.run is not None and fleet.run.problem is not None:
            found.append(f"{fleet.run.run_dir}: {fleet.run.problem}")
        return found + [f"{log.path}: {log.problem}" for log in fleet.logs if log.problem]


def _print(session: Session, console: Console) -> None:
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    picture = session.picture((width, None), ascii_only=console.options.ascii_only)
    with console.capture() as shown:  # where nobody reads it rich would exit with code 1
        for line in picture.lines():
            text = Text.assemble(*line)
            text.rstrip()
            console.print(text, soft_wrap=True)
    print(shown.get(), end="")


def _show(session: Session, console: Console) -> int:
    from monitor.live.terminal import Terminal  # noqa: PLC0415 - one picture needs none of it

    reader = Bounded("reader")
    with Terminal(console, sys.stdin.fileno()) as terminal:
        next_s = time.monotonic()
        while not session.view.is_done and terminal.ended_by is None:
            if time.monotonic() >= next_s:
                reader.question(session.fleet.poll, _LIMIT_S)
                session.update()
                next_s = max(next_s + PERIOD_S, time.monotonic())
            picture = session.picture(terminal.size, ascii_only=console.options.ascii_only)
            terminal.show(picture.lines())
            for key in terminal.wait(next_s - time.monotonic()):
                session.press(key, picture)
        ended_by = terminal.ended_by
    return 0 if ended_by in (None, signal.SIGINT) else 128 + ended_by

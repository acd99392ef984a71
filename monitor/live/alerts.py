"""What of a live view needs a person: one line each, those that are alike folded into one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from monitor import xids
from monitor.live.board import GONE, IDLE, LOST, STALE, THROTTLED
from monitor.plot import events
from monitor.report.words import host_list, minutes
from monitor.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monitor.diagnosis.findings import Finding
    from monitor.events import Event
    from monitor.live.board import Board, Row
    from monitor.live.log import LiveLog
    from monitor.logs.log_events import LogEvent

ERROR, WARNING, HINT = "error", "warning", "hint"
SEVERITIES = (ERROR, WARNING, HINT)
_FOLD = 3
"""So many of one rule are told one by one."""

_MILD = {"back": HINT, "slow": WARNING, "remap": WARNING}
"""Kinds of marks that are no error."""

_BY_STATE = {
    GONE: (ERROR, "the log is gone"),
    STALE: (WARNING, "the log has not grown for {quiet}"),
    LOST: (ERROR, "no readings any more: lost, or the driver hangs"),
    THROTTLED: (WARNING, "clocks are held down: {throttle}"),
    IDLE: (WARNING, "idle for {idle}"),
}


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One thing to look at."""

    severity: str
    rule: str
    host: str
    """Empty: the run as a whole, or several nodes."""
    gpu: int | None
    text: str

    @property
    def where(self) -> str:
        """Name the place."""
        return self.host if self.gpu is None else f"{self.host} GPU {self.gpu}"


def of_board(board: Board) -> list[Alert]:
    """Say what the rows and the run's own events show."""
    told = [] if board.progress is None else [_of_event(e) for e in board.progress.notes]
    found = [alert for alert in told if alert is not None]
    found += [
        Alert(severity=ERROR, rule="unreadable", host="", gpu=None, text=problem)
        for problem in board.problems
    ]
    stale: set[str] = set()
    for row in board.rows:
        for state in row.states:
            if state in (STALE, GONE):
                if row.host in stale:
                    continue  # once a node
                stale.add(row.host)
            found.append(_of_row(row, state))
        found += [
            Alert(severity=WARNING, rule=rule, host=row.host, gpu=None, text=text)
            for rule, text in row.full
        ]
    if board.num_unreadable:
        rows = "row" if board.num_unreadable == 1 else "rows"
        text = f"{board.num_unreadable} {rows} of the logs could not be read"
        found.append(Alert(severity=HINT, rule="unreadable rows", host="", gpu=None, text=text))
    return found


def of_logs(logs: Iterable[LiveLog]) -> list[Alert]:
    """Say what the logs' own `## event:` lines tell: XID and ECC errors and their like."""
    found = []
    for log in logs:
        # a copy: the log may be read meanwhile
        found += [_of_mark(log.host, mark) for mark in tuple(log.events)]
    return found


def of_findings(findings: Iterable[Finding]) -> list[Alert]:
    """Say what the rules of `diagnose` found."""
    return [
        Alert(
            severity=one.severity,
            rule=one.rule,
            host=one.host or "",
            gpu=one.gpu,
            text=one.evidence,
        )
        for one in findings
    ]


def folded(alerts: Iterable[Alert]) -> list[Alert]:
    """Order by severity, and fold those of one rule that are many."""
    by_rule: dict[tuple[str, str], list[Alert]] = {}
    for alert in alerts:
        by_rule.setdefault((alert.severity, alert.rule), []).append(alert)
    found: list[Alert] = []
    for group in by_rule.values():
        found += group if len(group) <= _FOLD else [_fold(group)]
    return sorted(found, key=lambda alert: SEVERITIES.index(alert.severity))


def _fold(group: Sequence[Alert]) -> Alert:
    hosts = host_list(alert.host for alert in group if alert.host)
    num_gpus = sum(alert.gpu is not None for alert in group)
    what = counted(num_gpus, "GPU") if num_gpus else counted(len(group), "time")
    if not num_gpus and len({alert.host for alert in group}) == len(group):
        what = counted(len(group), "node")
    text = f"{what}: {group[0].text}" + (f": {hosts}" if hosts else "")
    return replace(group[0], host="", gpu=None, text=text)


def _of_row(row: Row, state: str) -> Alert:
    severity, text = _BY_STATE[state]
    text = text.format(
        quiet=minutes(row.quiet_s), idle=minutes(row.idle_s), throttle=", ".join(row.throttle)
    )
    gpu = None if state in (STALE, GONE) else row.gpu
    return Alert(severity=severity, rule=state, host=row.host, gpu=gpu, text=text)


def _of_mark(host: str, mark: LogEvent) -> Alert:
    what, text = events.told(mark)
    severity = _MILD.get(mark.kind, ERROR)
    if mark.kind == "xid":  # as `diagnose` judges it
        known = xids.look_up(mark.details.get("xid", ""))
        severity, text = known.severity, f"{text or known.meaning} ({known.fault})"
    elif mark.details.get("bits") == "single":
        severity = HINT  # it was corrected
    return Alert(
        severity=severity,
        rule=mark.kind,
        host=host,
        gpu=mark.gpu,
        text=f"{what}: {text}" if text else what,
    )


def _of_event(event: Event) -> Alert | None:
    """Say what went wrong by the run's own word."""
    name = str(event.get("event"))
    text = {
        "verdict": "{text}",
        "lost_node": "node {node} is lost: {how}",
        "failure": "rank {rank}: {error}",
        "non_finite": "a loss or gradient at step {step} is not finite: {action}",
        "checkpoint_failed": "no checkpoint at step {step}: {reason}",
        "signal": "{signal} came",
    }.get(name)
    if text is None:
        return None
    told = text.format_map(_Told(event))
    severity = WARNING if name in ("non_finite", "signal") else ERROR
    return Alert(severity=severity, rule=name, host="", gpu=None, text=told)


class _Told(dict[str, object]):
    """What an event tells; `?` for what it does not."""

    def __missing__(self, key: str) -> str:
        return "?"

"""What the tests of rules share: two runs that hardly differ, and what a rule finds in one."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from monitor.analysis.engine import evaluate
from monitor.analysis.findings import Finding
from monitor.analysis.thresholds import Thresholds
from monitor.logs.series import Run
from tests.monitor.made_runs import BEGIN_S

NAN = float("nan")


def line(number: int, **more: Any) -> dict[str, Any]:
    """A line of the trainer's metrics, one a minute."""
    time = datetime.fromtimestamp(BEGIN_S, UTC) + timedelta(minutes=number)
    return {"time": time.isoformat(), "step": number, "samples_per_s": 10.0, **more}


def findings_of(looked_at: Run, rule: str, thresholds: Thresholds | None = None) -> list[Finding]:
    """What one rule finds."""
    return [one for one in evaluate(looked_at, thresholds) if one.rule == rule]


class Case(NamedTuple):
    """What a rule must find in one run, and not in another that is hardly different."""

    rule: str
    severity: str
    true: Run
    false: Run
    words: str

    def __str__(self) -> str:
        """Name it in the test's id."""
        return f"{self.rule}-{self.severity}"

    def check(self) -> None:
        """See that a finding has place, time and numbers, and that the other run has none."""
        (found,) = findings_of(self.true, self.rule)
        assert (found.severity, findings_of(self.false, self.rule)) == (self.severity, [])
        assert self.words in found.evidence
        assert found.suggestion
        assert found.begin_s is not None
        assert found.end_s is not None
        assert BEGIN_S <= found.begin_s <= found.end_s <= BEGIN_S + 2 * 3600

"""Starts jobs, brings faults about, watches what follows, and measures it."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.job import ABANDONED, PATIENCE_S, POLL_S, FaultJob, TooLateError, when
from tests.faults.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.injectors import Injector
    from tests.faults.job import Event

LONG = ("--max-steps", "1000000", "--checkpoint-every", "20")
GONE_S = 15.0
"""No process of a job may be left after this time."""


class Then(enum.Enum):
    """What must become of the run."""

    NOTHING = "goes on"
    RESTART = "starts again in the allocation"
    REQUEUE = "goes back to the queue"
    END = "ends"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A row of the matrix: how it is brought about, and what must follow."""

    name: str
    how: str
    inject: Injector
    then: Then
    signs: tuple[str, ...] = ("rank_end",)
    """Events of which the first shows that somebody saw it."""
    code: int | tuple[int, ...] | None = None
    failure_class: str | None = None
    message: str = ""
    """The line for people must match this; for a run that goes on, any line of the log."""
    restarts_before: int = 0
    """How often it starts again and fails again before the end."""
    down_within_s: float = PATIENCE_S
    """So soon no process of a rank may be left."""
    at_start: bool = False
    """It strikes before the first step."""
    mend: Callable[[FaultJob], None] = lambda _: None
    """Called once the fault was seen: plugs a cable in again, for example."""
    check: Callable[[FaultJob, Event], None] = lambda job, event: None  # noqa: ARG005
    """Looks at the `resume` event of the next attempt, or at the event that showed the fault."""
    notice: Callable[[FaultJob, float], float | None] = lambda job, struck: None  # noqa: ARG005
    """For a run that goes on: waits until it was seen without an event, and gives the moment."""
    is_silent: bool = False
    """Whoever would decide and say the last line is dead: `python -m monitor why` must say it."""
    reported_by_next: bool = False
    """Whoever would say the last line is dead: the next start says it."""
    may_be_silent: bool = False
    """Slurm may kill all of them at once, and then none is left to report an end."""
    num_saved: int = 1
    """Checkpoints that this attempt must have written before."""
    damages: bool = False
    """It damages the newest checkpoint: the one before must be good."""
    is_sign: Callable[[Event], bool] = lambda _: True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job and the faults that befall it, one after the other."""

    name: str
    sbatch: tuple[str, ...]
    faults: tuple[Fault, ...]
    options: tuple[str, ...] = LONG
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    prepare: Callable[[FaultJob], Callable[[], None]] = lambda _: lambda: None
    """Called before the job is submitted; gives what tidies up after its end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strike:
    """A fault that has befallen an attempt of a job."""

    job: FaultJob
    fault: Fault
    attempt: int
    saved: Path | None
    """The checkpoint that was newest before it."""
    moment: float
    """When it struck, in seconds since the epoch."""

    @property
    def row(self) -> Row:
        """The row, as far as the table knows it."""
        fault = self.fault
        return Row(name=fault.name, how=fault.how, outcome=fault.then.value)

    @property
    def since(self) -> float:
        """The moment as the event log writes it: whole milliseconds."""
        return int(self.moment * 1000) / 1000


def play(scenario: Scenario, cluster: Any, directory: Path) -> dict[str, Row | BaseException]:
    """Run a scenario; give each fault's row, or why there is none."""
    results: dict[str, Row | BaseException] = {}
    job = FaultJob(cluster, directory / scenario.name, f"fault-{scenario.name}")
    job.directory.mkdir(parents=True)
    tidy = scenario.prepare(job)
    try:
        job.submit(scenario.sbatch, scenario.options, scenario.env)
        for fault in scenario.faults:
            results[fault.name] = suffer(job, fault)
        leave_nothing(job)
    except BaseException as error:  # noqa: BLE001 -- every test of the scenario reports it
        for fault in scenario.faults:
            results.setdefault(fault.name, error)
        with contextlib.suppress(AssertionError):  # the first error is the one to report
            leave_nothing(job)
    finally:
        tidy()
    return results


def suffer(job: FaultJob, fault: Fault) -> Row:
    """Bring one fault about, once training goes well, and see what follows."""
    attempt, saved = await_progress(job, fault)
    moment = fault.inject(job)
    strike = Strike(job=job, fault=fault, attempt=attempt, saved=saved, moment=moment)
    if fault.then is Then.NOTHING:
        return endure(strike)
    row, sign = watch_end(strike)
    fault.mend(job)
    if saved is not None:
        verify(saved)
    return end(strike, row, sign) if fault.then is Then.END else recover(strike, row)


def await_progress(job: FaultJob, fault: Fault) -> tuple[int, Path | None]:
    """Wait until this attempt trains and has written a checkpoint; attempt and checkpoint."""
    job.until(lambda: job.attempt, "the first attempt")
    if fault.at_start:
        return job.attempt, None
    job.until_event("first_step", attempt=job.attempt)
    job.until_event("checkpoint", attempt=job.attempt, since=time.time() - 0.5)
    saved = job.until(
        lambda: job.events("checkpoint", attempt=job.attempt)[fault.num_saved - 1 :],
        f"{fault.num_saved} checkpoints",
    )
    return job.attempt, None if fault.damages else Path(saved[-1]["path"])


def watch_end(strike: Strike) -> tuple[Row, Event | None]:
    """Wait until the fault was seen and no process of a rank is left; the times, and the sign."""
    job, fault = strike.job, strike.fault
    seen: Event | None = None
    down_s: float | None = None
    deadline = time.monotonic() + PATIENCE_S
    while down_s is None or (seen is None and not fault.may_be_silent):
        signs = job.events(*fault.signs, attempt=strike.attempt, since=strike.since)
        seen = seen or next(filter(fault.is_sign, signs), None)
        if down_s is None and not job.rank_processes(strike.attempt):
            down_s = time.time() - strike.moment
        if ABANDONED.is_set() or time.monotonic() > deadline:
            message = f"{fault.name}: seen {seen}, torn down after {down_s} s\n{job.story()}"
            raise TooLateError(message)
        time.sleep(2 * POLL_S)  # reading every process of the machine is not free
    assert down_s < fault.down_within_s, f"torn down after {down_s} s"
    seen_s = None if seen is None else max(0.0, when(seen) - strike.moment)
    return dataclasses.replace(strike.row, seen_s=seen_s, down_s=down_s), seen


def recover(strike: Strike, row: Row) -> Row:
    """See the next attempt begin from the last checkpoint."""
    job, fault, attempt = strike.job, strike.fault, strike.attempt
    first = job.until_event("first_step", attempt=attempt + 1)
    resume = job.until_event("resume", attempt=attempt + 1)
    if resume["path"] is not None:
        verify(Path(resume["path"]))
    fault.check(job, resume)
    reached = max(step for step, _ in job.steps(attempt)) if job.steps(attempt) else 0
    lost = max(0, reached - resume["step"])  # steps done after it, and saved, are not lost
    reported = job.attempt_record(attempt)
    line = _of_next(job, fault) if fault.reported_by_next else _decided(job, fault, reported)
    expect(fault, reported, line)
    assert abs(reported["steps_lost"] - lost) <= 1, (reported["steps_lost"], lost)
    return dataclasses.replace(
        row,
        recovered_s=when(first) - strike.moment,
        steps_lost=lost,
        **_outcome(job, reported, line),
    )


def _decided(job: FaultJob, fault: Fault, reported: Event) -> str:
    """See that the script decided as it must; the line in which it reports so."""
    decision = reported["decision"] or {}
    expected = {Then.RESTART: "restart", Then.REQUEUE: "requeue"}[fault.then]
    assert decision.get("decision") == expected, (decision, job.words())
    return next(words for words in reversed(job.words()) if words.endswith(decision["reason"]))


def _of_next(job: FaultJob, fault: Fault) -> str:
    return next((words for words in reversed(job.words()) if re.search(fault.message, words)), "")


def end(strike: Strike, row: Row, sign: Event | None) -> Row:
    """See the job end, and say why."""
    job, fault = strike.job, strike.fault
    job.until_ended()
    leave_nothing(job)
    if sign is not None:
        fault.check(job, sign)
    reported = job.record()["attempts"][-1]
    assert reported["attempt"] == strike.attempt + fault.restarts_before, reported
    line = job.why() if fault.is_silent else job.words()[-1]
    expect(fault, reported, line)
    return dataclasses.replace(
        row, steps_lost=reported["steps_lost"], **_outcome(job, reported, line)
    )


def _outcome(job: FaultJob, reported: Event, line: str) -> dict[str, Any]:
    line = line.replace(str(job.run_dir), "RUN_DIR")
    return {"code": reported["code"], "failure_class": reported["failure_class"], "last_line": line}


def endure(strike: Strike) -> Row:
    """See the attempt train on, and save again."""
    job, fault, attempt = strike.job, strike.fault, strike.attempt
    noticed = None
    if fault.signs:
        sign = job.until_event(
            *fault.signs, attempt=attempt, since=strike.since, matches=fault.is_sign
        )
        noticed = when(sign)
        fault.check(job, sign)
    noticed = fault.notice(job, strike.moment) or noticed
    fault.mend(job)
    over = time.time()
    again = job.until(
        lambda: next((at for _, at in job.steps(attempt) if at > over), None), "a step after it"
    )
    verify(Path(job.until_event("checkpoint", attempt=attempt, since=over)["path"]))
    assert job.attempt == attempt, job.words()
    line = next((line for line in job.log.splitlines() if re.search(fault.message, line)), "")
    assert line, f"no line has {fault.message}: {job.log}"
    return dataclasses.replace(
        strike.row,
        seen_s=None if noticed is None else noticed - strike.moment,
        recovered_s=again - strike.moment,
        steps_lost=0,
        last_line=line if fault.message else "",
    )


def expect(fault: Fault, reported: Event, line: str) -> None:
    """Code, class and the line for people are what they must be."""
    codes = fault.code if isinstance(fault.code, tuple) else (fault.code,)
    assert reported["code"] in codes, (reported["code"], codes, line)
    assert reported["failure_class"] == fault.failure_class, (
        reported["failure_class"],
        line,
        reported,
    )
    assert re.search(fault.message, line), line


def verify(checkpoint: Path) -> None:
    """Every file is what the manifest says, by our own reading; one that was pruned is no loss."""
    try:
        manifest = json.loads((checkpoint / "manifest.json").read_text())
    except FileNotFoundError:
        newer = (checkpoint.parent / "latest").read_text().strip()
        assert int(newer.removeprefix("step-")) > int(checkpoint.name.removeprefix("step-"))
        return verify(checkpoint.parent / newer)
    files = {path.name for path in checkpoint.iterdir()} - {"manifest.json"}
    assert files == set(manifest["files"]), (checkpoint, files)
    for name, expected in manifest["files"].items():
        content = (checkpoint / name).read_bytes()
        assert len(content) == expected["bytes"], (checkpoint, name)
        assert hashlib.sha256(content).hexdigest() == expected["sha256"], (checkpoint, name)
    return None


def leave_nothing(job: FaultJob) -> None:
    """End the job, if it has not ended, and see that nothing of it is left anywhere in time."""
    if not job.id:
        return
    job.cluster.run(["scancel", "--quiet", str(job.id)])
    job.until_ended()
    job.until(lambda: not job.processes(), "no process is left", GONE_S)

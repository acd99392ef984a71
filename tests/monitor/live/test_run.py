"""What a live view shows of a run: step, loss, pace, time left, outcome."""

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.analysis.engine import evaluate
from monitor.analysis.findings import summaries
from monitor.live import log as live_log
from monitor.live.fleet import window
from monitor.live.log import LiveLog
from monitor.live.run import LiveRun, Progress


class Run:
    """A run directory that grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "slurm-7"
        (self.folder / "logs").mkdir(parents=True)
        self.live = LiveRun(str(self.folder))

    def add_event(self, event: str, attempt: int = 1, **further: Any) -> None:
        """Append an event."""
        self.append("events.jsonl", {"event": event, "attempt": attempt, **further})

    def step(self, step: int, train_time_s: float, **further: Any) -> None:
        """Append the line of a log interval."""
        values = {"attempt": 1, "step": step, "epoch": 1, "loss": 0.5, "samples_per_s": 1000.0}
        self.append("metrics.jsonl", values | {"train_time_s": train_time_s} | further)

    def append(self, name: str, line: dict[str, Any]) -> None:
        """Append a line."""
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def log(self, text: str) -> None:
        """Append to the log of rank 0."""
        with (self.folder / "logs" / "rank-0.log").open("a") as file:
            file.write(text)

    @property
    def progress(self) -> Progress:
        """Poll, and sum up."""
        self.live.poll()
        return self.live.progress()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An empty run directory."""
    return Run(tmp_path)


def test_a_run_is_followed_from_its_start_to_its_end(run: Run) -> None:
    """Each word changes what is reported."""
    assert run.progress.outcome == "starting"
    run.add_event("start", job_id="7", world_size=8)
    run.add_event("first_step", step=1)
    assert (run.progress.outcome, run.progress.num_ranks) == ("running", 8)
    run.step(50, 10.0, loss=1.5, data_wait_pct=3.0, tokens_per_s=5e4, mfu_pct=41.5)
    reported = run.progress
    assert (reported.tokens_per_s, reported.mfu_pct) == (5e4, 41.5)
    assert (reported.name, reported.step, reported.loss, reported.samples_per_s) == (
        "slurm-7",
        50,
        1.5,
        1000,
    )
    assert (reported.num_steps, reported.left_s, reported.is_over) == (None, None, False)
    run.append("metrics.jsonl", {"attempt": 1, "step": 50, "test_loss": 1.0, "test_accuracy": 0.9})
    assert (run.progress.test_accuracy, run.progress.loss) == (0.9, 1.5)
    run.add_event("summary", summary={"outcome": "finished", "steps": 60})
    assert (run.progress.outcome, run.progress.step, run.progress.left_s) == ("finished", 60, 0)
    run.add_event("end", code=0)
    assert run.progress.is_over


def test_a_loss_of_nothing_is_a_loss(run: Run) -> None:
    """Exactly 0 is a reading; what is no number is none."""
    for step, loss in enumerate((0.5, 0.0, None)):
        run.step(step, 1.0, loss=loss)
    assert str(run.progress.losses) == "(0.5, 0.0, nan)"
    assert run.progress.loss is None


def test_the_time_left_is_at_the_pace_of_late(run: Run) -> None:
    """By the steps between the lines kept, of this attempt: 100 steps took 20 s."""
    run.step(10, 100.0, total_steps=1110)
    run.step(110, 120.0, total_steps=1110)
    assert (run.progress.num_steps, run.progress.left_s) == (1110, 200)
    run.step(120, 4.0, attempt=2, total_steps=1110)
    assert run.progress.left_s is None  # another attempt counts its own time
    run.step(130, 5.0, attempt=2, total_steps=1110)
    assert run.progress.left_s == pytest.approx(98)


def test_without_a_whole_number_of_steps_no_time_is_left(run: Run) -> None:
    """What a command of one's own writes to its log is none of ours to guess at."""
    run.log("step 1/10 \nstep 2/10 \n")
    run.step(1, 1.0)
    run.step(2, 2.0)
    assert (run.progress.num_steps, run.progress.left_s) == (None, None)


def test_a_rollback_has_no_pace(run: Run) -> None:
    """Steps that went back give no time left, rather than of a wrong one."""
    run.step(50, 10.0, total_steps=100)
    run.step(40, 11.0, total_steps=100)
    assert run.progress.left_s is None


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(0, "finished"), (75, "stopped"), (76, "hung"), (64, "refused"), (134, "failed (code 134)")],
)
def test_an_exit_code_is_reported_in_words(run: Run, code: int, outcome: str) -> None:
    """As the launcher's contract has them."""
    run.add_event("end", code=code)
    assert run.progress.outcome == outcome
    assert run.progress.is_over


@pytest.mark.parametrize(("decision", "outcome"), [("restart", "restarting"), ("fail", "hung")])
def test_a_decision_may_carry_it_on(run: Run, decision: str, outcome: str) -> None:
    """A run that starts again is not over."""
    run.add_event("end", code=76)
    run.add_event("decision", decision=decision)
    assert run.progress.outcome == outcome


def test_the_last_attempt_speaks(run: Run) -> None:
    """What an earlier one reported is past; a late word of it changes nothing."""
    run.add_event("start", job_id="7", world_size=8)
    run.add_event("verdict", text="rank 1 hangs")
    run.add_event("end", code=76)
    run.add_event("start", attempt=2, job_id="9", world_size=4)
    run.add_event("rank_end", attempt=1, rank=0, code=0)
    reported = run.progress
    assert (reported.attempt, reported.num_ranks, reported.outcome) == (2, 4, "starting")
    assert run.live.notes == ()
    assert run.live.job_ids == ["7", "9"]


def test_lines_that_are_none_do_no_harm(run: Run) -> None:
    """Torn ones, other people's, and numbers that are none."""
    for name in ("events.jsonl", "metrics.jsonl"):
        (run.folder / name).write_text('{"event": 3}\n[]\n{"step": "a", "loss": 1}\nnonsense\n{"e')
    run.append("events.jsonl", {})
    run.step(5, 1.0, loss=float("nan"), samples_per_s=True, epoch=None)
    reported = run.progress
    assert reported.step is None or reported.step == 5
    assert reported.loss is None
    assert reported.samples_per_s is None


def test_a_run_that_cannot_be_read_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps what it knew."""
    run.step(5, 1.0)
    assert run.progress.step == 5
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> None:
            raise OSError(5, "Input/output error")

        patched.setattr("os.stat", refuse)
        assert run.progress.step == 5
    assert run.live.problem == "Input/output error"


# ---- alerts --------------------------------------------------------------------------------------


def found(run: Run, *logs: LiveLog) -> list[tuple[str, str, str]]:
    """Evaluate the rules as the view does: severity, place and text."""
    now = window(logs, run.live)
    return [(one.severity, one.where, one.evidence) for one in summaries(now, evaluate(now))]


def test_what_the_run_reports_is_an_alert(run: Run) -> None:
    """In its own words; what it leaves out is a question mark; only the last attempt's."""
    run.add_event("lost_node", node="n2", how="no answer")
    run.add_event("start", attempt=2)
    run.add_event("lost_node", attempt=2, node="n3", how="no answer")
    run.add_event("non_finite", attempt=2, step=12)
    run.add_event("checkpoint", attempt=2, step=12)
    run.live.poll()
    assert found(run) == [
        ("error", "the job", "node n3 is lost: no answer"),
        ("warning", "the job", "a loss or gradient at step 12 is not finite: ?"),
    ]


def test_the_trainers_own_numbers_are_evaluated(run: Run) -> None:
    """As `diagnose` does: it waits for data, and two ranks of two are not both slow."""
    for rank in (0, 1):
        run.add_event("rank_up", rank=rank, local_rank=rank)
    for step in range(1, 12):
        slow = [{"rank": step % 2, "node": "n1", "ratio": 1.9}]
        run.step(step, step * 1.0, data_wait_pct=50, slow_ranks=slow)
    run.live.poll()
    ((severity, where, text),) = found(run)
    assert (severity, where) == ("warning", "the job")
    assert text.startswith("the trainer waited for data for 50 % of its time")


def test_what_of_a_node_is_nearly_full_is_an_alert(tmp_path: Path) -> None:
    """Once a node, by the thresholds of `diagnose`, and only if two samples say so."""
    path = tmp_path / "slurm-7.n1.gutil"
    live, run = LiveLog(str(path)), Run(tmp_path)
    head = (
        "# gpu    sm  hmem   shm  disk dfree\n# Idx     %    MB     %     %    MB\n"
        "## host_memory_mib: 1000\n"
    )
    seen = []
    for text in (
        head + "    0    98   949    89     -     -\n    1    98   949    89     -     -\n",
        "    0    98   950    90    95  9000\n    1    98   950    90    95  9000\n",
        "    0    98   960    89    96  9000\n    1    98   960    89    96  9000\n",
    ):
        with path.open("a") as file:
            file.write(text)
        live_log.poll([live])
        seen.append(found(run, live))
    assert seen == [
        [],
        [],
        [
            ("warning", "n1", "the machine's memory was up to 96 % full"),
            ("warning", "n1", "the machine's disk was up to 96 % full, with 9 GiB left"),
        ],
    ]


def test_a_restart_has_no_pace_of_the_attempt_before(run: Run) -> None:
    """It is starting until it trains: an attempt that hangs there is not running."""
    run.add_event("start", job_id="7", world_size=2)
    for step in (10, 20):
        run.step(step, float(step), total_steps=100)
    assert (run.progress.outcome, run.progress.left_s) == ("running", 80.0)
    run.add_event("end", code=1)
    run.add_event("decision", decision="restart")
    assert run.progress.outcome == "restarting"
    run.add_event("start", attempt=2, job_id="7", world_size=2)
    reported = run.progress
    assert (reported.outcome, reported.step, reported.left_s) == ("starting", None, None)
    assert run.live.intervals == ()
    run.step(30, 1.0, attempt=2)
    assert (run.progress.outcome, run.progress.step) == ("running", 30)


def test_a_rank_that_is_no_number_costs_no_other_event(run: Run) -> None:
    """What follows in the same read counts."""
    run.add_event("rank_up", rank=[0])
    run.add_event("end", code=0)
    assert run.progress.is_over
    assert run.live.ranks == ()

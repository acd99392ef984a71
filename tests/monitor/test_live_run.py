"""What a live view tells of a run: step, loss, pace, time left, outcome."""

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.live import alerts
from monitor.live import log as live_log
from monitor.live.board import Board, Rows
from monitor.live.log import LiveLog
from monitor.live.run import LiveRun, Progress


class Run:
    """A run directory that grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "slurm-7"
        (self.folder / "logs").mkdir(parents=True)
        self.live = LiveRun(str(self.folder))

    def tell(self, event: str, attempt: int = 1, **further: Any) -> None:
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
        """Look, and sum up."""
        self.live.poll()
        return self.live.progress()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An empty run directory."""
    return Run(tmp_path)


def test_a_run_is_followed_from_its_start_to_its_end(run: Run) -> None:
    """Each word changes what is told."""
    assert run.progress.outcome == "starting"
    run.tell("start", job_id="7", world_size=8)
    run.tell("first_step", step=1)
    assert (run.progress.outcome, run.progress.num_ranks) == ("running", 8)
    run.step(50, 10.0, loss=1.5, data_wait_pct=3.0, tokens_per_s=5e4, mfu_pct=41.5)
    told = run.progress
    assert (told.tokens_per_s, told.mfu_pct) == (5e4, 41.5)
    assert (told.name, told.step, told.loss, told.samples_per_s) == ("slurm-7", 50, 1.5, 1000)
    assert (told.num_steps, told.left_s, told.is_over) == (None, None, False)
    run.append("metrics.jsonl", {"attempt": 1, "step": 50, "test_loss": 1.0, "test_accuracy": 0.9})
    assert (run.progress.test_accuracy, run.progress.loss) == (0.9, 1.5)
    run.tell("summary", summary={"outcome": "finished", "steps": 60})
    assert (run.progress.outcome, run.progress.step, run.progress.left_s) == ("finished", 60, 0)
    run.tell("end", code=0)
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
    """Steps that went back tell of no time left, rather than of a wrong one."""
    run.step(50, 10.0, total_steps=100)
    run.step(40, 11.0, total_steps=100)
    assert run.progress.left_s is None


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(0, "finished"), (75, "stopped"), (76, "hung"), (64, "refused"), (134, "failed (code 134)")],
)
def test_an_exit_code_is_told_in_words(run: Run, code: int, outcome: str) -> None:
    """As the launcher's contract has them."""
    run.tell("end", code=code)
    assert run.progress.outcome == outcome
    assert run.progress.is_over


@pytest.mark.parametrize(("decision", "outcome"), [("restart", "restarting"), ("fail", "hung")])
def test_a_decision_may_carry_it_on(run: Run, decision: str, outcome: str) -> None:
    """A run that starts again is not over."""
    run.tell("end", code=76)
    run.tell("decision", decision=decision)
    assert run.progress.outcome == outcome


def test_the_last_attempt_speaks(run: Run) -> None:
    """What an earlier one told is past; a late word of it changes nothing."""
    run.tell("start", job_id="7", world_size=8)
    run.tell("verdict", text="rank 1 hangs")
    run.tell("end", code=76)
    run.tell("start", attempt=2, job_id="9", world_size=4)
    run.tell("rank_end", attempt=1, rank=0, code=0)
    told = run.progress
    assert (told.attempt, told.num_ranks, told.outcome, told.notes) == (2, 4, "starting", ())
    assert run.live.job_ids == ["7", "9"]


def test_lines_that_are_none_do_no_harm(run: Run) -> None:
    """Torn ones, other people's, and numbers that are none."""
    for name in ("events.jsonl", "metrics.jsonl"):
        (run.folder / name).write_text('{"event": 3}\n[]\n{"step": "a", "loss": 1}\nnonsense\n{"e')
    run.append("events.jsonl", {})
    run.step(5, 1.0, loss=float("nan"), samples_per_s=True, epoch=None)
    told = run.progress
    assert told.step is None or told.step == 5
    assert told.loss is None
    assert told.samples_per_s is None


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


def board(**further: Any) -> Board:
    """Give a board without rows."""
    usual = {"name": "x", "clock": "", "rows": (), "progress": None, "num_unreadable": 0}
    return Board(**(usual | {"problems": ()} | further))


def test_what_the_run_tells_of_itself_is_an_alert(run: Run) -> None:
    """In its own words; what it leaves out is a question mark."""
    run.tell("lost_node", node="n3", how="no answer")
    run.tell("non_finite", step=12)
    run.tell("checkpoint", step=12)
    found = alerts.of_board(board(progress=run.progress, problems=("disk: gone",)))
    assert [(alert.severity, alert.text) for alert in alerts.folded(found)] == [
        ("error", "node n3 is lost: no answer"),
        ("error", "disk: gone"),
        ("warning", "a loss or gradient at step 12 is not finite: ?"),
    ]


def test_unreadable_rows_are_said() -> None:
    """As a hint."""
    (alert,) = alerts.of_board(board(num_unreadable=1))
    assert (alert.severity, alert.text) == ("hint", "1 row of the logs could not be read")


def test_what_of_a_node_is_nearly_full_is_an_alert(tmp_path: Path) -> None:
    """Once a node, by the thresholds of `diagnose`, and only if two samples say so."""
    path = tmp_path / "slurm-7.n1.gutil"
    live, rows = LiveLog(str(path)), Rows()
    head = (
        "# gpu    sm  hmem   shm  disk\n# Idx     %    MB     %     %\n## host_memory_mib: 1000\n"
    )
    seen = []
    for text in (
        head + "    0    98   949    90     -\n    1    98   949    90     -\n",
        "    0    98   950    89    95\n    1    98   950    89    95\n",
        "    0    98   960    90    96\n    1    98   960    90    96\n",
    ):
        with path.open("a") as file:
            file.write(text)
        live_log.poll([live])
        shown = rows.of([live], 0.0, is_over=True)
        found = alerts.of_board(board(rows=shown))
        seen.append([(alert.severity, alert.where, alert.rule, alert.text) for alert in found])
    assert seen == [
        [],
        [],
        [
            ("warning", "n1", "host_memory", "memory is 96 % full"),
            ("warning", "n1", "disk", "disk of the log is 96 % full"),
        ],
    ]

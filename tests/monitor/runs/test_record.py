import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor import whole_file as export_write
from monitor.errors import UserError
from monitor.runs import evidence, history, record

TOLD = {"outcome": "finished", "train_time_s": 9.5, "test_accuracy": 0.98, "steps": 40}


def event(name: str, second: int = 0, attempt: int = 1, **further: object) -> dict[str, Any]:
    """An event as prelaunch.sh writes it."""
    time = f"2026-11-21T04:17:{second:02d}.000Z"
    source = {"source": "prelaunch", "attempt": attempt, "host": "n1"}
    return {"time": time, "event": name, **source, **further}


START = {
    "job_id": "42",
    "run": "slurm-42",
    "place": "slurm",
    "nodes": ["n1", "n2"],
    "world_size": 2,
    "command": ["python", "-m", "trainer"],
    "restart_count": 0,
    "image": "./ddp.sqsh",
    "image_digest": "sha256:0",
}


def life(code: int | None, attempt: int = 1) -> list[dict[str, Any]]:
    """One attempt of two ranks, of which rank 1 ends first and with `code`."""
    settings = {"DEBUG": {"value": "0", "origin": "default"}, "MY_API_KEY": {"value": "secret"}}
    reported = [
        event("start", 1, attempt, **START),
        event("settings", 2, attempt, settings=settings),
        event("rank_up", 3, attempt, rank=0, local_rank=0, node="n1", pid=10),
        event("rank_up", 3, attempt, rank=1, local_rank=0, node="n2", pid=11),
    ]
    if code is not None:
        signal = {137: "KILL", 139: "SEGV"}.get(code)
        reported += [
            event(
                "rank_end", 8, attempt, rank=0, node="n1", code=143, signal="TERM", requested=True
            ),
            event(
                "rank_end", 7, attempt, rank=1, node="n2", code=code, signal=signal, requested=False
            ),
            event("end", 9, attempt, code=code),
        ]
    return reported


@pytest.mark.parametrize(
    ("code", "outcome", "blame"),
    [
        (0, "finished", None),
        (64, "failed", "user"),
        (70, "failed", "program"),
        (1, "failed", "program"),
        (75, "stopped", "preempted"),
        (76, "failed", "hung"),
        (137, "failed", "killed"),
        (139, "failed", "program"),
        (None, "killed", "killed"),
    ],
)
def test_an_end_is_classified_by_its_code(
    code: int | None, outcome: str, blame: str | None
) -> None:
    """Outcome and class follow the exit code; with no end at all the run was killed."""
    made = record.compose(life(code), [])
    assert (made["outcome"], made["failure_class"], made["code"]) == (outcome, blame, code)
    assert made["summary"]["outcome"] == outcome


@pytest.mark.parametrize(
    ("outcome", "code"), [("finished", 0), ("stopped", 75), ("failed", 70), ("?", None)]
)
def test_a_trainer_without_the_batch_script_speaks_for_itself(
    outcome: str, code: int | None
) -> None:
    """`python -m trainer` by hand: its summary is the end."""
    reported = [event("resume", step=0, path=None), event("summary", summary={"outcome": outcome})]
    assert record.compose(reported, [])["code"] == code


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((0, 3), 3), ((0,), None)])
def test_launchers_without_the_batch_script_are_believed(
    codes: tuple[int, ...], code: int | None
) -> None:
    """torchrun or a hand started them: the first bad end, once all have ended."""
    reported = [event("rank_up", rank=rank, node="n1", pid=rank) for rank in (0, 1)]
    reported += [event("rank_end", rank=rank, node="n1", code=c) for rank, c in enumerate(codes)]
    assert record.compose(reported, [])["code"] == code


def test_the_record_holds_what_the_run_was() -> None:
    """Job, image, nodes, command, and settings without secrets."""
    made = record.compose(life(0), [])
    for key in ("job_id", "run", "image", "image_digest", "nodes", "world_size", "command"):
        assert made[key] == START[key]
    assert made["environment"] == {"DEBUG": "0"}
    assert made["settings"] == {"DEBUG": {"value": "0", "origin": "default"}}
    assert "secret" not in json.dumps(made)


def test_a_run_that_the_bash_supervisor_recorded() -> None:
    """Of commit 9c5e89d, whose rank 1 was killed: the record is the one that was composed then."""
    path = Path(__file__).parents[1] / "data" / "events-9c5e89d.jsonl"
    made = record.compose([json.loads(line) for line in path.read_text().splitlines()], [])
    keys = ("outcome", "code", "failure_class", "last_step", "steps_lost")
    assert [tuple(one[key] for key in keys) for one in made["attempts"]] == [
        ("failed", 137, "killed", 118, 18),
        ("finished", 0, None, 1000, 0),
    ]
    first, second = made["attempts"]
    assert first["first_failure"] == {"rank": 1, "node": "n1", "code": 137, "signal": "KILL"}
    assert second["checkpoint_used"]["path"] == "/out/before/checkpoints/step-100"
    seconds = [made["goodput"][name] for name in ("start_up_s", "compute_s", "wall_s")]
    assert seconds == [48.945, 12.347, 72.22]


@pytest.mark.parametrize(
    "damaged",
    [
        event("summary", summary={"outcome": "failed", "slow_ranks": [{}]}),
        event("rank_up", rank=0, local_rank=0, node=["n1"], pid=1),
    ],
)
def test_values_of_the_wrong_type_cost_nothing_else(
    damaged: dict[str, Any], tmp_path: Path
) -> None:
    """`compose` and `why` do without them."""
    lines = [json.dumps(one) + "\n" for one in (*life(None), damaged)]
    (tmp_path / "events.jsonl").write_text("".join(lines))
    assert compose(tmp_path).returncode == 0
    command = [sys.executable, "-m", "monitor", "why", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_rank_has_its_end() -> None:
    """In order of ranks; one without a reported end has no code."""
    ranks = record.compose(life(137), [])["attempts"][0]["ranks"]
    assert [(r["rank"], r["node"], r["code"], r["signal"]) for r in ranks] == [
        (0, "n1", 143, "TERM"),
        (1, "n2", 137, "KILL"),
    ]
    assert (ranks[1]["pid"], ranks[1]["up_time"][-4:-1]) == (11, "000")
    assert record.compose(life(None), [])["attempts"][0]["ranks"][1]["code"] is None


def test_the_first_failure_is_named() -> None:
    """As the script named it, else the first rank that failed without being asked to end."""
    reported = {"rank": 0, "node": "n1", "code": 1, "signal": None}
    assert (
        record.compose([*life(137), event("first_failure", **reported)], [])["first_failure"]
        == reported
    )
    found = record.compose(life(137), [])["first_failure"]
    assert found == {"rank": 1, "node": "n2", "code": 137, "signal": "KILL"}
    assert record.compose(life(0), [])["first_failure"] is None


def test_attempts_are_kept_apart() -> None:
    """A killed attempt and one that finished: the run finished, both are reported."""
    made = record.compose([*life(None), *life(0, attempt=2)], [])
    assert [a["outcome"] for a in made["attempts"]] == ["killed", "finished"]
    assert made["outcome"] == "finished"


def test_the_trainers_summary_is_taken_as_it_is() -> None:
    """The last one of the attempt; the other events of the trainer are listed."""
    reported = [
        event("signal", signal="USR1"),
        event("checkpoint", step=20, path="p", seconds=0.1),
        event("failure", rank=1, error="ValueError: x"),
        event("summary", summary={"outcome": "stopped"}),
        event("summary", summary=TOLD),
        event("decision", decision="requeue"),
    ]
    made = record.compose(life(0) + reported, [{"step": 1, "loss": 9.0}])
    assert made["summary"] == TOLD
    assert made["decision"] == "requeue"
    (attempt,) = made["attempts"]
    assert attempt["signals"] == ["USR1"]
    assert attempt["checkpoints"] == [{"step": 20, "path": "p", "seconds": 0.1}]
    assert attempt["failures"] == [{"rank": 1, "error": "ValueError: x"}]


def test_a_killed_runs_summary_comes_from_its_metrics() -> None:
    """Step, loss and rate of its own last lines, not of another attempt's."""
    metrics = [
        {"attempt": 1, "step": 90, "loss": 0.1},
        {"attempt": 2, "step": 10, "loss": 2.0, "samples_per_s": 50.0, "train_time_s": 3.0},
        {"attempt": 2, "step": 20, "test_accuracy": 0.7, "train_time_s": 4.0},
    ]
    made = record.compose([*life(0), *life(None, attempt=2)], metrics)
    assert made["summary"] == {
        "outcome": "killed",
        "train_time_s": 4.0,
        "samples_per_s": 50.0,
        "final_loss": 2.0,
        "test_accuracy": 0.7,
        "world_size": 2,
        "steps": 20,
    }


def test_metrics_without_an_attempt_go_by_time() -> None:
    """Lines written before the attempt began are another's."""
    metrics = [
        {"time": "2026-11-21T04:16:00.000Z", "step": 5},
        {"time": "2026-11-21T04:18:00.000Z", "step": 7},
    ]
    assert record.compose(life(None), metrics)["summary"]["steps"] == 7
    assert record.compose(life(None), metrics[:1])["summary"]["steps"] is None


@given(st.data())
def test_a_record_is_composed_wherever_the_events_break_off(data: st.DataObject) -> None:
    """However many events there are, and whatever one of them holds, it does not fail."""
    reported = [*life(137), event("summary", summary=TOLD)][: data.draw(st.integers(1, 9))]
    strange = data.draw(st.sampled_from([None, "x", [], {}, 1.5, True]))
    key = data.draw(st.sampled_from(["code", "rank", "settings", "summary", "attempt", "time"]))
    made = record.compose(
        [{**one, **({key: strange} if key in one else {})} for one in reported], []
    )
    json.dumps(made)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that finished, and a last event that is torn."""
    lines = [json.dumps(one) for one in life(0)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + '\n{"time": "torn')
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.5}\n')
    return tmp_path


def compose(directory: Path) -> "subprocess.CompletedProcess[str]":
    """Run the `compose` command."""
    command = [sys.executable, "-m", "monitor", "compose", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_compose_writes_run_json(run_dir: Path) -> None:
    """From a directory with a torn last event; beside and renamed, nothing else is left."""
    done = compose(run_dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(run_dir / "run.json")
    made = json.loads((run_dir / "run.json").read_text())
    assert made["num_unreadable_lines"] == 1
    assert made["summary"]["final_loss"] == 1.5
    assert {p.name for p in run_dir.iterdir()} == {"events.jsonl", "metrics.jsonl", "run.json"}


def test_compose_writes_where_no_link_leads(run_dir: Path) -> None:
    """A colleague who may write into the run's directory could have a file of ours replaced."""
    ours = run_dir.parent / "ours"
    ours.write_text("kept")
    (run_dir / "run.json").unlink(missing_ok=True)
    (run_dir / "run.json").symlink_to(ours)
    assert compose(run_dir).returncode == 0
    assert ours.read_text() == "kept"
    assert json.loads((run_dir / "run.json").read_text())["attempts"]


def test_compose_without_events_is_wrong_input(tmp_path: Path) -> None:
    """One line, code 64, nothing written."""
    done = compose(tmp_path / "none")
    assert done.returncode == 64
    assert "events.jsonl" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_record_that_cannot_be_written_leaves_nothing(run_dir: Path) -> None:
    """Where run.json cannot be replaced, one line says so and nothing lies beside it."""
    (run_dir / "run.json").mkdir()
    done = compose(run_dir)
    assert done.returncode == 64
    assert "run.json" in done.stderr
    assert not list(run_dir.glob("*.new"))


def test_events_written_meanwhile_are_not_missed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that is written while the record is composed is in the record that stays."""
    real = record.compose
    later = [event("end", 30, code=75)]

    def slow(*args: Any, **options: Any) -> dict[str, Any]:
        made = real(*args, **options)
        if later:
            with (run_dir / "events.jsonl").open("a") as file:
                file.write("\n" + json.dumps(later.pop()) + "\n")
        return made

    monkeypatch.setattr(record, "compose", slow)
    record.compose_file(str(run_dir))
    assert json.loads((run_dir / "run.json").read_text())["code"] == 75


def test_a_run_that_tells_something_all_the_time_is_composed_too(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Composing ends, also when a new event stands in the log whenever it is done."""
    real, num_reads = record.compose, 0

    def slow(*args: Any, **options: Any) -> dict[str, Any]:
        nonlocal num_reads
        num_reads += 1
        assert num_reads < 20, "it looks for ever"
        with (run_dir / "events.jsonl").open("a") as file:
            file.write("\n" + json.dumps(event("checkpoint", 30, step=num_reads)) + "\n")
        return real(*args, **options)

    monkeypatch.setattr(record, "compose", slow)
    record.compose_file(str(run_dir))
    assert json.loads((run_dir / "run.json").read_text())["attempts"]


def test_only_the_end_of_long_metrics_is_read(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file larger than the limit is read from a whole line on; a missing one is no trouble."""
    monkeypatch.setattr(evidence, "_TAIL_BYTES", 30)
    record.compose_file(str(run_dir))
    made = json.loads((run_dir / "run.json").read_text())
    assert made["num_unreadable_lines"] == 1
    assert made["summary"]["steps"] == 2
    (run_dir / "metrics.jsonl").unlink()
    record.compose_file(str(run_dir))
    assert json.loads((run_dir / "run.json").read_text())["summary"]["steps"] is None
    os.unlink(run_dir / "events.jsonl")  # noqa: PTH108
    with pytest.raises(UserError, match="run directory"):
        record.compose_file(str(run_dir))


def test_a_record_that_cannot_be_written_is_one_line(run_dir: Path) -> None:
    """Also where the recorder composes it; nothing is left behind."""
    (run_dir / "run.json").mkdir()
    before = sorted(run_dir.iterdir())
    with pytest.raises(UserError, match=r"run\.json must be writable; found Is a directory in"):
        record.compose_file(str(run_dir))
    assert sorted(run_dir.iterdir()) == before


@pytest.mark.parametrize(
    "time", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-11-21T04:17:30", "t", None]
)
def test_a_damaged_time_is_none(time: object) -> None:
    """No axis reaches to a year that no run was in."""
    assert history.seconds(time) is None


def test_two_nodes_write_beside_by_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers, a process of the same number may be at the same file on another node."""
    seen: list[str] = []

    def replace(source: str, _target: str) -> None:
        seen.append(source)
        os.unlink(source)  # noqa: PTH108

    monkeypatch.setattr(os, "replace", replace)
    for node in ("n1", "n2"):
        monkeypatch.setattr(os, "uname", lambda node=node: SimpleNamespace(nodename=node))
        record._replace(str(tmp_path / "run.json"), {})
        with export_write.beside(str(tmp_path / "out.prom")):
            pass
    assert len(set(seen)) == 4
    assert not [name for name in seen if name.endswith(".prom")]

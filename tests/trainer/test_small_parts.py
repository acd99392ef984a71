import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from trainer.checkpoint.train_state import TrainState
from trainer.config import Config, Schedule
from trainer.environment import RunSettings
from trainer.errors import UserError, missing_package
from trainer.loop.optim import LearningRate
from trainer.loop.stop import StopRequest
from trainer.telemetry.events import EventLog, append_line
from trainer.telemetry.speed import Speed, Work, peak_flops_per_s
from trainer.workloads.llama_presets import PRESETS
from trainer.workloads.registry import build_workload


def test_the_cosine_rises_falls_and_ends_near_zero() -> None:
    """Linear warm-up to the peak, half of it in the middle, the last step above zero."""
    rate = LearningRate(peak=1.0, kind="cosine", warmup_steps=10, total_steps=110)
    assert [rate.at(0), rate.at(9), rate.at(10), rate.at(60)] == pytest.approx([0.1, 1.0, 1.0, 0.5])
    assert 0 < rate.at(109) < 0.001


def test_constant_stays() -> None:
    """After warm-up the rate does not move."""
    rate = LearningRate(peak=2.0, kind="constant", warmup_steps=2, total_steps=9)
    assert [rate.at(s) for s in (0, 1, 2, 8)] == [1.0, 2.0, 2.0, 2.0]


def rates(kind: Schedule, steps: list[int], **more: float) -> list[float]:
    """What a schedule of 10 warm-up steps and 110 in all says to some steps."""
    options = {"warmup_steps": 10, "total_steps": 110, **more}
    rate = LearningRate(peak=1.0, kind=kind, **options)  # type: ignore[arg-type]
    return [rate.at(step) for step in steps]


def test_a_line_goes_down_to_zero() -> None:
    """The peak once, half of it in the middle, and the last step is one above zero."""
    assert rates("linear", [0, 9, 10, 60, 109]) == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.01])


def test_wsd_stays_and_then_goes_down() -> None:
    """Over the last fraction of all steps, and not before the warm-up is over."""
    steps = [0, 9, 10, 88, 89, 99, 109]
    expected = [0.1, 1.0, 1.0, 1.0, 1 - 1 / 22, 0.5, 1 / 22]
    assert rates("wsd", steps, decay_fraction=0.2) == pytest.approx(expected)
    assert rates("wsd", steps, decay_fraction=1) == rates("linear", steps)
    assert rates("wsd", [50, 109], decay_fraction=0) == [1.0, 1.0]
    assert rates("wsd", [50], total_steps=10**6) == [1.0]


def test_the_way_down_ends_where_it_is_told() -> None:
    """Each schedule that goes down is its own form between the peak and the lowest rate."""
    steps = [0, 10, 60, 100, 109]
    for kind in ("cosine", "linear", "wsd"):
        to_zero = rates(kind, steps)[1:]
        expected = [0.25 + 0.75 * rate for rate in to_zero]
        assert rates(kind, steps, lowest=0.25) == pytest.approx([0.1, *expected])


def test_a_run_shorter_than_its_warm_up_is_all_warm_up() -> None:
    """Nothing is divided by zero, either."""
    for kind in get_args(Schedule):
        assert rates(kind, [0, 4], total_steps=5) == pytest.approx([0.1, 0.5])
        assert rates(kind, [0], total_steps=1, warmup_steps=0) == [1.0]
        assert rates(kind, [9, 10], total_steps=10) == [1.0, 1.0]


def test_settings_are_the_contracts_variables() -> None:
    """DDP_* as docs/architecture.md has them; without them, a run by hand."""
    env = {"DDP_RUN_DIR": "/r", "DDP_ATTEMPT": "3", "DDP_SEED": "7", "DDP_NODE": "n1"}
    assert RunSettings.from_environment(env, "h") == RunSettings(
        run_dir=Path("/r"), attempt=3, seed=7, node="n1"
    )
    assert RunSettings.from_environment({}, "h") == RunSettings(node="h")
    for text in ("x", "-1", "1_0", "9" * 5000):
        with pytest.raises(UserError, match="DDP_SEED"):
            RunSettings.from_environment({"DDP_SEED": text}, "h")


def test_a_test_loss_that_is_not_a_number_is_never_the_best() -> None:
    """Nothing is less than it: the first one would be the best for ever."""
    fresh = TrainState(seed=1, global_batch_size=1, num_train_samples=1)
    for loss in (math.nan, math.inf):
        lost = replace(fresh, step=1).validated(loss, None)
        assert (lost.best_step, lost.best_test_loss) == (None, None)
        assert lost.num_validations_without_gain == 1
        found = replace(lost, step=2).validated(9.0, None)
        assert (found.best_step, found.best_test_loss) == (2, 9.0)
        assert replace(found, step=3).validated(loss, None).best_step == 2
    assert replace(fresh, step=1).validated(math.nan, 0.5).best_step == 1


def test_an_event_has_the_contracts_keys_in_order(tmp_path: Path) -> None:
    """time, event, source, attempt, host, then the event's own; not-a-number becomes null."""
    log = EventLog(path=tmp_path / "events.jsonl", attempt=2, host="n1")
    log.write("checkpoint", step=5, seconds=float("nan"))
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert list(event) == ["time", "event", "source", "attempt", "host", "step", "seconds"]
    assert (event["source"], event["attempt"], event["host"]) == ("trainer", 2, "n1")
    assert event["seconds"] is None


def test_half_a_line_spoils_no_other_one(tmp_path: Path) -> None:
    """On a nearly full disk the system takes what fits: it is told, and the next line is whole."""
    path = tmp_path / "events.jsonl"
    limited = (
        "import resource, sys; from pathlib import Path\n"
        "from trainer.telemetry.events import append_line\n"
        "path = Path(sys.argv[1])\n"
        "append_line(path, {'n': 1})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (15, -1))\n"
        "append_line(path, {'n': 2, 'more': 'than fits'})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "append_line(path, {'n': 3})\n"
        "append_line(path, {'n': 4})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", limited, path], capture_output=True, text=True, check=True
    )
    assert path.read_text() == '{"n": 1}\n{"n": \n{"n": 3}\n{"n": 4}\n'
    told = f"trainer: could not write to {path}: [Errno 28] No space left on device: "
    assert ended.stderr.startswith(told)
    assert ended.stderr.count("\n") == 1


def test_a_record_that_cannot_be_written_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk or a lost folder costs a line of the record, never the run."""
    append_line(Path("/nonexistent/events.jsonl"), {"a": 1})
    assert "could not write to /nonexistent/events.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "nonesuch",
        "nonesuch.module:Class",
        "json:JSONDecoder",
        "json:Nope",
        ":Class",
        ".relative:Class",
        "a..b:Class",
        "trainer.workloads.base:Workload",
    ],
)
def test_an_unknown_workload_is_an_error_that_lists_the_known(name: str) -> None:
    """Neither a wrong name nor a class of another kind gets further than this."""
    with pytest.raises(UserError, match=f"--workload {name}: one of mnist, imagefolder"):
        build_workload(Config(workload=name))


def test_a_module_that_ends_python_is_no_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that runs when it is imported must not end the training as if it had finished."""
    (tmp_path / "a_script.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="a module that ends Python when it is imported"):
        build_workload(Config(workload="a_script:Main"))


def test_a_missing_package_is_one_line_with_the_remedy() -> None:
    """Before `make demo` there is no environment."""
    told = str(missing_package(ModuleNotFoundError(name="tyro"), "/usr/bin/python3"))
    assert "found no tyro in /usr/bin/python3; run `make demo` once" in told


def test_one_request_delivered_twice_is_one() -> None:
    """Slurm and the launcher may both deliver it."""
    stop = StopRequest()
    stop._handle(signal.SIGUSR1, None)  # noqa: SLF001 -- as the interpreter calls it
    stop._handle(signal.SIGTERM, None)  # noqa: SLF001
    assert stop.signal_name == "USR1"


def test_a_second_request_later_ends_at_once(patience: Callable[[float], float]) -> None:
    """With 128 + the signal's number."""
    code = (
        "import os, signal, time, trainer.loop.stop as s; s._SAME_REQUEST_S = 0.01\n"
        "s.StopRequest().install(); os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.1)\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"
    )
    root = str(Path(__file__).parents[2])
    began_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, check=False
    )
    assert ended.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - began_s < patience(8)


def test_speed_is_tokens_operations_and_their_share_of_the_peak() -> None:
    """What nobody knows is not told."""
    work = Work(tokens_per_sample=2048, flops_per_sample=1.5e13, peak_flops_per_s=8 * 989.4e12)
    speed = work.speed(256.0)
    assert (speed.tokens_per_s, speed.flops_per_s) == (524_288.0, 3.84e15)
    assert speed.mfu_pct == pytest.approx(48.5, abs=0.02)
    assert speed.texts() == ["524288 tokens/s", "3.84e+03 TFLOP/s", "MFU 48.5 %"]
    nothing = Work(tokens_per_sample=None, flops_per_sample=None, peak_flops_per_s=1e12)
    assert nothing.speed(5.0) == Speed()
    assert Speed().texts() == []


def test_a_devices_peak_is_known_by_its_name() -> None:
    """As the driver spells it; one that is not in the table has none."""
    names = {
        "NVIDIA H200": 989.4, "NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H100 PCIe": 756.4,
        "NVIDIA H100 NVL": 835.5, "NVIDIA A100-SXM4-80GB": 311.9, "NVIDIA A10G": None,
        "NVIDIA L40S": 362.0, "NVIDIA L4": 121.0, "NVIDIA L40": None, "Tesla V100-SXM2-16GB": None,
        "NVIDIA A100 80GB PCIe": 311.9, "NVIDIA B200": 2250.0, "NVIDIA A40": 149.7,
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None, "NVIDIA A100-SXM4-40GB MIG 3g.20gb": None,
    }  # fmt: skip
    for name, tflops in names.items():
        peak = peak_flops_per_s(name)
        assert peak == (None if tflops is None else pytest.approx(tflops * 1e12)), name


def test_a_llamas_operations_follow_the_formula() -> None:
    """6 N + 12 L D S, N without an embedding that only looks up."""
    shape = PRESETS["tinyllama-1.1b"]
    num_multiplied = 1_100_048_384 - 32_000 * 2048
    assert shape.flops_per_token(2048) == 6 * num_multiplied + 12 * 22 * 2048 * 2048
    tied = PRESETS["stories15m"]
    assert tied.flops_per_token(256) == 6 * 15_191_712 + 12 * 6 * 288 * 256
    workload = build_workload(Config(workload="lm", model="tinyllama-1.1b"))
    assert workload.flops_per_sample() == 2048 * shape.flops_per_token(2048)
    assert build_workload(Config()).flops_per_sample() is None

"""`why`: one screen that a newcomer understands, whatever became of the run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from monitor import cli
from monitor.logs.sample import GpuSample, HostSample, RankSample
from monitor.runs import render
from monitor.runs.why import gather
from tests.monitor.asked_why import ROOT, ask, killed, shown, stop, time_limit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TRACEBACK = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n'
SEEN = (
    "04:17:04",
    GpuSample(0, 62, 41, sm_pct=0, sm_clock_mhz=1980, throttle_bits=0),
    HostSample(cpu_pct=3, mem_used_mib=12000),
)


def user(story: Any) -> None:
    """The input is wrong."""
    story.fail(0, 64, text="trainer: --lr: must be positive; found -1: give another\n")


def program(story: Any) -> None:
    """An exception far down, and long."""
    deep = "".join(f'  File "/w/m{n}.py", line {n}, in f{n}\n    f{n}()\n' for n in range(40))
    story.fail(1, 1, text=TRACEBACK + deep + f"ValueError: {'bad ' * 60}\n")


def crash(story: Any) -> None:
    """A segmentation fault, as faulthandler tells it."""
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
    )
    text += '  File "/w/kernel.py", line 7 in launch\n' + '  File "/w/x.py", line 1 in y\n' * 30
    story.fail(1, 139, "SEGV", text=text + "\nExtension modules: numpy, torch (total: 2)\n")


def hardware(story: Any) -> None:
    """An XID in the log, and a GPU that the monitor watched."""
    story.gutil("n2", SEEN, more="## xid: 79 GPU 0 has fallen off the bus\n")
    story.fail(1, 134, "ABRT", text="NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")


def lost(story: Any) -> None:
    """A node that does not answer."""
    story.emit(0, "RuntimeError: Connection closed by peer\n")
    story.rank_end(0, 1)
    story.add_event("lost_node", node="n2", how="slurmd does not answer")
    reason = "job 42 is requeued and will go on from step 10"
    story.add_event("decision", decision="requeue", reason=reason, restarts=1, idle=0, exclude="n2")
    story.add_event("end", code=137)


def not_started(story: Any) -> None:
    """A node on which no rank came up."""
    story.events = [e for e in story.events if not (e["event"] == "rank_up" and e["rank"] == 1)]
    story.add_event("failure", rank=1, host="n2", error="the directory must be writable; found no")
    story.rank_end(0, 143, "TERM", requested=True)
    story.add_event("end", code=143)


def none_started(story: Any, code: int = 1) -> None:
    """An image that cannot be unpacked, or has no bash."""
    story.events = [e for e in story.events if e["event"] in {"start", "settings"}]
    story.add_event("end", code=code)


def network(story: Any) -> None:
    """Everybody lost everybody."""
    story.emit(0, "RuntimeError: Connection reset by peer\n")
    story.rank_end(0, 1)
    story.fail(1, 1, text="RuntimeError: Connection closed by peer\n")


def storage(story: Any) -> None:
    """A full disk."""
    story.fail(0, 70, text=TRACEBACK + "OSError: [Errno 28] No space left on device\n")


def preempted(story: Any) -> None:
    """By Slurm."""
    stop(story, "TERM", "Slurm has requeued job 42, which will go on from step 20")


def cancelled(story: Any) -> None:
    """By a person."""
    stop(story, "TERM", "no requeue: the job was cancelled; to go on: start again")
    story.events[-2]["decision"] = "fail"


def stopped(story: Any) -> None:
    """By itself: it requests a requeue."""
    story.rank_end(0, 75)
    story.rank_end(1, 75)
    story.add_event("end", code=75)


def hung(story: Any) -> None:
    """A verdict with the stack."""
    reported = {
        "rank": 1,
        "pid": 11,
        "step": 20,
        "top": "train.py:9 in load",
        "stack": "debug/s.txt",
    }
    story.add_event("hang_report", node="n2", ranks=[reported | {"state": "S", "age_s": 61.0}])
    story.add_event("hang_report", node="n1", ranks=2)  # damaged
    text = "rank 1 on n2 (no GPU) has been in `data` for 61 s: train.py:9 in load"
    story.add_event(
        "verdict", kind="hung", rank=1, node="n2", gpu="no GPU", top=reported["top"], text=text
    )
    story.rank_end(0, 137, "KILL")
    story.rank_end(1, 137, "KILL")
    story.add_event("end", code=76)


TALES: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "user": (user, "rank 0 on n1 found its input or environment wrong", "[user; code 64]"),
    "program": (program, "rank 1 on n2 failed: ValueError: bad bad", "[program; code 1]"),
    "crash": (crash, "rank 1 on n2 crashed", "[program; SIGSEGV, code 139]"),
    "hardware": (hardware, "rank 1 on n2 was hit by a fault of its GPU", "[hardware;"),
    "lost": (lost, "rank 1 on n2 lost its node", "[hardware;"),
    "not started": (not_started, "node n2 could not start a rank", "[hardware; SIGTERM, code 143]"),
    "none started": (none_started, "the run could not start its ranks", "[program; code 1]"),
    "network": (network, "rank 0 on n1 lost its connection", "[network; code 1]"),
    "storage": (storage, "rank 0 on n1 found no room on the disk", "[storage; code 70]"),
    "preempted": (preempted, "STOPPED: the run made way for another job", "[preempted; code 75]"),
    "time limit": (time_limit, "the run was ended by the time limit", "[time limit; code 75]"),
    "cancelled": (cancelled, "STOPPED: the run was cancelled", "[cancelled; code 75]"),
    "stopped": (stopped, "the run requested a requeue (exit code 75)", "[stopped; code 75]"),
    "hung": (hung, "rank 1 on n2 did no more steps", "[hung; code 76]"),
    "killed": (killed, "rank 1 on n2 was killed from outside", "[killed; SIGKILL, code 137]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TALES)
def test_every_class_has_its_screen(story: Any, name: str) -> None:
    """What, where and class in the first line; what to do in the last; all of it in 80 x 24."""
    tale, happened, blamed = TALES[name]
    story.start()
    story.train(0, 25, 5, saves=(10, 20))
    tale(story)
    head = shown(story.write())[0]
    assert happened in head
    assert blamed in head


def test_why_no_rank_came_up_is_quoted(story: Any) -> None:
    """In its agent's words: there is no log of a rank."""
    story.start()
    not_started(story)
    assert "said    the directory must be writable; found no" in shown(story.write())


@pytest.mark.parametrize("code", [1, 64])
def test_what_to_do_if_no_rank_came_up(story: Any, code: int) -> None:
    """There is no program's line to look at."""
    story.start()
    none_started(story, code)
    assert any(line.startswith("next    see srun's words") for line in shown(story.write()))


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        # each rank may spawn processes that all listen on one port: no link is to blame
        (
            "RuntimeError: port: 29500, name: EADDRINUSE, message: address in use",
            "unset MASTER_PORT; ",
        ),
        ("KeyError: 'SLURM_PROCID'", "start a Slurm task for each rank: "),  # dinov2
        (
            "RuntimeError: … is missing 'SLURM_PROCID' in env variables",
            "start a Slurm task for each",
        ),
        (
            "ValueError: coordinator_address should be defined.",
            "start a Slurm task for each rank: ",
        ),
    ],
)
def test_what_to_do_says_more_than_the_class(story: Any, text: str, advice: str) -> None:
    """No link is to blame, and the program need not be mended."""
    story.start()
    story.fail(1, 1, text=f"{text}\n")
    assert f"next    {advice}" in "\n".join(shown(story.write()))


def test_the_failed_ranks_gpu_is_the_verdicts_or_the_logs(story: Any) -> None:
    """Not its local rank, which is 0, where one of both tells."""
    samples = [("04:17:02", GpuSample(i, temp_c=50 + i), HostSample()) for i in range(3)]
    story.gutil("n2", *samples, ranks=[RankSample(), RankSample(rank=1), RankSample()])
    story.start()
    story.train(0, 25, 5)
    reported = {"kind": "hung", "rank": 1, "node": "n2", "top": None, "text": "x"}
    story.add_event("verdict", gpu="GPU 2", **reported)
    story.rank_end(1, 137, "KILL")
    story.add_event("end", code=76)
    assert gather(str(story.write()))["node"]["gpu"] == 2
    story.events[-3]["gpu"] = "GPU GPU-0123"
    assert gather(str(story.write()))["node"]["gpu"] == 1


def test_the_advice_is_one_line_for_each_class() -> None:
    """The same classes as the contract's, and a sound end."""
    classes = {blamed.strip("[]").split(";")[0] for _, _, blamed in TALES.values()}
    assert set(render.ADVICE) == classes | {None}
    assert all(len(text) < 100 for text in render.ADVICE.values())


def test_the_evidence_is_on_the_screen(story: Any) -> None:
    """The rank's own words, the monitor's last sample of its GPU, the XID lines."""
    story.start()
    story.train(0, 25, 5, saves=(10, 20))
    hardware(story)
    text = "\n".join(shown(story.write()))
    assert "said    NVRM: Xid (PCI:0000:3b:00): 79" in text
    assert "fault   xid: 79 GPU 0 has fallen off the bus" in text
    assert "node    n2, GPU 0 at 04:17:04: busy 0 %, 62 W, 41 C, 1980 MHz, CPUs 3 %" in text
    assert "lost    5 steps" in text
    assert "sbatch --exclude=n2" in text
    assert "DDP_RUN_NAME=slurm-42" in text


CUDA_ERROR = """\
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below\
 might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

FAILED  nothing held out was measured
  loss         -
  steps        20 on 1 rank
  metrics      /out/metrics.jsonl
"""
"""As a rank on an H100 wrote it."""


def test_an_error_of_cuda_is_named_and_shown(story: Any) -> None:
    """Without torch's advice and our summary, which stand below it; the XID in words."""
    story.start()
    story.train(0, 25, 5, saves=(10, 20))
    story.fail(1, 70, text=TRACEBACK + CUDA_ERROR)
    xid = "## event: 2026-11-26T13:02:46.424+00:00 xid gpu=0 xid=31\n"
    story.gutil("n2", SEEN, more=xid)
    text = "\n".join(shown(story.write()))
    assert "rank 1 on n2 used GPU memory that is not its own [program; code 70]" in text
    said, _, _ = text.partition("said")[2].partition("log ")
    assert "AcceleratorError: CUDA error: an illegal memory access" in said.splitlines()[-1]
    assert re.search(r"fault   GPU 0 at \d\d:02:46: XID 31, a kernel of the program used", text)


def test_a_hang_shows_where_it_stands(story: Any) -> None:
    """The verdict's own line, the top of the stack, and the file with all of it."""
    story.start()
    hung(story)
    text = "\n".join(shown(story.write()))
    assert "verdict rank 1 on n2 (no GPU) has been in `data` for 61 s" in text
    assert "stack   train.py:9 in load (all of it: debug/s.txt)" in text


def test_a_crash_shows_the_top_of_its_stack(story: Any) -> None:
    """faulthandler writes the innermost call first, and thirty more."""
    story.start()
    crash(story)
    lines = shown(story.write())
    assert "said    Fatal Python error: Segmentation fault" in lines
    assert any('File "/w/kernel.py", line 7 in launch' in line for line in lines)


def test_an_exception_shows_its_end(story: Any) -> None:
    """The innermost frames, and the exception itself."""
    story.start()
    program(story)
    text = "\n".join(shown(story.write()))
    assert 'File "/w/m39.py", line 39, in f39' in text
    assert "ValueError: bad bad" in text.split("said", 1)[1]


def test_what_the_ranks_words_may_not_do(story: Any) -> None:
    """Give a password to who is asked for help, or turn the line around."""
    story.start()
    story.fail(1, 1, text="go\nOperationalError: no \u202eway to postgres://me:hunter2@db/x\n")
    text = "\n".join(shown(story.write()))
    assert "no way to postgres://me:***@db/x" in text
    assert not any(word in text for word in ("hunter2", "\u202e"))


def test_a_peer_that_ended_early_is_named(story: Any) -> None:
    """The rank that lost it has only the connection in its log."""
    story.start()
    story.rank_end(1, 0)
    story.fail(0, 1, text="RuntimeError: [gloo/pair.cc:534] Connection closed by peer [::1]:1\n")
    lines = shown(story.write())
    assert "rank 0 on n1 lost a peer that had ended with code 0" in lines[0]
    assert "peer    rank 1 on n2 had ended with code 0" in lines


def test_what_was_done_about_it(story: Any) -> None:
    """Earlier starts in a few words each, the last decision in its own."""
    for begin in (0, 20):
        story.start()
        story.train(begin, begin + 25, 5, saves=(begin + 10, begin + 20))
        story.fail(1, 137, "KILL")
        story.again()
    story.start()
    story.train(40, 50, saves=(50,))
    reason = "no restart: all 2 of DDP_MAX_RESTARTS are used"
    story.add_event("decision", decision="fail", reason=reason, restarts=2, idle=0, exclude=None)
    story.fail(0, 1, text="ValueError: x\n")
    text = " ".join(" ".join(shown(story.write())).split())
    assert "start 3 of 3" in text
    assert (
        "start 1: rank 1 on n2 (killed) at step 25; start 2: rank 1 on n2 (killed) at step 45"
        in text
    )
    assert "not started again: all 2 of DDP_MAX_RESTARTS are used" in text
    assert "lost 10 steps" in text
    assert "between starts" in text


def test_a_slow_rank_is_named_with_what_was_seen(
    story: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also of a run that ended well, and in the job's log when the record is composed."""
    story.gutil("n2", SEEN)
    story.start()
    story.train(0, 20)
    slow = {"rank": 1, "node": "n2", "ratio": 1.9, "cost_pct": 12.3}
    story.add_event("summary", summary={"outcome": "finished", "steps": 20, "slow_ranks": [slow]})
    story.rank_end(0, 0)
    story.rank_end(1, 0)
    story.add_event("end", code=0)
    run_dir = story.write()
    lines = shown(run_dir)
    assert lines[0] == "FINISHED: all ranks ended well"
    assert cli.main(["compose", str(run_dir)]) == 0
    captured = capfd.readouterr()
    assert captured.out == f"{run_dir}/run.json\n"
    words = (
        "rank 1 on n2 took 1.9 x the median rank's time in forward and waiting for data, 12 % of"
        " each step: 1980 MHz, 41 C, CPUs 3 %"
    )
    assert captured.err == f"monitor: {words}\n"
    assert f"slow    {words}" in " ".join(line.strip() for line in lines)


def test_a_cancelled_command_was_stopped(story: Any) -> None:
    """Whatever code its program makes of SIGTERM."""
    story.start(command=("--", "sleep", "9"))
    story.add_event("signal", signal="TERM")
    story.rank_end(0, 143, "TERM", requested=True)
    reason = "no requeue: the job was cancelled; to go on: start again"
    story.add_event("decision", decision="fail", reason=reason, restarts=0, idle=0, exclude=None)
    story.add_event("end", code=143)
    assert shown(story.write())[0] == "STOPPED: the run was cancelled [cancelled; code 143]"


def test_torn_files(story: Any) -> None:
    """Garbage in each file costs its line, and is counted."""
    story.start()
    story.train(0, 25, 5)
    killed(story)
    run_dir = story.write()
    for name in ("events.jsonl", "metrics.jsonl", "logs/rank-1.log"):
        with (run_dir / name).open("ab") as file:
            file.write(b'\xff\xfe\x00{"time": "torn\x1b[2J')
    (run_dir.parent / "slurm-42.n2.gutil").write_bytes(b"#Date\xff\x00 Time\n 2026\x1b")
    text = "\n".join(shown(run_dir))
    assert "2 torn lines left out" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("kind", ["none", "file", "empty", "no events"])
def test_a_directory_that_is_none(tmp_path: Path, kind: str) -> None:
    """One line with a remedy, code 64."""
    path = tmp_path / kind
    if kind == "file":
        path.write_text("x")
    elif kind != "none":
        path.mkdir()
    if kind == "no events":
        (path / "events.jsonl").write_text("torn{\n")
    done = ask(path)
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "name the directory of a run" in done.stderr


def test_json(story: Any) -> None:
    """The same, for programs: one document."""
    story.start()
    story.train(0, 25, 5, saves=(20,))
    storage(story)
    done = ask(story.write(), "--json")
    found = json.loads(done.stdout)
    assert found["state"] == "ended"
    assert found["attempt"]["failure"]["class"] == "storage"
    assert (found["steps_lost"], found["slurm"]) == (5, None)
    assert found["next"].startswith("see that the disk has room")


def test_it_starts_fast(story: Any) -> None:
    """Neither polars nor rich nor NVML is imported, for `why` as for `compose`."""
    story.start()
    killed(story)
    run_dir = story.write()
    code = (
        "import sys; from monitor import cli; sys.argv[1:];"
        f"assert cli.main(['why', {str(run_dir)!r}]) == 0;"
        f"assert cli.main(['compose', {str(run_dir)!r}]) == 0;"
        "found = {'polars', 'rich', 'pynvml', 'psutil', 'torch'} & set(sys.modules);"
        "sys.exit(repr(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr

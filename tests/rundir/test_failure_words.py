"""What a rank's log says of its end."""

from __future__ import annotations

import pytest

from rundir.failure import words
from tests.rundir.test_failure import LOST_PEER

STORE_GONE = (
    "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or"
    " crash?"
)
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/code/a.py", line 8, in <module>\n    f()\n'
)
XGBOOST = "xgboost.core.XGBoostError: [22:35:35] result.cc:83: [histogram.h:197|22:35:35]:\n\n"
FRAMES = "Stack trace:\n" + "".join(f"  [bt] ({n}) libxgboost.so(+0x2c) [0x7f]\n" for n in range(9))
AT_EXIT = (
    "[rank0]:I1128 22:38:51.538000 2002 torch/_dynamo/utils.py:925] Function    Runtimes\n" * 9
)
WANDB = "\x1b[1;34mwandb\x1b[0m: \n\x1b[1;34mwandb\x1b[0m: Run history:\n" + (
    "\x1b[1;34mwandb\x1b[0m:     loss █▃▂▁▁\n" * 9
)
NCCL_EXIT = "gpu07:4711:4730 [3] NCCL INFO [Service thread] Connection closed by localRank 3\n" * 9
HYDRA = """\
Could not override 'epoch'.
To append to your config use +epoch=3
Key 'epoch' is not in struct
    full_key: epoch
    object_type=dict

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/code/a.py", line 8, in <module>
  |     f()
  | ExceptionGroup: several (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: bad sample 17
    +------------------------------------
"""
TIMEOUT = (
    "[PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with"
    " exception: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7,"
    " OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
RAISED = "Exception raised from checkTimeout at ../Process.cpp:632 (most recent call first):"
NCCL = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    f"  what():  {TIMEOUT}\n{RAISED}\n"
)
CPP = "".join(f"frame #{n}: <unknown function> + 0x2724a (0x7f in libc.so.6)\n" for n in range(70))
SYMBOLS = "C++ CapturedTraceback:\n" + "".join(f"#{n} f() from a.cpp:{n}\n" for n in range(70))
ABORTED = (
    "Fatal Python error: Aborted\n\nCurrent thread 0x00007f (most recent call first):\n"
    '  File "a.py", line 3 in f\n'
)
LOST_TASK = (
    "Task exception was never retrieved\n"
    "future: <Task finished name='Task-2' coro=<f() done> exception=OtherError('y')>\n"
)
BAR = " 24%|██▍       | 24/100 [00:00<00:00, 96.15it/s]"
CALLED = "subprocess.CalledProcessError: Command 'python a.py' returned non-zero exit status 1."
ELASTIC = (
    f"E1123 10:00:00 77 api.py:882] failed (exitcode: 1) local_rank: 1\n{TRACEBACK}"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=======\na.py FAILED\n"
    "-------\nFailures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n"
    "  time      : 2026-11-23_10:00:00\n  exitcode  : 1 (pid: 99)\n"
)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (f"{TRACEBACK}lib.OtherError: x\n", "lib.OtherError: x"),
        (f"trainer: y\n{TRACEBACK}ImportError: x\n", "ImportError: x"),
        ("OtherError: x\nwith a second line\n", "OtherError: x"),
        ("train.py: error: unrecognized arguments: --x\n", "train.py: error: unrecognized argu"),
        ("fatal: not a git repository\n", "fatal: not a git repository"),
        ("step 3\nerror: no folder: data\nusage: run.sh FOLDER\n", "error: no folder: data"),
        (f"{TRACEBACK}KeyError: 'lr'\nerror: it failed\n", "KeyError: 'lr'"),
        ("no error: all is well\n", ""),
        ("trainer: y\n", ""),
        ("OtherError: x\n" + "it goes on\n" * 6, ""),
        ("Exception ignored in: <x>\nOtherError: x\n", ""),
        (f"{TRACEBACK}zipfile.BadZipFile: File is not a zip file\n", "zipfile.BadZipFile: File is"),
        (f"{TRACEBACK}StopIteration\n", "StopIteration"),
        (f"{TRACEBACK}lib.Missing: lr\n    full_key: lr\n", "lib.Missing: lr"),
        (f"Exception ignored in: <x>\n{TRACEBACK}StopIteration\n", ""),
        (f"{LOST_TASK}{TRACEBACK}OtherError: y\n", ""),
        (f"{TRACEBACK}OtherError: x\n{LOST_TASK}{TRACEBACK}OtherError: y\n", "OtherError: x"),
        (f"{TRACEBACK}SystemExit: 3\n", ""),
        (f"{TRACEBACK}{XGBOOST}- [socket.h:79]: Failed to bind\n{FRAMES}", XGBOOST.strip()),
        (f"[rank0]: OtherError: x\n{AT_EXIT}", "OtherError: x"),
        (f"{TRACEBACK}lib.Missing: lr\n{WANDB}", "lib.Missing: lr"),
        (f"wandb: \nwandb: ERROR x\n{TRACEBACK}wandb.errors.CommError: x\n{WANDB}", "wandb.errors"),
        (f"{TRACEBACK}lib.Missing: lr\n{NCCL_EXIT}", "lib.Missing: lr"),
        ("[rank0]: [rank0]: OtherError: x\n", "OtherError: x"),
        (HYDRA, "Could not override 'epoch'."),
        (GROUP, "ValueError: bad sample 17"),
        (f"{NCCL}{CPP}\n{ABORTED}", NCCL.partition("\n")[0]),
        (f"{NCCL}{SYMBOLS}\n{ABORTED}", NCCL.partition("\n")[0]),
        (f"\r{BAR}{TRACEBACK}lib.Missing: lr\n", "lib.Missing: lr"),
        (f"\r{BAR} {NCCL}", NCCL.partition("\n")[0]),
        ("╭─ Error ────╮\n│ No data:   │\n│ give --data │\n╰────────────╯\n", "Error: No data:"),
        (f"{TRACEBACK}\x1b[1;35mlib.Missing\x1b[0m: \x1b[35mlr\x1b[0m\n", "lib.Missing: lr"),
        (f"{TRACEBACK}OtherError: several\n" + "\tconv: size\n" * 30, "OtherError: several"),
        (f"{TRACEBACK}lib.Missing: lr\n{ELASTIC}", "lib.Missing: lr"),
        (f"{TRACEBACK}lib.Missing: lr\n{TRACEBACK}{CALLED}\n", "lib.Missing: lr"),
        (f"{TRACEBACK}lib.Missing: lr\n{ELASTIC}{TRACEBACK}{CALLED}\n", "lib.Missing: lr"),
        ("OtherError: x\n" + "it goes on\n" * 6 + f"{TRACEBACK}{CALLED}\n", CALLED),
        ("╭─ Options ──╮\n│ --epochs   │\n╰────────────╯\n", ""),
    ],
)
def test_the_exception_with_which_a_log_ends(log: str, found: str) -> None:
    """Whatever program wrote it; one that it survived is none."""
    assert words.last_exception(log).startswith(found)
    assert bool(words.last_exception(log)) == bool(found)


@pytest.mark.parametrize(
    ("last", "is_one"),
    [
        (LOST_PEER, True),
        ("RuntimeError: NCCL error: ncclRemoteError: a call failed\n[rank0]: more", True),
        ("RuntimeError: NCCL error, unhandled system error\n[rank0]: ncclSystemError: x", True),
        (f"torch.distributed.DistNetworkError: {STORE_GONE}", True),
        (f"{NCCL}{CPP}{ABORTED}", True),
        (f"{XGBOOST}- [socket.h:79]: Poll error condition:Success code:0\n{FRAMES}", True),
        ("ValueError: the data is bad", False),
        ("urllib.error.URLError: <urlopen error [Errno 111] Connection refused>", False),
        ("RuntimeError: CUDA error: x in NCCL's watchdog", False),
    ],
)
def test_a_consequence_only_reports_a_lost_peer(last: str, *, is_one: bool) -> None:
    """In the last fatal error of a log."""
    assert bool(words.consequence(None, f"step 5\n[rank0]: {last}\n")) == is_one


def test_stacks_of_other_threads_hide_no_message() -> None:
    """Python writes those of up to 100 threads below what C++ says, the main one's last."""
    stack = "Thread 0x00007f (most recent call first):\n" + '  File "a.py", line 3 in f\n' * 40
    main = "Current thread 0x00007e (most recent call first):\n" + '  File "a.py", line 9 in g\n'
    head = f"step 7\n{NCCL}{CPP}Fatal Python error: Aborted\n\n"
    for end in (main, main.replace("Current t", "T")):
        log = words.log_end(f"{head}{f'{stack}{chr(10)}' * 100}{end}")
        assert log == f"{head}{end}"
        assert words.last_exception(log).startswith("terminate called")


def test_a_log_s_end_is_short() -> None:
    """Whatever a program wrote, also without a line's end."""
    assert len(words.log_end("x" * words.LOG_BYTES)) == 1 << 14

"""Ends of real logs, each with its class: torch's, NCCL's, CUDA's, the kernel's, file systems'.

The words are those of the programs themselves; what stands around them is what runs print.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.monitor.blamed import classified

TB = 'Traceback (most recent call last):\n  File "/code/a.py", line 88, in <module>\n    main()\n'
IN = '  File "/code/train.py", line 41, in main\n    step()\n'
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
NO_ROOM = "OSError: [Errno 28] No space left on device"
ELASTIC = (
    "E1123 10:00:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:882] failed"
    " (exitcode: 1) local_rank: 0 (pid: 99) of binary: /usr/bin/python3\n"
    + TB
    + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "============================================================\ntrain.py FAILED\n"
)
LEAKED = (
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker:"
    " There appear to be 1 leaked semaphore objects to clean up at shutdown\n"
    "  warnings.warn('resource_tracker: There appear to be %d '\n"
)
IGNORED = f"Exception ignored in: <_io.TextIOWrapper name='/out/log' mode='w'>\n{TB}{NO_ROOM}\n"
LOGGING = (
    f"--- Logging error ---\n{TB}{NO_ROOM}\nCall stack:\n{IN}Message: 'saved'\nArguments: ()\n"
)
THREAD = f"Exception in thread Thread-3 (uploader):\n{TB}{NO_ROOM}\n"
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, "
WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated"
    " with exception: CUDA error: "
)

TAILS = [
    # ---- what was handled is not the failure
    ("handled full disk", "program", f"cache: {NO_ROOM}\n{TB}{IN}ValueError: bad shape\n"),
    ("handled full disk, whole", "program", f"{TB}{NO_ROOM}\ngoing on\n{TB}KeyError: 'lr'\n"),
    ("handled memory error", "program", f"{TB}MemoryError\nagain, half\n{TB}KeyError: 'x'\n"),
    ("handled, then it went on", "program",
     f"{TB}{NO_ROOM}\nstep 10/90  epoch 1  loss 0.5\nbye\n"),
    ("port taken, next one tried", "program",
     f"RuntimeError: EADDRINUSE, trying 29501\n{TB}TypeError: 'int' object is not iterable\n"),
    ("ignored by Python", "program", f"{TB}ValueError: nan\n{IGNORED}"),
    ("a logger's trouble", "program", f"{TB}ValueError: nan\n{LOGGING}"),
    ("a thread's end", "program", f"{THREAD}{TB}ValueError: nan\n"),
    ("handled CUDA OOM", "program",
     ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB\nbatch size 8 -> 4\n"
     f"{TB}AssertionError\n")),
    # ---- disks and file systems
    ("full disk", "storage", f"{TB}{IN}{NO_ROOM}\n"),
    ("full disk, long path", "storage", f"{TB}{NO_ROOM}: '/{'deep/' * 80}x.pt'\n"),
    ("full disk in torch.save", "storage",
     (f"{TB}RuntimeError: [enforce fail at inline_container.cc:783] . PytorchStreamWriter failed"
     f" writing file data/12: file write failed\n{DURING}{TB}RuntimeError: [enforce fail at"
     " inline_container.cc:595] . unexpected pos 320 vs 216\n")),
    ("full disk, raised anew", "storage",
     f"{TB}{NO_ROOM}\n{CAUSE}{TB}RuntimeError: the checkpoint could not be written\n"),
    ("full disk under torchrun", "storage", f"{TB}{NO_ROOM}\n{ELASTIC}"),
    ("full disk in a data loader", "storage",
     f"{TB}OSError: Caught OSError in DataLoader worker process 0.\nOriginal {TB}{NO_ROOM}\n\n"),
    ("quota", "storage", f"{TB}OSError: [Errno 122] Disk quota exceeded: '/home/u/x'\n"),
    ("stale handle", "storage", f"{TB}OSError: [Errno 116] Stale file handle: '/nfs/t.bin'\n"),
    ("read-only", "storage", f"{TB}OSError: [Errno 30] Read-only file system: '/scratch/x'\n"),
    ("bad disk", "storage", f"{TB}OSError: [Errno 5] Input/output error\n{LEAKED}"),
    ("fuse gone", "storage",
     f"{TB}OSError: [Errno 107] Transport endpoint is not connected: '/gcs/data'\n"),
    ("a shell's", "storage", "tar: /data/x.tar: Cannot write: No space left on device\n"),
    # ---- files: data or the user's own
    ("data file", "storage",
     f"{TB}FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-07.tar'\n"),
    ("data file in a folder of dots", "storage",
     f"{TB}FileNotFoundError: [Errno 2] No such file or directory: '/d/v1.2/a.parquet'\n"),
    ("settings in a hidden folder", "program",
     f"{TB}FileNotFoundError: [Errno 2] No such file or directory: '/home/u/.config/train.yaml'\n"),
    ("settings with a version", "program",
     f"{TB}FileNotFoundError: [Errno 2] No such file or directory: 'train.v2.toml'\n"),
    ("module", "program", f"{TB}ModuleNotFoundError: No module named 'flash_attn'\n"),
    ("script", "program",
     "python3: can't open file '/c/trian.py': [Errno 2] No such file or directory\n"),
    # ---- memory
    ("CUDA OOM", "program",
     (f"{TB}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a"
     " total capacity of 79.11 GiB of which 1.02 GiB is free.\n")),
    ("host memory", "program",
     (f"{TB}RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't"
     " allocate memory: you tried to allocate 99 bytes. Error code 12 (Cannot allocate memory)\n")),
    ("the kernel's killer", "program",
     "[9.1] Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB\n"),
    # ---- the GPU
    ("ECC", "hardware",
     f"{TB}torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"),
    ("Xid", "hardware", "NVRM: Xid (PCI:0000:3b:00): 79, pid=99, GPU has fallen off the bus.\n"),
    ("NVLink", "hardware",
     f"{WATCHDOG}uncorrectable NVLink error detected during the execution\n"),
    ("watchdog's illegal access", "program",
     f"{WATCHDOG}an illegal memory access was encountered\n"),
    ("assertion on the device", "program",
     f"{TB}torch.AcceleratorError: CUDA error: device-side assert triggered\n"),
    ("driver too old", "user",
     f"{TB}RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n"),
    ("no kernel", "user",
     (f"{TB}torch.AcceleratorError: CUDA error: no kernel image is available for execution on the"
     " device\n")),
    # ---- the network
    ("port taken", "network",
     (f"{TB}torch.distributed.DistNetworkError: The server socket has failed to listen on any local"
     " network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address"
     " already in use\n")),
    ("no such host", "network",
     f"{TB}socket.gaierror: [Errno -2] Name or service not known\n"),
    ("download", "network",
     f"{TB}urllib.error.URLError: <urlopen error [Errno 111] Connection refused>\n"),
    ("download from the Hub", "network",
     (f"{TB}httpcore2.ConnectError: [Errno -3] Temporary failure in name resolution\n{CAUSE}{TB}"
     "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the"
     " file on the Hub and we cannot find the requested files in the local cache.\n")),
    ("peer gone, gloo", "network",
     (f"{TB}RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by"
     " peer [10.0.0.2]:51612\n")),
    ("peer gone, NCCL", "network",
     (f"{TB}{NCCL}remote process exited or there was a network error, NCCL version 2.27.5\n"
     "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
     " prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer n2<36990>\n")),
    ("NCCL's own memory", "program",
     (f"{TB}{NCCL}unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\n"
     "Last error:\nCuda failure 2 'out of memory'\n")),
    # ---- an option that the program does not have: argparse, click, Typer, tyro, absl, Fire, Hydra
    ("argparse", "user",
     "usage: a.py [-h]\na.py: error: unrecognized arguments: --epoch 3\n"),
    ("click", "user",
     ("Usage: a.py [OPTIONS]\nTry 'a.py --help' for help.\n\n"
     "Error: No such option '--epoch'. Did you mean '--epochs'?\n")),
    ("Typer", "user",
     ("Usage: a.py [OPTIONS]\nTry 'a.py --help' for help.\n"
     f"╭─ Error {'─' * 69}╮\n│ No such option: --epoch (Possible options: --epochs){' ' * 25}│\n"
     f"╰{'─' * 78}╯\n")),
    ("tyro", "user",
     ("╭─ Unrecognized options ──────────────────╮\n│ Unrecognized options: --epoch, 3        │\n"
     "│ ─────────────────────────────────────── │\n│ Perhaps you meant:                      │\n"
     "│     --epochs INT                        │\n│         (default: 3)                    │\n"
     "│ ─────────────────────────────────────── │\n│ For full helptext, run a.py --help      │\n"
     "╰─────────────────────────────────────────╯\n")),
    ("absl", "user",
     ("FATAL Flags parsing error: Unknown command line flag 'epoch'. Did you mean: epochs ?\n"
     "Pass --helpshort or --helpfull to see help on flags.\n")),
    ("Fire", "user",
     ("ERROR: Could not consume arg: --epoch\nUsage: a.py -\n\n"
     "For detailed information on this command, run:\n  a.py - --help\n")),
    ("Hydra", "user",
     ("Could not override 'epoch'.\nTo append to your config use +epoch=3\n"
     "Key 'epoch' is not in struct\n    full_key: epoch\n    object_type=dict\n\n"
     "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n")),
    # ---- Python and C
    ("plain", "program", f"{TB}{IN}IndexError: index 7 is out of bounds\n"),
    ("a spawned process killed", "killed",
     (f"{TB}    raise ProcessExitedException(\ntorch.multiprocessing.spawn.ProcessExitedException:"
     " process 0 terminated with signal SIGKILL\n")),
    ("a called program killed", "killed",
     f"{TB}subprocess.CalledProcessError: Command 'a' died with <Signals.SIGKILL: 9>.\n"),
    ("a shell's program killed", "killed",
     "train.sh: line 6: 32192 Killed                  python3 train.py\ncleaning up\n"),
    ("a called program crashed", "program",
     f"{TB}subprocess.CalledProcessError: Command 'a' died with <Signals.SIGSEGV: 11>.\n"),
    ("abort in C", "program", "free(): invalid pointer\nFatal Python error: Aborted\n"),
    ("no CUDA words in C", "program",
     "terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector::at\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("blamed", "text"), [row[1:] for row in TAILS], ids=[row[0] for row in TAILS]
)
def test_the_last_fatal_error_is_the_failure(story: Any, blamed: str, text: str) -> None:
    """Whatever was printed before it, and handled."""
    story.start()
    story.fail(1, 1, text="loading\n" + text)
    attempt = classified(story)
    assert attempt["failure_class"] == blamed, attempt["failure"]


def test_the_words_are_the_failures_own(story: Any) -> None:
    """The line shown as error is the fatal one, not what was handled or followed."""
    story.start()
    story.fail(1, 1, text=f"{TB}{NO_ROOM}\ngoing on\n{TB}KeyError: 'lr'\n{IGNORED}{LEAKED}")
    assert classified(story)["failure"]["error"] == "KeyError: 'lr'"


def test_ranks_that_all_finished_were_not_killed(story: Any) -> None:
    """The script's end is missing, and that is what is reported."""
    story.start()
    for rank in (0, 1):
        story.rank_end(rank, 0)
    attempt = classified(story)
    assert (attempt["outcome"], attempt["failure_class"]) == ("finished", None)


def test_a_rank_that_was_signalled_was_not_preempted(story: Any) -> None:
    """Somebody sends SIGTERM to one process: Slurm has preempted nothing."""
    story.start(job_id="42")
    story.add_event("signal", signal="SIGTERM", by="trainer", rank=1)
    story.rank_end(1, 75, requested=False)
    story.rank_end(0, 75, requested=False)
    story.add_event("decision", decision="requeue", reason="", restarts=0, idle=0, exclude=None)
    story.add_event("end", code=75)
    assert classified(story)["failure_class"] == "stopped"

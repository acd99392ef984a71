"""Polls the stub driver through the real nvidia-ml-py, each time in a process of its own."""

import json
import os
import subprocess
import sys
from typing import Any

# polls `argv[2]` times; before each poll, the clock goes on by `argv[3]` seconds
_POLL = """
import json, os, sys, time
from monitor.logs.log_events import line
from monitor.nvml.chosen import Named
from monitor.nvml.source import Nvml
letters, times, step_s, first, then = sys.argv[1:]
class Never:
    def wait(self, timeout_s): return None
clock, marks = [0.0], []
nvml = Nvml(letters, Never(), marks.append, monotonic=lambda: clock[0])
exec(first)
for turn in range(int(times)):
    reading = nvml.read()
    events = [line(mark).split(" ", 3)[3].strip() for mark in marks]
    gpus = [
        {"index": gpu.index, "processes": gpu.processes}
        | {name: getattr(gpu, name) for name in gpu.fields}
        for gpu in reading.gpus
    ]
    seen = {"gpus": gpus, "facts": dict(reading.facts), "is_renumbered": reading.is_renumbered}
    print(json.dumps(seen | {"marks": events}))
    clock[0] += float(step_s)
    exec(then)
"""
_GPM_GAP = "time.sleep(0.12)"  # which GPM demands between two samples


def poll(
    driver: Any, letters: str = "pumt", times: int = 1, step_s: float = 1, **programs: str
) -> list[Any]:
    """Poll some times; what was read each time.

    Args:
        driver: the stub.
        letters: of the columns.
        times: how often to poll.
        step_s: what the clock, which else stands still, goes on by after each poll.
        programs: `then`, to run after each poll, knows `turn`, the number of the poll; `first`,
            to run before the first poll, knows `nvml`.

    """
    then = programs.get("then", _GPM_GAP if "g" in letters else "")
    words = [letters, str(times), str(step_s), programs.get("first", ""), then]
    command = [sys.executable, "-c", _POLL, *words]
    env = {**os.environ, **driver.env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def events(num: int) -> str:
    """Wait until so many events have come: a program for `then`."""
    return (
        "deadline_s = time.monotonic() + 20\n"
        f"while len(marks) < {num}:\n"
        "    assert time.monotonic() < deadline_s, marks\n"
        "    time.sleep(0.01)\n"
    )


def between(*worlds: list[str]) -> str:
    """Let the driver of two GPUs behave otherwise after each poll: a program for `then`."""
    texts = ["".join(f"{line}\n" for line in ("gpus 2", *lines)) for lines in worlds]
    return (
        f"worlds = {texts!r}\n"
        "if turn < len(worlds):\n"
        "    time.sleep(0.02)  # the driver reads its file once in a tick of the kernel\n"
        "    path = os.environ['NVML_STANDIN']\n"
        "    open(path + '.new', 'w').write(worlds[turn]); os.replace(path + '.new', path)\n"
        "    time.sleep(0.02)\n"
    )


def readings(gpu: dict[str, Any]) -> dict[str, Any]:
    """The readings that exist."""
    there = {name: value for name, value in gpu.items() if value not in (None, [])}
    return {name: value for name, value in there.items() if name != "index"}

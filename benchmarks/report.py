"""Results -> benchmarks/results.md, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import report_layouts
from benchmarks.race import ENTRIES, Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.checkpoint import Saves
    from benchmarks.gpu import OnGpu
    from benchmarks.heartbeat import Heartbeats
    from benchmarks.layouts import Layouts
    from benchmarks.reading import Reading
    from benchmarks.recorder import Recorder
    from benchmarks.startup import Startup
    from benchmarks.toy import Toy
    from benchmarks.watching import Watching

_RATIO_TARGETS = {"a": 1.1, "b": 1.5}
_OURS_TARGET_S = 0.5
_STALL_TARGET_PCT = 10

_HEAD = """\
# Measured

Written by `make bench`, all in one run on one machine.

{machine}.
Load average {load_before:.1f} before and {load_after:.1f} after; other work on the machine makes
the absolute numbers smaller, and the ratios less so, because the rows take turns.
"""

_NOTES = """
(a) is the tutorial's CNN of 1.2 M parameters, (b) a 784-128-10 perceptron.
Steps per second, and their ratio to the plain loop: medians of {num_rounds} round(s).
In a round every row runs once, so that a slow moment of the machine hits each; a ratio is taken
within its round.
By CPU time: the same ratio of steps per second of the process's own CPU time, which is what remains
of it where other programs take the CPU away.
All rows: one process, {num_threads} CPU thread{plural}, no loader workers, the 5,000 shipped
digits repeated to MNIST's 60,000, shuffled, fp32, Adam at a constant rate, the loss read
every 50 steps, and nothing timed but steps: no imports, first steps, validation or checkpoints.
Lightning has its logger, bar, checkpoints and validation off; it and Accelerate are given the plain
loop's DataLoader, model and Adam.
The trainer runs its own command line and loop, timed by the lines of its metrics.jsonl, which it
writes meanwhile.
Its CNN computes the values of the tutorial's, but pools before relu and lays its weights out
channels-last; the row before it shows what that alone is worth.
"""

_STARTUP = """\
Medians of {num_repetitions} repetitions, in turns with bare interpreters and with the shortest
program by hand (`benchmarks/plain_start.py`); in brackets the smallest, which other work on the
machine disturbs least.
The lines of the further run follow each other; on one rank there is no process group to meet in.

"""

_SAVES = """\
Medians of {num_repetitions} repetition(s), the two modes in turns, in one process on the CPU; in
brackets the smallest.
Each is written, forced to the disk and hashed; ratios are taken within a repetition.

"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All measurements."""

    machine: str
    load_before: float
    load_after: float
    num_threads: int
    speed: Mapping[str, Mapping[str, Result]]
    startups: Sequence[Startup]
    recorder: Recorder
    reading: Reading
    watching: Watching
    heartbeats: Heartbeats
    saves: Saves
    toy: Toy
    layouts: Layouts
    on_gpu: OnGpu | None
    """None: there was no GPU."""


def render(measured: Measured) -> str:
    """Return the text of results.md."""
    num_rounds = next(iter(measured.speed["a"].values())).num_rounds
    saves = measured.saves
    return "".join(
        [
            _HEAD.format(
                machine=measured.machine,
                load_before=measured.load_before,
                load_after=measured.load_after,
            ),
            section("Training speed", _speed_table(measured.speed)),
            _NOTES.format(
                num_rounds=num_rounds,
                num_threads=measured.num_threads,
                plural="s" * (measured.num_threads > 1),
            ),
            section(
                "Layouts beside the same written by hand",
                table(*report_layouts.table(measured.layouts)),
                report_layouts.notes(measured.layouts),
            ),
            section("On a GPU", _gpu_text(measured.on_gpu)),
            section(
                "From jobs/prelaunch.sh to the first optimizer step",
                _STARTUP.format(num_repetitions=len(measured.startups[0].total_s)),
                _startup_table(measured.startups),
            ),
            section(
                "The monitor's recorder at an interval of 1 s", _recorder_table(measured.recorder)
            ),
            section("Reading logs", _reading_table(measured.reading)),
            section("Watching logs that grow", _watching_table(measured.watching)),
            section("The heartbeat that the watchdog reads", _heartbeat_table(measured.heartbeats)),
            section(
                f"A checkpoint of a model of {saves.num_parameters / 1e6:.0f} million parameters "
                f"and AdamW's state: {saves.size_bytes / 1e6:.0f} MB",
                _SAVES.format(num_repetitions=len(saves.slowed_s)),
                _saves_table(saves),
            ),
            section("What the README's toy learns", _toy_table(measured.toy)),
        ]
    )


def section(title: str, *parts: str) -> str:
    """Return a section of Markdown."""
    return "".join([f"\n## {title}\n\n", *parts])


def _speed_table(speed: Mapping[str, Mapping[str, Result]]) -> str:
    rows = [
        [entry.label, *(cell for name in "ab" for cell in _cells(speed[name].get(entry.module)))]
        for entry in ENTRIES
    ]
    targets = [(f"at least {_RATIO_TARGETS[name]}", "") for name in "ab"]
    rows.append(["target", "", *targets[0], "", *targets[1]])
    ratios = ["ratio", "by CPU time"]
    head = ["", "(a) CNN, batch 16: steps/s", *ratios, "(b) MLP, batch 64: steps/s", *ratios]
    return table(head, rows)


def _cells(result: Result | None) -> list[str]:
    if result is None:
        return ["as plain", "", ""]
    return [f"{result.steps_per_s:.1f}", f"{result.ratio:.2f}", f"{result.cpu_ratio:.2f}"]


def _gpu_text(on_gpu: OnGpu | None) -> str:
    if on_gpu is None:
        return report_layouts.NO_GPU
    return table(*report_layouts.gpu_table(on_gpu)) + report_layouts.gpu_notes(on_gpu)


def _startup_table(startups: Sequence[Startup]) -> str:
    columns = [f"{s.num_ranks} rank{'s' if s.num_ranks > 1 else ''}" for s in startups]
    rows = [
        ["**total**", *(_spread(s.total_s) for s in startups)],
        [
            "`import torch` alone, in as many processes at once",
            *(_spread(s.import_torch_s) for s in startups),
        ],
        ["**ours**, the difference", *(_difference(s, s.import_torch_s) for s in startups)],
        ["target for ours", *(f"under {_OURS_TARGET_S} s" for _ in startups)],
        [
            "a first step by hand, `import torch` and all, in as many processes at once",
            *(_spread(s.by_hand_s) for s in startups),
        ],
        ["what ours takes longer than that", *(_difference(s, s.by_hand_s) for s in startups)],
    ]
    rows += [
        [f"a further run: {name}", *(_spread(s.phases_s[name]) for s in startups)]
        for name in startups[0].phases_s
    ]
    return table(["median (smallest)", *columns], rows)


def _spread(values: Sequence[float], unit: str = "s") -> str:
    return f"{median(values):.2f} {unit} ({min(values):.2f} {unit})"


def _difference(startup: Startup, base_s: Sequence[float]) -> str:
    pairs = zip(startup.total_s, base_s, strict=True)
    typical_s = median(ours_s - theirs_s for ours_s, theirs_s in pairs)
    return f"{typical_s:.2f} s ({min(startup.total_s) - min(base_s):.2f} s)"


def _recorder_table(recorder: Recorder) -> str:
    rows = [
        ["CPU, of one core", _spread(recorder.cpu_pct, "%"), "under 0.2 %"],
        ["memory, resident", f"{recorder.memory_mb:.1f} MB", "under 30 MB"],
        ["start to first line", _spread(recorder.first_line_s), "under 0.15 s"],
        ["start to first row of readings", _spread(recorder.first_row_s), ""],
    ]
    head = [f"over {recorder.duration_s:.0f} s", "measured", "target"]
    foot = (
        f"GPUs: {recorder.gpus}.\n"
        f"All columns, of which {recorder.num_columns} had a reading, and the watch for XIDs.\n"
        f"CPU: median (smallest) of {len(recorder.cpu_pct)} windows;"
        " what other machines take from these cores counts as ours.\n"
        f"Starts: median (smallest) of {len(recorder.first_line_s)}.\n"
    )
    return f"{table(head, rows)}\n{foot}"


def _heartbeat_table(heartbeats: Heartbeats) -> str:
    rows = [
        [
            f"{heartbeats.num_writes} heartbeats into shared memory",
            f"{heartbeats.watched_us:.1f} us",
            "under 10 us",
        ],
        ["without a watchdog", f"{heartbeats.unwatched_us:.1f} us", ""],
    ]
    return table(["CPU time a step", "measured", "target: 1 % of a step of 1 ms"], rows)


def _saves_table(saves: Saves) -> str:
    stalls = zip(saves.stall_s["sync"], saves.stall_s["async"], strict=True)
    ratio_pct = 100 * median(behind / at_once for at_once, behind in stalls)
    sync, behind = (_spread(saves.stall_s[mode]) for mode in ("sync", "async"))
    target = f"under {_STALL_TARGET_PCT} %"
    rows = [
        ["training stands still for", sync, behind, f"{ratio_pct:.1f} %", target],
        ["complete after", *(_spread(saves.written_s[m]) for m in ("sync", "async")), "", ""],
        ["training steps meanwhile took longer by", "", _spread(saves.slowed_s), "", ""],
        ["the first of a process, which allocates", "", f"{saves.first_stall_s:.2f} s", "", ""],
    ]
    return table(["", "`sync`", "`async`", "ratio", "target"], rows)


def _reading_table(reading: Reading) -> str:
    of = f"{reading.num_rows / 1e6:.1f} million rows, {reading.num_bytes / 1e9:.1f} GB"
    rows = [
        [f"report on {of}", f"{reading.report_s:.1f} s", "under 25 s"],
        ["its CPU time, all processes", f"{reading.report_cpu_s:.1f} s", ""],
        ["its memory, all processes at their peak", f"{reading.report_mib:.0f} MiB", "4096 MiB"],
        ["report on a node's day, with the start", _spread(reading.node_s), "under 0.5 s"],
        ["its CPU time", _spread(reading.node_cpu_s), ""],
        ["that day's rows into memory, CPU time", _spread(reading.rows_cpu_s), ""],
    ]
    return table(["median (smallest)", "measured", "target"], rows)


def _watching_table(watching: Watching) -> str:
    of = f"{watching.num_files} logs of {watching.num_gpus} GPUs, each growing every"
    rows = [
        [f"CPU, of one core: {of} {watching.growth_s:g} s", f"{watching.cpu_pct:.1f} %", "< 20 %"],
        ["pictures in a second", f"{watching.pictures_per_s:.1f}", "2"],
        ["CPU time until all GPUs are shown", f"{watching.start_cpu_s:.2f} s", ""],
        ["memory, resident", f"{watching.memory_mb:.0f} MB", ""],
    ]
    return table([f"over {watching.duration_s:.0f} s", "measured", "target"], rows)


def _toy_table(toy: Toy) -> str:
    rows = [
        ["bits per byte of files it never saw", f"{toy.bits_per_byte:.2f}", "under 2.5"],
        ["from the command to its end", f"{toy.total_s:.0f} s", "180 s"],
    ]
    return table([f"after {toy.num_steps} steps", "measured", "target"], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

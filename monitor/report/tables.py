"""The report for people: a job's numbers, its nodes folded, and the GPUs that stand out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from monitor.logs import columns, stats
from monitor.logs.sample import total
from monitor.report import words
from monitor.words import MIB_PER_GIB, NONE, brief, host_list, minutes, natural
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from monitor.logs.stats import Gpu, Job, Node, Use

    Cell = tuple[str, Callable[[Use], str]]
    Reading = tuple[str, Callable[[Use], float | None]]

WIDE = 120
"""From this many characters on there is room for more columns."""

_MAX_GPUS = 16
"""A job of up to this many GPUs has a line for each."""

_MAX_JOBS = 3
_MAX_LINES = 10
_MAX_OUTLIERS = 6
_MAX_NAMES = 24
_TOLERANCES = (2, 5, 10, 20, 50, 101)
"""How far apart the busy shares of nodes in one line may lie, in percentage points."""

_OUTLIER_PCT = 10
"""A GPU this much less busy than the middle one stands out, in percentage points."""


_UNITS = {"MB": (MIB_PER_GIB, 1)}
"""What a column's unit is shown in, by how many of it make one, and with how many digits."""


@dataclass(frozen=True)
class _Metric:
    """A line of the table of spreads: its name, and what its unit counts in."""

    label: str
    unit: float
    digits: int
    is_detail: bool


_METRICS: Mapping[str, _Metric] = {
    column.report_name: _Metric(column.label, *_UNITS.get(column.unit, (1, 0)), column.is_detail)
    for column in columns.reported()
}


def tables(
    jobs: Sequence[Job], co2_g_per_kwh: float | None, *, wide: bool, full: bool
) -> Iterator[RenderableType]:
    """Give what is to be printed, job by job; of many jobs a line each."""
    if len(jobs) > _MAX_JOBS and not full:
        yield _jobs(jobs)
        yield Text("To see a job, name its logs; --full shows all.", style="dim")
        return
    for number, job in enumerate(jobs):
        if number:
            yield ""
        yield _title(job, co2_g_per_kwh)
        yield Text(words.headline(job), style="bold")
        yield ""
        yield _spreads(job.use, full=full)
        yield ""
        yield from _everything(job) if full else _folded(job, wide=wide)


def _title(job: Job, co2_g_per_kwh: float | None) -> Text:
    gpus = job.gpus
    parts = [counted(len(job.nodes), "node"), counted(len(gpus), "GPU")]
    spans = [one.use.span_s for one in gpus or job.nodes]
    if any(span is not None for span in spans):
        parts.append(minutes(max(span or 0 for span in spans)))
    if job.use.energy_j is not None:
        parts.append(_energy([job.use]))
        if co2_g_per_kwh is not None:
            parts.append(words.co2(job.use.energy_j / words.J_PER_KWH * co2_g_per_kwh))
    return Text(f"{f'job {job.name}' if job.name else 'no job'}: {', '.join(parts)}", style="cyan")


def _jobs(jobs: Sequence[Job]) -> Table:
    table = _table("job", "nodes", "GPUs", "busy %", "max GiB", "idle each", "energy", "from")
    for job in sorted(jobs, key=lambda job: -1 if (b := job.use.busy_pct) is None else b):
        memory = job.use.spreads.get("fb_used_mib")
        began = job.use.first_s
        table.add_row(
            job.name or NONE,
            str(len(job.nodes)),
            str(len(job.gpus)),
            _number(job.use.busy_pct),
            _number(None if memory is None else memory.peak, MIB_PER_GIB),
            _idle_each(job.nodes),
            _energy([job.use]),
            NONE if began is None else words.moment(began, job.use.offset),
        )
    return table


def _spreads(use: Use, *, full: bool) -> RenderableType:
    table = _table("", "mean", "5 %", "50 %", "95 %", "peak")
    for key, metric in _METRICS.items():
        if use.spreads.get(key) is not None and (full or not metric.is_detail):
            parts = ("mean", "p5", "p50", "p95", "peak")
            table.add_row(metric.label, *(_cell(key, part)(use) for part in parts))
    return table if table.row_count else Text("no readings\n")


def _folded(job: Job, *, wide: bool) -> Iterator[RenderableType]:
    gpus = stats.worst_first(job.gpus)
    if not gpus:
        return
    if len(gpus) <= _MAX_GPUS:
        yield _gpus(gpus, wide=wide)
        return
    yield _nodes(_folds(stats.worst_first(job.nodes)), wide=wide)
    worst = _outliers(gpus)
    if worst:
        yield ""
        table = _gpus(worst[:_MAX_OUTLIERS], wide=wide)
        hidden = len(worst) - _MAX_OUTLIERS
        yield Text("GPUs that stand out", style="cyan")
        yield table
        if hidden > 0:
            more = f"and {counted(hidden, 'more GPU')} beside these: --full shows all"
            yield Text(more, style="dim")


def _folds(nodes: Sequence[Node]) -> list[list[Node]]:
    """Put nodes, sorted worst first, into groups that are alike: as narrow as fits _MAX_LINES."""
    groups: list[list[Node]] = []
    for tolerance in _TOLERANCES:
        groups = _bands(nodes, tolerance)
        if len(groups) <= _MAX_LINES:
            return groups
    first, rest = groups[: _MAX_LINES - 1], groups[_MAX_LINES - 1 :]
    return [*first, [node for group in rest for node in group]]


def _bands(nodes: Sequence[Node], tolerance: float) -> list[list[Node]]:
    bands: dict[tuple[int, bool, bool], list[list[Node]]] = {}
    groups: list[list[Node]] = []
    for node in nodes:
        busy = node.use.busy_pct
        mine = bands.setdefault((len(node.gpus), node.use.num_silent > 0, busy is None), [])
        if mine and (busy or 0) - (mine[-1][0].use.busy_pct or 0) <= tolerance:
            mine[-1].append(node)
        else:
            mine.append([node])
            groups.append(mine[-1])
    return groups


def _outliers(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Choose, of GPUs sorted worst first, those that are silent or far less busy than most."""
    busy = sorted(g.use.busy_pct for g in gpus if g.use.busy_pct is not None)
    limit = busy[len(busy) // 2] - _OUTLIER_PCT if busy else 0
    return [
        gpu
        for gpu in gpus
        if gpu.use.num_silent or (gpu.use.busy_pct is not None and gpu.use.busy_pct < limit)
    ]


def _everything(job: Job) -> Iterator[RenderableType]:
    for node in stats.worst_first(job.nodes):
        yield Text(f"node {node.place.host}: {_line(node.use)}", style="bold")
        yield _spreads(node.use, full=True)
        for gpu in stats.worst_first(node.gpus):
            name = f"node {node.place.host} GPU {_gpu_name(gpu, node.gpus)}"
            yield Text(f"{name}: {_line(gpu.use)}", style="bold")
            yield _spreads(gpu.use, full=True)


def _line(use: Use) -> str:
    busy = f"{_number(use.busy_pct)} % busy"
    idle = f"idle {minutes(use.idle_s)}"
    return f"{busy}, {idle}, {_energy([use])}"


def _cell(key: str, *parts: str) -> Callable[[Use], str]:
    """Write some parts of a spread, such as its mean and peak."""

    def cell(use: Use) -> str:
        spread, metric = use.spreads.get(key), _METRICS[key]
        if spread is None:
            return NONE
        values = (getattr(spread, part) for part in parts)
        return "/".join(_number(value, metric.unit, metric.digits) for value in values)

    return cell


def _reading(key: str, part: str) -> Callable[[Use], float | None]:
    def read(use: Use) -> float | None:
        spread = use.spreads.get(key)
        return None if spread is None else getattr(spread, part) / _METRICS[key].unit

    return read


_NARROW_CELLS: tuple[Cell, ...] = (
    ("busy %", lambda use: _number(use.busy_pct)),
    ("util %", _cell("sm_pct", "mean")),
    ("memory GiB", _cell("fb_used_mib", "mean", "peak")),
    ("power W", _cell("power_w", "mean", "peak")),
    ("max C", _cell("temp_c", "peak")),
    ("idle", lambda use: brief(use.idle_s)),
    ("energy", lambda use: _energy([use])),
)
_WIDE_CELLS: tuple[Cell, ...] = (
    _NARROW_CELLS[0],
    ("util % 5/50/95", _cell("sm_pct", "p5", "p50", "p95")),
    ("SM act %", _cell("sm_active_pct", "mean")),
    ("tensor %", _cell("tensor_active_pct", "mean")),
    *_NARROW_CELLS[2:4],
    ("SM MHz", _cell("sm_clock_mhz", "p50")),
    *_NARROW_CELLS[4:],
)


def _gpus(gpus: Sequence[Gpu], *, wide: bool) -> Table:
    cells = _shown(_WIDE_CELLS if wide else _NARROW_CELLS, [gpu.use for gpu in gpus])
    table = _table("node", "GPU", *(head for head, _ in cells))
    for gpu in gpus:
        name = (gpu.place.host, _gpu_name(gpu, gpus))
        table.add_row(*name, *(cell(gpu.use) for _, cell in cells))
    return table


def _gpu_name(gpu: Gpu, among: Sequence[Gpu]) -> str:
    """Name a GPU by its index, and by its UUID where that index was several."""
    alike = [one for one in among if (one.place, one.index) == (gpu.place, gpu.index)]
    return f"{gpu.index} {gpu.uuid or ''}".rstrip() if len(alike) > 1 else f"{gpu.index}"


_NARROW_READINGS: tuple[Reading, ...] = (
    ("busy %", lambda use: use.busy_pct),
    ("max GiB", _reading("fb_used_mib", "peak")),
    ("mean W", _reading("power_w", "mean")),
    ("max C", _reading("temp_c", "peak")),
)
_WIDE_READINGS: tuple[Reading, ...] = (
    _NARROW_READINGS[0],
    ("util %", _reading("sm_pct", "mean")),
    ("SM act %", _reading("sm_active_pct", "mean")),
    ("tensor %", _reading("tensor_active_pct", "mean")),
    *_NARROW_READINGS[1:3],
    ("SM MHz", _reading("sm_clock_mhz", "p50")),
    *_NARROW_READINGS[3:],
)


def _nodes(groups: Sequence[Sequence[Node]], *, wide: bool) -> Table:
    readings = _WIDE_READINGS if wide else _NARROW_READINGS
    uses = [node.use for group in groups for node in group]
    shown = [(h, read) for h, read in readings if any(read(use) is not None for use in uses)]
    table = _table("nodes", "GPUs", *(head for head, _ in shown), "idle", "energy")
    for group in groups:
        names = _names(group)
        each = _range([len(node.gpus) for node in group])
        ranges = (_range([read(node.use) for node in group]) for _, read in shown)
        table.add_row(
            names, each, *ranges, _idle_each(group), _energy([node.use for node in group])
        )
    return table


def _names(nodes: Sequence[Node]) -> str:
    """Name nodes on one line: all, or of many scattered ones how many and between which."""
    hosts = sorted((node.place.host for node in nodes), key=natural)
    names = host_list(hosts)
    is_short = len(names) <= _MAX_NAMES or len(hosts) == 1
    return names if is_short else f"{len(hosts)} of {hosts[0]}-{hosts[-1]}"


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    ends = dict.fromkeys((_number(min(known)), _number(max(known))))
    return "-".join(ends)


def _idle_each(nodes: Sequence[Node]) -> str:
    known = [node.use.idle_s for node in nodes if node.use.idle_s is not None]
    num_gpus = sum(len(node.gpus) for node in nodes)
    return brief(sum(known) / num_gpus) if known and num_gpus else NONE


def _energy(uses: Sequence[Use]) -> str:
    source = "counter" if all(use.energy_from in ("counter", None) for use in uses) else "power"
    is_partial = any(use.energy_is_partial for use in uses)
    return words.energy(total(use.energy_j for use in uses), source, is_partial=is_partial)


def _shown(cells: Sequence[Cell], uses: Sequence[Use]) -> list[Cell]:
    """Leave out columns that no row has."""
    return [(head, cell) for head, cell in cells if any(cell(use) != NONE for use in uses)]


def _table(first: str, *heads: str) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False
    )
    table.add_column(first, overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _number(value: float | None, unit: float = 1, digits: int = 0) -> str:
    return NONE if value is None else f"{value / unit:.{digits}f}"

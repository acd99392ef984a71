"""When something is a finding: one table, and a user's own numbers instead."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.logs import constants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_FILE_BYTES = 2**20


def _at(default: float, meaning: str) -> float:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What the rules compare with; each is a number of 0 or more, `_pct` of at most 100."""

    busy_sm_pct: float = _at(constants.BUSY_PCT, "busy: utilisation above this")
    working_sm_pct: float = _at(50, "at work: utilisation of at least this")
    startup_minutes: float = _at(5, "the first minutes of a log do not count")
    first_step_minutes: float = _at(30, "nor those before the rank's first step, up to so many")
    idle_minutes: float = _at(3, "idle for so long at a stretch")
    idle_now_minutes: float = _at(2, "in a live view: idle for so long until now")
    idle_pct: float = _at(5, "a warning if idle for this share of the time, else a hint")
    hung_sm_pct: float = _at(90, "waiting: utilisation of at least this")
    hung_mem_pct: float = _at(1, "waiting: memory traffic of at most this")
    hung_power_pct: float = _at(45, "waiting: at most this share of the power limit")
    hung_minutes: float = _at(5, "waiting for so long at a stretch")
    starved_dip_pct: float = _at(20, "below working_sm_pct in this share of the samples")
    starved_cpu_pct: float = _at(90, "while the CPUs are as full as this, in half of those")
    starved_wait_pct: float = _at(20, "or the trainer waits for data for this share of its time")
    min_peers: float = _at(2, "compared if there are so many others of the same job and kind")
    peer_minutes: float = _at(10, "means, or peaks, of so many minutes are compared")
    peer_windows: float = _at(3, "differs in so many of them, one after the other")
    peer_spread: float = _at(4, "by this many times the spread of the others")
    straggler_points: float = _at(20, "utilisation lower by so many percentage points")
    straggler_pct: float = _at(20, "or named slow in this share of the trainer's lines")
    thermal_pct: float = _at(2, "throttled by heat for this share of its busy time")
    brake_pct: float = _at(1, "slowed down by hardware for this share of its busy time")
    power_cap_pct: float = _at(80, "a hint: held by its power limit for this share of it")
    memory_full_pct: float = _at(97, "nearly full: this share of its memory in use")
    memory_empty_pct: float = _at(50, "mostly empty: never more than this share in use")
    unattributed_mib: float = _at(500, "held by processes of no rank: so many MiB of a GPU")
    unattributed_minutes: float = _at(2, "for so long at a stretch")
    corrected_errors: float = _at(100, "a hint: so many corrected errors came up")
    host_memory_pct: float = _at(95, "this share of the machine's memory in use")
    shm_pct: float = _at(90, "this share of /dev/shm in use")
    disk_pct: float = _at(95, "this share of the log's disk in use")
    disk_free_gib: float = _at(50, "and less left than this, or than two checkpoints take")
    unbalanced_pct: float = _at(20, "in use: so many percent of its memory more than its peers")
    pcie_lower_pct: float = _at(50, "so many percent below the peak of its peers")
    pcie_min_mb_s: float = _at(1000, "where theirs is at least this")
    clock_lower_pct: float = _at(10, "SM clock lower by so many percent than that of its peers")
    clock_capped_pct: float = _at(25, "a hint: lower by so many percent than its highest")
    lost_samples: float = _at(2, "so many samples one after the other without any reading")
    gap_intervals: float = _at(
        constants.GAP_INTERVALS, "nothing written for so many usual intervals"
    )
    gap_seconds: float = _at(60, "and for at least so many seconds")
    stale_seconds: float = _at(30, "in a live view: and for at least so many seconds")

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            _check(name, value)

    def as_dict(self) -> dict[str, float]:
        """Give all of them by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


MEANINGS: Mapping[str, str] = {one.name: one.metadata["meaning"] for one in fields(Thresholds)}
"""What each of them means, by name, in the order of the table."""

_FORMER_NAMES = {"stray_mib": "unattributed_mib", "stray_minutes": "unattributed_minutes"}


def chosen(settings: Sequence[str], path: str | None = None) -> Thresholds:
    """Return the defaults, overridden by a TOML file of numbers and then by `name=number`.

    Raises:
        UserError: the file cannot be read, a name is unknown, a value is no such number.

    """
    given = {} if path is None else _read(path)
    for setting in settings:
        name, found, value = setting.partition("=")
        if not found:
            raise UserError(
                "--set must be name=number", setting, "write for example idle_minutes=5"
            )
        given[name.strip()] = value.strip()
    given = {_FORMER_NAMES.get(name, name): value for name, value in given.items()}
    unknown = [name for name in given if name not in MEANINGS]
    if unknown:
        raise UserError(
            "a threshold must be one of those there are",
            unknown[0],
            f"take one of {', '.join(MEANINGS)}",
        )
    return replace(Thresholds(), **{name: _number(name, value) for name, value in given.items()})


def _read(path: str) -> dict[str, object]:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)  # whatever it is, it may not be endless
        if len(raw) <= _MAX_FILE_BYTES:
            return tomllib.loads(raw.decode())
        reason = "more than 1 MiB"
    except OSError as error:
        reason = error.strerror or "it cannot be read"
    except ValueError as error:  # also what is no UTF-8
        reason = f"{error}"
    raise UserError(
        "--thresholds must be a TOML file of lines such as idle_minutes = 5",
        f"{path}: {reason}",
        "--list-rules shows the names",
    )


def _number(name: str, value: object) -> float:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return float(value)
    except ValueError:
        pass
    raise UserError(f"threshold {name} must be a number", value, f"write for example {name}=5")


def _check(name: str, value: float) -> None:
    limit = 100 if name.endswith("_pct") else math.inf
    if not 0 <= value <= limit or math.isinf(value):
        bound = "0 to 100" if name.endswith("_pct") else "0 or more"
        default = getattr(Thresholds, name)
        raise UserError(
            f"threshold {name} must be a number from {bound}",
            f"{value:g}",
            f"it is {default:g} unless you set it",
        )

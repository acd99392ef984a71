"""What the watchdog of a node watches; imported before the first line of the log: light."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.errors import UserError
from rundir.channel import SUPERVISED

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_HANG_S = 30 * 86400.0


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """What to watch; the environment of the launcher, parsed."""

    heartbeat_dir: str
    """DDP_BEAT_DIR."""
    run_dir: str
    launch_id: str
    node: str
    attempt: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    master_addr: str | None = None
    master_port: int | None = None
    hang_timeout_s: float | None = None
    """None: learn it from the heartbeats; 0: decide nothing."""
    is_supervised: bool = False
    """Whether a supervisor receives the nodes' reports, and decides."""
    trace_pipe: str | None = None
    """TORCH_NCCL_DEBUG_INFO_PIPE_FILE: where to ask the flight recorder for a dump."""

    def __post_init__(self) -> None:
        """Raise UserError where a value breaks its rule."""
        check_hang_timeout(self.hang_timeout_s)

    @property
    def master(self) -> str:
        """MASTER_ADDR:MASTER_PORT."""
        return f"{self.master_addr}:{self.master_port}"


def check_hang_timeout(limit_s: float | None) -> None:
    """Raise UserError for what is no time to wait; also where no rank is to be watched."""
    if limit_s is not None and not 0 <= limit_s <= _MAX_HANG_S:
        raise UserError(
            f"DDP_HANG_TIMEOUT must lie between 0 (off) and {_MAX_HANG_S:g} seconds",
            f"{limit_s:g}",
            "unset it to learn it from the ranks",
        )


def from_environment(
    env: Mapping[str, str], run_dir: str | None, launch_id: str | None, node: str
) -> WatchSettings | None:
    """Read what the launcher has set; None outside of a launch.

    Raises:
        UserError: DDP_HANG_TIMEOUT is no number of seconds.

    """
    heartbeat_dir = env.get("DDP_BEAT_DIR")
    if not (heartbeat_dir and run_dir and launch_id):
        return None
    return WatchSettings(
        heartbeat_dir=heartbeat_dir,
        run_dir=run_dir,
        launch_id=launch_id,
        node=node,
        attempt=number(env, "DDP_ATTEMPT", 1),
        node_rank=number(env, "NODE_RANK", 0),
        num_nodes=_num_nodes(env),
        master_addr=env.get("MASTER_ADDR") or None,
        master_port=number(env, "MASTER_PORT", 0) or None,
        hang_timeout_s=_hang_timeout_s(env.get("DDP_HANG_TIMEOUT", "")),
        is_supervised=env.get(SUPERVISED) == "1",
        trace_pipe=env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE") or None,
    )


def _num_nodes(env: Mapping[str, str]) -> int:
    """Return how many nodes there are; uneven ones have as many ranks as the first."""
    given = number(env, "DDP_NUM_NODES", 0)
    if given:
        return given
    per_node = max(1, number(env, "LOCAL_WORLD_SIZE", 1))
    return max(1, -(-number(env, "WORLD_SIZE", 1) // per_node))


def number(env: Mapping[str, str], name: str, otherwise: int) -> int:
    """Read a whole number that the launcher has set; what is none counts as not set."""
    text = env.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def _hang_timeout_s(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError as error:
        raise UserError(
            "DDP_HANG_TIMEOUT must be a number of seconds",
            f"{text!r}",
            "unset it to learn it from the ranks, or set 0 to switch the watchdog off",
        ) from error

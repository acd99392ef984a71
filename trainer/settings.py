"""What the launcher tells through the environment, besides the ranks. A pure function."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.environment import whole_number
from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT_SEED = 1


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The variables of the contract in docs/architecture.md."""

    run_dir: Path | None = None
    attempt: int = 1
    seed: int = _DEFAULT_SEED
    node: str = ""
    beat_dir: Path | None = None
    grace_s: float | None = None
    """How long this process may live after SIGTERM or SIGINT; None: nobody says."""
    end_epoch_s: float | None = None
    """When the time limit ends the job, in seconds since 1970; None: nobody says."""
    torchrun_id: str = ""
    """torchrun's --rdzv-id, `none` without one; empty where it did not start this process."""

    @staticmethod
    def from_environment(env: Mapping[str, str], host: str) -> RunSettings:
        """Read DDP_* from `env`; `host` names this node where DDP_NODE does not.

        Raises UserError for a number that is none.
        """
        run_dir, beat_dir = env.get("DDP_RUN_DIR"), env.get("DDP_BEAT_DIR")
        return RunSettings(
            run_dir=Path(run_dir) if run_dir else None,
            attempt=_count(env, "DDP_ATTEMPT", 1),
            seed=_count(env, "DDP_SEED", _DEFAULT_SEED),
            node=env.get("DDP_NODE") or host,
            beat_dir=Path(beat_dir) if beat_dir else None,
            grace_s=_count(env, "DDP_GRACE", 0) if env.get("DDP_GRACE") else None,
            end_epoch_s=_count(env, "DDP_END_TIME", 0) if env.get("DDP_END_TIME") else None,
            torchrun_id=env.get("TORCHELASTIC_RUN_ID", ""),
        )


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    value = whole_number(text)
    if value is None or value >= 2**63:
        raise UserError(
            name, rule="a whole number from 0 on", found=repr(text), remedy="correct or unset it"
        )
    return value

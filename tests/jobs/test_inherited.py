"""What the user exported reaches the ranks, under whatever name; and old programs beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Scripts

pytestmark = pytest.mark.slow

NAMES = (
    *("LOG", "LOG_NAME", "CODE", "PYTHON", "WORK_DIR", "STEP_COMMAND", "JOBS_DIR", "ARGUMENTS"),
    *("PLACE", "NODES", "NUM_NODES", "DECISION", "RESTARTS", "LATEST", "SHOWN", "NOW", "JSON"),
    *("code", "name", "node", "line", "pid", "file", "jobs", "candidate", "root", "python"),
)
"""Names that scripts use for themselves, and used to."""


@pytest.mark.parametrize("place", ["in place", "srun"])
def test_a_users_variable_is_never_replaced(scripts: Scripts, place: str) -> None:
    """Not even where a script uses its name for itself: nor does the script take it for its own."""
    if place == "srun":
        scripts.fake_slurm("node1")
    shown = "\n".join(f'echo "{name}=${name}"' for name in NAMES)
    user = dict.fromkeys(NAMES, "mine")
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", shown, **user)
    assert result.code == 0, result.err
    log = (result.run_dir / "logs" / "rank-0.log").read_text().splitlines()
    assert log == [f"{name}=mine" for name in NAMES]


def test_a_module_system_reaches_the_ranks(scripts: Scripts) -> None:
    """BASH_ENV defines `module` in every shell of a user's; the scripts themselves do without."""
    init = scripts.directory / "init.sh"
    init.write_text("module() { echo module $1; }\n")
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", "module load cuda", BASH_ENV=str(init))
    assert result.code == 0, result.err
    assert (result.run_dir / "logs" / "rank-0.log").read_text() == "module load\n"


def test_an_env_that_knows_no_signals(scripts: Scripts) -> None:
    """RHEL 8 and Ubuntu 20.04 have coreutils 8.30, before --default-signal."""
    scripts.fake(
        "env",
        """for word; do
            case $word in --*-signal*) echo "env: unrecognized option" >&2; exit 125 ;; esac
        done
        exec /usr/bin/env "$@" """,
    )
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", "echo $RANK", DDP_MONITOR="1")
    assert result.code == 0, result.err
    assert (result.run_dir / "logs" / "rank-1.log").read_text() == "1\n"
    assert result.of("monitor_end")[0]["code"] == 0


@pytest.mark.parametrize("name", ["DEBUG", "DDP_MONITOR"])
def test_a_launcher_by_hand_takes_the_same_switches(scripts: Scripts, name: str) -> None:
    """All words for on and off, and nothing else."""
    wrong = scripts.run("launcher.sh", "--", "true", **{name: "maybe"})
    assert wrong.code == 64
    assert f"{name} must be 1/0, on/off" in wrong.err
    right = scripts.run("launcher.sh", "--", "true", **{name: "off"})
    assert right.code == 0, right.err
    assert not right.of("monitor_up")


def test_no_token_stands_in_a_log_or_record(scripts: Scripts) -> None:
    """Neither one that is exported, traced, nor one among the words of a command."""
    exported = {"HF_TOKEN": "hf_SECRET", "LOG": "hf_SECRET"}
    words = ["env", "WANDB_API_KEY=SECRET2", "true", "--api-key", "SECRET3", "--tokenizer", "kept"]
    words += ["--wandb-key=SECRET4", "--auth", "SECRET5", "postgres://me:SECRET6@host/db"]
    exported["WANDB_BASE_URL"] = "https://me:SECRET7@host/"
    result = scripts.run("prelaunch.sh", "--", *words, DEBUG="1", **exported)
    assert result.code == 0, result.err
    printed = result.err + (result.run_dir / "logs" / "rank-0.log").read_text()
    told = [line for line in printed.splitlines() if not line.startswith("+")]
    traced = [line for line in printed.splitlines() if line.startswith("+")]
    record = (result.run_dir / "events.jsonl").read_text()
    assert traced
    assert not [line for line in [*told, record] if "SECRET" in line]
    assert "postgres://me:***@host/db" in record
    assert "https://me:***@host/" in record
    assert not [line for line in traced if "SECRET" in line]
    assert "--tokenizer kept" in printed

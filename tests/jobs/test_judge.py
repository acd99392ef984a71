"""Who is blamed for an attempt's end, by what its event log holds."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from rundir.failure import patterns as failure
from tests.jobs.library import JOBS, ask

if TYPE_CHECKING:
    from pathlib import Path


def event(name: str, rank: int | None, **keys: Any) -> str:
    """A line as the launchers write it."""
    head = {"time": "2026-11-21T08:00:00.000Z", "event": name, "source": "launcher", "attempt": 1}
    return json.dumps({**head, "host": "n", "rank": rank, "node": f"n{rank}"} | keys)


def ended(rank: int, code: int, *, requested: bool = False, **keys: Any) -> str:
    """The end of a rank."""
    return event("rank_end", rank, code=code, requested=requested, **keys)


def blame(
    tmp_path: Path, *lines: str, step_code: int = 1, shown: str = "$FAILED_RANK $FAILED_CODE"
) -> tuple[str, str]:
    """The rank and the code that the attempt's end is laid to."""
    (tmp_path / "events.jsonl").write_text("".join(line + "\n" for line in lines))
    script = "nodes_lost() { return 1; }; nodes_dropped() { :; }; judge_failure;"
    done = ask(
        ("judge", "nodes"),
        f'{script} echo "{shown}"',
        DDP_RUN_DIR=str(tmp_path),
        WORK_DIR=str(tmp_path),
        DDP_ATTEMPT="1",
        STEP_CODE=str(step_code),
    )
    if "CODE" not in shown:
        return done.stdout.rstrip("\n"), ""
    rank, _, code = done.stdout.rstrip("\n").partition(" ")
    return rank, code


UPS = tuple(event("rank_up", rank) for rank in range(3))


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        ((ended(0, 0), ended(1, 0), ended(2, 0)), ("", "0")),
        ((ended(1, 3), ended(0, 143, requested=True), ended(2, 0)), ("1", "3")),
        # who lost a peer may tell it before that peer's launcher does
        ((ended(0, 70), ended(1, 137), ended(2, 70)), ("1", "137")),
        ((ended(0, 70), ended(2, 70), ended(1, 143, requested=True)), ("0", "70")),
        ((ended(2, 143, requested=True), ended(0, 0), ended(1, 0)), ("2", "143")),
        # a launcher that was killed tells no end
        ((ended(0, 70), ended(2, 70)), ("1", "137")),
    ],
)
def test_the_cause_is_blamed_and_not_what_follows(
    tmp_path: Path, ends: tuple[str, ...], blamed: tuple[str, str]
) -> None:
    """Of several ends the one that explains the others counts."""
    assert blame(tmp_path, *UPS, *ends) == blamed


@pytest.mark.parametrize(
    ("last_words", "blamed"),
    [
        ("RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:7888. GLHF!", "2"),
        ("RuntimeError: NCCL error: ncclRemoteError: a call failed\n[rank0]: more", "2"),
        ("ValueError: the data is bad", "0"),
    ],
)
def test_who_only_lost_a_peer_is_not_the_cause(
    tmp_path: Path, last_words: str, blamed: str
) -> None:
    """Every rank of a foreign program fails with 1: its last words tell who only follows."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text(f"step 5\n[rank0]: {last_words}\n")
    (tmp_path / "logs" / "rank-2.log").write_text("[rank2]: RuntimeError: no data\n")
    assert blame(tmp_path, *UPS, ended(0, 1), ended(2, 1), ended(1, 0)) == (blamed, "1")


def test_of_our_own_ranks_who_only_lost_a_peer_comes_second(tmp_path: Path) -> None:
    """The trainer ends with 70 for cause and consequence: what it told of it says which."""
    lost = "RuntimeError: [pair.cc:561] Connection closed by peer [10.0.0.1]:7888"
    followed = event("failure", 0, error=lost)
    ends = (followed, ended(0, 70), event("failure", 2, error="ValueError: bad"), ended(2, 70))
    assert blame(tmp_path, *UPS, *ends, ended(1, 0)) == ("2", "70")
    assert blame(tmp_path, *UPS, followed, ended(0, 70), ended(1, 0), ended(2, 0)) == ("0", "70")
    before = followed.replace('"attempt": 1', '"attempt": 11')
    assert blame(tmp_path, before, *UPS, *ends[1:], ended(1, 0)) == ("0", "70")


def test_whose_loss_was_not_finite_is_blamed(tmp_path: Path) -> None:
    """All ranks end at once, with the same words; the event tells whose it was."""
    told = event("non_finite", 0, step=7, action="stop", steps=[7], ranks=[1, 2])
    ends = (ended(0, 70), ended(1, 70), ended(2, 70))
    assert blame(tmp_path, *UPS, told, *ends) == ("1", "70")
    assert blame(tmp_path, *UPS, told.replace("[1, 2]", "[]"), *ends) == ("0", "70")
    assert blame(tmp_path, *UPS, told, ended(2, 3), *ends[:2]) == ("2", "3")


def test_what_a_rank_of_ours_said_is_told(tmp_path: Path) -> None:
    """Its own words, with the remedy they may hold, as they are and not too many of them."""
    words = 'RunFailedError: the loss of "step" 7 is not finite; lower --lr\n'
    ends = (event("failure", 1, error=words + "x" * 1000), ended(1, 70), ended(0, 0), ended(2, 0))
    assert blame(tmp_path, *UPS, *ends) == ("1", "70")
    why = blame(tmp_path, *UPS, *ends, shown="$FAILED_WHY")[0]
    assert why.startswith(': RunFailedError: the loss of "step" 7 is not finite; lower --lr xxx')
    assert len(why) == 302
    early = (ended(1, 70), *ends[2:])
    assert blame(tmp_path, *UPS, *early, shown="$FAILED_WHY")[0] == ""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-1.log").write_text("trainer: a\ntrainer: rendezvous at n:1\nbye\n")
    assert blame(tmp_path, *UPS, *early, shown="$FAILED_WHY")[0] == ": rendezvous at n:1"


def test_the_words_of_who_lost_a_peer_are_the_monitors() -> None:
    """The job's last line and `python -m monitor why` name the same rank."""
    (words,) = re.findall(
        r"^LOST_PEER='(.*)'$", (JOBS / "lib" / "judge.sh").read_text(), re.MULTILINE
    )
    assert set(_alternatives(words)) <= set(_alternatives(failure.FOLLOWS.pattern))


def _alternatives(pattern: str) -> list[str]:
    """What stands between the bars of a regular expression, those in brackets aside."""
    return re.findall(r"(?:\([^()]*(?:\([^()]*\)[^()]*)*\)|[^|()])+", pattern)


def test_a_signal_is_a_cause_whatever_was_said_before(tmp_path: Path) -> None:
    """The lost connection in the log was an attempt's before: who is killed says nothing."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("RuntimeError: Connection closed by peer\n")
    assert blame(tmp_path, *UPS, ended(0, 137), ended(2, 1), ended(1, 0)) == ("0", "137")


def test_another_attempts_end_is_no_matter(tmp_path: Path) -> None:
    """Only the lines of this attempt are looked at."""
    before = ended(2, 9).replace('"attempt": 1', '"attempt": 11')
    lines = (before, *UPS, ended(0, 0), ended(2, 0), ended(1, 5))
    assert blame(tmp_path, *lines) == ("1", "5")


def test_a_verdict_comes_before_the_ends_it_caused(tmp_path: Path) -> None:
    """The ranks that the watchdog ended are not the cause."""
    verdict = event("verdict", 2, kind="hung", gpu=None, top="x", text="rank 2 hangs")
    assert blame(tmp_path, *UPS, ended(0, 137), verdict, ended(1, 137)) == ("2", "76")

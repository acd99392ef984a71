"""nodes.jsonl: what one job remembers of nodes, and the next one reads."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rundir import nodes
from rundir.nodes import BadNode, Remembered

if TYPE_CHECKING:
    from pathlib import Path

NOW_S = 1_800_000_000.0
DAY_S = 86400.0


def keep(path: Path, *names: str, now_s: float = NOW_S, reason: str = "XID 79") -> None:
    """Remember nodes for a day."""
    bad = [BadNode(name, reason, "hardware") for name in names]
    nodes.append(str(path), bad, job="7", now_s=now_s, for_s=DAY_S)


def test_a_node_is_remembered_for_its_time(tmp_path: Path) -> None:
    """Who, why, what found it, which job and until when; then it is forgotten."""
    path = tmp_path / "nodes.jsonl"
    keep(path, "gpu7", reason="XID 79,\nfallen off")
    known = nodes.remembered(path.read_bytes(), NOW_S + DAY_S - 1)
    until = "2027-01-16T08:00:00.000Z"
    assert known == {"gpu7": Remembered("gpu7", "XID 79, fallen off", "7", until)}
    assert nodes.remembered(path.read_bytes(), NOW_S + DAY_S) == {}


@pytest.mark.parametrize("until", ["2027-01-16", "2027-01-16T07:00Z", "2027-01-16T07:59:59Z"])
def test_a_line_added_by_hand(until: str) -> None:
    """The node alone is enough."""
    lines = [{"node": "gpu7", "until": until}, {"node": "gpu8", "reason": "slow"}, {"reason": "x"}]
    data = "\n".join(map(json.dumps, lines)).encode()
    known = nodes.remembered(data, NOW_S)
    assert known == {
        "gpu7": Remembered("gpu7", until=until),
        "gpu8": Remembered("gpu8", "slow"),
    }
    assert list(nodes.remembered(data, NOW_S + DAY_S)) == ["gpu8"]


def test_the_newest_line_of_a_node_counts(tmp_path: Path) -> None:
    """Also where it ends earlier: an administrator may append one that has ended."""
    path = tmp_path / "nodes.jsonl"
    keep(path, "gpu7", "gpu8")
    keep(path, "gpu7", now_s=NOW_S - DAY_S)
    assert list(nodes.remembered(path.read_bytes(), NOW_S)) == ["gpu8"]


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    """Neither guessed nor in the way: torn, of other types, without a time, not printable."""
    path = tmp_path / "nodes.jsonl"
    keep(path, "gpu7")
    whole = path.read_bytes()
    torn = [
        whole[:40],
        whole.replace(b'"gpu7"', b"7"),
        whole.replace(b'"gpu7"', b'""'),
        whole.replace(b'"gpu7"', b'"\\u001b[2J"'),
        whole.replace(b"2027-01-16T", b"some day "),
        b"\xff\x00 noise",
        b"[]",
    ]
    keep(path, "gpu8")
    data = b"\n".join([*torn, path.read_bytes()])
    assert list(nodes.remembered(data, NOW_S)) == ["gpu7", "gpu8"]
    assert nodes.remembered(b"\n".join(torn), NOW_S) == {}


@given(st.binary(max_size=300))
def test_noise_is_no_node(data: bytes) -> None:
    """Whatever stands there, reading it raises nothing."""
    assert nodes.remembered(data, NOW_S) == {}


def test_several_jobs_at_once(tmp_path: Path) -> None:
    """No line is lost or torn where jobs find nodes in the same moment."""
    path = tmp_path / "nodes.jsonl"
    names = [f"gpu{number}" for number in range(24)]
    threads = [threading.Thread(target=keep, args=(path, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(nodes.remembered(path.read_bytes(), NOW_S)) == sorted(names)


@given(
    avoided=st.sets(st.sampled_from("abcdef")),
    num_used=st.integers(1, 6),
)
def test_nodes_to_avoid_become_spare(avoided: set[str], num_used: int) -> None:
    """As far as there are spares; the nodes that are used stay in Slurm's order."""
    ordered = nodes.spare_last(list("abcdef"), sorted(avoided), num_used)
    used = ordered[:num_used]
    assert sorted(ordered) == list("abcdef")
    assert used == sorted(used)
    assert len(avoided & set(used)) == max(0, num_used - (6 - len(avoided)))

"""Findings as text: what is folded into a line, and what was not looked for."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from monitor.analysis.engine import evaluate, skipped
from monitor.logs import series
from monitor.report import findings
from tests.monitor.made_runs import BEGIN_S, NUM_SAMPLES, at, first, gpu, mark, run


def text(looked_at: series.Run, width: int = 100) -> str:
    """What a person reads."""
    return "\n".join(findings.lines(looked_at, evaluate(looked_at), width))


@pytest.mark.slow
def test_many_nodes_fold_into_a_line() -> None:
    """512 nodes that are alike are one finding to read; one that is not stands out."""
    nodes = [
        gpu(index, f"gpu{node:03}", sm=at(first(40 if node == 7 else 20), 0, 95))
        for node in range(1, 513)
        for index in range(2)
    ]
    looked_at = run(*nodes, gpu(0, "login", sm=at(first(20), 0, 95)), gpu(1, "login"))
    output = text(looked_at)
    assert "WARNING  idle: gpu[001-512], all GPUs; login GPU 0, 2026-09-21" in output
    assert "worst, gpu007 GPU 0: idle for 10 min at a stretch" in output
    assert len(output.splitlines()) < 12


def test_of_several_jobs_each_finding_names_its_own() -> None:
    """As where a directory of logs is named."""
    several = run(
        gpu(0, "n1", "7", disk=99, dfree=0), gpu(0, "n1", "8", disk=99, dfree=0), gpu(1, "n2", "8")
    )
    output = text(several)
    assert "WARNING  disk: job 7, n1, 2026" in output
    assert "WARNING  disk: job 8, n1, 2026" in output
    assert "disk: n1, 2026" in text(run(gpu(disk=99, dfree=0)))


def test_a_damaged_year_is_no_end_of_what_was_recorded() -> None:
    """The row lies beside its neighbour, and the heading does not end a thousand years later."""
    shift_s = np.zeros(NUM_SAMPLES, np.int64)
    shift_s[100] = -1000 * 366 * 86_400
    output = text(run(replace(gpu(), shift_s=shift_s)))
    assert "2026-09-21 14:13:20 to 15:13:05" in " ".join(output.split())


def test_faults_of_different_numbers_are_not_folded() -> None:
    """An XID must not hide behind another."""
    events = tuple(mark("xid", i, xid=xid) for i, xid in enumerate(("79", "48", "79")))
    output = text(run(*(gpu(i) for i in range(4)), log_events=events))
    assert "ERROR    xid: n1 GPU 0,2" in output
    assert "ERROR    xid: n1 GPU 1" in output


def test_scattered_nodes_and_narrow_terminals() -> None:
    """A line is never wider than the terminal, whatever the names."""
    names = [f"rack{node * 7 % 100}-node{node}" for node in range(0, 90, 3)]
    looked_at = run(*(gpu(0, name, disk=99, dfree=0) for name in names))
    output = text(looked_at, 40)
    assert "30 nodes of rack" in output
    assert max(map(len, output.splitlines())) <= 40
    odd = run(*(gpu(0, f"node{n}", disk=99, dfree=0) for n in range(1, 200, 2)))
    assert "100 nodes of node1 to node199" in text(odd)
    assert f"disk: {'n' * 61}, " in text(run(gpu(0, "n" * 61, disk=99, dfree=0)))
    sorts = run(*(gpu(g, f"n{n}", sm=0 if g <= n else 95) for n in range(7) for g in range(9)))
    assert "and on 3 more nodes" in text(sorts)


def test_skipped_rules_are_reported_by_node() -> None:
    """One log with a column does not speak for another that lacks it."""
    both = run(gpu(host="n1", disk=10, dfree=1), gpu(host="n2"))
    (lack,) = [one for one in skipped(both) if one.rule == "disk"]
    assert (lack.lacks, lack.hosts) == ("disk", ("n2",))
    assert "no disk on 1 of 2 nodes: disk" in text(both)
    assert "no disk: disk" in text(run(gpu()))
    silent = run(gpu(**dict.fromkeys(("sm", "pwr", "gtemp", "fb"), float("nan"))))
    assert "lost" not in {one.rule for one in skipped(silent)}
    assert "lost" in {one.rule for one in evaluate(silent)}
    assert "idle" in {one.rule for one in skipped(silent)}
    for facts, events, is_blind in (
        ({}, (), True),
        ({"events": "none: no GPU"}, (), True),
        ({"events": "watched on 1 of 1 GPUs"}, (), False),
        ({}, (mark("xid", xid="79"),), False),
    ):
        watched = run(gpu(facts=facts), log_events=events)
        assert ("xid" in {one.rule for one in skipped(watched)}) == is_blind
    trained = run(gpu(), metrics=({"step": 1},))
    assert "data" not in {one.rule for one in skipped(trained)}


def test_a_run_of_metrics_alone_and_an_empty_one() -> None:
    """No monitor ran: the trainer's own numbers are read."""
    time = datetime.fromtimestamp(BEGIN_S, UTC).isoformat()
    waiting: list[dict[str, Any]] = [
        {"time": time, "step": i, "data_wait_pct": 50} for i in "12345"
    ]
    output = text(run(metrics=tuple(waiting)))
    assert "WARNING  data: the job, 2026-09-21 14:13:20\n" in output
    assert "0 GPUs on 0 nodes" in output
    assert text(series.Run(name=None, gpus=())).startswith("no monitor's log was read; 0 GPUs")

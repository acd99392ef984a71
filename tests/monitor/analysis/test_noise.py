"""Healthy runs, as noisy as real ones: no rule may call for anybody."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from monitor.analysis.engine import evaluate
from monitor.analysis.rules import LogState, Window
from monitor.live.log import CAPACITY
from monitor.logs.series import GpuSeries, Run
from tests.monitor.made_runs import BEGIN_S, gpu, run

NUM_RUNS = 150
START_UP_S = 240
NAN = float("nan")

Noise = np.random.Generator


def healthy_gpu(noise: Noise, host: str, index: int | None, clock_s: np.ndarray) -> GpuSeries:
    """A GPU that trains: a start, steps, pauses for checkpoints and validations, lost cells."""
    num = len(clock_s)

    def around(mean: float, spread: float, low: float = 0, high: float = np.inf) -> np.ndarray:
        return np.clip(noise.normal(mean, spread, num), low, high)

    works = clock_s - clock_s[0] > min(START_UP_S, noise.uniform(5, START_UP_S))
    works &= (clock_s % noise.uniform(900, 1800)) > noise.uniform(0, 45)
    memory_mib = noise.uniform(45_000, 75_000)
    columns = {
        "sm": np.where(works, around(95, 4, 0, 100), around(2, 2, 0, 100)),
        "mem": np.where(works, around(45, 10, 2, 100), 0),
        "pwr": np.where(works, around(600, 40, 100, 700), around(110, 5)),
        "gtemp": around(62, 3),
        "pclk": np.where(works, around(1900, 15, 0, 1980), around(1980, 1, 0, 1980)),
        "fb": np.where(works, around(memory_mib, 500), around(memory_mib, 500)),
        "rxpci": around(8_000, 2_500),
        "txpci": around(3_000, 900),
        "throt": np.where(noise.random(num) < 0.3, 4, 0),
        "ofb": around(60, 20),
        "sbecc": np.full(num, noise.integers(0, 50)),
        "dbecc": np.zeros(num),
        "remap": np.zeros(num),
    }
    hosts = {"cpu": around(40, 15, 0, 85), "hmem": around(300_000, 9_000), "shm": around(10, 2)}
    share = noise.uniform(0, 0.05)  # of cells that the driver did not answer, each by itself
    shown = {name: np.where(noise.random(num) < share, NAN, c) for name, c in columns.items()}
    return gpu(index, host, time_s=clock_s, **(shown if index is not None else {}), **hosts)


def healthy_run(noise: Noise) -> Run:
    """One to eight nodes of one to eight GPUs, or of none, for 20 s to two hours."""
    num_nodes, num_gpus = int(noise.integers(1, 9)), int(noise.choice([0, 1, 2, 4, 8]))
    interval_s = float(noise.choice([1, 5, 15]))
    num = int(max(3, noise.uniform(20, 7_200) / interval_s))
    gpus = []
    for node in range(num_nodes):
        # Nodes neither begin nor end in the same second, nor have the same clock.
        length = num - int(noise.integers(0, 3))
        clock_s = BEGIN_S + noise.uniform(0, 5) + interval_s * np.arange(length)
        clock_s += noise.uniform(0, 0.3 * interval_s, length)
        indices: list[int | None] = list(range(num_gpus)) or [None]
        gpus += [healthy_gpu(noise, f"n{node}", index, clock_s) for index in indices]
    return run(*gpus, metrics=healthy_metrics(noise, num * interval_s, num_nodes))


def healthy_metrics(noise: Noise, seconds: float, num_nodes: int) -> tuple[dict[str, Any], ...]:
    """A line a minute; now and then a rank is slow in one of them."""
    lines: list[dict[str, Any]] = []
    for minute in range(int(seconds // 60)):
        time = datetime.fromtimestamp(BEGIN_S, UTC) + timedelta(minutes=minute)
        reported = {"time": time.isoformat(), "step": 10 * minute + 10, "samples_per_s": 10.0}
        waits = {"data_wait_pct": float(noise.gamma(2, 2))}
        rank = int(noise.integers(0, num_nodes))
        slow = [{"rank": rank, "node": f"n{rank}", "ratio": 1.7, "cost_pct": 6.0}]
        lines.append(reported | waits | ({"slow_ranks": slow} if noise.random() < 0.01 else {}))
    return tuple(lines)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_a_healthy_run_has_no_findings(seed: int) -> None:
    """Neither a warning nor an error; a hint is a person's own to take up."""
    made = healthy_run(np.random.default_rng(seed))
    found = [one for one in evaluate(made) if one.severity != "hint"]
    assert not found, found[0]


def last_samples(series: GpuSeries) -> GpuSeries:
    """Cut off what a live view has forgotten."""
    return replace(
        series,
        time_s=series.time_s[-CAPACITY:],
        values={name: column[-CAPACITY:] for name, column in series.values.items()},
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_a_healthy_run_raises_no_alert(seed: int) -> None:
    """Whatever part of it a live view knows, once the GPUs have begun to work."""
    made = healthy_run(np.random.default_rng(seed))
    if made.gpus[0].time_s[-1] - BEGIN_S < 2 * START_UP_S:
        return
    gpus = tuple(last_samples(series) for series in made.gpus)
    logs = [
        LogState(host=s.host, job=s.job, interval_s=15, quiet_s=20, is_there=True) for s in gpus
    ]
    window = Window(name=None, gpus=gpus, metrics=made.metrics[-60:], logs=tuple(logs))
    found = [one for one in evaluate(window) if one.severity != "hint"]
    assert not found, found[0]

"""Each number in the report's tables is the one that `--json` tells."""

import json
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from monitor import cli
from monitor.logs import gutil
from monitor.logs.sample import GpuSample, HostSample, Row

CO2 = 400
LABELS = {
    "utilisation %": ("sm_pct", 1, 0),
    "utilisation between samples, mean %": ("sm_avg_pct", 1, 0),
    "utilisation between samples, peak %": ("sm_max_pct", 1, 0),
    "SM active %": ("sm_active_pct", 1, 0),
    "tensor active %": ("tensor_active_pct", 1, 0),
    "DRAM active %": ("dram_active_pct", 1, 0),
    "memory GiB": ("fb_used_mib", 1024, 1),
    "power W": ("power_w", 1, 0),
    "temperature C": ("temp_c", 1, 0),
    "memory temperature C": ("mem_temp_c", 1, 0),
    "SM clock MHz": ("sm_clock_mhz", 1, 0),
    "memory clock MHz": ("mem_clock_mhz", 1, 0),
    "PCIe read MB/s": ("pcie_rx_mb_s", 1, 0),
    "PCIe write MB/s": ("pcie_tx_mb_s", 1, 0),
    "host CPU %": ("cpu_pct", 1, 0),
    "host memory GiB": ("host_mem_mib", 1024, 1),
}
PARTS = ("mean", "p5", "p50", "p95", "peak")


def sample(rng: random.Random, gpu: int, cycle: int) -> GpuSample:
    """Readings of every kind, now and then idle or without an answer."""
    if rng.random() < 0.02:
        return GpuSample(index=gpu)
    busy = rng.random() < 0.8
    return GpuSample(
        index=gpu,
        power_w=rng.randint(60, 700),
        temp_c=rng.randint(30, 90),
        mem_temp_c=rng.randint(30, 90),
        sm_pct=rng.randint(6, 100) if busy else 0,
        fb_used_mib=rng.randint(0, 81_559),
        pcie_rx_mb_s=rng.randint(0, 20_000),
        pcie_tx_mb_s=rng.randint(0, 20_000),
        mem_clock_mhz=2619,
        sm_clock_mhz=rng.randint(300, 1980),
        energy_j=10**7 + 50_000 * cycle + rng.randint(0, 40_000),
        sm_active_pct=rng.randint(0, 100),
        tensor_active_pct=rng.randint(0, 100),
        dram_active_pct=rng.randint(0, 100),
        sm_avg_pct=rng.randint(0, 100),
        sm_max_pct=rng.randint(0, 100),
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two hours of a job of two nodes with two GPUs each."""
    rng = random.Random(4)  # noqa: S311 - no secret
    layout = gutil.Layout("pumtcjrghx")
    for host in ("n1", "n2"):
        text = layout.header() + gutil.comment("host", host)
        for cycle in range(120):
            time = datetime(2026, 11, 21, 12) + timedelta(minutes=cycle)  # noqa: DTZ001
            of_host = HostSample(rng.randint(0, 100), rng.randint(0, 999_999))
            rows = [Row(time, sample(rng, gpu, cycle), of_host) for gpu in range(2)]
            text += layout.block(rows, 2 * cycle)
        (tmp_path / f"slurm-7.{host}.gutil").write_text(text)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> str:
    """What the report prints."""
    assert cli.main(["report", str(path), "--co2", str(CO2), *options]) == 0
    return capsys.readouterr().out


def squeezed(text: str) -> list[str]:
    """Lines with one blank for several."""
    return [" ".join(line.split()) for line in text.splitlines()]


def brief(minutes: float) -> str:
    """A time as the tables have it: 25s, 41m, 3h20m."""
    if minutes < 1:
        return f"{60 * minutes:.0f}s"
    hours, rest = divmod(round(minutes), 60)
    return f"{hours}h{rest:02}m" if hours else f"{rest}m"


def energy(use: dict[str, Any]) -> str:
    """An energy as the tables have it, of some kWh."""
    assert use["energy_from"] == "counter"
    assert 0.01 < use["energy_kwh"] < 10
    return f"{use['energy_kwh']:.2f} kWh"


def cell(use: dict[str, Any], key: str, *parts: str, unit: float = 1, digits: int = 0) -> str:
    """One or several numbers of a spread."""
    return "/".join(f"{use[key][part] / unit:.{digits}f}" for part in parts)


def spreads(use: dict[str, Any]) -> list[str]:
    """The lines of the table of spreads, as the JSON document has them."""
    return [
        " ".join([label, *(cell(use, key, p, unit=unit, digits=digits) for p in PARTS)])
        for label, (key, unit, digits) in LABELS.items()
        if use.get(key)
    ]


def test_the_tables_have_the_numbers_of_the_json(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the job in its title and its spreads; of each GPU in its line, the worst first."""
    made = json.loads(printed(capsys, job, "--json"))
    lines = squeezed(printed(capsys, job))
    (whole,) = made["jobs"]
    assert whole["co2_g"] == CO2 * whole["energy_kwh"]
    assert lines[0] == (
        f"job 7: {whole['num_nodes']} nodes, {whole['num_gpus']} GPUs, 1 h 59 min,"
        f" {energy(whole)}, {whole['co2_g'] / 1000:.2f} kg CO2"
    )
    assert lines[1] == whole["headline"]
    shown = [line for line in spreads(whole) if line in lines]
    assert len(shown) == 10
    found = [line for line in lines if line.startswith(("n1 ", "n2 "))]
    assert found == [
        " ".join(
            [
                f"{gpu['host']} {gpu['gpu']} {gpu['busy_pct']:.0f}",
                cell(gpu, "sm_pct", "p5", "p50", "p95"),
                cell(gpu, "sm_active_pct", "mean"),
                cell(gpu, "tensor_active_pct", "mean"),
                cell(gpu, "fb_used_mib", "mean", "peak", unit=1024, digits=1),
                cell(gpu, "power_w", "mean", "peak"),
                cell(gpu, "sm_clock_mhz", "p50"),
                cell(gpu, "temp_c", "peak"),
                brief(gpu["idle_min"]),
                energy(gpu),
            ]
        )
        for gpu in made["gpus"]
    ]
    silent = [gpu["num_silent"] / gpu["num_samples"] for gpu in made["gpus"]]
    assert silent == sorted(silent, reverse=True)


def test_full_tells_all_numbers_of_the_json(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every spread of the job, of each node and of each GPU."""
    made = json.loads(printed(capsys, job, "--json"))
    lines = iter(squeezed(printed(capsys, job, "--full")))
    uses = [made["jobs"][0]]
    for node in made["nodes"]:
        uses += [node, *(gpu for gpu in made["gpus"] if gpu["host"] == node["host"])]
    for use in uses:
        assert len(spreads(use)) == (14 if "gpu" in use else 16)
        for line in spreads(use):
            assert line in lines  # from where the last one was found

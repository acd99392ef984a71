"""What a log amounts to: per GPU and per host, means, peaks, busy share and energy.

Files are counted one at a time and then joined, so that a thousand of them need no more memory
than the largest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.frame import Log

BUSY_SM_PCT = 5
"""A GPU counts as busy in a sample in which `sm` is above this."""

MAX_GAP = 5
"""A gap of more than this many usual intervals is no running time: it adds no energy."""

GPU_COLUMNS = ("sm", "mem", "pwr", "fb", "gtemp", "rxpci", "txpci", "pclk", "smact", "tensor")
HOST_COLUMNS = ("cpu", "hmem")
_KEYS = ("host", "gpu")
_NAMES = ("time", "energy", "throt", *_KEYS, *GPU_COLUMNS, *HOST_COLUMNS)


def gpus(logs: Sequence[Log]) -> pl.DataFrame:
    """Make a row per host and GPU: what `tally` counted in each log, joined."""
    return join([tally(log) for log in logs])


def tally(log: Log) -> pl.DataFrame:
    """Count one log: a row per host and GPU with sums and peaks; no mean yet.

    `gpu` is null in the row of the node itself where it has no GPU.
    """
    rows = _complete(log.rows)
    gap_s = pl.col("time").diff().dt.total_milliseconds() / 1000
    counts = gap_s.is_between(0, MAX_GAP * gap_s.median().clip(1))
    joules = pl.col("energy").diff()
    both_w = (pl.col("pwr") + pl.col("pwr").shift()) / 2  # trapezoids
    values = GPU_COLUMNS + HOST_COLUMNS
    return rows.group_by(_KEYS, maintain_order=True).agg(
        pl.len().alias("num_samples"),
        pl.col("time").min().alias("first"),
        pl.col("time").max().alias("last"),
        gap_s.filter(counts).sum().alias("span_s"),
        # a counter that falls was set back by a reload of the driver
        joules.filter(counts & (joules >= 0)).sum().alias("counter_j"),
        joules.filter(counts & (joules >= 0)).len().alias("num_counter"),
        (both_w * gap_s).filter(counts).sum().cast(pl.Float64).alias("power_j"),
        (both_w * gap_s).filter(counts).count().alias("num_power"),
        (pl.col("sm") > BUSY_SM_PCT).sum().alias("num_busy"),
        *(pl.col(name).count().alias(f"{name}_count") for name in values),
        *(pl.col(name).cast(pl.Float64).sum().alias(f"{name}_sum") for name in values),
        *(pl.col(name).cast(pl.Float64).max().alias(f"{name}_max") for name in values),
    )


def join(tallies: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Join the tallies of several logs into one row per host and GPU, with means and shares.

    Energy is the counter's where a log has one, else power over time; `energy_from` says which.
    """
    values = GPU_COLUMNS + HOST_COLUMNS
    by_counter = pl.col("num_counter") > 0
    by_power = ~by_counter & (pl.col("num_power") > 0)
    told = pl.concat(tallies).with_columns(
        pl.when(by_counter).then("counter_j").when(by_power).then("power_j").alias("energy_j"),
        pl.when(by_counter)
        .then(pl.lit("counter"))
        .when(by_power)
        .then(pl.lit("power"))
        .alias("energy_from"),
    )
    sums = ["num_samples", "span_s", "num_busy"]
    sums += [f"{name}_{part}" for name in values for part in ("count", "sum")]
    energy_j = pl.when(pl.col("energy_j").count() > 0).then(pl.col("energy_j").sum())
    joined = told.group_by(_KEYS).agg(
        pl.col(sums).sum(),
        pl.col("first").min(),
        pl.col("last").max(),
        energy_j.alias("energy_j"),
        pl.col("energy_from").drop_nulls().unique().sort().str.join("+").alias("energy_from"),
        pl.col([f"{name}_max" for name in values]).max(),
    )
    return _shares(joined, values).sort(_KEYS, nulls_last=True)


def hosts(joined: pl.DataFrame) -> pl.DataFrame:
    """Make a row per host of the joined tallies: processor, memory, number of GPUs."""
    count, total = pl.col("cpu_count").sum(), pl.col("cpu_sum").sum()
    mem_count, mem_total = pl.col("hmem_count").sum(), pl.col("hmem_sum").sum()
    return (
        joined.group_by("host")
        .agg(
            pl.col("gpu").count().alias("num_gpus"),
            pl.col("num_samples").max(),
            pl.col("span_s").max(),
            _mean(total, count).alias("cpu_mean"),
            pl.col("cpu_max").max(),
            _mean(mem_total, mem_count).alias("hmem_mean"),
            pl.col("hmem_max").max(),
            (count + mem_count).alias("num_readings"),
        )
        .filter(pl.col("num_readings") > 0)
        .drop("num_readings")
        .sort("host")
    )


def _shares(joined: pl.DataFrame, values: Sequence[str]) -> pl.DataFrame:
    means = [
        _mean(pl.col(f"{name}_sum"), pl.col(f"{name}_count")).alias(f"{name}_mean")
        for name in values
    ]
    busy = _mean(100 * pl.col("num_busy"), pl.col("sm_count")).alias("busy_pct")
    return joined.with_columns(*means, busy)


def _mean(total: pl.Expr, count: pl.Expr) -> pl.Expr:
    """Divide; the mean of nothing is null, not NaN."""
    return pl.when(count > 0).then(total / count)


def _complete(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the columns this log lacks, all null."""
    missing = [name for name in _NAMES if name not in rows.columns]
    return rows.with_columns(pl.lit(None, pl.Float64).alias(name) for name in missing).select(
        pl.col(name) for name in _NAMES
    )

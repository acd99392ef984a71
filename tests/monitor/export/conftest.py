"""Logs to export."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from monitor.logs import gutil
from monitor.logs.sample import GpuSample, HostSample, Row


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    """Write a log of some columns, whose last sample is now."""

    def write(name: str, letters: str = "pumtj", *, offset: str = "+00:00", more: str = "") -> Path:
        layout = gutil.Layout(letters)
        text = layout.header() + gutil.comment("utc_offset", offset)
        text += gutil.comment("gpu 1", "GPU-bb NVIDIA H200")
        now = datetime.now(UTC)
        for cycle in range(3):
            for index in (0, 1):
                power_w = None if index else 100 + cycle
                gpu = GpuSample(index=index, power_w=power_w, energy_j=10**11 + cycle)
                moment = now - timedelta(seconds=2 - cycle)
                text += layout.line(Row(moment, gpu, HostSample(40, 2048)))
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + more)
        return path

    return write

"""Which ranks are slower than the others, by the time that is a rank's own.

A step ends on all ranks at once: a rank that is early waits in the reduction of the gradients. What
differs between ranks lies before that: waiting for data, and those forwards that wait for no rank.
"""

from __future__ import annotations

import time
from statistics import median_low
from typing import TYPE_CHECKING, Any, TypedDict

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

_SLOW_RATIO = 1.5
_WORTH_PCT = 5.0
"""Of a step: what a slow rank must cost the others. A ratio of microseconds is no finding."""
_NUM_SUSTAINED = 2
"""Intervals: a slow one alone may have any cause."""
_SAMPLED_FORWARD = 2
"""Which forward of an interval is timed on a GPU, if there are as many: the first one follows a
wait for the device."""


class SlowRank(TypedDict):
    """A rank that takes over 1.5 times as long as the median rank, and so holds up each step."""

    rank: int
    node: str
    ratio: float
    cost_pct: float
    """Of a step's time: what the rank takes longer than the median rank."""


class ForwardTime:
    """Times the forwards of modules that wait for no other rank (`unsharded_modules`).

    On a CPU every forward but the first is timed; on a GPU one of the first module's an interval,
    which stands for all, by a pair of events: a launch takes no time, and more would cost some.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        device: torch.device,
        num_forwards: int,
        even_ratio: float = 1.0,
    ) -> None:
        """Time forwards of `modules`; an interval has at least `num_forwards` of each.

        `even_ratio` is how many a rank would have if all had equally many, by how many this one
        has: a stage of more layers is no slow rank.
        """
        self._num_modules = even_ratio * len(modules)
        self._sampled = min(_SAMPLED_FORWARD, num_forwards)
        self._seconds = 0.0
        self._num_timed = 0
        self._num_seen = 0
        self._began_s = 0.0
        self._is_warm: set[nn.Module] = set()
        """Those that have gone forward once: torch prepares itself in that, and takes its time."""
        self._events: Any = None
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call] # torch's
            modules[0].register_forward_pre_hook(self._record_begin)
            modules[0].register_forward_hook(self._record_end)
            return
        for module in modules:
            module.register_forward_pre_hook(self._begin)
            module.register_forward_hook(self._end)

    def take_s(self) -> float:
        """Return what a forward of all takes, by this interval's mean, and begin another.

        Awaits the device.
        """
        if self._events is not None and self._num_timed:
            self._events[1].synchronize()
            self._seconds = self._events[0].elapsed_time(self._events[1]) / 1e3
        mean_s = self._seconds / self._num_timed if self._num_timed else 0.0
        self._seconds, self._num_timed, self._num_seen = 0.0, 0, 0
        return mean_s * self._num_modules

    def _begin(self, _module: nn.Module, _inputs: object) -> None:
        self._began_s = time.perf_counter()

    def _end(self, module: nn.Module, _inputs: object, _outputs: object) -> None:
        if module.training and module in self._is_warm:
            self._seconds += time.perf_counter() - self._began_s
            self._num_timed += 1
        self._is_warm.add(module)

    def _record_begin(self, module: nn.Module, _inputs: object) -> None:
        if module.training:
            self._num_seen += 1
            if self._num_seen == self._sampled:
                self._events[0].record()

    def _record_end(self, module: nn.Module, _inputs: object, _outputs: object) -> None:
        if module.training and self._num_seen == self._sampled and not self._num_timed:
            self._events[1].record()
            self._num_timed = 1


class Stragglers:
    """Compares the ranks, in an interval and over the run."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = nodes
        self._total_s = [0.0] * len(nodes)
        self._elapsed_s = 0.0
        self._num_intervals = 0
        self._num_slow = [0] * len(nodes)

    def compare(self, own_s: Sequence[float], step_s: float, num_steps: int) -> list[SlowRank]:
        """Return the ranks that were slow in an interval of `num_steps`.

        `own_s` is each rank's own part of a step, `step_s` what a whole one took, in seconds.
        """
        pairs = zip(self._total_s, own_s, strict=True)
        self._total_s = [total + num_steps * own for total, own in pairs]
        self._elapsed_s += num_steps * step_s
        self._num_intervals += 1
        slow = self._slow(own_s, step_s)
        for one in slow:
            self._num_slow[one["rank"]] += 1
        return slow

    @staticmethod
    def spread_pct(own_s: Sequence[float]) -> float | None:
        """Return slowest minus quickest, in percent of the median; None if not known."""
        typical_s = median_low(own_s)
        return 100 * (max(own_s) - min(own_s)) / typical_s if typical_s > 0 else None

    def over_the_run(self) -> list[SlowRank]:
        """Return the ranks slow on the whole, and in half of the intervals, two at least."""
        return [
            one
            for one in self._slow(self._total_s, self._elapsed_s)
            if self._num_slow[one["rank"]] >= max(_NUM_SUSTAINED, self._num_intervals / 2)
        ]

    def _slow(self, own_s: Sequence[float], elapsed_s: float) -> list[SlowRank]:
        typical_s = median_low(own_s)  # of two ranks, the quicker: else none is over 1.5 times
        if typical_s <= 0:
            return []
        costs_pct = [100 * (own - typical_s) / elapsed_s for own in own_s]
        return [
            SlowRank(
                rank=rank,
                node=self._nodes[rank],
                ratio=round(own / typical_s, 2),
                cost_pct=round(cost_pct, 1),
            )
            for rank, (own, cost_pct) in enumerate(zip(own_s, costs_pct, strict=True))
            if own / typical_s > _SLOW_RATIO and cost_pct >= _WORTH_PCT
        ]

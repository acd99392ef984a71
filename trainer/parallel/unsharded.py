"""Which modules of a rank's own wait for no other rank in their forward, and so show its speed.

By hooks on them, which run after those of DistributedDataParallel's and fully_shard's that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel

from trainer.parallel.plan import modules_named

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import Config
    from trainer.parallel.layout import Layout
    from trainer.parallel.pipeline_split import Share
    from trainer.parallel.plan import ParallelPlan


def unsharded_modules(
    share: Share, train_model: nn.Module, plan: ParallelPlan, layout: Layout, config: Config
) -> list[nn.Module]:
    """Return modules that take as long on every rank, if all are equally fast; none: not known.

    Ranks of tp and cp communicate within a layer, so that only the matrices of which each rank
    computes its own columns are left; else those of shards and stages communicate between layers.
    """
    if layout.world_size == 1:
        return []
    if isinstance(train_model, DistributedDataParallel):
        return [train_model.module]  # its own forward sends rank 0's buffers to all
    syncs_within = layout.tp * layout.cp > 1
    if config.compile and syncs_within:
        return []  # hooks would be compiled with the layer
    columns = [name for name, style in plan.styles.items() if style == "columns"]
    patterns = columns if syncs_within else [plan.blocks]
    found = [m for stage in share.stages for p in patterns for m in modules_named(stage, p)]
    is_whole = layout.pp == 1 and not syncs_within and not config.compile
    return found or ([share.model] if is_whole else [])

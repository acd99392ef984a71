"""Every option of `python -m trainer`, checked where it is built.

Each field is an option of the same name (`global_batch_size` is `--global-batch-size`) and a key
of the TOML file; the text under it is its help.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path  # noqa: TC003 -- tyro reads the annotations
from typing import Literal, Optional

from trainer.errors import UserError

Schedule = Literal["constant", "cosine", "linear", "wsd"]
OptimizerName = Literal["adamw", "adam", "sgd"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
CheckpointMode = Literal["async", "sync"]
OnNan = Literal["stop", "skip", "rollback"]
Strategy = Literal["ddp", "fsdp", "hsdp", "tp", "pp", "3d"]
Recompute = Literal["none", "full", "selective"]
PipelineSchedule = Literal["gpipe", "1f1b", "interleaved"]
ContextMessages = Literal["p2p", "all_gather"]

_AT_LEAST: dict[str, int] = {
    "epochs": 1,
    "max_steps": 1,
    "global_batch_size": 1,
    "micro_batch_size": 1,
    "warmup_steps": 0,
    "weight_decay": 0,
    "seed": 0,
    "num_workers": 0,
    "val_every": 0,
    "early_stop_patience": 0,
    "log_every": 1,
    "check_replicas": 0,
    "checkpoint_every": 0,
    "checkpoint_minutes": 0,
    "keep_checkpoints": 0,
    "snapshot_every": 0,
    "image_size": 1,
    "num_samples": 1,
    "num_classes": 1,
    "sequence_length": 1,
    "mock_tokens": 0,
    "pp_stages_per_rank": 1,
    "flight_recorder": 0,
}
_ZERO_MEANS = {"keep_checkpoints": "all", "val_every": "after each epoch"}
_AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp")
_AT_MOST: dict[str, int] = {
    "seed": 2**63 - 1,
    "image_size": 100_000,
    "num_classes": 2**31 - 1,
    "sequence_length": 2**24,
    "flight_recorder": 1_000_000,
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Train a model on one process or many, on CPUs or GPUs, and leave a record."""

    config: Optional[Path] = None
    """A TOML file with these same options; what stands on the command line wins over it."""

    check: bool = False
    """Only check the options and the input, write nothing, and end."""

    workload: str = "mnist"
    """What to train: mnist, imagefolder, fake-images, lm, or a class of your own as
    package.module:Class."""

    model: str = ""
    """Its model, by name. mnist: cnn (default) or mlp; imagefolder and fake-images: any
    classification model of torchvision (default resnet18); lm: toy (default, 1 M parameters), mini,
    stories15m, smollm2-135m, tinyllama-1.1b, llama2-7b, llama3-8b, or a folder with a config.json
    of Hugging Face's that describes a Llama."""

    data_dir: Optional[Path] = None
    """Where the data lies. mnist without it trains on 5,000 digits that ship with the package;
    with it on all of MNIST, downloaded into it if absent. lm without it learns the source of
    Python's standard library, as bytes; with it train.tokens, and val.tokens if there is one, as
    python -m trainer.tokenize writes them."""

    epochs: Optional[int] = None
    """Passes over the training data; default: as many as suit the workload."""

    max_steps: Optional[int] = None
    """End after this many optimizer steps; with --epochs, at whichever comes first."""

    global_batch_size: int = 64
    """Samples of one optimizer step, over all ranks."""

    micro_batch_size: Optional[int] = None
    """Samples of one forward and backward on one rank; smaller than a rank's share of the global
    batch means gradient accumulation. Default: the whole share. Of language models the last one of
    a step may be smaller."""

    lr: float = 1e-3
    """Peak learning rate."""

    min_lr: float = 0.0
    """Learning rate that the schedule goes down to, at the end of the last step."""

    schedule: Schedule = "cosine"
    """The learning rate after warm-up: constant; a cosine or a straight line down to --min-lr at
    the last step; or wsd: constant, and a straight line down to it at the end."""

    decay_fraction: float = 0.2
    """wsd: the part of all steps in which the learning rate goes down."""

    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from zero."""

    optimizer: OptimizerName = "adamw"
    """adamw, adam, or sgd with momentum, in their fused form where the device has one."""

    weight_decay: float = 0.01
    """Decoupled for adamw, an L2 term for the others."""

    beta1: float = 0.9
    """adamw and adam: decay of the mean of gradients; sgd: momentum."""

    beta2: float = 0.999
    """adamw and adam: decay of the mean of their squares."""

    eps: float = 1e-8
    """adamw and adam: what is added to the root of that mean."""

    dropout: float = 0.0
    """Dropout of the mnist models. Off by default: its masks are drawn on each rank, so that with
    it the losses depend on the number of ranks."""

    seed: Optional[int] = None
    """One seed for weights, order of samples and everything else; default DDP_SEED, else 1."""

    precision: Precision = "fp32"
    """fp32; tf32: the same with products and convolutions of 10 bits of mantissa, on GPUs from
    Ampere on; or autocast to bf16 or fp16 (fp16 with a gradient scaler); fp8: bf16 with the matrix
    products of the workload's blocks in 8 bits, by torchao, on GPUs from Ada or Hopper on."""

    clip_grad_norm: Optional[float] = None
    """Clip the gradient to this global norm."""

    strategy: Strategy = "ddp"
    """How ranks share the work, as a name for sizes of the axes below. ddp: each has the whole
    model; fsdp: each has a part of it; hsdp: the ranks of a node share one; tp: the ranks of a node
    share each matrix; pp: layers in 2 stages; 3d: tp 2, pp 2, and fsdp over the rest."""

    dp_replicate: Optional[int] = None
    """Copies of the model, each trained on its own samples; -1, here and below: as many as the
    other axes leave ranks."""

    dp_shard: Optional[int] = None
    """Ranks that share out one copy (fully_shard), each training on its own samples."""

    cp: Optional[int] = None
    """Ranks that share each sequence, by positions, and a copy's shards; for language models."""

    cp_comm_type: ContextMessages = "p2p"
    """With cp: how attention gets at keys and values of other ranks. p2p: they go around in a ring,
    while those that are there are used; all_gather: each rank gathers all of a layer's."""

    tp: Optional[int] = None
    """Ranks that share each matrix of a layer and train on the same samples."""

    pp: Optional[int] = None
    """Ranks that have some of the layers each."""

    pp_schedule: PipelineSchedule = "1f1b"
    """With pp: the order of microbatches. gpipe: all forwards, then all backwards; 1f1b: a backward
    as soon as there is one, so that fewer microbatches are kept; interleaved: the same with several
    stages on each rank, so that ranks wait less, and send more. One microbatch, and gpipe, is one
    rank after the other."""

    pp_stages_per_rank: Optional[int] = None
    """With pp: stages of each rank; default 2 for interleaved, which wants several, else 1."""

    sequence_parallel: bool = False
    """With tp: share what lies between the matrices, too, by positions."""

    reshard_after_forward: bool = True
    """With fsdp: give a layer's gathered weights back after its forward, and gather them again for
    its backward; without, memory is paid to save that."""

    cpu_offload: bool = False
    """With fsdp: keep parameters, gradients and the optimizer in host memory."""

    activation_checkpointing: Recompute = "none"
    """What the backward computes again instead of keeping it. full: all of a layer but its input;
    selective: all but what matrices and attention gave."""

    on_nan: OnNan = "stop"
    """A loss or gradient that is not finite never reaches the weights. stop: end the run and name
    the samples; skip: leave that step out; rollback: go back to the last checkpoint, and on without
    that batch."""

    num_workers: int = 2
    """Loader processes of each rank, for data that does not fit in memory; 0 loads in the rank."""

    val_every: int = 0
    """Validate every so many steps; 0: after each epoch. Always at the end."""

    early_stop_patience: int = 0
    """End after so many validations without a better accuracy, or a lower loss where there is no
    accuracy; 0: never."""

    log_every: int = 50
    """Steps between lines of the log and of metrics.jsonl."""

    deterministic: bool = False
    """The same bits from a GPU each time, at some cost of speed; an operation that has no
    deterministic form is an error. A CPU gives them anyway."""

    compile: bool = False
    """Compile the model with torch.compile: layer by layer where the workload names its layers."""

    profile_steps: str = ""
    """Write a profiler trace of these steps, as FIRST:LAST, to debug/ in the run directory."""

    profile_ranks: str = "0"
    """Whose steps are traced: ranks with commas between, such as 0,3, or all."""

    memory_snapshot: bool = False
    """With --profile-steps: also write what those steps allocated on the GPU, and where in the
    code, to debug/, if they run out of memory, too."""

    flight_recorder: Optional[int] = None
    """Collectives that each of several ranks remembers, with the lines of code that began them.
    Written to debug/ after --profile-steps, if the rank fails, and with NCCL if one takes too long;
    by default as the environment says, which in a job is 2,000, and for what takes too long."""

    tensorboard: bool = False
    """Also write TensorBoard events to tensorboard/ in the run directory."""

    resume: str = "auto"
    """auto: carry on from the run directory's newest complete checkpoint, if any; none: start
    afresh; or the path of a checkpoint."""

    force: bool = False
    """Carry on from a checkpoint even if options that change the numbers differ from those that
    the run began with."""

    out: Optional[Path] = None
    """The run directory; default DDP_RUN_DIR, else out/local-<time>-<pid>."""

    checkpoint_every: int = 0
    """Also write a checkpoint every so many steps; 0: after each epoch only. Always at the end."""

    checkpoint_minutes: float = 30
    """Also write a checkpoint when the last one is so many minutes old; 0: never for that."""

    checkpoint_mode: CheckpointMode = "async"
    """async: training goes on as soon as a copy is made in host memory; sync: when all is on the
    disk."""

    keep_checkpoints: int = 3
    """How many of the newest checkpoints to keep, 0: all; the best one is kept besides."""

    snapshot_every: int = 0
    """Every so many steps, copy the state into the memory of the nodes, two copies on two nodes
    where there are several, for a restart within the same job; 0: never. It is no checkpoint."""

    check_replicas: int = 0
    """Compare the weights of data-parallel copies, to the bit, every so many steps; 0: before each
    checkpoint only. A copy that differs was hit by a fault of its hardware, and ends the run."""

    image_size: int = 224
    """imagefolder and fake-images: side of the square images, in pixels."""

    num_samples: int = 1024
    """fake-images: training samples."""

    num_classes: int = 1000
    """fake-images: classes."""

    sequence_length: Optional[int] = None
    """lm: tokens of a sample; default: what the model was designed for."""

    mock_tokens: int = 0
    """lm: train on so many random tokens instead, to measure speed."""

    init_from: Optional[Path] = None
    """Begin at step 0 with these weights: a checkpoint of ours, a run's last one (RUN) or best one
    (RUN/best), a .safetensors or .pt file, or, for lm, a folder in Hugging Face's layout of a
    Llama. A run that has checkpoints of its own goes on from those."""

    def __post_init__(self) -> None:
        """Raise UserError at the first value that breaks its rule."""
        self._check_bounds()
        for name in ("lr", "clip_grad_norm", "eps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise _error(name, "a finite number above 0", value)
        if not 0 <= self.decay_fraction <= 1:
            raise _error("decay_fraction", "from 0 to 1", self.decay_fraction)
        for name in ("dropout", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise _error(name, "from 0 up to, not including, 1", getattr(self, name))
        if not 0 <= self.min_lr <= self.lr:
            raise _error("min_lr", f"from 0 to --lr, {self.lr}", self.min_lr)
        for name in _AXES:
            size = getattr(self, name)
            if size is not None and size != -1 and size < 1:
                raise _error(name, "at least 1, or -1 for the rest", size)
        if self.precision == "fp8" and find_spec("torchao") is None:
            raise UserError(
                "--precision fp8",
                rule="have torchao, whose layers scale what goes into a product",
                found="it is not installed",
                remedy="pip install torchao, or take bf16",
            )
        self._check_profiling()

    def _check_bounds(self) -> None:
        for name, low in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and not low <= value < float("inf"):  # also catches nan
                rule = "a finite number" if value == float("inf") else f"at least {low}"
                if name in _ZERO_MEANS:
                    rule += f" (0: {_ZERO_MEANS[name]})"
                raise _error(name, rule, value)
        for name, high in _AT_MOST.items():
            value = getattr(self, name)
            if value is not None and value > high:
                raise _error(name, f"at most {high}", value)

    def _check_profiling(self) -> None:
        if self.profile_range() is None and (self.memory_snapshot or self.profile_ranks != "0"):
            name = "memory_snapshot" if self.memory_snapshot else "profile_ranks"
            raise _error(name, "given with --profile-steps", getattr(self, name))

    def profile_range(self) -> range | None:
        """The steps to trace, counted from 1, or None."""
        if not self.profile_steps:
            return None
        match = re.fullmatch(r"(\d+):(\d+)", self.profile_steps)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise _error("profile_steps", "FIRST:LAST with 1 <= FIRST <= LAST", self.profile_steps)
        return range(int(match[1]), int(match[2]) + 1)


def option_name(field: str) -> str:
    """The command line's name for a field."""
    return "--" + field.replace("_", "-")


def _error(field: str, rule: str, found: object) -> UserError:
    return UserError(option_name(field), rule=f"be {rule}", found=repr(found), remedy="change it")

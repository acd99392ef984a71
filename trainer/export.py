"""python -m trainer.export CHECKPOINT OUT: the weights in files that other programs read.

OUT.safetensors is written in the form of that name, OUT.pt (or .pth) so that
`torch.load(OUT, weights_only=True)` reads it: a dictionary of model (the weights), config (the
options that made it: workload, model and others) and step; the first has the same in its metadata.
Without one of these endings, both are. With
--format hf, OUT is a new folder that Hugging Face's transformers loads, of a Llama. One process is
enough, whatever number of ranks wrote the checkpoint; nothing but torch and safetensors is used.

CHECKPOINT may be another program's, too: a folder of torch.distributed.checkpoint (torchtitan's,
FSDP's, Megatron's torch_dist), or a state dict in a .pt, .pth, .bin or .ckpt file. All tensors but
the optimizer's are written; nothing of that program is needed, and no code in its files is run. Of
a Megatron core GPT, --format hf makes a Llama or a GPT-2.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rundir import codes
from rundir.text import counted
from trainer import command
from trainer.checkpoint import foreign, manifest
from trainer.checkpoint.lookup import find
from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

_SAFETENSORS, _TORCH = ".safetensors", ".pt"
_ENDINGS = (_SAFETENSORS, _TORCH, ".pth")


def main(argv: Sequence[str]) -> int:
    """Export. Raises UserError for wrong input; nothing is written then."""
    parser = command.Parser(prog="python -m trainer.export", description=__doc__)
    parser.add_argument(
        "checkpoint", type=command.path, help=f"{command.CHECKPOINT_HELP}; or another program's"
    )
    parser.add_argument(
        "out", type=command.path, help="the file to write, or its name without an ending"
    )
    parser.add_argument(
        "--format",
        choices=("weights", "hf"),
        default="weights",
        help="weights (default), or hf: a folder of Hugging Face's layout, of a Llama or GPT",
    )
    parser.add_argument(
        "--tokenizer",
        type=command.path,
        help="hf: its tokenizer.json (default: that of the folder --model named, or bytes)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    options = parser.parse_args(argv)
    if options.out.name in ("", ".."):
        raise UserError(
            str(options.out), rule="be a new name", found="a folder", remedy="give a name in it"
        )
    foreign.check_is_whole(options.checkpoint)
    is_foreign = foreign.is_foreign(options.checkpoint)
    checkpoint = options.checkpoint if is_foreign else find(options.checkpoint)
    if options.format == "hf":
        command.check_target(options.out, str(options.out), may_overwrite=None)
        from trainer.checkpoint.hugging_face import export_hf  # noqa: PLC0415 -- imports torch

        export_hf(checkpoint, options.out, options.tokenizer)
        return codes.FINISHED
    if options.tokenizer is not None:
        raise UserError(
            "--tokenizer", rule="be given with --format hf", found="without", remedy="leave it out"
        )
    targets = [options.out]
    if options.out.suffix not in _ENDINGS:
        targets = [options.out.with_name(options.out.name + e) for e in (_SAFETENSORS, _TORCH)]
    for target in targets:
        command.check_target(target, str(target), may_overwrite=options.force)
    if is_foreign:
        (weights, note), about = foreign.read_weights(checkpoint), {}
    else:
        from trainer.checkpoint import loading  # noqa: PLC0415 -- imports torch: wrong input is reported before

        stored = loading.open_verified(checkpoint)
        weights, note = loading.read_weights(stored), ""
        about = {"config": dict(stored.state.identity), "step": stored.state.position.step}
    for target in targets:
        _write(target, weights, about)
        size_mib = target.stat().st_size / 2**20
        print(f"{target}: {counted(len(weights), 'tensor')}, {size_mib:.1f} MiB, of {checkpoint}")
    if note:
        print(f"{checkpoint}: {note}")
    return codes.FINISHED


def _write(target: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write beside, then rename: a reader of `target` never sees half of it."""
    import torch  # noqa: PLC0415 -- see above
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415

    beside = target.with_name(f".{target.name}.partial")
    try:
        if target.suffix == _SAFETENSORS:
            texts = (
                {"step": str(about["step"]), "identity": json.dumps(about["config"])}
                if about
                else {}
            )
            save_file(dict(weights), beside, {"format": "pt", **texts})
        else:
            whole = {"model": dict(weights), **about}
            with beside.open("wb") as file:  # by name, torch loses what the system says
                torch.save(whole, file)
        command.follow_umask(beside)
        manifest.flush(beside)
        beside.replace(target)
    # What torch raises in the end is a RuntimeError about its own positions.
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = error if isinstance(error, OSError) else error.__context__ or error
        raise UserError(
            str(target), rule="be a file that can be written", found=reason, remedy="name another"
        ) from error
    finally:
        beside.unlink(missing_ok=True)  # also of one that was interrupted


if __name__ == "__main__":
    sys.exit(command.run(main, sys.argv[1:]))

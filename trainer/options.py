"""Command line and TOML file -> Config. The command line wins."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import tomllib
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from rundir import output
from trainer import __version__
from trainer.config import Config, option_name
from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIELDS = {field.name for field in fields(Config)}
_KINDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "Path": "a path"}
_TYPES = {"bool": bool, "int": int, "float": int | float}
_MAX_FILE_BYTES = 1 << 20
_NUM_NEAREST = 3
_NAMES_ELSEWHERE = {
    "--global-batch-size (over all ranks) or --micro-batch-size (one rank at a time)": "batch_size",
    "--global-batch-size": "train_batch_size",
    "--micro-batch-size": "per_device_train_batch_size gradient_accumulation_steps",
    "--lr": "learning_rate",
    "--min-lr": "lr_min",
    "--schedule": "lr_scheduler_type lr_scheduler lr_decay_style",
    "--warmup-steps": "warmup warmup_iters lr_warmup_iters",
    "--decay-fraction (wsd: a part of all steps) or --max-steps (cosine and linear go down until "
    "the last one)": "decay_steps",
    "--epochs": "num_train_epochs num_epochs max_epochs",
    "--max-steps": "train_iters max_iters num_steps total_steps",
    "--max-steps, at which every schedule ends": "lr_decay_iters",
    "--beta1": "adam_beta1 momentum",
    "--beta2": "adam_beta2",
    "--eps": "adam_epsilon",
    "--weight-decay": "wd",
    "--clip-grad-norm": "clip_grad grad_clip max_grad_norm gradient_clip_val",
    "--early-stop-patience": "patience",
    "--precision": "mixed_precision dtype",
    "--precision fp16": "fp16",
    "--precision bf16": "bf16",
    "--precision bf16 or --precision fp16": "amp",
    "--precision tf32": "tf32",
    "--compile": "torch_compile",
    "--activation-checkpointing": "recompute_granularity",
    "--activation-checkpointing full": "gradient_checkpointing",
    "--tp": "tensor_model_parallel_size tensor_parallel_size",
    "--pp": "pipeline_model_parallel_size pipeline_parallel_size",
    "--cp": "context_parallel_size",
    "--sequence-length": "seq_length seq_len block_size",
    "--image-size": "img_size",
    "--data-dir": "data_path dataset dataset_path train_dir",
    "--data-dir with the held-out samples apart: in val/ of an image folder, in val.tokens of "
    "texts": "val_fraction val_split",
    "--num-workers": "dataloader_num_workers workers",
    "--out": "checkpoint_dir output_dir save_dir save checkpoint_path ckpt_dir",
    "--out, or the variable DDP_RUN_NAME": "name run_name experiment_name",
    "--resume": "load resume_from_checkpoint",
    "--init-from": "pretrained finetune_from",
    "--checkpoint-every": "save_every save_steps save_interval checkpoint_interval",
    "--keep-checkpoints": "save_total_limit",
    "--keep-checkpoints (0: all)": "save_top_k max_to_keep",
    "--keep-checkpoints 0": "keep_all keep_all_checkpoints",
    "--log-every": "log_interval logging_steps",
    "--val-every": "eval_every eval_interval eval_steps",
}
"""What options of ours are called in nanoGPT, transformers, Lightning and Megatron."""
_ELSEWHERE = {name: ours for ours, names in _NAMES_ELSEWHERE.items() for name in names.split()}
_VALUES_ELSEWHERE = {
    "precision": {
        "bf16-true": "bf16 (which keeps the weights in fp32)",
        "bf16-mixed": "bf16",
        "bfloat16": "bf16",
        "16-true": "fp16 (which keeps the weights in fp32)",
        "16-mixed": "fp16",
        "16": "fp16",
        "half": "fp16",
        "float16": "fp16",
        "32-true": "fp32",
        "32": "fp32",
        "full": "fp32",
        "float32": "fp32",
        "no": "fp32",
        "transformer-engine": "fp8",
    },
    "schedule": {
        "constant_with_warmup": "constant, with --warmup-steps",
        "warmup_stable_decay": "wsd",
        "warmup-stable-decay": "wsd",
        "none": "constant",
    },
    "optimizer": {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "momentum": "sgd"},
    "strategy": {
        "full_shard": "fsdp",
        "fsdp2": "fsdp",
        "zero3": "fsdp",
        "zero2": "fsdp, with --no-reshard-after-forward",
        "shard_grad_op": "fsdp, with --no-reshard-after-forward",
        "hybrid_shard": "hsdp",
        "no_shard": "ddp",
    },
    "activation_checkpointing": {"true": "full", "off": "none"},
    "keep_checkpoints": {"all": "0"},
    "checkpoint_every": {"epoch": "0"},
    "val_every": {"epoch": "0"},
}
"""The same of values, in small letters."""


def parse(argv: Sequence[str]) -> Config:
    """Build the Config that `argv`, and the TOML file it may name, ask for.

    Raises UserError for whatever is wrong with either; `--help` and `--version` print and raise
    SystemExit(0).
    """
    if "--version" in argv:
        print(f"ddp {__version__}")
        raise SystemExit(0)
    argv = _at_home(argv)
    named = _named_options(argv)
    file = _value_of("config", argv)
    path = Path(file) if file else None
    from_file = _read_toml(path) if path else {}
    rest = {key: value for key, value in from_file.items() if key not in named}
    arguments = [*_at_home(_as_arguments(rest, path)), *argv]
    for field in sorted({*rest, *named}):
        is_path = _kind(field) == "Path" or field == "resume"
        if is_path and not _value_of(field, arguments):  # Path("") would be Path(".")
            raise UserError(
                option_name(field), rule="be a path", found="an empty one", remedy="name one"
            )
    return _parse_arguments(arguments)


def _at_home(words: Sequence[str]) -> list[str]:
    """Expand the `~` that a shell leaves in `--out=~/run`, and that a file has."""

    def expanded(found: re.Match[str]) -> str:
        return found[1] + os.path.expanduser(found[2])  # noqa: PTH111 -- a Path's own may raise

    return [re.sub(r"^(|--[\w-]+=)(~[^/]*)", expanded, word) for word in words]


def _named_options(argv: Sequence[str]) -> set[str]:
    """Fields named on the command line; raises UserError for a name that is no option."""
    named = set()
    for word in argv:
        if not re.match(r"--[A-Za-z]", word) or word == "--help":
            continue
        field = word[2:].partition("=")[0].replace("-", "_")
        if field not in _FIELDS and _kind(field.removeprefix("no_")) == "bool":
            field = field.removeprefix("no_")
        if field not in _FIELDS:
            raise _unknown(word.partition("=")[0], field)
        named.add(field)
    return named


def _read_toml(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)  # whatever it is, it may not be endless
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
        table = tomllib.loads(text) if len(raw) <= _MAX_FILE_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or error) from error
    if table is None:
        raise _unreadable(path, "more than 1 MiB")
    options: dict[str, object] = {}
    for name, value in table.items():
        key = name.replace("-", "_")
        if key not in _FIELDS:
            raise _unknown(f"key {name!r} in {path}", key)
        if key == "config":
            raise _wrong_key(path, name, "left out", "a file that names another one")
        if key in options:
            raise _wrong_key(path, name, "named once", "it with dashes and with underscores")
        options[key] = value
    return options


def _unreadable(path: Path, found: object) -> UserError:
    return UserError(
        f"--config {path}", rule="be a readable TOML file", found=found, remedy="correct the file"
    )


def from_table(table: Mapping[str, object], path: Path) -> Config:
    """Build the Config of options that the file `path` has. Raises UserError."""
    return _parse_arguments(_as_arguments(table, path))


def _as_arguments(options: Mapping[str, object], path: Path | None) -> list[str]:
    """TOML values as command-line arguments, so that one parser checks both."""
    arguments = []
    for key, value in options.items():
        name, kind = option_name(key), _kind(key)
        expected = _TYPES.get(kind, str | int | float)
        if not isinstance(value, expected) or isinstance(value, bool) != (kind == "bool"):
            raise _wrong_key(path, key, _KINDS.get(kind, "a string"), repr(value))
        if isinstance(value, bool):
            arguments.append(name if value else "--no-" + name[2:])
        else:
            arguments.append(f"{name}={value}")
    return arguments


def _wrong_key(path: Path | None, key: str, rule: str, found: str) -> UserError:
    return UserError(
        f"key {key!r} in {path}", rule=f"be {rule}", found=found, remedy="correct the file"
    )


def _kind(field: str) -> str:
    """The type in a field's annotation, such as int of Optional[int]; empty for no field."""
    annotation = str(Config.__dataclass_fields__[field].type) if field in _FIELDS else ""
    return annotation.removeprefix("Optional[").removesuffix("]")


def _parse_arguments(arguments: Sequence[str]) -> Config:
    import tyro  # noqa: PLC0415 -- an import of 50 ms, worth keeping out of other entry points

    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            config, unknown = tyro.cli(
                Config,
                args=list(arguments),
                prog="python -m trainer",
                description=Config.__doc__,
                return_unknown_args=True,
            )
    except BrokenPipeError:
        output.drop()
        raise SystemExit(0) from None  # the reader of --help has seen enough
    except SystemExit as ended:
        if not ended.code:
            raise
        raise _complaint(_one_line(stderr.getvalue()), arguments) from None
    if unknown:
        raise UserError(
            "command line",
            rule="hold only options, with a value after each that needs one",
            found=f"{unknown[0]!r}, which belongs to none",
            remedy="see python -m trainer --help",
        )
    return config


def _complaint(message: str, arguments: Sequence[str]) -> UserError:
    """Translate tyro's message to a programmer into one for a user; an unknown one stays."""
    if match := re.search(r"Error parsing (--[\w-]+)", message):
        name = match[1]
        field = name[2:].replace("-", "_")
        found = _value_of(field, arguments)
        remedy = _nearest_value(field, found, []) or "change it"
        return UserError(name, rule=f"be {_KINDS[_kind(field)]}", found=repr(found), remedy=remedy)
    if match := re.search(
        r"choice '(.*)' for argument '(--[\w-]+)'. Expected one of \((.*)\)", message
    ):
        found, name, valid = match.groups()
        near = _nearest_value(name[2:].replace("-", "_"), found, re.findall(r"'(.*?)'", valid))
        return UserError(
            name, rule=f"be one of {valid}", found=repr(found), remedy=near or "take one of them"
        )
    if match := re.search(r"Missing value for argument '(--[\w-]+)'", message):
        return UserError(match[1], rule="have a value after it", found="none", remedy="give one")
    return UserError(
        "command line",
        rule="hold options with values of their type",
        found=message,
        remedy="see python -m trainer --help",
    )


def _value_of(field: str, arguments: Sequence[str]) -> str:
    """The last value given to an option, as `--name value` or `--name=value`."""
    value = ""
    for word, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, is_joined, joined = word.partition("=")
        is_option = name.startswith("--")  # a value may end like one: --out myconfig
        if is_option and name[2:].replace("-", "_") == field:
            value = joined if is_joined else following
    return value


def _one_line(boxed: str) -> str:
    """tyro's message without its frame, its rulers and its hint about --help."""
    lines = [line.strip(" │╭╮╰╯─|+") for line in boxed.splitlines()]
    message = [
        line for line in lines if line and "--help" not in line and "Parsing error" not in line
    ]
    return re.sub(r"\x1b\[[0-9;]*m", "", " ".join(message)) or "an unreadable option"


def _nearest_value(field: str, found: str, valid: Sequence[str]) -> str | None:
    """Return the question whether another value was meant; None if none is near."""
    theirs, text = _VALUES_ELSEWHERE.get(field, {}), found.strip().lower()
    near = theirs.get(text) or next(iter(difflib.get_close_matches(text, valid, n=1)), None)
    return f"did you mean {near}?" if near else None


def _unknown(what: str, field: str) -> UserError:
    begun = [name for name in sorted(_FIELDS) if field and name.startswith(field)]
    near = difflib.get_close_matches(field, [*_FIELDS, *_ELSEWHERE], n=_NUM_NEAREST)
    names = [field] if field in _ELSEWHERE else [*begun, *near]
    ours = [*dict.fromkeys(_ELSEWHERE.get(n) or option_name(n) for n in names)][:_NUM_NEAREST]
    remedy = f"did you mean {', '.join(ours)}?" if ours else "see python -m trainer --help"
    return UserError(what, rule="be an option", found="none of this name", remedy=remedy)

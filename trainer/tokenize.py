"""python -m trainer.tokenize INPUT... --out FILE: texts into a file of tokens, for --workload lm.

An input is a text file, a .jsonl file (a document a line, in the field `text`), or a folder of
such, read in the order of their names. Without --tokenizer a token is a byte; with it, the
tokenizer is a tokenizer.json of Hugging Face's.

    python -m trainer.tokenize corpus/ --out data/train.tokens --tokenizer tokenizer.json
    python -m trainer --workload lm --model tinyllama-1.1b --data-dir data
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

from rundir import codes
from rundir.text import counted
from trainer import command
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import UserError
from trainer.workloads.tokens import BYTES, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character of UTF-16, which JSON can name alone."""


def main(argv: Sequence[str]) -> int:
    """Tokenize. Raises UserError for wrong input; nothing is written then."""
    parser = command.Parser(prog="python -m trainer.tokenize", description=__doc__)
    parser.add_argument("input", type=command.path, nargs="+", help="a text, a .jsonl, or a folder")
    parser.add_argument("--out", type=command.path, required=True, help="the file to write")
    parser.add_argument("--tokenizer", default=BYTES, help="bytes (default), or a tokenizer.json")
    parser.add_argument("--eos", help="the token that ends a document, if its name is unusual")
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    options = parser.parse_args(argv)
    command.check_target(options.out, f"--out {options.out}", may_overwrite=options.force)
    if options.eos is not None and options.tokenizer == BYTES:
        raise UserError(
            "--eos",
            rule="be given with --tokenizer, for the byte 255 ends a document of bytes",
            found=options.eos,
            remedy="leave it out, or name a tokenizer.json",
        )
    files = [file for path in options.input for file in _files(path)]
    tokenizer = load_tokenizer(options.tokenizer, options.eos)
    try:
        with Writer(options.out, tokenizer.info) as writer:
            for document in tokenizer.encode_all(_documents(files)):
                writer.add(document)
            if writer.num_tokens == 0:
                raise _input_error(", ".join(map(str, options.input)), "texts", "none")
    except OSError as error:
        raise UserError(
            str(options.out),
            rule="be a file that can be written",
            found=error,
            remedy="name another",
        ) from error
    print(
        f"{options.out}: {counted(writer.num_tokens, 'token')} of {tokenizer.info.vocab_size:,}, "
        f"{counted(writer.num_documents, 'document')}, {options.out.stat().st_size / 2**20:.1f} MiB"
    )
    return codes.FINISHED


def _files(path: Path) -> list[Path]:
    """Return a file, or those of a folder but for hidden ones."""
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file())
        return [p for p in found if not any(part[0] == "." for part in p.relative_to(path).parts)]
    if not path.is_file():
        raise _input_error(path, "a file or a folder", "none")
    return [path]


def _documents(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        try:
            if file.suffix == ".jsonl":
                yield from _lines(file)
            else:
                yield file.read_bytes().decode()  # read_text changes the ends of lines
        except (OSError, UnicodeDecodeError) as error:
            raise _input_error(file, "a text in UTF-8", error) from error


def _lines(file: Path) -> Iterator[str]:
    """Yield the texts of a .jsonl file."""
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                found = f"{type(error).__name__}: {error}"
                rule = 'an object with a field "text" in each line'
                raise _input_error(f"{file}, line {number}", rule, found) from error
            if not isinstance(text, str):
                raise _input_error(f"{file}, line {number}", 'a string as "text"', repr(text)[:50])
            if half := _SURROGATE.search(text):
                rule = "a text that UTF-8 can hold"
                raise _input_error(f"{file}, line {number}", rule, f"half a character: {half[0]!r}")
            yield text


def _input_error(what: object, rule: str, found: object) -> UserError:
    return UserError(
        str(what), rule=f"be {rule}", found=found, remedy="correct it, or leave it out"
    )


if __name__ == "__main__":
    sys.exit(command.run(main, sys.argv[1:]))

"""python -m trainer.sample CHECKPOINT --prompt TEXT: let a language model go on.

CHECKPOINT is one of --workload lm, or a run directory: its last. The same seed gives the same text.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rundir import codes
from rundir.text import counted
from trainer import command
from trainer.checkpoint.lookup import find
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import UserError
from trainer.workloads.tokens import BYTES, BYTES_VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Generator, Tensor

    from trainer.workloads.llama import Llama


_LEAST_TEMPERATURE = 1e-6
"""Below it logits overflow, and all that is drawn is the likeliest."""


def main(argv: Sequence[str]) -> int:
    """Print the prompt and what follows. Raises UserError for wrong input."""
    parser = command.Parser(prog="python -m trainer.sample", description=__doc__)
    parser.add_argument("checkpoint", type=command.path, help=command.CHECKPOINT_HELP)
    parser.add_argument("--prompt", required=True, help="the text to go on from")
    parser.add_argument("--tokens", type=int, default=200, help="how many to add (200)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0: always the likeliest token (0.8)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (1)")
    parser.add_argument("--tokenizer", default="bytes", help="bytes (default) or a tokenizer.json")
    options = parser.parse_args(argv)
    tokenizer = load_tokenizer(options.tokenizer)
    text = options.prompt.encode("utf-8", "replace").decode()
    prompt = list(next(iter(tokenizer.encode_all([text]))))
    is_seed = 0 <= options.seed < 2**63
    if not prompt or options.tokens < 0 or not options.temperature >= 0 or not is_seed:
        raise UserError(
            "--prompt, --tokens, --temperature, --seed",
            rule="be a text, and numbers of 0 or more, the last below 2**63",
            found=(options.prompt, options.tokens, options.temperature, options.seed),
            remedy="change them",
        )
    model = _load(find(options.checkpoint))
    num_tokens = model.shape.vocab_size
    knows_all = tokenizer.info.name != BYTES or num_tokens <= BYTES_VOCAB_SIZE
    if max(prompt) >= num_tokens or not knows_all:
        raise UserError(
            f"--tokenizer {options.tokenizer}",
            rule=f"be the one it was trained with, of {counted(num_tokens, 'token')}",
            found=f"token {max(prompt)}" if knows_all else f"{BYTES_VOCAB_SIZE} of them",
            remedy="name that one",
        )
    written = generate(
        model, prompt, options.tokens, temperature=options.temperature, seed=options.seed
    )
    print(tokenizer.decode(written))
    return codes.FINISHED


def _load(checkpoint: Path) -> Llama:
    from trainer.checkpoint.hugging_face import read_llama  # noqa: PLC0415 -- imports torch
    from trainer.workloads.llama import build_llama  # noqa: PLC0415

    stored = read_llama(checkpoint)
    model = build_llama(stored.shape, stored.sequence_length)  # with the table of angles
    model.load_state_dict(stored.weights)
    return model.eval()


def generate(
    model: Llama, prompt: Sequence[int], num_tokens: int, *, temperature: float, seed: int
) -> list[int]:
    """Return the prompt and what follows; the model sees as much of it as its sequence holds.

    The whole sequence is computed anew for each token: to try a model, not to serve it.
    """
    import torch  # noqa: PLC0415 -- see main

    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(num_tokens):
            seen = torch.tensor([tokens[-model.sequence_length :]])
            tokens.append(_choose(model(seen)[0, -1], temperature, generator))
    return tokens


def _choose(logits: Tensor, temperature: float, generator: Generator) -> int:
    """Return the likeliest token, or one drawn; a low temperature prefers the likely ones."""
    if temperature < _LEAST_TEMPERATURE:
        return int(logits.argmax())
    chances = (logits / temperature).softmax(dim=-1)
    return int(chances.multinomial(1, generator=generator))


if __name__ == "__main__":
    sys.exit(command.run(main, sys.argv[1:]))

"""The logits of a checkpoint of examples/megatron, by Megatron core and by transformers."""

import sys

import torch

folder, exported = sys.argv[1:]


def main() -> None:
    """End with an error unless both are the same."""
    from gpt import build  # noqa: PLC0415 -- Megatron starts processes that import this file
    from megatron.core import dist_checkpointing, parallel_state  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    parallel_state.initialize_model_parallel()
    gpt = build().eval()
    new = {name: value.clone() for name, value in gpt.state_dict().items() if value is not None}
    gpt.load_state_dict(
        dist_checkpointing.load({"model": gpt.sharded_state_dict()}, folder)["model"]
    )
    name = "decoder.layers.3.mlp.linear_fc2.weight"
    assert not torch.equal(gpt.state_dict()[name], new[name])  # it is trained
    theirs = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    tokens = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = gpt(tokens, torch.arange(64).expand(2, 64), None)
        torch.testing.assert_close(theirs(tokens).logits, ours, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    main()

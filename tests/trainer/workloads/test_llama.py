"""The Llama: its size, and what makes it one."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from trainer.errors import UserError
from trainer.workloads.llama import Attention, Llama, build_llama, rotate, rotation_angles
from trainer.workloads.llama_presets import PRESETS, LlamaShape, preset

SHAPE = LlamaShape(
    vocab_size=50,
    dim=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    ffn_dim=48,
    rope_theta=10_000,
    max_sequence_length=16,
)


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random tokens of the small model's vocabulary."""
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(seed))


def loud(shape: LlamaShape = SHAPE) -> Llama:
    """A model whose weights are large enough for every part of it to matter."""
    torch.manual_seed(1)
    model = build_llama(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("toy", 1_049_984),
        ("stories15m", 15_191_712),
        ("smollm2-135m", 134_515_008),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama2-7b", 6_738_415_616),
        ("llama3-8b", 8_030_261_248),
    ],
)
def test_a_preset_has_its_published_number_of_parameters(name: str, count: int) -> None:
    """Counted on modules, on the meta device, and by the formula."""
    with torch.device("meta"):
        model = Llama(PRESETS[name])
    assert sum(p.numel() for p in model.parameters()) == count
    assert PRESETS[name].num_parameters == count


def test_a_wrong_name_or_shape_is_an_error() -> None:
    """It lists the names; heads must divide."""
    with pytest.raises(UserError, match=r"--model must be one of toy, .*llama3-8b .*'gpt'"):
        preset("gpt")
    with pytest.raises(UserError, match="or a folder with a Llama; found 'moved/m'"):
        preset("moved/m")
    assert preset("") is PRESETS["toy"]
    for wrong in ({"num_heads": 5}, {"num_kv_heads": 3}, {"num_heads": 32, "num_kv_heads": 32}):
        with pytest.raises(UserError, match="heads"):
            replace(SHAPE, **wrong)


def test_a_later_token_does_not_change_an_earlier_output() -> None:
    """Causality: and it does change its own and those that follow."""
    model, original = loud(), tokens(2, 16)
    changed = original.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 50
    with torch.no_grad():
        before, after = model(original), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert ((before - after)[:, 9:].abs().amax(dim=-1) > 1e-3).all()


def test_grouped_queries_equal_full_attention_with_repeated_heads() -> None:
    """Head h of the queries sees head h // (H / K) of keys and values."""
    torch.manual_seed(2)
    few, many = Attention(SHAPE), Attention(replace(SHAPE, num_kv_heads=4))
    with torch.no_grad():
        many.wq.weight.copy_(few.wq.weight)
        many.wo.weight.copy_(few.wo.weight)
        for mine, theirs in ((many.wk, few.wk), (many.wv, few.wv)):
            heads = theirs.weight.view(2, SHAPE.head_dim, SHAPE.dim)
            mine.weight.copy_(heads.repeat_interleave(2, dim=0).reshape(SHAPE.dim, SHAPE.dim))
        x = torch.randn(3, 16, SHAPE.dim)
        angles = rotation_angles(16, SHAPE.head_dim, SHAPE.rope_theta)
        torch.testing.assert_close(few(x, *angles), many(x, *angles))


def test_rotation_tells_distance_and_not_place() -> None:
    """The scalar product of query and key is the same wherever the two stand that far apart."""
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(1, 1, 1, 8, generator=generator).expand(1, 64, 1, 8) for _ in range(2))
    cos, sin = rotation_angles(64, 8, 10_000)
    turned_q, turned_k = rotate(q, cos, sin)[0, :, 0], rotate(k, cos, sin)[0, :, 0]
    products = turned_q @ turned_k.T  # [position of the query, position of the key]
    for distance in (0, 1, 7, 40):
        diagonal = products.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-4)
    assert products.diagonal(-7)[0] != pytest.approx(products.diagonal(-8)[0].item(), abs=1e-3)
    torch.testing.assert_close(turned_q.norm(dim=-1), q[0, :, 0].norm(dim=-1))


def test_a_model_gets_its_values_from_the_seed_alone() -> None:
    """Whatever its memory held before; tied matrices are one, and norms begin with 1."""
    shape = replace(SHAPE, is_tied=True)
    first, second = Llama(shape), build_llama(shape)
    for model in (first, second):
        torch.manual_seed(4)
        model.init_weights()
        assert model.output.weight is model.tok_embeddings.weight
        assert set(model.norm.weight.tolist()) == {1.0}
        assert model.tok_embeddings.weight.std().item() == pytest.approx(
            math.sqrt(0.4 / 32), rel=0.1
        )
        adding = model.get_parameter("layers.0.attention.wo.weight")
        assert adding.std().item() == pytest.approx(
            math.sqrt(0.4 / 32) / 2, rel=0.1
        )  # two layers: root of 4
    assert set(first.state_dict()) == set(second.state_dict())
    with torch.no_grad():
        assert torch.equal(first(tokens(2, 16)), second(tokens(2, 16)))


def test_bf16_rotates_in_full_precision() -> None:
    """Far positions are as exact as near ones: the angle is not rounded, only the result."""
    x = torch.ones(1, 5000, 1, 8)
    cos, sin = rotation_angles(5000, 8, 10_000)
    exact, rounded = rotate(x, cos, sin), rotate(x.bfloat16(), cos, sin)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.01)


def test_the_layer_is_written_out() -> None:
    """One layer against its formula, with nothing of the model's own code in it."""
    model = loud(replace(SHAPE, num_layers=1))
    weights = {name: w.detach().double() for name, w in model.state_dict().items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weights[name]

    def heads(x: torch.Tensor, name: str) -> torch.Tensor:
        h = (x @ weights[f"layers.0.attention.{name}.weight"].T).view(16, -1, 8).transpose(0, 1)
        if name == "wv":
            return h
        angles = torch.arange(16)[:, None] / 10_000 ** (torch.arange(0, 8, 2) / 8)
        turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex128)
        turned = torch.complex(h[..., :4], h[..., 4:]) * turns
        return torch.cat((turned.real, turned.imag), dim=-1)

    sample = tokens(1, 16)
    x = weights["tok_embeddings.weight"][sample[0]]
    seen = norm(x, "layers.0.attention_norm.weight")
    q, k, v = (heads(seen, name) for name in ("wq", "wk", "wv"))
    gathered = scaled_dot_product_attention(
        q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0), is_causal=True
    )
    mixed = gathered.transpose(0, 1).reshape(16, 32)
    x = x + mixed @ weights["layers.0.attention.wo.weight"].T
    seen = norm(x, "layers.0.ffn_norm.weight")
    w1, w2, w3 = (weights[f"layers.0.feed_forward.w{i}.weight"].T for i in (1, 2, 3))
    gate = seen @ w1
    x = x + (gate * gate.sigmoid() * (seen @ w3)) @ w2
    expected = norm(x, "norm.weight") @ weights["output.weight"].T
    with torch.no_grad():
        torch.testing.assert_close(model(sample)[0].double(), expected, rtol=1e-4, atol=1e-4)


HUGGING_FACE = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@pytest.mark.slow
@pytest.mark.parametrize("is_tied", [False, True])
def test_it_computes_what_transformers_computes(*, is_tied: bool) -> None:
    """The same logits to 1e-5 in fp32, from the same weights under their names."""
    transformers: Any = pytest.importorskip(
        "transformers", reason="an independent implementation to compare with"
    )
    shape = replace(SHAPE, is_tied=is_tied, norm_eps=1e-4, rope_theta=500.0)
    model = loud(shape)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=48, rms_norm_eps=1e-4,
            rope_theta=500.0,  # before transformers 5, which takes it by the next one
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            tie_word_embeddings=is_tied, max_position_embeddings=16,
        )
    )  # fmt: skip
    renamed = {}
    for name, weight in model.state_dict().items():
        new = name.replace("tok_embeddings", "model.embed_tokens").replace("output", "lm_head")
        new = "model." + new if new.startswith(("layers", "norm")) else new
        for mine, other in HUGGING_FACE.items():
            new = new.replace(mine, other)
        renamed[new] = weight
    theirs.load_state_dict(renamed)
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens(3, 16)), theirs(tokens(3, 16)).logits, rtol=1e-5, atol=1e-5
        )

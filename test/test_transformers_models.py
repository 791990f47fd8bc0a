"""Small models of many families of transformers, as no test and no table knows them, planned by the rules of GPUs:
results and gradients in fp64 against eager's."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable

import pytest
import torch
from gpu_rules import as_on_gpus
from marks import needs_aten
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from zoo import package

pytestmark = [needs_aten, pytest.mark.slow]

# Each family's attributes of its configuration that have one of these names.
WIDTH = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_experts_per_tok", "num_key_value_heads"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("head_dim", "d_kv", "patch_size"), 16),
    **dict.fromkeys(("state_size", "sliding_window"), 8),
    **dict.fromkeys(("image_size", "max_position_embeddings", "n_positions"), 64),
    **{"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    **dict.fromkeys(
        ("hidden_dropout_prob", "attention_probs_dropout_prob", "hidden_dropout", "attention_dropout"), 0.0
    ),
    **dict.fromkeys(("dropout", "dropout_rate", "resid_pdrop", "embd_pdrop", "attn_pdrop", "activation_dropout"), 0.0),
    **dict.fromkeys(("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "drop_path_rate"), 0.0),
    "use_cache": False,
    "_experts_implementation": "eager",
}
OF_WORDS = (
    *("bart", "big_bird", "convbert", "cpmant", "deberta", "falcon_mamba", "gemma2", "gpt_neox", "gpt_oss"),
    *("llama4_text", "modernbert", "mpt", "pegasus_x", "phi", "qwen2_moe", "qwen3_5_text", "switch_transformers", "t5"),
)
OF_IMAGES = ("beit", "pvt_v2", "swiftformer", "vit_mae", "vitdet")


def build(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model of this type of transformers' configurations, and its inputs."""
    transformers = package("transformers")
    make = type(transformers.AutoConfig.for_model(kind))
    default = make()
    simple = (int, float, type(None))
    config = make(**{name: value for name, value in WIDTH.items() if isinstance(getattr(default, name, ""), simple)})
    model = transformers.AutoModel.from_config(config).double()
    if kind in OF_IMAGES:
        return model, {"pixel_values": torch.randn(2, 3, 64, 64, dtype=torch.float64)}
    words = torch.randint(3, 98, (2, 24))
    inputs = {"input_ids": words, "attention_mask": (torch.arange(24) < torch.tensor([[24], [18]])).long()}
    if kind == "cpmant":
        del inputs["attention_mask"]
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = words[:, :16].contiguous()
    return model, inputs


def step(run: Callable, model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The results that are numbers, and the gradients of a loss of all of them."""
    torch.manual_seed(7)  # of a masked autoencoder's patches
    results = [each for each in tree_leaves(dict(run(**inputs))) if isinstance(each, Tensor) and each.requires_grad]
    weights = (torch.linspace(-1, 2, each.numel(), dtype=torch.float64).view(each.shape) for each in results)
    sum((each * weight).tanh().sum() for each, weight in zip(results, weights, strict=True)).backward()
    gradients = (torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters())
    return [*(each.detach() for each in results), *gradients]


def differences(some: list[Tensor], others: list[Tensor]) -> list[float]:
    """Error of each tensor relative to its norm, or to a small part of the largest; some are zero but for rounding."""
    least = 1e-6 * max(float(each.norm()) for each in others)
    return [float((a - b).norm()) / max(float(b.norm()), least) for a, b in zip(some, others, strict=True)]


@pytest.mark.parametrize("kind", [*OF_WORDS, *OF_IMAGES])
def test_training_step(kind):
    """Many of these models compute norms and softmaxes in fp32 whatever their type is. So results may differ as much as
    by weights that move by fp32's rounding, which is measured, and no more."""
    torch._dynamo.reset()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = build(kind)
        moved, compiled = copy.deepcopy(model), copy.deepcopy(model)
        with torch.no_grad():
            for parameter in moved.parameters():
                parameter *= 1 + torch.finfo(torch.float32).eps / 2 * torch.randn_like(parameter)
        exact = step(model, model, inputs)
        reports: list = []
        with as_on_gpus():
            run = torch.compile(compiled, backend="reformer", options={"report": reports.append})
            found = step(run, compiled, inputs)
    assert reports
    for error, allowed in zip(differences(found, exact), differences(step(moved, moved, inputs), exact), strict=True):
        assert error <= 1e-11 + 4 * allowed

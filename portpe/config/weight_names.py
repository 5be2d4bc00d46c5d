"""Where each model family keeps the tensors of an attention layer, and how it fuses them: one row a family.

Names are those that the families' published checkpoints and transformers' ``save_pretrained`` have. A model with a
head (``LlamaForCausalLM``) puts a prefix before the names of the bare model (``LlamaModel``); both are met in the wild.
"""

from __future__ import annotations

from dataclasses import replace

from portpe.config.absolute_weight_names import ABSOLUTE_ROWS
from portpe.config.axes_weight_names import AXES_ROWS
from portpe.config.bucket_weight_names import BUCKET_ROWS
from portpe.config.decoder_weight_names import DECODER_ROWS
from portpe.config.grid_weight_names import GRID_ROWS
from portpe.config.latent_weight_names import LATENT_ROWS
from portpe.config.patch_weight_names import PATCH_ROWS
from portpe.config.relative_weight_names import RELATIVE_ROWS
from portpe.config.weight_layout import Fused, WeightNames, separate
from portpe.errors import SpecError

__all__ = ["ROWS", "Fused", "WeightNames", "weight_names"]

_LLAMA = WeightNames(
    ("model.", ""),
    separate(
        "layers.{layer}.self_attn",
        "o_proj",
        q_norm="layers.{layer}.self_attn.q_norm",
        k_norm="layers.{layer}.self_attn.k_norm",
        sinks="layers.{layer}.self_attn.sinks",
        input_norm="layers.{layer}.input_layernorm",
    ),
)

_PHI = WeightNames(
    ("model.", ""),
    separate(
        "layers.{layer}.self_attn",
        "dense",
        q_norm="layers.{layer}.self_attn.q_layernorm",
        k_norm="layers.{layer}.self_attn.k_layernorm",
        input_norm="layers.{layer}.input_layernorm",
    ),
)

_PHI3 = WeightNames(
    ("model.", ""),
    {"o_proj": "layers.{layer}.self_attn.o_proj", "input_norm": "layers.{layer}.input_layernorm"},
    fused=Fused("layers.{layer}.self_attn.qkv_proj", "stacked"),
)

_GPT_NEOX = WeightNames(
    ("gpt_neox.", ""),
    {"o_proj": "layers.{layer}.attention.dense", "input_norm": "layers.{layer}.input_layernorm"},
    fused=Fused("layers.{layer}.attention.query_key_value", "grouped"),
)

_GPTJ = WeightNames(("transformer.", ""), separate("h.{layer}.attn", "out_proj", input_norm="h.{layer}.ln_1"))

_BLOOM = WeightNames(
    ("transformer.", ""),
    {"o_proj": "h.{layer}.self_attention.dense", "input_norm": "h.{layer}.input_layernorm"},
    fused=Fused("h.{layer}.self_attention.query_key_value", "grouped"),
)

_FALCON = WeightNames(
    ("transformer.", ""),
    {"o_proj": "h.{layer}.self_attention.dense", "input_norm": "h.{layer}.ln_attn|h.{layer}.input_layernorm"},
    fused=Fused("h.{layer}.self_attention.query_key_value", "grouped"),
)

_MPT = WeightNames(
    ("transformer.", ""),
    {"o_proj": "blocks.{layer}.attn.out_proj", "input_norm": "blocks.{layer}.norm_1"},
    fused=Fused("blocks.{layer}.attn.Wqkv", "stacked"),
)

_INDEXER = frozenset({"indexer"})  # chooses keys among more than a block ever holds
_GLOBAL = frozenset({"query_global", "key_global", "value_global"})  # of tokens that see all, where there are any
_INTEGERS = {f"{name}_activation" for name in ("query", "key", "value", "output")}  # of quant_mode, which is refused
# Modules beside the projections of an attention module that change nothing of what a block computes.
IDLE: dict[str, frozenset[str]] = {
    # the norm before attention lies inside of it
    **dict.fromkeys(("granite_speech_encoder", "granite_speech_plus_encoder"), frozenset({"pre_norm"})),
    "albert": frozenset({"LayerNorm"}),  # behind the residual
    "deepseek_v32": _INDEXER,
    "glm_moe_dsa": _INDEXER,
    "hy_v4": _INDEXER,
    "hy_v4_vl_text": _INDEXER,
    "ibert": frozenset({*_INTEGERS, "query", "key", "value", "softmax"}),
    "led": _GLOBAL,
    "longformer": _GLOBAL,
    "sapiens2": frozenset({"gamma"}),  # scales the residual
    "xlnet": frozenset({"seg_embed", "r_s_bias", "layer_norm"}),  # of token types, which a warning names
}

ROWS: dict[str, WeightNames] = {
    **ABSOLUTE_ROWS,
    **BUCKET_ROWS,
    **RELATIVE_ROWS,
    **LATENT_ROWS,
    **AXES_ROWS,
    **DECODER_ROWS,
    **GRID_ROWS,
    **PATCH_ROWS,
    "bloom": _BLOOM,
    "cohere": _LLAMA,
    "falcon": _FALCON,
    "gemma": _LLAMA,
    "glm": _LLAMA,
    "glm4": _LLAMA,
    "gpt_neox": _GPT_NEOX,
    "gpt_oss": _LLAMA,
    "gptj": _GPTJ,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mpt": _MPT,
    "olmo2": _LLAMA,
    "phi": _PHI,
    "phi3": _PHI3,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
}


def weight_names(model_type: str, part: str | None = None) -> WeightNames:
    """The row of a family, or of one of its stacks that has its own. Raises SpecError for a family that has none."""
    row = ROWS.get(f"{model_type} {part}", ROWS.get(model_type))
    if row is None:
        raise SpecError(
            f"model_type {model_type!r} has no row that says where its checkpoints keep an attention layer;"
            " export from the config alone, with random weights"
        )
    return replace(row, idle=IDLE.get(model_type, frozenset()))

"""Where each model family keeps the tensors of an attention layer, and how it fuses them: one row a family.

Names are those that the families' published checkpoints and transformers' ``save_pretrained`` have. A model with a
head (``LlamaForCausalLM``) puts a prefix before the names of the bare model (``LlamaModel``); both are met in the wild.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from portpe.errors import SpecError


@dataclass(frozen=True)
class Fused:
    """q, k and v in one tensor.

    ``layout`` ``stacked``: all rows of q, then of k, then of v. ``grouped``: for each key/value head its queries, its
    key and its value, so (kv_heads, heads / kv_heads + 2, head_dim) rows; with as many key/value heads as heads this is
    the (heads, 3, head_dim) interleaving of NeoX, with one it is multi-query.
    """

    name: str
    layout: Literal["stacked", "grouped"]


@dataclass(frozen=True)
class WeightNames:
    """One family's names.

    ``prefixes``: what may stand before every name, longest first. ``names``: canonical name without its ``.weight`` or
    ``.bias`` -> the family's, with ``{layer}`` in it (or ``{group}``, the layers that share weights; ``{half}`` and
    ``{member}``, where two attention layers make one of the model's); ``a|b``: either.
    ``transposed``: the projections are (in, out).
    """

    prefixes: tuple[str, ...]
    names: Mapping[str, str]
    fused: Fused | None = None
    transposed: bool = False

    def templates(self, canonical: str) -> tuple[str, ...]:
        """The names of a canonical stem (``q_proj``), the fused tensor's for its parts; none where there is none."""
        if self.fused is not None and canonical in ("q_proj", "k_proj", "v_proj"):
            return (self.fused.name,)
        return tuple(self.names[canonical].split("|")) if canonical in self.names else ()

    @property
    def stem(self) -> str:
        """What stands before a layer's number: by it a checkpoint's prefix is told."""
        return self.templates("q_proj")[0].split("{")[0]


def _separate(layer: str, output: str, **others: str) -> dict[str, str]:
    """q, k and v in tensors of their own under ``layer``."""
    projections = {f"{p}_proj": f"{layer}.{p}_proj" for p in "qkv"}
    return {**projections, "o_proj": f"{layer}.{output}", **others}


_LLAMA = WeightNames(
    ("model.", ""),
    _separate(
        "layers.{layer}.self_attn",
        "o_proj",
        q_norm="layers.{layer}.self_attn.q_norm",
        k_norm="layers.{layer}.self_attn.k_norm",
        sinks="layers.{layer}.self_attn.sinks",
        input_norm="layers.{layer}.input_layernorm",
    ),
)

_HUNYUAN = replace(
    _LLAMA,
    names={
        **_LLAMA.names,
        "q_norm": "layers.{layer}.self_attn.query_layernorm",
        "k_norm": "layers.{layer}.self_attn.key_layernorm",
    },
)

_LLAMA4 = replace(_LLAMA, prefixes=("language_model.model.", *_LLAMA.prefixes))

_PHI = WeightNames(
    ("model.", ""),
    _separate(
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

_MLA_MODULES = (
    *("q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj"),
    *("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"),
)


def _mla(attention: str, input_norm: str) -> WeightNames:
    """DeepSeek's names, under ``attention``."""
    names = {name: f"{attention}.{name}" for name in _MLA_MODULES}
    return WeightNames(("model.", ""), {**names, "input_norm": input_norm})


_MLA = _mla("layers.{layer}.self_attn", "layers.{layer}.input_layernorm")
_LONGCAT = _mla("layers.{half}.self_attn.{member}", "layers.{half}.input_layernorm.{member}")

_GPT_NEOX = WeightNames(
    ("gpt_neox.", ""),
    {"o_proj": "layers.{layer}.attention.dense", "input_norm": "layers.{layer}.input_layernorm"},
    fused=Fused("layers.{layer}.attention.query_key_value", "grouped"),
)

_GPTJ = WeightNames(("transformer.", ""), _separate("h.{layer}.attn", "out_proj", input_norm="h.{layer}.ln_1"))

_GPT2 = WeightNames(
    ("transformer.", ""),
    {"o_proj": "h.{layer}.attn.c_proj", "input_norm": "h.{layer}.ln_1", "position_embedding": "wpe"},
    fused=Fused("h.{layer}.attn.c_attn", "stacked"),
    transposed=True,
)

_STACK = _separate(  # fairseq's names, for one stack of an encoder-decoder
    "layers.{layer}.self_attn",
    "out_proj",
    input_norm="layers.{layer}.self_attn_layer_norm",
    position_embedding="embed_positions",
)
_OPT = WeightNames(("model.decoder.", "decoder.", ""), _STACK)
_WHISPER = WeightNames(("model.{part}.", "{part}.", ""), _STACK)


def _bert(prefix: str, attention: str, self_attention: str, output: str, **others: str) -> WeightNames:
    projections = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
    return WeightNames(
        (prefix, ""),
        {
            **{canonical: f"{attention}.{self_attention}{name}" for canonical, name in projections.items()},
            "o_proj": f"{attention}.{output}",
            "input_norm": "embeddings.LayerNorm",
            "position_embedding": "embeddings.position_embeddings",
            **others,
        },
    )


_ALBERT = _bert(
    "albert.",
    "encoder.albert_layer_groups.{group}.albert_layers.0.attention",
    self_attention="",
    output="dense",
    embedding_projection="encoder.embedding_hidden_mapping_in",
)

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

ROWS: dict[str, WeightNames] = {
    "albert": _ALBERT,
    "axk1": _MLA,
    "bert": _bert("bert.", "encoder.layer.{layer}.attention", "self.", "output.dense"),
    "bloom": _BLOOM,
    "cohere": _LLAMA,
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "falcon": _FALCON,
    "gemma": _LLAMA,
    "glm": _LLAMA,
    "glm4": _LLAMA,
    "glm4_moe_lite": _MLA,
    "gpt2": _GPT2,
    "gpt_neox": _GPT_NEOX,
    "gpt_oss": _LLAMA,
    "gptj": _GPTJ,
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": _HUNYUAN,
    "kimi_k2": _MLA,
    "kimi_linear": _MLA,
    "llama": _LLAMA,
    "llama4_text": _LLAMA4,
    "longcat_flash": _LONGCAT,
    "minicpm3": _MLA,
    "ministral3": _LLAMA,
    "mistral": _LLAMA,
    "mistral4": _MLA,
    "mpt": _MPT,
    "olmo2": _LLAMA,
    "opt": _OPT,
    "phi": _PHI,
    "phi3": _PHI3,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "roberta": _bert("roberta.", "encoder.layer.{layer}.attention", "self.", "output.dense"),
    "sarvam_mla": _MLA,
    "whisper": _WHISPER,
    "youtu": _MLA,
}


def weight_names(model_type: str) -> WeightNames:
    """The row of a family. Raises SpecError for a family that has none."""
    row = ROWS.get(model_type)
    if row is None:
        raise SpecError(
            f"model_type {model_type!r} has no row that says where its checkpoints keep an attention layer;"
            " export from the config alone, with random weights"
        )
    return row

"""Where decoders and encoders with rotary embeddings keep the tensors of an attention layer: one row a family."""

from __future__ import annotations

from dataclasses import replace

from portpe.config.weight_layout import Fused, WeightNames, separate

_LAYER = "layers.{layer}.self_attn"
# A text model inside a larger one stands deeper.
_PREFIXES = ("model.language_model.", "language_model.model.", "model.", "")


def _llama(*, attention: str = _LAYER, output: str = "o_proj", **others: str) -> WeightNames:
    """Llama's names; ``others`` replace some of them."""
    names = separate(
        attention,
        output,
        q_norm=f"{attention}.q_norm",
        k_norm=f"{attention}.k_norm",
        sinks=f"{attention}.sinks",
        input_norm="layers.{layer}.input_layernorm",
    )
    return WeightNames(_PREFIXES, names | others)


_LLAMA = _llama()
_QUERY_AND_GATE = replace(_LLAMA, fused=Fused(f"{_LAYER}.q_proj", "query_and_gate"))
_LFM2 = _llama(
    output="out_proj",
    q_norm=f"{_LAYER}.q_layernorm",
    k_norm=f"{_LAYER}.k_layernorm",
    input_norm="layers.{layer}.operator_norm",
)
_MODERN = WeightNames(
    ("model.", ""),
    {"o_proj": "layers.{layer}.attn.Wo", "input_norm": "layers.{layer}.attn_norm"},
    fused=Fused("layers.{layer}.attn.Wqkv", "stacked"),
)
_HRM_LAYER = "{cycle}_module.layers.{run}"
_DBRX_LAYER = "blocks.{layer}.norm_attn_norm"

_AS_LLAMA = [
    "arcee",
    "aria_text",
    "bamba",
    "cohere2",
    "cwm",
    "dots1",
    "emu3_text_model",
    "ernie4_5",
    "ernie4_5_moe",
    "eurobert",
    "exaone4",
    "cohere2_moe",
    "exaone_moe",
    "falcon_h1",
    "flex_olmo",
    "gemma2",
    "gemma3_text",
    "glm4_moe",
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
    "helium",
    "hy_v3",
    "hyperclovax",
    "internlm3",
    "iquestcoder",
    "jais2",
    "jamba",
    "kolibri1",
    "lara_mini",
    "mellum",
    "minimax_m2",
    "ministral",
    "mixtral",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo3",
    "olmo_hybrid",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "solar_open",
    "starcoder2",
    "vaultgemma",
]

DECODER_ROWS: dict[str, WeightNames] = {
    **dict.fromkeys(_AS_LLAMA, _LLAMA),
    "qwen3_next": _QUERY_AND_GATE,
    "qwen3_5_text": _QUERY_AND_GATE,
    "qwen3_5_moe_text": _QUERY_AND_GATE,
    "afmoe": _llama(gate_proj=f"{_LAYER}.gate_proj"),
    "gemma3n_text": _LLAMA,
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), replace(_LLAMA, values_are_keys="attention_k_eq_v")),
    "embedding_gemma2_text": _LLAMA,
    "stablelm": _llama(q_norm=f"{_LAYER}.q_layernorm.norms.{{head}}", k_norm=f"{_LAYER}.k_layernorm.norms.{{head}}"),
    "mimo_v2_flash": _llama(sinks=f"{_LAYER}.attention_sink_bias|{_LAYER}.sinks"),
    "t5gemma2_text": replace(
        _llama(input_norm="layers.{layer}.pre_self_attn_layernorm"),
        prefixes=("model.encoder.text_model.", "encoder.text_model.", "text_model.", ""),
    ),
    "nemotron3_5_transcribe_word_timestamp": replace(
        _llama(input_norm="layers.{layer}.layer_norm1"),
        prefixes=("model.word_timestamp_encoder.", "word_timestamp_encoder.", ""),
    ),
    "muse_glimmer_text": _llama(gate_proj=f"{_LAYER}.gate_proj"),
    "laguna": _llama(gate_proj=f"{_LAYER}.g_proj"),
    "step3p5": _llama(gate_proj=f"{_LAYER}.g_proj"),
    "lfm3": _llama(gate_proj=f"{_LAYER}.gate_proj|{_LAYER}.g_proj", input_norm="layers.{layer}.operator_norm"),
    "beam": replace(
        _llama(**{"gate_proj": f"{_LAYER}.gate_proj", "gate_proj.bias": f"{_LAYER}.gate_bias"}),
        by_head=frozenset({"gate_proj.bias"}),
    ),
    "hrm_text": WeightNames(
        ("model.", ""),
        {
            "o_proj": f"{_HRM_LAYER}.attn.o_proj",
            **{f"{part}_proj.bias": f"{_HRM_LAYER}.self_attn.{part}_proj.bias" for part in ("gate", "q", "k", "v")},
        },
        fused=Fused(f"{_HRM_LAYER}.attn.gqkv_proj", "gate_stacked"),
    ),
    "apertus": _llama(input_norm="layers.{layer}.attention_layernorm"),
    "dbrx": WeightNames(
        ("transformer.", ""),
        {"o_proj": f"{_DBRX_LAYER}.attn.out_proj", "input_norm": f"{_DBRX_LAYER}.norm_1"},
        fused=Fused(f"{_DBRX_LAYER}.attn.Wqkv", "stacked"),
    ),
    "exaone": WeightNames(
        ("transformer.", ""), separate("h.{layer}.attn.attention", "out_proj", input_norm="h.{layer}.ln_1")
    ),
    "flint": _llama(sinks=f"{_LAYER}.softmax_offset"),
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "modernbert": _MODERN,
    "modernbert-decoder": WeightNames(
        ("model.", ""),
        separate("layers.{layer}.attn", "Wo", input_norm="layers.{layer}.attn_norm"),
    ),
    "persimmon": WeightNames(
        ("model.", ""),
        {
            "o_proj": f"{_LAYER}.dense",
            "q_norm": f"{_LAYER}.q_layernorm",
            "k_norm": f"{_LAYER}.k_layernorm",
            "input_norm": "layers.{layer}.input_layernorm",
        },
        fused=Fused(f"{_LAYER}.query_key_value", "grouped"),
    ),
    "sarvam_moe": WeightNames(
        ("model.", ""),
        {
            "o_proj": "layers.{layer}.attention.dense",
            "q_norm": "layers.{layer}.attention.query_layernorm",
            "k_norm": "layers.{layer}.attention.key_layernorm",
            "input_norm": "layers.{layer}.input_layernorm",
        },
        fused=Fused("layers.{layer}.attention.query_key_value", "stacked"),
    ),
    "recurrent_gemma": _llama(attention="layers.{layer}.temporal_block", input_norm="layers.{layer}.temporal_pre_norm"),
}

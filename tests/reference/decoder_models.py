"""transformers' own decoders with rotary embeddings, or none, tiny: one row a family or variant."""

from __future__ import annotations

from typing import Any

from tests.reference.transformers_model import HEAD_DIM, HEADS, KV_HEADS, TOKENS, Model

_SELF = {"query": "self_attn.q_proj", "output": "self_attn.o_proj"}
_WIDE = dict(
    **TOKENS,
    hidden_size=42,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    num_hidden_layers=2,
    intermediate_size=20,
    max_position_embeddings=64,
)
_SQUARE = {**{k: v for k, v in _WIDE.items() if k != "head_dim"}, "hidden_size": HEADS * HEAD_DIM}
_MHA = {k: v for k, v in _SQUARE.items() if k != "num_key_value_heads"}
_EXPERTS = {
    "num_local_experts": 2,
    "num_experts": 2,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 12,
    "experts_implementation": "eager",  # the grouped product has no float64
}
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
_TWO_KINDS = {"layer_types": [SLIDING, FULL], "sliding_window": 5}
_BASES = {
    FULL: {"rope_type": "linear", "rope_theta": 900.0, "factor": 3.0},
    SLIDING: {"rope_type": "default", "rope_theta": 100.0},
}


def _causal(cls: str, *float32: str, base: dict[str, Any] = _SQUARE, more: Any = None, **config: Any) -> Model:
    """``NAME``: NAMEForCausalLM; what is computed in float32; ``more``: other fields of ``Model``."""
    return Model(f"{cls}ForCausalLM", {**base, **config}, **{**_SELF, "float32": float32, **(more or {})})


def _sparse(cls: str, *float32: str, **config: Any) -> Model:
    return _causal(cls, *float32, **{**_EXPERTS, **config})


_GEMMA4 = {
    "layer_types": [SLIDING, FULL],
    "sliding_window": 5,
    "global_head_dim": 12,
    "vocab_size_per_layer_input": 53,
    "hidden_size_per_layer_input": 6,
}
_HRM = {**_MHA, "head_dim": 10, "num_hidden_layers": 1}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 6,
    "shared_expert_intermediate_size": 12,
}
FIRST = {"layers": (0,)}  # the second layer is no attention

DECODERS: dict[str, Model] = {
    "olmo": _causal("Olmo", clip_qkv=4.0, more={"gain": 6.0}),
    "arcee": _causal("Arcee", base=_WIDE, attention_bias=True),
    "apertus": _causal("Apertus", "qk"),
    "jais2": _causal("Jais2", base=_WIDE),
    "seed_oss": _causal("SeedOss", base=_WIDE, attention_out_bias=True),
    "helium": _causal("Helium", base=_WIDE | {"hidden_size": 48}),
    "ernie4_5": _causal("Ernie4_5", "qk", base=_WIDE, use_bias=True, more={"gain": 1.4}),
    "granite": _causal("Granite", attention_multiplier=0.2),
    "starcoder2": _causal("Starcoder2", sliding_window=5),
    "stablelm": _causal("StableLm", use_qkv_bias=True),
    "stablelm with a norm for each head": _causal("StableLm", qk_layernorm=True, use_parallel_residual=True),
    "persimmon": _causal(
        "Persimmon", base=_MHA, more={"query": "self_attn.query_key_value", "output": "self_attn.dense"}
    ),
    "nemotron": _causal("Nemotron", base=_WIDE),
    "nanochat": _causal("NanoChat", "qk", more={"spread": 0.7}),
    "hyperclovax": _causal("HyperCLOVAX", base=_WIDE),
    "mixtral": _sparse("Mixtral", sliding_window=5),
    "qwen2_moe": _sparse("Qwen2Moe", shared_expert_intermediate_size=12),
    "qwen3_moe": _sparse("Qwen3Moe", "qk", base=_WIDE),
    "olmoe": _sparse("Olmoe", "qk"),
    "flex_olmo": _sparse("FlexOlmo", "qk"),
    "granitemoe": _sparse("GraniteMoe", attention_multiplier=0.2),
    "granitemoeshared": _sparse("GraniteMoeShared", attention_multiplier=0.2, shared_intermediate_size=12),
    "glm4_moe": _sparse("Glm4Moe", "qk", base=_WIDE, use_qk_norm=True, n_group=1, topk_group=1, attention_bias=True),
    "ernie4_5_moe": _sparse("Ernie4_5_Moe", "qk", moe_num_experts=2, moe_k=1),
    "phimoe": _sparse("Phimoe", attention_bias=True),
    "dots1": _sparse(
        "Dots1", "qk", base=_WIDE, n_group=1, topk_group=1, n_shared_experts=1, max_window_layers=1, sliding_window=5
    ),
    "hy_v3": _sparse("HYV3", "qk", base=_WIDE),
    "minimax_m2": _sparse("MiniMaxM2", "qk", base=_WIDE, rotary_dim=4),
    "solar_open": _sparse("SolarOpen", base=_WIDE, n_group=1, topk_group=1, attention_bias=True),
    "dbrx": Model(
        "DbrxForCausalLM",
        dict(**TOKENS, d_model=48, n_heads=HEADS, n_layers=2, max_seq_len=64)
        | {"attn_config": {"kv_n_heads": 2, "clip_qkv": 2.5, "rope_theta": 10000.0}}
        | {"ffn_config": {"ffn_hidden_size": 20, "moe_num_experts": 2, "moe_top_k": 1}}
        | {"experts_implementation": "eager"},
        query="attn.Wqkv",
        output="attn.out_proj",
    ),
    "gemma2": _causal(
        "Gemma2",
        "softmax",
        base=_WIDE,
        query_pre_attn_scalar=12,
        attn_logit_softcapping=4.0,
        **_TWO_KINDS,
        more={"implementation": "eager"},
    ),
    "vaultgemma": _causal(
        "VaultGemma",
        "softmax",
        base=_WIDE,
        attn_logit_softcapping=6.0,
        query_pre_attn_scalar=6,
        **_TWO_KINDS,
        more={"implementation": "eager"},
    ),
    "gemma3_text": _causal("Gemma3", "qk", base=_WIDE, query_pre_attn_scalar=90, rope_parameters=_BASES, **_TWO_KINDS),
    "olmo3": _causal("Olmo3", "qk", rope_parameters=_BASES, **_TWO_KINDS),
    "ministral": _causal("Ministral", base=_WIDE, **_TWO_KINDS),
    "cwm": _causal("Cwm", base=_WIDE, **_TWO_KINDS),
    "mellum": _sparse("Mellum", "qk", base=_WIDE, rope_parameters=_BASES, **_TWO_KINDS),
    "cohere2": _causal("Cohere2", "qk", **_TWO_KINDS),
    "cohere2_moe": _sparse(
        "Cohere2Moe",
        "qk",
        base=_WIDE,
        first_k_dense_replace=1,
        prefix_dense_intermediate_size=12,
        sliding_window=5,
        more={"gain": 1.6},
    ),
    "smollm3": _causal("SmolLM3", no_rope_layers=[1, 0]),
    "smollm3 window": _causal("SmolLM3", no_rope_layers=[1, 0], use_sliding_window=True, sliding_window=5),
    "exaone4": _causal("Exaone4", "qk", base=_WIDE, **_TWO_KINDS),
    "kolibri1": _sparse("Kolibri1", "qk", base=_WIDE, **_TWO_KINDS),
    "flint": _sparse("Flint", "qk", "softmax", base=_WIDE, **_TWO_KINDS, more={"implementation": "eager"}),
    "lara_mini": _sparse("LaraMini", "qk", base=_WIDE, **_TWO_KINDS, more={"gain": 1.2}),
    "sarvam_moe": _sparse(
        "Glm4Moe", "qk", base=_WIDE, n_group=1, topk_group=1, more={"config_class": "SarvamMoEConfig"}
    ),
    "granite_swa": _causal(
        "GraniteSWA",
        "softmax",
        base=_WIDE,
        layer_rope_theta=[300.0, 0.0],
        attention_multiplier=0.4,
        **_TWO_KINDS,
        more={"implementation": "eager"},
    ),
    "lfm2": _causal("Lfm2", "qk", layer_types=[FULL, "conv"], more={**FIRST, "output": "self_attn.out_proj"}),
    "bamba": _causal("Bamba", attn_layer_indices=[0], mamba_n_heads=6, mamba_d_head=16, mamba_n_groups=1, more=FIRST),
    "falcon_h1": _causal("FalconH1", key_multiplier=0.6, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8),
    "jamba": _sparse("Jamba", attn_layer_period=2, attn_layer_offset=0, use_mamba_kernels=False, more=FIRST),
    "recurrent_gemma": _causal(
        "RecurrentGemma",
        block_types=["attention", "recurrent"],
        attention_window_size=5,
        more={**FIRST, "query": "temporal_block.q_proj", "output": "temporal_block.o_proj"},
    ),
    "lfm2_moe": _sparse(
        "Lfm2Moe", "qk", layer_types=[FULL, "conv"], num_dense_layers=1, more={**FIRST, "output": "self_attn.out_proj"}
    ),
    "granitemoehybrid": _sparse(
        "GraniteMoeHybrid",
        layer_types=[FULL, LINEAR],
        position_embedding_type="rope",
        shared_intermediate_size=12,
        mamba_n_heads=6,
        mamba_d_head=16,
        attention_multiplier=0.3,
        more=FIRST,
    ),
    "qwen3_next": _sparse("Qwen3Next", "qk", base=_WIDE, layer_types=[FULL, LINEAR], **_DELTA, more=FIRST),
    "qwen3_next biases": _sparse(
        "Qwen3Next",
        "qk",
        base=_WIDE,
        layer_types=[FULL, LINEAR],
        attention_bias=True,
        **_DELTA,
        more=FIRST,
    ),
    "afmoe": _sparse("Afmoe", "qk", base=_WIDE, num_shared_experts=1, **_TWO_KINDS),
    "laguna": _sparse("Laguna", "qk", base=_WIDE, num_attention_heads_per_layer=[6, 4], **_TWO_KINDS),
    "laguna channels": _sparse("Laguna", "qk", base=_WIDE, gating="per-element", **_TWO_KINDS),
    "gemma3n_text": Model(
        "Gemma3nForCausalLM",
        {**_WIDE, **_TWO_KINDS, "num_kv_shared_layers": 0, "rope_parameters": _BASES, "vocab_size_per_layer_input": 53}
        | {"hidden_size_per_layer_input": 6, "laurel_rank": 4, "activation_sparsity_pattern": None},
        **_SELF,
        float32=("qk", "v"),
    ),
    "mimo_v2_flash": _sparse(
        "MiMoV2Flash",
        "softmax",
        base=_WIDE | {"head_dim": 12, "num_key_value_heads": 3},
        v_head_dim=10,
        attention_bias=True,
        n_group=1,
        topk_group=1,
        mlp_layer_types=["dense", "dense"],
        rope_parameters={kind: {**base, "partial_rotary_factor": 0.34} for kind, base in _BASES.items()},
        **_TWO_KINDS,
        more={"implementation": "eager"},
    ),
    "gemma4_text": _causal("Gemma4", "qk", "v", base=_WIDE, **_GEMMA4, more={"widest": 1e-4}),
    "gemma4_text shared": _causal(
        "Gemma4",
        "qk",
        "v",
        base=_WIDE,
        **_GEMMA4,
        attention_k_eq_v=True,
        num_global_key_value_heads=3,
        more={"widest": 1e-4},
    ),
    "gemma4_unified_text": _causal("Gemma4Unified", "qk", "v", base=_WIDE, **_GEMMA4, more={"widest": 1e-4}),
    "embedding_gemma2_text": Model(
        "EmbeddingGemma2TextModel",
        {**_WIDE, **_GEMMA4, "embedding_dim": 20},
        **_SELF,
        float32=("qk", "v"),
        widest=1e-4,
    ),
    "step3p5": Model(
        "Step3p7TextModel",
        {**_WIDE, **_EXPERTS, **_TWO_KINDS, "num_sliding_attention_heads": 4, "mlp_layer_types": ["dense", "dense"]},
        **_SELF,
        float32=("qk",),
    ),
    "lfm3": _causal("Lfm3", "qk", base=_WIDE, **_TWO_KINDS),
    "lfm3 plain": _causal("Lfm3", "qk", base=_WIDE, use_attention_gate=False, **_TWO_KINDS),
    "hrm_text": _causal("HrmText", base=_HRM, H_cycles=1, L_cycles=2, more={"layers": (0, 1, 2)}),
    "hrm_text biases": _causal("HrmText", base=_HRM, H_cycles=1, L_cycles=1, attention_bias=True),
    "beam": _sparse("Beam", "qk", base=_WIDE, **_TWO_KINDS),
    "emu3_text": _causal("Emu3", base=_WIDE),
    "aria_text": _causal("AriaText", base=_WIDE, moe_num_experts=2, moe_topk=1, experts_implementation="eager"),
    "exaone_moe": _sparse("ExaoneMoe", "qk", base=_WIDE, n_group=1, topk_group=1, num_shared_experts=1, **_TWO_KINDS),
    "granitemoe_swa": _sparse(
        "GraniteMoeSWA", "softmax", base=_WIDE, attention_multiplier=0.2, **_TWO_KINDS, more={"implementation": "eager"}
    ),
    **{
        name: _causal("Llama", base=_WIDE, more={"config_class": config})
        for name, config in (
            ("exaone", "ExaoneConfig"),
            ("internlm3", "InternLM3Config"),
            ("iquestcoder", "IQuestCoderConfig"),
        )
    },
    "eurobert": Model("EuroBertForMaskedLM", {**_WIDE, "mask_token_id": 3}, **_SELF),
    "roformer": Model(
        "RoFormerForMaskedLM",
        {**_MHA, "embedding_size": 20},
        query="attention.self.query",
        output="attention.output.dense",
        takes_positions=False,
        padded=False,
        implementation="eager",
    ),
    "modernbert": Model(
        "ModernBertForMaskedLM",
        {**_MHA, "local_attention": 6, "layer_types": [SLIDING, FULL], "norm_bias": True},
        query="attn.Wqkv",
        output="attn.Wo",
        float32=("qk",),
        gain=1.2,
    ),
    "modernbert-decoder": Model(
        "ModernBertDecoderForCausalLM",
        {**_MHA, "local_attention": 10, "layer_types": [SLIDING, FULL], "attention_bias": True},
        query="attn.q_proj",
        output="attn.Wo",
        float32=("qk",),
    ),
    "olmo_hybrid": _causal("OlmoHybrid", "qk", layer_types=[FULL, LINEAR], more=FIRST),
}

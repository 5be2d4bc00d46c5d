"""Families by hand: a config class, the older layout, and the spec worked out from transformers' modelling code."""

from portpe.encodings import (
    AlibiEncoding,
    DefaultSchedule,
    LearnedEncoding,
    RotaryEncoding,
    YarnSchedule,
)
from portpe.layer_parts import EmbeddingProjection, Norm, ProjectionBiases
from portpe.spec import AttentionSpec

ALL = ProjectionBiases(q=True, k=True, v=True, o=True)
NONE = ProjectionBiases()
QKV = ProjectionBiases(q=True, k=True, v=True)


def default(width, theta=10000.0, pairing="half"):
    return RotaryEncoding(width=width, pairing=pairing, schedule=DefaultSchedule(rope_theta=theta))


def spec(hidden, heads, kv_heads, head_dim, length, **fields):
    return AttentionSpec(
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        max_position_embeddings=length,
        **{"scale": head_dim**-0.5} | fields,
    )


# Sizes by transformers' usual names: hidden is not heads * head_dim where head_dim is the config's own.
GQA = {
    "hidden_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 320,
}
MHA = {key: value for key, value in GQA.items() if key != "num_key_value_heads"}
RMS = Norm(kind="rms", eps=3e-6)
HEAD_LAYER_NORM = Norm(kind="layer", eps=2e-5, scope="head", per_head_weight=True)
PHI_NORM = Norm(kind="layer", eps=2e-5, scope="head", bias=True)

# (config class, its keywords, the older layout, the spec of layer 0)
ROTARY = {
    "llama": (
        "LlamaConfig",
        GQA | {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}, "attention_bias": True},
        GQA | {"rope_theta": 20000.0, "attention_bias": True, "rope_scaling": None},
        spec(72, 6, 2, 12, 320, rotary=default(12, 20000.0), biases=ALL),
    ),
    "llama with head_dim": (
        "LlamaConfig",
        GQA | {"head_dim": 20},
        GQA | {"head_dim": 20, "rope_theta": 10000.0},
        spec(72, 6, 2, 20, 320, rotary=default(20), biases=NONE),
    ),
    "mistral": (
        "MistralConfig",
        GQA | {"sliding_window": 9, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        GQA | {"sliding_window": 9, "rope_theta": 1e6},
        spec(72, 6, 2, 12, 320, rotary=default(12, 1e6), window=9),
    ),
    "mistral without a window": (
        "MistralConfig",
        GQA | {"sliding_window": None},
        GQA | {"sliding_window": None, "rope_theta": 10000.0},
        spec(72, 6, 2, 12, 320, rotary=default(12)),
    ),
    "qwen2": (
        "Qwen2Config",
        GQA | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
        GQA | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0, "rope_theta": 10000.0},
        spec(72, 6, 2, 12, 320, rotary=default(12), biases=QKV, window=9),
    ),
    "qwen3": (
        "Qwen3Config",
        GQA | {"head_dim": 16, "rms_norm_eps": 3e-6},
        GQA | {"head_dim": 16, "rms_norm_eps": 3e-6, "rope_theta": 10000.0},
        spec(72, 6, 2, 16, 320, rotary=default(16), q_norm=RMS, k_norm=RMS),
    ),
    "phi": (
        "PhiConfig",
        GQA | {"qk_layernorm": True, "layer_norm_eps": 2e-5},
        GQA | {"qk_layernorm": True, "layer_norm_eps": 2e-5, "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        spec(72, 6, 2, 12, 320, rotary=default(6), biases=ALL, q_norm=PHI_NORM, k_norm=PHI_NORM),
    ),
    "phi3": (
        "Phi3Config",
        GQA | {"sliding_window": 11, "rope_parameters": {"rope_theta": 5e4, "partial_rotary_factor": 0.5}},
        GQA | {"sliding_window": 11, "rope_theta": 5e4, "partial_rotary_factor": 0.5},
        spec(72, 6, 2, 12, 320, rotary=default(6, 5e4), window=11),
    ),
    "gemma": (
        "GemmaConfig",
        GQA | {"head_dim": 20},
        GQA | {"head_dim": 20, "rope_theta": 10000.0},
        spec(72, 6, 2, 20, 320, rotary=default(20)),
    ),
    "gpt_neox": (
        "GPTNeoXConfig",
        MHA | {"rope_parameters": {"rope_theta": 3e4, "partial_rotary_factor": 0.5}},
        MHA | {"rotary_emb_base": 30000, "rotary_pct": 0.5},
        spec(72, 6, 6, 12, 320, rotary=default(6, 3e4), biases=ALL),
    ),
    "gptj": (
        "GPTJConfig",
        {"n_embd": 72, "n_layer": 4, "n_head": 6, "n_positions": 320, "rotary_dim": 8},
        {"n_embd": 72, "n_layer": 4, "n_head": 6, "n_positions": 320, "rotary_dim": 8, "rotary": True},
        spec(72, 6, 6, 12, 320, rotary=default(8, pairing="interleaved")),
    ),
    "cohere": (
        "CohereConfig",
        GQA | {"use_qk_norm": True, "layer_norm_eps": 2e-5},
        GQA | {"use_qk_norm": True, "layer_norm_eps": 2e-5, "rope_theta": 500000.0},
        spec(
            72,
            6,
            2,
            12,
            320,
            rotary=default(12, 500000.0, "interleaved"),
            q_norm=HEAD_LAYER_NORM,
            k_norm=HEAD_LAYER_NORM,
        ),
    ),
    "glm": (
        "GlmConfig",
        GQA | {"head_dim": 16},
        GQA | {"head_dim": 16, "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        spec(72, 6, 2, 16, 320, rotary=default(8, pairing="interleaved"), biases=QKV),
    ),
    "glm4": (
        "Glm4Config",
        GQA | {"head_dim": 16, "attention_bias": False},
        GQA | {"head_dim": 16, "rope_theta": 10000.0, "attention_bias": False},
        spec(72, 6, 2, 16, 320, rotary=default(8, pairing="interleaved")),
    ),
    "olmo2": (
        "Olmo2Config",
        GQA | {"rms_norm_eps": 3e-6},
        GQA | {"rms_norm_eps": 3e-6, "rope_theta": 10000.0},
        spec(
            72,
            6,
            2,
            12,
            320,
            rotary=default(12),
            q_norm=Norm(kind="rms", eps=3e-6, scope="all_heads"),
            k_norm=Norm(kind="rms", eps=3e-6, scope="all_heads"),
        ),
    ),
    "gpt_oss": (
        "GptOssConfig",
        GQA | {"head_dim": 16, "sliding_window": 7},
        GQA
        | {
            "head_dim": 16,
            "sliding_window": 7,
            "rope_theta": 150000,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        spec(
            72,
            6,
            2,
            16,
            320,
            rotary=RotaryEncoding(
                width=16,
                schedule=YarnSchedule(
                    rope_theta=150000.0, factor=32.0, original_max_position_embeddings=4096, truncate=False
                ),
                attention_factor=1.3465735902799727,  # 0.1 ln 32 + 1
            ),
            biases=ALL,
            window=7,
            sinks=True,
        ),
    ),
}
LN = {"kind": "layer", "bias": True}
ABSOLUTE = {
    "gpt2": (
        "GPT2Config",
        {"n_embd": 72, "n_layer": 4, "n_head": 6, "n_positions": 40, "layer_norm_epsilon": 2e-5},
        {"n_embd": 72, "n_layer": 4, "n_head": 6, "n_positions": 40, "n_ctx": 40, "layer_norm_epsilon": 2e-5},
        spec(
            72,
            6,
            6,
            12,
            40,
            embedding=LearnedEncoding(rows=40, width=72),
            input_norm=Norm(eps=2e-5, **LN),
            biases=ALL,
        ),
    ),
    "opt": (
        "OPTConfig",
        MHA | {"max_position_embeddings": 40, "word_embed_proj_dim": 20},
        MHA | {"max_position_embeddings": 40, "word_embed_proj_dim": 20},
        spec(
            72,
            6,
            6,
            12,
            40,
            embedding=LearnedEncoding(rows=42, width=72, offset=2),
            input_norm=Norm(eps=1e-5, **LN),
            biases=ALL,
        ),
    ),
    "opt with its norm after attention": (
        "OPTConfig",
        MHA | {"do_layer_norm_before": False, "enable_bias": False},
        MHA | {"do_layer_norm_before": False, "enable_bias": False},
        spec(72, 6, 6, 12, 320, embedding=LearnedEncoding(rows=322, width=72, offset=2)),
    ),
    "opt without affine norms": (
        "OPTConfig",
        MHA | {"layer_norm_elementwise_affine": False},
        MHA | {"layer_norm_elementwise_affine": False},
        spec(
            72,
            6,
            6,
            12,
            320,
            embedding=LearnedEncoding(rows=322, width=72, offset=2),
            input_norm=Norm(kind="layer", eps=1e-5, affine=False),
            biases=ALL,
        ),
    ),
    "bert": (
        "BertConfig",
        MHA,
        MHA | {"position_embedding_type": "absolute"},
        spec(
            72,
            6,
            6,
            12,
            320,
            causal=False,
            embedding=LearnedEncoding(rows=320, width=72),
            input_norm=Norm(eps=1e-12, **LN),
            biases=ALL,
        ),
    ),
    "bert as a decoder": (
        "BertConfig",
        MHA | {"is_decoder": True},
        MHA | {"is_decoder": True},
        spec(
            72,
            6,
            6,
            12,
            320,
            causal=True,
            embedding=LearnedEncoding(rows=320, width=72),
            input_norm=Norm(eps=1e-12, **LN),
            biases=ALL,
        ),
    ),
    "roberta": (
        "RobertaConfig",
        MHA | {"max_position_embeddings": 44, "pad_token_id": 3},
        MHA | {"max_position_embeddings": 44, "pad_token_id": 3},
        spec(
            72,
            6,
            6,
            12,
            40,  # rows 0..3 are padding_idx and those before it
            causal=False,
            embedding=LearnedEncoding(rows=44, width=72, offset=4),
            input_norm=Norm(eps=1e-12, **LN),
            biases=ALL,
        ),
    ),
    "albert": (
        "AlbertConfig",
        MHA | {"embedding_size": 20},
        MHA | {"embedding_size": 20, "down_scale_factor": 1, "net_structure_type": 0},
        spec(
            72,
            6,
            6,
            12,
            320,
            causal=False,
            embedding=LearnedEncoding(rows=320, width=20),
            embedding_projection=EmbeddingProjection(width=20, bias=True),
            input_norm=Norm(eps=1e-12, **LN),
            biases=ALL,
        ),
    ),
}
ALIBI = {
    "bloom": (
        "BloomConfig",
        {"hidden_size": 72, "n_layer": 4, "n_head": 6},
        {"n_embed": 72, "n_layer": 4, "num_attention_heads": 6, "offset_alibi": 100},
        spec(72, 6, 6, 12, None, bias=(AlibiEncoding(contract="bloom"),), biases=ALL),
    ),
    "mpt": (
        "MptConfig",
        {
            "d_model": 72,
            "n_layers": 4,
            "n_heads": 6,
            "max_seq_len": 40,
            "attn_config": {"alibi_bias_max": 16, "clip_qkv": 6.0, "softmax_scale": 0.3},
        },
        {
            "d_model": 72,
            "n_layers": 4,
            "n_heads": 6,
            "max_seq_len": 40,
            "attn_config": {"alibi": True, "alibi_bias_max": 16, "clip_qkv": 6, "softmax_scale": 0.3, "qk_ln": False},
        },
        spec(72, 6, 6, 12, 40, scale=0.3, clip_qkv=6.0, bias=(AlibiEncoding(contract="mpt", bias_max=16.0),)),
    ),
    "mpt without attn_config": (
        "MptConfig",
        {"d_model": 72, "n_layers": 4, "n_heads": 6, "max_seq_len": 40},
        {"d_model": 72, "n_layers": 4, "n_heads": 6, "max_seq_len": 40},
        spec(72, 6, 6, 12, 40, bias=(AlibiEncoding(contract="mpt"),)),
    ),
    "falcon with one key head": (
        "FalconConfig",
        MHA,
        MHA | {"multi_query": True, "rope_theta": 10000.0},
        spec(72, 6, 1, 12, 320, rotary=default(12)),
    ),
    "falcon of the new architecture": (
        "FalconConfig",
        MHA | {"new_decoder_architecture": True, "num_kv_heads": 2},
        MHA | {"new_decoder_architecture": True, "num_kv_heads": 2, "multi_query": True},
        spec(72, 6, 2, 12, 320, rotary=default(12)),
    ),
    "falcon with alibi": (
        "FalconConfig",
        MHA | {"alibi": True, "bias": True, "multi_query": False},
        MHA | {"alibi": True, "bias": True, "multi_query": False},
        spec(72, 6, 6, 12, 320, bias=(AlibiEncoding(contract="falcon", scale=12**-0.5),), biases=ALL),
    ),
}

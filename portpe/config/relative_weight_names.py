"""Where families whose scores read vectors of the distance keep the tensors of an attention layer: one row a family."""

from __future__ import annotations

from portpe.config.weight_layout import Fused, WeightNames, separate


def _linear(layer: str, norm: str, **others: str) -> dict[str, str]:
    """Names of wav2vec 2's Conformers and of ESPnet's."""
    attention = f"{layer}.self_attn"
    return {
        **{f"{short}_proj": f"{attention}.linear_{short}" for short in "qkv"},
        "o_proj": f"{attention}.linear_out",
        "relative_proj": f"{attention}.linear_pos",
        "content_bias": f"{attention}.pos_bias_u",
        "position_bias": f"{attention}.pos_bias_v",
        "relative_key": f"{attention}.distance_embedding",
        "input_norm": f"{layer}.{norm}",
        **others,
    }


_CONFORMER = _linear("encoder.layers.{layer}", "self_attn_layer_norm")
_FASTSPEECH2 = _linear("{part}.conformer_layers.{layer}", "self_attn_layer_norm")

_SPEECHT5 = {
    **{f"{short}_proj": f"layers.{{layer}}.attention.{short}_proj" for short in "qkv"},
    "o_proj": "layers.{layer}.attention.out_proj",
    "relative_key": "embed_positions.pe_k",
}

_PARAKEET = separate(
    "layers.{layer}.self_attn",
    "o_proj",
    relative_proj="layers.{layer}.self_attn.relative_k_proj",
    content_bias="layers.{layer}.self_attn.bias_u",
    position_bias="layers.{layer}.self_attn.bias_v",
    input_norm="layers.{layer}.norm_self_att",
)

_XLNET_ATTENTION = "layer.{layer}.rel_attn"
_XLNET = {
    **{f"{short}_proj": f"{_XLNET_ATTENTION}.{short}" for short in "qkvo"},
    "relative_proj": f"{_XLNET_ATTENTION}.r",
    "content_bias": f"{_XLNET_ATTENTION}.r_w_bias",
    "position_bias": f"{_XLNET_ATTENTION}.r_r_bias",
}

_DEBERTA_ATTENTION = "encoder.layer.{layer}.attention"
_DEBERTA = {
    "o_proj": f"{_DEBERTA_ATTENTION}.output.dense",
    "input_norm": "embeddings.LayerNorm",
    "position_embedding": "embeddings.position_embeddings",
    "relative_embedding": "encoder.rel_embeddings",
}

_SEAMLESS_SPEECH = WeightNames(
    ("speech_encoder.", "model.speech_encoder.", ""), _linear("encoder.layers.{layer}", "self_attn_layer_norm")
)
_SEAMLESS_TEXT = WeightNames(
    ("text_{part}.", "model.text_{part}.", ""),
    separate("layers.{layer}.self_attn", "out_proj", input_norm="layers.{layer}.self_attn_layer_norm"),
)
_SEAMLESS = {
    f"{model_type}{part}": names
    for model_type in ("seamless_m4t", "seamless_m4t_v2")
    for part, names in (("", _SEAMLESS_TEXT), (" speech", _SEAMLESS_SPEECH))
}
_GRANITE = WeightNames(
    ("model.encoder.", "encoder.", ""),
    {
        "q_proj": "layers.{layer}.attn.to_q",
        "o_proj": "layers.{layer}.attn.to_out",
        "relative_key": "layers.{layer}.attn.rel_pos_emb",
        "input_norm": "layers.{layer}.attn.pre_norm",
    },
    fused=Fused("layers.{layer}.attn.to_kv", "kv_stacked"),
)
_VITS = "encoder.layers.{layer}.attention"
_WAVLM = "encoder.layers.{layer}.attention"
_SEWD = "encoder.encoder.layer.{layer}.attention"

RELATIVE_ROWS: dict[str, WeightNames] = {
    "deberta": WeightNames(
        ("deberta.", ""),
        {
            **_DEBERTA,
            "q_proj.bias": f"{_DEBERTA_ATTENTION}.self.q_bias",
            "v_proj.bias": f"{_DEBERTA_ATTENTION}.self.v_bias",
            "position_key_proj": f"{_DEBERTA_ATTENTION}.self.pos_proj",
            "position_query_proj": f"{_DEBERTA_ATTENTION}.self.pos_q_proj",
        },
        fused=Fused(f"{_DEBERTA_ATTENTION}.self.in_proj", "grouped"),
    ),
    "deberta-v2": WeightNames(
        ("deberta.", ""),
        {
            **_DEBERTA,
            **{
                f"{short}_proj": f"{_DEBERTA_ATTENTION}.self.{name}_proj"
                for short, name in {"q": "query", "k": "key", "v": "value"}.items()
            },
            "position_key_proj": f"{_DEBERTA_ATTENTION}.self.pos_key_proj",
            "position_query_proj": f"{_DEBERTA_ATTENTION}.self.pos_query_proj",
            "relative_norm": "encoder.LayerNorm",
        },
    ),
    "fastspeech2_conformer": WeightNames(("model.", ""), _FASTSPEECH2),
    "granite_speech5_encoder": WeightNames(
        ("encoder.", ""),
        separate(
            "layers.{layer}.self_attn",
            "o_proj",
            relative_key="layers.{layer}.self_attn.rel_pos_emb",
            input_norm="layers.{layer}.norm_self_att",
        ),
    ),
    "granite_speech_encoder": _GRANITE,
    "granite_speech_plus_encoder": _GRANITE,
    "nemotron_asr_streaming_encoder": WeightNames(("encoder.", ""), _PARAKEET),
    "parakeet_encoder": WeightNames(("encoder.", ""), _PARAKEET),
    **_SEAMLESS,
    "sew-d": WeightNames(
        ("sew_d.", ""),
        {
            **{
                f"{short}_proj": f"{_SEWD}.self.{name}_proj"
                for short, name in {"q": "query", "k": "key", "v": "value"}.items()
            },
            "o_proj": f"{_SEWD}.output.dense",
            "position_key_proj": f"{_SEWD}.self.pos_key_proj",
            "position_query_proj": f"{_SEWD}.self.pos_query_proj",
            "relative_embedding": "encoder.encoder.rel_embeddings",
            "relative_norm": "encoder.encoder.LayerNorm",
        },
    ),
    "speecht5": WeightNames(
        ("speecht5.encoder.wrapped_encoder.", "encoder.wrapped_encoder.", "wrapped_encoder.", ""), _SPEECHT5
    ),
    "vits": WeightNames(
        ("text_encoder.", ""),
        separate(_VITS, "out_proj", relative_key=f"{_VITS}.emb_rel_k", relative_value=f"{_VITS}.emb_rel_v"),
        bare=frozenset({"relative_key", "relative_value"}),
    ),
    "wav2vec2-bert": WeightNames(("wav2vec2_bert.", ""), _CONFORMER),
    "wav2vec2-conformer": WeightNames(("wav2vec2_conformer.", ""), _CONFORMER),
    "wavlm": WeightNames(
        ("wavlm.", ""),
        {
            **separate(
                _WAVLM,
                "out_proj",
                relative_gate=f"{_WAVLM}.gru_rel_pos_linear",
                relative_gate_scale=f"{_WAVLM}.gru_rel_pos_const",
                input_norm="encoder.layers.{layer}.layer_norm",
            ),
            "relative_attention_bias": "encoder.layers.0.attention.rel_attn_embed",
        },
        bare=frozenset({"relative_gate_scale"}),
    ),
    "xlnet": WeightNames(
        ("transformer.", ""),
        _XLNET,
        transposed=("q_proj", "k_proj", "v_proj", "relative_proj"),
        bare=frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "relative_proj"}),
    ),
}

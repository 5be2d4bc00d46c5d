"""transformers' own models, tiny: one row a family or variant, with unequal sizes and wide random weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.reference.transformers_model import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, TOKENS, Model

_LLAMA = dict(
    **TOKENS,
    hidden_size=HIDDEN,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    num_hidden_layers=2,
    intermediate_size=20,
    max_position_embeddings=64,
)
_SQUARE = {**_LLAMA, "hidden_size": HEADS * HEAD_DIM}  # for families that take head_dim from hidden_size
_NEOX = {name: value for name, value in _SQUARE.items() if name not in ("num_key_value_heads", "head_dim")}
_BERT = {name: _SQUARE[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")} | {
    **TOKENS,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
}
_GPT = dict(**TOKENS, n_embd=48, n_head=HEADS, n_layer=2, n_inner=20, n_positions=40)


_SELF = {"query": "self_attn.q_proj", "output": "self_attn.o_proj"}
_OUT = {"query": "self_attn.q_proj", "output": "self_attn.out_proj"}
_BERT_PATHS = {"query": "attention.self.query", "output": "attention.output.dense"}
_FUSED = {"query": "self_attention.query_key_value", "output": "self_attention.dense"}
_FALCON = dict(**TOKENS, hidden_size=48, num_attention_heads=HEADS, num_hidden_layers=2, ffn_hidden_size=20)


_WHISPER_STACK = {"layers": 2, "attention_heads": HEADS, "ffn_dim": 20}


def _llama(cls: str, float32: tuple[str, ...] = (), base: dict[str, Any] = _LLAMA, **config: Any) -> Model:
    return Model(cls, {**base, **config}, **_SELF, float32=float32)


_MLA = {name: value for name, value in _LLAMA.items() if name not in ("num_key_value_heads", "head_dim")} | {
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "q_lora_rank": 14,
    "kv_lora_rank": 20,
    "num_key_value_heads": HEADS,
}
_DENSE = {"first_k_dense_replace": 2}
_DENSE_LAYERS = {"mlp_layer_types": ["dense", "dense"]}
# Past the original length in every call: the softmax multiplier, squared, is 1.8
_YARN_OF_DEEPSEEK = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 40.0,
    "original_max_position_embeddings": 4,
    "mscale": 0.8,
    "mscale_all_dim": 0.9,
}


_INDEXER = {"index_head_dim": 8, "index_n_heads": 3}
_NTK_ALPHA = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 1.0, "alpha": 5.0}


def _mla(cls: str, float32: tuple[str, ...] = (), **config: Any) -> Model:
    paths = {"query": "kv_a_proj_with_mqa", "output": "o_proj"}
    return Model(cls, {**_MLA, **config}, **paths, float32=float32)


def _phi(**config: Any) -> Model:
    return Model("PhiForCausalLM", {**_SQUARE, **config}, query="self_attn.q_proj", output="self_attn.dense")


def _phi3(**config: Any) -> Model:
    return Model("Phi3ForCausalLM", {**_LLAMA, **config}, query="self_attn.qkv_proj", output="self_attn.o_proj")


def _neox(**config: Any) -> Model:
    return Model("GPTNeoXForCausalLM", {**_NEOX, **config}, query="attention.query_key_value", output="attention.dense")


def _gpt2(gain: float = 2.9, **config: Any) -> Model:
    return Model("GPT2LMHeadModel", {**_GPT, **config}, query="attn.c_attn", output="attn.c_proj", gain=gain)


def _opt(**config: Any) -> Model:
    base = dict(**TOKENS, hidden_size=48, num_attention_heads=HEADS, num_hidden_layers=2, ffn_dim=20)
    return Model("OPTForCausalLM", {**base, "max_position_embeddings": 40, "word_embed_proj_dim": 48, **config}, **_OUT)


def _gptj(**config: Any) -> Model:
    return Model("GPTJForCausalLM", {**_GPT, "n_embd": 96, **config}, query="attn.q_proj", output="attn.out_proj")


def _falcon(**config: Any) -> Model:
    alibi = config.get("alibi", False)  # whose scale portpe folds into float32 slopes
    return Model(
        "FalconForCausalLM",
        {**_FALCON, **config},
        **_FUSED,
        float32=("bias",) if alibi else (),
        takes_positions=not alibi,
    )


def _mpt(heads: int = HEADS, **config: Any) -> Model:
    base = dict(**TOKENS, d_model=48, n_heads=heads, n_layers=2, expansion_ratio=1, max_seq_len=40)
    return Model(
        "MptForCausalLM",
        {**base, **config},
        query="attn.Wqkv",
        output="attn.out_proj",
        float32=("softmax", "bias"),
        takes_positions=False,
        implementation="eager",
    )


def _bloom(heads: int) -> Model:
    return Model(
        "BloomForCausalLM",
        dict(**TOKENS, hidden_size=48, n_head=heads, n_layer=2),
        **_FUSED,
        float32=("softmax", "bias"),
        takes_positions=False,
        implementation="eager",
    )


def _whisper(part: str) -> Model:
    sizes = {f"{stack}_{name}": n for stack in ("encoder", "decoder") for name, n in _WHISPER_STACK.items()}
    config = {
        **TOKENS,
        **sizes,
        "d_model": 48,
        "max_source_positions": 13,
        "max_target_positions": 40,
        "num_mel_bins": 5,
    }
    return Model("WhisperForConditionalGeneration", {**config, "decoder_start_token_id": 1}, **_OUT, part=part)


MODELS: dict[str, Model] = {
    "llama": _llama("LlamaForCausalLM", rope_theta=500.0),
    "llama biases": _llama("LlamaForCausalLM", attention_bias=True),
    "mistral": _llama("MistralForCausalLM", sliding_window=None),
    "mistral window": _llama("MistralForCausalLM", sliding_window=5),
    "qwen2": _llama("Qwen2ForCausalLM", base=_SQUARE),
    "qwen2 window": _llama(
        "Qwen2ForCausalLM", base=_SQUARE, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": _llama("Qwen3ForCausalLM", ("qk",)),
    "phi": _phi(),
    "phi qk norm": _phi(qk_layernorm=True),
    "phi linear": _phi(rope_parameters={"rope_type": "linear", "factor": 3.0, "partial_rotary_factor": 0.5}),
    "phi3": _phi3(),
    "phi3 partial window": _phi3(partial_rotary_factor=0.5, sliding_window=5),
    "gemma": _llama("GemmaForCausalLM"),
    "gpt_neox": _neox(),
    "gpt_neox wide": _neox(rotary_pct=1.0, attention_bias=False),
    "gptj": _gptj(rotary_dim=6),
    "gptj whole head": _gptj(rotary_dim=16),
    "cohere": _llama("CohereForCausalLM", ("qk",)),
    "cohere qk norm": _llama("CohereForCausalLM", ("qk",), use_qk_norm=True),
    "glm": _llama("GlmForCausalLM", attention_bias=True),
    "glm4": _llama("Glm4ForCausalLM", attention_bias=True),
    "olmo2": _llama("Olmo2ForCausalLM", ("qk",), base=_SQUARE),
    "gpt_oss": Model(
        "GptOssForCausalLM",
        {**_LLAMA, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 5}
        | {"experts_implementation": "eager"},  # the grouped product has no float64
        **_SELF,
        implementation="eager",
    ),
    "deepseek_v2": replace(_mla("DeepseekV2ForCausalLM", ("qk",), **_DENSE), widest=2e-4),
    "deepseek_v2 lite": replace(
        _mla(
            "DeepseekV2ForCausalLM",
            ("qk",),
            **_DENSE,
            q_lora_rank=None,
            attention_bias=True,
            rope_parameters=_YARN_OF_DEEPSEEK,
        ),
        widest=2e-4,
    ),
    "deepseek_v3": _mla("DeepseekV3ForCausalLM", **_DENSE, rope_parameters=_YARN_OF_DEEPSEEK),
    "deepseek_v3 halves": _mla(
        "DeepseekV3ForCausalLM", **_DENSE, rope_interleave=False, attention_bias=True, q_lora_rank=None
    ),
    "deepseek_v32": _mla(
        "DeepseekV32ForCausalLM", **_DENSE_LAYERS, index_topk=64, **_INDEXER, rope_parameters=_YARN_OF_DEEPSEEK
    ),
    "glm_moe_dsa": _mla(
        "GlmMoeDsaForCausalLM", **_DENSE_LAYERS, index_topk=64, **_INDEXER, rope_parameters=_YARN_OF_DEEPSEEK
    ),
    "hy_v4": replace(
        _mla(
            "HYV4ForCausalLM",
            ("softmax",),
            **_DENSE_LAYERS,
            index_topk=64,
            **_INDEXER,
            rope_parameters=_YARN_OF_DEEPSEEK,
        ),
        implementation="eager",
    ),
    "sarvam_mla": replace(
        _mla("DeepseekV3ForCausalLM", **_DENSE, q_lora_rank=None, rope_parameters=_YARN_OF_DEEPSEEK),
        config_class="SarvamMLAConfig",
    ),
    "youtu": _mla("YoutuForCausalLM", rope_parameters=_YARN_OF_DEEPSEEK),
    "axk1": _mla("AXK1ForCausalLM", **_DENSE_LAYERS, rope_parameters=_YARN_OF_DEEPSEEK),
    "glm4_moe_lite": _mla("Glm4MoeLiteForCausalLM", **_DENSE_LAYERS, rope_parameters=_YARN_OF_DEEPSEEK),
    "minicpm3": _mla("MiniCPM3ForCausalLM", rope_parameters=_YARN_OF_DEEPSEEK),
    "longcat_flash": replace(
        _mla(
            "LongcatFlashForCausalLM",
            num_hidden_layers=4,
            head_dim=8,
            ffn_hidden_size=20,
            n_routed_experts=3,
            moe_topk=2,
            zero_expert_num=1,
            expert_ffn_hidden_size=6,
            experts_implementation="eager",
        ),
        layers=(3, 2, 1, 0),  # two in each of the model's
    ),
    "kimi_linear": _mla("KimiLinearForCausalLM", **_DENSE_LAYERS, layer_types=["full_attention", "full_attention"]),
    "bailing_hybrid": replace(
        _mla(
            "BailingHybridForCausalLM",
            ("gate",),
            **_DENSE,
            num_hidden_layers=1,
            layer_types=["full_attention"],
            rope_parameters=_YARN_OF_DEEPSEEK,
        ),
        layers=(0,),
    ),
    "hunyuan_v1_dense": _llama("HunYuanDenseV1ForCausalLM", ("qk",), rope_parameters=_NTK_ALPHA),
    "hunyuan_v1_dense biases": _llama("HunYuanDenseV1ForCausalLM", ("qk",), attention_bias=True, base=_SQUARE),
    "hunyuan_v1_moe": replace(
        _llama(
            "HunYuanMoEV1ForCausalLM",
            ("qk",),
            rope_parameters=_NTK_ALPHA,
            num_experts=2,
            experts_implementation="eager",
        ),
        widest=1e-4,
    ),
    "mistral4": _mla(
        "Mistral4ForCausalLM", **_DENSE, rope_parameters={**_YARN_OF_DEEPSEEK, "llama_4_scaling_beta": 0.4}
    ),
    "ministral3": _llama(
        "Ministral3ForCausalLM", rope_parameters={**_YARN_OF_DEEPSEEK, "llama_4_scaling_beta": 0.4}, sliding_window=5
    ),
    "llama4 chunks": replace(
        _llama(
            "Llama4ForCausalLM",
            ("qk",),
            attention_chunk_size=5,
            moe_layers=[],
            no_rope_layers=[1, 0],
            floor_scale=4,
            rope_theta=100.0,
            use_qk_norm=False,
        ),
        padded=False,
        widest=2e-4,
    ),
    "llama4": replace(
        _llama(
            "Llama4ForCausalLM",
            ("qk",),
            no_rope_layers=[1, 0],
            attention_chunk_size=None,
            moe_layers=[],
            floor_scale=4,
            attn_scale=0.4,
            rope_theta=100.0,
        ),
        padded=False,
        widest=1e-4,
        spread=0.8,  # of normed queries and keys
    ),
    "gpt2": _gpt2(),
    "gpt2 by layer": _gpt2(gain=6.0, scale_attn_by_inverse_layer_idx=True),
    "gpt2 unscaled": _gpt2(gain=1.5, scale_attn_weights=False),
    "opt": _opt(),
    "opt projected": _opt(word_embed_proj_dim=20),
    "opt norm after": _opt(do_layer_norm_before=False),
    "bert": Model("BertForMaskedLM", _BERT, **_BERT_PATHS),
    "roberta": Model(
        "RobertaForMaskedLM", {**_BERT, "pad_token_id": 1, "bos_token_id": 0}, **_BERT_PATHS, takes_positions=False
    ),
    "albert": Model(
        "AlbertForMaskedLM",
        {**_BERT, "embedding_size": 20, "num_hidden_layers": 4, "num_hidden_groups": 2},
        query="attention.query",
        output="attention.dense",
        layers=(0, 1, 2, 3),
    ),
    "whisper encoder": _whisper("encoder"),
    "whisper decoder": _whisper("decoder"),
    "bloom": _bloom(6),
    "bloom 12 heads": _bloom(12),
    "mpt": _mpt(),
    "mpt 12 heads": _mpt(12),
    "mpt clip and scale": _mpt(attn_config={"clip_qkv": 1.5, "softmax_scale": 0.4}),
    "falcon": _falcon(),
    "falcon biases": _falcon(bias=True, multi_query=False),
    "falcon new": _falcon(new_decoder_architecture=True, num_kv_heads=KV_HEADS),
    "falcon alibi": _falcon(alibi=True),
    "falcon alibi heads": _falcon(alibi=True, multi_query=False, bias=True),
}

# Every rope type that transformers has, on llama. Original lengths are such that the ramps of yarn and llama3 lie
# between the four frequencies, and that calls go past what dynamic and longrope were trained on.
_PAIRS = HEAD_DIM // 2
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": _YARN,
    "yarn not truncated": {**_YARN, "truncate": False},
    "yarn attention factor": {**_YARN, "attention_factor": 0.8},
    "yarn mscale": {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.4},
    "yarn betas": {**_YARN, "beta_fast": 6.0, "beta_slow": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.3, 1.6][:_PAIRS],
        "long_factor": [1.2, 2.0, 3.5, 6.0][:_PAIRS],
        "original_max_position_embeddings": 16,
        "factor": 4.0,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0},
}
LENGTH_DEPENDENT = ("dynamic", "longrope")


def rope_model(name: str) -> Model:
    """A llama of one rope type; base 100, so that eight channels hold fast and slow frequencies."""
    parameters = {"rope_theta": 100.0, **ROPES[name]}
    trained = 4 * parameters.get("original_max_position_embeddings", 4)
    return _llama("LlamaForCausalLM", max_position_embeddings=trained, rope_parameters=parameters)

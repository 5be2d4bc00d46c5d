"""What model cards, papers and the numbers of published configs say of each checkpoint, worked by hand."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


def half(width, theta=1e4, law="default", magnitude=1.0):
    return ("half", width, float(theta), law, magnitude)


def pairs(width, theta=1e4, law="default", magnitude=1.0):
    return ("interleaved", width, float(theta), law, magnitude)


@dataclass
class Card:
    """``sites`` and ``windows`` of layers 0, 1, ... and so on from the start again; ``numbers``: which have attention.

    A site is what turns queries and keys, or the kind of a bias, or None: neither. ``table``: the kind of what is added
    to the embeddings, before layer 0. ``scale``: of the scores, 1 / sqrt(head_dim) where it is left out.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    numbers: Iterable[int]
    sites: tuple[Any, ...]
    windows: tuple[int | None, ...] = (None,)
    table: str | None = None
    scale: float | None = None
    more: dict[str, Any] = field(default_factory=dict)


def card(hidden, heads, kv_heads, head_dim, layers, *sites, windows=(None,), table=None, scale=None, **more):
    numbers = range(layers) if isinstance(layers, int) else layers
    return Card(hidden, heads, kv_heads, head_dim, numbers, sites or (None,), windows, table, scale, more)


def every(period, window):
    """The last of each so many layers sees all."""
    return (window,) * (period - 1) + (None,)


YARN_40 = 0.1 * math.log(40) + 1  # the magnitude of YaRN's paper, in DeepSeek on the scale: squared, for q and for k
GEMMA_3 = (*[half(256, 1e4)] * 5, half(256, 1e6))
GEMMA_3_SCALED = (*[half(256, 1e4)] * 5, half(256, 1e6, "linear"))
COHERE_2 = (*[pairs(128, 5e4)] * 3, None)
EXAONE_4 = (*[half(128, 1e6, "llama3")] * 3, None)
OLMO_3 = (*[half(128, 5e5)] * 3, half(128, 5e5, "yarn", 1.2079441541679836))  # 0.1 ln 8 + 1
MODERN = (half(64, 160000.0), half(64, 1e4), half(64, 1e4))
BOTH_WAYS = {"causal": False}
BASE = (768, 12, 12, 64, 12)

CARDS = {
    # Llama and what is built like it
    "meta-llama/Llama-2-7b-hf": card(4096, 32, 32, 128, 32, half(128)),
    "meta-llama/Llama-3.1-8B-Instruct": card(4096, 32, 8, 128, 32, half(128, 5e5, "llama3")),
    "meta-llama/Llama-3.2-1B": card(2048, 32, 8, 64, 16, half(64, 5e5, "llama3")),
    "meta-llama/Llama-4-Scout-17B-16E text": card(
        5120, 40, 8, 128, 48, *[pairs(128, 5e5, "llama3")] * 3, None, chunk=(8192, 8192, 8192, None)
    ),
    "meta-llama/Llama-4-Scout-17B-16E vision": card(1408, 16, 16, 88, 34, ("interleaved", 88, 1e4, "default", 1.0)),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": card(2048, 32, 4, 64, 22, half(64)),
    "deepseek-ai/deepseek-coder-6.7b-instruct": card(4096, 32, 32, 128, 32, half(128, 1e5, "linear")),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": card(2048, 32, 32, 64, 24, half(64, 130000)),
    "01-ai/Yi-1.5-34B-Chat": card(7168, 56, 8, 128, 60, half(128, 5e6)),
    "llava-hf/llava-1.5-7b-hf": card(4096, 32, 32, 128, 32, half(128)),
    "mistralai/Mistral-7B-v0.1": card(4096, 32, 8, 128, 32, half(128), windows=(4096,)),
    "mistralai/Mistral-7B-Instruct-v0.3": card(4096, 32, 8, 128, 32, half(128, 1e6)),
    "mistralai/Mistral-Nemo-Instruct-2407": card(5120, 32, 8, 128, 40, half(128, 1e6)),
    "mistralai/Mixtral-8x7B-v0.1": card(4096, 32, 8, 128, 32, half(128, 1e6)),
    "mistralai/Devstral-Small-2-24B-Instruct": card(5120, 32, 8, 128, 40, half(128, 1e8, "yarn")),
    "HuggingFaceTB/SmolLM3-3B": card(2048, 16, 4, 128, 36, *[half(128, 5e6)] * 3, None),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": card(5120, 80, 8, 128, 64, half(128, 1e7)),
    "facebook/cwm": card(6144, 48, 8, 128, 64, half(128, 1e6, "llama3"), windows=(None, 8192, 8192, 8192)),
    "nvidia/Minitron-4B-Base": card(3072, 24, 8, 128, 32, half(64)),
    # Qwen
    "Qwen/Qwen2.5-7B-Instruct": card(3584, 28, 4, 128, 28, half(128, 1e6)),
    "Qwen/Qwen3-8B": card(4096, 32, 8, 128, 36, half(128, 1e6)),
    "Qwen/Qwen3-30B-A3B": card(2048, 32, 4, 128, 48, half(128, 1e6)),
    "Qwen/Qwen1.5-MoE-A2.7B": card(2048, 16, 16, 128, 24, half(128, 1e6)),
    "Qwen/Qwen3-Next-80B-A3B-Thinking": card(2048, 16, 2, 256, range(3, 48, 4), half(64, 1e7)),
    "Qwen/Qwen3.5-9B text": card(4096, 16, 4, 256, range(3, 32, 4), half(64, 1e7)),
    "Qwen/Qwen3.5-9B vision": card(1152, 16, 16, 72, 27, half(72), **BOTH_WAYS),
    "Qwen/Qwen2-VL-7B-Instruct text": card(3584, 28, 4, 128, 28, half(128, 1e6)),
    "Qwen/Qwen2-VL-7B-Instruct vision": card(1280, 16, 16, 80, 32, half(80), **BOTH_WAYS),
    "Qwen/Qwen2.5-VL-7B-Instruct text": card(3584, 28, 4, 128, 28, half(128, 1e6)),
    "Qwen/Qwen2.5-VL-7B-Instruct vision": card(1280, 16, 16, 80, 32, half(80), **BOTH_WAYS),
    "Qwen/Qwen3-VL-8B-Instruct text": card(4096, 32, 8, 128, 36, half(128, 5e6)),
    "Qwen/Qwen3-VL-8B-Instruct vision": card(1152, 16, 16, 72, 27, half(72), **BOTH_WAYS),
    # Phi
    "microsoft/phi-1": card(2048, 32, 32, 64, 24, half(32)),
    "microsoft/phi-2": card(2560, 32, 32, 80, 32, half(32)),
    "microsoft/Phi-3-mini-4k-instruct": card(3072, 32, 32, 96, 32, half(96), windows=(2047,)),
    "microsoft/Phi-4-mini-instruct": card(  # sqrt(1 + ln 32 / ln 4096) for 131072 tokens, 32 times 4096
        3072, 24, 8, 128, 32, half(96, 1e4, "longrope", math.sqrt(1 + 5 / 12)), windows=(262144,)
    ),
    "microsoft/phi-4": card(5120, 40, 10, 128, 40, half(128, 250000)),
    # Gemma
    "google/gemma-7b": card(3072, 16, 16, 256, 28, half(256)),
    "google/gemma-2-9b-it": card(3584, 16, 8, 256, 42, half(256), windows=(4096, None), softcap=50.0),
    "google/gemma-2-27b": card(4608, 32, 16, 128, 46, half(128), windows=(4096, None), scale=144**-0.5, softcap=50.0),
    "google/gemma-3-1b-it": card(1152, 4, 1, 256, 26, *GEMMA_3, windows=every(6, 512)),
    "google/gemma-3-270m": card(640, 4, 1, 256, 18, *GEMMA_3, windows=every(6, 512)),
    "google/gemma-3-4b-it": card(2560, 8, 4, 256, 34, *GEMMA_3_SCALED, windows=every(6, 1024)),
    "google/gemma-3-27b-it": card(
        *(5376, 32, 16, 128, 62, *[half(128, 1e4)] * 5, half(128, 1e6, "linear")),
        windows=every(6, 1024),
        scale=168**-0.5,
    ),
    "google/embeddinggemma-300m": card(  # 512 tokens of which half are to either side
        768, 3, 1, 256, 24, *GEMMA_3, causal=False, window_radius=(256,) * 5 + (None,)
    ),
    "google/gemma-3n-E4B": card(
        2048, 8, 2, 256, 35, *[half(256, 1e4)] * 4, half(256, 1e6), windows=every(5, 512), scale=1.0
    ),
    # GPT
    "openai-community/gpt2": card(768, 12, 12, 64, 12, table="learned"),
    "EleutherAI/gpt-neo-1.3B": card(2048, 16, 16, 128, 24, table="learned", windows=(None, 256), scale=1.0),
    "EleutherAI/gpt-j-6b": card(4096, 16, 16, 256, 28, pairs(64)),
    "EleutherAI/gpt-neox-20b": card(6144, 64, 64, 96, 44, half(24)),
    "EleutherAI/pythia-6.9b": card(4096, 32, 32, 128, 32, half(32)),
    "Salesforce/codegen-350M-mono": card(1024, 16, 16, 64, 20, pairs(32)),
    "facebook/opt-125m": card(768, 12, 12, 64, 12, table="learned"),
    "facebook/opt-350m": card(1024, 16, 16, 64, 24, table="learned"),
    "bigcode/gpt_bigcode-santacoder": card(2048, 16, 1, 128, 24, table="learned"),
    "bigcode/starcoderbase-1b": card(2048, 16, 1, 128, 24, table="learned"),
    "bigcode/starcoder2-7b": card(4608, 36, 4, 128, 32, half(128, 1e6), windows=(4096,)),
    "bigcode/starcoder2-15b": card(6144, 48, 4, 128, 40, half(128, 1e5), windows=(4096,)),
    "openai/gpt-oss-120b": card(
        *(2880, 64, 8, 64, 36, half(64, 150000, "yarn", 0.1 * math.log(32) + 1)),
        windows=(128, None),
        sinks=True,
    ),
    # ALiBi
    "bigscience/bloom-560m": card(1024, 16, 16, 64, 24, "alibi"),
    "mosaicml/mpt-7b": card(4096, 32, 32, 128, 32, "alibi"),
    "tiiuae/falcon-rw-1b": card(2048, 32, 32, 64, 24, "alibi"),
    "tiiuae/falcon-7b": card(4544, 71, 1, 64, 32, half(64)),
    "tiiuae/falcon-40b": card(8192, 128, 8, 64, 60, half(64)),
    # other decoders
    "stabilityai/stablelm-2-1_6b": card(2048, 32, 32, 64, 24, half(16)),
    "stabilityai/stablelm-2-12b": card(5120, 32, 8, 160, 40, half(40)),
    "stabilityai/stablelm-zephyr-3b": card(2560, 32, 32, 80, 32, half(20)),
    "allenai/OLMo-7B-hf": card(4096, 32, 32, 128, 32, half(128)),
    "allenai/OLMo-2-1124-7B": card(4096, 32, 32, 128, 32, half(128, 5e5)),
    "allenai/OLMoE-1B-7B-0924": card(2048, 16, 16, 128, 16, half(128)),
    "allenai/Olmo-3.1-32B-Instruct": card(5120, 40, 8, 128, 64, *OLMO_3, windows=every(4, 4096)),
    "CohereLabs/c4ai-command-r-v01": card(8192, 64, 64, 128, 40, pairs(128, 8e6)),
    "CohereLabs/aya-expanse-8b": card(4096, 32, 8, 128, 32, pairs(128)),
    "CohereLabs/c4ai-command-r7b-12-2024": card(4096, 32, 8, 128, 32, *COHERE_2, windows=every(4, 4096)),
    "CohereLabs/tiny-aya-earth": card(2048, 16, 4, 128, 36, *COHERE_2, windows=every(4, 4096)),
    "LGAI-EXAONE/EXAONE-4.0-1.2B": card(2048, 32, 8, 64, 30, half(64, 1e6, "llama3")),
    "LGAI-EXAONE/EXAONE-4.0-32B": card(5120, 40, 8, 128, 64, *EXAONE_4, windows=every(4, 4096)),
    "LGAI-EXAONE/EXAONE-4.5-33B": card(5120, 40, 8, 128, 64, *EXAONE_4, windows=every(4, 4096)),
    "LGAI-EXAONE/K-EXAONE-236B-A23B": card(6144, 64, 8, 128, 48, *[half(128, 1e6)] * 3, None, windows=every(4, 128)),
    "deepseek-ai/DeepSeek-V2-Lite": card(
        2048, 16, 16, 192, 27, pairs(64, 1e4, "yarn"), scale=192**-0.5 * (0.0707 * math.log(40) + 1) ** 2
    ),
    "deepseek-ai/DeepSeek-V3": card(7168, 128, 128, 192, 61, pairs(64, 1e4, "yarn"), scale=192**-0.5 * YARN_40**2),
    "moonshotai/Kimi-K2-Instruct": card(
        7168, 64, 64, 192, 61, pairs(64, 5e4, "yarn"), scale=192**-0.5 * (0.1 * math.log(32) + 1) ** 2
    ),
    "zai-org/glm-4-9b-chat-hf": card(4096, 32, 2, 128, 40, pairs(64)),
    "zai-org/GLM-4-9B-0414": card(4096, 32, 2, 128, 40, pairs(64)),
    "zai-org/GLM-4.5": card(5120, 96, 8, 128, 92, half(64, 1e6)),
    "zai-org/GLM-4.7-Flash": card(2048, 20, 20, 256, 47, pairs(64, 1e6)),
    "ibm-granite/granite-3.1-2b-instruct": card(2048, 32, 8, 64, 40, half(64, 5e6), scale=0.015625),
    "ibm-granite/granite-4.0-h-tiny": card(1536, 12, 4, 128, range(5, 40, 10), None, scale=0.0078125),
    "swiss-ai/Apertus-8B-2509": card(4096, 32, 8, 128, 32, half(128, 12e6, "llama3")),
    "ibm-ai-platform/Bamba-9B": card(4096, 32, 8, 128, (9, 18, 27), half(64)),
    "ai21labs/Jamba-v0.1": card(4096, 32, 8, 128, range(4, 32, 8), None),
    "LiquidAI/LFM2-350M": card(1024, 16, 8, 64, (2, 5, 8, 10, 12, 14), half(64, 1e6)),
    "LiquidAI/LFM2.5-VL-1.6B": card(2048, 32, 8, 64, (2, 5, 8, 10, 12, 14), half(64, 1e6)),
    "Zyphra/Zamba2-7B": card(  # hidden states and embeddings side by side
        7168, 32, 32, 224, (6, *range(11, 78, 6)), half(224), scale=112**-0.5
    ),
    "MiniMaxAI/MiniMax-M2": card(3072, 48, 8, 128, 62, half(64, 5e6)),
    "MiniMaxAI/MiniMax-M2.7": card(3072, 48, 8, 128, 62, half(64, 5e6)),
    "tencent/HunyuanImage-2.1": card(4096, 32, 8, 128, 32, half(128, 1e4, "ntk")),
    "tencent/Hunyuan-MT-7B": card(4096, 32, 8, 128, 32, half(128, 1e4, "ntk")),
    "baidu/ERNIE-4.5-0.3B-PT": card(1024, 16, 2, 128, 18, pairs(128, 5e5)),
    "rednote-hilab/dots.llm1.inst": card(4096, 32, 32, 128, 62, half(128, 1e7)),
    # encoders
    "google-bert/bert-base-uncased": card(*BASE, table="learned", **BOTH_WAYS),
    "sentence-transformers/all-MiniLM-L6-v2": card(384, 12, 12, 32, 6, table="learned", **BOTH_WAYS),
    "FacebookAI/roberta-base": card(*BASE, table="learned", max_position_embeddings=512, **BOTH_WAYS),
    "FacebookAI/xlm-roberta-base": card(*BASE, table="learned", max_position_embeddings=512, **BOTH_WAYS),
    "distilbert/distilbert-base-uncased": card(768, 12, 12, 64, 6, table="learned", **BOTH_WAYS),
    "albert/albert-base-v2": card(*BASE, table="learned", **BOTH_WAYS),
    "google/electra-base-discriminator": card(*BASE, table="learned", **BOTH_WAYS),
    "microsoft/mpnet-base": card(*BASE, "buckets", table="learned", **BOTH_WAYS),
    "microsoft/deberta-v3-base": card(*BASE, "deberta", scale=192**-0.5, **BOTH_WAYS),  # content, c2p and p2c
    "microsoft/deberta-v2-xlarge": card(1536, 24, 24, 64, 24, "deberta", scale=192**-0.5, **BOTH_WAYS),
    "xlnet/xlnet-base-cased": card(*BASE, "transformer_xl", **BOTH_WAYS),
    "answerdotai/ModernBERT-base": card(768, 12, 12, 64, 22, *MODERN, window_radius=(None, 64, 64), **BOTH_WAYS),
    "jhu-clsp/mmBERT-base": card(768, 12, 12, 64, 22, half(64, 160000), window_radius=(None, 64, 64), **BOTH_WAYS),
    "nomic-ai/nomic-embed-text-v1.5": card(*BASE, half(64, 1000), **BOTH_WAYS),
    "allenai/longformer-base-4096": card(*BASE, table="learned", window_radius=256, **BOTH_WAYS),
    "facebook/esm2_t12_35M_UR50D": card(480, 20, 20, 24, 12, half(24), **BOTH_WAYS),
    # encoders with decoders
    "google-t5/t5-base encoder": card(*BASE, "buckets", scale=1.0, **BOTH_WAYS),
    "google-t5/t5-base decoder": card(*BASE, "buckets", scale=1.0),
    "google/flan-t5-large encoder": card(1024, 16, 16, 64, 24, "buckets", scale=1.0, **BOTH_WAYS),
    "google/flan-t5-large decoder": card(1024, 16, 16, 64, 24, "buckets", scale=1.0),
    "google/mt5-base encoder": card(*BASE, "buckets", scale=1.0, **BOTH_WAYS),
    "google/mt5-base decoder": card(*BASE, "buckets", scale=1.0),
    **{
        f"{name} {part}": card(width, heads, heads, width // heads, layers, table=kind, causal=part == "decoder")
        for name, width, heads, layers, kind in (
            ("facebook/bart-large-cnn", 1024, 16, 12, "learned"),
            ("facebook/mbart-large-50", 1024, 16, 12, "learned"),
            ("google/pegasus-xsum", 1024, 16, 16, "sinusoidal"),
            ("Helsinki-NLP/opus-mt-en-de", 512, 8, 6, "sinusoidal"),
            ("facebook/nllb-200-distilled-600M", 1024, 16, 12, "sinusoidal"),
        )
        for part in ("encoder", "decoder")
    },
    "openai/whisper-tiny encoder": card(384, 6, 6, 64, 4, table="sinusoidal", **BOTH_WAYS),
    "openai/whisper-tiny decoder": card(384, 6, 6, 64, 4, table="learned"),
    # pictures and sound
    "openai/clip-vit-large-patch14 text": card(768, 12, 12, 64, 12, table="learned"),
    "openai/clip-vit-large-patch14 vision": card(1024, 16, 16, 64, 24, table="learned_grid", **BOTH_WAYS),
    "google/siglip-base-patch16-224 text": card(*BASE, table="learned", **BOTH_WAYS),
    "google/siglip-base-patch16-224 vision": card(*BASE, table="learned_grid", **BOTH_WAYS),
    "google/vit-base-patch16-224-in21k": card(*BASE, table="learned_grid", **BOTH_WAYS),
    "facebook/dinov2-base": card(*BASE, table="learned_grid", **BOTH_WAYS),
    "facebook/dinov3-vitb16-pretrain-lvd1689m": card(*BASE, half(64, 100), **BOTH_WAYS),
    "microsoft/beit-base-patch16-224": card(*BASE, "grid_table", **BOTH_WAYS),
    "facebook/w2v-bert-2.0": card(1024, 16, 16, 64, 24, "shaw", **BOTH_WAYS),
}

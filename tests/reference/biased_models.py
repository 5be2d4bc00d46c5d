"""transformers' own models with a trained bias on the scores, tiny: one row a stack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.reference.transformers_model import Model

HIDDEN, HEADS, HEAD_DIM = 36, 6, 8  # hidden_size is not heads * head_dim
TOKENS = {"vocab_size": 53, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}


@dataclass(frozen=True)
class Biased(Model):
    """A tiny model with a bias of its own.

    Attributes:
        stack: the attribute path of the stack that is called; "" is the model.
        table: the end of the names of the biases' tensors, whose numbers are as wide as scores are.
        positions: the end of the name of the module whose output layer 0 adds to its hidden states, where it has one.
        summed: the end of the name of the module that takes that sum.
    """

    stack: str = ""
    table: str = "relative_attention_bias.weight"
    positions: str = ""
    summed: str = ""

    def build(self, seed: int = 0) -> Any:
        model = super().build(seed)
        for name, parameter in model.named_parameters():
            if name.endswith(self.table):
                parameter.data.mul_(2 / parameter.data.std())
        return model


_T5 = {
    **TOKENS,
    "d_model": HIDDEN,
    "d_kv": HEAD_DIM,
    "d_ff": 20,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": HEADS,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 7,
}


def _t5(name: str, part: str, attention: str = "SelfAttention", **config: Any) -> Biased:
    return Biased(
        f"{name}ForConditionalGeneration",
        {**_T5, **config},
        query=f"{attention}.q",
        output=f"{attention}.o",
        takes_positions=False,
        implementation="eager",
        part=part,
        layers=(0, 1) if part == "encoder" else (0, 1, 2),
        stack=part,
        gain=1.2,
    )


def _both(label: str, name: str, **config: Any) -> dict[str, Biased]:
    return {f"{label} {part}": _t5(name, part, **config) for part in ("encoder", "decoder")}


BIASED_MODELS: dict[str, Biased] = {
    **_both("t5", "T5"),
    **_both("t5 gated", "T5", feed_forward_proj="gated-gelu", relative_attention_num_buckets=12),
    **_both("mt5", "MT5"),
    **_both("umt5", "UMT5"),
    **_both("pop2piano", "Pop2Piano"),
    **_both("switch_transformers", "SwitchTransformers", num_experts=2),
    "longt5 encoder": replace(_t5("LongT5", "encoder", "LocalSelfAttention", local_radius=2), float32=("softmax",)),
    "longt5 decoder": _t5("LongT5", "decoder"),
    "udop decoder": _t5("Udop", "decoder"),
    "pix2struct_text_model": Biased(
        "Pix2StructTextModel",
        {key: value for key, value in _T5.items() if key not in ("d_model", "num_decoder_layers")}
        | {"hidden_size": HEADS * HEAD_DIM, "initializer_range": 0.02},  # its class reads what its config lacks
        query="self_attention.attention.query",
        output="self_attention.attention.output",
        takes_positions=False,
        implementation="eager",
        gain=1.2,
    ),
    "mpnet": Biased(
        "MPNetForMaskedLM",
        {
            "vocab_size": 53,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "hidden_size": HEADS * HEAD_DIM,
            "num_attention_heads": HEADS,
            "num_hidden_layers": 2,
            "intermediate_size": 20,
            "max_position_embeddings": 40,
        },
        query="attention.attn.q",
        output="attention.attn.o",
        takes_positions=False,
        implementation="eager",
        positions="embeddings.position_embeddings",
        summed="embeddings.LayerNorm",
    ),
}


@dataclass(frozen=True)
class Grid(Biased):
    """A tiny vision model; ``image``: the size of the pictures that it sees, of so many ``channels``."""

    image: tuple[int, int] = (16, 16)
    channels: int = 3
    table: str = "relative_position_bias_table"

    def build(self, seed: int = 0) -> Any:
        """Swin v2's scales of cosines from 2 to more than 100, where they end."""
        model = super().build(seed)
        for name, parameter in model.named_parameters():
            if name.endswith("logit_scale"):
                parameter.data.copy_(torch.linspace(0.7, 5.0, parameter.numel()).reshape(parameter.shape))
        return model


_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 24, "depths": [2, 1], "num_heads": [3, 6], "window_size": 4}
_BEIT = {
    "hidden_size": HEADS * HEAD_DIM,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 20,
    "image_size": 16,
    "patch_size": 4,
}
_OWN, _SHARED = {"use_relative_position_bias": True}, {"use_shared_relative_position_bias": True}


def _swin(cls: str, query: str = "attention.self.query", output: str = "attention.output.dense", **config: Any) -> Grid:
    inner = {"query": query, "output": output}
    return Grid(
        cls, {**_SWIN, **config}, **inner, layers=(0, 2), image=(32, 32), implementation="eager", float32=("softmax",)
    )


def _beit(cls: str, query: str, output: str, **config: Any) -> Grid:
    return Grid(cls, {**_BEIT, **config}, query=query, output=output, implementation="sdpa")


_SAM = {
    "hidden_size": HEADS * HEAD_DIM,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "mlp_dim": 20,
    "image_size": 32,
    "patch_size": 4,
    "window_size": 3,  # of 8 cells a side: windows at the edge are filled up with zeros behind the norm
    "global_attn_indexes": [1],
    "output_channels": 8,
}
_VITDET = {
    "hidden_size": HEADS * HEAD_DIM,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "mlp_ratio": 1,
    "image_size": (24, 16),
    "pretrain_image_size": 16,
    "patch_size": 4,
    "use_relative_position_embeddings": True,
    "window_block_indices": [2],
    "window_size": 5,
}

_SEGGPT = {
    "hidden_size": HEADS * HEAD_DIM,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "mlp_dim": 20,
    "image_size": (32, 16),  # two pictures above each other
    "pretrain_image_size": 16,
    "patch_size": 4,
    "merge_index": 1,
    "intermediate_hidden_state_indices": [2],
    "decoder_hidden_size": 8,
}


@dataclass(frozen=True)
class Vectors(Grid):
    """A tiny tower whose tables meet the queries: their numbers are as wide as those of projections."""

    table: str = "a bias on its own"

    def build(self, seed: int = 0) -> Any:
        model = super().build(seed)
        for name, parameter in model.named_parameters():
            if "rel_pos" in name:
                parameter.data.mul_(0.3 / parameter.data.std())
        return model


def _vectors(cls: str, config: dict[str, Any], attention: str, **more: Any) -> Vectors:
    return Vectors(cls, config, query=f"{attention}.qkv", output=f"{attention}.proj", implementation="eager", **more)


GRID_MODELS: dict[str, Grid] = {
    "sam_vision_model": _vectors("SamVisionModel", _SAM, "attn", image=(32, 32), float32=("softmax",)),
    "sam_hq_vision_model": _vectors("SamHQVisionModel", _SAM, "attn", image=(32, 32), float32=("softmax",)),
    "seggpt": _vectors("SegGptModel", _SEGGPT, "attention", image=(16, 16), layers=(0, 1, 2), float32=("softmax",)),
    "vitdet": _vectors("VitDetModel", _VITDET, "attention", image=(24, 16), layers=(1, 2)),
    "swin": _swin("SwinForImageClassification", query="attention.q_proj", output="attention.o_proj"),
    "donut-swin": _swin("DonutSwinModel"),
    "maskformer-swin": _swin("MaskFormerSwinModel"),
    "swinv2": _swin("Swinv2ForImageClassification", pretrained_window_sizes=[3, 0]),
    "swin2sr": _swin("Swin2SRModel", image_size=16, patch_size=1, embed_dim=18),
    "clap_audio_model": Grid(
        "ClapAudioModel",
        {
            "spec_size": 32,
            "num_mel_bins": 8,
            "patch_embeds_hidden_size": 24,
            "hidden_size": 48,
            "depths": [2, 1],
            "num_attention_heads": [3, 6],
            "num_hidden_layers": 2,
            "window_size": 4,
        },
        query="attention.self.query",
        output="attention.output.dense",
        layers=(0, 2),
        image=(120, 8),  # moments and bands of a spectrogram
        channels=1,
        implementation="eager",
    ),
    "beit": _beit("BeitForImageClassification", "attention.q_proj", "attention.o_proj", **_OWN),
    "beit shared": _beit("BeitModel", "attention.q_proj", "attention.o_proj", **_SHARED),
    "data2vec-vision": _beit(
        "Data2VecVisionModel", "attention.attention.query", "attention.output.dense", **_OWN, out_indices=[0, 1]
    ),
}

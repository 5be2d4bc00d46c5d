"""transformers' own models whose scores read vectors of the distance, tiny: one row a stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.reference.transformers_model import Model

HEADS, HEAD_DIM = 6, 8
WIDTH = HEADS * HEAD_DIM


@dataclass(frozen=True)
class Relative(Model):
    """A tiny model. ``call`` (model, states (B, S, width), mask (B, S)) runs the stack whose layers are compared;
    ``added``: the module whose output layer 0 adds to its hidden states, where it has one, and ``summed`` the module
    that takes the sum.
    """

    call: Callable[[Any, torch.Tensor, torch.Tensor], object] = field(kw_only=True)
    added: str = ""
    summed: str = ""
    causal: bool = False
    rms: bool = False


def _plain(path: str) -> Callable[[Any, torch.Tensor, torch.Tensor], object]:
    def call(model: Any, states: torch.Tensor, mask: torch.Tensor) -> object:
        return model.get_submodule(path)(states, attention_mask=mask)

    return call


def _boolean(path: str) -> Callable[[Any, torch.Tensor, torch.Tensor], object]:
    def call(model: Any, states: torch.Tensor, mask: torch.Tensor) -> object:
        return model.get_submodule(path)(states, attention_mask=mask.bool())

    return call


def _fastspeech2(part: str) -> Callable[[Any, torch.Tensor, torch.Tensor], object]:
    def call(model: Any, states: torch.Tensor, mask: torch.Tensor) -> object:
        stack = getattr(model, part)
        stack.embed = None  # which makes states of ids
        return stack(states, attention_mask=mask[:, None])

    return call


def _blocks(model: Any, states: torch.Tensor, mask: torch.Tensor) -> object:
    """A FastConformer behind its convolutions."""
    encoder = model.base_model if hasattr(model.base_model, "encode_positions") else model.encoder
    positions = encoder.encode_positions(states)
    seen = mask.bool()[:, None, None] & mask.bool()[:, None, :, None]
    for layer in encoder.layers:
        states = layer(states, attention_mask=seen, position_embeddings=positions)
    return states


def _xlnet(model: Any, states: torch.Tensor, mask: torch.Tensor) -> object:
    return model.transformer(inputs_embeds=states, attention_mask=mask)


def _deberta(model: Any, states: torch.Tensor, mask: torch.Tensor) -> object:
    return model.deberta(inputs_embeds=states, attention_mask=mask)


_LINEAR = {"query": "self_attn.linear_q", "output": "self_attn.linear_out"}
_WAV2VEC2 = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "conv_depthwise_kernel_size": 3,
    "conv_dim": [8],
    "conv_stride": [1],
    "conv_kernel": [1],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
_W2V_BERT = {key: value for key, value in _WAV2VEC2.items() if key not in ("conv_dim", "conv_stride", "conv_kernel")}
_DEBERTA = {
    "vocab_size": 53,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
}
_BUCKETS = {"position_buckets": 6, "max_relative_positions": 11, "position_biased_input": False}


def _conformer(cls: str, path: str, base: dict[str, Any], **config: Any) -> Relative:
    call = _boolean(path) if "Conformer" in cls else _plain(path)
    return Relative(cls, {**base, **config}, **_LINEAR, takes_positions=False, implementation="eager", call=call)


def _disentangled(name: str, **config: Any) -> Relative:
    first = "attention.self.in_proj" if name == "Deberta" else "attention.self.query_proj"
    biased = config.get("position_biased_input", True)
    return Relative(
        f"{name}ForMaskedLM",
        {**_DEBERTA, **config},
        query=first,
        output="attention.output.dense",
        takes_positions=False,
        implementation="eager",
        call=_deberta,
        layers=(1,) if name == "Deberta" and biased else (0, 1),  # its own norm is in float32
        added="embeddings.position_embeddings" if biased else "",
        summed="embeddings.LayerNorm" if biased else "",
        gain=1.5,
    )


def _fast_speech(part: str, **config: Any) -> Relative:
    sizes = {
        "hidden_size": WIDTH,
        "vocab_size": 20,
        "num_mel_bins": 5,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_num_attention_heads": HEADS,
        "decoder_num_attention_heads": HEADS,
        "encoder_linear_units": 20,
        "decoder_linear_units": 20,
        "encoder_kernel_size": 3,
        "decoder_kernel_size": 3,
        "speech_decoder_postnet_units": 8,
        "duration_predictor_channels": 8,
        "energy_predictor_channels": 8,
        "pitch_predictor_channels": 8,
    }
    return Relative(
        "FastSpeech2ConformerModel",
        {**sizes, **config},
        **_LINEAR,
        takes_positions=False,
        implementation="eager",
        part=part,
        call=_fastspeech2(part),
    )


def _inner(path: str) -> Callable[[Any, torch.Tensor, torch.Tensor], object]:
    """A stack behind its front end, whose pads are told twice."""

    def call(model: Any, states: torch.Tensor, mask: torch.Tensor) -> object:
        return model.get_submodule(path)(states, padding_mask=mask[..., None].double(), attention_mask=mask)

    return call


def _granite(model: Any, states: torch.Tensor, mask: torch.Tensor) -> object:
    """Layers behind the input's projection."""
    for layer in model.layers:
        states = layer(states, attention_dists=model.attention_dists)
    return states


def _granite5(model: Any, states: torch.Tensor, mask: torch.Tensor) -> object:
    layer = model.layers[0]
    return layer(states, attention_mask=mask.bool(), position_embeddings=model.attention_dists)


def _seamless(name: str, implementation: str = "eager", **config: Any) -> Relative:
    sizes = {
        "hidden_size": WIDTH,
        "speech_encoder_layers": 2,
        "speech_encoder_attention_heads": HEADS,
        "speech_encoder_intermediate_size": 20,
        "conv_depthwise_kernel_size": 3,
        "vocab_size": 20,
        "t2u_vocab_size": 20,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 20,
    }
    return Relative(
        f"{name}ForSpeechToText",
        {**sizes, **config},
        query="self_attn.linear_q",
        output="self_attn.linear_out",
        takes_positions=False,
        implementation=implementation,
        part="speech",
        call=_plain("speech_encoder.encoder"),
    )


def _blocks_of(cls: str, part: str, call: Callable[..., object], layers: tuple[int, ...], **config: Any) -> Relative:
    """Granite's: a block as long as the sequence. The first version knows of no pads but those that fill up a block."""
    return Relative(
        cls,
        config,
        query=f"{part}q" if part.endswith("to_") else f"{part}q_proj",
        output=f"{part}out" if part.endswith("to_") else f"{part}o_proj",
        takes_positions=False,
        implementation="eager",
        call=call,
        layers=layers,
        float32=("softmax",) if len(layers) == 1 else (),
        padded=len(layers) == 1,
    )


_SEWD = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "position_buckets": 6,
    "max_position_embeddings": 11,
    "conv_dim": [8],
    "conv_stride": [1],
    "conv_kernel": [1],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}


def _sewd(**config: Any) -> Relative:
    return Relative(
        "SEWDModel",
        {**_SEWD, **config},
        query="attention.self.query_proj",
        output="attention.output.dense",
        takes_positions=False,
        implementation="eager",
        call=_plain("encoder.encoder"),
        gain=1.5,
    )


RELATIVE_MODELS: dict[str, Relative] = {
    "sew-d": _sewd(),
    "sew-d raw": _sewd(share_att_key=False, norm_rel_ebd="none", position_buckets=-1, max_position_embeddings=5),
    "seamless_m4t speech": _seamless("SeamlessM4T"),
    "seamless_m4t_v2 speech": _seamless(  # whose eager form adds the boolean mask of its chunks to the scores
        "SeamlessM4Tv2", "sdpa", left_max_position_embeddings=5, right_max_position_embeddings=2
    ),
    "granite_speech_encoder": _blocks_of(
        "GraniteSpeechCTCEncoder",
        "attn.to_",
        _granite,
        (0, 1),
        hidden_dim=WIDTH,
        num_layers=2,
        num_heads=HEADS,
        context_size=15,
        max_pos_emb=20,
        conv_kernel_size=3,
    ),
    "granite_speech_plus_encoder": _blocks_of(
        "GraniteSpeechPlusCTCEncoder",
        "attn.to_",
        _granite,
        (0, 1),
        hidden_dim=WIDTH,
        num_layers=2,
        num_heads=HEADS,
        context_size=15,
        max_pos_emb=18,
        conv_kernel_size=3,
        cat_hidden_layers=[1],
    ),
    "granite_speech5_encoder": _blocks_of(
        "GraniteSpeech5Encoder",
        "self_attn.",
        _granite5,
        (0,),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        intermediate_size=20,
        context_size=15,
        max_position_embeddings=20,
        vocab_size=9,
    ),
    "vits": Relative(
        "VitsModel",
        {
            "vocab_size": 20,
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "ffn_dim": 20,
            "window_size": 3,
            "flow_size": 8,
            "spectrogram_bins": 5,
            "upsample_initial_channel": 16,
            "prior_encoder_num_flows": 1,
            "posterior_encoder_num_wavenet_layers": 1,
            "duration_predictor_num_flows": 1,
        },
        query="attention.q_proj",
        output="attention.out_proj",
        takes_positions=False,
        implementation="eager",
        call=_inner("text_encoder.encoder"),
    ),
    "wav2vec2-bert": _conformer(
        "Wav2Vec2BertModel", "encoder", _W2V_BERT, left_max_position_embeddings=5, right_max_position_embeddings=2
    ),
    "wav2vec2-bert relative": _conformer(
        "Wav2Vec2BertModel", "encoder", _W2V_BERT, position_embeddings_type="relative"
    ),
    "wav2vec2-conformer": _conformer("Wav2Vec2ConformerModel", "encoder", _WAV2VEC2),
    "wav2vec2-conformer without": _conformer(
        "Wav2Vec2ConformerModel", "encoder", _WAV2VEC2, position_embeddings_type=None
    ),
    "speecht5": Relative(
        "SpeechT5Model",
        {
            "hidden_size": WIDTH,
            "encoder_layers": 2,
            "encoder_attention_heads": HEADS,
            "encoder_ffn_dim": 20,
            "decoder_layers": 1,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 20,
            "encoder_max_relative_position": 4,
        },
        query="attention.q_proj",
        output="attention.out_proj",
        takes_positions=False,
        implementation="eager",
        part="encoder",
        call=_plain("encoder.wrapped_encoder"),
        gain=2.0,
    ),
    "parakeet_encoder": Relative(
        "ParakeetEncoder",
        {
            "hidden_size": WIDTH,
            "num_attention_heads": HEADS,
            "num_hidden_layers": 2,
            "intermediate_size": 20,
            "conv_kernel_size": 3,
            "subsampling_conv_channels": 4,
            "num_mel_bins": 8,
        },
        query="self_attn.q_proj",
        output="self_attn.o_proj",
        float32=("softmax",),
        takes_positions=False,
        implementation="eager",
        call=_blocks,
    ),
    "fastspeech2_conformer encoder": _fast_speech("encoder"),
    "fastspeech2_conformer decoder": _fast_speech("decoder", decoder_normalize_before=True),
    "xlnet": Relative(
        "XLNetLMHeadModel",
        {"vocab_size": 53, "d_model": WIDTH, "n_head": HEADS, "n_layer": 2, "d_inner": 20, "mem_len": None},
        query="rel_attn",
        output="rel_attn",
        takes_positions=False,
        implementation="eager",
        call=_xlnet,
        gain=0.4,
    ),
    "xlnet clamped": Relative(
        "XLNetLMHeadModel",
        {"vocab_size": 53, "d_model": WIDTH, "n_head": HEADS, "n_layer": 2, "d_inner": 20, "clamp_len": 3},
        query="rel_attn",
        output="rel_attn",
        takes_positions=False,
        implementation="eager",
        call=_xlnet,
        gain=0.4,
    ),
    "deberta": _disentangled("Deberta", max_relative_positions=6),
    "deberta long": _disentangled("Deberta", pos_att_type="c2p|p2c", position_biased_input=False),
    "deberta keys alone": _disentangled("Deberta", pos_att_type="p2c", max_relative_positions=5),
    "deberta without": _disentangled("Deberta", relative_attention=False),
    "deberta-v2": _disentangled("DebertaV2", **_BUCKETS),
    "deberta-v2 queries alone": _disentangled("DebertaV2", **{**_BUCKETS, "pos_att_type": "c2p"}),
    "deberta-v2 raw": _disentangled("DebertaV2", max_relative_positions=5),
    "deberta-v3": _disentangled("DebertaV2", **_BUCKETS, share_att_key=True, norm_rel_ebd="layer_norm"),
}

"""Families whose rotary layers alternate with layers without an encoding, and whose queries have a temperature."""

from __future__ import annotations

from typing import Any

from portpe.config import norms, output_gates, projection_biases, rope, sites, temperatures, windows
from portpe.config.layer import FULL, SLIDING, Family, Layer, Size, Sizes
from portpe.config.rope import Rope
from portpe.config.rows import HALF, decoder, head_norms, rms, sizes
from portpe.config.section import shown
from portpe.errors import SpecError
from portpe.layer_parts import Norm

CHUNKED = "chunked_attention"

_LLAMA4 = Rope(pairing="interleaved", theta=500000.0, ignores_partial=True, contract="polar")
_MINISTRAL3 = Rope(
    ignores_partial=True,
    others=temperatures.MINISTRAL_KEYS,
    absent={
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
)


_beam_rotary = sites.by_type(full=None, sliding=HALF)
_llama4_rotary = sites.listed(_LLAMA4, "no_rope_layers", "no_rope_layer_interval", 4)


def _llama4_site(layer: Layer) -> dict[str, Any]:
    temperature = temperatures.llama4(layer)
    return _llama4_rotary(layer) or {"query_scale": temperature}


def _llama4_norms(layer: Layer) -> tuple[Norm, Norm] | None:
    """An RMS norm without a weight on rotated queries and keys, after the rotation."""
    eps = layer.config.positive("rms_norm_eps", 1e-5)
    if not layer.config.flag("use_qk_norm", True) or not _llama4_rotary(layer):
        return None
    norm = Norm(kind="rms", eps=eps, affine=False, when="after")
    return norm, norm


def _llama4_chunk(layer: Layer) -> dict[str, Any]:
    """Rotated layers see their own chunk of ``attention_chunk_size`` positions alone; ``layer_types`` goes first."""
    config, kinds = layer.config, layer.config.get("layer_types")
    chunk = None
    if config.has("attention_chunk_size") or "attention_chunk_size" not in config.data:
        chunk = config.integer("attention_chunk_size", 8192)
    chunked = bool(_llama4_rotary(layer))
    if kinds is not None:
        if not isinstance(kinds, list | tuple) or len(kinds) != layer.num_layers:
            raise SpecError(f"layer_types must list one for each of the {layer.num_layers} layers, got {shown(kinds)}")
        if kinds[layer.index] not in (FULL, CHUNKED):
            raise SpecError(
                f"layer_types[{layer.index}] must be {FULL!r} or {CHUNKED!r}, got {shown(kinds[layer.index])}"
            )
        chunked = kinds[layer.index] == CHUNKED
        if chunked and chunk is None:
            raise SpecError(f"attention_chunk_size is required and missing: layer {layer.index} is of type {CHUNKED!r}")
    return {"chunk": chunk} if chunked else {}


def _beam_site(layer: Layer) -> dict[str, Any]:
    """Beam: sliding layers rotate, full layers have a temperature instead."""
    return _beam_rotary(layer) or {"query_scale": temperatures.BEAM}


def _beam_layer(index: int, num_layers: int) -> str:
    """Each sixth layer and the last one see all."""
    return FULL if (index + 1) % 6 == 0 or index == num_layers - 1 else SLIDING


def _ministral3_site(layer: Layer) -> dict[str, Any]:
    return {"rotary": rope.encoding(layer, _MINISTRAL3), "query_scale": temperatures.ministral(layer, _MINISTRAL3)}


def _sizes(hidden: int, heads: int, layers: int, length: int) -> Sizes:
    return Sizes(
        hidden=Size(("hidden_size",), hidden),
        heads=Size(("num_attention_heads",), heads),
        layers=Size(("num_hidden_layers",), layers),
        kv_heads=Size(("num_key_value_heads",), 8),
        head_dim=128,
        length=Size(("max_position_embeddings",), length),
    )


TEMPERED_FAMILIES = (
    Family(
        "llama4_text",
        _sizes(5120, 40, 48, 131072),
        _llama4_site,
        projection_biases.switched("attention_bias", False, "qkvo"),
        qk_norms=_llama4_norms,
        input_norm=norms.rms("rms_norm_eps", 1e-5),
        extras=_llama4_chunk,
        harmless=frozenset({"layer_types", "for_llm_compressor"}),
    ),
    Family(
        "ministral3",
        _sizes(4096, 32, 34, 262144),
        _ministral3_site,
        projection_biases.fixed(""),
        window=windows.every_layer(None),
        input_norm=norms.rms("rms_norm_eps", 1e-5),
        fixed={"attention_bias": (False,)},
    ),
    decoder(
        "beam",
        sizes(5120, 48, 52, 8192, kv_heads=8, head_dim=128),
        rms(1e-6),
        site=_beam_site,
        window=windows.hybrid_of_layers(_beam_layer, 512),
        qk_norms=head_norms(1e-6),
        extras=output_gates.fixed("channel", bias=True),
        harmless=frozenset({"routed_scaling_factor", "norm_topk_prob", "final_logit_softcapping", "mlp_layer_types"}),
    ),
)

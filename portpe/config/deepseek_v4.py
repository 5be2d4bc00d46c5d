"""DeepSeek V4: sliding layers have plain rotary embeddings, layers with compressed keys have a base of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from portpe.config import projection_biases, rope
from portpe.config.layer import SLIDING, Family, Layer
from portpe.config.rope import Rope
from portpe.config.rows import rms, sizes
from portpe.config.section import Section, shown
from portpe.errors import SpecError

_RATIOS = {0: SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "compress_rope_theta", "partial_rotary_factor")
_BLOCK = "compress", "main"


def _kind(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """``layer_types``, the older ``compress_ratios``, or two layers of one kind and then both in turn; all slide."""
    kinds, ratios = config.get("layer_types"), config.get("compress_ratios")
    default = _RATIOS[4] if index >= 2 and index % 2 else _RATIOS[128]
    for key, listed in (("layer_types", kinds), ("compress_ratios", ratios)):
        if listed is not None and (not isinstance(listed, list | tuple) or len(listed) < num_layers):
            raise SpecError(f"{key} must list one for each of the {num_layers} layers, got {shown(listed)}")
    if kinds is not None:
        kind = kinds[index]
    elif ratios is not None:
        kind = _RATIOS.get(ratios[index])
    else:
        kind = default
    if kind not in _RATIOS.values():
        given = kinds[index] if kinds is not None else ratios[index] if ratios is not None else None
        raise SpecError(f"layer {index} must be of type {', '.join(_RATIOS.values())}, got {shown(given)}")
    return kind, config.integer("sliding_window", 128)


def _site(layer: Layer) -> dict[str, Any]:
    """The last channels of a head, neighbours; the first ones pass."""
    settings = Rope(pairing="interleaved")
    found = rope.encoding(replace(layer, config=Section({"rope_parameters": _block(layer)})), settings)
    return {} if found is None else {"rotary": found.model_copy(update={"channels": "last"})}


def _block(layer: Layer) -> dict[str, Any]:
    """The layer's own rope keys: of blocks named main and compress, or of the older layout, which scales compress."""
    config, own = layer.config, "main" if layer.type == SLIDING else "compress"
    config.seen |= {*_KEYS, "qk_rope_head_dim"}
    partial = 0.125
    if config.has("partial_rotary_factor"):
        partial = config.positive("partial_rotary_factor")
    elif config.has("qk_rope_head_dim"):
        partial = config.integer("qk_rope_head_dim") / layer.head_dim
    parameters, scaling = config.section("rope_parameters"), config.section("rope_scaling")
    if parameters is not None and all(isinstance(parameters.data.get(name), Mapping) for name in _BLOCK):
        return {"partial_rotary_factor": 1.0, **parameters.data[own]}
    if own == "main":
        return {"rope_theta": config.positive("rope_theta", 10000.0), "partial_rotary_factor": partial}
    older = scaling if scaling is not None and scaling.data else parameters
    block = {} if older is None else {key: value for key, value in older.data.items() if key not in _BLOCK}
    if "yarn" in (block.get("rope_type"), block.get("type")):
        block.setdefault("attention_factor", 1.0)
    theta = config.positive("compress_rope_theta", 160000.0)
    return block | {"rope_theta": theta, "partial_rotary_factor": partial}


def _beyond(layer: Layer) -> str:
    compressed = "" if layer.type == SLIDING else "compressed keys, "
    return f"{compressed}values that are its keys and are turned back, and a grouped output projection"


DEEPSEEK_V4 = Family(
    "deepseek_v4",
    sizes(4096, 64, 43, 1048576, kv_heads=1, head_dim=512),
    _site,
    projection_biases.fixed(""),
    window=_kind,
    extras=lambda _layer: {"sinks": True},
    input_norm=rms(1e-6),
    beyond=_beyond,
    harmless=frozenset(
        {
            "routed_scaling_factor",
            "norm_topk_prob",
            "hc_sinkhorn_iters",
            "compress_rates",
            "mlp_layer_types",
            "index_head_dim",
            "index_n_heads",
        }
    ),
    fixed={"attention_bias": (False,)},
)

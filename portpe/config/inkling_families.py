"""Inkling: a bank of profiles over the distance in every layer, and a temperature where a layer sees all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portpe.config import windows
from portpe.config.layer import FULL, SLIDING, Family, Layer, Size, Sizes, has
from portpe.config.rows import NO_BIAS, head_norms, rms
from portpe.config.section import Section
from portpe.encodings import DistanceBankEncoding, LogarithmicTemperature

_WINDOW = "sliding_window_size"
# Of experts, convolutions and the sums of earlier layers, none of which is a position's.
_HARMLESS = frozenset(
    {
        *("mlp_gate_softcap", "mlp_up_softcap", "qk_l2_clip_threshold", "rms_norm_eps_moe_gate", "shared_expert_sink"),
        *("chain_hidden_post_norm", "mtp_local_layer_ids", "rms_norm_eps", "n_layers_per_attn_res_block"),
    }
)


def _kind(config: Section, index: int) -> str:
    """``local_layer_ids`` slide, or without them all but every sixth."""
    if not config.has("local_layer_ids"):
        return FULL if (index + 1) % 6 == 0 else SLIDING
    return SLIDING if index in config.numbers("local_layer_ids", ()) else FULL


def _by_kind(name: str, default: int) -> Callable[[Section, str], int]:
    """Sliding layers have sizes of their own."""

    def size(config: Section, kind: str) -> int:
        config.seen |= {name, f"swa_{name}"}
        return config.integer(f"swa_{name}" if kind == SLIDING else name, default)

    return size


def _sizes(hidden: int, heads: int, layers: int, kv_heads: tuple[int, int], length: int) -> Sizes:
    """``kv_heads``: of layers that see all, and of those that slide."""

    def heads_of(config: Section, _index: int, kind: str) -> int:
        return _by_kind("num_attention_heads", heads)(config, kind)

    def kv_heads_of(config: Section, _heads: int, kind: str) -> int:
        return _by_kind("num_key_value_heads", kv_heads[kind == SLIDING])(config, kind)

    return Sizes(
        hidden=Size(("hidden_size",), hidden),
        heads=heads_of,
        layers=Size(("num_hidden_layers",), layers),
        kv_heads=kv_heads_of,
        head_dim=_by_kind("head_dim", 128),
        length=Size(("max_position_embeddings", "model_max_length"), length),
    )


def _temperature(layer: Layer, floor: int | None) -> LogarithmicTemperature | None:
    """Layers that see all; tokens are counted from 1. A null floor switches it off."""
    config, key = layer.config, "log_scaling_n_floor"
    beta = config.positive("log_scaling_alpha", 0.1)
    if config.get(key) is None and (floor is None or key in config.data):
        return None
    interval = config.integer(key, floor or 1)
    return LogarithmicTemperature(interval=interval, offset=1, beta=beta) if layer.type == FULL else None


def _bank(floor: int | None, *, clipped: bool) -> Callable[[Layer], dict[str, Any]]:
    """A sliding layer's bank is as long as its window."""

    def site(layer: Layer) -> dict[str, Any]:
        config, temperature = layer.config, _temperature(layer, floor)
        extent = config.integer("rel_extent", 1024)
        bank = DistanceBankEncoding(
            extent=layer.window or extent,
            width=config.integer("d_rel", 16),
            clip=config.positive("rel_l2_clip_threshold", 8.0) if clipped else None,
            tempered=temperature is not None,
        )
        return {"bias": (bank,), "query_scale": temperature}

    return site


def _second(model_type: str, sizes: Sizes, floor: int) -> Family:
    return Family(
        model_type,
        sizes,
        _bank(floor, clipped=True),
        NO_BIAS,
        window=windows.hybrid(_kind, 1024, _WINDOW),
        beyond=lambda _layer: (
            "short convolutions over keys and values, queries and keys of a bounded length, sinks that follow the "
            "token and an output gate"
        ),
        harmless=_HARMLESS,
    )


INKLING_FAMILIES = (
    Family(
        "inkling_text",
        _sizes(6144, 64, 66, (8, 16), 131072),
        _bank(None, clipped=False),
        NO_BIAS,
        window=windows.hybrid(_kind, 512, _WINDOW),
        scale=lambda layer: 1 / layer.head_dim,
        qk_norms=head_norms(1e-6),
        input_norm=rms(1e-6),
        beyond=has("short convolutions over keys and values"),
        harmless=_HARMLESS,
    ),
    _second("inkling2_text", _sizes(4608, 48, 48, (8, 8), 1048576), 128000),
    _second("inkling2_loop_text", _sizes(2304, 24, 24, (8, 8), 1048576), 8192),
)

"""Text and speech stacks of multimodal models whose tokens have one coordinate. One row a model_type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portpe.config import norms, output_gates, projection_biases, rope, sites, windows
from portpe.config.layer import FULL, SLIDING, Family, Layer, Sizes, has
from portpe.config.rope import Rope
from portpe.config.rows import HALF, NO_BIAS, decoder, head_norms, rms, sizes


def _muse_turns(index: int, num_layers: int) -> bool:
    """All but the last of each four layers, counted from the last one."""
    return (num_layers - 1 - index) % 4 != 0


def _muse_kind(index: int, num_layers: int) -> str:
    return SLIDING if _muse_turns(index, num_layers) else FULL


def _muse(model_type: str, one: Sizes, factor: float, theta: float, beyond: str | None) -> Family:
    """Muse: norms of q and k without weights, a factor of q behind its own, and a gate."""

    def scale(layer: Layer) -> float:
        return float(layer.head_dim**-0.5) * layer.config.positive("qk_scale_factor", factor)

    return decoder(
        model_type,
        one,
        rms(1e-5, weight_offset=1.0),
        site=sites.theta_list(replace(HALF, theta=theta), "layer_rope_theta", _muse_turns),
        window=windows.hybrid_of_layers(_muse_kind, 2048),
        scale=scale,
        qk_norms=head_norms(1e-5, affine=False),
        extras=output_gates.fixed("channel"),
        beyond=lambda _layer: beyond,
        harmless=frozenset({"post_norm_eps"}),
    )


def _m3_beyond(layer: Layer) -> str | None:
    """MiniMax M3: a block is that of its full layers; a sparse one sees all keys while there are few."""
    kinds = layer.config.get("layer_types")
    layer.config.seen |= {"index_n_heads", "index_head_dim"}
    sparse = isinstance(kinds, list | tuple) and kinds[layer.index] == _SPARSE
    return "an indexer that chooses blocks of keys" if sparse else None


def _dit_site(layer: Layer) -> dict[str, Any]:
    """Qwen2.5-Omni's sound: neighbours, written as halves."""
    found = rope.encoding(layer, Rope(pairing="interleaved", ignores_partial=True))
    assert found is not None
    return {"rotary": found.model_copy(update={"pairing_out": "half"})}


def _dit_beyond(layer: Layer) -> str:  # noqa: ARG001
    return "a rotation of its first head alone, and a mask by blocks of the sound"


_SPARSE = "minimax_m3_sparse"

MULTIMODAL_TEXT_FAMILIES = (
    decoder(
        "qwen3_omni_moe_talker_code_predictor",
        sizes(1024, 16, 5, 32768, kv_heads=8, head_dim=128),
        rms(1e-6),
        window=windows.from_layer("max_window_layers", 28, None),
        qk_norms=head_norms(1e-6),
    ),
    _muse(
        "muse_spark_text",
        sizes(8192, 128, 62, 1048576, kv_heads=16, head_dim=64),
        5.4730064863875,
        500000.0,
        "a norm between its heads and their gate",
    ),
    _muse(
        "muse_glimmer_text",
        sizes(6656, 32, 52, 131072, kv_heads=2, head_dim=128),
        3.87,
        10000.0,
        None,
    ),
    decoder(
        "muse_glimmer_assistant",
        sizes(6656, 32, 5, 131072, kv_heads=8, head_dim=128),
        rms(1e-5),
        rope=replace(HALF, theta=500000.0),
        biases=NO_BIAS,
        causal=lambda _layer: False,
        window=windows.hybrid_of_layers(lambda _index, _layers: SLIDING, 2048),
        qk_norms=head_norms(1e-5),
        beyond=has("keys and values of the context's states besides its own"),
    ),
    decoder(
        "minimax_m3_vl_text",
        sizes(6144, 64, 60, 524288, kv_heads=4, head_dim=128),
        rms(1e-6, weight_offset=1.0),
        rope=Rope(theta=5e6, partial=0.5, width_key="rotary_dim"),
        biases=NO_BIAS,
        window=windows.chosen_keys(windows.listed(None), _SPARSE),
        qk_norms=head_norms(1e-6, weight_offset=1.0),
        beyond=_m3_beyond,
    ),
    decoder(
        "qwen2_5_omni_dit",
        sizes(1024, 16, 22, 32768, head_dim=64),
        norms.none,
        site=_dit_site,
        biases=projection_biases.fixed("qkvo"),
        causal=lambda _layer: False,
        beyond=_dit_beyond,
        harmless=frozenset(
            {"look_ahead_layers", "look_backward_layers", "enc_attention_channels", "enc_res2net_scale"}
        ),
    ),
)

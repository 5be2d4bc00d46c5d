"""Text stacks whose attention is joined with something else: an encoder's keys, a convolution, a mask of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from portpe.config import extras, norms, projection_biases, scales, sites, windows
from portpe.config.layer import FULL, Family, Layer, has
from portpe.config.rope import Rope
from portpe.config.rows import HALF, decoder, head_norms, one_kv_a_head, rms, sizes
from portpe.config.section import Section, shown
from portpe.errors import SpecError
from portpe.layer_parts import Norm

_GEMMA3 = sites.by_type(full=replace(HALF, theta=1e6, top="theta"), sliding=replace(HALF, top="none"))
_PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}


def _uneven(layer: Layer) -> str | None:
    """T5Gemma 2's encoder: a window of w tokens reaches (w + 1) // 2 - 1 back and w // 2 ahead."""
    even = layer.window is not None and layer.window % 2 == 0
    return "a window that reaches one token farther ahead than back" if even else None


def _t5gemma2(model_type: str, beyond: Callable[[Layer], str | None], *, causal: bool) -> Family:
    """Gemma 3's attention; transformers keeps attn_logit_softcapping and does not apply it."""
    return decoder(
        model_type,
        sizes(2304, 8, 26, 131072, kv_heads=4, head_dim=256),
        rms(1e-6, weight_offset=1.0),
        site=_GEMMA3,
        causal=lambda _layer: causal,
        window=windows.patterned(4096, 6, period_key="sliding_window_pattern"),
        radius=lambda window: window // 2,
        scale=scales.inverse_root("query_pre_attn_scalar", 256),
        qk_norms=head_norms(1e-6, weight_offset=1.0),
        beyond=beyond,
        harmless=frozenset({"final_logit_softcapping"}),
        fixed={"attn_logit_softcapping": ()},
    )


def _global_size(key: str, default: int, own: str, own_default: int) -> Callable[[Section, str], int]:
    """A size that full layers have under another key, by default their own."""

    def size(config: Section, kind: str) -> int:
        narrow = config.integer(own, own_default)
        wide = config.integer(key, default or narrow)
        return wide if kind == FULL and "per_layer_config" not in config.data else narrow

    return size


_diffusion_heads = _global_size("num_global_key_value_heads", 0, "num_key_value_heads", 4)


def _zaya_kind(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """The kinds have names of their own; both attend."""
    kinds, window = config.get("layer_types"), windows.every_layer(None)(config, index, num_layers)[1]
    if kinds is not None and (not isinstance(kinds, list | tuple) or len(kinds) != num_layers):
        raise SpecError(f"layer_types must list one for each of the {num_layers} layers, got {shown(kinds)}")
    kind = "hybrid" if kinds is None else kinds[index]
    if kind not in ("hybrid", "hybrid_sliding"):
        raise SpecError(f"layer_types[{index}] must be 'hybrid' or 'hybrid_sliding', got {shown(kind)}")
    if kind == "hybrid_sliding" and window is None:
        raise SpecError(f"sliding_window is required and missing: layer {index} is of type 'hybrid_sliding'")
    return kind, window if kind == "hybrid_sliding" else None


def _zaya_site(layer: Layer) -> dict[str, Any]:
    """A block for each kind; published configs have a rope_type beside them, which says nothing."""
    settings = Rope(theta=5e6 if layer.type == "hybrid" else 10000.0, partial=0.5)
    blocks = layer.config.section("rope_parameters")
    if blocks is None:
        return sites.rotary(settings)(layer)
    unknown = set(blocks.data) - {"hybrid", "hybrid_sliding", "rope_type"}
    if unknown or not blocks.has(layer.type):
        raise SpecError(f"rope_parameters must hold a block for {layer.type!r}, got {shown(blocks.data)}")
    own = Section({**layer.config.data, "rope_parameters": blocks.get(layer.type)})
    found = sites.rotary(settings)(replace(layer, config=own))
    layer.config.seen |= own.seen
    return found


def _reference_window(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """Unlimited-OCR: what a window leaves besides is the prompt, which is no matter of positions."""
    config.integer("sliding_window", 128)
    return windows.chosen_keys(lambda *_: (FULL, None), "reference_sliding_attention")(config, index, num_layers)


def _pairs_of_blocks(config: Section) -> int:
    """Dory's saved configs list attention and MLP as separate blocks."""
    kinds, layers = config.get("layer_types"), config.integer("num_hidden_layers", 36)
    return layers // 2 if isinstance(kinds, list | tuple) and "mlp" in kinds else layers


def _dory_kind(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    kinds = config.get("layer_types")
    if isinstance(kinds, list | tuple) and "mlp" in kinds:
        config.seen |= {"sliding_window"}
        config = Section({**config.data, "layer_types": [kind for kind in kinds if kind != "mlp"]})
    return windows.patterned(1024, 4)(config, index, num_layers)


def _both_layer_norms(layer: Layer) -> tuple[Norm, Norm]:  # noqa: ARG001
    norm = Norm(kind="layer", eps=1e-5, bias=True)
    return norm, norm


JOINED_FAMILIES = (
    _t5gemma2("t5gemma2_text", _uneven, causal=False),
    _t5gemma2("t5gemma2_decoder", has("keys and values of the encoder beside its own"), causal=True),
    decoder(
        "diffusion_gemma_text",
        replace(
            sizes(2304, 8, 30, 131072),
            kv_heads=lambda config, _heads, kind: _diffusion_heads(config, kind),
            head_dim=_global_size("global_head_dim", 512, "head_dim", 256),
        ),
        rms(1e-6),
        site=sites.by_type(
            full=replace(HALF, theta=1e6, absent=_PROPORTIONAL, top="none"), sliding=replace(HALF, top="none")
        ),
        window=windows.last_is_full(windows.patterned(512, 6)),
        scale=scales.fixed(1.0),
        qk_norms=head_norms(1e-6),
        extras=extras.value_norm,
        beyond=has("two stacks on one set of weights, of which the second reads the first one's keys"),
        harmless=frozenset({"final_logit_softcapping"}),
        fixed={"use_bidirectional_attention": (False, "vision")},
    ),
    decoder(
        "unlimited_ocr_text",
        one_kv_a_head(1280, 10, 12, 32768),
        rms(1e-6),
        window=_reference_window,
        beyond=has("a window that shows the prompt besides"),
        harmless=frozenset({"routed_scaling_factor"}),
    ),
    decoder(
        "deepseek_ocr2_encoder",
        sizes(4096, 32, 32, 32768, kv_heads=32, head_dim=None),
        rms(1e-6),
        biases=projection_biases.fixed("qkv"),
        window=windows.upper_layers,
        beyond=has("patches that see each other both ways, and queries behind them that do not"),
    ),
    decoder(
        "zaya",
        sizes(2048, 8, 40, 131072, kv_heads=2, head_dim=128),
        rms(1e-5),
        site=_zaya_site,
        window=_zaya_kind,
        beyond=has("queries and keys of a convolution over tokens"),
        harmless=frozenset({"router_hidden_size"}),
    ),
    decoder(
        "dory",
        replace(sizes(2560, 16, 36, 8192, kv_heads=4, head_dim=256), layers=_pairs_of_blocks),
        norms.none,
        site=sites.by_type(full=replace(HALF, theta=1e7, top="none"), sliding=replace(HALF, top="none")),
        window=_dory_kind,
        beyond=has("trained scales of its cosines and of its gate, and a norm of what the gate leaves"),
        harmless=frozenset({"recurrent_kv_cache_mode"}),
    ),
    decoder(
        "nemotron3_5_transcribe_word_timestamp",
        sizes(1280, 16, 2, 5000, head_dim=None),
        norms.layer_norm(None, 1e-5),
        rope=Rope(partial=0.5),
        biases=projection_biases.fixed("o"),
        causal=lambda _layer: False,
        qk_norms=_both_layer_norms,
        harmless=frozenset({"residual_scale"}),
    ),
)

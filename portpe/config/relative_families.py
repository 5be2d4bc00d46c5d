"""Families whose scores read vectors of the distance: Shaw's, Transformer-XL's and its Conformers, DeBERTa."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.embedding_sites import learned
from portpe.config.layer import NO_LENGTH, Family, Layer, NormOf, Size, Sizes, never, no_norm
from portpe.config.section import Section, shown
from portpe.encodings import DebertaEncoding, ShawEncoding, TransformerXlEncoding
from portpe.errors import SpecError

Site = Callable[[Layer], dict[str, Any]]

_ALL = projection_biases.fixed("qkvo")
_CONFORMER = TransformerXlEncoding(order="interleaved", contract="conformer")
# What speech models say of their front ends, their losses and of kinds of positions that they do not use.
SPEECH = frozenset(
    {
        *("feat_extract_norm", "rotary_embedding_base", "max_source_positions", "layer_norm_eps", "positional_dropout"),
        *("left_max_position_embeddings", "right_max_position_embeddings", "num_attention_heads"),
    }
)


# --- speech ----------------------------------------------------------------------------------


def conformer_site(default: str) -> Site:
    """wav2vec 2's Conformers: ``position_embeddings_type`` chooses; null is none at all."""

    def site(layer: Layer) -> dict[str, Any]:
        config = layer.config
        if "position_embeddings_type" in config.data and not config.has("position_embeddings_type"):
            return {}
        kind = config.text("position_embeddings_type", default)
        if kind == "relative":
            return {"bias": (_CONFORMER,)}
        if kind == "relative_key" and default == "relative_key":
            left, right = (
                config.integer(f"{side}_max_position_embeddings", limit, minimum=0)
                for side, limit in (("left", 64), ("right", 8))
            )
            return {"bias": (ShawEncoding(left=left, right=right),)}
        if kind == "rotary":
            raise SpecError(
                "position_embeddings_type 'rotary' turns hidden states before q_proj and k_proj in this model_type, "
                "and portpe turns queries and keys; it is not supported"
            )
        known = dict.fromkeys((default, "relative"))
        raise SpecError(f"position_embeddings_type must be {' or '.join(map(repr, known))}, got {shown(kind)}")

    return site


def _speecht5(layer: Layer) -> dict[str, Any]:
    """Rows of the table go by i - j, from -n to n - 1."""
    count = layer.config.integer("encoder_max_relative_position", 160)
    return {"bias": (ShawEncoding(left=count - 1, right=count, descending=True),)}


def encoder(model_type: str, sizes: tuple[int, int, int], site: Site, *, length: Size, **more: Any) -> Family:
    """A two-way stack under the usual names. ``sizes``: hidden, layers, heads."""
    return Family(
        model_type,
        Sizes(
            hidden=Size(("hidden_size",), sizes[0]),
            heads=Size(("num_attention_heads",), sizes[2]),
            layers=Size(("num_hidden_layers",), sizes[1]),
            head_dim=more.pop("head_dim", None),
            length=length,
        ),
        site,
        more.pop("biases", _ALL),
        causal=never,
        **more,
    )


def _parakeet(model_type: str, **more: Any) -> Family:
    """NVIDIA's FastConformers."""
    return encoder(
        model_type,
        (1024, 24, 8),
        lambda _layer: {"bias": (TransformerXlEncoding(order="interleaved"),)},
        length=Size(("max_position_embeddings",), 5000),
        head_dim=0,
        biases=projection_biases.switched("attention_bias", True, "qkvo"),
        input_norm=norms.layer_norm(None, 1e-5),
        harmless=frozenset({"scale_input", "dropout_positions", "sliding_window", "default_num_lookahead_tokens"}),
        **more,
    )


def _chunks(layer: Layer) -> str | None:
    """The streaming encoder sees whole chunks of ``num_lookahead_tokens`` + 1 and some before."""
    return f"attention in chunks, {layer.config.integer('sliding_window', 71)} frames of them behind"


def _fastspeech2(part: str) -> Family:
    other = "decoder" if part == "encoder" else "encoder"
    names = (f"{part}_num_attention_heads", *(("num_attention_heads",) if part == "encoder" else ()))

    def norm(layer: Layer) -> Any:
        before = layer.config.flag(f"{part}_normalize_before", False)
        return norms.layer_norm(None, 1e-5)(layer) if before else None

    return Family(
        "fastspeech2_conformer",
        Sizes(
            hidden=Size(("hidden_size",), 384),
            heads=Size(names, 2),
            layers=Size((f"{part}_layers",), 4),
            head_dim=None,
            length=Size(("max_source_positions",), 5000),
        ),
        lambda _layer: {"bias": (_CONFORMER,)},
        _ALL,
        part=part,
        causal=never,
        input_norm=norm,
        harmless=frozenset(
            {
                *(f"{other}_num_attention_heads", f"{other}_normalize_before", "positionwise_conv_kernel_size"),
                *(f"{each}_{kind}_dropout_rate" for each in (part, other) for kind in ("positional", "attention")),
            }
        ),
    )


# --- XLNet -----------------------------------------------------------------------------------


def _xlnet(layer: Layer) -> dict[str, Any]:
    config = layer.config
    width = config.integer("d_head", layer.head_dim)
    if width != layer.head_dim:
        raise SpecError(f"d_head must be d_model / n_head = {layer.head_dim}, got {width}")
    clamp = config.integer("clamp_len", -1, minimum=-1)
    layer.warn("token_type_ids are not read: XLNet adds a term for them to the scores, which is no position's")
    return {"bias": (TransformerXlEncoding(clamp=clamp if clamp > 0 else None),)}


def _xlnet_causal(layer: Layer) -> bool:
    kind = layer.config.text("attn_type", "bi")
    if kind not in ("bi", "uni"):
        raise SpecError(f"attn_type must be 'bi' or 'uni', got {shown(kind)}")
    return kind == "uni"


_XLNET = Family(
    "xlnet",
    Sizes(
        hidden=Size(("d_model", "hidden_size"), 1024),
        heads=Size(("n_head", "num_attention_heads"), 16),
        layers=Size(("n_layer", "num_hidden_layers"), 24),
        head_dim=None,
        length=NO_LENGTH,
    ),
    _xlnet,
    projection_biases.fixed(""),
    causal=_xlnet_causal,
    harmless=frozenset({"layer_norm_eps"}),
    fixed={"bi_data": (False,), "same_length": (False,)},
)


# --- DeBERTa ---------------------------------------------------------------------------------

_TERMS = ("c2p", "p2c")


def terms_of(config: Section, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """What of ``pos_att_type`` there is: a list, or a string with bars; null is none."""
    given = config.get("pos_att_type")
    if given is None:
        return () if "pos_att_type" in config.data else default
    parts = [part.strip() for part in given.lower().split("|")] if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or any(part not in _TERMS for part in parts) or len({*parts}) < len(parts):
        raise SpecError(f"pos_att_type must hold c2p and p2c at most, once each, got {shown(given)}")
    return tuple(parts)


def _deberta_scale(layer: Layer) -> float:
    """1 / sqrt(head_dim * terms): of the content and of each in ``pos_att_type``, used or not."""
    return float((layer.head_dim * (1 + len(terms_of(layer.config)))) ** -0.5)


def _deberta(*, buckets: bool) -> Site:
    """The encoding of the bias site where ``relative_attention`` is, and BERT's table on layer 0 where it is kept."""

    def site(layer: Layer) -> dict[str, Any]:
        config, found = layer.config, dict[str, Any]()
        if config.flag("position_biased_input", True):
            if layer.index == 0 and config.integer("embedding_size", layer.hidden_size) != layer.hidden_size:
                raise SpecError(
                    f"embedding_size must equal hidden_size = {layer.hidden_size} where positions are added to the "
                    f"embeddings, got {config.get('embedding_size')}"
                )
            found |= learned("max_position_embeddings", 512)(layer)
        terms = terms_of(config)
        if not config.flag("relative_attention", False) or not terms:
            return found
        longest = config.integer("max_relative_positions", -1, minimum=-1)
        longest = longest if longest > 0 else config.integer("max_position_embeddings", 512)
        count = config.integer("position_buckets", -1, minimum=-1) if buckets else -1
        shared = config.flag("share_att_key", False) if buckets else False
        encoding = DebertaEncoding(
            span=count if count > 0 else longest,
            max_distance=longest if count > 0 else None,
            content_to_position="c2p" in terms,
            position_to_content="p2c" in terms,
            share_projections=shared,
            key_bias=buckets and not shared and "c2p" in terms,
            norm_eps=config.positive("layer_norm_eps", 1e-7) if buckets and _normed(config) else None,
        )
        return found | {"bias": (encoding,)}

    return site


def _normed(config: Section) -> bool:
    kinds = [kind.strip() for kind in config.text("norm_rel_ebd", "none").lower().split("|")]
    return "layer_norm" in kinds


def _deberta_head_dim(config: Section, _kind: str) -> int:
    """``attention_head_size``, whatever the hidden size is."""
    width, heads = config.integer("hidden_size", 1536), config.integer("num_attention_heads", 24)
    if width % heads:
        raise SpecError(f"hidden_size must be a multiple of num_attention_heads = {heads}, got {width}")
    return config.integer("attention_head_size", width // heads)


def _deberta_family(model_type: str, sizes: tuple[int, int, int], *, buckets: bool, **more: Any) -> Family:
    closing: NormOf = norms.embedding_layer_norm("layer_norm_eps", 1e-7)
    return encoder(
        model_type,
        sizes,
        _deberta(buckets=buckets),
        length=Size(("max_position_embeddings",), 512),
        scale=_deberta_scale,
        input_norm=closing,
        harmless=frozenset(
            {"position_buckets", "share_att_key", "norm_rel_ebd", "max_relative_positions", "relative_attention"}
        ),
        **more,
    )


RELATIVE_FAMILIES = (
    encoder(
        "wav2vec2-bert",
        (1024, 24, 16),
        conformer_site("relative_key"),
        length=Size(("max_source_positions",), 5000),
        input_norm=norms.layer_norm("layer_norm_eps", 1e-5),
        harmless=SPEECH,
    ),
    encoder(
        "wav2vec2-conformer",
        (768, 12, 12),
        conformer_site("relative"),
        length=Size(("max_source_positions",), 5000),
        input_norm=norms.layer_norm(None, 1e-5),
        harmless=SPEECH,
    ),
    Family(
        "speecht5",
        Sizes(
            hidden=Size(("hidden_size",), 768),
            heads=Size(("encoder_attention_heads", "num_attention_heads"), 12),
            layers=Size(("encoder_layers", "num_hidden_layers"), 12),
            head_dim=None,
            length=NO_LENGTH,
        ),
        _speecht5,
        _ALL,
        part="encoder",
        causal=never,
        input_norm=no_norm,
        harmless=SPEECH
        | {
            *("decoder_attention_heads", "max_speech_positions", "max_text_positions", "scale_embedding"),
            *("use_guided_attention_loss", "guided_attention_loss_scale", "guided_attention_loss_sigma"),
            "guided_attention_loss_num_heads",
        },
    ),
    _parakeet("parakeet_encoder"),
    _parakeet("nemotron_asr_streaming_encoder", beyond=_chunks),
    _fastspeech2("encoder"),
    _fastspeech2("decoder"),
    _XLNET,
    _deberta_family(
        "deberta", (768, 12, 12), buckets=False, biases=projection_biases.fixed("qvo"), fixed={"talking_head": (False,)}
    ),
    _deberta_family("deberta-v2", (1536, 24, 24), buckets=True, head_dim=_deberta_head_dim),
)

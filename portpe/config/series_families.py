"""Models of time series and of episodes, with positions in their embeddings: one row a model_type (and stack)."""

from __future__ import annotations

from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.bert_families import usual_sizes
from portpe.config.embedding_sites import learned, on_layer_0, sinusoids, switched
from portpe.config.layer import Family, Layer, Size, Sizes, has, never
from portpe.config.section import Section, shown
from portpe.config.sites import no_encoding
from portpe.config.stack_families import context_length, series_length, stack
from portpe.encodings import LearnedEncoding
from portpe.errors import SpecError
from portpe.layer_parts import Norm

_ALL = projection_biases.fixed("qkvo")


def _timescales(layer: Layer) -> dict[str, Any]:
    """TimesFM: tensor2tensor's sinusoids; timescales reach from 1 to max_timescale."""
    settings = {"base": layer.config.positive("max_timescale", 10000.0)}
    return sinusoids("sin_cos", settings=settings)(layer)


def _patches(config: Section) -> int:
    """How many patches PatchTST cuts a context into."""
    length, patch = config.integer("context_length", 32), config.integer("patch_length", 1)
    if length <= patch:
        raise SpecError(f"context_length must be > patch_length = {patch}, got {length}")
    return (length - patch) // config.integer("patch_stride", 1) + 1


def _patchtst(layer: Layer) -> dict[str, Any]:
    """PatchTST: a row a patch, trained or made of sinusoids once; a class token's row comes first."""
    kind = layer.config.text("positional_encoding_type", "sincos")
    if kind not in ("sincos", "random"):
        raise SpecError(f"positional_encoding_type must be 'sincos' or 'random', got {shown(kind)}")
    rows = _patches(layer.config) + layer.config.flag("use_cls_token", False)
    return on_layer_0(layer, LearnedEncoding(rows=rows, width=layer.hidden_size))


def _patchtst_norm(layer: Layer) -> Norm | None:
    before = layer.config.flag("pre_norm", True)
    eps = layer.config.positive("norm_eps", 1e-5)
    return Norm(kind="layer", eps=eps, bias=True) if before and not _batch_norm(layer) else None


def _batch_norm(layer: Layer) -> bool:
    kind = layer.config.text("norm_type", "batchnorm")
    if kind not in ("batchnorm", "layernorm"):
        raise SpecError(f"norm_type must be 'batchnorm' or 'layernorm', got {shown(kind)}")
    return kind == "batchnorm"


def _patchtst_beyond(layer: Layer) -> str | None:
    return "a batch norm before it" if _batch_norm(layer) and layer.config.flag("pre_norm", True) else None


def _autoformer(part: str) -> Family:
    """Marian's sinusoids; the decoder begins with the last ``label_length`` values that the encoder saw."""

    def site(layer: Layer) -> dict[str, Any]:
        offset = 0
        if part == "decoder":
            seen, label = context_length(layer.config), layer.config.integer("label_length", 10, minimum=0)
            if label > seen:
                raise SpecError(f"label_length must be <= context_length = {seen}, got {label}")
            offset = seen - label
        return sinusoids("sin_cos", "half", offset=offset, rows=series_length)(layer)

    return stack(
        "autoformer",
        part,
        (64, 2, 2),
        Size(("context_length",), 0),
        site,
        input_norm=norms.embedding_layer_norm(None, 1e-5),
        beyond=has("autocorrelation in place of products"),
        harmless=frozenset({"scaling"}),
    )


def _episode_scale(layer: Layer) -> float:
    scale = float(layer.head_dim**-0.5) if layer.config.flag("scale_attn_weights", True) else 1.0
    return scale / (layer.index + 1) if layer.config.flag("scale_attn_by_inverse_layer_idx", False) else scale


def _constant_row(layer: Layer) -> str | None:
    """Decision Transformer: GPT-2's table behind the norm of the embeddings is read at row 0 alone."""
    return "a constant row between the norm of its embeddings and its own" if layer.index == 0 else None


SERIES_FAMILIES = (
    Family(
        "timesfm",
        usual_sizes(1280, 16, 50, 0, head_dim=80),
        switched("use_positional_embedding", False, _timescales, no_encoding),
        _ALL,
        input_norm=norms.rms("rms_norm_eps", 1e-6),
        beyond=has("a trained scale for each channel of its queries"),
        fixed={"min_timescale": (1,)},
        harmless=frozenset({"max_timescale"}),
    ),
    Family(
        "patchtst",
        Sizes(
            hidden=Size(("d_model", "hidden_size"), 128),
            heads=Size(("num_attention_heads",), 4),
            layers=Size(("num_hidden_layers",), 3),
            head_dim=None,
            length=Size(("context_length",), 32),
        ),
        _patchtst,
        _ALL,
        causal=never,
        trained_length=lambda _layer: None,
        input_norm=_patchtst_norm,
        beyond=_patchtst_beyond,
        harmless=frozenset({"scaling", "channel_attention", "positional_dropout", "head_dropout"}),
    ),
    _autoformer("encoder"),
    _autoformer("decoder"),
    Family(
        "decision_transformer",
        Sizes(
            hidden=Size(("hidden_size",), 128),
            heads=Size(("n_head", "num_attention_heads"), 1),
            layers=Size(("n_layer", "num_hidden_layers"), 3),
            head_dim=None,
            length=Size(("max_ep_len",), 4096),
        ),
        learned("max_ep_len", 4096),
        _ALL,
        scale=_episode_scale,
        input_norm=norms.layer_norm("layer_norm_epsilon", 1e-5),
        embedding_norm=norms.embedding_layer_norm(None, 1e-5),
        beyond=_constant_row,
        harmless=frozenset({"n_positions", "max_position_embeddings", "reorder_and_upcast_attn"}),
    ),
)

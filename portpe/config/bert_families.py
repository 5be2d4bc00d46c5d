"""BERT's descendants: one row a model_type. Token types, tasks and boxes are the business of hidden_states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portpe.config import attention_patterns, embedding_sites, norms, projection_biases
from portpe.config.layer import Family, Layer, NormOf, Size, Sizes, never
from portpe.encodings import DefaultSchedule, RotaryEncoding

_LENGTH = "max_position_embeddings"
_EPS = "layer_norm_eps"
_ESM_LENGTH = 1026
_CLOSING = norms.embedding_layer_norm(_EPS, 1e-12)


def usual_sizes(hidden: int = 768, heads: int = 12, layers: int = 12, length: int = 512, **more: Any) -> Sizes:
    """Sizes under their usual names; ``head_dim`` is hidden_size over heads unless ``more`` says otherwise."""
    return Sizes(
        hidden=Size(("hidden_size",), hidden),
        heads=Size(("num_attention_heads",), heads),
        layers=Size(("num_hidden_layers",), layers),
        length=Size((_LENGTH,), length),
        **{"head_dim": None} | more,
    )


def _decoder_switch(layer: Layer) -> bool:
    return layer.config.flag("is_decoder", False)


def _positions_past_padding(length: int, padding: int | None) -> Callable[[Layer], int | None]:
    """max_position_embeddings counts the table's rows: positions start after padding_idx."""

    def trained(layer: Layer) -> int | None:
        rows = layer.max_position_embeddings
        return None if rows is None else rows - embedding_sites.padded_offset(layer.config, length, padding)

    return trained


def bert(
    model_type: str,
    sizes: Sizes | None = None,
    site: embedding_sites.Site | None = None,
    *,
    decodes: bool = True,
    eps: float = 1e-12,
    **more: Any,
) -> Family:
    """BERT's block: biases everywhere, a layer norm that closes the embeddings, two-way unless ``is_decoder``."""
    return Family(
        model_type,
        sizes or usual_sizes(),
        site or embedding_sites.learned(_LENGTH, 512),
        more.pop("biases", projection_biases.fixed("qkvo")),
        causal=_decoder_switch if decodes else never,
        input_norm=more.pop("input_norm", norms.embedding_layer_norm(_EPS, eps)),
        **more,
    )


def roberta(model_type: str, sizes: Sizes | None = None, padding: int | None = 1, **more: Any) -> Family:
    """BERT's block with RoBERTa's table."""
    sizes = sizes or usual_sizes()
    length = sizes.length.default
    site = more.pop("site", embedding_sites.padded(length, padding))
    trained = more.pop("trained_length", _positions_past_padding(length, padding))
    return bert(model_type, sizes, site, trained_length=trained, **more)


def _before(default: float = 1e-12) -> NormOf:
    """A layer norm before the attention of every layer."""
    return norms.layer_norm(_EPS, default)


def _xmod_norm(layer: Layer) -> Any:
    """X-MOD with ``pre_norm`` norms before attention, else where the embeddings close."""
    return (_before() if layer.config.flag("pre_norm", False) else _CLOSING)(layer)


def _xmod_embedding_norm(layer: Layer) -> Any:
    return _CLOSING(layer) if layer.config.flag("pre_norm", False) else None


def _esm_embedding_norm(layer: Layer) -> Any:
    return _CLOSING(layer) if layer.config.flag("emb_layer_norm_before", False) else None


def _esm(layer: Layer) -> dict[str, Any]:
    """ESM: RoBERTa's table, or with position_embedding_type ``rotary`` (ESM-2) rotary alone, base ``rope_theta``."""
    if layer.config.text("position_embedding_type", "absolute") != "rotary":
        return embedding_sites.padded(_ESM_LENGTH, None)(layer)
    schedule = DefaultSchedule(rope_theta=layer.config.positive("rope_theta", 10000.0))
    return {"rotary": RotaryEncoding(width=layer.head_dim, schedule=schedule)}


def _esm_length(layer: Layer) -> int | None:
    if layer.config.get("position_embedding_type") == "rotary":
        return layer.max_position_embeddings
    return _positions_past_padding(_ESM_LENGTH, None)(layer)


def _distilbert_sizes() -> Sizes:
    return Sizes(
        hidden=Size(("dim", "hidden_size"), 768),
        heads=Size(("n_heads", "num_attention_heads"), 12),
        layers=Size(("n_layers", "num_hidden_layers"), 6),
        head_dim=None,
        length=Size((_LENGTH,), 512),
    )


BERT_FAMILIES = (
    bert("bert", harmless=frozenset({"pooler_num_attention_heads", "pooler_size_per_head"})),
    bert("bert-generation", usual_sizes(1024, 16, 24)),
    bert(
        "big_bird",
        usual_sizes(length=4096),
        embedding_sites.learned(_LENGTH, 4096),
        biases=projection_biases.with_output(projection_biases.switched("use_bias", True, "qkv")),
        extras=attention_patterns.dense("block_sparse", "original_full"),
        harmless=frozenset({"rescale_embeddings"}),
    ),
    bert("ernie"),
    bert("roc_bert"),
    bert("splinter", decodes=False),
    bert("visual_bert", decodes=False),
    bert("layoutlm", decodes=False, harmless=frozenset({"max_2d_position_embeddings"})),
    bert(
        "tapas",
        usual_sizes(length=1024),
        embedding_sites.learned(_LENGTH, 1024),
        harmless=frozenset({"reset_position_index_per_cell", "positive_label_weight", "use_normalized_answer_loss"}),
        decodes=False,
    ),
    bert("megatron-bert", usual_sizes(1024, 16, 24), input_norm=_before()),
    bert("electra", usual_sizes(256, 4), embedding_sites.projected("embedding_size", 128, always=False)),
    bert("rembert", usual_sizes(1152, 18, 32), embedding_sites.projected("input_embedding_size", 256)),
    bert(
        "albert",
        usual_sizes(4096, 64),
        embedding_sites.projected("embedding_size", 128),
        decodes=False,
        harmless=frozenset({"down_scale_factor"}),
        fixed={"inner_group_num": (1,)},
    ),
    bert(
        "distilbert",
        _distilbert_sizes(),
        embedding_sites.switched(
            "sinusoidal_pos_embds",
            False,
            embedding_sites.sinusoids("interleaved", "half", rows=(_LENGTH, 512)),
            embedding_sites.learned(_LENGTH, 512),
        ),
        decodes=False,
        input_norm=norms.embedding_layer_norm(None, 1e-12),
    ),
    roberta("roberta"),
    roberta("camembert"),
    roberta("xlm-roberta"),
    roberta("data2vec-text"),
    roberta("markuplm", padding=0, decodes=False),
    roberta("xlm-roberta-xl", usual_sizes(2560, 32, 36, 514), input_norm=_before(1e-5)),
    roberta("roberta-prelayernorm", input_norm=_before(), embedding_norm=_CLOSING),
    roberta(
        "xmod",
        input_norm=_xmod_norm,
        embedding_norm=_xmod_embedding_norm,
        harmless=frozenset({"adapter_layer_norm", "adapter_reuse_layer_norm"}),
    ),
    roberta(
        "longformer",
        decodes=False,
        extras=attention_patterns.local,
        fixed={"attention_mode": ("longformer", "sliding_chunks"), "ignore_attention_mask": (False,)},
    ),
    roberta(
        "esm",
        usual_sizes(length=_ESM_LENGTH),
        site=_esm,
        trained_length=_esm_length,
        input_norm=_before(),
        embedding_norm=_esm_embedding_norm,
        harmless=frozenset({"rope_theta"}),
    ),
)

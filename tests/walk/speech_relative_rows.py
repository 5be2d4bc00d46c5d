"""Speech models with vectors of the distance: what their attention adds to the scores of random queries and keys."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from portpe.spec import AttentionSpec
from tests.walk.absolute_rows import fairseq
from tests.walk.relative_rows import LENGTH, Theirs, added, conformer, drawn
from tests.walk.row import Case, Row
from tests.walk.site_checks import sinusoids


@contextmanager
def kept(owner: Any, name: str, keyword: str) -> Iterator[list[torch.Tensor]]:
    """What a function of a module is given under a keyword, while it is called."""
    seen: list[torch.Tensor] = []
    original = getattr(owner, name)

    def keep(*args: Any, **named: Any) -> Any:
        seen.append(named[keyword])
        return original(*args, **named)

    setattr(owner, name, keep)
    try:
        yield seen
    finally:
        setattr(owner, name, original)


def fed(module: torch.nn.Module, **given: torch.Tensor) -> None:
    """Put rows (1, heads, S, D) in place of what projections give."""
    for name, rows in given.items():
        delattr(module, name)
        setattr(module, name, _constant(rows.transpose(1, 2).flatten(2)))


def _constant(rows: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda states: torch.nn.functional.pad(rows, (0, 0, 0, states.shape[1] - rows.shape[1]))


def vits(case: Case, spec: AttentionSpec, q: torch.Tensor, _k: torch.Tensor) -> Theirs:
    module = drawn(case.modeling.VitsAttention(case.config))
    rows = module._get_relative_embeddings(module.emb_rel_k, LENGTH)
    found = module._relative_position_to_absolute_position(q[0] * spec.scale @ rows.transpose(-2, -1))
    return Theirs({"relative_key.weight": module.emb_rel_k[0]}, found[None])


def seamless_v2(case: Case, spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
    case.config._attn_implementation = "eager"
    module = drawn(case.modeling.SeamlessM4Tv2ConformerSelfAttention(case.config))
    fed(module, linear_q=q, linear_k=k)
    with kept(case.modeling, "eager_attention_forward", "position_bias") as seen:
        module(torch.zeros(1, LENGTH, spec.hidden_size, dtype=torch.float64))
    return Theirs({"relative_key.weight": module.distance_embedding.weight}, seen[0])


def granite(name: str) -> Callable[..., Theirs]:
    """The first block, which is filled up: its scores are shown to the operator as a mask."""

    def make(case: Case, spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
        config = copy.deepcopy(case.config)
        config.num_layers = 0
        distances = getattr(case.modeling, f"{name}CTCEncoder")(config).attention_dists
        module = drawn(getattr(case.modeling, f"{name}ConformerAttention")(config))
        fed(module, to_q=q, to_kv=torch.cat((k, k)).flatten(0, 1)[None])
        with kept(torch.nn.functional, "scaled_dot_product_attention", "attn_mask") as seen:
            module(torch.zeros(1, LENGTH, spec.hidden_size, dtype=torch.float64), distances)
        return Theirs({"relative_key.weight": module.rel_pos_emb.weight}, seen[0][..., :LENGTH, :LENGTH])

    return make


def granite5(case: Case, spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
    config = copy.deepcopy(case.config)
    config._attn_implementation, config.num_hidden_layers, config.vocab_size = "eager", 0, 5
    distances = case.modeling.GraniteSpeech5Encoder(config).attention_dists
    module = drawn(case.modeling.GraniteSpeech5EncoderAttention(config, 0))
    fed(module, q_proj=q, k_proj=k)
    with kept(case.modeling, "eager_attention_forward", "attention_mask") as seen:
        module(torch.zeros(1, LENGTH, spec.hidden_size, dtype=torch.float64), distances)
    return Theirs({"relative_key.weight": module.rel_pos_emb.weight}, seen[0][..., :LENGTH, :LENGTH])


def sewd(case: Case, spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
    case.config.num_hidden_layers = 0
    encoder = drawn(case.modeling.SEWDTransformerEncoder(case.config))
    module = drawn(case.modeling.DisentangledSelfAttention(case.config))
    projections = {"q_proj": module.query_proj, "k_proj": module.key_proj}
    flat = (rows.flatten(0, 1) for rows in (q, k))
    (encoding,) = spec.bias
    terms = 1 + encoding.content_to_position + encoding.position_to_content
    found = module.disentangled_attention_bias(*flat, None, encoder.get_rel_embedding(), terms)
    weights = {"relative_embedding.weight": encoder.rel_embeddings.weight}
    if encoding.norm_eps is not None:
        weights |= {f"relative_norm.{part}": getattr(encoder.LayerNorm, part) for part in ("weight", "bias")}
    for ours, name in (("position_key_proj", "pos_key_proj"), ("position_query_proj", "pos_query_proj")):
        if hasattr(module, name):
            weights |= {f"{ours}.{part}": getattr(getattr(module, name), part) for part in ("weight", "bias")}
    return Theirs(weights, found.view(1, *q.shape[1:3], -1), lambda name, rows: projections[name](rows))


_SEAMLESS = {"small": {"hidden_size": 48, "speech_encoder_attention_heads": 6}}
_PADDING = {"padding": {"pad_token_id": 3}}


def seamless(model_type: str, prefix: str, speech: Row) -> tuple[Row, ...]:
    table = sinusoids(fairseq(f"{prefix}SinusoidalPositionalEmbedding", "hidden_size"))
    texts = (Row(model_type, table, _PADDING, part=part) for part in ("encoder", "decoder"))
    return (*texts, speech)


SPEECH_RELATIVES = (
    Row("vits", added(vits), {"wider": {"window_size": 7, "hidden_size": 48}}),
    *seamless(
        "seamless_m4t",
        "SeamlessM4T",
        Row(
            "seamless_m4t",
            added(conformer("SeamlessM4TConformerSelfAttention", "SeamlessM4TConformerRelPositionalEmbedding")),
            _SEAMLESS,
            part="speech",
        ),
    ),
    *seamless(
        "seamless_m4t_v2",
        "SeamlessM4Tv2",
        Row(
            "seamless_m4t_v2",
            added(seamless_v2),
            {"other limits": {"left_max_position_embeddings": 9, "right_max_position_embeddings": 3}},
            part="speech",
            wrong="tests/reference/test_transformers_divergences.py::"
            "test_seamless_v2_adds_its_boolean_mask_to_the_scores",
        ),
    ),
    Row("granite_speech_encoder", added(granite("GraniteSpeech")), {"short": {"max_pos_emb": 40, "context_size": 23}}),
    Row(
        "granite_speech_plus_encoder",
        added(granite("GraniteSpeechPlus")),
        {"short": {"max_pos_emb": 40, "context_size": 23}},
    ),
    Row(
        "granite_speech5_encoder",
        added(granite5),
        {"short": {"max_position_embeddings": 40, "context_size": 23}},
    ),
    Row(
        "sew-d",
        added(sewd),
        {
            "buckets": {"position_buckets": 8, "max_position_embeddings": 15},
            "raw": {"position_buckets": -1, "max_position_embeddings": 6, "share_att_key": False},
            "queries alone": {"pos_att_type": ["c2p"], "norm_rel_ebd": "none"},
        },
    ),
)

"""Families whose scores read vectors of the distance: what is added to the scores of random queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from portpe.reference.bias import BIASES, ScoreInputs
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from tests.walk.row import Case, Row

LENGTH = 19
ULP = 2.0**-23


def no_projection(_name: str, _rows: torch.Tensor) -> torch.Tensor:
    raise AssertionError("the module's own projections are given as weights")


class Theirs(NamedTuple):
    """The module's tensors under canonical names, and what it adds (B, heads, S, S), the layer's scale in it;
    ``project``: its projections of queries and keys by name, where the addend is made with them.
    """

    weights: Mapping[str, torch.Tensor]
    added: torch.Tensor
    project: Callable[[str, torch.Tensor], torch.Tensor] = no_projection


Make = Callable[[Case, AttentionSpec, torch.Tensor, torch.Tensor], Theirs]


def added(make: Make) -> Callable[[Case], None]:
    """``make`` (case, spec, q, k) runs transformers' own module in float64; ours is within 2 ulp of float32, in
    which it makes sinusoids and some scales.
    """

    def check(case: Case) -> None:
        for _, reading in case.layers():
            spec = reading.spec
            (encoding,) = spec.bias
            generator = torch.Generator().manual_seed(3)
            q, k = (
                torch.randn(1, spec.num_heads, LENGTH, spec.head_dim, generator=generator, dtype=torch.float64)
                for _ in range(2)
            )
            with torch.no_grad():
                theirs = make(case, spec, q, k)
            places = torch.arange(LENGTH)[None]
            weights = {name: tensor.detach() for name, tensor in theirs.weights.items()}
            inputs = ScoreInputs(q[:, 0], q, k, places, places, torch.ones(1, 1, 1, 1).bool(), weights, theirs.project)
            module = BIASES[encoding.kind](encoding, spec, table_set(spec, 2 * LENGTH), torch.float64)
            ours = module(inputs)
            assert ours.std() > 0.03  # a unit times the scale, of some keys in VITS
            assert (ours - theirs.added).abs().max() <= 2 * ULP * theirs.added.abs().max()

    return check


def drawn(module: torch.nn.Module) -> Any:
    """The module in float64 with weights of one unit's effect."""
    generator = torch.Generator().manual_seed(4)
    module = module.double().eval()
    for parameter in module.parameters():
        spread = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * spread)
    return module


def shaw(attention: str, function: str) -> Make:
    def make(case: Case, _spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
        module = drawn(getattr(case.modeling, attention)(case.config))
        _, bias = getattr(case.modeling, function)(module, q, k)
        return Theirs({"relative_key.weight": module.distance_embedding.weight}, bias)

    return make


def speecht5(case: Case, spec: AttentionSpec, q: torch.Tensor, _k: torch.Tensor) -> Theirs:
    table = drawn(
        case.modeling.SpeechT5RelativePositionalEncoding(spec.head_dim, case.config.encoder_max_relative_position)
    )
    rows = table(torch.zeros(1, LENGTH, 1))
    added = torch.einsum("bhsd,std->bhst", q * spec.scale, rows)
    return Theirs({"relative_key.weight": table.pe_k.weight}, added)


def conformer_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        "relative_proj.weight": module.linear_pos.weight,
        "content_bias": module.pos_bias_u,
        "position_bias": module.pos_bias_v,
    }


def conformer(attention: str, positions: str) -> Make:
    """Of wav2vec 2: u goes to the queries, and meets the keys with them."""

    def make(case: Case, spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
        module = drawn(getattr(case.modeling, attention)(case.config))
        rows = getattr(case.modeling, positions)(case.config)(torch.zeros(1, LENGTH, 1, dtype=torch.float64))
        biased, bias = case.modeling._apply_relative_position_encoding(module, q, k, rows)
        of_keys = (biased - q) @ k.transpose(-1, -2) * spec.scale
        return Theirs(conformer_weights(module), bias + of_keys)

    return make


def fastspeech2(case: Case, spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
    """Its attention in one function: q and k go in by hand, and its scores are the logarithms of what comes out."""
    settings = getattr(case.config, f"{case.row.part}_config")
    module = drawn(case.modeling.FastSpeech2ConformerAttention(case.config, settings))
    _, rows = case.modeling.FastSpeech2ConformerRelPositionalEncoding(case.config, settings).eval()(
        torch.zeros(1, LENGTH, 1, dtype=torch.float64)
    )
    del module.linear_q, module.linear_k
    module.linear_q = lambda _: q.transpose(1, 2).flatten(2)
    module.linear_k = lambda _: k.transpose(1, 2).flatten(2)
    with_logits = _logits_of(module, torch.zeros(1, LENGTH, spec.hidden_size, dtype=torch.float64), pos_emb=rows)
    return Theirs(conformer_weights(module), with_logits - q @ k.transpose(-1, -2) * spec.scale)


def _logits_of(module: torch.nn.Module, states: torch.Tensor, **more: Any) -> torch.Tensor:
    """The argument of the module's softmax."""
    seen: list[torch.Tensor] = []
    original = torch.softmax

    def softmax(scores: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        seen.append(scores)
        return original(scores, *args, **named)

    torch.softmax = softmax
    try:
        module(states, **more)
    finally:
        torch.softmax = original
    return seen[0]


def parakeet(prefix: str) -> Make:
    def make(case: Case, spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
        case.config._attn_implementation = "eager"
        module = drawn(getattr(case.modeling, f"{prefix}EncoderAttention")(case.config, 0))
        states = torch.zeros(1, LENGTH, spec.hidden_size, dtype=torch.float64)
        rows = getattr(case.modeling, f"{prefix}EncoderRelPositionalEncoding")(case.config)(states)
        query = q + module.bias_v[:, None]
        by_head = module.relative_k_proj(rows).view(1, -1, spec.num_heads, spec.head_dim)
        shifted = module._rel_shift(query @ by_head.permute(0, 2, 3, 1))[..., :LENGTH]
        of_keys = module.bias_u[:, None] @ k.transpose(-1, -2)
        weights = {
            "relative_proj.weight": module.relative_k_proj.weight,
            "content_bias": module.bias_u,
            "position_bias": module.bias_v,
        }
        return Theirs(weights, (shifted + of_keys) * spec.scale)

    return make


def xlnet(case: Case, spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
    case.config.n_layer = 1
    model = case.modeling.XLNetModel(case.config)
    module = drawn(model.layer[0].rel_attn)
    rows = model.relative_positional_encoding(LENGTH, LENGTH, bsz=1).double()
    projected = torch.einsum("ibh,hnd->bnid", rows, module.r)
    of_positions = module.rel_shift_bnij((q + module.r_r_bias[:, None]) @ projected.transpose(-1, -2), klen=LENGTH)
    of_keys = module.r_w_bias[:, None] @ k.transpose(-1, -2)
    weights = {
        "relative_proj.weight": module.r.flatten(1).T,
        "content_bias": module.r_w_bias,
        "position_bias": module.r_r_bias,
    }
    return Theirs(weights, (of_positions + of_keys) * module.scale)


def deberta(case: Case, spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> Theirs:
    (encoding,) = spec.bias
    first = case.row.model_type == "deberta"
    module = drawn(case.modeling.DisentangledSelfAttention(case.config))
    table = torch.randn(2 * encoding.span, spec.hidden_size, generator=torch.Generator().manual_seed(5)).double()
    distances = (
        case.modeling.build_relative_position(q, k)
        if first
        else case.modeling.build_relative_position(
            q, k, bucket_size=module.position_buckets, max_position=module.max_relative_positions
        )
    )
    terms = 1 + encoding.content_to_position + encoding.position_to_content
    if first:  # whose queries are scaled before
        added = module.disentangled_att_bias(q * spec.scale, k, distances, table, terms)
        key, query = module.pos_proj, module.pos_q_proj
    else:
        flat = (part.flatten(0, 1) for part in (q, k))
        added = module.disentangled_attention_bias(*flat, distances, table, terms).view(1, *q.shape[1:3], -1)
        key, query = module.pos_key_proj, module.pos_query_proj
    weights = {"relative_embedding.weight": table, "position_key_proj.weight": key.weight}
    if not first:
        weights["position_key_proj.bias"] = key.bias
    weights |= {f"position_query_proj.{part}": getattr(query, part) for part in ("weight", "bias")}
    return Theirs(weights, added)


_SMALL = {"hidden_size": 48, "num_attention_heads": 6}
_PARAKEET = {"hidden_size": 96, "num_attention_heads": 6}
_TERMS = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_OFF = "relative_attention is false by default, and every published model sets it"

RELATIVES = (
    Row(
        "wav2vec2-bert",
        added(shaw("Wav2Vec2BertSelfAttention", "_apply_relative_key_position_encoding")),
        {"other limits": {"left_max_position_embeddings": 9, "right_max_position_embeddings": 3, **_SMALL}},
    ),
    Row(
        "wav2vec2-bert",
        added(conformer("Wav2Vec2BertSelfAttention", "Wav2Vec2BertRelPositionalEmbedding")),
        {"small": _SMALL},
        default={"position_embeddings_type": "relative"},
    ),
    Row(
        "wav2vec2-conformer",
        added(conformer("Wav2Vec2ConformerSelfAttention", "Wav2Vec2ConformerRelPositionalEmbedding")),
        {"small": _SMALL},
    ),
    Row("speecht5", added(speecht5), {"short": {"encoder_max_relative_position": 7}}, part="encoder"),
    Row("parakeet_encoder", added(parakeet("Parakeet")), {"small": _PARAKEET}),
    Row("nemotron_asr_streaming_encoder", added(parakeet("NemotronAsrStreaming")), {"small": _PARAKEET}),
    Row("fastspeech2_conformer", added(fastspeech2), {"4 heads": {"encoder_num_attention_heads": 4}}, part="encoder"),
    Row("fastspeech2_conformer", added(fastspeech2), {"4 heads": {"decoder_num_attention_heads": 4}}, part="decoder"),
    Row("xlnet", added(xlnet), {"clamped": {"clamp_len": 6}}),
    Row("deberta", added(deberta), {"short": {"max_relative_positions": 5}}, default=_TERMS, because=_OFF),
    Row(
        "deberta-v2",
        added(deberta),
        {"buckets": {"position_buckets": 8, "max_relative_positions": 15}},
        default=_TERMS,
        because=_OFF,
    ),
)

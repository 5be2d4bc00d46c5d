"""The calls that every runtime is judged on, with what is in them: drawn from fixed seeds, at the scale of a layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from portpe.golden import CaseInputs, kv_heads_of
from portpe.interface import DTYPES, Array
from portpe.parity.bounds import given
from portpe.parity.layouts import SAMPLED, Exclusion, layouts, trained_length
from portpe.parity.stages import Block
from portpe.spec import AttentionSpec

Ids = NDArray[np.int64]

TILE = 251  # slots of a stored past, a prime: its repetition never falls in step with a power of two
STATE_TOKENS = 64  # tokens whose own states a past is made of
SCORE_STD = 3.0  # a score's standard deviation that inputs are scaled to: probabilities far from uniform


def build(
    spec: AttentionSpec, weights: Mapping[str, Array], tables: Mapping[str, Array], end: int | None
) -> tuple[list[CaseInputs], list[Exclusion]]:
    """The cases with their inputs, drawn from fixed seeds and scaled so that scores are several units wide."""
    found, excluded = layouts(spec, end)
    scale, key_scale, value_scale = _scales(spec, weights, tables, end)
    states = _own_states(spec, weights, tables, scale)
    cases = []
    for number, layout in enumerate(found):
        random = np.random.default_rng([7, number])
        batch, rows = layout.position_ids.shape[-2:]
        tile = min(layout.past, TILE)
        cases.append(
            CaseInputs(
                name=layout.name,
                hidden_states=_drawn(random, (batch, rows, spec.input_width), scale),
                position_ids=layout.position_ids,
                attention_mask=layout.attention_mask,
                key_position_ids=layout.key_position_ids,
                past_key_tile=_drawn(random, (batch, spec.num_kv_heads, tile, spec.head_dim), key_scale),
                past_value_tile=_drawn(random, (batch, spec.num_kv_heads, tile, spec.v_head_dim), value_scale),
                past=layout.past,
                pairs=_sampled_pairs(layout.attention_mask[:, layout.past :], shift=0),
                heads=_spread(spec.num_heads),
                slots=_sampled_pairs(layout.attention_mask[:, layout.past :], shift=layout.past),
                past_state_tiles={name: _chosen(random, own, batch, tile) for name, own in states.items()},
            )
        )
    return cases, excluded


def _drawn(random: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    """Normal numbers of 8 significant bits."""
    return np.asarray((random.standard_normal(shape, dtype=np.float32) * scale).astype(DTYPES["bfloat16"]))


def _own_states(
    spec: AttentionSpec, weights: Mapping[str, Array], tables: Mapping[str, Array], scale: float
) -> dict[str, Array]:
    """What this layer caches besides keys and values, of many tokens of this scale: (numbers of a token, tokens)."""
    if not spec.cached_states:
        return {}
    block, noise = Block(spec, weights, tables, "float32"), np.random.default_rng(5)
    count = (1, STATE_TOKENS)
    x = block.embedded(given(noise.standard_normal((*count, spec.input_width)) * scale), np.zeros(count, np.int64))
    return {name: state.value for name, state in block.states(block.normed(x)[0]).items()}


def _chosen(random: np.random.Generator, own: Array, batch: int, tile: int) -> Array:
    """(batch, numbers of a token, tile) of 8 significant bits: those of some of this layer's own tokens."""
    picked = own[:, random.integers(own.shape[1], size=(batch, tile))].swapaxes(0, 1)
    return np.asarray(picked.astype(np.float32).astype(DTYPES["bfloat16"]))


def _spread(count: int) -> Ids:
    """At most SAMPLED indices below ``count``, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, SAMPLED)).round().astype(np.int64))


def _sampled_pairs(kept: Ids, *, shift: int) -> Ids:
    """(batch, row) of at most SAMPLED real rows, spread over the batch."""
    real = np.argwhere(kept == 1)
    return np.asarray(real[_spread(len(real))] + [0, shift]).astype(np.int64)


def _scales(
    spec: AttentionSpec, weights: Mapping[str, Array], tables: Mapping[str, Array], end: int | None
) -> tuple[float, float, float]:
    """Powers of two for hidden states, cached keys and cached values.

    Hidden states are scaled until scores have about SCORE_STD (a trained layer without its input norm may give a
    tenth of that, or a hundred times); cached keys and values are as large as this layer's own.
    """
    block = Block(spec, weights, tables, "float32")
    heads = _spread(spec.num_heads)
    kv_heads = kv_heads_of(heads, spec.num_heads, spec.num_kv_heads)
    positions = np.arange(24)[None] % min(
        trained_length(spec), 24 if end is None else end, 24, *(spec.position_ends or ())
    )
    if spec.position_axes > 1:
        positions = np.stack([positions] * spec.position_axes)
    noise = np.random.default_rng(3).standard_normal((1, 24, spec.input_width))
    scale = 1.0
    for _ in range(3):  # scores grow as the square, but for norms and biases: approach it
        hidden = given(noise * scale)
        x = block.normed(block.embedded(hidden, positions))
        q, k, v = (
            block.heads(name, block.seen(name, x, hidden), chosen).value[0] for name, chosen in _named(heads, kv_heads)
        )
        norm = spec.q_norm is not None and spec.q_norm.when == "after"
        if norm:
            lengths = np.array([positions.max() + 1])
            q = block.rotated("q", given(q[None]), positions, heads, lengths).value[0]
            k = block.rotated("k", given(k[None]), positions, kv_heads, lengths).value[0]
        group = np.searchsorted(kv_heads, heads // (spec.num_heads // spec.num_kv_heads))
        if spec.attention == "linear":  # features bend where q and k are about 1, whatever the width of a head
            score_std = SCORE_STD * float(q.std() * k.std())
        else:
            score_std = float(np.einsum("hsd,htd->hst", q, k[group]).std()) * spec.scale
        fixed = bool(spec.input_norms) or spec.q_norm is not None
        if fixed or SCORE_STD / 2 <= score_std <= SCORE_STD * 2:
            break
        scale *= _power_of_two(np.sqrt(SCORE_STD / max(score_std, 1e-6)))
    return scale, _power_of_two(float(k.std())), _power_of_two(float(v.std()))


def _named(heads: Ids, kv_heads: Ids) -> tuple[tuple[str, Ids], ...]:
    return ("q", heads), ("k", kv_heads), ("v", kv_heads)


def _power_of_two(x: float) -> float:
    return float(2.0 ** np.round(np.log2(max(x, 2.0**-20))))

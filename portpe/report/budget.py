"""What a stack of layers costs by length: bytes of key/value cache, operations of scores and values."""

from __future__ import annotations

from collections.abc import Sequence

from portpe.spec import AttentionSpec


def cache_bytes(layers: Sequence[AttentionSpec], tokens: int, element_bytes: int) -> int:
    """Bytes of the key/value cache of one sequence: 2 * kv_heads * D * bytes * tokens, summed over the layers, and
    4 for each number that encodings cache besides.

    A layer with a window keeps its last ``window`` tokens, one with chunks at most a chunk. Layers without causality
    keep none.
    """
    return sum(
        (
            layer.num_kv_heads * (layer.head_dim + layer.v_head_dim) * element_bytes
            + 4 * sum(layer.cached_states.values())
        )
        * _kept(layer, tokens)
        for layer in layers
        if layer.causal
    )


def _kept(layer: AttentionSpec, tokens: int) -> int:
    """How many tokens' keys a layer keeps."""
    return min(tokens, layer.window or tokens, layer.chunk or tokens)


def attention_flops(layers: Sequence[AttentionSpec], tokens: int) -> int:
    """Operations of q.k and probs @ v for one whole sequence: 2 * heads * (D + Dv) a pair of query and key.

    Only pairs that the masks leave are counted: about half of the square with causality, a band with a window. Linear
    attention is computed by pairs too; sums of keys for its normaliser take 2 * kv_heads * D more a pair.
    """
    return sum(2 * _multiplications(layer) * _pairs(layer, tokens) for layer in layers)


def _multiplications(layer: AttentionSpec) -> int:
    """Of one query and one key, in all heads."""
    normaliser = layer.num_kv_heads * layer.head_dim if layer.attention == "linear" else 0
    return layer.num_heads * (layer.head_dim + layer.v_head_dim) + normaliser


def state_size(layer: AttentionSpec) -> int:
    """How many numbers the sums of linear attention have, which a decoder could keep in place of keys and values.

    Of each kv head the sum of (R phi(k)) v^T, D * Dv, and that of phi(k), D.
    """
    return layer.num_kv_heads * layer.head_dim * (layer.v_head_dim + 1)


def _pairs(layer: AttentionSpec, tokens: int) -> int:
    """How many (query, key) pairs the mask of one sequence leaves."""
    if layer.causal and layer.chunk is not None and layer.chunk < tokens:
        whole, rest = divmod(tokens, layer.chunk)
        alone = layer.model_copy(update={"chunk": None})
        return whole * _pairs(alone, layer.chunk) + _pairs(alone, rest)
    if layer.causal:
        window = min(layer.window or tokens, tokens)
        return window * (window + 1) // 2 + (tokens - window) * window
    if layer.window_radius is None:
        return tokens * tokens
    radius = min(layer.window_radius, tokens - 1)
    return tokens * (2 * radius + 1) - radius * (radius + 1)

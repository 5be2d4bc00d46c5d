"""Layer: runtimes (MLX). From queries, keys and values to the context: by mx.fast where it means the same.

Shapes: q (B, heads, S, D), k (B, kv_heads, T, D), v (B, kv_heads, T, Dv); query head h reads key/value head
h // (heads / kv_heads). ``keep`` is bool, broadcastable to (B, heads, S, T); None hides nothing.
"""

from __future__ import annotations

import mlx.core as mx

from portpe.runtimes.mlx.masks import Mask

CHUNK = 64
"""Queries of a causal prefill that a CPU takes at a time: of 512 tokens it saves 45 % of the attention's time."""


def scores(q: mx.array, k: mx.array, scale: float, bias: mx.array | None, softcap: float | None) -> mx.array:
    """(q . k) * scale + bias, then softcap * tanh(. / softcap): (B, heads, S, T) in float32."""
    batch, heads, length, head_dim = q.shape
    kv_heads, total = k.shape[1], k.shape[2]
    grouped = q.astype(mx.float32).reshape(batch, kv_heads, heads // kv_heads, length, head_dim)
    keys = mx.expand_dims(k.astype(mx.float32), 2).swapaxes(-1, -2)
    products = (grouped @ keys).reshape(batch, heads, length, total) * scale
    if bias is not None:
        products = products + bias
    return products if softcap is None else softcap * mx.tanh(products / softcap)


def probabilities(logits: mx.array, mask: Mask, sinks: mx.array | None) -> mx.array:
    """Softmax over the keys that the mask leaves: (B, heads, S, T) in float32.

    A sink (one logit a head) joins the denominator and takes no value. Hidden keys have exactly 0, and so has
    every key of a row that sees none.
    """
    assert not mask.causal, "a mask by name reaches only mx.fast"
    if mask.added is not None:
        logits = logits + mask.added
    if mask.keep is not None:
        logits = mx.where(mask.keep, logits, -mx.inf)
    top = mx.max(logits, axis=-1, keepdims=True)
    if sinks is not None:
        sink = sinks.astype(mx.float32).reshape(-1, 1, 1)
        top = mx.maximum(top, sink)
    top = mx.where(top == -mx.inf, 0.0, top)
    weights = mx.exp(logits - top)
    total = mx.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + mx.exp(sink - top)
    return mx.where(total > 0, weights / mx.where(total > 0, total, 1.0), 0.0)


def context(probs: mx.array, v: mx.array) -> mx.array:
    """The product probs @ v, accumulated in float32, in v's type: (B, heads, S, Dv)."""
    batch, heads, length, total = probs.shape
    kv_heads, width = v.shape[1], v.shape[3]
    grouped = probs.reshape(batch, kv_heads, heads // kv_heads, length, total)
    values = mx.expand_dims(v.astype(mx.float32), 2)
    return (grouped @ values).reshape(batch, heads, length, width).astype(v.dtype)


def fused(
    q: mx.array, k: mx.array, v: mx.array, scale: float, bias: mx.array | None, mask: Mask, sinks: mx.array | None
) -> mx.array:
    """The context by mx.fast.scaled_dot_product_attention.

    It knows no softcap, adds its mask in the tensors' type, and gives a row without keys the mean of the values
    (a bool mask) or NaN (-inf): such rows are 0 here. On a CPU, where no kernel of its own stands behind it, it is
    asked in the form that costs least.
    """
    out: mx.array
    on_cpu = mx.default_device().type == mx.cpu
    if mask.causal and bias is None and mask.keep is None and mask.added is None:
        if on_cpu and q.shape[2] > CHUNK:
            return _causal_in_chunks(q, k, v, scale, sinks)
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal", sinks=sinks)
    combined = mask.combined(bias, q.dtype)
    if on_cpu and q.shape[2] == 1 and q.shape[1] != k.shape[1] and sinks is None:
        out = _folded(q, k, v, scale, combined)
    else:
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=combined, sinks=sinks)
    if mask.keep is None or not mask.may_hide_all:
        return out
    return mx.where(mx.any(mask.keep, axis=-1, keepdims=True), out, mx.zeros((), out.dtype))


def _causal_in_chunks(q: mx.array, k: mx.array, v: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
    """Causal attention, CHUNK queries at a time on the keys up to the last of them: half of the products of a square
    are hidden, and mlx forms them all.
    """
    length, before = q.shape[2], k.shape[2] - q.shape[2]
    parts = []
    for start in range(0, length, CHUNK):
        end = min(start + CHUNK, length)
        keys, values = k[:, :, : before + end], v[:, :, : before + end]
        chunk = q[:, :, start:end]
        parts.append(mx.fast.scaled_dot_product_attention(chunk, keys, values, scale=scale, mask="causal", sinks=sinks))
    return mx.concatenate(parts, axis=2)


def _folded(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None) -> mx.array:
    """One query (B, heads, 1, D) of grouped heads: the heads of a group stand where queries do, and share their keys
    in one product, where mlx would read the keys again for each of them in 16-bit types.
    """
    batch, heads, _, head_dim = q.shape
    groups = heads // k.shape[1]
    if mask is not None and mask.ndim > 2 and mask.shape[-3] == heads:  # it differs by head
        mask = mask.reshape(*mask.shape[:-3], -1, groups, mask.shape[-1])
    grouped = q.reshape(batch, -1, groups, head_dim)
    out: mx.array = mx.fast.scaled_dot_product_attention(grouped, k, v, scale=scale, mask=mask)
    return out.reshape(batch, heads, 1, v.shape[3])

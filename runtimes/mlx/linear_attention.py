"""Layer: runtimes (MLX). Linear attention: features in place of a softmax, and their normaliser; mx.fast has none.

Everything between v and the context is float32: in float16 the feature of -18 is 0, and a row whose features are all 0
has no quotient.
"""

from __future__ import annotations

import mlx.core as mx


def features(x: mx.array) -> mx.array:
    """Elu(x) + 1 (Katharopoulos 2020, equation 7) in float32, as exp(min(x, 0)) + max(x, 0): small ones keep digits."""
    wide = x.astype(mx.float32)
    return mx.exp(mx.minimum(wide, 0.0)) + mx.maximum(wide, 0.0)


def normaliser(q: mx.array, k: mx.array, keep: mx.array | None) -> mx.array:
    """The sum of q . k over the keys that are kept, (B, heads, S, 1), of features before rotation.

    q (B, heads, S, D), k (B, kv_heads, T, D); ``keep`` is bool, broadcastable to (B, heads, S, T), None keeps all.
    Keys are summed first.
    """
    batch, heads, length, width = q.shape
    kv_heads, total = k.shape[1], k.shape[2]
    shown = mx.ones((1, 1, 1, total)) if keep is None else keep.astype(mx.float32)
    shown = shown.reshape((1,) * (4 - shown.ndim) + shown.shape)
    by_head = shown.shape[1] == heads and heads > 1
    shown = mx.unflatten(shown, 1, (kv_heads, -1)) if by_head else mx.expand_dims(shown, 2)
    summed = shown @ mx.expand_dims(k, 2)
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, length, width) * summed
    return mx.sum(grouped, axis=-1, keepdims=True).reshape(batch, heads, length, 1)


def weights(scores: mx.array, total: mx.array, keep: mx.array | None) -> mx.array:
    """Scores / normaliser where a key is kept, else 0, and so in a row that sees none: (B, heads, S, T)."""
    divided = scores / mx.where(total > 0, total, 1.0)
    return divided if keep is None else mx.where(keep, divided, 0.0)

"""ALiBi: the slopes, and the bias that they make of distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from portpe.encodings import AlibiEncoding, Sizes
from portpe.errors import SpecError
from portpe.positions import integer_positions


def alibi_slopes(num_heads: int, bias_max: float = 8.0) -> NDArray[np.float64]:
    """The slope of each head, for any number of heads (Press 2021, section 3 and its released code).

    For n heads, n a power of two: 2 ** (-bias_max h / n), h = 1..n. Otherwise, with c the
    power of two below n: the slopes of c heads, then every second of the slopes of 2c,
    from the first on, until there are n. They are not sorted: past c they start again.
    ``bias_max`` is MPT's ``alibi_bias_max``; 8 is the paper's.

    Returns:
        float64 (num_heads,), positive.

    Raises:
        SpecError: ``num_heads`` is not positive.
    """
    if num_heads < 1:
        raise SpecError(f"num_heads must be >= 1, got {num_heads}")
    lower = 1 << (num_heads.bit_length() - 1)
    exponents = [h / lower for h in range(1, lower + 1)]
    exponents += [h / (2 * lower) for h in range(1, 2 * (num_heads - lower), 2)]
    return np.array([2.0 ** (-bias_max * exponent) for exponent in exponents], dtype=np.float64)


def slopes(encoding: AlibiEncoding, num_heads: int) -> NDArray[np.float64]:
    """The positive factors of the distance, float64 (num_heads,): slope times ``scale``.

    With precision ``hf`` they are the float32 numbers of the contract's owner, widened.
    """
    if encoding.precision == "hf":
        from portpe import hf_tables  # torch only where transformers' numbers are asked for

        return hf_tables.alibi_slopes(encoding, num_heads).astype(np.float64)
    return alibi_slopes(num_heads, encoding.bias_max) * encoding.scale


def additive(
    encoding: AlibiEncoding, num_heads: int, query_positions: ArrayLike, key_positions: ArrayLike
) -> NDArray[np.float64]:
    """The bias that is added to the scores, from relative distances (Press 2021, section 3).

    Args:
        encoding: which slopes, their scale, and whether distance is symmetric.
        num_heads: query heads.
        query_positions: integers (S,) or (B, S).
        key_positions: integers (T,) or (B, T).

    Returns:
        float64 (H, S, T) or (B, H, S, T): -m (i - j), or -m |i - j| where symmetric. The causal
        form grows beyond the diagonal; a mask hides that part. Other forms of it (m j, or
        m (j - T + 1)) differ by a constant of each row, which a softmax does not see.
    """
    queries, keys = integer_positions(query_positions), integer_positions(key_positions)
    distance = queries[..., :, None] - keys[..., None, :]
    if encoding.symmetric:
        distance = np.abs(distance)
    factors = slopes(encoding, num_heads)
    result: NDArray[np.float64] = -factors[:, None, None] * distance[..., None, :, :]
    return result


def numbers(
    encoding: AlibiEncoding,
    layer: Sizes,
    positions: NDArray[np.int64],
    weights: Mapping[str, NDArray[Any]],  # noqa: ARG001 - every kind has one signature
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``bias`` (heads, P, P) and ``slopes`` (heads,), the scale in both."""
    return {
        "bias": additive(encoding, layer.num_heads, positions, positions),
        "slopes": slopes(encoding, layer.num_heads),
    }


def tables(encoding: AlibiEncoding, layer: Sizes) -> dict[str, NDArray[np.float32]]:
    """What an artefact carries: ``slopes`` (heads,), the scale in them, positive."""
    return {"slopes": slopes(encoding, layer.num_heads).astype(np.float32)}

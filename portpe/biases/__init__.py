"""Additive score biases, from integer positions: one module a kind."""

from portpe.biases.alibi import alibi, alibi_slopes, slopes

__all__ = ["alibi", "alibi_slopes", "slopes"]

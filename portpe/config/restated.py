"""Keys that say again what a config or its family says elsewhere: they must agree with it.

Published configs hold keys that transformers' class no longer reads: an older name of a size, a switch that is off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from portpe.config.section import shown
from portpe.errors import SpecError
from portpe.spec import AttentionSpec


class Said(NamedTuple):
    """Where a fact stands, and what it is; a value of None: it stands nowhere."""

    where: str
    value: Any


def same(one: Any, other: Any) -> bool:
    """Equal, and truth values equal none but truth values: 1 is 1.0 and is not true."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def must_agree(name: str, value: Any, said: Said) -> None:
    """Refuse a key that contradicts what is said elsewhere.

    Args:
        name: the key with its path.
        value: what it holds.
        said: the fact that it repeats.

    Raises:
        SpecError: they differ, or the fact stands nowhere.
    """
    if said.value is None:
        raise SpecError(f"{said.where} is required beside {name}, which nothing reads, got {name} {shown(value)} alone")
    if not same(value, said.value):
        raise SpecError(
            f"{name} must agree with {said.where} = {shown(said.value)}, got {shown(value)}; mend one of them, or "
            f"ignore it with --ignore-key {name}"
        )


def _unbiased(spec: AttentionSpec) -> bool:
    return not any((spec.biases.q, spec.biases.k, spec.biases.v, spec.biases.o))


def _unwindowed(spec: AttentionSpec) -> bool:
    return spec.window is None and spec.window_radius is None and spec.chunk is None


def _unnormed(spec: AttentionSpec) -> bool:
    return spec.q_norm is None and spec.k_norm is None


# Switches that may be false, whoever has no such key, where the layer indeed has nothing of the kind.
_OFF: Mapping[str, Callable[[AttentionSpec], bool]] = {
    "attention_bias": _unbiased,
    "use_sliding_window": _unwindowed,
    "use_qk_norm": _unnormed,
    "qk_layernorm": _unnormed,
}


def off(spec: AttentionSpec) -> frozenset[str]:
    """The switches that are truly off in a layer."""
    return frozenset(key for key, absent in _OFF.items() if absent(spec))

"""Gates on attention's output: fixed by a family, or switched by a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from portpe.config.layer import Layer
from portpe.config.section import shown
from portpe.errors import SpecError
from portpe.layer_parts import OutputGate

GateOf = Callable[[Layer], dict[str, Any]]


def fixed(scope: Literal["channel", "head"], *, bias: bool = False) -> GateOf:
    """A sigmoid, whatever the config says."""
    gate = OutputGate(scope=scope, bias=bias)
    return lambda _layer: {"output_gate": gate}


def switched(key: str, default: bool, scope: Literal["channel", "head"]) -> GateOf:
    """A sigmoid where the key is true."""
    given = fixed(scope)
    return lambda layer: given(layer) if layer.config.flag(key, default) else {}


def with_bias(key: str, scope: Literal["channel", "head"]) -> GateOf:
    """A sigmoid whose projection has a bias where the key is true."""
    return lambda layer: fixed(scope, bias=layer.config.flag(key, False))(layer)


def laguna(layer: Layer) -> dict[str, Any]:
    """A softplus a head, or a channel: ``gating``."""
    gating = layer.config.get("gating")
    scopes = {"per-head": "head", "per-element": "channel"}
    if gating is None or gating is True:
        gating = "per-head"
    if not isinstance(gating, str) or gating not in scopes:
        raise SpecError(f"gating must be true, {' or '.join(map(repr, scopes))}, got {shown(gating)}")
    return {"output_gate": OutputGate(scope=scopes[gating], activation="softplus")}

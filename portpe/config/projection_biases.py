"""Which of the four projections have a bias: fixed by a family, or switched by a key."""

from __future__ import annotations

from collections.abc import Callable

from portpe.config.layer import Layer
from portpe.layer_parts import ProjectionBiases

BiasesOf = Callable[[Layer], ProjectionBiases]


def fixed(projections: str) -> BiasesOf:
    """The named ones of q, k, v, o, whatever the config says."""
    biases = ProjectionBiases(**dict.fromkeys(projections, True))
    return lambda _layer: biases


def switched(key: str, default: bool, projections: str) -> BiasesOf:
    """The named ones of q, k, v, o where the key is true."""

    def biases(layer: Layer) -> ProjectionBiases:
        return fixed(projections if layer.config.flag(key, default) else "")(layer)

    return biases


def both(*rules: BiasesOf) -> BiasesOf:
    """What any of several rules gives a bias."""

    def biases(layer: Layer) -> ProjectionBiases:
        found = [rule(layer) for rule in rules]
        return ProjectionBiases(**{name: any(getattr(one, name) for one in found) for name in "qkvo"})

    return biases


def with_output(others: BiasesOf) -> BiasesOf:
    """Those of another rule, and always the output projection's."""
    return lambda layer: others(layer).model_copy(update={"o": True})

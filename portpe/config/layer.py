"""One layer of a config while it is read, and what a model family has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from portpe.config.restated import Said
from portpe.config.section import Section
from portpe.config.unknown_keys import UnknownKeys
from portpe.layer_parts import Norm, ProjectionBiases
from portpe.spec import AttentionSpec

FULL = "full_attention"
SLIDING = "sliding_attention"


@dataclass(frozen=True)
class Layer:
    """The sizes of one layer, its config, and where warnings about it go.

    ``max_position_embeddings`` is the context that the config states: for how many positions
    the model, scaled as it is, was made. None where the config states none.
    """

    config: Section
    index: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int | None
    type: str
    window: int | None
    warn: Callable[[str], None]
    unknown: UnknownKeys


@dataclass(frozen=True)
class Size:
    """A size of a model: the config's keys for it and the default of transformers' config class.

    Of several keys the first is the family's own; the others are accepted names of the same value.
    A default of 0 stands for none: kv heads are then as many as query heads, a length is not stated.
    """

    keys: tuple[str, ...]
    default: int


NO_LENGTH = Size(("max_position_embeddings",), 0)  # of families whose configs state none


@dataclass(frozen=True)
class Sizes:
    """Where a family keeps its sizes.

    ``hidden`` is what q_proj takes; a function of the config and the layer's number where layers differ. ``layers`` is
    a function of the config where the layers are listed and not counted. ``heads``: a function of the config, the
    layer's number and its type where layers differ.
    ``kv_heads`` None: as many as query heads, always; a function of the config, the number of heads and the
    layer's type where a rule is needed. ``head_dim`` None: hidden_size over heads, always; 0: that, unless
    the config gives head_dim; a number: transformers' default; a function of the config and the layer's type
    where a rule is needed. ``length``: the context it states.
    """

    hidden: Size | Callable[[Section, int], int]
    heads: Size | Callable[[Section, int, str], int]
    layers: Size | Callable[[Section], int]
    length: Size
    kv_heads: Size | Callable[[Section, int, str], int] | None = None
    head_dim: int | Callable[[Section, str], int] | None = 0


NormOf = Callable[[Layer], Norm | None]
Restated = Callable[[Layer, AttentionSpec], Said | None]
# The layer type and the window of a layer, by config, index and number of layers.
WindowOf = Callable[[Section, int, int], tuple[str, int | None]]


def no_window(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:  # noqa: ARG001
    """Every layer sees everything before it."""
    return FULL, None


def never(layer: Layer) -> bool:  # noqa: ARG001
    """An encoder: nothing is causal."""
    return False


def one(layer: Layer) -> float:  # noqa: ARG001
    """Scores as they are: no root of head_dim."""
    return 1.0


def no_length(layer: Layer) -> int | None:  # noqa: ARG001
    """No trained length: a picture has as many tokens as it has."""
    return None


def has(what: str) -> Callable[[Layer], str]:
    """The ``beyond`` of a family all of whose layers have more than a spec can say."""
    return lambda _layer: what


def head_scale(layer: Layer) -> float:
    """1 / sqrt(head_dim), as transformers forms it."""
    return float(layer.head_dim**-0.5)


def no_norm(layer: Layer) -> Norm | None:  # noqa: ARG001
    """Nothing stands between hidden_states and q_proj."""
    return None


def stated_length(layer: Layer) -> int | None:
    """The context as the config states it."""
    return layer.max_position_embeddings


def causal(layer: Layer) -> bool:  # noqa: ARG001
    """Always causal."""
    return True


@dataclass(frozen=True)
class Family:
    """One model_type (and part, where a model has several stacks): how its config becomes a spec.

    ``site`` gives the positional encodings as fields of AttentionSpec. ``input_norm`` is the norm
    between hidden_states and q_proj; ``embedding_norm`` closes the embeddings before it. ``radius`` turns a window
    into the reach to either side that it means without causality. ``beyond`` names what the layer's attention has and
    a spec does not hold, such as a gate on its output: its positions are read, its block is not exported. ``harmless``
    are keys that look positional and do not bear on attention; ``fixed`` are keys that may only hold the values
    listed, because the family's implementation knows no other; ``restates`` are keys that nothing reads, because
    another key or the family says the same: each gives that fact, or None where the layer has nothing of the kind.
    """

    model_type: str
    sizes: Sizes
    site: Callable[[Layer], dict[str, Any]]
    biases: Callable[[Layer], ProjectionBiases]
    part: str | None = None
    causal: Callable[[Layer], bool] = causal
    window: WindowOf = no_window
    scale: Callable[[Layer], float] = head_scale
    qk_norms: Callable[[Layer], tuple[Norm, Norm] | None] = lambda _layer: None
    input_norm: NormOf = no_norm
    embedding_norm: NormOf = no_norm
    trained_length: Callable[[Layer], int | None] = stated_length
    radius: Callable[[int], int] = lambda window: window
    extras: Callable[[Layer], dict[str, Any]] = lambda _layer: {}
    beyond: Callable[[Layer], str | None] = lambda _layer: None
    harmless: frozenset[str] = frozenset()
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    restates: Mapping[str, Restated] = field(default_factory=dict)


def of_key(name: str, default: Any = None) -> Restated:
    """What another key says, or is where the config does not have it; None: it must be there."""

    def said(layer: Layer, _spec: AttentionSpec) -> Said:
        value = layer.config.get(name)
        return Said(name, default if value is None else value)

    return said


def of_head_dim(_layer: Layer, spec: AttentionSpec) -> Said:
    """The width of a head."""
    return Said("head_dim", spec.head_dim)


def of_rotary_width(_layer: Layer, spec: AttentionSpec) -> Said | None:
    """How many channels of a head are turned."""
    return None if spec.rotary is None else Said("the rotary width", spec.rotary.width)


def of_theta(_layer: Layer, spec: AttentionSpec) -> Said | None:
    """The base of the rotation."""
    theta = None if spec.rotary is None else getattr(spec.rotary.schedule, "rope_theta", None)
    return None if theta is None else Said("rope_theta", theta)


def of_partial(default: float) -> Restated:
    """The part of a head that is turned, as the top of the config or its rope block says."""

    def said(layer: Layer, _spec: AttentionSpec) -> Said:
        block = layer.config.section("rope_parameters")
        inside = None if block is None else block.get("partial_rotary_factor")
        return Said("partial_rotary_factor", layer.config.get("partial_rotary_factor") or inside or default)

    return said


def of_every_layer(value: Any) -> Restated:
    """A list with the same for each layer."""
    return lambda layer, _spec: Said("the layers of this model_type", [value] * layer.num_layers)

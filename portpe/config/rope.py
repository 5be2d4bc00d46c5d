"""From a config's rope keys to a RotaryEncoding: where they stand, which wins, what they mean.

Two layouts are read: ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor`` at the top
(transformers 4), and ``rope_parameters``, flat or one block a layer type (transformers 5).
A ``rope_scaling`` that is not empty replaces ``rope_parameters``; inside the block goes before
the top; the top goes before the family's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from portpe.config.layer import FULL, SLIDING, Layer
from portpe.config.mrope import InTurn, MRope
from portpe.config.rope_types import KEYS, READERS, RopeBlock, ntk_alpha
from portpe.config.section import Section, shown
from portpe.encodings import RotaryEncoding
from portpe.errors import SpecError

_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True)
class Rope:
    """How a family uses rotary embeddings.

    ``pairing``: which channels form a pair. ``theta`` and ``partial`` are defaults; the keys are the
    config's own names at the top. ``ignores_partial``: transformers' class of this family rotates the
    whole head under rope_type "default" whatever partial_rotary_factor says. ``longrope_names``: what
    else means longrope, ``yarn_names`` what else means yarn. ``original``: the family's default original
    length. ``absent``: the block that a config without one stands for; a base in it gives way to one at the top.
    ``others``: keys of the block that do not concern the rotation and are read elsewhere. ``alpha``: "dynamic" with an
    alpha is a fixed NTK-aware base. ``contract``: as in RotaryEncoding. ``top``: what is read at the top of a config
    besides rope_parameters: ``all``; ``theta``, where rope_scaling is meant for layers of another type (Gemma 3 scales
    its full layers alone); ``none``. ``sign`` -1: turned by the negative angle. ``width_key``: a key at the top that
    states the rotated channels themselves. ``theta_section``: an object of the config that may hold rope_theta.
    ``axes``: how pairs are dealt where a token has several coordinates; the older rope_types "mrope" and "xdrope" are
    default and dynamic then.
    """

    pairing: Literal["half", "interleaved"] = "half"
    theta: float = 10000.0
    theta_keys: tuple[str, ...] = ("rope_theta",)
    partial: float = 1.0
    partial_keys: tuple[str, ...] = ("partial_rotary_factor",)
    ignores_partial: bool = False
    longrope_names: tuple[str, ...] = ("su",)
    yarn_names: tuple[str, ...] = ()
    original: int | None = None
    absent: Mapping[str, Any] | None = None
    others: tuple[str, ...] = ()
    alpha: bool = False
    contract: Literal["cos_sin", "polar"] = "cos_sin"
    top: Literal["all", "theta", "none"] = "all"
    sign: Literal[1, -1] = 1
    width_key: str | None = None
    theta_section: str | None = None
    axes: MRope | InTurn | None = None

    @property
    def top_keys(self) -> tuple[str, ...]:
        """Every key at the top of a config that it reads."""
        if self.top == "none":
            return ("rope_parameters",)
        return "rope_parameters", "rope_scaling", _ORIGINAL, *self.theta_keys, *self.partial_keys


def block_of(layer: Layer, rope: Rope) -> Section | None:
    """The rope keys of a layer, where ``Rope.others`` stand too; None where its layer type has none."""
    return _locate(layer, rope)[0]


def encoding(layer: Layer, rope: Rope) -> RotaryEncoding | None:
    """The rotary encoding of a layer; None where its layer type has no block (NoPE)."""
    block, nested = _locate(layer, rope)
    theta = _theta(layer, rope, block)
    partial = _partial(layer, rope, block)
    reads_top = rope.top != "none" and layer.config.has(_ORIGINAL)
    top_original = layer.config.integer(_ORIGINAL) if reads_top else None
    if block is None:
        return None
    rope_type = _rope_type(layer, rope, block)
    if rope.ignores_partial and rope_type == "default" and partial != 1.0:
        layer.warn(
            f"partial_rotary_factor = {partial} is honoured as documented: "
            "transformers' own class for this model_type rotates the whole head"
        )
    width = layer.head_dim if rope_type == "proportional" else int(layer.head_dim * partial)
    _check_width(width, layer, partial, block)
    reader = READERS[rope_type]
    if rope.alpha and rope_type == "dynamic" and block.get("alpha"):
        reader = ntk_alpha
    schedule, attention_factor = reader(
        RopeBlock(
            keys=block,
            rope_theta=theta,
            width=width,
            partial_rotary_factor=partial,
            max_position_embeddings=lambda: _stated_length(layer, block),
            original=lambda: _original(layer, rope, block, None if nested else top_original),
            warn=layer.warn,
        )
    )
    block.seen.update(rope.others)
    axes = None if rope.axes is None else rope.axes.axes(layer, block, width)
    _refuse_unread(layer, block, rope_type)
    return RotaryEncoding(
        width=width,
        pairing=rope.pairing,
        sign=rope.sign,
        schedule=schedule,
        attention_factor=attention_factor,
        contract=rope.contract,
        axes=axes,
    )


def _locate(layer: Layer, rope: Rope) -> tuple[Section | None, bool]:
    """The block of this layer, and whether it is one of several."""
    config = layer.config
    scaling = None if rope.top == "none" else config.section("rope_scaling")
    parameters = config.section("rope_parameters")
    if scaling is not None and scaling.data and (rope.top == "all" or _labels(scaling)):
        if parameters is not None and dict(parameters.data) != dict(scaling.data):
            layer.warn("rope_scaling replaces rope_parameters, which says something else")
        outer = scaling
    elif parameters is not None:
        outer = parameters
    else:
        if rope.absent is not None and scaling is None and "rope_scaling" in config.data:
            layer.warn("rope_scaling is null: the scaling that this model_type has by default is taken")
        return Section(_absent(layer, rope), "rope_parameters"), False
    labels = _labels(outer)
    if not labels:
        if rope.top != "all":
            raise SpecError(f"{outer.path} must hold a block for each layer type, got {shown(dict(outer.data))}")
        return outer, False
    for label in labels:
        outer.seen.add(label)
    layer.unknown.refuse_unread(outer, hint="keys stand inside the block of a layer type")
    if layer.type not in labels:
        raise SpecError(f"{outer.name(layer.type)} is required and missing: layer {layer.index} is of that type")
    return outer.section(layer.type), True


def _absent(layer: Layer, rope: Rope) -> dict[str, Any]:
    """The block that none stands for; a base at the top goes before the block's own."""
    block = dict(rope.absent or {})
    key = layer.config.either(*rope.theta_keys) if rope.top != "none" else None
    if key is None or not layer.config.has(key) or "rope_theta" not in block:
        return block
    own, given = block.pop("rope_theta"), layer.config.get(key)
    if given != own:
        layer.warn(
            f"{key} = {shown(given)} is honoured as documented: transformers' own class for this model_type keeps the "
            f"base of its default block, {own}"
        )
    return block


def _labels(outer: Section) -> list[str]:
    return [key for key in outer.data if key in (FULL, SLIDING)]


def _rope_type(layer: Layer, rope: Rope, block: Section) -> str:
    new, old = block.get("rope_type"), block.get("type")
    given = new if new is not None else old
    if new is not None and old is not None and new != old:
        layer.warn(f"{block.name('rope_type')} = {shown(new)} wins over type = {shown(old)}")
    key = "rope_type" if new is not None else "type"
    if given is None:
        return "default"
    name = "longrope" if given in rope.longrope_names else "yarn" if given in rope.yarn_names else given
    if rope.axes is not None and isinstance(name, str):
        name = {"mrope": "default", "xdrope": "dynamic"}.get(name, name)
    if not isinstance(name, str) or name not in READERS:
        raise SpecError(
            f"{block.name(key)} must be one of {', '.join(READERS)}, got {shown(given)}; "
            "give another encoding as a spec written by hand (portpe spec --schema)"
        )
    return name


def _theta(layer: Layer, rope: Rope, block: Section | None) -> float:
    outer = None if rope.theta_section is None else layer.config.section(rope.theta_section)
    default = rope.theta if outer is None else outer.positive("rope_theta", rope.theta)
    keys = () if rope.top == "none" else rope.theta_keys
    theta = _inside_or_top(layer, block, "rope_theta", keys, default)
    absent = block is not None and not block.has("rope_theta") and not any(map(layer.config.has, keys))
    if absent and keys and rope.theta != 10000:  # releases of transformers have not always had the same one
        layer.warn(f"{rope.theta_keys[0]} is absent: {theta}, the default of transformers 5 for it, is taken")
    return theta


def _partial(layer: Layer, rope: Rope, block: Section | None) -> float:
    default = rope.partial
    if rope.width_key is not None and layer.config.has(rope.width_key):
        default = layer.config.integer(rope.width_key) / layer.head_dim
    partial = _inside_or_top(
        layer, block, "partial_rotary_factor", () if rope.top == "none" else rope.partial_keys, default
    )
    if partial > 1:
        raise SpecError(f"partial_rotary_factor must be <= 1, got {partial}")
    return partial


def _inside_or_top(layer: Layer, block: Section | None, key: str, top_keys: tuple[str, ...], default: float) -> float:
    """A value of the block, else of the top of the config, else the family's default."""
    top_key = layer.config.either(*top_keys) if top_keys else key
    top = layer.config.positive(top_key) if top_keys and layer.config.has(top_key) else None
    inside = block.positive(key) if block is not None and block.has(key) else None
    if block is not None and top is not None and inside is not None and top != inside:
        layer.warn(f"{block.name(key)} = {inside} goes before {top_key} = {top} at the top")
    if inside is not None:
        return inside
    return top if top is not None else default


def _check_width(width: int, layer: Layer, partial: float, block: Section) -> None:
    where = f"head_dim = {layer.head_dim} times partial_rotary_factor = {partial}"
    if width < 2:
        raise SpecError(f"the rotary width must be >= 2, got {width} from {where}")
    if width % 2:
        raise SpecError(
            f"the rotary width must be even, got {width} from {where}; transformers would rotate {width + 1} channels"
        )
    if width == 2 and block.data.get("rope_type", block.data.get("type")) == "dynamic":
        raise SpecError(f"the rotary width must be > 2 for rope_type 'dynamic', got 2 from {where}")


def _stated_length(layer: Layer, block: Section) -> int:
    if layer.max_position_embeddings is None:
        raise SpecError(f"max_position_embeddings is required and missing: {block.path} depends on it")
    return layer.max_position_embeddings


def _original(layer: Layer, rope: Rope, block: Section, top: int | None) -> int:
    """The length before scaling: the top of the config, the block, the family's default, the stated context."""
    inside = block.integer(_ORIGINAL) if block.has(_ORIGINAL) else None
    if top is not None:
        if inside is not None and inside != top:
            layer.warn(f"{_ORIGINAL} = {top} at the top goes before {block.name(_ORIGINAL)} = {inside}")
        return top
    if inside is not None:
        return inside
    length = rope.original if rope.original is not None else _stated_length(layer, block)
    layer.warn(f"{block.name(_ORIGINAL)} is absent: {length} is taken, as transformers does")
    return length


def _refuse_unread(layer: Layer, block: Section, rope_type: str) -> None:
    for key in block.unread():
        if key in KEYS and not layer.unknown.lets_pass(block, key):
            raise SpecError(
                f"{block.name(key)} has no meaning for rope_type {rope_type!r}, got {shown(block.data[key])}; "
                f"remove it, or ignore it with --ignore-key {block.name(key)}"
            )
    layer.unknown.refuse_unread(block)

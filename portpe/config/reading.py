"""From a source to the spec of one layer, with everything that was noticed on the way."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from portpe.config import composites, families, restated, sizes
from portpe.config.layer import Family, Layer
from portpe.config.section import Section, shown
from portpe.config.source import Source, recognise
from portpe.config.unknown_keys import UnknownKeys
from portpe.encodings import FixedRegime, PerSequenceRegime, Regime, RotaryEncoding
from portpe.errors import NoAttentionError, SpecError
from portpe.spec import AttentionSpec

Precision = Literal["exact", "hf"]
RegimeName = Literal["per_sequence"]


@dataclass(frozen=True)
class Reading:
    """What a source says about one layer.

    ``ignored``: keys of the config that had no influence, those let pass by ignore_keys among them.
    ``warnings``: decisions that a reader of the numbers should know. ``folder``: where a config's
    weights may lie, None where the source was no folder. ``config``: the config as parsed; None for a spec
    or a bundle. ``sha256``: of the file's bytes, or of the canonical JSON of a dict.
    """

    spec: AttentionSpec
    layer: int
    num_layers: int
    part: str | None
    model_type: str | None
    ignored: tuple[str, ...]
    warnings: tuple[str, ...]
    source_name: str
    folder: Path | None
    config: dict[str, Any] | None
    sha256: str

    @property
    def beyond(self) -> str | None:
        """What the layer's attention has and its spec cannot say, so that it has no block; None for most."""
        return self.spec.beyond


def read(
    source: object,
    layer: int = 0,
    part: str | None = None,
    *,
    ignore_keys: Iterable[str] = (),
    input_norm: bool = False,
    precision: Precision = "exact",
    context: int | None = None,
    regime: RegimeName | None = None,
) -> Reading:
    """Read one layer of a source.

    Args:
        source: a config as a mapping or as an object with ``to_dict``, a path to a config.json, a
            checkpoint folder, a spec (object, mapping or JSON file), a bundle, or a preset's name; an
            existing path wins over a preset.
        layer: which layer of the stack, from 0.
        part: which stack of a model with several (``encoder``, ``decoder``).
        ignore_keys: unknown keys of the config that are let pass.
        input_norm: include the norm between hidden_states and q_proj also where no encoding stands
            before it.
        precision: ``hf`` takes transformers' own float32 numbers; ``exact`` leaves the source's
            choice, which for a config is exact.
        context: fixes the length of a length-dependent schedule.
        regime: ``per_sequence`` lets such a schedule follow each batch row's length; instead of ``context``.

    Raises:
        SpecError: anything that the source leaves open or gets wrong.
    """
    if isinstance(ignore_keys, str):
        raise SpecError(f"ignore_keys must be a list of keys, got {ignore_keys!r}")
    chosen = _regime(context, regime)
    return _read(recognise(source), layer, part, tuple(ignore_keys), input_norm, precision, chosen)


def load_spec(
    source: object, layer: int = 0, part: str | None = None, *, ignore_keys: Iterable[str] = ()
) -> AttentionSpec:
    """The spec of one layer of a source; see ``read`` for what a source can be.

    Raises SpecError. What a reader of the numbers should know, such as a key that another one overrules, is a
    UserWarning.
    """
    reading = read(source, layer, part, ignore_keys=ignore_keys)
    for line in reading.warnings:
        warnings.warn(line, stacklevel=2)
    return reading.spec


def load_layers(source: object, part: str | None = None, *, ignore_keys: Iterable[str] = ()) -> list[AttentionSpec]:
    """The specs of all layers of a source, in order; a spec or a bundle has one.

    Raises SpecError, also where a layer has no attention: ``read_layers`` leaves those out.
    """
    return [reading.spec for reading in _readings(recognise(source), part, tuple(ignore_keys))]


def read_layers(source: object, part: str | None = None, *, ignore_keys: Iterable[str] = ()) -> list[Reading]:
    """Every layer of a source that has attention, in order. Raises SpecError, also where none has."""
    readings = list(_readings(recognise(source), part, tuple(ignore_keys), leave_out=True))
    if not readings:
        raise SpecError("source must have a layer with attention, got none")
    return readings


def _readings(
    source: Source, part: str | None, ignore_keys: tuple[str, ...], *, leave_out: bool = False
) -> Iterator[Reading]:
    for index in range(_num_layers(source, part)):
        try:
            yield _read(source, index, part, ignore_keys, False, "exact", None)
        except NoAttentionError:
            if not leave_out:
                raise


def _num_layers(source: Source, part: str | None) -> int:
    if source.config is None:
        return 1
    opened = composites.opened(source.config, part)
    section = Section(opened.config)
    return sizes.num_layers(section, families.find(section.text("model_type"), opened.inside))


def _read(
    source: Source,
    layer: int,
    part: str | None,
    ignore_keys: tuple[str, ...],
    input_norm: bool,
    precision: Precision,
    regime: Regime | None,
) -> Reading:
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise SpecError(f"layer must be an integer >= 0, got {shown(layer)}")
    if precision not in ("exact", "hf"):
        raise SpecError(f"precision must be 'exact' or 'hf', got {shown(precision)}")
    if source.config is None:
        reading = _read_spec(source, layer, part, ignore_keys, input_norm)
    else:
        reading = _read_config(source, source.config, layer, part, ignore_keys, input_norm)
    spec = _with_regime(reading.spec, regime)
    return replace(reading, spec=spec.with_precision("hf") if precision == "hf" else spec)


def _read_config(
    source: Source,
    config: dict[str, Any],
    index: int,
    part: str | None,
    ignore_keys: tuple[str, ...],
    input_norm: bool,
) -> Reading:
    unknown, noticed = UnknownKeys(ignore_keys), list[str]()

    def warn(message: str) -> None:
        if message not in noticed:
            noticed.append(message)

    opened = composites.opened(config, part)
    model_type = Section(opened.config).text("model_type")
    family = families.find(model_type, opened.inside)
    section = _layer_config(opened.config, index)
    layers = sizes.num_layers(section, family)
    if not 0 <= index < layers:
        raise SpecError(f"layer must be 0..{layers - 1}, the layers of the config, got {index}")
    try:
        layer = sizes.layer_of(section, family, index, warn=warn, unknown=unknown)
        spec = _from_config(layer, family, input_norm)
    except SpecError as error:  # a misspelt key is why another one is missing or does not fit
        first, *others = re.findall(r"[\w.]+", str(error))
        told = [first.rpartition(".")[2], *(word for word in others if "_" in word)]
        unknown.refuse_misspelt(section, family.harmless, told)
        raise
    if spec.beyond is not None:
        warn(f"{model_type} layer {index} has {spec.beyond}, which a spec cannot say: its positions are read, no block")
    if opened.composite is not None:
        unknown.refuse_suspicious(opened.composite, composites.harmless(opened.composite))
    unknown.refuse_unused()
    return Reading(
        spec=spec,
        layer=index,
        num_layers=layers,
        part=family.part or opened.part,
        model_type=model_type,
        ignored=tuple(unknown.ignored),
        warnings=tuple(noticed),
        source_name=source.name,
        folder=source.folder,
        config=config,
        sha256=source.sha256,
    )


def _read_spec(source: Source, layer: int, part: str | None, ignore_keys: tuple[str, ...], input_norm: bool) -> Reading:
    """A spec as it was given: it speaks of one layer and has no keys to ignore."""
    assert source.spec is not None
    if layer not in (0, source.layer):
        raise SpecError(f"layer must be {source.layer}: {source.name} describes that layer alone, got {layer}")
    if part not in (None, source.part):
        raise SpecError(f"part must be left out: {source.name} describes one layer, got {part!r}")
    if input_norm and source.spec.input_norm is None:
        raise SpecError(f"input_norm must be in the spec itself, got none in {source.name}")
    UnknownKeys(ignore_keys).refuse_unused()
    return Reading(
        spec=source.spec,
        layer=source.layer,
        num_layers=1,
        part=source.part,
        model_type=None,
        ignored=(),
        warnings=(),
        source_name=source.name,
        folder=source.folder,
        config=None,
        sha256=source.sha256,
    )


def _from_config(layer: Layer, family: Family, input_norm: bool) -> AttentionSpec:
    """The fields of a family's row, evaluated for a layer, and then the rule for unknown keys."""
    config = layer.config
    _refuse_fixed(layer, family)
    causal = _causal(layer, family)
    site = family.site(layer)
    qk_norms = family.qk_norms(layer)
    norm, closing = family.input_norm(layer), family.embedding_norm(layer)
    if input_norm and norm is None:
        raise SpecError(
            f"input_norm must be false for {family.model_type} layer {layer.index}: no norm stands before its attention"
        )
    fields: dict[str, Any] = {
        "hidden_size": layer.hidden_size,
        "num_heads": layer.num_heads,
        "num_kv_heads": layer.num_kv_heads,
        "head_dim": layer.head_dim,
        "v_head_dim": layer.head_dim,
        "causal": causal,
        "scale": family.scale(layer),
        "biases": family.biases(layer),
        "q_norm": None if qk_norms is None else qk_norms[0],
        "k_norm": None if qk_norms is None else qk_norms[1],
        "embedding_norm": closing if "embedding" in site else None,
        "input_norm": norm if input_norm or "embedding" in site else None,
        "max_position_embeddings": family.trained_length(layer),
        "beyond": family.beyond(layer),
    }
    spec = AttentionSpec(**(fields | _reach(layer, family, causal) | site | family.extras(layer)))
    _refuse_contradictions(layer, family, spec)
    layer.unknown.refuse_suspicious(config, family.harmless, restated.off(spec))
    return spec


def _reach(layer: Layer, family: Family, causal: bool) -> dict[str, int]:
    """The window of a layer that has one: how far back it sees, or without causality to either side."""
    if layer.window is None:
        return {}
    return {"window": layer.window} if causal else {"window_radius": family.radius(layer.window)}


def _causal(layer: Layer, family: Family) -> bool:
    """A decoder of transformers gets a two-way mask where is_causal is false."""
    causal = family.causal(layer)
    if not causal or layer.config.flag("is_causal", True):
        return causal
    if layer.window is not None:
        raise SpecError(f"is_causal must be true where a window is, got false with window {layer.window}")
    return False


def _refuse_fixed(layer: Layer, family: Family) -> None:
    for key, allowed in family.fixed.items():
        value = layer.config.get(key)
        known = value is None or any(restated.same(value, one) for one in allowed)
        if not known and not layer.unknown.lets_pass(layer.config, key):
            rule = f"must be {shown(allowed[0])}" if allowed else "must be left out"
            raise SpecError(
                f"{key} {rule} for model_type {family.model_type!r}, got {shown(value)}; "
                "transformers has nothing else for it"
            )


def _refuse_contradictions(layer: Layer, family: Family, spec: AttentionSpec) -> None:
    for key, said_of in family.restates.items():
        value, said = layer.config.get(key), said_of(layer, spec)
        if value is not None and said is not None and not layer.unknown.lets_pass(layer.config, key):
            restated.must_agree(layer.config.name(key), value, said)


def _layer_config(config: dict[str, Any], index: int) -> Section:
    """The config with the overrides that ``per_layer_config`` holds for the layer."""
    overrides = Section(config).section("per_layer_config")
    if overrides is None:
        overrides = Section({}, "per_layer_config")
    merged = dict(config)
    for key in overrides.data:
        digits = str(key)
        if not digits.isdecimal():
            raise SpecError(f"per_layer_config must have layer numbers as keys, got {shown(key)}")
        values = overrides.section(key)
        if int(digits) == index and values is not None:
            if "attention" in str(values.data.get("skip", "")):
                raise NoAttentionError(f"layer {index} has no attention: per_layer_config.{key}.skip leaves it out")
            merged |= {name: value for name, value in values.data.items() if name != "skip"}
    section = Section(merged)
    section.seen |= {"model_type", "per_layer_config"}
    return section


def _regime(context: int | None, regime: str | None) -> Regime | None:
    """What the caller asks for, or None. Raises SpecError."""
    if regime is not None and regime != "per_sequence":
        raise SpecError(f"regime must be 'per_sequence', got {shown(regime)}; fix a length with context")
    if context is None:
        return None if regime is None else PerSequenceRegime()
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise SpecError(f"context must be an integer > 0, got {shown(context)}")
    if regime is not None:
        raise SpecError(f"context must be left out under regime per_sequence, got {context}")
    return FixedRegime(length=context)


def _with_regime(spec: AttentionSpec, regime: Regime | None) -> AttentionSpec:
    if regime is None:
        return spec
    if spec.rotary is None or not spec.rotary.schedule.length_dependent:
        return spec
    fields = {name: getattr(spec.rotary, name) for name in type(spec.rotary).model_fields}
    rotary = RotaryEncoding(**(fields | {"regime": regime}))
    return spec.model_copy(update={"rotary": rotary})

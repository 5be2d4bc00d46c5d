"""The fault catalogue: how deployed encodings go wrong, each as a change that parity must catch.

A fault is described by what the faulty artefact follows in place of the right thing: another spec (its settings),
other tables, other positions, or an output gate elsewhere. Tests plant each in graphs and modules, one at a time; a
check that has never been seen to fail proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from portpe import biases, decays
from portpe.encodings import (
    AlibiEncoding,
    DefaultSchedule,
    NtkByPartsSchedule,
    QueryTemperature,
    RotaryEncoding,
    SteppedTemperature,
)
from portpe.interface import DTYPES, Array
from portpe.spec import AttentionSpec
from portpe.tables import KEY, TABLE_STEP, rotary_levels

Settings = Callable[[AttentionSpec], AttentionSpec | None]
Tables = Callable[[AttentionSpec, Mapping[str, Array]], dict[str, Array] | None]
Positions = Literal["offset_in_decode", "slots"]
Features = Literal["normaliser_rotated", "rotated_first", "without_one"]
Gates = Literal["missing", "raw", "late"]


@dataclass(frozen=True)
class Fault:
    """One way to be wrong.

    ``settings`` gives the spec that the faulty artefact follows, ``tables`` the tables it holds; None where the
    fault says nothing about such a spec. ``positions``: one more than given as soon as there is a cache
    (``offset_in_decode``), or the slot's number, whatever the mask and the given ids say (``slots``). ``features``:
    what linear attention does wrongly: its normaliser reads rotated ones, queries and keys are rotated before their
    features are made, or features are elu(x) (``without_one``). ``gate``: the output gate left out
    (``missing``), without its activation (``raw``), or behind o_proj (``late``).
    With both settings and tables, the tables are made of those of the faulty settings. ``on_keys``: what is for
    queries alone is done to keys too.
    """

    name: str
    what: str
    settings: Settings | None = None
    tables: Tables | None = None
    positions: Positions | None = None
    features: Features | None = None
    on_keys: Literal["query_scale"] | None = None
    gate: Gates | None = None

    def applies(self, spec: AttentionSpec, tables: Mapping[str, Array]) -> bool:
        """Whether a spec can have this fault."""
        if self.settings is not None:
            return self.settings(spec) is not None
        if self.tables is not None:
            return self.tables(spec, tables) is not None
        if self.features is not None:
            return spec.attention == "linear" and (spec.rotary is not None or self.features == "without_one")
        if self.on_keys is not None:
            return spec.query_scale is not None and spec.rotary is not None
        if self.gate is not None:
            return spec.output_gate is not None and (self.gate != "late" or spec.gate_width == spec.hidden_size)
        return spec.rotary is not None or spec.embedding is not None or bool(spec.bias)


def _rotary(change: Callable[[AttentionSpec, RotaryEncoding], dict[str, Any] | None]) -> Settings:
    """A change of the rotary encoding's settings, None where ``change`` gives none."""

    def settings(spec: AttentionSpec) -> AttentionSpec | None:
        changes = None if spec.rotary is None else change(spec, spec.rotary)
        if changes is None or spec.rotary is None:
            return None
        kept = {name: getattr(spec.rotary, name) for name in type(spec.rotary).model_fields}
        return spec.model_copy(update={"rotary": RotaryEncoding(**(kept | changes))})

    return settings


def _theta(_spec: AttentionSpec, rotary: RotaryEncoding) -> dict[str, Any] | None:
    if rotary.schedule.rope_theta != 500000.0:
        return None
    return {"schedule": rotary.schedule.model_copy(update={"rope_theta": 10000.0})}


def _unscaled(_spec: AttentionSpec, rotary: RotaryEncoding) -> dict[str, Any] | None:
    if isinstance(rotary.schedule, DefaultSchedule) or rotary.defers_rotation:  # without it keys are cached otherwise
        return None
    return {"schedule": DefaultSchedule(rope_theta=rotary.schedule.rope_theta), "regime": None}


def _truncate(_spec: AttentionSpec, rotary: RotaryEncoding) -> dict[str, Any] | None:
    if not isinstance(rotary.schedule, NtkByPartsSchedule):
        return None
    return {"schedule": rotary.schedule.model_copy(update={"truncate": not rotary.schedule.truncate})}


def _width(spec: AttentionSpec, rotary: RotaryEncoding) -> dict[str, Any] | None:
    """The whole head where a part is turned, else half of it."""
    width = spec.head_dim if rotary.width < spec.head_dim else rotary.width // 2
    fits = width % 2 == 0 and rotary.schedule.kind != "longrope"
    return {"width": width} if fits else None


def _window(spec: AttentionSpec) -> AttentionSpec | None:
    return None if spec.window is None else spec.model_copy(update={"window": spec.window + 1})


def _temperature(change: Callable[[QueryTemperature], dict[str, Any] | None]) -> Settings:
    """A change of the query temperature's settings, None where ``change`` gives none."""

    def settings(spec: AttentionSpec) -> AttentionSpec | None:
        changes = None if spec.query_scale is None else change(spec.query_scale)
        if changes is None or spec.query_scale is None:
            return None
        return spec.model_copy(update={"query_scale": spec.query_scale.model_copy(update=changes)})

    return settings


def _no_temperature(spec: AttentionSpec) -> AttentionSpec | None:
    return None if spec.query_scale is None else spec.model_copy(update={"query_scale": None})


def _normed_temperature(spec: AttentionSpec) -> AttentionSpec | None:
    """A norm of queries behind the temperature divides it out again: what is left is a layer without one."""
    return None if spec.q_norm is None else _no_temperature(spec)


def _every_position(temperature: QueryTemperature) -> dict[str, Any] | None:
    return {"interval": 1} if isinstance(temperature, SteppedTemperature) and temperature.interval > 1 else None


def _without_floor(spec: AttentionSpec, tables: Mapping[str, Array]) -> dict[str, Array] | None:
    """1 + beta ln(1 + n / interval), n counted in the table's rows."""
    temperature = spec.query_scale
    if not isinstance(temperature, SteppedTemperature):
        return None
    counts = np.arange(len(tables["query_scale"])) / temperature.interval
    return {**tables, "query_scale": (1 + temperature.beta * np.log1p(counts)).astype(np.float32)}


def _other_slopes(spec: AttentionSpec, tables: Mapping[str, Array]) -> dict[str, Array] | None:
    encoding = next((each for each in spec.bias if isinstance(each, AlibiEncoding)), None)
    if encoding is None:
        return None
    slopes = biases.alibi_slopes(2 * spec.num_heads, encoding.bias_max)[: spec.num_heads] * encoding.scale
    return {**tables, "slopes": slopes.astype(np.float32)}


def _in_bfloat16(_spec: AttentionSpec, tables: Mapping[str, Array]) -> dict[str, Array] | None:
    turned = {name: table for name, table in tables.items() if name != "slopes"}
    if not turned:
        return None
    return {**tables, **{name: table.astype(DTYPES["bfloat16"]).astype(np.float32) for name, table in turned.items()}}


def _keys_as_queries(spec: AttentionSpec, tables: Mapping[str, Array]) -> dict[str, Array] | None:
    if spec.rotary is None or spec.rotary.decay is None:
        return None
    return {**tables, **{name: tables[name.removeprefix(KEY)] for name in tables if name.startswith(KEY)}}


def _decay_upside_down(spec: AttentionSpec, tables: Mapping[str, Array]) -> dict[str, Array] | None:
    if spec.rotary is None or spec.rotary.decay is None:
        return None
    apart = {name.removeprefix(KEY): table for name, table in tables.items() if name.startswith(KEY)}
    return {**tables, **apart, **{KEY + name: tables[name] for name in apart}}


def _keys_without_centre(spec: AttentionSpec, tables: Mapping[str, Array]) -> dict[str, Array] | None:
    rotary = spec.rotary
    if rotary is None or rotary.decay is None or not rotary.decay.centre:
        return None
    faulty = rotary.model_copy(update={"decay": rotary.decay.model_copy(update={"centre": 0})})
    return {**tables, **rotary_levels(faulty, len(tables["cos_hi"]) * TABLE_STEP, prefix=KEY, keys=True)}


def _decay_of_wider(spec: AttentionSpec, tables: Mapping[str, Array]) -> dict[str, Array] | None:
    """Zeta as of a head twice as wide: each level times what its positions make of the difference."""
    rotary = spec.rotary
    if rotary is None or rotary.decay is None:
        return None
    wider = rotary.model_copy(update={"width": 2 * rotary.width})
    excess = decays.rates(wider)[: rotary.width // 2] - decays.rates(rotary)
    counts = {"_hi": np.arange(len(tables["cos_hi"])) * TABLE_STEP - rotary.decay.centre, "_lo": np.arange(TABLE_STEP)}
    faulty = {}
    for prefix, sign in (("", 1), (KEY, -1)):
        for level, count in counts.items():
            factor = np.exp(sign * count[:, None] * excess)
            for name in (f"{prefix}cos{level}", f"{prefix}sin{level}"):
                faulty[name] = (tables[name] * factor).astype(np.float32)
    return {**tables, **faulty}


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "pairing_swapped",
            "pairs (i, i + R/2) taken for (2i, 2i + 1), or the other way round",
            _rotary(lambda _spec, r: {"pairing": "half" if r.pairing == "interleaved" else "interleaved"}),
        ),
        Fault("theta_10000", "rope_theta 10000 where the model has 500000", _rotary(_theta)),
        Fault("scaling_dropped", "the schedule's scaling left out", _rotary(_unscaled)),
        Fault(
            "attention_factor_dropped",
            "cos and sin without the attention factor",
            _rotary(lambda _spec, r: None if r.magnitude == 1 else {"attention_factor": 1.0}),
        ),
        Fault(
            "truncate_flipped",
            "YaRN's range rounded to whole pairs where it is not, or not where it is",
            _rotary(_truncate),
        ),
        Fault("offset_in_decode", "positions one too high as soon as there is a cache", positions="offset_in_decode"),
        Fault("sign_reversed", "turned by the negative angle", _rotary(lambda _spec, r: {"sign": -r.sign})),
        Fault("window_off_by_one", "one key too many in the window", _window),
        Fault("slopes_of_other_heads", "ALiBi slopes of twice as many heads", tables=_other_slopes),
        Fault("mask_not_used", "positions by slot, so that pads are counted", positions="slots"),
        Fault("width_wrong", "half of the rotary channels, or all where a part is turned", _rotary(_width)),
        Fault("temperature_dropped", "queries without their temperature", _no_temperature),
        Fault(
            "temperature_offset_wrong",
            "positions counted from 0 for the temperature where they count from 1, or the other way round",
            _temperature(lambda t: {"offset": 0 if t.offset else 1}),
        ),
        Fault(
            "temperature_without_floor",
            "a temperature that rises with every position where it rises in steps",
            _temperature(_every_position),
            _without_floor,
        ),
        Fault("temperature_before_norm", "queries multiplied before their norm", _normed_temperature),
        Fault("temperature_on_keys", "keys multiplied by the temperature too", on_keys="query_scale"),
        Fault(
            "decay_dropped",
            "queries and keys turned without the decay of their scores",
            _rotary(lambda _spec, r: None if r.decay is None else {"decay": None}),
        ),
        Fault("decay_on_keys_not_inverted", "keys scaled as queries are", tables=_keys_as_queries),
        Fault("decay_upside_down", "queries grow with position and keys shrink", tables=_decay_upside_down),
        Fault("decay_centre_of_queries_alone", "the centre left out of the keys' scales", tables=_keys_without_centre),
        Fault("decay_over_wrong_width", "zeta taken over twice the rotary width", tables=_decay_of_wider),
        Fault(
            "normaliser_rotated",
            "linear attention's normaliser made of rotated features, as the numerator is",
            features="normaliser_rotated",
        ),
        Fault(
            "rotated_before_features",
            "linear attention's queries and keys rotated, and their features made after it",
            features="rotated_first",
        ),
        Fault(
            "features_without_one", "linear attention's features elu(x) instead of elu(x) + 1", features="without_one"
        ),
        Fault("bfloat16_table", "tables rounded to bfloat16", tables=_in_bfloat16),
        Fault("gate_missing", "no output gate", gate="missing"),
        Fault("gate_not_activated", "an output gate without its sigmoid", gate="raw"),
        Fault("gate_after_projection", "an output gate behind o_proj", gate="late"),
    )
}

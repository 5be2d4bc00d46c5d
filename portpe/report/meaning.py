"""What a config means, for people: the encoding, its parameters and their origin, frequencies, costs by length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from portpe import registry
from portpe.encodings import FixedRegime, PerSequenceRegime, Regime
from portpe.interface import learned_end
from portpe.report.budget import attention_flops, cache_bytes, state_size
from portpe.report.provenance import origin
from portpe.schedules import magnitude, sinusoidal
from portpe.spec import AttentionSpec
from portpe.tabulating import tabulate

UNSAID = {  # these say nothing where they are so
    "rotary.softmax_scale_multiplier": 1.0,
    "rotary.contract": "cos_sin",
    "value_scale": 1.0,
    "mla.q_scale": 1.0,
    "mla.kv_scale": 1.0,
}
LENGTHS = (4096, 32768, 131072)  # tokens; the trained length joins them
# Told above the table, or the same in every spec.
HIDDEN = {
    *("portpe_spec", "contract", "projection", "attention", "causal"),
    *(
        "embedding.kind",
        "rotary.kind",
        "rotary.axes.kind",
        "rotary.decay.kind",
        "bias.0.kind",
        "input_norm.scope",
        "input_norm.when",
    ),
    *("embedding_norm.scope", "embedding_norm.when"),
}

# What a rotation does not do, told only where it does.
NEUTRAL = {
    "embedding_to": "input",
    "rotary.blocks": 1,
    "rotary.offset": 0,
    "rotary.coordinates": "index",
    "rotary.prefix_tokens": 0,
    "rotary.suffix_tokens": 0,
}


def print_meaning(out: Console, reading: Any, layers: Sequence[AttentionSpec], context: int | None = None) -> None:
    """Print what a source means.

    Args:
        out: where to.
        reading: a ``portpe.config`` reading.
        layers: the specs of the whole stack, for the costs.
        context: the length that a length-dependent schedule is shown for; None: the trained one.
    """
    spec: AttentionSpec = reading.spec
    family = f", {reading.model_type}" if reading.model_type else ""
    part = f", {reading.part}" if reading.part else ""
    out.print(f"{reading.source_name}: layer {reading.layer} of {reading.num_layers}{family}{part}", style="bold")
    out.print(shape_line(spec))
    for line in (*encoding_lines(spec), *attention_lines(spec), *cache_lines(spec)):
        out.print(line)
    out.print()
    out.print(_parameters(spec, reading.config))
    length = context or spec.max_position_embeddings or LENGTHS[0]
    for line in frequency_lines(spec, length):
        out.print(line)
    out.print()
    out.print(_costs(layers))
    _print_different_layers(out, spec, layers)
    for label, lines in (("ignored", reading.ignored), ("warning", reading.warnings)):
        for line in lines:
            out.print(f"{label}: {line}", style="yellow" if label == "warning" else None)


def shape_line(spec: AttentionSpec) -> str:
    """Heads, sizes and mask in one line."""
    groups = f"{spec.num_heads} heads"
    if spec.num_kv_heads != spec.num_heads:
        groups += f" on {spec.num_kv_heads} key/value heads"
    mask = "causal" if spec.causal else "not causal"
    if spec.window is not None:
        mask += f", window {spec.window} (the token itself included)"
    if spec.chunk is not None:
        mask += f", in chunks of {spec.chunk} positions"
    if spec.window_radius is not None:
        mask += f", window radius {spec.window_radius}"
    return f"{groups} of {spec.head_dim}, hidden {spec.hidden_size}, {mask}"


def encoding_lines(spec: AttentionSpec) -> Iterator[str]:
    """The encodings by site, with their formulas and where these come from."""
    sites = [site for site in (spec.embedding, spec.rotary, spec.query_scale, *spec.bias) if site is not None]
    kinds: list[str] = [site.kind for site in sites]
    for kind in kinds or ["none"]:
        row = registry.ENCODINGS[kind]
        yield f"encoding   {row.title}; {row.source}"
        yield f"formula    {row.formula}"
    if spec.rotary is not None:
        law = registry.SCHEDULES[spec.rotary.schedule.kind]
        yield f"schedule   {law.title}; {law.source}"
        yield f"formula    {law.formula}"
        if law.length_dependent:
            yield f"regime     {_regime(spec.rotary.regime)}"
        if spec.rotary.axes is not None:
            layout = registry.AXES[spec.rotary.axes.kind]
            yield f"axes       {spec.position_axes}: {layout.title}; {layout.source}"
            yield f"formula    {layout.formula}"
        if spec.rotary.decay is not None:
            decay = registry.DECAYS[spec.rotary.decay.kind]
            yield f"decay      {decay.title}; {decay.source}"
            yield f"formula    {decay.formula}"


def attention_lines(spec: AttentionSpec) -> Iterator[str]:
    """What turns scores into weights, where it is no softmax, and what it keeps of earlier tokens."""
    if spec.attention == "softmax":
        return
    row = registry.ATTENTIONS[spec.attention]
    yield f"attention  {row.title}; {row.source}"
    yield f"formula    {row.formula}"
    if spec.causal:
        cached = "cache      k and v, k before features and rotation"
        state = f"; a state of {state_size(spec):,} numbers at any length would do, and is not kept here"
        yield cached + (state if spec.window is None and spec.chunk is None else "")


def cache_lines(spec: AttentionSpec) -> Iterator[str]:
    """What a cache keeps besides keys and values; it is in the costs."""
    for name, count in spec.cached_states.items():
        yield f"cache      {name} besides keys and values: {count} float32 numbers a token"


def _regime(regime: Regime | None) -> str:
    """Whose length the schedule takes, by the policy's usual name."""
    if isinstance(regime, FixedRegime):
        return f"by_capacity: every call takes the schedule of length {regime.length}"
    if isinstance(regime, PerSequenceRegime):
        return "by_sequence: a call takes the schedule of each row's own length; keys are cached before rotation"
    return "none yet: an export needs --context L (by_capacity) or --regime per_sequence (by_sequence)"


def _parameters(spec: AttentionSpec, config: Mapping[str, Any] | None) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("parameter", "value", "where it comes from"):
        table.add_column(title, overflow="fold")
    for field, value in _leaves(spec.to_dict()):
        if UNSAID.get(field) == value or (field == "v_head_dim" and value == spec.head_dim):
            continue
        table.add_row(field, _text(value), origin(field, value, spec, config))
    return table


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields that say something: neither absent, nor a False flag, nor the same everywhere."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for number, one in enumerate(value):
                yield from _leaves(one, f"{prefix}{name}.{number}.")
        elif value is not None and value is not False and value != [] and _is_told(prefix + name, value):
            yield f"{prefix}{name}", value


def _is_told(field: str, value: Any) -> bool:
    return field not in HIDDEN and NEUTRAL.get(field) != value


def _text(value: Any) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values, {value[0]} to {value[-1]}"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def frequency_lines(spec: AttentionSpec, length: int) -> Iterator[str]:
    """First and last frequency and wavelength; slopes of biases. ``length`` serves length-dependent schedules."""
    rotary = spec.rotary
    if rotary is not None:
        numbers = tabulate(spec.model_copy(update={"embedding": None, "bias": ()}), [0], seq_len=length)
        inv_freq = numbers["inv_freq"]
        if spec.length_dependent or spec.rotation_by_length:
            yield f"the frequencies below are those of a sequence of {length}; this schedule depends on the length"
        yield from _waves("rotary", inv_freq)
        if spec.max_position_embeddings:
            yield _slow(inv_freq, spec.max_position_embeddings)
        yield from _factor(magnitude(rotary, length))
    if spec.embedding is not None and spec.embedding.kind == "sinusoidal":
        yield from _waves("sinusoidal", sinusoidal(spec.embedding))
    if spec.bias and not any(encoding.weight_shapes(spec) for encoding in spec.bias):
        slopes = tabulate(spec.model_copy(update={"embedding": None, "rotary": None}), [0]).get("slopes")
        if slopes is not None:
            yield f"slopes     {len(slopes)}: first {slopes[0]:.6g}, from {slopes.max():.6g} to {slopes.min():.6g}"


def _waves(what: str, inv_freq: NDArray[np.float64]) -> Iterator[str]:
    turned = inv_freq[inv_freq > 0]
    still = f", {len(inv_freq) - len(turned)} of them zero" if len(turned) < len(inv_freq) else ""
    yield (
        f"{what} frequencies {len(inv_freq)}{still}: "
        f"first {turned[0]:.6g} (wavelength {2 * math.pi / turned[0]:.4g} positions), "
        f"last {turned[-1]:.6g} (wavelength {2 * math.pi / turned[-1]:,.0f} positions)"
    )


def _slow(inv_freq: NDArray[np.float64], trained: int) -> str:
    turned = inv_freq[inv_freq > 0]
    slow = int((2 * math.pi / turned > trained).sum())
    return f"{slow} of {len(turned)} pairs do not turn once within {trained:,} positions"


def _factor(factor: float) -> Iterator[str]:
    if factor != 1.0:
        yield f"cos and sin are multiplied by {factor:.10g}, so scores by {factor**2:.10g}"


def _costs(layers: Sequence[AttentionSpec]) -> Table:
    causal = any(layer.causal for layer in layers)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("tokens", justify="right")
    if causal:
        table.add_column("cache in 16-bit types", justify="right")
        table.add_column("in float32", justify="right")
    table.add_column("scores and values of a prefill", justify="right")
    for tokens in _lengths(layers):
        cells = [_binary(cache_bytes(layers, tokens, size)) for size in (2, 4)] if causal else []
        table.add_row(f"{tokens:,}", *cells, f"{_flops(attention_flops(layers, tokens))}")
    table.title = f"one sequence through {len(layers)} layer{'s' if len(layers) > 1 else ''}"
    table.title_justify = "left"
    table.title_style = "bold"
    return table


def _lengths(layers: Sequence[AttentionSpec]) -> list[int]:
    """The usual lengths and the trained one; none beyond a table of the model's own."""
    trained = {layer.max_position_embeddings for layer in layers}
    ends = [end for layer in layers if (end := learned_end(layer)) is not None]
    return sorted(length for length in {*LENGTHS, *trained, *ends} if length and length <= min(ends, default=length))


def _flops(count: float) -> str:
    return f"{count / 1e9:,.3g} GFLOP" if count < 1e12 else f"{count / 1e12:,.4g} TFLOP"


def _binary(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} GiB"


def _print_different_layers(out: Console, spec: AttentionSpec, layers: Sequence[AttentionSpec]) -> None:
    other = [str(number) for number, layer in enumerate(layers) if layer != spec]
    if other:
        shown = ", ".join(other) if len(other) <= 40 else f"{', '.join(other[:40])}, ..."
        out.print(f"layers that differ from this one: {shown}")

"""The block in numpy float64, stage by stage, each value with the error that a correct runtime may have there.

It needs no framework, so a machine with one runtime only can judge it. The same functions serve two questions: what
should a stage be, given the runtime's own numbers before it; and how far may the whole block be from the truth.
Weights are rounded to the type first; cos, sin and biases are exact, or transformers' own (precision hf).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe import decays, schedules, tables, temperatures
from portpe.axes import deal
from portpe.encodings import Pairing, RotaryEncoding
from portpe.interface import DTYPES, Array
from portpe.layer_parts import Norm
from portpe.parity import bounds, embedding_terms, latent
from portpe.parity.bounds import Estimate, Exact, Rounding, quadrature
from portpe.parity.score_terms import BIASES, STATES, VALUE_TERMS, QueryRow
from portpe.spec import AttentionSpec

Ids = NDArray[np.int64]


class Block:
    """One block in one type. Heads are chosen by index; what is not asked for is not computed."""

    def __init__(
        self,
        spec: AttentionSpec,
        weights: Mapping[str, Array],
        table_set: Mapping[str, Array],
        dtype: str,
        quantized: Mapping[str, Exact] | None = None,
    ) -> None:
        """``quantized`` are the weights that a quantised graph holds in place of those of the same names."""
        self.spec = spec
        self._quantized = quantized or {}
        self.rounding: Rounding = bounds.ROUNDINGS[dtype]
        linear = spec.attention == "linear"  # features are formed, turned and multiplied in float32
        self.score_rounding: Rounding = bounds.ROUNDINGS["float32" if linear else dtype]
        self._weights = {name: array.astype(DTYPES[dtype]) for name, array in weights.items()} | {**self._quantized}
        self.tables = table_set
        self._wide: dict[tuple[str, bytes | None], tuple[Exact, NDArray[np.float32]]] = {}
        self.derived: dict[str, Estimate] = {}  # what a score term made of weights alone: every row asks again

    # --- before the heads: (B, S, width) -------------------------------------------------------

    def embedded(self, hidden_states: Estimate, position_ids: Ids) -> Estimate:
        """hidden_states * embed_scale + the embedding encoding."""
        scale = self.spec.embed_scale or 1.0
        value, size = hidden_states.value * scale, np.abs(hidden_states.value * scale)
        error = hidden_states.error * scale
        if self.spec.embedding is not None:
            added = embedding_terms.addend(self.spec.embedding, position_ids, self._weights, self.tables)
            value, size = value + added.value, size + np.abs(added.value)
            error = quadrature(error, added.error)
        return Estimate(value, quadrature(error, bounds.stored(size, self.rounding)))

    def normed(self, x: Estimate) -> Estimate:
        """After the input norms and the embedding projection: what q_proj sees."""
        for name, norm in self.spec.input_norms.items():
            x = self.normalise(x, norm, name)
        return self.project(x, "embedding_projection") if self.spec.embedding_projection is not None else x

    def seen(self, part: str, x: Estimate, hidden_states: Estimate) -> Estimate:
        """What the projection of q, k or v sees, of what q_proj sees and of the block's input."""
        return hidden_states if part == "v" and self.spec.values_see_input else x

    # --- heads: (B, heads, S, dim) -------------------------------------------------------------

    def heads(self, name: str, x: Estimate, chosen: Ids) -> Estimate:
        """q, k or v of the chosen heads: projected, clipped, normed where the norm stands before the rotation."""
        if self.spec.mla is not None:
            return latent.heads(self, self.spec.mla, name, x, chosen)
        norm = self._head_norm(name, "before")
        everything = norm is not None and norm.scope == "all_heads"
        count, dim = self._head_shape(name)
        wanted = np.arange(count) if everything else chosen
        rows = self.project(x, f"{name}_proj", latent.channels(wanted, dim))
        if self.spec.clip_qkv is not None:
            rows = Estimate(np.clip(rows.value, -self.spec.clip_qkv, self.spec.clip_qkv), rows.error)
        if name == "v":
            rows = latent.times(rows, self.spec.value_scale, self.rounding)
        split = rows.reshape(*rows.value.shape[:2], len(wanted), dim).swapaxes(1, 2)
        if norm is not None:
            split = self._normalise_heads(split, norm, name, wanted)
        return split[:, chosen] if everything else split

    def rotated(self, name: str, x: Estimate, position_ids: Ids, chosen: Ids, lengths: Ids | None = None) -> Estimate:
        """Queries or keys after rotation, then normed where the norm stands there; queries times query_scale.

        ``chosen`` are x's heads, ``lengths`` (B,) those of the batch rows, where the schedule follows them.
        """
        if self.spec.rotary is not None:
            x = self._rotate(x, position_ids, lengths, keys=name == "k")
        norm = self._head_norm(name, "after")
        x = x if norm is None else self._normalise_heads(x, norm, name, chosen)
        return x if name != "q" or self.spec.query_scale is None else self._scale_queries(x, position_ids)

    def query_multipliers(self, position_ids: Ids) -> Exact:
        """What a query temperature multiplies by at positions (...)."""
        temperature = self.spec.query_scale
        assert temperature is not None
        if temperature.precision == "hf":
            return self.tables["query_scale"][temperatures.row_of(temperature, position_ids)].astype(np.float64)
        return temperatures.multipliers(temperature, position_ids)

    def _scale_queries(self, q: Estimate, position_ids: Ids) -> Estimate:
        factor = self.query_multipliers(position_ids)[:, None, :, None]
        value = q.value * factor
        return Estimate(value, quadrature(q.error * factor, bounds.stored(value, self.rounding)))

    def _rotate(self, x: Estimate, position_ids: Ids, lengths: Ids | None, *, keys: bool) -> Estimate:
        rotary = self.spec.rotary
        assert rotary is not None
        cos, sin = self._cos_sin(rotary, position_ids, lengths, keys=keys)
        row = np.arange(position_ids.shape[-1])
        unturned = (row < rotary.prefix_tokens) | (row >= len(row) - rotary.suffix_tokens)
        cos[:, unturned], sin[:, unturned] = 1.0, 0.0
        pairs = rotary.width // 2  # cos and sin (B, S, pairs), or both members' one after the other
        (cos_a, cos_b), (sin_a, sin_b) = ((part[:, None, :, :pairs], part[:, None, :, -pairs:]) for part in (cos, sin))
        first, second = self._pairs(x.value.shape[-1], rotary.pairing)
        first_out, second_out = self._pairs(x.value.shape[-1], rotary.written)
        a, b = x[..., first], x[..., second]
        slack = self._table_error(rotary, position_ids, lengths, keys=keys) * quadrature(a.value, b.value)
        value, error = x.value.copy(), x.error.copy()
        for place, (along, across), (cos, sin), turned in (
            (first_out, (a, b), (cos_a, sin_a), a.value * cos_a - b.value * sin_a),
            (second_out, (b, a), (cos_b, sin_b), a.value * sin_b + b.value * cos_b),
        ):
            size = np.abs(along.value * cos) + np.abs(across.value * sin)
            own = bounds.stored(size, self.score_rounding)
            value[..., place] = turned
            error[..., place] = quadrature(along.error * cos, across.error * sin, own, slack)
        return Estimate(value, error)

    def _cos_sin(
        self, rotary: RotaryEncoding, position_ids: Ids, lengths: Ids | None, *, keys: bool
    ) -> tuple[Exact, Exact]:
        """Cos and sin (B, S, R/2): exact, or transformers' own."""
        if rotary.precision == "exact" and not rotary.defers_rotation:
            return tables.cos_sin(rotary, position_ids, keys=keys)
        if not rotary.defers_rotation:
            cos, sin = tables.combine(self.tables, position_ids)
            if rotary.axes is not None:
                cos, sin = (deal(rotary).select(part) for part in (cos, sin))
        else:
            assert lengths is not None
            if rotary.precision == "exact":
                return tables.cos_sin_by_row(rotary, position_ids, lengths)
            cos, sin = tables.combine_by_row(rotary, self.tables, position_ids, lengths)
        return cos.astype(np.float64), sin.astype(np.float64)

    def _table_error(self, rotary: RotaryEncoding, position_ids: Ids, lengths: Ids | None, *, keys: bool) -> Exact:
        """How far cos and sin may be off, before they are stored: (B, 1, S, 1 | pairs), or (). Scaled ones may be so
        small that a type has them in whole steps alone.
        """
        if rotary.decay is not None:
            scale = rotary.magnitude * decays.scales(rotary, position_ids, keys=keys)[:, None]
            return np.asarray(bounds.SCALED_TABLE * scale + self.rounding.tiny)
        if rotary.coordinates == "centred":
            return np.array(bounds.CENTRED * max(1.0, rotary.magnitude))
        if tables.sides(rotary):
            two_levels = any(f"{prefix}cos_hi" in self.tables for prefix in tables.sides(rotary))
            largest = max(schedules.magnitude(rotary, length or 1) for length in tables.sides(rotary).values())
            return np.array(bounds.TABLE * max(1.0, largest) if two_levels else 0.0)
        assert lengths is not None
        # Frequencies that follow every token: angles formed at each call, or two levels made at each call.
        magnitudes = np.array([schedules.magnitude(rotary, int(length)) for length in lengths])[:, None, None, None]
        angles = bounds.ANGLE * magnitudes * position_ids[:, None, :, None]
        return np.asarray(bounds.TABLE * np.maximum(1.0, magnitudes) + angles)

    def _pairs(self, head_dim: int, pairing: Pairing) -> tuple[Ids, Ids]:
        """The channels that hold the first and the second member of each pair."""
        rotary = self.spec.rotary
        assert rotary is not None
        start = 0 if rotary.channels == "first" else head_dim - rotary.width
        i = np.arange(rotary.width // 2)
        if pairing == "interleaved":
            return start + 2 * i, start + 2 * i + 1
        each = rotary.width // 2 // rotary.blocks  # pairs of a block
        first = start + i + i // each * each
        return first, first + each

    def states(self, x: Estimate) -> dict[str, Estimate]:
        """What the tokens x (S, hidden) of one batch row add to a cache besides keys and values, by name: (numbers of a
        token, S).
        """
        found: dict[str, Estimate] = {}
        for encoding in self.spec.bias:
            if encoding.kind in STATES:
                found |= STATES[encoding.kind](self, encoding, x)
        return found

    # --- one query row: the heads of one kv head (G,) against all its keys (T,) ------------------

    def scores(self, q: Estimate, keys: Estimate, row: QueryRow) -> Estimate:
        """(G, T) from q (G, D), of the row's heads, and the keys they read (T, D), softcap in it."""
        scale = self.spec.scale
        total = q.value @ keys.value.T * scale
        key_squares = np.square(keys.value.T)
        rss = np.sqrt(np.square(q.value) @ key_squares) * scale
        error = bounds.summed(total, rss, q.value.shape[-1], self.score_rounding)
        if q.error.any() or keys.error.any():
            carried = np.square(q.error) @ key_squares + np.square(q.value) @ np.square(keys.error.T)
            error = quadrature(error, np.sqrt(carried) * scale)
        for encoding in self.spec.bias:
            bias = BIASES[encoding.kind](self, encoding, row, q, keys)
            total = total + bias.value
            error = quadrature(error, bias.error, bounds.stored(total, self.rounding))
        if self.spec.softcap is None:
            return Estimate(total, error)
        cap = self.spec.softcap
        return Estimate(cap * np.tanh(total / cap), bounds.softcap_error(total, error, cap, self.rounding))

    def probs(self, scores: Estimate, visible: NDArray[np.bool_], chosen: Ids) -> Estimate:
        """(G, T): softmax over the visible keys, sinks in the denominator; exactly 0 elsewhere."""
        seen = np.where(visible, scores.value, -np.inf)
        largest = seen.max(axis=-1, keepdims=True, initial=-np.inf)
        if self.spec.sinks:
            sinks = self._weights["sinks"].astype(np.float64)[chosen][:, None]
            largest = np.maximum(largest, sinks)
        exponentials = np.exp(seen - largest)
        total = exponentials.sum(axis=-1, keepdims=True)
        if self.spec.sinks:
            total = total + np.exp(sinks - largest)
        probs = exponentials / total
        reach = np.where(visible, np.abs(scores.value), 0.0) + np.abs(largest)
        error = bounds.softmax_error(probs, scores, reach, int(visible.sum()), self.rounding)
        return Estimate(probs, np.where(visible, error, 0.0))

    def context(self, probs: Estimate, values: Estimate, row: QueryRow, shared: Exact | None = None) -> Estimate:
        """(G, Dv) from probs (G, T) and the values they weigh (T, Dv), value terms in it.

        ``shared`` (G, 1) is the relative error that all of a row's probs have together; None: a softmax's.
        """
        total = probs.value @ values.value
        value_squares = np.square(values.value)
        rss = np.sqrt(np.square(probs.value) @ value_squares)
        error = bounds.summed(total, rss, probs.value.shape[-1], self.rounding)
        if probs.error.any() or values.error.any():
            carried = np.square(probs.error) @ value_squares + np.square(probs.value) @ np.square(values.error)
            together = bounds.softmax_sum(probs.value.shape[-1]) if shared is None else shared
            error = quadrature(error, np.sqrt(carried), together * np.abs(total))
        for encoding in self.spec.bias:
            if encoding.reads_probs:
                term = VALUE_TERMS[encoding.kind](self, encoding, row, probs)
                total = total + term.value
                error = quadrature(error, term.error, bounds.stored(total, self.rounding))
        return Estimate(total, error)

    def gated(self, context: Estimate, row: QueryRow) -> Estimate:
        """(G, Dv) from the context of the row's heads, times the output gate."""
        gate = self.spec.output_gate
        assert gate is not None
        width = self.spec.gate_width // self.spec.num_heads
        factors = self.project(row.hidden, "gate_proj", latent.channels(row.heads, width))
        return bounds.gated(context, factors.reshape(len(row.heads), width), gate.activation, self.rounding)

    def output(self, context: Estimate) -> Estimate:
        """(P, hidden) from the context of every head (P, heads * Dv)."""
        return self.project(context, "o_proj")

    # --- parts ---------------------------------------------------------------------------------

    def weight(self, name: str) -> Exact:
        """A trained tensor as the type holds it, in float64."""
        return self._weights[name].astype(np.float64)

    def _head_shape(self, name: str) -> tuple[int, int]:
        spec = self.spec
        if name == "q":
            return spec.num_heads, spec.head_dim
        return spec.num_kv_heads, spec.head_dim if name == "k" else spec.v_head_dim

    def _head_norm(self, name: str, when: str) -> Norm | None:
        norm = {"q": self.spec.q_norm, "k": self.spec.k_norm, "v": self.spec.v_norm}[name]
        return norm if norm is not None and norm.when == when else None

    def _normalise_heads(self, x: Estimate, norm: Norm, name: str, chosen: Ids) -> Estimate:
        """Over each head, or over all of them at once; x is (B, heads, S, dim)."""
        rows = x.swapaxes(1, 2)
        if norm.scope == "all_heads":
            batch, seq, heads, dim = rows.value.shape
            whole = self.normalise(rows.reshape(batch, seq, heads * dim), norm, f"{name}_norm")
            return whole.reshape(batch, seq, heads, dim).swapaxes(1, 2)
        return self.normalise(rows, norm, f"{name}_norm", chosen if norm.per_head_weight else None).swapaxes(1, 2)

    def normalise(self, x: Estimate, norm: Norm, name: str, chosen: Ids | None = None) -> Estimate:
        """A layer or RMS norm over the last axis, formed in float32."""
        width, rounding = x.value.shape[-1], self.rounding
        mean = x.value.mean(-1, keepdims=True) if norm.kind == "layer" else np.zeros_like(x.value[..., :1])
        centred = x.value - mean
        scale = 1 / np.sqrt(np.square(centred).mean(-1, keepdims=True) + norm.eps)
        unit = centred * scale
        weight = self._vector(f"{name}.weight", chosen, 1.0) + (norm.weight_offset if norm.affine else 0.0)
        bias = self._vector(f"{name}.bias", chosen, 0.0)
        in_sum = bounds.LAMBDA * np.sqrt(width) * rounding.sum_unit
        spread = np.sqrt(np.square(x.value).mean(-1, keepdims=True) / width)
        own = quadrature(
            in_sum * np.maximum(np.abs(mean), spread) * scale * np.abs(weight) * (norm.kind == "layer"),
            in_sum * np.abs(unit * weight),
            bounds.stored(np.abs(unit * weight) + np.abs(mean * scale * weight) + np.abs(bias), rounding),
        )
        value = unit * weight + bias
        if not x.error.any():
            return Estimate(value, own)
        through_mean = np.sqrt(np.square(x.error).sum(-1, keepdims=True)) / width * (norm.kind == "layer")
        through_scale = unit * np.sqrt(np.square(x.error * unit).sum(-1, keepdims=True)) / width
        carried = quadrature(x.error, through_mean * np.ones_like(value), through_scale) * scale * np.abs(weight)
        return Estimate(value, quadrature(own, carried))

    def _vector(self, name: str, chosen: Ids | None, absent: float) -> Exact:
        if name not in self._weights:
            return np.array(absent)
        vector = self._weights[name].astype(np.float64)
        return vector if chosen is None else vector[chosen]

    def project(self, x: Estimate, name: str, channels: Ids | None = None) -> Estimate:
        """A linear layer, or the chosen rows of it."""
        weight, squares = self._matrix(f"{name}.weight", channels)
        flat = x.reshape(-1, x.value.shape[-1])
        found = bounds.product(flat, weight, squares, self.rounding)
        if f"{name}.weight" in self._quantized:
            found = Estimate(found.value, quadrature(found.error, bounds.rounded_activations(flat.value, squares)))
        found = found.reshape(*x.value.shape[:-1], weight.shape[0])
        if f"{name}.bias" not in self._weights:
            return found
        bias = self._vector(f"{name}.bias", channels, 0.0)
        value = found.value + bias
        size = np.abs(bias) + np.abs(value)
        return Estimate(value, quadrature(found.error, bounds.stored(size, self.rounding)))

    def _matrix(self, name: str, channels: Ids | None) -> tuple[Exact, NDArray[np.float32]]:
        """Rows of a matrix in float64, and their squares; kept, since every case asks again."""
        key = (name, None if channels is None else channels.tobytes())
        if key not in self._wide:
            matrix = self._weights[name] if channels is None else self._weights[name][channels]
            wide = matrix.astype(np.float64)
            self._wide[key] = wide, np.square(wide.astype(np.float32))
        return self._wide[key]


def visible_keys(
    spec: AttentionSpec,
    row: int,
    past: int,
    attention_mask: NDArray[Any],
    positions: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> NDArray[np.bool_]:
    """Which cache slots (T,) the query in this row of a call sees; ``attention_mask`` (T,) is its batch row's.

    ``positions``: of the query () and of the keys (T,), by which chunks go.
    """
    slot, keys = past + row, np.arange(attention_mask.shape[-1])
    seen = attention_mask.astype(bool)
    if spec.causal:
        seen = seen & (keys <= slot)
    if spec.window is not None:
        seen = seen & (keys > slot - spec.window)
    if spec.window_radius is not None:
        seen = seen & (np.abs(keys - slot) <= spec.window_radius)
    if spec.chunk is not None:
        assert positions is not None, "chunks go by position"
        seen = seen & (positions[0] // spec.chunk == positions[1] // spec.chunk)
    return np.asarray(seen)

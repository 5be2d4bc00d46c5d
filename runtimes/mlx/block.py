"""Layer: runtimes (MLX). ``Attention``: one self-attention layer of a spec, in the shape of an mlx-lm model's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
import numpy as np
from mlx import nn

from portpe import tables as position_tables
from portpe.errors import SpecError
from portpe.interface import stages_of
from portpe.runtimes.mlx import (
    attention,
    bias,
    caches,
    embedding,
    linear_attention,
    masks,
    positions,
    projections,
    rotary,
    trained,
    weights,
)
from portpe.runtimes.mlx.args import ModelArgs
from portpe.runtimes.mlx.call_positions import CallPositions
from portpe.runtimes.mlx.masks import Mask
from portpe.runtimes.mlx.norms import FeatureNorm, HeadNorm
from portpe.runtimes.mlx.output_gate import gated
from portpe.runtimes.mlx.position_table import Tables
from portpe.runtimes.mlx.positions import Positions, Run, Slots
from portpe.runtimes.mlx.rotary import Rotation
from portpe.runtimes.mlx.temperature import QueryScale
from portpe.spec import AttentionSpec

Stages = dict[str, mx.array]


class Attention(nn.Module):
    """Self-attention with any of portpe's encodings.

    Parameters have the names and the (out, in) layout of Hugging Face's: ``q_proj.weight`` and so on. Tables of
    positions are private arrays in float32, whatever type the parameters are cast to.

    Args:
        spec: the layer, as an ``AttentionSpec`` or as the ``ModelArgs`` of a config.json.
        tables: the encodings' tables by name, as ``portpe.tables.table_set`` gives them. None: made here, which a
            spec with ``precision="hf"`` cannot do without torch.
        table_positions: how many positions the tables cover; None: those of ``tables.default_end``.
        rotation: how queries and keys are turned: ``auto``, or one of ``rotary.ROTATIONS`` by name.

    Raises:
        SpecError: the frequencies depend on the length and no regime fixes it, or the named rotation cannot do it.
    """

    def __init__(
        self,
        spec: AttentionSpec | ModelArgs,
        *,
        tables: Tables | None = None,
        table_positions: int | None = None,
        rotation: Rotation = "auto",
    ) -> None:
        super().__init__()
        self.args = spec if isinstance(spec, ModelArgs) else ModelArgs.from_spec(spec, table_positions=table_positions)
        self.spec = spec = self.args.spec
        if spec.refusal is not None:
            raise SpecError(spec.refusal)
        if tables is None:
            tables = position_tables.table_set(spec, table_positions or self.args.table_positions)
        self.end = position_tables.end_of(spec, tables)
        self._build_input(spec, tables)
        q, kv = spec.num_heads, spec.num_kv_heads
        for name, module in projections.modules(spec).items():
            self[name] = module
        if spec.output_gate is not None:
            self.gate_proj = nn.Linear(spec.hidden_size, spec.gate_width, bias=spec.output_gate.bias)
        self.o_proj = nn.Linear(q * spec.v_head_dim, spec.hidden_size, bias=spec.biases.o)
        if spec.q_norm is not None and spec.k_norm is not None:
            self.q_norm = HeadNorm(spec.q_norm, q, spec.head_dim)
            self.k_norm = HeadNorm(spec.k_norm, kv, spec.head_dim)
        if spec.v_norm is not None:
            self.v_norm = HeadNorm(spec.v_norm, kv, spec.v_head_dim)
        if spec.sinks:
            self.sinks = mx.zeros((q,))
        if spec.rotary is not None:
            self.rope = rotary.SITES[spec.rotary.kind](spec.rotary, tables, rotation, late=spec.deferred_rotation)
        if spec.query_scale is not None:
            self.query_scale = QueryScale(spec.query_scale, tables)
        self.position_biases = [bias.SITES[part.kind](part, spec, tables) for part in spec.bias]
        self._trained = trained.register(self, spec)

    def _build_input(self, spec: AttentionSpec, tables: Tables) -> None:
        if spec.embedding is not None:
            self.position_embedding = embedding.SITES[spec.embedding.kind](spec.embedding, tables)
        for name, norm in spec.input_norms.items():
            self[name] = FeatureNorm(norm, spec.input_width)
        if (projection := spec.embedding_projection) is not None:
            self.embedding_projection = nn.Linear(projection.width, spec.hidden_size, bias=projection.bias)

    @classmethod
    def from_folder(cls, folder: str | Path, *, tables: Tables | None = None, rotation: Rotation = "auto") -> Self:
        """The layer of a bundle's ``mlx`` folder: config.json and weights.safetensors, every shape checked.

        A spec with ``precision="hf"`` takes its tables from tables_hf.safetensors, in the folder or beside it.
        Raises SpecError.
        """
        args = weights.read_args(Path(folder))
        if tables is None and args.spec.precision == "hf":
            tables = weights.read_hf_tables(Path(folder), args.spec)
        block = cls(args, tables=tables, rotation=rotation)
        weights.load(block, weights.read(Path(folder)), args.quantization)
        return block

    @staticmethod
    def sanitize(weights: Mapping[str, Any]) -> dict[str, Any]:
        """Without the buffers that older checkpoints saved among their weights."""
        return {name: value for name, value in weights.items() if not name.endswith("rotary_emb.inv_freq")}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Take weights by name, mlx or numpy (bfloat16 as ml_dtypes). Raises SpecError for a name or shape that
        does not fit, which mlx's own load_weights(strict=False) lets pass.
        """
        weights.load(self, arrays)

    # --- the mlx-lm call ---

    def __call__(
        self,
        x: mx.array,
        mask: mx.array | str | None = None,
        cache: Any | None = None,
        position_ids: Any | None = None,
        key_position_ids: Any | None = None,
    ) -> mx.array:
        """The layer's output (B, S, hidden) for x (B, S, width).

        ``mask`` follows mlx-lm: None hides nothing, "causal" is bottom-right aligned, a bool array keeps where
        True, a floating one is added; the layer's own window (and a batch cache's left padding) applies on top of
        None and "causal". A row that sees no key gets context 0. ``position_ids`` (S,), (1, S) or (B, S): None
        means cache.offset + arange, by row where the offset is (B,). Positions are read on the host and checked
        before anything is dispatched, so mx.compile cannot trace them as inputs (mlx raises ValueError).
        ``key_position_ids`` (1 | B, past + S) are needed where a bias meets both a past and explicit position_ids.

        Raises:
            SpecError: a position that no table row serves, a cache that this layer cannot be right with, a mask of
                another kind.
        """
        caches.check(cache, self.spec)
        masks.check(self.spec, mask)
        at = CallPositions.of(self.spec, self.end, x.shape[1], cache, position_ids, key_position_ids)
        stages = self._project(x, at.counted, at.looked_up)
        got = caches.extend(cache, _last(stages, "k"), stages["v"], self._new_states(x, stages))
        if any(part.reads_slots for part in self.spec.bias):
            caches.check_order(cache, got)
        lengths = at.lengths(got, mask)
        if self.spec.window is not None and not isinstance(mask, mx.array):
            got = caches.within(got, self.spec.window)
        key_positions = at.keys(got)
        combined = masks.compose(
            self.spec,
            mask,
            got.query_slots,
            got.key_slots,
            left_padding=getattr(cache, "left_padding", None),
            as_array=bool(self.position_biases) or self.spec.softcap is not None or self.spec.attention == "linear",
            near=masks.in_one_chunk(self.spec, at.looked_up, key_positions),
        )
        got = got._replace(keys=self._turn_late(stages, got.keys, at.looked_up, key_positions, lengths))
        if self.spec.attention == "linear":
            context = self._without_softmax(stages, got.values, combined)
        else:
            given = self._score_inputs(x, stages, got, at.looked_up, key_positions, combined)
            context = self._context(_last(stages, "q"), got.keys, got.values, given, combined)
        return self._output(self._gated(context, _normed(stages, x)))

    def _turn_late(
        self, stages: Stages, keys: mx.array, queries: Positions, places: Positions | None, lengths: Slots | None
    ) -> mx.array:
        """The keys that attention takes: where they are cached as they were projected, with all that follows at each
        call done to all of them, and to the queries in ``stages``.
        """
        q = stages["q"]
        if self.spec.attention == "linear":
            q, keys = linear_attention.features(q), linear_attention.features(keys)
            stages |= {"q_features": q, "k_features": keys}
        if not self.spec.deferred_rotation:
            return keys
        assert places is not None
        if not isinstance(places, Run):
            places = np.maximum(places, 0)
        stages["q_rotated"], stages["k_rotated"] = self.rope.rotate_all(q, keys, queries, places, lengths)
        self._finish_rotated(stages, queries)
        return stages["k_rotated"]

    def _without_softmax(self, stages: Stages, values: mx.array, mask: Mask) -> mx.array:
        """The context of linear attention, and the stages before it."""
        q, k = (_last(stages, name) for name in ("q", "k"))
        stages["scores"] = attention.scores(q, k, self.spec.scale, None, None)
        total = linear_attention.normaliser(stages["q_features"], stages["k_features"], mask.keep)
        stages["normaliser"] = total
        stages["probs"] = linear_attention.weights(stages["scores"], total, mask.keep)
        return attention.context(stages["probs"], values)

    def _context(self, q: mx.array, k: mx.array, v: mx.array, given: bias.ScoreInputs | None, mask: Mask) -> mx.array:
        spec, sinks = self.spec, self.sinks.astype(q.dtype) if self.spec.sinks else None
        added = self._bias(given)
        # mx.fast caps no scores; with sinks, a 16-bit mask could not be shifted without moving them too.
        own = spec.softcap is not None or any(part.reads_probs for part in spec.bias)
        if not own and (sinks is None or (added is None and mask.added is None)):
            return attention.fused(q, k, v, spec.scale, added, mask, sinks)
        logits = attention.scores(q, k, spec.scale, added, spec.softcap)
        return self._weighed(attention.probabilities(logits, mask, sinks), v, given)

    def rotation_way(self, dtype: mx.Dtype = mx.float32) -> tuple[str, str | None]:
        """The way that a call in ``dtype`` turns queries and keys here (see ``rotary``), and why it is no other one.

        Raises SpecError: the spec turns nothing, or a named way cannot do it.
        """
        spec = self.spec
        if spec.rotary is None:
            raise SpecError("rotary is required for a way of rotation, got None")
        q, k = (mx.zeros((1, heads, 1, spec.head_dim), dtype) for heads in (spec.num_heads, spec.num_kv_heads))
        way: tuple[str, str | None] = self.rope.way(q, k)
        return way

    # --- every stage by name ---

    def stages(
        self,
        hidden_states: mx.array,
        position_ids: Any | None = None,
        attention_mask: Any | None = None,
        past_key: mx.array | None = None,
        past_value: mx.array | None = None,
        key_position_ids: Any | None = None,
        past_states: Mapping[str, mx.array] | None = None,
    ) -> Stages:
        """Every stage of ``interface.stages_of(spec)`` and all of ``interface.cache_of``, in plain operations.

        Arguments and shapes are those of ``interface.BlockInputs``; causality is the spec's. ``scores`` and
        ``probs`` are float32, the rest in x's type. Raises SpecError as a call does.
        """
        spec, length = self.spec, hidden_states.shape[1]
        cache = (
            None
            if past_key is None or past_value is None or not past_key.shape[2]
            else (caches.PastCache(past_key, past_value, past_states))
        )
        caches.check(cache, spec)
        if position_ids is None and attention_mask is not None:
            position_ids, key_position_ids = positions.from_mask(attention_mask, length, spec.position_axes)
        at = CallPositions.of(spec, self.end, length, cache, position_ids, key_position_ids)
        stages = self._project(hidden_states, at.counted, at.looked_up)
        got = caches.extend(cache, _last(stages, "k"), stages["v"], self._new_states(hidden_states, stages))
        cached = got.keys
        whole = np.ones((1, got.keys.shape[2])) if attention_mask is None else attention_mask
        given = masks.from_attention_mask(spec, whole, length)
        lengths = at.lengths(got, given)
        key_positions = at.keys(got)
        near = masks.in_one_chunk(spec, at.looked_up, key_positions)
        mask = masks.compose(spec, given, got.query_slots, got.key_slots, as_array=True, near=near)
        sinks = self.sinks if spec.sinks else None
        got = got._replace(keys=self._turn_late(stages, got.keys, at.looked_up, key_positions, lengths))
        if spec.attention == "linear":
            stages["context"] = self._without_softmax(stages, got.values, mask)
        else:
            inputs = self._score_inputs(hidden_states, stages, got, at.looked_up, key_positions, mask)
            added = self._bias(inputs)
            stages["scores"] = attention.scores(_last(stages, "q"), got.keys, spec.scale, added, spec.softcap)
            stages["probs"] = attention.probabilities(stages["scores"], mask, sinks)
            stages["context"] = self._weighed(stages["probs"], got.values, inputs)
        stages["gated"] = self._gated(stages["context"], _normed(stages, hidden_states))
        stages["output"] = self._output(stages["gated"])
        named = {name: stages[name] for name in stages_of(spec)}
        states = {f"present_{name}": state for name, state in got.states.items()}
        return named | {"present_key": cached, "present_value": got.values} | states

    # --- the spine ---

    def _project(self, x: mx.array, counted: Positions, looked_up: Positions) -> Stages:
        """The stages up to k_rotated, those that this spec has; up to v where keys are cached as they are projected."""
        spec = self.spec
        stages: Stages = {}
        hidden_states = x
        if spec.embedding is not None or spec.embed_scale is not None:
            x = stages["embedded"] = self._embed(x, looked_up)
        if spec.input_norms or spec.embedding_projection is not None:
            for name in spec.input_norms:
                x = self[name](x)
            x = stages["normed"] = self.embedding_projection(x) if spec.embedding_projection is not None else x
        stages |= projections.heads(spec, self, x, hidden_states)
        for name, norm in (("q", spec.q_norm), ("k", spec.k_norm), ("v", spec.v_norm)):
            if norm is not None and norm.when == "before":
                stages[name] = self[f"{name}_norm"](stages[name])
        if spec.caches_projected_keys:
            return stages
        if spec.rotary is not None:
            places = counted if self.rope.counts_pads else looked_up
            stages["q_rotated"], stages["k_rotated"] = self.rope.rotate(stages["q"], stages["k"], places)
        self._finish_rotated(stages, looked_up)
        return stages

    def _finish_rotated(self, stages: Stages, looked_up: Positions) -> None:
        """What stands behind the rotation: norms, and the temperature of queries."""
        for name, norm in (("q", self.spec.q_norm), ("k", self.spec.k_norm)):
            if norm is not None and norm.when == "after":
                stages[f"{name}_rotated"] = self[f"{name}_norm"](_last(stages, name))
        if self.spec.query_scale is not None:
            stages["q_rotated"] = self.query_scale(_last(stages, "q"), looked_up)

    def _embed(self, x: mx.array, places: Positions) -> mx.array:
        """Hidden states times embed_scale plus the encoding's addend, in float32, cast once."""
        wide = x.astype(mx.float32)
        if self.spec.embed_scale is not None:
            wide = wide * self.spec.embed_scale
        if self.spec.embedding is not None:
            wide = wide + self.position_embedding(places).astype(mx.float32)
        return wide.astype(x.dtype)

    def _new_states(self, x: mx.array, stages: Stages) -> Stages:
        """What a call's tokens add to the cache besides keys and values, (B, numbers of a token, S) by name."""
        found: Stages = {}
        if not self.spec.cached_states:
            return found
        weights = {name: trained.at(self, name) for name in self._trained}
        for part, encoding in zip(self.position_biases, self.spec.bias, strict=True):
            if encoding.cached_states(self.spec):
                found |= part.states(_normed(stages, x), weights)
        return found

    def _score_inputs(
        self,
        x: mx.array,
        stages: Stages,
        got: caches.Fetched,
        query_positions: Positions,
        key_positions: Positions | None,
        mask: Mask,
    ) -> bias.ScoreInputs | None:
        """What the position biases read, where there are any."""
        if key_positions is None or not self.position_biases:
            return None
        return bias.ScoreInputs(
            hidden=_normed(stages, x),
            q=_last(stages, "q"),
            k=got.keys,
            query_positions=positions.on_axes(positions.rows(query_positions), self.spec.position_axes),
            key_positions=positions.on_axes(positions.rows(key_positions), self.spec.position_axes),
            visible=mask.keep,
            weights={name: trained.at(self, name) for name in self._trained},
            project=lambda name, rows: self[name](rows),
            states=got.states,
        )

    def _bias(self, given: bias.ScoreInputs | None) -> mx.array | None:
        """The sum of the position biases (1 | B, heads, S, T) in float32, or None."""
        if given is None:
            return None
        first, *others = (part(given) for part in self.position_biases)
        total: mx.array = sum(others, start=first)
        return total

    def _weighed(self, probs: mx.array, values: mx.array, given: bias.ScoreInputs | None) -> mx.array:
        """The values that the probabilities weigh, and the value terms; rounded once."""
        terms = [
            part for part, encoding in zip(self.position_biases, self.spec.bias, strict=True) if encoding.reads_probs
        ]
        if not terms:
            return attention.context(probs, values)
        wide = attention.context(probs, values.astype(mx.float32))
        return sum((term.value_term(probs, given) for term in terms), start=wide).astype(values.dtype)

    def _gated(self, context: mx.array, x: mx.array) -> mx.array:
        """The context times the output gate of what q_proj sees, where there is one."""
        gate = self.spec.output_gate
        return context if gate is None else gated(gate, context, self.gate_proj(x))

    def _output(self, context: mx.array) -> mx.array:
        batch, heads, length, width = context.shape
        out: mx.array = self.o_proj(context.transpose(0, 2, 1, 3).reshape(batch, length, heads * width))
        return out


def _normed(stages: Stages, x: mx.array) -> mx.array:
    """What q_proj sees."""
    return stages.get("normed", stages.get("embedded", x))


def _last(stages: Stages, name: str) -> mx.array:
    """The q or k that attention takes: rotated where the spec rotates, features where it has them."""
    return stages.get(f"{name}_rotated", stages.get(f"{name}_features", stages[name]))

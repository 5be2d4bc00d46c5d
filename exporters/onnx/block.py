"""Layer: exporters/onnx. What every graph form shares: inputs, the part before the heads, projections, serialization.

A form is a subclass that says how heads attend. It names no encoding: an addend for the embedding, a rotation, an
additive bias come from the files of their sites.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

import portpe
from portpe.exporters.onnx import (
    bias,
    embedding,
    latent,
    length_rows,
    mask,
    norm,
    output_gate,
    projection,
    temperature,
)
from portpe.exporters.onnx.capabilities import Capability
from portpe.exporters.onnx.graph import FLOAT, INT64, Dim, GraphBuilder, Shape, shape_of
from portpe.exporters.onnx.weights import ExternalWeight
from portpe.interface import stages_of
from portpe.layer_parts import MlaProjection
from portpe.spec import AttentionSpec

BATCH, SEQUENCE, PAST, TOTAL = "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length"
CAPACITY = "max_sequence_length"  # of a cache that is a buffer


class Block(ABC):
    """One block while it is built: its inputs, and its stages by name as they come to be."""

    length_inputs: tuple[str, ...] = ()  # int64 (batch,), where a form has to be told how full its cache is

    def __init__(
        self,
        spec: AttentionSpec,
        capability: Capability,
        *,
        dtype: str,
        layer: int,
        tables: Mapping[str, NDArray[Any]],
        weights: Mapping[str, ExternalWeight],
        stages: bool,
    ) -> None:
        self.spec, self.capability, self.layer = spec, capability, layer
        self.tables, self.weights = tables, weights
        self.with_stages = stages
        self.graph = graph = GraphBuilder(dtype)
        self.total: Dim = TOTAL if spec.causal else SEQUENCE
        self.stages: dict[str, ir.Value] = {}
        self._expanded: dict[str, ir.Value] = {}  # MLA's keys and values, which come together
        self.hidden_states = graph.input("hidden_states", graph.dtype, (BATCH, SEQUENCE, spec.input_width))
        axes: Shape = () if spec.position_axes == 1 else (spec.position_axes,)
        self.position_ids = graph.input("position_ids", INT64, (*axes, BATCH, SEQUENCE))
        self.attention_mask = graph.input("attention_mask", INT64, (BATCH, self.total))
        self.key_position_ids: ir.Value | None = None
        if spec.needs_key_positions:
            self.key_position_ids = graph.input("key_position_ids", INT64, (*axes, BATCH, self.total))
        self.past: list[ir.Value] = []
        if spec.causal:
            for part, shape in (("key", self.past_shape(spec.head_dim)), ("value", self.past_shape(spec.v_head_dim))):
                self.past.append(graph.input(f"past_key_values.{layer}.{part}", graph.dtype, shape))
        self.past_states = {
            name: graph.input(f"past_key_values.{layer}.{name}", FLOAT, (BATCH, rows, PAST))
            for name, rows in spec.cached_states.items()
        }
        self.lengths = {name: graph.input(name, INT64, (BATCH,)) for name in self.length_inputs}

    def past_shape(self, width: int) -> Shape:
        """Of the cached keys or values that come in."""
        return (BATCH, self.spec.num_kv_heads, PAST, width)

    @abstractmethod
    def attend(self, hidden: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        """From what q_proj sees, (batch, sequence, hidden), to the context in tokens, (batch, sequence, heads *
        v_head_dim), and the presents where there is a cache.
        """

    def serialize(self) -> bytes:
        """The graph as bytes; equal blocks give equal bytes."""
        self.normed = self._normed(self._embedded(self.hidden_states))
        self.states = self._states(self.normed)
        context, presents = self.attend(self.normed)
        context = self._gated(context)
        with self.graph.stage("output"):
            output = self.project(context, "o_proj", bias=self.spec.biases.o)
        outputs = [self.graph.name(output, "attention_output"), *presents, *self.states.values()]
        if self.with_stages:
            outputs += [self.stages[stage] for stage in stages_of(self.spec) if stage in self.stages]
        metadata = {
            "portpe.form": self.capability.form,
            "portpe.spec_sha256": hashlib.sha256(self.spec.to_json().encode()).hexdigest(),
            "portpe.version": portpe.__version__,
        }
        opset, ir_version = self.capability.opset, self.capability.ir_version
        model = self.graph.model(outputs, opset=opset, ir_version=ir_version, metadata=metadata)
        serialized: bytes = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
        return serialized

    def by_head(self, value: ir.Value, heads: int, width: int) -> ir.Value:
        """(batch, sequence, heads * width) as (batch, sequence, heads, width)."""
        return self.graph.reshape(value, [0, 0, heads, width], (BATCH, SEQUENCE, heads, width))

    def show(self, stage: str, value: ir.Value, heads: int, width: int) -> ir.Value:
        """Note a stage, (batch, heads, sequence, width), where stages are asked for; the value itself, in tokens, goes
        on.
        """
        if self.with_stages:
            self.stage(stage, self.graph.transpose(self.by_head(value, heads, width), 0, 2, 1, 3))
        return value

    def stage(self, name: str, value: ir.Value) -> ir.Value:
        self.stages[name] = self.graph.name(value, name)
        return value

    def present_name(self, part: str) -> str:
        return f"present.{self.layer}.{part}"

    def project(self, value: ir.Value, name: str, *, bias: bool) -> ir.Value:
        graph, value = self.graph, self.product(value, name)
        return graph.binary("Add", value, graph.external(f"{name}.bias", self.weights)) if bias else value

    def product(self, value: ir.Value, name: str) -> ir.Value:
        """``value`` (batch, sequence, in) times a projection's weight."""
        return projection.product(self.graph, value, f"{name}.weight", self.weights)

    def projected(self, hidden: ir.Value, part: str) -> ir.Value:
        """q, k or v in tokens, (batch, sequence, heads * width), clipped."""
        spec, graph = self.spec, self.graph
        if spec.mla is not None:
            return self._latent(hidden, part, spec.mla)
        if part == "v" and spec.values_see_input:
            hidden = self.hidden_states
        value = self.project(hidden, f"{part}_proj", bias=getattr(spec.biases, part))
        if spec.clip_qkv is not None:
            low, high = (graph.scalar(sign * spec.clip_qkv, graph.dtype) for sign in (-1, 1))
            value = graph.op("Clip", value, low, high, shape=shape_of(value))
        return latent.times(graph, value, spec.value_scale) if part == "v" else value

    def _latent(self, hidden: ir.Value, part: str, mla: MlaProjection) -> ir.Value:
        """The same through MLA's latents."""

        def project(value: ir.Value, name: str, bias: bool) -> ir.Value:
            return self.project(value, name, bias=bias)

        if part == "q":
            return latent.queries(self.graph, hidden, mla, self.weights, project)
        if not self._expanded:
            key, value = latent.keys_and_values(self.graph, hidden, self.spec, mla, self.weights, project)
            self._expanded = {"k": key, "v": value}
        return self._expanded[part]

    def query_multiplier(self) -> ir.Value:
        """(batch, sequence) in the graph's type, of a spec with a query temperature."""
        assert self.spec.query_scale is not None
        found = temperature.multiplier(self.graph, self.spec.query_scale, self.position_ids, self.tables)
        return self.graph.cast(found, self.graph.dtype)

    def visible(self) -> ir.Value:
        """Bool (batch, 1, 1 | sequence, total): True where the query may see the key's slot."""
        seen = mask.visible(self.graph, self.spec, self.attention_mask, self.query_slots)
        if self.spec.chunk is None:
            return seen
        assert self.key_position_ids is not None
        near = mask.in_one_chunk(self.graph, self.spec.chunk, self.position_ids, self.key_position_ids)
        return self.graph.binary("And", seen, near)

    def score_inputs(self, q: Callable[[], ir.Value], k: Callable[[], ir.Value]) -> bias.ScoreInputs:
        """What the bias site may read, with the form's own layout of queries and of all keys."""
        assert self.key_position_ids is not None
        return bias.ScoreInputs(
            spec=self.spec,
            hidden=self.normed,
            q=q,
            k=k,
            visible=self.visible,
            kept=lambda: mask.kept_keys(self.graph, self.attention_mask),
            position_ids=self.position_ids,
            key_position_ids=self.key_position_ids,
            tables=self.tables,
            weights=self.weights,
            project=self._project_rows,
            states=self.states,
        )

    def _project_rows(self, rows: ir.Value, name: str, has_bias: bool) -> ir.Value:
        return self.project(rows, name, bias=has_bias)

    def _states(self, hidden: ir.Value) -> dict[str, ir.Value]:
        """What encodings cache besides keys and values, of all tokens, (batch, numbers of a token, total): presents."""
        graph, found = self.graph, {}
        with graph.stage("states"):
            for encoding in self.spec.bias:
                new = bias.new_states(graph, encoding, bias.TokenInputs(hidden, self._project_rows))
                for name, value in new.items():
                    joined = graph.concat([self.past_states[name], value], axis=2, size=TOTAL)
                    found[name] = graph.name(joined, self.present_name(name))
        return found

    def row_lengths(self) -> ir.Value | None:
        """(batch,): the current length of each batch row where the rotation follows it, else None."""
        if not self.spec.rotation_by_length:
            return None
        assert self.key_position_ids is not None
        return length_rows.lengths(self.graph, self.key_position_ids, self.attention_mask)

    def query_slots(self) -> ir.Value:
        """(sequence,) or (batch, sequence): the cache slots of this call's rows."""
        return mask.last_slots(self.graph, self.hidden_states, self.attention_mask)

    def head_shape(self, part: str) -> tuple[int, int]:
        """(heads, width) of q, k or v."""
        spec = self.spec
        heads = spec.num_heads if part == "q" else spec.num_kv_heads
        return heads, spec.v_head_dim if part == "v" else spec.head_dim

    def _gated(self, context: ir.Value) -> ir.Value:
        """The context in tokens, times the output gate where there is one."""
        spec, gate = self.spec, self.spec.output_gate
        if gate is None:
            return context
        with self.graph.stage("gated"):
            rows = self.project(self.normed, "gate_proj", bias=gate.bias)
            context = output_gate.gated(self.graph, spec, gate, context, rows)
            return self.show("gated", context, spec.num_heads, spec.v_head_dim)

    def _embedded(self, hidden: ir.Value) -> ir.Value:
        spec, graph = self.spec, self.graph
        if spec.embedding is None and spec.embed_scale is None:
            return hidden
        with graph.stage("embedded"):
            total = graph.cast(hidden, FLOAT)
            if spec.embed_scale is not None:
                total = graph.binary("Mul", total, graph.scalar(spec.embed_scale, FLOAT))
            if spec.embedding is not None:
                addend = embedding.addend(graph, spec.embedding, self.position_ids, self.tables, self.weights)
                total = graph.binary("Add", total, graph.cast(addend, FLOAT))
            return self.stage("embedded", graph.cast(total, graph.dtype))

    def _normed(self, hidden: ir.Value) -> ir.Value:
        spec, graph = self.spec, self.graph
        if not spec.input_norms and spec.embedding_projection is None:
            return hidden
        with graph.stage("normed"):
            for name, settings in spec.input_norms.items():
                hidden = norm.normalize(graph, hidden, settings, name, self.weights)
            if spec.embedding_projection is not None:
                hidden = self.project(hidden, "embedding_projection", bias=spec.embedding_projection.bias)
            return self.stage("normed", hidden)

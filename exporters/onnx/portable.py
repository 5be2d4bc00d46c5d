"""Layer: exporters/onnx. The ``portable`` form: the block in primitives of opset 18.

It names no encoding: an addend for the embedding, a rotation, an additive bias come from the files of their sites.
Groups of query heads that share keys are folded into rows, (batch, kv_heads, group * sequence, head_dim), so that
keys and values are never repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

import portpe
from portpe.exporters.onnx import bias, embedding, mask, norm, rotary
from portpe.exporters.onnx.capabilities import Capability
from portpe.exporters.onnx.graph import FLOAT, INT64, Dim, GraphBuilder, shape_of
from portpe.exporters.onnx.weights import ExternalWeight
from portpe.interface import stages_of
from portpe.spec import AttentionSpec

# The most negative float32: a masked score. Minus infinity would make rows without a key NaN on the way.
LOWEST = -3.4028234663852886e38
BATCH, SEQUENCE, PAST, TOTAL = "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length"


def build(
    spec: AttentionSpec,
    capability: Capability,
    *,
    dtype: str,
    layer: int,
    tables: Mapping[str, NDArray[Any]],
    weights: Mapping[str, ExternalWeight],
    stages: bool,
) -> bytes:
    """The serialized graph; see ``portpe.exporters.onnx.build``."""
    block = _Block(spec, dtype, layer, tables, weights)
    outputs = block.outputs()
    if stages:
        outputs += [block.stages[stage] for stage in stages_of(spec) if stage != "output"]
    metadata = {
        "portpe.form": capability.form,
        "portpe.spec_sha256": hashlib.sha256(spec.to_json().encode()).hexdigest(),
        "portpe.version": portpe.__version__,
    }
    model = block.graph.model(outputs, opset=capability.opset, ir_version=capability.ir_version, metadata=metadata)
    serialized: bytes = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
    return serialized


class _Block:
    """One block while it is built: its inputs, and its stages by name as they come to be."""

    def __init__(
        self,
        spec: AttentionSpec,
        dtype: str,
        layer: int,
        tables: Mapping[str, NDArray[Any]],
        weights: Mapping[str, ExternalWeight],
    ) -> None:
        self.spec, self.layer, self.tables, self.weights = spec, layer, tables, weights
        self.graph = graph = GraphBuilder(dtype)
        self.total: Dim = TOTAL if spec.causal else SEQUENCE
        self.stages: dict[str, ir.Value] = {}
        self.hidden_states = graph.input("hidden_states", graph.dtype, (BATCH, SEQUENCE, spec.input_width))
        self.position_ids = graph.input("position_ids", INT64, (BATCH, SEQUENCE))
        self.attention_mask = graph.input("attention_mask", INT64, (BATCH, self.total))
        self.key_position_ids: ir.Value | None = None
        if spec.needs_key_positions:
            self.key_position_ids = graph.input("key_position_ids", INT64, (BATCH, self.total))
        self.past: list[ir.Value] = []
        if spec.causal:
            for part, width in (("key", spec.head_dim), ("value", spec.v_head_dim)):
                name = f"past_key_values.{layer}.{part}"
                self.past.append(graph.input(name, graph.dtype, (BATCH, spec.num_kv_heads, PAST, width)))

    def outputs(self) -> list[ir.Value]:
        """attention_output, then the presents where there is a cache."""
        hidden = self._normed(self._embedded(self.hidden_states))
        q = self._heads(hidden, "q", self.spec.num_heads, self.spec.head_dim)
        k = self._heads(hidden, "k", self.spec.num_kv_heads, self.spec.head_dim)
        v = self._heads(hidden, "v", self.spec.num_kv_heads, self.spec.v_head_dim)
        q, k = self._rotated(q, k)
        presents: list[ir.Value] = []
        if self.spec.causal:
            k, v = presents = [self._present(0, "key", k), self._present(1, "value", v)]
        probs = self._probs(self._scores(q, k))
        output = self._output(self._context(probs, v))
        return [self.graph.name(output, "attention_output"), *presents]

    def _stage(self, name: str, value: ir.Value) -> ir.Value:
        self.stages[name] = self.graph.name(value, name)
        return value

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
            return self._stage("embedded", graph.cast(total, graph.dtype))

    def _normed(self, hidden: ir.Value) -> ir.Value:
        spec, graph = self.spec, self.graph
        if spec.input_norm is None and spec.embedding_projection is None:
            return hidden
        with graph.stage("normed"):
            if spec.input_norm is not None:
                hidden = norm.normalize(graph, hidden, spec.input_norm, "input_norm", self.weights)
            if spec.embedding_projection is not None:
                hidden = self._project(hidden, "embedding_projection", bias=spec.embedding_projection.bias)
            return self._stage("normed", hidden)

    def _project(self, value: ir.Value, name: str, *, bias: bool) -> ir.Value:
        graph = self.graph
        value = graph.matmul(value, graph.external(f"{name}.weight", self.weights))
        return graph.binary("Add", value, graph.external(f"{name}.bias", self.weights)) if bias else value

    def _heads(self, hidden: ir.Value, part: str, heads: int, width: int) -> ir.Value:
        """(batch, heads, sequence, width): projected, clipped, normed where the norm stands before the rotation."""
        spec, graph = self.spec, self.graph
        with graph.stage(part):
            value = self._project(hidden, f"{part}_proj", bias=getattr(spec.biases, part))
            if spec.clip_qkv is not None:
                low, high = (graph.scalar(sign * spec.clip_qkv, graph.dtype) for sign in (-1, 1))
                value = graph.op("Clip", value, low, high, shape=shape_of(value))
            value = graph.reshape(value, [0, 0, heads, width], (BATCH, SEQUENCE, heads, width))
            value = self._head_norm(graph.transpose(value, 0, 2, 1, 3), part, "before")
            return self._stage(part, value)

    def _head_norm(self, value: ir.Value, part: str, when: str) -> ir.Value:
        kind = {"q": self.spec.q_norm, "k": self.spec.k_norm}.get(part)
        if kind is None or kind.when != when:
            return value
        return norm.normalize(self.graph, value, kind, f"{part}_norm", self.weights, axes=norm.head_axes(kind))

    def _rotated(self, q: ir.Value, k: ir.Value) -> tuple[ir.Value, ir.Value]:
        spec, graph = self.spec, self.graph
        rotation: rotary.Rotation | None = None
        if spec.rotary is not None:
            with graph.stage("rotation"):
                rotation = rotary.rotation(graph, spec.rotary, self.position_ids, self.tables)
        turned: list[ir.Value] = []
        for part, value in (("q", q), ("k", k)):
            with graph.stage(f"{part}_rotated"):
                result = value if rotation is None else rotary.turn(graph, value, rotation)
                result = self._head_norm(result, part, "after")
                turned.append(result if result is value else self._stage(f"{part}_rotated", result))
        return turned[0], turned[1]

    def _present(self, index: int, part: str, value: ir.Value) -> ir.Value:
        name = f"present.{self.layer}.{part}"
        with self.graph.stage("present"):
            return self.graph.name(self.graph.concat([self.past[index], value], axis=2, size=TOTAL), name)

    @property
    def _group(self) -> int:
        return self.spec.num_heads // self.spec.num_kv_heads

    def _fold(self, value: ir.Value) -> ir.Value:
        """(batch, heads, sequence, n) as (batch, kv_heads, group * sequence, n)."""
        if self._group == 1:
            return value
        heads = self.spec.num_kv_heads
        shape = (BATCH, heads, f"{self._group}*{SEQUENCE}", shape_of(value)[3])
        return self.graph.reshape(value, [0, heads, -1, 0], shape)

    def _unfold(self, value: ir.Value) -> ir.Value:
        """(batch, kv_heads, group * sequence, n) as (batch, heads, sequence, n)."""
        if self._group == 1:
            return value
        heads = self.spec.num_heads
        return self.graph.reshape(value, [0, heads, -1, 0], (BATCH, heads, SEQUENCE, shape_of(value)[3]))

    def _scores(self, q: ir.Value, k: ir.Value) -> ir.Value:
        """(batch, heads, sequence, total) in float32: a bias of a long distance does not fit into float16.

        q is scaled before the product, so that the product stays in range.
        """
        spec, graph = self.spec, self.graph
        with graph.stage("scores"):
            q = self._fold(q)
            if spec.scale != 1:
                q = graph.binary("Mul", q, graph.scalar(spec.scale, graph.dtype))
            scores = graph.cast(self._unfold(graph.matmul(q, graph.transpose(k, 0, 1, 3, 2))), FLOAT)
            for encoding in spec.bias:
                assert self.key_position_ids is not None
                ids = (self.position_ids, self.key_position_ids)
                scores = graph.binary("Add", scores, bias.additive(graph, encoding, spec.num_heads, *ids, self.tables))
            if spec.softcap is not None:
                cap = graph.scalar(spec.softcap, FLOAT)
                scores = graph.binary("Mul", graph.unary("Tanh", graph.binary("Div", scores, cap)), cap)
            return self._stage("scores", scores)

    def _probs(self, scores: ir.Value) -> ir.Value:
        """Softmax in float32 over the keys that the mask leaves; a row without any is 0, not uniform."""
        graph = self.graph
        with graph.stage("mask"):
            visible = mask.visible(graph, self.spec, self.hidden_states, self.attention_mask)
        with graph.stage("probs"):
            scores = graph.where(visible, scores, graph.scalar(LOWEST, FLOAT))
            if self.spec.sinks:
                scores = self._with_sinks(scores)
            probs = graph.op("Softmax", scores, shape=shape_of(scores), axis=3)
            if self.spec.sinks:
                shape = (*shape_of(probs)[:3], self.total)
                probs = graph.op("Slice", probs, graph.ints(0), graph.ints(-1), graph.ints(3), shape=shape)
            probs = graph.where(visible, probs, graph.scalar(0.0, FLOAT))
            return self._stage("probs", graph.cast(probs, graph.dtype))

    def _with_sinks(self, scores: ir.Value) -> ir.Value:
        """The scores and, behind the last key, each head's sink as one more logit."""
        graph, heads = self.graph, self.spec.num_heads
        sinks = graph.cast(graph.external("sinks", self.weights), FLOAT)
        sinks = graph.reshape(sinks, [1, heads, 1, 1], (1, heads, 1, 1))
        rows = graph.op("Shape", scores, shape=(3,), dtype=INT64, start=0, end=3)
        column = graph.concat([rows, graph.ints(1)], axis=0, size=4)
        sinks = graph.op("Expand", sinks, column, shape=(BATCH, heads, SEQUENCE, 1))
        return graph.concat([scores, sinks], axis=3, size=f"{self.total}+1")

    def _context(self, probs: ir.Value, v: ir.Value) -> ir.Value:
        with self.graph.stage("context"):
            return self._stage("context", self._unfold(self.graph.matmul(self._fold(probs), v)))

    def _output(self, context: ir.Value) -> ir.Value:
        spec, graph = self.spec, self.graph
        width = spec.num_heads * spec.v_head_dim
        with graph.stage("output"):
            rows = graph.transpose(context, 0, 2, 1, 3)
            rows = graph.reshape(rows, [0, 0, width], (BATCH, SEQUENCE, width))
            return self._project(rows, "o_proj", bias=spec.biases.o)

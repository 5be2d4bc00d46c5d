"""Layer: exporters/onnx. The ``ort`` form: ONNX Runtime's GroupQueryAttention over a cache of fixed size.

The operator knows causality, windows, groups and sinks, and reads as many keys as there are; lengths follow from the
attention mask's size. Rotation stays outside, behind the look-up: the operator's own takes one row of positions for
a first prompt, and raw positions as rows of one table.

A mask with holes goes in as a bias. It takes time in a long prompt, so a branch leaves it out where nothing is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from portpe.exporters.onnx import mask
from portpe.exporters.onnx.block import BATCH, CAPACITY, SEQUENCE
from portpe.exporters.onnx.fused import FusedBlock, masked
from portpe.exporters.onnx.graph import BOOL, INT32, INT64, MICROSOFT, Shape, shape_of


class OrtBlock(FusedBlock):
    """Queries, keys and values in tokens; past and present are one buffer by heads."""

    def past_shape(self, width: int) -> Shape:
        return (BATCH, self.spec.num_kv_heads, CAPACITY, width)

    def attend(self, hidden: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        graph, qkv = self.graph, self.rotated(hidden)
        with graph.stage("lengths"):
            self._lengths()
        if self.spec.bias or self.spec.window_radius is not None:
            with graph.stage("context"):
                found = self._masked_attention(qkv)
        else:
            with graph.stage("mask"):
                least = graph.op("ReduceMin", self.attention_mask, shape=(), keepdims=0)
                whole = graph.binary("Equal", least, graph.scalar(1, INT64), dtype=BOOL)
            with graph.stage("context"):
                found = graph.choose(whole, lambda: self._attention(qkv, None), lambda: self._masked_attention(qkv))
        context, *presents = found
        with graph.stage("context"):
            self.show("context", context, self.spec.num_heads, self.spec.v_head_dim)
        for part, value in zip(("key", "value"), presents, strict=False):
            graph.name(value, self.present_name(part))
        return context, list(presents)

    def _lengths(self) -> None:
        """What the operator asks for: keys in all, once and a batch row, the latter less one, and this call's rows."""
        graph = self.graph
        batch = graph.sizes(self.attention_mask, 0)
        total = graph.cast(graph.sizes(self.attention_mask, 1), INT32)
        self.total_length = graph.op("Squeeze", total, graph.ints(0), shape=())
        last = graph.binary("Sub", total, graph.scalar(1, INT32))
        self.last_keys = graph.op("Expand", last, batch, shape=(BATCH,))
        self.rows: ir.Value | None = None
        if self.spec.causal:  # it says that several rows of a batch continue a cache
            rows = graph.cast(graph.sizes(self.hidden_states, 1), INT32)
            self.rows = graph.op("Expand", rows, batch, shape=(BATCH,))

    def _attention(self, qkv: Sequence[ir.Value], bias: ir.Value | None) -> tuple[ir.Value, ...]:
        """Context in tokens, then the buffers."""
        spec, graph = self.spec, self.graph
        shapes: list[Shape] = [(BATCH, SEQUENCE, spec.num_heads * spec.head_dim)]
        shapes += [shape_of(buffer) for buffer in self.past]
        sinks = graph.external("sinks", self.weights) if spec.sinks else None
        attributes: dict[str, Any] = {"causal": int(spec.causal)}
        if spec.window is not None:
            attributes["local_window_size"] = spec.window
        if spec.softcap is not None:
            attributes["softcap"] = spec.softcap
        lengths = [self.last_keys, self.total_length]
        past: list[ir.Value | None] = list(self.past) or [None, None]
        return graph.ops(
            "GroupQueryAttention",
            [*qkv, *past, *lengths, None, None, None, bias, sinks, None, None, None, None, self.rows],
            shapes,
            domain=MICROSOFT,
            num_heads=spec.num_heads,
            kv_num_heads=spec.num_kv_heads,
            scale=spec.scale,
            **attributes,
        )

    def _masked_attention(self, qkv: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """With a bias that hides what the query may not see; a row without a key is 0, whatever the operator gives."""
        graph = self.graph
        visible = mask.in_every_row(graph, self.visible(), self.hidden_states)
        context, *presents = self._attention(
            qkv, masked(graph, visible, self.addend(qkv[0], lambda: self.new_keys(qkv[1])))
        )
        sees = graph.op("ReduceMax", visible, graph.ints(1, 3), shape=(BATCH, SEQUENCE), keepdims=0)
        sees = graph.unsqueeze(sees, 2)
        return graph.where(sees, context, graph.scalar(0.0, graph.dtype)), *presents

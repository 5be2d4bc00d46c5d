"""Layer: exporters/onnx. The ``ort`` form: ONNX Runtime's GroupQueryAttention over a cache of fixed size.

The operator knows causality, windows, groups and sinks, and reads as many keys as there are; lengths follow from the
attention mask's size. Rotation stays outside, behind the look-up: the operator's own takes one row of positions for
a first prompt, and raw positions as rows of one table.

Three things are there for speed alone, each measured on ONNX Runtime 1.32 (docs/forms.md):

* A mask with holes goes in as a bias. It takes time in a long prompt: a branch leaves it out where nothing is masked.
* Large projections in float32 are convolutions of a point, those of q, k and v one of them.
* One row gets queries that are scaled already, and narrow heads get sinks that weigh nothing: with sinks the operator
  takes its plain path, which for one row is faster than its tiled one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from portpe.exporters.onnx import mask, projection
from portpe.exporters.onnx.block import BATCH, CAPACITY, SEQUENCE
from portpe.exporters.onnx.fused import FusedBlock, masked
from portpe.exporters.onnx.graph import BOOL, FLOAT, INT32, INT64, MICROSOFT, Shape, shape_of

QKV = ("q_proj", "k_proj", "v_proj")
WIDE_HEAD = 128  # channels: from here on the tiled path is the faster one for one row too

LOWEST = np.finfo(np.float32).min  # no exponential of a difference to it is more than 0

Attended = tuple[ir.Value, ...]  # context in tokens, then the buffers


class OrtBlock(FusedBlock):
    """Queries, keys and values in tokens; past and present are one buffer by heads."""

    _together: Mapping[str, ir.Value] = MappingProxyType({})  # products that one convolution gave

    def past_shape(self, width: int) -> Shape:
        return (BATCH, self.spec.num_kv_heads, CAPACITY, width)

    def attend(self, hidden: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        graph, qkv = self.graph, self.rotated(hidden)
        with graph.stage("lengths"):
            self._lengths()
        if self.spec.needs_key_positions or self.spec.window_radius is not None:
            with graph.stage("context"):
                found = self._masked_attention(qkv)
        else:
            found = self._by_mask(qkv)
        context, *presents = found
        with graph.stage("context"):
            self.show("context", context, self.spec.num_heads, self.spec.v_head_dim)
        for part, value in zip(("key", "value"), presents, strict=False):
            graph.name(value, self.present_name(part))
        return context, list(presents)

    def rotated(self, hidden: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        names = [f"{name}.weight" for name in QKV]
        if projection.fits_convolution(names, self.weights) and not self.spec.values_see_input:
            with self.graph.stage("qkv"):
                parts = projection.convolution(self.graph, hidden, names, self.weights)
            self._together = dict(zip(QKV, parts, strict=True))
        return super().rotated(hidden)

    def product(self, value: ir.Value, name: str) -> ir.Value:
        if name in self._together:
            return self._together[name]
        names = [f"{name}.weight"]
        if projection.fits_convolution(names, self.weights):
            return projection.convolution(self.graph, value, names, self.weights)[0]
        return super().product(value, name)

    def _lengths(self) -> None:
        """What the operator asks for: keys in all, once and a batch row, the latter less one."""
        graph = self.graph
        batch = graph.sizes(self.attention_mask, 0)
        total = graph.cast(graph.sizes(self.attention_mask, 1), INT32)
        self.total_length = graph.op("Squeeze", total, graph.ints(0), shape=())
        last = graph.binary("Sub", total, graph.scalar(1, INT32))
        self.last_keys = graph.op("Expand", last, batch, shape=(BATCH,))
        self.batch = batch

    def _rows(self) -> ir.Value:
        """This call's rows, once a batch row: they say that several rows of a batch continue a cache."""
        graph = self.graph
        rows = graph.cast(graph.sizes(self.hidden_states, 1), INT32)
        return graph.op("Expand", rows, self.batch, shape=(BATCH,))

    def _by_mask(self, qkv: Sequence[ir.Value]) -> Attended:
        """The fastest way to the same context: for one row, for several, and where the mask has holes."""
        graph, spec = self.graph, self.spec
        with graph.stage("mask"):
            least = graph.op("ReduceMin", self.attention_mask, shape=(), keepdims=0)
            whole = graph.binary("Equal", least, graph.scalar(1, INT64), dtype=BOOL)

        def any_rows() -> Attended:
            return graph.choose(whole, lambda: self._attention(qkv), lambda: self._masked_attention(qkv))

        if not spec.causal or graph.dtype != FLOAT or not (spec.sinks or spec.head_dim < WIDE_HEAD):
            with graph.stage("context"):
                return any_rows()
        with graph.stage("mask"):
            one = graph.binary("Equal", graph.size(self.hidden_states, 1), graph.scalar(1, INT64), dtype=BOOL)
            whole_row = graph.binary("And", whole, one)
        with graph.stage("context"):
            return graph.choose(whole_row, lambda: self._row_attention(qkv), any_rows)

    def _row_attention(self, qkv: Sequence[ir.Value]) -> Attended:
        """Of one row that sees all keys."""
        spec, graph = self.spec, self.graph
        scaled = graph.binary("Mul", qkv[0], graph.scalar(spec.scale, FLOAT))
        sinks: ir.Value | None = None
        if not spec.sinks:
            sinks = graph.inline("weightless_sinks", np.full(spec.num_heads, LOWEST, np.float32), FLOAT)
        return self._attention([scaled, *qkv[1:]], sinks=sinks, one_row=True)

    def _masked_attention(self, qkv: Sequence[ir.Value]) -> Attended:
        """With a bias that hides what the query may not see; a row without a key is 0, whatever the operator gives."""
        graph = self.graph
        visible = mask.in_every_row(graph, self.visible(), self.hidden_states)
        addend = self.addend(qkv[0], lambda: self.new_keys(qkv[1]))
        context, *presents = self._attention(qkv, bias=masked(graph, visible, addend))
        sees = graph.op("ReduceMax", visible, graph.ints(1, 3), shape=(BATCH, SEQUENCE), keepdims=0)
        sees = graph.unsqueeze(sees, 2)
        return graph.where(sees, context, graph.scalar(0.0, graph.dtype)), *presents

    def _attention(
        self,
        qkv: Sequence[ir.Value],
        *,
        bias: ir.Value | None = None,
        sinks: ir.Value | None = None,
        one_row: bool = False,
    ) -> Attended:
        """The operator. ``sinks`` are the spec's own where they are not given; queries of ``one_row`` are scaled."""
        spec, graph = self.spec, self.graph
        shapes: list[Shape] = [(BATCH, SEQUENCE, spec.num_heads * spec.head_dim)]
        shapes += [shape_of(buffer) for buffer in self.past]
        if spec.sinks:
            sinks = graph.external("sinks", self.weights)
        attributes: dict[str, Any] = {"causal": int(spec.causal)}
        if spec.window is not None:
            attributes["local_window_size"] = spec.window
        if spec.softcap is not None:
            attributes["softcap"] = spec.softcap
        lengths = [self.last_keys, self.total_length]
        past: list[ir.Value | None] = list(self.past) or [None, None]
        rows = self._rows() if spec.causal and not one_row else None
        return graph.ops(
            "GroupQueryAttention",
            [*qkv, *past, *lengths, None, None, None, bias, sinks, None, None, None, None, rows],
            shapes,
            domain=MICROSOFT,
            num_heads=spec.num_heads,
            kv_num_heads=spec.num_kv_heads,
            scale=1.0 if one_row else spec.scale,
            **attributes,
        )

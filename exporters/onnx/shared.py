"""Layer: exporters/onnx. The ``shared`` form: a cache of fixed size that TensorScatter and Attention of opset 24 use.

New keys and values go into the buffer at ``write_indices``, in place where a runtime binds past and present to one
memory; ``nonpad_kv_seqlen`` keys of each batch row count. The operator multiplies with the whole buffer, so its time
follows the buffer's size, not the number of keys in it. It reads the keys once a query head; where a call has one row,
a branch hands it the heads of a group as rows instead.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from portpe.exporters.onnx.block import BATCH, CAPACITY, SEQUENCE
from portpe.exporters.onnx.fused import FusedBlock
from portpe.exporters.onnx.graph import BOOL, INT64, Shape, shape_of


class SharedBlock(FusedBlock):
    """Heads apart before the operator: it wants queries laid out like the buffer."""

    length_inputs = ("write_indices", "nonpad_kv_seqlen")

    def past_shape(self, width: int) -> Shape:
        return (BATCH, self.spec.num_kv_heads, CAPACITY, width)

    def attend(self, hidden: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        spec, graph = self.spec, self.graph
        q, k, v = self.rotated(hidden)
        with graph.stage("present"):
            presents = [self._written(0, "key", k), self._written(1, "value", v)]
        total = graph.sizes(self.attention_mask, 1) if spec.deferred_rotation and self.with_stages else None
        self._fill_up()
        cache = [self.turned_keys(presents[0], total), presents[1]] if spec.deferred_rotation else presents
        mask = self.visible_or_bias(q, lambda: cache[0])
        with graph.stage("context"):
            if spec.num_heads == spec.num_kv_heads:
                context = self._by_head(q, cache, mask)
            else:
                rows = graph.size(self.hidden_states, 1)
                one = graph.binary("Equal", rows, graph.scalar(1, INT64), dtype=BOOL)
                [context] = graph.choose(
                    one, lambda: [self._by_group(q, cache, mask)], lambda: [self._by_head(q, cache, mask)]
                )
            self.show("context", context, spec.num_heads, spec.v_head_dim)
        return context, presents

    def _by_head(self, q: ir.Value, cache: list[ir.Value], mask: ir.Value) -> ir.Value:
        """The context in tokens; a query head is a head of the operator."""
        spec, graph = self.spec, self.graph
        q = graph.transpose(self.by_head(q, spec.num_heads, spec.head_dim), 0, 2, 1, 3)
        context = self._attention(q, cache, mask)
        return self._tokens(graph.transpose(context, 0, 2, 1, 3))

    def _by_group(self, q: ir.Value, cache: list[ir.Value], mask: ir.Value) -> ir.Value:
        """The context of one row: query heads that share keys are rows of one head, and keys are read once for all."""
        spec, graph = self.spec, self.graph
        heads = spec.num_kv_heads
        group = spec.num_heads // heads
        q = graph.reshape(q, [0, heads, group, spec.head_dim], (BATCH, heads, group, spec.head_dim))
        if spec.bias:
            mask = graph.reshape(mask, [0, heads, group, -1], (BATCH, heads, group, CAPACITY))
        else:
            mask = graph.op("Expand", mask, graph.ints(1, 1, group, 1), shape=(BATCH, 1, group, CAPACITY))
        return self._tokens(self._attention(q, cache, mask))

    def _attention(self, q: ir.Value, cache: list[ir.Value], mask: ir.Value) -> ir.Value:
        spec = self.spec
        attributes: dict[str, Any] = {"softcap": spec.softcap} if spec.softcap is not None else {}
        given = [q, *cache, mask, None, None, self.lengths["nonpad_kv_seqlen"]]
        shape = (*shape_of(q)[:3], spec.v_head_dim)
        return self.graph.ops("Attention", given, [shape], scale=spec.scale, **attributes)[0]

    def _tokens(self, context: ir.Value) -> ir.Value:
        """(batch, sequence, heads * v_head_dim), whichever way the heads stand before."""
        width = self.spec.num_heads * self.spec.v_head_dim
        return self.graph.reshape(context, [0, -1, width], (BATCH, SEQUENCE, width))

    def _written(self, index: int, part: str, value: ir.Value) -> ir.Value:
        """The buffer with this call's rows in it."""
        graph, buffer = self.graph, self.past[index]
        heads, width = self.head_shape(part[0])
        rows = graph.transpose(self.by_head(value, heads, width), 0, 2, 1, 3)
        written = graph.op(
            "TensorScatter", buffer, rows, self.lengths["write_indices"], shape=shape_of(buffer), axis=-2
        )
        return graph.name(written, self.present_name(part))

    def _fill_up(self) -> None:
        """Mask and key positions as long as the buffer: slots behind the last key are no keys."""
        graph = self.graph
        with graph.stage("mask"):
            spare = graph.binary("Sub", graph.sizes(self.past[0], 2), graph.sizes(self.attention_mask, 1))
            self.attention_mask = self._behind(self.attention_mask, spare)
            if self.key_position_ids is not None:
                self.key_position_ids = self._behind(self.key_position_ids, spare)

    def _behind(self, slots: ir.Value, spare: ir.Value) -> ir.Value:
        """(..., batch, total) with ``spare`` zeros behind."""
        *front, _ = shape_of(slots)
        before = self.graph.ints(*[0] * (2 * len(front) + 1))
        pads = self.graph.concat([before, spare], axis=0, size=2 * len(front) + 2)
        return self.graph.op("Pad", slots, pads, shape=(*front, CAPACITY))

    def query_slots(self) -> ir.Value:
        """(batch, sequence): each row of the batch is written at a place of its own."""
        graph = self.graph
        rows = graph.op(
            "Range",
            graph.scalar(0, INT64),
            graph.size(self.hidden_states, 1),
            graph.scalar(1, INT64),
            shape=(SEQUENCE,),
        )
        return graph.binary("Add", graph.unsqueeze(self.lengths["write_indices"], 1), rows)

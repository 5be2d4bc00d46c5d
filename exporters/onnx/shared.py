"""Layer: exporters/onnx. The ``shared`` form: a cache of fixed size that TensorScatter and Attention of opset 24 use.

New keys and values go into the buffer at ``write_indices``, in place where a runtime binds past and present to one
memory; ``nonpad_kv_seqlen`` keys of each batch row count. The operator multiplies with the whole buffer, so its time
follows the buffer's size, not the number of keys in it.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from portpe.exporters.onnx.block import BATCH, CAPACITY, SEQUENCE
from portpe.exporters.onnx.fused import FusedBlock
from portpe.exporters.onnx.graph import INT64, Shape, shape_of


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
        self._fill_up()
        mask = self.visible_or_bias()
        attributes: dict[str, Any] = {"softcap": spec.softcap} if spec.softcap is not None else {}
        with graph.stage("context"):
            q = graph.transpose(self.by_head(q, spec.num_heads, spec.head_dim), 0, 2, 1, 3)
            given = [q, *presents, mask, None, None, self.lengths["nonpad_kv_seqlen"]]
            shape = (BATCH, spec.num_heads, SEQUENCE, spec.v_head_dim)
            [context] = graph.ops("Attention", given, [shape], scale=spec.scale, **attributes)
            width = spec.num_heads * spec.v_head_dim
            tokens = graph.reshape(graph.transpose(context, 0, 2, 1, 3), [0, 0, width], (BATCH, SEQUENCE, width))
            self.show("context", tokens, spec.num_heads, spec.v_head_dim)
        return tokens, presents

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
            pads = graph.concat([graph.ints(0, 0, 0), spare], axis=0, size=4)
            self.attention_mask = graph.op("Pad", self.attention_mask, pads, shape=(BATCH, CAPACITY))
            if self.key_position_ids is not None:
                self.key_position_ids = graph.op("Pad", self.key_position_ids, pads, shape=(BATCH, CAPACITY))

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

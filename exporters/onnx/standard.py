"""Layer: exporters/onnx. The ``standard`` form: RotaryEmbedding and Attention of opset 23; past and present grow.

The operator's ``is_causal`` stays off: the mask says everything, also windows, which the operator learns in opset 25
(there a window of w keys is left_window_size w - 1), and runtimes are at odds over a mask with causality besides.
"""

from __future__ import annotations

import onnx_ir as ir

from portpe.exporters.onnx.block import BATCH, SEQUENCE, TOTAL
from portpe.exporters.onnx.fused import FusedBlock


class StandardBlock(FusedBlock):
    """Attention takes queries, new keys and values in tokens, and the past by heads."""

    def attend(self, hidden: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        spec, graph = self.spec, self.graph
        q, k, v = self.rotated(hidden)
        attention_mask = self.visible_or_bias()
        width = spec.num_heads * spec.v_head_dim
        shapes = [(BATCH, SEQUENCE, width)]
        if spec.causal:
            shapes += [(BATCH, spec.num_kv_heads, TOTAL, size) for size in (spec.head_dim, spec.v_head_dim)]
        attributes = {"softcap": spec.softcap} if spec.softcap is not None else {}
        with graph.stage("context"):
            context, *presents = graph.ops(
                "Attention",
                [q, k, v, attention_mask, *self.past],
                shapes,
                q_num_heads=spec.num_heads,
                kv_num_heads=spec.num_kv_heads,
                scale=spec.scale,
                **attributes,
            )
            self.show("context", context, spec.num_heads, spec.v_head_dim)
        for part, value in zip(("key", "value"), presents, strict=False):
            graph.name(value, self.present_name(part))
        return context, presents

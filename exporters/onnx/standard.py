"""Layer: exporters/onnx. The ``standard`` form: RotaryEmbedding and Attention of opset 23; past and present grow.

Windows go into the mask: the operator learns them in opset 25 (there a window of w keys is left_window_size w - 1), and
ONNX Runtime's kernel takes as long with them as with a mask.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from portpe.exporters.onnx import mask
from portpe.exporters.onnx.block import BATCH, SEQUENCE, TOTAL
from portpe.exporters.onnx.fused import FusedBlock
from portpe.exporters.onnx.graph import Shape


class StandardBlock(FusedBlock):
    """Attention takes queries, new keys and values in tokens, and the past by heads."""

    def attend(self, hidden: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        spec, graph = self.spec, self.graph
        q, k, v = self.rotated(hidden)
        if spec.deferred_rotation:
            return self._attend_to_turned(q, k, v)
        causal = spec.causal and spec.window is None and spec.chunk is None and not spec.bias
        attention_mask = self._kept() if causal else self.visible_or_bias(q, lambda: self.new_keys(k))
        width = spec.num_heads * spec.v_head_dim
        shapes: list[Shape] = [(BATCH, SEQUENCE, width)]
        if spec.causal:
            shapes += [(BATCH, spec.num_kv_heads, TOTAL, size) for size in (spec.head_dim, spec.v_head_dim)]
        attributes: dict[str, Any] = {"softcap": spec.softcap} if spec.softcap is not None else {}
        with graph.stage("context"):
            context, *presents = graph.ops(
                "Attention",
                [q, k, v, attention_mask, *self.past],
                shapes,
                q_num_heads=spec.num_heads,
                kv_num_heads=spec.num_kv_heads,
                scale=spec.scale,
                is_causal=int(causal),
                **attributes,
            )
            self.show("context", context, spec.num_heads, spec.v_head_dim)
        for part, value in zip(("key", "value"), presents, strict=False):
            graph.name(value, self.present_name(part))
        return context, presents

    def _attend_to_turned(self, q: ir.Value, k: ir.Value, v: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        """With deferred rotation: keys are joined and turned before the operator, which then has no past of its own."""
        spec, graph = self.spec, self.graph
        keys, values = presents = [self._joined(0, "key", k), self._joined(1, "value", v)]
        keys = self.turned_keys(keys)
        mask = self.visible_or_bias(q, lambda: keys)
        attributes: dict[str, Any] = {"softcap": spec.softcap} if spec.softcap is not None else {}
        with graph.stage("context"):
            queries = graph.transpose(self.by_head(q, spec.num_heads, spec.head_dim), 0, 2, 1, 3)
            shape = (BATCH, spec.num_heads, SEQUENCE, spec.v_head_dim)
            [context] = graph.ops("Attention", [queries, keys, values, mask], [shape], scale=spec.scale, **attributes)
            width = spec.num_heads * spec.v_head_dim
            context = graph.reshape(graph.transpose(context, 0, 2, 1, 3), [0, 0, width], (BATCH, SEQUENCE, width))
            self.show("context", context, spec.num_heads, spec.v_head_dim)
        return context, presents if spec.causal else []

    def _joined(self, index: int, part: str, value: ir.Value) -> ir.Value:
        """Cached and new keys or values by head; the present where there is a cache."""
        graph, (heads, width) = self.graph, self.head_shape(part[0])
        with graph.stage("present"):
            value = graph.transpose(self.by_head(value, heads, width), 0, 2, 1, 3)
            if not self.past:
                return value
            joined = graph.concat([self.past[index], value], axis=2, size=TOTAL)
            return graph.name(joined, self.present_name(part))

    def _kept(self) -> ir.Value:
        """Bool (batch, 1, sequence, total): the operator adds causality by slot, the last query at the last key."""
        graph = self.graph
        with graph.stage("mask"):
            kept = graph.unsqueeze(mask.kept_keys(graph, self.attention_mask), 1, 2)
            return mask.in_every_row(graph, kept, self.hidden_states)

"""Layer: exporters/onnx. What the forms with a fused attention operator share: queries, keys and values in tokens.

Heads lie side by side, (batch, sequence, heads * width), as the projections give them: RotaryEmbedding and the fused
operators take that, so there is no Transpose before or behind them. The stages graph lays its stages out by heads.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from portpe.exporters.onnx import bias, mask, norm, rotary
from portpe.exporters.onnx.block import TOTAL, Block
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder, shape_of

LARGEST_HALF = 65504.0


class FusedBlock(Block):
    """A block whose scores, softmax and context are one operator."""

    def rotated(self, hidden: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Queries and keys after rotation and norms, and values; all in tokens. Where rotation is deferred, keys are
        as they are cached: ``turned_keys`` goes on with all of them.
        """
        spec, graph = self.spec, self.graph
        q, k, v = (self._part(hidden, part) for part in ("q", "k", "v"))
        of_queries: tuple[ir.Value, ir.Value] | None = None
        of_keys: tuple[ir.Value, ir.Value] | None = None
        if spec.rotary is not None:
            with graph.stage("rotation"):
                of_queries = of_keys = rotary.rows(
                    graph, spec.rotary, self.position_ids, self.tables, self.row_lengths()
                )
                if spec.rotary.own_key_tables:
                    of_keys = rotary.rows(graph, spec.rotary, self.position_ids, self.tables, keys=True)
        return self._turned(q, "q", of_queries), k if spec.deferred_rotation else self._turned(k, "k", of_keys), v

    def turned_keys(self, keys: ir.Value, total: ir.Value | None = None) -> ir.Value:
        """All keys (batch, kv_heads, total, head_dim) after rotation and norm, the cached ones too. ``total``: how many
        slots the stage shows, where there are more.
        """
        spec, graph = self.spec, self.graph
        assert spec.rotary is not None
        assert self.key_position_ids is not None
        with graph.stage("rotation"):
            cos_sin = rotary.rows(graph, spec.rotary, self.key_position_ids, self.tables, self.row_lengths())
        with graph.stage("k_rotated"):
            keys = rotary.turn_keys(graph, keys, spec.rotary, cos_sin)
            if spec.k_norm is not None and spec.k_norm.when == "after":
                axes = norm.head_axes(spec.k_norm)
                keys = norm.normalize(graph, keys, spec.k_norm, "k_norm", self.weights, axes=axes)
            if self.with_stages:
                shown = keys
                if total is not None:
                    shape = (*shape_of(keys)[:2], TOTAL, spec.head_dim)
                    shown = graph.op("Slice", keys, graph.ints(0), total, graph.ints(2), shape=shape)
                self.stage("k_rotated", shown)
        return keys

    def _part(self, hidden: ir.Value, part: str) -> ir.Value:
        with self.graph.stage(part):
            value = self._head_norm(self.projected(hidden, part), part, "before")
            return self.show(part, value, *self.head_shape(part))

    def _turned(self, value: ir.Value, part: str, cos_sin: tuple[ir.Value, ir.Value] | None) -> ir.Value:
        heads, width = self.head_shape(part)
        with self.graph.stage(f"{part}_rotated"):
            result = value
            if cos_sin is not None:
                assert self.spec.rotary is not None
                result = rotary.embed(self.graph, value, self.spec.rotary, cos_sin, heads=heads, head_dim=width)
            result = self._head_norm(result, part, "after")
            if part == "q" and self.spec.query_scale is not None:
                result = self.graph.binary("Mul", result, self.graph.unsqueeze(self.query_multiplier(), 2))
            return result if result is value else self.show(f"{part}_rotated", result, heads, width)

    def _head_norm(self, value: ir.Value, part: str, when: str) -> ir.Value:
        kind = {"q": self.spec.q_norm, "k": self.spec.k_norm, "v": self.spec.v_norm}[part]
        if kind is None or kind.when != when:
            return value
        heads, width = self.head_shape(part)
        split = self.by_head(value, heads, width)
        split = norm.normalize_tokens(self.graph, split, kind, f"{part}_norm", self.weights)
        return self.graph.reshape(split, [0, 0, heads * width], shape_of(value))

    def visible_or_bias(self, q: ir.Value, keys: Callable[[], ir.Value]) -> ir.Value:
        """What Attention takes as its mask, (batch, 1 | heads, sequence, total): bool, or with a bias-site encoding
        the bias, minus infinity where the query may not see the key. ``q`` and ``keys`` as ``addend`` takes them.
        """
        with self.graph.stage("mask"):
            visible, addend = self.visible(), self.addend(q, keys)
            if addend is None:
                return mask.in_every_row(self.graph, visible, self.hidden_states)
            return masked(self.graph, visible, addend)

    def addend(self, q: ir.Value, keys: Callable[[], ir.Value]) -> ir.Value | None:
        """The sum of the bias-site encodings, (batch, heads, sequence, total) in float32; None without any.

        ``q`` in tokens; ``keys`` gives all of them by head, (batch, kv_heads, total, head_dim), and is called where an
        encoding reads them.
        """
        if not self.spec.bias:
            return None
        inputs = self.score_inputs(lambda: self._apart(q, "q"), keys)
        first, *others = (bias.additive(self.graph, encoding, inputs) for encoding in self.spec.bias)
        total: ir.Value = first
        for addend in others:
            total = self.graph.binary("Add", total, addend)
        return total

    def new_keys(self, k: ir.Value) -> ir.Value:
        """This call's keys by head, from tokens: all there are without a cache."""
        assert not self.spec.causal, "a form that joins keys inside its operator refuses what reads them"
        return self._apart(k, "k")

    def _apart(self, value: ir.Value, part: str) -> ir.Value:
        heads, width = self.head_shape(part)
        return self.graph.transpose(self.by_head(value, heads, width), 0, 2, 1, 3)


def masked(graph: GraphBuilder, visible: ir.Value, addend: ir.Value | None) -> ir.Value:
    """``addend`` (float32; None is 0) in the graph's type, minus infinity where not ``visible``."""
    if addend is None:
        return graph.where(visible, graph.scalar(0.0, graph.dtype), graph.scalar(float("-inf"), graph.dtype))
    if graph.dtype == ir.DataType.FLOAT16:  # a far key's bias is no mask
        low, high = graph.scalar(-LARGEST_HALF, FLOAT), graph.scalar(LARGEST_HALF, FLOAT)
        addend = graph.op("Clip", addend, low, high, shape=shape_of(addend))
    return graph.cast(graph.where(visible, addend, graph.scalar(float("-inf"), FLOAT)), graph.dtype)

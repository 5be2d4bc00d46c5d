"""Layer: exporters/onnx. The ``portable`` form: the block in primitives of opset 18.

Groups of query heads that share keys are folded into rows, (batch, kv_heads, group * sequence, head_dim), so that
keys and values are never repeated.
"""

from __future__ import annotations

import onnx_ir as ir

from portpe.exporters.onnx import bias, linear_attention, norm, rotary
from portpe.exporters.onnx.block import BATCH, SEQUENCE, TOTAL, Block
from portpe.exporters.onnx.graph import FLOAT, shape_of

# The most negative float32: a masked score. Minus infinity would make rows without a key NaN on the way.
LOWEST = -3.4028234663852886e38


class PortableBlock(Block):
    """Heads apart, (batch, heads, sequence, width), and every step a primitive."""

    def attend(self, hidden: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        q, k, v = (self._heads(hidden, part) for part in ("q", "k", "v"))
        presents: list[ir.Value] = []
        if not self.spec.caches_projected_keys:
            q, k = self._rotated(q, k)
        if self.spec.causal:
            k, v = presents = [self._present(0, "key", k), self._present(1, "value", v)]
        features: tuple[ir.Value, ir.Value] | None = None
        if self.spec.attention == "linear":
            q, k = features = self._features("q", q), self._features("k", k)
        if self.spec.caches_projected_keys:  # of the cached keys too
            q, k = self._rotated(q, k)
        inputs = self.score_inputs(lambda: q, lambda: k) if self.spec.bias else None
        scores = self._scores(q, k, inputs)
        probs = self._probs(scores) if features is None else self._quotients(scores, features)
        return self._tokens(self._context(probs, v, inputs)), presents

    def _heads(self, hidden: ir.Value, part: str) -> ir.Value:
        """(batch, heads, sequence, width): projected, clipped, normed where the norm stands before the rotation."""
        graph, (heads, width) = self.graph, self.head_shape(part)
        with graph.stage(part):
            value = self.projected(hidden, part)
            value = graph.reshape(value, [0, 0, heads, width], (BATCH, SEQUENCE, heads, width))
            value = self._head_norm(graph.transpose(value, 0, 2, 1, 3), part, "before")
            return self.stage(part, value)

    def _head_norm(self, value: ir.Value, part: str, when: str) -> ir.Value:
        kind = {"q": self.spec.q_norm, "k": self.spec.k_norm, "v": self.spec.v_norm}[part]
        if kind is None or kind.when != when:
            return value
        return norm.normalize(self.graph, value, kind, f"{part}_norm", self.weights, axes=norm.head_axes(kind))

    def _rotated(self, q: ir.Value, k: ir.Value) -> tuple[ir.Value, ir.Value]:
        spec, graph = self.spec, self.graph
        rotations = self._rotations()
        turned: list[ir.Value] = []
        for part, value in (("q", q), ("k", k)):
            with graph.stage(f"{part}_rotated"):
                result = value if rotations is None else rotary.turn(graph, value, rotations[part])
                result = self._head_norm(result, part, "after")
                if part == "q" and spec.query_scale is not None:
                    result = self.graph.binary("Mul", result, graph.unsqueeze(self.query_multiplier(), 1, 3))
                turned.append(result if result is value else self.stage(f"{part}_rotated", result))
        return turned[0], turned[1]

    def _rotations(self) -> dict[str, rotary.Rotation] | None:
        """Of queries and of keys: one for both, but where keys have tables of their own, or where rotation is deferred
        and keys include the cached ones.
        """
        spec, graph = self.spec, self.graph
        if spec.rotary is None:
            return None
        with graph.stage("rotation"):
            lengths, dtype = self.row_lengths(), FLOAT if spec.attention == "linear" else graph.dtype
            queries = rotary.rotation(graph, spec.rotary, self.position_ids, self.tables, lengths, dtype)
            if spec.rotary.own_key_tables:
                keys = rotary.rotation(graph, spec.rotary, self.position_ids, self.tables, keys=True)
                return {"q": queries, "k": keys}
            if not spec.deferred_rotation or self.key_position_ids is None:
                return {"q": queries, "k": queries}
            keys = rotary.rotation(graph, spec.rotary, self.key_position_ids, self.tables, lengths, dtype)
        return {"q": queries, "k": keys}

    def _present(self, index: int, part: str, value: ir.Value) -> ir.Value:
        name = self.present_name(part)
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

    def _scores(self, q: ir.Value, k: ir.Value, inputs: bias.ScoreInputs | None) -> ir.Value:
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
                assert inputs is not None
                scores = graph.binary("Add", scores, bias.additive(graph, encoding, inputs))
            if spec.softcap is not None:
                cap = graph.scalar(spec.softcap, FLOAT)
                scores = graph.binary("Mul", graph.unary("Tanh", graph.binary("Div", scores, cap)), cap)
            return self.stage("scores", scores)

    def _probs(self, scores: ir.Value) -> ir.Value:
        """Softmax in float32 over the keys that the mask leaves; a row without any is 0, not uniform."""
        graph = self.graph
        with graph.stage("mask"):
            visible = self.visible()
        with graph.stage("probs"):
            scores = graph.where(visible, scores, graph.scalar(LOWEST, FLOAT))
            if self.spec.sinks:
                scores = self._with_sinks(scores)
            probs = graph.op("Softmax", scores, shape=shape_of(scores), axis=3)
            if self.spec.sinks:
                shape = (*shape_of(probs)[:3], self.total)
                probs = graph.op("Slice", probs, graph.ints(0), graph.ints(-1), graph.ints(3), shape=shape)
            probs = graph.where(visible, probs, graph.scalar(0.0, FLOAT))
            return self.stage("probs", graph.cast(probs, graph.dtype))

    def _features(self, part: str, value: ir.Value) -> ir.Value:
        with self.graph.stage(f"{part}_features"):
            return self.stage(f"{part}_features", linear_attention.features(self.graph, value))

    def _quotients(self, scores: ir.Value, features: tuple[ir.Value, ir.Value]) -> ir.Value:
        """What values are weighed by without a softmax: scores over the normaliser, which features make unrotated."""
        graph = self.graph
        with graph.stage("mask"):
            visible = self.visible()
        with graph.stage("normaliser"):
            total = self.stage("normaliser", linear_attention.normaliser(graph, *features, visible))
        with graph.stage("probs"):
            found = linear_attention.weights(graph, scores, total, visible)
            return self.stage("probs", graph.cast(found, graph.dtype))

    def _with_sinks(self, scores: ir.Value) -> ir.Value:
        """The scores and, behind the last key, each head's sink as one more logit."""
        graph, heads = self.graph, self.spec.num_heads
        sinks = graph.cast(graph.external("sinks", self.weights), FLOAT)
        sinks = graph.reshape(sinks, [1, heads, 1, 1], (1, heads, 1, 1))
        column = graph.concat([graph.sizes(scores, 0, 3), graph.ints(1)], axis=0, size=4)
        sinks = graph.op("Expand", sinks, column, shape=(BATCH, heads, SEQUENCE, 1))
        return graph.concat([scores, sinks], axis=3, size=f"{self.total}+1")

    def _context(self, probs: ir.Value, v: ir.Value, inputs: bias.ScoreInputs | None) -> ir.Value:
        graph = self.graph
        with graph.stage("context"):
            context = self._unfold(graph.matmul(self._fold(probs), v))
            terms = [encoding for encoding in self.spec.bias if encoding.reads_probs]
            if terms:
                context = graph.cast(context, FLOAT)
            for encoding in terms:
                assert inputs is not None
                context = graph.binary("Add", context, bias.value_term(graph, encoding, probs, inputs))
            return self.stage("context", graph.cast(context, graph.dtype))

    def _tokens(self, context: ir.Value) -> ir.Value:
        """(batch, sequence, heads * v_head_dim)."""
        width = self.spec.num_heads * self.spec.v_head_dim
        with self.graph.stage("output"):
            rows = self.graph.transpose(context, 0, 2, 1, 3)
            return self.graph.reshape(rows, [0, 0, width], (BATCH, SEQUENCE, width))

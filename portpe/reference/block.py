"""Layer: reference. One self-attention layer in PyTorch, every stage readable by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from portpe.errors import SpecError
from portpe.interface import cache_of, learned_end, stages_of
from portpe.reference import dot_product, linear_attention, projections
from portpe.reference.arrays import accumulation_dtype, to_torch
from portpe.reference.bias import BIASES, Bias, ScoreInputs
from portpe.reference.embedding import EMBEDDINGS
from portpe.reference.inputs import Inputs, prepare
from portpe.reference.lookup import Tables
from portpe.reference.mask import visible
from portpe.reference.norms import HeadNorm, Normalise
from portpe.reference.output_gate import gated
from portpe.reference.projections import linear, project
from portpe.reference.rotary import ROTATIONS, rotate
from portpe.reference.temperature import QueryScale
from portpe.spec import AttentionSpec
from portpe.tables import end_of
from portpe.weight_shapes import weight_shapes


class Result(NamedTuple):
    """What a call gives: output (B, S, hidden) and the cache for the next one (B, kv_heads, past + S, dim)."""

    output: Tensor
    present_key: Tensor
    present_value: Tensor


class ResultWithStates(NamedTuple):
    """The same of a spec with ``cached_states``, and these by name, (B, numbers of a token, past + S)."""

    output: Tensor
    present_key: Tensor
    present_value: Tensor
    present_states: dict[str, Tensor]


class Attention(nn.Module):
    """The block of a spec; in float64 the truth, in other types a plain implementation of it.

    Parameters stand under the names of ``weight_shapes(spec)``. They have no values until ``load`` (or
    ``load_state_dict(..., assign=True)``) and no gradients unless asked for.

    Every stage is rounded to ``dtype`` once, but scores and probs, which stay in the accumulation type: float32 for
    the 16-bit types; with linear attention all between v and context do. Sums are formed in that type too.

    Without ``tables`` angles and biases are computed from the positions, exactly, and every position is legal that no
    learned table ends before. With ``tables`` (as ``portpe.tables.table_set`` makes them) they are looked up, which
    keeps the whole call in torch: such a block can be traced by torch.export, given position_ids and attention_mask.
    """

    def __init__(
        self, spec: AttentionSpec, *, dtype: torch.dtype = torch.float32, tables: Tables | None = None
    ) -> None:
        super().__init__()
        if spec.refusal is not None:
            raise SpecError(spec.refusal)
        self.spec = spec
        self.dtype = dtype
        self.end = learned_end(spec) if tables is None else end_of(spec, tables)
        if spec.embedding is not None:
            self.position_embedding = EMBEDDINGS[spec.embedding.kind](spec.embedding, tables, dtype)
        for name, norm in spec.input_norms.items():
            self.add_module(name, Normalise(norm, (spec.input_width,), dtype))
        if spec.embedding_projection is not None:
            self.embedding_projection = linear(
                spec.input_width, spec.hidden_size, spec.embedding_projection.bias, dtype
            )
        for name, module in projections.modules(spec, dtype).items():
            self.add_module(name, module)
        if spec.q_norm is not None and spec.k_norm is not None:
            self.q_norm = HeadNorm(spec.q_norm, spec.num_heads, spec.head_dim, dtype)
            self.k_norm = HeadNorm(spec.k_norm, spec.num_kv_heads, spec.head_dim, dtype)
        if spec.v_norm is not None:
            self.v_norm = HeadNorm(spec.v_norm, spec.num_kv_heads, spec.v_head_dim, dtype)
        if spec.rotary is not None:
            turned = accumulation_dtype(dtype) if spec.attention == "linear" else dtype  # the type of features
            self.rotary = ROTATIONS[spec.rotary.kind](spec.rotary, tables, turned)
        if spec.query_scale is not None:
            self.query_scale = QueryScale(spec.query_scale, tables)
        self.score_biases = nn.ModuleList(BIASES[b.kind](b, spec, tables, dtype) for b in spec.bias)
        self._trained = _register(self, spec, dtype)
        self.sinks = _parameter((spec.num_heads,), dtype) if spec.sinks else None
        if spec.output_gate is not None:
            self.gate_proj = linear(spec.hidden_size, spec.gate_width, spec.output_gate.bias, dtype)
        self.o_proj = linear(spec.num_heads * spec.v_head_dim, spec.hidden_size, spec.biases.o, dtype)
        self.requires_grad_(False)

    def load(self, weights: Mapping[str, NDArray[Any]]) -> Attention:
        """Take the weights, cast to the block's type once, and return the block. Raises SpecError."""
        shapes = weight_shapes(self.spec)
        for name in (*shapes, *weights):
            if name not in weights:
                raise SpecError(f"weights.{name} is required and missing")
            if name not in shapes:
                raise SpecError(f"weights.{name} is not a tensor of this block; remove it or mend its name")
            if weights[name].shape != shapes[name]:
                raise SpecError(f"weights.{name} must have shape {shapes[name]}, got {weights[name].shape}")
        self.load_state_dict({name: to_torch(weights[name]).to(self.dtype) for name in shapes}, assign=True)
        return self

    def forward(
        self,
        hidden_states: Float[Tensor, "batch seq width"],
        position_ids: Int[Tensor, "batch seq"] | None = None,
        attention_mask: Int[Tensor, "batch total"] | None = None,
        *,
        past_key: Float[Tensor, "batch kv_heads past head_dim"] | None = None,
        past_value: Float[Tensor, "batch kv_heads past v_head_dim"] | None = None,
        key_position_ids: Int[Tensor, "batch total"] | None = None,
        past_states: Mapping[str, Tensor] | None = None,
    ) -> Result | ResultWithStates:
        """The output and the cache. ``total`` is past + seq.

        Args:
            hidden_states: in the block's type.
            position_ids: the position of each row; None counts the kept slots before it (past + row without a mask).
            attention_mask: 1 = keep, 0 = pad; None keeps all.
            past_key: keys of earlier calls, as their ``present_key`` gave them, and ``past_value`` their values.
            past_value: see ``past_key``.
            key_position_ids: the position of each key, for bias encodings and where every call turns all keys; None:
                as position_ids does.
            past_states: what the spec's ``cached_states`` were after the call before, by name, in the accumulation
                type; needed with ``past_key`` where there are any.

        Raises:
            SpecError: a shape, a type or a position breaks a rule, or the weights are not loaded.
        """
        stages = self.stages(
            hidden_states,
            position_ids,
            attention_mask,
            past_key=past_key,
            past_value=past_value,
            key_position_ids=key_position_ids,
            past_states=past_states,
        )
        result = Result(stages["output"], stages["present_key"], stages["present_value"])
        if not self.spec.cached_states:
            return result
        return ResultWithStates(*result, {name: stages[f"present_{name}"] for name in self.spec.cached_states})

    def stages(
        self,
        hidden_states: Float[Tensor, "batch seq width"],
        position_ids: Int[Tensor, "batch seq"] | None = None,
        attention_mask: Int[Tensor, "batch total"] | None = None,
        *,
        past_key: Float[Tensor, "batch kv_heads past head_dim"] | None = None,
        past_value: Float[Tensor, "batch kv_heads past v_head_dim"] | None = None,
        key_position_ids: Int[Tensor, "batch total"] | None = None,
        past_states: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """``forward``, with every stage of ``interface.stages_of`` and the cache, by name."""
        if self.o_proj.weight.is_meta:
            raise SpecError("weights are not loaded; call load(weights) first")
        if self.o_proj.weight.dtype != self.dtype:  # .half() would round the tables with the weights
            raise SpecError(f"weights must be {self.dtype}, got {self.o_proj.weight.dtype}; make a block of that type")
        inputs = prepare(
            self.spec,
            self.dtype,
            self.end,
            hidden_states=hidden_states,
            position_ids=position_ids,
            attention_mask=attention_mask,
            past_key=past_key,
            past_value=past_value,
            key_position_ids=key_position_ids,
            past_states=past_states,
        )
        stages = {"embedded": self._embed(inputs)}
        stages["normed"] = self._norm(stages["embedded"])
        stages |= self._project(stages["normed"], inputs.hidden_states)
        q, k, linear = stages["q"], stages["k"], self.spec.attention == "linear"
        if self.spec.caches_projected_keys:  # what follows is of all keys, the cached ones too
            k = stages["present_key"] = torch.cat((inputs.past_key, k), dim=2)
        if linear:
            q, k = (linear_attention.features(part) for part in (q, k))
            stages |= {"q_features": q, "k_features": k}
        stages |= self._rotate(q, k, inputs)
        if not self.spec.caches_projected_keys:
            stages["present_key"] = torch.cat((inputs.past_key, stages["k_rotated"]), dim=2)
        stages["present_value"] = torch.cat((inputs.past_value, stages["v"]), dim=2)
        weights = {name: self.get_parameter(name) for name in self._trained}
        states = self._cached_states(stages["normed"], weights, inputs)
        stages |= {f"present_{name}": state for name, state in states.items()}
        seen = visible(
            self.spec,
            hidden_states.shape[1],
            inputs.past,
            inputs.attention_mask,
            hidden_states.device,
            (inputs.query_positions, inputs.key_positions),
        )
        given = ScoreInputs(
            hidden=stages["normed"],
            q=stages["q_rotated"],
            k=stages["k_rotated"] if self.spec.caches_projected_keys else stages["present_key"],
            query_positions=inputs.query_positions,
            key_positions=inputs.key_positions,
            visible=seen,
            weights=weights,
            project=self._project_rows,
            states=states,
        )
        stages["scores"] = self._score(given)
        if linear:
            stages["normaliser"] = linear_attention.normaliser(q, k, seen)
            stages["probs"] = linear_attention.weights(stages["scores"], stages["normaliser"], seen)
        else:
            stages["probs"] = dot_product.probabilities(stages["scores"], seen, self.sinks)
        stages["context"] = self._mix(stages["probs"], stages["present_value"], given)
        heads = stages["context"]
        if self.spec.output_gate is not None:
            rows = project(self.gate_proj, stages["normed"])
            heads = stages["gated"] = gated(self.spec.output_gate, heads, rows)
        stages["output"] = project(self.o_proj, heads.transpose(1, 2).flatten(2))
        return {name: stages[name] for name in (*stages_of(self.spec), *cache_of(self.spec))}

    def _cached_states(self, hidden: Tensor, weights: Mapping[str, Tensor], inputs: Inputs) -> dict[str, Tensor]:
        """What encodings keep of all tokens besides keys and values, (B, numbers of a token, T), by name."""
        found = {}
        for bias in self.score_biases:
            for name, new in cast("Bias", bias).states(hidden, weights).items():
                found[name] = torch.cat((inputs.past_states[name], new), dim=2)
        return found

    def _embed(self, inputs: Inputs) -> Tensor:
        spec, x = self.spec, inputs.hidden_states
        if spec.embedding is None and spec.embed_scale is None:
            return x
        wide = x.to(accumulation_dtype(self.dtype))
        if spec.embed_scale is not None:
            wide = wide * spec.embed_scale
        if spec.embedding is not None:
            wide = wide + self.position_embedding(inputs.query_positions)
        return wide.to(self.dtype)

    def _norm(self, x: Tensor) -> Tensor:
        for name in self.spec.input_norms:
            x = self.get_submodule(name)(x)
        return x if self.spec.embedding_projection is None else project(self.embedding_projection, x)

    def _project(self, x: Tensor, hidden_states: Tensor) -> dict[str, Tensor]:
        """q, k and v (B, heads, S, dim); clipped, then normed where the norm stands before the rotation."""
        heads = projections.heads(self.spec, self, x, hidden_states)
        heads["q"], heads["k"] = self._head_norms(heads["q"], heads["k"], "before")
        if self.spec.v_norm is not None:
            heads["v"] = self.v_norm(heads["v"])
        return heads

    def _rotate(self, q: Tensor, k: Tensor, inputs: Inputs) -> dict[str, Tensor]:
        """``k`` is of the new keys, or where rotation is deferred of all of them."""
        if self.spec.deferred_rotation:
            lengths = inputs.lengths if self.spec.rotation_by_length else None
            q = rotate(q, self.rotary(inputs.query_positions, lengths))
            k = rotate(k, self.rotary(inputs.key_positions, lengths))
        elif self.spec.rotary is not None:
            of_queries = of_keys = self.rotary(inputs.query_positions)
            if self.spec.rotary.own_key_tables:
                of_keys = self.rotary(inputs.query_positions, keys=True)
            q, k = rotate(q, of_queries), rotate(k, of_keys)
        q, k = self._head_norms(q, k, "after")
        if self.spec.query_scale is not None:
            q = self.query_scale(q, inputs.query_positions)
        return {"q_rotated": q, "k_rotated": k}

    def _head_norms(self, q: Tensor, k: Tensor, when: str) -> tuple[Tensor, Tensor]:
        if self.spec.q_norm is not None and self.spec.q_norm.when == when:
            q = self.q_norm(q)
        if self.spec.k_norm is not None and self.spec.k_norm.when == when:
            k = self.k_norm(k)
        return q, k

    def _score(self, given: ScoreInputs) -> Tensor:
        scores = dot_product.scores(given.q, given.k, self.spec.scale)
        for bias in self.score_biases:
            scores = scores + bias(given)
        return scores if self.spec.softcap is None else dot_product.softcap(scores, self.spec.softcap)

    def _project_rows(self, name: str, x: Tensor) -> Tensor:
        """Rows through one of the block's projections."""
        projection: nn.Linear = getattr(self, name)
        return project(projection, x)

    def _mix(self, probs: Tensor, values: Tensor, given: ScoreInputs) -> Tensor:
        """The values that the probabilities weigh, and the value terms; rounded once."""
        both = zip(self.score_biases, self.spec.bias, strict=True)
        terms = [cast("Bias", bias) for bias, encoding in both if encoding.reads_probs]
        if not terms:
            return dot_product.mix(probs, values)
        total = dot_product.mix(probs, values.to(probs.dtype))
        for term in terms:
            total = total + term.value_term(probs, given)
        return total.to(values.dtype)


def _register(block: nn.Module, spec: AttentionSpec, dtype: torch.dtype) -> tuple[str, ...]:
    """Give the block the trained tensors of its rotary and bias encodings, under their canonical names."""
    names = []
    for encoding in (spec.rotary, *spec.bias):
        for name, shape in ({} if encoding is None else encoding.weight_shapes(spec)).items():
            stem, _, leaf = name.rpartition(".")
            if stem and not hasattr(block, stem):
                block.add_module(stem, nn.Module())
            block.get_submodule(stem).register_parameter(leaf, _parameter(shape, dtype))
            names.append(name)
    return tuple(names)


def _parameter(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))

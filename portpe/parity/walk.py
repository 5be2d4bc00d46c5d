"""Every stage of a call judged alone, against float64 on the runtime's own numbers before that stage.

So an error is found where it arises, and a bound is that of one step: a rotation adds two products, whatever the
model's width.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from portpe.golden import GoldenCase, kv_heads_of
from portpe.interface import Array, stages_of
from portpe.parity import linear_attention
from portpe.parity.bounds import Estimate, Exact, given
from portpe.parity.call import attend, reported, turned_keys, with_cached
from portpe.parity.compare import Comparison, broken, compared, problem_of
from portpe.parity.stages import Block, visible_keys

Ids = NDArray[np.int64]

OUTPUT_PROJECTION = "output_projection"  # of the stages call, on its own context; "output" is the production call's
_Row = tuple[Array, Exact, Exact, Ids]  # found, truth, error (heads, ...), and the row's position once a head
Seen = Mapping[str, list[_Row]]


def each_stage(
    block: Block, golden: GoldenCase, stages: Mapping[str, Array], *, full: bool = False
) -> list[Comparison]:
    """Judge the stages that a runtime gave, in order.

    A stage that is missing is computed, its rounding carried, so that those after it can still be judged. Heads and
    attention rows are the sampled ones, or all of them with ``full``.
    """
    return Walk(block, golden, stages, full=full).run()


class Walk:
    """One call. Each given stage is compared, then takes the place of the computed one."""

    def __init__(self, block: Block, golden: GoldenCase, stages: Mapping[str, Array], *, full: bool) -> None:
        spec, case = block.spec, golden.case
        self.block, self.inputs, self.dtype = block, golden.inputs, golden.dtype
        self.heads = np.arange(spec.num_heads) if full else case.heads
        self.kv_heads = kv_heads_of(self.heads, spec.num_heads, spec.num_kv_heads)
        self.positions = reported(self.inputs.position_ids)
        self.kept = self.inputs.attention_mask[:, self.inputs.past :] == 1
        self.pairs = np.argwhere(self.kept) if full else case.pairs
        self.results: list[Comparison] = []
        self.stages = {name: array for name, array in stages.items() if self._usable(name, array)}

    def run(self) -> list[Comparison]:
        block, ids, names = self.block, self.inputs.position_ids, stages_of(self.block.spec)
        x = hidden = given(self.inputs.hidden_states)
        if "embedded" in names:
            x = self._rows("embedded", block.embedded(x, ids))
        if "normed" in names:
            x = self._rows("normed", block.normed(x))
        turned, features = [], []
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            part = self._rows(name, block.heads(name, block.seen(name, x, hidden), heads), heads)
            if name == "k":
                part = with_cached(block, self.inputs, part, heads)
            if f"{name}_features" in names:
                part = self._rows(f"{name}_features", linear_attention.features(part), heads)
                features.append(part)
            if name == "k" and "k_rotated" in names:
                part = self._rows("k_rotated", turned_keys(block, self.inputs, part, heads), heads)
            elif f"{name}_rotated" in names:
                turned_part = block.rotated(name, part, ids, heads, self.inputs.lengths)
                part = self._rows(f"{name}_rotated", turned_part, heads)
            turned.append(part)
        q, k, v = turned
        self._attention(x, q, k, v, (features[0], features[1]) if features else None)
        self._output()
        return self.results

    def _usable(self, name: str, array: Array) -> bool:
        """Whether a stage has the shape, a type, and finite numbers in every row, also in those nobody reads."""
        if name not in stages_of(self.block.spec):
            return False
        problem = problem_of(array, self._shape(name), tuple(dict.fromkeys((self.dtype, "float32"))))
        wide = None if problem else array.astype(np.float32, copy=False)
        if wide is not None and name != "scores" and not np.isfinite(wide).all():
            problem = "it has NaN or infinity"
        if problem is not None:
            self.results.append(broken(OUTPUT_PROJECTION if name == "output" else name, problem))
        return problem is None

    def _shape(self, name: str) -> tuple[int, ...]:
        spec, (batch, rows) = self.block.spec, self.inputs.hidden_states.shape[:2]
        total = self.inputs.past + rows
        query, kv = (batch, spec.num_heads, rows), (batch, spec.num_kv_heads, rows)
        shapes = {
            "embedded": (batch, rows, spec.input_width),
            "normed": (batch, rows, spec.hidden_size),
            "output": (batch, rows, spec.hidden_size),
            "q": (*query, spec.head_dim),
            "k": (*kv, spec.head_dim),
            "v": (*kv, spec.v_head_dim),
            "scores": (*query, total),
            "normaliser": (*query, 1),
            "probs": (*query, total),
            "context": (*query, spec.v_head_dim),
            "gated": (*query, spec.v_head_dim),
        }
        if name in self._of_all_keys:
            return (batch, spec.num_kv_heads, total, spec.head_dim)
        return shapes[name.removesuffix("_rotated").removesuffix("_features")]

    @property
    def _of_all_keys(self) -> tuple[str, ...]:
        """The stages that hold the cached keys too."""
        return ("k_features", "k_rotated") if self.block.spec.caches_projected_keys else ()

    def _rows(self, name: str, value: Estimate, heads: Ids | None = None) -> Estimate:
        """Compare a stage in every row that is no pad: (B, S, width), or (B, heads, S, dim)."""
        if name not in self.stages:
            return value
        found = self.stages[name] if heads is None else self.stages[name][:, heads]
        kept, places = self.kept, self.positions
        if name in self._of_all_keys:
            kept, places = self.inputs.attention_mask == 1, reported(self.inputs.key_position_ids)
        actual, truth, error = (
            (array if heads is None else array.swapaxes(1, 2))[kept] for array in (found, value.value, value.error)
        )
        positions = places[kept]
        self.results.append(compared(name, actual, truth, error, positions, self.dtype))
        return given(found)

    def _attention(
        self, x: Estimate, q: Estimate, k: Estimate, v: Estimate, features: tuple[Estimate, Estimate] | None
    ) -> None:
        """Compare scores, probs, context and what the gate leaves of it in the sampled rows."""
        seen: dict[str, list[_Row]] = {name: [] for name in ("scores", "normaliser", "probs", "context", "gated")}
        for batch, row in self.pairs:
            place = int(batch), int(row)
            take = partial(self._take, seen, place)
            attend(self.block, self.inputs, x, q, k, v, place, self.heads, take, features)
        for name, rows in seen.items():
            if rows:
                actual, truth, error, positions = (np.concatenate(parts) for parts in zip(*rows, strict=True))
                self.results.append(compared(name, actual, truth, error, positions, self.dtype))

    def _take(self, seen: Seen, place: tuple[int, int], name: str, heads: Ids, value: Estimate) -> Estimate:
        """The runtime's own stage in one row, noted for comparison; the computed one where it gave none."""
        if name not in self.stages:
            return value
        batch, row = place
        found, truth = self.stages[name][batch, heads, row], value.value
        if name == "scores":  # masked places hold no meaning
            inputs = self.inputs
            positions = inputs.position_ids[..., batch, row], inputs.key_position_ids[..., batch, :]
            visible = visible_keys(self.block.spec, row, inputs.past, inputs.attention_mask[batch], positions)
            found, truth = np.where(visible, found, 0).astype(found.dtype), np.where(visible, truth, 0.0)
        position = self.positions[batch, row]
        seen[name].append((found, truth, value.error, np.full(len(heads), position)))
        return given(found)

    def _output(self) -> None:
        """The output projection, on the context of every head, or the gated one."""
        before = "context" if self.block.spec.output_gate is None else "gated"
        if "output" not in self.stages or before not in self.stages:
            return
        batch, row = self.pairs.T
        context = self.stages[before][batch, :, row].reshape(len(self.pairs), -1)
        value = self.block.output(given(context))
        positions = self.positions[batch, row]
        found = self.stages["output"][batch, row]
        self.results.append(compared(OUTPUT_PROJECTION, found, value.value, value.error, positions, self.dtype))

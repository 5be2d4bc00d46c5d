"""Output and cache of a whole call against the golden truth, with a bound carried through every stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from portpe.golden import GoldenCase
from portpe.interface import CACHE, Array, BlockInputs, BlockOutputs
from portpe.parity import linear_attention
from portpe.parity.bounds import Estimate, given, joined, stacked
from portpe.parity.compare import Comparison, broken, compared, problem_of
from portpe.parity.score_terms import QueryRow
from portpe.parity.stages import Block, visible_keys

Ids = NDArray[np.int64]
Take = Callable[[str, Ids, Estimate], Estimate]


@dataclass(frozen=True)
class Expected:
    """Output (P, hidden) at a case's pairs, keys and values (K, kv_heads, D) at its slots, whatever the runtime; and
    there too what encodings cache besides, (K, numbers of a token) by name.
    """

    output: Estimate
    present_key: Estimate
    present_value: Estimate
    present_states: dict[str, Estimate] = field(default_factory=dict)


def expected(block: Block, golden: GoldenCase) -> Expected:
    """Carry the rounding of each stage from the inputs of a case to its output and cache."""
    spec, case, inputs = block.spec, golden.case, golden.inputs
    heads, kv_heads, ids = np.arange(spec.num_heads), np.arange(spec.num_kv_heads), inputs.position_ids
    hidden = given(inputs.hidden_states)
    x = block.normed(block.embedded(hidden, ids))
    q, k, v = (
        block.heads(name, block.seen(name, x, hidden), each)
        for name, each in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    keys, features = with_cached(block, inputs, k, kv_heads), None
    if spec.attention == "linear":
        q, keys = features = linear_attention.features(q), linear_attention.features(keys)
    q, keys = block.rotated("q", q, ids, heads, inputs.lengths), turned_keys(block, inputs, keys, kv_heads)
    k = k if spec.caches_projected_keys else keys
    rows = [
        attend(block, inputs, x, q, keys, v, (int(batch), int(row)), heads, features=features)
        for batch, row in case.pairs
    ]
    context = stacked([row.reshape(-1) for row in rows])
    batches, new_rows = case.slots[:, 0], case.slots[:, 1] - inputs.past
    new = [(block.states(x[int(batch)]), int(row)) for batch, row in zip(batches, new_rows, strict=True)]
    states = {name: stacked([found[name][:, row] for found, row in new]) for name in spec.cached_states}
    return Expected(block.output(context), k[batches, :, new_rows], v[batches, :, new_rows], states)


def with_cached(block: Block, inputs: BlockInputs, k: Estimate, kv_heads: Ids) -> Estimate:
    """All keys (B, heads, T, D) of these kv heads where they are cached as k is (B, heads, S, D), else k alone."""
    if not block.spec.caches_projected_keys:
        return k
    return joined(given(inputs.past_key[:, kv_heads]), k, axis=2)


def turned_keys(block: Block, inputs: BlockInputs, k: Estimate, kv_heads: Ids) -> Estimate:
    """The stage k_rotated from what ``with_cached`` gives, or from its features."""
    ids = inputs.key_position_ids if block.spec.deferred_rotation else inputs.position_ids
    return block.rotated("k", k, ids, kv_heads, inputs.lengths)


def attend(
    block: Block,
    inputs: BlockInputs,
    x: Estimate,
    q: Estimate,
    k: Estimate,
    v: Estimate,
    place: tuple[int, int],
    heads: Ids,
    take: Take = lambda _stage, _heads, estimate: estimate,
    features: tuple[Estimate, Estimate] | None = None,
) -> Estimate:
    """What o_proj takes of one query row, the context (heads, Dv) or the gated one, ``place`` its (batch, row).

    ``x`` (B, S, hidden) is what q_proj sees. ``q`` (B, heads, S, D) holds the chosen ``heads``; ``k`` and ``v`` hold
    the kv heads that these read, without the cache, but for keys that are cached as they are projected: they are all
    there. ``take`` is given each stage, (stage, heads, estimate), and gives the one to go on with. ``features`` of q
    and k, before rotation: with linear attention.
    """
    batch, row = place
    position, key_positions = np.asarray(inputs.position_ids[..., batch, row]), inputs.key_position_ids[..., batch, :]
    visible = visible_keys(block.spec, row, inputs.past, inputs.attention_mask[batch], (position, key_positions))
    query = QueryRow(
        hidden=x[batch, row],
        slot=inputs.past + row,
        position=position,
        key_positions=key_positions,
        visible=visible,
        heads=heads,
        states={
            name: joined(given(inputs.past_states[name][batch]), new, axis=1)
            for name, new in block.states(x[batch]).items()
        },
    )
    kv_of = heads // (block.spec.num_heads // block.spec.num_kv_heads)
    rows = []
    for index, kv_head in enumerate(np.unique(kv_of)):
        at = np.flatnonzero(kv_of == kv_head)
        keys = k[batch, index]
        if not block.spec.caches_projected_keys:
            keys = joined(given(inputs.past_key[batch, kv_head]), keys, axis=0)
        values = joined(given(inputs.past_value[batch, kv_head]), v[batch, index], axis=0)
        of_heads = replace(query, heads=heads[at])
        scores = block.scores(q[batch, at, row], keys, of_heads)
        scores = take("scores", heads[at], scores)
        shared = None
        if features is None:
            probs = block.probs(scores, visible, heads[at])
        else:
            total = linear_attention.normaliser(features[0][batch, at, row], features[1][batch, index], visible)
            total = take("normaliser", heads[at], total)
            probs, shared = linear_attention.weights(scores, total, visible, block.rounding)
        probs = take("probs", heads[at], probs)
        context = take("context", heads[at], block.context(probs, values, of_heads, shared))
        if block.spec.output_gate is not None:
            context = take("gated", heads[at], block.gated(context, of_heads))
        rows.append(context)
    return Estimate(np.concatenate([each.value for each in rows]), np.concatenate([each.error for each in rows]))


def reported(position_ids: Ids) -> Ids:
    """The positions (B, n) that a report names: those of the first axis, where there are several."""
    return position_ids if position_ids.ndim == 2 else position_ids[0]


def judge(block: Block, golden: GoldenCase, bound: Expected, outputs: BlockOutputs) -> list[Comparison]:
    """Output and cache at the sampled places; cached entries must come back bit for bit, and everything be finite."""
    inputs, case, dtype = golden.inputs, golden.case, golden.dtype
    batch, row = case.pairs.T
    shape = (*inputs.hidden_states.shape[:2], block.spec.hidden_size)
    found = [_judged("output", outputs.output, shape, dtype)]
    if found[0] is None:
        positions = reported(inputs.position_ids)[batch, row]
        found = [compared("output", outputs.output[batch, row], golden.output, bound.output.error, positions, dtype)]
    cache = [
        ("present_key", outputs.present_key, inputs.past_key, golden.present_key, bound.present_key),
        ("present_value", outputs.present_value, inputs.past_value, golden.present_value, bound.present_value),
    ]
    for name, past in inputs.past_states.items():
        present = outputs.present_states.get(name)
        cache.append((f"present_{name}", present, past, golden.present_states[name], bound.present_states[name]))
    for stage, present, past, truth, estimate in cache:
        if present is None and not block.spec.causal:
            continue  # without a cache a graph has no present
        whole = (*past.shape[:2], inputs.past + shape[1], *past.shape[3:])
        kind = "float32" if stage not in CACHE else dtype
        problem = _judged(stage, present, whole, kind) or _changed_past(stage, present, past)
        if problem is None and present is not None:
            in_batch, slot = case.slots.T
            positions = reported(inputs.key_position_ids)[in_batch, slot]
            problem = compared(stage, present[in_batch, :, slot], truth, estimate.error, positions, kind)
        found.append(problem)
    return [each for each in found if each is not None]


def _judged(stage: str, array: Array | None, shape: tuple[int, ...], dtype: str) -> Comparison | None:
    """What is wrong before a number is compared; also with rows that nobody reads, which must be finite."""
    problem = problem_of(array, shape, (dtype,))
    if problem is None and array is not None and not np.isfinite(array.astype(np.float32, copy=False)).all():
        problem = "it has NaN or infinity"
    return None if problem is None else broken(stage, problem)


def _changed_past(stage: str, present: Array | None, past: Array) -> Comparison | None:
    if present is None or np.array_equal(present[:, :, : past.shape[2]], past):
        return None
    return broken(stage, "cached entries were changed; they must be copied as they are")

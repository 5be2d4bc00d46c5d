"""Where a spec's values stand in the config that they were read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from portpe.spec import AttentionSpec

# The names that configs give to what a spec calls otherwise. A field that is not listed keeps its name.
NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query"),
    "scale": ("query_pre_attn_scalar", "softmax_scale", "attention_multiplier"),
    "softcap": ("attn_logit_softcapping",),
    "window": ("sliding_window", "window_size", "local_attention"),
    "clip_qkv": ("clip_qkv",),
    "value_scale": ("attention_value_scale",),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "rotary.width": ("rotary_dim", "partial_rotary_factor", "rotary_pct"),
    "rotary.schedule.kind": ("rope_type", "type"),
    "rotary.schedule.rope_theta": ("rope_theta", "rotary_emb_base", "default_theta"),
    "rotary.schedule.original_max_position_embeddings": ("original_max_position_embeddings", "max_position_embeddings"),
    "query_scale.interval": ("floor_scale", "original_max_position_embeddings"),
    "query_scale.beta": ("attn_scale", "llama_4_scaling_beta"),
    "mla.bias": ("attention_bias",),
    "output_gate.scope": ("gating", "use_attention_gate"),
    "output_gate.bias": ("attention_bias",),
    "embedding.rows": ("max_position_embeddings", "n_positions", "max_source_positions"),
    "embedding.width": ("embedding_size", "hidden_size", "n_embd", "d_model", "word_embed_proj_dim"),
    "bias.0.kind": ("alibi",),
    "bias.0.bias_max": ("alibi_bias_max",),
}

_ORIGINAL = "original_max_position_embeddings"


def origin(field: str, value: Any, spec: AttentionSpec, config: Mapping[str, Any] | None) -> str:
    """Where a spec's field comes from, in words.

    Args:
        field: dotted, as in the spec's JSON.
        value: the resolved value.
        spec: the spec that it stands in.
        config: the config that was read; None for a spec written by hand.

    Returns:
        ``rope_scaling.factor``, the key that holds the value; ``from rotary_pct 0.25``, a key that it follows from;
        ``hidden_size / num_heads``, a rule; ``the family``, where no key states it and model_type decides.
    """
    if config is None:
        return "spec"
    names = NAMES.get(field, (field.rsplit(".", 1)[-1],))
    inside = field.startswith(("rotary.", "query_scale.", "bias.", "embedding.", "mla.", "output_gate."))
    found = [(path, one) for path, one in _leaves(config) if path.rsplit(".", 1)[-1] in names and one is not None]
    if not inside:
        found = [(path, one) for path, one in found if not path.startswith(("rope_", "attn_config.rope"))] or found
    same = [path for path, one in found if _equal(one, value)]
    if same:
        return max(same, key=_nesting) if inside else min(same, key=_nesting)
    if found and field in NAMES:
        path, one = found[0]
        return f"from {path} {one}"
    return _rule(field, value, spec) or "the family"


def _rule(field: str, value: Any, spec: AttentionSpec) -> str | None:
    """What a value follows from where the config is silent."""
    rotary = spec.rotary
    trained, original = spec.max_position_embeddings, getattr(rotary and rotary.schedule, _ORIGINAL, None)
    rules = {
        "head_dim": ("hidden_size / num_heads", spec.hidden_size // spec.num_heads),
        "num_kv_heads": ("num_heads", spec.num_heads),
        "scale": ("1 / sqrt(head_dim)", spec.head_dim**-0.5),
        "rotary.width": ("head_dim", spec.head_dim),
        "rotary.schedule.factor": (f"max_position_embeddings / {_ORIGINAL}", (trained or 0) / (original or 1)),
        "rotary.attention_factor": ("the schedule", None if rotary is None else rotary.schedule.magnitude()),
        "rotary.regime.kind": ("--context" if value == "fixed" else "--regime", value),
        "rotary.regime.length": ("--context", value),
    }
    words, expected = rules.get(field, ("", None))
    return words if words and value == expected else None


def _nesting(path: str) -> int:
    return path.count(".")


def _equal(one: Any, value: Any) -> bool:
    if isinstance(one, bool) != isinstance(value, bool):
        return False
    return bool(one == value)


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

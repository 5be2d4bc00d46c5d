"""What a plain rotary block can express, and the Llama config of one that says the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from portpe.bench.subject import Subject
from portpe.encodings import Part
from portpe.spec import AttentionSpec

POSITIONS = 65536  # that peers' own tables cover
PLAIN = frozenset(
    {
        *("portpe_spec", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "scale", "biases"),
        *("rotary", "max_position_embeddings", "contract"),
    }
)
PLAIN_ROTARY = frozenset(
    {
        *("kind", "width", "pairing", "pairing_out", "sign", "schedule", "attention_factor"),
        *("softmax_scale_multiplier", "precision", "contract", "regime"),
    }
)
SCHEDULES = ("default", "linear", "llama3")


def beyond_plain(spec: AttentionSpec) -> str | None:
    """What keeps a spec from being a plain rotary block, by its fields; None where nothing does.

    Plain: causal softmax over all keys, one rotation of the first channels or none, no norm, clip, cap, sink or bias.
    Every field that is not listed as plain must have its default: what a spec learns to say later is refused here.
    """
    found = _given(spec, PLAIN)
    rotary = spec.rotary
    if rotary is not None:
        found += [f"rotary.{name}" for name in _given(rotary, PLAIN_ROTARY)]
        found += ["rotary.pairing_out"] if rotary.written != rotary.pairing else []
        found += ["regime per_sequence"] if spec.deferred_rotation else []
    return _told(found)


def _given(part: Part, plain: frozenset[str]) -> list[str]:
    """The fields beyond ``plain`` that do not have their defaults."""
    fields = type(part).model_fields.items()
    return [name for name, field in fields if name not in plain and getattr(part, name) != field.default]


def beyond_llama(spec: AttentionSpec) -> str | None:
    """What keeps a spec from being Llama's attention as transformers writes it; None where nothing does."""
    if reason := beyond_plain(spec):
        return reason
    rotary, biases = spec.rotary, set(spec.biases.model_dump().values())
    if rotary is None:
        return "Llama's attention always rotates"
    found = {
        "a value width of its own": spec.v_head_dim != spec.head_dim,
        "a scale other than head_dim ** -0.5": not math.isclose(spec.scale, spec.head_dim**-0.5, rel_tol=1e-6),
        "biases on some projections": len(biases) > 1,
        "a partial rotation": rotary.width != spec.head_dim,
        "interleaved pairs": rotary.pairing != "half",
        "a negative rotation": rotary.sign != 1,
        f"schedule {rotary.schedule.kind}": rotary.schedule.kind not in SCHEDULES,
        "an attention factor": rotary.magnitude != 1.0,
    }
    return _told([name for name, present in found.items() if present])


def config(spec: AttentionSpec) -> Any:
    """The LlamaConfig of one layer that computes the spec, with a tiny vocabulary and feed-forward."""
    import transformers

    assert spec.rotary is not None
    schedule = spec.rotary.schedule.model_dump()
    made: Any = transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=8,
        hidden_size=spec.hidden_size,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        num_hidden_layers=1,
        intermediate_size=16,
        attention_bias=spec.biases.q,
        max_position_embeddings=POSITIONS,
        rope_parameters={"rope_type": schedule.pop("kind"), **schedule},
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    made._attn_implementation = "sdpa"
    return made


def checkpoint(subject: Subject, folder: Path) -> Path:
    """A checkpoint of one layer with the subject's weights and a toy tokenizer, for builders that read folders."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models

    messages: Any = transformers.utils.logging
    messages.disable_progress_bar()
    model = transformers.LlamaForCausalLM(config(subject.spec)).to(getattr(torch, subject.dtype))
    load(model.model.layers[0].self_attn, subject)
    model.save_pretrained(folder)
    tokens = {str(number): number for number in range(8)}
    fast: Any = transformers.PreTrainedTokenizerFast
    tokenizer = fast(
        tokenizer_object=Tokenizer(models.WordLevel(tokens, unk_token="0")), bos_token="0", eos_token="1", pad_token="1"
    )
    tokenizer.save_pretrained(folder)
    return folder


def load(attention: Any, subject: Subject) -> None:
    """Put the subject's weights into a module that has them under the same names."""
    from portpe.reference.arrays import to_torch

    own = dict(attention.named_parameters())
    tensors = {name: to_torch(array).to(own[name].dtype) for name, array in subject.weights.items()}
    attention.load_state_dict(tensors, assign=True)


def _told(names: list[str]) -> str | None:
    return f"it has no place for {', '.join(names)}" if names else None

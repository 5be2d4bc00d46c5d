"""What a layer with linear attention cannot have: it belongs to a softmax, or says nothing in a quotient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portpe.errors import SpecError

if TYPE_CHECKING:
    from portpe.spec import AttentionSpec


def check(spec: AttentionSpec) -> None:
    """Refuse a spec with linear attention that has one of them. Raises SpecError."""
    temperature, kinds = spec.query_scale, ", ".join(encoding.kind for encoding in spec.bias)
    late_norm = "after" in (norm.when for norm in (spec.q_norm, spec.k_norm) if norm is not None) and "after"
    rules: list[tuple[str, str, Any]] = [
        ("projection must be standard", "nobody defines features of latents", spec.mla and spec.projection),
        ("scale must be 1", "it would multiply numerator and normaliser alike", spec.scale != 1 and spec.scale),
        ("softcap must be left out", "no softmax follows the scores", spec.softcap),
        ("sinks must be false", "a sink is one more logit of a softmax", spec.sinks and "true"),
        ("bias must be empty", "it would be added to logits of a softmax", kinds),
        ("query_scale must be left out", "a multiplier of features cancels", temperature and temperature.kind),
        ("q_norm.when and k_norm.when must be before", "the normaliser reads unrotated features", late_norm),
    ]
    if spec.rotary is not None:
        rotary, factor, multiplier = spec.rotary, spec.rotary.magnitude, spec.rotary.softmax_scale_multiplier
        tempered = rotary.schedule.tempered and rotary.schedule.kind
        rules += [
            ("rotary.attention_factor must be 1", "it is a temperature of a softmax", factor != 1 and factor),
            ("rotary.schedule must multiply cos and sin by 1", "it has a temperature of a softmax", tempered),
            ("rotary.softmax_scale_multiplier must be 1", "there is no softmax", multiplier != 1 and multiplier),
            ("rotary.pairing_out must be left out", "keys are cached before rotation", rotary.pairing_out),
            ("rotary.decay must be left out", "the normaliser would not decay", rotary.decay and rotary.decay.kind),
        ]
    for rule, why, found in rules:
        if found:
            raise SpecError(f"{rule} with attention linear: {why}, got {found}")

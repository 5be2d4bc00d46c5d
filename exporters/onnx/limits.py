"""Layer: exporters/onnx. What a graph form cannot express, one row each; imports no onnx."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from portpe.spec import AttentionSpec


@dataclass(frozen=True)
class Limit:
    """``text`` says what specs a form takes; ``reason`` why it does not take a certain one, or None where it does."""

    text: str
    reason: Callable[[AttentionSpec], str | None]


def _length(spec: AttentionSpec) -> str | None:
    if not spec.length_dependent:
        return None
    assert spec.rotary is not None
    return (
        f"schedule {spec.rotary.schedule.kind} depends on the current length, and cached keys would keep the "
        "rotation of another one; give --context L or --regime per_sequence"
    )


def _deferred(spec: AttentionSpec) -> str | None:
    if not spec.deferred_rotation:
        return None
    operator = "the operator GroupQueryAttention joins them with new ones itself"
    return f"regime per_sequence turns cached keys at each call, and {operator}"


def _no_softmax(spec: AttentionSpec) -> str | None:
    return "attention is linear, and its operator computes a softmax" if spec.attention == "linear" else None


def _repeated(spec: AttentionSpec) -> str | None:
    kinds = [bias.kind for bias in spec.bias]
    repeated = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    if not repeated:
        return None
    return f"bias {repeated[0]} stands twice, and a graph has one table of slopes; merge them into one"


def _sinks(spec: AttentionSpec) -> str | None:
    return "the operator Attention has no sinks" if spec.sinks else None


def _cap_last(operator: str) -> Callable[[AttentionSpec], str | None]:
    reason = f"the operator {operator} caps scores before it adds a bias, and here the cap comes last"
    return lambda spec: reason if spec.bias and spec.softcap is not None else None


def _probs(spec: AttentionSpec) -> str | None:
    kinds = [bias.kind for bias in spec.bias if bias.reads_probs]
    return f"bias {kinds[0]} has a value term, and probabilities stay inside the operator" if kinds else None


def _keys(spec: AttentionSpec) -> str | None:
    kinds = [bias.kind for bias in spec.bias if bias.reads_keys and spec.causal]
    return f"bias {kinds[0]} reads the keys, and cached and new ones are joined inside the operator" if kinds else None


def _cache(spec: AttentionSpec) -> str | None:
    return None if spec.causal else "causal is false, so there is no cache to share"


def _states(spec: AttentionSpec) -> str | None:
    names = list(spec.cached_states)
    return f"an encoding caches {names[0]} too, and its buffers hold keys and values alone" if names else None


def _value_width(spec: AttentionSpec) -> str | None:
    if spec.v_head_dim == spec.head_dim:
        return None
    operator = "the operator GroupQueryAttention takes values as wide as keys"
    return f"v_head_dim is {spec.v_head_dim}, and {operator}, {spec.head_dim}"


def _eights(spec: AttentionSpec) -> str | None:
    if spec.head_dim % 8 == 0:
        return None
    return f"head_dim is {spec.head_dim}, and the operator GroupQueryAttention takes multiples of 8"


SOFTMAX = Limit("softmax attention only", _no_softmax)
ONE_LENGTH = Limit("frequencies that depend on the length have a regime", _length)
ROTATION_FIRST = Limit("no regime per_sequence", _deferred)
ONE_BIAS = Limit("at most one bias of a kind", _repeated)
NO_SINKS = Limit("no sinks", _sinks)
NO_VALUE_TERM = Limit("no bias with a value term", _probs)
NO_KEYS_READ = Limit("no bias that reads the keys of a cache", _keys)
KEYS_AND_VALUES = Limit("no bias that caches more than keys and values", _states)
CAUSAL = Limit("causal layers only", _cache)
EQUAL_WIDTHS = Limit("v_head_dim equals head_dim", _value_width)
HEADS_IN_EIGHTS = Limit("head_dim is a multiple of 8", _eights)
ATTENTION_CAPS_FIRST = Limit("no softcap together with a bias", _cap_last("Attention"))
GROUP_QUERY_ATTENTION_CAPS_FIRST = Limit("no softcap together with a bias", _cap_last("GroupQueryAttention"))

"""The norms that families have before q_proj and on q and k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portpe.config.layer import Layer, NormOf
from portpe.errors import SpecError
from portpe.layer_parts import Norm

QkNorms = Callable[[Layer], tuple[Norm, Norm] | None]


def none(layer: Layer) -> Norm | None:  # noqa: ARG001
    """OLMo 2: norms stand behind attention, none before it."""
    return None


def rms(key: str, default: float, weight_offset: float = 0.0) -> NormOf:
    """An RMS norm over the hidden size."""
    return lambda layer: Norm(kind="rms", eps=layer.config.positive(key, default), weight_offset=weight_offset)


def fixed_rms(eps: float) -> NormOf:
    """An RMS norm over the hidden size, its eps not in the config."""
    return lambda _layer: Norm(kind="rms", eps=eps)


def layer_norm(key: str | None, default: float, *, bias: bool = True, weight_offset: float = 0.0) -> NormOf:
    """A layer norm over the hidden size; without a key its eps is not in the config."""

    def norm(layer: Layer) -> Norm:
        eps = default if key is None else layer.config.positive(key, default)
        return Norm(kind="layer", eps=eps, bias=bias, weight_offset=weight_offset)

    return norm


def layer_norm_with_switched_bias(key: str, default: float, switch: str, on: bool) -> NormOf:
    """A layer norm whose bias a key of the config switches."""
    return lambda layer: layer_norm(key, default, bias=layer.config.flag(switch, on))(layer)


def embedding_layer_norm(key: str | None, default: float) -> NormOf:
    """A layer norm that closes the embeddings: layer 0 alone has it before attention (BERT)."""

    def norm(layer: Layer) -> Norm | None:
        whole = layer_norm(key, default)(layer)
        return whole if layer.index == 0 else None

    return norm


def opt_layer_norm(layer: Layer) -> Norm | None:
    """OPT: before attention or, in opt-350m, after it; affine or not."""
    affine = layer.config.flag("layer_norm_elementwise_affine", True)
    norm = Norm(kind="layer", eps=1e-5, affine=affine, bias=affine)
    return norm if layer.config.flag("do_layer_norm_before", True) else None


def head_rms(key: str, default: float, **settings: Any) -> QkNorms:
    """An RMS norm over each head of q and k, before the rotation (Qwen3); ``settings``: other fields of ``Norm``."""

    def norms(layer: Layer) -> tuple[Norm, Norm]:
        norm = Norm(kind="rms", eps=layer.config.positive(key, default), scope="head", **settings)
        return norm, norm

    return norms


def when(key: str, default: bool, norms_of: QkNorms) -> QkNorms:
    """Norms that a key of the config switches on."""
    return lambda layer: norms_of(layer) if layer.config.flag(key, default) else None


def head_layer_norm(key: str, default: float, **settings: Any) -> QkNorms:
    """Persimmon, StableLM: a layer norm over each head of q and k, before the rotation."""

    def norms(layer: Layer) -> tuple[Norm, Norm]:
        norm = Norm(kind="layer", eps=layer.config.positive(key, default), scope="head", **settings)
        return norm, norm

    return norms


def all_heads_rms(key: str, default: float) -> QkNorms:
    """OLMo 2: an RMS norm over all heads of q at once, and of k, before the rotation."""

    def norms(layer: Layer) -> tuple[Norm, Norm]:
        norm = Norm(kind="rms", eps=layer.config.positive(key, default), scope="all_heads")
        return norm, norm

    return norms


def all_heads_layer_norm(eps: float) -> QkNorms:
    """ESM C: a layer norm without bias over all heads of q at once, and of k, its eps not in the config."""
    norm = Norm(kind="layer", eps=eps, scope="all_heads")
    return lambda _layer: (norm, norm)


def cohere_norms(layer: Layer) -> tuple[Norm, Norm] | None:
    """Cohere with ``use_qk_norm``: a layer norm over each head, a weight for each head, no bias."""
    eps = layer.config.positive("layer_norm_eps", 1e-5)
    norm = Norm(kind="layer", eps=eps, scope="head", per_head_weight=True)
    return (norm, norm) if layer.config.flag("use_qk_norm", False) else None


def phi_norms(layer: Layer) -> tuple[Norm, Norm] | None:
    """Phi with ``qk_layernorm``: a layer norm over each head, one weight and bias for all of them."""
    eps = layer.config.positive("layer_norm_eps", 1e-5)
    if not layer.config.flag("qk_layernorm", False):
        return None
    if layer.head_dim != layer.hidden_size // layer.num_heads:
        raise SpecError(
            f"head_dim must be hidden_size / num_attention_heads = {layer.hidden_size // layer.num_heads} "
            f"with qk_layernorm, got {layer.head_dim}"
        )
    norm = Norm(kind="layer", eps=eps, scope="head", bias=True)
    return norm, norm


def no_norm_on_layer_0(norm: NormOf) -> NormOf:
    """ModernBERT: the embeddings' own norm stands before layer 0."""

    def later(layer: Layer) -> Norm | None:
        found = norm(layer)
        return found if layer.index else None

    return later


def unit_rms(key: str, default: float) -> NormOf:
    """An RMS norm without weight, over the hidden size."""
    return lambda layer: Norm(kind="rms", eps=layer.config.positive(key, default), affine=False)


def unit_layer_norm(eps: float) -> NormOf:
    """OLMo: a layer norm without weight or bias, its eps not in the config."""
    return lambda _layer: Norm(kind="layer", eps=eps, affine=False)

"""The norms that families have before q_proj and on q and k."""

from __future__ import annotations

from collections.abc import Callable

from portpe.config.layer import Layer, NormOf
from portpe.errors import SpecError
from portpe.spec import Norm


def rms(key: str, default: float, weight_offset: float = 0.0) -> NormOf:
    """An RMS norm over the hidden size."""
    return lambda layer: Norm(kind="rms", eps=layer.config.positive(key, default), weight_offset=weight_offset)


def layer_norm(key: str | None, default: float, *, bias: bool = True) -> NormOf:
    """A layer norm over the hidden size; without a key its eps is not in the config."""

    def norm(layer: Layer) -> Norm:
        eps = default if key is None else layer.config.positive(key, default)
        return Norm(kind="layer", eps=eps, bias=bias)

    return norm


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


def head_rms(key: str, default: float) -> Callable[[Layer], tuple[Norm, Norm]]:
    """Qwen3: an RMS norm over each head of q and k, before the rotation."""

    def norms(layer: Layer) -> tuple[Norm, Norm]:
        norm = Norm(kind="rms", eps=layer.config.positive(key, default), scope="head")
        return norm, norm

    return norms


def all_heads_rms(key: str, default: float) -> Callable[[Layer], tuple[Norm, Norm]]:
    """OLMo 2: an RMS norm over all heads of q at once, and of k, before the rotation."""

    def norms(layer: Layer) -> tuple[Norm, Norm]:
        norm = Norm(kind="rms", eps=layer.config.positive(key, default), scope="all_heads")
        return norm, norm

    return norms


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

"""What most rows of the family table share: the usual size names, and decoders told by how they differ from Llama."""

from __future__ import annotations

from typing import Any

from portpe.config import norms, projection_biases, sites
from portpe.config.layer import Family, NormOf, Size, Sizes
from portpe.config.rope import Rope

LENGTH = "max_position_embeddings"
# The whole head in halves. transformers' classes of most families rotate all of it whatever partial_rotary_factor says.
HALF = Rope(ignores_partial=True)
GPT_OSS_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
# What published configs of Cohere say that its class has no other of.
COHERE = {"position_embedding_type": ("rope_gptj",), "use_parallel_block": (True,), "use_gated_activation": (True,)}
# attention_bias switches all four biases, and is false where the config has none.
SWITCHED = projection_biases.switched("attention_bias", False, "qkvo")
NO_BIAS = projection_biases.fixed("")


def sizes(
    hidden: int, heads: int, layers: int, length: int, kv_heads: int | None = None, head_dim: int | None = 0
) -> Sizes:
    """The usual names. ``kv_heads`` None: the key counts, and without it every head has its own."""
    return Sizes(
        hidden=Size(("hidden_size",), hidden),
        heads=Size(("num_attention_heads",), heads),
        layers=Size(("num_hidden_layers",), layers),
        kv_heads=Size(("num_key_value_heads",), 0 if kv_heads is None else kv_heads),
        head_dim=head_dim,
        length=Size((LENGTH,), length),
    )


def one_kv_a_head(hidden: int, heads: int, layers: int, length: int) -> Sizes:
    """The usual names without grouped keys, and with heads of hidden_size / heads."""
    return Sizes(
        hidden=Size(("hidden_size",), hidden),
        heads=Size(("num_attention_heads",), heads),
        layers=Size(("num_hidden_layers",), layers),
        head_dim=None,
        length=Size((LENGTH,), length),
    )


def rms(eps: float, *, weight_offset: float = 0.0, key: str = "rms_norm_eps") -> NormOf:
    """The RMS norm before attention, by its default eps."""
    return norms.rms(key, eps, weight_offset)


def head_norms(eps: float, *, key: str = "rms_norm_eps", **more: Any) -> Any:
    """RMS norms over each head of q and k, before the rotation."""
    return norms.head_rms(key, eps, **more)


def decoder(model_type: str, sizes: Sizes, norm: NormOf, *, rope: Rope = HALF, **differs: Any) -> Family:
    """A decoder as Llama's, but for what is given: fields of ``Family``; ``site`` goes before ``rope``."""
    fields = {"site": sites.rotary(rope), "biases": SWITCHED, **differs}
    return Family(model_type, sizes, input_norm=norm, **fields)

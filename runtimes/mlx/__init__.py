"""Layer: runtimes. The attention block in MLX, written as an mlx-lm model is.

Importing this package imports no mlx; its names load on first use. A bundle's ``mlx`` folder runs with
nothing but ``pip install "portpe[mlx]"``::

    import mlx.core as mx
    from portpe.runtimes.mlx import Attention

    block = Attention.from_folder("bundle/mlx")  # config.json and weights.safetensors, shapes checked
    block.set_dtype(mx.float16)  # tables of positions stay in float32
    x = mx.random.normal((1, 12, block.args.hidden_size)).astype(mx.float16)
    whole = block(x, mask="causal")

    from mlx_lm.models.cache import KVCache  # any cache with offset and update_and_fetch will do

    cache = KVCache()
    prompt = block(x[:, :11], mask="causal", cache=cache)
    token = block(x[:, 11:], cache=cache)  # the same numbers as whole[:, 11:]
    # a layer with spec.cached_states takes PastCache.empty(spec): no cache of mlx-lm has a place for them
    block.rotation_way()  # ("metal", None), or ("plain", and why): see rotary for the others, chosen by name
    names = block.stages(x, mx.arange(12)[None])  # every stage by name: q_rotated, scores, probs, ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portpe.runtimes.mlx.args import ModelArgs as ModelArgs
    from portpe.runtimes.mlx.block import Attention as Attention
    from portpe.runtimes.mlx.caches import PastCache as PastCache

_HOME = {
    "Attention": "portpe.runtimes.mlx.block",
    "ModelArgs": "portpe.runtimes.mlx.args",
    "PastCache": "portpe.runtimes.mlx.caches",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

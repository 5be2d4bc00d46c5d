"""Layer: runtimes. MLX: the module of a bundle's ``mlx`` folder, run on mlx's default device.

MLX_ENABLE_TF32 is set to 0 before mlx first computes, unless it is set already: on GPUs that have it, mlx
otherwise multiplies float32 matrices with 11-bit operands, which is no float32 parity. The device says which.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from portpe.interface import BlockInputs, BlockOutputs, check_states, stages_of
from portpe.runtimes.base import Availability, Configuration

if TYPE_CHECKING:
    import mlx.core as mx

    from portpe.bundle import Bundle
    from portpe.runtimes.mlx.block import Attention

TF32 = "MLX_ENABLE_TF32"


@dataclass
class MlxSession:
    """A loaded module."""

    block: Attention
    provider: str = ""

    def run(self, inputs: BlockInputs, *, stages: bool = False) -> BlockOutputs:
        """Run one call, as a user makes it: the past in a cache. Stages come from ``Attention.stages``.

        Positions are checked first (SpecError). Without causality there is no cache and no present.
        """
        from portpe.runtimes.mlx import caches, masks
        from portpe.runtimes.mlx.weights import to_mlx, to_numpy

        check_states(self.block.spec, inputs)
        past_states = {name: to_mlx(array) for name, array in inputs.past_states.items()}
        hidden, past_key, past_value = (
            to_mlx(array) for array in (inputs.hidden_states, inputs.past_key, inputs.past_value)
        )
        cached = self.block.spec.causal or inputs.past > 0  # a past without causality is the block's to refuse
        cache = caches.PastCache(past_key, past_value, past_states) if cached else None
        mask = masks.from_attention_mask(self.block.spec, inputs.attention_mask, hidden.shape[1])
        keys = inputs.key_position_ids
        output = self.block(hidden, mask, cache, inputs.position_ids, keys)
        named: dict[str, mx.array] = {}
        if stages:
            found = self.block.stages(
                hidden, inputs.position_ids, inputs.attention_mask, past_key, past_value, keys, past_states
            )
            named = {name: found[name] for name in stages_of(self.block.spec)}
        return BlockOutputs(
            to_numpy(output),
            None if cache is None else to_numpy(cache.keys),
            None if cache is None else to_numpy(cache.values),
            {name: to_numpy(value) for name, value in named.items()},
            {} if cache is None else {name: to_numpy(state) for name, state in cache.states.items()},
        )


class Mlx:
    """MLX on its default device: the GPU of an Apple machine or of CUDA, else the CPU."""

    name = "mlx"

    def availability(self) -> Availability:
        """Usable where mlx can be imported."""
        if find_spec("mlx") is None:
            return Availability(False, reason="mlx is not installed; pip install 'portpe[mlx]'")
        os.environ.setdefault(TF32, "0")
        try:
            import mlx.core as mx
        except Exception as error:  # a broken installation raises what it likes, and must not end the listing
            return Availability(False, reason=f"mlx cannot be imported: {' '.join(str(error).split())}")
        return Availability(True, version=_version(), device=f"{mx.default_device()}, {TF32}={os.environ[TF32]}")

    def configurations(self, bundle: Bundle, provider: str | None = None) -> list[Configuration]:
        """The module in each of the bundle's types. mlx has no providers: its device is its default one."""
        del provider
        return [Configuration("module", dtype) for dtype in bundle.dtypes]

    def gaps(self, bundle: Bundle) -> list[tuple[str, str]]:
        """None: every type runs."""
        del bundle
        return []

    def open(self, bundle: Bundle, configuration: Configuration) -> MlxSession:
        """The module of the bundle's own mlx folder: what is shipped is what is judged. Raises SpecError."""
        os.environ.setdefault(TF32, "0")
        import mlx.core as mx

        from portpe.runtimes.mlx.block import Attention

        block = Attention.from_folder(bundle.path / "mlx")
        block.set_dtype(getattr(mx, configuration.dtype))
        return MlxSession(block)


def _version() -> str | None:
    try:
        return version("mlx")
    except PackageNotFoundError:
        return None


RUNTIME = Mlx()

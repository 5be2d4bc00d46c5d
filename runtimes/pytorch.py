"""Layer: runtimes. PyTorch: the reference block in the artefact's own type."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from portpe.errors import SpecError
from portpe.interface import CACHE, BlockInputs, BlockOutputs, check_states
from portpe.runtimes.base import Availability, Configuration

if TYPE_CHECKING:
    from portpe.bundle import Bundle
    from portpe.reference import Attention

PROVIDERS = ("cpu", "cuda")


@dataclass
class PyTorchSession:
    """A loaded block on one device."""

    block: Attention
    provider: str

    def run(self, inputs: BlockInputs, *, stages: bool = False) -> BlockOutputs:
        """Run one call. Positions are checked by the block before it computes anything (SpecError)."""
        import torch

        from portpe.reference.arrays import to_numpy, to_torch

        check_states(self.block.spec, inputs)
        arrays = {name: value for name, value in vars(inputs).items() if name != "past_states"}
        given = {name: to_torch(array).to(self.provider) for name, array in arrays.items()}
        past_states = {name: to_torch(array).to(self.provider) for name, array in inputs.past_states.items()}
        with torch.inference_mode():
            stages_found = self.block.stages(**given, past_states=past_states)
            found = {name: to_numpy(tensor) for name, tensor in stages_found.items()}
        key, value = (found.pop(name) for name in CACHE)
        states = {name: found.pop(f"present_{name}") for name in self.block.spec.cached_states}
        return BlockOutputs(found["output"], key, value, found if stages else {}, states)


class PyTorch:
    """PyTorch on the CPU, or on CUDA where it is asked for."""

    name = "pytorch"

    def availability(self) -> Availability:
        """Usable where torch can be imported."""
        if find_spec("torch") is None:
            return Availability(False, reason="torch is not installed; pip install 'portpe[torch]'")
        try:
            import torch
        except Exception as error:  # a broken installation raises what it likes, and must not end the listing
            return Availability(False, reason=f"torch cannot be imported: {error}")
        device = f"cpu, cuda ({torch.cuda.get_device_name()})" if torch.cuda.is_available() else "cpu"
        return Availability(True, version=torch.__version__, device=device)

    def configurations(self, bundle: Bundle, provider: str | None = None) -> list[Configuration]:
        """The block in each of the bundle's types. Raises SpecError for a device that is not here."""
        provider = (provider or "cpu").lower().removesuffix("executionprovider")  # as ONNX Runtime names them, too
        _check_provider(provider)
        return [Configuration("module", dtype, provider) for dtype in bundle.dtypes]

    def gaps(self, bundle: Bundle) -> list[tuple[str, str]]:
        """None: every type runs."""
        del bundle
        return []

    def open(self, bundle: Bundle, configuration: Configuration) -> PyTorchSession:
        """The block with the bundle's weights; tables only where they are transformers' own numbers."""
        import torch

        from portpe.reference import Attention

        _check_provider(configuration.provider)
        tables: Any = bundle.tables() if bundle.spec.precision == "hf" else None
        block = Attention(bundle.spec, dtype=getattr(torch, configuration.dtype), tables=tables)
        block = block.load(bundle.weights()).to(configuration.provider)
        return PyTorchSession(block, configuration.provider)


def _check_provider(provider: str) -> None:
    if provider not in PROVIDERS:
        raise SpecError(f"provider must be one of {', '.join(PROVIDERS)} for pytorch, got {provider!r}")
    if provider == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise SpecError("provider cuda is not usable: torch sees no CUDA device here; use cpu")


RUNTIME = PyTorch()

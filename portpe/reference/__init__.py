"""Layer: reference. The block in PyTorch, readable stage by stage; in float64 it is parity's truth."""

from portpe.reference.block import Attention, Result

__all__ = ["Attention", "Result"]

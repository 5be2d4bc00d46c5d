"""A rotary module of transformers against ours: cos and sin bit for bit, and the rotation that its family applies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from portpe import hf_tables
from portpe.encodings import RotaryEncoding
from portpe.reference.rotary import Rotary, rotate
from tests.walk.row import Case

Positions = NDArray[np.int64]
Apply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Any]

# No arange, rows of one batch that differ, short and far.
POSITIONS = np.array([[0, 7, 1023, 131071, 5], [64, 3, 1_000_000, 2048, 77]])


def positions_of(encoding: RotaryEncoding) -> NDArray[np.int64]:
    """(2, 5), or (axes, 2, 5) where positions have several coordinates, none of which is another."""
    if encoding.axes is None:
        return POSITIONS
    return np.stack([np.roll(POSITIONS, axis, axis=1) // (1 + 2 * axis) for axis in range(encoding.position_axes)])


def rotary(
    name: str | None = None,
    *,
    apply: Apply | None = None,
    settings: Callable[[Case, int], Any] = lambda case, _layer: case.config,
    modeling: str | None = None,
) -> Callable[[Case], None]:
    """The family's rotary class, made from the config and called with (x, position_ids[, layer_type]).

    Args:
        name: the class; None: what the config class's own name gives (``OlmoConfig``: ``OlmoRotaryEmbedding``).
        apply: rotates (q, k, cos, sin); None: the module's ``apply_rotary_pos_emb``.
        settings: the config that the class takes for a layer, where that is not the case's own.
        modeling: the package of the classes, where that is not the config's own.
    """

    def check(case: Case) -> None:
        module = case.modeling if modeling is None else case.module(modeling)
        rotate_both = module.apply_rotary_pos_emb if apply is None else apply
        compared = 0
        for index, reading in case.layers():
            if (encoding := reading.spec.rotary) is not None:
                compared += 1
                embedding = _class_of(module, case.config, name)(settings(case, index))
                cos, sin = _their_numbers(embedding, case.config, index, positions_of(encoding))
                assert_same_numbers(encoding, cos, sin)
                assert_same_rotation(encoding, rotate_both, cos, sin)
        assert compared, "no layer has a rotary encoding"

    return check


def _class_of(module: Any, config: Any, name: str | None) -> Any:
    if name is not None:
        return getattr(module, name)
    stem = type(config).__name__.removesuffix("Config")
    names = [f"{one}RotaryEmbedding" for one in (stem, stem.removesuffix("Text"), stem.replace("Text", ""))]
    return next(getattr(module, one) for one in names if hasattr(module, one))


def _their_numbers(
    module: Any, config: Any, index: int, positions: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    more = {}
    parameters = inspect.signature(inspect.unwrap(type(module).forward)).parameters
    if "layer_type" in parameters and getattr(config, "layer_types", None) is not None:
        more["layer_type"] = config.layer_types[index]
    cos, sin = module(torch.zeros(1), torch.from_numpy(positions), **more)
    return cos, sin


def assert_same_numbers(
    encoding: RotaryEncoding, cos: torch.Tensor, sin: torch.Tensor, positions: Positions | None = None
) -> None:
    """Theirs hold a pair's number once, or twice: in halves or side by side. Its sign belongs to their rotation."""
    positions = positions_of(encoding) if positions is None else positions
    ours = hf_tables.cos_sin(encoding.model_copy(update={"sign": 1}), positions, int(positions.max()) + 1)
    for mine, theirs in zip(ours, (cos, sin), strict=True):
        assert theirs.dtype == torch.float32
        found = theirs.numpy()
        if found.shape == mine.shape:
            assert np.array_equal(mine, found)
        else:
            halves, pairs = np.concatenate([mine, mine], -1), np.repeat(mine, 2, -1)
            assert found.shape == halves.shape
            assert np.array_equal(found, halves) or np.array_equal(found, pairs)


def assert_same_rotation(
    encoding: RotaryEncoding, apply: Any, cos: torch.Tensor, sin: torch.Tensor, positions: Positions | None = None
) -> None:
    """The rotated channels of q and k; some families form the products in float32, so to float32's roundings."""
    generator = torch.Generator().manual_seed(3)
    positions = positions_of(encoding) if positions is None else positions
    batch, length = POSITIONS.shape
    q, k = (torch.randn(batch, heads, length, encoding.width, generator=generator) for heads in (3, 2))
    rotation = Rotary(encoding.model_copy(update={"channels": "first"}), None, torch.float32)(
        torch.from_numpy(positions)
    )
    for given, found in zip((q, k), apply(q, k, cos, sin), strict=True):
        expected = rotate(given, rotation)
        scale = given.abs().max() * encoding.magnitude
        assert (found - expected).abs().max() <= 2e-7 * 2 * scale
        assert (given - expected).abs().max() > 0.1 * scale

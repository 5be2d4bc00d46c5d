"""Golden values: inputs of a block and the truth at sampled places, stored so that any machine can judge a runtime.

One file, ``golden.safetensors``, plain arrays only. Inputs have at most 8 significant bits (they are stored as
bfloat16), so one set serves every type; the truth is stored in float64, once a type. A long past is one tile, repeated,
the channels of each repetition rolled by one more. Names: ``CASE/hidden_states``, ``CASE/position_ids``,
``CASE/attention_mask``, ``CASE/key_position_ids``, ``CASE/past_key_tile``, ``CASE/past_value_tile``, ``CASE/past``,
``CASE/pairs``, ``CASE/heads``, ``CASE/slots``, and ``CASE/DTYPE/NAME`` for the truth; ``CASE/past_state_tile.NAME`` and
``CASE/DTYPE/present_state.NAME`` where encodings cache more than keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from portpe.errors import SpecError
from portpe.interface import DTYPES, Array, BlockInputs

_INTEGERS = ("position_ids", "attention_mask", "key_position_ids")
_TENSORS = ("hidden_states", "past_key_tile", "past_value_tile")
_PLACES = ("pairs", "heads", "slots")
_TRUTH = ("output", "present_key", "present_value")
_STATE_TILE, _PRESENT_STATE = "past_state_tile.", "present_state."
_CASES = "cases"  # metadata key: the names in their order


@dataclass(frozen=True)
class CaseInputs:
    """The inputs of one case, in no type yet, and where its outputs are sampled.

    ``hidden_states`` (B, S, width) and the tiles (B, kv_heads, tile, D) are bfloat16; the ``past`` slots are the tile,
    repeated: repetition r has its channels rolled by r (channel c holds channel c - r of the tile). ``pairs`` (P, 2)
    are (batch, row) of queries that count, ``heads`` the query heads of the stages, ``slots`` (K, 2) are (batch, cache
    slot) of the new keys that count. ``past_state_tiles`` are (B, numbers of a token, tile), repeated likewise with
    their slots rolled.
    """

    name: str
    hidden_states: Array
    position_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    key_position_ids: NDArray[np.int64]
    past_key_tile: Array
    past_value_tile: Array
    past: int
    pairs: NDArray[np.int64]
    heads: NDArray[np.int64]
    slots: NDArray[np.int64]
    past_state_tiles: dict[str, Array] = field(default_factory=dict)

    def inputs(self, dtype: str) -> BlockInputs:
        """The call's arrays in one type; exact, since 8 bits fit every type."""
        kind = DTYPES[dtype]
        return BlockInputs(
            hidden_states=self.hidden_states.astype(kind),
            position_ids=self.position_ids,
            attention_mask=self.attention_mask,
            key_position_ids=self.key_position_ids,
            past_key=_repeated(self.past_key_tile, self.past).astype(kind),
            past_value=_repeated(self.past_value_tile, self.past).astype(kind),
            past_states={
                name: _repeated(tile, self.past).astype(np.float32) for name, tile in self.past_state_tiles.items()
            },
        )


@dataclass(frozen=True)
class GoldenCase:
    """One case and its truth in one type.

    ``output`` (P, hidden) at ``case.pairs``; ``present_key`` and ``present_value`` (K, kv_heads, D) at
    ``case.slots``; ``stages`` at the pairs and ``case.heads``: embedded and normed (P, width), q and k (P, heads, D),
    scores and probs (P, heads, T). The kv heads of k and v are those of the query heads, each once.
    ``present_states`` (K, numbers of a token) at the slots, by name.
    """

    case: CaseInputs
    dtype: str
    output: NDArray[np.float64]
    present_key: NDArray[np.float64]
    present_value: NDArray[np.float64]
    stages: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    present_states: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.case.name

    @cached_property
    def inputs(self) -> BlockInputs:
        """The call's arrays, in the case's type."""
        return self.case.inputs(self.dtype)


def kv_heads_of(heads: NDArray[np.int64], num_heads: int, num_kv_heads: int) -> NDArray[np.int64]:
    """The kv heads that these query heads read, each once, ascending."""
    return np.unique(heads // (num_heads // num_kv_heads))


def save(path: Path, cases: Iterable[CaseInputs], truths: Iterable[GoldenCase]) -> None:
    """Write inputs once a case and the truth once a type. The same arrays give the same bytes."""
    arrays: dict[str, Array] = {}
    names = []
    for case in cases:
        names.append(case.name)
        arrays |= {f"{case.name}/{key}": value for key, value in _stored(case).items()}
    for golden in truths:
        place = f"{golden.name}/{golden.dtype}"
        arrays |= {f"{place}/{key}": getattr(golden, key) for key in _TRUTH}
        arrays |= {f"{place}/stage.{key}": value for key, value in golden.stages.items()}
        arrays |= {f"{place}/{_PRESENT_STATE}{key}": value for key, value in golden.present_states.items()}
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(plain, path, metadata={_CASES: ",".join(names)})


def load(path: Path, dtype: str) -> list[GoldenCase]:
    """Every case of one type, in order. Needs numpy only.

    Raises:
        SpecError: a file that cannot be read, without cases, or with an array that is missing, empty or not finite.
    """
    try:
        with safe_open(str(path), "numpy") as file:
            names = list(file.keys())
            arrays = {name: file.get_tensor(name) for name in names if _wanted(name, dtype)}
            order = (file.metadata() or {}).get(_CASES, "")
    except (SafetensorError, OSError) as error:
        cause = " ".join(str(error).split())
        raise SpecError(f"{path.name} cannot be read: {cause}; export the bundle again") from None
    cases = [name for name in order.split(",") if name]
    if not cases:
        raise SpecError(f"{path.name} must hold at least one case, got none; export the bundle again")
    for name in cases:
        _check(arrays, name, dtype, path.name)
    return [_golden(arrays, name, dtype) for name in cases]


def _check(arrays: Mapping[str, Array], case: str, dtype: str, file: str) -> None:
    """Refuse a case that nothing could be judged by. Raises SpecError."""
    needed = [f"{case}/{key}" for key in (*_INTEGERS, *_TENSORS, *_PLACES, "past")]
    needed += [f"{case}/{dtype}/{key}" for key in _TRUTH]
    for name in needed:
        if name not in arrays:
            raise SpecError(f"{file} must hold {name}; export the bundle again")
    for key in _PLACES:
        if not arrays[f"{case}/{key}"].size:
            raise SpecError(f"{file} {case}/{key} must name at least one place, got none; export the bundle again")
    for name, array in arrays.items():
        if name.startswith(f"{case}/") and not np.isfinite(array.astype(np.float64)).all():
            raise SpecError(f"{file} {name} must be finite, got NaN or infinity; export the bundle again")


def _wanted(name: str, dtype: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 or parts[1] == dtype


def _stored(case: CaseInputs) -> Mapping[str, Array]:
    stored: dict[str, Any] = {key: getattr(case, key) for key in _INTEGERS}
    stored["attention_mask"] = case.attention_mask.astype(np.uint8)
    for key in _TENSORS:
        stored[key] = getattr(case, key).astype(DTYPES["bfloat16"])
    stored |= {f"{_STATE_TILE}{key}": tile.astype(DTYPES["bfloat16"]) for key, tile in case.past_state_tiles.items()}
    for key in _PLACES:
        stored[key] = getattr(case, key).astype(np.int64)
    return stored | {"past": np.array([case.past], dtype=np.int64)}


def _golden(arrays: Mapping[str, Array], name: str, dtype: str) -> GoldenCase:
    own = {key.split("/", 1)[1]: value for key, value in arrays.items() if key.startswith(f"{name}/")}
    integers = {key: own[key].astype(np.int64) for key in (*_INTEGERS, *_PLACES)}
    tensors = {key: own[key] for key in _TENSORS}
    tiles = {key.removeprefix(_STATE_TILE): own[key] for key in own if key.startswith(_STATE_TILE)}
    case = CaseInputs(name=name, past=int(own["past"][0]), **integers, **tensors, past_state_tiles=tiles)
    truth = {key.split("/", 1)[1]: value for key, value in own.items() if key.startswith(f"{dtype}/")}
    stages = {key.removeprefix("stage."): value for key, value in truth.items() if key.startswith("stage.")}
    states = {key.removeprefix(_PRESENT_STATE): value for key, value in truth.items() if key.startswith(_PRESENT_STATE)}
    return GoldenCase(case, dtype, truth["output"], truth["present_key"], truth["present_value"], stages, states)


def _repeated(tile: Array, length: int) -> Array:
    """The first ``length`` slots of the tile repeated without end, along axis 2, each repetition rolled by one more.

    Equal keys would be rounded alike, and a thousand equal errors do not cancel as those of a real cache do.
    """
    if length <= tile.shape[2]:
        return tile[:, :, :length]
    repetitions = -(-length // tile.shape[2])
    return np.concatenate([np.roll(tile, shift, axis=-1) for shift in range(repetitions)], axis=2)[:, :, :length]

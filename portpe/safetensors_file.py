"""The safetensors files of a checkpoint folder: which there are, and which file holds a tensor.

Headers are parsed and files are memory-mapped by the safetensors library, which checks every offset against the
file's length; a tensor's bytes are read when that tensor is asked for, and no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy, by which name the library asks for it)
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from portpe.errors import SpecError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.pkl")
FLOATS = {"F64", "F32", "F16", "BF16"}


class TensorFiles:
    """The tensors of a checkpoint by name, over one file or the shards of an index.

    Raises SpecError for a folder without safetensors, for a pickle or GGUF checkpoint, for an index that names a
    missing file or one outside the folder, and for a damaged file when it is first opened.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shards: dict[str, Any] = {}
        self._files = _weight_map(folder, self)

    @property
    def names(self) -> Mapping[str, str]:
        """Every tensor's name, with the file that holds it."""
        return self._files

    def place(self, name: str) -> str:
        """``file: tensor``, for messages."""
        return f"{self._files[name]}: {name}"

    def dtype(self, name: str) -> str:
        """The stored type in safetensors' own words: F32, BF16, F8_E4M3, ..."""
        return str(self._slice(name).get_dtype())

    def read(self, name: str) -> NDArray[Any]:
        """One tensor in its stored type (bfloat16 as ml_dtypes'). Raises SpecError for an integer or 8-bit type."""
        stored = self.dtype(name)
        if stored not in FLOATS:
            raise SpecError(
                f"{self.place(name)} has type {stored}: a quantised checkpoint is not read;"
                " take the float checkpoint that it was made from"
            )
        array: NDArray[Any] = self.shard(self._files[name]).get_tensor(name)
        return array

    def shard(self, file: str) -> Any:
        """The opened (memory-mapped) file. Raises SpecError for a damaged one."""
        if file not in self._shards:
            try:
                self._shards[file] = safe_open(str(self.folder / file), "numpy")
            except SafetensorError as error:
                raise SpecError(
                    f"{file} is truncated or damaged: {_flat(error)}; fetch or save the checkpoint again"
                ) from None
            except OSError as error:
                raise SpecError(f"{file} cannot be read: {_flat(error)}") from None
        return self._shards[file]

    def _slice(self, name: str) -> Any:
        try:
            return self.shard(self._files[name]).get_slice(name)
        except SafetensorError:
            raise SpecError(
                f"{INDEX} says that {name} is in {self._files[name]}, which does not have it;"
                " fetch or save the checkpoint again"
            ) from None


def has_weights(folder: Path) -> bool:
    """Whether the folder holds weights of any kind, those that ``TensorFiles`` refuses (pickle, GGUF) too."""
    patterns = (INDEX, "*.safetensors", "*.gguf", *PICKLES)
    return folder.is_dir() and any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def _weight_map(folder: Path, files: TensorFiles) -> dict[str, str]:
    """Tensor name -> file name. A single model.safetensors goes before an index, as in transformers."""
    if not folder.is_dir():
        raise SpecError(f"checkpoint must be a folder, got {folder.name!r}")
    if not (folder / SINGLE).exists() and (folder / INDEX).exists():
        return _indexed(folder)
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    file = SINGLE if SINGLE in found else _only(folder, found)
    return dict.fromkeys(files.shard(file).keys(), file)


def _only(folder: Path, found: list[str]) -> str:
    if len(found) > 1:
        raise SpecError(
            f"checkpoint {folder.name!r} has several safetensors files ({', '.join(found[:3])}) and no {INDEX};"
            f" add the index, or name the one to read {SINGLE}"
        )
    return found[0] if found else _refused(folder)


def _refused(folder: Path) -> str:
    """No safetensors at all: say what is there instead."""
    if (gguf := next(folder.glob("*.gguf"), None)) is not None:
        raise SpecError(
            f"{gguf.name} is a GGUF file, which is not read (its q and k rows are permuted and often quantised);"
            " take the safetensors checkpoint that it was made from"
        )
    for pattern in PICKLES:
        if (pickle := next(folder.glob(pattern), None)) is not None:
            raise SpecError(
                f"{pickle.name} is a pickle, which can run code and is never opened; convert it where you trust it:"
                " transformers' from_pretrained() and save_pretrained() write model.safetensors"
            )
    raise SpecError(f"checkpoint {folder.name!r} has no {SINGLE}, no {INDEX} and no other *.safetensors")


def _indexed(folder: Path) -> dict[str, str]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise SpecError(f"{INDEX} is not readable as JSON: {_flat(error)}") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise SpecError(f"{INDEX} must have weight_map, an object of tensor name to file name")
    for file in sorted(set(weight_map.values())):
        _check_inside(folder, file)
    return {str(name): file for name, file in weight_map.items()}


def _check_inside(folder: Path, file: str) -> None:
    """A shard is a plain name in the folder. A link may lead to the folder itself or to its hub cache's blobs."""
    path = folder / file
    if file != Path(file).name or "\\" in file:
        raise SpecError(f"{INDEX} names {file!r}, which is no plain file name in the folder")
    if not path.is_file():
        raise SpecError(f"{INDEX} names {file}, which is not there; fetch the whole checkpoint")
    target, home = path.resolve().parent, folder.resolve()
    allowed = {home, home.parent.parent / "blobs"} if home.parent.name == "snapshots" else {home}
    if target not in allowed:
        raise SpecError(f"{INDEX} names {file}, a link that leads out of the folder; put the file itself there")


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split()).removeprefix("Error while deserializing header: ")

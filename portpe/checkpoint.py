"""One attention layer's weights from a checkpoint folder, under canonical names (and, without one, random weights)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.config.composites import COMPOSITES
from portpe.config.weight_names import Fused, weight_names
from portpe.errors import SpecError
from portpe.random_weights import random_weights
from portpe.safetensors_file import TensorFiles, has_weights
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

__all__ = ["has_weights", "load_layer", "random_weights"]

Weights = dict[str, NDArray[Any]]

# What quantisers leave beside a projection's place.
QUANTISED = (".qweight", ".scales", ".qzeros", ".weight_scale", ".weight_scale_inv", ".weight_packed", ".SCB")
# Older BERT checkpoints name a norm's tensors as TensorFlow does.
OLD_ENDINGS = {".weight": ".gamma", ".bias": ".beta"}
# A block would drop these in silence if a checkpoint had them and the spec did not.
DECISIVE = (
    *("q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"),
    *("q_a_proj.bias", "kv_a_proj_with_mqa.bias", "q_b_proj.bias", "kv_b_proj.bias"),
    *("q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias", "v_norm.weight", "v_norm.bias", "sinks"),
    *("gate_proj.weight", "gate_proj.bias"),
)
# Where models of several towers keep their text model, older checkpoints and newer ones.
TEXT_OF_A_COMPOSITE = ("model.language_model.", "language_model.", "model.text_model.", "text_model.")
# Masks, counters and frequencies that modules saved among their weights: numbers that follow from the config.
BUFFERS = ("bias", "masked_bias", "rotary_emb", "relative_position_index", "position_ids")
EACH_HEAD = "{head}"  # in a name: one tensor a head
MISMATCH = "do config.json and the weights belong together?"
USE_FLOAT = "a quantised checkpoint is not read; take the float checkpoint that it was made from"


def load_layer(
    folder: str | Path, spec: AttentionSpec, *, model_type: str, layer: int, part: str | None = None
) -> Weights:
    """The weights of one layer, fused and transposed projections undone, in their stored types.

    Args:
        folder: holds ``model.safetensors``, or shards and ``model.safetensors.index.json``, and ``config.json``.
        spec: the layer's spec; its ``weight_shapes`` say what is read.
        model_type: the family, as in config.json.
        layer: the layer's number in the stack.
        part: ``encoder`` or ``decoder`` for a family with two stacks.

    Returns:
        Arrays by canonical name, in the order of ``weight_shapes``; bfloat16 as ml_dtypes'. Only these tensors'
        bytes are read.

    Raises:
        SpecError: a tensor is missing, has another shape, or contradicts the spec; the checkpoint is quantised, a
            pickle, GGUF, or damaged.
    """
    source = _Layer(Path(folder), spec, model_type, layer, part)
    source.refuse_quantised()
    source.refuse_unused()
    return {name: source.read(name, shape) for name, shape in weight_shapes(spec).items()}


def split_fused(array: NDArray[Any], fused: Fused, spec: AttentionSpec) -> tuple[NDArray[Any], ...]:
    """The rows of ``fused.parts``, each in the order of its heads, out of a fused (rows, ...) tensor."""
    heads, groups, dim, rest = spec.num_heads, spec.num_kv_heads, spec.head_dim, array.shape[1:]
    if fused.layout.endswith("stacked"):
        ends = np.cumsum([_rows(part, spec) for part in fused.parts])
        return tuple(np.split(array, ends[:-1]))
    if fused.layout == "query_and_gate":
        by_head = array.reshape(heads, -1, *rest)
        return by_head[:, :dim].reshape(-1, *rest), by_head[:, dim:].reshape(-1, *rest)
    grouped = array.reshape(groups, heads // groups + 2, dim, *rest)
    return tuple(part.reshape(-1, *rest) for part in (grouped[:, :-2], grouped[:, -2], grouped[:, -1]))


def _rows(part: str, spec: AttentionSpec) -> int:
    """How many rows a projection has."""
    return {
        "q_proj": spec.num_heads * spec.head_dim,
        "k_proj": spec.num_kv_heads * spec.head_dim,
        "v_proj": spec.num_kv_heads * spec.v_head_dim,
        "gate_proj": spec.gate_width,
    }[part]


def _of_head(name: str, head: int) -> str:
    return name.replace(EACH_HEAD, str(head))


class _Layer:
    """One layer of one checkpoint: canonical names in, arrays out."""

    def __init__(self, folder: Path, spec: AttentionSpec, model_type: str, layer: int, part: str | None) -> None:
        self.spec = spec
        self.row = weight_names(model_type, part)
        self.files = TensorFiles(folder)
        self.config = _config(folder)
        self.own = own = _of_part(self.config, part)
        self.what = f"layer {layer} of {model_type}"
        halves = {"half": layer // 2, "member": layer % 2}
        self.numbers = {
            "layer": layer,
            "group": _group(own, layer),
            "part": part or "encoder",
            "head": EACH_HEAD,
            **halves,
            **_stage(own, layer),
            **_cycle(own, layer),
        }
        self.prefix = self._prefix(inside=part == "text" and own is not self.config)
        self._fused: Weights = {}  # read once for all of its parts

    def _prefix(self, *, inside: bool) -> str:
        """The prefix under which this checkpoint keeps its layers; a text model ``inside`` a larger one stands deeper.

        Towers have the same endings, so nothing but a text model is looked for under a text model's names.
        """
        prefixes = [prefix.format(**self.numbers) for prefix in self.row.prefixes]
        if inside:
            prefixes = [outer + prefix for outer in TEXT_OF_A_COMPOSITE for prefix in prefixes] + prefixes
        for prefix in prefixes:
            if any(name.startswith(prefix + self.row.stem) for name in self.files.names):
                return prefix
        raise SpecError(f"checkpoint has no tensor {prefixes[0]}{self.row.stem}*, where {self.what} is; {MISMATCH}")

    def _candidates(self, canonical: str) -> list[str]:
        """The names that the family may give a tensor, the usual one first; none for a tensor it never has."""
        stem, dot, kind = canonical.partition(".")
        if dot and canonical in self.row.names:  # the name of this very tensor
            return [self.prefix + name.format(**self.numbers) for name in self.row.names[canonical].split("|")]
        ending = dot + kind
        templates = self.row.templates(stem)
        if stem == "v_proj" and self._flag(self.row.values_are_keys):
            templates += self.row.templates("k_proj")
        endings = dict.fromkeys(("",) if stem in self.row.bare else (ending, OLD_ENDINGS.get(ending, ending)))
        return [self.prefix + template.format(**self.numbers) + end for template in templates for end in endings]

    def _flag(self, key: str) -> bool:
        """Whether config.json, or the part of it that speaks of this stack, says so."""
        return self.own.get(key) is True

    def _find(self, canonical: str) -> str | None:
        return next((name for name in self._candidates(canonical) if _of_head(name, 0) in self.files.names), None)

    def _is_fused(self, canonical: str) -> bool:
        """Whether it is read out of a tensor that holds several, which some checkpoints of a family keep apart."""
        fused, stem = self.row.fused, canonical.partition(".")[0]
        if fused is None or canonical in self.row.names or stem not in fused.parts:
            return False
        name = self._find(canonical)
        return name is None or name.startswith(self.prefix + fused.name.format(**self.numbers))

    def _modules(self) -> list[str]:
        """The names of the layer's projections in this checkpoint."""
        stems = [name.removesuffix(".weight") for name in weight_shapes(self.spec) if name.endswith(".weight")]
        places = [self._candidates(f"{stem}.weight") for stem in stems if "proj" in stem.split("_")]
        return list(dict.fromkeys(names[0].removesuffix(".weight") for names in places if names))

    def refuse_quantised(self) -> None:
        """By config.json's word, unless it leaves these very modules in float; and by what lies beside them."""
        for module in self._modules():
            for ending in QUANTISED:
                if module + ending in self.files.names:
                    raise SpecError(f"{self.files.place(module + ending)}: {USE_FLOAT}")
        said = self.config.get("quantization_config") or self.config.get("quantization")
        if not said:
            return
        said = said if isinstance(said, dict) else {}
        kept = said.get("modules_to_not_convert")
        kept = [pattern for pattern in kept if isinstance(pattern, str)] if isinstance(kept, list) else []
        if not all(_is_kept(module, kept) for module in self._modules()):
            raise SpecError(f"config.json has quantization_config {said.get('quant_method', '')!r}: {USE_FLOAT}")

    def refuse_unused(self) -> None:
        """A bias, norm or sink that the checkpoint has and the spec has not would change the numbers."""
        shapes = weight_shapes(self.spec)
        heads = range(self.spec.num_heads)
        named = [name for canonical in shapes for name in self._candidates(canonical)]
        wanted = {_of_head(name, head) for name in named for head in (heads if EACH_HEAD in name else (0,))}
        for canonical in DECISIVE:
            if canonical not in shapes and (name := self._find(canonical)) not in (None, *wanted):
                place = self.files.place(str(name))
                raise SpecError(f"{place} is there, but by its config {self.what} has no {canonical}; {MISMATCH}")
        for name in self._beside_queries():
            if name not in wanted:
                raise SpecError(f"{self.files.place(name)} is there, and {self.what} has no use for it; {MISMATCH}")

    def _beside_queries(self) -> list[str]:
        """The tensors of the attention module that holds the projection of queries, but for those known to be idle."""
        query = next((name for stem in ("q_proj", "q_a_proj") if (name := self._find(f"{stem}.weight"))), "")
        home = query.removesuffix(".weight").rpartition(".")[0]
        if "att" not in "".join(home.lower().split(".")[-2:]):  # the layer itself holds them, and more than attention
            return []
        idle = (*BUFFERS, *self.row.idle)
        beside = [name for name in self.files.names if name.startswith(f"{home}.")]
        return [name for name in beside if name[len(home) + 1 :].removesuffix(".weight").split(".")[0] not in idle]

    def read(self, canonical: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """One tensor, checked: as it is stored, or cut from the fused one, and (out, in)."""
        candidates = self._candidates(canonical)
        if not candidates:
            raise SpecError(f"{canonical} has no place in a checkpoint of {self.what}; the spec must not ask for it")
        if (name := self._find(canonical)) is None:
            raise SpecError(f"checkpoint has no tensor {candidates[0]} ({canonical} of {self.what}); {MISMATCH}")
        if EACH_HEAD in name:
            return np.stack([self._stored(_of_head(name, head), shape[1:], False) for head in range(shape[0])])
        transposed = self.row.turned(canonical)
        if canonical in self.row.by_head:
            return self._by_head(canonical, name, shape)
        if not self._is_fused(canonical):
            bare = canonical.partition(".")[0] in self.row.bare or canonical in self.row.names
            return self._stored(name, shape, transposed, bare)
        assert self.row.fused is not None
        if name not in self._fused:
            self._fused[name] = self._stored(name, (self._fused_rows(), *shape[1:]), transposed)
        part = self.row.fused.parts.index(canonical.partition(".")[0])
        return np.ascontiguousarray(split_fused(self._fused[name], self.row.fused, self.spec)[part])

    def _stored(self, name: str, shape: tuple[int, ...], transposed: bool, bare: bool = False) -> NDArray[Any]:
        """A stored tensor of the right shape, turned to (out, in)."""
        wanted = shape[::-1] if transposed else shape
        array = self.files.read(name)
        if bare and [size for size in array.shape if size != 1] == [size for size in wanted if size != 1]:
            array = array.reshape(wanted)  # without axes that only broadcast
        if bare and array.ndim == 3 and len(array) == wanted[0]:  # an axis of the heads' own
            array = array.reshape(wanted if array.size == len(array) and len(wanted) == 1 else (len(array), -1))
        if array.shape != wanted:
            raise SpecError(
                f"{self.files.place(name)} must have shape {list(wanted)} for {self.what}, got {list(array.shape)};"
                f" {MISMATCH}"
            )
        return np.ascontiguousarray(array.T) if transposed else array

    def _by_head(self, canonical: str, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """One number a head for each of its channels; out of a logarithm in float32 at least."""
        heads = self.spec.num_heads
        numbers = self._stored(name, (heads,), False, bare=True)
        if canonical in self.row.logarithms:
            largest = self.row.logarithms[canonical]
            grown = np.exp(np.minimum(numbers.astype(np.float64), largest))
            numbers = grown if numbers.dtype == np.float64 else grown.astype(np.float32)
        return np.repeat(numbers, math.prod(shape) // heads).reshape(shape)

    def _fused_rows(self) -> int:
        assert self.row.fused is not None
        return sum(_rows(part, self.spec) for part in self.row.fused.parts)


def _config(folder: Path) -> dict[str, Any]:
    """config.json, or {} without one (names and shapes then decide alone)."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise SpecError(f"config.json is not readable as JSON: {' '.join(str(error).split())}") from None
    return config if isinstance(config, dict) else {}


def _of_part(config: dict[str, Any], part: str | None) -> dict[str, Any]:
    """The object of a composite's config.json that speaks of one part; the config itself where there is none."""
    chosen = COMPOSITES.get(str(config.get("model_type")), {}).get(part or "")
    inner = None if chosen is None else config.get(chosen.key)
    return inner if isinstance(inner, dict) else config


def _stage(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    """Swin: the stage of a layer and which of its blocks it is, by the ``depths`` of the stages."""
    depths = config.get("depths")
    if not isinstance(depths, list) or not all(isinstance(depth, int) for depth in depths):
        return {"stage": 0, "block": layer}
    for stage, depth in enumerate(depths):
        if layer < depth:
            return {"stage": stage, "block": layer}
        layer -= depth
    return {"stage": len(depths), "block": layer}


def _cycle(config: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """HRM: the stack of a layer's run, and its number there. Of each cycle's runs the last is the H stack's."""
    found = config.get("num_layers_per_stack") or config.get("num_hidden_layers")
    layers, low = found if isinstance(found, int) and found else 1, config.get("L_cycles", 3)
    run, number = divmod(layer, layers)
    return {"cycle": "H" if isinstance(low, int) and run % (low + 1) == low else "L", "run": number}


def _group(config: Mapping[str, Any], layer: int) -> int:
    """ALBERT: the group whose weights a layer shares (groups of equal size, in order)."""
    layers, groups = config.get("num_hidden_layers"), config.get("num_hidden_groups", 1)
    return int(layer / (layers / groups)) if isinstance(layers, int) and isinstance(groups, int) and layers else 0


def _is_kept(module: str, kept: Sequence[str]) -> bool:
    """Whether ``modules_to_not_convert`` names a module or one around it: ``*`` stands for any text."""
    patterns = (re.escape(pattern).replace(r"\*", ".*") for pattern in kept)
    return any(re.match(rf"(.*\.)?{pattern}(\.|$)", module) for pattern in patterns)

"""What competitors run: one layer with its weights, tables and graphs; and the same layer without its encoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from portpe.bundle import Bundle, data_name, graph_name
from portpe.data_file import write_data
from portpe.exporters import onnx as exporter
from portpe.exporters.onnx import ExternalWeight
from portpe.interface import Array
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from portpe.weight_shapes import weight_shapes


class BundleWeights(Mapping[str, Array]):
    """A bundle's weights, read when first asked for: who only opens graphs never holds them."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    @cached_property
    def _tensors(self) -> dict[str, Array]:
        return self._bundle.weights()

    def __getitem__(self, name: str) -> Array:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True)
class Subject:
    """One layer in one type. ``graphs`` are its ONNX files by form; ``encoded`` is False for the plain twin."""

    spec: AttentionSpec
    dtype: str
    layer: int
    weights: Mapping[str, Array]
    tables: Mapping[str, Array]
    graphs: Mapping[str, Path]
    folder: Path
    encoded: bool = True

    @property
    def key(self) -> str:
        """``encoded`` or ``plain``: under which competitors keep what they loaded."""
        return "encoded" if self.encoded else "plain"

    @cached_property
    def external(self) -> dict[str, ExternalWeight]:
        """Where the weights of a graph of this layer would lie, without writing them."""
        tensors = exporter.graph_weights(self.spec, self.weights, self.dtype)
        offset, found = 0, {}
        for name, tensor in tensors.items():
            found[name] = ExternalWeight(data_name(self.dtype), offset, tensor.nbytes, self.dtype, tuple(tensor.shape))
            offset += tensor.nbytes
        return found


def of_bundle(bundle: Bundle, dtype: str, folder: Path) -> Subject:
    """The bundle's own files. ``folder`` is for what competitors write."""
    graphs = {form: bundle.graph(form, dtype) for form in bundle.forms}
    return Subject(bundle.spec, dtype, bundle.layer, BundleWeights(bundle), bundle.tables(), graphs, folder)


def without_encoding(spec: AttentionSpec) -> AttentionSpec:
    """The same layer, position-blind: no rotation, no bias, nothing added to the embedding."""
    nothing = {"rotary": None, "query_scale": None, "embedding": None, "embedding_to": "input", "bias": ()}
    return spec.model_copy(update=nothing)


def plain_twin(subject: Subject, folder: Path) -> Subject | None:
    """The subject without its encoding, exported the same way; None where it has none.

    A form that cannot carry the twin is left out of its graphs.
    """
    spec = without_encoding(subject.spec)
    if spec == subject.spec:
        return None
    weights = {name: subject.weights[name] for name in weight_shapes(spec)}
    tables = table_set(spec)
    home = folder / "onnx"
    home.mkdir(parents=True)
    tensors = exporter.graph_weights(spec, weights, subject.dtype)
    location = data_name(subject.dtype)
    places = write_data(home / location, tensors)
    external = {
        name: ExternalWeight(location, *places[name], subject.dtype, tuple(tensor.shape))
        for name, tensor in tensors.items()
    }
    graphs = {}
    for form in subject.graphs:
        if exporter.FORMS[form].carries(spec) is None:
            path = folder / graph_name(form, subject.dtype)
            path.write_bytes(
                exporter.build(
                    spec, form=form, dtype=subject.dtype, layer=subject.layer, tables=tables, weights=external
                )
            )
            graphs[form] = path
    return Subject(spec, subject.dtype, subject.layer, weights, tables, graphs, folder, encoded=False)

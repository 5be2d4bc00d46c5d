"""One layer's bundle: what it is made of, and the writing of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import portpe
from portpe import bundle as bundles
from portpe import checkpoint, config, decays, golden
from portpe.data_file import read_data, write_data
from portpe.errors import SpecError
from portpe.exporters import mlx
from portpe.exporters import onnx as graphs
from portpe.exporters.onnx import ExternalWeight
from portpe.interface import Array
from portpe.learned import settle
from portpe.manifest import SCHEMA_VERSION
from portpe.sizing import GOLDEN_LIMIT
from portpe.spec import AttentionSpec
from portpe.tables import TABLE_STEP, default_end, end_of, sides, table_set
from portpe.weight_shapes import weight_shapes

LARGEST_TABLES = 2**31 - 2**20  # bytes; protobuf ends at 2 GiB, and the nodes need some
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How to export, whatever the layer."""

    part: str | None
    forms: tuple[str, ...]
    dtypes: tuple[str, ...]
    context: int | None
    regime: config.RegimeName | None
    precision: Literal["exact", "hf"]
    table_positions: int | None
    input_norm: bool
    golden: bool
    ignore_keys: tuple[str, ...]
    seed: int
    quantize: tuple[str, ...] = ()

    @property
    def graph_types(self) -> tuple[tuple[str, str], ...]:
        """(dtype, quantisation) of every graph; "" for whole weights."""
        return tuple((dtype, kind) for dtype in self.dtypes for kind in ("", *self.quantize))

    def check(self) -> None:
        """Refuse what no layer could be exported with. Raises SpecError."""
        if not self.forms or not self.dtypes:
            raise SpecError("forms and dtypes must hold at least one name, got none")
        for form in self.forms:
            if form not in graphs.FORMS:
                raise SpecError(f"form must be one of {', '.join(graphs.FORMS)}, got {form!r}")
        for name in self.quantize:
            _check_quantization(name, self.dtypes)
        if self.table_positions is not None and self.table_positions < 1:
            raise SpecError(f"table_positions must be >= 1, got {self.table_positions}")


@dataclass(frozen=True)
class Layer:
    """Everything that one bundle is made of, read and checked."""

    spec: AttentionSpec
    number: int
    weights: dict[str, Array]
    tables: dict[str, Array]
    table_positions: int | None
    manifest: dict[str, Any]

    def write(self, folder: Path, settings: Settings, say: Progress) -> None:
        """Fill an empty folder; the manifest comes last. The same layer and settings give the same bytes."""
        bundles.write_tensors(folder / bundles.WEIGHTS, self.weights)
        if self.spec.precision == "hf":
            bundles.write_tensors(folder / bundles.HF_TABLES, self.tables)
        quantization: dict[str, Any] = {name: graphs.quantization_facts(name) for name in settings.quantize}
        for dtype, kind in settings.graph_types:
            say(f"graphs in {bundles.graph_type(dtype, kind)}")
            places = self._write_graphs(folder / "onnx", settings.forms, dtype, kind)
            if kind:
                quantization[kind]["tensors"][dtype] = places
        mlx.write(
            self.spec, self.weights, layer=self.number, folder=folder / "mlx", table_positions=self.table_positions
        )
        exclusions = self._write_golden(folder, settings, quantization, say) if settings.golden else []
        say("digests")
        capabilities = {form: graphs.FORMS[form].to_dict() for form in settings.forms}
        extra = {"capabilities": capabilities, "exclusions": exclusions, "versions": _versions(settings)}
        if quantization:
            extra["quantization"] = quantization
        bundles.seal(folder, {**self.manifest, **extra})

    def _write_graphs(self, folder: Path, forms: tuple[str, ...], dtype: str, kind: str) -> dict[str, list[Any]]:
        """Graphs and weights of one type; the place, type and shape of each tensor by name."""
        folder.mkdir(exist_ok=True)
        tensors = graphs.graph_weights(self.spec, self.weights, dtype)
        if kind:
            tensors = graphs.quantized_weights(tensors, kind)
        named = bundles.graph_type(dtype, kind)
        location = bundles.data_name(named)
        places = write_data(folder / location, tensors)
        external = {
            name: ExternalWeight(location, *places[name], tensor.dtype.name, tuple(tensor.shape))
            for name, tensor in tensors.items()
        }
        for form in forms:
            for stages in (False, True):
                model = graphs.build(
                    self.spec,
                    form=form,
                    dtype=dtype,
                    layer=self.number,
                    tables=self.tables,
                    weights=external,
                    stages=stages,
                )
                (folder.parent / bundles.graph_name(form, named, stages=stages)).write_bytes(model)
        return {name: [each.offset, each.length, each.dtype, list(each.shape)] for name, each in external.items()}

    def _write_golden(
        self, folder: Path, settings: Settings, quantization: dict[str, Any], say: Progress
    ) -> list[dict[str, str]]:
        from portpe.parity import cases, quantization_error, truth  # 40 ms that --no-golden does without

        inputs, excluded = cases.build(self.spec, self.weights, self.tables, end_of(self.spec, self.tables))
        tables = self.tables if self.spec.precision == "hf" else None
        truths: list[golden.GoldenCase] = []
        for dtype in settings.dtypes:
            say(f"golden values in {dtype}")
            whole = list(truth.golden(self.spec, self.weights, tables, inputs, dtype))
            truths += whole
            for name in settings.quantize:
                kind = bundles.graph_type(dtype, name)
                say(f"golden values in {kind}")
                own = self._dequantized(folder, kind, quantization[name]["tensors"][dtype])
                found = truth.golden(self.spec, self.weights, tables, inputs, dtype, own)
                truths += [dataclasses.replace(case, dtype=kind) for case in found]
                graph = folder / bundles.graph_name(settings.forms[0], kind)
                error = quantization_error.measure(graph, self.spec, self.number, inputs, whole)
                quantization[name]["error"][dtype] = error
        path = folder / bundles.GOLDEN
        golden.save(path, inputs, truths)
        if path.stat().st_size > GOLDEN_LIMIT * len(settings.graph_types):
            raise SpecError(
                f"golden values must take at most {GOLDEN_LIMIT} bytes a type, got {path.stat().st_size} for "
                f"{len(settings.graph_types)}; export with --no-golden"
            )
        return [dataclasses.asdict(exclusion) for exclusion in excluded]

    def _dequantized(self, folder: Path, kind: str, places: dict[str, list[Any]]) -> dict[str, Array]:
        tensors = read_data(folder / "onnx" / bundles.data_name(kind), places)
        return graphs.dequantized_weights(tensors, bundles.split_type(kind)[1], weight_shapes(self.spec))


def prepare(source: object, number: int, settings: Settings) -> Layer:
    """Read one layer and its weights, make its tables, and refuse what no form can carry, before a byte is written.

    Raises:
        SpecError: bad input, or a spec whose frequencies depend on the length while no regime fixes it.
    """
    reading = config.read(
        source,
        number,
        settings.part,
        ignore_keys=settings.ignore_keys,
        input_norm=settings.input_norm,
        precision=settings.precision,
        context=settings.context,
        regime=settings.regime,
    )
    spec = reading.spec
    _refuse(spec, settings.forms, settings.dtypes)
    weights, origin = _weights(source, reading, settings.seed)
    spec, weights = settle(spec, weights)
    end = _end(spec, settings.table_positions)
    for dtype in settings.dtypes:
        if spec.rotary is not None:
            decays.check(spec.rotary, 0, end - 1, dtype)
    _refuse_large(spec, end)
    tables = table_set(spec, end)
    table_positions = end if spec.rotary is not None and sides(spec.rotary) else end_of(spec, tables)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "spec": spec.to_dict(),
        "source": {"name": reading.source_name, "sha256": reading.sha256},
        "layer": reading.layer,
        "part": reading.part,
        "forms": list(settings.forms),
        "dtypes": list(settings.dtypes),
        "table_positions": table_positions,
    }
    return Layer(spec, reading.layer, weights, tables, table_positions, manifest | origin)


def _refuse(spec: AttentionSpec, forms: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    if spec.length_dependent:
        assert spec.rotary is not None
        raise SpecError(
            f"schedule {spec.rotary.schedule.kind} depends on the current length, and cached keys would keep the "
            "rotation of another one; fix the length with --context L, or cache keys before rotation with "
            "--regime per_sequence"
        )
    for form in forms:
        for dtype in dtypes:
            if reason := graphs.refusal(spec, form, dtype):
                raise SpecError(reason)


def _check_quantization(name: str, dtypes: tuple[str, ...]) -> None:
    """Refuse a quantisation that cannot be made, before a byte is written. Raises SpecError."""
    if name not in graphs.QUANTIZATIONS:
        raise SpecError(f"quantize must be one of {', '.join(graphs.QUANTIZATIONS)}, got {name!r}")
    if "bfloat16" in dtypes:
        raise SpecError(f"quantize {name} needs dtype float32 or float16, got bfloat16; export that one apart")
    if find_spec("onnxruntime") is None:
        raise SpecError(f"quantize {name} needs onnxruntime, which is not installed; pip install 'portpe[onnx]'")


def _weights(source: object, reading: config.Reading, seed: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """The layer's weights, and what the manifest says of them: a checkpoint's, a bundle's own, or random ones."""
    if isinstance(source, str | Path) and bundles.is_bundle(Path(source)):
        old = bundles.Bundle.open(source)
        kept = {key: old.manifest[key] for key in ("weights", "seed", "source")}
        return old.weights(), kept
    if reading.folder is not None and reading.model_type is not None and checkpoint.has_weights(reading.folder):
        weights = checkpoint.load_layer(
            reading.folder, reading.spec, model_type=reading.model_type, layer=reading.layer, part=reading.part
        )
        return weights, {"weights": "checkpoint", "seed": None}
    return {**checkpoint.random_weights(reading.spec, seed)}, {"weights": "random", "seed": seed}


def _end(spec: AttentionSpec, asked: int | None) -> int:
    """How many positions the tables cover: whole steps, where they have two levels."""
    if asked is None:
        return default_end(spec)
    return asked if spec.precision == "hf" else -(-asked // TABLE_STEP) * TABLE_STEP


def _refuse_large(spec: AttentionSpec, end: int) -> None:
    """Refuse tables that do not fit into a graph, before they are made. Raises SpecError."""
    rows = end if spec.precision == "hf" else end // TABLE_STEP + TABLE_STEP
    tabulated = (spec.rotary, spec.embedding)
    columns = sum(each.width for each in tabulated if each is not None and each.kind != "learned") + 1
    if rows * columns * 4 > LARGEST_TABLES:
        raise SpecError(
            f"table_positions must give tables below 2 GiB, which is what an ONNX file can hold, got {end} positions "
            f"({rows} rows of {columns} numbers); cover fewer"
        )


def _versions(settings: Settings) -> dict[str, str]:
    """Of everything that has a part in the bytes."""
    names = ["numpy", "onnx", "onnx-ir", *(["torch"] if settings.golden or settings.precision == "hf" else [])]
    names += ["onnxruntime"] if settings.quantize else []
    found = {"portpe": portpe.__version__}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

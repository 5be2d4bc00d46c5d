"""Layer: exporters/onnx. Thin typed building over onnx-ir: every value gets a type, a shape and a name.

Shape inference of importers has gaps (Range, Reshape, Expand with sizes known at run time), so shapes are
carried along while the graph is built, with symbolic sizes by name, and none is left to be inferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.exporters.onnx.weights import ExternalWeight
from portpe.interface import DTYPES

Dim = int | str
Shape = tuple[Dim, ...]

FLOAT = ir.DataType.FLOAT
DOUBLE = ir.DataType.DOUBLE
INT32 = ir.DataType.INT32
INT64 = ir.DataType.INT64
BOOL = ir.DataType.BOOL
UINT8 = ir.DataType.UINT8
TYPES = {"float32": FLOAT, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
_STORED = {**TYPES, "uint8": UINT8}
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
_NUMPY = {ir_type: DTYPES[name] for name, ir_type in TYPES.items()} | {
    DOUBLE: np.dtype(np.float64),
    INT64: np.dtype(np.int64),
    INT32: np.dtype(np.int32),
}


def shape_of(value: ir.Value) -> Shape:
    """The shape that the builder gave this value: sizes, or names of sizes."""
    assert value.shape is not None
    return tuple(dim if isinstance(dim, int) else str(dim.value) for dim in value.shape)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that ONNX's multidirectional broadcasting gives; symbolic sizes must agree by name."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result: list[Dim] = []
    for dims in zip(*padded, strict=True):
        sizes = {dim for dim in dims if dim != 1}
        if len(sizes) > 1:
            raise ValueError(f"shapes do not broadcast: {shapes}")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


class GraphBuilder:
    """Collects nodes, initializers, inputs; names nodes ``stage/Operator``."""

    def __init__(self, dtype: str) -> None:
        self.dtype = TYPES[dtype]
        self.inputs: list[ir.Value] = []
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}
        self._uses: Counter[str] = Counter()
        self._stage = ""
        self._domains: set[str] = set()
        self._sizes: dict[tuple[ir.Value, int], ir.Value] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Nodes made inside are named after this stage."""
        outer, self._stage = self._stage, name
        yield
        self._stage = outer

    def input(self, name: str, dtype: ir.DataType, shape: Shape) -> ir.Value:
        value = ir.val(name, dtype, shape)
        self.inputs.append(value)
        return value

    def inline(self, name: str, array: NDArray[Any], dtype: ir.DataType) -> ir.Value:
        """An initializer stored in the graph itself."""
        if name not in self._initializers:
            tensor = ir.tensor(array.astype(_NUMPY[dtype], order="C", copy=False), dtype=dtype, name=name)
            self._initializers[name] = ir.val(name, dtype, array.shape, const_value=tensor)
        elif not np.array_equal(self._array(name), array.astype(_NUMPY[dtype])):
            raise ValueError(f"two initializers have the name {name}")
        return self._initializers[name]

    def _array(self, name: str) -> NDArray[Any]:
        tensor = self._initializers[name].const_value
        assert tensor is not None
        return tensor.numpy()

    def external(self, name: str, weights: Mapping[str, ExternalWeight], dtype: ir.DataType | None = None) -> ir.Value:
        """An initializer that lies in the shared data file, of the graph's type or of ``dtype``.

        Raises SpecError where ``weights`` lacks it.
        """
        if name not in weights:
            raise SpecError(f"weights must hold {name}, got {', '.join(weights) or 'none'}")
        place = weights[name]
        if dtype is None and _STORED[place.dtype] != self.dtype:
            raise SpecError(f"weights.{name} must be {self.dtype.name.lower()}, the graph's type, got {place.dtype}")
        dtype = self.dtype if dtype is None else dtype
        if _STORED[place.dtype] != dtype:
            raise SpecError(f"weights.{name} must be {dtype.name.lower()}, got {place.dtype}")
        if name not in self._initializers:
            tensor = ir.ExternalTensor(
                place.location, place.offset, place.length, dtype, shape=ir.Shape(place.shape), name=name
            )
            self._initializers[name] = ir.val(name, dtype, place.shape, const_value=tensor)
        return self._initializers[name]

    def ints(self, *values: int) -> ir.Value:
        """A one-dimensional int64 constant: axes, sizes, the shape of a Reshape."""
        name = "ints_" + "_".join(f"m{-value}" if value < 0 else str(value) for value in values)
        return self.inline(name, np.array(values), INT64)

    def scalar(self, value: float, dtype: ir.DataType) -> ir.Value:
        """A constant of rank 0."""
        return self.inline(f"{dtype.name.lower()}_{value!r}".replace("-", "m"), np.array(value), dtype)

    def ops(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[Shape],
        dtype: ir.DataType | None = None,
        domain: str = "",
        **attributes: int | float | Sequence[int],
    ) -> tuple[ir.Value, ...]:
        """One node; its outputs have the given shapes and the type of its first input, or ``dtype``.

        None stands for an optional input that is not given; those at the end are left out.
        """
        inputs = list(inputs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        base = f"{self._stage}/{op_type}" if self._stage else op_type
        name = self._unique(base)
        names = [name] if len(outputs) == 1 else [f"{name}.{index}" for index in range(len(outputs))]
        kind = dtype
        if kind is None:
            assert inputs[0] is not None
            kind = inputs[0].dtype
        values = [ir.val(each, kind, shape) for each, shape in zip(names, outputs, strict=True)]
        self._domains.add(domain)
        self._nodes.append(ir.node(op_type, inputs, attributes, domain=domain, outputs=values, name=name))
        return tuple(values)

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        shape: Shape,
        dtype: ir.DataType | None = None,
        domain: str = "",
        **attributes: int | float | Sequence[int],
    ) -> ir.Value:
        """One node with one output."""
        return self.ops(op_type, inputs, [shape], dtype, domain, **attributes)[0]

    def binary(self, op_type: str, left: ir.Value, right: ir.Value, dtype: ir.DataType | None = None) -> ir.Value:
        """An element-wise operator of two broadcast values."""
        return self.op(op_type, left, right, shape=broadcast(shape_of(left), shape_of(right)), dtype=dtype)

    def unary(self, op_type: str, value: ir.Value) -> ir.Value:
        return self.op(op_type, value, shape=shape_of(value))

    def where(self, condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
        shape = broadcast(shape_of(condition), shape_of(then), shape_of(otherwise))
        return self.op("Where", condition, then, otherwise, shape=shape, dtype=then.dtype)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value in another type; the value itself where it has that type."""
        if value.dtype == dtype:
            return value
        return self.op("Cast", value, shape=shape_of(value), dtype=dtype, to=dtype.value)

    def matmul(self, left: ir.Value, right: ir.Value) -> ir.Value:
        a, b = shape_of(left), shape_of(right)
        if a[-1] != b[-2]:
            raise ValueError(f"shapes do not multiply: {a} and {b}")
        return self.op("MatMul", left, right, shape=(*broadcast(a[:-2], b[:-2]), a[-2], b[-1]))

    def reshape(self, value: ir.Value, target: Sequence[int], shape: Shape) -> ir.Value:
        """``target`` is what Reshape gets (0 copies a size, -1 infers one), ``shape`` what comes of it."""
        return self.op("Reshape", value, self.ints(*target), shape=shape)

    def transpose(self, value: ir.Value, *axes: int) -> ir.Value:
        shape = shape_of(value)
        return self.op("Transpose", value, shape=tuple(shape[axis] for axis in axes), perm=axes)

    def unsqueeze(self, value: ir.Value, *axes: int) -> ir.Value:
        """New axes of size 1; ``axes`` are non-negative places in the result."""
        shape = list(shape_of(value))
        for axis in sorted(axes):
            shape.insert(axis, 1)
        return self.op("Unsqueeze", value, self.ints(*axes), shape=tuple(shape))

    def concat(self, values: Sequence[ir.Value], axis: int, size: Dim) -> ir.Value:
        """``size`` is the result's size along ``axis`` (non-negative)."""
        shape = list(shape_of(values[0]))
        shape[axis] = size
        return self.ops("Concat", values, [tuple(shape)], axis=axis)[0]

    def split(self, value: ir.Value, sizes: Sequence[int], axis: int) -> tuple[ir.Value, ...]:
        shape = shape_of(value)
        parts = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
        return self.ops("Split", [value, self.ints(*sizes)], parts, axis=axis)

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """One size as a scalar, as Range takes it."""
        if (value, axis) not in self._sizes:
            self._sizes[value, axis] = self.op("Squeeze", self.sizes(value, axis), self.ints(0), shape=())
        return self._sizes[value, axis]

    def sizes(self, value: ir.Value, start: int, end: int | None = None) -> ir.Value:
        """Sizes start .. end - 1 (None: that of ``start`` alone) as a one-dimensional tensor."""
        end = start + 1 if end is None else end
        return self.op("Shape", value, shape=(end - start,), dtype=INT64, start=start, end=end)

    def choose(
        self, condition: ir.Value, then: Callable[[], Sequence[ir.Value]], otherwise: Callable[[], Sequence[ir.Value]]
    ) -> tuple[ir.Value, ...]:
        """One node If. Each branch makes its nodes when it is called, and gives values of like types and shapes."""
        name = self._unique(f"{self._stage}/If" if self._stage else "If")
        first, second = self._branch(f"{name}.then", then), self._branch(f"{name}.else", otherwise)
        values = [ir.val(f"{name}.{i}", made.dtype, shape_of(made)) for i, made in enumerate(first.outputs)]
        attributes = {"then_branch": first, "else_branch": second}
        self._nodes.append(ir.node("If", [condition], attributes, outputs=values, name=name))
        return tuple(values)

    def _branch(self, name: str, make: Callable[[], Sequence[ir.Value]]) -> ir.Graph:
        """A subgraph; it sees the values made so far, and nobody sees its own."""
        nodes, sizes = self._nodes, self._sizes
        self._nodes, self._sizes = [], dict(sizes)
        made = ir.Graph([], make(), nodes=self._nodes, name=name)
        self._nodes, self._sizes = nodes, sizes
        return made

    def _unique(self, base: str) -> str:
        """``base``, or with a number behind it where it is taken."""
        self._uses[base] += 1
        return base if self._uses[base] == 1 else f"{base}_{self._uses[base] - 1}"

    def name(self, value: ir.Value, name: str) -> ir.Value:
        """Give a computed value the name by which users know it."""
        value.name = name
        return value

    def model(
        self, outputs: Sequence[ir.Value], *, opset: int, ir_version: int, metadata: Mapping[str, str]
    ) -> ir.Model:
        graph = ir.Graph(
            self.inputs,
            outputs,
            nodes=self._nodes,
            initializers=tuple(self._initializers.values()),
            opset_imports={domain: 1 if domain else opset for domain in sorted(self._domains | {""})},
            name="attention",
        )
        return ir.Model(graph, ir_version=ir_version, producer_name="portpe", metadata_props=dict(metadata))

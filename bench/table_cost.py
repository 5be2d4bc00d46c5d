"""Layer: bench. What looking cos and sin up costs, way against way: ``python -m portpe.bench.table_cost``.

Each way rotates the queries and keys of one block, on ONNX Runtime: tables with a row for every position, tables of two
levels, and float64 angles in the graph. Then two ways to one attention: rotation before GroupQueryAttention, and inside
of it, where a table has a row for every position.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from portpe import schedules
from portpe.bench import pages, rounds
from portpe.bench.decode_loop import BLOCKS
from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.exporters.onnx import lookup, rotary
from portpe.exporters.onnx.graph import DOUBLE, FLOAT, INT32, INT64, MICROSOFT, GraphBuilder
from portpe.interface import Array
from portpe.tables import TABLE_STEP

POSITIONS = 131072  # rows of a table that has one for every position
CASES = {"1 row behind 512": (1, 512), "512 rows": (512, 0), "2048 rows": (2048, 0)}
LOOK_UPS = ("full table", "two levels", "float64 angles")

Shape = tuple[int | str, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line a way and case: median microseconds of CPU time, and how many more than a full table takes."""
    parser = argparse.ArgumentParser(prog="python -m portpe.bench.table_cost", description=main.__doc__)
    parser.add_argument("--block", choices=BLOCKS, default="A")
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args(arguments)
    block = Block(*BLOCKS[given.block])
    for case, (length, past) in CASES.items():
        for ways in (LOOK_UPS, ("rotation outside", "rotation inside")):
            calls = {way: block.call(way, length, past) for way in ways}
            took = _medians(calls, given.rounds if length == 1 else max(5, given.rounds // 6))
            for way, seconds in took.items():
                more = seconds - took[ways[0]]
                print(f"block {given.block}, {case:17} {way:16} {1e6 * seconds:9.1f} us  {1e6 * more:+8.1f} us")


class Block:
    """The rotation and the attention of one block, made in several ways."""

    def __init__(self, _hidden: int, heads: int, kv_heads: int, width: int) -> None:
        self.heads, self.kv_heads, self.width = heads, kv_heads, width
        self.encoding = RotaryEncoding(width=width, schedule=DefaultSchedule(rope_theta=500000.0))
        self.inv_freq = schedules.inv_freq(self.encoding)
        self.full = self._rows(np.arange(POSITIONS))
        coarse, fine = self._rows(np.arange(0, 2**20, TABLE_STEP)), self._rows(np.arange(TABLE_STEP))
        self.levels = {f"{name}_hi": rows for name, rows in coarse.items()}
        self.levels |= {f"{name}_lo": rows for name, rows in fine.items()}

    def call(self, way: str, length: int, past: int) -> Callable[[], Any]:
        """One call of this way, its inputs bound."""
        rng = np.random.default_rng(0)
        tokens = {
            part: rng.standard_normal((1, length, heads * self.width), np.float32)
            for part, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        }
        arrays: dict[str, Array] = {"position_ids": np.arange(past, past + length)[None], **tokens}
        graph = GraphBuilder("float32")
        positions = graph.input("position_ids", INT64, ("batch", "sequence"))
        q, k, v = (graph.input(name, FLOAT, ("batch", "sequence", array.shape[2])) for name, array in tokens.items())
        if way in LOOK_UPS:
            del arrays["v"]
            graph.inputs.remove(v)
            return _bound(graph, self._turned(graph, way, positions, q, k), arrays, {})
        cache = rng.standard_normal((1, self.kv_heads, past + length, self.width), np.float32)
        arrays |= {"past_key": cache, "past_value": cache.copy()}
        inside = way == "rotation inside"
        if not inside:
            q, k = self._turned(graph, "two levels", positions, q, k)
        outputs = self._attention(graph, (q, k, v), past + length, positions if inside else None)
        return _bound(graph, outputs, arrays, {"present_key": "past_key", "present_value": "past_value"})

    def _rows(self, positions: Array) -> dict[str, Array]:
        angles = positions.astype(np.float64)[:, None] * self.inv_freq
        return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}

    def _turned(
        self, graph: GraphBuilder, way: str, positions: ir.Value, q: ir.Value, k: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        if way == "float64 angles":
            frequencies = graph.inline("inv_freq", self.inv_freq, DOUBLE)
            angles = graph.binary("Mul", graph.unsqueeze(graph.cast(positions, DOUBLE), 2), frequencies)
            cos_sin = graph.cast(graph.unary("Cos", angles), FLOAT), graph.cast(graph.unary("Sin", angles), FLOAT)
        else:
            cos_sin = lookup.cos_sin(graph, self.full if way == "full table" else self.levels, positions)
        turned = (
            rotary.embed(graph, value, self.encoding, cos_sin, heads=heads, head_dim=self.width)
            for value, heads in ((q, self.heads), (k, self.kv_heads))
        )
        first, second = turned
        return first, second

    def _attention(
        self, graph: GraphBuilder, qkv: Sequence[ir.Value], total: int, positions: ir.Value | None
    ) -> tuple[ir.Value, ...]:
        shape: Shape = ("batch", self.kv_heads, "slots", self.width)
        buffers = [graph.input(name, FLOAT, shape) for name in ("past_key", "past_value")]
        lengths = [graph.inline("last", np.array([total - 1]), INT32), graph.inline("total", np.array(total), INT32)]
        tables: list[ir.Value | None] = [None, None, None]
        if positions is not None:
            tables = [*(graph.inline(name, rows, FLOAT) for name, rows in self.full.items()), positions]
        found = graph.ops(
            "GroupQueryAttention",
            [*qkv, *buffers, *lengths, *tables],
            [("batch", "sequence", self.heads * self.width), shape, shape],
            domain=MICROSOFT,
            num_heads=self.heads,
            kv_num_heads=self.kv_heads,
            do_rotary=int(positions is not None),
        )
        names = ("output", "present_key", "present_value")
        return tuple(graph.name(value, name) for value, name in zip(found, names, strict=True))


def _bound(
    graph: GraphBuilder, outputs: Sequence[ir.Value], arrays: Mapping[str, Array], in_place: Mapping[str, str]
) -> Callable[[], Any]:
    """The graph as a call that returns its outputs; they are new, or ``in_place`` of an input."""
    import onnxruntime

    model = ir.serde.serialize_model(graph.model(outputs, opset=23, ir_version=11, metadata={})).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        if output.name in in_place:
            binding.bind_ortvalue_output(output.name, values[in_place[output.name]])
        else:
            binding.bind_output(output.name)

    def run() -> Any:
        session.run_with_iobinding(binding)
        return binding

    return run


def _medians(calls: Mapping[str, Callable[[], object]], count: int) -> dict[str, float]:
    seconds = {way: min(rounds.once(call)[1] for _ in range(3)) for way, call in calls.items()}
    times = rounds.interleaved(calls, [list(calls)], rounds=count, seed=0, seconds=seconds)
    return {way: statistics.median(found.cpu) for way, found in times.items()}


if __name__ == "__main__":
    pages.start_again(None)
    main()
